//! The lock between the reconciler and writers at the home, which both change names in the plain tree.

use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The lock on names: shared by writers, exclusive for the reconciler, so that a name does not change after its
/// check. No holder blocks on anything else.
#[derive(Clone, Default)]
pub(crate) struct NameLock(Arc<RwLock<()>>);

impl NameLock {
    /// The shared lock, for writers.
    pub(crate) fn share(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read().expect("no thread panics while it holds the lock")
    }

    /// The exclusive lock, for the reconciler.
    pub(crate) fn own(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write().expect("no thread panics while it holds the lock")
    }
}
