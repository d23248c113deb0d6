//! The rate of a session: by the capacity of its path, by limits, and behind other traffic.
//!
//! [`pacer`] applies the rates of the controller in `renkei_core::link`, `background` those of a transfer that yields
//! to others, and `throttle` a limit over all streams. The files here read the kernel's counters; the decisions are
//! made in the core.

pub(crate) mod background;
pub mod pacer;
pub(crate) mod throttle;
