//! The one table that maps renkei's codes to errno, and an error type that carries both.

use libc::c_int;
use renkei_core::error::{Code, Error, Kind};

/// The error of a FUSE request: the errno that the program gets, and the error behind it.
#[derive(Debug)]
pub(super) struct FuseError {
    pub(super) number: c_int,
    pub(super) error: Option<Box<Error>>,
}

impl FuseError {
    /// An errno of the mount itself, without an error behind it.
    pub(super) fn plain(number: c_int) -> Self {
        FuseError { number, error: None }
    }
}

impl From<Error> for FuseError {
    fn from(error: Error) -> Self {
        FuseError { number: number(&error), error: Some(Box::new(error)) }
    }
}

/// The errno for an error.
pub(super) fn number(error: &Error) -> c_int {
    of_code(error.code).unwrap_or_else(|| of_kind(error.kind()))
}

fn of_code(code: Code) -> Option<c_int> {
    Some(match code {
        Code::PathNotFound => libc::ENOENT,
        Code::PathExists => libc::EEXIST,
        Code::NotADirectory => libc::ENOTDIR,
        Code::IsADirectory => libc::EISDIR,
        Code::QuotaExceeded => libc::EDQUOT,
        Code::ReadOnlyStorage => libc::EROFS,
        Code::NameTooLong => libc::ENAMETOOLONG,
        Code::NotEmpty => libc::ENOTEMPTY,
        Code::CrossDevice => libc::EXDEV,
        Code::Unsupported => libc::EOPNOTSUPP,
        Code::SpecialFile => libc::ENXIO,
        Code::TooManyOpenFiles => libc::EMFILE,
        Code::OutOfMemory => libc::ENOMEM,
        Code::LocksAway => libc::ENOLCK,
        _ => return None,
    })
}

fn of_kind(kind: Kind) -> c_int {
    match kind {
        Kind::NotFound => libc::ENOENT,
        Kind::Exists => libc::EEXIST,
        Kind::Permission => libc::EACCES,
        Kind::NoSpace => libc::ENOSPC,
        Kind::Invalid => libc::EINVAL,
        Kind::Limit => libc::EAGAIN,
        Kind::Changed => libc::ESTALE,
        Kind::Interrupted => libc::EINTR,
        Kind::Identity | Kind::Unavailable | Kind::Integrity | Kind::Partial | Kind::Internal => libc::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let rows = [
            (Code::PathNotFound, libc::ENOENT),
            (Code::PathExists, libc::EEXIST),
            (Code::PermissionDenied, libc::EACCES),
            (Code::OutsideStorage, libc::EACCES),
            (Code::NoSpace, libc::ENOSPC),
            (Code::BadPath, libc::EINVAL),
            (Code::RenamedIntoItself, libc::EINVAL),
            (Code::SiteUnreachable, libc::EIO),
            (Code::CertificateExpired, libc::EIO),
            (Code::IoFailed, libc::EIO),
        ];
        for (code, expected) in rows {
            assert_eq!(number(&Error::new(code, "op", "x", "")), expected, "{code:?}");
        }
    }

    #[test]
    fn every_code_has_a_number() {
        for &code in Code::ALL {
            assert!(number(&Error::new(code, "op", "x", "")) > 0, "{code:?}");
        }
    }
}
