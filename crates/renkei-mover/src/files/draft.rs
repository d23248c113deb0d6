//! A draft: a new version of a file, written next to it under a temporary name, and renamed when it is published.
//!
//! The current content is copied at the first write, not before. A published draft is the file itself; a later write
//! begins the next version. A draft that is dropped leaves nothing.

use renkei_core::entry::{Entry, EntryKind, FileTime, Meta, Stamp, Xattr};
use renkei_core::error::{Code, Error};
use renkei_core::path::{RelPath, printable};
use renkei_core::wire::file::Precondition;
use renkei_store::checksum::{Checksums, InOrder, READ_BACK_BYTES};
use renkei_store::metadata::SET_ID;
use renkei_store::{DIRECT_ALIGN, Detail, Dir, ReadFile, Replaced, WriteFile, privileges};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Bytes copied at once where the file system has no copy of its own.
const COPY_BYTES: usize = 1 << 20;
/// Runs of zeros of this length are not copied, and become holes.
const HOLE_BYTES: usize = 64 << 10;
/// Offset from which written data is flushed at once (writeback), so that publishing a large file does not wait for
/// all of it.
const WRITEBACK_FROM: u64 = 16 << 20;
/// Length from which an aligned block behind [`WRITEBACK_FROM`] is written past the page cache, as those of transfers are
/// (docs/design/0003-direct-writes.md): the copy into it is the largest cost of writing. Shorter ones would wait for the disk too often.
const DIRECT_BYTES: usize = 256 << 10;

/// Held while a draft is published on condition of the version before: of two such writers one comes first. Writers
/// without a condition are not held up.
static CONDITIONAL: Mutex<()> = Mutex::new(());

/// A draft.
pub(crate) struct Draft {
    temp: Vec<u8>,
    /// Permission bits if the file is new.
    mode: u32,
    target: Mutex<Target>,
    body: RwLock<Body>,
    /// Stamp of the version it is derived from; none if unknown.
    seen: Mutex<Option<Stamp>>,
    /// The plain file of that version: as long as it is open its inode number is not reused.
    base: Mutex<Option<Box<dyn ReadFile>>>,
    /// The temporary file for writes past the page cache.
    direct: Mutex<Direct>,
    /// Whether a write failed, so that the content is incomplete.
    is_broken: AtomicBool,
    /// Whether its file was created with it, and nothing was published since: then a crash loses no earlier content.
    is_new: AtomicBool,
    /// Whether its content is not needed any more.
    is_given_up: AtomicBool,
    /// The condition under which it is published.
    condition: Mutex<Precondition>,
    /// Extended attributes that it has when it is published; an empty value stands for none.
    attributes: Mutex<Vec<Xattr>>,
    /// Checksums to be remembered, as long as all content was written in order.
    sums: Mutex<Option<InOrder>>,
    /// Counter of drafts that were dropped but not given up, which are kept; without it a dropped draft is removed.
    left: Option<Arc<AtomicUsize>>,
}

/// Where a draft is published.
#[derive(Clone)]
pub(crate) struct Target {
    /// The directory.
    pub(crate) dir: Arc<dyn Dir>,
    /// The name in it.
    pub(crate) name: Vec<u8>,
    /// The path as requested.
    pub(crate) path: RelPath,
    /// Whether the name was removed, so that the draft cannot be published.
    pub(crate) is_gone: bool,
}

/// The version that a draft was published as.
pub(crate) struct Published {
    /// Its stamp.
    pub(crate) stamp: Stamp,
    /// Its metadata.
    pub(crate) meta: Meta,
}

/// The initial content of a draft.
pub(crate) enum Beginning {
    /// A new file, created now.
    New,
    /// The content of a version.
    Content(Box<dyn ReadFile>),
    /// Empty, to replace the current content.
    Empty,
}

/// Lock of name changes among the users of one open-file table; refuses all once the session is fenced.
#[derive(Default)]
pub(crate) struct Names {
    lock: RwLock<()>,
    are_fenced: AtomicBool,
}

