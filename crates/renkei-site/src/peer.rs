//! The peer of a session, with the data streams that wait there for the next transfer.

use crate::access::Proof;
use crate::snapshot::Snapshot;
use renkei_net::control::ControlSender;
use renkei_net::tls::TlsStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

/// Idle timeout of a pooled connection.
pub(crate) const IDLE: Duration = Duration::from_secs(60);

/// The peer of a session, and the pool entry for its data streams between transfers.
#[derive(Clone)]
pub struct Peer {
    /// The proof of its identity.
    pub proof: Proof,
    pub(super) parked: Option<Arc<PooledPeer>>,
}

/// The data streams of another PoP's session, at the receiving side.
pub struct PooledPeer {
    pub(crate) proof: Proof,
    pub(crate) link: Arc<ControlSender>,
    pub(crate) held: Mutex<Option<(Vec<TlsStream>, Instant)>>,
}

impl PooledPeer {
    /// The streams, and since when they wait.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<(Vec<TlsStream>, Instant)>> {
        self.held.lock().expect("no thread panics while it holds a lock: a panic aborts")
    }

    /// Takes the streams for the next transfer.
    pub(crate) fn take(&self) -> Option<Vec<TlsStream>> {
        self.lock().take().map(|(streams, _)| streams)
    }

    /// When the streams were left here.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.lock().as_ref().map(|(_, since)| *since)
    }

    /// Number of the streams.
    pub(crate) fn count(&self) -> usize {
        self.lock().as_ref().map_or(0, |(streams, _)| streams.len())
    }

    /// Closes the session, if it has streams and no transfer.
    pub(crate) fn close(&self) {
        if self.take().is_some() {
            self.link.shutdown();
        }
    }

    /// Whether the streams are young and the peer still trusted.
    pub(crate) fn is_good(&self, now: &Snapshot) -> bool {
        let young = self.since().is_none_or(|since| since.elapsed() < IDLE);
        let Proof { principal, evidence, .. } = &self.proof;
        young && evidence.judge_again(principal, now, SystemTime::now()).is_ok()
    }
}
