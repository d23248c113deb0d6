//! Copies and file sessions: fidelity, resumption, choice of names, storages.

pub(crate) mod durability;
pub(crate) mod fail_fast;
pub(crate) mod fidelity;
pub(crate) mod files;
pub(crate) mod filter;
pub(crate) mod mover;
pub(crate) mod named;
pub(crate) mod sharing;
pub(crate) mod storage;
