//! The HTTP status of each error, and its body (RFC 9457).

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use renkei_core::error::{Code, Error, Kind, Retry};

/// The status of an error: by its code where HTTP has one, else by its kind.
pub(crate) fn status(error: &Error) -> StatusCode {
    match error.code {
        Code::PathExists | Code::VersionReplaced => StatusCode::PRECONDITION_FAILED,
        Code::NotADirectory | Code::IsADirectory | Code::NotEmpty => StatusCode::CONFLICT,
        Code::NameTooLong => StatusCode::URI_TOO_LONG,
        Code::DigestMismatch => StatusCode::BAD_REQUEST,
        Code::LockHeld => StatusCode::LOCKED,
        Code::TokenInvalid
        | Code::TokenExpired
        | Code::TokenNotYetValid
        | Code::TokenElsewhere
        | Code::TokenAudience
        | Code::TokenSignature
        | Code::IssuerUnknown
        | Code::TicketExpired => StatusCode::UNAUTHORIZED,
        _ => by_kind(error),
    }
}

fn by_kind(error: &Error) -> StatusCode {
    match error.kind() {
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::Exists | Kind::Changed => StatusCode::CONFLICT,
        Kind::Permission | Kind::Identity => StatusCode::FORBIDDEN,
        Kind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        Kind::Invalid => StatusCode::BAD_REQUEST,
        Kind::Limit if error.retry() == Retry::Later => StatusCode::TOO_MANY_REQUESTS,
        Kind::Limit => StatusCode::PAYLOAD_TOO_LARGE,
        Kind::Unavailable | Kind::Interrupted => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Integrity | Kind::Partial | Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The response to a failure: code, cause and remedy.
pub(crate) fn problem(error: &Error) -> Response {
    problem_as(status(error), error)
}

/// The response to a failure with the status that the request calls for.
pub(crate) fn problem_as(status: StatusCode, error: &Error) -> Response {
    let row = error.code.row();
    let body = serde_json::json!({
        "title": row.title,
        "status": status.as_u16(),
        "detail": error.to_string(),
        "code": row.id,
        "remedy": row.remedy,
        "error": error,
    });
    (status, [(CONTENT_TYPE, "application/problem+json")], format!("{body}\n")).into_response()
}

/// Where the parent of a destination is missing, that is a conflict (RFC 4918, sections 9.3.1, 9.7.1, 9.8.5, 9.9.4).
///
/// # Errors
/// All others.
pub(crate) fn missing_parent(error: Error) -> Result<Response, Error> {
    match error.code {
        Code::PathNotFound => Ok(problem_as(StatusCode::CONFLICT, &error)),
        _ => Err(error),
    }
}

/// The error of a request that cannot be read.
pub(crate) fn invalid(cause: impl std::fmt::Display) -> Error {
    Error::new(Code::UsageInvalid, "read request", "", cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_a_status_of_its_kind() {
        for code in Code::ALL {
            let error = Error::new(*code, "test", "", "");
            let status = status(&error);
            assert!(status.is_client_error() || status.is_server_error(), "{code}");
            let is_fault_of_server = matches!(
                error.kind(),
                Kind::Internal
                    | Kind::Unavailable
                    | Kind::Interrupted
                    | Kind::Partial
                    | Kind::Integrity
                    | Kind::NoSpace
            );
            let is_mismatch = *code == Code::DigestMismatch;
            assert_eq!(status.is_server_error(), is_fault_of_server && !is_mismatch, "{code}");
        }
    }
}
