//! Paths and names of files and sites. File names are bytes, because they need not be UTF-8.

use crate::error::{Code, Error};
use crate::former_names;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// Longest relative path accepted, in bytes. Longer than PATH_MAX (4096), because a deep tree can be walked
/// directory by directory.
pub const MAX_PATH_BYTES: usize = 32 * 1024;
/// Longest single name any Linux file system has (NAME_MAX).
pub const MAX_NAME_BYTES: usize = 255;
/// Number of names shown of a list in a one-line message.
const FIRST_NAMES: usize = 3;

/// A path below some root: components joined by `/`, none empty, `.` or `..`; the root itself is the empty path.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct RelPath(#[serde(with = "path_bytes")] Vec<u8>);

impl RelPath {
    /// The root.
    pub fn root() -> Self {
        RelPath(Vec::new())
    }

    /// Validates `bytes`; repeated and trailing slashes are *not* accepted here.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.is_empty() {
            return Ok(Self::root());
        }
        if bytes.len() > MAX_PATH_BYTES {
            return Err(bad_path(bytes, "longer than 32768 bytes"));
        }
        bytes.split(|&b| b == b'/').try_for_each(|name| check_name(name, bytes))?;
        Ok(RelPath(bytes.to_vec()))
    }

    /// Parses user input: surplus slashes and `.` components are dropped, `..` is refused.
    pub fn parse_lenient(bytes: &[u8]) -> Result<Self, Error> {
        let names: Vec<&[u8]> =
            bytes.split(|&b| b == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
        Self::parse(&names.join(&b'/'))
    }

    /// The path's bytes, without a leading slash.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether this is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// This path with one more component.
    pub fn child(&self, name: &[u8]) -> Result<Self, Error> {
        check_name(name, name)?;
        Self::from_joined(self, name)
    }

    /// This path with all of `tail` below it.
    pub fn join(&self, tail: &RelPath) -> Result<Self, Error> {
        if tail.is_root() { Ok(self.clone()) } else { Self::from_joined(self, &tail.0) }
    }

    fn from_joined(head: &RelPath, tail: &[u8]) -> Result<Self, Error> {
        let mut bytes = Vec::with_capacity(head.0.len() + 1 + tail.len());
        bytes.extend_from_slice(&head.0);
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(tail);
        if bytes.len() > MAX_PATH_BYTES {
            return Err(bad_path(&bytes, "longer than 32768 bytes"));
        }
        Ok(RelPath(bytes))
    }

    /// The parent directory; `None` for the root.
    pub fn parent(&self) -> Option<RelPath> {
        if self.is_root() {
            return None;
        }
        let cut = self.0.iter().rposition(|&b| b == b'/').unwrap_or(0);
        Some(RelPath(self.0[..cut].to_vec()))
    }

    /// The last component; `None` for the root.
    pub fn name(&self) -> Option<&[u8]> {
        self.0.rsplit(|&b| b == b'/').next().filter(|name| !name.is_empty())
    }

    /// Directory and last component as slices, without a copy; `None` for the root.
    pub fn split(&self) -> Option<(&[u8], &[u8])> {
        let name = self.name()?;
        Some((&self.0[..(self.0.len() - name.len()).saturating_sub(1)], name))
    }

    /// The components in order.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&b| b == b'/').filter(|name| !name.is_empty())
    }

    /// The path from `other` to this, if this is `other` or a descendant of it.
    pub fn below(&self, other: &RelPath) -> Option<RelPath> {
        let rest = self.0.get(other.0.len()..).filter(|_| self.starts_with(other))?;
        Some(RelPath(rest.strip_prefix(b"/").unwrap_or(rest).to_vec()))
    }

    /// Whether this is `other` or a descendant of it.
    pub fn starts_with(&self, other: &RelPath) -> bool {
        other.is_root()
            || self.0 == other.0
            || (self.0.starts_with(&other.0) && self.0.get(other.0.len()) == Some(&b'/'))
    }
}

fn check_name(name: &[u8], whole: &[u8]) -> Result<(), Error> {
    let why = match name {
        b"" => "an empty component",
        b"." | b".." => "a `.` or `..` component",
        _ if name.iter().any(|&b| b == 0 || b == b'/') => "a NUL or slash in a name",
        _ if name.len() > MAX_NAME_BYTES => {
            return Err(Error { code: Code::NameTooLong, ..bad_path(name, "a name over 255 bytes") });
        }
        _ => return Ok(()),
    };
    Err(bad_path(whole, why))
}

fn bad_path(bytes: &[u8], why: &str) -> Error {
    Error::new(Code::BadPath, "parse path", shown(bytes), why)
}

/// A refused path, shortened for a message.
fn shown(bytes: &[u8]) -> String {
    printable(bytes).chars().take(200).collect()
}

