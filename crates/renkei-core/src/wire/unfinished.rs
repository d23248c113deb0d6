//! Messages about unfinished copies, at the site where they were to arrive.

use crate::batch::batch;
use crate::ids::TransferId;
use serde::{Deserialize, Serialize};

/// Most ids that one request names.
pub const MAX_NAMED: usize = 1000;

/// A request about unfinished copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutUnfinished {
    /// The destination storage, if an agent may hold it; otherwise the PoP itself is asked.
    pub storage: Option<String>,
    /// The request.
    pub what: UnfinishedAction,
}

/// Requests about unfinished copies. A user may name own copies, the administrator those of all users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UnfinishedAction {
    /// List them.
    List,
    /// Remove those whose ids have one of these prefixes, or without prefixes all that are not running.
    Drop(#[serde(deserialize_with = "batch")] Vec<String>),
    /// The owner gave this transfer up: abort it if it runs, and remove its partial files here.
    GiveUp {
        /// The transfer.
        transfer: TransferId,
        /// The owner's principal; a PoP asserts it for users of its own site.
        owner: String,
    },
}

/// An unfinished copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfinished {
    /// Its id in hexadecimal digits: that of the last transfer that worked on it, else its job's.
    pub id: String,
    /// The owner's principal; empty if unknown.
    pub owner: String,
    /// The destination, as it is shown.
    pub to: String,
    /// Files that are partly there.
    pub files: u64,
    /// Bytes of complete extents in them.
    pub bytes: u64,
    /// Files that arrived; they are not removed.
    pub files_done: u64,
    /// Time of the last write, milliseconds since 1970.
    pub written_ms: u64,
    /// Expiry: when it is removed if it is not resumed.
    pub until_ms: u64,
    /// Whether it runs now.
    pub running: bool,
}

/// The unfinished copies, and whether they were removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnfinishedReply {
    /// The copies, including those that were removed.
    #[serde(deserialize_with = "batch")]
    pub listed: Vec<Unfinished>,
    /// Whether the listed ones were removed.
    pub dropped: bool,
}
