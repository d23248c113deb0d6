//! The local file system (or a mounted parallel one) as a store.
//!
//! The root is opened once and held, so a storage that is unmounted or replaced underneath is never mistaken for the
//! original one. Directories are O_PATH handles: they need no read permission, only files and listings do. Every path
//! is resolved by the rules of `jail`; a single name is checked to be one, and never followed. Needs Linux 5.8
//! (openat2, empty paths in utimensat) and /proc.

use super::errno::{self, Step};
use super::file::{LocalFile, retry};
use super::group_sync;
use super::jail::{HANDLE, open_beneath, open_deep, open_name};
use super::listing::{self, Entries};
use super::marker::{self, is_marker};
use super::metadata::{self, Handle};
use super::temp::is_temp_name;
use super::{Detail, Dir, DirVersion, Listing, MAX_LINEAGE, Raw, ReadFile, Space, Store, WriteFile};
use super::{privileges, setuid_files};
use renkei_core::entry::{Entry, Meta};
use renkei_core::error::{Code, Error};
use renkei_core::path::{RelPath, printable};
use renkei_core::wire::message::Algorithm;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, StatxFlags};
use rustix::io::{self, Errno};
use std::any::Any;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Most retries of a call on a name that changes concurrently.
const MAX_RACES: usize = 16;

/// Mode bits that the owner of a directory needs to list, enter and change it.
const OWNER_ALL: u32 = 0o700;

/// Permitted operations of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// All.
    ReadWrite,
    /// Only those that change nothing.
    ReadOnly,
}

/// A directory tree of the local system.
pub struct LocalStore {
    root: Arc<LocalDir>,
}

impl LocalStore {
    /// Opens the tree below `path`, itself resolved without restriction.
    ///
    /// # Errors
    /// `StorageMissing` if there is nothing at `path`, `Unsupported` on a system that cannot keep the jail.
    pub fn open(path: &Path, access: AccessMode) -> Result<Self, Error> {
        let shown = printable(path.as_os_str().as_bytes());
        let fail = |errno| errno::error(errno, Step::Resolve, "open storage", &shown);
        let fd = rustix::fs::open(path, HANDLE | OFlags::CLOEXEC, Mode::empty()).map_err(|errno| {
            let mut error = fail(errno);
            if error.code == Code::PathNotFound {
                error.code = Code::StorageMissing;
            }
            error
        })?;
        check_system(&fd).map_err(|why| Error::new(Code::Unsupported, "open storage", &shown, why))?;
        let stat = rustix::fs::fstat(&fd).map_err(fail)?;
        let checksums = Arc::default();
        let root = LocalDir { fd, path: RelPath::root(), device: stat.st_dev, access, checksums };
        Ok(LocalStore { root: Arc::new(root) })
    }

    /// The same tree, in which new content is remembered with these checksums.
    pub fn with_checksums(self, algorithms: &[Algorithm]) -> Self {
        match Arc::try_unwrap(self.root) {
            Ok(root) => LocalStore { root: Arc::new(LocalDir { checksums: algorithms.into(), ..root }) },
            Err(root) => LocalStore { root },
        }
    }

    /// The tree below one of its directories as a store of its own, which remembers no checksums; no link is followed
    /// on the way there.
    ///
    /// # Errors
    /// `PathNotFound`, `NotADirectory`.
    pub fn below(&self, path: &RelPath) -> Result<Self, Error> {
        let fail = |errno| errno::error(errno, Step::Resolve, "open storage", path);
        let fd = open_deep(self.root.fd.as_fd(), path, ResolveFlags::NO_SYMLINKS).map_err(fail)?;
        let device = rustix::fs::fstat(&fd).map_err(fail)?.st_dev;
        let (path, access, checksums) = (RelPath::root(), self.root.access, Arc::default());
        let root = LocalDir { fd, path, device, access, checksums };
        Ok(LocalStore { root: Arc::new(root) })
    }

    /// The handle of the root.
    pub(super) fn root_fd(&self) -> BorrowedFd<'_> {
        self.root.fd.as_fd()
    }
}

