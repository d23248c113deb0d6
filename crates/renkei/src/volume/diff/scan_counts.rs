//! The counts of a scan: new, removed and changed names that the diff of the two trees found.

use renkei_core::error::Error;
use renkei_core::path::RelPath;

/// Examples that a tally keeps.
const MOST_EXAMPLES: usize = 20;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::volume) struct ScanCounts {
    /// Names that the catalogue did not have.
    pub(in crate::volume) new: u64,
    /// Names that it had and are gone.
    pub(in crate::volume) gone: u64,
    /// Files with other content.
    pub(in crate::volume) changed: u64,
    /// Other modes, owners or times alone.
    pub(in crate::volume) attributes: u64,
    /// What could not be looked at or stored.
    pub(in crate::volume) failed: u64,
    /// Some of all these, for people.
    pub(in crate::volume) examples: Vec<String>,
}

impl ScanCounts {
    /// Keeps an example.
    pub(in crate::volume) fn note(&mut self, what: &str, path: &RelPath) {
        if self.examples.len() < MOST_EXAMPLES {
            self.examples.push(format!("{what} {path}"));
        }
    }

    /// Counts what could not be looked at.
    pub(in crate::volume) fn fail(&mut self, path: &RelPath, error: &Error) {
        self.failed += 1;
        self.note(&format!("failed ({error})"), path);
    }
}
