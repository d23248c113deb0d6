//! Operations on whole trees: removal, and disk usage.
//!
//! Both use handles and single names, so a directory swapped for a symbolic link is removed or counted as a link.
//! Both keep their own stack, and a bounded number of directories open, at any depth of the tree.

use super::marker::is_marker;
use super::{Detail, Dir, Listed, Listing, Raw, Store, TypeHint};
use renkei_core::entry::{Entry, EntryKind};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use std::collections::HashSet;
use std::sync::Arc;

/// Levels of directories kept open at once; each holds two descriptors and a listing's buffer.
const MAX_LEVELS: usize = 64;
/// Pending directories that are held by their parent's handle; the others are reopened by path.
const MAX_HELD: usize = 256;
/// Names of deep directories that are moved up to be removed.
const HOISTED: &str = ".rk~rm-";

/// Opens a directory, creating it and its ancestors if missing.
pub fn make_dirs(root: &Arc<dyn Dir>, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
    make_dirs_as(root, path, &|_| 0o755)
}

/// The same, with a mode for each directory that is created.
pub fn make_dirs_as(
    root: &Arc<dyn Dir>,
    path: &RelPath,
    mode_of: &dyn Fn(&RelPath) -> u32,
) -> Result<Arc<dyn Dir>, Error> {
    let (mut dir, mut at) = (root.clone(), RelPath::root());
    for name in path.components() {
        at = at.join(&RelPath::parse(name)?)?;
        let there = match dir.child(name) {
            Err(error) if error.code == Code::PathNotFound => {
                let made = dir.mkdir(name, mode_of(&at));
                made.or_else(|error| if error.code == Code::PathExists { Ok(()) } else { Err(error) })?;
                dir.child(name)
            }
            there => there,
        };
        dir = there?;
    }
    Ok(dir)
}

/// The directory of a plain file, and its name there.
pub fn dir_of<'p>(plain: &dyn Store, path: &'p RelPath) -> Result<(Arc<dyn Dir>, &'p [u8]), Error> {
    let (parent, name) = path.split().ok_or_else(|| Error::new(Code::IsADirectory, "open", path, ""))?;
    Ok((plain.root()?.descend(&RelPath::parse(parent)?)?, name))
}

/// Removes `name` in `dir` with everything below it and returns the number of names removed.
///
/// A directory that lies too deep is first moved up into the tree's top, so the depth has no limit. A name that
/// cannot be removed does not keep the rest from being removed.
///
/// # Errors
/// The first failure, after everything that can be removed has been.
pub fn remove_tree(dir: &dyn Dir, name: &[u8]) -> Result<u64, Error> {
    remove_tree_while(dir, name, &|| Ok(()))
}

/// The same as long as `go_on`, called before each name, succeeds.
///
/// # Errors
/// The error of `go_on`, with the rest of the tree still there; else as [`remove_tree`].
pub fn remove_tree_while(
    dir: &dyn Dir,
    name: &[u8],
    go_on: &dyn Fn() -> Result<(), Error>,
) -> Result<u64, Error> {
    go_on()?;
    match dir.remove_file(name) {
        Ok(()) => return Ok(1),
        Err(error) if error.code == Code::IsADirectory => {}
        Err(error) => return Err(error),
    }
    let mut removal = Removal { levels: vec![Level::open(dir, name)?], removed: 0, hoisted: 0, failed: None };
    removal.run(dir, go_on)?;
    match removal.failed {
        None => Ok(removal.removed),
        Some(error) => Err(error),
    }
}

/// One directory on the current path.
struct Level {
    dir: Arc<dyn Dir>,
    name: Vec<u8>,
    listing: Listing,
    /// Whether an entry was removed since the listing began, so that a new one may be shorter.
    progressed: bool,
}

impl Level {
    fn open(parent: &dyn Dir, name: &[u8]) -> Result<Self, Error> {
        let dir = parent.child(name)?;
        let listing = dir.list()?;
        Ok(Level { dir, name: name.to_vec(), listing, progressed: false })
    }
}

