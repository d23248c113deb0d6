//! Names of the grid as text: distinguished names in slash form, and attributes of virtual organisations (FQANs).
//!
//! `/C=JP/O=NII/CN=Taro` is the form of OpenSSL's `X509_NAME_oneline`, which grid-mapfiles use. Files write some types
//! and bytes in several ways; here each has one. FQANs are `/VO/GROUP/Role=ROLE/Capability=NULL`, where `NULL` means
//! none.

use std::fmt::Write;

/// Longest name accepted, in bytes.
pub const MAX_NAME_BYTES: usize = 1024;
/// Other spellings of types in files.
const SPELLINGS: [(&str, &str); 6] = [
    ("/Email=", "/emailAddress="),
    ("/E=", "/emailAddress="),
    ("/EMAILADDRESS=", "/emailAddress="),
    ("/USERID=", "/UID="),
    ("/UserID=", "/UID="),
    ("/userId=", "/UID="),
];

/// A distinguished name in its one form; none if the text is not `/TYPE=VALUE...`.
pub fn canonical_dn(text: &str) -> Option<String> {
    let is_short = text.len() <= MAX_NAME_BYTES;
    let is_legal = is_short && text.starts_with('/') && text.contains('=') && !text.contains('"');
    let spelled = SPELLINGS.iter().fold(text.to_owned(), |text, (other, ours)| text.replace(other, ours));
    is_legal.then(|| escaped(&unescaped(spelled.as_bytes())))
}

/// An attribute in its one form: without parts that say `NULL`; none if the text is not `/VO...`.
pub fn canonical_fqan(text: &str) -> Option<String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || "/._-=*".contains(c);
    let is_legal = text.len() <= MAX_NAME_BYTES && text.len() > 1 && text.chars().all(legal);
    let parts = text.strip_prefix('/')?.split('/');
    let kept: Vec<&str> = parts.filter(|part| !matches!(*part, "Role=NULL" | "Capability=NULL")).collect();
    let is_whole = !kept.is_empty() && kept.iter().all(|part| !part.is_empty());
    (is_legal && is_whole).then(|| format!("/{}", kept.join("/")))
}

/// Bytes of a name as printable text: others as `\xHH`.
pub fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            0x20..=0x7e => text.push(char::from(*byte)),
            other => write!(text, "\\x{other:02X}").expect("writing to a text does not fail"),
        }
    }
    text
}

/// The bytes of a text with `\xHH`.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let (mut bytes, mut at) = (Vec::with_capacity(text.len()), 0);
    while at < text.len() {
        let coded =
            text[at..].starts_with(b"\\x").then(|| Some(digit(at + 2)? * 16 + digit(at + 3)?)).flatten();
        bytes.push(coded.map_or(text[at], |code| code as u8));
        at += if coded.is_some() { 4 } else { 1 };
    }
    bytes
}

/// Whether a text matches a pattern in which `*` is any text and `?` any byte.
pub fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    // The position after the last `*`, and the text that it may end at next.
    let (mut at, mut read, mut star) = (0, 0, None);
    while read < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at + 1, read));
                at += 1;
            }
            Some(b'?') => (at, read) = (at + 1, read + 1),
            Some(byte) if *byte == text[read] => (at, read) = (at + 1, read + 1),
            _ => {
                let Some((after, from)) = star else { return false };
                star = Some((after, from + 1));
                (at, read) = (after, from + 1);
            }
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_form() {
        let dn = |text| canonical_dn(text).unwrap();
        assert_eq!(dn("/C=JP/CN=a/Email=a@b.jp"), "/C=JP/CN=a/emailAddress=a@b.jp");
        assert_eq!(dn("/DC=org/USERID=a"), "/DC=org/UID=a");
        assert_eq!(dn("/CN=\u{e9}"), "/CN=\\xC3\\xA9");
        assert_eq!(dn("/CN=\\xc3\\xa9"), "/CN=\\xC3\\xA9");
        assert_eq!(dn("/CN=\\x41\\"), "/CN=A\\");
        for bad in ["", "CN=a", "/a", "/CN=\"a", &format!("/CN={}", "a".repeat(2000))] {
            assert_eq!(canonical_dn(bad), None, "{bad}");
        }
    }

    #[test]
    fn attributes_say_nothing_of_null() {
        let fqan = |text| canonical_fqan(text);
        assert_eq!(fqan("/belle/Role=NULL/Capability=NULL").as_deref(), Some("/belle"));
        assert_eq!(fqan("/a.b/c/Role=x/Capability=NULL").as_deref(), Some("/a.b/c/Role=x"));
        for bad in ["", "/", "belle", "//a", "/a b", "/a\n", "/Role=NULL"] {
            assert_eq!(fqan(bad), None, "{bad}");
        }
    }

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, text) in [("/a/*", "/a/b/c"), ("*", ""), ("/C=?P/*x*", "/C=JP/axb"), ("a**b", "ab")] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("/a/*", "/a"), ("", "a"), ("/a", "/ab"), ("*b", "abc"), ("?", "")] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }
}
