//! A store on a simulated disk.
//!
//! Handles name inodes, as descriptors do; those of removed files fail. Files belong to one account, which is root if
//! the disk is privileged. There are no special files and no access lists.

use super::disk::{Body, Disk, Ino, Lookup, Node, ROOT};
use renkei_core::entry::{Entry, EntryKind, Meta, Stamp, Xattr};
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
/// Owner and group of files that were not given away; in metadata on the disk their names are empty.
const OWN: &str = "user";
/// Other accounts and groups.
const OTHERS: [&str; 2] = ["nobody", "daemon"];
/// The size of every simulated disk, as stores report it.
const SIZE_BYTES: u64 = 1 << 50;
/// Most symbolic links on one path, and the longest target of one, as on Linux.
const MAX_LINKS: usize = 40;
const MAX_TARGET_BYTES: usize = 4095;

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
        let ino = follow(&self.0.lock().unwrap(), path)?;
        Ok(Arc::new(MemoryDir { disk: self.0.clone(), ino, path: path.clone() }))
    }

    fn space(&self, path: &RelPath) -> Result<Space, Error> {
        self.dir(path)?;
        Ok(Space { total_bytes: SIZE_BYTES, available_bytes: SIZE_BYTES, ..Space::default() })
    }
}

/// The directory that a path leads to, through symbolic links that stay on the disk.
fn follow(disk: &Disk, path: &RelPath) -> Result<Ino, Error> {
    let fail = |code| refused(code, "open", path);
    let (mut above, mut here, mut links) = (Vec::new(), ROOT, 0);
    let mut todo = reversed(path.as_bytes());
    while let Some(name) = todo.pop() {
        match &*name {
            b"" | b"." => continue,
            b".." => here = above.pop().ok_or_else(|| fail(Code::OutsideStorage))?,
            name => {
                let ino = disk.lookup(here, name)?;
                match &disk.node(ino)?.body {
                    Body::Dir(_) => above.push(std::mem::replace(&mut here, ino)),
                    Body::Symlink(target) if target.starts_with(b"/") => {
                        return Err(fail(Code::OutsideStorage));
                    }
                    Body::Symlink(target) if links < MAX_LINKS => {
                        links += 1;
                        todo.extend(reversed(target));
                    }
                    _ => return Err(fail(Code::NotADirectory)),
                }
            }
        }
    }
    Ok(here)
}

/// The components of a path, the last one first.
fn reversed(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&byte| byte == b'/').rev().map(<[u8]>::to_vec).collect()
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
}

fn refused(code: Code, op: &str, path: &RelPath) -> Error {
    Error::new(code, op, path, "simulated")
}

/// Metadata as a store shows it.
fn shown(meta: &Meta, detail: Detail) -> Meta {
    let named = |name: &str| if name.is_empty() { OWN.to_owned() } else { name.to_owned() };
    match detail {
        Detail::Basic => Meta { mode: meta.mode, mtime: meta.mtime, ..Meta::default() },
        Detail::Full => Meta { owner: named(&meta.owner), group: named(&meta.group), ..meta.clone() },
    }
}

/// Applies metadata as [`WriteFile::set_meta`] does; returns what could not be kept.
fn set_meta(disk: &mut Disk, ino: Ino, wanted: &Meta) -> Result<Vec<Error>, Error> {
    let Node { meta, body, .. } = disk.node(ino)?;
    let mut meta = meta.clone();
    let mut lost = Vec::new();
    if disk.is_privileged() {
        give(&mut meta.owner, &wanted.owner);
        give(&mut meta.group, &wanted.group);
    }
    match wanted.mtime.nanos < 1_000_000_000 {
        true => meta.mtime = wanted.mtime,
        false => lost.push(not_kept(Code::Unsupported, b"mtime")),
    }
    if !matches!(body, Body::Symlink(_)) {
        lost.extend(wanted.xattrs.iter().filter_map(|xattr| set_xattr(&mut meta, xattr)));
        let is_dir = matches!(body, Body::Dir(_));
        meta.mode = if is_dir { wanted.mode } else { safe_mode(wanted, &shown(&meta, Detail::Full)) };
        if meta.mode != wanted.mode {
            lost.push(not_kept(Code::PermissionDenied, b"mode"));
        }
    }
    disk.set_meta(ino, &meta).map(|()| lost)
}

fn not_kept(code: Code, what: &[u8]) -> Error {
    Error::new(code, "set metadata", printable(what), "simulated")
}

fn set_xattr(meta: &mut Meta, xattr: &Xattr) -> Option<Error> {
    if !xattr.name.starts_with(b"user.") || xattr.name.contains(&0) {
        return Some(not_kept(Code::Unsupported, &xattr.name));
    }
    meta.xattrs.retain(|other| other.name != xattr.name);
    meta.xattrs.push(xattr.clone());
    meta.xattrs.sort_by(|a, b| a.name.cmp(&b.name));
    None
}

/// Set-id bits are a grant of the owner's authority, and of the group's.
fn safe_mode(wanted: &Meta, file: &Meta) -> u32 {
    match (wanted.owner == file.owner, wanted.group == file.group) {
        (true, true) => wanted.mode,
        (true, false) => wanted.mode & !0o2000,
        (false, _) => wanted.mode & !0o6000,
    }
}

