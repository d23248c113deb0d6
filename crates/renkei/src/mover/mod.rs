//! The mover: drives the state machines of `renkei_core::mover` with real sockets, files and threads.
//!
//! [`dial`] opens sessions, [`walk`] reads the source, [`send`] and [`receive`] are the two ends of a transfer. Data streams are blocking OS threads with their own
//! buffers, running as the mapped account; they share one lock, taken once per unit of work.

mod background;
mod block;
mod commit;
pub mod custody;
pub mod descriptors;
pub mod dial;
mod failure;
mod incoming;
pub mod journal;
pub mod keep;
mod offers;
pub mod outgoing;
pub mod pacer;
mod passage;
mod place;
pub mod progress;
pub mod reach;
pub mod receive;
pub mod routes;
pub mod send;
#[cfg(test)]
pub(crate) mod tests;
mod throttle;
pub mod walk;

pub use background::BACKGROUND_STREAMS;
pub use failure::{Registered, Stop};

/// Bytes as lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
