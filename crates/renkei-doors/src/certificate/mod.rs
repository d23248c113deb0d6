//! Certificates for clients that show a token or a certificate of their own: POST of a certificate request to a path that
//! no storage can have. All of renkei then works with the certificate.

use crate::webdav::{Client, evidence, problem, unauthenticated};
use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use renkei_core::error::{Code, Error};
use renkei_site::Site;
use serde::Deserialize;
use std::sync::Arc;

/// Largest request accepted: a certificate request is about a kilobyte.
const MAX_BYTES: usize = 32 << 10;

#[derive(Deserialize)]
struct Asked {
    /// PEM.
    csr: String,
}

/// Answers `{"csr": PEM}` with `{"certificate": PEM, "cards": [...], "former_names": [...]}`.
pub(crate) async fn give(
    State(site): State<Arc<Site>>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Response {
    let (head, body) = request.into_parts();
    let Some(evidence) = evidence(&client, &head) else { return unauthenticated(&site) };
    let asked = match read(body).await {
        Ok(asked) => asked,
        Err(error) => return problem(&error.at(site.name().as_str())),
    };
    let side = site.name();
    let given = client.activity.run(move || site.context().lend_certificate(evidence, &asked.csr)).await;
    match given {
        Ok(reply) => ([(CACHE_CONTROL, "no-store")], Json(reply)).into_response(),
        Err(error) => refused(&error.at(side.as_str())),
    }
}

fn refused(error: &Error) -> Response {
    let mut response = problem(error);
    if response.status() == StatusCode::UNAUTHORIZED {
        let bearer = axum::http::HeaderValue::from_static("Bearer");
        response.headers_mut().append(WWW_AUTHENTICATE, bearer);
    }
    response
}

async fn read(body: Body) -> Result<Asked, Error> {
    let bad = |cause: String| Error::new(Code::UsageInvalid, "read request", "", cause);
    let bytes = to_bytes(body, MAX_BYTES).await.map_err(|error| bad(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))
}
