//! The integration tests of the core, one binary.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hostile;
mod leases;
mod messages;
mod mounts;
mod mover;
mod namespace;
mod paths;
mod queue;
mod seeds;
mod site_leases;
mod tree;
