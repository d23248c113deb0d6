//! The diff of a plain tree and a catalogue: the names that differ become changes of the catalogue.

pub(super) mod catalogue_dir;
pub(super) mod conflict_copy;
pub(super) mod name_diff;
pub(super) mod scan_counts;
pub(super) mod tree_diff;
