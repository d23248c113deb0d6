//! The peers: other sites that follow a volume, as its home told last. They serve the replicas that they hold, and may
//! ask for those held here. The list is kept beside the copy, so that it is known while the home is not reachable.

use renkei_catalogue::{TreeNote, VolumeTree};
use renkei_core::error::Error;
use renkei_core::namespace::source::Fellow;
use renkei_core::wire::decode;
use std::sync::{Arc, RwLock};

/// The note in the tree with the peers.
pub(crate) const FELLOWS: TreeNote<Vec<Fellow>> = TreeNote::of("fellows", &[decode]);

/// The peers that the home named last.
pub(crate) struct PeerFollowers(RwLock<Arc<Vec<Fellow>>>);

impl PeerFollowers {
    /// Reads the stored peers.
    pub(crate) fn load(tree: &VolumeTree) -> Result<Self, Error> {
        let known = FELLOWS.read(tree)?.unwrap_or_default();
        Ok(PeerFollowers(RwLock::new(Arc::new(known))))
    }

    /// The peers.
    pub(crate) fn all(&self) -> Arc<Vec<Fellow>> {
        self.0.read().expect("no thread panics while it holds the lock").clone()
    }

    /// Stores the peers that the home named.
    pub(crate) fn set(&self, tree: &VolumeTree, told: &[Fellow]) -> Result<(), Error> {
        if *self.all() != told {
            FELLOWS.write(tree, &told.to_vec())?;
            *self.0.write().expect("no thread panics while it holds the lock") = Arc::new(told.to_vec());
        }
        Ok(())
    }
}
