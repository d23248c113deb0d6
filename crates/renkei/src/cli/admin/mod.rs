//! Verbs of a PoP's administrator.
//!
//! Set-up and partners: `init`, `serve`, `join`, `invite`, `trust`, `map`, `storage`, `agent`. Operation: `status`,
//! `console`, `backup`, `restore`, `renew`, `revoke`. The site itself: `site` with `rename_site` and
//! `rotate_authority`. Most of them work on the files of the PoP's directory or over its local socket.

pub(crate) mod agent;
pub(crate) mod backup;
pub(crate) mod backup_set;
pub(crate) mod console;
pub(crate) mod init;
pub(crate) mod invite;
pub(crate) mod join;
pub(crate) mod map;
pub(crate) mod rename_site;
pub(crate) mod renew;
pub(crate) mod restore;
pub(crate) mod revoke;
pub(crate) mod rotate_authority;
mod scope_meaning;
pub(crate) mod serve;
pub(crate) mod site;
pub(crate) mod status;
pub(crate) mod storage;
pub(crate) mod trust;
