//! The keys below a folder in the order of their bytes, which is not that of names: a directory is ordered as `name/`.
//!
//! A walk begins behind a key with one table of names for each directory on the way there, and reads on where a table has not
//! all names; it looks at no entry but symbolic links. A page is a walk of its own, so that each sees the present names; tables
//! of wide directories are remembered as long as these do not change (`renkei_store::names`). A directory without anything in
//! it is a key of its own, `name/`, unless it was made on the way to a key (`implied`). Symbolic links are the files that they
//! lead to; links to directories, special files and names that are not UTF-8 are no keys. A directory that the account may not
//! read is passed over.

use crate::implied::is_implied;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::name_table::{NameTable, NamesFrom, next_key};
use renkei_core::path::RelPath;
use renkei_mover::files::workspace::{Follow, Workspace};
use std::sync::Arc;

/// What is listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The beginning of the keys.
    pub(crate) prefix: String,
    /// The last key of the page before.
    pub(crate) after: Option<String>,
    /// Whether directories below the prefix are told and not entered.
    pub(crate) is_flat: bool,
}

/// A key that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A file, or a directory with nothing in it.
    Key { key: String, path: RelPath },
    /// All keys that begin so.
    Prefix(String),
}

/// A walk.
pub(crate) struct Walk {
    files: Workspace,
    wanted: Wanted,
    frames: Vec<Frame>,
    /// The folder that was asked for by its whole name and has nothing in it.
    folder: Option<Found>,
}

/// A directory that is being walked.
struct Frame {
    dir: RelPath,
    /// Its key, with the slash; empty for the bucket.
    key: String,
    /// The names that are wanted.
    from: NamesFrom,
    table: Arc<NameTable>,
    /// The number of the next name in the table.
    next: usize,
}

/// Whether an error tells that a directory was removed, or replaced by a file.
pub(crate) fn is_gone(error: &Error) -> bool {
    matches!(error.code, Code::PathNotFound | Code::NotADirectory)
}

/// A name in a directory.
struct Entry {
    /// That of a directory ends with a slash.
    name: String,
    is_link: bool,
}

impl Frame {
    /// The next wanted name of the table; those that are not UTF-8 are passed over.
    fn next(&mut self) -> Option<Entry> {
        loop {
            let key = self.table.key(self.next).filter(|key| key.starts_with(&self.from.prefix))?;
            let is_link = self.table.is_link(self.next);
            self.next += 1;
            if let Ok(name) = std::str::from_utf8(key) {
                return Some(Entry { name: name.to_owned(), is_link });
            }
        }
    }

    /// The names behind the table, if there may be wanted ones.
    fn rest(&self) -> Option<NamesFrom> {
        let last = self.table.key(self.table.len().checked_sub(1)?)?;
        let is_wanted = self.table.is_cut()
            && (last < self.from.prefix.as_slice() || last.starts_with(&self.from.prefix));
        is_wanted.then(|| NamesFrom { at_least: next_key(last), prefix: self.from.prefix.clone() })
    }
}

impl Walk {
    /// Begins at the folder `root` of some files, the bucket.
    ///
    /// # Errors
    /// Those of the files; a prefix that leads nowhere is no error.
    pub(crate) fn begin(files: Workspace, root: &RelPath, wanted: Wanted) -> Result<Self, Error> {
        // The directory in which all keys of the prefix are.
        let above = wanted.prefix.rfind('/').map_or("", |slash| &wanted.prefix[..=slash]).to_owned();
        let mut walk = Walk { files, wanted, frames: Vec::new(), folder: None };
        // All keys of the prefix come before the one that the client is behind.
        let is_over =
            |after: &str| after > walk.wanted.prefix.as_str() && !after.starts_with(&walk.wanted.prefix);
        if walk.wanted.after.as_deref().is_some_and(is_over) {
            return Ok(walk);
        }
        let Ok(below) = RelPath::parse(above.trim_end_matches('/').as_bytes()) else { return Ok(walk) };
        if above.contains("//") || above.starts_with('/') {
            return Ok(walk);
        }
        let dir = root.join(&below)?;
        match walk.files.stat(&dir, Follow::Yes) {
            Ok(item) if item.entry.kind == EntryKind::Dir => {}
            Ok(_) => return Ok(walk),
            Err(error) if is_gone(&error) && !above.is_empty() => return Ok(walk),
            Err(error) => return Err(error),
        }
        let is_below = !above.is_empty();
        match walk.enter_first(dir, above) {
            Err(error) if is_gone(&error) && is_below => {}
            entered => entered?,
        }
        Ok(walk)
    }

