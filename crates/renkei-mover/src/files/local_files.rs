//! The open-file table over a store: operations on single files, performed directly below one directory.
//!
//! Callers (a mount, a file session of another site) see that directory as the root. Each open file has a handle,
//! which is shared by all threads that use the table; the credentials of those threads decide what is allowed.
//! Symbolic links in a path are not followed: a caller that looks up names one by one follows them itself.
//!
//! Guarantees: no version is visible before it is published; an open handle continues to read the version that was
//! opened; a draft follows its file when that is renamed through the same table, and cannot be published once it is
//! removed. Non-goal: changing a file in place.

use super::checksum_on_demand::{ChecksumCache, checksum_of};
use super::draft::{Beginning, Draft, Names, Published, Target, refuse_losses};
use super::file_handle;
use super::limit::{Limit, within};
use super::uploads::UploadJournals;
use super::watch::DirWatch;
use renkei_config::random::{random_bytes, random_number};
use renkei_core::backoff::Backoff;
use renkei_core::entry::{Entry, EntryKind, FileTime, Meta, Xattr};
use renkei_core::error::{Code, Error};
use renkei_core::identity::rights::is_change;
use renkei_core::lease::Noted;
use renkei_core::lease::locks::{FileKey, Span};
use renkei_core::name_table::{NameTable, NamesFrom};
use renkei_core::path::{RelPath, printable};
use renkei_core::wire::file::{
    Alteration, Answer, Consistency, Depth, FileHandle, Files, Freshness, Handle, Item, Locality,
    MAX_IO_BYTES, Op, Precondition, Start, Watch,
};
use renkei_core::wire::message::{Algorithm, BATCH_ENTRIES};
use renkei_core::wire::{encode, violation};
use renkei_store::leases::LeaseHolder;
use renkei_store::locks::{LockAt, Locker};
use renkei_store::metadata::is_own;
use renkei_store::permission_denied::{Attempt, refused};
use renkei_store::setuid_files::refuses_set_id;
use renkei_store::temp::{is_temp_name, refuse_temp_names, temp_name};
use renkei_store::{Detail, Dir, Listing, Raw, ReadFile, Store, passwd};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most handles of one open-file table.
pub const MAX_OPEN: usize = 4096;
/// Bytes of entries in one answer about a directory.
const ITEMS_BYTES: usize = 1 << 20;
/// Unit of a file's blocks.
const BLOCK_BYTES: u64 = 512;
/// Most attempts to open a file that is replaced concurrently.
const MAX_RACES: u32 = 16;
/// Timeout for the content of a version that another site announces already.
const VERSION_WITHIN: Duration = Duration::from_secs(10);
/// Backoff meanwhile.
const VERSION_BACKOFF: Backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));

/// A directory of a store, and the open files below it.
pub struct LocalFiles {
    pub(super) store: Arc<dyn Store>,
    path: RelPath,
    base: Arc<dyn Dir>,
    is_writable: bool,
    /// How much of other sites' changes an open has to see.
    consistency: Consistency,
    /// The client's lease holder, if it asked for leases.
    holder: Option<Arc<LeaseHolder>>,
    /// Decides about the client's locks.
    locker: Option<Arc<dyn Locker>>,
    /// Keeps checksums that were computed on demand.
    checksums: Option<Arc<dyn ChecksumCache>>,
    /// Knows where content is; none if all of it is here.
    staging: Option<Arc<dyn Staging>>,
    /// Keeps account of uploads in parts.
    pub(super) journals: Option<Arc<dyn UploadJournals>>,
    job: u64,
    /// Number of drafts kept for another session to resume; `None` if all are removed with the open-file table.
    left: Option<Arc<AtomicUsize>>,
    /// The check of each operation against the rights of a restricted credential.
    pub(super) limit: Option<Limit>,
    open: Mutex<Table>,
    names: Names,
}

/// Content that may be at other sites; paths are relative to the place.
pub trait Staging: Send + Sync {
    /// Where the content of a file is.
    ///
    /// # Errors
    /// `PathNotFound`, and those of the records.
    fn locality(&self, path: &RelPath) -> Result<Locality, Error>;

    /// Brings the content here.
    ///
    /// # Errors
    /// `NotAllowed`, and those of the transfer.
    fn stage(&self, path: &RelPath) -> Result<(), Error>;

    /// Gives up the content here, if another site has it.
    ///
    /// # Errors
    /// `NotAllowed`, and those of the removal.
    fn release(&self, path: &RelPath) -> Result<(), Error>;
}

struct Table {
    next: Handle,
    open: HashMap<Handle, Arc<Open>>,
}

pub(super) enum Open {
    File(Box<dyn ReadFile>),
    Dir(Mutex<Reading>),
    Draft(Draft),
}

/// A directory that is being listed.
pub(super) struct Reading {
    pub(super) dir: Arc<dyn Dir>,
    listing: Listing,
    /// Read from the listing and not returned yet.
    next: Option<Item>,
    /// Whether the reader has a lease on the directory.
    is_held: bool,
}

