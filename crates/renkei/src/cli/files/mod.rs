//! Verbs on files and directories at sites and on this machine: one file for each verb, and the code they share.
//!
//! `single` opens a file session for each named directory, `row` is an entry as `ls` and `stat` print it, `done` the
//! report of verbs that change names.

pub(crate) mod cat;
pub(crate) mod checksum;
pub(crate) mod chmod;
pub(crate) mod df;
pub(crate) mod done;
pub(crate) mod du;
pub(crate) mod find;
pub(crate) mod link;
pub(crate) mod ln;
pub(crate) mod local_tree;
pub(crate) mod ls;
pub(crate) mod mkdir;
pub(crate) mod mv;
pub(crate) mod put;
pub(crate) mod rm;
pub(crate) mod rmdir;
pub(crate) mod row;
pub(crate) mod single;
pub(crate) mod stat;
