//! The tree of a volume: its nodes and names, and the ordered log of its changes.
//!
//! The home site of a volume orders all changes ([`home`]): each becomes a record of its log, with its effects on the
//! tree or the reason of its refusal. Other sites follow the log ([`follower`]): they hold a copy of the tree, so
//! that reads are local, and see their own changes at once, before the home has received them. The semantics of a
//! change are defined in one place ([`tree`]), for the home and for the optimistic execution at a follower. A tree is
//! kept behind a trait ([`tree::Tree`]), in memory or in a database; changes that are not in it yet lie over it
//! ([`overlay`]). A new follower bootstraps from pages ([`page`]). Use and quotas of a volume are counted beside the
//! tree ([`quota`]); replica placement and source selection are policies of their own ([`placement`], [`source`]).
//!
//! Guarantees: copies at the same position of the log are equal; a change is in the log once, however often it was
//! sent (exactly once); a change that was accepted at its site and refused at home is reported there, and content is
//! never lost: of concurrent writes to the same file both versions are kept, side by side. Non-goals: access control,
//! and transferring content.

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
pub mod xattrs;

use crate::entry::{FIRST_NODE, FileTime, Xattr};
use crate::error::Error;
use crate::path::{MAX_NAME_BYTES, path_bytes};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// A node's number in its volume (inode number). Each site allocates numbers from a range of its own, so that new
/// nodes have one before the home knows of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The origin and the count that a number was made from with [`Origin::id`].
    pub fn drawn(self) -> Option<(Origin, u64)> {
        if self.described().is_some() {
            return None;
        }
        let origin = (self.0 / IDS_OF_ONE).checked_sub(1)?;
        Some((Origin(u16::try_from(origin).ok()?), self.0 % IDS_OF_ONE))
    }
}

/// The volume's root directory.
pub const ROOT: NodeId = NodeId(1);

/// A site that changes a volume, numbered by its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Origin(pub u16);

/// Size of each origin's range of node numbers.
const IDS_OF_ONE: u64 = FIRST_NODE;

impl Origin {
    /// The home itself, for numbers that it allocates.
    pub const HOME: Origin = Origin(u16::MAX);

    /// The `count`-th number of this origin's range, from 1 on.
    pub fn id(self, count: u64) -> NodeId {
        NodeId((u64::from(self.0) + 1) * IDS_OF_ONE + count % IDS_OF_ONE)
    }
}

/// Content of a file: one version, never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// The record that made it; 0 if the home has not ordered it yet.
    pub version: u64,
    /// The change that made it: its origin, and its number there.
    pub by: (Origin, u64),
    /// Length in bytes.
    pub size: u64,
    /// BLAKE3, once it is known.
    pub digest: Option<[u8; 32]>,
}

/// The content version that a write is based on (for conflict detection).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Base {
    /// The one of this record.
    Version(u64),
    /// The one made by this change of the writer's own site, whether or not it is in the log.
    Own(u64),
}

/// The state of a name when a change that removes it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedName {
    /// The node.
    pub id: NodeId,
    /// Its content, if it was a file.
    pub content: Option<Base>,
}

impl RemovedName {
    /// The state of a node; a directory has no content.
    pub fn of(id: NodeId, node: &Node) -> Self {
        let content = match &node.kind {
            Kind::File(content) => Some(content.base()),
            _ => None,
        };
        RemovedName { id, content }
    }
}

impl Content {
    /// The base of a write by a writer that has seen this content.
    pub fn base(&self) -> Base {
        if self.version > 0 { Base::Version(self.version) } else { Base::Own(self.by.1) }
    }
}

/// Kind of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A directory.
    Dir {
        /// Number of names in it.
        names: u64,
        /// Its parent directory; the root's is itself.
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
    /// A directory whose name was taken by another one at the home: references to it resolve to that one. It has no
    /// name.
    Merged {
        /// The directory that has the name.
        into: NodeId,
    },
    /// The extended attributes of another node ([`NodeId::xattrs`]), at least one, in the order of their names. It has no
    /// name.
    Xattrs(Vec<Xattr>),
}

/// Attributes of a node, apart from its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Its kind.
    pub kind: Kind,
    /// Its attributes.
    pub attributes: Attributes,
    /// Link count: its names; of a directory 2 plus its subdirectories, as in POSIX.
    pub links: u32,
    /// The last record that changed it.
    pub changed: u64,
}

impl Node {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        matches!(self.kind, Kind::Dir { .. })
    }

    /// The directory that it was merged into, if it was.
    pub fn merged_into(&self) -> Option<NodeId> {
        match self.kind {
            Kind::Merged { into } => Some(into),
            _ => None,
        }
    }
}

/// A name in a directory: any bytes but `/` and NUL, 1 to 255 of them, and neither `.` nor `..`. Deserialising any
/// other is an error, because no correct site sends it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Name(#[serde(serialize_with = "path_bytes::serialize", deserialize_with = "name")] pub Vec<u8>);

fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let bytes = path_bytes::deserialize(deserializer)?;
    match is_name(&bytes) {
        true => Ok(bytes),
        false => Err(D::Error::custom("not a name in a directory")),
    }
}

/// Whether the bytes are a valid name in a directory.
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

/// A directory entry: a directory of the volume and a name in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Dentry {
    /// The directory.
    pub dir: NodeId,
    /// The name in it.
    pub name: Name,
}

/// Kind of a new node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewKind {
    /// An empty directory.
    Dir,
    /// An empty file.
    File,
    /// A symbolic link.
    Symlink(#[serde(with = "path_bytes")] Vec<u8>),
    /// A file with its first content.
    Content {
        /// Length in bytes.
        size: u64,
        /// BLAKE3, once it is known.
        digest: Option<[u8; 32]>,
    },
}

