//! The file service: typed operations on the files of one place, wherever they are.
//!
//! A [`Workspace`] works over any [`Files`]: a directory of a store, a session with another site, a union of places. Doors,
//! verbs and the mount translate their protocol into its calls and need no other way to files. Paths are relative to
//! the place. Calls block; a workspace is cheap to clone and may be used by many threads.
//!
//! Guarantees: a [`Reader`] reads one version of a file, whatever is published meanwhile; content written through a
//! [`Writer`] is invisible until it is published, complete, durable and, where the caller asks for that, verified and on
//! condition of the version before. Symbolic links are followed inside the place alone. Non-goal: writes in place.

use renkei_core::block::AlignedBlock;
use renkei_core::entry::{EntryKind, FileTime, Stamp, Xattr};
use renkei_core::error::{Code, Error};
use renkei_core::lease::locks::Span;
use renkei_core::path::RelPath;
use renkei_core::wire::file::{
    Alteration, Answer, Depth, FileHandle, Files, Freshness, Handle, Item, Locality, MAX_IO_BYTES, Op,
    Precondition, Start, Watch,
};
use renkei_core::wire::message::{Algorithm, Space};
use renkei_core::wire::uploads::{Part, UploadId, UploadOp};
use renkei_core::wire::violation;
use renkei_store::checksum::Checksum;
use renkei_store::metadata::{ACCESS_ACL, DEFAULT_ACL};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum symbolic links on the way to one file, as in Linux.
const MAX_LINKS: usize = 40;

/// The files below one place.
#[derive(Clone)]
pub struct Workspace {
    files: Arc<dyn Files>,
}

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// The link's target is meant.
    Yes,
    /// The link itself is meant.
    No,
}

/// Whether an existing name is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// It is.
    Yes,
    /// It is an error.
    No,
}

/// A POSIX access list of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessList {
    /// That of the entry itself.
    Own,
    /// That of new entries in a directory.
    Default,
}

/// The part of a directory that is listed.
#[derive(Clone, Copy, Debug)]
pub struct ListFrom<'a> {
    /// The beginning of the names.
    pub prefix: &'a [u8],
    /// The last name of the page before.
    pub after: Option<&'a [u8]>,
    /// Maximum number of names.
    pub most: usize,
}

impl Default for ListFrom<'_> {
    fn default() -> Self {
        ListFrom { prefix: b"", after: None, most: usize::MAX }
    }
}

/// A page of a directory, in the order of the names' bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The entries; the path of each is its name.
    pub items: Vec<Item>,
    /// The last name, if more follow: [`ListFrom::after`] of the next page.
    pub next: Option<Vec<u8>>,
}

/// How a new version of a file begins.
#[derive(Clone, Copy, Debug)]
pub struct Create {
    /// The initial content.
    pub start: Start,
    /// Permission bits of a file that is new.
    pub mode: u32,
    /// The condition under which it is published.
    pub condition: Precondition,
    /// The checksum to be computed of what is written.
    pub checksum: Option<Algorithm>,
}

impl Default for Create {
    fn default() -> Self {
        Create { start: Start::Empty, mode: 0o644, condition: Precondition::None, checksum: None }
    }
}

impl Workspace {
    /// A workspace over some files.
    pub fn new(files: Arc<dyn Files>) -> Self {
        Workspace { files }
    }

    /// The files themselves, for callers that pass operations on.
    pub fn files(&self) -> &Arc<dyn Files> {
        &self.files
    }

    /// The attributes of an entry.
    ///
    /// # Errors
    /// `PathNotFound`, `PermissionDenied`; `OutsideStorage` for a link that leads out of the place.
    pub fn stat(&self, path: &RelPath, follow: Follow) -> Result<Item, Error> {
        match follow {
            Follow::No => self.item(Op::Look(path.clone())),
            Follow::Yes => self.resolve(path).map(|(_, item)| item),
        }
    }

