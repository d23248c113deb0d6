//! Volumes at a PoP: who may open one, the log between a home and its followers, and their administration.

pub mod access;
pub(crate) mod admin;
pub mod follower;
pub mod home;
pub mod log_shipping;
pub mod replica;
pub(crate) mod site_leases;
