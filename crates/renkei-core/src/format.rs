//! The formats of stored values: how they are written, and how those of earlier versions of renkei are read.
//!
//! Each kind of stored value has one [`Format`]: a chain of readers, from the first version to the current one. A
//! reader decodes the bytes of its version and lifts them to the current type. A reader is never removed and a number
//! never given again, so that the state of any earlier version is read for ever. A value of a newer version is refused
//! with `FormatNewer`, before anything is written.
//!
//! A numbered value begins with a byte, its version, from 1 on. A bare one is of a kind that had no version at first:
//! version 0 is the value alone, and each later one begins with [`HEAD`] and a byte. No value of version 0 begins so:
//! as a number or length in postcard, these bytes are too large for 64 bits.
//!
//! Source: the migrations of garage (`src/util/migrate.rs`).

use crate::encoding::{encode, violation};
use crate::error::{Code, Error};
use serde::Serialize;

/// The bytes before the version of a bare kind, from version 1 on.
pub const HEAD: [u8; 10] = [0xff; 10];

/// Decodes the value of one version and lifts it to the current type; the first argument is the kind, for messages.
pub type Reader<T> = fn(&str, &[u8]) -> Result<T, Error>;

/// The versions of one kind of stored value.
pub struct Format<T: 'static> {
    kind: &'static str,
    /// The number of the first version.
    first: u8,
    /// A reader for each version, in order.
    readers: &'static [Reader<T>],
}

impl<T> Format<T> {
    /// A kind whose first byte is its version, from 1 on.
    pub const fn numbered(kind: &'static str, readers: &'static [Reader<T>]) -> Self {
        Format { kind, first: 1, readers }
    }

    /// A kind that had no version at first.
    pub const fn bare(kind: &'static str, readers: &'static [Reader<T>]) -> Self {
        Format { kind, first: 0, readers }
    }

    /// The name of the kind.
    pub const fn kind(&self) -> &'static str {
        self.kind
    }

    /// The current version.
    pub const fn version(&self) -> u8 {
        self.first + self.readers.len() as u8 - 1
    }

    /// Reads a value of any version.
    ///
    /// # Errors
    /// `FormatNewer` for a version that is not known yet, `ProtocolViolation` for bytes that are no such value.
    pub fn decode(&self, bytes: &[u8]) -> Result<T, Error> {
        let (version, value) = self.split(bytes)?;
        if version > self.version() {
            return Err(newer(self.kind, version, self.version()));
        }
        let reader = version.checked_sub(self.first).and_then(|at| self.readers.get(usize::from(at)));
        let reader = reader.ok_or_else(|| violation(self.kind, format_args!("version {version}")))?;
        reader(self.kind, value)
    }

    /// The version of a value, and its bytes.
    fn split<'b>(&self, bytes: &'b [u8]) -> Result<(u8, &'b [u8]), Error> {
        let headed = if self.first > 0 { Some(bytes) } else { bytes.strip_prefix(&HEAD) };
        let Some(headed) = headed else { return Ok((0, bytes)) };
        let (version, value) =
            headed.split_first().ok_or_else(|| violation(self.kind, "it has no version"))?;
        Ok((*version, value))
    }

    /// Writes a value in one of the versions: the readers that know it must lift `value` to the current type.
    pub fn encode_as<V: Serialize>(&self, version: u8, value: &V) -> Vec<u8> {
        let head: &[u8] = if self.first > 0 || version == 0 { &[] } else { &HEAD };
        let number: &[u8] = if self.first > 0 || version > 0 { &[version] } else { &[] };
        [head, number, &encode(value)].concat()
    }
}

impl<T: Serialize> Format<T> {
    /// Writes a value in the current version.
    pub fn encode(&self, value: &T) -> Vec<u8> {
        self.encode_as(self.version(), value)
    }
}

/// The error for a stored value of a newer version of renkei.
pub fn newer(kind: &str, version: impl Into<u64>, known: impl Into<u64>) -> Error {
    let cause = format!("it has format {}, this renkei knows up to {}", version.into(), known.into());
    Error::new(Code::FormatNewer, "read", kind, cause)
}

