//! Signatures: which requests are S3's, and the checks around those of s3s.

use crate::error::refused;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Uri};
use percent_encoding::percent_decode_str;
use renkei_core::error::Code;
use renkei_site::Site;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::{S3ErrorCode, S3Result};
use std::borrow::Cow;
use std::sync::Arc;

/// The scheme that all S3 clients of today sign with.
const SCHEME: &str = "AWS4-HMAC-SHA256";
/// The scheme of before, which has no time window for headers and signs no content.
const SCHEME_2: &[u8] = b"AWS ";
/// Longest validity of a presigned URL, in seconds: a week, as at AWS.
const MAX_PRESIGNED_SECONDS: u64 = 7 * 86400;
/// A header of S3 that need not be signed: it is verified with the content.
const MAY_BE_UNSIGNED: &str = "x-amz-content-sha256";

/// Whether a request is one of S3: by its signature, or a form that is posted. Signatures of version 2 are known, so that
/// they are refused in words of S3.
pub fn is_s3(head: &Parts) -> bool {
    let has_query = |name| has_query(&head.uri, name);
    is_signed(&head.headers)
        || has_query("X-Amz-Algorithm")
        || has_query("AWSAccessKeyId")
        || is_form(&head.method, &head.headers)
}

fn is_signed(headers: &HeaderMap) -> bool {
    let value = headers.get(AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
    value.starts_with(SCHEME.as_bytes()) || value.starts_with(SCHEME_2)
}

/// Whether a request is a form that is posted.
pub(crate) fn is_form(method: &Method, headers: &HeaderMap) -> bool {
    const FORM: &[u8] = b"multipart/form-data";
    let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    *method == Method::POST && kind.get(..FORM.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(FORM))
}

fn has_query(uri: &Uri, name: &str) -> bool {
    query(uri, name).is_some()
}

/// The decoded value of a parameter; names are compared decoded, too, as s3s does.
fn query<'a>(uri: &'a Uri, name: &str) -> Option<Cow<'a, str>> {
    let mut pairs = uri.query()?.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    pairs
        .find(|(found, _)| percent_decode_str(found).eq(name.bytes()))
        .map(|(_, value)| percent_decode_str(value).decode_utf8_lossy())
}

/// The secrets of the PoP's keys.
pub(crate) struct Secrets(pub(crate) Arc<Site>);

#[async_trait::async_trait]
impl S3Auth for Secrets {
    async fn get_secret_key(&self, id: &str) -> S3Result<SecretKey> {
        let (site, id) = (self.0.clone(), id.to_owned());
        let found = tokio::task::spawn_blocking(move || site.context().s3_key(&id));
        match found.await.expect("a panic aborts the process") {
            Ok(key) => Ok(SecretKey::from(key.secret())),
            Err(error) if error.code == Code::TokenInvalid => {
                Err(refused(S3ErrorCode::InvalidAccessKeyId, "this PoP has no such key, or it was revoked"))
            }
            Err(error) => {
                // The client is a stranger so far.
                tracing::warn!(%error, "an S3 key cannot be read");
                Err(refused(
                    S3ErrorCode::InternalError,
                    "the key cannot be read; ask the site's administrator",
                ))
            }
        }
    }
}

/// What a signature must cover, beside what s3s demands.
pub(crate) struct Signed;

#[async_trait::async_trait]
impl S3Access for Signed {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        if context.credentials().is_none() {
            return Err(refused(S3ErrorCode::AccessDenied, "the request is not signed"));
        }
        if context.headers().get(AUTHORIZATION).is_some_and(|value| value.as_bytes().starts_with(SCHEME_2)) {
            return Err(refused(S3ErrorCode::AccessDenied, "signatures of version 2 are not accepted"));
        }
        if has_query(context.uri(), "X-Amz-Signature") && context.headers().contains_key(AUTHORIZATION) {
            return Err(refused(S3ErrorCode::InvalidArgument, "a request is signed in one way"));
        }
        check_presigned(context.uri())?;
        check_headers(context.uri(), context.headers())
    }
}

