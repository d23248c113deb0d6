//! The keys below a folder in the order of their bytes, which is not that of names: a directory is ordered as `name/`.
//!
//! A directory is read whole, and the next [`MOST_ENTRIES`] of it are remembered; a wider one is read again behind those. So
//! memory is bounded by the depth of the tree. A directory without anything in it is a key of its own, `name/`.
//! Symbolic links are the files that they lead to; links to directories, special files and names that are not UTF-8 are no
//! keys. A directory that the account may not read is passed over.

use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_mover::files::workspace::{Follow, Workspace};
use std::collections::{BTreeMap, VecDeque};

/// Most entries of a directory that are remembered at once.
pub(crate) const MOST_ENTRIES: usize = 50_000;

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
    most: usize,
    frames: Vec<Frame>,
    /// A key that was found and is found again.
    unread: Option<Found>,
}

/// A directory that is being walked.
struct Frame {
    dir: RelPath,
    /// Its key, with the slash; empty for the bucket.
    key: String,
    entries: VecDeque<Entry>,
    /// The order of the last entry, if the directory has more.
    more: Option<String>,
}

struct Entry {
    /// The name; that of a directory ends with a slash.
    order: String,
    is_dir: bool,
}

impl Walk {
    /// Begins at the folder `root` of some files, the bucket.
    ///
    /// # Errors
    /// Those of the files; a prefix that leads nowhere is no error.
    pub(crate) fn begin(files: Workspace, root: &RelPath, wanted: Wanted) -> Result<Self, Error> {
        Walk::with_bound(files, root, wanted, MOST_ENTRIES)
    }

    fn with_bound(files: Workspace, root: &RelPath, wanted: Wanted, most: usize) -> Result<Self, Error> {
        // The directory in which all keys of the prefix are.
        let above = wanted.prefix.rfind('/').map_or("", |slash| &wanted.prefix[..=slash]).to_owned();
        let mut walk = Walk { files, wanted, most, frames: Vec::new(), unread: None };
        let Ok(below) = RelPath::parse(above.trim_end_matches('/').as_bytes()) else { return Ok(walk) };
        if above.contains("//") || above.starts_with('/') {
            return Ok(walk);
        }
        let dir = root.join(&below)?;
        match walk.files.stat(&dir, Follow::Yes) {
            Ok(item) if item.entry.kind == EntryKind::Dir => {}
            Ok(_) => return Ok(walk),
            Err(error)
                if matches!(error.code, Code::PathNotFound | Code::NotADirectory) && !above.is_empty() =>
            {
                return Ok(walk);
            }
            Err(error) => return Err(error),
        }
        let mut frame = Frame { dir, key: above.clone(), entries: VecDeque::new(), more: None };
        let has_any = walk.fill(&mut frame, None)?;
        // The folder itself, if it is asked for by its whole name.
        if !has_any && !above.is_empty() && walk.is_wanted(&above) {
            frame.entries.push_back(Entry { order: String::new(), is_dir: false });
        }
        walk.frames.push(frame);
        Ok(walk)
    }

    fn is_wanted(&self, key: &str) -> bool {
        key.starts_with(&self.wanted.prefix) && self.wanted.after.as_deref().is_none_or(|after| key > after)
    }

    /// Whether keys that begin so may be wanted.
    fn may_hold(&self, key: &str) -> bool {
        let in_prefix = key.starts_with(&self.wanted.prefix) || self.wanted.prefix.starts_with(key);
        in_prefix && self.wanted.after.as_deref().is_none_or(|after| key > after || after.starts_with(key))
    }

    /// Reads the next entries of a directory; tells whether it has any, wanted or not.
    fn fill(&self, frame: &mut Frame, behind: Option<&str>) -> Result<bool, Error> {
        let mut kept: BTreeMap<String, bool> = BTreeMap::new();
        let (mut has_any, mut is_cut) = (false, false);
        let mut listing = self.files.read_dir(&frame.dir)?;
        while let Some(items) = listing.next_batch()? {
            for item in items {
                let Ok(name) = std::str::from_utf8(item.entry.path.as_bytes()) else { continue };
                let Some(is_dir) = self.kind(&frame.dir, name, &item.entry.kind)? else { continue };
                has_any = true;
                let order = if is_dir { format!("{name}/") } else { name.to_owned() };
                let key = format!("{}{order}", frame.key);
                let is_wanted = if is_dir { self.may_hold(&key) } else { self.is_wanted(&key) };
                if !is_wanted || behind.is_some_and(|behind| order.as_str() <= behind) {
                    continue;
                }
                kept.insert(order, is_dir);
                if kept.len() > self.most {
                    kept.pop_last();
                    is_cut = true;
                }
            }
        }
        frame.more = kept.keys().next_back().filter(|_| is_cut).cloned();
        frame.entries = kept.into_iter().map(|(order, is_dir)| Entry { order, is_dir }).collect();
        Ok(has_any)
    }

