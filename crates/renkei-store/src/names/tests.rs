//! Tables of directories that change between the pages of a list.

use super::*;
use crate::Store;
use crate::local::{AccessMode, LocalStore};
use renkei_core::entry::FileTime;
use renkei_core::name_table::next_key;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};

/// A directory whose version is the number of its changes.
struct Changing {
    folder: tempfile::TempDir,
    dir: Arc<dyn Dir>,
    changes: AtomicI64,
    names: BTreeSet<String>,
    cache: Cache,
    table_bytes: usize,
}

impl Changing {
    fn with(names: impl Iterator<Item = String>, cache: Cache, table_bytes: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dir = LocalStore::open(folder.path(), AccessMode::ReadWrite).unwrap().root().unwrap();
        let (changes, none) = (AtomicI64::new(0), BTreeSet::new());
        let mut made = Changing { folder, dir, changes, names: none, cache, table_bytes };
        names.for_each(|name| made.add(&name));
        made
    }

    fn at(&self, name: &str) -> std::path::PathBuf {
        Path::new(self.folder.path()).join(name)
    }

    fn add(&mut self, name: &str) {
        std::fs::write(self.at(name), "").unwrap();
        self.names.insert(name.to_owned());
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    fn remove(&mut self, name: &str) {
        std::fs::remove_file(self.at(name)).unwrap();
        self.names.remove(name);
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    fn version(&self) -> DirVersion {
        let secs = self.changes.load(Ordering::Relaxed);
        DirVersion { device: 1, ino: 2, mtime: FileTime::default(), ctime: FileTime { secs, nanos: 0 } }
    }

    fn names(&self, from: &NamesFrom) -> Arc<NameTable> {
        let version = || Some(self.version());
        let (dir, table_bytes) = (&*self.dir, self.table_bytes);
        let is_hidden = |name: &[u8]| name.starts_with(b".");
        Reading { dir, version: &version, is_hidden, table_bytes, part_bytes: 100 }
            .names(&self.cache, from)
            .unwrap()
    }

    /// The names from a place on, in parts; `change` is called between them.
    fn all(&mut self, mut change: impl FnMut(&mut Self, &[u8])) -> Vec<String> {
        let (mut found, mut from) = (Vec::new(), NamesFrom::default());
        loop {
            let table = self.names(&from);
            let mut at = table.index_of(from.begin());
            let page = at + 3;
            while let Some(key) = table.key(at).filter(|_| at < page) {
                found.push(String::from_utf8(key.to_vec()).unwrap());
                from.at_least = next_key(key);
                at += 1;
            }
            if at >= table.len() && !table.is_cut() {
                return found;
            }
            change(self, &from.at_least);
        }
    }
}

fn numbered(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |number| format!("name-{:03}", number * 7 % count))
}

fn cache(most_bytes: usize) -> Cache {
    Cache::new(most_bytes, 5, Duration::from_secs(1000))
}

#[test]
fn pages_of_a_directory_that_does_not_change_are_of_one_reading() {
    let mut dir = Changing::with(numbered(50).chain([".hidden".into()]), cache(10_000), 10_000);
    let first = dir.names(&NamesFrom::default());
    assert!(Arc::ptr_eq(&first, &dir.names(&NamesFrom::behind(b"name-010"))));
    assert_eq!(dir.all(|_, _| {}), numbered(50).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>());
    assert_eq!(dir.cache.footprint(), first.footprint());
    dir.add("name-0105");
    assert!(!Arc::ptr_eq(&first, &dir.names(&NamesFrom::default())));
    dir.cache = Cache::new(10_000, 5, Duration::ZERO);
    dir.names(&NamesFrom::default());
    dir.cache.expire();
    assert_eq!(dir.cache.footprint(), 0);
}

#[test]
fn names_that_come_and_go_between_pages_are_seen_at_once() {
    // The whole directory in a table, tables of parts of it, and no table that is remembered.
    for (table_bytes, cache_bytes) in [(10_000, 10_000), (400, 10_000), (10_000, 10)] {
        let mut dir = Changing::with(numbered(60), cache(cache_bytes), table_bytes);
        let mut turn = 0;
        let found = dir.all(|dir, behind| {
            turn += 1;
            let behind = std::str::from_utf8(&behind[..behind.len() - 1]).unwrap().to_owned();
            // Every other time nothing changes.
            if turn % 2 == 0 {
                dir.add(&format!("{behind}+"));
                let next = dir.names.range(format!("{behind}+~")..).nth(1).cloned();
                next.into_iter().for_each(|name| dir.remove(&name));
            }
        });
        assert_eq!(found, dir.names.iter().cloned().collect::<Vec<_>>(), "{table_bytes} {cache_bytes}");
        assert!(dir.cache.footprint() <= cache_bytes);
    }
}

#[test]
fn the_tables_that_were_used_last_are_remembered() {
    let cache = Cache::new(1000, 1, Duration::from_secs(1000));
    let version = |ino| DirVersion { device: 1, ino, mtime: FileTime::default(), ctime: FileTime::default() };
    let table = || {
        let mut builder = NameTableBuilder::new(NamesFrom::default(), 1000);
        (0..30).for_each(|number| builder.push(format!("{number}").as_bytes(), NameKind::File));
        Arc::new(builder.finish())
    };
    for ino in 0..3 {
        cache.keep(version(ino), table());
        cache.find(&version(0), &NamesFrom::default()).unwrap();
    }
    assert!(cache.footprint() <= 1000);
    let is_there = |ino| cache.find(&version(ino), &NamesFrom::default()).is_some();
    assert_eq!([0, 1, 2, 3].map(is_there), [true, true, true, false]);
    cache.keep(version(3), table());
    assert_eq!([0, 1, 2, 3].map(is_there).into_iter().filter(|there| *there).count(), 3);
}
