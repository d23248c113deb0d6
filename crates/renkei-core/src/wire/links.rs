//! Links: addresses with which anybody who has one reads a file or folder with a browser.

use crate::batch::batch;
use crate::path::Place;
use serde::{Deserialize, Serialize};

/// Longest validity of a link, in seconds.
pub const MAX_LINK_SECONDS: u32 = 366 * 86_400;

/// What a user asks about links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AboutLink {
    /// A new one. Answer: `Created`.
    Create {
        /// The file or directory.
        place: Place,
        /// Its validity.
        seconds: u32,
        /// The most downloads; none for any number.
        limit: Option<u32>,
    },
    /// Those of the asker. Answer: `All`.
    List,
    /// Takes one back. Answer: `Revoked`.
    Revoke(String),
}

/// A link as its owner sees it. Times are in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The id, by which it is taken back.
    pub id: String,
    /// The file or directory.
    pub place: Place,
    /// The time it was made.
    pub created: u64,
    /// The end of its validity.
    pub until: u64,
    /// The most downloads; none for any number.
    pub limit: Option<u32>,
    /// Pages that were shown.
    pub opens: u64,
    /// Downloads that began, of files and archives.
    pub downloads: u64,
    /// Bytes that were sent.
    pub bytes: u64,
    /// The last use; none if there was none.
    pub used: Option<u64>,
}

/// The answer to [`AboutLink`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkReply {
    /// To `Create`.
    Created {
        /// The id.
        id: String,
        /// The path of its address at the PoP, with its secret.
        path: String,
    },
    /// To `List`: newest first.
    All(#[serde(deserialize_with = "batch")] Vec<LinkStatus>),
    /// To `Revoke`.
    Revoked,
}