/// A change of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Creates a node under a free name.
    Make {
        /// Its number.
        id: NodeId,
        /// Its name.
        at: Dentry,
        /// Its kind.
        kind: NewKind,
        /// Its attributes; the mtime is also set on the directory.
        attributes: Attributes,
        /// If the name was taken concurrently, use a conflict name beside it; a directory is merged into the existing
        /// one.
        keep_both: bool,
    },
    /// Adds a hard link to a file or symbolic link.
    Link {
        /// The node.
        id: NodeId,
        /// Its new name.
        at: Dentry,
        /// The time of the change.
        time: FileTime,
    },
    /// Removes a name of a file or symbolic link, and with the last one the node.
    Remove {
        /// The name.
        at: Dentry,
        /// The node that the remover saw; a different one is kept and the change refused.
        seen: Option<RemovedName>,
        /// The time of the change.
        time: FileTime,
    },
    /// Removes an empty directory.
    RemoveDir {
        /// Its name.
        at: Dentry,
        /// The time of the change.
        time: FileTime,
    },
    /// Renames atomically.
    Rename {
        /// The old name.
        from: Dentry,
        /// The new name; an existing entry is replaced.
        to: Dentry,
        /// Whether an existing entry may be replaced.
        replace: bool,
        /// The replaced node that the renamer saw; a different one is kept and the change refused.
        seen: Option<RemovedName>,
        /// The time of the change.
        time: FileTime,
    },
    /// Sets the attributes.
    SetAttributes {
        /// The node.
        id: NodeId,
        /// All attributes.
        attributes: Attributes,
    },
    /// Sets a new version of a file's content.
    SetContent {
        /// The file.
        id: NodeId,
        /// The version that the write is based on.
        base: Base,
        /// Length in bytes.
        size: u64,
        /// BLAKE3, once it is known.
        digest: Option<[u8; 32]>,
        /// The time of the change.
        mtime: FileTime,
        /// The conflict copy to make if the file has another version by now, or is gone. If `None`, the change is
        /// refused then.
        beside: Option<Beside>,
    },
    /// Sets an extended attribute.
    SetXattr {
        /// The node.
        id: NodeId,
        /// Its name.
        #[serde(with = "path_bytes")]
        name: Vec<u8>,
        /// Its value; none removes it, if it is there.
        value: Option<Vec<u8>>,
    },
}

impl Change {
    /// The names that it refers to.
    pub fn spots(&self) -> Vec<&Dentry> {
        match self {
            Change::Make { at, .. } | Change::Link { at, .. } => vec![at],
            Change::Remove { at, .. } | Change::RemoveDir { at, .. } => vec![at],
            Change::Rename { from, to, .. } => vec![from, to],
            Change::SetContent { beside: Some(beside), .. } => vec![&beside.at],
            Change::SetAttributes { .. } | Change::SetContent { beside: None, .. } => Vec::new(),
            Change::SetXattr { .. } => Vec::new(),
        }
    }

    /// The same, mutable.
    fn spots_mut(&mut self) -> Vec<&mut Dentry> {
        match self {
            Change::Make { at, .. } | Change::Link { at, .. } => vec![at],
            Change::Remove { at, .. } | Change::RemoveDir { at, .. } => vec![at],
            Change::Rename { from, to, .. } => vec![from, to],
            Change::SetContent { beside: Some(beside), .. } => vec![&mut beside.at],
            Change::SetAttributes { .. } | Change::SetContent { beside: None, .. } => Vec::new(),
            Change::SetXattr { .. } => Vec::new(),
        }
    }
}

/// A conflict copy: a file of its own for content whose base version was superseded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beside {
    /// Its number; the same for all writes of one file that are not in the log yet.
    pub id: NodeId,
    /// The name under which the file was written; the conflict name is derived from it.
    pub at: Dentry,
    /// Its attributes.
    pub attributes: Attributes,
}

/// A change with the sequence number of its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequencedChange {
    /// The site that made it.
    pub origin: Origin,
    /// Ascending from 1, without gaps, for each origin.
    pub number: u64,
    /// The change.
    pub change: Change,
}

/// The effects of a change on the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// Changed nodes with their new states; `None` if removed.
    pub nodes: Vec<(NodeId, Option<Node>)>,
    /// Changed names with their new nodes; `None` if free.
    pub names: Vec<(Dentry, Option<NodeId>)>,
}

/// One record of the home's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Ascending from 1, without gaps.
    pub seq: u64,
    /// The origin of the change.
    pub origin: Origin,
    /// The change's number there.
    pub number: u64,
    /// Its effects, or the error it was refused with.
    pub outcome: Result<Delta, Error>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_not_decoded() {
        let read = |bytes: &[u8]| {
            crate::encoding::decode::<Name>("name", &crate::encoding::encode(&Name(bytes.to_vec())))
        };
        for good in [&b"a"[..], b"...", b"a b", &[0xff], &[b'x'; 255]] {
            assert_eq!(read(good).unwrap().0, good);
        }
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"../../etc/passwd", b"a\0b", &[b'x'; 256]] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn numbers_contain_their_site() {
        for origin in [Origin(0), Origin(7), Origin::HOME] {
            for count in [1, 2, IDS_OF_ONE / 2 - 1] {
                assert_eq!(origin.id(count).drawn(), Some((origin, count)));
            }
        }
        assert_eq!(ROOT.drawn(), None);
        assert_eq!(NodeId(u64::MAX).drawn(), None);
    }
}
