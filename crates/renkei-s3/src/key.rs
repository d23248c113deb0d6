//! Keys as paths: `a/b` is the file `b` in the directory `a`, and `a/` the directory itself.

use crate::error::{refused, s3_error};
use renkei_core::path::{Place, RelPath};
use s3s::{S3ErrorCode, S3Result};

/// Longest key, as at AWS.
const MAX_BYTES: usize = 1024;

/// A key that plain files can hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// The path below the bucket.
    pub(crate) path: RelPath,
    /// Whether it is the key of a folder: it ends with a slash.
    pub(crate) is_folder: bool,
}

impl Key {
    /// Parses a key.
    ///
    /// # Errors
    /// `InvalidArgument` for empty names, `.`, `..` and NUL, and for names that renkei keeps for itself; `KeyTooLongError`
    /// for one of more than 1,024 bytes, or a name of more than 255.
    pub(crate) fn parse(key: &str) -> S3Result<Self> {
        if key.len() > MAX_BYTES {
            let message = format!("a key has at most {MAX_BYTES} bytes");
            return Err(refused(S3ErrorCode::KeyTooLongError, message));
        }
        let (names, is_folder) = match key.strip_suffix('/') {
            Some(names) => (names, true),
            None => (key, false),
        };
        let is_bad = |name: &str| matches!(name, "" | "." | "..") || name.contains('\0');
        if names.split('/').any(is_bad) {
            let message = "plain files hold no keys with empty names, '.', '..' or NUL between slashes";
            return Err(refused(S3ErrorCode::InvalidArgument, message));
        }
        if names.split('/').any(|name| name.len() > 255) {
            let message = "plain files hold no names of more than 255 bytes between slashes";
            return Err(refused(S3ErrorCode::KeyTooLongError, message));
        }
        Ok(Key { path: RelPath::parse(names.as_bytes()).map_err(s3_error)?, is_folder })
    }

    /// The place of the key in a bucket.
    ///
    /// # Errors
    /// `InvalidArgument` for a path that is too long.
    pub(crate) fn below(&self, bucket: &Place) -> S3Result<Place> {
        let path = bucket.path.join(&self.path).map_err(s3_error)?;
        Ok(Place { storage: bucket.storage.clone(), path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_paths_that_cannot_climb() {
        let key = Key::parse("a/b c").unwrap();
        assert_eq!((key.path.as_bytes(), key.is_folder), (&b"a/b c"[..], false));
        assert!(Key::parse("a/").unwrap().is_folder);
        for bad in ["a//b", "/a", "../a", "a/../b", "a/.", "./a", "a\0b", "/", "", "a//"] {
            assert!(Key::parse(bad).is_err(), "{bad:?}");
        }
        let long = Key::parse(&"n".repeat(256)).unwrap_err();
        assert_eq!(long.code(), &S3ErrorCode::KeyTooLongError);
        assert!(Key::parse(&format!("{}b", "a/".repeat(511))).is_ok());
        let deep = Key::parse(&format!("{}b", "a/".repeat(512))).unwrap_err();
        assert_eq!(deep.code(), &S3ErrorCode::KeyTooLongError);
    }
}
