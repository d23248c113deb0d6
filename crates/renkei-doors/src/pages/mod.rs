//! Files in a browser: a directory is a page to look at, search and change, its content can be had as one archive.
//!
//! The pages stand before [`crate::webdav`], which does all the work of other requests. A browser shows who it is by the
//! session of the console (a cookie), or by a token in the URL; with the cookie, changes need the session's form token
//! in a header, and come from a page of this PoP. Content of users is in the console's origin, so it is sent as an
//! attachment, or as a picture, in a sandbox: nothing in it is executed.
//!
//! Pages are rendered on the server, and looking and downloading need no script. Guarantee: memory is bounded by the
//! entries up to the page that is shown. Non-goal: changes without a script.

mod archive;
mod folder;
mod link;
mod listing;
mod preview;
mod query;
mod space_report;
mod tar;

use crate::console::html::Html;
use crate::console::page::{self, Page, Tab};
use crate::console::{self, failure};
use crate::webdav::authentication::evidence;
use crate::webdav::error::status;
use crate::webdav::request::place;
use crate::webdav::session::Session;
use crate::webdav::{self, Client, is_page};
use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::http::header::{
    ACCEPT, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, LOCATION,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use folder::Frame;
use query::Query;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Need, Rights};
use renkei_core::path::{Place, SiteName};
use renkei_mover::files::workspace::Follow;
use renkei_site::Site;
use renkei_site::evidence::Evidence;
use renkei_site::links::PREFIX;
use renkei_site::status::console::Visitor;
use std::sync::Arc;

/// The header with the form token of a session, which a script of another origin can neither know nor send.
const TOKEN: HeaderName = HeaderName::from_static("x-renkei-token");
/// The policy of users' content: whatever it is, no script of it runs, and it is of no origin.
const SANDBOX: &str = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src 'self'";

/// The paths of files, links and the space report: all but those of the PoP's own pages.
pub(crate) fn router() -> Router<Arc<Site>> {
    Router::new()
        .route("/srr.json", any(space_report::answer))
        .route(&format!("{PREFIX}{{*path}}"), any(link::handle))
        .route("/{*path}", any(handle))
}

/// Serves a request for files.
async fn handle(
    State(site): State<Arc<Site>>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Response {
    let (mut head, body) = request.into_parts();
    if is_page(head.uri.path()) {
        return webdav::handle(State(site), Extension(client), Request::from_parts(head, body)).await;
    }
    let mut visitor = None;
    if evidence(&client, &head).is_none() {
        match attach_session(&site, &mut head) {
            Ok(found) => visitor = found,
            Err(refused) => return *refused,
        }
    }
    let query = Query::parse(head.uri.query().unwrap_or_default());
    let name = name_in(head.uri.path());
    let answered = match (evidence(&client, &head), place(head.uri.path())) {
        (Some(evidence), Ok(place)) => {
            let shown = Shown { site: site.clone(), evidence, visitor, place, query: query.clone() };
            shown.answer(&head, body, &client).await
        }
        _ => Err(body),
    };
    match answered {
        Ok(page) => page,
        Err(body) => {
            let request = Request::from_parts(head, body);
            harmless(webdav::handle(State(site), Extension(client), request).await, &query, &name)
        }
    }
}

/// The name at the end of a path, escaped as it is there.
fn name_in(path: &str) -> String {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned()
}

/// Attaches what a browser's session proves to a request, if it has one.
///
/// # Errors
/// The page for a browser without a session, and for changes that no page of the session sent.
fn attach_session(site: &Site, head: &mut Parts) -> Result<Option<Visitor>, Box<Response>> {
    let refused = |status, page| Err(Box::new(guarded(console::answer(status, page))));
    let Some(visitor) = console::visitor(site, &head.headers) else {
        return match wants_page(head) {
            true => refused(StatusCode::UNAUTHORIZED, page::files_closed(&site.name())),
            false => Ok(None),
        };
    };
    let is_look = matches!(head.method.as_str(), "GET" | "HEAD" | "OPTIONS" | "PROPFIND");
    let is_archive =
        head.method == Method::POST && Query::parse(head.uri.query().unwrap_or_default()).archive;
    if !is_look && !is_archive && !is_own_page(head, &visitor) {
        return refused(StatusCode::FORBIDDEN, page::not_own_form(&site.name()));
    }
    match visitor.evidence() {
        Some(proof) => drop(head.extensions.insert::<Evidence>(proof)),
        None if wants_page(head) => {
            let page = Page::new(Tab::Files, "Files are of users").content(page::files_of_users());
            return refused(StatusCode::FORBIDDEN, page.finish(&site.name(), &visitor));
        }
        None => {}
    }
    Ok(Some(visitor))
}

/// Whether a page of the visitor's session sent a request.
fn is_own_page(head: &Parts, visitor: &Visitor) -> bool {
    let token = head.headers.get(TOKEN).and_then(|token| token.to_str().ok());
    console::is_from_here(&head.uri, &head.headers) && token.is_some_and(|token| visitor.sent(token))
}

/// Whether the client is a browser that shows pages.
fn wants_page(head: &Parts) -> bool {
    let accepted = head.headers.get(ACCEPT).and_then(|accepted| accepted.to_str().ok());
    matches!(head.method.as_str(), "GET" | "HEAD") && accepted.is_some_and(|all| all.contains("text/html"))
}

/// The security headers of pages; an address with a token in it is told to nobody.
fn guarded(mut response: Response) -> Response {
    console::guard_headers(&mut response);
    response.headers_mut().insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

/// Makes content harmless in a browser: it is saved, or shown as a picture, and executed in no case.
fn harmless(mut response: Response, query: &Query, name: &str) -> Response {
    let is_content = response.status().is_success();
    let headers = response.headers_mut();
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if !is_content || headers.get(CONTENT_TYPE).is_none_or(|kind| kind != "application/octet-stream") {
        return response;
    }
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(SANDBOX));
    match preview::picture(name).filter(|_| query.view) {
        Some(kind) => drop(headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind))),
        None => set_attachment(headers, name),
    }
    response
}