impl LocalFiles {
    /// An open-file table on the directory `path` of a store, which it keeps open.
    ///
    /// # Errors
    /// As [`Store::dir`].
    pub fn new(store: Arc<dyn Store>, path: RelPath, is_writable: bool) -> Result<Self, Error> {
        let base = store.dir(&path)?;
        let (job, first) = (u64::from_le_bytes(random_bytes()?), u64::from_le_bytes(random_bytes()?));
        // A random start keeps handles of another table invalid here.
        let table = Table { next: first >> 1, open: HashMap::new() };
        Ok(LocalFiles {
            store,
            path,
            base,
            is_writable,
            consistency: Consistency::CloseToOpen,
            holder: None,
            locker: None,
            checksums: None,
            staging: None,
            journals: None,
            job,
            left: None,
            limit: None,
            open: Mutex::new(table),
            names: Names::default(),
        })
    }

    /// Keeps drafts that are not closed, under the key `job`; they are counted in `left`.
    pub fn leaving(self, job: u64, left: Arc<AtomicUsize>) -> Self {
        LocalFiles { job, left: Some(left), ..self }
    }

    /// Refuses operations that `limit` refuses.
    pub fn limited(self, limit: Option<Limit>) -> Self {
        LocalFiles { limit, ..self }
    }

    /// Sets the consistency that opens must have.
    pub fn seeing(self, consistency: Consistency) -> Self {
        LocalFiles { consistency, ..self }
    }

    /// Waits until an open sees all earlier closes; returns whether the store had to send a request for that.
    fn catch_up(&self) -> Result<bool, Error> {
        if self.consistency == Consistency::Relaxed {
            return Ok(false);
        }
        match self.store.catch_up() {
            Err(error) if self.consistency == Consistency::Strict => Err(error),
            Err(error) => {
                tracing::debug!(%error, "what is opened is as far as it came here");
                Ok(false)
            }
            had_to_ask => had_to_ask,
        }
    }

    /// Sets the lease holder.
    pub fn held_by(self, holder: Arc<LeaseHolder>) -> Self {
        LocalFiles { holder: Some(holder), ..self }
    }

    /// Sets the decider about the client's locks.
    pub fn locked_by(self, locker: Arc<dyn Locker>) -> Self {
        LocalFiles { locker: Some(locker), ..self }
    }

    /// Sets the cache of checksums that are computed on demand.
    pub fn with_checksums(self, cache: Arc<dyn ChecksumCache>) -> Self {
        LocalFiles { checksums: Some(cache), ..self }
    }

    /// Sets the journals of uploads.
    pub fn with_uploads(self, journals: Arc<dyn UploadJournals>) -> Self {
        LocalFiles { journals: Some(journals), ..self }
    }

    /// Sets what knows where content is; without it all of it is here.
    pub fn with_staging(self, staging: Option<Arc<dyn Staging>>) -> Self {
        LocalFiles { staging, ..self }
    }

    fn by_handle(&self, handle: &FileHandle) -> Result<Answer, Error> {
        let look = Op::Look(file_handle::find(&self.base, handle)?);
        within(self.limit.as_ref(), look, |look| self.told(look, b""))
    }

    /// What the staging of the place says of an entry, or `online` where there is none.
    fn staged<T>(
        &self,
        path: &RelPath,
        work: impl FnOnce(&dyn Staging) -> Result<T, Error>,
        online: T,
    ) -> Result<T, Error> {
        self.look_anywhere(path)?;
        self.staging.as_deref().map_or(Ok(online), work)
    }

    /// The decider about the lock of a file, and the file's identity there.
    fn locker(&self, path: &RelPath) -> Result<(&dyn Locker, LockAt), Error> {
        let nobody = || Error::new(Code::LocksAway, "lock", path, "locks are not managed here");
        let locker = self.locker.as_deref().ok_or_else(nobody)?;
        let (dir, name) = self.place(path)?;
        let ino = dir.self_entry(Detail::Basic)?.1.ino;
        let key = FileKey { device: dir.device(), dir: ino, name };
        Ok((locker, LockAt { path: self.path.join(path)?, key }))
    }

    fn lock(&self, path: &RelPath, owner: u64, span: &Span) -> Result<Answer, Error> {
        let (locker, at) = self.locker(path)?;
        locker.lock(at, owner, span).map(done)
    }

    fn find_lock(&self, path: &RelPath, owner: u64, span: &Span) -> Result<Answer, Error> {
        let (locker, at) = self.locker(path)?;
        locker.find(at, owner, span).map(Answer::Locked)
    }

    /// Registers the holder on a directory before it reads there; returns whether the content is under a lease.
    fn note(&self, dir: &dyn Dir) -> bool {
        let Some(holder) = &self.holder else { return false };
        dir.self_entry(Detail::Basic).is_ok_and(|(_, raw)| holder.note(raw.ino) != Noted::No)
    }

    /// Registers the holder on a directory itself. If it was not registered before, the attributes read earlier may
    /// have changed since: `None` then.
    fn note_found(&self, item: &Item) -> Option<bool> {
        match &self.holder {
            Some(holder) if item.entry.kind == EntryKind::Dir => match holder.note(item.ino) {
                Noted::New => None,
                noted => Some(noted == Noted::Known),
            },
            holder => Some(holder.is_some()),
        }
    }

