//! The connection pool: connections between PoPs stay open for a while after a transfer, and the next one reuses them.
//!
//! The sending site keeps the session and its data streams in the `OutboundPool`; the receiving one keeps its ends of
//! the streams beside the session, in a [`PooledPeer`]. Nothing but the connection is kept: each transfer is authorised
//! anew, and a peer that is no longer trusted loses the connection within seconds, at both ends. Pooled connections are
//! dropped when transfers need their memory.

use crate::access::Proof;
use crate::peer::{IDLE, PooledPeer};
use crate::snapshot::Snapshot;
use renkei_core::identity::Principal;
use renkei_core::link::controller::Controller;
use renkei_core::path::SiteName;
use renkei_core::wire::message::Control;
use renkei_mover::connect::dial::Session;
use renkei_mover::reuse::ReusableSession;
use renkei_net::control::ControlSender;
use renkei_net::identity::verify::{expect_site, verify_peer};
use renkei_net::socket::{give_up_after, is_left};
use renkei_net::tls::TlsStream;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant, SystemTime};

/// The sending side stops using it this much earlier, so that both sides never disagree.
const MARGIN: Duration = Duration::from_secs(5);
/// A host that acknowledges nothing for this long counts as dead.
const GONE_AFTER: Duration = Duration::from_secs(10);
/// Maximum age of a pooled connection, so that none is used for ever with its first keys.
const OLDEST: Duration = Duration::from_secs(3600);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds a lock: a panic aborts")
}

/// A session with another PoP and its data streams, between two transfers.
pub(crate) struct PooledSession {
    pub(crate) session: Session,
    pub(crate) streams: Vec<TlsStream>,
    pub(crate) controller: Option<Controller>,
    /// The site's endpoints when it was connected.
    pub(crate) endpoints: Vec<String>,
    pub(crate) since: Instant,
    /// End of the last transfer on it.
    pub(crate) rested: Instant,
}

impl PooledSession {
    /// The connection after a successful transfer, if all of its streams are there.
    pub(crate) fn after(self, keep: &ReusableSession, streams: usize) -> Option<Self> {
        let (left, controller) = (keep.take(), keep.take_controller());
        let kept = PooledSession { streams: left, controller, rested: Instant::now(), ..self };
        (kept.streams.len() == streams).then_some(kept)
    }

    /// Whether it may be used under the current configuration.
    fn is_good(&self, now: &Snapshot) -> bool {
        let site = self.session.site();
        let trusted = verify_peer(self.session.peer_chain(), &now.trust, SystemTime::now())
            .and_then(|peer| expect_site(&peer, site))
            .and_then(|()| now.trust.endpoints(site).map(|endpoints| endpoints == self.endpoints));
        matches!(trusted, Ok(true)) && self.since.elapsed() < OLDEST && self.is_open()
    }

    /// Sets how soon a dead host is detected: on an idle connection only keep-alives are sent.
    pub(crate) fn expect_answers(&self, soon: bool) {
        let control = self.session.control.sender();
        give_up_after(control.socket(), soon.then_some(GONE_AFTER));
    }

    fn is_open(&self) -> bool {
        let left = self.streams.iter().any(|stream| is_left(&stream.socket()));
        self.rested.elapsed() < IDLE - MARGIN && !left && !is_left(self.session.control.sender().socket())
    }
}

/// Pooled connections of the sending side.
#[derive(Default)]
pub(crate) struct OutboundPool(Mutex<Vec<PooledSession>>);

impl OutboundPool {
    /// Takes a usable connection to this site.
    pub(crate) fn take(&self, site: &SiteName, now: &Snapshot) -> Option<PooledSession> {
        let mut sessions = lock(&self.0);
        let at = sessions.iter().rposition(|kept| kept.session.site() == site)?;
        let kept = sessions.remove(at);
        drop(sessions);
        kept.is_good(now).then_some(kept)
    }

    /// Adds a connection; evicts the oldest while all have more than `most` streams.
    pub(crate) fn put(&self, kept: PooledSession, most: usize) {
        kept.expect_answers(true);
        let mut sessions = lock(&self.0);
        sessions.push(kept);
        let mut streams: usize = sessions.iter().map(|kept| kept.streams.len()).sum();
        while streams > most && !sessions.is_empty() {
            streams -= sessions.remove(0).streams.len();
        }
    }

    /// Closes connections that the peer has closed, are too old or are no longer trusted; sends a keep-alive on the
    /// others.
    pub(crate) fn look(&self, now: &Snapshot) {
        let alive = |kept: &PooledSession| kept.session.control.sender().send(&Control::Pong(0)).is_ok();
        lock(&self.0).retain(|kept| kept.is_good(now) && alive(kept));
    }

    /// Number of pooled data streams to this site.
    pub(crate) fn streams(&self, site: &SiteName) -> usize {
        let sessions = lock(&self.0);
        sessions.iter().filter(|kept| kept.session.site() == site).map(|kept| kept.streams.len()).sum()
    }

    /// Closes all connections.
    pub(crate) fn close(&self) {
        lock(&self.0).clear();
    }
}

