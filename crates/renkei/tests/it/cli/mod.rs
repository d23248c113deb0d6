//! The command line: verbs, errors with their remedies, documentation that is typed.

pub(crate) mod backup;
pub(crate) mod completion;
pub(crate) mod doctor;
pub(crate) mod errors;
pub(crate) mod machines;
pub(crate) mod procedures;
pub(crate) mod remedies;
pub(crate) mod verbs;
