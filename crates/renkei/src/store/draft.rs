//! A new version of a file on its way: written beside it under a temporary name, and renamed when it is published.
//!
//! What is there is copied when the first byte is written, not before. A draft that was published is the file itself; what
//! is written then begins the next version. A draft that is dropped leaves nothing.

use super::metadata::SET_ID;
use super::{Detail, Dir, ReadFile, WriteFile, privileges};
use renkei_core::entry::{EntryKind, FileTime, Meta, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Bytes copied at once where the file system does not copy by itself.
const COPY_BYTES: usize = 1 << 20;
/// What is all zeros for so long is left out of a copy, and stays a hole.
const HOLE_BYTES: usize = 64 << 10;
/// From here on what is written goes to the disk at once, so that publishing a large file does not wait for all of it.
const WRITEBACK_FROM: u64 = 16 << 20;

/// A draft.
pub(super) struct Draft {
    temp: Vec<u8>,
    /// Permission bits if the file is new.
    mode: u32,
    target: Mutex<Target>,
    body: RwLock<Body>,
    /// The version that it was made from, as it showed then; none if that is not known any more.
    seen: Mutex<Option<Stamp>>,
    /// The plain file of that version: as long as it is open no other one gets its number.
    base: Mutex<Option<Box<dyn ReadFile>>>,
    /// Whether something could not be written: what it holds is not what it should be.
    is_broken: AtomicBool,
    /// Whether its file was made with it, and nothing was published since: then nothing is lost with what is there.
    is_new: AtomicBool,
    /// Whether what it holds is of no use any more.
    is_given_up: AtomicBool,
    /// Counts those that were dropped and not given up, and are left as they are; else they leave nothing.
    left: Option<Arc<AtomicUsize>>,
}

/// What a draft becomes.
#[derive(Clone)]
pub(super) struct Target {
    /// The directory.
    pub(super) dir: Arc<dyn Dir>,
    /// The name in it.
    pub(super) name: Vec<u8>,
    /// Both as they were asked for.
    pub(super) path: RelPath,
    /// Whether the name was removed, so that there is nothing to publish to.
    pub(super) is_gone: bool,
}

/// A version that a draft became.
pub(super) struct Published {
    /// What the file shows of it.
    pub(super) stamp: Stamp,
    /// What it has beside its content.
    pub(super) meta: Meta,
}

/// What a draft begins with.
pub(super) enum Beginning {
    /// A file that is made now.
    New,
    /// The content of a version.
    Content(Box<dyn ReadFile>),
    /// Nothing, in place of what is there.
    Empty,
}

/// Who may change names now, of those who use one open-file table; nobody when they are gone.
#[derive(Default)]
pub(super) struct Names {
    lock: RwLock<()>,
    are_fenced: AtomicBool,
}

impl Names {
    /// For those who give drafts their names.
    pub(super) fn give(&self) -> Result<RwLockReadGuard<'_, ()>, Error> {
        let held = self.lock.read().unwrap_or_else(PoisonError::into_inner);
        self.expect_more().map(|()| held)
    }

    /// For one alone, who takes names away.
    pub(super) fn take(&self) -> Result<RwLockWriteGuard<'_, ()>, Error> {
        let held = self.lock.write().unwrap_or_else(PoisonError::into_inner);
        self.expect_more().map(|()| held)
    }

    /// Refuses whatever has not begun: who asked for it does not hear of it any more, and whoever comes after him may have
    /// changed the same names.
    pub(super) fn fence(&self) {
        self.are_fenced.store(true, Ordering::SeqCst);
    }

    /// Passes as long as nobody is fenced.
    pub(super) fn expect_more(&self) -> Result<(), Error> {
        match self.are_fenced.load(Ordering::SeqCst) {
            true => Err(Error::new(Code::ConnectionLost, "change", "file session", "it is over")),
            false => Ok(()),
        }
    }
}

/// Where a draft's bytes are.
enum Body {
    /// In the version that was there: nothing was written yet.
    Read(Box<dyn ReadFile>),
    /// Under the temporary name in a directory.
    Fresh(Arc<dyn WriteFile>, Arc<dyn Dir>),
    /// In the file itself.
    Published(Arc<dyn WriteFile>),
}

