//! Changes that lie over a tree and are not in it.

use super::tree::Tree;
use super::{Delta, Dentry, Name, Node, NodeId};
use std::collections::BTreeMap;
use std::ops::Bound;

/// What differs from the tree below. Each node and name knows which change put it there last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    nodes: BTreeMap<NodeId, (Option<Node>, u64)>,
    names: BTreeMap<Dentry, (Option<NodeId>, u64)>,
    /// Where directories are that have a name here.
    dirs: BTreeMap<NodeId, Dentry>,
}

impl Layer {
    /// Puts what a change did on top.
    pub fn add(&mut self, effects: Delta, number: u64) {
        for (at, id) in effects.names.iter().filter_map(|(at, id)| Some((at, (*id)?))) {
            if effects.nodes.iter().any(|(of, node)| *of == id && node.as_ref().is_some_and(Node::is_dir)) {
                self.dirs.insert(id, at.clone());
            }
        }
        self.nodes.extend(effects.nodes.into_iter().map(|(id, node)| (id, (node, number))));
        self.names.extend(effects.names.into_iter().map(|(at, id)| (at, (id, number))));
    }

    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.names.is_empty()
    }

    /// What a node is here, if it differs; `Some(None)` for one that is gone.
    pub fn own_node(&self, id: NodeId) -> Option<Option<&Node>> {
        self.nodes.get(&id).map(|(node, _)| node.as_ref())
    }

    /// What a name is of here, if that differs; `Some(None)` for one that is free.
    pub fn own_name(&self, at: &Dentry) -> Option<Option<NodeId>> {
        self.names.get(at).map(|(id, _)| *id)
    }

    /// Where a directory is, if it has its name here.
    pub fn own_place(&self, dir: NodeId) -> Option<&Dentry> {
        self.dirs.get(&dir).filter(|at| self.own_name(at) == Some(Some(dir)))
    }

    /// Names of a directory that differ, after `after`, in the order of their bytes.
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

    /// Directories that became part of others here, each with that one.
    pub fn merged(&self) -> impl Iterator<Item = (NodeId, NodeId)> {
        self.nodes.iter().filter_map(|(id, (node, _))| Some((*id, node.as_ref()?.merged_into()?)))
    }

    /// Whether a node or name of `effects` differs here.
    pub(super) fn meets(&self, effects: &Delta) -> bool {
        effects.nodes.iter().any(|(id, _)| self.nodes.contains_key(id))
            || effects.names.iter().any(|(at, _)| self.names.contains_key(at))
    }

    /// The node as it is here, to be changed.
    pub(super) fn own_node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(&id).and_then(|(node, _)| node.as_mut())
    }

    /// Takes away what no change after `number` put here: the tree below has it.
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

/// A tree with a layer over it.
pub struct Overlay<T> {
    below: T,
    layer: Layer,
}

impl<T: Tree> Overlay<T> {
    /// Nothing differs yet.
    pub fn over(below: T) -> Self {
        Overlay { below, layer: Layer::default() }
    }

    /// Changes a node; none removes it.
    pub fn put_node(&mut self, id: NodeId, node: Option<Node>) {
        self.layer.nodes.insert(id, (node, 0));
    }

    /// Changes what a name is of; none frees it.
    pub fn put_name(&mut self, at: Dentry, id: Option<NodeId>) {
        self.layer.names.insert(at, (id, 0));
    }

    /// What differs, for a record.
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
    /// The node, as it lies over that of `below`.
    pub fn node(&self, below: &impl Tree, id: NodeId) -> Option<Node> {
        self.own_node(id).map_or_else(|| below.node(id), |node| node.cloned())
    }

    /// What the name is of.
    pub fn child(&self, below: &impl Tree, at: &Dentry) -> Option<NodeId> {
        self.own_name(at).unwrap_or_else(|| below.child(at))
    }

    /// Names of a directory, those of the layer among those below.
    pub fn list(
        &self,
        below: &impl Tree,
        dir: NodeId,
        after: Option<&Name>,
        most: usize,
    ) -> Vec<(Name, NodeId)> {
        let own: BTreeMap<&Name, Option<NodeId>> = self.own_names(dir, after).collect();
        // Each name of the layer hides one below at most.
        let mut found: BTreeMap<Name, NodeId> = below
            .list(dir, after, most.saturating_add(own.len()))
            .into_iter()
            .filter(|(name, _)| !own.contains_key(name))
            .collect();
        found.extend(own.into_iter().filter_map(|(name, id)| Some((name.clone(), id?))));
        found.into_iter().take(most).collect()
    }
}
