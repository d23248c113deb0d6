//! The state of the PoP as people and monitoring see it, and the work it does in the background.
//!
//! [`Monitor`] is the room: it is above all others and sees them. [`conditions`] is the list of faults, filled by
//! [`health_checks`]; [`periodic_checks`] are some of the background threads, and [`free_space`] is a cache. [`console`] has
//! the visitors of the web pages; [`view`], [`inventory`] and [`transfer_list`] are what the pages show.

pub mod conditions;
pub mod console;
pub mod free_space;
pub mod health_checks;
pub mod inventory;
pub mod periodic_checks;
pub mod transfer_list;
pub mod view;

use crate::Context;
use crate::access::Caller;
use crate::partners::Partners;
use crate::queue::Queue;
use crate::queue::drop_folders::DropFolders;
use crate::relay::Relay;
use crate::transfer::Transfers;
use crate::volume::VolumeService;
use conditions::Conditions;
use free_space::FreeSpace;
use renkei_core::wire::message::{Status, TransferStatus};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What the PoP tells of itself.
pub struct Monitor {
    context: Arc<Context>,
    relay: Arc<Relay>,
    partners: Arc<Partners>,
    transfers: Arc<Transfers>,
    volumes: Arc<VolumeService>,
    queue: Arc<Queue>,
    drop_folders: Arc<DropFolders>,
    conditions: Conditions,
    rooms: FreeSpace,
}

impl Monitor {
    /// A monitor that has seen nothing yet.
    pub(crate) fn new(
        context: &Arc<Context>,
        relay: &Arc<Relay>,
        partners: &Arc<Partners>,
        transfers: &Arc<Transfers>,
        volumes: &Arc<VolumeService>,
        queue: &Arc<Queue>,
        drop_folders: &Arc<DropFolders>,
    ) -> Self {
        Monitor {
            context: context.clone(),
            relay: relay.clone(),
            partners: partners.clone(),
            transfers: transfers.clone(),
            volumes: volumes.clone(),
            queue: queue.clone(),
            drop_folders: drop_folders.clone(),
            conditions: Conditions::default(),
            rooms: FreeSpace::default(),
        }
    }

    /// Status of the PoP, limited to what `access` may see: its own transfers and circuits, the line of its own
    /// site, the agents of its own account. Without an access (the administrator) all of it.
    pub fn status(&self, caller: Caller<'_>) -> Status {
        let access = caller.user();
        let visible = |status: &TransferStatus| {
            access.is_none_or(|access| status.principal == access.principal.to_string())
        };
        let mut status = Status {
            software: renkei_net::SOFTWARE.into(),
            uptime_s: self.context.started().elapsed().as_secs(),
            sessions: self.context.counters.sessions.load(Ordering::Relaxed) as u32,
            transfers: self.transfers.active.list().into_iter().filter(visible).collect(),
            ..Status::default()
        };
        self.relay.add_status(caller, &mut status);
        status
    }
}
