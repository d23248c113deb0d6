//! Partner sites: enrolment, updates of cards and certificates, probes, revocation.

pub mod enrolment;
pub mod probes;
pub mod renewal;
pub mod revocation;
pub mod updates;
