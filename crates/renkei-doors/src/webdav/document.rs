//! Documents in the bodies of requests.

use crate::http::activity::Activity;
use axum::body::Body;
use renkei_core::error::{Code, Error};
use renkei_site::files::body::{Progress, next_data};

/// Longest document in a request.
const MAX_DOCUMENT_BYTES: usize = 256 << 10;

/// A request's body that is a document.
///
/// # Errors
/// `TooManyEntries` if it is too long; `ConnectionLost`.
pub(crate) async fn document(mut body: Body, activity: &Activity) -> Result<Vec<u8>, Error> {
    let mut document = Vec::new();
    while let Some(data) = next_data(&mut body).await.map_err(lost)? {
        activity.step();
        document.extend_from_slice(&data);
        if document.len() > MAX_DOCUMENT_BYTES {
            let cause = format!("a body of XML has at most {MAX_DOCUMENT_BYTES} bytes");
            return Err(Error::new(Code::TooManyEntries, "read request", "", cause));
        }
    }
    Ok(document)
}

/// The error of a body that ended early.
pub(super) fn lost(error: axum::Error) -> Error {
    Error::new(Code::ConnectionLost, "read request", "", error)
}
