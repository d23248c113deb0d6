//! How far a copy is, for its client and for the lists of transfers.

use super::other_server::Ends;
use renkei_core::wire::message::Progress;
use renkei_mover::progress::Watch;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// The state of a copy (`Stripe Status` of its markers).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Others run before it.
    #[default]
    Queued,
    /// Bytes move.
    Running,
    /// The digests are compared.
    Verifying,
}

#[derive(Default)]
struct State {
    stage: Stage,
    started: Option<SystemTime>,
    last: Option<SystemTime>,
}

/// The progress of one copy; clones share it.
#[derive(Clone, Default)]
pub struct CopyProgress {
    state: Arc<Mutex<State>>,
    pub(super) watch: Watch,
    pub(super) connections: Arc<Mutex<Vec<Ends>>>,
}

/// A look at it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The stage.
    pub stage: Stage,
    /// When it left the queue.
    pub started: Option<SystemTime>,
    /// When bytes moved last.
    pub last: Option<SystemTime>,
    /// Bytes moved.
    pub bytes: u64,
    /// The open connections to the other server.
    pub connections: Vec<Ends>,
}

impl CopyProgress {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far it is.
    pub fn look(&self) -> Seen {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let state = self.lock();
        let bytes = self.watch.look().bytes_moved;
        Seen { stage: state.stage, started: state.started, last: state.last, bytes, connections }
    }

    pub(super) fn starts(&self) {
        let mut state = self.lock();
        state.stage = Stage::Running;
        state.started = Some(SystemTime::now());
    }

    pub(super) fn verifying(&self) {
        self.lock().stage = Stage::Verifying;
    }

    /// The size of the file is known; 0 for one that is not.
    pub(super) fn found(&self, bytes: u64) {
        let found = Progress { files_found: 1, bytes_found: bytes, walk_done: true, ..self.watch.look() };
        self.watch.set(found);
    }

    pub(super) fn moved(&self, bytes: u64) {
        // Streams of one copy: no look of one is lost by another.
        let mut state = self.lock();
        state.last = Some(SystemTime::now());
        let before = self.watch.look();
        let moved = before.bytes_moved + bytes;
        self.watch.set(Progress { bytes_moved: moved, bytes_found: before.bytes_found.max(moved), ..before });
    }

    /// Bytes will move again.
    pub(super) fn moved_back(&self, bytes: u64) {
        let _state = self.lock();
        let before = self.watch.look();
        let (bytes_moved, bytes_done) = (before.bytes_moved.saturating_sub(bytes), 0);
        self.watch.set(Progress { bytes_moved, bytes_done, ..before });
    }
}
