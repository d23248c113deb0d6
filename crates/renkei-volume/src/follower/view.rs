//! The view of a followed volume as a store: names and metadata from the copy of the catalogue, content from plain
//! files of this site if it holds the requested version, else from a site that does.
//!
//! Own changes that the home has not ordered yet lie over the copy (`outbox`); they are made in `write_ops`. Guarantee:
//! no request for names and metadata leaves the site.

use super::outbox::{Listed as Page, Outbox};
use super::plain_file::{Writer, if_there};
use super::recovery::recover;
use renkei_core::entry::{Entry, EntryKind, FileTime, Meta, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::lease::HolderId;
use renkei_core::namespace::{Content, Dentry, Kind, Name, Node, NodeId, ROOT};
use renkei_core::path::RelPath;
use renkei_store::leases::LeaseTable;
use renkei_store::temp::is_temp_name;
use renkei_store::{
    Detail, Dir, Listed, Listing, Raw, ReadFile, Replaced, Space, Store, TypeHint, WriteFile,
};
use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};

/// Names read from the catalogue at once.
const PAGE: usize = 1000;
/// Largest number of cached nodes of a listing.
const MAX_SEEN: usize = 16 * PAGE;
/// Requests to the home for more quota: another writer that waits may use up the first grant.
const ASK_ROOM: u32 = 2;
/// Symbolic links followed on the way to one directory, as in Linux.
const MAX_LINKS: u32 = 40;

/// Opens the content of a file at a site that holds it.
pub trait Fetch: Send + Sync {
    /// Opens this version, which is shown with `stamp`; if the site has another version, the opened file tells which.
    ///
    /// # Errors
    /// The error, if no site with the version can be reached.
    fn open(
        &self,
        path: &RelPath,
        id: NodeId,
        content: &Content,
        stamp: Stamp,
    ) -> Result<Box<dyn ReadFile>, Error>;

    /// The space in the volume, as the home reported it last.
    fn space(&self) -> Space;
}

/// A followed volume as a store.
#[derive(Clone)]
pub struct FollowedStore(Arc<Followed>);

/// The existing file that a publish may replace.
#[derive(Clone, Copy)]
pub(crate) enum Over {
    Nothing,
    Any,
    /// A version of this site, or the version that the writer has seen.
    Seen(Stamp),
}

#[derive(Clone)]
pub(crate) struct Followed {
    pub(crate) pending: Arc<Outbox>,
    /// Device number of all directories of the volume; no real device has it.
    device: u64,
    fetch: Arc<dyn Fetch>,
    /// The home, where the volume can be written.
    home: String,
    writer: Option<Writer>,
    /// The lease holder for whom it is open, if any.
    pub(crate) holder: Option<HolderId>,
}

impl FollowedStore {
    /// The store of a volume whose home is `home`; without a writer it is read-only.
    pub fn new(
        pending: Arc<Outbox>,
        id: &[u8; 16],
        fetch: Arc<dyn Fetch>,
        home: String,
        writer: Option<Writer>,
    ) -> Self {
        let device = u64::from_be_bytes(*id.first_chunk().expect("16 bytes are more than 8"));
        FollowedStore(Arc::new(Followed { pending, device, fetch, home, writer, holder: None }))
    }

    fn open(&self, id: NodeId, path: RelPath, real: RelPath) -> Arc<dyn Dir> {
        let (volume, seen, plain) = (self.0.clone(), Arc::default(), OnceLock::new());
        Arc::new(FollowedDir { volume, opened: id, path, real, seen, plain })
    }
}

impl Followed {
    /// Returns when the changes are stored, and no lease allows reading an older state.
    fn flush(&self) -> Result<(), Error> {
        self.pending.flush()?;
        self.settle();
        Ok(())
    }

    fn settle(&self) {
        self.pending.leases().settle(self.holder);
        self.pending.own_lease().acknowledge();
    }

    /// Recovers the changes of a killed PoP: a client whose answer was lost looks for its version.
    fn recover(&self) {
        let Some(writer) = self.writer.as_ref().filter(|_| self.pending.has_left.load(Ordering::Acquire))
        else {
            return;
        };
        if let Err(error) = recover(&self.pending, writer) {
            tracing::warn!(%error, "what was done before a kill is not in the volume yet");
        }
    }

    fn child(&self, dir: NodeId, name: &[u8], path: &RelPath) -> Result<(NodeId, Node), Error> {
        let at = Dentry { dir, name: Name(name.to_vec()) };
        let found = self.pending.child(&at).map_err(|error| error.under(&path.to_string()))?;
        found.ok_or_else(|| Error::new(Code::PathNotFound, "open", shown(path, name), ""))
    }

