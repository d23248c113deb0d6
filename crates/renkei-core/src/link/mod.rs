//! Control of a path: how many streams, how fast.

pub mod capacity;
pub mod controller;
