//! Names that writers replace knowing of the remote version, which the diff must not take for conflicts.

use renkei_catalogue::{TreeNote, VolumeTree};
use renkei_core::error::Error;
use renkei_core::namespace::NodeId;
use renkei_core::path::RelPath;
use renkei_core::wire::decode;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

/// The note with plain files that replace remote versions.
pub(crate) const REPLACING: TreeNote<Vec<Successor>> = TreeNote::of("replacing", &[decode]);

/// Noted files at most: many more than can be replaced before the reconciler looks.
const MAX_NOTED: usize = 256;

/// A plain file that replaces a remote version: the node, the version, and the inode number of the file.
pub(crate) type Successor = (NodeId, u64, u64);

/// Names that a writer replaces knowing of the remote version, from before the change until the catalogue has it: the
/// reconciler may compare such a name at any moment in between.
#[derive(Default)]
pub(crate) struct Replacing {
    names: Mutex<HashMap<RelPath, Replaced>>,
    /// The most recent replacing files, stored before their renames: a kill may come between the rename and the
    /// commit.
    noted: Mutex<VecDeque<Successor>>,
}

struct Replaced {
    version: u64,
    /// Number of writers that are replacing it.
    writers: usize,
    /// Whether the plain file is the new one.
    done: bool,
}

impl Replacing {
    fn all(&self) -> MutexGuard<'_, HashMap<RelPath, Replaced>> {
        self.names.lock().expect("no thread panics while it holds the lock")
    }

    fn noted(&self) -> MutexGuard<'_, VecDeque<Successor>> {
        self.noted.lock().expect("no thread panics while it holds the lock")
    }

    /// Stores that a file is about to replace a remote version.
    pub(crate) fn note(&self, tree: &VolumeTree, successor: Successor) -> Result<(), Error> {
        let mut noted = self.noted();
        if noted.len() == MAX_NOTED {
            noted.pop_front();
        }
        noted.push_back(successor);
        REPLACING.write(tree, &Vec::from(noted.clone()))
    }

    /// Reads the files that were stored before the PoP was started.
    pub(crate) fn recall(&self, tree: &VolumeTree) -> Result<(), Error> {
        if let Some(noted) = REPLACING.read(tree)? {
            *self.noted() = noted.into();
        }
        Ok(())
    }

    /// Whether this file was noted as replacing the version.
    pub(crate) fn is_noted(&self, successor: &Successor) -> bool {
        self.noted().contains(successor)
    }

    /// A writer begins to replace a version.
    pub(crate) fn begin(&self, path: RelPath, version: u64) {
        let mut all = self.all();
        let replaced = all.entry(path).or_insert(Replaced { version, writers: 0, done: false });
        let done = replaced.done && replaced.version == version;
        *replaced = Replaced { version, writers: replaced.writers + 1, done };
    }

    /// A writer has ended; `done` if the plain file is the new one.
    pub(crate) fn end(&self, path: &RelPath, done: bool) {
        if let Some(replaced) = self.all().get_mut(path) {
            replaced.writers = replaced.writers.saturating_sub(1);
            replaced.done |= done;
        }
    }

    /// The catalogue has the state of this name.
    pub(crate) fn settle(&self, path: &RelPath) {
        let mut all = self.all();
        if all.get(path).is_some_and(|replaced| replaced.writers == 0) {
            all.remove(path);
        }
    }

    /// The version that the plain file of a name has replaced and that the catalogue still lists.
    pub(crate) fn replaced(&self, path: &RelPath) -> Option<u64> {
        self.all().get(path).filter(|replaced| replaced.done).map(|replaced| replaced.version)
    }

    /// The version that writers of a name are replacing or have replaced.
    pub(crate) fn version(&self, path: &RelPath) -> Option<u64> {
        self.all().get(path).map(|replaced| replaced.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_files_are_remembered_until_the_catalogue_has_the_change() {
        let (replacing, path) = (Replacing::default(), RelPath::parse(b"a").unwrap());
        replacing.begin(path.clone(), 7);
        // The reconciler compared the name before it was changed.
        replacing.settle(&path);
        assert_eq!(replacing.version(&path), Some(7));
        assert_eq!(replacing.replaced(&path), None);
        replacing.end(&path, true);
        assert_eq!((replacing.version(&path), replacing.replaced(&path)), (Some(7), Some(7)));
        replacing.settle(&path);
        assert_eq!(replacing.version(&path), None);
    }
}
