//! What a tree is made of: entries with their metadata, as they travel and as listings show them.

use crate::path::{RelPath, path_bytes};
use serde::{Deserialize, Serialize};

/// A point in time as file systems keep it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileTime {
    /// Seconds since 1970-01-01 UTC, negative before.
    pub secs: i64,
    /// Nanoseconds within the second, 0 to 999,999,999.
    pub nanos: u32,
}

/// What survives a move beside name and content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Permission bits including set-id and sticky (`mode & 0o7777`).
    pub mode: u32,
    /// Time of last modification.
    pub mtime: FileTime,
    /// Owner's account name at the source, applied only where the target account may.
    pub owner: String,
    /// Group's name at the source, applied only where the target account may.
    pub group: String,
    /// Extended attributes of the `user.` namespace (and POSIX ACLs), name and value.
    pub xattrs: Vec<Xattr>,
}

/// One extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Xattr {
    /// Full name, as `user.comment`.
    #[serde(with = "path_bytes")]
    pub name: Vec<u8>,
    /// The value.
    #[serde(with = "path_bytes")]
    pub value: Vec<u8>,
}

/// What identifies one state of a file's content without reading it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// Length in bytes.
    pub size: u64,
    /// Time of last modification.
    pub mtime: FileTime,
    /// Time of last change of content or metadata; a restored mtime cannot hide behind it.
    pub ctime: FileTime,
    /// Inode number.
    pub ino: u64,
}

/// The type of a directory entry, with what only that type has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A regular file.
    File {
        /// The state of its content when it was discovered.
        stamp: Stamp,
        /// Whether it has fewer blocks than bytes, so that holes must be looked for.
        sparse: bool,
    },
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink {
        /// Its target, any bytes, never followed.
        #[serde(with = "path_bytes")]
        target: Vec<u8>,
    },
    /// A further name of a file that came earlier in the same transfer.
    HardLink {
        /// The first name, relative to the same root as the entry's path.
        to: RelPath,
    },
    /// A FIFO, socket or device: reported, never copied.
    Special,
}

/// One thing found in a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Where it is, relative to the root of the walk (when sent: to the destination).
    pub path: RelPath,
    /// Mode, times, attributes.
    pub meta: Meta,
    /// Its type.
    pub kind: EntryKind,
}

impl Entry {
    /// Bytes of content; 0 for everything but files.
    pub fn size(&self) -> u64 {
        match &self.kind {
            EntryKind::File { stamp, .. } => stamp.size,
            _ => 0,
        }
    }
}
