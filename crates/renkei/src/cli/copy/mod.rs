//! Copies: `cp` and `sync`, from their arguments to the report at the end.
//!
//! `copy_plan` lays out the names, `transfer` opens the sessions and moves the files, `progress` and `report` show it.
//! `detach` and `upload` leave the copy to the queue of the user's own PoP; `filter` and `files_from` select names.

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
