//! Invalidations: the names and attributes whose view at a site changes after a change of the tree, for holders of
//! leases that cached them.

use super::dir_aliases::DirAliases;
use super::overlay::Layer;
use super::{Delta, Dentry, NodeId, Record, SequencedChange};
use crate::invalidation::Changed;
use std::collections::BTreeSet;

/// Names and nodes whose view changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Invalidations {
    names: BTreeSet<Dentry>,
    nodes: BTreeSet<NodeId>,
    /// Whether names that are not listed may show the changed nodes.
    pub is_anywhere: bool,
}

impl Invalidations {
    /// The invalidations of changes made here.
    pub fn of_made(made: &[(SequencedChange, Delta)]) -> Invalidations {
        let mut news = Invalidations::default();
        for (SequencedChange { change, .. }, effects) in made {
            news.add(effects);
            news.names.extend(change.spots().into_iter().cloned());
            news.is_anywhere |= change.spots().is_empty() || has_other_names(effects);
        }
        news
    }

    /// The invalidations of records that were followed here.
    pub fn of_records(records: &[Record]) -> Invalidations {
        let mut news = Invalidations { is_anywhere: true, ..Invalidations::default() };
        records.iter().filter_map(|record| record.outcome.as_ref().ok()).for_each(|done| news.add(done));
        news
    }

    /// The invalidations of a rebase of own changes: the home decided differently, or they can no longer be applied
    /// as shown.
    pub fn of_laying(before: &Layer, after: &Layer) -> Invalidations {
        let mut news = Invalidations { is_anywhere: true, ..Invalidations::default() };
        let names = before.all_names().chain(after.all_names());
        news.names.extend(names.filter(|at| before.own_name(at) != after.own_name(at)).cloned());
        let nodes = before.all_nodes().chain(after.all_nodes());
        news.nodes.extend(nodes.filter(|id| before.own_node(*id) != after.own_node(*id)));
        news
    }

    /// Merges further invalidations.
    pub fn merge(&mut self, other: Invalidations) {
        self.names.extend(other.names);
        self.nodes.extend(other.nodes);
        self.is_anywhere |= other.is_anywhere;
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.nodes.is_empty()
    }

    fn add(&mut self, effects: &Delta) {
        self.names.extend(effects.names.iter().map(|(at, _)| at.clone()));
        self.nodes.extend(effects.nodes.iter().map(|(id, _)| *id));
    }

    /// Converts them to the inode numbers that are shown.
    pub fn told(&self, merged: &DirAliases) -> Changed {
        let number = |id| merged.shown(merged.meant(id)).0;
        let names = self.names.iter().map(|at| (number(at.dir), at.name.0.clone())).collect();
        Changed { names, nodes: self.nodes.iter().map(|id| number(*id)).collect(), all: false }
    }
}

/// Whether a file is changed that also has a name which is not listed.
fn has_other_names(effects: &Delta) -> bool {
    let is_told = |id: &NodeId| effects.names.iter().any(|(_, of)| of.as_ref() == Some(id));
    let files = effects.nodes.iter().filter_map(|(id, node)| Some((id, node.as_ref()?)));
    files.filter(|(_, node)| !node.is_dir()).any(|(id, node)| node.links > 1 || !is_told(id))
}