/// Checks, in a test, that values of this kind are read and written as recorded.
///
/// `recorded` has a line for each version, `NAME-VERSION BYTES` in hexadecimal. A line is never changed or removed;
/// `values` are what those of the first to the current version mean today.
///
/// # Panics
/// If they are not.
pub fn check<T>(recorded: &str, name: &str, format: &Format<T>, values: &[T])
where
    T: Serialize + PartialEq + std::fmt::Debug,
{
    let kind = format.kind;
    assert_eq!(values.len(), format.readers.len(), "a value for each version of {kind}");
    for (value, version) in values.iter().zip(format.first..) {
        let name = format!("{name}-{version}");
        let line = recorded.lines().find_map(|line| line.strip_prefix(&name)?.strip_prefix(' '));
        if version == format.version() {
            let now = format.encode(value).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            assert_eq!(line, Some(now.as_str()), "{name} is written in another way, or not recorded");
        }
        let bytes = bytes_of(line.expect("each version is recorded"));
        assert_eq!(format.decode(&bytes).as_ref(), Ok(value), "{name} is read in another way");
    }
    let next = format.encode_as(format.version() + 1, &"of a newer version");
    assert_eq!(format.decode(&next).map_err(|error| error.code), Err(Code::FormatNewer), "{kind}");
}

/// The bytes of a hexadecimal text.
pub fn bytes_of(hex: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("it is hexadecimal");
    (0..hex.len()).step_by(2).map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::decode;
    use serde::Deserialize;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Today {
        name: String,
        sizes: Vec<u64>,
    }

    /// The format of a value that was a name at first, then had one size, and has many today.
    const READERS: &[Reader<Today>] = &[
        |kind, bytes| Ok(Today { name: decode(kind, bytes)?, sizes: Vec::new() }),
        |kind, bytes| {
            let (name, size) = decode(kind, bytes)?;
            Ok(Today { name, sizes: vec![size] })
        },
        decode,
    ];
    const BARE: Format<Today> = Format::bare("bare", READERS);
    const NUMBERED: Format<Today> = Format::numbered("numbered", READERS);

    fn today(sizes: &[u64]) -> Today {
        Today { name: "a".into(), sizes: sizes.into() }
    }

    #[test]
    fn each_version_is_read_and_lifted() {
        for (format, first) in [(BARE, 0), (NUMBERED, 1)] {
            let read = |bytes: Vec<u8>| format.decode(&bytes).unwrap();
            assert_eq!(read(format.encode_as(first, &"a")), today(&[]));
            assert_eq!(read(format.encode_as(first + 1, &("a", 5_u64))), today(&[5]));
            assert_eq!(read(format.encode(&today(&[5, 6]))), today(&[5, 6]));
            assert_eq!(format.version(), first + 2);
        }
        assert_eq!(BARE.encode_as(0, &"a"), encode(&"a"));
        assert_eq!(NUMBERED.encode_as(1, &"a"), [1, 1, b'a']);
    }

    #[test]
    fn a_newer_version_is_refused_by_name() {
        for format in [BARE, NUMBERED] {
            let bytes = format.encode_as(format.version() + 1, &today(&[]));
            let error = format.decode(&bytes).unwrap_err();
            assert_eq!((error.code, error.subject.as_str()), (Code::FormatNewer, format.kind()));
            assert!(error.cause.contains("this renkei knows up to"), "{error}");
        }
    }

    #[test]
    fn other_bytes_are_an_error() {
        let bad = |format: &Format<Today>, bytes: &[u8]| format.decode(bytes).unwrap_err().code;
        for bytes in [&[][..], &[0], &[1], &[0, 1, b'a'], &[3, 1]] {
            assert_eq!(bad(&NUMBERED, bytes), Code::ProtocolViolation, "{bytes:?}");
        }
        assert_eq!(bad(&BARE, &HEAD), Code::ProtocolViolation);
        assert_eq!(bad(&BARE, &HEAD[1..]), Code::ProtocolViolation);
    }

    #[test]
    fn no_bare_value_begins_like_a_later_version() {
        assert!(decode::<u64>("number", &[&HEAD[..], &[1]].concat()).is_err());
        assert!(encode(&u64::MAX).strip_prefix(&HEAD[..]).is_none());
        assert!(encode(&(u64::MAX, [0xff_u8; 32])).strip_prefix(&HEAD[..]).is_none());
    }

    #[test]
    fn recorded_values_are_checked() {
        let recorded =
            "bare-0 0161\nbare-1 ffffffffffffffffffff01016105\nbare-2 ffffffffffffffffffff020161020506";
        check(recorded, "bare", &BARE, &[today(&[]), today(&[5]), today(&[5, 6])]);
    }
}
