//! Replicas of followed volumes at this site: pulled, read through, verified and evicted.
//!
//! [`service`] compares replicas with the catalogue, `reconcile` finds missing replicas (`reconcile_state`; with
//! `dirty_set` only where records changed something), `pull` fetches them. `read_through` reads content that is not
//! here (`remote_content`) from the site that `source_selection` chooses; [`scrub`] verifies (`scrub_state`),
//! `eviction` removes, and `locations` lists the sites that have a file.

pub(crate) mod dirty_set;
pub(crate) mod eviction;
pub(crate) mod locations;
pub(crate) mod pull;
pub(crate) mod read_through;
pub(crate) mod reconcile;
pub(crate) mod reconcile_state;
mod remote_content;
pub mod scrub;
pub(crate) mod scrub_state;
pub mod service;
pub(crate) mod source_selection;
