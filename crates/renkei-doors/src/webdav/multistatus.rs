//! Responses without a body and in XML: addresses, several statuses in one, and the conditions of RFC 4918 that a request did not meet.

use super::xml;
use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use renkei_core::path::Place;

/// A response without a body.
pub(super) fn empty(status: StatusCode) -> Response {
    (status, Body::empty()).into_response()
}

/// The beginning of a response with several statuses.
pub(super) const BEGIN: &str =
    "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\">\n";
/// Its end.
pub(super) const END: &str = "</D:multistatus>\n";
/// What stands for itself in a path (RFC 3986, section 2.3).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// The path of a place in URLs.
pub(crate) fn address(place: &Place, is_dir: bool) -> String {
    let path = percent_encode(place.path.as_bytes(), ESCAPED);
    let (before, after) = (if place.path.is_root() { "" } else { "/" }, if is_dir { "/" } else { "" });
    format!("/{}{before}{path}{after}", place.storage)
}

/// An element with an address.
pub(super) fn href(place: &Place, is_dir: bool) -> String {
    format!("<D:href>{}</D:href>", address(place, is_dir))
}

/// An element with a status.
pub(super) fn status_line(status: StatusCode) -> String {
    let reason = status.canonical_reason().unwrap_or_default();
    format!("<D:status>HTTP/1.1 {} {reason}</D:status>", status.as_u16())
}

/// A response of XML.
pub(super) fn document(status: StatusCode, markup: &str) -> Response {
    let text = format!("<?xml version=\"1.0\" encoding=\"utf-8\"?>\n{markup}\n");
    (status, [(CONTENT_TYPE, xml::TYPE)], text).into_response()
}

/// The response to a request that does not meet a condition (RFC 4918, section 16), with the place that is the reason.
pub(super) fn unmet(status: StatusCode, condition: &str, place: Option<&Place>) -> Response {
    let place = place.map(|place| href(place, false)).unwrap_or_default();
    document(status, &format!("<D:error xmlns:D=\"DAV:\"><D:{condition}>{place}</D:{condition}></D:error>"))
}
