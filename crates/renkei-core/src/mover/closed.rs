//! Directories of the destination that accept no entries, as reported by the receiver.
//!
//! Such a directory is one failure, however many entries were meant for it: entries in it are no longer sent, only
//! counted. The receiver reports it as a failure of an entry under the path of an ancestor directory. Subdirectories
//! are tried all the same: they may exist already and accept entries.

use super::journal::{PathKey, path_key};
use crate::path::RelPath;
use std::collections::HashMap;

/// The directories, with the number of entries not sent into each.
#[derive(Debug, Default)]
pub(super) struct Closed {
    /// The reported directories, and those below them that could not be made, each with its index in `told`.
    all: HashMap<PathKey, usize>,
    told: Vec<(RelPath, u64)>,
}

impl Closed {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// Whether a directory is one of them.
    pub(super) fn has(&self, dir: &RelPath) -> bool {
        !self.is_empty() && self.all.contains_key(&path_key(dir))
    }

    /// Whether a path is an entry of one of them.
    pub(super) fn holds(&self, path: &RelPath) -> bool {
        !self.is_empty() && path.parent().is_some_and(|parent| self.has(&parent))
    }

    /// Adds a directory; false if it was known.
    pub(super) fn insert(&mut self, dir: &RelPath) -> bool {
        let next = self.told.len();
        let is_new = *self.all.entry(path_key(dir)).or_insert(next) == next;
        if is_new {
            self.told.push((dir.clone(), 0));
        }
        is_new
    }

    /// Adds the directories between a known one and an entry below it: they could not be made.
    pub(super) fn insert_between(&mut self, dir: &RelPath, path: &RelPath) {
        let Some(told) = self.all.get(&path_key(dir)).copied() else { return };
        let mut at = path.parent();
        while let Some(between) = at.filter(|between| between != dir && between.starts_with(dir)) {
            self.all.insert(path_key(&between), told);
            at = between.parent();
        }
    }

    /// Counts an entry that is not sent, or was sent in vain.
    pub(super) fn count(&mut self, path: &RelPath) {
        let told = path.parent().and_then(|parent| self.all.get(&path_key(&parent)).copied());
        if let Some((_, count)) = told.and_then(|told| self.told.get_mut(told)) {
            *count += 1;
        }
    }

    /// The directories with the number of entries that did not arrive in each.
    pub(super) fn counts(&self) -> &[(RelPath, u64)] {
        &self.told
    }
}
