//! Directories that are made on the way to a key. S3 has none: so each has a mark, the extended attribute `user.s3.implied`, by
//! which it goes when nothing is in it any more, and is no key meanwhile. Folders that clients or people made have no mark,
//! and stay.

use crate::key::Key;
use crate::metadata::OBJECT;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::path::{Place, RelPath};
use renkei_mover::files::workspace::{Follow, Workspace};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// The mark of a directory that was made on the way to a key.
pub(crate) const IMPLIED: &[u8] = b"user.s3.implied";
/// Permission bits of a directory that is new.
pub(crate) const DIR_MODE: u32 = 0o755;
/// Attempts to make the directories of a key: a client may remove them meanwhile.
const ATTEMPTS: usize = 5;

/// Whether a directory has the mark, and is no object: a client may make the folder between its creation for a key and
/// the mark.
pub(crate) fn is_implied(files: &Workspace, dir: &RelPath) -> bool {
    files.xattrs(dir).is_ok_and(|xattrs| {
        let has = |name: &[u8]| xattrs.iter().any(|xattr| xattr.name == name);
        has(IMPLIED) && !has(OBJECT)
    })
}

/// The uploads that go on in directories of the storages. One that waits for content may have nothing in its directory: at a
/// follower of a volume drafts lie elsewhere.
static USED: LazyLock<Mutex<HashMap<String, Arc<Used>>>> = LazyLock::new(Mutex::default);

/// The uploads that go on in directories of one storage, in parts with a lock each. A directory is removed under its lock, so
/// that no upload begins in it meanwhile.
struct Used([Mutex<HashMap<RelPath, usize>>; 64]);

impl Used {
    fn of(storage: &str) -> Arc<Self> {
        let mut all = USED.lock().unwrap_or_else(PoisonError::into_inner);
        let none = || Arc::new(Used(std::array::from_fn(|_| Mutex::default())));
        all.entry(storage.to_owned()).or_insert_with(none).clone()
    }

    fn lock(&self, dir: &RelPath) -> MutexGuard<'_, HashMap<RelPath, usize>> {
        let mut hasher = DefaultHasher::new();
        dir.hash(&mut hasher);
        self.0[hasher.finish() as usize % self.0.len()].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, dir: &RelPath) {
        *self.lock(dir).entry(dir.clone()).or_default() += 1;
    }

    /// Ends an upload in a directory; does `last` if no other goes on in it.
    fn end(&self, dir: &RelPath, last: impl FnOnce()) {
        let mut counts = self.lock(dir);
        match counts.get_mut(dir) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                counts.remove(dir);
                last();
            }
        }
    }
}

/// The directories on the way to a key. Those that are empty and have the mark are removed when this is dropped, unless they
/// are kept, or another has them.
pub(crate) struct Parents {
    files: Workspace,
    path: RelPath,
    is_kept: bool,
    used: Arc<Used>,
    /// The directories in the storage, the lowest first; that of the key of a folder is the first.
    dirs: Vec<RelPath>,
    /// Whether the first of them is the key's own.
    is_folder: bool,
}

impl Parents {
    /// Those of a key at a place, and at a path of its files, which ends with the path of the key as far as it is below the
    /// bucket.
    pub(crate) fn new(files: &Workspace, place: &Place, path: &RelPath, key: &Key) -> Self {
        let levels = key.path.components().count().saturating_sub(1);
        let (used, is_folder) = (Used::of(&place.storage), key.is_folder);
        let above = std::iter::successors(place.path.parent(), RelPath::parent).take(levels);
        let dirs: Vec<_> = is_folder.then(|| place.path.clone()).into_iter().chain(above).collect();
        dirs.iter().for_each(|dir| used.begin(dir));
        Parents { files: files.clone(), path: path.clone(), is_kept: false, used, dirs, is_folder }
    }

    /// Has them kept.
    pub(crate) fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Does work in the directory of the key, which is made if it is missing.
    ///
    /// # Errors
    /// Those of the work, and of making directories.
    pub(crate) fn with<T>(&self, mut work: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        for _ in 1..ATTEMPTS {
            match (work(), self.path.parent()) {
                (Err(error), Some(dir)) if error.code == Code::PathNotFound && !dir.is_root() => {
                    make_dirs(&self.files, dir, error)?;
                }
                (done, _) => return done,
            }
        }
        work()
    }
}

impl Drop for Parents {
    fn drop(&mut self) {
        let mut dirs = self.dirs.iter();
        if let Some(own) = dirs.next().filter(|_| self.is_folder) {
            self.used.end(own, || {});
        } else {
            dirs = self.dirs.iter();
        }
        let mut dir = self.path.parent().filter(|_| !self.is_kept);
        for counted in dirs {
            let at = dir.take().filter(|dir| !dir.is_root());
            self.used.end(counted, || {
                let removed = at.filter(|at| is_implied(&self.files, at) && self.files.rmdir(at).is_ok());
                dir = removed.and_then(|at| at.parent());
            });
        }
    }
}

