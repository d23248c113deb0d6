//! Naming of temporary files during a transfer: `.rk~<job>-<path>`, two numbers of 16 hex digits.
//!
//! The name is a function of the job and the final path alone, so that a job that is resumed after a crash finds its
//! own files again, and two jobs never collide. Listings made for users omit such names; stores show them. The same
//! goes for the markers in the roots of storages and volumes (`marker`).

use super::marker::is_marker;
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;

const PREFIX: &[u8] = b".rk~";
const HEX_DIGITS: usize = 16;

/// The temporary name for `path` in the job with key `job`.
pub fn temp_name(job: u64, path: &RelPath) -> Vec<u8> {
    let hash = blake3::hash(path.as_bytes());
    let mut name = format!(".rk~{job:016x}-").into_bytes();
    name.extend_from_slice(&hash.to_hex().as_bytes()[..HEX_DIGITS]);
    name
}

/// Whether `name` is reserved: a temporary name of any job, or a marker.
pub fn is_temp_name(name: &[u8]) -> bool {
    temp_job(name).is_some() || is_marker(name)
}

/// Rejects a path with a temporary name in it: it would be invisible in listings, and not accounted. Markers are
/// refused by the store.
///
/// # Errors
/// `BadPath`.
pub fn refuse_temp_names(op: &str, path: &RelPath) -> Result<(), Error> {
    if !path.components().any(|name| temp_job(name).is_some()) {
        return Ok(());
    }
    let cause = "names of this form are those of files that are being received";
    Err(Error::new(Code::BadPath, op, path, cause))
}

/// The key of the job a temporary name belongs to; `None` for other names.
pub fn temp_job(name: &[u8]) -> Option<u64> {
    let (job, path) = name.strip_prefix(PREFIX)?.split_at_checked(HEX_DIGITS)?;
    let path = path.strip_prefix(b"-")?;
    hex(path)?;
    hex(job)
}

fn hex(digits: &[u8]) -> Option<u64> {
    let lower = |b: &u8| b.is_ascii_digit() || (b'a'..=b'f').contains(b);
    if digits.len() != HEX_DIGITS || !digits.iter().all(lower) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_stable_and_recognised() {
        let path = RelPath::parse(b"run7/a.dat").unwrap();
        let name = temp_name(0xabc, &path);
        assert_eq!(name, temp_name(0xabc, &path));
        assert_eq!(name.len(), 37);
        assert!(name.starts_with(b".rk~0000000000000abc-"));
        assert_eq!(temp_job(&name), Some(0xabc));
        assert_ne!(name, temp_name(0xabc, &RelPath::parse(b"run7/b.dat").unwrap()));
        assert_ne!(name, temp_name(0xabd, &path));
    }

    #[test]
    fn other_names_are_not() {
        for name in [
            &b""[..],
            b".rk~",
            b".rk~0000000000000abc",
            b".rk~0000000000000abc-",
            b".rk~0000000000000abc-00000000000000000",
            b".rk~0000000000000ABC-0000000000000000",
            b".rk~+000000000000abc-0000000000000000",
            b"x.rk~0000000000000abc-0000000000000000",
        ] {
            assert!(!is_temp_name(name), "{name:?}");
        }
        assert!(is_temp_name(b".rk~0000000000000abc-0000000000000000"));
        assert!(is_temp_name(b".rk~storage") && temp_job(b".rk~storage").is_none());
    }
}