impl Names {
    /// Shared lock, for publishing drafts.
    pub(crate) fn give(&self) -> Result<RwLockReadGuard<'_, ()>, Error> {
        let held = self.lock.read().unwrap_or_else(PoisonError::into_inner);
        self.expect_more().map(|()| held)
    }

    /// Exclusive lock, for renames and removals.
    pub(crate) fn take(&self) -> Result<RwLockWriteGuard<'_, ()>, Error> {
        let held = self.lock.write().unwrap_or_else(PoisonError::into_inner);
        self.expect_more().map(|()| held)
    }

    /// Refuses all operations that have not begun (fencing): their client gets no answer any more, and later clients
    /// may have changed the same names.
    pub(crate) fn fence(&self) {
        self.are_fenced.store(true, Ordering::SeqCst);
    }

    /// Succeeds until the table is fenced.
    pub(crate) fn expect_more(&self) -> Result<(), Error> {
        match self.are_fenced.load(Ordering::SeqCst) {
            true => Err(Error::new(Code::ConnectionLost, "change", "file session", "it is over")),
            false => Ok(()),
        }
    }
}

/// The temporary file, open for direct I/O.
#[derive(Default)]
enum Direct {
    /// Nothing was tried yet.
    #[default]
    Untried,
    Open(Arc<dyn WriteFile>),
    /// The file system cannot, or refused a write.
    Refused,
}

/// Location of a draft's content.
enum Body {
    /// The current version: nothing was written yet.
    Read(Box<dyn ReadFile>),
    /// The temporary file, in this directory.
    Fresh(Arc<dyn WriteFile>, Arc<dyn Dir>),
    /// The file itself.
    Published(Arc<dyn WriteFile>),
}

impl Draft {
    /// Begins a draft of `target`, to be written under the name `temp`.
    pub(crate) fn begin(
        target: Target,
        temp: Vec<u8>,
        beginning: Beginning,
        mode: u32,
        left: Option<Arc<AtomicUsize>>,
    ) -> Result<Self, Error> {
        let is_new = matches!(beginning, Beginning::New);
        let is_empty = is_new || matches!(beginning, Beginning::Empty);
        let (body, seen) = match beginning {
            Beginning::New => {
                let file = make_empty(&target, &temp, mode)?;
                (Body::Published(file.clone()), Some(file.stamp()?))
            }
            Beginning::Content(file) => {
                let seen = file.stamp()?;
                (Body::Read(file), Some(seen))
            }
            Beginning::Empty => {
                let seen = expect_file(&target)?;
                (Body::Fresh(target.dir.create_temp(&temp, false)?.into(), target.dir.clone()), seen)
            }
        };
        let draft = Self::new(target, temp, mode, body, left);
        draft.is_new.store(is_new, Ordering::Relaxed);
        *draft.seen() = seen;
        let dir = draft.target().dir.clone();
        let wanted = dir.checksums();
        *draft.sums() = (is_empty && !wanted.is_empty()).then(|| InOrder::new(wanted));
        Ok(draft)
    }

    /// Resumes a draft that was left under the name `temp`.
    pub(crate) fn resume(
        target: Target,
        temp: Vec<u8>,
        mode: u32,
        left: Option<Arc<AtomicUsize>>,
    ) -> Result<Self, Error> {
        let body = Body::Fresh(target.dir.create_temp(&temp, true)?.into(), target.dir.clone());
        Ok(Self::new(target, temp, mode, body, left))
    }

    fn new(target: Target, temp: Vec<u8>, mode: u32, body: Body, left: Option<Arc<AtomicUsize>>) -> Self {
        let (target, body) = (Mutex::new(target), RwLock::new(body));
        let [is_new, is_broken, is_given_up] = [(); 3].map(|()| AtomicBool::new(false));
        let (seen, base, condition, sums) = Default::default();
        let (attributes, direct) = Default::default();
        Draft {
            temp,
            mode,
            target,
            body,
            seen,
            base,
            direct,
            condition,
            attributes,
            sums,
            is_broken,
            is_new,
            is_given_up,
            left,
        }
    }

    fn seen(&self) -> MutexGuard<'_, Option<Stamp>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sums(&self) -> MutexGuard<'_, Option<InOrder>> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn base(&self) -> MutexGuard<'_, Option<Box<dyn ReadFile>>> {
        self.base.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the condition under which it is published. That there is no file is the strictest, and stays.
    pub(crate) fn require(&self, condition: Precondition) {
        let mut required = self.condition.lock().unwrap_or_else(PoisonError::into_inner);
        if *required != Precondition::Absent {
            *required = condition;
        }
    }

