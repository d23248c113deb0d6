//! Plain files of a followed volume: what identifies them, the means to write them, and the small operations that all
//! writers share.

use renkei_catalogue::HeldReplica;
use renkei_core::entry::{Entry, EntryKind, FileTime, Meta, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{Attributes, NodeId};
use renkei_core::path::RelPath;
use renkei_store::local::LocalStore;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Mode bits that the account needs in a directory of plain files.
const OWNER_ALL: u32 = 0o700;

/// Identity of a plain file or directory: content that was written here moves with its change, all else with its
/// node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) enum Of {
    Dir(NodeId),
    Node(NodeId),
    Own(u64),
}

/// The identity that a path has in the view at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Item {
    pub(crate) of: Of,
    pub(crate) id: NodeId,
    pub(crate) path: RelPath,
}

/// An existing plain file or directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlainEntry {
    pub(crate) item: Item,
    /// The stamp; of anything but a file only the inode number.
    pub(crate) stamp: Stamp,
    /// The temporary path while it is out of the way.
    pub(crate) way: RelPath,
}

/// A parked content: the file, the node that gets the content in case of a conflict, and the number of the change
/// that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Parted {
    pub(super) id: NodeId,
    pub(super) beside: NodeId,
    pub(super) number: u64,
}

impl Parted {
    /// The name of the parked file.
    pub(super) fn name(self) -> Vec<u8> {
        format!("{:016x}-{:016x}-{:016x}", self.id.0, self.beside.0, self.number).into_bytes()
    }

    pub(crate) fn parse(name: &[u8]) -> Option<Self> {
        let parts = std::str::from_utf8(name).ok()?.split('-');
        let numbers: Vec<u64> =
            parts.map(|part| u64::from_str_radix(part, 16).ok()).collect::<Option<_>>()?;
        let [id, beside, number] = numbers[..] else { return None };
        Some(Parted { id: NodeId(id), beside: NodeId(beside), number })
    }
}

/// Parked content, by the last change that was made before it was parked.
pub(crate) type Asides = BTreeMap<u64, Vec<Parted>>;

/// Replica rows after a change.
pub(crate) type HeldNow = Vec<(NodeId, Option<HeldReplica>)>;

/// Treats a missing file as success.
pub(crate) fn if_there(done: Result<(), Error>) -> Result<(), Error> {
    match done {
        Err(error) if !matches!(error.code, Code::PathNotFound | Code::NotADirectory) => Err(error),
        _ => Ok(()),
    }
}

/// The metadata of a plain directory; its account always has full access.
pub(crate) fn of_plain_dir(meta: &Meta) -> Meta {
    Meta { mode: meta.mode | OWNER_ALL, xattrs: Vec::new(), ..meta.clone() }
}

/// The stamp of a file; of anything else the default.
pub(crate) fn stamp(entry: &Entry) -> Stamp {
    match entry.kind {
        EntryKind::File { stamp, .. } => stamp,
        _ => Stamp::default(),
    }
}

/// The means to write a followed volume.
#[derive(Clone)]
pub struct Writer {
    /// The plain files of this site.
    pub plain: Arc<LocalStore>,
    /// Owner of new files, by name.
    pub owner: String,
    /// The group of new files.
    pub group: String,
}

impl Writer {
    /// Attributes of a new node.
    pub(crate) fn attributes(&self, mode: u32, mtime: FileTime) -> Attributes {
        Attributes { mode: mode & 0o7777, owner: self.owner.clone(), group: self.group.clone(), mtime }
    }
}

/// The time of a change that is made now.
pub(crate) fn now() -> FileTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    FileTime { secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_parked_file_tells_what_it_is() {
        let parted = Parted { id: NodeId(7), beside: NodeId(8), number: 9 };
        assert_eq!(Parted::parse(&parted.name()), Some(parted));
        assert_eq!([&b"7-8"[..], b"7-8-x", b""].map(Parted::parse), [None; 3]);
    }
}
