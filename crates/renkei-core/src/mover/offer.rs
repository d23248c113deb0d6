//! What receiver and sender agree on before a file is sent: what the receiver does with names that exist, the files
//! that it is offered, its verdicts on them.

use super::filter::Filter;
use crate::entry::Entry;
use crate::error::Error;
use crate::ids::EntryId;
use serde::{Deserialize, Serialize};

/// Handling of names that exist at the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Existing {
    /// Replace files, as cp.
    Replace,
    /// Leave files of the same size and mtime, as rsync.
    SameStamp,
    /// Leave files of the same content, whatever their time.
    SameContent,
}

/// Options of a transfer that the receiver must know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveOptions {
    /// Handling of names that exist.
    pub existing: Existing,
    /// Remove entries that the source does not have.
    pub delete: bool,
    /// Dry run: only report the changes.
    pub dry_run: bool,
    /// Names exempt from removal, because the transfer is not about them; travels before the request
    /// ([`crate::wire::message::Control::Filter`]).
    #[serde(skip)]
    pub filter: Filter,
}

impl ReceiveOptions {
    /// The options of a plain copy.
    pub fn plain(existing: Existing) -> Self {
        ReceiveOptions { existing, delete: false, dry_run: false, filter: Filter::default() }
    }
}

/// A file the sender could send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferItem {
    /// Its number.
    pub id: EntryId,
    /// The file.
    pub entry: Entry,
    /// Its digest, if the receiver compares content ([`Existing::SameContent`]).
    pub digest: Option<[u8; 32]>,
}

/// The receiver's verdict on an offered file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Send it.
    Want,
    /// The receiver already has it.
    Have,
    /// The receiver already has these extents, ascending; send the others.
    Partial(Vec<SlotRange>),
    /// It cannot be received.
    Refuse(Error),
}

/// Extents `first .. first + count` of a file; a file of terabytes has too many to name each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotRange {
    /// The first extent.
    pub first: u32,
    /// Number of extents.
    pub count: u32,
}

/// Entry numbers `first .. first + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdRange {
    /// The first number.
    pub first: EntryId,
    /// Number of entries.
    pub count: u64,
}
