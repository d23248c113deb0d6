//! Changes that lie over a tree and are not in it.

use super::tree::Tree;
use super::{Effects, Name, Node, NodeId, Spot};
use std::collections::BTreeMap;

/// What differs from the tree below.
#[derive(Clone, Debug, Default)]
pub struct Layer {
    nodes: BTreeMap<NodeId, Option<Node>>,
    names: BTreeMap<Spot, Option<NodeId>>,
}

impl Layer {
    /// Puts what a change did on top.
    pub fn add(&mut self, effects: Effects) {
        self.nodes.extend(effects.nodes);
        self.names.extend(effects.names);
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
        self.layer.nodes.insert(id, node);
    }

    /// Changes what a name is of; none frees it.
    pub fn put_name(&mut self, at: Spot, id: Option<NodeId>) {
        self.layer.names.insert(at, id);
    }

    /// What differs, for a record.
    pub fn into_effects(self) -> Effects {
        Effects {
            nodes: self.layer.nodes.into_iter().collect(),
            names: self.layer.names.into_iter().collect(),
        }
    }
}

impl<T: Tree> Tree for Overlay<T> {
    fn node(&self, id: NodeId) -> Option<Node> {
        self.layer.node(&self.below, id)
    }

    fn child(&self, at: &Spot) -> Option<NodeId> {
        self.layer.child(&self.below, at)
    }

    fn list(&self, dir: NodeId, after: Option<&Name>, most: usize) -> Vec<(Name, NodeId)> {
        self.layer.list(&self.below, dir, after, most)
    }
}

impl Layer {
    /// The node, as it lies over that of `below`.
    pub fn node(&self, below: &impl Tree, id: NodeId) -> Option<Node> {
        self.nodes.get(&id).cloned().unwrap_or_else(|| below.node(id))
    }

    /// What the name is of.
    pub fn child(&self, below: &impl Tree, at: &Spot) -> Option<NodeId> {
        self.names.get(at).copied().unwrap_or_else(|| below.child(at))
    }

    /// Names of a directory, those of the layer among those below.
    pub fn list(
        &self,
        below: &impl Tree,
        dir: NodeId,
        after: Option<&Name>,
        most: usize,
    ) -> Vec<(Name, NodeId)> {
        let first = Spot { dir, name: after.cloned().unwrap_or(Name(Vec::new())) };
        let own: BTreeMap<&Name, Option<NodeId>> = self
            .names
            .range(first..)
            .take_while(|(at, _)| at.dir == dir)
            .filter(|(at, _)| after.is_none_or(|after| at.name > *after))
            .map(|(at, id)| (&at.name, *id))
            .collect();
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