    /// The answer, marked as leased if it is.
    fn held(is_held: bool, answer: Answer, dirs: Vec<Item>) -> Answer {
        if is_held { Answer::Held { answer: Box::new(answer), dirs } } else { answer }
    }

    /// The directories that an operation changes, for a lease holder, which gets their new attributes.
    fn parents_of(&self, op: &Op) -> Vec<Arc<dyn Dir>> {
        if self.holder.is_none() {
            return Vec::new();
        }
        let published = match op {
            Op::Publish { handle, .. } | Op::PublishIf { handle, .. } | Op::PublishWith { handle, .. } => {
                self.draft(*handle).ok().and_then(|open| match &*open {
                    Open::Draft(draft) => Some(draft.target().path.clone()),
                    _ => None,
                })
            }
            _ => None,
        };
        let paths = published.as_ref().into_iter().chain(op.changed_paths());
        let dirs = paths.filter(|path| !path.is_root()).map(|path| self.place(path).map(|(dir, _)| dir));
        dirs.collect::<Result<_, Error>>().unwrap_or_default()
    }

    /// Looks up a path; a name that is missing here may exist at another site.
    fn look_anywhere(&self, path: &RelPath) -> Result<Answer, Error> {
        match self.look_held(path) {
            Err(error) if error.code == Code::PathNotFound && self.catch_up()? => self.look_held(path),
            looked => looked,
        }
    }

    fn look_held(&self, path: &RelPath) -> Result<Answer, Error> {
        if self.holder.is_none() {
            return Ok(Answer::Item(self.look(path)?));
        }
        let is_held = match path.is_root() {
            true => self.note(&*self.base),
            false => self.note(&*self.place(path)?.0),
        };
        let item = self.look(path)?;
        let (item, found) = match self.note_found(&item) {
            Some(found) => (item, found),
            None => (self.look(path)?, true),
        };
        Ok(Self::held(is_held && found, Answer::Item(item), Vec::new()))
    }

    /// The key in the names of the temporary files.
    pub fn job(&self) -> u64 {
        self.job
    }

    /// Number of open handles.
    pub fn open_count(&self) -> usize {
        self.table().open.len()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, open: Open) -> Result<Handle, Error> {
        let handle = self.next_handle();
        self.insert(handle, open).map(|()| handle)
    }

    pub(super) fn insert(&self, handle: Handle, open: Open) -> Result<(), Error> {
        let mut table = self.table();
        if table.open.len() >= MAX_OPEN {
            drop(table);
            return Err(too_many());
        }
        table.open.insert(handle, Arc::new(open));
        Ok(())
    }

    pub(super) fn find(&self, handle: Handle) -> Result<Arc<Open>, Error> {
        self.table().open.get(&handle).cloned().ok_or_else(|| unknown(handle))
    }

    fn draft(&self, handle: Handle) -> Result<Arc<Open>, Error> {
        let open = self.find(handle)?;
        if matches!(*open, Open::Draft(_)) { Ok(open) } else { Err(unknown(handle)) }
    }

    pub(super) fn dir(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        if path.is_root() { Ok(self.base.clone()) } else { self.base.descend(path) }
    }

    /// The directory that holds `path`, and its name there.
    fn place(&self, path: &RelPath) -> Result<(Arc<dyn Dir>, Vec<u8>), Error> {
        let Some(name) = path.name() else {
            let cause = "the top of what was opened";
            return Err(Error::new(Code::BadPath, "open", path, cause));
        };
        Ok((self.dir(&path.parent().unwrap_or_default())?, name.to_vec()))
    }

    pub(super) fn target(&self, path: &RelPath) -> Result<Target, Error> {
        let (dir, name) = self.place(path)?;
        Ok(Target { dir, name, path: path.clone(), is_gone: false })
    }

    fn expect_writable(&self, op: &Op) -> Result<(), Error> {
        if is_change(op) { self.expect_writing() } else { Ok(()) }
    }

    pub(super) fn expect_writing(&self) -> Result<(), Error> {
        if self.is_writable {
            return Ok(());
        }
        Err(Error::new(Code::ReadOnlyStorage, "write", &self.path, "it was opened for reading alone"))
    }

    fn look(&self, path: &RelPath) -> Result<Item, Error> {
        self.look_for(path, Detail::Basic)
    }

    fn look_for(&self, path: &RelPath, detail: Detail) -> Result<Item, Error> {
        if path.is_root() {
            return Ok(item(self.base.self_entry(detail)?, path.clone()));
        }
        let (dir, name) = self.place(path)?;
        Ok(item(dir.entry(&name, detail)?, path.clone()))
    }

    fn open_dir(&self, path: &RelPath) -> Result<Answer, Error> {
        self.catch_up()?;
        // A fresh handle: its read-ahead of the listing begins now.
        let dir = self.base.descend(path)?;
        let is_held = self.note(&*dir);
        let item = item(dir.self_entry(Detail::Basic)?, path.clone());
        let listing = dir.list()?;
        let handle = self.keep(Open::Dir(Mutex::new(Reading { dir, listing, next: None, is_held })))?;
        Ok(Answer::Opened { handle, item })
    }

