//! The integration tests, one binary; tidy.rs fails when a file beside this one is not named here.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent;
mod browser;
mod buffer;
mod catalogue;
mod console;
mod console_pages;
mod delegation;
mod docs;
mod durability;
mod errors;
mod federation;
mod fidelity;
mod files;
mod following;
mod hostile;
mod join;
mod kept;
mod lab;
mod mount;
mod mount_io;
mod mount_posix;
mod mover;
mod notify;
mod postgres;
mod private;
mod proxy;
mod queue;
mod queue_bad;
mod queue_many;
mod raw;
mod records;
mod revoked;
mod rule;
mod safety;
mod sharing;
mod tidy;
mod tree;
mod trees;
mod verbs;
mod volume;
mod wire;
