//! Macaroons whose holder sees a directory as the root (the caveat `root:`, as dCache has it): paths of requests are completed,
//! before any door looks at them, and the addresses in documents of WebDAV are shortened.
//!
//! It is no restriction by itself: the caveat is one, which is judged with the token. The PoP's own pages keep their paths.

use crate::webdav::authentication::{Client, shown_token};
use crate::webdav::error::problem;
use crate::webdav::multistatus::address;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use hyper::body::{Body as Content, Bytes, Frame};
use renkei_core::error::{Code, Error};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Headers that name places of this server beside the path.
const PLACES: [&str; 2] = ["destination", "source"];
/// The beginning of an address in a document.
const HREF: &str = "<D:href>";
/// Paths of the PoP itself, with all below them.
const OWN: [&str; 3] = ["/gridsite-delegation", "/healthz", "/metrics"];
/// Paths of the PoP itself begin so, too.
const OWN_PREFIXES: [&str; 2] = ["/.well-known/", "/~"];

/// A router that gives requests to another one, with the paths that clients mean.
pub(crate) fn first(others: Router, client: Client) -> Router {
    Router::new().fallback_service(others).layer(from_fn_with_state(client, answer))
}

async fn answer(State(client): State<Client>, request: Request, others: Next) -> Response {
    let (mut head, body) = request.into_parts();
    let root = shown_token(&client, &head).and_then(|token| token.root());
    let Some(root) = root.filter(|_| !is_own(head.uri.path())) else {
        return others.run(Request::from_parts(head, body)).await;
    };
    let root = address(&root, false);
    match complete(&mut head, &root) {
        Ok(()) => shortened(others.run(Request::from_parts(head, body)).await, &root),
        Err(error) => problem(&error),
    }
}

/// Whether a path is one of the PoP itself; a storage may have a name that begins as one of those.
fn is_own(path: &str) -> bool {
    let is_end = |rest: &str| rest.is_empty() || rest.starts_with('/');
    OWN.iter().any(|own| path.strip_prefix(own).is_some_and(is_end))
        || OWN_PREFIXES.iter().any(|prefix| path.starts_with(prefix))
}

/// Puts the root before the paths of a request.
fn complete(head: &mut Parts, root: &str) -> Result<(), Error> {
    let bad = |cause: String| Error::new(Code::UsageInvalid, "read request", head.uri.path(), cause);
    let host = head.uri.authority().map(|named| named.as_str().to_owned());
    let host = host.or_else(|| head.headers.get(HOST)?.to_str().ok().map(str::to_owned));
    let mut parts = head.uri.clone().into_parts();
    let target = parts.path_and_query.as_ref().map_or("/", |target| target.as_str());
    let completed = format!("{root}{target}").parse().map_err(|_| bad("the path is no path".into()))?;
    parts.path_and_query = Some(completed);
    let uri = Uri::from_parts(parts).map_err(|error| bad(error.to_string()))?;
    for name in PLACES {
        let Some(named) = head.headers.get(name).and_then(|value| value.to_str().ok()) else { continue };
        let Ok(named) = named.trim().parse::<Uri>() else { continue };
        // What is at another server stays.
        let is_here = |at: &str| host.as_deref().is_some_and(|host| host.eq_ignore_ascii_case(at));
        if named.authority().is_none_or(|at| is_here(at.as_str())) {
            let place = HeaderValue::from_str(&format!("{root}{}", named.path()));
            let place = place.map_err(|error| bad(error.to_string()))?;
            head.headers.insert(name, place);
        }
    }
    head.uri = uri;
    Ok(())
}

/// Takes the root off the addresses in a document.
fn shortened(response: Response, root: &str) -> Response {
    let kind = response.headers().get(CONTENT_TYPE);
    if !kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/xml")) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    head.headers.remove(CONTENT_LENGTH);
    Response::from_parts(head, Body::new(Shortened { body, long: format!("{HREF}{root}") }))
}

/// A document whose parts have whole addresses.
struct Shortened {
    body: Body,
    long: String,
}

impl Content for Shortened {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let shorten = |frame: Frame<Bytes>| frame.map_data(|data| short(&data, &self.long));
        polled.map(|frame| frame.map(|frame| frame.map(shorten)))
    }
}

fn short(data: &[u8], long: &str) -> Bytes {
    let text = String::from_utf8_lossy(data).replace(long, HREF);
    // The root itself.
    text.replace(&format!("{HREF}</"), &format!("{HREF}/</")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(uri: &str, headers: &[(&'static str, &str)]) -> Parts {
        let request = axum::http::Request::builder().uri(uri).header(HOST, "kek:7512");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let mut head = request.body(()).unwrap().into_parts().0;
        complete(&mut head, "/data/run7").unwrap();
        head
    }

    #[test]
    fn paths_of_requests_are_completed() {
        for (path, whole) in
            [("/", "/data/run7/"), ("/a%20b/?x=1", "/data/run7/a%20b/?x=1"), ("/..", "/data/run7/..")]
        {
            assert_eq!(completed(path, &[]).uri, whole);
        }
        for (there, whole) in [
            ("/b", "/data/run7/b"),
            ("https://kek:7512/b", "/data/run7/b"),
            ("https://KEK:7512/b", "/data/run7/b"),
            ("https://eos:8443/b", "https://eos:8443/b"),
        ] {
            assert_eq!(completed("/a", &[("destination", there)]).headers["destination"], whole);
        }
    }

    #[test]
    fn own_paths_are_whole_names() {
        for own in
            ["/metrics", "/metrics/x", "/healthz", "/gridsite-delegation", "/~link/a", "/.well-known/x"]
        {
            assert!(is_own(own), "{own}");
        }
        for other in ["/metrics-2026/a", "/healthz.txt", "/gridsite-delegation2", "/.well-known2/a", "/"] {
            assert!(!is_own(other), "{other}");
        }
    }

    #[test]
    fn addresses_in_documents_are_shortened() {
        let long = "<D:href>/data/run7";
        for (whole, part) in [
            ("x<D:href>/data/run7/a</D:href>/data/run7", "x<D:href>/a</D:href>/data/run7"),
            ("<D:href>/data/run7/</D:href>", "<D:href>/</D:href>"),
            ("<D:href>/data/run7</D:href>", "<D:href>/</D:href>"),
            ("<D:href>urn:uuid:1</D:href>", "<D:href>urn:uuid:1</D:href>"),
        ] {
            assert_eq!(short(whole.as_bytes(), long), part);
        }
    }
}
