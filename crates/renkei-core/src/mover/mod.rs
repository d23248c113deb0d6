//! State machines of one transfer.
//!
//! The sending side feeds the entries of its walk into a [`sender::Sender`], which numbers them and hands out units
//! of work; any data stream takes the next one. The receiving side writes under temporary names and reports writes to
//! a [`receiver::Receiver`]; its [`commit`] queue orders sync, rename, sync, acknowledge. The [`journal`] holds the
//! state from which an interrupted transfer resumes. None of them touches a clock, a disk or a socket (sans I/O): the
//! caller passes time in and carries out the actions, so that the simulator can do the same with faults injected.

mod closed;
pub mod commit;
pub mod digest;
pub mod filter;
pub mod journal;
pub mod layout;
pub mod offer;
pub mod plan;
pub mod receiver;
pub mod sender;
pub mod summary;
