//! Digests that a web server tells of a file: `Digest` (RFC 3230) and `Repr-Digest` (RFC 9530).

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::HeaderMap;
use renkei_core::error::{Code, Error};
use renkei_core::units::hex;
use renkei_core::wire::message::Algorithm;
use renkei_store::checksum::Checksum;

/// `Want-Digest` of a copy, the cheapest first.
pub(super) const WANTED: &str = "adler32, crc32c;q=0.9, md5;q=0.5, sha-256;q=0.4";

/// A digest.
pub type Digest = (Algorithm, Vec<u8>);

fn algorithm(name: &str) -> Option<Algorithm> {
    match name.trim().to_ascii_lowercase().as_str() {
        "adler32" | "adler" => Some(Algorithm::Adler32),
        "crc32c" => Some(Algorithm::Crc32c),
        "md5" => Some(Algorithm::Md5),
        "sha-256" | "sha256" => Some(Algorithm::Sha256),
        _ => None,
    }
}

/// The digests of known algorithms in the headers of a message; those that cannot be read are passed over.
pub fn digests(headers: &HeaderMap) -> Vec<Digest> {
    let values = ["digest", "repr-digest"].into_iter().flat_map(|name| headers.get_all(name));
    let items = values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    items.filter_map(digest).collect()
}

fn digest(item: &str) -> Option<Digest> {
    let (name, value) = item.split_once('=')?;
    let algorithm = algorithm(name)?;
    let bytes = Checksum::new(algorithm).finish().len();
    let text = value.trim().trim_matches(':');
    let is_short = bytes == 4 && !text.is_empty() && text.len() < 8;
    let whole = (text.len() == 2 * bytes).then(|| from_hex(text)).flatten();
    let base64 = || BASE64_STANDARD.decode(text).ok().filter(|sum| sum.len() == bytes);
    // Servers omit leading zeros of checksums of 32 bits.
    let short = || is_short.then(|| from_hex(&format!("{text:0>8}"))).flatten();
    let sum = whole.or_else(base64).or_else(short);
    Some((algorithm, sum?))
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.as_bytes().chunks(2).map(pair).collect()
}

/// Compares what is expected with what was found.
///
/// # Errors
/// `DigestMismatch`.
pub(super) fn compare(expected: &Digest, found: &[u8], subject: &dyn std::fmt::Display) -> Result<(), Error> {
    if expected.1 == found {
        return Ok(());
    }
    let name = expected.0.name();
    let cause = format!("{name} {} at the other server, {} here", hex(&expected.1), hex(found));
    Err(Error::new(Code::DigestMismatch, "compare", subject, cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_of_servers_are_read() {
        let read = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("digest", value.parse().unwrap());
            digests(&headers)
        };
        assert_eq!(read("ADLER32=0274013b"), [(Algorithm::Adler32, vec![2, 0x74, 1, 0x3b])]);
        assert_eq!(read("adler32=274013b"), [(Algorithm::Adler32, vec![2, 0x74, 1, 0x3b])]);
        assert_eq!(read("UNIXsum=1, md5=1B2M2Y8AsgTpgAmY7PhCfg==").len(), 1);
        assert_eq!(read("adler=:AnQBOw==:"), [(Algorithm::Adler32, vec![2, 0x74, 1, 0x3b])]);
        assert_eq!(read("md5=x, adler32=, adler32=zzzzzzzz"), []);
    }
}
