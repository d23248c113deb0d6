//! Lookup and creation of directories below the destination, for one thread.
//!
//! A directory of the transfer may have its final mode already, from an earlier run, and that may keep its owner from
//! writing there. It is unlocked (made writable) for the duration of the transfer, and gets its mode again at the
//! end. The destination itself is only unlocked if it is part of the transfer: no file is written into a directory
//! that its owner locked.

use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_store::Dir;
use renkei_store::temp::{refuse_temp_names, temp_name};
use std::sync::Arc;

/// Mode of a directory until its own metadata is set at the end.
const MODE_MEANWHILE: u32 = 0o700;

/// The directories of the destination for one thread; the last one is cached, since entries come by directory.
pub(super) struct DestDirs {
    base: Arc<dyn Dir>,
    job: u64,
    /// The paths in scope, with all below them; the root for everything.
    within: Arc<[RelPath]>,
    last: Option<(RelPath, Arc<dyn Dir>)>,
}

/// A final name in an open directory.
pub(super) struct DestName<'p> {
    pub(super) dir: Arc<dyn Dir>,
    pub(super) name: &'p [u8],
}

impl DestDirs {
    pub(super) fn new(base: Arc<dyn Dir>, job: u64, within: Arc<[RelPath]>) -> Self {
        DestDirs { base, job, within, last: None }
    }

    fn check(&self, path: &RelPath) -> Result<(), Error> {
        refuse_temp_names("receive", path)?;
        if self.within.iter().any(|within| path.starts_with(within)) {
            return Ok(());
        }
        Err(Error::new(Code::OutOfScope, "receive", path, "it is not among the places of the transfer"))
    }

    /// The temporary name for `path`, the same in every run of the job.
    pub(super) fn temp(&self, path: &RelPath) -> Vec<u8> {
        temp_name(self.job, path)
    }

    /// Whether `path` lies in the destination itself and the previous path lay elsewhere.
    pub(super) fn enters_base(&self, path: &RelPath) -> bool {
        let in_base = path.split().is_some_and(|(parent, _)| parent.is_empty());
        in_base && self.last.as_ref().is_none_or(|(last, _)| !last.is_root())
    }

    /// The directory that holds `path`, created if missing, and its name there.
    pub(super) fn make<'p>(&mut self, path: &'p RelPath) -> Result<DestName<'p>, Error> {
        self.find_with(path, Self::make_parent)
    }

    /// The directory that holds `path`, and its name there.
    pub(super) fn find<'p>(&mut self, path: &'p RelPath) -> Result<DestName<'p>, Error> {
        self.find_with(path, |places, parent| places.base.descend(parent))
    }

    fn find_with<'p>(
        &mut self,
        path: &'p RelPath,
        open: impl FnOnce(&mut Self, &RelPath) -> Result<Arc<dyn Dir>, Error>,
    ) -> Result<DestName<'p>, Error> {
        self.check(path)?;
        let Some((parent, name)) = path.split() else {
            return Err(Error::new(Code::IsADirectory, "receive", path, "the destination itself"));
        };
        if let Some((cached, dir)) = &self.last
            && cached.as_bytes() == parent
        {
            return Ok(DestName { dir: dir.clone(), name });
        }
        let parent = RelPath::parse(parent)?;
        let dir = open(self, &parent)?;
        self.last = Some((parent, dir.clone()));
        Ok(DestName { dir, name })
    }

    /// Opens the directory of an entry, creating it and its ancestors if missing, and unlocks it.
    pub(super) fn make_dir(&mut self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        self.check(path)?;
        let dir = self.make_parent(path)?;
        if path.is_root() {
            unlock(&*dir)?;
        }
        Ok(dir)
    }

    fn make_parent(&mut self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        let mut below = Vec::new();
        let mut at = path.clone();
        let mut dir = loop {
            match self.base.descend(&at) {
                Ok(dir) => break dir,
                // The owner of a locked directory cannot traverse it either.
                Err(error) if matches!(error.code, Code::PathNotFound | Code::PermissionDenied) => {
                    let Some((parent, name)) = at.split() else { return Err(error) };
                    below.push(name.to_vec());
                    at = RelPath::parse(parent)?;
                }
                Err(error) => return Err(error),
            }
        };
        if !at.is_root() {
            unlock(&*dir)?;
        }
        for name in below.iter().rev() {
            dir = make_child(&*dir, name)?;
        }
        Ok(dir)
    }
}

