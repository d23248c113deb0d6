//! A relay's buffer: who may keep how much in it, for how long.
//!
//! Pure accounting. The files themselves, and what is remembered over a restart, are the `site` area of the `renkei`
//! crate.

mod ledger;

pub use ledger::{Answer, Found, Known, Ledger, Limits, Shortage};
