//! A file system in memory that separates durable state from volatile state.
//!
//! Every change is applied to the live tree and added to a list of changes not yet durable. A sync moves the changes
//! of one file, of one directory's names, or all of them to the durable tree. A killed process leaves the live tree
//! as it is. A machine that loses power keeps the durable tree and, of the other changes, any selection: each write
//! may survive, be lost or be torn at a sector boundary, each change of names survives whole or not at all. That is
//! weaker than any journalling file system, and all that POSIX guarantees: in particular, the sync of a directory
//! does not make the directory's own name durable.

pub use super::change::{Body, Crash, Ino, Node, ROOT};
use super::change::{Change, Tree, reachable};
use super::content::Content;
pub use super::fuse::Fuse;
use renkei_core::entry::{Entry, EntryKind, FileTime, Meta, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::sim::chance::Chance;
use renkei_store::temp::is_temp_name;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// The result of a lookup.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// The inode.
    pub ino: Ino,
    /// Its entry; never a hard link.
    pub entry: Entry,
}

/// A concurrent modification of a file while it is read.
#[derive(Clone, Debug)]
pub enum Meddling {
    /// Appends bytes.
    Grow(RelPath),
    /// Overwrites a byte in place.
    Rewrite(RelPath),
    /// Replaces the file by one of a new inode.
    Replace(RelPath),
    /// Removes the name.
    Remove(RelPath),
}

/// The file system.
pub struct Disk {
    live: Tree,
    durable: Tree,
    pending: Vec<Change>,
    free: BTreeSet<Ino>,
    next_ino: Ino,
    ticks: i64,
    names_changed: u64,
    room: u64,
    privileged: bool,
    fuse: Fuse,
    reads: u64,
    meddling: VecDeque<(u64, Meddling)>,
    history: Vec<(RelPath, Content)>,
    /// Inodes that ever had a hard link added.
    linked: BTreeSet<Ino>,
    listings: usize,
    /// Files that left their temporary names.
    published: Vec<Ino>,
}

impl Disk {
    /// An empty disk; `privileged` if mode bits do not restrict its user. Its times count changes from `epoch`.
    pub fn new(fuse: Fuse, privileged: bool, epoch: i64) -> Self {
        let meta = Meta { mode: 0o755, ..Meta::default() };
        let root = Node { body: Body::Dir(BTreeMap::new()), meta, ctime: FileTime::default() };
        let live = Tree::from([(ROOT, root)]);
        Disk {
            durable: live.clone(),
            live,
            pending: Vec::new(),
            free: BTreeSet::new(),
            next_ino: ROOT + 1,
            ticks: epoch,
            names_changed: 0,
            room: u64::MAX,
            privileged,
            fuse,
            reads: 0,
            meddling: VecDeque::new(),
            history: Vec::new(),
            linked: BTreeSet::new(),
            listings: 1,
            published: Vec::new(),
        }
    }

    /// Writes fail after this many more bytes.
    pub fn full_after(&mut self, bytes: u64) {
        self.room = bytes;
    }

    /// Listings return each name this many times, as some network file systems do while names change.
    pub fn list_times(&mut self, times: usize) {
        self.listings = times;
    }

    /// Whether listings return names more than once.
    pub fn lists_again(&self) -> bool {
        self.listings > 1
    }

    /// Schedules a concurrent modification at the `read`th read from now.
    pub fn meddle(&mut self, read: u64, what: Meddling) {
        self.meddling.push_back((self.reads + read, what));
    }

    /// Takes every content that files had after a concurrent modification.
    pub fn take_history(&mut self) -> Vec<(RelPath, Content)> {
        std::mem::take(&mut self.history)
    }

    /// Takes the files that left their temporary names since the last call.
    pub fn take_published(&mut self) -> Vec<Ino> {
        std::mem::take(&mut self.published)
    }

    /// Version counter of the live tree.
    pub fn version(&self) -> u64 {
        self.names_changed
    }

    fn tick(&mut self) -> FileTime {
        self.ticks += 1;
        self.names_changed += 1;
        FileTime { secs: self.ticks, nanos: 0 }
    }