/// Opens a directory, created if missing and unlocked if it exists.
fn make_child(dir: &dyn Dir, name: &[u8]) -> Result<Arc<dyn Dir>, Error> {
    match dir.mkdir(name, MODE_MEANWHILE) {
        Ok(()) => dir.child(name),
        Err(error) if error.code == Code::PathExists => {
            let child = dir.child(name)?;
            unlock(&*child)?;
            Ok(child)
        }
        Err(error) => Err(error),
    }
}

fn unlock(dir: &dyn Dir) -> Result<(), Error> {
    if dir.is_locked()? { dir.unlock() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_net::identity::account::Account;
    use renkei_store::Store;
    use renkei_store::local::{AccessMode, LocalStore};
    use std::fs::{Permissions, create_dir_all, set_permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    fn set_mode(path: &Path, mode: u32) {
        set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    /// Runs `work` on a tree owned by `nobody`, as `nobody`; false if the test does not run as root.
    fn as_nobody(top: &Path, work: impl FnOnce(DestDirs) + Send + 'static) -> bool {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root to become another account");
            return false;
        }
        let nobody = Account::lookup("nobody").unwrap();
        let give = |path: &Path| std::os::unix::fs::lchown(path, Some(nobody.uid), Some(nobody.gid)).unwrap();
        ["", "a", "a/b", "a/b/c"].iter().for_each(|name| give(&top.join(name)));
        let base = LocalStore::open(top, AccessMode::ReadWrite).unwrap().root().unwrap();
        nobody
            .spawn("nobody", move || work(DestDirs::new(base, 1, [RelPath::root()].into())))
            .unwrap()
            .join()
            .unwrap();
        true
    }

    fn tree() -> tempfile::TempDir {
        let top = tempfile::tempdir().unwrap();
        create_dir_all(top.path().join("a/b/c")).unwrap();
        top
    }

    #[test]
    fn only_permitted_names_are_found_or_made() {
        let top = tree();
        let base = LocalStore::open(top.path(), AccessMode::ReadWrite).unwrap().root().unwrap();
        let mut places = DestDirs::new(base, 1, [path("a/b"), path("new")].into());
        let code = |result: Result<(), Error>| result.unwrap_err().code;
        for bad in ["", "a", "a/x", "a/bb", "newer", "c"] {
            let bad = path(bad);
            assert_eq!(code(places.find(&bad).map(drop)), Code::OutOfScope);
            assert_eq!(code(places.make(&bad).map(drop)), Code::OutOfScope);
            assert_eq!(code(places.make_dir(&bad).map(drop)), Code::OutOfScope);
        }
        places.find(&path("a/b/c")).unwrap();
        // The cached directory does not widen the scope.
        places.make(&path("new")).unwrap();
        assert_eq!(code(places.find(&path("c")).map(drop)), Code::OutOfScope);
        places.make_dir(&path("new/sub")).unwrap();
        assert!(top.path().join("new/sub").is_dir());
    }

    #[test]
    fn directories_of_the_transfer_are_unlocked_and_no_others() {
        let top = tree();
        let at = |name: &str| top.path().join(name);
        set_mode(&at("a"), 0o555);
        set_mode(&at("a/b/c"), 0o040);
        set_mode(&at("a/b"), 0);
        set_mode(top.path(), 0o555);
        let work = |mut places: DestDirs| {
            let place_path = path("a/b/c/file");
            let place = places.make(&place_path).unwrap();
            place.dir.create_temp(b"t", false).unwrap();
            // The destination is not part of the transfer.
            let top_path = path("file");
            let top = places.make(&top_path).unwrap();
            assert_eq!(top.dir.create_temp(b"t", false).err().unwrap().code, Code::PermissionDenied);
        };
        if !as_nobody(top.path(), work) {
            return;
        }
        let modes = ["", "a", "a/b", "a/b/c"].map(|name| mode(&at(name)));
        // No file was written into `a`.
        assert_eq!(modes, [0o555, 0o555, 0o700, 0o740]);
        assert!(as_nobody(top.path(), |mut places| drop(places.make_dir(&RelPath::root()).unwrap())));
        assert_eq!(mode(top.path()), 0o755);
    }

    #[test]
    fn directories_locked_by_another_account_stay_locked() {
        let top = tree();
        set_mode(top.path(), 0o755);
        create_dir_all(top.path().join("root")).unwrap();
        set_mode(&top.path().join("root"), 0o555);
        let work = |mut places: DestDirs| {
            let place_path = path("root/file");
            let place = places.make(&place_path).unwrap();
            assert_eq!(place.dir.create_temp(b"t", false).err().unwrap().code, Code::PermissionDenied);
            assert_eq!(places.make_dir(&path("root/d")).err().unwrap().code, Code::PermissionDenied);
        };
        as_nobody(top.path(), work);
        assert_eq!(mode(&top.path().join("root")), 0o555);
    }
}
