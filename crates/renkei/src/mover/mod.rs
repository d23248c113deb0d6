//! The mover: drives the state machines of `renkei_core::mover` with real sockets, files and threads.
//!
//! [`dial`] opens sessions, [`walk`] reads the source tree, [`send`] and [`receive`] are the two ends of a transfer.
//! Data streams are blocking OS threads with their own buffers, running as the mapped account; they share one lock,
//! taken once per unit of work.

mod background;
mod commit;
mod dest_dirs;
pub mod dial;
mod failure;
pub mod fd_limit;
pub mod file_server;
pub mod hooks;
mod incoming;
pub mod journal;
mod lease_client;
mod offers;
pub mod outgoing;
pub mod pacer;
mod prefetch;
pub mod progress;
mod read_ahead;
pub mod receive;
mod relay_client;
pub mod remote_files;
pub mod reuse;
pub mod routes;
mod rpc;
pub mod self_copy;
pub mod send;
pub mod slow_connect;
mod space_reservation;
pub mod targets;
#[cfg(test)]
pub(crate) mod tests;
mod throttle;
pub mod transport;
pub mod walk;
mod write_behind;
mod write_block;

pub use background::BACKGROUND_STREAMS;
pub use failure::{Registered, Stop};
pub use renkei_core::units::hex;

use renkei_core::error::{Code, Error};
use renkei_core::wire::message::TransferId;

/// A random transfer id.
pub fn fresh_id() -> Result<TransferId, Error> {
    let mut id = TransferId::default();
    let random = |_| Error::new(Code::SystemCall, "random", "transfer id", "the generator failed");
    aws_lc_rs::rand::fill(&mut id).map_err(random)?;
    Ok(id)
}
