//! Uploads in parts: content that comes in numbered parts, in any order and over days, and becomes one file.
//!
//! Uploads outlive the session and the process; one that nothing was written to for a week is removed.

use super::file::Precondition;
use crate::batch::{at_most, batch};
use crate::entry::{FileTime, Xattr};
use serde::{Deserialize, Deserializer, Serialize};

/// Identifies an upload among those to one path.
pub type UploadId = u64;

/// Largest number of a part; they begin with 1.
pub const MAX_PART: u32 = 10_000;

/// A part that is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its number.
    pub number: u32,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was published.
    pub mtime: FileTime,
}

/// Operations on the uploads of one file. `NotOpen` is the error for an upload that is over, or another user's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UploadOp {
    /// Begins one. Answer: `Upload`.
    Begin,
    /// Begins the draft of a part, which replaces an earlier one of that number when it is published. Answer: `Opened`.
    Part {
        /// The upload.
        upload: UploadId,
        /// From 1 to [`MAX_PART`].
        number: u32,
    },
    /// Lists the parts. Answer: `Parts`.
    List(UploadId),
    /// Publishes the named parts, one after the other, as the file's content, and ends the upload; after an error it
    /// goes on. Answer: `Item`.
    Complete {
        /// The upload.
        upload: UploadId,
        /// Numbers of parts, ascending.
        #[serde(deserialize_with = "parts")]
        parts: Vec<u32>,
        /// The condition under which the file is published.
        condition: Precondition,
        /// The modification time of the file; that of its composition if none.
        mtime: Option<FileTime>,
        /// Extended attributes of the file, in place of those of the same names.
        #[serde(deserialize_with = "batch")]
        attributes: Vec<Xattr>,
    },
    /// Removes the parts, and ends the upload. Answer: `Done`.
    Abandon(UploadId),
}

/// Reads a list with at most one item for each part.
pub(super) fn parts<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    at_most::<D, T, { MAX_PART as usize }>(deserializer)
}
