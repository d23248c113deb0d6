//! File attributes as programs see them: an [`Item`] of the other side converted to this machine's terms.

use fuser::{FileAttr, FileType, INodeNo};
use renkei_core::entry::{EntryKind, FileTime, Stamp};
use renkei_core::wire::file::Item;
use renkei_store::passwd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;
/// `st_blksize`: the preferred size of a read.
const GOOD_READ_BYTES: u32 = 128 << 10;

/// The attributes of a file at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InodeAttr {
    /// The inode number at the other side: another number is another file.
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
    /// Whether two samples of a file's attributes belong to the same content.
    pub(super) fn same_content(&self, other: &InodeAttr) -> bool {
        let key = |known: &InodeAttr| (known.ino, known.size, known.mtime, known.ctime);
        key(self) == key(other)
    }

    /// Whether `found` is this file. Of a file that is open, other versions count as other files, so that its size
    /// and the content that is read of it stay those of the version that was opened.
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

    /// The kernel's form, with this inode number: the mount's own number where the kernel learns of the file.
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

    /// The same file with the size and time of its unpublished draft.
    pub(super) fn while_written(mut self, size: u64, mtime: FileTime) -> Self {
        (self.size, self.mtime, self.ctime) = (size, mtime, mtime.max(self.ctime));
        self.blocks = size.div_ceil(BLOCK_BYTES);
        self
    }
}

/// The owners of files on this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owners {
    /// The user who mounted.
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Whether account names are mapped to local ids; else all files belong to the user who mounted.
    pub(super) by_name: bool,
}

impl Owners {
    /// The owners for this process: account names are mapped for root alone, who may let other users in.
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

    /// The attributes of an item.
    pub(super) fn attr(&self, item: &Item) -> InodeAttr {
        let meta = &item.entry.meta;
        let (kind, size) = match &item.entry.kind {
            EntryKind::File { stamp, .. } => (FileType::RegularFile, stamp.size),
            EntryKind::Dir => (FileType::Directory, item.blocks.saturating_mul(BLOCK_BYTES)),
            EntryKind::Symlink { target } => (FileType::Symlink, target.len() as u64),
            // Opening a socket fails at once, whatever the file is at the site.
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

/// A time in the form of the kernel's interface.
fn system_time(time: FileTime) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(time.nanos));
    let whole = Duration::from_secs(time.secs.unsigned_abs());
    let base = if time.secs < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    base.and_then(|base| base.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// A time in the form that files keep.
pub(super) fn file_time(time: SystemTime) -> FileTime {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => {
            FileTime { secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
        }
        Err(before) => before_epoch(before.duration()),
    }
}

/// The time now, as files keep it.
pub(super) fn now() -> FileTime {
    file_time(SystemTime::now())
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
    fn times_round_trip() {
        for (secs, nanos) in [(0, 0), (1, 5), (1_700_000_000, 999_999_999), (-1, 0), (-2, 500_000_000)] {
            let time = FileTime { secs, nanos };
            assert_eq!(file_time(system_time(time)), time);
        }
    }

    #[test]
    fn owner_names_are_used_by_root_only() {
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
