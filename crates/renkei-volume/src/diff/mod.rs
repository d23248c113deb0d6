//! The diff of a plain tree and a catalogue: the names that differ become changes of the catalogue.
//!
//! `tree_diff` walks both trees, with `catalogue_dir` for the names of one directory; `name_diff` decides on one name,
//! `conflict_copy` where the content is remote, and `scan_counts` counts. Writers leave it what it must know of new names:
//! `arrived_digests` and `replacing`. The reconciler of the home uses it.

pub(super) mod arrived_digests;
pub(super) mod catalogue_dir;
pub(super) mod conflict_copy;
pub(super) mod name_diff;
pub(super) mod replacing;
pub(super) mod scan_counts;
pub(super) mod tree_diff;
