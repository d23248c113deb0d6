//! Remote content: files of a volume whose content is not at the home yet.
//!
//! A follower writes first; the home learns the names and fetches the content later (backfill). Until then a file is
//! *away*: the catalogue's version is another site's, and no plain file here is known to be it. Such files are listed
//! from the catalogue and read from the site that has them.

use super::corrupt::FileVerdict;
use super::node_paths::NodePaths;
use super::reconciler::Shared;
use crate::catalogue::{Away, AwayAt, OWN, VolumeTree};
use crate::store::ReadFile;
use crate::volume::{Volume, VolumeStore};
use renkei_core::entry::Stamp;
use renkei_core::error::Error;
use renkei_core::namespace::{Change, Content, Kind, Node, NodeId, Origin, SequencedChange};
use renkei_core::path::RelPath;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// The folder of what arrives, in the top of the plain tree: a temporary name, so that it is in no catalogue.
pub const INCOMING: &[u8] = b".rk~0000617761790000-0000000000000000";

/// Works as the account whose files a volume's are.
pub trait Hands: Send + Sync {
    /// Its number.
    ///
    /// # Errors
    /// `AccountUnknown`.
    fn uid(&self) -> Result<u32, Error>;

    /// Does some work as it, and returns when that is done.
    ///
    /// # Errors
    /// Why it cannot be assumed.
    fn run(&self, work: Box<dyn FnOnce() + Send>) -> Result<(), Error>;
}

/// Reads what the plain files do not have.
pub trait Elsewhere: Send + Sync {
    /// Opens a version at the site that wrote it; one that is another by now says what it is.
    ///
    /// # Errors
    /// Why that site cannot be asked, with its name.
    fn open(&self, wanted: &Wanted<'_>) -> Result<Box<dyn ReadFile>, Error>;
}

/// A file that is wanted of another site.
pub struct Wanted<'a> {
    /// Where it is in the volume.
    pub path: &'a RelPath,
    /// Which node.
    pub id: NodeId,
    /// Which content.
    pub content: &'a Content,
    /// What it shows as long as it has this content.
    pub stamp: Stamp,
}

/// A file that is away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwayFound {
    /// Which node.
    pub id: NodeId,
    /// Which version.
    pub version: u64,
    /// The site that wrote it.
    pub origin: Origin,
    /// Where it is in the volume.
    pub path: RelPath,
    /// The name it gets in the folder of what arrives.
    pub name: Vec<u8>,
    /// BLAKE3 of its content, if it is known.
    pub digest: Option<[u8; 32]>,
    /// Whether the plain file is there and was found wrong.
    pub is_wrong: bool,
}

/// A file that was fetched and waits to be put in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Which node.
    pub id: NodeId,
    /// The version it was fetched as.
    pub version: u64,
    /// Its name in the folder of what arrives.
    pub name: Vec<u8>,
}

/// What the keeper is asked to do between two looks at the plain tree.
pub(in crate::volume) enum Ask {
    /// Decides changes of a site that follows, and does them in the plain tree.
    Submit(Vec<SequencedChange>),
    /// The same with one of the home's own, of something that is away.
    Own(Change),
    /// Puts what was fetched in its place.
    Place(Vec<Arrived>),
    /// Takes what reading plain files told.
    Judge(Vec<FileVerdict>),
}

/// In which directories something is away: never too few of them.
#[derive(Default)]
pub(in crate::volume) struct AwayDirs(Mutex<Option<HashSet<NodeId>>>);

impl AwayDirs {
    fn lock(&self) -> MutexGuard<'_, Option<HashSet<NodeId>>> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }

    /// Whether there may be something in a directory.
    pub(in crate::volume) fn has(&self, dir: NodeId) -> bool {
        self.lock().as_ref().is_none_or(|dirs| dirs.contains(&dir))
    }

    /// Whether there may be something at all.
    pub(in crate::volume) fn is_any(&self) -> bool {
        self.lock().as_ref().is_none_or(|dirs| !dirs.is_empty())
    }

    /// Adds some; the first call says which all of them are.
    pub(in crate::volume) fn add(&self, dirs: impl IntoIterator<Item = NodeId>) {
        self.lock().get_or_insert_default().extend(dirs);
    }

    /// Nothing is away.
    pub(in crate::volume) fn clear(&self) {
        *self.lock() = Some(HashSet::new());
    }
}

/// The content of a file that is away.
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
    /// Decides changes that a site made that follows, and does them in the plain tree.
    ///
    /// # Errors
    /// `CatalogueFailed`; `ProtocolViolation` if changes before one are missing.
    pub fn submit(&self, changes: Vec<SequencedChange>) -> Result<(), Error> {
        self.shared.notes.ask(Ask::Submit(changes))
    }

    /// Changes something that is away.
    pub(in crate::volume) fn change_away(shared: &Shared, change: Change) -> Result<(), Error> {
        shared.notes.ask(Ask::Own(change))
    }

    /// Puts what was fetched in its place; what is not wanted any more stays where it is.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn place(&self, arrived: Vec<Arrived>) -> Result<(), Error> {
        self.shared.notes.ask(Ask::Place(arrived))
    }

    /// Whether something may be away.
    pub fn is_any_away(&self) -> bool {
        self.shared.away.is_any()
    }

    /// Files that are away, in the order in which they were written, after a version; with the last version of those that
    /// were looked at. None after the last.
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

    /// What each site has alone.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn away_by_site(&self) -> Result<Vec<AwayAt>, Error> {
        self.tree.away_by_site()
    }
}

impl VolumeStore {
    /// A volume, and what reads of other sites what it does not have.
    pub fn with_elsewhere(volume: Arc<Volume>, elsewhere: Arc<dyn Elsewhere>) -> Self {
        VolumeStore { elsewhere: Some(elsewhere), ..VolumeStore::new(volume) }
    }
}

/// Whose content it is.
pub fn writer(content: &Content) -> Origin {
    content.by.0
}
