//! State machines of one transfer.
//!
//! The sending side feeds what its walk finds into a [`sender::Sender`], which numbers entries and hands out
//! units of work; any data stream takes the next one. The receiving side writes under temporary names and tells a
//! [`receiver::Receiver`] what was written; its [`commit`] queue orders sync, rename, sync, acknowledge. The
//! [`journal`] holds what an interrupted transfer may keep. None of them touches a clock, a disk or a socket: the
//! caller passes time in and does what the machine says, so that the simulator can do the same with faults.

mod closed;
pub mod commit;
pub mod digest;
pub mod filter;
pub mod journal;
pub mod plan;
pub mod receiver;
pub mod sender;
