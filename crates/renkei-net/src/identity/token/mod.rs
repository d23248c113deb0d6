//! Bearer tokens: macaroons that the PoP issues, and JSON web tokens of issuers that it trusts.
//!
//! A token proves what its text says to whoever verifies it; its holder shows it with each request. A token is a
//! restricted credential: its [`Scope`](renkei_core::identity::Scope) is checked as that of any other.

pub mod acceptance;
pub mod bearer;
pub mod caveat;
pub mod issuers;
pub mod jwt;
pub mod keys;
pub mod macaroon;
mod net;
pub mod s3_key;