    pub(crate) fn node(&self, id: NodeId, path: &RelPath) -> Result<Node, Error> {
        let gone = || Error::new(Code::PathNotFound, "open", path, "removed since");
        self.pending.node(id)?.ok_or_else(gone)
    }

    fn parent(&self, id: NodeId) -> Option<NodeId> {
        let mut at = id;
        for _ in 0..renkei_store::MAX_LINEAGE {
            match self.pending.node(at).ok()??.kind {
                Kind::Dir { parent, .. } if at != ROOT => return Some(parent),
                Kind::Merged { into } => at = into,
                _ => return None,
            }
        }
        None
    }
}

pub(crate) fn shown(path: &RelPath, name: &[u8]) -> String {
    path.child(name).map_or_else(|_| String::from_utf8_lossy(name).into(), |path| path.to_string())
}

fn not_a_directory(path: &RelPath, name: &[u8]) -> Error {
    Error::new(Code::NotADirectory, "open directory", shown(path, name), "")
}

impl Store for FollowedStore {
    fn root(&self) -> Result<Arc<dyn Dir>, Error> {
        Ok(self.open(ROOT, RelPath::root(), RelPath::root()))
    }

    fn dir(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        self.0.recover();
        let mut todo: Vec<Vec<u8>> = names(path.as_bytes()).rev().collect();
        let (mut id, mut links, mut real) = (ROOT, 0, RelPath::root());
        while let Some(name) = todo.pop() {
            if name == b".." {
                let outside = || {
                    Error::new(
                        Code::OutsideStorage,
                        "open directory",
                        path,
                        "a symbolic link leads out of the volume",
                    )
                };
                id = self.0.parent(id).ok_or_else(outside)?;
                real = real.parent().ok_or_else(outside)?;
                continue;
            }
            let (child, node) = self.0.child(id, &name, &real)?;
            match node.kind {
                Kind::Dir { .. } => (id, real) = (child, real.child(&name)?),
                Kind::File(_) | Kind::Merged { .. } | Kind::Xattrs(_) => {
                    return Err(not_a_directory(&real, &name));
                }
                Kind::Symlink { target } if target.starts_with(b"/") => {
                    return Err(Error::new(
                        Code::OutsideStorage,
                        "open directory",
                        path,
                        "a symbolic link leads out of the volume",
                    ));
                }
                Kind::Symlink { target } => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Error::new(Code::BadPath, "open directory", path, "too many links"));
                    }
                    todo.extend(names(&target).rev());
                }
            }
        }
        Ok(self.open(id, path.clone(), real))
    }

    fn space(&self, _path: &RelPath) -> Result<Space, Error> {
        match &self.0.writer {
            Some(writer) => {
                let space = writer.plain.space(&RelPath::root())?;
                Ok(self.0.pending.narrow(space, &writer.owner))
            }
            None => Ok(self.0.fetch.space()),
        }
    }

    fn leases(&self) -> Option<Arc<LeaseTable>> {
        Some(self.0.pending.leases().clone())
    }

    fn held_by(&self, holder: HolderId) -> Option<Arc<dyn Store>> {
        Some(Arc::new(FollowedStore(Arc::new(Followed { holder: Some(holder), ..(*self.0).clone() }))))
    }

    fn settle(&self) {
        self.0.settle();
    }

    fn catch_up(&self) -> Result<bool, Error> {
        self.0.pending.own_lease().catch_up()
    }
}

fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.map(<[u8]>::to_vec).collect::<Vec<_>>().into_iter()
}

/// The stamp under which a file is shown as long as it has this content.
pub fn stamp(id: NodeId, content: &Content, mtime: FileTime) -> Stamp {
    Stamp::of_version(id.0, content.size, mtime, (content.by.0.0, content.by.1))
}

/// Whether a stamp was shown for this content, whatever its modification time is now.
pub(crate) fn is_shown(seen: &Stamp, id: NodeId, content: &Content) -> bool {
    seen.size == content.size && *seen == stamp(id, content, seen.mtime)
}

type Seen = HashMap<Vec<u8>, (NodeId, Node)>;