impl Draft {
    /// Begins a draft of `target`, to be written under the name `temp`.
    pub(super) fn begin(
        target: Target,
        temp: Vec<u8>,
        beginning: Beginning,
        mode: u32,
        left: Option<Arc<AtomicUsize>>,
    ) -> Result<Self, Error> {
        let is_new = matches!(beginning, Beginning::New);
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
        Ok(draft)
    }

    /// Goes on with one that was left under the name `temp`.
    pub(super) fn resume(
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
        let (seen, base) = Default::default();
        Draft { temp, mode, target, body, seen, base, is_broken, is_new, is_given_up, left }
    }

    fn seen(&self) -> MutexGuard<'_, Option<Stamp>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn base(&self) -> MutexGuard<'_, Option<Box<dyn ReadFile>>> {
        self.base.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets what it holds go when it is dropped.
    pub(super) fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    /// What it becomes, as things are now.
    pub(super) fn target(&self) -> MutexGuard<'_, Target> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        match &*self.body.read().unwrap_or_else(PoisonError::into_inner) {
            Body::Read(file) => file.read_at(buf, offset),
            Body::Fresh(file, _) | Body::Published(file) => file.read_at(buf, offset),
        }
    }

    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        let written = self.change(|file| {
            file.write_at(bytes, offset)?;
            if offset >= WRITEBACK_FROM {
                file.start_writeback(offset..offset + bytes.len() as u64);
            }
            Ok(())
        });
        written.inspect_err(|_| self.is_broken.store(true, Ordering::Relaxed))
    }

    pub(super) fn set_len(&self, bytes: u64) -> Result<(), Error> {
        self.change(|file| file.set_len(bytes))
    }

    fn change(&self, change: impl Fn(&dyn WriteFile) -> Result<(), Error>) -> Result<(), Error> {
        if let Body::Fresh(file, _) = &*self.body.read().unwrap_or_else(PoisonError::into_inner) {
            return change(&**file);
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
            Body::Fresh(file, _) => change(&**file),
            _ => unreachable!("it was made fresh under the same lock"),
        }
    }

    /// A new temporary file with the content so far.
    fn freshen(&self, body: &Body) -> Result<Body, Error> {
        let dir = self.target().dir.clone();
        let file: Arc<dyn WriteFile> = dir.create_temp(&self.temp, false)?.into();
        let copied = match body {
            Body::Read(from) => copy(&Content::Read(&**from), &*file),
            Body::Fresh(from, _) | Body::Published(from) => copy(&Content::Written(&**from), &*file),
        };
        if let Err(error) = copied {
            // The first error matters; whoever cleans up later finds the name.
            let _ = dir.remove_file(&self.temp);
            return Err(error);
        }
        Ok(Body::Fresh(file, dir))
    }

    /// Makes what it holds durable under the file's name; `names` is held while it is renamed. Gives the version that it became;
    /// none if nothing was written since the last one.
    pub(super) fn publish(&self, mtime: Option<FileTime>, names: &Names) -> Result<Option<Published>, Error> {
        let mut body = self.body.write().unwrap_or_else(PoisonError::into_inner);
        let target = self.target().clone();
        if target.is_gone {
            return Err(gone(&target));
        }
        if self.is_broken.load(Ordering::Relaxed) {
            let cause = "a part of it could not be written";
            return Err(Error::new(Code::IoFailed, "publish", &target.path, cause));
        }
        let Body::Fresh(file, from) = &*body else { return settle(&target, mtime).map(|()| None) };
        let (file, from) = (file.clone(), from.clone());
        let meta = self.meta(&target, &*file, mtime)?;
        privileges::keeping_acls(|| file.set_meta(&meta))?;
        let names_first = self.is_new.load(Ordering::Relaxed) && target.dir.names_first();
        if !names_first {
            file.sync_all()?;
        }
        let (target, stamp) = self.rename(&*from, &*file, names)?;
        *body = Body::Published(file.clone());
        *self.base() = None;
        self.is_new.store(false, Ordering::Relaxed);
        let published = Some(Published { stamp, meta });
        if !names_first {
            return target.dir.sync().map(|()| published);
        }
        // What a sync could not write it does not tell twice.
        let synced = target.dir.sync_with(&*file);
        synced.inspect_err(|_| self.is_broken.store(true, Ordering::Relaxed)).map(|()| published)
    }

    /// Gives the temporary file its name, wherever that is now; no rename or removal comes in between. Where another site's
    /// version has that name, this is a file beside it from now on.
    fn rename(&self, from: &dyn Dir, file: &dyn WriteFile, names: &Names) -> Result<(Target, Stamp), Error> {
        let _names = names.give()?;
        let target = self.target().clone();
        if target.is_gone {
            return Err(gone(&target));
        }
        let mut seen = self.seen();
        let replaced = from.replace(&self.temp, &*target.dir, &target.name, seen.as_ref())?;
        let stamp = replaced.stamp.map_or_else(|| file.stamp(), Ok)?;
        *seen = Some(stamp);
        drop(seen);
        if let Some(name) = replaced.beside {
            let path = target.path.parent().unwrap_or_default().child(&name)?;
            *self.target() = Target { name, path, ..target };
        }
        Ok((self.target().clone(), stamp))
    }

    /// The metadata of the new version: that of the version before but for its time and set-id bits.
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