    fn read_dir(&self, handle: Handle) -> Result<Answer, Error> {
        let open = self.find(handle)?;
        let Open::Dir(reading) = &*open else { return Err(unknown(handle)) };
        let mut reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut items, more) = reading.part()?;
        let is_held = reading.is_held && self.note_all(&*reading.dir, &mut items)?;
        Ok(Self::held(is_held, Answer::Items { items, more }, Vec::new()))
    }

    /// Registers the holder on listed directories, and reads those again that were not registered before.
    fn note_all(&self, dir: &dyn Dir, items: &mut [Item]) -> Result<bool, Error> {
        let mut is_held = true;
        for found in items {
            let Some(known) = self.note_found(found) else {
                *found =
                    item(dir.entry(found.entry.path.as_bytes(), Detail::Basic)?, found.entry.path.clone());
                continue;
            };
            is_held &= known;
        }
        Ok(is_held)
    }

    fn open(&self, path: &RelPath) -> Result<Answer, Error> {
        self.catch_up()?;
        let (dir, name) = self.place(path)?;
        let (file, item) = of_one_version(&*dir, &name, path)?;
        Ok(Answer::Opened { handle: self.keep(Open::File(file))?, item })
    }

    fn begin_draft(&self, path: &RelPath, start: Start, mode: u32) -> Result<Answer, Error> {
        self.catch_up()?;
        let target = self.target(path)?;
        if self.table().open.len() >= MAX_OPEN {
            // Checked before anything is created.
            return Err(too_many());
        }
        let (beginning, found) = match start {
            Start::New => (Beginning::New, None),
            Start::Empty | Start::OnlyNew => (Beginning::Empty, None),
            Start::Content => {
                let (file, item) = of_one_version(&*target.dir, &target.name, path)?;
                (Beginning::Content(file), Some(item))
            }
        };
        let (handle, mode) = (self.next_handle(), mode & 0o7777);
        if start == Start::OnlyNew && item_or_nothing(&target, path, mode)?.links > 0 {
            return Err(Error::new(Code::PathExists, "create", path, ""));
        }
        let draft = Draft::begin(target.clone(), self.temp(handle)?, beginning, mode, self.left.clone())?;
        if start == Start::OnlyNew {
            draft.require(Precondition::Absent);
        }
        let item = match found {
            Some(item) => item,
            None => item_or_nothing(&target, path, mode)?,
        };
        self.table().open.insert(handle, Arc::new(Open::Draft(draft)));
        Ok(Answer::Opened { handle, item })
    }

    pub(super) fn next_handle(&self) -> Handle {
        let mut table = self.table();
        table.next += 1;
        table.next - 1
    }

    /// The temporary name of a draft.
    fn temp(&self, handle: Handle) -> Result<Vec<u8>, Error> {
        Ok(temp_name(self.job, &RelPath::parse(format!("draft-{handle}").as_bytes())?))
    }

    /// Resumes a draft that an open-file table with the same key left.
    fn resume(&self, path: &RelPath, handle: Handle, mode: u32) -> Result<Answer, Error> {
        let (target, temp) = (self.target(path)?, self.temp(handle)?);
        let lost = || Error::new(Code::DraftLost, "resume", path, "the site has not kept it");
        let is_there = self.left.is_some() && target.dir.entry(&temp, Detail::Basic).is_ok();
        if !is_there || self.find(handle).is_ok() {
            return Err(lost());
        }
        let item = item_or_nothing(&target, path, mode)?;
        let draft = Draft::resume(target, temp, mode & 0o7777, self.left.clone())?;
        self.table().open.insert(handle, Arc::new(Open::Draft(draft)));
        Ok(Answer::Opened { handle, item })
    }

    fn write(&self, handle: Handle, offset: u64, content: &[u8]) -> Result<Answer, Error> {
        if content.len() > MAX_IO_BYTES as usize {
            return Err(violation("write", format_args!("{} bytes", content.len())));
        }
        match &*self.draft(handle)? {
            Open::Draft(draft) => draft.write(content, offset).map(|()| Answer::Done),
            _ => Err(unknown(handle)),
        }
    }

    fn set_len(&self, handle: Handle, bytes: u64) -> Result<Answer, Error> {
        match &*self.draft(handle)? {
            Open::Draft(draft) => draft.set_len(bytes).map(|()| Answer::Done),
            _ => Err(unknown(handle)),
        }
    }

    pub(super) fn publish(&self, handle: Handle, mtime: Option<FileTime>) -> Result<Answer, Error> {
        let open = self.draft(handle)?;
        let Open::Draft(draft) = &*open else { return Err(unknown(handle)) };
        let published = draft.publish(mtime, &self.names)?;
        let target = draft.target().clone();
        let found = target.dir.entry(&target.name, Detail::Basic);
        Ok(Answer::Item(match published {
            Some(published) => published_item(found.ok(), published, target.path),
            None => item(found?, target.path),
        }))
    }

    pub(super) fn close(&self, handle: Handle) -> Result<Answer, Error> {
        let closed = self.table().open.remove(&handle).ok_or_else(|| unknown(handle))?;
        if let Open::Draft(draft) = &*closed {
            draft.give_up();
        }
        // Dropped outside the lock: that may remove a temporary file.
        drop(closed);
        Ok(Answer::Done)
    }

    fn alter(&self, path: &RelPath, change: &Alteration) -> Result<Item, Error> {
        if path.is_root() {
            let before = self.base.self_entry(Detail::Full)?.0.meta;
            refuse_losses(self.base.set_own_meta(&change.applied_to(&before))?)?;
        } else {
            let (dir, name) = self.place(path)?;
            let before = dir.entry(&name, Detail::Full)?.0;
            let wanted = change.applied_to(&before.meta);
            // Checked first, so that a refused change has no effect.
            if let Some(why) = refuses_set_id(&before, wanted.mode) {
                return Err(Error::new(Code::PermissionDenied, "chmod", &before.path, why));
            }
            refuse_losses(dir.set_meta(&name, &wanted)?)?;
        }
        let after = self.look(path)?;
        let was_given =
            |wanted: &Option<String>, now: &String| wanted.as_ref().is_none_or(|name| name == now);
        let meta = &after.entry.meta;
        if was_given(&change.owner, &meta.owner) && was_given(&change.group, &meta.group) {
            return Ok(after);
        }
        let cause = "the account may not give it to that owner or group, or there is none of that name";
        Err(Error::new(Code::PermissionDenied, "chown", path, cause))
    }

    fn set_xattr(&self, path: &RelPath, xattr: &[u8], value: Option<&[u8]>) -> Result<Item, Error> {
        if path.is_root() {
            self.base.set_xattr(b"", xattr, value)?;
        } else {
            let (dir, name) = self.place(path)?;
            dir.set_xattr(&name, xattr, value)?;
        }
        self.look_for(path, Detail::Full)
    }

    fn checksum(
        &self,
        handle: Handle,
        algorithm: Algorithm,
        freshness: Freshness,
    ) -> Result<Option<Vec<u8>>, Error> {
        let open = self.find(handle)?;
        let Open::File(file) = &*open else { return Err(unknown(handle)) };
        // A session that ended needs no checksum any more.
        let go_on = || self.names.expect_more();
        checksum_of(&**file, algorithm, freshness, self.checksums.as_deref(), &go_on)
    }

    fn make_dir(&self, path: &RelPath, mode: u32) -> Result<Item, Error> {
        let (dir, name) = self.place(path)?;
        dir.mkdir(&name, mode)?;
        let made = self.look(path)?;
        let (wanted, has) = (mode & 0o777, made.entry.meta.mode);
        if has & 0o777 == wanted {
            return Ok(made);
        }
        // The umask to apply is the client's, not that of this process.
        self.alter(path, &Alteration { mode: Some(has & !0o777 | wanted), ..Alteration::default() })
    }

    fn make_symlink(&self, path: &RelPath, target: &[u8]) -> Result<Item, Error> {
        let (dir, name) = self.place(path)?;
        dir.symlink(target, &name)?;
        self.look(path)
    }

    fn make_link(&self, from: &RelPath, to: &RelPath) -> Result<Item, Error> {
        let ((dir, name), (to_dir, to_name)) = (self.place(from)?, self.place(to)?);
        dir.hard_link(&name, &*to_dir, &to_name)?;
        self.look(to)
    }

    fn remove(&self, path: &RelPath) -> Result<(), Error> {
        let (dir, name) = self.place(path)?;
        let _names = self.names.take()?;
        dir.remove_file(&name)?;
        self.each_draft(|target| target.is_gone |= target.path == *path);
        Ok(())
    }

    fn remove_dir(&self, path: &RelPath) -> Result<(), Error> {
        let (dir, name) = self.place(path)?;
        dir.remove_dir(&name)
    }

    fn rename(&self, from: &RelPath, to: &RelPath, replace: bool) -> Result<(), Error> {
        if from != to && to.starts_with(from) {
            return Err(Error::new(Code::RenamedIntoItself, "rename", from, to));
        }
        let ((dir, name), (to_dir, to_name)) = (self.place(from)?, self.place(to)?);
        let _names = self.names.take()?;
        match replace {
            true => dir.rename(&name, &*to_dir, &to_name)?,
            false => dir.rename_no_replace(&name, &*to_dir, &to_name)?,
        }
        if from != to {
            // Two names of one file: the rename did nothing, and both names exist. The mount takes them for swapped,
            // as its kernel does.
            match file_number(&*dir, &name).is_some_and(|own| file_number(&*to_dir, &to_name) == Some(own)) {
                true => self.each_draft(|target| self.swap(target, from, to)),
                false => self.each_draft(|target| self.follow(target, from, to)),
            }
        }
        Ok(())
    }

    /// Updates a draft's target after a rename.
    fn follow(&self, target: &mut Target, from: &RelPath, to: &RelPath) {
        if target.path == *to {
            target.is_gone = true;
        }
        if let Some(path) = target.path.below(from).and_then(|below| to.join(&below).ok()) {
            self.move_to(target, &path);
        }
    }

    /// Updates a draft's target after a rename between two names of its file.
    fn swap(&self, target: &mut Target, from: &RelPath, to: &RelPath) {
        match &target.path {
            path if path == from => self.move_to(target, to),
            path if path == to => self.move_to(target, from),
            _ => {}
        }
    }

    /// Redirects a draft, unless its file is gone, to another path.
    fn move_to(&self, target: &mut Target, path: &RelPath) {
        if target.is_gone {
            return;
        }
        match self.target(path) {
            Ok(moved) => *target = moved,
            Err(_) => target.is_gone = true,
        }
    }

    fn each_draft(&self, mut change: impl FnMut(&mut Target)) {
        let open: Vec<_> = self.table().open.values().cloned().collect();
        for open in open {
            if let Open::Draft(draft) = &*open {
                change(&mut draft.target());
            }
        }
    }

    fn space(&self) -> Result<Answer, Error> {
        self.store.space(&self.path).map(Answer::Space)
    }
}

