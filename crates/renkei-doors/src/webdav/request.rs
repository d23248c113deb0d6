//! What a request says: its path, the version that it expects, the range that it wants.

use super::error::invalid;
use axum::http::header::{
    CONTENT_LENGTH, CONTENT_RANGE, HOST, HeaderName, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
    IF_UNMODIFIED_SINCE, RANGE, TRANSFER_ENCODING,
};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Uri};
use percent_encoding::percent_decode_str;
use renkei_core::entry::{FileTime, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::path::Place;
use renkei_core::wire::file::Precondition;
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DESTINATION: HeaderName = HeaderName::from_static("destination");
/// Of copies between servers.
const SOURCE: HeaderName = HeaderName::from_static("source");
/// The last second that HTTP can show: the end of the year 9999.
const LAST_SECOND: u64 = 253_402_300_799;
/// Most ranges in one response; with more of them all is sent.
const MAX_RANGES: usize = 1024;

/// The head of a request, and its place.
pub(crate) struct Target {
    pub(crate) place: Place,
    /// Whether the path ended with a slash, as that of a directory may.
    pub(crate) slash: bool,
    pub(super) is_head: bool,
    pub(crate) headers: HeaderMap,
}

impl Target {
    pub(crate) fn parse(head: &Parts) -> Result<Self, Error> {
        let path = head.uri.path();
        let place = place(path)?;
        let is_head = head.method == axum::http::Method::HEAD;
        let mut headers = head.headers.clone();
        // HTTP/2 has the host in the URI.
        if let Some(host) = head.uri.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok()) {
            headers.entry(HOST).or_insert(host);
        }
        let target = Target { place, slash: path.ends_with('/'), is_head, headers };
        if head.method.as_str() == "COPY" { target.with_own_source(path) } else { Ok(target) }
    }

    /// A header as text.
    pub(crate) fn text(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim)
    }

    /// The length of the body, if the client said it.
    pub(super) fn length(&self) -> Option<u64> {
        self.text(&CONTENT_LENGTH)?.parse().ok()
    }

    /// Whether the request has a body.
    pub(super) fn has_body(&self) -> bool {
        self.length().is_some_and(|bytes| bytes > 0) || self.headers.contains_key(TRANSFER_ENCODING)
    }

    /// The condition of a change.
    ///
    /// # Errors
    /// `UsageInvalid` for conditions other than `If-None-Match: *` and `If-Match` with one tag; `VersionReplaced` for a
    /// tag that this PoP never gave.
    pub(super) fn precondition(&self) -> Result<Precondition, Error> {
        if self.headers.contains_key(CONTENT_RANGE) {
            return Err(invalid("PUT of a part (Content-Range) is not supported"));
        }
        match (self.text(&IF_NONE_MATCH), self.text(&IF_MATCH)) {
            (None, None) => Ok(Precondition::None),
            (Some("*"), None) => Ok(Precondition::Absent),
            (None, Some(tag)) if tag != "*" => parse_tag(tag).map(Precondition::Version).ok_or_else(|| {
                Error::new(
                    Code::VersionReplaced,
                    "PUT",
                    &self.place,
                    "the tag in If-Match is of another file",
                )
            }),
            _ => Err(invalid("this combination of If-Match and If-None-Match is not supported")),
        }
    }

    /// Whether `Overwrite: F` asks that nothing is replaced.
    pub(crate) fn keeps_existing(&self) -> bool {
        self.text(&HeaderName::from_static("overwrite")).is_some_and(|value| value.eq_ignore_ascii_case("f"))
    }

    /// The place that `Destination` names, on this server.
    ///
    /// # Errors
    /// `UsageInvalid` without one, or for another server.
    pub(super) fn destination(&self) -> Result<Place, Error> {
        self.place_of(self.text(&DESTINATION).ok_or_else(|| invalid("no Destination"))?)
    }

    /// The same for a COPY with a `Source` at this server: that of the source, with `path` as the destination.
    fn with_own_source(mut self, path: &str) -> Result<Self, Error> {
        let own = |text: &&str| text.parse::<Uri>().is_ok_and(|uri| self.is_own(&uri));
        let Some(source) = self.text(&SOURCE).filter(own) else { return Ok(self) };
        if self.headers.contains_key(DESTINATION) {
            return Err(invalid("COPY takes Source or Destination, not both"));
        }
        self.place = self.place_of(source)?;
        self.headers.remove(SOURCE);
        self.headers.insert(DESTINATION, HeaderValue::from_str(path).map_err(invalid)?);
        Ok(self)
    }

    /// Whether a COPY is from or to another server (HTTP-TPC), or names neither.
    pub(crate) fn is_between_servers(&self) -> bool {
        let uri = self.text(&DESTINATION).map(str::parse::<Uri>);
        self.headers.contains_key(SOURCE) || uri.is_none_or(|uri| uri.is_ok_and(|uri| !self.is_own(&uri)))
    }

    fn is_own(&self, uri: &Uri) -> bool {
        uri.authority().is_none_or(|named| Some(named.as_str()) == self.text(&HOST))
    }

    /// The place on this server that a URI or an absolute path names.
    ///
    /// # Errors
    /// `UsageInvalid` for another server, `BadPath` for no place.
    pub(super) fn place_of(&self, text: &str) -> Result<Place, Error> {
        let uri: Uri = text.parse().map_err(invalid)?;
        match self.is_own(&uri) {
            true => place(uri.path()),
            // A query may hold a credential, and so may what comes before the host.
            false => {
                let host = uri.authority().map(Authority::host).unwrap_or_default();
                Err(invalid(format!("{} at {host} is at another server", uri.path())))
            }
        }
    }

    /// The header `Depth` (RFC 4918, section 10.2).
    ///
    /// # Errors
    /// `UsageInvalid` for another value.
    pub(super) fn depth(&self) -> Result<Option<Depth>, Error> {
        match self.text(&HeaderName::from_static("depth")) {
            None => Ok(None),
            Some("0") => Ok(Some(Depth::Zero)),
            Some("1") => Ok(Some(Depth::One)),
            Some(text) if text.eq_ignore_ascii_case("infinity") => Ok(Some(Depth::Infinity)),
            Some(text) => Err(invalid(format!("{text} is no depth"))),
        }
    }

    /// Whether the client has this version already, or asked for another one.
    pub(super) fn judge(&self, tag: &str, modified: SystemTime) -> Freshness {
        if let Some(wanted) = self.text(&IF_MATCH) {
            return if matches(wanted, tag) { Freshness::Send } else { Freshness::Failed };
        }
        let unchanged_since =
            self.text(&IF_UNMODIFIED_SINCE).and_then(|since| httpdate::parse_http_date(since).ok());
        if unchanged_since.is_some_and(|since| modified >= since + Duration::from_secs(1)) {
            return Freshness::Failed;
        }
        let is_known = match (self.text(&IF_NONE_MATCH), self.text(&IF_MODIFIED_SINCE)) {
            (Some(known), _) => matches(known, tag),
            (None, Some(since)) => {
                httpdate::parse_http_date(since).is_ok_and(|since| modified < since + Duration::from_secs(1))
            }
            (None, None) => false,
        };
        if is_known { Freshness::Known } else { Freshness::Send }
    }

    /// The ranges of bytes that are wanted of a content; none for all of it. Ranges that cannot be read, that are too many,
    /// or longer together than the content, are answered with all.
    ///
    /// # Errors
    /// None of the ranges can be satisfied.
    pub(super) fn ranges(&self, size: u64, tag: &str) -> Result<Vec<Range<u64>>, ()> {
        if self.text(&IF_RANGE).is_some_and(|wanted| wanted != tag) {
            return Ok(Vec::new());
        }
        let text = self.text(&RANGE).and_then(|text| text.strip_prefix("bytes="));
        let ranges =
            text.and_then(|text| text.split(',').map(|one| range(one, size)).collect::<Option<Vec<_>>>());
        let Some(mut ranges) = ranges.filter(|ranges| ranges.len() <= MAX_RANGES) else {
            return Ok(Vec::new());
        };
        ranges.retain(|range| range.start < range.end);
        let bytes = ranges.iter().map(|range| range.end - range.start).fold(0, u64::saturating_add);
        match ranges.is_empty() {
            true => Err(()),
            false => Ok(if bytes <= size { ranges } else { Vec::new() }),
        }
    }
}

