//! A snapshot of a tree in pages, for a follower that bootstraps.
//!
//! The home discards old records (log compaction), and a log may be longer than its tree. So a new follower fetches
//! nodes and names in pages, one after the other, while the home goes on. The pages are read at different times (a
//! fuzzy snapshot); but changes after the first page was read are in the log, and records hold states, not
//! differences. So a copy with all pages, and then the records from the first page's on, equals the home from the
//! last page's record on.

use super::{Dentry, Name, Node, NodeId, Origin};
use crate::batch::at_most;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// Most nodes or names of one page: a page takes one round trip.
pub const MOST_ROWS: usize = 1 << 14;

fn rows<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    at_most::<D, T, MOST_ROWS>(deserializer)
}

/// Cursor: nodes come first, then names, each in the order of the home's database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reached {
    /// Nodes up to this one.
    Node(NodeId),
    /// All nodes.
    Nodes,
    /// All nodes, and names up to this one.
    Name(Dentry),
}

/// Position of a tree in its log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// The last record applied to it.
    pub seq: u64,
    /// The last change of each origin that is applied.
    pub taken: BTreeMap<Origin, u64>,
    /// The last node number drawn by each origin.
    pub given: BTreeMap<Origin, u64>,
}

/// A batch of a tree's nodes or names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Cursor of its beginning; `None` for the first.
    pub after: Option<Reached>,
    /// Position of the tree before the page was read.
    pub extent: Extent,
    /// The last record in the tree after the page was read.
    pub until: u64,
    /// Nodes.
    #[serde(deserialize_with = "rows")]
    pub nodes: Vec<(NodeId, Node)>,
    /// Names, each with its directory and its node.
    #[serde(deserialize_with = "rows")]
    pub names: Vec<(NodeId, Name, NodeId)>,
    /// Cursor of the next page; `None` after the last.
    pub next: Option<Reached>,
}

impl Page {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.nodes.len() + self.names.len()
    }

    /// Keeps only the first rows, at least one; the next page begins after them.
    pub fn cut(&mut self, most: usize) {
        let most = most.max(1);
        if most < self.nodes.len() {
            self.nodes.truncate(most);
            self.next = self.nodes.last().map(|(id, _)| Reached::Node(*id));
        }
        if most < self.names.len() {
            self.names.truncate(most);
            let spot = |(dir, name, _): &(NodeId, Name, NodeId)| Dentry { dir: *dir, name: name.clone() };
            self.next = self.names.last().map(|row| Reached::Name(spot(row)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::ROOT;
    use crate::namespace::memory::MemoryTree;

    fn page() -> Page {
        Page {
            after: None,
            extent: Extent::default(),
            until: 0,
            nodes: Vec::new(),
            names: Vec::new(),
            next: None,
        }
    }

    #[test]
    fn the_next_page_continues_after_the_last_name() {
        let node = MemoryTree::default().nodes().next().map(|(_, node)| node.clone()).unwrap();
        let nodes = (1..=5).map(|id| (NodeId(id), node.clone())).collect();
        let mut nodes = Page { nodes, next: Some(Reached::Nodes), ..page() };
        nodes.cut(5);
        assert_eq!((nodes.rows(), &nodes.next), (5, &Some(Reached::Nodes)));
        nodes.cut(2);
        assert_eq!((nodes.rows(), nodes.next), (2, Some(Reached::Node(NodeId(2)))));

        let names = ["a", "b"].map(|name| (ROOT, Name(name.into()), NodeId(7))).to_vec();
        let mut names = Page { names, ..page() };
        names.cut(0);
        let at = Dentry { dir: ROOT, name: Name("a".into()) };
        assert_eq!((names.rows(), names.next), (1, Some(Reached::Name(at))));
    }
}
