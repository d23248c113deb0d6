//! Aliases of directories: directories of this site that were merged into one that had their name at the home before.
//!
//! Own changes name them by their node numbers, and so do open handles. So a directory is shown by the first number
//! that it had here, as long as the PoP runs, and all of its numbers resolve to it.

use super::overlay::Layer;
use super::{NodeId, Record};
use std::collections::HashMap;

/// Resolves directory numbers through merges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirAliases {
    /// Merges that are in the log.
    settled: HashMap<NodeId, NodeId>,
    /// Merges as seen here, including those of the log.
    seen: HashMap<NodeId, NodeId>,
    shown: HashMap<NodeId, NodeId>,
}

impl DirAliases {
    /// Adds merges from the log.
    pub fn settle(&mut self, known: impl Iterator<Item = (NodeId, NodeId)>) {
        for (id, into) in known {
            self.settled.insert(id, into);
            self.see(id, into);
        }
    }

    /// Adds the merges in records.
    pub fn settle_records(&mut self, records: &[Record]) {
        let nodes =
            records.iter().filter_map(|record| record.outcome.as_ref().ok()).flat_map(|done| &done.nodes);
        self.settle(nodes.filter_map(|(id, node)| Some((*id, node.as_ref()?.merged_into()?))));
    }

    /// Replaces the merges of own pending changes by those of a rebased layer.
    pub fn lay(&mut self, layer: &Layer) {
        self.seen = self.settled.clone();
        self.shown.clear();
        let known: Vec<_> =
            self.settled.iter().map(|(id, into)| (*id, *into)).chain(layer.merged()).collect();
        known.into_iter().for_each(|(id, into)| self.see(id, into));
    }

    fn see(&mut self, id: NodeId, into: NodeId) {
        self.seen.insert(id, into);
        let first = self.shown.entry(into).or_insert(id);
        *first = id.min(*first);
    }

    /// Whether there are no merges.
    pub fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }

    /// The directory that a number resolves to.
    pub fn meant(&self, id: NodeId) -> NodeId {
        self.seen.get(&id).copied().unwrap_or(id)
    }

    /// The number under which a directory is shown.
    pub fn shown(&self, id: NodeId) -> NodeId {
        self.shown.get(&id).copied().unwrap_or(id)
    }

    /// Unifies the numbers of each directory that has several before or after: maps each to the smallest.
    pub fn one_for_all(before: &DirAliases, after: &DirAliases) -> HashMap<NodeId, NodeId> {
        let mut one: HashMap<NodeId, NodeId> = HashMap::new();
        for (id, into) in before.seen.iter().chain(&after.seen) {
            let (a, b) = (first_of(&one, *id), first_of(&one, *into));
            one.insert(a.max(b), a.min(b));
        }
        let ids: Vec<NodeId> = one.keys().copied().collect();
        ids.into_iter().map(|id| (id, first_of(&one, id))).collect()
    }
}

fn first_of(one: &HashMap<NodeId, NodeId>, id: NodeId) -> NodeId {
    let mut at = id;
    while let Some(next) = one.get(&at).filter(|next| **next != at) {
        at = *next;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chained_aliases_resolve_to_one_directory() {
        let merged = |into| {
            let mut merged = DirAliases::default();
            merged.settle([(NodeId(9), NodeId(into))].into_iter());
            merged
        };
        let (before, after) = (merged(20), merged(5));
        let one = DirAliases::one_for_all(&before, &after);
        let of = |id| one.get(&NodeId(id)).copied().unwrap_or(NodeId(id));
        assert_eq!((of(9), of(20), of(5), of(7)), (NodeId(5), NodeId(5), NodeId(5), NodeId(7)));
        assert_eq!((before.meant(NodeId(9)), before.shown(NodeId(20))), (NodeId(20), NodeId(9)));
    }
}
