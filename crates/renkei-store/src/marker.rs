//! Identity of a directory beyond its path: a small file in it, and a fingerprint from the file system.
//!
//! A marker is a text file with a random id, in the root of a storage or of a volume. It stays with the directory
//! when that is moved, mounted elsewhere or copied as a whole. Where none can be written (a file system that is
//! mounted read-only, a directory that is not the PoP's to change) the fingerprint replaces it: type of the file
//! system, inode and birth time of the directory; without birth times, the mount source of a network file system.
//! Guarantee: a marker is complete or absent, and of several concurrent writers the first wins. Non-goal: secrecy; an
//! account that may write to a directory may also remove its marker.

use super::MAX_LINEAGE;
use super::jail::{HANDLE, open_name};
use super::local::LocalStore;
use renkei_core::error::{Code, Error};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, StatVfsMountFlags, StatxAttributes, StatxFlags, fchmod, fstat, fstatvfs,
    fsync, linkat, openat, renameat, statat, statx, unlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The marker in the root of a storage.
pub const STORAGE: &str = ".rk~storage";

/// The marker in the directory of a volume's plain files.
pub const VOLUME: &str = ".rk~volume";

/// All markers.
const MARKERS: [&str; 2] = [STORAGE, VOLUME];

/// Longest marker that is read.
const MAX_BYTES: u64 = 4096;

/// Mode of a marker: it holds no secret.
const MODE: Mode = Mode::from_raw_mode(0o644);

/// Flags for opening a marker: the name may have been replaced by anything.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// File systems whose id is derived from the UUID of their superblock.
const WITH_LASTING_IDS: [&str; 4] = ["ext2", "ext3", "ext4", "btrfs"];

/// File systems whose inode numbers change when they are mounted again.
const WITHOUT_LASTING_INODES: [&str; 2] = ["fuse", "overlay"];

/// Whether a name is that of a marker.
pub fn is_marker(name: &[u8]) -> bool {
    MARKERS.iter().any(|marker| marker.as_bytes() == name)
}

/// The error for a change of a marker by a user of the store.
#[cold]
pub(super) fn refused(op: &str, subject: impl std::fmt::Display) -> Error {
    let cause = "renkei tells by this file which directory this is, and keeps it itself";
    Error::new(Code::PermissionDenied, op, subject, cause)
}

/// Device and inode of a directory, unique as long as the machine runs and the directory is open.
pub type Identity = (u64, u64);

/// The identity of the directory at a path now, without opening it.
///
/// # Errors
/// Those of the system.
pub fn identity_at(path: &Path) -> io::Result<Identity> {
    let stat = rustix::fs::stat(path)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Fingerprint of a directory: the stable properties that the file system reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Type of the file system, as `ext4`.
    pub file_system: String,
    /// Inode and birth time in nanoseconds since 1970, where both are stable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub born: Option<Birth>,
    /// The file system's id, where it is stable across mounts: root directories of two disks that were formatted in
    /// the same second have the same inode number and birth time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// The mount source, where that is a stable name: `server:/export`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Of a read-only file system without birth times: its number of blocks, and the mtime of the directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<(u64, i64)>,
}

/// Inode and birth time of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Birth {
    /// Inode number.
    pub inode: u64,
    /// Seconds since 1970.
    pub seconds: i64,
    /// And nanoseconds.
    pub nanoseconds: u32,
}

impl Fingerprint {
    /// Whether two fingerprints may be of one directory; `None` where they have nothing comparable but the type.
    pub fn matches(&self, other: &Self) -> Option<bool> {
        if self.file_system != other.file_system {
            return Some(false);
        }
        fn both<T: PartialEq>(a: &Option<T>, b: &Option<T>) -> Option<bool> {
            Some(a.as_ref()? == b.as_ref()?)
        }
        if both(&self.id, &other.id) == Some(false) {
            return Some(false);
        }
        both(&self.born, &other.born)
            .or_else(|| both(&self.source, &other.source))
            .or_else(|| both(&self.frozen, &other.frozen))
    }
}

