//! Deterministic simulation of whole transfers on a virtual clock, with fault injection, from one seed.
//!
//! [`transfer::World`] has a source disk, a destination disk, the disk of the journal and a network between them. The
//! receiving end ([`receiving`]) is the shipped one: its [`crate::receive::Session`], streams, offers and committer
//! work on a [`memory_store::MemoryStore`]. The world injects faults: links are cut, processes killed, machines lose
//! power, disks fill up and sources change. [`check`] verifies the invariants after every event. A run is determined by
//! its seed, so a failing seed can be replayed. The simulator is compiled for tests alone; its
//! store is held to the contract of all stores, by `store_conformance` of `renkei-volume`.
//!
//! Non-goals: TLS, congestion, thread timing below one event, file systems that lie about a sync.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod change;
#[cfg(test)]
mod check;
pub mod content;
pub mod disk;
pub mod fuse;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod journal;
pub mod memory_store;
#[cfg(test)]
mod net;
#[cfg(test)]
mod receiving;
#[cfg(test)]
mod seeds;
#[cfg(test)]
mod sending;
#[cfg(test)]
mod session;
#[cfg(test)]
mod transfer;
#[cfg(test)]
mod transfers;
#[cfg(test)]
mod tree;