/// Tells a browser to save the content under a name, which is escaped as in URLs.
fn set_attachment(headers: &mut HeaderMap, name: &str) {
    // A quote cannot be in it; the name is in RFC 8187's form, as bytes of UTF-8 or not.
    let text = format!("attachment; filename*=UTF-8''{}", name.replace('\'', "%27"));
    let value = HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("attachment"));
    headers.insert(CONTENT_DISPOSITION, value);
}

/// A place that a client looks at.
struct Shown {
    site: Arc<Site>,
    evidence: Evidence,
    visitor: Option<Visitor>,
    place: Place,
    query: Query,
}

/// A page of files, or the notice that the request is one for content.
enum Answer {
    Response(Response),
    Content,
}

impl Shown {
    /// Answers a request for a page or an archive.
    ///
    /// # Errors
    /// The body of any other request, unread.
    async fn answer(self, head: &Parts, body: Body, client: &Client) -> Result<Response, Body> {
        let activity = client.activity.clone();
        let is_page = wants_page(head);
        if self.query.archive && matches!(head.method.as_str(), "GET" | "POST") {
            let (site, visitor) = (self.site.name(), self.visitor.clone());
            let is_page = is_page || head.method == Method::POST;
            let made = archive::answer(self, body, activity, false).await;
            return Ok(made.unwrap_or_else(|error| failed(&error, &site, visitor.as_ref(), is_page)));
        }
        if !is_page || self.query.view || self.query.download {
            return Err(body);
        }
        let slash = head.uri.path().ends_with('/').then_some(()).ok_or_else(|| with_slash(head));
        let (site, visitor) = (self.site.name(), self.visitor.clone());
        match activity.run(move || self.page(slash.err())).await {
            Ok(Answer::Response(page)) => Ok(page),
            Ok(Answer::Content) => Err(body),
            Err(error) => Ok(failed(&error, &site, visitor.as_ref(), true)),
        }
    }

    /// The page of a directory, the preview of a file.
    fn page(self, slash: Option<String>) -> Result<Answer, Error> {
        let session = Session::open(self.site.clone(), self.evidence)?;
        let (files, path) = session.files(&self.place, Need::Look)?;
        let item = files.stat(&path, Follow::Yes)?;
        let frame = Frame {
            site: self.site.name(),
            may_change: self.visitor.is_some() || !self.query.carried.is_empty(),
            visitor: self.visitor,
            place: self.place.clone(),
            top: 0,
            is_link: false,
            may_preview: true,
            note: Html::new(),
        };
        match item.entry.kind {
            EntryKind::Dir => {
                if let Some(to) = slash {
                    return Ok(Answer::Response((StatusCode::FOUND, [(LOCATION, to)]).into_response()));
                }
                let (files, path) = session.files(&self.place, Need::Examine)?;
                let rights = [Rights::CREATE, Rights::MODIFY];
                let may_change = frame.may_change
                    && session.access.may(&self.place, &rights)
                    && session.files(&self.place, Need::Write).is_ok();
                let frame = Frame { may_change, ..frame };
                let page = folder::page(&files, &path, &self.query, &frame)?;
                Ok(Answer::Response(guarded(console::answer(StatusCode::OK, page))))
            }
            EntryKind::File { .. } if self.query.show => {
                let (files, path) = session.files(&self.place, Need::Read)?;
                let page = preview::page(&files, &path, &self.query, &frame)?;
                Ok(Answer::Response(guarded(console::answer(StatusCode::OK, page))))
            }
            _ => Ok(Answer::Content),
        }
    }
}

/// The address of a directory with the slash that relative links in its page need.
fn with_slash(head: &Parts) -> String {
    let query = head.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    format!("{}/{query}", head.uri.path())
}

/// The response to a failure, for people or for programs.
fn failed(error: &Error, site: &SiteName, visitor: Option<&Visitor>, is_page: bool) -> Response {
    if !is_page {
        return webdav::error::problem(error);
    }
    let title = match error.code {
        Code::PathNotFound | Code::StorageUnknown => "There is no such file",
        _ => "That cannot be shown",
    };
    let page = Page::new(Tab::Files, title).still("why", "Why", failure::whole(error));
    let html = match visitor {
        Some(visitor) => page.finish(site, visitor),
        None => page.finish_outside(site),
    };
    guarded(console::answer(status(error), html))
}
