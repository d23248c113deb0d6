//! A guard over the plain files of a followed volume while replicas are received: a file that was written here
//! meanwhile is not replaced, and a file of another version is not taken for the one that is received, whatever its
//! size and time.

use super::outbox::Outbox;
use renkei_core::entry::{Entry, EntryKind, FileTime, Meta, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::Kind;
use renkei_core::path::RelPath;
use renkei_store::{Detail, Dir, Listing, Raw, ReadFile, WriteFile};
use std::any::Any;
use std::sync::Arc;

/// A modification time that no version has.
const NO_TIME: FileTime = FileTime { secs: i64::MIN, nanos: 0 };

/// A directory of plain files.
pub struct ReplicaGuard {
    inner: Arc<dyn Dir>,
    pending: Arc<Outbox>,
}

impl ReplicaGuard {
    /// The guarded top of a volume's plain files.
    pub fn over(inner: Arc<dyn Dir>, pending: Arc<Outbox>) -> Arc<dyn Dir> {
        Arc::new(ReplicaGuard { inner, pending })
    }

    fn below(&self, inner: Arc<dyn Dir>) -> Arc<dyn Dir> {
        ReplicaGuard::over(inner, self.pending.clone())
    }

    /// Renames or links to a name, unless the file there was written by this site.
    fn put(
        &self,
        to_dir: &dyn Dir,
        to: &[u8],
        put: impl FnOnce(&dyn Dir) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let to_dir = to_dir.as_any().downcast_ref::<ReplicaGuard>().map_or(to_dir, |guarded| &*guarded.inner);
        // With the write lock, no writer changes the file in between.
        let _turn = self.pending.turn();
        let path = to_dir.path().child(to)?;
        if self.is_written_here(&path)? {
            let cause = "it has been written here since";
            return Err(Error::new(Code::SourceChanged, "replicate", path, cause));
        }
        put(to_dir)
    }

    fn is_written_here(&self, path: &RelPath) -> Result<bool, Error> {
        let Some((id, node)) = self.pending.at(path)? else { return Ok(false) };
        let Kind::File(content) = &node.kind else { return Ok(false) };
        let held = self.pending.held(id)?;
        Ok(self.pending.is_unsent(id) || held.is_some_and(|held| held.is_own() && held.is_of(content)))
    }
}

impl ReplicaGuard {
    /// Whether a plain file is known to have another version than the catalogue names.
    fn is_other(&self, name: &[u8], stamp: &Stamp) -> Result<bool, Error> {
        let Some((id, node)) = self.pending.at(&self.inner.path().child(name)?)? else { return Ok(false) };
        let Kind::File(content) = &node.kind else { return Ok(false) };
        Ok(self.pending.held(id)?.is_some_and(|held| held.is_other(content, stamp)))
    }
}

impl Dir for ReplicaGuard {
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
        self.inner.child(name).map(|dir| self.below(dir))
    }

    fn descend(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        self.inner.descend(path).map(|dir| self.below(dir))
    }

    fn list(&self) -> Result<Listing, Error> {
        self.inner.list()
    }

    fn entry(&self, name: &[u8], detail: Detail) -> Result<(Entry, Raw), Error> {
        let (mut entry, raw) = self.inner.entry(name, detail)?;
        if let EntryKind::File { stamp, .. } = &mut entry.kind
            && self.is_other(name, stamp)?
        {
            // The new version may have the same time: some programs keep it.
            *stamp = Stamp { mtime: NO_TIME, ..*stamp };
        }
        Ok((entry, raw))
    }

    fn self_entry(&self, detail: Detail) -> Result<(Entry, Raw), Error> {
        self.inner.self_entry(detail)
    }

    fn open_read(&self, name: &[u8]) -> Result<Box<dyn ReadFile>, Error> {
        self.inner.open_read(name)
    }

    fn create_temp(&self, name: &[u8], keep_existing: bool) -> Result<Box<dyn WriteFile>, Error> {
        self.inner.create_temp(name, keep_existing)
    }

    fn open_direct(&self, name: &[u8]) -> Option<Box<dyn WriteFile>> {
        self.inner.open_direct(name)
    }

    fn rename(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        self.put(to_dir, to, |to_dir| self.inner.rename(from, to_dir, to))
    }

    fn rename_no_replace(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        self.put(to_dir, to, |to_dir| self.inner.rename_no_replace(from, to_dir, to))
    }

    fn mkdir(&self, name: &[u8], mode: u32) -> Result<(), Error> {
        self.inner.mkdir(name, mode)
    }

    fn symlink(&self, target: &[u8], name: &[u8]) -> Result<(), Error> {
        self.inner.symlink(target, name)
    }

    fn hard_link(&self, name: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        self.put(to_dir, to, |to_dir| self.inner.hard_link(name, to_dir, to))
    }

    fn remove_file(&self, name: &[u8]) -> Result<(), Error> {
        self.inner.remove_file(name)
    }

    fn remove_dir(&self, name: &[u8]) -> Result<(), Error> {
        self.inner.remove_dir(name)
    }

    fn set_meta(&self, name: &[u8], meta: &Meta) -> Result<Vec<Error>, Error> {
        self.inner.set_meta(name, meta)
    }

    fn set_own_meta(&self, meta: &Meta) -> Result<Vec<Error>, Error> {
        self.inner.set_own_meta(meta)
    }

    fn is_locked(&self) -> Result<bool, Error> {
        self.inner.is_locked()
    }

    fn unlock(&self) -> Result<(), Error> {
        self.inner.unlock()
    }

    fn sync_file(&self, name: &[u8]) -> Result<(), Error> {
        self.inner.sync_file(name)
    }

    fn sync(&self) -> Result<(), Error> {
        self.inner.sync()
    }

    fn sync_fs(&self) -> Result<(), Error> {
        self.inner.sync_fs()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