/// Checks the kernel features that the store depends on.
fn check_system(root: &OwnedFd) -> Result<(), String> {
    open_beneath(root.as_fd(), b".", HANDLE, ResolveFlags::empty()).map_err(|errno| match errno {
        Errno::NOSYS => "this kernel has no openat2; Linux 5.8 or later is needed".into(),
        Errno::PERM => "openat2 is forbidden here (an old container runtime's system call filter?)".into(),
        errno => format!("openat2: {}", std::io::Error::from(errno)),
    })?;
    rustix::fs::statat(CWD, metadata::proc_path(root.as_fd(), b""), AtFlags::empty())
        .map(|_| ())
        .map_err(|errno| format!("/proc/self/fd: {}", std::io::Error::from(errno)))
}

impl Store for LocalStore {
    fn root(&self) -> Result<Arc<dyn Dir>, Error> {
        Ok(self.root.clone())
    }

    fn dir(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        if path.is_root() { self.root() } else { self.root.open_dir(path, ResolveFlags::empty()) }
    }

    fn space(&self, path: &RelPath) -> Result<Space, Error> {
        let fail = |errno| errno::error(errno, Step::Resolve, "space", path);
        let fd = open_deep(self.root.fd.as_fd(), path, ResolveFlags::empty()).map_err(fail)?;
        let stat = rustix::fs::fstatvfs(&fd).map_err(fail)?;
        Ok(Space {
            total_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
            available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            total_files: stat.f_files,
            free_files: stat.f_ffree,
        })
    }
}

/// One open directory of the local system.
struct LocalDir {
    fd: OwnedFd,
    path: RelPath,
    device: u64,
    access: AccessMode,
    /// The checksums that new content is remembered with.
    checksums: Arc<[Algorithm]>,
}

impl LocalDir {
    #[cold]
    fn fail(&self, errno: Errno, step: Step, op: &str, name: &[u8]) -> Error {
        errno::error(errno, step, op, errno::subject(&self.path, name))
    }

    /// An error as [`LocalDir::fail`], made only if the call failed.
    fn done<T>(&self, result: io::Result<T>, step: Step, op: &str, name: &[u8]) -> Result<T, Error> {
        result.map_err(|errno| self.fail(errno, step, op, name))
    }

