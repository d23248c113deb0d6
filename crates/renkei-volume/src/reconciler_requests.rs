//! Requests to the reconciler of a volume's home, and the data that they bring.

use renkei_core::entry::Stamp;
use renkei_core::namespace::{Change, NodeId, SequencedChange};

/// A request that the reconciler handles between two comparisons.
pub(crate) enum Ask {
    /// Decides changes of a follower, and materialises them in the plain tree.
    Submit(Vec<SequencedChange>),
    /// The same with a change of the home's own to a remote file.
    Own(Change),
    /// Moves fetched files to their names.
    Place(Vec<Arrived>),
    /// Takes verdicts of the scrub on plain files.
    Judge(Vec<FileVerdict>),
}

/// A fetched file that waits to be moved to its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The node.
    pub id: NodeId,
    /// The version that was fetched.
    pub version: u64,
    /// The name in the folder of fetched files.
    pub name: Vec<u8>,
}

/// Result of verifying a plain file at the home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileVerdict {
    /// The node.
    pub id: NodeId,
    /// The version that the file should have.
    pub version: u64,
    /// The stamp of the plain file.
    pub stamp: Stamp,
    /// The digest that the file should have.
    pub digest: [u8; 32],
    /// Whether the digest is different.
    pub is_wrong: bool,
}
