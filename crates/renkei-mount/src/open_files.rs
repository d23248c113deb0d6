//! Open files: versions that are read, and drafts that are written.
//!
//! All handles of a file that is open here share its [`OpenInode`]. The first handle that writes begins a draft, and
//! every program here reads the draft from then on. A handle that was opened before has a version of its own open at
//! the other side, which it reads as long as there is no draft.
//!
//! Lock order: the draft of a file, then the inode table; no operation is awaited under the lock of the table.

use super::Mounted;
use super::attributes::{InodeAttr, now};
use super::errno::FuseError;
use super::open_inode::{Draft, OpenHandle, OpenInode};
use super::opened;
use super::passthrough::read_plain;
use super::stale_retry::StaleRetries;
use fuser::{FopenFlags, OpenFlags};
use renkei_core::entry::FileTime;
use renkei_core::error::{Code, Error};
use renkei_core::lease::holder::Mark;
use renkei_core::namespace::tree::is_beside;
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Handle, Item, MAX_IO_BYTES, Op, Start};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

impl Mounted {
    // ---- opening -----------------------------------------------------------------------------------------------------

    pub(super) fn open(&self, id: u64, flags: OpenFlags) -> Result<(u64, FopenFlags), FuseError> {
        self.open_by(0, id, flags)
    }

    /// The same for a thread, by which the retry of the kernel after ESTALE is recognised.
    pub(super) fn open_by(
        &self,
        thread: u32,
        id: u64,
        flags: OpenFlags,
    ) -> Result<(u64, FopenFlags), FuseError> {
        let writes = flags.0 & libc::O_ACCMODE != libc::O_RDONLY;
        let content = self.join(id)?;
        let opened = match writes {
            true => self.open_draft(id, &content, flags.0 & libc::O_TRUNC != 0).map(|kept| (None, kept)),
            false => self.open_version_by(thread, id, &content),
        };
        let (version, is_cached) = opened.inspect_err(|_| self.leave(id, &content))?;
        let appends = flags.0 & libc::O_APPEND != 0;
        let plain = version.filter(|_| self.is_large(id)).and_then(|version| self.files.descriptor(version));
        let fh = self.hold(OpenHandle { id, content, version, plain, writes, appends });
        Ok((fh, opened_flags(is_cached, writes && appends)))
    }

    fn stale_retries(&self) -> MutexGuard<'_, StaleRetries> {
        self.stale_retries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the current version for a thread; 0 is an unknown thread.
    fn open_version_by(
        &self,
        thread: u32,
        id: u64,
        content: &OpenInode,
    ) -> Result<(Option<Handle>, bool), FuseError> {
        // A removed file has no path, but may still be open.
        let path = self.table().path(id).ok();
        let told = path.as_ref().and_then(|path| self.stale_retries().take(thread, path));
        let opened = self.open_version(id, content);
        if !opened.as_ref().is_err_and(|refusal| refusal.number == libc::ESTALE) {
            return opened;
        }
        let known = self.table().node(id)?.known;
        let is_looked_up = told.is_some_and(|told| !told.same_content(&known));
        let shared = if is_looked_up { self.share_version(content) } else { None };
        if let (None, Some(path)) = (shared, path.filter(|_| thread != 0)) {
            self.stale_retries().note(thread, path, known);
        }
        // The kernel's cache has the shared version, so it is kept.
        shared.map_or(opened, |version| Ok((Some(version), true)))
    }

    fn hold(&self, open: OpenHandle) -> u64 {
        let fh = self.next();
        self.opens.lock().unwrap_or_else(PoisonError::into_inner).insert(fh, Arc::new(open));
        fh
    }

    pub(super) fn find(&self, fh: u64) -> Result<Arc<OpenHandle>, FuseError> {
        let opens = self.opens.lock().unwrap_or_else(PoisonError::into_inner);
        opens.get(&fh).cloned().ok_or(FuseError::plain(libc::EBADF))
    }

    /// The content of a file, with its user count incremented.
    fn join(&self, id: u64) -> Result<Arc<OpenInode>, Error> {
        let mut table = self.table();
        let content = table.node(id)?.content.get_or_insert_default().clone();
        content.users.fetch_add(1, Ordering::Relaxed);
        Ok(content)
    }

