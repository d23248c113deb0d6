//! Identities of other systems: `trust ca` for authorities of the grid ([`authorities`]), and `map test` of names and files of
//! the grid ([`mapping`]) and of Kerberos principals ([`kerberos_user`]).

pub(super) mod authorities;
pub(super) mod kerberos_user;
pub(super) mod mapping;
