//! The FUSE adapter: dispatches requests of the kernel to calls of [`Mounted`] and makes no decisions.
//!
//! Writes go through the kernel's page cache at once (no `FUSE_WRITEBACK_CACHE`, with which the kernel would never
//! again take a file's size from this mount). The cache is dropped when a file is opened that has another version by
//! then. Locks are granted by the site, or left to the kernel, among the programs of this mount.

use super::Mounted;
use super::attributes::{file_time, now};
use super::errno::FuseError;
use super::inodes::ROOT;
use super::listing::Dirent;
use super::locks::{self, LockRequest};
use super::name_ops::SetAttr;
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyLock, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use renkei_core::lease::locks::Span;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

/// Maximum size of a request.
const MAX_REQUEST_BYTES: u32 = 1 << 20;
/// Maximum of background requests of the kernel, such as read-ahead.
const MAX_BACKGROUND: u16 = 64;
/// The extended attribute of the root that has the last errors.
const ERRORS_ATTRIBUTE: &[u8] = b"user.renkei.error";
/// Plain files may lie on a stacked file system, as in containers (overlayfs).
const STACK_DEPTH: u32 = 2;
/// Unit of the blocks in `statfs`.
const STATFS_BYTES: u32 = 4096;
/// Capabilities that are requested from the kernel; unknown ones are left out.
///
/// `FUSE_EXPLICIT_INVAL_DATA` is not among them: with it the kernel keeps pages of a file when it learns that its
/// size changed, and shows zeros from the end of the shorter version on.
const WANTED: [InitFlags; 7] = [
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_CACHE_SYMLINKS,
    // Without it each write asks whether the file has capabilities; drafts lose set-id bits when they are published.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_ASYNC_DIO,
    // Files opened to append (direct I/O) can still be mapped.
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
];

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The FUSE file system of a mounted tree.
pub(super) struct FuseAdapter {
    pub(super) mounted: Arc<Mounted>,
    pub(super) is_read_only: bool,
    /// Whether the site grants locks.
    pub(super) locks_at_site: bool,
    /// Whether the process ends with the mount.
    pub(super) ends_process: Arc<AtomicBool>,
}

impl FuseAdapter {
    /// The errno for an error; unexpected ones go to the error log.
    fn number(&self, refusal: &FuseError) -> Errno {
        self.mounted.number(refusal)
    }

    /// The errno for a file that was looked up before: if it is gone, ESTALE makes the kernel repeat the lookup of
    /// its name, which may have been created again or be another file.
    fn number_of_known(&self, refusal: &FuseError) -> Errno {
        if refusal.number == libc::ENOENT { Errno::ESTALE } else { self.number(refusal) }
    }

    fn empty(&self, outcome: Result<(), FuseError>, reply: ReplyEmpty) {
        match outcome {
            Ok(()) => reply.ok(),
            Err(refusal) => reply.error(self.number(&refusal)),
        }
    }

    fn entry(&self, outcome: Result<(u64, super::InodeAttr), FuseError>, reply: ReplyEntry) {
        match outcome {
            Ok((id, known)) => {
                reply.entry(&self.mounted.ttl_of_name(id), &known.attributes(id), Generation(0))
            }
            Err(refusal) => reply.error(self.number(&refusal)),
        }
    }

    /// Replies with a created entry.
    fn made(&self, outcome: Result<(u64, super::InodeAttr), FuseError>, reply: ReplyEntry) {
        match outcome {
            Ok((id, known)) => {
                reply.entry(&self.mounted.ttl_of_change(id), &known.attributes(id), Generation(0))
            }
            Err(refusal) => reply.error(self.number(&refusal)),
        }
    }

    fn attributes(&self, id: INodeNo, outcome: Result<super::InodeAttr, FuseError>, reply: ReplyAttr) {
        match outcome {
            Ok(known) => {
                let number = self.mounted.table().shown_number(id.0);
                reply.attr(&self.mounted.ttl(id.0), &known.attributes(number));
            }
            Err(refusal) => reply.error(self.number_of_known(&refusal)),
        }
    }

    fn opened(&self, outcome: Result<(u64, FopenFlags), FuseError>, reply: ReplyOpen) {
        match outcome {
            Ok((fh, flags)) => reply.opened(FileHandle(fh), flags),
            Err(refusal) => reply.error(self.number_of_known(&refusal)),
        }
    }

    fn fill(&self, reply: &mut ReplyDirectoryPlus, next: u64, line: &Dirent) -> bool {
        let attributes = line.known.attributes(line.id);
        reply.add(
            attributes.ino,
            next,
            OsStr::from_bytes(&line.name),
            &self.mounted.ttl_of_name(line.id),
            &attributes,
            Generation(0),
        )
    }
}

