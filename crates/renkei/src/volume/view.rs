//! A volume as a store.
//!
//! Reading and writing is done in the plain directory, by the rules of any local store; each name that is changed is
//! noted. What a sync promises it promises of the catalogue, too. A link to a directory is followed inside the volume, and
//! what is changed there is noted by its real path.

use super::Volume;
use crate::store::temp::is_temp_name;
use crate::store::{Detail, Dir, Listing, Raw, ReadFile, Space, Store, WriteFile};
use renkei_core::entry::{Entry, EntryKind, Meta, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use rustix::fd::BorrowedFd;
use std::any::Any;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Links that are followed on one path, as the kernel does.
const MAX_LINKS: usize = 40;

/// A volume, to be worked on.
pub struct VolumeStore {
    volume: Arc<Volume>,
}

impl VolumeStore {
    /// Of a volume that is open.
    pub fn new(volume: Arc<Volume>) -> Self {
        VolumeStore { volume }
    }

    fn dir_at(&self, inner: Arc<dyn Dir>, real: RelPath) -> Arc<dyn Dir> {
        Arc::new(VolumeDir { inner, real, volume: self.volume.clone() })
    }

    /// Where a path leads to, its links replaced by what they say.
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
        self.volume.store.space(path)
    }
}

/// One open directory of a volume.
struct VolumeDir {
    inner: Arc<dyn Dir>,
    /// Its path without links.
    real: RelPath,
    volume: Arc<Volume>,
}

impl VolumeDir {
    /// The other directory of a rename or link.
    fn peer<'a>(&self, op: &str, dir: &'a dyn Dir) -> Result<&'a VolumeDir, Error> {
        let peer = dir.as_any().downcast_ref::<VolumeDir>();
        let peer = peer.filter(|peer| Arc::ptr_eq(&peer.volume.shared, &self.volume.shared));
        peer.ok_or_else(|| {
            let cause = "the two directories are not of one volume";
            Error::new(Code::CrossDevice, op, dir.path(), cause)
        })
    }

    /// The path of a name that the catalogue shall know.
    fn noted(&self, name: &[u8]) -> Option<RelPath> {
        if is_temp_name(name) { None } else { self.real.child(name).ok() }
    }

    /// Does something to names that the catalogue shall know.
    fn change<T>(&self, paths: Vec<RelPath>, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        if paths.is_empty() {
            return work();
        }
        let _touch = self.volume.shared.notes.touch(paths);
        work()
    }

    fn change_name<T>(&self, name: &[u8], work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.change(self.noted(name).into_iter().collect(), work)
    }

    fn move_with(
        &self,
        from: &[u8],
        to_dir: &dyn Dir,
        to: &[u8],
        work: impl FnOnce(&dyn Dir) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let peer = self.peer("rename", to_dir)?;
        let (old, new) = (self.noted(from), peer.noted(to));
        let both = old.iter().chain(&new).cloned().collect();
        self.change(both, || {
            work(&*peer.inner)?;
            match (old, new) {
                (Some(old), Some(new)) if old != new => self.volume.shared.notes.add_move(old, new),
                _ => Ok(()),
            }
        })
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
        let inner = self.inner.child(name)?;
        Ok(Arc::new(VolumeDir { inner, real: self.real.child(name)?, volume: self.volume.clone() }))
    }

    fn descend(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        let inner = self.inner.descend(path)?;
        Ok(Arc::new(VolumeDir { inner, real: self.real.join(path)?, volume: self.volume.clone() }))
    }

    fn list(&self) -> Result<Listing, Error> {
        self.inner.list()
    }

    fn entry(&self, name: &[u8], detail: Detail) -> Result<(Entry, Raw), Error> {
        self.inner.entry(name, detail)
    }

    fn self_entry(&self, detail: Detail) -> Result<(Entry, Raw), Error> {
        self.inner.self_entry(detail)
    }

    fn open_read(&self, name: &[u8]) -> Result<Box<dyn ReadFile>, Error> {
        self.inner.open_read(name)
    }

    fn create_temp(&self, name: &[u8], keep_existing: bool) -> Result<Box<dyn WriteFile>, Error> {
        let inner = self.change_name(name, || self.inner.create_temp(name, keep_existing))?;
        match self.noted(name) {
            Some(path) => Ok(Box::new(NotedFile { inner, path, volume: self.volume.clone() })),
            None => Ok(inner),
        }
    }

    fn open_direct(&self, name: &[u8]) -> Option<Box<dyn WriteFile>> {
        let inner = self.inner.open_direct(name)?;
        match self.noted(name) {
            Some(path) => Some(Box::new(NotedFile { inner, path, volume: self.volume.clone() })),
            None => Some(inner),
        }
    }

    fn rename(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        self.move_with(from, to_dir, to, |peer| self.inner.rename(from, peer, to))
    }

    fn rename_no_replace(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        self.move_with(from, to_dir, to, |peer| self.inner.rename_no_replace(from, peer, to))
    }

    fn mkdir(&self, name: &[u8], mode: u32) -> Result<(), Error> {
        self.change_name(name, || self.inner.mkdir(name, mode))
    }

    fn symlink(&self, target: &[u8], name: &[u8]) -> Result<(), Error> {
        self.change_name(name, || self.inner.symlink(target, name))
    }

    fn hard_link(&self, name: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        let peer = self.peer("link", to_dir)?;
        // That a file has several names is seen by looking at one that is known.
        let both = self.noted(name).into_iter().chain(peer.noted(to)).collect();
        self.change(both, || self.inner.hard_link(name, &*peer.inner, to))
    }

    fn remove_file(&self, name: &[u8]) -> Result<(), Error> {
        self.change_name(name, || self.inner.remove_file(name))
    }

    fn remove_dir(&self, name: &[u8]) -> Result<(), Error> {
        self.change_name(name, || self.inner.remove_dir(name))
    }

    fn set_meta(&self, name: &[u8], meta: &Meta) -> Result<Vec<Error>, Error> {
        self.change_name(name, || self.inner.set_meta(name, meta))
    }

    fn set_own_meta(&self, meta: &Meta) -> Result<Vec<Error>, Error> {
        self.change(vec![self.real.clone()], || self.inner.set_own_meta(meta))
    }

    fn is_locked(&self) -> Result<bool, Error> {
        self.inner.is_locked()
    }

    fn unlock(&self) -> Result<(), Error> {
        self.change(vec![self.real.clone()], || self.inner.unlock())
    }

    fn sync_file(&self, name: &[u8]) -> Result<(), Error> {
        self.inner.sync_file(name)?;
        if is_temp_name(name) { Ok(()) } else { self.volume.flush() }
    }

    fn sync(&self) -> Result<(), Error> {
        self.inner.sync()?;
        self.volume.flush()
    }

    fn sync_fs(&self) -> Result<(), Error> {
        self.inner.sync_fs()?;
        self.volume.flush()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A file that is written under its final name.
struct NotedFile {
    inner: Box<dyn WriteFile>,
    path: RelPath,
    volume: Arc<Volume>,
}

impl NotedFile {
    fn change<T>(&self, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let _touch = self.volume.shared.notes.touch(vec![self.path.clone()]);
        work()
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
        self.inner.sync_data()?;
        self.volume.flush()
    }

    fn sync_all(&self) -> Result<(), Error> {
        self.inner.sync_all()?;
        self.volume.flush()
    }
}
