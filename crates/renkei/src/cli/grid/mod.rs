//! Certificates of the grid: `trust ca` ([`authorities`]), and `map test` of their names and files ([`mapping`]).

pub(super) mod authorities;
pub(super) mod mapping;