struct Removal {
    levels: Vec<Level>,
    removed: u64,
    hoisted: u64,
    failed: Option<Error>,
}

impl Removal {
    fn run(&mut self, above: &dyn Dir, go_on: &dyn Fn() -> Result<(), Error>) -> Result<(), Error> {
        while let Some(level) = self.levels.last_mut() {
            go_on()?;
            match level.listing.next() {
                Some(Ok(listed)) => self.remove(listed),
                Some(Err(error)) => self.note(error),
                None => self.leave(above),
            }
        }
        Ok(())
    }

    fn note(&mut self, error: Error) {
        // An entry that was removed concurrently is gone, as wanted.
        if error.code != Code::PathNotFound {
            self.failed.get_or_insert(error);
        }
    }

    fn count(&mut self) {
        self.removed += 1;
        if let Some(level) = self.levels.last_mut() {
            level.progressed = true;
        }
    }

    fn remove(&mut self, listed: Listed) {
        let Some(level) = self.levels.last() else { return };
        let dir = level.dir.clone();
        if listed.hint != TypeHint::Dir {
            match dir.remove_file(&listed.name) {
                Ok(()) => return self.count(),
                Err(error) if error.code == Code::IsADirectory => {}
                Err(error) => return self.note(error),
            }
        }
        if let Err(error) = self.enter(&*dir, &listed.name) {
            self.note(error);
        }
    }

    /// Descends into a directory, or moves it up to be handled later.
    fn enter(&mut self, dir: &dyn Dir, name: &[u8]) -> Result<(), Error> {
        if self.levels.len() < MAX_LEVELS {
            self.levels.push(Level::open(dir, name)?);
            return Ok(());
        }
        let top = self.levels[0].dir.clone();
        loop {
            let hoisted = format!("{HOISTED}{}", self.hoisted);
            self.hoisted += 1;
            match dir.rename_no_replace(name, &*top, hoisted.as_bytes()) {
                Err(error) if error.code == Code::PathExists => {}
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        self.levels[0].progressed = true;
        Ok(())
    }

    /// Removes the directory whose listing has ended, or lists it again if it has entries that were not listed.
    fn leave(&mut self, above: &dyn Dir) {
        let Some(mut level) = self.levels.pop() else { return };
        let parent = self.levels.last().map(|level| level.dir.clone());
        match parent.as_deref().unwrap_or(above).remove_dir(&level.name) {
            Ok(()) => self.count(),
            Err(error) if error.code == Code::NotEmpty && level.progressed => match level.dir.list() {
                Ok(listing) => {
                    (level.listing, level.progressed) = (listing, false);
                    self.levels.push(level);
                }
                Err(error) => self.note(error),
            },
            Err(error) => self.note(error),
        }
    }
}

/// Disk usage of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Names that are not directories, hard-linked files counted once.
    pub files: u64,
    /// Directories, the tree's top included.
    pub dirs: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Bytes taken on disk, directories included.
    pub allocated: u64,
    /// Errors of entries that are missing from the numbers, up to [`MAX_FAILURES`].
    pub failures: Vec<Error>,
}

/// Most failures in [`Usage::failures`].
pub const MAX_FAILURES: usize = 100;

/// Computes the disk usage of the tree below `dir`, like du; entries that vanish meanwhile are not counted.
///
/// # Errors
/// The error of `go_on`, which is called repeatedly; else only if `dir` itself cannot be read. Errors below it are
/// listed in the result.
pub fn disk_usage(dir: &Arc<dyn Dir>, go_on: &dyn Fn() -> Result<(), Error>) -> Result<Usage, Error> {
    let mut count =
        Count { top: dir.clone(), usage: Usage::default(), seen: HashSet::new(), todo: Vec::new() };
    let (_, raw) = dir.self_entry(Detail::Basic)?;
    count.usage.allocated += raw.blocks * 512;
    count.visit(dir, &RelPath::root(), go_on)?;
    while let Some(next) = count.todo.pop() {
        if let Err(error) = count.open(next).and_then(|(dir, path)| count.visit(&dir, &path, go_on)) {
            count.note(error);
        }
        go_on()?;
    }
    Ok(count.usage)
}

/// A directory still to be counted; paths are relative to the tree's top.
enum Pending {
    Held { parent: Arc<dyn Dir>, path: RelPath },
    ByPath(RelPath),
}

struct Count {
    top: Arc<dyn Dir>,
    usage: Usage,
    /// Device and inode of hard-linked files that were counted.
    seen: HashSet<(u64, u64)>,
    todo: Vec<Pending>,
}

impl Count {
    fn note(&mut self, error: Error) {
        let failures = &mut self.usage.failures;
        if error.code != Code::PathNotFound && failures.len() < MAX_FAILURES {
            failures.push(error);
        }
    }

