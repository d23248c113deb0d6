//! Small helpers of the tests.

use renkei_core::path::RelPath;

pub fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

/// The number in a variable of the environment.
pub fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|number| number.parse().unwrap())
}
