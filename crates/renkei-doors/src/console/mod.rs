//! The console: web pages about the PoP, for holders of a link by `renkei console`.
//!
//! Pages are rendered completely on the server at each request; the script only polls the same page each second and
//! replaces the parts that changed, so everything works without it too. Nothing is loaded from other origins, and the
//! CSP allows no inline script. A session cookie identifies the visitor, see [`renkei_site::status::console`].

mod certificates;
mod chart;
pub(crate) mod failure;
mod files;
pub(crate) mod html;
mod links;
mod mapping;
mod overview;
pub(crate) mod page;
mod queued;
mod rules;
mod run;
mod storages;
mod transfers;
mod trust;
mod unfinished;
mod volumes;
mod workers;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Form, Path, Query, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HOST, HeaderName, ORIGIN, REFERRER_POLICY,
    SET_COOKIE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::middleware::map_response;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{MethodRouter, get, post};
use html::Html;
use mapping::MappingQuery;
use page::{Page, Tab};
use renkei_core::error::Error;
use renkei_site::Site;
use renkei_site::status::console::Visitor;
use serde::Deserialize;
use std::sync::Arc;
use transfers::Filter;

/// Maximum size of a form.
const MAX_FORM_BYTES: usize = 4096;
/// How long a browser keeps the cookie; the session itself is ended by the PoP.
const COOKIE_SECONDS: u32 = 12 * 3600;
/// The Content-Security-Policy: only the PoP's own files, no inline script or style, no frame.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The pages below `/console`, a redirect from `/`, and a page for all other addresses.
pub(super) fn router() -> Router<Arc<Site>> {
    Router::new()
        .route("/", get(|| async { Redirect::to("/console") }))
        .route("/console", seen(|site, visitor| Some(overview::page(site, visitor))))
        .route("/console/files", seen(|site, visitor| Some(files::page(site, visitor))))
        .route("/console/links", seen(|site, visitor| Some(links::page(site, visitor))))
        .route("/console/storages", seen(|site, visitor| Some(storages::page(site, visitor))))
        .route("/console/volumes", seen(|site, visitor| Some(volumes::page(site, visitor))))
        .route("/console/trust", seen(|site, visitor| Some(trust::page(site, visitor))))
        .route("/console/rules", seen(|site, visitor| of_administrator(visitor, || rules::page(site))))
        .route("/console/workers", seen(|site, visitor| of_administrator(visitor, || workers::page(site))))
        .route("/console/certificates", seen(|site, visitor| Some(certificates::page(site, visitor))))
        .route("/console/unfinished", seen(|site, visitor| Some(unfinished::page(site, visitor))))
        .route("/console/unfinished/drop", post(drop_all))
        .route("/console/unfinished/{id}/drop", post(drop_one))
        .route("/console/mapping", get(mapping))
        .route("/console/transfers", get(transfers))
        .route("/console/transfers/{key}", one(run::one))
        .route("/console/volumes/{name}", one(volumes::one))
        .route("/console/queue/{id}", one(queued::one))
        .route("/console/queue/{id}/{change}", post(change))
        .route("/console/login", get(ask_login).post(login))
        .route("/console/logout", post(logout))
        .route("/console/style.css", get(|| asset("text/css; charset=utf-8", include_str!("style.css"))))
        .route(
            "/console/script.js",
            get(|| asset("text/javascript; charset=utf-8", include_str!("script.js"))),
        )
        .route(
            "/console/files.js",
            get(|| asset("text/javascript; charset=utf-8", include_str!("../pages/files.js"))),
        )
        .route(
            "/console/files.css",
            get(|| asset("text/css; charset=utf-8", include_str!("../pages/files.css"))),
        )
        .route("/console/icon.svg", get(|| asset("image/svg+xml", include_str!("icon.svg"))))
        .layer(DefaultBodyLimit::max(MAX_FORM_BYTES))
        .layer(map_response(guard))
}

/// Sets the security headers of every answer.
async fn guard(mut response: Response) -> Response {
    guard_headers(&mut response);
    response
}

/// Sets the security headers of a page.
pub(crate) fn guard_headers(response: &mut Response) {
    let headers: [(HeaderName, &str); 6] = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_FRAME_OPTIONS, "DENY"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
}

async fn asset(kind: &'static str, text: &'static str) -> Response {
    ([(CONTENT_TYPE, kind)], text).into_response()
}