/// Bytes in printable form: UTF-8 as it is, control characters and other bytes as `\xNN`.
pub fn printable(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || c == '\\' { out.extend(c.escape_default()) } else { out.push(c) }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// A path or other word, quoted for a shell if necessary.
pub fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:,@%=".contains(c);
    match text.chars().all(is_plain) {
        true => text.into(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// The first names of a list for a message: a single one as it is, several quoted for a shell, so that blanks in
/// names differ from separators.
pub fn first_names(mut names: impl Iterator<Item = String>) -> String {
    let first: Vec<String> = names.by_ref().take(FIRST_NAMES).collect();
    if let [name] = &first[..] {
        return name.clone();
    }
    let shown: Vec<String> = first.iter().map(|name| quoted(name)).collect();
    let more = if names.next().is_some() { " ..." } else { "" };
    format!("{}{more}", shown.join(" "))
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.0))
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RelPath({self})")
    }
}

impl<'de> Deserialize<'de> for RelPath {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = path_bytes::deserialize(deserializer)?;
        RelPath::parse(&bytes).map_err(serde::de::Error::custom)
    }
}

/// Byte strings as serde bytes (one length and a copy) instead of a sequence of numbers.
pub mod path_bytes {
    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    /// Writes the bytes.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    /// Reads the bytes.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// A site's name: 1 to 63 of `a-z`, `0-9` and `-`, starting with a letter.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SiteName(String);

impl SiteName {
    /// Validates a name; a former name of a renamed site is replaced by the current one ([`crate::former_names`]).
    pub fn parse(text: &str) -> Result<Self, Error> {
        if is_label(text) {
            return Ok(SiteName(former_names::renamed(text).unwrap_or_else(|| text.into())));
        }
        let why = "1 to 63 of a-z, 0-9 and -, starting with a letter";
        Err(Error::new(Code::UsageInvalid, "parse site name", printable(text.as_bytes()), why))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The current name, if the site was renamed since this name was read.
    pub fn current(&self) -> Cow<'_, SiteName> {
        former_names::renamed(&self.0).map_or(Cow::Borrowed(self), |name| Cow::Owned(SiteName(name)))
    }
}

/// Whether `text` is a valid name of a site or storage.
pub fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes[0].is_ascii_lowercase()
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

impl TryFrom<String> for SiteName {
    type Error = Error;
    fn try_from(text: String) -> Result<Self, Error> {
        SiteName::parse(&text)
    }
}

impl From<SiteName> for String {
    fn from(name: SiteName) -> String {
        name.0
    }
}

impl fmt::Display for SiteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SiteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A place at a site: `kek:/data/run7/a.dat` is path `run7/a.dat` in storage `data` of site `kek`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EndpointPath {
    /// The site.
    pub site: SiteName,
    /// The storage and the path in it; `None` for `kek:/`, the list of storages.
    pub place: Option<Place>,
    /// Whether it was written with a trailing slash (the contents, or "must be a directory").
    pub trailing_slash: bool,
}

/// A path in a named storage.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The storage's name.
    pub storage: String,
    /// The path below the storage's root.
    pub path: RelPath,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_root() {
            return write!(f, "/{}", self.storage);
        }
        write!(f, "/{}/{}", self.storage, self.path)
    }
}

impl Place {
    /// Parses `/storage/path`; `None` for `/`.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, Error> {
        let whole = RelPath::parse_lenient(bytes)?;
        let Some(first) = whole.components().next() else { return Ok(None) };
        let storage = std::str::from_utf8(first).ok().filter(|name| is_label(name));
        let Some(storage) = storage else {
            return Err(bad_path(bytes, "the first component is not a storage's name"));
        };
        let rest = &whole.as_bytes()[storage.len()..];
        let path = RelPath::parse(rest.strip_prefix(b"/").unwrap_or(rest))?;
        Ok(Some(Place { storage: storage.into(), path }))
    }

    /// Parses `/storage/path`, or `/SITE:/storage/path` for a place of another site; `None` for `/` and `/SITE:/`.
    ///
    /// The storage of the latter is `SITE:/storage`, which is no storage's name: [`Place::elsewhere`] takes it apart.
    pub fn parse_anywhere(bytes: &[u8]) -> Result<Option<Self>, Error> {
        let inner = bytes.strip_prefix(b"/").unwrap_or(bytes);
        let first = inner.split(|&b| b == b'/').next().unwrap_or_default();
        if !first.ends_with(b":") {
            return Place::parse(bytes);
        }
        let Some(far) = EndpointPath::parse(inner)? else {
            return Err(bad_path(bytes, "the first component is neither a storage's name nor SITE:"));
        };
        Ok(far.place.map(|place| Place { storage: format!("{}:/{}", far.site, place.storage), ..place }))
    }

    /// The site and the place there, of a place of another site ([`Place::parse_anywhere`]).
    pub fn elsewhere(&self) -> Option<(SiteName, Place)> {
        let (site, storage) = self.storage.split_once(":/")?;
        let site = SiteName::parse(site).ok()?;
        is_label(storage).then(|| (site, Place { storage: storage.into(), path: self.path.clone() }))
    }
}

