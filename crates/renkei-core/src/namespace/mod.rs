//! The tree of a volume: its nodes and names, and who may change them in which order.
//!
//! The home site of a volume puts all changes in one order ([`home`]): each becomes a record of its log, with what it
//! did to the tree or why it was refused. Other sites follow the log ([`follower`]): they hold a copy of the tree, so that
//! reading is local, and see their own changes at once, before the home has heard of them. What a change means is
//! decided in one place ([`tree`]), for the home and for a follower that looks ahead. A tree is kept behind a trait
//! ([`tree::Tree`]), in memory or in a database; changes that are not in it yet lie over it ([`overlay`]). A site that
//! comes late gets the tree in pages ([`page`]). How much is in a volume and may be is counted beside the tree ([`quota`]),
//! and who shall hold replicas, and of whom content is asked first, is decided by rules of their own ([`placement`], [`source`]).
//!
//! Guarantees: copies that followed as far are equal; a change is in the log once, however often it was sent; a change
//! that was accepted at its site and refused at home is reported there, and content is never lost: where two sites
//! wrote the same file both versions are kept, side by side. Non-goals: who may do what, and bringing content.

pub mod dir_aliases;
pub mod follower;
pub mod home;
pub mod invalidations;
pub mod memory;
pub mod overlay;
pub mod page;
pub mod placement;
pub mod quota;
pub mod quota_share;
pub mod source;
pub mod tree;

use crate::entry::{FIRST_NODE, FileTime};
use crate::error::Error;
use crate::path::{MAX_NAME_BYTES, path_bytes};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// A node's number in its volume. Sites draw numbers from ranges of their own, so that what they make has one before the
/// home knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u64);

impl NodeId {
    /// Whose range a number is of, and its count there: what [`Origin::id`] made it of.
    pub fn drawn(self) -> Option<(Origin, u64)> {
        let origin = (self.0 / IDS_OF_ONE).checked_sub(1)?;
        Some((Origin(u16::try_from(origin).ok()?), self.0 % IDS_OF_ONE))
    }
}

/// The volume's top directory.
pub const ROOT: NodeId = NodeId(1);

/// A site that changes a volume, numbered by its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Origin(pub u16);

/// Numbers of nodes that one origin may give.
const IDS_OF_ONE: u64 = FIRST_NODE;

impl Origin {
    /// The home itself, where it must give a number of its own.
    pub const HOME: Origin = Origin(u16::MAX);

    /// The `count`-th number of this origin's range, from 1 on.
    pub fn id(self, count: u64) -> NodeId {
        NodeId((u64::from(self.0) + 1) * IDS_OF_ONE + count % IDS_OF_ONE)
    }
}

/// Content of a file: one version, never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// The record that made it; 0 for one that the home has not heard of.
    pub version: u64,
    /// The change that made it: whose, and its number there.
    pub by: (Origin, u64),
    /// Length in bytes.
    pub size: u64,
    /// BLAKE3, once it is known.
    pub digest: Option<[u8; 32]>,
}

/// The version of a content that a writer knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Base {
    /// The one of this record.
    Version(u64),
    /// The one made by this change of the writer's own site, in the log or not.
    Own(u64),
}

/// What a name was of when somebody decided that it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The node.
    pub id: NodeId,
    /// Its content, if it was a file.
    pub content: Option<Base>,
}

impl Known {
    /// What is seen in a node; a directory has no content.
    pub fn of(id: NodeId, node: &Node) -> Self {
        let content = match &node.kind {
            Kind::File(content) => Some(content.base()),
            _ => None,
        };
        Known { id, content }
    }
}

impl Content {
    /// What a writer knows who has seen this.
    pub fn base(&self) -> Base {
        if self.version > 0 { Base::Version(self.version) } else { Base::Own(self.by.1) }
    }
}

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A directory.
    Dir {
        /// Names in it.
        names: u64,
        /// The directory it is in; its own for the top.
        parent: NodeId,
    },
    /// A regular file.
    File(Content),
    /// A symbolic link.
    Symlink {
        /// Its target, any bytes.
        #[serde(with = "path_bytes")]
        target: Vec<u8>,
    },
    /// A directory whose name another one had at home already: that one is meant wherever this one is named. It has no
    /// name.
    Merged {
        /// The directory that has the name.
        into: NodeId,
    },
}

/// What a node has beside its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Permission bits (`mode & 0o7777`).
    pub mode: u32,
    /// Owner's name in the volume.
    pub owner: String,
    /// Group's name in the volume.
    pub group: String,
    /// Time of last modification.
    pub mtime: FileTime,
}

/// A file, directory or symbolic link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// What it is.
    pub kind: Kind,
    /// What it has beside that.
    pub attributes: Attributes,
    /// Names it has; of a directory 2 and one for each directory in it, as in POSIX.
    pub links: u32,
    /// The last record that changed it.
    pub changed: u64,
}

impl Node {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        matches!(self.kind, Kind::Dir { .. })
    }

    /// The directory that is meant in its place, if it became part of one.
    pub fn merged_into(&self) -> Option<NodeId> {
        match self.kind {
            Kind::Merged { into } => Some(into),
            _ => None,
        }
    }
}

/// A name in a directory: any bytes but `/` and NUL, 1 to 255 of them, and neither `.` nor `..`.
/// Another one is no message of a site that is sound, and is not read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Name(#[serde(serialize_with = "path_bytes::serialize", deserialize_with = "name")] pub Vec<u8>);

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let bytes = path_bytes::deserialize(deserializer)?;
    match is_name(&bytes) {
        true => Ok(bytes),
        false => Err(D::Error::custom("not a name in a directory")),
    }
}