impl Files for LocalFiles {
    fn require(&self, draft: Handle, condition: Precondition) -> Result<(), Error> {
        let open = self.draft(draft)?;
        open.as_draft().map(|draft| draft.require(condition)).ok_or_else(|| unknown(draft))
    }

    fn describe(&self, draft: Handle, attributes: Vec<Xattr>) -> Result<(), Error> {
        let open = self.draft(draft)?;
        open.as_draft().ok_or_else(|| unknown(draft))?.describe(attributes)
    }

    fn operate(&self, op: Op, content: &[u8]) -> Result<Answer, Error> {
        within(self.limit.as_ref(), op, |op| self.perform(op, content))
    }

    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        match &*self.find(handle)? {
            Open::File(file) => file.read_at(buf, offset),
            Open::Draft(draft) => draft.read(buf, offset),
            Open::Dir(_) => Err(unknown(handle)),
        }
    }

    fn descriptor(&self, handle: Handle) -> Option<OwnedFd> {
        match &*self.find(handle).ok()? {
            Open::File(file) => file.descriptor()?.try_clone_to_owned().ok(),
            _ => None,
        }
    }

    fn names(&self, dir: &RelPath, from: &NamesFrom) -> Result<Option<Arc<NameTable>>, Error> {
        self.names_of(dir, from).map(Some)
    }

    fn look_at_names(&self, dir: &RelPath, names: &[Vec<u8>]) -> Result<Option<Vec<Option<Item>>>, Error> {
        self.items_of(dir, names).map(Some)
    }

    fn watch(&self, dir: &RelPath, depth: Depth) -> Result<Box<dyn Watch>, Error> {
        let list = Op::OpenDir(dir.clone());
        let open = |_| Ok(Box::new(DirWatch::open(self.base.clone(), dir, depth)?) as Box<dyn Watch>);
        within(self.limit.as_ref(), list, open)
    }

    fn fence(&self) {
        self.names.fence();
    }
}

