//! Copies: `cp` and `sync`, from their arguments to the report at the end.

pub(crate) mod copy_plan;
pub(crate) mod cp;
pub(crate) mod detach;
pub(crate) mod files_from;
pub(crate) mod filter;
pub(crate) mod intent;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod source;
pub(crate) mod sync;
pub(crate) mod transfer;
pub(crate) mod upload;