    /// Sets extended attributes that it has when it is published.
    ///
    /// # Errors
    /// `PermissionDenied` for those that users may not set.
    pub(crate) fn describe(&self, attributes: Vec<Xattr>) -> Result<(), Error> {
        let is_own =
            |xattr: &&Xattr| !xattr.name.starts_with(b"user.") || xattr.name.starts_with(b"user.renkei.");
        if let Some(xattr) = attributes.iter().find(is_own) {
            let name = printable(&xattr.name);
            return Err(Error::new(Code::PermissionDenied, "set attribute", name, "users do not set it"));
        }
        *self.attributes.lock().unwrap_or_else(PoisonError::into_inner) = attributes;
        Ok(())
    }

    /// Has the content removed when the draft is dropped.
    pub(crate) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    /// The current target.
    pub(crate) fn target(&self) -> MutexGuard<'_, Target> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        match &*self.body.read().unwrap_or_else(PoisonError::into_inner) {
            Body::Read(file) => file.read_at(buf, offset),
            Body::Fresh(file, _) | Body::Published(file) => file.read_at(buf, offset),
        }
    }

    pub(crate) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        let written = self.change(|file, dir| {
            if !self.write_direct(file, dir, bytes, offset)? {
                file.write_at(bytes, offset)?;
                if offset >= WRITEBACK_FROM {
                    file.start_writeback(offset..offset + bytes.len() as u64);
                }
            }
            // A write that does not follow the one before ends that for good, so no byte was written twice.
            self.sums().take_if(|sums| !sums.update(bytes, offset));
            Ok(())
        });
        written.inspect_err(|_| self.is_broken.store(true, Ordering::Relaxed))
    }

    /// Writes past the page cache, where that can be done and pays; tells whether it did.
    fn write_direct(
        &self,
        file: &dyn WriteFile,
        dir: &dyn Dir,
        bytes: &[u8],
        offset: u64,
    ) -> Result<bool, Error> {
        use Code::{IoFailed, NoSpace, QuotaExceeded};
        let is_aligned =
            [bytes.as_ptr() as usize, bytes.len(), offset as usize].iter().all(|n| n % DIRECT_ALIGN == 0);
        if !is_aligned || offset < WRITEBACK_FROM || bytes.len() < DIRECT_BYTES {
            return Ok(false);
        }
        let Some(direct) = self.direct_file(file, dir) else { return Ok(false) };
        match direct.write_at(bytes, offset) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.code, IoFailed | NoSpace | QuotaExceeded) => Err(error),
            Err(_) => {
                *self.direct() = Direct::Refused;
                Ok(false)
            }
        }
    }

    /// The temporary file for direct I/O, if it can be opened so.
    fn direct_file(&self, file: &dyn WriteFile, dir: &dyn Dir) -> Option<Arc<dyn WriteFile>> {
        let mut direct = self.direct();
        if matches!(*direct, Direct::Untried) {
            let is_it = |opened: &dyn WriteFile| Some(opened.stamp().ok()?.ino == file.stamp().ok()?.ino);
            let opened = dir.open_direct(&self.temp).filter(|opened| is_it(&**opened).unwrap_or_default());
            *direct = opened.map_or(Direct::Refused, |opened| Direct::Open(opened.into()));
        }
        match &*direct {
            Direct::Open(file) => Some(file.clone()),
            Direct::Untried | Direct::Refused => None,
        }
    }

    fn direct(&self) -> MutexGuard<'_, Direct> {
        self.direct.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_len(&self, bytes: u64) -> Result<(), Error> {
        self.change(|file, _| {
            file.set_len(bytes)?;
            self.sums().take_if(|sums| sums.end() != bytes);
            Ok(())
        })
    }

    /// Copies a whole file behind the first `end` bytes, which must be all; returns its length.
    pub(crate) fn append(&self, part: &dyn ReadFile, end: u64) -> Result<u64, Error> {
        self.sums().take();
        let from = Content::Read(part);
        self.change(|file, _| if end == 0 { copy(&from, file) } else { copy_behind(&from, file, end) })?;
        from.size()
    }

    fn change(&self, change: impl Fn(&dyn WriteFile, &dyn Dir) -> Result<(), Error>) -> Result<(), Error> {
        if let Body::Fresh(file, dir) = &*self.body.read().unwrap_or_else(PoisonError::into_inner) {
            return change(&**file, &**dir);
        }
        let mut body = self.body.write().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*body, Body::Fresh(..)) {
            let fresh = self.freshen(&body)?;
            if let Body::Read(base) = std::mem::replace(&mut *body, fresh)
                && !base.is_version()
            {
                *self.base() = Some(base);
            }
        }
        match &*body {
            Body::Fresh(file, dir) => change(&**file, &**dir),
            _ => unreachable!("it was made fresh under the same lock"),
        }
    }

    /// A new temporary file with a copy of the current content.
    fn freshen(&self, body: &Body) -> Result<Body, Error> {
        let dir = self.target().dir.clone();
        let file: Arc<dyn WriteFile> = dir.create_temp(&self.temp, false)?.into();
        let copied = match body {
            Body::Read(from) => copy(&Content::Read(&**from), &*file),
            Body::Fresh(from, _) | Body::Published(from) => copy(&Content::Written(&**from), &*file),
        };
        if let Err(error) = copied {
            // The first error matters; a later clean-up finds the file.
            let _ = dir.remove_file(&self.temp);
            return Err(error);
        }
        Ok(Body::Fresh(file, dir))
    }

    /// Makes the content durable under the file's name; `names` is locked during the rename. Returns the published
    /// version; none if nothing was written since the last one.
    pub(crate) fn publish(&self, mtime: Option<FileTime>, names: &Names) -> Result<Option<Published>, Error> {
        let mut body = self.body.write().unwrap_or_else(PoisonError::into_inner);
        let target = self.target().clone();
        if target.is_gone {
            return Err(gone(&target));
        }
        if self.is_broken.load(Ordering::Relaxed) {
            let cause = "a part of it could not be written";
            return Err(Error::new(Code::IoFailed, "publish", &target.path, cause));
        }
        let Body::Fresh(file, from) = &*body else {
            self.check_version(&target)?;
            return settle(&target, mtime).map(|()| None);
        };
        let (file, from) = (file.clone(), from.clone());
        let mut meta = self.meta(&target, &*file, mtime)?;
        let attributes = self.attributes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        meta.xattrs.retain(|before| attributes.iter().all(|xattr| xattr.name != before.name));
        meta.xattrs.extend(attributes.into_iter().filter(|xattr| !xattr.value.is_empty()));
        privileges::keeping_acls(|| file.set_meta(&meta))?;
        let names_first = self.is_new.load(Ordering::Relaxed) && target.dir.names_first();
        if !names_first {
            file.sync_all()?;
        }
        let sums = self.checksums(&target, &*file)?;
        let (target, stamp) = self.rename(&*from, &*file, sums, names)?;
        *body = Body::Published(file.clone());
        *self.direct() = Direct::Untried;
        *self.base() = None;
        self.is_new.store(false, Ordering::Relaxed);
        let published = Some(Published { stamp, meta });
        if !names_first {
            return target.dir.sync().map(|()| published);
        }
        // A later sync does not report the writeback errors of this one again.
        let synced = target.dir.sync_with(&*file);
        synced.inspect_err(|_| self.is_broken.store(true, Ordering::Relaxed)).map(|()| published)
    }

    /// The checksums of the content to be remembered, and its stamp; none where that cannot be kept.
    fn checksums(&self, target: &Target, file: &dyn WriteFile) -> Result<Option<(Stamp, Checksums)>, Error> {
        let (in_order, wanted) = (self.sums().take(), target.dir.checksums());
        if wanted.is_empty() {
            return Ok(None);
        }
        let stamp = file.stamp()?;
        let sums = match in_order.filter(|sums| sums.end() == stamp.size) {
            Some(in_order) => in_order.finish(),
            None if stamp.size > READ_BACK_BYTES => return Ok(None),
            None => InOrder::of(wanted, |buf, at| file.read_at(buf, at))?,
        };
        // The rename will forget them. But a write by others after it is in a later tick of the clock than the last one
        // here, so that mtime shows it.
        Ok(file.remember_checksums(&stamp, &sums).then_some((stamp, sums)))
    }

    /// Renames the temporary file to the target's current name; no other rename or removal comes in between. If
    /// another site's version has that name, this becomes a conflict copy and the target from now on.
    fn rename(
        &self,
        from: &dyn Dir,
        file: &dyn WriteFile,
        sums: Option<(Stamp, Checksums)>,
        names: &Names,
    ) -> Result<(Target, Stamp), Error> {
        let _names = names.give()?;
        let target = self.target().clone();
        if target.is_gone {
            return Err(gone(&target));
        }
        let mut seen = self.seen();
        let replaced = self.replace(from, &target, seen.as_ref())?;
        if let Some((content, sums)) = sums {
            file.remember_checksums(&content, &sums);
        }
        let stamp = replaced.stamp.map_or_else(|| file.stamp(), Ok)?;
        *seen = Some(stamp);
        drop(seen);
        if let Some(name) = replaced.beside {
            let path = target.path.parent().unwrap_or_default().child(&name)?;
            *self.target() = Target { name, path, ..target };
        }
        Ok((self.target().clone(), stamp))
    }

    /// Renames the temporary file if its condition holds.
    fn replace(&self, from: &dyn Dir, target: &Target, seen: Option<&Stamp>) -> Result<Replaced, Error> {
        let rename = || from.replace(&self.temp, &*target.dir, &target.name, seen);
        match self.condition() {
            Precondition::None => rename(),
            Precondition::Absent => {
                from.rename_no_replace(&self.temp, &*target.dir, &target.name).map(|()| Replaced::default())
            }
            Precondition::Version(_) => {
                let _alone = CONDITIONAL.lock().unwrap_or_else(PoisonError::into_inner);
                self.check_version(target)?;
                rename()
            }
        }
    }

    fn condition(&self) -> Precondition {
        *self.condition.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Succeeds if the file has the version that the condition names, or none is named.
    fn check_version(&self, target: &Target) -> Result<(), Error> {
        let Precondition::Version(expected) = self.condition() else { return Ok(()) };
        match target.dir.entry(&target.name, Detail::Basic) {
            Ok((Entry { kind: EntryKind::File { stamp, .. }, .. }, _)) if stamp == expected => Ok(()),
            Err(error) if error.code != Code::PathNotFound => Err(error),
            _ => {
                let cause = "another version was published meanwhile, or it was removed";
                Err(Error::new(Code::VersionReplaced, "publish", &target.path, cause))
            }
        }
    }

    /// The metadata of the new version: that of the previous one except for mtime and set-id bits.
    fn meta(&self, target: &Target, file: &dyn WriteFile, mtime: Option<FileTime>) -> Result<Meta, Error> {
        let mtime = mtime.map_or_else(|| file.stamp().map(|stamp| stamp.mtime), Ok)?;
        let fresh = Meta { mode: self.mode, mtime, ..Meta::default() };
        match target.dir.entry(&target.name, Detail::Full) {
            Ok((entry, _)) if matches!(entry.kind, EntryKind::File { .. }) => {
                Ok(Meta { mode: entry.meta.mode & !SET_ID, mtime, ..entry.meta })
            }
            Ok(_) => Ok(fresh),
            Err(error) if error.code == Code::PathNotFound => Ok(fresh),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let body = self.body.read().unwrap_or_else(PoisonError::into_inner);
        let Body::Fresh(_, dir) = &*body else { return };
        match &self.left {
            Some(left) if !self.is_given_up.load(Ordering::Relaxed) => {
                left.fetch_add(1, Ordering::Relaxed);
            }
            _ => {
                let _ = dir.remove_file(&self.temp);
            }
        }
    }
}

fn gone(target: &Target) -> Error {
    Error::new(Code::PathNotFound, "publish", &target.path, "it was removed while it was written")
}

/// Makes the current file durable: nothing was written since it was published, or at all.
fn settle(target: &Target, mtime: Option<FileTime>) -> Result<(), Error> {
    if let Some(mtime) = mtime {
        let meta = target.dir.entry(&target.name, Detail::Full)?.0.meta;
        refuse_losses(target.dir.set_meta(&target.name, &Meta { mtime, xattrs: Vec::new(), ..meta })?)?;
    }
    target.dir.sync_file(&target.name)?;
    target.dir.sync()
}

/// Turns the first attribute that could not be kept into an error.
pub(crate) fn refuse_losses(lost: Vec<Error>) -> Result<(), Error> {
    lost.into_iter().next().map_or(Ok(()), Err)
}

/// Creates an empty file under a name that must not exist.
fn make_empty(target: &Target, temp: &[u8], mode: u32) -> Result<Arc<dyn WriteFile>, Error> {
    let file: Arc<dyn WriteFile> = target.dir.create_temp(temp, false)?.into();
    let named = file.stamp().and_then(|stamp| {
        file.set_meta(&Meta { mode, mtime: stamp.mtime, ..Meta::default() })?;
        target.dir.rename_no_replace(temp, &*target.dir, &target.name)
    });
    if let Err(error) = named {
        let _ = target.dir.remove_file(temp);
        return Err(error);
    }
    Ok(file)
}

/// Checks that the target is a regular file or missing; returns the file's stamp.
fn expect_file(target: &Target) -> Result<Option<Stamp>, Error> {
    let entry = match target.dir.entry(&target.name, Detail::Basic) {
        Ok((entry, _)) => entry,
        Err(error) if error.code == Code::PathNotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    match entry.kind {
        EntryKind::File { stamp, .. } => Ok(Some(stamp)),
        EntryKind::Dir => Err(Error::new(Code::IsADirectory, "draft", &target.path, "")),
        _ => Err(Error::new(Code::SpecialFile, "draft", &target.path, "only regular files are written")),
    }
}

/// Source of a copy.
enum Content<'a> {
    Read(&'a dyn ReadFile),
    Written(&'a dyn WriteFile),
}

impl Content<'_> {
    fn size(&self) -> Result<u64, Error> {
        match self {
            Content::Read(file) => file.stamp(),
            Content::Written(file) => file.stamp(),
        }
        .map(|stamp| stamp.size)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        match self {
            Content::Read(file) => file.read_at(buf, offset),
            Content::Written(file) => file.read_at(buf, offset),
        }
    }

    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Error> {
        match self {
            Content::Read(file) => file.next_data(from),
            Content::Written(file) => file.next_data(from),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Content::Read(file) => file.descriptor(),
            Content::Written(file) => file.descriptor(),
        }
    }
}

/// Copies content to an empty file; by reflink or copy_file_range where the file system can.
fn copy(from: &Content<'_>, to: &dyn WriteFile) -> Result<(), Error> {
    if let Some((source, target)) = from.descriptor().zip(to.descriptor())
        && rustix::fs::ioctl_ficlone(target, source).is_ok()
    {
        return Ok(());
    }
    copy_behind(from, to, 0)
}

/// Copies content behind the first `end` bytes of a file.
fn copy_behind(from: &Content<'_>, to: &dyn WriteFile, end: u64) -> Result<(), Error> {
    let size = from.size()?;
    let pair = from.descriptor().zip(to.descriptor());
    let mut at = 0;
    while let Some(data) = from.next_data(at)?.filter(|data| data.start < size) {
        at = data.end;
        let copied = pair.map_or(data.start, |(source, target)| copy_inside(source, target, &data, end));
        copy_through(from, to, copied.max(data.start)..data.end, end)?;
    }
    to.set_len(end + size)
}

/// Copies a range to a place `shift` bytes further on with copy_file_range; returns the offset that it reached.
fn copy_inside(from: BorrowedFd<'_>, to: BorrowedFd<'_>, range: &Range<u64>, shift: u64) -> u64 {
    let (mut source, mut target) = (range.start, range.start + shift);
    while source < range.end {
        let left = usize::try_from(range.end - source).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), left) {
            Ok(0) => return source,
            Ok(_) | Err(Errno::INTR) => {}
            // The rest is copied through memory, which reports the error if there is one.
            Err(_) => return source,
        }
    }
    source
}

fn copy_through(
    from: &Content<'_>,
    to: &dyn WriteFile,
    mut range: Range<u64>,
    shift: u64,
) -> Result<(), Error> {
    let mut buf = vec![0; if range.is_empty() { 0 } else { COPY_BYTES }];
    while range.start < range.end {
        let most = usize::try_from(range.end - range.start).unwrap_or(usize::MAX).min(COPY_BYTES);
        let count = from.read_at(&mut buf[..most], range.start)?;
        if count == 0 {
            return Ok(());
        }
        for (part, offset) in buf[..count].chunks(HOLE_BYTES).zip((range.start..).step_by(HOLE_BYTES)) {
            if part.iter().any(|&byte| byte != 0) {
                to.write_at(part, offset + shift)?;
            }
        }
        range.start += count as u64;
    }
    Ok(())
}