impl LocalFiles {
    fn perform(&self, op: Op, content: &[u8]) -> Result<Answer, Error> {
        self.expect_writable(&op)?;
        if !op.changes() {
            return self.told(op, content);
        }
        self.names.expect_more()?;
        let parents = self.parents_of(&op);
        let is_held = !parents.is_empty() && parents.iter().all(|dir| self.note(&**dir));
        let from = match &op {
            Op::Rename { from, .. } => from.name().map(<[u8]>::to_vec),
            _ => None,
        };
        let done = self.told(op, content);
        // Also after an error: the operation may have taken effect in part.
        self.store.settle();
        // A rename onto another name of the same file does nothing; a client that does not know that name would miss
        // the old one.
        let is_gone = |name: Vec<u8>| {
            parents[0].entry(&name, Detail::Basic).is_err_and(|error| error.code == Code::PathNotFound)
        };
        if !is_held || !from.is_none_or(is_gone) {
            return done;
        }
        let dirs = parents.iter().map(|dir| Ok(item(dir.self_entry(Detail::Basic)?, dir.path().clone())));
        let dirs: Result<Vec<Item>, Error> = dirs.collect();
        Ok(Self::held(dirs.is_ok(), done?, dirs.unwrap_or_default()))
    }

    /// Performs an operation; a refusal by the file system is reported with the account and the owner.
    fn told(&self, op: Op, content: &[u8]) -> Result<Answer, Error> {
        let (attempt, paths) = match &op {
            Op::Look(path)
            | Op::LookFull(path)
            | Op::FileHandle(path)
            | Op::OpenDir(path)
            | Op::Open(path) => (Attempt::Read, vec![path.clone()]),
            Op::Alter { path, .. } => (Attempt::Alter, vec![path.clone()]),
            Op::SetXattr { path, name, .. } => {
                refuse_own_attributes(path, name)?;
                (Attempt::Alter, vec![path.clone()])
            }
            Op::Rename { from, to, .. } | Op::MakeLink { from, to } => {
                refuse_temp_names("make", to)?;
                (Attempt::Name, vec![from.clone(), to.clone()])
            }
            Op::Draft { path, .. }
            | Op::MakeDir { path, .. }
            | Op::MakeSymlink { path, .. }
            | Op::Upload { path, .. } => {
                refuse_temp_names("make", path)?;
                (Attempt::Name, vec![path.clone()])
            }
            Op::Remove(path) | Op::RemoveDir(path) => (Attempt::Name, vec![path.clone()]),
            Op::Write { handle, .. }
            | Op::SetLen { handle, .. }
            | Op::Publish { handle, .. }
            | Op::PublishIf { handle, .. }
            | Op::PublishWith { handle, .. } => {
                let handle = *handle;
                return self.do_one(op, content).map_err(|error| match self.find(handle).as_deref() {
                    Ok(Open::Draft(draft)) => {
                        let path = draft.target().path.clone();
                        self.by_final_name(&path, error)
                    }
                    _ => error,
                });
            }
            _ => return self.do_one(op, content),
        };
        self.do_one(op, content).map_err(|error| match self.store.dir(&self.path) {
            Ok(root) if error.code == Code::PermissionDenied => {
                refused(&*root, attempt, &paths.iter().collect::<Vec<_>>(), error)
            }
            _ => self.by_final_name(&paths[0], error),
        })
    }

