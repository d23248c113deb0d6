//! The integration tests of the core, one binary.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hostile;
mod messages;
mod mover;
mod namespace;
mod queue;
mod seeds;
mod tree;
