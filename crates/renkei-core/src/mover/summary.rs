//! Reports of a transfer: its progress, its failures, its result.

use crate::error::Error;
use crate::ids::EntryId;
use crate::path::RelPath;
use serde::{Deserialize, Serialize};

/// An entry that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryFailure {
    /// Its number; `None` if it never had one.
    pub id: Option<EntryId>,
    /// Its path below the destination.
    pub path: RelPath,
    /// Whether the content arrived all the same (only an attribute was lost).
    pub kept: bool,
    /// The error.
    pub error: Error,
}

/// Progress of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Files found so far.
    pub files_found: u64,
    /// Bytes found so far.
    pub bytes_found: u64,
    /// Whether the walk is complete.
    pub walk_done: bool,
    /// Files durable at the destination.
    pub files_done: u64,
    /// Bytes durable at the destination or skipped.
    pub bytes_done: u64,
    /// Bytes transferred over the network.
    pub bytes_moved: u64,
}

/// The result of a transfer, as it is reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Files that are at the destination now.
    pub files: u64,
    /// Directories.
    pub dirs: u64,
    /// Symbolic and hard links.
    pub links: u64,
    /// Bytes of the files at the destination.
    pub bytes: u64,
    /// Of these, files that were there already.
    pub files_skipped: u64,
    /// Of these, bytes that were there already.
    pub bytes_skipped: u64,
    /// Bytes of content sent.
    pub bytes_moved: u64,
    /// Entries removed at the destination.
    pub deleted: u64,
    /// Devices, FIFOs and sockets that were skipped; listed among the failures, not counted there.
    pub special: u64,
    /// Total number of entries that failed; the list may be shorter.
    pub failed: u64,
    /// The first failures, at most [`MAX_LISTED_FAILURES`] and [`MAX_LISTED_BYTES`].
    pub failures: Vec<EntryFailure>,
}

/// Failures a summary lists; the others are counted and logged.
pub const MAX_LISTED_FAILURES: usize = 1000;

/// Most bytes of failures in a summary: paths can be long, and the message must fit one frame.
pub const MAX_LISTED_BYTES: usize = 1 << 20;
