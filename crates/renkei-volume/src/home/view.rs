//! A volume as a store, at its home.
//!
//! Reads and writes go to the plain directory, by the rules of any local store; each changed name is marked as dirty.
//! A sync covers the catalogue, too. A symbolic link to a directory is followed inside the volume, and changes below
//! it are marked under the real path.

use super::dirty_names::Touch;
use super::follower_registry::names_of;
use super::quota::{self, Parts};
use super::remote_content::Elsewhere;
use super::view_remote::shown_path;
use crate::Volume;
use crate::follower::site_lease::lost_error;
use crate::plain_entry::{look, seen};
use renkei_core::entry::{Entry, EntryKind, Meta, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::lease::HolderId;
use renkei_core::namespace::xattrs::with_xattr;
use renkei_core::namespace::{Attributes, Change, NodeId};
use renkei_core::path::RelPath;
use renkei_core::wire::file::Changed;
use renkei_store::leases::LeaseTable;
use renkei_store::temp::is_temp_name;
use renkei_store::{Detail, Dir, DirVersion, Listing, Raw, ReadFile, Replaced, Space, Store, WriteFile};
use rustix::fd::BorrowedFd;
use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Symbolic links followed on one path, as in the kernel.
const MAX_LINKS: usize = 40;

/// An open volume as a store.
#[derive(Clone)]
pub struct VolumeStore {
    pub(crate) volume: Arc<Volume>,
    pub(crate) elsewhere: Option<Arc<dyn Elsewhere>>,
    /// The lease holder for whom it is open, if any.
    pub(crate) holder: Option<HolderId>,
}

impl VolumeStore {
    /// The store of an open volume.
    pub fn new(volume: Arc<Volume>) -> Self {
        VolumeStore { volume, elsewhere: None, holder: None }
    }

    /// A volume with a reader of remote content.
    pub fn with_elsewhere(volume: Arc<Volume>, elsewhere: Arc<dyn Elsewhere>) -> Self {
        VolumeStore { elsewhere: Some(elsewhere), ..VolumeStore::new(volume) }
    }

    fn dir_at(&self, inner: Arc<dyn Dir>, real: RelPath) -> Arc<dyn Dir> {
        let VolumeStore { volume, elsewhere, holder } = self.clone();
        Arc::new(VolumeDir { inner, real, volume, elsewhere, node: OnceLock::new(), holder })
    }

    /// The real path of a path, with its symbolic links resolved.
    fn follow(&self, path: &RelPath) -> Option<RelPath> {
        let top = self.volume.store.root().ok()?;
        let mut todo: VecDeque<Vec<u8>> = path.components().map(<[u8]>::to_vec).collect();
        let (mut at, mut links) = (RelPath::root(), 0);
        while let Some(name) = todo.pop_front() {
            match &name[..] {
                b"" | b"." => continue,
                b".." => {
                    at = at.parent()?;
                    continue;
                }
                _ => {}
            }
            match top.descend(&at).ok()?.entry(&name, Detail::Basic).ok()?.0.kind {
                EntryKind::Symlink { target } => {
                    links += 1;
                    if links > MAX_LINKS || target.starts_with(b"/") {
                        return None;
                    }
                    target.split(|byte| *byte == b'/').rev().for_each(|name| todo.push_front(name.to_vec()));
                }
                _ => at = at.child(&name).ok()?,
            }
        }
        Some(at)
    }
}

impl Store for VolumeStore {
    fn root(&self) -> Result<Arc<dyn Dir>, Error> {
        Ok(self.dir_at(self.volume.store.root()?, RelPath::root()))
    }

    fn dir(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        if let Ok(inner) = self.volume.store.root()?.descend(path) {
            return Ok(self.dir_at(inner, path.clone()));
        }
        let inner = self.volume.store.dir(path)?;
        let real = self.follow(path).unwrap_or_else(|| path.clone());
        Ok(self.dir_at(inner, real))
    }

    fn space(&self, path: &RelPath) -> Result<Space, Error> {
        self.volume.store.space(path).map(|space| self.volume.shared.quotas.narrow(space))
    }

    fn leases(&self) -> Option<Arc<LeaseTable>> {
        Some(self.volume.shared.leases.clone())
    }

    fn held_by(&self, holder: HolderId) -> Option<Arc<dyn Store>> {
        Some(Arc::new(VolumeStore { holder: Some(holder), ..self.clone() }))
    }

    fn settle(&self) {
        self.volume.shared.settle(self.holder);
    }

    fn catch_up(&self) -> Result<bool, Error> {
        let leases = &self.volume.shared.site_leases;
        let had_to_ask = !leases.may_read_here();
        let lost = leases.flush(None);
        if lost.is_empty() { Ok(had_to_ask) } else { Err(lost_error(&names_of(&self.volume.tree, &lost)?)) }
    }
}

/// One open directory of a volume.
pub(crate) struct VolumeDir {
    pub(crate) inner: Arc<dyn Dir>,
    /// The path without symbolic links.
    pub(crate) real: RelPath,
    pub(crate) volume: Arc<Volume>,
    pub(crate) elsewhere: Option<Arc<dyn Elsewhere>>,
    /// The node number in the catalogue, once it was looked up.
    pub(crate) node: OnceLock<NodeId>,
    pub(crate) holder: Option<HolderId>,
}

impl VolumeDir {
    fn other(&self, inner: Arc<dyn Dir>, real: RelPath) -> VolumeDir {
        let (volume, elsewhere) = (self.volume.clone(), self.elsewhere.clone());
        VolumeDir { inner, real, volume, elsewhere, node: OnceLock::new(), holder: self.holder }
    }

    /// Invalidates the leases on changed names; an empty name is the directory itself.
    pub(crate) fn call_back(&self, changed: &[(&VolumeDir, &[u8])]) {
        let leases = &self.volume.shared.leases;
        if !leases.is_held() {
            return;
        }
        let mut told = Changed::default();
        for (dir, name) in changed {
            match dir.inner.self_entry(Detail::Basic) {
                Ok((_, raw)) if name.is_empty() || is_temp_name(name) => told.nodes.push(raw.ino),
                Ok((_, raw)) => told.names.push((raw.ino, name.to_vec())),
                Err(_) => told.all = true,
            }
        }
        leases.changed(self.holder, &told);
    }

    fn flush_and_settle(&self, work: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        self.volume.flush_with(work)?;
        self.volume.shared.settle(self.holder);
        Ok(())
    }

    /// Gives the creator of a directory a lease on it.
    fn hold_made(&self, name: &[u8]) {
        let Some(holder) = self.holder else { return };
        let Ok(made) = self.inner.child(name) else { return };
        let is_empty = || made.list().is_ok_and(|mut listing| listing.next().is_none());
        if let Ok((_, raw)) = made.self_entry(Detail::Basic) {
            self.volume.shared.leases.hold_made(holder, raw.ino, is_empty);
        }
    }

    /// The other directory of a rename or link.
    fn peer<'a>(&self, op: &str, dir: &'a dyn Dir) -> Result<&'a VolumeDir, Error> {
        let peer = dir.as_any().downcast_ref::<VolumeDir>();
        let peer = peer.filter(|peer| Arc::ptr_eq(&peer.volume.shared, &self.volume.shared));
        peer.ok_or_else(|| {
            let cause = "the two directories are not of one volume";
            Error::new(Code::CrossDevice, op, dir.path(), cause)
        })
    }

    fn noted_file(&self, inner: Box<dyn WriteFile>, path: RelPath, name: &[u8]) -> NotedFile {
        let dir = self.other(self.inner.clone(), self.real.clone());
        NotedFile { inner, path, name: name.to_vec(), dir }
    }

    /// The path of a name that belongs in the catalogue; none for a temporary name.
    pub(crate) fn noted(&self, name: &[u8]) -> Option<RelPath> {
        if is_temp_name(name) { None } else { self.real.child(name).ok() }
    }

    /// Does some work on names, with these paths marked as dirty before and after.
    fn change<T>(
        &self,
        paths: Vec<RelPath>,
        names: &[(&VolumeDir, &[u8])],
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut touch = (!paths.is_empty()).then(|| self.volume.shared.notes.touch(paths));
        let done = work();
        if let Some(touch) = &mut touch {
            leave(touch, names);
        }
        drop(touch);
        // Also after a failure: part of the work may be done.
        self.call_back(names);
        done
    }

    fn change_name<T>(&self, name: &[u8], work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.change(self.noted(name).into_iter().collect(), &[(self, name)], work)
    }

    fn change_self<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.change(vec![self.real.clone()], &[(self, b"")], work)
    }

    /// Does some work that adds to the volume, after its quota was reserved.
    pub(crate) fn add<T>(
        &self,
        op: &str,
        path: Option<RelPath>,
        parts: impl Fn() -> Result<Parts, Error>,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let quotas = &self.volume.shared.quotas;
        let Some(path) = path.filter(|_| quotas.is_limited()) else { return work() };
        let reserved = match quotas.reserve(&parts)? {
            Ok(reserved) => reserved,
            Err(_) => {
                // A recent removal may not be counted yet.
                self.volume.flush()?;
                quotas.reserve(&parts)?.map_err(|excess| quota::refused(op, &path, &excess))?
            }
        };
        let done = work()?;
        reserved.keep(path);
        Ok(done)
    }

    /// The same for a directory or symbolic link.
    fn add_name<T>(
        &self,
        op: &str,
        name: &[u8],
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.add(op, self.noted(name), quota::one_more, work)
    }

    fn move_with(
        &self,
        from: &[u8],
        to_dir: &dyn Dir,
        to: &[u8],
        mode: Replace,
        work: impl FnOnce(&dyn Dir) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let peer = self.peer("rename", to_dir)?;
        let (old, new) = (self.noted(from), peer.noted(to));
        if !is_temp_name(from)
            && let Some(away) = self.away_to_change(from)?
        {
            self.check_writable(from)?;
            peer.check_writable(to)?;
            let replace = mode == Replace::Yes;
            let (from, to) = (away.at, peer.spot(to)?);
            return self.change_away(Change::Rename {
                from,
                to,
                replace,
                seen: None,
                time: away.node.attributes.mtime,
            });
        }
        let away = if new.is_some() { peer.away(to)? } else { None };
        if away.is_some() && mode == Replace::No {
            return Err(Error::new(Code::PathExists, "rename", shown_path(&peer.real, to), ""));
        }
        let both: Vec<RelPath> = old.iter().chain(&new).cloned().collect();
        if both.is_empty() {
            return work(&*peer.inner);
        }
        // Only a file that was written under a temporary name adds to the usage.
        let arrives = new.clone().filter(|_| old.is_none());
        let parts = || quota::of_rename((&*self.inner, from), (&*peer.inner, to));
        let is_away = away.is_some();
        if let Some(away) = &away {
            self.note_successor(from, away)?;
        }
        let replaces = new.clone().zip(away.map(|away| away.content.version));
        let mut touch = self.volume.shared.notes.touch_away(both, replaces);
        let done = self.add("publish", arrives, parts, || {
            let _names = self.volume.shared.names.share();
            work(&*peer.inner)
        });
        leave(&mut touch, &[(self, from), (peer, to)]);
        if done.is_ok() {
            touch.done();
        }
        // Before the leases are invalidated.
        drop(touch);
        // Also after a failure: part of the work may be done.
        self.call_back(&[(self, from), (peer, to)]);
        done?;
        match (old, new) {
            (Some(old), Some(new)) if old != new && !is_away => self.volume.shared.notes.add_move(old, new),
            _ => Ok(()),
        }
    }
}

