//! Transfers a PoP takes part in: receiving from and sending to the peer of a session, and pushes to other sites.
//!
//! [`Transfers`] is the room. `sessions` serves the peer of a session, [`push`] sends to another site, over connections
//! of the [`connection_pool`]. [`tickets`] lets data streams join a session, `active` lists running transfers and
//! [`history`] ended ones; [`unfinished`] lists those that stopped, and [`cleanup`] removes abandoned ones. The bytes are
//! moved by `renkei_mover`.

pub(crate) mod active;
pub mod cleanup;
pub mod connection_pool;
mod dial_ahead;
pub mod history;
pub(crate) mod jobs;
pub mod push;
pub(crate) mod rule_arrivals;
mod sessions;
pub mod tickets;
pub mod unfinished;

use crate::Context;
use crate::access::Proof;
use crate::peer::Peer;
use crate::relay::Relay;
use crate::snapshot::Snapshot;
use active::ActiveTransfers;
use connection_pool::{InboundPool, OutboundPool};
use dial_ahead::Dialled;
use renkei_core::error::Error;
use renkei_core::path::SiteName;
pub use renkei_mover::Stop;
pub use renkei_mover::progress::{Note, Watch};
use renkei_net::control::ControlSender;
use rule_arrivals::Arrivals;
use std::sync::Arc;
use tickets::{Grants, Tickets};

/// The transfers of a PoP.
pub struct Transfers {
    context: Arc<Context>,
    relay: Arc<Relay>,
    /// The running and the ended ones, with the pulls of volumes and the file sessions.
    pub(crate) active: Arc<ActiveTransfers>,
    /// Tickets of data streams and circuits.
    pub tickets: Tickets,
    grants: Grants,
    dialled: Dialled,
    kept_sessions: OutboundPool,
    parking: InboundPool,
    pub(crate) arrivals: Arrivals,
}

impl Transfers {
    /// A PoP without transfers.
    pub(crate) fn new(context: &Arc<Context>, relay: &Arc<Relay>, active: &Arc<ActiveTransfers>) -> Self {
        Transfers {
            context: context.clone(),
            relay: relay.clone(),
            active: active.clone(),
            tickets: Tickets::default(),
            grants: Grants::default(),
            dialled: Dialled::default(),
            kept_sessions: OutboundPool::default(),
            parking: InboundPool::default(),
            arrivals: Arrivals::default(),
        }
    }

    /// The peer of a session; if it is a PoP, its data streams may be parked here between transfers.
    pub fn peer(&self, proof: Proof, link: &Arc<ControlSender>) -> Peer {
        let parked = self.parking.place(&proof, link);
        Peer { proof, parked }
    }

    /// Closes the idle sessions that are parked for later transfers.
    pub fn close_waiting(&self) {
        self.parking.give_way(0);
    }

    /// Numbers of data streams that are kept for the next transfer to a site, and from it.
    pub(crate) fn kept_streams(&self, site: &SiteName) -> (usize, usize) {
        (self.kept_sessions.streams(site), self.parking.streams(site))
    }

    /// Ends transfers and closes pooled connections that a new configuration forbids.
    pub(crate) fn judge(&self, now: &Arc<Snapshot>) {
        self.active.judge(now);
        self.kept_sessions.look(now);
        self.parking.look(now);
    }

    /// Stops all transfers, and closes the pooled connections to other sites.
    pub(crate) fn stop_all(&self, error: &Error) {
        self.active.stop_all(error);
        self.kept_sessions.close();
    }
}
