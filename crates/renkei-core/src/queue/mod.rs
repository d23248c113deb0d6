//! The rules of the durable queue: what happens to a transfer that was handed in, and which one runs next.
//!
//! [`job`] is the state machine of one transfer, from submission to its end; [`schedule`] picks among those that
//! are ready. Both get the time as an argument and keep nothing of their own: whoever calls them keeps the course in
//! a database and starts what was picked.

pub mod job;
pub mod schedule;
pub mod webhook;

pub use job::{Change, Event, Job, Requested, State};
pub use schedule::{Head, Limits, Link, Load};
