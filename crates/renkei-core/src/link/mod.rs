//! Congestion control of a path: stream count and sending rates.

pub mod background;
pub mod bucket;
pub mod busy;
pub mod capacity;
pub mod controller;
pub mod starved;