#[allow(clippy::too_many_arguments, reason = "the kernel's interface")]
impl Filesystem for FuseAdapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wanted in WANTED {
            if config.add_capabilities(wanted).is_err() {
                tracing::debug!(?wanted, "not known to this kernel");
            }
        }
        let passes = self.is_read_only
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(STACK_DEPTH).is_ok();
        self.mounted.passes.store(passes, Ordering::Relaxed);
        if self.locks_at_site {
            let locks = InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS;
            let _ = config.add_capabilities(locks);
        }
        // Both are below the bounds that the calls check.
        let _ = config.set_max_write(MAX_REQUEST_BYTES);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn destroy(&mut self) {
        self.mounted.publish_all();
        if self.ends_process.load(Ordering::Acquire) {
            self.mounted.files.end();
            // fuser 0.18 unmounts the mount point next, which may have another mount by now.
            std::process::exit(0);
        }
    }

    // ---- names -------------------------------------------------------------------------------------------------------

    fn lookup(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(self.mounted.lookup(dir.0, name.as_bytes()), reply);
    }

    fn forget(&self, _: &Request, id: INodeNo, times: u64) {
        self.mounted.table().forget(id.0, times);
    }

    fn mknod(
        &self,
        _: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        if mode & libc::S_IFMT != libc::S_IFREG {
            self.mounted.negative_cache().forget();
            return reply.error(Errno::EPERM);
        }
        self.made(self.mounted.make_file(dir.0, name.as_bytes(), mode), reply);
    }

    fn mkdir(&self, _: &Request, dir: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        self.made(self.mounted.make_dir(dir.0, name.as_bytes(), mode), reply);
    }

    fn symlink(&self, _: &Request, dir: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        self.made(self.mounted.make_symlink(dir.0, name.as_bytes(), target.as_os_str().as_bytes()), reply);
    }

    fn link(&self, _: &Request, id: INodeNo, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.made(self.mounted.link(id.0, dir.0, name.as_bytes()), reply);
    }

    fn unlink(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(self.mounted.remove(dir.0, name.as_bytes()), reply);
    }

    fn rmdir(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(self.mounted.remove_dir(dir.0, name.as_bytes()), reply);
    }

    fn rename(
        &self,
        _: &Request,
        from: INodeNo,
        name: &OsStr,
        to: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if flags.intersects(!RenameFlags::RENAME_NOREPLACE) {
            return reply.error(Errno::EINVAL);
        }
        let replace = !flags.contains(RenameFlags::RENAME_NOREPLACE);
        let outcome = self.mounted.rename((from.0, name.as_bytes()), (to.0, new_name.as_bytes()), replace);
        self.empty(outcome, reply);
    }

    fn readlink(&self, _: &Request, id: INodeNo, reply: ReplyData) {
        match self.mounted.read_link(id.0) {
            Ok(target) => reply.data(&target),
            Err(refusal) => reply.error(self.number_of_known(&refusal)),
        }
    }

    // ---- attributes --------------------------------------------------------------------------------------------------

    fn getattr(&self, _: &Request, id: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.attributes(id, self.mounted.look_at(id.0), reply);
    }

    fn setattr(
        &self,
        _: &Request,
        id: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mtime = mtime.map(|mtime| match mtime {
            TimeOrNow::SpecificTime(time) => file_time(time),
            TimeOrNow::Now => now(),
        });
        // Truncating a file sets its time by itself.
        let mtime = mtime.filter(|_| size.is_none());
        let wanted = SetAttr { mode, uid, gid, size, mtime };
        match self.mounted.alter(id.0, wanted, fh.map(|fh| fh.0)) {
            Ok(known) => {
                let number = self.mounted.table().shown_number(id.0);
                reply.attr(&self.mounted.ttl_of_attributes(id.0), &known.attributes(number));
            }
            Err(refusal) => reply.error(self.number(&refusal)),
        }
    }

    fn getxattr(&self, _: &Request, id: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if id.0 != ROOT || name.as_bytes() != ERRORS_ATTRIBUTE {
            return reply.error(Errno::EOPNOTSUPP);
        }
        self.mounted.is_reached();
        let text = self.mounted.error_log.text();
        match size {
            0 => reply.size(u32::try_from(text.len()).unwrap_or(u32::MAX)),
            size if (size as usize) < text.len() => reply.error(Errno::ERANGE),
            _ => reply.data(text.as_bytes()),
        }
    }

    fn statfs(&self, _: &Request, id: INodeNo, reply: ReplyStatfs) {
        match self.mounted.space(id.0) {
            Ok(space) => {
                let blocks = |bytes: u64| bytes / u64::from(STATFS_BYTES);
                let available = blocks(space.available_bytes);
                let (files, free) = (space.total_files, space.free_files);
                reply.statfs(
                    blocks(space.total_bytes),
                    available,
                    available,
                    files,
                    free,
                    STATFS_BYTES,
                    255,
                    STATFS_BYTES,
                );
            }
            Err(error) => reply.error(self.number(&error.into())),
        }
    }

    // ---- content -----------------------------------------------------------------------------------------------------

    fn open(&self, request: &Request, id: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opened = self.mounted.open_by(request.pid(), id.0, flags);
        let passed = opened
            .as_ref()
            .ok()
            .and_then(|(fh, _)| self.mounted.pass(*fh, |plain| reply.open_backing(plain)));
        match (opened, passed) {
            (Ok((fh, _)), Some(backing)) => {
                reply.opened_passthrough(FileHandle(fh), FopenFlags::empty(), &backing);
            }
            (opened, _) => self.opened(opened, reply),
        }
    }

    fn create(
        &self,
        _: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.mounted.create(dir.0, name.as_bytes(), mode, flags) {
            Ok((id, known, fh, kept)) => {
                reply.created(
                    &self.mounted.ttl_of_change(id),
                    &known.attributes(id),
                    Generation(0),
                    FileHandle(fh),
                    kept,
                );
            }
            Err(refusal) => reply.error(self.number(&refusal)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _id: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            let size = size.min(MAX_REQUEST_BYTES) as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            match self.mounted.read(fh.0, offset, &mut buffer[..size]) {
                Ok(count) => reply.data(&buffer[..count]),
                Err(refusal) => reply.error(self.number(&refusal)),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _id: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        match self.mounted.write(fh.0, offset, data, from_cache) {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(refusal) => reply.error(self.number(&refusal)),
        }
    }

    fn flush(&self, _: &Request, id: INodeNo, fh: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        // With `--close early`, `release` publishes, and no program waits for it.
        let outcome = if self.mounted.closes_early { Ok(()) } else { self.mounted.flush(fh.0) };
        // The next holder of the lock must find the data that was written.
        self.mounted.unlock_all(id.0, owner.0);
        self.empty(outcome, reply);
    }

    fn getlk(
        &self,
        request: &Request,
        id: INodeNo,
        _fh: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let span = Span { start, end, hold: locks::hold(kind), pid };
        let asked = LockRequest { id: id.0, owner: owner.0, span, thread: request.pid() };
        match self.mounted.find_lock(&asked) {
            Ok(None) => reply.locked(start, end, libc::F_UNLCK, 0),
            // Processes of other machines have no pid here.
            Ok(Some(found)) => reply.locked(found.start, found.end, locks::kind(found.hold), 0),
            Err(refusal) => reply.error(self.number(&refusal)),
        }
    }

    fn setlk(
        &self,
        request: &Request,
        id: INodeNo,
        _fh: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        waits: bool,
        reply: ReplyEmpty,
    ) {
        let span = Span { start, end, hold: locks::hold(kind), pid };
        let asked = LockRequest { id: id.0, owner: owner.0, span, thread: request.pid() };
        match waits {
            true => self.mounted.lock_in_time(asked, reply),
            false => self.empty(self.mounted.lock(&asked), reply),
        }
    }

    fn fsync(&self, _: &Request, _id: INodeNo, fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.empty(self.mounted.flush(fh.0), reply);
    }

    fn release(
        &self,
        _: &Request,
        id: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(owner) = owner {
            self.mounted.unlock_all(id.0, owner.0);
        }
        self.mounted.release(fh.0);
        reply.ok();
    }

    fn fallocate(
        &self,
        _: &Request,
        _id: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode != 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        self.empty(self.mounted.extend(fh.0, offset.saturating_add(length)), reply);
    }

    // ---- directories -------------------------------------------------------------------------------------------------

    fn opendir(&self, _: &Request, id: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.opened(self.mounted.open_dir(id.0).map(|fh| (fh, FopenFlags::empty())), reply);
    }

    fn readdirplus(
        &self,
        _: &Request,
        _id: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        match self.mounted.list(fh.0, offset, |next, line| self.fill(&mut reply, next, line)) {
            Ok(()) => reply.ok(),
            Err(refusal) => reply.error(self.number(&refusal)),
        }
    }

    fn releasedir(&self, _: &Request, _id: INodeNo, fh: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.mounted.close_dir(fh.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _id: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        // Names are durable when the call that made them returned.
        reply.ok();
    }
}
