//! The storages of a PoP: their open roots, and the identity of their directories.
//!
//! [`root`] opens a storage and finds out when another directory is at its path, by the recorded [`identity`].

pub mod identity;
pub mod root;
