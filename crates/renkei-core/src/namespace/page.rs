//! A tree in pages, for a site that comes late.
//!
//! The home forgets old records, and a log may be longer than its tree. So a site that begins gets nodes and names in
//! pages, one after the other, while the home goes on. Pages tell of different moments; but what changed after the first one was
//! read is in the log, and records tell states. So a copy that has all pages, and then the records from the first page's on, is
//! equal to the home from the last page's record on.

use super::{Name, Node, NodeId, Origin, Spot};
use crate::wire::message::batch;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How far pages are: nodes come first, then names, each in the order of the home's database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reached {
    /// Nodes up to this one.
    Node(NodeId),
    /// All nodes.
    Nodes,
    /// All nodes, and names up to this one.
    Name(Spot),
}

/// How far a tree is in its log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// The last record that it holds.
    pub seq: u64,
    /// The last change of each origin in it.
    pub taken: BTreeMap<Origin, u64>,
    /// The last node number of each origin that was given.
    pub given: BTreeMap<Origin, u64>,
}

/// Some nodes or names of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// After what it begins; none for the first.
    pub after: Option<Reached>,
    /// How far the tree was before it was read.
    pub extent: Extent,
    /// The last record that the tree held when it had been read.
    pub until: u64,
    /// Nodes.
    #[serde(deserialize_with = "batch")]
    pub nodes: Vec<(NodeId, Node)>,
    /// Names, each with its directory and what it is of.
    #[serde(deserialize_with = "batch")]
    pub names: Vec<(NodeId, Name, NodeId)>,
    /// Where the next one begins; none after the last.
    pub next: Option<Reached>,
}
