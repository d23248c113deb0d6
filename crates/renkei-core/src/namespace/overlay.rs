//! Changes laid over a tree without being applied to it.

use super::tree::Tree;
use super::{Delta, Dentry, Name, Node, NodeId};
use std::collections::BTreeMap;
use std::ops::Bound;

/// The differences from the tree below. Each node and name records the last change that put it there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    nodes: BTreeMap<NodeId, (Option<Node>, u64)>,
    names: BTreeMap<Dentry, (Option<NodeId>, u64)>,
    /// Names of the directories that have a name here.
    dirs: BTreeMap<NodeId, Dentry>,
}

impl Layer {
    /// Adds the effects of a change on top.
    pub fn add(&mut self, effects: Delta, number: u64) {
        for (at, id) in effects.names.iter().filter_map(|(at, id)| Some((at, (*id)?))) {
            if effects.nodes.iter().any(|(of, node)| *of == id && node.as_ref().is_some_and(Node::is_dir)) {
                self.dirs.insert(id, at.clone());
            }
        }
        self.nodes.extend(effects.nodes.into_iter().map(|(id, node)| (id, (node, number))));
        self.names.extend(effects.names.into_iter().map(|(at, id)| (at, (id, number))));
    }

    /// Whether there are no differences.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.names.is_empty()
    }

    /// The node's state here, if it differs; `Some(None)` for a removed one.
    pub fn own_node(&self, id: NodeId) -> Option<Option<&Node>> {
        self.nodes.get(&id).map(|(node, _)| node.as_ref())
    }

    /// The node of a name here, if it differs; `Some(None)` for a free name.
    pub fn own_name(&self, at: &Dentry) -> Option<Option<NodeId>> {
        self.names.get(at).map(|(id, _)| *id)
    }

    /// The name of a directory, if it has one here.
    pub fn own_place(&self, dir: NodeId) -> Option<&Dentry> {
        self.dirs.get(&dir).filter(|at| self.own_name(at) == Some(Some(dir)))
    }

    /// Names of a directory that differ, after `after`, in byte order.
    pub fn own_names(
        &self,
        dir: NodeId,
        after: Option<&Name>,
    ) -> impl Iterator<Item = (&Name, Option<NodeId>)> {
        let first = Dentry { dir, name: after.cloned().unwrap_or(Name(Vec::new())) };
        let within = self.names.range((Bound::Excluded(first), Bound::Unbounded));
        within.take_while(move |(at, _)| at.dir == dir).map(|(at, (id, _))| (&at.name, *id))
    }

    /// All names that differ.
    pub fn all_names(&self) -> impl Iterator<Item = &Dentry> {
        self.names.keys()
    }

    /// All nodes that differ.
    pub fn all_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.nodes.keys().copied()
    }

    /// Directories that were merged into others here, each with the target.
    pub fn merged(&self) -> impl Iterator<Item = (NodeId, NodeId)> {
        self.nodes.iter().filter_map(|(id, (node, _))| Some((*id, node.as_ref()?.merged_into()?)))
    }

    /// Whether a node or name of `effects` also differs here (conflict).
    pub(super) fn meets(&self, effects: &Delta) -> bool {
        effects.nodes.iter().any(|(id, _)| self.nodes.contains_key(id))
            || effects.names.iter().any(|(at, _)| self.names.contains_key(at))
    }

    /// The node's state here, mutable.
    pub(super) fn own_node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(&id).and_then(|(node, _)| node.as_mut())
    }

    /// Drops the nodes and names of `effects` that no change after `number` put here: the tree below has them.
    pub(super) fn settle(&mut self, effects: &Delta, number: u64) {
        for (id, _) in &effects.nodes {
            if self.nodes.get(id).is_some_and(|(_, last)| *last <= number) {
                self.nodes.remove(id);
            }
        }
        for (at, _) in &effects.names {
            if self.names.get(at).is_some_and(|(_, last)| *last <= number)
                && let Some((Some(id), _)) = self.names.remove(at)
                && self.dirs.get(&id) == Some(at)
            {
                self.dirs.remove(&id);
            }
        }
    }
}

/// A tree with a layer on top.
pub struct Overlay<T> {
    below: T,
    layer: Layer,
}

impl<T: Tree> Overlay<T> {
    /// An overlay without differences.
    pub fn over(below: T) -> Self {
        Overlay { below, layer: Layer::default() }
    }

    /// Puts a node; `None` removes it.
    pub fn put_node(&mut self, id: NodeId, node: Option<Node>) {
        self.layer.nodes.insert(id, (node, 0));
    }

    /// Sets the node of a name; `None` frees the name.
    pub fn put_name(&mut self, at: Dentry, id: Option<NodeId>) {
        self.layer.names.insert(at, (id, 0));
    }

    /// The differences, for a record.
    pub fn into_effects(self) -> Delta {
        Delta {
            nodes: self.layer.nodes.into_iter().map(|(id, (node, _))| (id, node)).collect(),
            names: self.layer.names.into_iter().map(|(at, (id, _))| (at, id)).collect(),
        }
    }
}

impl<T: Tree> Tree for Overlay<T> {
    fn node(&self, id: NodeId) -> Option<Node> {
        self.layer.node(&self.below, id)
    }

    fn child(&self, at: &Dentry) -> Option<NodeId> {
        self.layer.child(&self.below, at)
    }

    fn list(&self, dir: NodeId, after: Option<&Name>, most: usize) -> Vec<(Name, NodeId)> {
        self.layer.list(&self.below, dir, after, most)
    }
}

impl Layer {
    /// The node's state, with the layer over `below`.
    pub fn node(&self, below: &impl Tree, id: NodeId) -> Option<Node> {
        self.own_node(id).map_or_else(|| below.node(id), |node| node.cloned())
    }

    /// The node of a name.
    pub fn child(&self, below: &impl Tree, at: &Dentry) -> Option<NodeId> {
        self.own_name(at).unwrap_or_else(|| below.child(at))
    }

    /// Names of a directory, merged from the layer and the tree below.
    pub fn list(
        &self,
        below: &impl Tree,
        dir: NodeId,
        after: Option<&Name>,
        most: usize,
    ) -> Vec<(Name, NodeId)> {
        let own: BTreeMap<&Name, Option<NodeId>> = self.own_names(dir, after).collect();
        // Each name of the layer hides at most one below.
        let mut found: BTreeMap<Name, NodeId> = below
            .list(dir, after, most.saturating_add(own.len()))
            .into_iter()
            .filter(|(name, _)| !own.contains_key(name))
            .collect();
        found.extend(own.into_iter().filter_map(|(name, id)| Some((name.clone(), id?))));
        found.into_iter().take(most).collect()
    }
}
