//! The counts of a scan: new, removed and changed names that the diff of the two trees found.

use renkei_core::error::Error;
use renkei_core::path::RelPath;

/// Examples kept at most.
const MOST_EXAMPLES: usize = 20;

/// Counts of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanCounts {
    /// Names that the catalogue did not have.
    pub(crate) new: u64,
    /// Names that were removed.
    pub(crate) gone: u64,
    /// Files with other content.
    pub(crate) changed: u64,
    /// Names of which only the mode, owner or time differed.
    pub(crate) attributes: u64,
    /// Names that could not be examined or stored.
    pub(crate) failed: u64,
    /// Some names of each of these counts, for people.
    pub(crate) examples: Vec<String>,
}

impl ScanCounts {
    /// Adds an example.
    pub(crate) fn note(&mut self, what: &str, path: &RelPath) {
        if self.examples.len() < MOST_EXAMPLES {
            self.examples.push(format!("{what} {path}"));
        }
    }

    /// Counts a name that could not be examined.
    pub(crate) fn fail(&mut self, path: &RelPath, error: &Error) {
        self.failed += 1;
        self.note(&format!("failed ({error})"), path);
    }
}