    fn open(&self, next: Pending) -> Result<(Arc<dyn Dir>, RelPath), Error> {
        match next {
            Pending::Held { parent, path } => {
                Ok((parent.child(path.name().expect("below the top there is a name"))?, path))
            }
            Pending::ByPath(path) => Ok((self.top.descend(&path)?, path)),
        }
    }

    fn visit(
        &mut self,
        dir: &Arc<dyn Dir>,
        path: &RelPath,
        go_on: &dyn Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.usage.dirs += 1;
        for listed in dir.list()? {
            go_on()?;
            let counted = listed.and_then(|listed| {
                if is_marker(&listed.name) {
                    return Ok(());
                }
                let (entry, raw) = dir.entry(&listed.name, Detail::Basic)?;
                self.add(dir, path, &listed.name, &entry, raw)
            });
            if let Err(error) = counted {
                self.note(error);
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        dir: &Arc<dyn Dir>,
        path: &RelPath,
        name: &[u8],
        entry: &Entry,
        raw: Raw,
    ) -> Result<(), Error> {
        if entry.kind == EntryKind::Dir {
            self.usage.allocated += raw.blocks * 512;
            let path = path.child(name)?;
            self.todo.push(if self.todo.len() < MAX_HELD {
                Pending::Held { parent: dir.clone(), path }
            } else {
                Pending::ByPath(path)
            });
        } else if raw.nlink < 2 || self.seen.insert((raw.dev, raw.ino)) {
            self.usage.files += 1;
            self.usage.bytes += entry.size();
            self.usage.allocated += raw.blocks * 512;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::super::local::{AccessMode, LocalStore};
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn store() -> (tempfile::TempDir, LocalStore) {
        // Tens of thousands of names are created: on tmpfs, if there is one, to spare the disk.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let store = LocalStore::open(dir.path(), AccessMode::ReadWrite).unwrap();
        (dir, store)
    }

    /// Makes a chain of directories `levels` deep, each with a file beside the next directory.
    fn dig(top: &Arc<dyn Dir>, levels: usize) {
        let mut here = top.clone();
        for _ in 0..levels {
            here.mkdir(b"d", 0o700).unwrap();
            here.create_temp(b"f", false).unwrap();
            here = here.child(b"d").unwrap();
        }
    }

    #[test]
    fn deep_trees_are_counted_and_removed() {
        let (_keep, store) = store();
        let root = store.root().unwrap();
        root.mkdir(b"tree", 0o700).unwrap();
        let tree = root.child(b"tree").unwrap();
        dig(&tree, 10_000);
        let usage = disk_usage(&tree, &|| Ok(())).unwrap();
        assert_eq!((usage.files, usage.dirs, usage.bytes), (10_000, 10_001, 0));
        assert_eq!(usage.failures, []);
        assert_eq!(remove_tree(&*root, b"tree").unwrap(), 20_001);
        assert_eq!(root.list().unwrap().count(), 0);
    }

    #[test]
    fn counting_can_be_cancelled() {
        let (_keep, store) = store();
        let root = store.root().unwrap();
        dig(&root, 20);
        let asked = std::cell::Cell::new(0);
        let go_on = || {
            asked.set(asked.get() + 1);
            if asked.get() < 7 { Ok(()) } else { Err(Error::new(Code::Cancelled, "count", "", "")) }
        };
        assert_eq!(disk_usage(&root, &go_on).unwrap_err().code, Code::Cancelled);
        assert!(asked.get() < 10, "{}", asked.get());
    }

    #[test]
    fn removing_can_be_cancelled() {
        let (_keep, store) = store();
        let root = store.root().unwrap();
        root.mkdir(b"tree", 0o700).unwrap();
        dig(&root.child(b"tree").unwrap(), 20);
        let asked = std::cell::Cell::new(0);
        let go_on = || {
            asked.set(asked.get() + 1);
            if asked.get() < 7 { Ok(()) } else { Err(Error::new(Code::Cancelled, "remove", "", "")) }
        };
        assert_eq!(remove_tree_while(&*root, b"tree", &go_on).unwrap_err().code, Code::Cancelled);
        // No call followed after that, and the rest can be removed later.
        assert_eq!(asked.get(), 7);
        assert!(remove_tree(&*root, b"tree").unwrap() > 30);
    }

    #[test]
    fn few_directories_are_open_at_once() {
        let (_keep, store) = store();
        let root = store.root().unwrap();
        // A comb: every level has a second directory that is pending while the first is followed.
        let mut here = root.clone();
        for _ in 0..1500 {
            here.mkdir(b"a", 0o700).unwrap();
            here.mkdir(b"b", 0o700).unwrap();
            here = here.child(b"b").unwrap();
        }
        drop(here);
        let mut count =
            Count { top: root.clone(), usage: Usage::default(), seen: HashSet::new(), todo: Vec::new() };
        let go_on = || Ok(());
        count.visit(&root, &RelPath::root(), &go_on).unwrap();
        while let Some(next) = count.todo.pop() {
            let (dir, path) = count.open(next).unwrap();
            count.visit(&dir, &path, &go_on).unwrap();
            assert!(count.todo.iter().filter(|p| matches!(p, Pending::Held { .. })).count() <= MAX_HELD);
        }
        assert_eq!(count.usage.dirs, 3001);
        remove_tree(&*root, b"b").unwrap();
    }

    #[test]
    fn links_are_removed_not_followed() {
        let (keep, store) = store();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("precious"), "x").unwrap();
        let tree = keep.path().join("tree");
        fs::create_dir_all(tree.join("sub")).unwrap();
        symlink(outside.path(), tree.join("sub/out")).unwrap();
        symlink(outside.path(), keep.path().join("top")).unwrap();
        let root = store.root().unwrap();
        assert_eq!(remove_tree(&*root, b"tree").unwrap(), 3);
        assert_eq!(remove_tree(&*root, b"top").unwrap(), 1);
        assert!(outside.path().join("precious").exists());
        assert_eq!(remove_tree(&*root, b"none").unwrap_err().code, Code::PathNotFound);
    }

    #[test]
    fn all_of_many_names_in_a_directory_are_removed() {
        let (keep, store) = store();
        let many = keep.path().join("many");
        fs::create_dir(&many).unwrap();
        for i in 0..5000 {
            fs::write(many.join(format!("name-{i}")), "").unwrap();
        }
        assert_eq!(remove_tree(&*store.root().unwrap(), b"many").unwrap(), 5001);
    }

    #[test]
    fn hard_links_count_once() {
        let (keep, store) = store();
        fs::write(keep.path().join("a"), [1; 5000]).unwrap();
        fs::hard_link(keep.path().join("a"), keep.path().join("b")).unwrap();
        symlink("a", keep.path().join("c")).unwrap();
        fs::create_dir(keep.path().join("d")).unwrap();
        fs::write(keep.path().join("d/e"), [1; 300]).unwrap();
        let usage = disk_usage(&store.root().unwrap(), &|| Ok(())).unwrap();
        assert_eq!((usage.files, usage.dirs, usage.bytes), (3, 2, 5300));
        assert!(usage.allocated >= 5300);
    }
}
