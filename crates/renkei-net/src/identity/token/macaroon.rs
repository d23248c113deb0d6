//! Macaroons: tokens that their holder can restrict further without asking anybody (Birgisson et al., NDSS 2014), in
//! version 2 of the binary format of libmacaroons, as base64url text.
//!
//! Each caveat is signed with the signature before it, so that caveats can be appended and not taken away. Caveats of
//! third parties are refused: nobody here could discharge them.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use renkei_core::error::{Code, Error};

/// Longest token accepted, as text.
pub const MAX_TEXT_BYTES: usize = 16 << 10;
/// Maximum of caveats.
const MAX_CAVEATS: usize = 64;
/// Length of a signature.
const SIGNATURE_BYTES: usize = 32;
/// The version of the format.
const VERSION: u8 = 2;
/// From this key and the root key comes the one that signs identifiers, as in all implementations.
const GENERATOR: &[u8] = b"macaroons-key-generator";

/// Types of the fields.
mod field {
    pub const END: u64 = 0;
    pub const LOCATION: u64 = 1;
    pub const IDENTIFIER: u64 = 2;
    pub const SIGNATURE: u64 = 6;
}

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Macaroon {
    /// A hint for its holder where it is good.
    pub location: String,
    /// What the issuer wrote into it.
    pub identifier: String,
    /// The restrictions, which all hold.
    pub caveats: Vec<String>,
    signature: [u8; SIGNATURE_BYTES],
}

impl Macaroon {
    /// A token without caveats, signed with the issuer's root key.
    pub fn new(root: &[u8], location: &str, identifier: &str) -> Self {
        let key = sign(GENERATOR, root);
        Macaroon {
            location: location.into(),
            identifier: identifier.into(),
            caveats: Vec::new(),
            signature: sign(&key, identifier.as_bytes()),
        }
    }

    /// The token with one more restriction.
    #[must_use]
    pub fn with_caveat(mut self, caveat: &str) -> Self {
        self.signature = sign(&self.signature, caveat.as_bytes());
        self.caveats.push(caveat.into());
        self
    }

    /// Whether this root key signed it, with these caveats.
    pub fn is_signed_by(&self, root: &[u8]) -> bool {
        let made = Macaroon::new(root, &self.location, &self.identifier);
        let made = self.caveats.iter().fold(made, |made, caveat| made.with_caveat(caveat));
        aws_lc_rs::constant_time::verify_slices_are_equal(&made.signature, &self.signature).is_ok()
    }

    /// The text form.
    pub fn to_text(&self) -> String {
        let mut bytes = vec![VERSION];
        put(&mut bytes, field::LOCATION, self.location.as_bytes());
        put(&mut bytes, field::IDENTIFIER, self.identifier.as_bytes());
        bytes.push(0);
        for caveat in &self.caveats {
            put(&mut bytes, field::IDENTIFIER, caveat.as_bytes());
            bytes.push(0);
        }
        bytes.push(0);
        put(&mut bytes, field::SIGNATURE, &self.signature);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Whether a token can be a macaroon: all begin with the version and a field of the header.
    pub fn is_one(text: &str) -> bool {
        text.starts_with("AgE") || text.starts_with("AgI")
    }

    /// Parses the text form, in either alphabet of base64.
    ///
    /// # Errors
    /// `TokenInvalid`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = |cause: &str| Error::new(Code::TokenInvalid, "read token", "macaroon", cause);
        if text.len() > MAX_TEXT_BYTES {
            return Err(bad("it is too long"));
        }
        let plain = text.trim_end_matches('=').replace('+', "-").replace('/', "_");
        let bytes = URL_SAFE_NO_PAD.decode(plain).map_err(|_| bad("it is not base64"))?;
        Fields(&bytes)
            .macaroon()
            .ok_or_else(|| bad("it is not in version 2 of the format, or has a third party's caveat"))
    }
}

/// HMAC-SHA256.
fn sign(key: &[u8], text: &[u8]) -> [u8; SIGNATURE_BYTES] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text);
    tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

fn put(bytes: &mut Vec<u8>, kind: u64, content: &[u8]) {
    put_number(bytes, kind);
    put_number(bytes, content.len() as u64);
    bytes.extend_from_slice(content);
}

/// A number as varint, seven bits a byte, the lowest first.
fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).expect("seven bits") | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).expect("seven bits"));
}

