//! Rules of identity: the mapping of principals to accounts, their rights, and the scope of delegated credentials.
//!
//! Pure rules only. Certificates, files and the operating system's accounts are in `renkei_net::identity`.

pub mod grid_name;
mod map_file;
mod mapping;
pub mod rights;
mod scope;

pub use crate::principal::{MAX_USER_BYTES, Principal, is_user_name};
pub use map_file::MapFile;
pub use mapping::{AccountRule, Mapping, OwnUsers, Pattern, Rule, Verdict, Why};
pub use rights::Rights;
pub use scope::{MAX_SCOPE_BYTES, Need, Permit, Scope};
