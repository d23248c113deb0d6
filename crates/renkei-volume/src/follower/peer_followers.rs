//! The peers: other sites that follow a volume, as its home told last. They serve the replicas that they hold, and may
//! ask for those held here. The list is kept beside the copy, so that it is known while the home is not reachable.

use renkei_catalogue::VolumeTree;
use renkei_core::error::Error;
use renkei_core::namespace::source::Fellow;
use renkei_core::wire::{decode, encode};
use std::sync::{Arc, RwLock};

/// Key of the note in the tree with the peers.
const FELLOWS: &str = "fellows";

/// The peers that the home named last.
pub(crate) struct PeerFollowers(RwLock<Arc<Vec<Fellow>>>);

impl PeerFollowers {
    /// Reads the stored peers.
    pub(crate) fn load(tree: &VolumeTree) -> Result<Self, Error> {
        let known: Vec<Fellow> = match tree.note(FELLOWS)? {
            Some(bytes) => decode("fellows", &bytes)?,
            None => Vec::new(),
        };
        Ok(PeerFollowers(RwLock::new(Arc::new(known))))
    }

    /// The peers.
    pub(crate) fn all(&self) -> Arc<Vec<Fellow>> {
        self.0.read().expect("no thread panics while it holds the lock").clone()
    }

    /// Stores the peers that the home named.
    pub(crate) fn set(&self, tree: &VolumeTree, told: &[Fellow]) -> Result<(), Error> {
        if *self.all() != told {
            tree.set_note(FELLOWS, &encode(&told.to_vec()))?;
            *self.0.write().expect("no thread panics while it holds the lock") = Arc::new(told.to_vec());
        }
        Ok(())
    }
}
