//! Congestion control of a path: stream count and sending rates.
//!
//! [`controller`] decides how many streams a session has and how fast they send, from the [`capacity`] of the path;
//! [`background`] is for transfers that yield to other traffic. [`busy`] divides a rate among the streams that have
//! data, [`starved`] detects streams that BBR holds back, and [`bucket`] is a rate limit. All of them get time and
//! counters as arguments; `renkei_mover::pace` applies them.

pub mod background;
pub mod bucket;
pub mod busy;
pub mod capacity;
pub mod controller;
pub mod starved;
