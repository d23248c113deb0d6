//! What comparing the two trees found.

use renkei_core::error::Error;
use renkei_core::path::RelPath;

/// Examples that a tally keeps.
const MOST_EXAMPLES: usize = 20;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Names that the catalogue did not have.
    pub(super) new: u64,
    /// Names that it had and are gone.
    pub(super) gone: u64,
    /// Files with other content.
    pub(super) changed: u64,
    /// Other modes, owners or times alone.
    pub(super) attributes: u64,
    /// What could not be looked at or stored.
    pub(super) failed: u64,
    /// Some of all these, for people.
    pub(super) examples: Vec<String>,
}

impl Tally {
    /// Keeps an example.
    pub(super) fn note(&mut self, what: &str, path: &RelPath) {
        if self.examples.len() < MOST_EXAMPLES {
            self.examples.push(format!("{what} {path}"));
        }
    }

    /// Counts what could not be looked at.
    pub(super) fn fail(&mut self, path: &RelPath, error: &Error) {
        self.failed += 1;
        self.note(&format!("failed ({error})"), path);
    }
}