pub(crate) struct FollowedDir {
    pub(crate) volume: Arc<Followed>,
    /// The node at the time of the open.
    opened: NodeId,
    /// The path as requested.
    pub(crate) path: RelPath,
    /// The path without symbolic links, at the time of the open.
    pub(crate) real: RelPath,
    /// The directory of plain files, once it was needed.
    pub(crate) plain: OnceLock<Arc<dyn Dir>>,
    /// Nodes that came with a listing: most clients ask for each entry after it (readdirplus).
    seen: Arc<Mutex<Seen>>,
}

impl FollowedDir {
    /// The node now, if the directory was merged into another one.
    pub(crate) fn id(&self) -> NodeId {
        self.volume.pending.meant(self.opened)
    }

    fn find(&self, name: &[u8]) -> Result<(NodeId, Node), Error> {
        let seen = self.seen.lock().expect("no thread panics while it holds the lock").remove(name);
        seen.map_or_else(|| self.volume.child(self.id(), name, &self.path), Ok)
    }

    fn open_below(&self, id: NodeId, path: RelPath, real: RelPath) -> Arc<dyn Dir> {
        FollowedStore(self.volume.clone()).open(id, path, real)
    }

    /// The means to write this volume, or an error if it is read-only.
    pub(crate) fn writer(&self, op: &str, name: &[u8]) -> Result<&Writer, Error> {
        self.volume.writer.as_ref().ok_or_else(|| {
            let cause = format!("it is followed here; change it at its home, {}", self.volume.home);
            Error::new(Code::ReadOnlyStorage, op, shown(&self.path, name), cause)
        })
    }

    /// The other directory of a rename or link.
    fn peer<'a>(&self, op: &str, dir: &'a dyn Dir) -> Result<&'a FollowedDir, Error> {
        let peer = dir.as_any().downcast_ref::<FollowedDir>();
        let peer = peer.filter(|peer| Arc::ptr_eq(&peer.volume.pending, &self.volume.pending));
        peer.ok_or_else(|| {
            let cause = "the two directories are not of one volume";
            Error::new(Code::CrossDevice, op, dir.path(), cause)
        })
    }

    /// The plain directory for a temporary name, if this site may write.
    fn of_temp(&self, name: &[u8]) -> Option<Arc<dyn Dir>> {
        let writer = self.volume.writer.as_ref().filter(|_| is_temp_name(name))?;
        self.plain_dir(writer).ok()
    }

    /// Drops the cached node of a name.
    fn unsee(&self, name: &[u8]) {
        self.seen.lock().expect("no thread panics while it holds the lock").remove(name);
    }

    fn open_plain(&self, name: &[u8]) -> Result<Option<Box<dyn ReadFile>>, Error> {
        self.of_temp(name).map(|plain| plain.open_read(name)).transpose()
    }

    fn told(&self, path: RelPath, id: NodeId, node: Node) -> (Entry, Raw) {
        let Node { kind, attributes, links, .. } = node;
        let (mtime, mut ctime) = (attributes.mtime, attributes.mtime);
        let (size, kind) = match kind {
            Kind::Dir { .. } => (0, EntryKind::Dir),
            Kind::Merged { .. } | Kind::Xattrs(_) => (0, EntryKind::Special),
            Kind::Symlink { target } => (target.len() as u64, EntryKind::Symlink { target }),
            Kind::File(content) => {
                let stamp = stamp(id, &content, mtime);
                ctime = stamp.ctime;
                (content.size, EntryKind::File { stamp, sparse: false })
            }
        };
        let (mode, owner, group) = (attributes.mode, attributes.owner, attributes.group);
        let raw = Raw {
            ino: self.volume.pending.shown_number(id).0,
            dev: self.volume.device,
            nlink: links.into(),
            blocks: size.div_ceil(512),
            ctime,
            ..Raw::default()
        };
        (Entry { path, meta: Meta { mode, mtime, owner, group, xattrs: Vec::new() }, kind }, raw)
    }

    /// An entry with its extended attributes, if they are wanted.
    fn with_detail(
        &self,
        mut found: (Entry, Raw),
        id: NodeId,
        detail: Detail,
    ) -> Result<(Entry, Raw), Error> {
        if detail == Detail::Full {
            found.0.meta.xattrs = self.volume.pending.xattrs(id)?;
        }
        Ok(found)
    }
}

