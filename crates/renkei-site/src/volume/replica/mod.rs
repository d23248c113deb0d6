//! Replicas of followed volumes at this site: pulled, read through, verified and evicted.

pub(crate) mod dirty_set;
pub(crate) mod eviction;
pub(crate) mod locations;
pub(crate) mod pull;
pub(crate) mod read_through;
pub(crate) mod reconcile;
pub mod scrub;
pub mod service;
pub(crate) mod source_selection;
