//! What is asked and told about copies that did not end, at the site where they were to arrive.

use super::message::{TransferId, batch};
use serde::{Deserialize, Serialize};

/// Most ids that one request names.
pub const MAX_NAMED: usize = 1000;

/// A question about what did not arrive in full, or the word that it is given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutUnfinished {
    /// The storage it was to arrive in, where an agent may have that; else the PoP itself is asked.
    pub storage: Option<String>,
    /// What to do.
    pub what: Wish,
}

/// What somebody wants of what is unfinished. A user has this of his own, the administrator of everybody's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wish {
    /// Tell what there is.
    List,
    /// Remove those whose ids begin so, or if none are named all that do not run.
    Drop(#[serde(deserialize_with = "batch")] Vec<String>),
    /// This transfer was given up: end it if it runs, and remove what of it is here.
    GiveUp {
        /// The transfer.
        transfer: TransferId,
        /// Whose it is; a PoP says so of users of its own site.
        owner: String,
    },
}

/// A copy that did not end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unfinished {
    /// Its id: the last transfer's that worked on it, else its job's, in hexadecimal digits.
    pub id: String,
    /// Whose it is; empty if that is not known.
    pub owner: String,
    /// Where it was to arrive, as it is shown.
    pub to: String,
    /// Files that are partly there.
    pub files: u64,
    /// Bytes of them that are whole.
    pub bytes: u64,
    /// Files that arrived, and stay.
    pub files_done: u64,
    /// When something was written last, milliseconds since 1970.
    pub written_ms: u64,
    /// When it is removed if nobody takes it up.
    pub until_ms: u64,
    /// Whether it runs now.
    pub running: bool,
}

/// What is unfinished, and how many of it were removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnfinishedReply {
    /// What there is, or was until it was removed.
    #[serde(deserialize_with = "batch")]
    pub listed: Vec<Unfinished>,
    /// Whether those were removed.
    pub dropped: bool,
}
