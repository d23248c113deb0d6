//! Rules of identity: principals, their mapping to accounts, and the scope of delegated credentials.
//!
//! Pure rules only. Certificates, files and the operating system's accounts are in `renkei_net::identity`.

mod mapping;
mod principal;
pub mod rights;
mod scope;

pub use mapping::{AccountRule, Mapping, OwnUsers, Pattern, Rule, Verdict, Why};
pub use principal::{MAX_USER_BYTES, Principal, is_user_name};
pub use rights::Rights;
pub use scope::{MAX_SCOPE_BYTES, Need, Permit, Scope};