/// Whether a directory can have this name in it.
fn is_name(bytes: &[u8]) -> bool {
    (1..=MAX_NAME_BYTES).contains(&bytes.len())
        && bytes != b"."
        && bytes != b".."
        && !bytes.iter().any(|byte| matches!(byte, b'/' | 0))
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Name(text.as_bytes().to_vec())
    }
}

/// A name in a directory of the volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Dentry {
    /// The directory.
    pub dir: NodeId,
    /// The name in it.
    pub name: Name,
}

/// What a new node shall be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewKind {
    /// An empty directory.
    Dir,
    /// An empty file.
    File,
    /// A symbolic link.
    Symlink(#[serde(with = "path_bytes")] Vec<u8>),
    /// A file that has its first content already.
    Content {
        /// Length in bytes.
        size: u64,
        /// BLAKE3, once it is known.
        digest: Option<[u8; 32]>,
    },
}

/// Something to be done to the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// A new node under a free name.
    Make {
        /// Its number.
        id: NodeId,
        /// Its name.
        at: Dentry,
        /// What it shall be.
        kind: NewKind,
        /// What it has; its mtime becomes that of the directory.
        attributes: Attributes,
        /// Where the name was taken meanwhile, take another one beside it; a directory becomes part of the one that has it.
        keep_both: bool,
    },
    /// A further name of a file or symbolic link.
    Link {
        /// The node.
        id: NodeId,
        /// Its new name.
        at: Dentry,
        /// The time of the change.
        time: FileTime,
    },
    /// A name of a file or symbolic link goes, and the node with the last one.
    Remove {
        /// The name.
        at: Dentry,
        /// What it was of; something else stays.
        seen: Option<Known>,
        /// The time of the change.
        time: FileTime,
    },
    /// An empty directory goes.
    RemoveDir {
        /// Its name.
        at: Dentry,
        /// The time of the change.
        time: FileTime,
    },
    /// Another name, in one step.
    Rename {
        /// The name now.
        from: Dentry,
        /// The name then; what has it goes.
        to: Dentry,
        /// Whether something may have it.
        replace: bool,
        /// What that was, if it was no directory; something else stays.
        seen: Option<Known>,
        /// The time of the change.
        time: FileTime,
    },
    /// Other attributes.
    SetAttributes {
        /// The node.
        id: NodeId,
        /// All of them.
        attributes: Attributes,
    },
    /// A new version of a file's content.
    SetContent {
        /// The file.
        id: NodeId,
        /// The version that the writer knew.
        base: Base,
        /// Length in bytes.
        size: u64,
        /// BLAKE3, once it is known.
        digest: Option<[u8; 32]>,
        /// The time of the change.
        mtime: FileTime,
        /// What becomes of it where the file has another version by now, or is gone. Without it the change is refused.
        beside: Option<Beside>,
    },
}

impl Change {
    /// The names it is about.
    pub fn spots(&self) -> Vec<&Dentry> {
        match self {
            Change::Make { at, .. } | Change::Link { at, .. } => vec![at],
            Change::Remove { at, .. } | Change::RemoveDir { at, .. } => vec![at],
            Change::Rename { from, to, .. } => vec![from, to],
            Change::SetContent { beside: Some(beside), .. } => vec![&beside.at],
            Change::SetAttributes { .. } | Change::SetContent { beside: None, .. } => Vec::new(),
        }
    }

    /// The same, to be changed.
    fn spots_mut(&mut self) -> Vec<&mut Dentry> {
        match self {
            Change::Make { at, .. } | Change::Link { at, .. } => vec![at],
            Change::Remove { at, .. } | Change::RemoveDir { at, .. } => vec![at],
            Change::Rename { from, to, .. } => vec![from, to],
            Change::SetContent { beside: Some(beside), .. } => vec![&mut beside.at],
            Change::SetAttributes { .. } | Change::SetContent { beside: None, .. } => Vec::new(),
        }
    }
}

/// A file of its own for content that found another version in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beside {
    /// Its number; the same for all writes of one file that the log does not have yet.
    pub id: NodeId,
    /// The name by which the file was written; the new one is beside it.
    pub at: Dentry,
    /// What it has.
    pub attributes: Attributes,
}

/// A change, as its origin numbered it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequencedChange {
    /// Who changes.
    pub origin: Origin,
    /// Ascending from 1, without gaps, for each origin.
    pub number: u64,
    /// The change.
    pub change: Change,
}

/// What a change did to the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// Nodes as they are then; none if they are gone.
    pub nodes: Vec<(NodeId, Option<Node>)>,
    /// Names and what they are of then; none if they are free.
    pub names: Vec<(Dentry, Option<NodeId>)>,
}

/// One line of the home's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Ascending from 1, without gaps.
    pub seq: u64,
    /// Whose change it was.
    pub origin: Origin,
    /// Its number there.
    pub number: u64,
    /// What it did, or why it was refused.
    pub outcome: Result<Delta, Error>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_name_is_not_read() {
        let read =
            |bytes: &[u8]| crate::wire::decode::<Name>("name", &crate::wire::encode(&Name(bytes.to_vec())));
        for good in [&b"a"[..], b"...", b"a b", &[0xff], &[b'x'; 255]] {
            assert_eq!(read(good).unwrap().0, good);
        }
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"../../etc/passwd", b"a\0b", &[b'x'; 256]] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn numbers_say_whose_they_are() {
        for origin in [Origin(0), Origin(7), Origin::HOME] {
            for count in [1, 2, IDS_OF_ONE - 1] {
                assert_eq!(origin.id(count).drawn(), Some((origin, count)));
            }
        }
        assert_eq!(ROOT.drawn(), None);
        assert_eq!(NodeId(u64::MAX).drawn(), None);
    }
}
