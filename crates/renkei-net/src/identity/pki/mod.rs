//! Certificates, keys and hand-overs: their content, and how they are stored. Non-goal: a decision about trust.
//!
//! [`certificate`] parses, [`extension`] has what a site adds to its certificates, [`handover`] the change from a site's
//! authority to the next one, and [`handover_file`] those that a PoP keeps. [`credential`] is a chain with its key, which
//! is a [`secret`] file.

pub mod certificate;
pub mod credential;
pub(crate) mod extension;
pub mod handover;
pub(crate) mod handover_file;
pub mod secret;
