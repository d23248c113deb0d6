//! A volume at its home: the view as a store, the reconciler that brings the catalogue up to date with the plain files,
//! and the changes of followers, which are materialised in the plain tree.
//!
//! `view` marks names in `dirty_names` before it changes them, `watch` marks those that others changed; `reconciler`
//! compares them with the catalogue. `apply_remote` and `materialise` take in changes of followers, whose content may
//! be remote (`remote_content`). `quota` enforces limits.

pub mod accept_dir;
pub(super) mod apply_remote;
pub(super) mod away_dirs;
pub(super) mod corrupt;
pub(super) mod dirty_names;
pub mod follower_registry;
pub(super) mod materialise;
pub(super) mod name_lock;
pub(super) mod node_paths;
pub(super) mod quota;
pub(super) mod reconciler;
pub(super) mod remote_content;
#[cfg(test)]
pub(super) mod remote_content_tests;
pub mod site_leases;
#[cfg(test)]
pub(super) mod tests;
pub(super) mod view;
pub(super) mod view_remote;
pub(super) mod view_replace;
pub(super) mod watch;
