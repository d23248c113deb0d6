//! A volume at a site that follows it: the view as a store, the outbox with its write-ahead log, and the plain files,
//! which follow the log of the home.
//!
//! [`view`] answers reads; changes go through `write_ops` and `write_txn` into `wal` and [`outbox`]. [`apply`] carries
//! out the home's records in the plain files, by a `move_plan` and with `limbo` for content that lost its place.
//! What identifies and writes a plain file is in [`plain_file`]. [`recovery`] is for the start after a kill,
//! [`restored_home`] and [`restore_rescue`] for the time after a restore. Each file imports those below it alone:
//! `plain_file`, `wal`, [`outbox`], `write_txn`, `limbo`, `move_plan`, [`apply`], [`recovery`], [`view`], `write_ops`.

pub mod accept_dir;
pub mod apply;
#[cfg(test)]
pub(super) mod apply_tests;
pub(super) mod limbo;
pub(super) mod move_plan;
pub mod outbox;
pub(super) mod peer_followers;
pub mod plain_file;
pub(super) mod quota_share;
pub mod recovery;
pub mod replica_guard;
pub mod restore_rescue;
pub mod restored_home;
pub mod site_lease;
pub mod unreplicated;
pub mod view;
pub(super) mod wal;
pub(super) mod write_ops;
pub(super) mod write_txn;