impl EndpointPath {
    /// Parses `SITE:/STORAGE/PATH`; `None` if `bytes` is not of that form and so names a local file.
    ///
    /// As in scp, a local name with a colon is written `./a:b`.
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, Error> {
        let Some(colon) = bytes.iter().position(|&b| b == b':') else { return Ok(None) };
        let site = std::str::from_utf8(&bytes[..colon]).ok().filter(|name| is_label(name));
        let Some(site) = site else { return Ok(None) };
        let rest = &bytes[colon + 1..];
        if !rest.is_empty() && rest[0] != b'/' {
            return Err(bad_path(bytes, "write SITE:/STORAGE/PATH, or ./NAME for a local file with a colon"));
        }
        let trailing_slash = rest.ends_with(b"/") || rest.ends_with(b"/.");
        let place = Place::parse(rest).map_err(|error| Error { subject: shown(bytes), ..error })?;
        Ok(Some(EndpointPath { site: SiteName::parse(site)?, place, trailing_slash }))
    }
}

impl fmt::Display for EndpointPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(place) => write!(f, "{}:{}", self.site, place),
            None => write!(f, "{}:/", self.site),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn places_of_other_sites_begin_with_the_site() {
        let parse = |text: &str| Place::parse_anywhere(text.as_bytes());
        let far = parse("/titech:/data/run7/a").unwrap().unwrap();
        assert_eq!(far.to_string(), "/titech:/data/run7/a");
        let (site, place) = far.elsewhere().unwrap();
        assert_eq!((site.as_str(), place.to_string().as_str()), ("titech", "/data/run7/a"));
        let here = parse("/data/a:b").unwrap().unwrap();
        assert_eq!((here.to_string().as_str(), here.elsewhere()), ("/data/a:b", None));
        assert_eq!(
            (parse("/").unwrap(), parse("/titech:/").unwrap(), parse("/titech:").unwrap()),
            (None, None, None)
        );
        for bad in ["/a:b/c", "/UP:/data", "/:/data", "/titech:/../data", "/titech:/a:/b", "/titech:x:/data"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn refuses_paths_that_leave_the_root() {
        for bad in [&b"/a"[..], b"a//b", b"..", b"a/../b", b"a/.", b"a\0b", b"a/"] {
            assert!(RelPath::parse(bad).is_err(), "{bad:?}");
        }
        assert!(RelPath::parse(&[b'x'; 256]).is_err());
        assert!(RelPath::parse(&[b'x'; 255]).is_ok());
    }

    #[test]
    fn several_names_are_distinguished() {
        let first = |names: &[&str]| first_names(names.iter().map(|name| (*name).to_owned()));
        assert_eq!(first(&["kek:/data/my run"]), "kek:/data/my run");
        assert_eq!(first(&["kek:/data/my run", "kek:/data/b"]), "'kek:/data/my run' kek:/data/b");
        assert_eq!(first(&["it's", "b", "c", "d e"]), r"'it'\''s' b c ...");
        assert_eq!(first(&[]), "");
    }

    #[test]
    fn a_bad_place_is_shown_as_it_was_written() {
        let subject = |text: &str| EndpointPath::parse(text.as_bytes()).unwrap_err().subject;
        for text in ["kek:/data/../etc", "kek:/data/a/./../b", "kek:/DATA/x", "kek:data"] {
            assert_eq!(subject(text), text);
        }
        let long = format!("kek:/data/{}", "x".repeat(256));
        assert_eq!(EndpointPath::parse(long.as_bytes()).unwrap_err().code, Code::NameTooLong);
    }

    #[test]
    fn splits_paths() {
        let path = RelPath::parse(b"a/b/c").unwrap();
        assert_eq!(path.parent().unwrap().as_bytes(), b"a/b");
        assert_eq!(path.split().unwrap(), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(RelPath::parse(b"c").unwrap().split().unwrap(), (&b""[..], &b"c"[..]));
        assert!(path.starts_with(&RelPath::parse(b"a/b").unwrap()));
        assert!(!RelPath::parse(b"ab").unwrap().starts_with(&RelPath::parse(b"a").unwrap()));
    }

    #[test]
    fn endpoint_paths() {
        let parse = |text: &str| EndpointPath::parse(text.as_bytes()).unwrap();
        let path = parse("kek:/data/run7/a.dat").unwrap();
        assert_eq!(path.place.as_ref().unwrap().storage, "data");
        assert_eq!(path.place.unwrap().path.as_bytes(), b"run7/a.dat");
        assert!(parse("kek:/data/").unwrap().trailing_slash);
        assert_eq!(parse("kek:/").unwrap().place, None);
        assert_eq!(parse("./kek:/x"), None);
        assert_eq!(parse("plain"), None);
        assert!(EndpointPath::parse(b"kek:data").is_err());
        assert!(EndpointPath::parse(b"kek:/data/../etc").is_err());
    }

    #[test]
    fn odd_bytes_are_shown() {
        assert_eq!(printable(b"a\xffb\n\xc3\xa9"), "a\\xffb\\n\u{e9}");
    }

    proptest! {
        #[test]
        fn parse_never_panics_and_round_trips(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(path) = RelPath::parse(&bytes) {
                let text = postcard::to_stdvec(&path).unwrap();
                prop_assert_eq!(postcard::from_bytes::<RelPath>(&text).unwrap(), path);
            }
            let _ = EndpointPath::parse(&bytes);
        }
    }
}