fn give(of: &mut String, to: &str) {
    if to == OWN {
        of.clear();
    } else if OTHERS.contains(&to) {
        to.clone_into(of);
    }
}

/// The inode of a directory of the same store.
fn ino_of(dir: &dyn Dir) -> Result<Ino, Error> {
    let own = dir.as_any().downcast_ref::<MemoryDir>();
    own.map(|dir| dir.ino).ok_or_else(|| refused(Code::CrossDevice, "rename", dir.path()))
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
        let path = self.path.child(name)?;
        let disk = self.disk();
        let ino = disk.lookup(self.ino, name)?;
        disk.names(ino)?;
        Ok(Arc::new(MemoryDir { disk: self.disk.clone(), ino, path }))
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

    fn entry(&self, name: &[u8], detail: Detail) -> Result<(Entry, Raw), Error> {
        let path = self.path.child(name)?;
        let disk = self.disk();
        let Lookup { ino, entry } = disk.entry(self.ino, name)?;
        Ok((Entry { path, meta: shown(&disk.node(ino)?.meta, detail), ..entry }, raw(&disk, ino)?))
    }

    fn self_entry(&self, detail: Detail) -> Result<(Entry, Raw), Error> {
        let disk = self.disk();
        let meta = shown(&disk.node(self.ino)?.meta, detail);
        Ok((Entry { path: self.path.clone(), meta, kind: EntryKind::Dir }, raw(&disk, self.ino)?))
    }

    fn open_read(&self, name: &[u8]) -> Result<Box<dyn ReadFile>, Error> {
        let path = self.path.child(name)?;
        let disk = self.disk();
        let ino = disk.lookup(self.ino, name)?;
        if matches!(disk.node(ino)?.body, Body::Symlink(_)) {
            return Err(refused(Code::OutsideStorage, "open", &path));
        }
        disk.content(ino)?;
        Ok(Box::new(self.file(ino)))
    }

    fn create_temp(&self, name: &[u8], keep_existing: bool) -> Result<Box<dyn WriteFile>, Error> {
        self.path.child(name)?;
        let ino = self.disk().create_temp(self.ino, name, keep_existing)?;
        Ok(Box::new(self.file(ino)))
    }

    fn open_direct(&self, _name: &[u8]) -> Option<Box<dyn WriteFile>> {
        None
    }

    fn rename(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        self.path.child(from)?;
        to_dir.path().child(to)?;
        self.disk().rename(self.ino, from, ino_of(to_dir)?, to)
    }

    fn rename_no_replace(&self, from: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        let path = to_dir.path().child(to)?;
        if self.disk().lookup(ino_of(to_dir)?, to).is_ok() {
            return Err(refused(Code::PathExists, "rename", &path));
        }
        self.rename(from, to_dir, to)
    }

    fn mkdir(&self, name: &[u8], mode: u32) -> Result<(), Error> {
        self.path.child(name)?;
        self.disk().mkdir(self.ino, name, mode).map(drop)
    }

    fn symlink(&self, target: &[u8], name: &[u8]) -> Result<(), Error> {
        let path = self.path.child(name)?;
        if target.len() > MAX_TARGET_BYTES {
            return Err(refused(Code::NameTooLong, "symlink", &path));
        }
        self.disk().symlink(self.ino, name, target).map(drop)
    }

    fn hard_link(&self, name: &[u8], to_dir: &dyn Dir, to: &[u8]) -> Result<(), Error> {
        self.path.child(name)?;
        to_dir.path().child(to)?;
        let mut disk = self.disk();
        let ino = disk.lookup(self.ino, name)?;
        disk.hard_link(ino, ino_of(to_dir)?, to)
    }

    fn remove_file(&self, name: &[u8]) -> Result<(), Error> {
        self.path.child(name)?;
        self.disk().remove_file(self.ino, name)
    }

    fn remove_dir(&self, name: &[u8]) -> Result<(), Error> {
        let path = self.path.child(name)?;
        let mut disk = self.disk();
        let ino = disk.lookup(self.ino, name)?;
        if !disk.names(ino)?.is_empty() {
            return Err(refused(Code::NotEmpty, "remove", &path));
        }
        disk.remove_tree(self.ino, name)
    }

    fn set_meta(&self, name: &[u8], meta: &Meta) -> Result<Vec<Error>, Error> {
        let mut disk = self.disk();
        let ino = disk.lookup(self.ino, name)?;
        set_meta(&mut disk, ino, meta)
    }

    fn set_own_meta(&self, meta: &Meta) -> Result<Vec<Error>, Error> {
        set_meta(&mut self.disk(), self.ino, meta)
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
        set_meta(&mut self.disk(), self.ino, meta)
    }

    fn start_writeback(&self, _range: Range<u64>) {}

    fn sync_data(&self) -> Result<(), Error> {
        self.disk().sync(self.ino)
    }

    fn sync_all(&self) -> Result<(), Error> {
        self.disk().sync(self.ino)
    }
}