pub(crate) fn answer(status: StatusCode, page: Html) -> Response {
    (status, [(CONTENT_TYPE, "text/html; charset=utf-8")], page.into_text()).into_response()
}

// ---- sessions -------------------------------------------------------------------------------------------------------

/// Each site has a cookie name of its own, since browsers share cookies between all ports of a host.
fn cookie_name(site: &Site) -> String {
    format!("__Host-renkei-{}", site.name())
}

fn cookie<'h>(site: &Site, headers: &'h HeaderMap) -> Option<&'h str> {
    let name = cookie_name(site);
    let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|value| value.split("; ")).filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
}

fn set_cookie(site: &Site, value: &str, seconds: u32) -> HeaderValue {
    let name = cookie_name(site);
    let text = format!("{name}={value}; Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=Strict");
    HeaderValue::from_str(&text).expect("a site's name and digits are legal in a header")
}

/// The visitor of a session cookie.
pub(crate) fn visitor(site: &Site, headers: &HeaderMap) -> Option<Visitor> {
    cookie(site, headers).and_then(|secret| site.console().visitor(secret))
}

/// Renders a page for a visitor with a session, on a blocking thread: the catalogue is read from the disk.
async fn visit(
    site: Arc<Site>,
    headers: HeaderMap,
    make: impl FnOnce(&Arc<Site>, &Visitor) -> Option<Page> + Send + 'static,
) -> Response {
    let Some(visitor) = visitor(&site, &headers) else {
        return answer(StatusCode::UNAUTHORIZED, page::closed(&site.name()));
    };
    beside(move || match make(&site, &visitor) {
        Some(page) => answer(StatusCode::OK, page.finish(&site.name(), &visitor)),
        None => answer(StatusCode::NOT_FOUND, page::missing().finish(&site.name(), &visitor)),
    })
    .await
}

/// Runs work on a thread that may block.
async fn beside(work: impl FnOnce() -> Response + Send + 'static) -> Response {
    tokio::task::spawn_blocking(work).await.expect("a panic aborts the process")
}

// ---- pages -----------------------------------------------------------------------------------------------------------

/// A page without parameters.
fn seen(make: fn(&Arc<Site>, &Visitor) -> Option<Page>) -> MethodRouter<Arc<Site>> {
    get(async move |State(site): State<Arc<Site>>, headers: HeaderMap| visit(site, headers, make).await)
}

/// A page about one item, named in the path.
fn one(make: fn(&Arc<Site>, &Visitor, &str) -> Option<Page>) -> MethodRouter<Arc<Site>> {
    get(async move |State(site): State<Arc<Site>>, Path(name): Path<String>, headers: HeaderMap| {
        visit(site, headers, move |site, visitor| make(site, visitor, &name)).await
    })
}

/// A page for the administrator alone.
fn of_administrator(visitor: &Visitor, make: impl FnOnce() -> Page) -> Option<Page> {
    visitor.caller().is_administrator().then(make)
}

async fn transfers(
    State(site): State<Arc<Site>>,
    Query(filter): Query<Filter>,
    headers: HeaderMap,
) -> Response {
    visit(site, headers, move |site, visitor| Some(transfers::page(site, visitor, &filter))).await
}

async fn mapping(
    State(site): State<Arc<Site>>,
    Query(asked): Query<MappingQuery>,
    headers: HeaderMap,
) -> Response {
    visit(site, headers, move |site, visitor| Some(mapping::page(site, visitor, &asked))).await
}

/// The page for an address that there is none for.
pub(super) async fn nothing_here(site: &Site) -> Response {
    guard(answer(StatusCode::NOT_FOUND, page::nothing_here(&site.name()))).await
}

// ---- changes ---------------------------------------------------------------------------------------------------------

/// The page that a form belongs to, and where to redirect afterwards.
struct FormPage {
    tab: Tab,
    place: String,
    back: &'static str,
}

/// Does the action of a form, if its token shows that it is from a page of the visitor's session.
async fn press(
    site: Arc<Site>,
    headers: HeaderMap,
    sent: Sent,
    from: FormPage,
    work: impl FnOnce(&Arc<Site>, &Visitor) -> Result<(), Error> + Send + 'static,
) -> Response {
    let Some(visitor) = visitor(&site, &headers) else {
        return answer(StatusCode::UNAUTHORIZED, page::closed(&site.name()));
    };
    if !visitor.sent(&sent.token) {
        return answer(StatusCode::FORBIDDEN, page::not_own_form(&site.name()));
    }
    let FormPage { tab, place, back } = from;
    beside(move || match work(&site, &visitor) {
        Ok(()) => Redirect::to(&place).into_response(),
        Err(error) => {
            let page = page::not_done(&error, tab, back);
            answer(StatusCode::CONFLICT, page.finish(&site.name(), &visitor))
        }
    })
    .await
}

