//! Types that several messages share.

use crate::error::Error;
use crate::ids::EntryId;
use crate::path::RelPath;
use serde::{Deserialize, Serialize};

/// The share of the path's capacity that a transfer may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// An equal share, in competition with other traffic.
    #[default]
    Normal,
    /// The capacity that other traffic leaves unused.
    Background,
}

/// Space of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// Size in bytes.
    pub total_bytes: u64,
    /// Bytes still available to this account.
    pub available_bytes: u64,
    /// Inodes in total; 0 where they are not counted.
    pub total_files: u64,
    /// Inodes free.
    pub free_files: u64,
}

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

/// Digests a PoP can compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the algorithms")]
pub enum Algorithm {
    Blake3,
    Sha256,
    Md5,
    Adler32,
    Crc32c,
}

impl Algorithm {
    /// All, with the names that configurations and commands use.
    pub const NAMES: [(Self, &'static str); 5] = [
        (Self::Blake3, "blake3"),
        (Self::Sha256, "sha256"),
        (Self::Md5, "md5"),
        (Self::Adler32, "adler32"),
        (Self::Crc32c, "crc32c"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    /// The algorithm of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(algorithm, _)| *algorithm)
    }
}