/// A range of bytes within a content; none if the text is no range.
fn range(text: &str, size: u64) -> Option<Range<u64>> {
    let (first, last) = text.trim().split_once('-')?;
    match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => Some(first..last.saturating_add(1).min(size)),
        (Ok(first), Err(_)) if last.is_empty() => Some(first..size),
        (Err(_), Ok(count)) if first.is_empty() => Some(size.saturating_sub(count)..size),
        _ => None,
    }
}

/// How much of a tree is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// The entry alone.
    Zero,
    /// A directory and what is in it.
    One,
    /// All below it.
    Infinity,
}

/// Whether content is sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// It is.
    Send,
    /// The client has it.
    Known,
    /// The version that the client wants is gone.
    Failed,
}

pub(crate) fn place(path: &str) -> Result<Place, Error> {
    let decoded: Vec<u8> = percent_decode_str(path).collect();
    let none = || Error::new(Code::BadPath, "read request", "/", "the path names no storage");
    Place::parse_anywhere(&decoded)?.ok_or_else(none)
}

/// Whether a list of tags has this one.
fn matches(list: &str, tag: &str) -> bool {
    list == "*" || list.split(',').any(|one| one.trim().trim_start_matches("W/") == tag)
}

/// The entity tag of a version.
pub(super) fn tag(stamp: &Stamp) -> String {
    let Stamp { size, mtime, ctime, ino } = stamp;
    format!("\"{size:x}-{:x}.{:x}-{:x}.{:x}-{ino:x}\"", mtime.secs, mtime.nanos, ctime.secs, ctime.nanos)
}

