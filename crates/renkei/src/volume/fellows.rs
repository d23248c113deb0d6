//! The other sites that follow a volume, as its home told last: they give out what they hold, and may ask for it here. Kept
//! beside the copy, so that they are known while the home is away.

use super::pending::Pending;
use crate::catalogue::VolumeTree;
use renkei_core::error::Error;
use renkei_core::namespace::source::Fellow;
use renkei_core::wire::{decode, encode};
use std::sync::{Arc, RwLock};

/// Under which key the tree has them.
const FELLOWS: &str = "fellows";

/// What the home told last.
pub(super) struct Fellows(RwLock<Arc<Vec<Fellow>>>);

impl Fellows {
    /// As the tree has them.
    pub(super) fn load(tree: &VolumeTree) -> Result<Self, Error> {
        let known: Vec<Fellow> = match tree.note(FELLOWS)? {
            Some(bytes) => decode("fellows", &bytes)?,
            None => Vec::new(),
        };
        Ok(Fellows(RwLock::new(Arc::new(known))))
    }
}

impl Pending {
    /// The other sites that follow.
    pub fn fellows(&self) -> Arc<Vec<Fellow>> {
        self.fellows.0.read().expect("no thread panics while it holds the lock").clone()
    }

    /// Notes what the home told of them.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn set_fellows(&self, told: &[Fellow]) -> Result<(), Error> {
        if *self.fellows() != told {
            self.tree().set_note(FELLOWS, &encode(&told.to_vec()))?;
            *self.fellows.0.write().expect("no thread panics while it holds the lock") =
                Arc::new(told.to_vec());
        }
        Ok(())
    }
}
