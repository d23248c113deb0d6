//! Certificates, trust between sites, TLS, local accounts and login.
//!
//! [`authority`] issues and revokes, [`card`] and [`trust`] have the trusted sites, [`verify`] verifies a peer's
//! chain, [`tls`] configures the connections, [`account`] turns a principal's account into a thread that works as it,
//! [`login`] issues certificates to local users, [`delegation`] those that transfers work with, [`agency`] those of
//! agents, and [`mounting`] those of mounts. [`rotation`] gives the site a new authority, and [`handover`] makes
//! other sites accept it. The rules of mapping are in `renkei_core::identity`.

pub mod account;
mod account_pool;
pub mod agency;
pub mod authority;
pub mod certificate;
pub mod credential;
pub mod delegation;
pub mod login;
pub mod map;
pub mod mounting;
pub mod secret;
pub mod socket;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
pub(crate) mod tests;
pub mod tls;
pub mod trust;
pub mod verify;
pub mod web;