impl FollowedDir {
    fn rename_to(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8], replace: bool) -> Result<(), Error> {
        let peer = self.peer("rename", to_dir)?;
        self.unsee(from);
        peer.unsee(to);
        if is_temp_name(from) {
            let over = if replace { Over::Any } else { Over::Nothing };
            self.with_room(to, || self.publish(from, peer, to, over).map(drop))
        } else {
            self.move_to(from, peer, to, replace)
        }
    }

    /// Retries work that exceeds the quota when the home has granted more.
    fn with_room<T>(&self, name: &[u8], work: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        let is_over = |error: &Error| error.code == Code::QuotaExceeded;
        let mut done = work();
        for _ in 0..ASK_ROOM {
            if !done.as_ref().is_err_and(is_over) || !self.volume.pending.await_room() {
                break;
            }
            done = work();
        }
        done.map_err(|error| {
            if is_over(&error) { Error { subject: shown(&self.path, name), ..error } } else { error }
        })
    }
}

impl Dir for FollowedDir {
    fn path(&self) -> &RelPath {
        &self.path
    }

    fn device(&self) -> u64 {
        self.volume.device
    }

    fn lineage(&self) -> Vec<(u64, u64)> {
        let above = std::iter::successors(Some(self.id()), |id| self.volume.parent(*id));
        above.take(renkei_store::MAX_LINEAGE).map(|id| (self.volume.device, id.0)).collect()
    }

    fn child(&self, name: &[u8]) -> Result<Arc<dyn Dir>, Error> {
        let (id, node) = self.find(name)?;
        if !node.is_dir() {
            return Err(not_a_directory(&self.path, name));
        }
        Ok(self.open_below(id, self.path.child(name)?, self.real.child(name)?))
    }

    fn descend(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        let mut id = self.id();
        for name in names(path.as_bytes()) {
            let (child, node) = self.volume.child(id, &name, &self.path)?;
            if !node.is_dir() {
                return Err(not_a_directory(&self.path, &name));
            }
            id = child;
        }
        Ok(self.open_below(id, self.path.join(path)?, self.real.join(path)?))
    }

    fn list(&self) -> Result<Listing, Error> {
        let (volume, seen) = (self.volume.clone(), self.seen.clone());
        let page = Vec::new().into_iter();
        let names = Names { volume, dir: self.id(), seen, page, last: None, over: false };
        let writer = self.volume.writer.as_ref();
        match writer.and_then(|writer| self.plain_if_there(writer)) {
            // A writer also sees the temporary files that an earlier run left.
            Some(plain) => {
                let is_temp = |listed: &Result<Listed, Error>| {
                    listed.as_ref().is_ok_and(|listed| is_temp_name(&listed.name))
                };
                Ok(Box::new(names.chain(plain.list()?.filter(is_temp))))
            }
            None => Ok(Box::new(names)),
        }
    }

    fn entry(&self, name: &[u8], detail: Detail) -> Result<(Entry, Raw), Error> {
        if let Some(plain) = self.of_temp(name) {
            return plain.entry(name, detail);
        }
        let (id, node) = self.find(name)?;
        let found = self.told(self.path.child(name)?, id, node);
        self.with_detail(found, id, detail)
    }

    fn self_entry(&self, detail: Detail) -> Result<(Entry, Raw), Error> {
        let id = self.id();
        let found = self.told(self.path.clone(), id, self.volume.node(id, &self.path)?);
        self.with_detail(found, id, detail)
    }

    fn open_read(&self, name: &[u8]) -> Result<Box<dyn ReadFile>, Error> {
        if let Some(file) = self.open_plain(name)? {
            return Ok(file);
        }
        let (id, node) = self.find(name)?;
        match node.kind {
            Kind::File(content) => {
                let stamp = stamp(id, &content, node.attributes.mtime);
                self.volume.fetch.open(&self.real_now()?.child(name)?, id, &content, stamp)
            }
            Kind::Dir { .. } => Err(Error::new(Code::IsADirectory, "open", shown(&self.path, name), "")),
            Kind::Symlink { .. } | Kind::Merged { .. } | Kind::Xattrs(_) => {
                Err(Error::new(Code::SpecialFile, "open", shown(&self.path, name), "a symbolic link"))
            }
        }
    }

    fn create_temp(&self, name: &[u8], keep_existing: bool) -> Result<Box<dyn WriteFile>, Error> {
        let writer = self.writer("create", name)?;
        if !is_temp_name(name) {
            let cause = "files of a followed volume are written under temporary names";
            return Err(Error::new(Code::Unsupported, "create", shown(&self.path, name), cause));
        }
        self.plain_dir(writer)?.create_temp(name, keep_existing)
    }

    fn open_direct(&self, name: &[u8]) -> Option<Box<dyn WriteFile>> {
        self.of_temp(name)?.open_direct(name)
    }