    fn change(&mut self, change: Change) {
        let ino = change.ino();
        change.apply(&mut self.live);
        let now = self.tick();
        if let Some(node) = self.live.get_mut(&ino) {
            node.ctime = now;
        }
        self.pending.push(change);
    }

    pub(super) fn node(&self, ino: Ino) -> Result<&Node, Error> {
        self.live.get(&ino).ok_or_else(|| not_found(b"inode"))
    }

    pub(super) fn names(&self, dir: Ino) -> Result<&BTreeMap<Vec<u8>, Ino>, Error> {
        match &self.node(dir)?.body {
            Body::Dir(names) => Ok(names),
            _ => Err(fault(Code::NotADirectory, b"inode")),
        }
    }

    pub(super) fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Ino, Error> {
        self.names(dir)?.get(name).copied().ok_or_else(|| not_found(name))
    }

    /// Resolves the path of a directory.
    pub fn descend(&self, path: &RelPath) -> Result<Ino, Error> {
        let dir = path.components().try_fold(ROOT, |dir, name| self.lookup(dir, name))?;
        self.names(dir).map(|_| dir)
    }

    /// The directory of a path, and the name in it.
    pub fn place<'p>(&self, path: &'p RelPath) -> Result<(Ino, &'p [u8]), Error> {
        let (parent, name) = path.split().ok_or_else(|| fault(Code::IsADirectory, b""))?;
        Ok((self.descend(&RelPath::parse(parent)?)?, name))
    }

    /// Looks a name up.
    pub fn entry(&self, dir: Ino, name: &[u8]) -> Result<Lookup, Error> {
        let ino = self.lookup(dir, name)?;
        let node = self.node(ino)?;
        let kind = match &node.body {
            Body::File(content) => EntryKind::File { stamp: self.stamp(ino)?, sparse: content.is_sparse() },
            Body::Dir(_) => EntryKind::Dir,
            Body::Symlink(target) => EntryKind::Symlink { target: target.clone() },
        };
        Ok(Lookup { ino, entry: Entry { path: RelPath::parse(name)?, meta: node.meta.clone(), kind } })
    }

    /// The root directory's own metadata.
    pub fn root_meta(&self) -> Meta {
        self.live[&ROOT].meta.clone()
    }

    /// The stamp of a file.
    pub fn stamp(&self, ino: Ino) -> Result<Stamp, Error> {
        let node = self.node(ino)?;
        let Body::File(content) = &node.body else { return Err(fault(Code::IsADirectory, b"file")) };
        Ok(Stamp { size: content.size(), mtime: node.meta.mtime, ctime: node.ctime, ino })
    }

    /// The names in a directory with their inodes, in order.
    pub fn list(&self, dir: Ino) -> Result<Vec<(Vec<u8>, Ino)>, Error> {
        let names = self.names(dir)?;
        let listed = |(name, ino): (&Vec<u8>, &Ino)| vec![(name.clone(), *ino); self.listings];
        Ok(names.iter().flat_map(listed).collect())
    }

    /// Every path with its inode, parents first.
    pub fn walk(&self) -> Vec<(RelPath, Ino)> {
        let mut found = Vec::new();
        let mut pending = vec![(RelPath::root(), ROOT)];
        while let Some((path, dir)) = pending.pop() {
            for (name, ino) in self.list(dir).unwrap_or_default() {
                let child = path.child(&name).expect("names on the disk are legal");
                if matches!(self.live[&ino].body, Body::Dir(_)) {
                    pending.push((child.clone(), ino));
                }
                found.push((child, ino));
            }
        }
        found
    }

    /// An inode in its live state.
    pub fn live(&self, ino: Ino) -> Option<&Node> {
        self.live.get(&ino)
    }

    /// A file's content.
    pub fn content(&self, ino: Ino) -> Result<&Content, Error> {
        match &self.node(ino)?.body {
            Body::File(content) => Ok(content),
            _ => Err(fault(Code::IsADirectory, b"file")),
        }
    }

    /// Reads; a modification scheduled for this read is applied first.
    pub fn read_at(&mut self, ino: Ino, range: Range<u64>) -> Result<Vec<u8>, Error> {
        self.reads += 1;
        if self.meddling.front().is_some_and(|(read, _)| *read <= self.reads)
            && let Some((_, what)) = self.meddling.pop_front()
        {
            self.carry_out(&what);
        }
        Ok(self.content(ino)?.read(range))
    }

    fn carry_out(&mut self, what: &Meddling) {
        // A removed file cannot be modified.
        let _ = self.try_meddle(what);
        let files = self.walk();
        let contents =
            files.into_iter().filter_map(|(path, ino)| Some((path, self.content(ino).ok()?.clone())));
        let contents: Vec<_> = contents.collect();
        self.history.extend(contents);
    }

    fn try_meddle(&mut self, what: &Meddling) -> Result<(), Error> {
        let (Meddling::Grow(path)
        | Meddling::Rewrite(path)
        | Meddling::Replace(path)
        | Meddling::Remove(path)) = what;
        let (dir, name) = self.place(path)?;
        let ino = self.lookup(dir, name)?;
        let size = self.content(ino)?.size();
        match what {
            Meddling::Grow(_) => self.write_at(ino, size, b"grown"),
            Meddling::Rewrite(_) => self.write_at(ino, size / 2, &[0xa5]),
            Meddling::Replace(_) => self.replace(dir, name, &Content::of(b"replaced")),
            Meddling::Remove(_) => self.unlink(dir, name),
        }
    }

    /// Replaces a name by a file with a new inode.
    pub fn replace(&mut self, dir: Ino, name: &[u8], content: &Content) -> Result<(), Error> {
        let meta = Meta { mode: 0o644, mtime: self.tick(), ..Meta::default() };
        let old = self.lookup(dir, name).ok();
        let ino = self.create(dir, name, Body::File(Content::default()), meta.mode)?;
        self.change(Change::SetLen { ino, len: content.size(), at: meta.mtime });
        for (offset, bytes) in content.pieces(0..content.size()) {
            self.change(Change::Write { ino, offset, bytes, at: meta.mtime });
        }
        self.set_meta(ino, &meta)?;
        old.into_iter().for_each(|old| self.drop_if_unnamed(old));
        Ok(())
    }

    // ---- changes -----------------------------------------------------------------------------------------------

    fn allocate_ino(&mut self) -> Ino {
        self.free.pop_first().unwrap_or_else(|| {
            self.next_ino += 1;
            self.next_ino - 1
        })
    }

    /// Makes the numbers of removed inodes reusable: no handle is open any more.
    pub fn recycle(&mut self) {
        let mut used: BTreeSet<Ino> = self.live.keys().copied().chain(reachable(&self.durable)).collect();
        for change in &self.pending {
            if let Change::Names { names, .. } = change {
                used.extend(names.iter().filter_map(|(_, ino)| *ino));
            }
        }
        self.durable.retain(|ino, _| used.contains(ino));
        self.pending.retain(|change| used.contains(&change.ino()));
        self.free = (ROOT + 1..self.next_ino).filter(|ino| !used.contains(ino)).collect();
    }

    fn create(&mut self, dir: Ino, name: &[u8], body: Body, mode: u32) -> Result<Ino, Error> {
        self.check_writable(dir)?;
        self.fuse.spend()?;
        let ino = self.allocate_ino();
        let now = self.tick();
        let meta = Meta { mode, mtime: now, ..Meta::default() };
        let node = Node { body, meta, ctime: now };
        self.live.insert(ino, node.clone());
        self.durable.insert(ino, node);
        self.rename_in(dir, vec![(name.to_vec(), Some(ino))]);
        Ok(ino)
    }

    fn check_writable(&self, dir: Ino) -> Result<(), Error> {
        let mode = self.node(dir)?.meta.mode;
        self.names(dir)?;
        if self.privileged || mode & 0o300 == 0o300 {
            Ok(())
        } else {
            Err(fault(Code::PermissionDenied, b"dir"))
        }
    }

    fn rename_in(&mut self, dir: Ino, names: Vec<(Vec<u8>, Option<Ino>)>) {
        let at = self.tick();
        self.change(Change::Names { dir, names, at });
    }

    fn drop_if_unnamed(&mut self, ino: Ino) {
        let named = |node: &Node| match &node.body {
            Body::Dir(names) => names.values().any(|other| *other == ino),
            _ => false,
        };
        if !self.live.values().any(named) {
            self.live.remove(&ino);
        }
    }

    /// Opens a file of mode 600 for writing, new or with the content it has.
    pub fn create_temp(&mut self, dir: Ino, name: &[u8], keep_existing: bool) -> Result<Ino, Error> {
        let known = self.lookup(dir, name).ok();
        if known.is_some_and(|ino| self.names(ino).is_ok()) {
            return Err(fault(Code::IsADirectory, name));
        }
        let own = |ino: &Ino| self.content(*ino).is_ok() && self.names_of(*ino) == 1;
        match known.filter(own) {
            Some(ino) => {
                let meta = Meta { mode: 0o600, ..self.node(ino)?.meta.clone() };
                if meta != self.node(ino)?.meta {
                    self.change(Change::Meta { ino, meta });
                }
                if !keep_existing {
                    self.set_len(ino, 0)?;
                }
                Ok(ino)
            }
            None => {
                if known.is_some() {
                    self.unlink(dir, name)?;
                }
                self.create(dir, name, Body::File(Content::default()), 0o600)
            }
        }
    }

    /// Whether an inode has more than one name (hard links).
    pub fn has_more_names(&self, ino: Ino) -> bool {
        self.linked.contains(&ino) && self.names_of(ino) > 1
    }

    /// Link count of an inode.
    pub fn names_of(&self, ino: Ino) -> usize {
        let count = |node: &Node| match &node.body {
            Body::Dir(names) => names.values().filter(|other| **other == ino).count(),
            _ => 0,
        };
        self.live.values().map(count).sum()
    }

    /// Writes.
    pub fn write_at(&mut self, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.fuse.spend()?;
        let left = self.room.checked_sub(bytes.len() as u64);
        self.room = left.ok_or_else(|| fault(Code::NoSpace, b"file"))?;
        let at = self.tick();
        self.change(Change::Write { ino, offset, bytes: bytes.to_vec(), at });
        Ok(())
    }

    /// Truncates or extends a file.
    pub fn set_len(&mut self, ino: Ino, len: u64) -> Result<(), Error> {
        self.fuse.spend()?;
        let at = self.tick();
        self.change(Change::SetLen { ino, len, at });
        Ok(())
    }

    /// Punches a hole.
    pub fn free(&mut self, ino: Ino, range: Range<u64>) -> Result<(), Error> {
        self.fuse.spend()?;
        let at = self.tick();
        self.change(Change::Free { ino, range, at });
        Ok(())
    }

    /// Whether mode bits do not restrict its user.
    pub fn is_privileged(&self) -> bool {
        self.privileged
    }

    /// Applies mode and times.
    pub fn set_meta(&mut self, ino: Ino, meta: &Meta) -> Result<(), Error> {
        self.fuse.spend()?;
        self.change(Change::Meta { ino, meta: meta.clone() });
        Ok(())
    }

    /// Makes a directory.
    pub fn mkdir(&mut self, dir: Ino, name: &[u8], mode: u32) -> Result<Ino, Error> {
        if self.lookup(dir, name).is_ok() {
            return Err(fault(Code::PathExists, name));
        }
        self.create(dir, name, Body::Dir(BTreeMap::new()), mode)
    }

    /// Makes a symbolic link.
    pub fn symlink(&mut self, dir: Ino, name: &[u8], target: &[u8]) -> Result<Ino, Error> {
        if self.lookup(dir, name).is_ok() {
            return Err(fault(Code::PathExists, name));
        }
        self.create(dir, name, Body::Symlink(target.to_vec()), 0o777)
    }

    /// Adds a hard link to an inode.
    pub fn hard_link(&mut self, ino: Ino, dir: Ino, name: &[u8]) -> Result<(), Error> {
        if self.names(ino).is_ok() {
            return Err(fault(Code::PermissionDenied, name));
        }
        self.node(ino)?;
        if self.lookup(dir, name).is_ok() {
            return Err(fault(Code::PathExists, name));
        }
        self.check_writable(dir)?;
        self.fuse.spend()?;
        self.linked.insert(ino);
        self.rename_in(dir, vec![(name.to_vec(), Some(ino))]);
        Ok(())
    }

    /// Renames, replacing; onto another name of the same inode it does nothing, as in POSIX. A rename between two
    /// directories is durable at once: it is atomic, and changes of two directories are not.
    pub fn rename(&mut self, dir: Ino, from: &[u8], to_dir: Ino, to: &[u8]) -> Result<(), Error> {
        let ino = self.lookup(dir, from)?;
        let old = self.lookup(to_dir, to).ok();
        if old == Some(ino) {
            return Ok(());
        }
        if old.is_some_and(|old| self.names(old).is_ok()) {
            return Err(fault(Code::IsADirectory, to));
        }
        self.check_writable(dir)?;
        self.check_writable(to_dir)?;
        self.fuse.spend()?;
        let [gone, new] = [(from.to_vec(), None), (to.to_vec(), Some(ino))];
        if dir == to_dir {
            self.rename_in(dir, vec![gone, new]);
        } else {
            self.rename_in(dir, vec![gone]);
            self.rename_in(to_dir, vec![new]);
            self.sync(dir)?;
            self.sync(to_dir)?;
        }
        if is_temp_name(from) {
            self.published.push(ino);
        }
        old.into_iter().for_each(|old| self.drop_if_unnamed(old));
        Ok(())
    }

    /// Removes anything but a directory.
    pub fn remove_file(&mut self, dir: Ino, name: &[u8]) -> Result<(), Error> {
        let ino = self.lookup(dir, name)?;
        if self.names(ino).is_ok() {
            return Err(fault(Code::IsADirectory, name));
        }
        self.unlink(dir, name)
    }

    /// Removes a file or a directory tree.
    pub fn remove_tree(&mut self, dir: Ino, name: &[u8]) -> Result<(), Error> {
        let ino = self.lookup(dir, name)?;
        for (child, _) in self.list(ino).unwrap_or_default() {
            self.remove_tree(ino, &child)?;
        }
        self.unlink(dir, name)
    }

    fn unlink(&mut self, dir: Ino, name: &[u8]) -> Result<(), Error> {
        let ino = self.lookup(dir, name)?;
        self.check_writable(dir)?;
        self.fuse.spend()?;
        self.rename_in(dir, vec![(name.to_vec(), None)]);
        self.drop_if_unnamed(ino);
        Ok(())
    }

    // ---- durability --------------------------------------------------------------------------------------------

    /// Makes one inode's own changes durable (fsync): content and metadata of a file, names and metadata of a
    /// directory and of the symbolic links in it, which cannot be synced by themselves.
    pub fn sync(&mut self, ino: Ino) -> Result<(), Error> {
        self.fuse.spend()?;
        let is_symlink = |ino: &Ino| matches!(self.live.get(ino), Some(Node { body: Body::Symlink(_), .. }));
        let links: Vec<Ino> = match self.names(ino) {
            Ok(names) => names.values().copied().filter(is_symlink).collect(),
            Err(_) => Vec::new(),
        };
        let durable = &mut self.durable;
        self.pending.retain(|change| {
            let own = change.ino() == ino || links.contains(&change.ino());
            if own {
                change.apply(durable);
            }
            !own
        });
        Ok(())
    }

    /// Makes everything durable.
    pub fn sync_all(&mut self) -> Result<(), Error> {
        self.fuse.spend()?;
        self.pending.drain(..).for_each(|change| change.apply(&mut self.durable));
        Ok(())
    }

    /// The process or the machine crashes; determines the surviving state.
    pub fn crash(&mut self, crash: Crash, chance: &mut Chance) {
        if crash != Crash::Kill {
            for change in std::mem::take(&mut self.pending) {
                if let Some(survivor) = change.survivor(crash, chance) {
                    survivor.apply(&mut self.durable);
                }
            }
            self.forget_lost();
            self.live = self.durable.clone();
            self.names_changed += 1;
        }
        self.recycle();
    }

    /// Removes unreachable inodes, and names without an inode.
    fn forget_lost(&mut self) {
        let kept = reachable(&self.durable);
        self.durable.retain(|ino, _| kept.contains(ino));
        for node in self.durable.values_mut() {
            if let Body::Dir(names) = &mut node.body {
                names.retain(|_, ino| kept.contains(ino));
            }
        }
    }
}