    /// Decrements the user count; the last user closes the draft.
    fn leave(&self, id: u64, content: &OpenInode) {
        {
            let mut table = self.table();
            if content.users.fetch_sub(1, Ordering::Relaxed) > 1 {
                return;
            }
            if let Ok(node) = table.node(id) {
                node.content = None;
            }
            table.drop_if_unused(id);
        }
        if let Some(draft) = content.draft_mut().take() {
            content.is_ahead.store(false, Ordering::Release);
            if draft.changed().is_dirty {
                self.on_lost(id);
            }
            self.close(draft.handle);
        }
        let shared = std::mem::take(&mut *content.shared());
        shared.into_iter().for_each(|version| self.close(version));
    }

    /// A version that another handle has open, to be shared; none if the file was written since.
    fn share_version(&self, content: &OpenInode) -> Option<Handle> {
        if content.draft().is_some() {
            return None;
        }
        // A handle that is released checks afterwards whether its version is shared.
        let opens = self.opens.lock().unwrap_or_else(PoisonError::into_inner);
        let mut same = opens.values().filter(|open| std::ptr::eq(&*open.content, content));
        let version = same.find_map(|open| open.version)?;
        let mut shared = content.shared();
        if !shared.contains(&version) {
            shared.push(version);
        }
        Some(version)
    }

    /// Opens the current version, unless the file has unpublished data here; retried if the version known here
    /// changed meanwhile.
    fn open_version(&self, id: u64, content: &OpenInode) -> Result<(Option<Handle>, bool), FuseError> {
        loop {
            let before = self.table().node(id)?.known;
            let opened = self.open_version_once(id, content);
            let is_stale = opened.as_ref().is_err_and(|refusal| refusal.number == libc::ESTALE);
            if !is_stale || !self.is_news(id, content, &before)? {
                return opened;
            }
        }
    }

    /// Whether the version known here changed since `before`, or data was written, once a publication in progress is
    /// done.
    fn is_news(&self, id: u64, content: &OpenInode, before: &InodeAttr) -> Result<bool, Error> {
        // A publication holds the lock until its answer is processed.
        drop(content.draft());
        let now = self.table().node(id)?.known;
        Ok(content.is_ahead() || !now.same_content(before))
    }

    fn open_version_once(&self, id: u64, content: &OpenInode) -> Result<(Option<Handle>, bool), FuseError> {
        if content.is_ahead() || (self.is_removed(id)? && content.draft().is_some()) {
            return Ok((None, true));
        }
        let (handle, is_cached) = match self.open_known(id)? {
            Some(opened) => opened,
            None => {
                let open = |path: &RelPath| self.ask_open(Op::Open(path.clone()));
                let (handle, item) = self.at(|table| table.path(id), open)?;
                (handle, self.take_version(id, handle, &item)?)
            }
        };
        if let Some(draft) = content.draft().as_ref().filter(|_| !is_cached) {
            draft.is_behind.store(true, Ordering::Release);
        }
        Ok((Some(handle), is_cached))
    }

    /// Opens the known version without asking the site, if its attributes are cached and its content was prefetched;
    /// also returns whether the kernel's cache has that version.
    fn open_known(&self, id: u64) -> Result<Option<(Handle, bool)>, Error> {
        if !self.is_attr_cached(id)? {
            return Ok(None);
        }
        let (path, known) = {
            let mut table = self.table();
            (table.path(id)?, table.node(id)?.known)
        };
        let is_known = |item: &Item| self.owners.attr(item).same_content(&known);
        let Some(handle) = self.files.open_brought(&path, &is_known) else { return Ok(None) };
        let cached = self.table().node(id)?.cached.replace(known);
        Ok(Some((handle, cached.is_some_and(|cached| cached.same_content(&known)))))
    }