fn parse_tag(tag: &str) -> Option<Stamp> {
    let mut parts = tag.strip_prefix('"')?.strip_suffix('"')?.split('-');
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let time = |text: &str| {
        let (secs, nanos) = text.split_once('.')?;
        Some(FileTime { secs: number(secs)?.cast_signed(), nanos: u32::from_str_radix(nanos, 16).ok()? })
    };
    let size = number(parts.next()?)?;
    let mtime = time(parts.next()?)?;
    let ctime = time(parts.next()?)?;
    let ino = number(parts.next()?)?;
    parts.next().is_none().then_some(Stamp { size, mtime, ctime, ino })
}

/// A file's time as HTTP shows it: not before 1970, nor after the year 9999.
pub(crate) fn system_time(time: FileTime) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(time.secs).unwrap_or(0).min(LAST_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(headers: &[(&'static str, &str)]) -> Target {
        let mut request = axum::http::Request::get("/data/a%20b/c");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Target::parse(&request.body(()).unwrap().into_parts().0).unwrap()
    }

    #[test]
    fn paths_are_decoded_and_may_not_climb() {
        assert_eq!(target(&[]).place.to_string(), "/data/a b/c");
        assert_eq!(place("/titech%3A/data/a").unwrap().to_string(), "/titech:/data/a");
        for bad in ["/titech:/", "/data/../etc", "/data/%2e%2e/etc", "/data/a%00", "/"] {
            assert!(place(bad).is_err(), "{bad}");
        }
        assert_eq!(place("/data/%ff").unwrap().path.as_bytes(), b"\xff");
    }

    #[test]
    fn tags_name_versions_before_1970_too() {
        let time = FileTime { secs: -5, nanos: 999_999_999 };
        let stamp =
            Stamp { size: 12, mtime: time, ctime: FileTime { secs: 1 << 40, nanos: 0 }, ino: u64::MAX };
        assert_eq!(parse_tag(&tag(&stamp)), Some(stamp));
        for bad in ["", "\"\"", "\"1-2-3-4\"", "1-2.0-3.0-4", "\"1-2.0-3.0-4-5\""] {
            assert_eq!(parse_tag(bad), None, "{bad}");
        }
    }

    #[test]
    fn times_that_http_cannot_show_are_those_next_to_them() {
        let shown = |secs| httpdate::fmt_http_date(system_time(FileTime { secs, nanos: 0 }));
        assert_eq!(shown(-5), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(shown(253_402_300_800), "Fri, 31 Dec 9999 23:59:59 GMT");
        assert_eq!(shown(i64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn ranges_are_those_of_the_standard() {
        let ranges = |text: &str| target(&[("range", text)]).ranges(100, "\"t\"");
        let range = |text: &str| ranges(text).map(|ranges| ranges.into_iter().next());
        assert_eq!(range("bytes=0-9"), Ok(Some(0..10)));
        assert_eq!(range("bytes=90-"), Ok(Some(90..100)));
        assert_eq!(range("bytes=90-1000"), Ok(Some(90..100)));
        assert_eq!(range("bytes=-10"), Ok(Some(90..100)));
        assert_eq!(range("bytes=-1000"), Ok(Some(0..100)));
        assert_eq!(range("bytes=100-"), Err(()));
        assert_eq!(range("bytes=-0"), Err(()));
        for whole in ["bytes=9-1", "bytes=x-", "bytes=0-1,x", "lines=0-1", "bytes=0-99,0-0", "bytes=0-, 5-5"]
        {
            assert_eq!(range(whole), Ok(None), "{whole}");
        }
        assert_eq!(ranges("bytes=0-1, 5-6,200-,-1"), Ok(vec![0..2, 5..7, 99..100]));
        assert_eq!(ranges("bytes=100-,200-"), Err(()));
        let other = target(&[("range", "bytes=0-9"), ("if-range", "\"u\"")]);
        assert_eq!(other.ranges(100, "\"t\""), Ok(Vec::new()));
    }

    #[test]
    fn known_versions_are_not_sent_again() {
        let at = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let judge = |name, value: &str| target(&[(name, value)]).judge("\"t\"", at);
        assert_eq!(judge("if-none-match", "\"s\", W/\"t\""), Freshness::Known);
        assert_eq!(judge("if-none-match", "\"s\""), Freshness::Send);
        assert_eq!(judge("if-match", "\"s\""), Freshness::Failed);
        assert_eq!(judge("if-match", "*"), Freshness::Send);
        assert_eq!(judge("if-modified-since", &httpdate::fmt_http_date(at)), Freshness::Known);
        assert_eq!(judge("if-unmodified-since", &httpdate::fmt_http_date(at)), Freshness::Send);
        let before = at - Duration::from_secs(1);
        assert_eq!(judge("if-unmodified-since", &httpdate::fmt_http_date(before)), Freshness::Failed);
        assert_eq!(judge("if-modified-since", "yesterday"), Freshness::Send);
    }

    #[test]
    fn destinations_are_on_this_server() {
        let to = |host: &str, text: &str| target(&[("host", host), ("destination", text)]).destination();
        assert_eq!(to("kek:7512", "https://kek:7512/data/x%20y").unwrap().to_string(), "/data/x y");
        assert_eq!(to("kek:7512", "/data/x").unwrap().to_string(), "/data/x");
        let elsewhere = to("kek:7512", "https://u:secret@osaka:7512/data/x?secret").unwrap_err().to_string();
        assert!(elsewhere.contains("/data/x at osaka is") && !elsewhere.contains("secret"), "{elsewhere}");
        assert!(target(&[]).destination().is_err());
        let second = axum::http::Request::get("https://kek:7512/data/a")
            .header("destination", "https://kek:7512/data/x");
        let second = Target::parse(&second.body(()).unwrap().into_parts().0).unwrap();
        assert_eq!(second.destination().unwrap().to_string(), "/data/x", "HTTP/2 has no header Host");
        let elsewhere = target(&[("host", "kek:7512"), ("destination", "https://osaka:7512/data/x")]);
        assert!(
            elsewhere.is_between_servers() && !target(&[("destination", "/data/x")]).is_between_servers()
        );
    }

    #[test]
    fn conditions_of_changes_are_understood_or_refused() {
        let condition = |headers: &[(&'static str, &str)]| target(headers).precondition();
        assert_eq!(condition(&[]), Ok(Precondition::None));
        assert_eq!(condition(&[("if-none-match", "*")]), Ok(Precondition::Absent));
        let stamp = Stamp { size: 3, ..Stamp::default() };
        assert_eq!(condition(&[("if-match", &tag(&stamp))]), Ok(Precondition::Version(stamp)));
        assert_eq!(condition(&[("if-match", "\"abc\"")]).unwrap_err().code, Code::VersionReplaced);
        assert_eq!(condition(&[("if-none-match", "\"abc\"")]).unwrap_err().code, Code::UsageInvalid);
        assert_eq!(condition(&[("content-range", "bytes 0-1/2")]).unwrap_err().code, Code::UsageInvalid);
    }
}
