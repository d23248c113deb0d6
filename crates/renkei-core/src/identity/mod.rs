//! Rules of identity: who a principal is and which account it becomes.
//!
//! Pure rules only. Certificates, files and the operating system's accounts are the `identity` area of the
//! `renkei` crate.

mod mapping;
mod principal;

pub use mapping::{AccountRule, Mapping, OwnUsers, Pattern, Rule, Verdict, Why};
pub use principal::{MAX_USER_BYTES, Principal, is_user_name};
