//! Whole transfers on a virtual clock, with faults, from one seed.
//!
//! [`transfer::World`] has a source disk, a destination disk, the disk of the journal and a network between them.
//! It drives the real [`crate::mover`] state machines and the real wire formats through sessions, as the drivers
//! of the daemon do, and lets links be cut, processes be killed, machines lose power, disks fill up and sources
//! change. [`check`] says after every event whether a promise was broken. A run follows from its seed alone, so a
//! seed that fails can be run again.
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