/// Nothing was written since the file was published, or at all: what is there is made durable.
fn settle(target: &Target, mtime: Option<FileTime>) -> Result<(), Error> {
    if let Some(mtime) = mtime {
        let meta = target.dir.entry(&target.name, Detail::Full)?.0.meta;
        refuse_losses(target.dir.set_meta(&target.name, &Meta { mtime, xattrs: Vec::new(), ..meta })?)?;
    }
    target.dir.sync_file(&target.name)?;
    target.dir.sync()
}

/// The first thing that could not be kept, as an error.
pub(super) fn refuse_losses(lost: Vec<Error>) -> Result<(), Error> {
    lost.into_iter().next().map_or(Ok(()), Err)
}

/// Makes an empty file under a name that nothing has.
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

/// Lets only regular files be replaced, and nothing; gives what the file shows.
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

/// What is copied.
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

/// Copies content to an empty file; the file system shares or copies it by itself where it can.
fn copy(from: &Content<'_>, to: &dyn WriteFile) -> Result<(), Error> {
    let size = from.size()?;
    let pair = from.descriptor().zip(to.descriptor());
    if let Some((source, target)) = pair
        && rustix::fs::ioctl_ficlone(target, source).is_ok()
    {
        return Ok(());
    }
    let mut at = 0;
    while let Some(data) = from.next_data(at)?.filter(|data| data.start < size) {
        at = data.end;
        let copied = pair.map_or(data.start, |(source, target)| copy_inside(source, target, &data));
        copy_through(from, to, copied.max(data.start)..data.end)?;
    }
    to.set_len(size)
}

/// Lets the kernel copy a range; tells how far it came.
fn copy_inside(from: BorrowedFd<'_>, to: BorrowedFd<'_>, range: &Range<u64>) -> u64 {
    let (mut source, mut target) = (range.start, range.start);
    while source < range.end {
        let left = usize::try_from(range.end - source).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), left) {
            Ok(0) => return source,
            Ok(_) | Err(Errno::INTR) => {}
            // What this cannot do is done by hand, and fails there if it must.
            Err(_) => return source,
        }
    }
    source
}

fn copy_through(from: &Content<'_>, to: &dyn WriteFile, mut range: Range<u64>) -> Result<(), Error> {
    let mut buf = vec![0; if range.is_empty() { 0 } else { COPY_BYTES }];
    while range.start < range.end {
        let most = usize::try_from(range.end - range.start).unwrap_or(usize::MAX).min(COPY_BYTES);
        let count = from.read_at(&mut buf[..most], range.start)?;
        if count == 0 {
            return Ok(());
        }
        for (part, offset) in buf[..count].chunks(HOLE_BYTES).zip((range.start..).step_by(HOLE_BYTES)) {
            if part.iter().any(|&byte| byte != 0) {
                to.write_at(part, offset)?;
            }
        }
        range.start += count as u64;
    }
    Ok(())
}