    /// Whether an entry is a directory; none if it is no key.
    fn kind(&self, dir: &RelPath, name: &str, kind: &EntryKind) -> Result<Option<bool>, Error> {
        Ok(match kind {
            EntryKind::Dir => Some(true),
            EntryKind::File { .. } => Some(false),
            EntryKind::Symlink { .. } => match self.files.stat(&dir.child(name.as_bytes())?, Follow::Yes) {
                Ok(item) if matches!(item.entry.kind, EntryKind::File { .. }) => Some(false),
                _ => None,
            },
            _ => None,
        })
    }

    /// The next key.
    ///
    /// # Errors
    /// Those of the files.
    pub(crate) fn next(&mut self) -> Result<Option<Found>, Error> {
        if let Some(found) = self.unread.take() {
            return Ok(Some(found));
        }
        loop {
            let Some(frame) = self.frames.last_mut() else { return Ok(None) };
            let Some(entry) = frame.entries.pop_front() else {
                self.read_on()?;
                continue;
            };
            let key = format!("{}{}", frame.key, entry.order);
            if !entry.is_dir {
                let path = match entry.order.as_str() {
                    "" => frame.dir.clone(),
                    name => frame.dir.child(name.as_bytes())?,
                };
                return Ok(Some(Found::Key { key, path }));
            }
            let dir = frame.dir.child(entry.order.trim_end_matches('/').as_bytes())?;
            if self.wanted.is_flat && key.starts_with(&self.wanted.prefix) {
                match self.wanted.after.as_deref() == Some(key.as_str()) {
                    true => continue,
                    false => return Ok(Some(Found::Prefix(key))),
                }
            }
            if let Some(found) = self.enter(dir, key)? {
                return Ok(Some(found));
            }
        }
    }

    /// Reads the next part of the directory, or leaves it at its end.
    fn read_on(&mut self) -> Result<(), Error> {
        let Some(mut frame) = self.frames.pop() else { return Ok(()) };
        if let Some(behind) = frame.more.take() {
            self.fill(&mut frame, Some(&behind))?;
            self.frames.push(frame);
        }
        Ok(())
    }

    /// Enters a directory; one with nothing in it is a key.
    fn enter(&mut self, dir: RelPath, key: String) -> Result<Option<Found>, Error> {
        let mut frame = Frame { dir, key, entries: VecDeque::new(), more: None };
        match self.fill(&mut frame, None) {
            Ok(true) => self.frames.push(frame),
            Ok(false) if self.is_wanted(&frame.key) => {
                return Ok(Some(Found::Key { key: frame.key, path: frame.dir }));
            }
            Ok(false) => {}
            // It is gone since, or not for this account.
            Err(error)
                if matches!(
                    error.code,
                    Code::PathNotFound | Code::PermissionDenied | Code::NotADirectory
                ) => {}
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    /// Has a key found again next.
    pub(crate) fn unread(&mut self, found: Found) {
        self.unread = Some(found);
    }

    /// The entries that it remembers.
    pub(crate) fn len(&self) -> usize {
        self.frames.iter().map(|frame| frame.entries.len()).sum()
    }

    /// The files that are walked.
    pub(crate) fn files(&self) -> &Workspace {
        &self.files
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_mover::files::local_files::LocalFiles;
    use renkei_store::local::{AccessMode, LocalStore};
    use std::path::Path;
    use std::sync::Arc;

    fn workspace(dir: &Path) -> Workspace {
        let store = LocalStore::open(dir, AccessMode::ReadWrite).unwrap();
        Workspace::new(Arc::new(LocalFiles::new(Arc::new(store), RelPath::root(), true).unwrap()))
    }

    /// All keys, in pages of a number of keys.
    fn keys(dir: &Path, prefix: &str, is_flat: bool, page: usize, most: usize) -> Vec<String> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let wanted = Wanted { prefix: prefix.into(), after: after.clone(), is_flat };
            let mut walk = Walk::with_bound(workspace(dir), &RelPath::root(), wanted, most).unwrap();
            for _ in 0..page {
                match walk.next().unwrap() {
                    Some(Found::Key { key, .. } | Found::Prefix(key)) => {
                        after = Some(key.clone());
                        all.push(key);
                    }
                    None => return all,
                }
            }
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
        for (page, most) in [(1, 1), (1, 100), (2, 2), (3, 1), (100, 3), (100, 100)] {
            assert_eq!(keys(dir.path(), "", false, page, most), expected, "{page} {most}");
            let flat = ["a-b", "a.txt", "a/", "a0", "b/", "deep/", "empty/"];
            assert_eq!(keys(dir.path(), "", true, page, most), flat, "{page} {most}");
            assert_eq!(keys(dir.path(), "a/", true, page, most), ["a/b/", "a/z"]);
            assert_eq!(keys(dir.path(), "a", false, page, most), expected[..5]);
            assert_eq!(keys(dir.path(), "deep/1/2", false, page, most), ["deep/1/2/3/4"]);
            assert_eq!(keys(dir.path(), "empty/inner/", false, page, most), ["empty/inner/"]);
        }
        for nothing in ["none", "a//", "/a", "a/b/c/d", "../", "a/../"] {
            assert!(keys(dir.path(), nothing, false, 10, 10).is_empty(), "{nothing}");
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
        assert_eq!(keys(dir.path(), "", false, 10, 10), ["file", "link"]);
    }
}
