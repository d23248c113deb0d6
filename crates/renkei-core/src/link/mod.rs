//! Control of a path: how many streams, how fast.

pub mod background;
pub mod bucket;
pub mod busy;
pub mod capacity;
pub mod controller;
pub mod starved;