/// Pooled data streams of the receiving side.
#[derive(Default)]
pub(crate) struct InboundPool(Mutex<Vec<Weak<PooledPeer>>>);

impl InboundPool {
    /// A place for the streams of a session, if the peer is a PoP or an agent.
    pub(crate) fn place(&self, proof: &Proof, link: &Arc<ControlSender>) -> Option<Arc<PooledPeer>> {
        if matches!(proof.principal, Principal::User { .. }) {
            return None;
        }
        let place = Arc::new(PooledPeer { proof: proof.clone(), link: link.clone(), held: Mutex::default() });
        let mut places = lock(&self.0);
        places.retain(|place| place.strong_count() > 0);
        places.push(Arc::downgrade(&place));
        Some(place)
    }

    /// Keeps the streams of a finished transfer, if all of them are left.
    pub(crate) fn put(&self, place: &PooledPeer, keep: &ReusableSession, streams: usize, most: usize) {
        let left = keep.take();
        if left.len() == streams {
            *lock(&place.held) = Some((left, Instant::now()));
            self.give_way(most);
        }
    }

    /// Number of pooled data streams from this site.
    pub(crate) fn streams(&self, site: &SiteName) -> usize {
        let places = self.held();
        places.iter().filter(|place| place.proof.principal.site() == site).map(|place| place.count()).sum()
    }

    /// Evicts the oldest until at most `most` streams are left.
    pub(crate) fn give_way(&self, most: usize) {
        let mut places = self.held();
        places.sort_by_key(|place| place.since());
        let mut streams: usize = places.iter().map(|place| place.count()).sum();
        for place in places {
            if streams <= most {
                return;
            }
            streams -= place.count();
            place.close();
        }
    }

    /// Closes connections that are idle for too long or no longer trusted.
    pub(crate) fn look(&self, now: &Snapshot) {
        self.held().iter().filter(|place| !place.is_good(now)).for_each(|place| place.close());
    }

    fn held(&self) -> Vec<Arc<PooledPeer>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).filter(|place| place.since().is_some()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Evidence;
    use crate::snapshot::tests::site;
    use renkei_config::Config;
    use renkei_mover::testing::{PATIENCE, connections};
    use renkei_net::control::split;

    fn here(dir: &std::path::Path) -> (Snapshot, Proof) {
        let (home, _) = site(dir);
        let now = Snapshot::load(&home, Config::load(&home).unwrap()).unwrap();
        let evidence = Evidence::Chain(now.credential.chain.clone().into());
        let proof = Proof {
            principal: Principal::Host(now.site.clone()),
            scope: None,
            evidence,
            at: SystemTime::now(),
        };
        (now, proof)
    }

    /// A session with one stream that has been idle for `idle`, and the other end of its control stream.
    fn waiting(parking: &InboundPool, proof: &Proof, idle: Duration) -> (Arc<PooledPeer>, TlsStream) {
        let mut ends = connections(2);
        let ((stream, _), (control, far)) = (ends.remove(0), ends.remove(0));
        let link = split(control, PATIENCE).unwrap().0;
        let place = parking.place(proof, &link).unwrap();
        *lock(&place.held) = Some((vec![stream], Instant::now().checked_sub(idle).unwrap()));
        (place, far)
    }

    #[test]
    fn idle_connections_are_closed_after_a_timeout() {
        let dir = tempfile::tempdir().unwrap();
        let ((now, proof), parking) = (here(dir.path()), InboundPool::default());
        let (young, young_far) = waiting(&parking, &proof, IDLE / 2);
        let (old, old_far) = waiting(&parking, &proof, IDLE);
        parking.look(&now);
        assert_eq!((young.count(), old.count()), (1, 0));
        assert!(is_left(&old_far.socket()) && !is_left(&young_far.socket()));
    }

    #[test]
    fn the_oldest_connection_is_evicted_first() {
        let dir = tempfile::tempdir().unwrap();
        let ((_, proof), parking) = (here(dir.path()), InboundPool::default());
        let places = [3, 20, 10].map(|s| waiting(&parking, &proof, Duration::from_secs(s)));
        let left = || places.iter().map(|(place, _)| place.count()).collect::<Vec<_>>();
        parking.give_way(3);
        assert_eq!(left(), [1, 1, 1]);
        parking.give_way(2);
        assert_eq!(left(), [1, 0, 1]);
        parking.give_way(0);
        assert_eq!(left(), [0, 0, 0]);
    }

    #[test]
    fn only_complete_connections_to_pops_are_pooled() {
        let dir = tempfile::tempdir().unwrap();
        let ((_, proof), parking) = (here(dir.path()), InboundPool::default());
        let (place, _far) = waiting(&parking, &proof, Duration::ZERO);
        place.take();
        parking.put(&place, &ReusableSession::default(), 1, 10);
        assert_eq!(place.since(), None);
        let user = Proof { principal: Principal::parse("alice@kek").unwrap(), ..proof };
        assert!(parking.place(&user, &place.link).is_none());
    }
}
