//! Names of directories without their attributes, and attributes of names that are known.
//!
//! A list in pages needs the names of the whole directory and the attributes of one page. Files of this machine give both
//! with one call each; elsewhere the names come with attributes, and these are looked up one by one.

use super::limit::within;
use super::local_files::{LocalFiles, Open, item};
use super::workspace::Workspace;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::name_table::{NameKind, NameTable, NameTableBuilder, NamesFrom};
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Answer, Files, Item, Op};
use renkei_core::wire::violation;
use renkei_store::temp::is_temp_name;
use renkei_store::{Detail, Dir, names};
use std::sync::{Arc, PoisonError};

/// Most bytes of a table of names that came with attributes.
const TABLE_BYTES: usize = 1 << 20;

impl LocalFiles {
    /// As [`Files::names`].
    pub(super) fn names_of(&self, dir: &RelPath, from: &NamesFrom) -> Result<Arc<NameTable>, Error> {
        let (answer, _) = self.operate(Op::OpenDir(dir.clone()), b"")?.parted();
        let Answer::Opened { handle, .. } = answer else { return Err(violation("answer", "no directory")) };
        let opened = self.find(handle);
        self.close(handle)?;
        match &*opened? {
            Open::Dir(reading) => {
                let dir = reading.lock().unwrap_or_else(PoisonError::into_inner).dir.clone();
                names::names(&*dir, from, is_temp_name)
            }
            _ => Err(violation("answer", "no directory")),
        }
    }

    /// As [`Files::look_at_names`].
    pub(super) fn items_of(&self, path: &RelPath, names: &[Vec<u8>]) -> Result<Vec<Option<Item>>, Error> {
        let dir = self.dir(path)?;
        names.iter().map(|name| self.item_in(&*dir, path.child(name)?, name)).collect()
    }

    fn item_in(&self, dir: &dyn Dir, path: RelPath, name: &[u8]) -> Result<Option<Item>, Error> {
        let look = |_| dir.entry(name, Detail::Full).map(|found| item(found, path.clone()));
        match within(self.limit.as_ref(), Op::LookFull(path.clone()), look) {
            Ok(item) => Ok(Some(item)),
            Err(error) if error.code == Code::PathNotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Workspace {
    /// The names in a directory from a place on, as many as a table takes; it may have others, too. No entry is looked at where
    /// the files are here. Hidden names are those that [`Workspace::read_dir`] hides.
    ///
    /// # Errors
    /// As [`Workspace::read_dir`].
    pub fn names(&self, dir: &RelPath, from: &NamesFrom) -> Result<Arc<NameTable>, Error> {
        use Code::{NotADirectory, OutsideStorage, SpecialFile};
        match self.files().names(dir, from) {
            Ok(Some(table)) => return Ok(table),
            Ok(None) => {}
            // A symbolic link on the way or at the end.
            Err(error) if matches!(error.code, NotADirectory | OutsideStorage | SpecialFile) => {}
            Err(error) => return Err(error),
        }
        let mut builder = NameTableBuilder::new(from.clone(), TABLE_BYTES);
        let mut listing = self.read_dir(dir)?;
        while let Some(items) = listing.next_batch()? {
            for item in items {
                builder.push(item.entry.path.as_bytes(), kind(&item.entry.kind));
            }
        }
        Ok(Arc::new(builder.finish()))
    }

    /// The entries of these names in a directory with their extended attributes; none for one that is missing, and the link
    /// for a symbolic link, where files are here. A directory that is missing has none of them.
    ///
    /// # Errors
    /// As [`Workspace::stat_full`].
    pub fn stat_names(&self, dir: &RelPath, names: &[Vec<u8>]) -> Result<Vec<Option<Item>>, Error> {
        match self.files().look_at_names(dir, names) {
            Ok(Some(items)) => return Ok(items),
            Ok(None) => {}
            Err(error) if error.code == Code::PathNotFound => return Ok(vec![None; names.len()]),
            // A symbolic link on the way, or a file in the directory's place.
            Err(error) if matches!(error.code, Code::NotADirectory | Code::OutsideStorage) => {}
            Err(error) => return Err(error),
        }
        let one = |name: &Vec<u8>| match self.stat_full(&dir.child(name)?) {
            Ok(item) => Ok(Some(item)),
            Err(error) if matches!(error.code, Code::PathNotFound | Code::NotADirectory) => Ok(None),
            Err(error) => Err(error),
        };
        names.iter().map(one).collect()
    }
}

fn kind(kind: &EntryKind) -> NameKind {
    match kind {
        EntryKind::Dir => NameKind::Dir,
        EntryKind::Symlink { .. } => NameKind::Symlink,
        EntryKind::Special => NameKind::Special,
        _ => NameKind::File,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_store::local::{AccessMode, LocalStore};
    use renkei_store::temp::temp_name;

    #[test]
    fn names_come_without_attributes_and_attributes_by_name() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.txt", "a-b", "b"] {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        let hidden = String::from_utf8(temp_name(1, &RelPath::parse(b"b").unwrap())).unwrap();
        std::fs::write(folder.path().join(hidden), "").unwrap();
        std::fs::create_dir_all(folder.path().join("a/in")).unwrap();
        std::os::unix::fs::symlink("a", folder.path().join("link")).unwrap();
        let store = LocalStore::open(folder.path(), AccessMode::ReadWrite).unwrap();
        let files = LocalFiles::new(Arc::new(store), RelPath::root(), true).unwrap();
        let files = Workspace::new(Arc::new(files));
        let table = files.names(&RelPath::root(), &NamesFrom::default()).unwrap();
        let keys: Vec<_> = (0..table.len()).map(|index| table.key(index).unwrap().to_vec()).collect();
        assert_eq!(keys, [&b"a-b"[..], b"a.txt", b"a/", b"b", b"link"]);
        assert!(table.is_link(4) && !table.is_cut());
        let names = ["b", "gone", "a", "link"].map(|name| name.as_bytes().to_vec());
        let items = files.stat_names(&RelPath::root(), &names).unwrap();
        let found: Vec<_> =
            items.iter().map(|item| item.as_ref().map(|item| kind(&item.entry.kind))).collect();
        let expected = [Some(NameKind::File), None, Some(NameKind::Dir), Some(NameKind::Symlink)];
        assert_eq!(found, expected);
        let link = RelPath::parse(b"link").unwrap();
        assert_eq!(files.names(&link, &NamesFrom::default()).unwrap().key(0), Some(&b"in/"[..]));
        assert!(files.stat_names(&link, &[b"in".to_vec()]).unwrap()[0].is_some());
        for none in ["gone", "b"] {
            let none = RelPath::parse(none.as_bytes()).unwrap();
            assert_eq!(files.stat_names(&none, &names).unwrap(), vec![None; names.len()]);
        }
        assert_eq!(
            files.names(&RelPath::parse(b"b").unwrap(), &NamesFrom::default()).unwrap_err().code,
            Code::NotADirectory
        );
    }
}
