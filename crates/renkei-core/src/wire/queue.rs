//! What is asked and told about queued transfers.

use super::buffer::Buffered;
use super::message::{Class, EntryFailure, OpenFound, OpenSend, Progress, Summary, TransferId, batch};
use crate::error::Error;
use crate::path::SiteName;
use crate::queue::State;
use serde::{Deserialize, Serialize};

/// Longest label, in bytes.
pub const MAX_LABEL_BYTES: usize = 200;
/// Most transfers that one waits for.
pub const MAX_AFTER: usize = 64;
/// Longest name for what was sent to the buffer, in bytes.
pub const MAX_ORIGIN_BYTES: usize = 400;

/// A transfer to be queued: all that a PoP needs to run it when nobody is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submission {
    /// The site that sends.
    pub from: SiteName,
    /// What it sends; the id is the transfer's.
    pub send: OpenSend,
    /// The site that receives.
    pub to: SiteName,
    /// What it opens, by what is found there.
    pub open: OpenFound,
    /// When and how.
    pub terms: Terms,
}

/// When and how a queued transfer runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// When it is given up, milliseconds since 1970; `None` for the PoP's default.
    pub deadline_ms: Option<u64>,
    /// More is sooner, among the owner's own.
    pub priority: i32,
    /// Transfers that must be done first.
    #[serde(deserialize_with = "batch")]
    pub after: Vec<TransferId>,
    /// The owner's own words.
    pub label: String,
    /// What is compared when it has arrived.
    pub verify: Verify,
    /// Where its end is told; empty for nowhere.
    pub notify: String,
    /// Where the files were before they were sent to the buffer, in the client's words; else empty.
    pub origin: String,
}

/// What is compared when a transfer has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// The digest of what was read at the source with that of what was written.
    #[default]
    Source,
    /// Also source and destination as they are then, both read once more.
    Both,
}

/// A queued transfer in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queued {
    /// Its id.
    pub id: TransferId,
    /// Whose it is.
    pub owner: String,
    /// What it sends, as it is shown.
    pub from: String,
    /// Where to.
    pub to: String,
    /// Where it stands.
    pub state: State,
    /// Whether it is about to be paused, cancelled or given up.
    pub stopping: bool,
    /// Why it waits or failed.
    pub reason: Option<Error>,
    /// When it is tried again.
    pub next_ms: Option<u64>,
    /// Transfers it still waits for.
    pub needs: u32,
    /// When it was handed in.
    pub submitted_ms: u64,
    /// When it is given up.
    pub deadline_ms: u64,
    /// When it ended.
    pub ended_ms: Option<u64>,
    /// Attempts begun.
    pub attempts: u32,
    /// More is sooner.
    pub priority: i32,
    /// How much of the path it may take.
    pub class: Class,
    /// The owner's own words.
    pub label: String,
    /// How far the attempt is.
    pub progress: Option<Progress>,
    /// What was done.
    pub summary: Option<Summary>,
    /// What of it is in the buffer.
    pub buffered: Option<Buffered>,
}

/// All that is known of one transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Story {
    /// As in a list.
    pub transfer: Queued,
    /// What it waits for, and how that stands.
    #[serde(deserialize_with = "batch")]
    pub after: Vec<(TransferId, State)>,
    /// The last attempts, oldest first.
    #[serde(deserialize_with = "batch")]
    pub attempts: Vec<Attempt>,
    /// Files that failed in the last attempt that went to its end; the first of them.
    #[serde(deserialize_with = "batch")]
    pub failures: Vec<EntryFailure>,
    /// Until when the link to take rests, because nothing was reached over it.
    pub link_rests_until_ms: Option<u64>,
}

/// One attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Counted from 1.
    pub number: u32,
    /// When it began.
    pub started_ms: u64,
    /// When it ended; `None` if it runs, or if the PoP was killed in it.
    pub ended_ms: Option<u64>,
    /// Bytes it moved.
    pub bytes_moved: u64,
    /// Files that were at the destination when it ended.
    pub files_done: u64,
    /// Why it did not go to its end.
    pub error: Option<Error>,
}

/// Which transfers to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Also those that have ended.
    pub ended: bool,
    /// Only those with this label.
    pub label: Option<String>,
    /// Go on after this one, newest first.
    pub before: Option<(u64, TransferId)>,
}
