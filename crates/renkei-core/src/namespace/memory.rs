//! A tree in memory.

use super::tree::Tree;
use super::{Attributes, Delta, Dentry, Kind, Name, Node, NodeId, ROOT};
use crate::entry::FileTime;
use std::collections::BTreeMap;
use std::ops::Bound;

/// All nodes and names of a volume, in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryTree {
    nodes: BTreeMap<NodeId, Node>,
    names: BTreeMap<Dentry, NodeId>,
}

/// The root directory of a new volume.
pub fn new_root(attributes: Attributes) -> Node {
    Node { kind: Kind::Dir { names: 0, parent: ROOT }, attributes, links: 2, changed: 0 }
}

impl Default for MemoryTree {
    fn default() -> Self {
        let mtime = FileTime { secs: 0, nanos: 0 };
        let attributes = Attributes { mode: 0o755, owner: String::new(), group: String::new(), mtime };
        MemoryTree { nodes: BTreeMap::from([(ROOT, new_root(attributes))]), names: BTreeMap::new() }
    }
}

impl MemoryTree {
    /// Applies the effects of a change.
    pub fn apply(&mut self, effects: &Delta) {
        for (id, node) in &effects.nodes {
            match node {
                Some(node) => drop(self.nodes.insert(*id, node.clone())),
                None => drop(self.nodes.remove(id)),
            }
        }
        for (at, id) in &effects.names {
            match id {
                Some(id) => drop(self.names.insert(at.clone(), *id)),
                None => drop(self.names.remove(at)),
            }
        }
    }

    /// All nodes, in the order of their numbers.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        self.nodes.iter().map(|(id, node)| (*id, node))
    }

    /// All names, by directory.
    pub fn names(&self) -> impl Iterator<Item = (&Dentry, NodeId)> {
        self.names.iter().map(|(at, id)| (at, *id))
    }
}

impl Tree for MemoryTree {
    fn node(&self, id: NodeId) -> Option<Node> {
        self.nodes.get(&id).cloned()
    }

    fn child(&self, at: &Dentry) -> Option<NodeId> {
        self.names.get(at).copied()
    }

    fn list(&self, dir: NodeId, after: Option<&Name>, most: usize) -> Vec<(Name, NodeId)> {
        let first = Dentry { dir, name: after.cloned().unwrap_or(Name(Vec::new())) };
        self.names
            .range((Bound::Excluded(first), Bound::Unbounded))
            .take_while(|(at, _)| at.dir == dir)
            .take(most)
            .map(|(at, id)| (at.name.clone(), *id))
            .collect()
    }
}

impl<T: Tree> Tree for &T {
    fn node(&self, id: NodeId) -> Option<Node> {
        (**self).node(id)
    }

    fn child(&self, at: &Dentry) -> Option<NodeId> {
        (**self).child(at)
    }

    fn list(&self, dir: NodeId, after: Option<&Name>, most: usize) -> Vec<(Name, NodeId)> {
        (**self).list(dir, after, most)
    }
}