    /// Replaces the temporary name of a draft in an error by the final name.
    fn by_final_name(&self, path: &RelPath, error: Error) -> Error {
        let name = error.subject.rsplit('/').next().unwrap_or_default();
        match self.path.join(path) {
            Ok(path) if is_temp_name(name.as_bytes()) => Error { subject: path.to_string(), ..error },
            _ => error,
        }
    }

    fn do_one(&self, op: Op, content: &[u8]) -> Result<Answer, Error> {
        Ok(match op {
            Op::Look(path) => self.look_anywhere(&path)?,
            Op::OpenDir(path) => self.open_dir(&path)?,
            Op::ReadDir(handle) => self.read_dir(handle)?,
            Op::Open(path) => self.open(&path)?,
            Op::Read { .. } | Op::Peek { .. } => {
                return Err(violation("operation", "what is read needs a place to go to"));
            }
            Op::Draft { path, start, mode } => self.begin_draft(&path, start, mode)?,
            Op::Write { handle, offset } => self.write(handle, offset, content)?,
            Op::SetLen { handle, bytes } => self.set_len(handle, bytes)?,
            Op::Publish { handle, mtime } => self.publish(handle, mtime)?,
            Op::PublishIf { handle, mtime, condition } => {
                self.require(handle, condition)?;
                self.publish(handle, mtime)?
            }
            Op::PublishWith { handle, mtime, condition, attributes } => {
                self.require(handle, condition)?;
                self.describe(handle, attributes)?;
                self.publish(handle, mtime)?
            }
            Op::Close(handle) => self.close(handle)?,
            Op::Alter { path, change } => Answer::Item(self.alter(&path, &change)?),
            Op::LookFull(path) => Answer::Item(self.look_for(&path, Detail::Full)?),
            Op::SetXattr { path, name, value } => {
                Answer::Item(self.set_xattr(&path, &name, value.as_deref())?)
            }
            Op::MakeDir { path, mode } => Answer::Item(self.make_dir(&path, mode)?),
            Op::MakeSymlink { path, target } => Answer::Item(self.make_symlink(&path, &target)?),
            Op::MakeLink { from, to } => Answer::Item(self.make_link(&from, &to)?),
            Op::Remove(path) => done(self.remove(&path)?),
            Op::RemoveDir(path) => done(self.remove_dir(&path)?),
            Op::Rename { from, to, replace } => done(self.rename(&from, &to, replace)?),
            Op::Space => self.space()?,
            Op::Lock { path, owner, span } => self.lock(&path, owner, &span)?,
            Op::FindLock { path, owner, span } => self.find_lock(&path, owner, &span)?,
            Op::Resume { path, handle, mode } => self.resume(&path, handle, mode)?,
            Op::Upload { path, op } => self.upload(&path, op)?,
            // The file server waits for the writes of other streams before this.
            Op::Await { handle, .. } => self.draft(handle).map(|_| Answer::Done)?,
            Op::FileHandle(path) => Answer::FileHandle(file_handle::make(&self.base, &path)?),
            Op::ByHandle(handle) => self.by_handle(&handle)?,
            Op::Locality(path) => {
                let online = Locality::Online;
                Answer::Locality(self.staged(&path, |staging| staging.locality(&path), online)?)
            }
            Op::Stage(path) => self.staged(&path, |staging| staging.stage(&path), ()).map(done)?,
            Op::Release(path) => self.staged(&path, |staging| staging.release(&path), ()).map(done)?,
            Op::Checksum { handle, algorithm, freshness } => {
                Answer::Checksum(self.checksum(handle, algorithm, freshness)?)
            }
        })
    }
}

impl Reading {
    /// The next batch of entries that fits an answer.
    fn part(&mut self) -> Result<(Vec<Item>, bool), Error> {
        let (mut items, mut room) = (Vec::new(), ITEMS_BYTES);
        while let Some(item) = self.peek()? {
            let bytes = encode(item).len();
            if items.len() == BATCH_ENTRIES || bytes > room {
                return Ok((items, true));
            }
            room -= bytes;
            items.extend(self.next.take());
        }
        Ok((items, false))
    }

