//! Kerberos tickets of HTTP clients (`Negotiate`, RFC 4559).
//!
//! A token counts for the request that has it, so a connection that several users share through a proxy gives none of
//! them the rights of another; `Persistent-Auth: false` tells clients that. An authentication of several legs is
//! kept with its connection, and with HTTP/1.1 alone: requests of HTTP/2 overtake each other.
//!
//! The scheme is offered where the PoP has a keytab and the answer is a challenge already: a browser that asks for a page
//! gets the login page without one.

use crate::console::is_from_here;
use crate::webdav::authentication::{Negotiated, challenge};
use crate::webdav::error::problem_as;
use crate::webdav::{Client, problem};
use axum::extract::{Extension, Request, State};
use axum::http::header::{AUTHORIZATION, HeaderName, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Version};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use renkei_core::error::{Code, Error};
use renkei_net::identity::kerberos::{Pending, Service, Step};
use renkei_site::Site;
use renkei_site::evidence::Evidence;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Told to clients that would take a connection as authenticated (MS-N2HT).
const PERSISTENT: HeaderName = HeaderName::from_static("persistent-auth");
const SCHEME: &str = "Negotiate";
/// Largest text of a token that is decoded: of 64 KiB.
const MAX_TOKEN_TEXT: usize = (64usize << 10).div_ceil(3) * 4;
/// How many tokens are judged at a time: the threads for blocking work are of the files too.
const MAX_JUDGED: usize = 8;
static JUDGED: Semaphore = Semaphore::const_new(MAX_JUDGED);

/// Authenticates a request that has a token of Kerberos, and offers the scheme to one that has nothing.
pub(crate) async fn authenticate(
    State(site): State<Arc<Site>>,
    Extension(client): Extension<Client>,
    request: Request,
    next: Next,
) -> Response {
    let (mut head, body) = request.into_parts();
    // What is not gone on with by this request ends.
    let begun = client.negotiation.take();
    let Some(token) = shown(&head.headers) else {
        return offer(&site, next.run(Request::from_parts(head, body)).await);
    };
    match accept(&site, &client, &head, token, begun).await {
        Ok(Step::Done(ticket, reply)) => {
            head.extensions.insert(Negotiated(Evidence::Kerberos(Arc::new(ticket))));
            finish(next.run(Request::from_parts(head, body)).await, &reply)
        }
        Ok(Step::More(pending, reply)) => {
            client.negotiation.keep(pending);
            let cause = "the client answers to the token of the PoP";
            let error = Error::new(Code::TicketInvalid, "authenticate with Kerberos", "token", cause);
            with_reply(problem_as(StatusCode::UNAUTHORIZED, &error.at(site.name().as_str())), &reply)
        }
        Err(error) => {
            let (error, address) = (error.at(site.name().as_str()), client.address);
            tracing::warn!(target: "audit", %address, %error, "refused");
            match error.code {
                Code::NotAllowed => problem(&error),
                // The scheme is not offered again: a client would send what was refused.
                _ => challenge(&site, problem_as(StatusCode::UNAUTHORIZED, &error)),
            }
        }
    }
}

/// The token of a request, decoded, or why it is not.
fn shown(headers: &HeaderMap) -> Option<Result<Vec<u8>, &'static str>> {
    let (scheme, value) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case(SCHEME).then(|| match value.trim() {
        value if value.len() > MAX_TOKEN_TEXT => Err("it is longer than 64 KiB"),
        value => BASE64_STANDARD.decode(value).map_err(|_| "it is not base64"),
    })
}

async fn accept(
    site: &Arc<Site>,
    client: &Client,
    head: &Parts,
    token: Result<Vec<u8>, &'static str>,
    begun: Option<Pending>,
) -> Result<Step, Error> {
    let refused = |code, cause: &str| Err(Error::new(code, "authenticate with Kerberos", "token", cause));
    // Browsers have tickets without being asked, as they have cookies.
    let is_look = matches!(head.method.as_str(), "GET" | "HEAD" | "OPTIONS" | "PROPFIND");
    if !is_look && !is_from_here(&head.uri, &head.headers) {
        return refused(Code::NotAllowed, "a page of another server made the request");
    }
    let token = match token {
        Ok(token) => token,
        Err(cause) => return refused(Code::TicketInvalid, cause),
    };
    let service = site.last_snapshot().kerberos.clone();
    let place = JUDGED.acquire().await.expect("the semaphore is never closed");
    let accepted = client.activity.run(move || {
        // Until the work ends, also if the client is gone before.
        let _place = place;
        judge(&service, begun, &token)
    });
    match accepted.await? {
        Step::More(..) if head.version != Version::HTTP_11 => refused(
            Code::TicketInvalid,
            "this client needs several requests to authenticate, and HTTP/1.1 for them",
        ),
        step => Ok(step),
    }
}

/// Takes a token as the next of what the connection has begun, else as a first one: a client may begin anew.
fn judge(service: &Service, begun: Option<Pending>, token: &[u8]) -> Result<Step, Error> {
    let Some(begun) = begun else { return service.begin()?.accept(token) };
    begun.accept(token).or_else(|refused| {
        let anew = service.begin()?.accept(token);
        anew.map_err(|error| if error.code == Code::TicketInvalid { refused } else { error })
    })
}

/// The answer to an authenticated request; a refusal is no further leg.
fn finish(mut response: Response, reply: &[u8]) -> Response {
    response.headers_mut().insert(PERSISTENT, HeaderValue::from_static("false"));
    match response.status() {
        StatusCode::UNAUTHORIZED => response,
        _ if reply.is_empty() => response,
        _ => with_reply(response, reply),
    }
}

fn with_reply(mut response: Response, reply: &[u8]) -> Response {
    let value = HeaderValue::from_str(&format!("{SCHEME} {}", BASE64_STANDARD.encode(reply)));
    response.headers_mut().append(WWW_AUTHENTICATE, value.expect("base64 is legal in a header"));
    response
}

/// Adds the scheme to a challenge, if the PoP accepts tickets.
fn offer(site: &Site, mut response: Response) -> Response {
    let is_challenge =
        response.status() == StatusCode::UNAUTHORIZED && response.headers().contains_key(WWW_AUTHENTICATE);
    if is_challenge && site.last_snapshot().kerberos.trouble().is_none() {
        response.headers_mut().append(WWW_AUTHENTICATE, HeaderValue::from_static(SCHEME));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_from_the_header() {
        let read = |value: &str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(value).unwrap())]);
            shown(&headers)
        };
        assert_eq!(read("Negotiate aGk="), Some(Ok(b"hi".to_vec())));
        assert_eq!(read("negotiate  aGk= "), Some(Ok(b"hi".to_vec())));
        assert_eq!(read("Negotiate *"), Some(Err("it is not base64")));
        let long = BASE64_STANDARD.encode(vec![0; (64 << 10) + 3]);
        assert_eq!(read(&format!("Negotiate {long}")), Some(Err("it is longer than 64 KiB")));
        let longest = BASE64_STANDARD.encode(vec![0; 64 << 10]);
        assert!(read(&format!("Negotiate {longest}")).unwrap().is_ok());
        assert_eq!((read("Bearer aGk="), read("Negotiate")), (None, None));
    }
}