    /// A page of a directory. Each page reads the whole directory; memory is used for one page.
    ///
    /// # Errors
    /// As [`Workspace::stat`]; `NotADirectory`.
    pub fn list(&self, dir: &RelPath, follow: Follow, from: ListFrom<'_>) -> Result<Page, Error> {
        let mut listing = match follow {
            Follow::Yes => self.read_dir(dir)?,
            Follow::No => {
                let (handle, _) = opened(self.ask(Op::OpenDir(dir.clone()))?)?;
                Listing { files: self.files.clone(), handle, more: true }
            }
        };
        let mut kept = BTreeMap::new();
        let mut is_cut = false;
        while let Some(items) = listing.next_batch()? {
            for item in items {
                let name = item.entry.path.as_bytes();
                if !name.starts_with(from.prefix) || from.after.is_some_and(|after| name <= after) {
                    continue;
                }
                kept.insert(name.to_vec(), item);
                if kept.len() > from.most {
                    kept.pop_last();
                    is_cut = true;
                }
            }
        }
        let next = kept.keys().next_back().filter(|_| is_cut).cloned();
        Ok(Page { items: kept.into_values().collect(), next })
    }

    /// Opens a directory to read it once, in the order of the file system; memory is used for one batch.
    ///
    /// # Errors
    /// As [`Workspace::list`].
    pub fn read_dir(&self, dir: &RelPath) -> Result<Listing, Error> {
        let (handle, _) = self.open_resolved(dir, Op::OpenDir)?;
        Ok(Listing { files: self.files.clone(), handle, more: true })
    }

    /// Opens the present version of a file.
    ///
    /// # Errors
    /// As [`Workspace::stat`]; `IsADirectory`.
    pub fn open(&self, path: &RelPath) -> Result<Reader, Error> {
        let (handle, item) = self.open_resolved(path, Op::Open)?;
        Ok(Reader { files: self.files.clone(), handle, item })
    }

    /// The checksum of a file's present content; none if it must be known and is not.
    ///
    /// # Errors
    /// As [`Workspace::open`].
    pub fn checksum(
        &self,
        path: &RelPath,
        algorithm: Algorithm,
        freshness: Freshness,
    ) -> Result<Option<Vec<u8>>, Error> {
        self.open(path)?.checksum(algorithm, freshness)
    }

    /// Begins a new version of a file; a symbolic link to a file is followed.
    ///
    /// # Errors
    /// As [`Workspace::stat`]; `PathExists` for a name that must be free and is not.
    pub fn create(&self, path: &RelPath, create: Create) -> Result<Writer, Error> {
        let path = self.resolve_parent(path)?;
        let start = match (create.start, create.condition) {
            // A name that is taken at once could not be free at the end.
            (Start::New | Start::Empty, Precondition::Absent) => Start::OnlyNew,
            (Start::New, condition) if condition != Precondition::None => Start::Empty,
            (start, _) => start,
        };
        if create.condition == Precondition::Absent {
            // Said before content is sent; publication checks it again.
            self.expect_absent(&path)?;
        }
        let draft = |path| Op::Draft { path, start, mode: create.mode };
        let (handle, found) = self.open_resolved(&path, draft)?;
        // From here on the draft is closed on errors.
        let sum = create.checksum.map(|algorithm| Running::new(algorithm, create.start == Start::Content));
        let writer = Writer { files: self.files.clone(), handle, found, sum: Mutex::new(sum) };
        if create.condition != Precondition::None {
            self.files.require(handle, create.condition)?;
        }
        Ok(writer)
    }