/// The bytes that remain to be read.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn macaroon(mut self) -> Option<Macaroon> {
        if self.byte()? != VERSION {
            return None;
        }
        let (location, identifier) = self.section()?;
        let mut caveats = Vec::new();
        while self.0.first() != Some(&0) {
            let (_, caveat) = self.section()?;
            caveats.push(caveat);
            if caveats.len() > MAX_CAVEATS {
                return None;
            }
        }
        self.byte()?;
        let (kind, signature) = self.field()?;
        let signature =
            signature.try_into().ok().filter(|_| kind == field::SIGNATURE && self.0.is_empty())?;
        Some(Macaroon { location, identifier, caveats, signature })
    }

    /// A location, which may be missing, and an identifier, up to the end of the section.
    fn section(&mut self) -> Option<(String, String)> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).ok();
        let (mut kind, mut content) = self.field()?;
        let mut location = String::new();
        if kind == field::LOCATION {
            location = text(content)?;
            (kind, content) = self.field()?;
        }
        let is_whole = kind == field::IDENTIFIER && u64::from(self.byte()?) == field::END;
        Some((location, text(content)?)).filter(|_| is_whole)
    }

    fn field(&mut self) -> Option<(u64, Vec<u8>)> {
        let kind = self.number()?;
        let length = usize::try_from(self.number()?).ok()?;
        let (content, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some((kind, content.to_vec()))
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..63).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }
}

/// The password of an `Authorization: Basic` header, for clients that know no other way to send a token.
pub fn password(credentials: &str) -> Option<String> {
    let text = String::from_utf8(STANDARD.decode(credentials.trim()).ok()?).ok()?;
    text.split_once(':').map(|(_, password)| password.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Made by pymacaroons 0.13: `Macaroon(location="kek", identifier="id", key="secret", version=MACAROON_V2)` with
    /// `add_first_party_caveat` of `path:/data` and `activity:LIST`.
    const OF_PYMACAROONS: &str = "AgEDa2VrAgJpZAACCnBhdGg6L2RhdGEAAg1hY3Rpdml0eTpMSVNUAAAGIJo-9U5v4Fc7hjN8OLBReY5ud8AUFmNetYX0Avh6uR6W";

    #[test]
    fn tokens_are_those_of_other_implementations() {
        let made =
            Macaroon::new(b"secret", "kek", "id").with_caveat("path:/data").with_caveat("activity:LIST");
        assert_eq!(made.to_text(), OF_PYMACAROONS);
        assert!(Macaroon::is_one(OF_PYMACAROONS));
        let read = Macaroon::parse(OF_PYMACAROONS).unwrap();
        assert_eq!(read, made);
        assert!(read.is_signed_by(b"secret") && !read.is_signed_by(b"other"));
    }

    #[test]
    fn caveats_can_be_appended_and_not_taken_away() {
        let made = Macaroon::new(b"key", "", "id").with_caveat("a").with_caveat("b");
        let more = Macaroon::parse(&made.to_text()).unwrap().with_caveat("c");
        assert!(more.is_signed_by(b"key"));
        for forged in [
            Macaroon { caveats: vec!["a".into()], ..made.clone() },
            Macaroon { caveats: vec!["b".into(), "a".into()], ..made.clone() },
            Macaroon { caveats: vec!["a".into(), "c".into()], ..made.clone() },
            Macaroon { identifier: "other".into(), ..made.clone() },
        ] {
            assert!(!forged.is_signed_by(b"key"), "{forged:?}");
        }
    }

    #[test]
    fn damaged_tokens_are_refused() {
        let whole = Macaroon::new(b"key", "kek", "id").with_caveat("a").to_text();
        let bytes = URL_SAFE_NO_PAD.decode(&whole).unwrap();
        for cut in 0..bytes.len() {
            assert!(Macaroon::parse(&URL_SAFE_NO_PAD.encode(&bytes[..cut])).is_err(), "{cut}");
        }
        for (at, bit) in (0..bytes.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            let read = Macaroon::parse(&URL_SAFE_NO_PAD.encode(&damaged));
            // The location is a hint alone.
            assert!(
                read.is_err() || !read.as_ref().unwrap().is_signed_by(b"key") || (3..6).contains(&at),
                "{at} {read:?}"
            );
        }
        assert_eq!(Macaroon::parse("*").unwrap_err().code, Code::TokenInvalid);
        assert!(Macaroon::parse(&"A".repeat(MAX_TEXT_BYTES + 1)).is_err());
        let many = (0..=MAX_CAVEATS).fold(Macaroon::new(b"key", "", "id"), |made, _| made.with_caveat("a"));
        assert!(Macaroon::parse(&many.to_text()).is_err());
    }

    #[test]
    fn passwords_are_those_of_basic_authentication() {
        assert_eq!(password("dXNlcjpwYXNzOndvcmQ=").as_deref(), Some("pass:word"));
        assert_eq!((password("dXNlcg=="), password("*")), (None, None));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Macaroon::parse(&URL_SAFE_NO_PAD.encode(&bytes));
            let _ = Macaroon::parse(&URL_SAFE_NO_PAD.encode([&[2][..], &bytes].concat()));
        }

        #[test]
        fn texts_round_trip(location in ".{0,20}", identifier in ".{0,200}", caveats in proptest::collection::vec(".{0,40}", 0..5)) {
            let made = Macaroon::new(b"key", &location, &identifier);
            let made = caveats.iter().fold(made, |made, caveat| made.with_caveat(caveat));
            prop_assert_eq!(Macaroon::parse(&made.to_text()).unwrap(), made);
        }
    }
}
