//! The volumes that this site follows, and how far it has come with each.

use renkei_catalogue::VolumeId;
use renkei_core::error::Error;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

/// The replication state of a followed volume.
#[derive(Clone, Debug, Default)]
pub struct FollowState {
    /// The last record announced by the home.
    pub last: u64,
    /// The last contact with the home.
    pub heard: Option<Instant>,
    /// The current error.
    pub trouble: Option<Error>,
    /// Whether the home has truncated records that are needed here.
    pub(super) is_late: bool,
}

/// The volumes that this site follows.
#[derive(Default)]
pub(crate) struct Following {
    volumes: Mutex<HashMap<VolumeId, FollowState>>,
}

impl Following {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<VolumeId, FollowState>> {
        self.volumes.lock().expect("no thread panics while it holds the lock")
    }

    /// Adds a volume; false if it is followed already.
    pub(super) fn begin(&self, id: VolumeId) -> bool {
        let mut volumes = self.lock();
        let is_new = !volumes.contains_key(&id);
        volumes.entry(id).or_default();
        is_new
    }

    pub(super) fn change(&self, id: &VolumeId, change: impl FnOnce(&mut FollowState)) {
        if let Some(standing) = self.lock().get_mut(id) {
            change(standing);
        }
    }

    /// Records why a volume cannot be followed at the moment.
    pub(crate) fn note_trouble(&self, id: &VolumeId, error: Error) {
        self.change(id, |standing| standing.trouble = Some(error));
    }

    /// The replication state of a volume.
    pub(crate) fn standing(&self, id: &VolumeId) -> FollowState {
        self.lock().get(id).cloned().unwrap_or_default()
    }
}
