//! The integration tests of the core, one binary.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fixture;
mod leases;
mod messages;
mod mounts;
mod namespace;
mod paths;
mod queue;
mod site_leases;
mod wire3;
mod wire4;
