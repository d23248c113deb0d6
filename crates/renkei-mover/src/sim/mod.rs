//! Deterministic simulation of whole transfers on a virtual clock, with fault injection, from one seed.
//!
//! [`transfer::World`] has a source disk, a destination disk, the disk of the journal and a network between them. The
//! receiving end ([`receiving`]) is the shipped one: its [`crate::receive::Session`], streams, offers and committer
//! work on a [`memory_store::MemoryStore`]. The world injects faults: links are cut, processes killed, machines lose
//! power, disks fill up and sources change. [`check`] verifies the invariants after every event. A run is determined by
//! its seed, so a failing seed can be replayed. The simulator is compiled for tests alone.
//!
//! Non-goals: TLS, congestion, thread timing below one event, file systems that lie about a sync.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod change;
mod check;
mod content;
mod disk;
mod fuse;
mod hostile;
mod journal;
mod memory_store;
mod net;
mod receiving;
mod seeds;
mod sending;
mod session;
mod transfer;
mod transfers;
mod tree;
