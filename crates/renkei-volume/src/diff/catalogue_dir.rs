//! One directory as the catalogue has it: the names in it, read in pages.

use renkei_catalogue::VolumeTree;
use renkei_core::error::Error;
use renkei_core::namespace::{Kind, Name, Node, NodeId};
use std::collections::VecDeque;

/// Names read at a time.
const PAGE: usize = 1000;

/// An iterator over the names of a directory in the catalogue, read ahead in pages.
pub(crate) struct CatalogueDir {
    pub(crate) dir: NodeId,
    page: VecDeque<(Name, NodeId, Node)>,
    after: Option<Name>,
    is_ended: bool,
    is_new_page: bool,
}

impl CatalogueDir {
    /// The names of a directory; none for one that the catalogue does not have yet.
    pub(crate) fn of(dir: NodeId, is_fresh: bool) -> Self {
        CatalogueDir { dir, page: VecDeque::new(), after: None, is_ended: is_fresh, is_new_page: false }
    }

    /// The next name, without taking it.
    pub(crate) fn peek(&mut self, tree: &VolumeTree) -> Result<Option<&(Name, NodeId, Node)>, Error> {
        if self.page.is_empty() && !self.is_ended {
            self.page = tree.list(self.dir, self.after.as_ref(), PAGE)?.into();
            self.is_ended = self.page.len() < PAGE;
            self.is_new_page = true;
            self.after = self.page.back().map(|(name, ..)| name.clone());
        }
        Ok(self.page.front())
    }

    /// The files of a page that was just read, once.
    pub(crate) fn new_files(&mut self) -> Vec<NodeId> {
        if !std::mem::take(&mut self.is_new_page) {
            return Vec::new();
        }
        let files = self.page.iter().filter(|(.., node)| matches!(node.kind, Kind::File(_)));
        files.map(|(_, id, _)| *id).collect()
    }

    /// Takes the name that was peeked.
    pub(crate) fn take(&mut self) -> (Vec<u8>, Option<(NodeId, Node)>) {
        match self.page.pop_front() {
            Some((name, id, node)) => (name.0, Some((id, node))),
            None => (Vec::new(), None),
        }
    }
}
