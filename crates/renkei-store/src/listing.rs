//! The names in a local directory, read with getdents in batches, and what tells that they have not changed since.

use super::errno::{self, Step, Subject};
use super::{DirVersion, Listed, TypeHint};
use renkei_core::entry::FileTime;
use renkei_core::error::Error;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{FileType, RawDir, RawDirEntry};
use rustix::io;
use std::collections::VecDeque;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Buffer of one getdents call: about a thousand short names, and always one of 255 bytes.
const BATCH_BYTES: usize = 32 * 1024;

/// File systems of this machine (linux/magic.h): each change of a name sets the directory's times by this machine's clock, in
/// steps of at most a second.
const OF_THIS_MACHINE: [i64; 7] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
    0x0102_1994, // tmpfs
    0x794c_7630, // overlayfs
];
/// File systems of several machines that do the same by the clock of another one.
const OF_SEVERAL_MACHINES: [i64; 5] = [
    0x0000_6969, // NFS
    0x0bd0_0bd0, // Lustre
    0x4750_4653, // GPFS
    0x1983_0326, // BeeGFS
    0x00c3_6400, // CephFS
];
/// After so long another change sets other times.
const SETTLED_HERE: Duration = Duration::from_secs(2);
/// The same with a clock that is wrong by most of this.
const SETTLED_ELSEWHERE: Duration = Duration::from_secs(60);

/// What an open directory is until its names change, if its times tell that.
pub(super) fn version(fd: BorrowedFd<'_>) -> Option<DirVersion> {
    let system = rustix::fs::fstatfs(fd).ok()?.f_type;
    let stat = rustix::fs::fstat(fd).ok()?;
    let ctime = FileTime { secs: stat.st_ctime, nanos: stat.st_ctime_nsec as u32 };
    let mtime = FileTime { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    is_settled(settles_in(system)?, ctime, now).then_some(DirVersion {
        device: stat.st_dev,
        ino: stat.st_ino,
        mtime,
        ctime,
    })
}

/// How long after a change the next one is sure to set other times; none where that is not known.
#[allow(clippy::unnecessary_cast, reason = "the type of f_type differs between processors")]
fn settles_in(system: rustix::fs::FsWord) -> Option<Duration> {
    let system = system as i64;
    match (OF_THIS_MACHINE.contains(&system), OF_SEVERAL_MACHINES.contains(&system)) {
        (true, _) => Some(SETTLED_HERE),
        (_, true) => Some(SETTLED_ELSEWHERE),
        _ => None,
    }
}

fn is_settled(within: Duration, ctime: FileTime, now: Duration) -> bool {
    let changed = u64::try_from(ctime.secs).map(|secs| Duration::new(secs, ctime.nanos));
    changed.is_ok_and(|changed| now.checked_sub(changed).is_some_and(|since| since >= within))
}

/// Reads one directory to its end; memory does not grow with the number of names.
pub(super) struct Entries {
    fd: OwnedFd,
    subject: Subject,
    buffer: Vec<u8>,
    batch: VecDeque<Listed>,
    at_end: bool,
}

impl Entries {
    /// Starts reading `fd`, which is open for reading and not shared.
    pub(super) fn new(fd: OwnedFd, subject: Subject) -> Self {
        let buffer = Vec::with_capacity(BATCH_BYTES);
        Entries { fd, subject, buffer, batch: VecDeque::new(), at_end: false }
    }

    fn read_batch(&mut self) -> io::Result<()> {
        let mut dir = RawDir::new(&self.fd, self.buffer.spare_capacity_mut());
        loop {
            match dir.next() {
                None => self.at_end = true,
                Some(entry) => self.batch.extend(listed(&entry?)),
            }
            if self.at_end || dir.is_buffer_empty() {
                return Ok(());
            }
        }
    }
}

impl Iterator for Entries {
    type Item = Result<Listed, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.batch.is_empty() && !self.at_end {
            if let Err(errno) = self.read_batch() {
                self.at_end = true;
                return Some(Err(errno::error(errno, Step::Data, "list", &self.subject)));
            }
        }
        self.batch.pop_front().map(Ok)
    }
}

fn listed(entry: &RawDirEntry<'_>) -> Option<Listed> {
    let name = entry.file_name().to_bytes();
    if name == b"." || name == b".." {
        return None;
    }
    Some(Listed { name: name.to_vec(), hint: hint(entry.file_type()), ino: entry.ino() })
}

fn hint(file_type: FileType) -> TypeHint {
    match file_type {
        FileType::RegularFile => TypeHint::File,
        FileType::Directory => TypeHint::Dir,
        FileType::Symlink => TypeHint::Symlink,
        FileType::Unknown => TypeHint::Unknown,
        _ => TypeHint::Special,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn a_directory_has_a_version_once_its_last_change_is_over() {
        let at = |secs: i64, nanos: u32| FileTime { secs, nanos };
        let now = Duration::new(1000, 500);
        assert!(is_settled(SETTLED_HERE, at(998, 500), now));
        assert!(!is_settled(SETTLED_HERE, at(998, 501), now));
        assert!(!is_settled(SETTLED_HERE, at(1001, 0), now), "a clock that was set back");
        assert!(!is_settled(SETTLED_HERE, at(-1, 0), now));
        assert!(settles_in(0x6573_5546).is_none(), "FUSE");
        assert_eq!(settles_in(0x6969), Some(SETTLED_ELSEWHERE));
        let dir = tempfile::tempdir().unwrap();
        let fd = rustix::fs::open(dir.path(), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(version(fd.as_fd()), None, "it was made a moment ago");
    }
}
