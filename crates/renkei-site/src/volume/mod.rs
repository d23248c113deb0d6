//! Volumes at a PoP: the log between a home and its followers, and their administration.
//!
//! `standing` tells how volumes are, `admin` lets users create and manage them, `request` asks other PoPs about them,
//! `site_leases` carries leases over the wire. [`home`] and [`follower`] have the work of the two roles,
//! [`replica`] that on replicas. The volumes themselves are in `renkei_volume`; this folder connects those of different
//! sites.

pub(crate) mod admin;
pub mod follower;
pub mod home;
pub mod replica;
pub(crate) mod request;
pub(crate) mod site_leases;
mod standing;
pub(crate) mod tree_walk;
pub(crate) mod verdict;