    /// Begins a draft of the current version, or shares the one that has unpublished data.
    fn open_draft(&self, id: u64, content: &OpenInode, truncates: bool) -> Result<bool, FuseError> {
        let mut draft = content.draft_mut();
        if draft.is_some() && (content.is_ahead() || self.is_removed(id)?) {
            if let Some(draft) = draft.as_ref().filter(|_| truncates) {
                self.resize(draft, 0)?;
            }
            content.writers.fetch_add(1, Ordering::Release);
            return Ok(true);
        }
        let start = if truncates { Start::Empty } else { Start::Content };
        let op = |path: &RelPath| Op::Draft { path: path.clone(), start, mode: 0 };
        let (handle, item) = self.at(|table| table.path(id), |path| self.ask_open(op(path)))?;
        let is_cached = self.take_version(id, handle, &item)?;
        let size = if truncates { 0 } else { item.entry.size() };
        if let Some(old) = draft.replace(Draft::new(content, handle, size, now(), truncates)) {
            self.close(old.handle);
        }
        content.writers.fetch_add(1, Ordering::Release);
        Ok(is_cached)
    }

    /// Checks that the opened file is the expected one, and returns whether the kernel's cache has this version.
    fn take_version(&self, id: u64, handle: Handle, item: &Item) -> Result<bool, FuseError> {
        let known = self.owners.attr(item);
        if !self.is_still(id, &known, 1)? && !self.table().becomes(id, known) {
            self.close(handle);
            // The kernel repeats the lookup and opens the file that has the name now; the site's callback may still
            // be in flight.
            self.table().node(id)?.attr_epoch = None;
            return Err(FuseError::plain(libc::ESTALE));
        }
        let (is_cached, is_news) = {
            let mut table = self.table();
            let node = table.node(id)?;
            let is_cached = node.cached.is_some_and(|cached| cached.same_content(&known));
            let is_news = node.known != known;
            (node.known, node.cached) = (known, Some(known));
            (is_cached, is_news)
        };
        if is_news {
            self.invalidate_attrs(id);
        }
        Ok(is_cached)
    }

