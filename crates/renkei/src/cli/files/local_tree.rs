//! Digests of local files, for `renkei checksum` on local paths.

use renkei_config::home::file_error;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::message::Algorithm;
use renkei_mover::Stop;
use renkei_site::files::checksum as digest;
use renkei_store::local::{AccessMode, LocalStore};
use renkei_store::{Detail, Dir, Store};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Digest of one file; a symbolic link is followed.
pub(crate) fn checksum(path: &Path, algorithm: Algorithm) -> Result<Vec<u8>, Error> {
    let real = path.canonicalize().map_err(|error| file_error("open", path, &error))?;
    let (Some(parent), Some(name)) = (real.parent(), real.file_name()) else {
        return Err(Error::new(Code::IsADirectory, "open", path.display(), ""));
    };
    let dir = LocalStore::open(parent, AccessMode::ReadOnly)?.root()?;
    let file = dir
        .open_read(name.as_bytes())
        .map_err(|error| Error { subject: path.display().to_string(), ..error })?;
    digest(&*file, algorithm, &Stop::default())
}

/// Digests of all files below a directory in order of their names, or of the one file that `path` is (as the root).
///
/// Symbolic links and special files are skipped.
///
/// # Errors
/// Errors of reading `path` itself, or those of `on_file`.
pub(crate) fn checksums(
    path: &Path,
    algorithm: Algorithm,
    mut on_file: impl FnMut(&RelPath, Result<Vec<u8>, Error>) -> Result<(), Error>,
) -> Result<(), Error> {
    if !path.metadata().map_err(|error| file_error("open", path, &error))?.is_dir() {
        return on_file(&RelPath::root(), checksum(path, algorithm));
    }
    let root = LocalStore::open(path, AccessMode::ReadOnly)?.root()?;
    let mut todo = visit(&root, &RelPath::root(), algorithm, &mut on_file)?;
    while let Some(path) = todo.pop() {
        let below = root.descend(&path).and_then(|dir| visit(&dir, &path, algorithm, &mut on_file));
        match below {
            Ok(below) => todo.extend(below),
            Err(error) => on_file(&path, Err(error))?,
        }
    }
    Ok(())
}

/// Processes the files of one directory and returns its subdirectories, last first.
fn visit(
    dir: &Arc<dyn Dir>,
    path: &RelPath,
    algorithm: Algorithm,
    on_file: &mut impl FnMut(&RelPath, Result<Vec<u8>, Error>) -> Result<(), Error>,
) -> Result<Vec<RelPath>, Error> {
    let names = dir.list()?.map(|listed| listed.map(|listed| listed.name));
    let mut names = names.collect::<Result<Vec<_>, Error>>()?;
    names.sort();
    let mut dirs = Vec::new();
    for name in names {
        let below = path.child(&name)?;
        match dir.entry(&name, Detail::Basic).map(|(entry, _)| entry.kind) {
            Ok(EntryKind::Dir) => dirs.push(below),
            Ok(EntryKind::File { .. }) => {
                let sum = dir.open_read(&name).and_then(|file| digest(&*file, algorithm, &Stop::default()));
                on_file(&below, sum)?;
            }
            Ok(_) => {}
            Err(error) => on_file(&below, Err(error))?,
        }
    }
    dirs.reverse();
    Ok(dirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_read_in_order_without_following_links() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("b/c")).unwrap();
        for name in ["a", "b/c/d", "z"] {
            std::fs::write(tree.path().join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("a", tree.path().join("link")).unwrap();
        let mut found = Vec::new();
        checksums(tree.path(), Algorithm::Blake3, |path, sum| {
            found.push((path.to_string(), sum?));
            Ok(())
        })
        .unwrap();
        let expected = ["a", "z", "b/c/d"]
            .map(|name| (name.to_owned(), blake3::hash(name.as_bytes()).as_bytes().to_vec()));
        assert_eq!(found, expected);
        let followed = checksum(&tree.path().join("link"), Algorithm::Blake3).unwrap();
        assert_eq!(followed, blake3::hash(b"a").as_bytes());
        assert_eq!(checksum(tree.path(), Algorithm::Md5).unwrap_err().code, Code::IsADirectory);
        assert_eq!(checksum(&tree.path().join("none"), Algorithm::Md5).unwrap_err().code, Code::PathNotFound);
    }
}