    fn enter_first(&mut self, dir: RelPath, key: String) -> Result<(), Error> {
        let frame = self.open(dir, key)?;
        if !frame.key.is_empty() && self.is_wanted(&frame.key) && !self.has_any(&frame)? {
            self.folder = self.empty_folder(frame);
        } else {
            self.frames.push(frame);
        }
        Ok(())
    }

    fn is_wanted(&self, key: &str) -> bool {
        key.starts_with(&self.wanted.prefix) && self.wanted.after.as_deref().is_none_or(|after| key > after)
    }

    /// Reads the names of a directory that may be wanted.
    fn open(&self, dir: RelPath, key: String) -> Result<Frame, Error> {
        let prefix = self.wanted.prefix.get(key.len()..).unwrap_or_default();
        let behind = self.wanted.after.as_deref().and_then(|after| after.strip_prefix(&key));
        let at_least = match behind.map(|rest| (rest, rest.find('/'))) {
            None | Some(("", _)) => Vec::new(),
            // The last key was in that directory, which may have more.
            Some((rest, Some(slash))) => rest.as_bytes()[..=slash].to_vec(),
            Some((rest, None)) => next_key(rest.as_bytes()),
        };
        let from = NamesFrom { at_least, prefix: prefix.as_bytes().to_vec() };
        let table = self.files.names(&dir, &from)?;
        let next = table.index_of(from.begin());
        Ok(Frame { dir, key, from, table, next })
    }

    /// Whether a directory has anything in it that is a key, wanted or not.
    fn has_any(&self, frame: &Frame) -> Result<bool, Error> {
        if frame.table.has_entries() || !frame.table.has_links() {
            return Ok(frame.table.has_entries());
        }
        let mut from = NamesFrom::default();
        loop {
            let table = self.files.names(&frame.dir, &from)?;
            let next = table.index_of(from.begin());
            let mut links = Frame { dir: frame.dir.clone(), key: String::new(), from, table, next };
            while let Some(link) = links.next() {
                if self.is_file(&links.dir, &link)? {
                    return Ok(true);
                }
            }
            match links.rest() {
                Some(rest) => from = rest,
                None => return Ok(false),
            }
        }
    }

    /// Whether a name that is no directory's is that of a file, or of a link to one.
    fn is_file(&self, dir: &RelPath, entry: &Entry) -> Result<bool, Error> {
        if !entry.is_link {
            return Ok(true);
        }
        let found = self.files.stat(&dir.child(entry.name.as_bytes())?, Follow::Yes);
        Ok(found.is_ok_and(|item| matches!(item.entry.kind, EntryKind::File { .. })))
    }

