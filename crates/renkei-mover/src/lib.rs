//! The mover: drives the state machines of `renkei_core::mover` with real sockets, files and threads.
//!
//! [`connect`] opens sessions, [`walk`] reads the source tree, [`send`] and [`receive`] are the two ends of a transfer,
//! [`journal`] is what it resumes from, [`pace`] has its rates, [`hooks`] are for a PoP that forwards. [`files`] works
//! on single files instead of trees. Data streams are blocking OS threads with their own buffers, running as the mapped
//! account; they share one lock, taken once per unit of work. Uses: `renkei-core`, `renkei-store`, `renkei-config`,
//! `renkei-net`. Non-goals: rights of users and the queue, which are the site's.

mod commit;
pub mod connect;
mod dest_dirs;
pub(crate) mod failure;
pub mod fd_limit;
pub mod files;
pub mod hooks;
mod incoming;
pub mod journal;
mod journal_file;
mod offers;
pub mod outgoing;
pub mod pace;
pub mod progress;
pub mod receive;
pub mod reuse;
pub mod self_copy;
pub mod send;
#[cfg(any(test, feature = "testing"))]
pub mod sim;
mod space_reservation;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod walk;
mod write_block;

pub use failure::{Registered, Stop};
pub use pace::background::BACKGROUND_STREAMS;
pub use renkei_core::units::hex;

use renkei_config::random::random_bytes;
use renkei_core::error::Error;
use renkei_core::wire::message::TransferId;
use std::sync::{Mutex, MutexGuard};

/// A random transfer id.
pub fn fresh_id() -> Result<TransferId, Error> {
    random_bytes()
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds a lock: a panic aborts")
}
