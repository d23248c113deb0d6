//! The mover: drives the state machines of `renkei_core::mover` with real sockets, files and threads.
//!
//! [`dial`] opens sessions, [`walk`] reads the source, [`send`] and [`receive`] are the two ends of a transfer. Data streams are blocking OS threads with their own
//! buffers, running as the mapped account; they share one lock, taken once per unit of work.

mod ahead;
mod background;
mod behind;
mod block;
pub mod clerk;
mod coming;
mod commit;
pub mod custody;
pub mod descriptors;
pub mod dial;
mod failure;
pub mod far;
mod incoming;
pub mod journal;
pub mod keep;
mod lane;
mod lease;
mod offers;
pub mod onto;
pub mod outgoing;
pub mod pacer;
mod passage;
pub mod patience;
mod place;
pub mod progress;
pub mod reach;
pub mod receive;
mod room;
pub mod routes;
pub mod send;
pub mod targets;
#[cfg(test)]
pub(crate) mod tests;
mod throttle;
pub mod walk;

pub use background::BACKGROUND_STREAMS;
pub use failure::{Registered, Stop};
pub use renkei_core::units::hex;

use renkei_core::error::{Code, Error};
use renkei_core::wire::message::TransferId;

/// An id that no other transfer has.
pub fn fresh_id() -> Result<TransferId, Error> {
    let mut id = TransferId::default();
    let random = |_| Error::new(Code::SystemCall, "random", "transfer id", "the generator failed");
    aws_lc_rs::rand::fill(&mut id).map_err(random)?;
    Ok(id)
}
