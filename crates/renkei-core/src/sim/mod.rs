//! Deterministic simulation of whole transfers on a virtual clock, with fault injection, from one seed.
//!
//! [`transfer::World`] has a source disk, a destination disk, the disk of the journal and a network between them. It
//! drives the real [`crate::mover`] state machines and the real wire formats through sessions, as the drivers of the
//! daemon do, and injects faults: links are cut, processes killed, machines lose power, disks fill up and sources
//! change. [`check`] verifies the invariants after every event. A run is determined by its seed, so a failing seed
//! can be replayed.
//!
//! Non-goals: TLS, congestion, thread timing below one event, file systems that lie about a sync.

pub mod chance;
mod change;
pub mod check;
pub mod committing;
pub mod content;
pub mod disk;
mod fuse;
pub mod journal;
pub mod net;
pub mod receiving;
pub mod sending;
mod session;
pub mod transfer;
