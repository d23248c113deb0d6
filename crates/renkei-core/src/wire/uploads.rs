//! Uploads in parts: content that comes in numbered parts, in any order and over days, and becomes one file.

use super::file::{Handle, Item, Precondition};
use crate::entry::FileTime;
use crate::error::Error;
use crate::path::RelPath;

/// Identifies an upload among those to one path.
pub type UploadId = u64;

/// Largest number of a part; they begin with 1.
pub const MAX_PART: u32 = 10_000;

/// A part that is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its number.
    pub number: u32,
    /// Its length in bytes.
    pub bytes: u64,
    /// When it was published.
    pub mtime: FileTime,
}

/// Takes uploads in parts; they outlive the process, and those that are not written to for a week are removed.
pub trait Uploads {
    /// Begins an upload of a file.
    ///
    /// # Errors
    /// As a draft of the file; `Unsupported` in volumes.
    fn begin(&self, path: &RelPath) -> Result<UploadId, Error>;

    /// Begins the draft of a part, which replaces an earlier one of that number when it is published.
    ///
    /// # Errors
    /// `NotOpen` if there is no such upload of the caller; `UsageInvalid` for a number out of range.
    fn begin_part(&self, path: &RelPath, upload: UploadId, number: u32) -> Result<(Handle, Item), Error>;

    /// The parts, in the order of their numbers.
    ///
    /// # Errors
    /// As [`Uploads::begin_part`].
    fn parts(&self, path: &RelPath, upload: UploadId) -> Result<Vec<Part>, Error>;

    /// Publishes the named parts, one after the other, as the file's content, and ends the upload.
    ///
    /// # Errors
    /// As [`Uploads::begin_part`]; `PathNotFound` for a part that is missing; as publishing on that condition. The
    /// upload goes on after an error.
    fn complete(
        &self,
        path: &RelPath,
        upload: UploadId,
        parts: &[u32],
        condition: Precondition,
    ) -> Result<Item, Error>;

    /// Removes the parts, and ends the upload.
    ///
    /// # Errors
    /// As [`Uploads::begin_part`].
    fn abandon(&self, path: &RelPath, upload: UploadId) -> Result<(), Error>;
}
