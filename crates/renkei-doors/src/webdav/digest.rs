//! Digests of content in headers: `Digest` (RFC 3230), `Repr-Digest` (RFC 9530), `Content-MD5`, `OC-Checksum`.

use super::error::invalid;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use renkei_core::error::{Code, Error};
use renkei_core::path::Place;
use renkei_core::units::hex;
use renkei_core::wire::message::Algorithm;
use renkei_store::checksum::Checksum;

/// The algorithms that have names in headers.
pub(super) const ALL: [Algorithm; 4] =
    [Algorithm::Adler32, Algorithm::Crc32c, Algorithm::Md5, Algorithm::Sha256];

const DIGEST: HeaderName = HeaderName::from_static("digest");
const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");

/// The form of a digest in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Instance,
    Repr,
}

/// The digest that a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    form: Form,
    pub(super) algorithm: Algorithm,
}

/// The name in `Digest`, and that in `Repr-Digest`.
fn names(algorithm: Algorithm) -> Option<(&'static str, &'static str)> {
    match algorithm {
        Algorithm::Adler32 => Some(("adler32", "adler")),
        Algorithm::Crc32c => Some(("crc32c", "crc32c")),
        Algorithm::Md5 => Some(("md5", "md5")),
        Algorithm::Sha256 => Some(("sha-256", "sha-256")),
        Algorithm::Blake3 => None,
    }
}

fn named(form: Form, name: &str) -> Option<Algorithm> {
    let name_of = |algorithm: Algorithm| {
        names(algorithm).map(|(instance, repr)| if form == Form::Instance { instance } else { repr })
    };
    ALL.into_iter().find(|one| name_of(*one).is_some_and(|known| known.eq_ignore_ascii_case(name.trim())))
}

impl Wanted {
    /// The digest that a request wants most of those that are known; unknown ones are passed over. `Want-Digest` goes
    /// first, for its clients read no other answer.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let of = |header, form, separator| {
            let weighed = list(headers, header).into_iter().filter_map(|item| {
                let (name, weight) = item.split_once(separator).unwrap_or((&item, "1"));
                Some((named(form, name)?, weight.parse::<f32>().ok().filter(|weight| *weight > 0.0)?))
            });
            // The first of those with the largest weight.
            let most = weighed.reduce(|most, next| if next.1 > most.1 { next } else { most });
            most.map(|(algorithm, _)| Wanted { form, algorithm })
        };
        of("want-digest", Form::Instance, ";q=").or_else(|| of("want-repr-digest", Form::Repr, "="))
    }

    /// The header that answers it.
    pub(super) fn header(self, sum: &[u8]) -> (HeaderName, HeaderValue) {
        let (name, text) = match self.form {
            Form::Instance => (DIGEST, instance(self.algorithm, sum)),
            Form::Repr => {
                let name = names(self.algorithm).map_or("", |(_, repr)| repr);
                (REPR_DIGEST, format!("{name}=:{}:", BASE64_STANDARD.encode(sum)))
            }
        };
        (name, HeaderValue::from_str(&text).expect("digits and letters are legal in a header"))
    }
}

/// A digest as in the header `Digest`: checksums of 32 bits are hexadecimal there.
pub(super) fn instance(algorithm: Algorithm, sum: &[u8]) -> String {
    let name = names(algorithm).map_or("", |(instance, _)| instance);
    let value = if sum.len() == 4 { hex(sum) } else { BASE64_STANDARD.encode(sum) };
    format!("{name}={value}")
}

/// The items of a header that is a list, without spaces.
fn list(headers: &HeaderMap, name: &str) -> Vec<String> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|item| item.replace([' ', '\t'], "")).collect()
}

/// The checksums of content on its way, and those that it must have.
#[derive(Default)]
pub(super) struct Expected {
    sums: Vec<(Algorithm, Checksum)>,
    expected: Vec<(Algorithm, Vec<u8>)>,
    wanted: Option<Wanted>,
}

