//! A store on a simulated disk.
//!
//! Handles name inodes, as descriptors do; those of removed files fail.

use super::disk::{Body, Disk, Found, Ino, ROOT};
use renkei_core::entry::{Entry, EntryKind, Meta, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::path::{RelPath, printable};
use renkei_store::{Detail, Dir, Listed, Listing, Raw, ReadFile, Space, Store, TypeHint, WriteFile};
use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// A disk that several handles share.
pub type SharedDisk = Arc<Mutex<Disk>>;

/// Does some work on `disk` in place of the one that is shared.
pub fn lend<T>(shared: &SharedDisk, disk: &mut Disk, work: impl FnOnce() -> T) -> T {
    std::mem::swap(disk, &mut *shared.lock().unwrap());
    let done = work();
    std::mem::swap(disk, &mut *shared.lock().unwrap());
    done
}

/// The device number of every simulated disk.
const DEVICE: u64 = 1;

/// The store of a whole disk.
pub struct MemoryStore(SharedDisk);

impl MemoryStore {
    /// The store of `disk`.
    pub fn new(disk: SharedDisk) -> Self {
        MemoryStore(disk)
    }
}

impl Store for MemoryStore {
    fn root(&self) -> Result<Arc<dyn Dir>, Error> {
        Ok(Arc::new(MemoryDir { disk: self.0.clone(), ino: ROOT, path: RelPath::root() }))
    }

    fn dir(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        self.root()?.descend(path)
    }

    fn space(&self, _path: &RelPath) -> Result<Space, Error> {
        Ok(Space::default())
    }
}

struct MemoryDir {
    disk: SharedDisk,
    ino: Ino,
    path: RelPath,
}

impl MemoryDir {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap()
    }

    fn file(&self, ino: Ino) -> MemoryFile {
        MemoryFile { disk: self.disk.clone(), ino }
    }

    fn exists(&self, name: &[u8]) -> bool {
        self.disk().lookup(self.ino, name).is_ok()
    }
}

fn refused(code: Code, op: &str, name: &[u8]) -> Error {
    Error::new(code, op, printable(name), "simulated")
}

/// The inode of a directory of the same store.
fn ino_of(dir: &dyn Dir) -> Result<Ino, Error> {
    let own = dir.as_any().downcast_ref::<MemoryDir>();
    own.map(|dir| dir.ino).ok_or_else(|| refused(Code::CrossDevice, "rename", b""))
}

fn raw(disk: &Disk, ino: Ino) -> Result<Raw, Error> {
    let node = disk.node(ino)?;
    let nlink = if disk.has_more_names(ino) { disk.names_of(ino) as u64 } else { 1 };
    Ok(Raw { ino, dev: DEVICE, nlink, ctime: node.ctime, ..Raw::default() })
}

impl Dir for MemoryDir {
    fn path(&self) -> &RelPath {
        &self.path
    }

    fn device(&self) -> u64 {
        DEVICE
    }

    fn lineage(&self) -> Vec<(u64, u64)> {
        vec![(DEVICE, self.ino)]
    }

    fn child(&self, name: &[u8]) -> Result<Arc<dyn Dir>, Error> {
        let disk = self.disk();
        let ino = disk.lookup(self.ino, name)?;
        disk.names(ino)?;
        Ok(Arc::new(MemoryDir { disk: self.disk.clone(), ino, path: self.path.child(name)? }))
    }

    fn descend(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        let disk = self.disk();
        let ino = path.components().try_fold(self.ino, |dir, name| disk.lookup(dir, name))?;
        disk.names(ino)?;
        Ok(Arc::new(MemoryDir { disk: self.disk.clone(), ino, path: self.path.join(path)? }))
    }

    fn list(&self) -> Result<Listing, Error> {
        let disk = self.disk();
        let listed = |(name, ino): (Vec<u8>, Ino)| {
            let hint = match disk.live(ino).map(|node| &node.body) {
                Some(Body::File(_)) => TypeHint::File,
                Some(Body::Dir(_)) => TypeHint::Dir,
                Some(Body::Symlink(_)) => TypeHint::Symlink,
                None => TypeHint::Unknown,
            };
            Ok(Listed { name, hint, ino })
        };
        let names: Vec<_> = disk.list(self.ino)?.into_iter().map(listed).collect();
        Ok(Box::new(names.into_iter()))
    }

    fn entry(&self, name: &[u8], _detail: Detail) -> Result<(Entry, Raw), Error> {
        let disk = self.disk();
        let Found { ino, entry } = disk.entry(self.ino, name)?;
        Ok((Entry { path: self.path.child(name)?, ..entry }, raw(&disk, ino)?))
    }

    fn self_entry(&self, _detail: Detail) -> Result<(Entry, Raw), Error> {
        let disk = self.disk();
        let meta = disk.node(self.ino)?.meta.clone();
        Ok((Entry { path: self.path.clone(), meta, kind: EntryKind::Dir }, raw(&disk, self.ino)?))
    }

    fn open_read(&self, name: &[u8]) -> Result<Box<dyn ReadFile>, Error> {
        let ino = self.disk().lookup(self.ino, name)?;
        self.disk().content(ino)?;
        Ok(Box::new(self.file(ino)))
    }

