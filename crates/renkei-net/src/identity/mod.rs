//! Certificates, trust between sites, TLS, local accounts and login.
//!
//! [`authority`] issues and revokes certificates, and hands over to its successor. [`trust`] has the cards of the
//! trusted sites. [`verify`] verifies a peer's chain, [`tls`] configures the connections, [`map`] finds a principal's
//! account and [`account`] makes a thread that works as it. [`login`] issues certificates to local users,
//! [`delegation`] those that transfers work with, [`agency`] those of agents, [`borrowed`] those for tokens and proxies, [`mounting`] those of mounts; [`token`] has bearer tokens, [`grid`] and [`kerberos`] have identities of other systems. The rules
//! of mapping are in `renkei_core::identity`.

pub mod account;
mod account_pool;
pub mod agency;
pub mod authority;
pub mod borrowed;
pub mod delegation;
pub mod grid;
pub mod kerberos;
pub mod login;
pub mod map;
pub mod mounting;
mod pki;
pub mod socket;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
pub(crate) mod tests;
pub mod tls;
pub mod token;
pub mod trust;
pub mod verify;
pub mod web;

pub use pki::{certificate, credential, handover, secret};
