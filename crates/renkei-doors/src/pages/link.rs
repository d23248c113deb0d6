//! Links for people without an account: the page of a file or folder, and its content. Nothing but reading is possible.
//!
//! The path is `/~link/SECRET/NAME` and below. A browser gets a page, so that programs that look where a link leads do not
//! use up its downloads; others get content at once.

use super::folder::{self, Frame};
use super::query::Query;
use super::{Shown, archive, guarded, harmless, name_in, preview, wants_page};
use crate::console;
use crate::console::html::Html;
use crate::console::page::{Page, Tab};
use crate::http::activity::Activity;
use crate::webdav::authentication::Negotiated;
use crate::webdav::error::status;
use crate::webdav::multistatus::address;
use crate::webdav::session::Session;
use crate::webdav::{self, Client};
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Request, State};
use axum::http::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderName, LOCATION, REFERRER_POLICY,
};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame as Part;
use percent_encoding::percent_decode_str;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error, Kind};
use renkei_core::identity::Need;
use renkei_core::path::{Place, SiteName};
use renkei_core::units::counted;
use renkei_mover::files::workspace::Follow;
use renkei_net::identity::certificate::utc;
use renkei_site::Site;
use renkei_site::files::body::Progress;
use renkei_site::links::{PREFIX, UsedLink};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, UNIX_EPOCH};

/// The methods of links; POST asks for an archive.
const METHODS: &str = "OPTIONS, GET, HEAD, POST";

/// Serves a request for a link.
pub(super) async fn handle(
    State(site): State<Arc<Site>>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Response {
    let (head, body) = request.into_parts();
    let query = Query { carried: String::new(), ..Query::parse(head.uri.query().unwrap_or_default()) };
    let is_known = match head.method {
        Method::GET | Method::HEAD => true,
        Method::POST => query.archive,
        _ => false,
    };
    if !is_known {
        let status =
            if head.method == Method::OPTIONS { StatusCode::OK } else { StatusCode::METHOD_NOT_ALLOWED };
        return (status, [(ALLOW, METHODS)]).into_response();
    }
    let is_page = wants_page(&head) || head.method == Method::POST;
    let name = site.name();
    match answer(site, client, head, body, query).await {
        Ok(response) => match refusal_of(response.status()) {
            Some((status, why)) => refused(&name, status, why, is_page),
            None => response,
        },
        Err(error) => {
            tracing::info!(%error, "a link was refused");
            let (status, why) = match (error.code, error.kind()) {
                (Code::TokenExpired, _) => (StatusCode::GONE, ENDED),
                (_, Kind::NotFound) => (StatusCode::NOT_FOUND, NOTHING),
                _ => refusal_of(status(&error)).unwrap_or((StatusCode::FORBIDDEN, NO_MORE)),
            };
            refused(&name, status, why, is_page)
        }
    }
}

const ENDED: &str = "This link has ended: its time is over, or it was used as often as it may be.";
const NOTHING: &str = "There is nothing here: the link was taken back, or what it led to is gone.";
const NO_MORE: &str = "This link is of no use any more: who made it may not read this.";
const FOLDER: &str = "This is a folder: open it in a browser, or get it as an archive with ?archive.";
const LATER: &str = "This cannot be read now; try again later.";

/// The refusal in place of a response that says more than strangers should know: names of accounts, paths and causes.
fn refusal_of(status: StatusCode) -> Option<(StatusCode, &'static str)> {
    match status {
        StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST => Some((StatusCode::NOT_FOUND, NOTHING)),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Some((StatusCode::FORBIDDEN, NO_MORE)),
        StatusCode::CONFLICT => Some((StatusCode::CONFLICT, FOLDER)),
        // Their responses have no body that tells more.
        StatusCode::PRECONDITION_FAILED | StatusCode::RANGE_NOT_SATISFIABLE => None,
        StatusCode::TOO_MANY_REQUESTS => Some((StatusCode::SERVICE_UNAVAILABLE, LATER)),
        status if status.is_client_error() => Some((StatusCode::FORBIDDEN, NO_MORE)),
        status if status.is_server_error() => Some((StatusCode::SERVICE_UNAVAILABLE, LATER)),
        _ => None,
    }
}

fn refused(site: &SiteName, status: StatusCode, why: &'static str, is_page: bool) -> Response {
    if !is_page {
        let body = serde_json::json!({ "title": why, "status": status.as_u16() });
        let kind = [(CONTENT_TYPE, "application/problem+json")];
        return private((status, kind, format!("{body}\n")).into_response());
    }
    let why = Html::of("<p>{}</p>", &[&why]);
    let page = Page::new(Tab::Files, "This link cannot be opened").content(why);
    private(guarded(console::answer(status, page.finish_outside(site))))
}

async fn answer(
    site: Arc<Site>,
    client: Client,
    head: Parts,
    body: Body,
    query: Query,
) -> Result<Response, Error> {
    let (secret, below) = parse(head.uri.path());
    let (links, from, slash) = (site.clone(), client.address, head.uri.path().ends_with('/'));
    let used = client.activity.run(move || links.links().open(&secret, from)).await?;
    client.activity.authenticated();
    let place = place_of(&used, &below)?;
    let id = used.status.id.clone();
    let asks_page = wants_page(&head) && !query.view && !query.download && !query.archive;
    let look = Look { site: site.clone(), used, place, query, slash };
    if asks_page {
        return client.activity.run(move || look.page(&head)).await;
    }
    let is_download = head.method != Method::HEAD;
    let activity = client.activity.clone();
    let response = look.content(client, head, body).await?;
    if !is_download || !response.status().is_success() {
        return Ok(response);
    }
    let (counting, counted) = (site.clone(), id.clone());
    activity.run(move || counting.links().count_download(&counted)).await?;
    tracing::info!(target: "audit", link = id, address = %from, "link used");
    let (parts, body) = response.into_parts();
    Ok(Response::from_parts(parts, Body::new(Counted { body, bytes: 0, id, site, activity })))
}

/// The secret, and the path below the name of the place.
fn parse(path: &str) -> (String, Vec<u8>) {
    let (secret, rest) = path.strip_prefix(PREFIX).and_then(|rest| rest.split_once('/')).unwrap_or_default();
    let below = rest.split_once('/').map_or("", |(_, below)| below);
    (secret.to_owned(), percent_decode_str(below.trim_end_matches('/')).collect())
}

fn place_of(used: &UsedLink, below: &[u8]) -> Result<Place, Error> {
    let mut place = used.status.place.clone();
    for name in below.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        place.path = place.path.child(name)?;
    }
    Ok(place)
}