    fn create_temp(&self, name: &[u8], keep_existing: bool) -> Result<Box<dyn WriteFile>, Error> {
        let ino = self.disk().create_temp(self.ino, name, keep_existing)?;
        Ok(Box::new(self.file(ino)))
    }

    fn open_direct(&self, _name: &[u8]) -> Option<Box<dyn WriteFile>> {
        None
    }

    fn rename(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        if ino_of(to_dir)? != self.ino {
            return Err(refused(Code::CrossDevice, "rename", from));
        }
        self.disk().rename(self.ino, from, to)
    }

    fn rename_no_replace(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        if self.exists(to) {
            return Err(refused(Code::PathExists, "rename", to));
        }
        self.rename(from, to_dir, to)
    }

    fn mkdir(&self, name: &[u8], mode: u32) -> Result<(), Error> {
        self.disk().mkdir(self.ino, name, mode).map(drop)
    }

    fn symlink(&self, target: &[u8], name: &[u8]) -> Result<(), Error> {
        self.disk().symlink(self.ino, name, target).map(drop)
    }

    fn hard_link(&self, name: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        let mut disk = self.disk();
        let ino = disk.lookup(self.ino, name)?;
        disk.hard_link(ino, ino_of(to_dir)?, to)
    }

    fn remove_file(&self, name: &[u8]) -> Result<(), Error> {
        self.disk().remove_file(self.ino, name)
    }

    fn remove_dir(&self, name: &[u8]) -> Result<(), Error> {
        let mut disk = self.disk();
        let ino = disk.lookup(self.ino, name)?;
        if !disk.names(ino)?.is_empty() {
            return Err(refused(Code::NotEmpty, "remove", name));
        }
        disk.remove_tree(self.ino, name)
    }

    fn set_meta(&self, name: &[u8], meta: &Meta) -> Result<Vec<Error>, Error> {
        let mut disk = self.disk();
        let ino = disk.lookup(self.ino, name)?;
        disk.set_meta(ino, meta).map(|()| Vec::new())
    }

    fn set_own_meta(&self, meta: &Meta) -> Result<Vec<Error>, Error> {
        self.disk().set_meta(self.ino, meta).map(|()| Vec::new())
    }

    fn is_locked(&self) -> Result<bool, Error> {
        let disk = self.disk();
        Ok(!disk.is_privileged() && disk.node(self.ino)?.meta.mode & 0o700 != 0o700)
    }

    fn unlock(&self) -> Result<(), Error> {
        let mut disk = self.disk();
        let meta = disk.node(self.ino)?.meta.clone();
        disk.set_meta(self.ino, &Meta { mode: meta.mode | 0o700, ..meta })
    }

    fn sync_file(&self, name: &[u8]) -> Result<(), Error> {
        let mut disk = self.disk();
        let ino = disk.lookup(self.ino, name)?;
        disk.sync(ino)
    }

    fn sync(&self) -> Result<(), Error> {
        self.disk().sync(self.ino)
    }

    fn sync_fs(&self) -> Result<(), Error> {
        self.disk().sync_all()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct MemoryFile {
    disk: SharedDisk,
    ino: Ino,
}

impl MemoryFile {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap()
    }

    fn next_data_at(&self, from: u64) -> Result<Option<Range<u64>>, Error> {
        Ok(self.disk().content(self.ino)?.next_data(from))
    }
}

fn fill(buf: &mut [u8], bytes: &[u8]) -> usize {
    buf[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}

impl ReadFile for MemoryFile {
    fn stamp(&self) -> Result<Stamp, Error> {
        self.disk().stamp(self.ino)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        let bytes = self.disk().read_at(self.ino, offset..offset + buf.len() as u64)?;
        Ok(fill(buf, &bytes))
    }

    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Error> {
        self.next_data_at(from)
    }

    fn advise_sequential(&self, _range: Range<u64>) {}

    fn has_writer(&self) -> bool {
        false
    }
}

impl WriteFile for MemoryFile {
    fn stamp(&self) -> Result<Stamp, Error> {
        self.disk().stamp(self.ino)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<(), Error> {
        self.disk().write_at(self.ino, offset, buf)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        let bytes = self.disk().content(self.ino)?.read(offset..offset + buf.len() as u64);
        Ok(fill(buf, &bytes))
    }

    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Error> {
        self.next_data_at(from)
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        self.disk().set_len(self.ino, len)
    }

    fn allocate(&self, _range: Range<u64>) -> Result<(), Error> {
        Ok(())
    }

    fn room(&self) -> Option<u64> {
        None
    }

    fn free(&self, range: Range<u64>) {
        // Space that is not freed now is freed by the next run.
        let _ = self.disk().free(self.ino, range);
    }

    fn set_meta(&self, meta: &Meta) -> Result<Vec<Error>, Error> {
        self.disk().set_meta(self.ino, meta).map(|()| Vec::new())
    }

    fn start_writeback(&self, _range: Range<u64>) {}

    fn sync_data(&self) -> Result<(), Error> {
        self.disk().sync(self.ino)
    }

    fn sync_all(&self) -> Result<(), Error> {
        self.disk().sync(self.ino)
    }
}