/// Makes a directory and the missing ones above it; `error` tells that there is none above.
fn make_dirs(files: &Workspace, dir: RelPath, error: Error) -> Result<(), Error> {
    let above = |dir: &RelPath| dir.parent().filter(|parent| !parent.is_root());
    let mut missing = Vec::new();
    let mut next = Some(dir);
    loop {
        let Some(dir) = next else { return Err(error) };
        match make_dir(files, &dir) {
            Err(error) if error.code == Code::PathNotFound => next = above(&dir),
            made => break made?,
        }
        missing.push(dir);
    }
    missing.iter().rev().try_for_each(|dir| make_dir(files, dir))
}

/// Makes a directory with the mark, or finds it.
fn make_dir(files: &Workspace, dir: &RelPath) -> Result<(), Error> {
    match files.mkdir(dir, DIR_MODE) {
        Ok(_) => match files.set_xattr(dir, IMPLIED, b"1") {
            // Without the mark it stays, as an empty folder.
            Err(error) if !is_without_mark(error.code) => Err(error),
            _ => Ok(()),
        },
        Err(error) if error.code == Code::PathExists => match files.stat(dir, Follow::Yes)?.entry.kind {
            EntryKind::Dir => Ok(()),
            _ => Err(Error::new(Code::NotADirectory, "make directory", dir, "a key is a prefix of this one")),
        },
        Err(error) => Err(error),
    }
}

/// Whether a directory stays without its mark: attributes are not kept there, it is gone, or the key may not set them.
fn is_without_mark(code: Code) -> bool {
    matches!(code, Code::Unsupported | Code::PathNotFound | Code::OutOfScope | Code::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_mover::files::local_files::LocalFiles;
    use renkei_mover::files::workspace::Create;
    use renkei_store::local::{AccessMode, LocalStore};

    #[test]
    fn empty_directories_that_were_made_for_a_key_go_and_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::open(dir.path(), AccessMode::ReadWrite).unwrap();
        let files = LocalFiles::new(Arc::new(store), RelPath::root(), true).unwrap();
        let files = Workspace::new(Arc::new(files));
        std::fs::create_dir_all(dir.path().join("own/other")).unwrap();
        std::fs::write(dir.path().join("own/other/x"), "x").unwrap();
        let place = |key: &Key| Place { storage: "implied".into(), path: key.path.clone() };
        let begin = |key: &str| {
            let key = Key::parse(key).unwrap();
            let parents = Parents::new(&files, &place(&key), &key.path, &key);
            let writer = parents.with(|| files.create(&key.path, Create::default()))?;
            Ok::<_, Error>((writer, parents))
        };
        let (writer, mut kept) = begin("own/a/b/k").unwrap();
        writer.publish(None, None).unwrap();
        kept.keep();
        drop(kept);
        assert!(dir.path().join("own/a/b/k").exists());
        if !is_implied(&files, &RelPath::parse(b"own/a").unwrap()) {
            eprintln!("skipped: the file system keeps no attributes");
            return;
        }
        let (failed, parents) = begin("own/a/c/d/e/k").unwrap();
        assert!(dir.path().join("own/a/c/d/e").exists());
        drop((failed, parents));
        assert!(!dir.path().join("own/a/c").exists() && dir.path().join("own/a/b").exists());
        std::fs::remove_file(dir.path().join("own/a/b/k")).unwrap();
        let key = Key::parse("own/a/b/k").unwrap();
        // Another upload waits for its content.
        let other = Key::parse("own/a/b/other").unwrap();
        let waiting = Parents::new(&files, &place(&other), &other.path, &other);
        drop(Parents::new(&files, &place(&key), &key.path, &key));
        assert!(dir.path().join("own/a/b").exists());
        drop(waiting);
        assert!(!dir.path().join("own/a").exists() && dir.path().join("own").exists());
        let conflict = begin("own/other/x/y/k").map(drop).unwrap_err();
        assert_eq!(conflict.code, Code::NotADirectory);
        // A client makes the folder itself while it is made for a key.
        let (failed, parents) = begin("made/k").unwrap();
        let made = RelPath::parse(b"made").unwrap();
        files.set_xattr(&made, OBJECT, b"{}").unwrap();
        assert!(!is_implied(&files, &made));
        drop((failed, parents));
        assert!(dir.path().join("made").exists());
        // The bucket is the folder `bucket`, which has the mark, too.
        let (failed, mut parents) = begin("bucket/in/k").unwrap();
        let own = Key::parse("in/k").unwrap();
        let in_bucket = Key::parse("bucket/in/k").unwrap();
        let below = Parents::new(&files, &place(&in_bucket), &in_bucket.path, &own);
        parents.keep();
        drop((failed, parents, below));
        assert!(Used::of("implied").0.iter().all(|counts| counts.lock().unwrap().is_empty()));
        assert!(dir.path().join("bucket").exists() && !dir.path().join("bucket/in").exists());
    }
}
