//! Volumes at a PoP: the log between a home and its followers, and their administration.
//!
//! `standing` tells how volumes are, `admin` lets users create and manage them, `request` asks other PoPs about them,
//! `site_leases` carries leases over the wire. [`home`] and [`follower`] have the work of the two roles,
//! [`replica`] that on replicas. The volumes themselves are in `renkei_volume`; this folder connects those of different
//! sites.

pub(crate) mod admin;
pub mod follower;
pub mod home;
pub mod replica;
pub(crate) mod request;
pub(crate) mod site_leases;
mod standing;
pub(crate) mod tree_walk;
pub(crate) mod verdict;

use crate::Context;
use crate::relay::Relay;
use crate::transfer::active::ActiveTransfers;
use follower::{following::Following, restored_home::Strays};
use home::{backfill_state::Backfill, log_truncation::Confirmed, placement::PlacementState};
use replica::{read_through::ReadThrough, reconcile_state::ReplicaReconciler, scrub_state::Scrubber};
use std::sync::{Arc, Mutex};

/// The volumes of a PoP, those of this site and the followed ones.
pub struct VolumeService {
    context: Arc<Context>,
    relay: Arc<Relay>,
    transfers: Arc<ActiveTransfers>,
    read_through: Arc<ReadThrough>,
    pub(crate) following: Following,
    collecting: Backfill,
    pub(crate) holding: ReplicaReconciler,
    placing: PlacementState,
    pub(crate) verifying: Scrubber,
    pub(crate) confirmed: Confirmed,
    pub(crate) strays: Strays,
    /// Held while the facts of a volume change.
    managing: Mutex<()>,
    /// Held while a follower is assigned its number.
    numbering: Mutex<()>,
}

impl VolumeService {
    /// The volumes of a PoP, before any work on them.
    pub(crate) fn new(context: &Arc<Context>, relay: &Arc<Relay>, transfers: &Arc<ActiveTransfers>) -> Self {
        VolumeService {
            context: context.clone(),
            relay: relay.clone(),
            transfers: transfers.clone(),
            read_through: Arc::new(ReadThrough::new(context, relay, transfers)),
            following: Following::default(),
            collecting: Backfill::default(),
            holding: ReplicaReconciler::default(),
            placing: PlacementState::default(),
            verifying: Scrubber::default(),
            confirmed: Confirmed::default(),
            strays: Strays::default(),
            managing: Mutex::default(),
            numbering: Mutex::default(),
        }
    }
}