    fn peek(&mut self) -> Result<Option<&Item>, Error> {
        while self.next.is_none() {
            let Some(listed) = self.listing.next() else { return Ok(None) };
            let name = listed?.name;
            if is_temp_name(&name) {
                continue;
            }
            self.next = match self.dir.entry(&name, Detail::Basic) {
                Ok(found) => Some(item(found, RelPath::parse(&name)?)),
                // Removed since it was listed.
                Err(error) if error.code == Code::PathNotFound => None,
                Err(error) => return Err(error),
            };
        }
        Ok(self.next.as_ref())
    }
}

/// Refuses to set an attribute that the PoP itself keeps.
fn refuse_own_attributes(path: &RelPath, name: &[u8]) -> Result<(), Error> {
    if !is_own(name) {
        return Ok(());
    }
    let cause = format!("{} is set by the PoP alone", printable(name));
    Err(Error::new(Code::PermissionDenied, "set attribute", path, cause))
}

/// Opens a file and reads its attributes, both of one version: content derived from another version than it claims
/// would overwrite that one.
///
/// # Errors
/// The errors of the store; `SourceChanged` if the two do not agree.
fn of_one_version(dir: &dyn Dir, name: &[u8], path: &RelPath) -> Result<(Box<dyn ReadFile>, Item), Error> {
    let (begun, mut races, mut pauses) = (Instant::now(), 0, VERSION_BACKOFF.begin());
    loop {
        let file = dir.open_read(name)?;
        let item = item(dir.entry(name, Detail::Basic)?, path.clone());
        let stamp = file.stamp()?;
        // A plain file that is written in place never shows the same stamp twice.
        let is_written = races >= MAX_RACES && !file.is_version() && stamp.ino == item.ino;
        if is_written || matches!(item.entry.kind, EntryKind::File { stamp: shown, .. } if shown == stamp) {
            return Ok((file, item));
        }
        if races >= MAX_RACES && (begun.elapsed() > VERSION_WITHIN || !file.is_version()) {
            let cause = "it is replaced continuously, or its newest version does not arrive";
            return Err(Error::new(Code::SourceChanged, "open", path, cause));
        }
        if file.is_version() {
            std::thread::sleep(pauses.next(random_number()));
        }
        races += 1;
    }
}

/// The inode number of a regular file, by which hard links are recognised.
fn file_number(dir: &dyn Dir, name: &[u8]) -> Option<u64> {
    match dir.entry(name, Detail::Basic).ok()?.0.kind {
        EntryKind::File { stamp, .. } => Some(stamp.ino),
        _ => None,
    }
}

fn done((): ()) -> Answer {
    Answer::Done
}

fn too_many() -> Error {
    let cause = format!("at most {MAX_OPEN} at a time in one session");
    Error::new(Code::TooManyOpenFiles, "open", "files", cause)
}

fn unknown(handle: Handle) -> Error {
    Error::new(Code::NotOpen, "use", format_args!("handle {handle}"), "it was closed, or never opened so")
}

pub(super) fn item((mut entry, raw): (Entry, Raw), path: RelPath) -> Item {
    entry.path = path;
    if entry.meta.owner.is_empty() {
        entry.meta.owner = passwd::user_name(raw.uid).unwrap_or_default();
        entry.meta.group = passwd::group_name(raw.gid).unwrap_or_default();
    }
    Item { entry, ino: raw.ino, links: raw.nlink, blocks: raw.blocks, ctime: raw.ctime }
}

/// The attributes of a target, or those of the file to be created.
pub(super) fn item_or_nothing(target: &Target, path: &RelPath, mode: u32) -> Result<Item, Error> {
    match target.dir.entry(&target.name, Detail::Basic) {
        Ok(found) => Ok(item(found, path.clone())),
        Err(error) if error.code == Code::PathNotFound => Ok(nothing_yet(path, mode)),
        Err(error) => Err(error),
    }
}

/// The attributes of the published version, even if another version has replaced it by now.
fn published_item(found: Option<(Entry, Raw)>, published: Published, path: RelPath) -> Item {
    let Published { stamp, meta } = published;
    let shows =
        |found: &(Entry, Raw)| matches!(found.0.kind, EntryKind::File { stamp: now, .. } if now == stamp);
    match found.filter(shows) {
        Some(found) => item(found, path),
        None => {
            let (ino, ctime) = (stamp.ino, stamp.ctime);
            let (blocks, kind) = (stamp.size.div_ceil(BLOCK_BYTES), EntryKind::File { stamp, sparse: false });
            let entry = Entry { path, meta: Meta { xattrs: Vec::new(), ..meta }, kind };
            Item { entry, ino, links: 1, blocks, ctime }
        }
    }
}

/// The attributes of a file that exists only once it is published.
fn nothing_yet(path: &RelPath, mode: u32) -> Item {
    let kind = EntryKind::File { stamp: Default::default(), sparse: false };
    let meta = Meta { mode: mode & 0o7777, ..Meta::default() };
    let entry = Entry { path: path.clone(), meta, kind };
    Item { entry, ino: 0, links: 0, blocks: 0, ctime: FileTime::default() }
}
