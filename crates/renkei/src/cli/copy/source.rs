//! Opens the sources of an upload: directories of this machine, each once however many sources lie in it.

use super::copy_plan::split_local;
use renkei_core::error::{Code, Error};
use renkei_core::path::{RelPath, printable};
use renkei_mover::walk::Root;
use renkei_store::local::{AccessMode, LocalStore};
use renkei_store::{Dir, Store};
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directories opened so far; a command line may name more sources than a process may have descriptors.
#[derive(Default)]
pub(crate) struct Sources {
    opened: HashMap<PathBuf, Arc<dyn Dir>>,
}

impl Sources {
    /// Opens the directory of a source, or the source itself if its `contents` are meant.
    ///
    /// As cp does: a link named as a source is followed unless trees are copied.
    pub(crate) fn root(
        &mut self,
        path: &Path,
        contents: bool,
        recursive: bool,
        to: RelPath,
    ) -> Result<Root, Error> {
        if contents {
            let shown = printable(path.as_os_str().as_bytes());
            return Ok(Root { dir: self.open(path)?, from: RelPath::root(), to, alone: false, shown });
        }
        let resolved = match recursive {
            true => path.to_path_buf(),
            false => {
                path.canonicalize().map_err(|error| renkei_config::home::file_error("open", path, &error))?
            }
        };
        let (parent, name) = split_local(&resolved);
        let from = name.map_or_else(|| Ok(RelPath::root()), |name| RelPath::parse(&name))?;
        let shown = shown_parent(path, &resolved);
        Ok(Root { dir: self.open(&parent)?, from, to, alone: false, shown })
    }

    fn open(&mut self, path: &Path) -> Result<Arc<dyn Dir>, Error> {
        if let Some(dir) = self.opened.get(path) {
            return Ok(dir.clone());
        }
        let dir = LocalStore::open(path, AccessMode::ReadOnly).and_then(|store| store.root());
        let dir = dir.map_err(not_found)?;
        self.opened.insert(path.to_path_buf(), dir.clone());
        Ok(dir)
    }
}

/// The path before the source's name as typed; the real directory, if a link was followed to another name.
fn shown_parent(path: &Path, resolved: &Path) -> String {
    let named = if path.file_name() == resolved.file_name() { path } else { resolved };
    printable(named.parent().unwrap_or(named).as_os_str().as_bytes())
}

/// A directory named by the user that does not exist is a wrong path, not an unmounted storage.
pub(crate) fn not_found(error: Error) -> Error {
    if error.code == Code::StorageMissing { Error { code: Code::PathNotFound, ..error } } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_in_one_directory_share_its_handle() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        let mut sources = Sources::default();
        let mut root = |name: &str, contents| {
            sources.root(&folder.path().join(name), contents, true, RelPath::root()).unwrap()
        };
        let (first, second, sub) = (root("a", false), root("b", false), root("sub", true));
        assert!(Arc::ptr_eq(&first.dir, &second.dir) && !Arc::ptr_eq(&first.dir, &sub.dir));
        assert_eq!((first.from.as_bytes(), sub.from.as_bytes()), (&b"a"[..], &b""[..]));
    }

    #[test]
    fn sources_are_shown_as_they_were_written() {
        let shown = |path: &str, resolved: &str| shown_parent(Path::new(path), Path::new(resolved));
        assert_eq!(shown("run/f", "/home/a/run/f"), "run");
        assert_eq!(shown("f", "/home/a/f"), "");
        assert_eq!(shown("run/link", "/other/f"), "/other");
    }

    #[test]
    fn a_missing_directory_is_a_wrong_path() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing/file");
        let error = Sources::default().root(&missing, false, true, RelPath::root()).err().unwrap();
        assert_eq!(error.code, Code::PathNotFound);
    }
}