/// A use of a link.
struct Look {
    site: Arc<Site>,
    used: UsedLink,
    place: Place,
    query: Query,
    /// Whether the path ended with a slash.
    slash: bool,
}

impl Look {
    fn page(self, head: &Parts) -> Result<Response, Error> {
        let session = Session::open(self.site.clone(), self.used.evidence.clone())?;
        let (files, path) = session.files(&self.place, Need::Read)?;
        let item = files.stat(&path, Follow::Yes)?;
        let is_dir = item.entry.kind == EntryKind::Dir;
        if is_dir != self.slash {
            let path = head.uri.path().trim_end_matches('/');
            let to = if is_dir { format!("{path}/") } else { path.to_owned() };
            return Ok((StatusCode::FOUND, [(LOCATION, to)]).into_response());
        }
        let top = self.used.status.place.path.as_bytes();
        let frame = Frame {
            site: self.site.name(),
            visitor: None,
            place: self.place.clone(),
            top: if top.is_empty() { 0 } else { top.split(|byte| *byte == b'/').count() },
            may_change: false,
            is_link: true,
            // It would be a download that is not counted.
            may_preview: self.used.status.limit.is_none(),
            note: self.note(),
        };
        let page = match is_dir {
            true => folder::page(&files, &path, &self.query, &frame)?,
            false => preview::page(&files, &path, &self.query, &frame)?,
        };
        self.site.links().count_open(&self.used.status.id)?;
        Ok(private(guarded(console::answer(StatusCode::OK, page))))
    }

    fn note(&self) -> Html {
        let status = &self.used.status;
        let until = utc(UNIX_EPOCH + Duration::from_secs(status.until));
        let mut note = Html::of("<p class=\"linked\">Shared by a link, until {}", &[&until]);
        if let Some(limit) = status.limit {
            let left = u64::from(limit).saturating_sub(status.downloads);
            note.put("; {} left", &[&counted(left, "download is", "downloads are")]);
        }
        note.put(".</p>", &[]);
        note
    }

    /// The content of a file, or the archive of a folder.
    async fn content(self, client: Client, head: Parts, body: Body) -> Result<Response, Error> {
        let Look { site, used, place, query, .. } = self;
        if query.archive && head.method != Method::HEAD {
            let shown = Shown { site, evidence: used.evidence, visitor: None, place, query };
            return Ok(private(archive::answer(shown, body, client.activity, true).await?));
        }
        let name = name_in(head.uri.path());
        // No credential of the client counts here.
        let mut request = Request::from_parts(head, Body::empty());
        *request.uri_mut() = Uri::try_from(address(&place, false)).unwrap_or_default();
        request.headers_mut().remove(AUTHORIZATION);
        request.extensions_mut().remove::<Negotiated>();
        request.extensions_mut().insert(used.evidence);
        let client = Client { chain: None, ..client };
        let response = webdav::handle(State(site), Extension(client), request).await;
        Ok(private(harmless(response, &query, &name)))
    }
}

/// A response that caches and search engines leave alone, and whose address is told to nobody.
fn private(mut response: Response) -> Response {
    let headers = [
        (CACHE_CONTROL, "private, no-store"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("x-robots-tag"), "noindex"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// A body whose bytes are counted for a link when it ends.
struct Counted {
    body: Body,
    bytes: u64,
    id: String,
    site: Arc<Site>,
    activity: Activity,
}

impl hyper::body::Body for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Part<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(part))) = &polled {
            self.bytes += part.data_ref().map_or(0, |data| data.len() as u64);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let (site, id, bytes) = (self.site.clone(), std::mem::take(&mut self.id), self.bytes);
        if bytes > 0 {
            drop(self.activity.spawn(move || site.links().count_bytes(&id, bytes)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_failure_is_told_to_strangers_as_it_is() {
        for code in (400..600).filter(|code| ![412, 416].contains(code)) {
            assert!(refusal_of(StatusCode::from_u16(code).unwrap()).is_some(), "{code}");
        }
        for code in [200, 206, 302, 304, 412, 416] {
            assert!(refusal_of(StatusCode::from_u16(code).unwrap()).is_none(), "{code}");
        }
    }

    #[test]
    fn paths_have_a_secret_a_name_and_what_is_below() {
        let parsed = |path: &str| {
            let (secret, below) = parse(path);
            (secret, String::from_utf8(below).unwrap())
        };
        assert_eq!(parsed("/~link/abc/run%207/"), ("abc".into(), String::new()));
        assert_eq!(parsed("/~link/abc/run7/raw/a%20b/"), ("abc".into(), "raw/a b".into()));
        assert_eq!(parsed("/~link/abc"), (String::new(), String::new()));
    }
}
