//! The integration tests, one binary; tidy.rs fails when a file beside this one is not named here.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod catalogue;
mod cli;
mod console;
mod docs;
mod federation;
mod identity;
mod lab;
mod mount;
mod queue;
mod relay;
mod s3;
mod tidy;
mod transfer;
mod tree;
mod upgrade;
mod volume;
mod webdav;
mod wire;