impl LocalStore {
    /// Device and inode of the root.
    ///
    /// # Errors
    /// Those of the system.
    pub fn identity(&self) -> io::Result<Identity> {
        let stat = fstat(self.root_fd())?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Whether the root is a mount point.
    pub fn is_mount_point(&self) -> bool {
        let told = statx(self.root_fd(), "", AtFlags::EMPTY_PATH, StatxFlags::TYPE);
        told.is_ok_and(|told| told.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }

    /// The fingerprint of the root.
    ///
    /// # Errors
    /// Those of the system.
    pub fn fingerprint(&self) -> io::Result<Fingerprint> {
        let fd = self.root_fd();
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME | StatxFlags::MNT_ID;
        let told = statx(fd, "", AtFlags::EMPTY_PATH, wanted)?;
        let mount = Mounted::find(told.stx_mnt_id)?;
        let lasts = !WITHOUT_LASTING_INODES.contains(&mount.file_system.as_str());
        let is_born = lasts && told.stx_mask & StatxFlags::BTIME.bits() != 0;
        let born = is_born.then_some(Birth {
            inode: told.stx_ino,
            seconds: told.stx_btime.tv_sec,
            nanoseconds: told.stx_btime.tv_nsec,
        });
        let room = fstatvfs(fd)?;
        // TOML integers are signed: the upper bit is masked.
        let id =
            WITH_LASTING_IDS.contains(&mount.file_system.as_str()).then_some(room.f_fsid & (u64::MAX >> 1));
        let is_frozen = born.is_none() && room.f_flag.contains(StatVfsMountFlags::RDONLY);
        Ok(Fingerprint {
            file_system: mount.file_system,
            born,
            id: id.filter(|id| *id != 0),
            source: mount.source,
            frozen: is_frozen.then_some((room.f_blocks, told.stx_mtime.tv_sec)),
        })
    }

    /// The text of a marker in the root, if it exists.
    ///
    /// # Errors
    /// Those of the system; `InvalidData` if it is not a text file of a marker's size.
    pub fn marker(&self, name: &str) -> io::Result<Option<String>> {
        match open_name(self.root_fd(), name.as_bytes(), READ) {
            Ok(fd) => read_text(fd).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP) => Err(io::Error::new(io::ErrorKind::InvalidData, "it is a symbolic link")),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The texts of a marker in the root and in each of its ancestors, as far as they can be read.
    pub fn markers_upwards(&self, name: &str) -> Vec<String> {
        let (mut found, mut last) = (Vec::new(), None);
        let mut at = rustix::io::fcntl_dupfd_cloexec(self.root_fd(), 0);
        for _ in 0..MAX_LINEAGE {
            let Ok(dir) = at else { break };
            let Ok(stat) = fstat(&dir) else { break };
            // The root directory is its own parent.
            if last == Some((stat.st_dev, stat.st_ino)) {
                break;
            }
            last = Some((stat.st_dev, stat.st_ino));
            found
                .extend(open_name(dir.as_fd(), name.as_bytes(), READ).ok().and_then(|fd| read_text(fd).ok()));
            at = openat(&dir, "..", HANDLE | OFlags::CLOEXEC, Mode::empty());
        }
        found
    }

    /// Whether a marker is certainly gone from the root.
    pub fn lacks_marker(&self, name: &str) -> bool {
        matches!(statat(self.root_fd(), name, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT))
    }

    /// Creates a marker in the root, durably, unless it exists.
    ///
    /// # Errors
    /// Those of the system; `AlreadyExists` if it exists.
    pub fn put_marker(&self, name: &str, text: &str) -> io::Result<()> {
        self.write_marker(name, text, |dir, temp| match linkat(dir, temp, dir, name, AtFlags::empty()) {
            // A file system without hard links.
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK) => renameat(dir, temp, dir, name),
            done => done,
        })
    }

    /// Replaces a marker in the root, durably.
    ///
    /// # Errors
    /// Those of the system.
    pub fn replace_marker(&self, name: &str, text: &str) -> io::Result<()> {
        self.write_marker(name, text, |dir, temp| renameat(dir, temp, dir, name))
    }

    /// Removes a marker from the root, if it exists.
    ///
    /// # Errors
    /// Those of the system.
    pub fn remove_marker(&self, name: &str) -> io::Result<()> {
        match unlinkat(self.root_fd(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn write_marker(
        &self,
        name: &str,
        text: &str,
        publish: impl FnOnce(BorrowedFd<'_>, &str) -> Result<(), Errno>,
    ) -> io::Result<()> {
        let dir = self.root_fd();
        // A temporary name is hidden from listings.
        let temp = format!(".rk~{:08x}{:08x}-{:016x}", std::process::id(), name.len(), thread_number());
        unlink_if_there(dir, &temp)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(dir, &temp, flags, Mode::RUSR | Mode::WUSR)?;
        let written = fill(fd, text).and_then(|()| publish(dir, &temp).map_err(io::Error::from));
        unlink_if_there(dir, &temp)?;
        written?;
        let handle = openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        match fsync(&handle) {
            Ok(()) | Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn thread_number() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

fn unlink_if_there(dir: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

fn fill(fd: OwnedFd, text: &str) -> io::Result<()> {
    let mut file = File::from(fd);
    file.write_all(text.as_bytes())?;
    fchmod(file.as_fd(), MODE)?;
    file.sync_all()
}

fn read_text(fd: OwnedFd) -> io::Result<String> {
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
    if FileType::from_raw_mode(fstat(&fd)?.st_mode) != FileType::RegularFile {
        return Err(invalid("it is no regular file"));
    }
    let mut text = String::new();
    File::from(fd).take(MAX_BYTES + 1).read_to_string(&mut text)?;
    match text.len() as u64 > MAX_BYTES {
        true => Err(invalid("it is too large")),
        false => Ok(text),
    }
}

/// One line of the kernel's table of mounts.
struct Mounted {
    file_system: String,
    /// The mount source, where it is stable across machines and reboots.
    source: Option<String>,
}

impl Mounted {
    fn find(id: u64) -> io::Result<Self> {
        let table = std::fs::read("/proc/self/mountinfo")?;
        let table = String::from_utf8_lossy(&table);
        let line = table.lines().find(|line| line.split(' ').next() == Some(&id.to_string()));
        let gone = || io::Error::new(io::ErrorKind::NotFound, "its mount is not in /proc/self/mountinfo");
        line.and_then(Self::parse).ok_or_else(gone)
    }

    /// `ID PARENT DEVICE ROOT POINT OPTIONS [TAGS ...] - TYPE SOURCE OPTIONS`, see proc(5).
    fn parse(line: &str) -> Option<Self> {
        let root = line.split(' ').nth(3)?;
        let mut after = line.split_once(" - ")?.1.split(' ');
        let (file_system, source) = (after.next()?, after.next()?);
        // `fuse.sshfs` and `nfs4` are variants that may change with the mount options.
        let kind = file_system.split('.').next().unwrap_or(file_system).replace("nfs4", "nfs");
        // Names of disks change with the order of detection.
        let named = (source.contains(':') || source.contains('@')).then(|| match root {
            "/" => source.to_owned(),
            root => format!("{source}{root}"),
        });
        Some(Mounted { file_system: kind, source: named })
    }
}

/// Mount points below a folder; of those that show a directory of a file system that is mounted elsewhere too (bind
/// mounts), the other path as well.
pub fn mounts_below(folder: &Path) -> Vec<PathBuf> {
    let (Ok(folder), Ok(table)) = (folder.canonicalize(), std::fs::read("/proc/self/mountinfo")) else {
        return Vec::new();
    };
    let mounts: Vec<MountPoint> = table.split(|byte| *byte == b'\n').filter_map(MountPoint::parse).collect();
    let below = mounts.iter().filter(|mount| mount.point.starts_with(&folder) && mount.point != folder);
    let elsewhere = |below: &MountPoint| {
        let others = mounts.iter().filter(|other| other.device == below.device && other.point != below.point);
        let paths =
            others.filter_map(|other| Some(other.point.join(below.root.strip_prefix(&other.root).ok()?)));
        paths.collect::<Vec<_>>()
    };
    below.flat_map(|mount| std::iter::once(mount.point.clone()).chain(elsewhere(mount))).collect()
}

/// A mount point, with its device and the directory of that device.
struct MountPoint {
    device: Vec<u8>,
    root: PathBuf,
    point: PathBuf,
}

impl MountPoint {
    /// As [`Mounted::parse`].
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let device = fields.next()?.to_vec();
        Some(MountPoint { device, root: unescaped(fields.next()?), point: unescaped(fields.next()?) })
    }
}

/// The kernel writes blanks, tabs, newlines and backslashes as three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::new(), field);
    while let Some((first, after)) = rest.split_first() {
        let digits = after.first_chunk::<3>().and_then(|digits| std::str::from_utf8(digits).ok());
        let octal = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        let (byte, left) = match octal.filter(|_| *first == b'\\') {
            Some(byte) => (byte, &after[3..]),
            None => (*first, after),
        };
        bytes.push(byte);
        rest = left;
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::local::AccessMode;

    fn store(path: &Path) -> LocalStore {
        LocalStore::open(path, AccessMode::ReadWrite).unwrap()
    }

    #[test]
    fn paths_of_mounts_are_unescaped() {
        assert_eq!(unescaped(b"/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(unescaped(b"/a\\04"), Path::new("/a\\04"));
        assert!(mounts_below(Path::new("/")).contains(&PathBuf::from("/proc")));
    }

    #[test]
    fn the_first_marker_stays_until_it_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        assert_eq!(store.marker(STORAGE).unwrap(), None);
        store.put_marker(STORAGE, "one").unwrap();
        assert_eq!(store.put_marker(STORAGE, "two").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(store.marker(STORAGE).unwrap().as_deref(), Some("one"));
        store.replace_marker(STORAGE, "two").unwrap();
        assert_eq!(store.marker(STORAGE).unwrap().as_deref(), Some("two"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        store.remove_marker(STORAGE).unwrap();
        store.remove_marker(STORAGE).unwrap();
        assert_eq!(store.marker(STORAGE).unwrap(), None);
    }

    #[test]
    fn other_files_are_not_mistaken_for_markers() {
        let dir = tempfile::tempdir().unwrap();
        let (store, path) = (store(dir.path()), dir.path().join(STORAGE));
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert_eq!(store.marker(STORAGE).unwrap_err().kind(), io::ErrorKind::InvalidData);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, vec![b'x'; MAX_BYTES as usize + 1]).unwrap();
        assert_eq!(store.marker(STORAGE).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn users_of_the_store_cannot_change_markers() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        store.put_marker(STORAGE, "one").unwrap();
        std::fs::write(dir.path().join("file"), "x").unwrap();
        let (root, name) = (store.root().unwrap(), STORAGE.as_bytes());
        let codes = [
            root.remove_file(name).unwrap_err().code,
            root.rename(b"file", &*root, name).unwrap_err().code,
            root.rename(name, &*root, b"file").unwrap_err().code,
            root.rename_no_replace(b"file", &*root, name).unwrap_err().code,
            root.hard_link(b"file", &*root, name).unwrap_err().code,
            root.mkdir(name, 0o755).unwrap_err().code,
            root.create_temp(name, true).err().unwrap().code,
        ];
        assert_eq!(codes, [Code::PermissionDenied; 7]);
        assert_eq!(store.marker(STORAGE).unwrap().as_deref(), Some("one"));
    }

    #[test]
    fn directories_are_distinguished() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("a")).unwrap();
        let a = store(&at("a")).fingerprint().unwrap();
        std::fs::rename(at("a"), at("moved")).unwrap();
        std::fs::create_dir(at("a")).unwrap();
        assert_eq!(store(&at("moved")).fingerprint().unwrap(), a);
        assert_ne!(a.matches(&store(&at("moved")).fingerprint().unwrap()), Some(false));
        // If the file system of the tests has birth times.
        if a.born.is_some() {
            assert_eq!(a.matches(&store(&at("a")).fingerprint().unwrap()), Some(false));
        }
        assert!(!store(&at("a")).is_mount_point());
        let other = Fingerprint { file_system: "other".into(), ..a.clone() };
        assert_eq!(a.matches(&other), Some(false));
        // Two disks that were formatted in the same second.
        let [one, two] = [1, 2].map(|id| Fingerprint { id: Some(id), ..a.clone() });
        assert_eq!(one.matches(&two), Some(false));
        assert_eq!(one.matches(&one.clone()), a.matches(&a.clone()));
        // Fingerprints recorded without an id are compared by the rest.
        let older = Fingerprint { id: None, ..a.clone() };
        assert_eq!(one.matches(&older), a.matches(&a.clone()));
        assert_eq!(Fingerprint::default().matches(&Fingerprint::default()), None);
    }

    #[test]
    fn lines_of_mountinfo_are_parsed() {
        let disk = "36 35 98:0 / /data rw,noatime master:1 - ext4 /dev/sdb1 rw";
        let disk = Mounted::parse(disk).unwrap();
        assert_eq!((disk.file_system.as_str(), disk.source), ("ext4", None));
        let far = Mounted::parse("40 35 0:52 /sub /home rw - nfs4 fs:/home rw,vers=4.2").unwrap();
        assert_eq!((far.file_system.as_str(), far.source.as_deref()), ("nfs", Some("fs:/home/sub")));
        let fuse = Mounted::parse("41 35 0:53 / /m rw shared:7 - fuse.sshfs a@b:/c rw").unwrap();
        assert_eq!((fuse.file_system.as_str(), fuse.source.as_deref()), ("fuse", Some("a@b:/c")));
    }
}