impl Expected {
    /// What the headers of a request say of its content.
    ///
    /// # Errors
    /// `UsageInvalid` for a digest of a known algorithm that cannot be read.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Error> {
        let (mut expected, wanted) = (Vec::new(), Wanted::of(headers));
        for (header, form) in
            [("digest", Form::Instance), ("repr-digest", Form::Repr), ("content-digest", Form::Repr)]
        {
            for item in list(headers, header) {
                let (name, value) = item.split_once('=').unwrap_or((&item, ""));
                if let Some(algorithm) = named(form, name) {
                    expected.push((algorithm, value.trim_matches(':').to_owned()));
                }
            }
        }
        expected.extend(list(headers, "content-md5").into_iter().map(|value| (Algorithm::Md5, value)));
        for item in list(headers, "oc-checksum") {
            let (name, value) = item.split_once(':').unwrap_or((&item, ""));
            let algorithm = Algorithm::of_name(&name.to_ascii_lowercase());
            expected.extend(algorithm.map(|algorithm| (algorithm, value.to_owned())));
        }
        let read = |(algorithm, text): (Algorithm, String)| Ok((algorithm, parse(algorithm, &text)?));
        let expected: Vec<_> = expected.into_iter().map(read).collect::<Result<_, Error>>()?;
        let mut algorithms: Vec<_> = expected.iter().map(|(algorithm, _)| *algorithm).collect();
        algorithms.extend(wanted.map(|wanted| wanted.algorithm));
        algorithms.dedup();
        let sums = algorithms.into_iter().map(|algorithm| (algorithm, Checksum::new(algorithm))).collect();
        Ok(Expected { sums, expected, wanted })
    }

    /// Notes content that follows.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.sums.iter_mut().for_each(|(_, sum)| sum.update(bytes));
    }

    /// Compares what came with what was announced; gives the header that the client wants.
    ///
    /// # Errors
    /// `DigestMismatch`.
    pub(super) fn finish(self, place: &Place) -> Result<Option<(HeaderName, HeaderValue)>, Error> {
        let sums: Vec<_> = self.sums.into_iter().map(|(algorithm, sum)| (algorithm, sum.finish())).collect();
        let sum_of = |algorithm| sums.iter().find(|(one, _)| *one == algorithm).map(|(_, sum)| sum);
        for (algorithm, expected) in &self.expected {
            if let Some(found) = sum_of(*algorithm).filter(|found| *found != expected) {
                let (name, expected, found) = (algorithm.name(), hex(expected), hex(found));
                let cause = format!("{name} {expected} was announced, {found} arrived");
                return Err(Error::new(Code::DigestMismatch, "PUT", place, cause));
            }
        }
        Ok(self.wanted.and_then(|wanted| Some(wanted.header(sum_of(wanted.algorithm)?))))
    }
}

/// A checksum in hexadecimal or in base64, as its length tells.
fn parse(algorithm: Algorithm, text: &str) -> Result<Vec<u8>, Error> {
    let bytes = Checksum::new(algorithm).finish().len();
    let digits = (text.len() == 2 * bytes).then(|| from_hex(text)).flatten();
    let sum = digits.or_else(|| BASE64_STANDARD.decode(text).ok().filter(|sum| sum.len() == bytes));
    sum.ok_or_else(|| invalid(format!("{text:?} is no {} checksum", algorithm.name())))
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.as_bytes().chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        all.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    fn wanted(name: &'static str, value: &str) -> Option<(String, String)> {
        let wanted = Wanted::of(&headers(&[(name, value)]))?;
        let (name, value) = wanted.header(&Checksum::new(wanted.algorithm).finish());
        Some((name.to_string(), value.to_str().unwrap().to_owned()))
    }

    #[test]
    fn the_known_digest_of_largest_weight_is_given() {
        let of = |value| wanted("want-digest", value).map(|(_, value)| value);
        assert_eq!(of("adler32").as_deref(), Some("adler32=00000001"));
        assert_eq!(of("UNIXsum, MD5;q=0.3, adler32; q=0.5").as_deref(), Some("adler32=00000001"));
        assert_eq!(of("md5, adler32").as_deref(), Some("md5=1B2M2Y8AsgTpgAmY7PhCfg=="));
        assert_eq!((of("sha-512"), of("md5;q=0"), of("md5;q=x")), (None, None, None));
        let repr = wanted("want-repr-digest", "sha-512=10, adler=3, md5=1");
        assert_eq!(repr, Some(("repr-digest".into(), "adler=:AAAAAQ==:".into())));
        let both = Wanted::of(&headers(&[("want-repr-digest", "md5=10"), ("want-digest", "adler32")]));
        assert_eq!(both.unwrap().form, Form::Instance);
    }

    #[test]
    fn content_is_compared_with_each_announced_digest() {
        let place = Place::parse(b"/data/a").unwrap().unwrap();
        let finish = |name, value: &str| {
            let mut expected = Expected::of(&headers(&[(name, value)]))?;
            expected.update(b"do");
            expected.update(b"g");
            expected.finish(&place).map(drop)
        };
        for (name, value) in [
            ("content-md5", "BtgOsMULSaUJtJ8kJOjIBQ=="),
            ("digest", "UNKNOWN=1,crc32c=0a72a4df, ADLER32=0274013b"),
            ("repr-digest", "adler=:AnQBOw==:"),
            ("oc-checksum", "MD5:06d80eb0c50b49a509b49f2424e8c805"),
            ("oc-checksum", "other"),
        ] {
            assert_eq!(finish(name, value), Ok(()), "{name}");
        }
        assert_eq!(finish("digest", "crc32c=0a72a4de").unwrap_err().code, Code::DigestMismatch);
        assert_eq!(finish("content-md5", "short").unwrap_err().code, Code::UsageInvalid);
    }
}