    /// Accepts only single names, which cannot lead out of this directory.
    fn check_name(&self, op: &str, name: &[u8]) -> Result<(), Error> {
        let is_name = !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0);
        if is_name {
            return Ok(());
        }
        Err(Error::new(Code::BadPath, op, errno::subject(&self.path, name), "not a single name"))
    }

    /// [`LocalDir::check_name`], and refuses read-only stores and markers.
    fn check_change(&self, op: &str, name: &[u8]) -> Result<(), Error> {
        self.check_writable(op, name)?;
        if is_marker(name) {
            return Err(marker::refused(op, errno::subject(&self.path, name)));
        }
        self.check_name(op, name)
    }

    /// Keeps a thread that works for others from moving files that confer privileges to where more users might reach
    /// them.
    fn check_privileged(&self, op: &str, name: &[u8], to: &LocalDir) -> Result<(), Error> {
        if !privileges::is_lent() || is_temp_name(name) {
            return Ok(());
        }
        let Ok(stat) = self.stat(name) else { return Ok(()) };
        let is_same = (self.device, self.ino().ok()) == (to.device, to.ino().ok());
        match setuid_files::refuses_name(self.fd.as_fd(), name, &stat, !is_same) {
            None => Ok(()),
            Some(why) => {
                let why = format!("{why} move it");
                Err(Error::new(Code::PermissionDenied, op, errno::subject(&self.path, name), why))
            }
        }
    }

    fn ino(&self) -> io::Result<u64> {
        rustix::fs::fstat(&self.fd).map(|stat| stat.st_ino)
    }

    fn check_writable(&self, op: &str, name: &[u8]) -> Result<(), Error> {
        if self.access == AccessMode::ReadWrite {
            return Ok(());
        }
        let why = "it was added to the PoP as read-only";
        Err(Error::new(Code::ReadOnlyStorage, op, errno::subject(&self.path, name), why))
    }

    /// The other directory of a rename or link, if it is of this type and may be changed.
    fn peer<'a>(&self, op: &str, dir: &'a dyn Dir, name: &[u8]) -> Result<&'a LocalDir, Error> {
        let Some(peer) = dir.as_any().downcast_ref::<LocalDir>() else {
            let why = "the two directories are not of one store";
            return Err(Error::new(Code::CrossDevice, op, errno::subject(dir.path(), name), why));
        };
        peer.check_change(op, name)?;
        Ok(peer)
    }

    fn open_dir(&self, path: &RelPath, extra: ResolveFlags) -> Result<Arc<dyn Dir>, Error> {
        let whole = self.path.join(path)?;
        let fd = open_deep(self.fd.as_fd(), path, extra);
        self.adopt(self.done(fd, Step::Resolve, "open directory", path.as_bytes())?, whole)
    }

    fn adopt(&self, fd: OwnedFd, path: RelPath) -> Result<Arc<dyn Dir>, Error> {
        let stat = rustix::fs::fstat(&fd)
            .map_err(|errno| errno::error(errno, Step::Resolve, "open directory", &path))?;
        let (device, checksums) = (stat.st_dev, self.checksums.clone());
        Ok(Arc::new(LocalDir { fd, path, device, access: self.access, checksums }))
    }

    /// Opens this directory itself for reading.
    fn reopen(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        open_beneath(self.fd.as_fd(), b".", flags, ResolveFlags::empty())
    }

    fn stat(&self, name: &[u8]) -> io::Result<Stat> {
        rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// stat and readlink of the same inode.
    fn stat_and_target(&self, name: &[u8]) -> io::Result<(Stat, Vec<u8>)> {
        for _ in 0..MAX_RACES {
            let stat = self.stat(name)?;
            if metadata::file_type(&stat) != FileType::Symlink {
                return Ok((stat, Vec::new()));
            }
            match rustix::fs::readlinkat(&self.fd, name, Vec::new()) {
                Ok(target) => return Ok((stat, target.into_bytes())),
                // Not a link any more.
                Err(Errno::INVAL) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::BUSY)
    }

    /// Opens for reading, without touching atime where that is allowed.
    fn open_quietly(&self, name: &[u8]) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        match open_name(self.fd.as_fd(), name, flags | OFlags::NOATIME) {
            // Only a file's owner may set O_NOATIME.
            Err(Errno::PERM) => open_name(self.fd.as_fd(), name, flags),
            done => done,
        }
    }

    /// Opens an existing temporary file, if it is safe to continue writing to it.
    fn open_own(&self, name: &[u8]) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY;
        let handle = open_name(self.fd.as_fd(), name, OFlags::PATH)?;
        let stat = rustix::fs::fstat(&handle)?;
        if !is_own(&stat) {
            return Ok(None);
        }
        if stat.st_mode & 0o7777 != 0o600 {
            let path = metadata::proc_path(handle.as_fd(), b"");
            rustix::fs::chmodat(CWD, path, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        }
        let fd = open_name(self.fd.as_fd(), name, flags)?;
        Ok(is_own(&rustix::fs::fstat(&fd)?).then_some(fd))
    }

    fn open_temp(&self, name: &[u8], keep_existing: bool) -> io::Result<OwnedFd> {
        let new = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        for _ in 0..MAX_RACES {
            match open_name(self.fd.as_fd(), name, new) {
                Err(Errno::EXIST) => {}
                done => return done,
            }
            match self.open_own(name) {
                Ok(Some(fd)) if keep_existing => return Ok(fd),
                Ok(Some(fd)) => return rustix::fs::ftruncate(&fd, 0).map(|()| fd),
                Err(Errno::NOENT) => {}
                Ok(None) | Err(Errno::LOOP | Errno::NXIO | Errno::ACCESS | Errno::PERM | Errno::ISDIR) => {
                    self.unlink_if_there(name)?;
                }
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::EXIST)
    }

    fn unlink_if_there(&self, name: &[u8]) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            done => done,
        }
    }

    fn move_no_replace(&self, from: &[u8], to_dir: &LocalDir, to: &[u8]) -> io::Result<()> {
        let (here, there) = (&self.fd, &to_dir.fd);
        match rustix::fs::renameat_with(here, from, there, to, RenameFlags::NOREPLACE) {
            // The file system does not know the flag (NFS): the same in two steps.
            Err(Errno::INVAL | Errno::NOSYS) => self.move_in_two_steps(from, to_dir, to),
            done => done,
        }
    }

    /// Renames without replacing by link and unlink; a directory is renamed over an empty one created for it.
    fn move_in_two_steps(&self, from: &[u8], to_dir: &LocalDir, to: &[u8]) -> io::Result<()> {
        let (here, there) = (&self.fd, &to_dir.fd);
        if metadata::file_type(&self.stat(from)?) != FileType::Directory {
            rustix::fs::linkat(here, from, there, to, AtFlags::empty())?;
            return rustix::fs::unlinkat(here, from, AtFlags::empty());
        }
        rustix::fs::mkdirat(there, to, Mode::RWXU)?;
        rustix::fs::renameat(here, from, there, to).inspect_err(|_| {
            // The empty directory was created here; if it cannot be removed, the first error is the one that matters.
            let _ = rustix::fs::unlinkat(there, to, AtFlags::REMOVEDIR);
        })
    }

    fn sync_alone(&self) -> Result<(), Error> {
        let Some(fd) = self.open_for_sync()? else {
            rustix::fs::sync();
            return Ok(());
        };
        match retry(|| rustix::fs::fsync(&fd)) {
            // Some file systems keep names durable by themselves and refuse to sync directories.
            Ok(()) | Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(self.fail(errno, Step::Data, "sync", b"")),
        }
    }

    /// Opens for syncing; `None` if the directory may be written to but not read.
    fn open_for_sync(&self) -> Result<Option<OwnedFd>, Error> {
        match self.reopen() {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::ACCESS) => Ok(None),
            Err(errno) => Err(self.fail(errno, Step::Resolve, "sync", b"")),
        }
    }
}

