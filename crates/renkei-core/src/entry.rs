//! Entries of a tree with their metadata, as sent over the wire and as shown in listings.

use crate::path::{RelPath, path_bytes};
use serde::{Deserialize, Serialize};

/// Nanoseconds per second.
const NANOS: u64 = 1_000_000_000;
/// Offset between the change numbers of two sites: a prime, so that few coincide.
const ORIGIN_STEP: u64 = 15_485_863;

/// The smallest inode number of files in volumes; file systems rarely use such large ones.
pub const FIRST_NODE: u64 = 1 << 47;

/// A point in time as file systems keep it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileTime {
    /// Seconds since 1970-01-01 UTC, negative before.
    pub secs: i64,
    /// Nanoseconds within the second, 0 to 999,999,999.
    pub nanos: u32,
}

/// Metadata that is preserved by a transfer, apart from name and content.
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

/// Identifies a state of a file's content without reading it.
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

impl Stamp {
    /// The stamp of one version of a file in a volume, the same at every site: `by` is the change that made it, with
    /// its site. Two versions differ in ctime, also if size and mtime are the same.
    pub fn of_version(ino: u64, size: u64, mtime: FileTime, by: (u16, u64)) -> Self {
        let (origin, number) = by;
        let mut nanos = (u64::from(origin) * ORIGIN_STEP + number) % NANOS;
        if nanos == u64::from(mtime.nanos) {
            // Equal times mean that the stamp has no version.
            nanos = (nanos + NANOS / 2) % NANOS;
        }
        let ctime = FileTime { secs: mtime.secs, nanos: u32::try_from(nanos).unwrap_or_default() };
        Stamp { size, mtime, ctime, ino }
    }

    /// The version tag of a file in a volume; `None` for other files.
    pub fn version(&self) -> Option<u32> {
        let tells = self.ino >= FIRST_NODE && self.ctime.secs == self.mtime.secs && self.ctime != self.mtime;
        tells.then_some(self.ctime.nanos)
    }

    /// Whether two stamps may be of the same version: certain if both have a version tag, otherwise by size and
    /// mtime, the only data of a plain file or an older program.
    pub fn may_be(&self, other: &Stamp) -> bool {
        let versions = self.version().zip(other.version()).filter(|_| self.ino == other.ino);
        let is_alike = (self.size, self.mtime) == (other.size, other.mtime);
        is_alike && versions.is_none_or(|(own, others)| own == others)
    }
}

/// The type of a directory entry, with its type-specific data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A regular file.
    File {
        /// The state of its content when it was discovered.
        stamp: Stamp,
        /// Whether it has fewer blocks than its size, so that holes must be looked for.
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
    /// A further name of a file that was sent earlier in the same transfer.
    HardLink {
        /// The first name, relative to the same root as the entry's path.
        to: RelPath,
    },
    /// A FIFO, socket or device: reported, never copied.
    Special,
}

/// An entry of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its path, relative to the root of the walk (when sent: to the destination).
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_equal_length_and_time_differ() {
        let mtime = FileTime { secs: 1_700_000_000, nanos: 7 };
        let of = |origin, number| Stamp::of_version(1 << 50, 700, mtime, (origin, number));
        assert!(of(0, 1).may_be(&of(0, 1)) && !of(0, 1).may_be(&of(0, 2)) && !of(0, 1).may_be(&of(1, 1)));
        // A change number that yields the mtime's nanoseconds is still distinguished from a stamp without version.
        assert_ne!(of(0, 7).ctime, mtime);
        let plain = Stamp { ino: 12, ctime: FileTime { secs: 1_800_000_000, nanos: 0 }, ..of(0, 1) };
        let older = Stamp { ctime: mtime, ..of(0, 1) };
        assert!(of(0, 1).may_be(&plain) && of(0, 2).may_be(&older));
        assert!(!of(0, 1).may_be(&Stamp { size: 701, ..plain }));
    }
}
