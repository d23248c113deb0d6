//! A PoP's buffer: who may keep how much in it, for how long, and how places in it are named.
//!
//! Pure accounting. The files themselves, and what is remembered over a restart, are the `site` area of the `renkei`
//! crate.

mod ledger;
mod place;

pub use ledger::{Answer, Found, Held, Known, Ledger, Limits, Shortage, Waiting};
pub use place::{STORAGE, place, source, split};
