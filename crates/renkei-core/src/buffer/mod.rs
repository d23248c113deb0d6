//! A PoP's buffer: reservations with quotas and expiry, and the names of places in it.
//!
//! Pure accounting. The files themselves, and the persistent state, are in `renkei_site::buffer`.

mod ledger;
mod place;

pub use ledger::{Answer, Charge, DiskUsage, Ledger, Limits, PersistedReservation, Shortage, Waiting};
pub use place::{STORAGE, place, source, split};
