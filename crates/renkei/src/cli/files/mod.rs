//! Verbs on files and directories at sites and on this machine: one file for each verb, and the code they share.

pub(crate) mod cat;
pub(crate) mod checksum;
pub(crate) mod chmod;
pub(crate) mod df;
pub(crate) mod done;
pub(crate) mod du;
pub(crate) mod find;
pub(crate) mod ln;
pub(crate) mod local_tree;
pub(crate) mod ls;
pub(crate) mod many;
pub(crate) mod mkdir;
pub(crate) mod mv;
pub(crate) mod put;
pub(crate) mod rm;
pub(crate) mod rmdir;
pub(crate) mod row;
pub(crate) mod single;
pub(crate) mod stat;
