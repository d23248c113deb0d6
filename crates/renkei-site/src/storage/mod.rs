//! The storages of a PoP: their roots, what they are known by, the room in them.

pub mod free_space;
pub mod identity;
pub mod root;
