//! A store with a scope: only some directories may be used, each with all below it.
//!
//! A link on the path to such a directory is followed as in the whole store: the scope names the directory by that
//! path. Below it no link is followed, so that none leads out of it. The directories above a scope can be opened
//! too, for operations on the way to it; the caller uses no other name in them. Everything else is `OutOfScope`.

use super::leases::LeaseTable;
use super::{Dir, Space, Store};
use renkei_core::error::{Code, Error};
use renkei_core::lease::HolderId;
use renkei_core::path::RelPath;
use std::sync::Arc;

/// A store restricted to some of its directories.
pub struct ScopedStore {
    inner: Arc<dyn Store>,
    allowed: Vec<RelPath>,
}

impl ScopedStore {
    /// Limits a store to `allowed`.
    pub fn new(inner: Arc<dyn Store>, allowed: Vec<RelPath>) -> Self {
        ScopedStore { inner, allowed }
    }

    /// The longest allowed path that leads to `path`.
    fn above(&self, path: &RelPath) -> Option<&RelPath> {
        let above = self.allowed.iter().filter(|allowed| path.starts_with(allowed));
        above.max_by_key(|allowed| allowed.as_bytes().len())
    }

    fn leads_to_allowed(&self, path: &RelPath) -> bool {
        self.allowed.iter().any(|allowed| allowed.starts_with(path))
    }
}

fn refused(op: &str, path: &RelPath) -> Error {
    Error::new(Code::OutOfScope, op, path, "it is not among the places of the scope")
}

impl Store for ScopedStore {
    fn root(&self) -> Result<Arc<dyn Dir>, Error> {
        self.dir(&RelPath::root())
    }

    fn dir(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        let Some(allowed) = self.above(path) else {
            return match self.leads_to_allowed(path) {
                true => self.inner.dir(path),
                false => Err(refused("open directory", path)),
            };
        };
        let dir = self.inner.dir(allowed)?;
        match path.below(allowed) {
            Some(below) if !below.is_root() => dir.descend(&below),
            _ => Ok(dir),
        }
    }

    fn space(&self, path: &RelPath) -> Result<Space, Error> {
        match self.above(path) {
            Some(_) => self.inner.space(path),
            None => Err(refused("tell space", path)),
        }
    }

    fn leases(&self) -> Option<Arc<LeaseTable>> {
        self.inner.leases()
    }

    fn held_by(&self, holder: HolderId) -> Option<Arc<dyn Store>> {
        let inner = self.inner.held_by(holder)?;
        Some(Arc::new(ScopedStore { inner, allowed: self.allowed.clone() }))
    }

    fn settle(&self) {
        self.inner.settle();
    }

    fn catch_up(&self) -> Result<bool, Error> {
        self.inner.catch_up()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::{AccessMode, LocalStore};
    use std::fs;
    use std::os::unix::fs::symlink;

    fn rel(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn only_permitted_paths_are_opened_and_symlinks_do_not_escape() {
        let top = tempfile::tempdir().unwrap();
        for dir in ["run7/sub", "run70", "other/deep"] {
            fs::create_dir_all(top.path().join(dir)).unwrap();
        }
        symlink("../other", top.path().join("run7/out")).unwrap();
        symlink("sub", top.path().join("run7/in")).unwrap();
        symlink("other", top.path().join("named")).unwrap();
        let whole = Arc::new(LocalStore::open(top.path(), AccessMode::ReadWrite).unwrap());
        let store = ScopedStore::new(whole, vec![rel("run7"), rel("named"), rel("run7/sub/x/y")]);
        let open = |path: &str| store.dir(&rel(path)).map(|dir| dir.path().clone());
        let code = |path: &str| open(path).unwrap_err().code;
        assert_eq!(open("run7").unwrap(), rel("run7"));
        assert_eq!(open("run7/sub").unwrap(), rel("run7/sub"));
        assert_eq!(open("named/deep").unwrap(), rel("named/deep"));
        assert_eq!((code("run7/out"), code("run7/out/deep")), (Code::NotADirectory, Code::NotADirectory));
        assert_eq!(code("run7/in"), Code::NotADirectory);
        assert_eq!(
            (code("run70"), code("other"), code("other/deep")),
            (Code::OutOfScope, Code::OutOfScope, Code::OutOfScope)
        );
        // Above run7.
        assert!(store.root().is_ok());
        assert!(store.space(&rel("run7")).is_ok());
        assert_eq!(store.space(&rel("other")).unwrap_err().code, Code::OutOfScope);
        let deep = ScopedStore::new(
            Arc::new(LocalStore::open(top.path(), AccessMode::ReadWrite).unwrap()),
            vec![rel("run7/sub")],
        );
        assert!(deep.root().is_ok() && deep.dir(&rel("run7")).is_ok());
        assert_eq!(deep.dir(&rel("other")).err().unwrap().code, Code::OutOfScope);
    }
}