fn fault(code: Code, name: &[u8]) -> Error {
    Error::new(code, "disk", renkei_core::path::printable(name), "simulated")
}

fn not_found(name: &[u8]) -> Error {
    fault(Code::PathNotFound, name)
}

#[cfg(test)]
mod tests {
    use super::super::content::SECTOR_BYTES;
    use super::*;

    fn disk() -> Disk {
        Disk::new(Fuse::default(), true, 0)
    }

    fn lose_power(disk: &mut Disk) {
        disk.crash(Crash::PowerLosesAll, &mut Chance::new(1));
    }

    #[test]
    fn only_what_was_synced_survives() {
        let mut disk = disk();
        let file = disk.create_temp(ROOT, b"f", false).unwrap();
        disk.write_at(file, 0, b"hello").unwrap();
        disk.sync(ROOT).unwrap();
        lose_power(&mut disk);
        assert_eq!(disk.content(file).unwrap().size(), 0, "the name was synced, the content was not");
        disk.write_at(file, 0, b"hello").unwrap();
        disk.sync(file).unwrap();
        disk.rename(ROOT, b"f", ROOT, b"g").unwrap();
        lose_power(&mut disk);
        assert_eq!(disk.content(disk.entry(ROOT, b"f").unwrap().ino).unwrap().read(0..9), b"hello");
        assert!(disk.entry(ROOT, b"g").is_err());
    }