    fn rename(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        self.rename_to(from, to_dir, to, true)
    }

    fn rename_no_replace(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        self.rename_to(from, to_dir, to, false)
    }

    fn replace(
        &self,
        from: &[u8],
        to_dir: &dyn Dir,
        to: &[u8],
        seen: Option<&Stamp>,
    ) -> Result<Replaced, Error> {
        let peer = self.peer("publish", to_dir)?;
        self.unsee(from);
        peer.unsee(to);
        let over = seen.map_or(Over::Any, |seen| Over::Seen(*seen));
        self.with_room(to, || self.publish(from, peer, to, over))
    }

    fn mkdir(&self, name: &[u8], mode: u32) -> Result<(), Error> {
        if self.volume.writer.is_none() && self.find(name).is_ok() {
            return Err(Error::new(Code::PathExists, "make directory", shown(&self.path, name), ""));
        }
        self.with_room(name, || self.make_dir(name, mode))
    }

    fn symlink(&self, target: &[u8], name: &[u8]) -> Result<(), Error> {
        self.with_room(name, || self.make_symlink(target, name))
    }

    fn hard_link(&self, name: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        self.make_link(name, self.peer("link", to_dir)?, to)
    }

    fn remove_file(&self, name: &[u8]) -> Result<(), Error> {
        self.unsee(name);
        self.remove(name)
    }

    fn remove_dir(&self, name: &[u8]) -> Result<(), Error> {
        self.unsee(name);
        self.remove_empty(name)
    }

    fn set_meta(&self, name: &[u8], meta: &Meta) -> Result<Vec<Error>, Error> {
        self.unsee(name);
        self.set_meta_of(name, meta)
    }

    fn set_own_meta(&self, meta: &Meta) -> Result<Vec<Error>, Error> {
        self.set_meta_here(meta)
    }

    fn set_xattr(&self, name: &[u8], xattr: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        self.set_xattr_of(name, xattr, value)
    }

    fn is_locked(&self) -> Result<bool, Error> {
        Ok(false)
    }

    fn unlock(&self) -> Result<(), Error> {
        self.writer("unlock", b"").map(drop)
    }

    fn sync_file(&self, name: &[u8]) -> Result<(), Error> {
        let Some(writer) = &self.volume.writer else { return Ok(()) };
        match self.of_temp(name) {
            Some(plain) => return plain.sync_file(name),
            None => if_there(self.plain_if_there(writer).map_or(Ok(()), |plain| plain.sync_file(name)))?,
        }
        self.volume.flush()
    }

    fn sync(&self) -> Result<(), Error> {
        let Some(writer) = &self.volume.writer else { return Ok(()) };
        self.plain_if_there(writer).map_or(Ok(()), |plain| plain.sync())?;
        self.volume.flush()
    }

    fn sync_fs(&self) -> Result<(), Error> {
        let Some(writer) = &self.volume.writer else { return Ok(()) };
        writer.plain.root()?.sync_fs()?;
        self.volume.flush()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Iterator over the names of a directory, page by page.
struct Names {
    volume: Arc<Followed>,
    dir: NodeId,
    seen: Arc<Mutex<Seen>>,
    page: std::vec::IntoIter<Listed>,
    last: Option<Name>,
    over: bool,
}

impl Names {
    fn turn(&mut self) -> Result<(), Error> {
        let Page { names: page, next } = self.volume.pending.list(self.dir, self.last.as_ref(), PAGE)?;
        self.over = next.is_none();
        self.last = next;
        let mut seen = self.seen.lock().expect("no thread panics while it holds the lock");
        if seen.len() > MAX_SEEN {
            seen.clear();
        }
        let listed = page.into_iter().map(|(Name(name), id, node)| {
            let hint = match node.kind {
                Kind::Dir { .. } => TypeHint::Dir,
                Kind::File(_) => TypeHint::File,
                Kind::Symlink { .. } | Kind::Merged { .. } | Kind::Xattrs(_) => TypeHint::Symlink,
            };
            seen.insert(name.clone(), (id, node));
            Listed { name, hint, ino: self.volume.pending.shown_number(id).0 }
        });
        self.page = listed.collect::<Vec<_>>().into_iter();
        Ok(())
    }
}

impl Iterator for Names {
    type Item = Result<Listed, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(listed) = self.page.next() {
                return Some(Ok(listed));
            }
            if self.over {
                return None;
            }
            if let Err(error) = self.turn() {
                self.over = true;
                return Some(Err(error));
            }
        }
    }
}