    fn expect_absent(&self, path: &RelPath) -> Result<(), Error> {
        match self.item(Op::Look(path.clone())) {
            Ok(_) => Err(Error::new(Code::PathExists, "create", path, "")),
            Err(error) if error.code == Code::PathNotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Changes attributes of an entry; a symbolic link at the end of the path is not followed, those on the way only with
    /// `Follow::Yes`.
    ///
    /// # Errors
    /// As [`Workspace::stat`].
    pub fn set_attr(&self, path: &RelPath, follow: Follow, change: Alteration) -> Result<Item, Error> {
        let path = match follow {
            Follow::Yes => self.resolve_parent(path)?,
            Follow::No => path.clone(),
        };
        self.item(Op::Alter { path, change })
    }

    /// The extended attributes (`user.`) and access lists of an entry, in the order of their names; a symbolic link is
    /// followed.
    ///
    /// # Errors
    /// As [`Workspace::stat`]; `VersionMismatch` towards a PoP of wire 3.
    pub fn xattrs(&self, path: &RelPath) -> Result<Vec<Xattr>, Error> {
        Ok(self.stat_full(path)?.entry.meta.xattrs)
    }

    /// The attributes of an entry, the extended ones among them; a symbolic link is followed.
    ///
    /// # Errors
    /// As [`Workspace::xattrs`].
    pub fn stat_full(&self, path: &RelPath) -> Result<Item, Error> {
        match self.item(Op::LookFull(path.clone())) {
            Ok(found) if !matches!(found.entry.kind, EntryKind::Symlink { .. }) => Ok(found),
            Err(error) if error.code != Code::NotADirectory => Err(error),
            _ => self.item(Op::LookFull(self.resolve(path)?.0)),
        }
    }

    /// The value of one of [`Workspace::xattrs`], if it is there.
    ///
    /// # Errors
    /// As [`Workspace::xattrs`].
    pub fn xattr(&self, path: &RelPath, name: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let found = self.xattrs(path)?.into_iter().find(|xattr| xattr.name == name);
        Ok(found.map(|xattr| xattr.value))
    }

    /// Sets an extended attribute; a symbolic link is followed.
    ///
    /// # Errors
    /// As [`Workspace::xattrs`]; `PermissionDenied` for `user.renkei.`, which the PoP sets alone; `Unsupported` for names
    /// without `user.`, for more than fits, and where none are kept.
    pub fn set_xattr(&self, path: &RelPath, name: &[u8], value: &[u8]) -> Result<(), Error> {
        self.change_xattr(path, name, Some(value))
    }

    /// Removes an extended attribute, if it is there.
    ///
    /// # Errors
    /// As [`Workspace::set_xattr`].
    pub fn remove_xattr(&self, path: &RelPath, name: &[u8]) -> Result<(), Error> {
        self.change_xattr(path, name, None)
    }

    /// Sets a POSIX access list, in the form of the kernel (linux/posix_acl_xattr.h); none removes it.
    ///
    /// # Errors
    /// As [`Workspace::set_xattr`]; `PermissionDenied` where the account works for others; `Unsupported` in volumes.
    pub fn set_acl(&self, path: &RelPath, list: AccessList, entries: Option<&[u8]>) -> Result<(), Error> {
        let name = match list {
            AccessList::Own => ACCESS_ACL,
            AccessList::Default => DEFAULT_ACL,
        };
        self.change_xattr(path, name, entries)
    }

    fn change_xattr(&self, path: &RelPath, name: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        let (path, name, value) = (self.resolve(path)?.0, name.to_vec(), value.map(<[u8]>::to_vec));
        self.item(Op::SetXattr { path, name, value }).map(drop)
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// As [`Workspace::stat`]; `PathExists`.
    pub fn mkdir(&self, path: &RelPath, mode: u32) -> Result<Item, Error> {
        self.item(Op::MakeDir { path: self.resolve_parent(path)?, mode })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`Workspace::stat`]; `NotEmpty`.
    pub fn rmdir(&self, path: &RelPath) -> Result<(), Error> {
        self.done(Op::RemoveDir(self.resolve_parent(path)?))
    }

    /// Removes a name of anything but a directory.
    ///
    /// # Errors
    /// As [`Workspace::stat`]; `IsADirectory`.
    pub fn remove(&self, path: &RelPath) -> Result<(), Error> {
        self.done(Op::Remove(self.resolve_parent(path)?))
    }

    /// Renames an entry in one step.
    ///
    /// # Errors
    /// As [`Workspace::stat`]; `PathExists` if an existing name is not to be replaced.
    pub fn rename(&self, from: &RelPath, to: &RelPath, replace: Replace) -> Result<(), Error> {
        let (from, to) = (self.resolve_parent(from)?, self.resolve_parent(to)?);
        self.done(Op::Rename { from, to, replace: replace == Replace::Yes })
    }

    /// Makes a symbolic link; its target is not looked at.
    ///
    /// # Errors
    /// As [`Workspace::mkdir`].
    pub fn symlink(&self, target: &[u8], path: &RelPath) -> Result<Item, Error> {
        self.item(Op::MakeSymlink { path: self.resolve_parent(path)?, target: target.to_vec() })
    }

    /// Makes a hard link.
    ///
    /// # Errors
    /// As [`Workspace::mkdir`].
    pub fn link(&self, from: &RelPath, to: &RelPath) -> Result<Item, Error> {
        self.item(Op::MakeLink { from: self.resolve_parent(from)?, to: self.resolve_parent(to)? })
    }

    /// Begins an upload of a file in parts.
    ///
    /// # Errors
    /// As [`Workspace::create`]; `VersionMismatch` towards a PoP of wire 3.
    pub fn create_upload(&self, path: &RelPath) -> Result<Upload, Error> {
        let path = self.resolve_parent(path)?;
        match self.ask(Op::Upload { path: path.clone(), op: UploadOp::Begin })? {
            Answer::Upload(id) => Ok(Upload { files: self.files.clone(), path, id }),
            other => Err(unexpected(&other)),
        }
    }

    /// Continues an upload that was begun here or by a process before.
    ///
    /// # Errors
    /// As [`Workspace::create_upload`]; the calls report an upload that is over.
    pub fn upload(&self, path: &RelPath, id: UploadId) -> Result<Upload, Error> {
        Ok(Upload { files: self.files.clone(), path: self.resolve_parent(path)?, id })
    }

    /// The space of the file system behind the place.
    ///
    /// # Errors
    /// As [`Workspace::stat`].
    pub fn space(&self) -> Result<Space, Error> {
        match self.ask(Op::Space)? {
            Answer::Space(space) => Ok(space),
            other => Err(unexpected(&other)),
        }
    }

    /// Locks or unlocks a range of a file; `owner` is the caller's number for one of its users.
    ///
    /// # Errors
    /// `LockHeld`, `LocksAway`.
    pub fn lock(&self, path: &RelPath, owner: u64, span: Span) -> Result<(), Error> {
        self.done(Op::Lock { path: self.resolve(path)?.0, owner, span })
    }

    /// The lock that conflicts with a wanted one, if there is one.
    ///
    /// # Errors
    /// `LocksAway`.
    pub fn find_lock(&self, path: &RelPath, owner: u64, span: Span) -> Result<Option<Span>, Error> {
        match self.ask(Op::FindLock { path: self.resolve(path)?.0, owner, span })? {
            Answer::Locked(found) => Ok(found),
            other => Err(unexpected(&other)),
        }
    }

    /// A handle of an entry, for servers whose clients keep files by number; a symbolic link is not followed. It holds
    /// through renames inside the place and through restarts.
    ///
    /// # Errors
    /// As [`Workspace::stat`]; `VersionMismatch` towards a PoP of wire 3.
    pub fn handle(&self, path: &RelPath) -> Result<FileHandle, Error> {
        match self.ask(Op::FileHandle(self.resolve_parent(path)?))? {
            Answer::FileHandle(handle) => Ok(handle),
            other => Err(unexpected(&other)),
        }
    }

    /// The entry of a handle, with its present path.
    ///
    /// # Errors
    /// `PathNotFound` if it is gone; `UsageInvalid` for bytes that are no handle.
    pub fn by_handle(&self, handle: &FileHandle) -> Result<Item, Error> {
        self.item(Op::ByHandle(handle.clone()))
    }

    /// Where the content of a file is.
    ///
    /// # Errors
    /// As [`Workspace::handle`].
    pub fn locality(&self, path: &RelPath) -> Result<Locality, Error> {
        match self.ask(Op::Locality(self.resolve(path)?.0))? {
            Answer::Locality(locality) => Ok(locality),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns when the content of a file is online, or of all files of a directory.
    ///
    /// # Errors
    /// As [`Workspace::handle`]; `NotAllowed` for principals that may not say what the site holds, and where it has no
    /// room for content; those of the transfer.
    pub fn stage(&self, path: &RelPath) -> Result<(), Error> {
        self.done(Op::Stage(self.resolve(path)?.0))
    }

    /// Gives up content that is not needed here any more, where other sites have it; elsewhere nothing is done.
    ///
    /// # Errors
    /// As [`Workspace::stage`].
    pub fn release(&self, path: &RelPath) -> Result<(), Error> {
        self.done(Op::Release(self.resolve(path)?.0))
    }

    /// Watches the names in a directory, or all below it; paths are told as in the place.
    ///
    /// # Errors
    /// As [`Workspace::list`]; `Unsupported` in followed volumes, and where the files are at another site or at an agent.
    pub fn watch(&self, dir: &RelPath, depth: Depth) -> Result<Box<dyn Watch>, Error> {
        self.files.watch(&self.resolve(dir)?.0, depth)
    }

    fn ask(&self, op: Op) -> Result<Answer, Error> {
        ask(&*self.files, op, b"")
    }

    fn item(&self, op: Op) -> Result<Item, Error> {
        item(self.ask(op)?)
    }

    fn done(&self, op: Op) -> Result<(), Error> {
        done(self.ask(op)?)
    }

    /// Opens a path, with its symbolic links resolved only if that fails as it stands.
    fn open_resolved(&self, path: &RelPath, op: impl Fn(RelPath) -> Op) -> Result<(Handle, Item), Error> {
        use Code::{NotADirectory, OutsideStorage, SpecialFile};
        let error = match self.ask(op(path.clone())) {
            Ok(answer) => return opened(answer),
            // What a symbolic link on the way or at the end is told as.
            Err(error) if matches!(error.code, NotADirectory | OutsideStorage | SpecialFile) => error,
            Err(error) => return Err(error),
        };
        match self.resolve(path) {
            Ok((resolved, _)) if resolved != *path => opened(self.ask(op(resolved))?),
            Ok(_) => Err(error),
            Err(other) => Err(other),
        }
    }

    /// A path whose parent has no symbolic link.
    fn resolve_parent(&self, path: &RelPath) -> Result<RelPath, Error> {
        let (Some(parent), Some(name)) = (path.parent().filter(|parent| !parent.is_root()), path.name())
        else {
            return Ok(path.clone());
        };
        match self.item(Op::Look(parent.clone())) {
            Ok(found) if found.entry.kind == EntryKind::Dir => Ok(path.clone()),
            // A restricted credential may be for the path and not for its parent; no link is followed then.
            Err(error) if error.code == Code::OutOfScope => Ok(path.clone()),
            _ => self.resolve(&parent)?.0.child(name),
        }
    }

    /// The path without symbolic links that a path leads to, and its entry.
    fn resolve(&self, path: &RelPath) -> Result<(RelPath, Item), Error> {
        match self.item(Op::Look(path.clone())) {
            Ok(found) if !matches!(found.entry.kind, EntryKind::Symlink { .. }) => {
                return Ok((path.clone(), found));
            }
            Ok(_) => {}
            Err(error) if error.code == Code::NotADirectory => {}
            Err(error) => return Err(error),
        }
        let mut rest: VecDeque<Vec<u8>> = path.components().map(<[u8]>::to_vec).collect();
        let (mut at, mut links) = (RelPath::root(), 0);
        while let Some(name) = rest.pop_front() {
            let outside = || Error::new(Code::OutsideStorage, "follow", path, "by a symbolic link");
            at = match name.as_slice() {
                b"" | b"." => at,
                b".." => at.parent().ok_or_else(outside)?,
                name => {
                    let next = at.child(name)?;
                    let EntryKind::Symlink { target } = self.item(Op::Look(next.clone()))?.entry.kind else {
                        at = next;
                        continue;
                    };
                    links += 1;
                    if links > MAX_LINKS {
                        let cause = "too many levels of symbolic links";
                        return Err(Error::new(Code::BadPath, "follow", path, cause));
                    }
                    if target.starts_with(b"/") {
                        return Err(outside());
                    }
                    for part in target.split(|&byte| byte == b'/').rev() {
                        rest.push_front(part.to_vec());
                    }
                    at
                }
            };
        }
        let found = self.item(Op::Look(at.clone()))?;
        Ok((at, found))
    }
}

/// A directory that is being read; closed on drop.
pub struct Listing {
    files: Arc<dyn Files>,
    handle: Handle,
    more: bool,
}

impl Listing {
    /// The next entries, each with its name as path; none at the end.
    ///
    /// # Errors
    /// Those of the files.
    pub fn next_batch(&mut self) -> Result<Option<Vec<Item>>, Error> {
        if !self.more {
            return Ok(None);
        }
        match ask(&*self.files, Op::ReadDir(self.handle), b"")? {
            Answer::Items { items, more } => {
                self.more = more;
                Ok(Some(items))
            }
            other => Err(unexpected(&other)),
        }
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        close(&*self.files, self.handle);
    }
}

/// One version of a file, open for reading; closed on drop.
pub struct Reader {
    files: Arc<dyn Files>,
    handle: Handle,
    item: Item,
}

impl Reader {
    /// The attributes of the version that was opened.
    pub fn item(&self) -> &Item {
        &self.item
    }

    /// What identifies the version.
    ///
    /// # Errors
    /// `IsADirectory` for anything but a file.
    pub fn version(&self) -> Result<Stamp, Error> {
        version(&self.item)
    }

    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.item.entry.size()
    }

    /// Reads into a buffer; fewer bytes only at the end of the file.
    ///
    /// # Errors
    /// Those of the files.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        let mut done = 0;
        while done < buf.len() {
            let part = (buf.len() - done).min(MAX_IO_BYTES as usize);
            match self.files.read(self.handle, offset + done as u64, &mut buf[done..done + part])? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    /// Hints that all of it will be read from start to end.
    pub fn expect_order(&self) {
        self.files.expect_order(self.handle);
    }

    /// The descriptor of the plain file, if it is on this machine and may be read directly.
    pub fn descriptor(&self) -> Option<OwnedFd> {
        self.files.descriptor(self.handle)
    }

    /// The checksum of the whole content; none if it must be known and is not. It is computed where the files are, or
    /// here, if they are at a site that speaks wire 3.
    ///
    /// # Errors
    /// Those of the files.
    pub fn checksum(&self, algorithm: Algorithm, freshness: Freshness) -> Result<Option<Vec<u8>>, Error> {
        match ask(&*self.files, Op::Checksum { handle: self.handle, algorithm, freshness }, b"") {
            Ok(Answer::Checksum(sum)) => Ok(sum),
            Ok(other) => Err(unexpected(&other)),
            Err(error) if error.code == Code::VersionMismatch && freshness == Freshness::Known => Ok(None),
            Err(error) if error.code == Code::VersionMismatch => {
                Checksum::of(algorithm, |buf, offset| self.read_at(buf, offset)).map(Some)
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        close(&*self.files, self.handle);
    }
}

/// A new version of a file on its way; abandoned on drop unless it was published.
pub struct Writer {
    files: Arc<dyn Files>,
    handle: Handle,
    found: Item,
    sum: Mutex<Option<Running>>,
}

/// A checksum that follows writes, as long as they come in order.
struct Running {
    algorithm: Algorithm,
    /// The state, and the offset up to which it has seen the content; none after a write elsewhere.
    state: Option<(Checksum, u64)>,
}

impl Running {
    fn new(algorithm: Algorithm, has_content: bool) -> Self {
        Running { algorithm, state: (!has_content).then(|| (Checksum::new(algorithm), 0)) }
    }

    fn note(&mut self, bytes: &[u8], offset: u64) {
        match &mut self.state {
            Some((sum, end)) if *end == offset => {
                sum.update(bytes);
                *end += bytes.len() as u64;
            }
            state => *state = None,
        }
    }
}

impl Writer {
    fn sum(&self) -> MutexGuard<'_, Option<Running>> {
        self.sum.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The attributes of the version before, or of the file that is new.
    pub fn found(&self) -> &Item {
        &self.found
    }

    /// Writes all bytes at an offset; offsets may come in any order.
    ///
    /// # Errors
    /// Those of the files; after one the version cannot be published.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        let mut at = offset;
        for part in bytes.chunks(MAX_IO_BYTES as usize) {
            done(ask(&*self.files, Op::Write { handle: self.handle, offset: at }, part)?)?;
            at += part.len() as u64;
        }
        if let Some(running) = &mut *self.sum() {
            running.note(bytes, offset);
        }
        Ok(())
    }

    /// Writes a block as [`Writer::write_at`] does and returns its memory, without a copy of it on the way.
    ///
    /// # Errors
    /// As [`Writer::write_at`].
    pub fn write_block(&self, block: AlignedBlock, offset: u64) -> Result<AlignedBlock, Error> {
        if block.len() > MAX_IO_BYTES as usize {
            return self.write_at(&block, offset).map(|()| block);
        }
        let (answer, block) = self.files.write_block(self.handle, offset, block)?;
        done(answer.parted().0)?;
        if let Some(running) = &mut *self.sum() {
            running.note(&block, offset);
        }
        Ok(block)
    }

    /// Truncates or extends the content; the extension is a hole.
    ///
    /// # Errors
    /// Those of the files.
    pub fn set_len(&self, bytes: u64) -> Result<(), Error> {
        done(ask(&*self.files, Op::SetLen { handle: self.handle, bytes }, b"")?)?;
        if let Some(running) = &mut *self.sum() {
            running.state.take_if(|(_, end)| *end != bytes);
        }
        Ok(())
    }

    /// Reads back what was written.
    ///
    /// # Errors
    /// Those of the files.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        self.files.read(self.handle, offset, buf)
    }

    /// The checksum of what was written. It costs nothing if the writes came in order, else the content is read.
    ///
    /// # Errors
    /// Those of the files; `UsageInvalid` if no checksum was asked for.
    pub fn checksum(&self) -> Result<Vec<u8>, Error> {
        let Some(Running { algorithm, state }) = self.sum().take() else {
            return Err(Error::new(
                Code::UsageInvalid,
                "checksum",
                &self.found.entry.path,
                "none was asked for",
            ));
        };
        match state {
            Some((sum, _)) => Ok(sum.finish()),
            None => Checksum::of(algorithm, |buf, offset| self.read_at(buf, offset)),
        }
    }

    /// Sets extended attributes (`user.`) that the version has from its publication on, in place of those of the same names
    /// before; an empty value stands for none. Where none are kept they are lost.
    ///
    /// # Errors
    /// `Unsupported` where the files are at another site.
    pub fn describe(&self, attributes: Vec<Xattr>) -> Result<(), Error> {
        self.files.describe(self.handle, attributes)
    }

    /// Makes the content durable and, in one step, the file's present version.
    ///
    /// # Errors
    /// `DigestMismatch` if an expected checksum differs, `PathExists` or `VersionReplaced` if the condition does not
    /// hold: nothing is published then. Those of the files.
    pub fn publish(self, mtime: Option<FileTime>, expected: Option<&[u8]>) -> Result<Item, Error> {
        if let Some(expected) = expected {
            let found = self.checksum()?;
            if found != expected {
                let hex = |sum: &[u8]| sum.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
                let cause = format!("{} was expected, {} arrived", hex(expected), hex(&found));
                return Err(Error::new(Code::DigestMismatch, "publish", &self.found.entry.path, cause));
            }
        }
        item(ask(&*self.files, Op::Publish { handle: self.handle, mtime }, b"")?)
    }

    /// Discards the content.
    pub fn abandon(self) {}
}

impl Drop for Writer {
    fn drop(&mut self) {
        close(&*self.files, self.handle);
    }
}

/// An upload in parts. It outlives this value and the process; one that is not written to for a week is removed.
pub struct Upload {
    files: Arc<dyn Files>,
    path: RelPath,
    id: UploadId,
}

impl Upload {
    /// Its number, with which it is continued.
    pub fn id(&self) -> UploadId {
        self.id
    }

    /// Begins a part, which is durable once it is published and then replaces an earlier one of that number. Parts
    /// are written at the same time and in any order.
    ///
    /// # Errors
    /// `NotOpen` if the upload is over or another user's; `UsageInvalid` for a number out of range.
    pub fn put_part(&self, number: u32, checksum: Option<Algorithm>) -> Result<Writer, Error> {
        let (handle, found) = opened(self.ask(UploadOp::Part { upload: self.id, number })?)?;
        let sum = Mutex::new(checksum.map(|algorithm| Running::new(algorithm, false)));
        Ok(Writer { files: self.files.clone(), handle, found, sum })
    }

    /// The parts that have come, in the order of their numbers.
    ///
    /// # Errors
    /// As [`Upload::put_part`].
    pub fn parts(&self) -> Result<Vec<Part>, Error> {
        match self.ask(UploadOp::List(self.id))? {
            Answer::Parts(parts) => Ok(parts),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes these parts, one after the other, the content of the file, in one step; the others are discarded.
    ///
    /// # Errors
    /// As [`Upload::put_part`] and [`Writer::publish`]; `PathNotFound` for a part that has not come. The upload goes
    /// on after an error.
    pub fn complete(&self, parts: &[u32], condition: Precondition) -> Result<Item, Error> {
        self.complete_with(parts, condition, None, Vec::new())
    }

    /// As [`Upload::complete`], with a modification time and extended attributes of the file.
    ///
    /// # Errors
    /// As [`Upload::complete`].
    pub fn complete_with(
        &self,
        parts: &[u32],
        condition: Precondition,
        mtime: Option<FileTime>,
        attributes: Vec<Xattr>,
    ) -> Result<Item, Error> {
        let (upload, parts) = (self.id, parts.to_vec());
        item(self.ask(UploadOp::Complete { upload, parts, condition, mtime, attributes })?)
    }

    /// Discards the parts.
    ///
    /// # Errors
    /// As [`Upload::put_part`].
    pub fn abandon(&self) -> Result<(), Error> {
        done(self.ask(UploadOp::Abandon(self.id))?)
    }

    fn ask(&self, op: UploadOp) -> Result<Answer, Error> {
        ask(&*self.files, Op::Upload { path: self.path.clone(), op }, b"")
    }
}

/// What identifies the version of a file.
///
/// # Errors
/// `IsADirectory` for anything but a file.
pub fn version(item: &Item) -> Result<Stamp, Error> {
    match item.entry.kind {
        EntryKind::File { stamp, .. } => Ok(stamp),
        _ => Err(Error::new(Code::IsADirectory, "open", &item.entry.path, "it is no plain file")),
    }
}

fn ask(files: &dyn Files, op: Op, content: &[u8]) -> Result<Answer, Error> {
    files.operate(op, content).map(|answer| answer.parted().0)
}

fn item(answer: Answer) -> Result<Item, Error> {
    match answer {
        Answer::Item(item) => Ok(item),
        other => Err(unexpected(&other)),
    }
}

fn done(answer: Answer) -> Result<(), Error> {
    match answer {
        Answer::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}

fn opened(answer: Answer) -> Result<(Handle, Item), Error> {
    match answer {
        Answer::Opened { handle, item } => Ok((handle, item)),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(answer: &Answer) -> Error {
    violation("answer", format_args!("{answer:?}"))
}

/// Closes a handle. An error has no consequence: what was published is durable, the rest is discarded with the session.
fn close(files: &dyn Files, handle: Handle) {
    if let Err(error) = files.operate(Op::Close(handle), b"") {
        tracing::debug!(%error, "a handle was not closed");
    }
}