fn check_presigned(uri: &Uri) -> S3Result<()> {
    let denied = |message: &str| Err(refused(S3ErrorCode::AccessDenied, message));
    if has_query(uri, "Signature") || has_query(uri, "AWSAccessKeyId") {
        return denied("signatures of version 2 are not accepted");
    }
    let Some(validity) = query(uri, "X-Amz-Expires") else { return Ok(()) };
    match validity.parse::<u64>() {
        Ok(seconds) if seconds <= MAX_PRESIGNED_SECONDS => Ok(()),
        _ => Err(refused(S3ErrorCode::AuthorizationQueryParametersError, "X-Amz-Expires is at most 604800")),
    }
}

/// Refuses headers of S3 that were not signed: they could make another operation of the request, as a copy of an upload.
fn check_headers(uri: &Uri, headers: &HeaderMap) -> S3Result<()> {
    let signed = match query(uri, "X-Amz-SignedHeaders") {
        Some(names) => names.into_owned(),
        None => signed_by_header(headers),
    };
    if signed.is_empty() {
        // A form, whose policy covers its fields.
        return match headers.keys().any(|name| name.as_str().starts_with("x-amz-")) {
            true => Err(refused(S3ErrorCode::AccessDenied, "a form has its fields in its body")),
            false => Ok(()),
        };
    }
    let signed: Vec<String> = signed.split(';').map(str::to_ascii_lowercase).collect();
    let covers = |name: &str| signed.iter().any(|one| one == name);
    if !covers("host") {
        return Err(refused(S3ErrorCode::AccessDenied, "the header host must be signed"));
    }
    let mut own = headers.keys().map(|name| name.as_str()).filter(|name| name.starts_with("x-amz-"));
    match own.find(|name| *name != MAY_BE_UNSIGNED && !covers(name)) {
        Some(name) => {
            let message = format!("there were headers present in the request which were not signed: {name}");
            Err(refused(S3ErrorCode::AccessDenied, message))
        }
        None => Ok(()),
    }
}

fn signed_by_header(headers: &HeaderMap) -> String {
    let value = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut parts = value.trim_start_matches(SCHEME).split(',').map(str::trim);
    parts.find_map(|part| part.strip_prefix("SignedHeaders=")).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::http::Request;

    fn head(method: &str, uri: &str, headers: &[(&'static str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn requests_of_s3_are_known_by_their_signature() {
        let signed = [("authorization", "AWS4-HMAC-SHA256 Credential=x")];
        assert!(is_s3(&head("GET", "/data", &signed)));
        assert!(is_s3(&head("GET", "/data/a?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Date=1", &[])));
        assert!(is_s3(&head("POST", "/data", &[("content-type", "multipart/form-data; boundary=a")])));
        assert!(!is_s3(&head("GET", "/data", &[("authorization", "Bearer x")])));
        assert!(!is_s3(&head("GET", "/data?prefix=X-Amz-Algorithm", &[])));
        assert!(!is_s3(&head("POST", "/data", &[("content-type", "application/macaroon-request")])));
    }

    #[test]
    fn headers_of_s3_are_signed() {
        let check = |uri: &str, headers: &[(&'static str, &str)]| {
            let head = head("PUT", uri, headers);
            check_headers(&head.uri, &head.headers).is_ok()
        };
        let presigned = "/data/a?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-SignedHeaders=host";
        assert!(check(presigned, &[("content-type", "text/plain")]));
        assert!(!check(presigned, &[("x-amz-copy-source", "data/secret")]));
        // A list of another way to sign does not count, however the name of the parameter is written.
        let encoded = "/data/a?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-SignedHeader%73=host";
        let other = "AWS4-HMAC-SHA256 SignedHeaders=host;x-amz-copy-source";
        assert!(!check(encoded, &[("authorization", other), ("x-amz-copy-source", "data/secret")]));
        let by_header = "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host;x-amz-date, Signature=0";
        assert!(check("/data/a", &[("authorization", by_header), ("x-amz-date", "1")]));
        assert!(!check("/data/a", &[("authorization", by_header), ("x-amz-acl", "public-read")]));
        let without_host = "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=x-amz-date, Signature=0";
        assert!(!check("/data/a", &[("authorization", without_host)]));
        assert!(check_presigned(&"/a?X-Amz-Expires=604801".parse().unwrap()).is_err());
        assert!(check_presigned(&"/a?Signature=x&AWSAccessKeyId=y".parse().unwrap()).is_err());
    }
}