/// Changes a queued transfer.
async fn change(
    State(site): State<Arc<Site>>,
    Path((id, wanted)): Path<(String, String)>,
    headers: HeaderMap,
    Form(sent): Form<Sent>,
) -> Response {
    let (tab, place, back) = (Tab::Transfers, format!("/console/queue/{id}"), "/console/transfers");
    let work = move |site: &Arc<Site>, visitor: &Visitor| queued::change(site, visitor, &id, &wanted);
    press(site, headers, sent, FormPage { tab, place, back }, work).await
}

async fn drop_one(
    State(site): State<Arc<Site>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Form(sent): Form<Sent>,
) -> Response {
    drop_unfinished(site, headers, sent, Some(id)).await
}

async fn drop_all(State(site): State<Arc<Site>>, headers: HeaderMap, Form(sent): Form<Sent>) -> Response {
    drop_unfinished(site, headers, sent, None).await
}

async fn drop_unfinished(site: Arc<Site>, headers: HeaderMap, sent: Sent, id: Option<String>) -> Response {
    let place = "/console/unfinished";
    let from = FormPage { tab: Tab::Unfinished, place: place.into(), back: place };
    let work = move |site: &Arc<Site>, visitor: &Visitor| unfinished::drop_them(site, visitor, id.as_deref());
    press(site, headers, sent, from, work).await
}

// ---- log in and out --------------------------------------------------------------------------------------------------

/// Whether a form was sent by a page of this PoP, by the browser's headers (CSRF check); other clients send none of
/// them. In HTTP/2 the host is in the URI, not in a header.
pub(crate) fn is_from_here(uri: &Uri, headers: &HeaderMap) -> bool {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    let is_same_site = text(&HeaderName::from_static("sec-fetch-site"))
        .is_none_or(|from| matches!(from, "same-origin" | "none"));
    let is_own = text(&ORIGIN).is_none_or(|origin| {
        let host = uri.authority().map(Authority::as_str).or(text(&HOST)).unwrap_or_default();
        !host.is_empty() && origin.strip_prefix("https://") == Some(host)
    });
    is_same_site && is_own
}

/// The query of a login link.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Shown {
    t: String,
}

/// A form of a page of the visitor's session.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Sent {
    token: String,
}

/// A page with a button: a program that only fetches a link, such as a mail scanner, does not use it up.
async fn ask_login(State(site): State<Arc<Site>>, Query(shown): Query<Shown>) -> Response {
    answer(StatusCode::OK, page::log_in(&site.name(), &shown.t))
}

async fn login(
    State(site): State<Arc<Site>>,
    uri: Uri,
    headers: HeaderMap,
    Form(shown): Form<Shown>,
) -> Response {
    if !is_from_here(&uri, &headers) {
        return answer(StatusCode::FORBIDDEN, page::not_own_form(&site.name()));
    }
    match site.console().login(&shown.t) {
        Ok(Some(secret)) => {
            let cookie = set_cookie(&site, &secret, COOKIE_SECONDS);
            ([(SET_COOKIE, cookie)], Redirect::to("/console")).into_response()
        }
        Ok(None) => answer(StatusCode::FORBIDDEN, page::refused(&site.name())),
        Err(error) => {
            tracing::error!(%error, "no console session");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn logout(State(site): State<Arc<Site>>, headers: HeaderMap, Form(sent): Form<Sent>) -> Response {
    let secret = cookie(&site, &headers).map(str::to_owned);
    let visitor = secret.as_deref().and_then(|secret| site.console().visitor(secret));
    if visitor.is_some_and(|visitor| !visitor.sent(&sent.token)) {
        return answer(StatusCode::FORBIDDEN, page::not_own_form(&site.name()));
    }
    secret.iter().for_each(|secret| site.console().logout(secret));
    ([(SET_COOKIE, set_cookie(&site, "", 0))], answer(StatusCode::OK, page::closed(&site.name())))
        .into_response()
}
