//! How fast a session sends: by the capacity of its path, by limits, and behind other traffic.

pub(crate) mod background;
pub mod pacer;
pub(crate) mod throttle;
