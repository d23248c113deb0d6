//! What programs are told about a file: an [`Item`] of the other side in the terms of this machine.

use crate::store::passwd;
use fuser::{FileAttr, FileType, INodeNo};
use renkei_core::entry::{EntryKind, FileTime, Stamp};
use renkei_core::wire::file::Item;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Unit of a file's blocks.
const BLOCK_BYTES: u64 = 512;
/// What programs are told is a good size to read at once.
const GOOD_READ_BYTES: u32 = 128 << 10;

/// The attributes of a file, as they were at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InodeAttr {
    /// The number it has at the other side: another number is another file.
    pub(super) ino: u64,
    pub(super) kind: FileType,
    pub(super) size: u64,
    pub(super) blocks: u64,
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: FileTime,
    pub(super) ctime: FileTime,
}

impl InodeAttr {
    /// Whether two looks at a file found one content.
    pub(super) fn same_content(&self, other: &InodeAttr) -> bool {
        let key = |known: &InodeAttr| (known.ino, known.size, known.mtime, known.ctime);
        key(self) == key(other)
    }

    /// Whether this is the file that `found` is: of one that somebody has open other versions are other files, so that what is
    /// read of it, and its size, stay those of the version that was opened.
    pub(super) fn is_file(&self, found: &InodeAttr, is_open: bool) -> bool {
        let key = |known: &InodeAttr| (known.ino, known.kind);
        let version = |known: &InodeAttr| known.stamp().version().map(|version| (known.size, version));
        let is_other = is_open && version(self).zip(version(found)).is_some_and(|(own, other)| own != other);
        key(self) == key(found) && !is_other
    }

    fn stamp(&self) -> Stamp {
        let InodeAttr { ino, size, mtime, ctime, .. } = *self;
        Stamp { size, mtime, ctime, ino }
    }

    /// In the kernel's form, under a number: the mount's own, where the kernel is told of the file with it.
    pub(super) fn attributes(&self, number: u64) -> FileAttr {
        FileAttr {
            ino: INodeNo(number),
            size: self.size,
            blocks: self.blocks,
            atime: system_time(self.mtime),
            mtime: system_time(self.mtime),
            ctime: system_time(self.ctime),
            crtime: UNIX_EPOCH,
            kind: self.kind,
            perm: (self.mode & 0o7777) as u16,
            nlink: self.links,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: GOOD_READ_BYTES,
            flags: 0,
        }
    }

    /// The same file with the size and time it has while it is written here.
    pub(super) fn while_written(mut self, size: u64, mtime: FileTime) -> Self {
        (self.size, self.mtime, self.ctime) = (size, mtime, mtime.max(self.ctime));
        self.blocks = size.div_ceil(BLOCK_BYTES);
        self
    }
}

/// Who files belong to on this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owners {
    /// The user who mounted.
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Whether names of accounts count; else everything belongs to the user who mounted.
    pub(super) by_name: bool,
}

impl Owners {
    /// Those of this process: names count for root alone, who lets others in.
    pub(super) fn of_process() -> Self {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        Owners { uid: uid.as_raw(), gid: gid.as_raw(), by_name: uid.is_root() }
    }

    fn uid(&self, name: &str) -> u32 {
        passwd::user_id(name).filter(|_| self.by_name).unwrap_or(self.uid)
    }

    fn gid(&self, name: &str) -> u32 {
        passwd::group_id(name).filter(|_| self.by_name).unwrap_or(self.gid)
    }

    /// What an item says.
    pub(super) fn attr(&self, item: &Item) -> InodeAttr {
        let meta = &item.entry.meta;
        let (kind, size) = match &item.entry.kind {
            EntryKind::File { stamp, .. } => (FileType::RegularFile, stamp.size),
            EntryKind::Dir => (FileType::Directory, item.blocks.saturating_mul(BLOCK_BYTES)),
            EntryKind::Symlink { target } => (FileType::Symlink, target.len() as u64),
            // To open a socket is refused at once, whatever it is there.
            EntryKind::Special | EntryKind::HardLink { .. } => (FileType::Socket, 0),
        };
        InodeAttr {
            ino: item.ino,
            kind,
            size,
            blocks: item.blocks,
            mode: meta.mode,
            links: u32::try_from(item.links).unwrap_or(u32::MAX),
            uid: self.uid(&meta.owner),
            gid: self.gid(&meta.group),
            mtime: meta.mtime,
            ctime: item.ctime,
        }
    }
}

/// A moment as the kernel's interface has it.
fn system_time(time: FileTime) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(time.nanos));
    let whole = Duration::from_secs(time.secs.unsigned_abs());
    let base = if time.secs < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    base.and_then(|base| base.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// A moment as files keep it.
pub(super) fn file_time(time: SystemTime) -> FileTime {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => {
            FileTime { secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
        }
        Err(before) => before_epoch(before.duration()),
    }
}

fn before_epoch(by: Duration) -> FileTime {
    let secs = i64::try_from(by.as_secs()).unwrap_or(i64::MAX);
    match by.subsec_nanos() {
        0 => FileTime { secs: -secs, nanos: 0 },
        nanos => FileTime { secs: -secs - 1, nanos: 1_000_000_000 - nanos },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::entry::{Entry, Meta};
    use renkei_core::path::RelPath;

    #[test]
    fn times_go_both_ways() {
        for (secs, nanos) in [(0, 0), (1, 5), (1_700_000_000, 999_999_999), (-1, 0), (-2, 500_000_000)] {
            let time = FileTime { secs, nanos };
            assert_eq!(file_time(system_time(time)), time);
        }
    }

    #[test]
    fn names_count_for_root_alone() {
        let meta = Meta { owner: "root".into(), group: "no such group".into(), ..Meta::default() };
        let kind = EntryKind::File { stamp: Stamp { size: 7, ..Stamp::default() }, sparse: false };
        let entry = Entry { path: RelPath::root(), meta, kind };
        let item = Item { entry, ino: 9, links: 1, blocks: 8, ctime: FileTime::default() };
        let known = |by_name| Owners { uid: 1000, gid: 100, by_name }.attr(&item);
        assert_eq!((known(true).uid, known(true).gid), (0, 100));
        assert_eq!((known(false).uid, known(false).gid), (1000, 100));
        assert_eq!((known(false).size, known(false).kind), (7, FileType::RegularFile));
    }
}
