//! Invalidations: what a cache forgets after a change.

use serde::{Deserialize, Serialize};

/// An invalidation: the changes at a place, by inode numbers ([`crate::wire::file::Item::ino`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Names, each with the inode number of its directory; an empty name stands for all of them. The directory's own
    /// attributes changed as well.
    pub names: Vec<(u64, Vec<u8>)>,
    /// Inode numbers whose attributes or content changed, under whichever name.
    pub nodes: Vec<u64>,
    /// Everything may have changed.
    pub all: bool,
}

/// Most names of one invalidation; a larger one becomes `all`.
pub const MAX_CHANGED: usize = 4096;

impl Changed {
    /// The invalidation of one name.
    pub fn name(dir: u64, name: &[u8]) -> Self {
        Changed { names: vec![(dir, name.to_vec())], ..Changed::default() }
    }

    /// The directories it concerns.
    pub fn dirs(&self) -> Vec<u64> {
        self.names.iter().map(|(dir, _)| *dir).chain(self.nodes.iter().copied()).collect()
    }

    /// Whether it invalidates an entry found under a name, with the inode numbers `dir` of its directory and `own` of
    /// its own.
    pub fn concerns(&self, dir: u64, is_name: impl Fn(&[u8]) -> bool, own: u64) -> bool {
        let is_of = |(at, _): &(u64, Vec<u8>)| *at == own;
        self.concerns_name(dir, is_name) || self.names.iter().any(is_of) || self.nodes.contains(&own)
    }

    /// Whether it invalidates the lookup of a name in a directory.
    pub fn concerns_name(&self, dir: u64, is_name: impl Fn(&[u8]) -> bool) -> bool {
        let is_it = |(at, name): &(u64, Vec<u8>)| *at == dir && (name.is_empty() || is_name(name));
        self.all || self.names.iter().any(is_it)
    }

    /// Whether it invalidates a directory's list of names.
    pub fn concerns_names_of(&self, dir: u64) -> bool {
        self.all || self.names.iter().any(|(at, _)| *at == dir)
    }

    /// Merges another invalidation into this one.
    pub fn merge(&mut self, other: &Changed) {
        self.all |= other.all;
        if self.all
            || self.names.len() + other.names.len() > MAX_CHANGED
            || self.nodes.len() + other.nodes.len() > MAX_CHANGED
        {
            *self = Changed { all: true, ..Changed::default() };
            return;
        }
        for name in &other.names {
            // One name is often changed several times in a row.
            if self.names.last() != Some(name) {
                self.names.push(name.clone());
            }
        }
        self.nodes.extend(&other.nodes);
    }
}
