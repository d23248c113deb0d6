//! Copies: `cp` and `sync`, from their arguments to the report at the end.
//!
//! `copy_plan` reads the arguments and `options` the options; `transfer` opens the sessions, and `local_sources`,
//! `local_destination` and `push` move the files; `retry` tries again; `progress` and `report` show it.
//! `detach` and `upload` leave the copy to the queue of the user's own PoP; `filter` and `files_from` select names.

pub(crate) mod copy_plan;
pub(crate) mod cp;
pub(crate) mod detach;
pub(crate) mod files_from;
pub(crate) mod filter;
pub(crate) mod intent;
mod local_destination;
mod local_sources;
pub(crate) mod options;
pub(crate) mod progress;
mod push;
pub(crate) mod report;
mod retry;
mod signals;
pub(crate) mod source;
pub(crate) mod sync;
pub(crate) mod transfer;
pub(crate) mod upload;