impl Dir for VolumeDir {
    fn path(&self) -> &RelPath {
        self.inner.path()
    }

    fn device(&self) -> u64 {
        self.inner.device()
    }

    fn lineage(&self) -> Vec<(u64, u64)> {
        self.inner.lineage()
    }

    fn child(&self, name: &[u8]) -> Result<Arc<dyn Dir>, Error> {
        Ok(Arc::new(self.other(self.inner.child(name)?, self.real.child(name)?)))
    }

    fn descend(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        Ok(Arc::new(self.other(self.inner.descend(path)?, self.real.join(path)?)))
    }

    fn list(&self) -> Result<Listing, Error> {
        match self.node_with_away()? {
            None => self.inner.list(),
            Some(node) => self.list_with_away(node),
        }
    }

    fn version(&self) -> Option<DirVersion> {
        // Names of content that is away are not in the plain directory.
        self.node_with_away().is_ok_and(|node| node.is_none()).then(|| self.inner.version())?
    }

    fn entry(&self, name: &[u8], detail: Detail) -> Result<(Entry, Raw), Error> {
        match self.away(name)? {
            None => self.inner.entry(name, detail),
            Some(away) => {
                let id = away.id;
                let mut found = away.told(self.inner.path().child(name)?, self.device());
                if detail == Detail::Full {
                    found.0.meta.xattrs = self.volume.tree.xattrs(id)?;
                }
                Ok(found)
            }
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn generation(&self, name: &[u8]) -> Result<u64, Error> {
        match self.inner.generation(name) {
            // Content that is away has the number of its node.
            Err(error) if error.code == Code::PathNotFound => Ok(0),
            found => found,
        }
    }

    fn self_entry(&self, detail: Detail) -> Result<(Entry, Raw), Error> {
        self.inner.self_entry(detail)
    }

    fn open_read(&self, name: &[u8]) -> Result<Box<dyn ReadFile>, Error> {
        match self.away(name)? {
            None => self.inner.open_read(name),
            Some(away) => self.open_away(name, &away),
        }
    }

    fn create_temp(&self, name: &[u8], keep_existing: bool) -> Result<Box<dyn WriteFile>, Error> {
        let inner = self.change_name(name, || self.inner.create_temp(name, keep_existing))?;
        match self.noted(name) {
            Some(path) => Ok(Box::new(self.noted_file(inner, path, name))),
            None => Ok(inner),
        }
    }

    fn open_direct(&self, name: &[u8]) -> Option<Box<dyn WriteFile>> {
        if !is_temp_name(name) && self.away(name).is_ok_and(|away| away.is_some()) {
            return None;
        }
        let inner = self.inner.open_direct(name)?;
        match self.noted(name) {
            Some(path) => Some(Box::new(self.noted_file(inner, path, name))),
            None => Some(inner),
        }
    }

    fn note_content(&self, name: &[u8], stamp: &Stamp, digest: &[u8; 32]) {
        if let Some(path) = self.noted(name) {
            self.volume.shared.digests.add(path, *stamp, *digest);
        }
    }

    fn rename(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        self.move_with(from, to_dir, to, Replace::Yes, |peer| self.inner.rename(from, peer, to))
    }

    fn rename_no_replace(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        self.move_with(from, to_dir, to, Replace::No, |peer| self.inner.rename_no_replace(from, peer, to))
    }

    fn replace(
        &self,
        from: &[u8],
        to_dir: &dyn Dir,
        to: &[u8],
        seen: Option<&Stamp>,
    ) -> Result<Replaced, Error> {
        match seen {
            Some(seen) => self.replace_seen(from, self.peer("publish", to_dir)?, to, seen),
            None => self.rename(from, to_dir, to).map(|()| Replaced::default()),
        }
    }

    fn mkdir(&self, name: &[u8], mode: u32) -> Result<(), Error> {
        self.check_free(name)?;
        let make = || self.inner.mkdir(name, mode).inspect(|()| self.hold_made(name));
        self.change_name(name, || self.add_name("make directory", name, make))
    }

    fn symlink(&self, target: &[u8], name: &[u8]) -> Result<(), Error> {
        self.check_free(name)?;
        self.change_name(name, || self.add_name("make link", name, || self.inner.symlink(target, name)))
    }

    fn hard_link(&self, name: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        let peer = self.peer("link", to_dir)?;
        peer.check_free(to)?;
        if let Some(away) = self.away_to_change(name)? {
            peer.check_writable(to)?;
            let (id, at, time) = (away.id, peer.spot(to)?, away.node.attributes.mtime);
            return self.change_away(Change::Link { id, at, time });
        }
        // Additional hard links are found by comparing a name that is known.
        let both = self.noted(name).into_iter().chain(peer.noted(to)).collect();
        self.change(both, &[(self, name), (peer, to)], || self.inner.hard_link(name, &*peer.inner, to))
    }

    fn remove_file(&self, name: &[u8]) -> Result<(), Error> {
        if let Some(away) = self.away_to_change(name)? {
            self.check_writable(name)?;
            return self.change_away(Change::Remove {
                at: away.at,
                seen: None,
                time: away.node.attributes.mtime,
            });
        }
        self.change_name(name, || {
            let _names = self.volume.shared.names.share();
            self.inner.remove_file(name)
        })
    }

    fn remove_dir(&self, name: &[u8]) -> Result<(), Error> {
        self.check_holds_nothing(name)?;
        self.change_name(name, || self.inner.remove_dir(name))
    }

    fn set_meta(&self, name: &[u8], meta: &Meta) -> Result<Vec<Error>, Error> {
        if let Some(away) = self.away_to_change(name)? {
            self.check_writable(name)?;
            let Attributes { owner, group, .. } = away.node.attributes;
            let attributes = Attributes { mode: meta.mode, owner, group, mtime: meta.mtime };
            return self.change_away(Change::SetAttributes { id: away.id, attributes }).map(|()| Vec::new());
        }
        self.change_name(name, || self.inner.set_meta(name, meta))
    }

    fn set_xattr(&self, name: &[u8], xattr: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        let subject = |error: Error| Error { subject: shown_path(&self.real, name), ..error };
        if name.is_empty() {
            let before = self.inner.self_entry(Detail::Full)?.0.meta.xattrs;
            with_xattr(before, xattr, value).map_err(subject)?;
            return self.change_self(|| self.inner.set_xattr(name, xattr, value));
        }
        with_xattr(self.entry(name, Detail::Full)?.0.meta.xattrs, xattr, value).map_err(subject)?;
        if let Some(away) = self.away_to_change(name)? {
            self.check_writable(name)?;
            let (id, name, value) = (away.id, xattr.to_vec(), value.map(<[u8]>::to_vec));
            return self.change_away(Change::SetXattr { id, name, value });
        }
        self.change_name(name, || self.inner.set_xattr(name, xattr, value))
    }

    fn set_own_meta(&self, meta: &Meta) -> Result<Vec<Error>, Error> {
        self.change_self(|| self.inner.set_own_meta(meta))
    }

    fn is_locked(&self) -> Result<bool, Error> {
        self.inner.is_locked()
    }

    fn unlock(&self) -> Result<(), Error> {
        self.change_self(|| self.inner.unlock())
    }

    fn sync_file(&self, name: &[u8]) -> Result<(), Error> {
        if self.away(name)?.is_some() {
            return self.flush_and_settle(|| Ok(()));
        }
        match is_temp_name(name) {
            true => self.inner.sync_file(name),
            false => self.flush_and_settle(|| self.inner.sync_file(name)),
        }
    }

    fn sync(&self) -> Result<(), Error> {
        self.flush_and_settle(|| self.inner.sync())
    }

    fn sync_with(&self, file: &dyn WriteFile) -> Result<(), Error> {
        self.flush_and_settle(|| self.inner.sync_with(file))
    }

    fn names_first(&self) -> bool {
        true
    }

    fn sync_fs(&self) -> Result<(), Error> {
        self.flush_and_settle(|| self.inner.sync_fs())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Records the states of names after a change, if leases are held: a later difference means a change past renkei. The
/// ctime of a directory tells nothing, since it changes with the entries.
pub(crate) fn leave(touch: &mut Touch<'_>, names: &[(&VolumeDir, &[u8])]) {
    for (dir, name) in names.iter().filter(|(dir, _)| dir.volume.shared.leases.is_held()) {
        if let Some(path) = dir.noted(name)
            && let Ok(plain) = look(&*dir.inner, name)
            && !plain.as_ref().is_some_and(|plain| plain.entry.kind == EntryKind::Dir)
        {
            touch.leave(path, seen(&plain));
        }
    }
}

/// Whether a rename may replace an existing entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Replace {
    Yes,
    No,
}

/// A file that is written under its final name, which is marked as dirty.
struct NotedFile {
    inner: Box<dyn WriteFile>,
    path: RelPath,
    name: Vec<u8>,
    dir: VolumeDir,
}

impl NotedFile {
    fn change<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.dir.change(vec![self.path.clone()], &[(&self.dir, &self.name)], work)
    }
}

impl WriteFile for NotedFile {
    fn stamp(&self) -> Result<Stamp, Error> {
        self.inner.stamp()
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<(), Error> {
        self.change(|| self.inner.write_at(buf, offset))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        self.inner.read_at(buf, offset)
    }

    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Error> {
        self.inner.next_data(from)
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        self.change(|| self.inner.set_len(len))
    }

    fn allocate(&self, range: Range<u64>) -> Result<(), Error> {
        self.change(|| self.inner.allocate(range))
    }

    fn room(&self) -> Option<u64> {
        self.inner.room()
    }

    fn free(&self, range: Range<u64>) {
        self.inner.free(range);
    }

    fn set_meta(&self, meta: &Meta) -> Result<Vec<Error>, Error> {
        self.change(|| self.inner.set_meta(meta))
    }

    fn start_writeback(&self, range: Range<u64>) {
        self.inner.start_writeback(range);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn sync_data(&self) -> Result<(), Error> {
        self.dir.flush_and_settle(|| self.inner.sync_data())
    }

    fn sync_all(&self) -> Result<(), Error> {
        self.dir.flush_and_settle(|| self.inner.sync_all())
    }
}
