//! The S3 error of each error of renkei: one table, by codes where S3 has a word for one, else by kinds.

use hyper::StatusCode;
use renkei_core::error::{Code, Error, Kind, Retry};
use s3s::{S3Error, S3ErrorCode};

/// The S3 code of an error, and its status where that is not the one that s3s gives the code.
pub(crate) fn code_of(error: &Error) -> (S3ErrorCode, Option<StatusCode>) {
    use S3ErrorCode as S3;
    let code = match error.code {
        Code::PathNotFound => S3::NoSuchKey,
        Code::StorageUnknown => S3::NoSuchBucket,
        Code::PathExists | Code::VersionReplaced => S3::PreconditionFailed,
        Code::DigestMismatch => S3::BadDigest,
        Code::NameTooLong => S3::KeyTooLongError,
        Code::BadPath | Code::UsageInvalid => S3::InvalidArgument,
        Code::NotADirectory | Code::IsADirectory | Code::NotEmpty => return conflict(),
        Code::ConnectionLost => S3::IncompleteBody,
        Code::Unsupported | Code::WithAgent => S3::NotImplemented,
        Code::TokenInvalid => S3::InvalidAccessKeyId,
        Code::TokenExpired => S3::ExpiredToken,
        _ => return by_kind(error),
    };
    (code, None)
}

/// A key of plain files cannot be there: another is its prefix.
fn conflict() -> (S3ErrorCode, Option<StatusCode>) {
    (S3ErrorCode::Custom("KeyConflict".into()), Some(StatusCode::CONFLICT))
}

fn by_kind(error: &Error) -> (S3ErrorCode, Option<StatusCode>) {
    use S3ErrorCode as S3;
    match error.kind() {
        Kind::NotFound => (S3::NoSuchKey, None),
        Kind::Exists | Kind::Changed => (S3::OperationAborted, None),
        Kind::Permission | Kind::Identity => (S3::AccessDenied, None),
        Kind::NoSpace => (S3::Custom("InsufficientCapacity".into()), Some(StatusCode::INSUFFICIENT_STORAGE)),
        Kind::Invalid => (S3::InvalidRequest, None),
        Kind::Limit if error.retry() == Retry::Later => (S3::SlowDown, None),
        Kind::Limit => (S3::InvalidRequest, None),
        Kind::Unavailable | Kind::Interrupted => (S3::ServiceUnavailable, None),
        Kind::Integrity | Kind::Partial | Kind::Internal => (S3::InternalError, None),
    }
}

/// The S3 error of an error; the message has its code, cause and remedy.
pub(crate) fn s3_error(error: Error) -> S3Error {
    let (code, status) = code_of(&error);
    let mut told = S3Error::with_message(code, format!("{error}; {}", error.code.row().remedy));
    if let Some(status) = status {
        told.set_status_code(status);
    }
    told
}

/// The S3 error of a write whose folder was removed by another client again and again, or while it was published: the client
/// tries again, and does not take it for an object that is missing.
pub(crate) fn meanwhile(error: Error) -> S3Error {
    match error.code {
        Code::PathNotFound => {
            let message = format!("the folder of the key was removed meanwhile: {error}; try again");
            refused(S3ErrorCode::ServiceUnavailable, message)
        }
        _ => s3_error(error),
    }
}

/// An S3 error in words.
pub(crate) fn refused(code: S3ErrorCode, message: impl Into<String>) -> S3Error {
    S3Error::with_message(code, message.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_a_status_that_fits_its_kind() {
        for &code in Code::ALL {
            let error = s3_error(Error::new(code, "open", "/data/a", "the cause"));
            let status = error.status_code().unwrap_or_else(|| panic!("{code:?} has no status"));
            match code.row().kind {
                Kind::Unavailable
                | Kind::Interrupted
                | Kind::Integrity
                | Kind::Partial
                | Kind::Internal
                | Kind::NoSpace => {
                    // The client's content, or its connection.
                    let is_clients = matches!(code, Code::ConnectionLost | Code::DigestMismatch);
                    assert_eq!(status.is_client_error(), is_clients, "{code:?}: {status}");
                }
                Kind::Limit => assert!(matches!(status.as_u16(), 400 | 503), "{code:?}: {status}"),
                _ => {
                    let is_lacking = matches!(code, Code::Unsupported | Code::WithAgent);
                    assert_eq!(status.is_server_error(), is_lacking, "{code:?}: {status}");
                }
            }
            assert!(error.message().unwrap().contains(code.row().id), "{code:?}");
        }
        let code = |code| s3_error(Error::new(code, "", "", "")).code().as_str().to_owned();
        assert_eq!(code(Code::PathNotFound), "NoSuchKey");
        assert_eq!(code(Code::IsADirectory), "KeyConflict");
        let again = meanwhile(Error::new(Code::PathNotFound, "publish", "a/b", ""));
        assert_eq!(again.status_code(), Some(StatusCode::SERVICE_UNAVAILABLE));
        assert_eq!(meanwhile(Error::new(Code::IsADirectory, "", "", "")).code().as_str(), "KeyConflict");
        assert_eq!(code(Code::OutOfScope), "AccessDenied");
        assert_eq!(code(Code::DigestMismatch), "BadDigest");
    }
}
