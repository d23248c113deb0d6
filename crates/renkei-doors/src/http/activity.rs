//! The state of a connection: one that waits for its client too long is closed, one whose client is authenticated keeps its
//! place.

use crate::admission::Slot;
use renkei_core::error::Error;
use renkei_site::files::body::{self, Progress};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::task::JoinHandle;

/// The progress of a connection's requests.
#[derive(Clone, Default)]
pub(crate) struct Activity(Arc<State>);

#[derive(Default)]
struct State {
    /// Blocks that came or went, and operations that began or ended.
    steps: AtomicU64,
    /// Operations that are being executed.
    running: AtomicU64,
    /// The connection's place.
    slot: Mutex<Option<Slot>>,
}

impl Activity {
    /// The state of a connection with this place.
    pub(crate) fn new(slot: Slot) -> Self {
        Activity(Arc::new(State { slot: Mutex::new(Some(slot)), ..State::default() }))
    }

    /// The steps so far.
    pub(crate) fn steps(&self) -> u64 {
        self.0.steps.load(Ordering::Relaxed)
    }

    /// Whether an operation is being executed: the client waits, not the PoP.
    pub(crate) fn is_running(&self) -> bool {
        self.0.running.load(Ordering::Relaxed) > 0
    }

    /// Runs work on a thread that may block.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        body::run(self, work).await
    }

    /// Starts work on a thread that may block.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        body::spawn(self, work)
    }
}

impl Progress for Activity {
    fn step(&self) {
        self.0.steps.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self) {
        self.0.running.fetch_add(1, Ordering::Relaxed);
    }

    fn leave(&self) {
        self.step();
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }

    /// The connection keeps its place for as long as it is used.
    fn authenticated(&self) {
        let mut place = self.0.slot.lock().expect("no thread panics with it");
        *place = place.take().map(Slot::into_http_client);
    }
}
