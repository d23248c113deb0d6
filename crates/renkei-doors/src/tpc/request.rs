//! What a COPY between servers says.

use crate::webdav::error::invalid;
use crate::webdav::request::Target;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use renkei_core::error::Error;
use renkei_site::tpc::{CopyRequest, Options, RemoteUrl, digests};

/// The beginning of the names of headers for the other server.
const FOR_THE_OTHER: &str = "transferheader";
/// Headers that the copy itself sets.
const OWN: [&str; 14] = [
    "accept-encoding",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "expect",
    "host",
    "if-match",
    "if-none-match",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Most of `ClientInfo` that is logged.
const MAX_CLIENT_INFO: usize = 300;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// To here.
    Pull,
    /// From here.
    Push,
}

/// Whether a proxy that the user delegated is presented to the other server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presented {
    /// No.
    Never,
    /// If there is one.
    IfDelegated,
    /// In any case.
    Always,
}

/// A request.
pub(super) struct Request {
    pub(super) direction: Direction,
    pub(super) presented: Presented,
    pub(super) copy: CopyRequest,
}

impl Request {
    /// Reads the headers.
    ///
    /// # Errors
    /// `UsageInvalid`.
    pub(super) fn parse(target: &Target) -> Result<Self, Error> {
        let (direction, url) = direction(target)?;
        let mut headers = for_the_other(&target.headers)?;
        let presented = presented(target, &headers)?;
        let expected = digests(&target.headers);
        if let (Direction::Push, Some(digest)) = (direction, target.headers.get("repr-digest")) {
            headers.insert("repr-digest", digest.clone());
        }
        let options = Options { expected, ..options(target) };
        if direction == Direction::Push && options.no_head && options.verify == Some(true) {
            return Err(invalid(
                "RequireChecksumVerification needs HEAD, and Copy-Flags forbids it (NoHead)",
            ));
        }
        let copy = CopyRequest {
            place: target.place.clone(),
            url: RemoteUrl::parse(url)?,
            headers,
            credential: None,
            options,
            scitag: text(target, "scitag").and_then(|tag| tag.parse().ok()),
            client_info: text(target, "clientinfo")
                .unwrap_or_default()
                .chars()
                .take(MAX_CLIENT_INFO)
                .collect(),
        };
        Ok(Request { direction, presented, copy })
    }
}

fn text<'t>(target: &'t Target, name: &'static str) -> Option<&'t str> {
    target.text(&HeaderName::from_static(name))
}

fn direction(target: &Target) -> Result<(Direction, &str), Error> {
    match (text(target, "source"), text(target, "destination")) {
        (Some(source), None) => Ok((Direction::Pull, source)),
        (None, Some(destination)) => Ok((Direction::Push, destination)),
        (Some(_), Some(_)) => Err(invalid("COPY takes Source or Destination, not both")),
        (None, None) => Err(invalid("COPY needs Source or Destination")),
    }
}

/// Without a `Credential` a proxy is used if the client delegated one before, and gave no other credential.
fn presented(target: &Target, headers: &HeaderMap) -> Result<Presented, Error> {
    match text(target, "credential").map(str::to_ascii_lowercase).as_deref() {
        Some("none") => Ok(Presented::Never),
        Some("gridsite") => Ok(Presented::Always),
        Some(kind) => Err(invalid(format!(
            "Credential: {kind} is not supported: it is none or gridsite; give a token by TransferHeaderAuthorization"
        ))),
        None if text(target, "x-no-delegate").is_some() || headers.contains_key("authorization") => {
            Ok(Presented::Never)
        }
        None => Ok(Presented::IfDelegated),
    }
}

fn options(target: &Target) -> Options {
    let flags = text(target, "copy-flags").unwrap_or_default();
    let streams = text(target, "x-number-of-streams").and_then(|count| count.parse().ok());
    let verify = text(target, "requirechecksumverification");
    Options {
        streams: streams.filter(|count| *count > 0),
        verify: verify.and_then(|verify| verify.to_ascii_lowercase().parse().ok()),
        no_head: flags.split(',').any(|flag| flag.trim().eq_ignore_ascii_case("nohead")),
        overwrites: !target.keeps_existing(),
        expected: Vec::new(),
    }
}

