//! x
pub mod identity;
pub mod mover;
pub mod store;
