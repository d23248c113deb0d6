//! The check of operations against the rights of a restricted credential.

use renkei_core::error::{Code, Error};
use renkei_core::identity::rights::only_new;
use renkei_core::wire::file::Op;
use std::sync::Arc;

/// The check of an operation before it is executed. It gives the operation that may be: the same, or one that does it to new
/// files alone.
pub type Limit = Arc<dyn Fn(Op) -> Result<Op, Error> + Send + Sync>;

/// Performs an operation as far as a limit allows it.
///
/// # Errors
/// `OutOfScope`, and those of `perform`.
pub(super) fn within<T>(
    limit: Option<&Limit>,
    op: Op,
    perform: impl FnOnce(Op) -> Result<T, Error>,
) -> Result<T, Error> {
    let Some(limit) = limit else { return perform(op) };
    let narrower = only_new(&op);
    let op = limit(op)?;
    let is_narrowed = narrower.is_some_and(|narrower| narrower == op);
    perform(op).map_err(|error| match error.code {
        Code::PathExists if is_narrowed => {
            let cause = "the credential makes new files alone, and there is one of that name";
            Error::new(Code::OutOfScope, "open", &error.subject, cause)
        }
        _ => error,
    })
}
