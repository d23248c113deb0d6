//! Reads a source tree and hands its entries on as they are found.
//!
//! Parents come before what is in them. One directory is open at a time, so depth costs neither stack nor
//! descriptors; a directory of a million names is read in parts. Names within a part come in inode order, which
//! is kind to disks. Symbolic links are never followed; the names of unfinished copies are passed over.

use crate::store::temp::is_temp_name;
use crate::store::{Detail, Dir, Listed, Raw};
use renkei_core::entry::{Entry, EntryKind};
use renkei_core::error::{Code, Error};
use renkei_core::mover::plan::Origin;
use renkei_core::path::RelPath;
use std::collections::HashMap;
use std::sync::Arc;

/// Names sorted and looked at together.
const PART_NAMES: usize = 4096;

/// Something to send.
pub struct Root {
    /// The directory that origins are relative to.
    pub dir: Arc<dyn Dir>,
    /// What to send, below `dir`; the root path for `dir` itself.
    pub from: RelPath,
    /// What it becomes below the destination.
    pub to: RelPath,
}

/// Takes what a walk finds.
pub trait Sink {
    /// An entry, its path already that of the destination; false stops the walk.
    fn on_entry(&mut self, origin: Origin, entry: Entry) -> bool;
    /// Something could not be read; false stops the walk.
    fn on_failed(&mut self, path: RelPath, error: Error) -> bool;
}

/// Walks all roots; `recursive` as in `cp -r`.
pub fn walk(roots: &[Root], recursive: bool, sink: &mut dyn Sink) {
    let mut walk = Walk { sink, links: HashMap::new(), pending: Vec::new() };
    for (source, root) in (0..).zip(roots) {
        if !walk.root(root, source, recursive) {
            return;
        }
    }
}

struct Walk<'a> {
    sink: &'a mut dyn Sink,
    /// First name at the destination of each file with several names.
    links: HashMap<(u64, u64), RelPath>,
    /// Directories found and not yet read: path at the source and at the destination.
    pending: Vec<(RelPath, RelPath)>,
}

impl Walk<'_> {
    fn root(&mut self, root: &Root, source: u32, recursive: bool) -> bool {
        let found = match root.from.split() {
            None => root.dir.self_entry(Detail::Full),
            Some((parent, name)) => {
                let parent = RelPath::parse(parent);
                parent
                    .and_then(|parent| root.dir.descend(&parent))
                    .and_then(|dir| dir.entry(name, Detail::Full))
            }
        };
        let (entry, raw) = match found {
            Ok(found) => found,
            Err(error) => return self.sink.on_failed(root.to.clone(), error),
        };
        if entry.kind == EntryKind::Dir && !recursive {
            let error = Error::new(Code::IsADirectory, "walk", &entry.path, "omitted without -r");
            return self.sink.on_failed(root.to.clone(), error);
        }
        self.entry(source, root.from.clone(), root.to.clone(), entry, raw) && self.drain(root, source)
    }

    fn drain(&mut self, root: &Root, source: u32) -> bool {
        while let Some((from, to)) = self.pending.pop() {
            if !self.directory(root, source, &from, &to) {
                return false;
            }
        }
        true
    }

    fn directory(&mut self, root: &Root, source: u32, from: &RelPath, to: &RelPath) -> bool {
        let opened = root.dir.descend(from).and_then(|dir| Ok((dir.list()?, dir)));
        let (mut listing, dir) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.sink.on_failed(to.clone(), error),
        };
        loop {
            let mut part: Vec<Listed> = Vec::new();
            for listed in listing.by_ref().take(PART_NAMES) {
                match listed {
                    Ok(listed) => part.push(listed),
                    Err(error) => return self.sink.on_failed(to.clone(), error),
                }
            }
            if part.is_empty() {
                return true;
            }
            part.sort_unstable_by_key(|listed| listed.ino);
            if !part.iter().all(|listed| self.name(source, &*dir, from, to, &listed.name)) {
                return false;
            }
        }
    }

    fn name(&mut self, source: u32, dir: &dyn Dir, from: &RelPath, to: &RelPath, name: &[u8]) -> bool {
        if is_temp_name(name) {
            return true;
        }
        let paths = from.child(name).and_then(|from| Ok((from, to.child(name)?)));
        let (from, to) = match paths {
            Ok(paths) => paths,
            Err(error) => return self.sink.on_failed(to.clone(), error),
        };
        match dir.entry(name, Detail::Full) {
            Ok((entry, raw)) => self.entry(source, from, to, entry, raw),
            Err(error) => self.sink.on_failed(to, vanished(error)),
        }
    }

    fn entry(&mut self, source: u32, from: RelPath, to: RelPath, mut entry: Entry, raw: Raw) -> bool {
        if entry.kind == EntryKind::Dir {
            self.pending.push((from.clone(), to.clone()));
        } else if raw.nlink > 1 && matches!(entry.kind, EntryKind::File { .. }) {
            match self.links.get(&(raw.dev, raw.ino)) {
                Some(first) => entry.kind = EntryKind::HardLink { to: first.clone() },
                None => {
                    self.links.insert((raw.dev, raw.ino), to.clone());
                }
            }
        }
        entry.path = to;
        self.sink.on_entry(Origin { source, path: from }, entry)
    }
}

/// A name that was listed and is gone has vanished, which is another thing than never having been there.
pub fn vanished(error: Error) -> Error {
    if error.code == Code::PathNotFound { Error { code: Code::SourceVanished, ..error } } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store;
    use crate::store::local::{Access, LocalStore};

    /// Keeps all that is found.
    #[derive(Default)]
    struct Kept {
        entries: Vec<(Origin, Entry)>,
        failed: Vec<(RelPath, Error)>,
    }

    impl Sink for Kept {
        fn on_entry(&mut self, origin: Origin, entry: Entry) -> bool {
            self.entries.push((origin, entry));
            true
        }

        fn on_failed(&mut self, path: RelPath, error: Error) -> bool {
            self.failed.push((path, error));
            true
        }
    }

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    fn open(folder: &tempfile::TempDir) -> Arc<dyn Dir> {
        LocalStore::open(folder.path(), Access::ReadOnly).unwrap().root().unwrap()
    }

    #[test]
    fn each_of_very_many_sources_has_its_number() {
        const SOURCES: u32 = (1 << 16) + 2;
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("f"), "").unwrap();
        let dir = open(&folder);
        let root = |index: u32| Root { dir: dir.clone(), from: path("f"), to: path(&format!("f{index}")) };
        let roots: Vec<Root> = (0..SOURCES).map(root).collect();
        let mut kept = Kept::default();
        walk(&roots, true, &mut kept);
        assert!(kept.entries.iter().map(|(origin, _)| origin.source).eq(0..SOURCES));
    }
}
