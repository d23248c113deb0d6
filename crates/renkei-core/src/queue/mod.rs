//! The rules of the durable queue: the state of each submitted transfer, and the scheduling.
//!
//! [`job`] is the state machine of one transfer, from submission to its end; [`schedule`] picks among those that are
//! ready. Both get the time as an argument and persist nothing: the caller keeps the job in a database and starts the
//! picked one.

pub mod job;
pub mod schedule;
pub mod webhook;

pub use job::{Change, Event, Job, Requested, State};
pub use schedule::{Head, Limits, Link, Load};
