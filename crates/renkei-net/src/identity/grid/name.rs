//! Distinguished names of certificates.
//!
//! Names are compared as RFC 5280 has it: without case and with one space for several, because programs that make
//! proxies encode the texts anew. As text they are in slash form, with the short names of OpenSSL.

use renkei_core::identity::grid_name::escaped;
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AttributeTypeAndValue, RelativeDistinguishedName, X509Name};

/// Short names of types.
const TYPES: [(&str, &str); 20] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.13", "description"),
    ("2.5.4.17", "postalCode"),
    ("2.5.4.41", "name"),
    ("2.5.4.42", "GN"),
    ("2.5.4.43", "initials"),
    ("2.5.4.46", "dnQualifier"),
    ("2.5.4.97", "organizationIdentifier"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];
/// Tag of a BMPString (X.680, 41).
const BMP_STRING: u32 = 30;
/// Most parts of a name.
const MAX_PARTS: usize = 64;

#[derive(Clone, Debug)]
struct Attribute {
    kind: String,
    value: Vec<u8>,
}

/// A distinguished name: parts, each with usually one attribute.
#[derive(Clone, Debug, Default)]
pub struct Name(Vec<Vec<Attribute>>);

impl Name {
    /// Reads a name; none if it has too many parts.
    pub(super) fn read(name: &X509Name<'_>) -> Option<Self> {
        let parts: Vec<Vec<Attribute>> = name
            .iter_rdn()
            .map(|part: &RelativeDistinguishedName<'_>| part.iter().map(Attribute::read).collect())
            .collect();
        (parts.len() <= MAX_PARTS).then_some(Name(parts))
    }

    /// Reads DER that is filled by a name.
    pub(super) fn from_der(der: &[u8]) -> Option<Self> {
        match X509Name::from_der(der) {
            Ok(([], name)) => Name::read(&name),
            _ => None,
        }
    }

    /// The common name by which this is longer than `issuer`, if it is that of a proxy below it: one part more, with a
    /// common name alone.
    pub(super) fn common_name_below(&self, issuer: &Name) -> Option<&[u8]> {
        let (last, above) = self.0.split_last()?;
        let [Attribute { kind, value }] = &last[..] else { return None };
        (kind == "CN" && same(above, &issuer.0)).then_some(value)
    }

    /// Whether the text form could be that of another name: a value that looks like a part or an escape.
    pub(super) fn is_ambiguous(&self) -> bool {
        self.0.iter().flatten().any(|attribute| looks_like_parts(&attribute.value))
    }

    fn canonical(&self) -> Vec<Vec<(&str, Vec<u8>)>> {
        canonical(&self.0)
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.canonical() == other.canonical()
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut all = self.0.iter().flatten();
        all.try_for_each(|Attribute { kind, value }| write!(f, "/{kind}={}", escaped(value)))
    }
}

impl Attribute {
    fn read(attribute: &AttributeTypeAndValue<'_>) -> Self {
        let oid = attribute.attr_type().to_id_string();
        let known = TYPES.iter().find(|(id, _)| *id == oid);
        let value = attribute.attr_value();
        let value = match value.header.tag().0 {
            BMP_STRING => wide(value.data),
            _ => value.data.to_vec(),
        };
        Attribute { kind: known.map_or(oid, |(_, name)| (*name).to_owned()), value }
    }
}

/// UTF-8 of text in 16 bits a letter.
fn wide(bytes: &[u8]) -> Vec<u8> {
    let letters: Vec<u16> =
        bytes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect();
    String::from_utf16_lossy(&letters).into_bytes()
}

fn same(one: &[Vec<Attribute>], other: &[Vec<Attribute>]) -> bool {
    canonical(one) == canonical(other)
}

fn canonical(parts: &[Vec<Attribute>]) -> Vec<Vec<(&str, Vec<u8>)>> {
    let attribute = |attribute: &'_ Attribute| folded(&attribute.value);
    parts.iter().map(|part| part.iter().map(|one| (one.kind.as_str(), attribute(one))).collect()).collect()
}

/// Lower case, without spaces around and with one for several.
fn folded(value: &[u8]) -> Vec<u8> {
    let words = value.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words.map(<[u8]>::to_ascii_lowercase).collect::<Vec<_>>().join(&b' ')
}

fn looks_like_parts(value: &[u8]) -> bool {
    let is_type =
        |word: &[u8]| !word.is_empty() && word.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'.');
    let begins = |rest: &[u8]| {
        rest.split(|b| *b == b'=').next().is_some_and(|word| word.len() < rest.len() && is_type(word))
    };
    let has_part = value.split(|b| *b == b'/').skip(1).any(begins);
    has_part || value.windows(2).any(|pair| pair == b"\\x")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(parts: &[(&str, &str)]) -> Name {
        let part = |(kind, value): &(&str, &str)| {
            vec![Attribute { kind: (*kind).into(), value: value.as_bytes().to_vec() }]
        };
        Name(parts.iter().map(part).collect())
    }

    #[test]
    fn names_are_compared_without_case_and_shown_as_they_are() {
        let taro = name(&[("C", "JP"), ("CN", "Taro  Yamada")]);
        assert!(taro == name(&[("C", "jp"), ("CN", " taro yamada ")]) && taro != name(&[("C", "JP")]));
        assert_eq!(taro.to_string(), "/C=JP/CN=Taro  Yamada");
        assert_eq!(name(&[("CN", "\u{e9}")]).to_string(), "/CN=\\xC3\\xA9");
    }

    #[test]
    fn a_proxy_has_one_common_name_more() {
        let user = name(&[("C", "JP"), ("CN", "Taro")]);
        let proxy = name(&[("C", "JP"), ("CN", "Taro"), ("CN", "123")]);
        assert_eq!(proxy.common_name_below(&user), Some(&b"123"[..]));
        for other in [
            user.clone(),
            name(&[("C", "JP"), ("CN", "Jiro"), ("CN", "1")]),
            name(&[("C", "JP"), ("CN", "Taro"), ("OU", "1")]),
        ] {
            assert_eq!(other.common_name_below(&user), None, "{other}");
        }
        assert_eq!(
            name(&[("C", "JP"), ("CN", "Taro"), ("CN", "1"), ("CN", "2")]).common_name_below(&user),
            None
        );
    }

    #[test]
    fn values_that_look_like_parts_are_ambiguous() {
        for value in ["a/CN=b", "x/1.2.3=y", "\\x2FCN=b"] {
            assert!(name(&[("CN", value)]).is_ambiguous(), "{value}");
        }
        for value in ["host/pop.kek.jp", "a=b", "a/b c=d", "http://x/?a=b", ""] {
            assert!(!name(&[("CN", value)]).is_ambiguous(), "{value}");
        }
    }
}
