//! The set of directories with remote content, so that the others are read from the plain tree alone.

use renkei_core::namespace::NodeId;
use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard};

/// Directories with remote content, or a superset; while the set is not known, every directory counts.
#[derive(Default)]
pub(crate) struct AwayDirs(Mutex<Option<HashSet<NodeId>>>);

impl AwayDirs {
    fn lock(&self) -> MutexGuard<'_, Option<HashSet<NodeId>>> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }

    /// Whether a directory may have remote content.
    pub(crate) fn has(&self, dir: NodeId) -> bool {
        self.lock().as_ref().is_none_or(|dirs| dirs.contains(&dir))
    }

    /// Whether the volume may have remote content.
    pub(crate) fn is_any(&self) -> bool {
        self.lock().as_ref().is_none_or(|dirs| !dirs.is_empty())
    }

    /// Adds directories; after the first call the set counts as known.
    pub(crate) fn add(&self, dirs: impl IntoIterator<Item = NodeId>) {
        self.lock().get_or_insert_default().extend(dirs);
    }

    /// Notes that the volume has no remote content.
    pub(crate) fn clear(&self) {
        *self.lock() = Some(HashSet::new());
    }
}
