//! Files over HTTP and WebDAV of classes 1 to 3: `/STORAGE/PATH` is a file or directory, `/SITE:/STORAGE/PATH` one of another
//! site (RFC 9110, RFC 4918).
//!
//! The door translates requests into calls of the file service ([`renkei_mover::files::workspace`]), which authorises and
//! audits them and executes them as the account of the client. A client proves who it is by a token or its certificate; a client
//! that shows neither learns nothing but that. Content is read and written by blocking threads in blocks; between two blocks of a slow
//! client no thread waits. Errors have the status of [`error`] and a body as in RFC 9457.
//! Copies between this server and another one are in `tpc`.

pub(crate) mod authentication;
mod conditions;
mod copy;
mod dead_properties;
mod digest;
pub(crate) mod document;
pub(crate) mod error;
pub(crate) mod locks;
mod macaroon_request;
pub(crate) mod multistatus;
mod namespace;
mod properties;
mod propfind;
mod proppatch;
mod read;
pub(crate) mod request;
pub(crate) mod session;
mod write;
pub(crate) mod xml;

use crate::console;
use crate::http::activity::Activity;
use crate::tpc;
use authentication::challenge;
pub(crate) use authentication::{Client, evidence, unauthenticated};
use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use axum::http::{HeaderName, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use document::document;
pub(crate) use error::problem;
use renkei_core::error::Error;
use renkei_core::path::is_label;
use renkei_site::Site;
use renkei_site::files::body::Progress;
use request::Target;
use session::Session;
use std::sync::Arc;

/// The methods of the door.
const METHODS: &str = "OPTIONS, GET, HEAD, PUT, DELETE, MKCOL, MOVE, COPY, PROPFIND, PROPPATCH, LOCK, UNLOCK";

/// What the door has of WebDAV (RFC 4918, section 10.1).
const CLASSES: (HeaderName, &str) = (HeaderName::from_static("dav"), "1, 2, 3");

/// Names of the PoP's own pages: a storage of such a name is not served over HTTP.
const OWN_PAGES: [&str; 4] = ["console", "gridsite-delegation", "healthz", "metrics"];

/// Serves a request.
pub(crate) async fn handle(
    State(site): State<Arc<Site>>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Response {
    let (head, body) = request.into_parts();
    if is_page(head.uri.path()) {
        return console::nothing_here(&site).await;
    }
    if head.method == Method::OPTIONS {
        return ([(ALLOW, METHODS), CLASSES], StatusCode::OK).into_response();
    }
    let Some(evidence) = authentication::evidence(&client, &head) else {
        let accepted = head.headers.get(ACCEPT).and_then(|accepted| accepted.to_str().ok());
        return match accepted {
            Some(accepted) if accepted.contains("text/html") => console::nothing_here(&site).await,
            _ => unauthenticated(&site),
        };
    };
    let target = match Target::parse(&head) {
        Ok(target) => target,
        Err(error) => return problem(&error.at(site.name().as_str())),
    };
    let (side, answering) = (site.name(), site.clone());
    let activity = client.activity;
    let done = match activity.run(move || Session::open(site, evidence)).await {
        Ok(session) => {
            activity.authenticated();
            dispatch(session, head.method, target, body, activity).await
        }
        Err(error) => Err(error),
    };
    let response = done.unwrap_or_else(|error| problem(&error.at(side.as_str())));
    match response.status() {
        StatusCode::UNAUTHORIZED => challenge(&answering, response),
        _ => response,
    }
}

async fn dispatch(
    session: Session,
    method: Method,
    target: Target,
    body: Body,
    activity: Activity,
) -> Result<Response, Error> {
    match method.as_str() {
        "GET" | "HEAD" => read::get(session, target, activity).await,
        "PUT" => write::put(session, target, body, activity).await,
        "PROPFIND" | "PROPPATCH" | "LOCK" | "UNLOCK" => {
            with_document(session, method, target, body, activity).await
        }
        "POST" if is_for_macaroon(&target) => macaroon_request::answer(session, target, body, activity).await,
        "COPY" if target.is_between_servers() => tpc::answer(session, target, activity).await,
        "DELETE" | "MKCOL" | "MOVE" | "COPY" => {
            activity.run(move || namespace::change(&session, &method, &target)).await
        }
        _ => Ok((StatusCode::METHOD_NOT_ALLOWED, [(ALLOW, METHODS)]).into_response()),
    }
}

/// Executes a request whose body is a document.
async fn with_document(
    session: Session,
    method: Method,
    target: Target,
    body: Body,
    activity: Activity,
) -> Result<Response, Error> {
    let document = document(body, &activity).await?;
    let own = activity.clone();
    let work = move || match method.as_str() {
        "PROPFIND" => propfind::answer(&session, target, &document, own),
        "PROPPATCH" => proppatch::answer(&session, &target, &document),
        "LOCK" => locks::lock(&session, &target, &document),
        _ => locks::unlock(&session, &target),
    };
    activity.run(work).await
}

/// Whether a request is one for a macaroon.
fn is_for_macaroon(target: &Target) -> bool {
    target
        .headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(macaroon_request::TYPE.as_bytes()))
}

/// Whether a path is one of the PoP's own pages, or can be of no storage.
pub(crate) fn is_page(path: &str) -> bool {
    let first = path.split('/').nth(1).unwrap_or_default();
    let site = first.strip_suffix(':').or(first.strip_suffix("%3A")).or(first.strip_suffix("%3a"));
    OWN_PAGES.contains(&first) || !is_label(site.unwrap_or(first))
}
