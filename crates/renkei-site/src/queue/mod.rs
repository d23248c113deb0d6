//! Queued transfers: submission, listing, details and changes. The [`scheduler`] starts attempts, `attempt` is one.
//!
//! [`Queue`] is the room; `state` is what its threads share. A user sees and changes the user's own transfers, the PoP's
//! administrator all. Only users of the site itself may queue: the PoP acts for them at other sites. `submit`, `listing`
//! and `changes` serve users, `third_party` shows them the copies of HTTP clients beside their own, `spill` brings a transfer into the buffer while its destination is down, [`webhooks`]
//! reports ends, [`cancel_cleanup`] removes what a cancelled transfer left. [`drop_folders`] is a room above, which submits
//! files that others put there. The rules are in `renkei_core::queue`, the stored state in `renkei_catalogue`.

mod attempt;
pub mod cancel_cleanup;
mod changes;
pub mod drop_folders;
mod listing;
mod revocation;
pub mod scheduler;
mod spill;
pub(crate) mod state;
mod submit;
mod third_party;
pub mod webhooks;

use crate::Context;
use crate::buffer::api::BufferService;
use crate::partners::Partners;
use crate::relay::Relay;
use crate::transfer::Transfers;
use cancel_cleanup::CancelCleanup;
use state::QueueState;
use std::sync::Arc;

/// The queue of a PoP.
pub struct Queue {
    context: Arc<Context>,
    relay: Arc<Relay>,
    partners: Arc<Partners>,
    transfers: Arc<Transfers>,
    buffer: Arc<BufferService>,
    pub(crate) state: Arc<QueueState>,
    cleanup: Arc<CancelCleanup>,
}

impl Queue {
    /// The queue; the scheduler opens its catalogue.
    pub(crate) fn new(
        context: &Arc<Context>,
        relay: &Arc<Relay>,
        partners: &Arc<Partners>,
        transfers: &Arc<Transfers>,
        buffer: &Arc<BufferService>,
        state: &Arc<QueueState>,
    ) -> Self {
        Queue {
            context: context.clone(),
            relay: relay.clone(),
            partners: partners.clone(),
            transfers: transfers.clone(),
            buffer: buffer.clone(),
            state: state.clone(),
            cleanup: Arc::new(CancelCleanup::new(context, relay, transfers, state)),
        }
    }

    /// The clean-up of cancelled transfers.
    pub fn cancel_cleanup(&self) -> &Arc<CancelCleanup> {
        &self.cleanup
    }
}
