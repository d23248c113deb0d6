//! Congestion control of a path: stream count and sending rates.
//!
//! [`controller`] decides how many streams a session has and how fast they send, from the [`capacity`] of the path;
//! [`background`] is for transfers that yield to other traffic. [`busy`] divides a rate among the streams that have
//! data, [`starved`] detects streams that BBR holds back, and [`bucket`] is a rate limit. Trials show whether pacing
//! pays (`worth`) and whether shorter writes do (`bursts`). All of them get time and counters, the [`sample`]s of
//! streams, as arguments; `renkei_mover::pace` applies them.

pub mod background;
pub mod bucket;
mod bursts;
pub mod busy;
pub mod capacity;
pub mod controller;
pub mod sample;
pub mod starved;
mod worth;