    #[test]
    fn syncing_a_directory_does_not_keep_its_own_name() {
        let mut disk = disk();
        let dir = disk.mkdir(ROOT, b"d", 0o755).unwrap();
        let file = disk.create_temp(dir, b"f", false).unwrap();
        disk.sync(file).unwrap();
        disk.sync(dir).unwrap();
        lose_power(&mut disk);
        assert_eq!(disk.walk(), []);
    }

    #[test]
    fn a_kill_keeps_everything() {
        let mut disk = disk();
        let file = disk.create_temp(ROOT, b"f", false).unwrap();
        disk.write_at(file, 600, b"x").unwrap();
        disk.crash(Crash::Kill, &mut Chance::new(1));
        assert_eq!(disk.content(file).unwrap().size(), 601);
    }

    #[test]
    fn power_cuts_tear_writes_between_sectors() {
        let mut torn = 0;
        for seed in 0..200 {
            let mut disk = disk();
            let file = disk.create_temp(ROOT, b"f", false).unwrap();
            disk.sync_all().unwrap();
            disk.write_at(file, 100, &[1; 2_000]).unwrap();
            disk.crash(Crash::Power, &mut Chance::new(seed));
            let size = disk.content(file).unwrap().size();
            assert!(size == 0 || size == 2_100 || size.is_multiple_of(SECTOR_BYTES), "{size}");
            torn += u32::from(size != 0 && size != 2_100);
        }
        assert!(torn > 10);
    }

    #[test]
    fn space_ends_and_modes_hold() {
        let mut disk = Disk::new(Fuse::default(), false, 0);
        let file = disk.create_temp(ROOT, b"f", false).unwrap();
        disk.full_after(3);
        assert_eq!(disk.write_at(file, 0, b"1234").unwrap_err().code, Code::NoSpace);
        let locked = disk.mkdir(ROOT, b"d", 0o555).unwrap();
        assert_eq!(disk.create_temp(locked, b"f", false).unwrap_err().code, Code::PermissionDenied);
    }

    #[test]
    fn a_fuse_stops_the_machine_after_a_number_of_changes() {
        let fuse = Fuse::default();
        let mut disk = Disk::new(fuse.clone(), true, 0);
        fuse.arm(1);
        disk.mkdir(ROOT, b"d", 0o755).unwrap();
        assert!(fuse.is_blown() && disk.mkdir(ROOT, b"e", 0o755).is_err());
        fuse.reset();
        assert!(disk.mkdir(ROOT, b"e", 0o755).is_ok());
    }
}
