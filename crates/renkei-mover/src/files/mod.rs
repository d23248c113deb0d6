//! Files one by one: operations on open files over a store here, the RPC server that a session reaches them by, and the
//! client with its read-ahead, write-behind and prefetch.
//!
//! [`local_files`] is the open-file table over a [`renkei_store::Store`]; [`server`] serves it on the data streams of a
//! session. [`remote_files`] is the client over `rpc`, which opens its session anew when the connection is lost;
//! `draft` is a new version of a file, and `lease_client` keeps the client's lease.

pub mod checksum_on_demand;
pub(crate) mod draft;
mod file_handle;
pub(crate) mod lease_client;
pub mod limit;
pub mod local_files;
#[cfg(test)]
pub(crate) mod local_files_tests;
mod names;
mod plain_read;
pub(crate) mod prefetch;
pub(crate) mod read_ahead;
pub mod remote_files;
pub(crate) mod rpc;
pub mod server;
pub mod uploads;
mod watch;
pub mod workspace;
#[cfg(any(test, feature = "testing"))]
pub mod workspace_suite;
#[cfg(any(test, feature = "testing"))]
pub mod workspace_suite_places;
pub(crate) mod write_behind;