    /// The next key.
    ///
    /// # Errors
    /// Those of the files.
    pub(crate) fn next(&mut self) -> Result<Option<Found>, Error> {
        if let Some(folder) = self.folder.take() {
            return Ok(Some(folder));
        }
        loop {
            let Some(frame) = self.frames.last_mut() else { return Ok(None) };
            let Some(entry) = frame.next() else {
                self.read_on()?;
                continue;
            };
            let (dir, key) = (frame.dir.clone(), format!("{}{}", frame.key, entry.name));
            let found = match entry.name.strip_suffix('/') {
                Some(name) => self.directory(dir.child(name.as_bytes())?, key)?,
                None if self.is_wanted(&key) && self.is_file(&dir, &entry)? => {
                    Some(Found::Key { key, path: dir.child(entry.name.as_bytes())? })
                }
                None => None,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    /// Reads the next names of the directory, or leaves it at its end, or if it is gone.
    fn read_on(&mut self) -> Result<(), Error> {
        let Some(mut frame) = self.frames.pop() else { return Ok(()) };
        if let Some(rest) = frame.rest() {
            frame.table = match self.files.names(&frame.dir, &rest) {
                Err(error) if is_gone(&error) => return Ok(()),
                table => table?,
            };
            frame.next = frame.table.index_of(rest.begin());
            frame.from = rest;
            self.frames.push(frame);
        }
        Ok(())
    }

    /// Tells a directory or enters it; one with nothing in it is a key.
    fn directory(&mut self, dir: RelPath, key: String) -> Result<Option<Found>, Error> {
        if self.wanted.is_flat {
            let is_told = self.wanted.after.as_deref() == Some(key.as_str());
            return Ok((!is_told).then_some(Found::Prefix(key)));
        }
        match self.entered(dir, key) {
            // It is gone since, or not for this account.
            Err(error) if is_gone(&error) || error.code == Code::PermissionDenied => Ok(None),
            entered => entered,
        }
    }

    fn entered(&mut self, dir: RelPath, key: String) -> Result<Option<Found>, Error> {
        let frame = self.open(dir, key)?;
        if self.has_any(&frame)? {
            self.frames.push(frame);
            return Ok(None);
        }
        Ok(self.empty_folder(frame))
    }

    /// The key of a directory with nothing in it, if it is one and wanted.
    fn empty_folder(&self, empty: Frame) -> Option<Found> {
        let is_key = self.is_wanted(&empty.key) && !is_implied(&self.files, &empty.dir);
        is_key.then_some(Found::Key { key: empty.key, path: empty.dir })
    }

    /// The files that are walked.
    pub(crate) fn files(&self) -> &Workspace {
        &self.files
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::btree_set;
    use proptest::prelude::*;
    use renkei_mover::files::local_files::LocalFiles;
    use renkei_store::local::{AccessMode, LocalStore};
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::sync::Arc;

    fn workspace(dir: &Path) -> Workspace {
        let store = LocalStore::open(dir, AccessMode::ReadWrite).unwrap();
        Workspace::new(Arc::new(LocalFiles::new(Arc::new(store), RelPath::root(), true).unwrap()))
    }

    /// All keys, in pages of a number of keys.
    fn keys(dir: &Path, prefix: &str, is_flat: bool, page: usize) -> Vec<String> {
        keys_after(dir, Wanted { prefix: prefix.into(), after: None, is_flat }, page, || {})
    }

    /// The same behind a key; `change` is called between two pages.
    fn keys_after(dir: &Path, wanted: Wanted, page: usize, mut change: impl FnMut()) -> Vec<String> {
        let (mut all, mut after) = (Vec::new(), wanted.after.clone());
        loop {
            let wanted = Wanted { after: after.clone(), ..wanted.clone() };
            let mut walk = Walk::begin(workspace(dir), &RelPath::root(), wanted).unwrap();
            for _ in 0..page {
                match walk.next().unwrap() {
                    Some(Found::Key { key, .. } | Found::Prefix(key)) => {
                        after = Some(key.clone());
                        all.push(key);
                    }
                    None => return all,
                }
            }
            change();
        }
    }

    #[test]
    fn keys_come_in_the_order_of_their_bytes_in_pages_of_any_size() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["a/b/c", "a/z", "a-b", "a.txt", "a0", "b/only", "deep/1/2/3/4"] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        std::fs::create_dir_all(dir.path().join("empty/inner")).unwrap();
        let expected = ["a-b", "a.txt", "a/b/c", "a/z", "a0", "b/only", "deep/1/2/3/4", "empty/inner/"];
        for page in [1, 2, 3, 100] {
            assert_eq!(keys(dir.path(), "", false, page), expected, "{page}");
            let flat = ["a-b", "a.txt", "a/", "a0", "b/", "deep/", "empty/"];
            assert_eq!(keys(dir.path(), "", true, page), flat, "{page}");
            assert_eq!(keys(dir.path(), "a/", true, page), ["a/b/", "a/z"]);
            assert_eq!(keys(dir.path(), "a", false, page), expected[..5]);
            assert_eq!(keys(dir.path(), "deep/1/2", false, page), ["deep/1/2/3/4"]);
            assert_eq!(keys(dir.path(), "empty/inner/", false, page), ["empty/inner/"]);
        }
        for nothing in ["none", "a//", "/a", "a/b/c/d", "../", "a/../"] {
            assert!(keys(dir.path(), nothing, false, 10).is_empty(), "{nothing}");
        }
    }

    #[test]
    fn links_out_of_the_place_and_loops_are_no_keys() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "x").unwrap();
        for (target, name) in [("file", "link"), (".", "loop"), ("/etc/passwd", "out"), ("gone", "dangling")]
        {
            std::os::unix::fs::symlink(target, dir.path().join(name)).unwrap();
        }
        assert_eq!(keys(dir.path(), "", false, 10), ["file", "link"]);
    }

    #[test]
    fn a_folder_of_links_alone_is_a_key_if_none_leads_to_a_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("links")).unwrap();
        std::os::unix::fs::symlink("gone", dir.path().join("links/a")).unwrap();
        std::os::unix::fs::symlink("..", dir.path().join("links/b")).unwrap();
        assert_eq!(keys(dir.path(), "", false, 10), ["links/"]);
        assert_eq!(keys(dir.path(), "links/", false, 10), ["links/"]);
        std::fs::write(dir.path().join("file"), "x").unwrap();
        std::os::unix::fs::symlink("../file", dir.path().join("links/c")).unwrap();
        assert_eq!(keys(dir.path(), "", false, 10), ["file", "links/c"]);
        assert_eq!(keys(dir.path(), "links/", false, 10), ["links/c"]);
    }

    /// A tree: paths of files, and of directories with a slash.
    fn paths() -> impl Strategy<Value = BTreeSet<String>> {
        btree_set("([ab.-]{1,2}/){0,3}[ab.-]{1,2}/?", 0..40)
    }

    /// Makes a path, if no other is in its way.
    fn make(dir: &Path, path: &str) {
        let at = dir.join(path);
        let is_plain = |part: &str| !matches!(part, "." | "..");
        if !path.trim_end_matches('/').split('/').all(is_plain) {
            return;
        }
        if path.ends_with('/') {
            let _ = std::fs::create_dir_all(at);
        } else if !at.exists() && std::fs::create_dir_all(at.parent().unwrap()).is_ok() {
            let _ = std::fs::write(at, "");
        }
    }

    /// The keys of a tree by a walk of all of it.
    fn all_keys(dir: &Path, key: &str, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let name = format!("{key}{}", entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                let before = found.len();
                all_keys(&entry.path(), &format!("{name}/"), found);
                if found.len() == before {
                    found.insert(format!("{name}/"));
                }
            } else {
                found.insert(name);
            }
        }
    }

    /// What S3 answers about a set of keys.
    fn expected(keys: &BTreeSet<String>, wanted: &Wanted) -> Vec<String> {
        let told = |key: &String| {
            let rest = &key[wanted.prefix.len()..];
            match rest.find('/').filter(|_| wanted.is_flat) {
                Some(slash) => key[..=wanted.prefix.len() + slash].to_owned(),
                None => key.clone(),
            }
        };
        let after = wanted.after.as_deref().unwrap_or_default();
        let keys = keys.iter().filter(|key| key.starts_with(&wanted.prefix)).map(told);
        let told: BTreeSet<String> =
            keys.filter(|key| key.as_str() > after || wanted.is_flat && is_inside(key, after)).collect();
        told.into_iter().collect()
    }

    /// Whether a key is behind a prefix that is told as one.
    fn is_inside(prefix: &str, after: &str) -> bool {
        prefix.ends_with('/') && after.starts_with(prefix) && after != prefix
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn pages_of_any_size_are_the_keys_in_order(
            tree in paths(),
            prefix in "([ab.-]{1,2}/){0,2}[ab.-]{0,2}",
            after in proptest::option::of("([ab.-]{1,2}/){0,2}[ab.-]{1,2}"),
            is_flat: bool,
            page in 1..8usize,
        ) {
            let dir = tempfile::tempdir().unwrap();
            tree.iter().for_each(|path| make(dir.path(), path));
            let mut all = BTreeSet::new();
            all_keys(dir.path(), "", &mut all);
            let wanted = Wanted { prefix, after, is_flat };
            let found = keys_after(dir.path(), wanted.clone(), page, || {});
            let expected = expected(&all, &wanted);
            // Whether a prefix around the key to begin behind is told depends on whether keys behind that are in it.
            let is_sure = |key: &&String| !is_flat || !is_inside(key, wanted.after.as_deref().unwrap_or_default());
            prop_assert_eq!(
                found.iter().filter(is_sure).collect::<Vec<_>>(),
                expected.iter().filter(is_sure).collect::<Vec<_>>()
            );
        }

        #[test]
        fn keys_that_are_there_all_the_time_are_told_once(
            tree in paths(),
            others in paths(),
            page in 1..5usize,
        ) {
            let dir = tempfile::tempdir().unwrap();
            tree.iter().for_each(|path| make(dir.path(), path));
            let mut lasting = BTreeSet::new();
            all_keys(dir.path(), "", &mut lasting);
            lasting.retain(|key| !key.ends_with('/'));
            let mut others = others.iter().cycle();
            // Each change makes a file and removes another one that was not there at the beginning.
            let mut made: Vec<String> = Vec::new();
            let found = keys_after(dir.path(), Wanted::default(), page, || {
                let Some(other) = others.next().map(|path| path.trim_end_matches('/')) else { return };
                if let Some(gone) = made.pop() {
                    std::fs::remove_file(dir.path().join(gone)).unwrap();
                } else if !dir.path().join(other).exists() {
                    make(dir.path(), other);
                    made.extend(dir.path().join(other).is_file().then(|| other.to_owned()));
                }
            });
            prop_assert!(found.is_sorted_by(|a, b| a < b), "{:?}", found);
            let found: BTreeSet<String> = found.into_iter().collect();
            prop_assert!(found.is_superset(&lasting), "{:?} of {:?}", found, lasting);
        }
    }
}
