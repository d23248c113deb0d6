//! Remote content: files of a volume whose content is not at the home yet.
//!
//! A follower writes first; the home learns the names and fetches the content later (backfill). Until then a file is
//! *away*: the catalogue's version is another site's, and no plain file here is known to be it. Such files are listed
//! from the catalogue and read from the site that has them.

use super::node_paths::NodePaths;
use super::reconciler::Shared;
use crate::Volume;
use crate::reconciler_requests::{Arrived, Ask};
use renkei_catalogue::{Away, AwayAt, OWN, VolumeTree};
use renkei_core::entry::Stamp;
use renkei_core::error::Error;
use renkei_core::namespace::{Change, Content, Kind, Node, NodeId, Origin, SequencedChange};
use renkei_core::path::RelPath;
use renkei_store::ReadFile;
use std::collections::HashMap;

/// The folder of fetched files, at the top of the plain tree; its temporary name keeps it out of the catalogue.
pub const INCOMING: &[u8] = b".rk~0000617761790000-0000000000000000";

/// Reads content that the plain files do not have.
pub trait Elsewhere: Send + Sync {
    /// Opens a version at a site that holds it; if that site has another one by now, the opened file tells which.
    ///
    /// # Errors
    /// The error of that site, with its name.
    fn open(&self, wanted: &Wanted<'_>) -> Result<Box<dyn ReadFile>, Error>;
}

/// A version to be opened at another site.
pub struct Wanted<'a> {
    /// The path in the volume.
    pub path: &'a RelPath,
    /// The node.
    pub id: NodeId,
    /// The content.
    pub content: &'a Content,
    /// The stamp under which this content is shown.
    pub stamp: Stamp,
}

/// A remote file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwayFound {
    /// The node.
    pub id: NodeId,
    /// The version.
    pub version: u64,
    /// The site that wrote it.
    pub origin: Origin,
    /// The path in the volume.
    pub path: RelPath,
    /// The name that the file gets in the folder of fetched files.
    pub name: Vec<u8>,
    /// BLAKE3 digest of the content, if it is known.
    pub digest: Option<[u8; 32]>,
    /// Whether the plain file exists and is corrupt.
    pub is_wrong: bool,
}

/// The content of a node, if it is remote.
///
/// # Errors
/// `CatalogueFailed`.
pub fn away_content<'n>(tree: &VolumeTree, id: NodeId, node: &'n Node) -> Result<Option<&'n Content>, Error> {
    let Kind::File(content) = &node.kind else { return Ok(None) };
    let held = tree.held(id)?;
    let is_here = match &held {
        Some(held) if held.expected(content.version).is_some() => false,
        Some(held) => held.version == content.version || content.by.0 == OWN,
        None => content.by.0 == OWN,
    };
    Ok((!is_here).then_some(content))
}

impl Volume {
    /// Decides changes of a follower, and materialises them in the plain tree.
    ///
    /// # Errors
    /// `CatalogueFailed`; `ProtocolViolation` if changes before one are missing.
    pub fn submit(&self, changes: Vec<SequencedChange>) -> Result<(), Error> {
        self.shared.notes.ask(Ask::Submit(changes))
    }

    /// Changes a remote file.
    pub(crate) fn change_away(shared: &Shared, change: Change) -> Result<(), Error> {
        shared.notes.ask(Ask::Own(change))
    }

    /// Moves fetched files to their names; files that are not wanted any more stay where they are.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn place(&self, arrived: Vec<Arrived>) -> Result<(), Error> {
        self.shared.notes.ask(Ask::Place(arrived))
    }

    /// Whether the volume may have remote content.
    pub fn is_any_away(&self) -> bool {
        self.shared.away.is_any()
    }

    /// Remote files after a version, in the order of their versions, with the last version that was examined; none
    /// after the last one. Pass that version to get the next page.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn find_away(&self, after: u64, most: usize) -> Result<Option<(u64, Vec<AwayFound>)>, Error> {
        let away = self.tree.away(after, most)?;
        let Some(last) = away.last().map(|away| away.version) else { return Ok(None) };
        let ids: Vec<NodeId> = away.iter().map(|away| away.id).collect();
        let (named, mut paths) = (self.tree.names_of(&ids)?, NodePaths::of_tree(&self.tree, HashMap::new()));
        let mut found = Vec::new();
        for Away { id, version, origin, .. } in away {
            let Some(Node { kind: Kind::File(content), .. }) = self.tree.node(id)? else { continue };
            let Some(spot) = named.get(&id).and_then(|names| names.first()) else { continue };
            let expected = self.tree.held(id)?.and_then(|held| held.expected(version));
            let (name, digest) =
                (format!("{:016x}-{version:x}", id.0).into_bytes(), content.digest.or(expected));
            let path = paths.of(spot)?;
            let is_wrong = expected.is_some();
            found.extend(path.map(|path| AwayFound { id, version, origin, path, name, digest, is_wrong }));
        }
        Ok(Some((last, found)))
    }

    /// Content that exists at one other site only, by site.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn away_by_site(&self) -> Result<Vec<AwayAt>, Error> {
        self.tree.away_by_site()
    }
}

/// The origin that wrote a content.
pub fn writer(content: &Content) -> Origin {
    content.by.0
}
