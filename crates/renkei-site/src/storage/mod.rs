//! The storages of a PoP: their open roots, the identity of their directories, and their free space.
//!
//! [`root`] opens a storage and finds out when another directory is at its path, by the recorded [`identity`].
//! [`free_space`] is a cache.

pub mod free_space;
pub mod identity;
pub mod root;