    /// Creates a file and opens it, or opens it if it exists by then and `O_EXCL` is not set.
    pub(super) fn create(
        &self,
        dir: u64,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(u64, InodeAttr, u64, FopenFlags), FuseError> {
        let op = |path: &RelPath| Op::Draft { path: path.clone(), start: Start::New, mode: mode & 0o7777 };
        let made = self.at(
            |table| table.path_below(dir, name),
            |path| {
                let (answer, since) = self.ask_making(op(path), path.clone())?;
                let (handle, item) = opened(answer)?;
                Ok((handle, item, since))
            },
        );
        match made {
            Ok((handle, item, since)) => self.created(dir, name, handle, &item, since, flags),
            Err(error) if error.code == Code::PathExists && flags & libc::O_EXCL == 0 => {
                let (id, known) = self.lookup(dir, name)?;
                let opened = self.open(id, OpenFlags(flags));
                let (fh, kept) = opened.inspect_err(|_| self.table().forget(id, 1))?;
                Ok((id, known, fh, kept))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn created(
        &self,
        dir: u64,
        name: &[u8],
        handle: Handle,
        item: &Item,
        since: Option<Mark>,
        flags: i32,
    ) -> Result<(u64, InodeAttr, u64, FopenFlags), FuseError> {
        let made = self.owners.attr(item);
        let (id, known) = self.found(dir, name, made)?;
        {
            let mut table = self.table();
            table.node(id)?.cached = Some(made);
            if let Some(since) = since {
                self.cache_attr(&mut table, id, dir, since);
            }
        }
        let content = self.join(id)?;
        // Also a file that is opened read-only has a draft here: it was created by one.
        let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
        *content.draft_mut() = Some(Draft::new(&content, handle, 0, made.mtime, false));
        content.writers.fetch_add(usize::from(writes), Ordering::Release);
        let appends = flags & libc::O_APPEND != 0;
        let fh = self.hold(OpenHandle { id, content, version: None, plain: None, writes, appends });
        Ok((id, known, fh, opened_flags(true, writes && appends)))
    }

    // ---- content -----------------------------------------------------------------------------------------------------

    pub(super) fn read(&self, fh: u64, offset: u64, buf: &mut [u8]) -> Result<usize, FuseError> {
        let open = self.find(fh)?;
        self.check_locks(open.id)?;
        let draft = open.content.draft();
        // A handle that was opened on a later version reads that.
        let is_later = |draft: &&Draft| open.version.is_some() && draft.is_behind.load(Ordering::Acquire);
        let draft = draft.as_ref().filter(|draft| !is_later(draft));
        if let (None, Some(plain)) = (draft, &open.plain) {
            return read_plain(plain, offset, buf);
        }
        let handle = draft.map(|draft| draft.handle).or(open.version);
        let handle = handle.ok_or(FuseError::plain(libc::EBADF))?;
        Ok(self.files.read(handle, offset, buf)?)
    }

    /// Writes at the program's offset, or at the end for an append; pages from the kernel's cache have their own
    /// offset.
    pub(super) fn write(
        &self,
        fh: u64,
        offset: u64,
        bytes: &[u8],
        from_cache: bool,
    ) -> Result<(), FuseError> {
        let open = self.find(fh)?;
        self.check_locks(open.id)?;
        let guard = open.content.draft();
        let draft = guard.as_ref().filter(|_| open.writes).ok_or(FuseError::plain(libc::EBADF))?;
        if !open.appends || from_cache {
            return Ok(self.write_at(draft, offset, bytes)?);
        }
        // The local end of file, which the kernel may not know yet; the inode lock of the kernel excludes other
        // writers.
        let end = draft.size();
        Ok(self.write_at(draft, end, bytes)?)
    }

    fn write_at(&self, draft: &Draft, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        for (part, at) in bytes.chunks(MAX_IO_BYTES as usize).zip((offset..).step_by(MAX_IO_BYTES as usize)) {
            self.files.operate(Op::Write { handle: draft.handle, offset: at }, part)?;
            draft.size.fetch_max(at + part.len() as u64, Ordering::AcqRel);
        }
        draft.touch();
        Ok(())
    }

    fn resize(&self, draft: &Draft, bytes: u64) -> Result<(), Error> {
        self.ask(Op::SetLen { handle: draft.handle, bytes })?;
        draft.size.store(bytes, Ordering::Release);
        draft.touch();
        Ok(())
    }

    /// Truncates or extends a file. It is published by `close` if the program has it open to write, else now.
    pub(super) fn set_size(&self, id: u64, bytes: u64, is_open: bool) -> Result<(), FuseError> {
        let content = self.join(id)?;
        let done = self.set_size_in(id, &content, bytes, is_open);
        self.leave(id, &content);
        done
    }

    fn set_size_in(&self, id: u64, content: &OpenInode, bytes: u64, is_open: bool) -> Result<(), FuseError> {
        self.open_draft(id, content, bytes == 0)?;
        let resized = match &*content.draft() {
            Some(draft) if bytes > 0 => self.resize(draft, bytes),
            _ => Ok(()),
        };
        let published = match resized {
            Ok(()) if !is_open => self.publish(id, content),
            outcome => outcome.map_err(FuseError::from),
        };
        self.stop_writing(id, content);
        published
    }

    /// `fallocate`: extends the file if its end lies beyond the size.
    pub(super) fn extend(&self, fh: u64, end: u64) -> Result<(), FuseError> {
        let open = self.find(fh)?;
        match &*open.content.draft() {
            Some(draft) if end > draft.size() => Ok(self.resize(draft, end)?),
            Some(_) => Ok(()),
            None => Err(FuseError::plain(libc::EBADF)),
        }
    }

    /// Sets the modification time of unpublished data; returns whether there was any.
    pub(super) fn time_draft(&self, id: u64, mtime: FileTime) -> Result<bool, Error> {
        let content = self.table().node(id)?.content.clone();
        let Some(content) = content else { return Ok(false) };
        let draft = content.draft();
        let Some(draft) = &*draft else { return Ok(false) };
        let mut changed = draft.changed();
        if changed.is_dirty {
            changed.mtime = mtime;
        }
        Ok(changed.is_dirty)
    }

    // ---- publishing --------------------------------------------------------------------------------------------------

    /// A program closed a file or called `fsync`.
    pub(super) fn flush(&self, fh: u64) -> Result<(), FuseError> {
        let open = self.find(fh)?;
        if open.writes { self.publish(open.id, &open.content) } else { Ok(()) }
    }

    /// Publishes the draft of a file, if it is open.
    pub(super) fn publish_if_open(&self, id: u64) -> Result<(), FuseError> {
        let content = self.table().node(id)?.content.clone();
        content.map_or(Ok(()), |content| self.publish(id, &content))
    }

    fn publish(&self, id: u64, content: &OpenInode) -> Result<(), FuseError> {
        let draft = content.draft_mut();
        let Some(draft) = &*draft else { return Ok(()) };
        let changed = *draft.changed();
        // The draft of a removed file goes with its last open handle.
        if !changed.is_dirty || self.is_removed(id)? {
            return Ok(());
        }
        let path = self.table().path(id)?;
        let op = Op::Publish { handle: draft.handle, mtime: Some(changed.mtime) };
        let item = super::item(self.ask_changing(op, vec![path.clone()])?.0)?;
        if is_put_beside(&item.entry.path, &path) {
            self.on_beside(id, draft, &item, &path);
            return Ok(());
        }
        let (now, before) = (self.owners.attr(&item), self.table().node(id)?.known);
        if now.size != draft.size() {
            let cause = format!("it has {} bytes of {}", now.size, draft.size());
            return Err(Error::new(Code::IoFailed, "publish", &item.entry.path, cause).into());
        }
        draft.on_published();
        let others = self.table().publish(id, now);
        self.invalidate_attrs_of(&others);
        if now.mode != before.mode {
            // Set-id bits were cleared with the old content.
            self.invalidate_attrs(id);
        }
        Ok(())
    }

    /// The written data was not published and never will be: the kernel's cache still has it and is invalidated.
    fn on_lost(&self, id: u64) {
        if let Ok(node) = self.table().node(id) {
            (node.cached, node.attr_epoch) = (None, None);
        }
        self.invalidate_attrs(id);
    }

    /// The written data was published as a conflict copy, because another site wrote the file meanwhile.
    fn on_beside(&self, id: u64, draft: &Draft, item: &Item, path: &RelPath) {
        let cause =
            format!("another site has written it since; the version written here is {}", item.entry.path);
        self.error_log.keep(&Error::new(Code::BothStay, "publish", path, cause));
        draft.on_published();
        draft.is_behind.store(true, Ordering::Release);
        if let Ok(node) = self.table().node(id) {
            (node.cached, node.attr_epoch) = (None, None);
        }
        self.invalidate_attrs(id);
    }

    /// Publishes all drafts; errors are logged. Returns the number of failures.
    pub(super) fn publish_all(&self) -> usize {
        let open = self.table().open();
        let failed = open.iter().filter(|(id, content)| {
            let outcome = self.publish(*id, content);
            let failed = outcome.is_err();
            if let Err(FuseError { error: Some(error), .. }) = outcome {
                self.error_log.keep(&error);
            }
            failed
        });
        failed.count()
    }

    /// Decrements the writer count. The last writer publishes the data that came after the flush of `close`, as it
    /// does from programs that have the file mapped.
    fn stop_writing(&self, id: u64, content: &OpenInode) {
        if content.writers.load(Ordering::Acquire) == 1
            && let Err(FuseError { error: Some(error), .. }) = self.publish(id, content)
            // A file that was removed while it was open is not missed.
            && error.code != Code::PathNotFound
        {
            // No program receives this error, or it received it at the close.
            self.error_log.keep(&error);
        }
        let _draft = content.draft_mut();
        content.writers.fetch_sub(1, Ordering::Release);
    }

    pub(super) fn release(&self, fh: u64) {
        let open = self.opens.lock().unwrap_or_else(PoisonError::into_inner).remove(&fh);
        let Some(open) = open else { return };
        if open.writes {
            self.stop_writing(open.id, &open.content);
        }
        let version = open.version.filter(|version| !open.content.shared().contains(version));
        self.leave(open.id, &open.content);
        if let Some(version) = version {
            self.close(version);
        }
    }
}

/// Whether a file was published as a conflict copy beside the one that it was to be.
fn is_put_beside(published: &RelPath, path: &RelPath) -> bool {
    let names = published.name().zip(path.name());
    names.is_some_and(|(name, other)| is_beside(name, other) && published.parent() == path.parent())
}

/// The kernel's flags for an open file: appending bypasses its cache, whose end of file may be out of date.
fn opened_flags(is_cached: bool, appends: bool) -> FopenFlags {
    let cached = if is_cached { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() };
    if appends { cached | FopenFlags::FOPEN_DIRECT_IO } else { cached }
}
