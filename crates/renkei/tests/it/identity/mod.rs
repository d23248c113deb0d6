//! Certificates, trust between sites, accounts: authorisation.

pub(crate) mod administration;
pub(crate) mod borrowed;
pub(crate) mod certificates;
pub(crate) mod identities;
pub(crate) mod join;
pub(crate) mod ownership;
pub(crate) mod planted;
pub(crate) mod renaming;
pub(crate) mod restricted;
pub(crate) mod revoked;
pub(crate) mod rotation;
pub(crate) mod safety;
pub(crate) mod tokens;
