//! Requests for macaroons, as dCache and XRootD answer them: POST of a place with the type `application/macaroon-request`.

use super::document::document;
use super::multistatus::address;
use super::request::Target;
use super::session::Session;
use crate::http::activity::Activity;
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::response::{IntoResponse, Response};
use renkei_core::error::{Code, Error};
use renkei_net::identity::token::caveat::{below, parse_validity};
use renkei_site::token::ShownToken;
use serde::Deserialize;
use std::net::Ipv4Addr;
use std::time::Duration;

/// The media type of a request.
pub(super) const TYPE: &str = "application/macaroon-request";

/// Validity of a token whose request names none.
const VALIDITY: Duration = Duration::from_secs(3600);

#[derive(Deserialize)]
struct MacaroonRequest {
    #[serde(default)]
    caveats: Vec<String>,
    validity: Option<String>,
}

/// Issues a token for the place of the request and all below it.
pub(super) async fn answer(
    session: Session,
    target: Target,
    body: Body,
    activity: Activity,
) -> Result<Response, Error> {
    let document = document(body, &activity).await?;
    let issue = move || issue(&session, &target, &document);
    let answer = activity.run(issue).await?;
    Ok(([(CONTENT_TYPE, "application/json")], format!("{answer}\n")).into_response())
}

fn issue(session: &Session, target: &Target, document: &[u8]) -> Result<serde_json::Value, Error> {
    let bad = |cause: String| Error::new(Code::UsageInvalid, "issue token", &target.place, cause);
    let asked: MacaroonRequest = serde_json::from_slice(document).map_err(|error| bad(error.to_string()))?;
    let parsed =
        |text: &str| parse_validity(text).ok_or_else(|| bad(format!("{text} is no duration as PT60M")));
    let validity = asked.validity.as_deref().map_or(Ok(VALIDITY), parsed)?;
    let caveats = [vec![below(&target.place)?], asked.caveats].concat();
    let token = session.site.context().issue_token(&session.proof, &caveats, validity)?;
    let host = target.headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let base = format!("https://{host}/");
    let root = ShownToken::new(&token, Ipv4Addr::UNSPECIFIED.into()).root();
    let (path, root) = (address(&target.place, false), root.map(|root| address(&root, false)));
    // As the holder sees it.
    let path = root.and_then(|root| path.strip_prefix(&root)).unwrap_or(&path);
    let uri = format!("https://{host}{}", if path.is_empty() { "/" } else { path });
    Ok(serde_json::json!({
        "macaroon": token,
        "uri": {
            "target": uri,
            "targetWithMacaroon": format!("{uri}?authz={token}"),
            "base": base,
            "baseWithMacaroon": format!("{base}?authz={token}"),
        },
    }))
}
