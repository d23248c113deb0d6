//! A reader of a tree in its database, with a cache and a sticky error, for the rules of volumes.
//!
//! The rules read a tree that cannot fail. So rows that were read are cached, and the first error too: decisions made
//! after it are void ([`TreeReader::check`]). Rows that many changes name are prefetched with a few bulk statements.

use super::tree::VolumeTree;
use super::tree_commit::Wanted;
use renkei_core::error::Error;
use renkei_core::namespace::tree::{Tree, meant_spot, merging};
use renkei_core::namespace::{Change, Dentry, Name, Node, NodeId, SequencedChange};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

/// A cache of reads of a tree, which must not change meanwhile.
pub struct TreeReader<'a> {
    tree: &'a VolumeTree,
    nodes: RefCell<HashMap<NodeId, Option<Node>>>,
    names: RefCell<HashMap<Dentry, Option<NodeId>>>,
    failed: RefCell<Option<Error>>,
}

impl<'a> TreeReader<'a> {
    /// An empty cache.
    pub fn of(tree: &'a VolumeTree) -> Self {
        TreeReader { tree, nodes: RefCell::default(), names: RefCell::default(), failed: RefCell::default() }
    }

    /// Fails if a read has failed.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn check(&self) -> Result<(), Error> {
        self.failed.borrow().clone().map_or(Ok(()), Err)
    }

    /// Prefetches the rows that changes name.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn read_ahead<'c>(&self, changes: impl Iterator<Item = &'c SequencedChange>) -> Result<(), Error> {
        let changes: Vec<&Change> = changes.map(|made| &made.change).collect();
        let mut wanted = Wanted::default();
        changes.iter().for_each(|change| wanted.add(change));
        self.read_nodes(wanted.nodes)?;
        let meant = |at: Dentry| meant_spot(self, &at);
        let mut spots: Vec<Dentry> = wanted.names.into_iter().map(meant).collect();
        self.read_names(&spots)?;
        let merging = merging(self, changes.into_iter());
        spots.retain_mut(|at| merging.get(&at.dir).map(|into| at.dir = *into).is_some());
        if !spots.is_empty() {
            self.read_names(&spots)?;
        }
        let described = self.names.borrow().values().flatten().map(|id| id.xattrs()).collect();
        self.read_nodes(described)
    }

    /// Reads the nodes of names.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn read_names(&self, spots: &[Dentry]) -> Result<(), Error> {
        let mut found = self.tree.children(spots)?;
        let (mut nodes, mut names) = (self.nodes.borrow_mut(), self.names.borrow_mut());
        for at in spots {
            let known = found.remove(at);
            names.insert(at.clone(), known.as_ref().map(|(id, _)| *id));
            nodes.extend(known.map(|(id, node)| (id, Some(node))));
        }
        Ok(())
    }

    fn read_nodes(&self, mut ids: BTreeSet<NodeId>) -> Result<(), Error> {
        ids.retain(|id| !self.nodes.borrow().contains_key(id));
        let ids: Vec<NodeId> = ids.into_iter().collect();
        let mut found = self.tree.nodes(&ids)?;
        self.nodes.borrow_mut().extend(ids.into_iter().map(|id| (id, found.remove(&id))));
        Ok(())
    }

    fn note<T>(&self, read: Result<T, Error>) -> Option<T> {
        let remember = |error| {
            self.failed.borrow_mut().get_or_insert(error);
        };
        read.map_err(remember).ok()
    }
}

impl Tree for TreeReader<'_> {
    fn node(&self, id: NodeId) -> Option<Node> {
        if !self.nodes.borrow().contains_key(&id) {
            self.note(self.read_nodes(BTreeSet::from([id])))?;
        }
        self.nodes.borrow().get(&id)?.clone()
    }

    fn child(&self, at: &Dentry) -> Option<NodeId> {
        if !self.names.borrow().contains_key(at) {
            self.note(self.read_names(std::slice::from_ref(at)))?;
        }
        *self.names.borrow().get(at)?
    }

    fn list(&self, dir: NodeId, after: Option<&Name>, most: usize) -> Vec<(Name, NodeId)> {
        let rows = self.note(self.tree.list(dir, after, most));
        rows.unwrap_or_default().into_iter().map(|(name, id, _)| (name, id)).collect()
    }
}
