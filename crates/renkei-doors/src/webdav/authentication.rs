//! Who makes a request: the holder of a token or ticket that it shows, else of the certificate of the connection.
//!
//! A token comes as `Authorization: Bearer`, as `?authz=` of the URL (dCache, XRootD), or as the password of
//! `Authorization: Basic`, for clients that know nothing else; the name there is of no use.

use super::error::problem_as;
use crate::http::activity::Activity;
use crate::http::negotiation::Negotiation;
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use percent_encoding::percent_decode_str;
use renkei_core::error::{Code, Error};
use renkei_net::identity::token::macaroon::password;
use renkei_site::Site;
use renkei_site::evidence::Evidence;
use renkei_site::token::ShownToken;
use rustls::pki_types::CertificateDer;
use std::net::IpAddr;
use std::sync::Arc;

/// The client of a connection.
#[derive(Clone)]
pub(crate) struct Client {
    /// The certificate chain that it showed, leaf first.
    pub(crate) chain: Option<Arc<[CertificateDer<'static>]>>,
    /// Its address.
    pub(crate) address: IpAddr,
    pub(crate) activity: Activity,
    /// What it has begun to prove with Kerberos.
    pub(crate) negotiation: Negotiation,
}

/// What the Kerberos ticket of a request proves; attached before the request is handled, because its token counts once.
#[derive(Clone)]
pub(crate) struct Negotiated(pub(crate) Evidence);

/// The evidence of a request, if it shows any.
pub(crate) fn evidence(client: &Client, head: &Parts) -> Option<Evidence> {
    let token = shown_token(client, head).map(Evidence::Token);
    let by_ticket = || head.extensions.get::<Negotiated>().map(|ticket| ticket.0.clone());
    let by_client = token.or_else(by_ticket).or_else(|| client.chain.clone().map(Evidence::of_chain));
    // That of a browser's session is attached by the pages, which check whose page sent the request.
    by_client.or_else(|| head.extensions.get::<Evidence>().cloned())
}

/// The token of a request, if it shows one.
pub(crate) fn shown_token(client: &Client, head: &Parts) -> Option<ShownToken> {
    let token = header_token(head).or_else(|| query_token(head));
    token.map(|text| ShownToken::new(text.trim(), client.address))
}

fn header_token(head: &Parts) -> Option<String> {
    let (scheme, value) = head.headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    match scheme.to_ascii_lowercase().as_str() {
        "bearer" => Some(value.to_owned()),
        "basic" => password(value),
        _ => None,
    }
}

fn query_token(head: &Parts) -> Option<String> {
    let value = head.uri.query()?.split('&').find_map(|pair| pair.strip_prefix("authz="))?;
    let text = percent_decode_str(value).decode_utf8().ok()?;
    Some(text.strip_prefix("Bearer ").unwrap_or(&text).to_owned())
}

/// The answer to a client that proves nothing.
pub(crate) fn unauthenticated(site: &Site) -> Response {
    let cause = "neither a token nor a ticket nor a certificate was shown; clients that offer HTTP/2 are not asked for a certificate (curl: --http1.1 --cert FILE --key FILE)";
    let error = Error::new(Code::NotAllowed, "authenticate", "", cause).at(site.name().as_str());
    challenge(site, problem_as(StatusCode::UNAUTHORIZED, &error))
}

/// A response with status 401, with the ways to authenticate.
pub(crate) fn challenge(site: &Site, mut response: Response) -> Response {
    for scheme in ["Bearer", "Basic"] {
        let realm = HeaderValue::from_str(&format!("{scheme} realm=\"{}\"", site.name()));
        let realm = realm.expect("a site's name is legal in a header");
        response.headers_mut().append(WWW_AUTHENTICATE, realm);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;

    fn token(uri: &str, authorization: Option<&str>) -> Option<String> {
        let client = Client {
            chain: None,
            address: [127, 0, 0, 1].into(),
            activity: Activity::default(),
            negotiation: Negotiation::default(),
        };
        let request = Request::get(uri);
        let request =
            authorization.into_iter().fold(request, |request, value| request.header(AUTHORIZATION, value));
        match evidence(&client, &request.body(()).unwrap().into_parts().0) {
            Some(Evidence::Token(shown)) => Some(shown.text().to_owned()),
            _ => None,
        }
    }

    #[test]
    fn tokens_are_found_where_clients_put_them() {
        for scheme in ["Bearer", "bearer", "BEARER"] {
            assert_eq!(token("/data", Some(&format!("{scheme} abc"))).as_deref(), Some("abc"));
        }
        assert_eq!(token("/data", Some("Basic dTphYmM=")).as_deref(), Some("abc"));
        assert_eq!(token("/data?x=1&authz=a%2Bc", None).as_deref(), Some("a+c"));
        assert_eq!(token("/data?authz=Bearer%20abc", None).as_deref(), Some("abc"));
        for other in ["Negotiate abc", "Bearer", "Basic *", ""] {
            assert_eq!(token("/data", Some(other)), None, "{other}");
        }
    }
}
