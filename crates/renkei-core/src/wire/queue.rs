//! Messages about queued transfers.

use super::buffer::Buffered;
use crate::batch::batch;
use crate::error::Error;
use crate::ids::TransferId;
use crate::mover::summary::{EntryFailure, Progress, Summary};
use crate::path::SiteName;
use crate::queue::State;
use crate::wire::copy::OpenCopy;
use crate::wire::message::OpenSend;
use crate::wire::types::Class;
use serde::{Deserialize, Serialize};

/// Longest label, in bytes.
pub const MAX_LABEL_BYTES: usize = 200;
/// Most transfers that one depends on.
pub const MAX_AFTER: usize = 64;
/// Longest description of the origin of an upload, in bytes.
pub const MAX_ORIGIN_BYTES: usize = 400;

/// A transfer to be queued: everything a PoP needs to run it unattended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submission {
    /// The site that sends.
    pub from: SiteName,
    /// The sources; the id is the transfer's, and each target is its name in a destination directory.
    pub send: OpenSend,
    /// The site that receives.
    pub to: SiteName,
    /// The copy that site opens.
    pub copy: OpenCopy,
    /// The conditions of its run.
    pub terms: Terms,
}

/// The conditions under which a queued transfer runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Deadline, milliseconds since 1970; `None` for the PoP's default.
    pub deadline_ms: Option<u64>,
    /// Higher runs earlier, among the owner's transfers.
    pub priority: i32,
    /// Dependencies: transfers that must be done first.
    #[serde(deserialize_with = "batch")]
    pub after: Vec<TransferId>,
    /// Free text of the owner.
    pub label: String,
    /// Verification after arrival.
    pub verify: Verify,
    /// URL of the webhook that is notified of its end; empty for none.
    pub notify: String,
    /// Origin of the files before their upload to the buffer, in the client's words; otherwise empty.
    pub origin: String,
}

/// Verification after a transfer has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// Compares the digest of the bytes read at the source with that of the bytes written.
    #[default]
    Source,
    /// Also reads source and destination once more and compares them as they are then.
    Both,
}

/// A queued transfer in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queued {
    /// Its id.
    pub id: TransferId,
    /// The owner's principal.
    pub owner: String,
    /// The sources, as shown.
    pub from: String,
    /// The destination, as shown.
    pub to: String,
    /// Its state.
    pub state: State,
    /// Whether a pause, cancellation or abandonment is in progress.
    pub stopping: bool,
    /// The error it waits or failed with.
    pub reason: Option<Error>,
    /// When it is retried.
    pub next_ms: Option<u64>,
    /// Dependencies that are not done yet.
    pub needs: u32,
    /// When it was submitted.
    pub submitted_ms: u64,
    /// Its deadline.
    pub deadline_ms: u64,
    /// When it ended.
    pub ended_ms: Option<u64>,
    /// Attempts begun.
    pub attempts: u32,
    /// Higher runs earlier.
    pub priority: i32,
    /// The share of the path it may take.
    pub class: Class,
    /// Free text of the owner.
    pub label: String,
    /// Progress of the running attempt.
    pub progress: Option<Progress>,
    /// The result.
    pub summary: Option<Summary>,
    /// The part of it that is in the buffer.
    pub buffered: Option<Buffered>,
}

/// The details of one transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Story {
    /// As in a list.
    pub transfer: Queued,
    /// Its dependencies with their states.
    #[serde(deserialize_with = "batch")]
    pub after: Vec<(TransferId, State)>,
    /// The last attempts, oldest first.
    #[serde(deserialize_with = "batch")]
    pub attempts: Vec<Attempt>,
    /// The first files that failed in the last completed attempt.
    #[serde(deserialize_with = "batch")]
    pub failures: Vec<EntryFailure>,
    /// Until when the link in question is in backoff, because its peer could not be reached.
    pub link_rests_until_ms: Option<u64>,
}

/// One attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Counted from 1.
    pub number: u32,
    /// When it began.
    pub started_ms: u64,
    /// When it ended; `None` if it runs, or if the PoP was killed during it.
    pub ended_ms: Option<u64>,
    /// Bytes transferred.
    pub bytes_moved: u64,
    /// Files that were at the destination when it ended.
    pub files_done: u64,
    /// The error that ended it early.
    pub error: Option<Error>,
}

/// Filter and cursor of a list of transfers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Also those that have ended.
    pub ended: bool,
    /// Only those with this label.
    pub label: Option<String>,
    /// Cursor: continue after this one, newest first.
    pub before: Option<(u64, TransferId)>,
}