/// Whether a temporary file is private: regular, one name, owned by this account.
fn is_own(stat: &Stat) -> bool {
    metadata::file_type(stat) == FileType::RegularFile
        && stat.st_nlink == 1
        && stat.st_uid == metadata::file_uid()
}

impl Dir for LocalDir {
    fn path(&self) -> &RelPath {
        &self.path
    }

    fn device(&self) -> u64 {
        self.device
    }

    fn checksums(&self) -> &[Algorithm] {
        &self.checksums
    }

    fn lineage(&self) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let mut above = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0);
        while let Ok(dir) = above {
            let Ok(stat) = rustix::fs::fstat(&dir) else { break };
            // The root directory is its own parent.
            if found.last() == Some(&(stat.st_dev, stat.st_ino)) || found.len() == MAX_LINEAGE {
                break;
            }
            found.push((stat.st_dev, stat.st_ino));
            above = rustix::fs::openat(&dir, "..", HANDLE | OFlags::CLOEXEC, Mode::empty());
        }
        found
    }

    fn child(&self, name: &[u8]) -> Result<Arc<dyn Dir>, Error> {
        self.check_name("open directory", name)?;
        let path = self.path.child(name)?;
        let fd = open_name(self.fd.as_fd(), name, HANDLE);
        self.adopt(self.done(fd, Step::Resolve, "open directory", name)?, path)
    }

    fn descend(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        self.open_dir(path, ResolveFlags::NO_SYMLINKS)
    }

    fn list(&self) -> Result<Listing, Error> {
        let fd = self.done(self.reopen(), Step::Resolve, "list", b"")?;
        Ok(Box::new(Entries::new(fd, errno::subject(&self.path, b""))))
    }

    fn version(&self) -> Option<DirVersion> {
        listing::version(self.fd.as_fd())
    }

    fn entry(&self, name: &[u8], detail: Detail) -> Result<(Entry, Raw), Error> {
        self.check_name("stat", name)?;
        let path = self.path.child(name)?;
        let (stat, target) = self.done(self.stat_and_target(name), Step::Meta, "stat", name)?;
        let mut found = metadata::entry_of(&stat, path, target);
        let added = metadata::add_detail(&mut found, detail, self.fd.as_fd(), name);
        self.done(added, Step::Meta, "read attributes", name)?;
        Ok(found)
    }

    fn self_entry(&self, detail: Detail) -> Result<(Entry, Raw), Error> {
        let stat = self.done(rustix::fs::fstat(&self.fd), Step::Meta, "stat", b"")?;
        let mut found = metadata::entry_of(&stat, self.path.clone(), Vec::new());
        let added = metadata::add_detail(&mut found, detail, self.fd.as_fd(), b"");
        self.done(added, Step::Meta, "read attributes", b"")?;
        Ok(found)
    }

    fn open_read(&self, name: &[u8]) -> Result<Box<dyn ReadFile>, Error> {
        self.check_name("open", name)?;
        let fd = self.done(self.open_quietly(name), Step::Open, "open", name)?;
        let stat = self.done(rustix::fs::fstat(&fd), Step::Open, "open", name)?;
        let subject = errno::subject(&self.path, name);
        match metadata::file_type(&stat) {
            FileType::RegularFile => Ok(Box::new(LocalFile { fd, subject })),
            FileType::Directory => Err(errno::error(Errno::ISDIR, Step::Open, "open", subject)),
            _ => Err(Error::new(Code::SpecialFile, "open", subject, "only regular files are read")),
        }
    }

    fn create_temp(&self, name: &[u8], keep_existing: bool) -> Result<Box<dyn WriteFile>, Error> {
        self.check_change("create", name)?;
        let fd = self.done(self.open_temp(name, keep_existing), Step::Open, "create", name)?;
        Ok(Box::new(LocalFile { fd, subject: errno::subject(&self.path, name) }))
    }

    fn open_direct(&self, name: &[u8]) -> Option<Box<dyn WriteFile>> {
        self.check_change("open", name).ok()?;
        let fd = open_name(self.fd.as_fd(), name, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::DIRECT).ok()?;
        let own = rustix::fs::fstat(&fd).is_ok_and(|stat| is_own(&stat));
        own.then(|| {
            Box::new(LocalFile { fd, subject: errno::subject(&self.path, name) }) as Box<dyn WriteFile>
        })
    }

    fn rename(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        self.check_change("rename", from)?;
        let peer = self.peer("rename", to_dir, to)?;
        self.check_privileged("rename", from, peer)?;
        let renamed = rustix::fs::renameat(&self.fd, from, &peer.fd, to);
        self.done(renamed, Step::Name, "rename", from)
    }

    fn rename_no_replace(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        self.check_change("rename", from)?;
        let peer = self.peer("rename", to_dir, to)?;
        self.check_privileged("rename", from, peer)?;
        self.move_no_replace(from, peer, to).map_err(|errno| match errno {
            Errno::EXIST => peer.fail(errno, Step::Name, "rename", to),
            errno => self.fail(errno, Step::Name, "rename", from),
        })
    }

    fn mkdir(&self, name: &[u8], mode: u32) -> Result<(), Error> {
        self.check_change("mkdir", name)?;
        let made = rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(mode & 0o7777));
        self.done(made, Step::Name, "mkdir", name)
    }

    fn symlink(&self, target: &[u8], name: &[u8]) -> Result<(), Error> {
        self.check_change("symlink", name)?;
        self.done(rustix::fs::symlinkat(target, &self.fd, name), Step::Link, "symlink", name)
    }

    fn hard_link(&self, name: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        self.check_change("link", name)?;
        let peer = self.peer("link", to_dir, to)?;
        self.check_privileged("link", name, peer)?;
        let linked = rustix::fs::linkat(&self.fd, name, &peer.fd, to, AtFlags::empty());
        linked.map_err(|errno| match errno {
            Errno::EXIST => peer.fail(errno, Step::Link, "link", to),
            errno => self.fail(errno, Step::Link, "link", name),
        })
    }

    fn remove_file(&self, name: &[u8]) -> Result<(), Error> {
        self.check_change("remove", name)?;
        let removed = rustix::fs::unlinkat(&self.fd, name, AtFlags::empty());
        self.done(removed, Step::Name, "remove", name)
    }

    fn remove_dir(&self, name: &[u8]) -> Result<(), Error> {
        self.check_change("remove", name)?;
        let removed = rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR);
        self.done(removed, Step::Name, "remove", name)
    }

    fn set_meta(&self, name: &[u8], meta: &Meta) -> Result<Vec<Error>, Error> {
        self.check_change("set metadata", name)?;
        let handle = open_name(self.fd.as_fd(), name, OFlags::PATH);
        let handle = self.done(handle, Step::Meta, "set metadata", name)?;
        metadata::apply(Handle::Path(handle.as_fd()), meta, &errno::subject(&self.path, name))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    /// The time of birth in ns.
    fn generation(&self, name: &[u8]) -> Result<u64, Error> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
        let stat = rustix::fs::statx(&self.fd, name, flags, StatxFlags::BTIME);
        let born = self.done(stat, Step::Meta, "stat", name)?.stx_btime;
        Ok(born.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(born.tv_nsec.into()))
    }

    fn set_xattr(&self, name: &[u8], xattr: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        const OP: &str = "set attribute";
        let subject = errno::subject(&self.path, name);
        if name.is_empty() {
            self.check_writable(OP, name)?;
            return metadata::set_attribute(Handle::Path(self.fd.as_fd()), xattr, value, &subject);
        }
        self.check_change(OP, name)?;
        let handle = self.done(open_name(self.fd.as_fd(), name, OFlags::PATH), Step::Meta, OP, name)?;
        metadata::set_attribute(Handle::Path(handle.as_fd()), xattr, value, &subject)
    }

    fn set_own_meta(&self, meta: &Meta) -> Result<Vec<Error>, Error> {
        self.check_writable("set metadata", b"")?;
        metadata::apply(Handle::Path(self.fd.as_fd()), meta, &errno::subject(&self.path, b""))
    }

    fn is_locked(&self) -> Result<bool, Error> {
        let stat = self.done(rustix::fs::fstat(&self.fd), Step::Meta, "stat", b"")?;
        let uid = metadata::file_uid();
        // Modes do not restrict root.
        Ok(stat.st_mode & OWNER_ALL != OWNER_ALL && stat.st_uid == uid && uid != 0)
    }

    fn unlock(&self) -> Result<(), Error> {
        self.check_writable("unlock", b"")?;
        let stat = self.done(rustix::fs::fstat(&self.fd), Step::Meta, "stat", b"")?;
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777 | OWNER_ALL);
        let path = metadata::proc_path(self.fd.as_fd(), b"");
        let unlocked = rustix::fs::chmodat(CWD, path, mode, AtFlags::empty());
        self.done(unlocked, Step::Meta, "unlock", b"")
    }

    fn sync_file(&self, name: &[u8]) -> Result<(), Error> {
        self.check_name("sync", name)?;
        match self.open_quietly(name) {
            Ok(fd) => self.done(retry(|| rustix::fs::fsync(&fd)), Step::Data, "sync", name),
            // The mode may keep even the owner from opening it.
            Err(Errno::ACCESS) => self.sync_fs(),
            Err(errno) => self.done(Err(errno), Step::Open, "sync", name),
        }
    }

    fn sync(&self) -> Result<(), Error> {
        let ino = self.done(self.ino(), Step::Meta, "sync", b"")?;
        group_sync::shared((self.device, ino), || self.sync_alone())
    }

    fn sync_fs(&self) -> Result<(), Error> {
        let Some(fd) = self.open_for_sync()? else {
            rustix::fs::sync();
            return Ok(());
        };
        self.done(retry(|| rustix::fs::syncfs(&fd)), Step::Data, "sync", b"")
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(at: &Path) -> Arc<LocalDir> {
        LocalStore::open(at, AccessMode::ReadWrite).unwrap().root
    }

    #[test]
    fn renaming_in_two_steps_replaces_nothing() {
        let keep = tempfile::tempdir().unwrap();
        let at = |name: &str| keep.path().join(name);
        let root = dir(keep.path());
        std::fs::write(at("file"), "file").unwrap();
        std::fs::create_dir_all(at("dir/sub")).unwrap();
        for from in [&b"file"[..], b"dir"] {
            for taken in [&b"file"[..], b"dir"] {
                assert_eq!(root.move_in_two_steps(from, &root, taken), Err(Errno::EXIST));
            }
        }
        root.move_in_two_steps(b"file", &root, b"file2").unwrap();
        root.move_in_two_steps(b"dir", &root, b"dir2").unwrap();
        assert_eq!(std::fs::read(at("file2")).unwrap(), b"file");
        assert!(at("dir2/sub").exists() && !at("file").exists() && !at("dir").exists());
    }

    #[test]
    fn stores_with_different_roots_do_not_mix_kinds() {
        let keep = tempfile::tempdir().unwrap();
        let root = dir(keep.path());
        let read_only = LocalStore::open(keep.path(), AccessMode::ReadOnly).unwrap().root;
        root.mkdir(b"d", 0o700).unwrap();
        let into = root.rename(b"d", &*read_only, b"e").unwrap_err();
        assert_eq!(into.code, Code::ReadOnlyStorage);
        let wrapped =
            crate::fault::FaultStore::new(LocalStore::open(keep.path(), AccessMode::ReadWrite).unwrap());
        let foreign = root.rename(b"d", &*wrapped.root().unwrap(), b"e").unwrap_err();
        assert_eq!(foreign.code, Code::CrossDevice);
    }
}