/// The headers for the other server: `TransferHeaderNAME: VALUE` and, of XRootD, `Copy-Header: NAME: VALUE`.
fn for_the_other(headers: &HeaderMap) -> Result<HeaderMap, Error> {
    let mut passed = HeaderMap::new();
    for (name, value) in headers {
        if name == "copy-header" {
            let text = value.to_str().map_err(invalid)?;
            let (name, value) = text.split_once(':').ok_or_else(|| invalid("Copy-Header has no name"))?;
            pass(&mut passed, name, HeaderValue::from_str(value.trim()).map_err(invalid)?)?;
        } else if let Some(name) = name.as_str().strip_prefix(FOR_THE_OTHER) {
            pass(&mut passed, name, value.clone())?;
        }
    }
    Ok(passed)
}

fn pass(passed: &mut HeaderMap, name: &str, mut value: HeaderValue) -> Result<(), Error> {
    let name = HeaderName::from_bytes(name.trim().as_bytes()).map_err(invalid)?;
    if OWN.contains(&name.as_str()) {
        return Err(invalid(format!("the copy itself sets {name}")));
    }
    value.set_sensitive(true);
    passed.append(name, value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::error::Code;

    fn parse(headers: &[(&'static str, &str)]) -> Result<Request, Error> {
        let request = axum::http::Request::builder().method("COPY").uri("/data/a").header("host", "kek:7512");
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        Request::parse(&Target::parse(&request.body(()).unwrap().into_parts().0)?)
    }

    #[test]
    fn headers_for_the_other_server_are_passed_on() {
        let request = parse(&[
            ("Source", "https://eos:8443/x?a"),
            ("TransferHeaderAuthorization", "Bearer abc"),
            ("Copy-Header", "X-Class: tape"),
            ("Authorization", "Bearer own"),
            ("X-Number-Of-Streams", "3"),
            ("RequireChecksumVerification", "false"),
            ("Overwrite", "F"),
            ("Repr-Digest", "adler=:AnQBOw==:"),
            ("SciTag", "206"),
        ]);
        let Request { direction, copy, presented } = request.map_err(|error| error.to_string()).ok().unwrap();
        assert_eq!(presented, Presented::Never);
        assert_eq!((direction, copy.scitag, copy.options.streams), (Direction::Pull, Some(206), Some(3)));
        assert_eq!(copy.headers.get("authorization").unwrap(), "Bearer abc");
        assert_eq!((copy.headers.len(), copy.headers.get("x-class").unwrap().as_bytes()), (2, &b"tape"[..]));
        assert_eq!((copy.options.verify, copy.options.overwrites), (Some(false), false));
        assert_eq!(copy.options.expected.len(), 1);
        assert!(!format!("{:?}", copy.headers).contains("abc"), "a credential may be logged");
    }

    #[test]
    fn a_proxy_is_presented_where_no_other_credential_is_given() {
        for (header, presented) in [
            (("Credential", "GridSite"), Presented::Always),
            (("Credential", "none"), Presented::Never),
            (("X-No-Delegate", "true"), Presented::Never),
            (("TransferHeaderAuthorization", "Bearer abc"), Presented::Never),
            (("SciTag", "206"), Presented::IfDelegated),
        ] {
            let request = parse(&[("Source", "https://a/x"), header]).map_err(|error| error.to_string());
            assert_eq!(request.ok().unwrap().presented, presented, "{header:?}");
        }
    }

    #[test]
    fn requests_that_make_no_sense_are_refused() {
        for headers in [
            &[][..],
            &[("Source", "https://a/x"), ("Destination", "https://b/x")],
            &[("Source", "http://a/x")],
            &[("Source", "https://a/x"), ("Credential", "kerberos")],
            &[("Source", "https://a/x"), ("TransferHeaderHost", "b")],
            &[("Source", "https://a/x"), ("TransferHeaderRange", "bytes=0-1")],
            &[("Source", "https://a/x"), ("Copy-Header", "nothing")],
            &[
                ("Destination", "https://a/x"),
                ("Copy-Flags", "NoHead"),
                ("RequireChecksumVerification", "true"),
            ],
        ] {
            assert_eq!(parse(headers).map(drop).unwrap_err().code, Code::UsageInvalid, "{headers:?}");
        }
    }
}
