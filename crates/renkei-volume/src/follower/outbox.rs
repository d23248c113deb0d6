//! The outbox of a follower: changes that this site made to a volume and that the home has not ordered yet.
//!
//! A change is decided at once against the view of this site (`WriteTxn::make`), done to the plain file, shown, and
//! stored by a thread of its own together with other changes of that moment (group commit); [`Outbox::flush`] returns
//! when it is stored. One write transaction runs at a time: a local change, or records from the home. Readers never
//! wait for it: they read the overlay, and then the copy. Guarantee: what was flushed survives a kill, in order.
//! Non-goals: the push of changes to the home (the site does it), and their meaning (`renkei_core::namespace`).

use super::peer_followers::PeerFollowers;
use super::plain_file::Asides;
use super::site_lease::FollowerLease;
use super::wal::{Sign, Wal, WalRecord};
use renkei_catalogue::{HeldReplica, TreeNote, TreeReader, VolumeTree, follow_names};
use renkei_core::entry::Xattr;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::dir_aliases::DirAliases;
use renkei_core::namespace::follower::{Follower, Refused};
use renkei_core::namespace::invalidations::Invalidations;
use renkei_core::namespace::quota_share::{Allowed, Charge};
use renkei_core::namespace::source::Fellow;
use renkei_core::namespace::tree::MAX_DEPTH;
use renkei_core::namespace::{Change, Dentry, Kind, Name, Node, NodeId, Origin, ROOT, SequencedChange};
use renkei_core::path::RelPath;
use renkei_core::wire::decode;
use renkei_core::wire::file::Changed;
use renkei_store::Dir;
use renkei_store::leases::LeaseTable;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The note in the tree with the home's last answer on this site (`Enlisted`).
pub(crate) const ENLISTED: TreeNote<Enlisted> = TreeNote::of("enlisted", &[decode]);
/// The note with the last refusals.
pub(crate) const REFUSALS: TreeNote<Vec<Refusal>> = TreeNote::of("refusals", &[decode]);
/// Refusals that are kept.
const MOST_REFUSALS: usize = 20;
/// Changes read from the database at once.
const PAGE: usize = 4096;
/// Pause before storing is retried after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// The registration of this site at the home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enlisted {
    /// The origin of this site's changes.
    pub origin: Origin,
    /// Whether it may change the volume.
    pub writes: bool,
    /// Whether the copy has caught up with the log since the registration: before, change numbers may have been used
    /// already.
    pub is_ready: bool,
}

/// The note for a registration, with its key.
pub(crate) fn enlisted_note(enlisted: &Enlisted) -> (String, Vec<u8>) {
    ENLISTED.row(enlisted)
}

/// Notes that the copy was restored from an older state: later changes may exist at the home, so no change is
/// numbered until the copy has caught up.
///
/// # Errors
/// `CatalogueFailed`.
pub fn note_restored(tree: &VolumeTree) -> Result<(), Error> {
    let Some(enlisted) = ENLISTED.read(tree)? else { return Ok(()) };
    ENLISTED.write(tree, &Enlisted { is_ready: false, ..enlisted })
}

/// A change of this site that the home refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Its number.
    pub number: u64,
    /// Time of the refusal, in seconds since 1970.
    pub at_unix: u64,
    /// Description of the change, for people.
    pub change: String,
    /// The reason.
    pub error: Error,
}

/// The outbox of one followed volume.
pub struct Outbox {
    pub(crate) name: String,
    pub(crate) tree: Arc<VolumeTree>,
    pub(crate) leases: Arc<LeaseTable>,
    own_lease: FollowerLease,
    seen: RwLock<Seen>,
    /// Whether the view differs from the copy: pending changes lie over it, or more recent replica rows are known.
    differs: AtomicBool,
    /// Whether a killed PoP left entries in the write-ahead log that are not recovered yet.
    pub(crate) has_left: AtomicBool,
    /// Count of changes of the overlay.
    epoch: AtomicU64,
    pub(super) turn: Mutex<State>,
    pub(crate) progress: Mutex<Progress>,
    pub(crate) rooms: QuotaReserve,
    pub(crate) moved: Condvar,
    fellows: PeerFollowers,
}

/// The overlay that readers see over the copy.
#[derive(Default)]
pub(crate) struct Seen {
    enlisted: Option<Enlisted>,
    pub(crate) follower: Option<Follower>,
    /// Replica rows that are not stored yet, each with the number of the change before which it was noted.
    pub(crate) held: HashMap<NodeId, (Option<HeldReplica>, u64)>,
    pub(crate) merged: DirAliases,
    /// Approximate times of changes, each for all changes up to a number.
    times: VecDeque<(u64, Instant)>,
}

impl Seen {
    /// Notes the time of a change; changes within one second share an entry.
    pub(crate) fn note_time(&mut self, number: u64) {
        match self.times.back_mut() {
            Some((last, made)) if made.elapsed() < Duration::from_secs(1) => *last = number,
            _ => self.times.push_back((number, Instant::now())),
        }
    }

    /// Resets the overlay when another log is followed.
    pub(crate) fn forget(&mut self, enlisted: Enlisted) {
        *self = Seen { enlisted: Some(enlisted), ..Seen::default() };
    }

    /// Drops the times of settled changes.
    pub(crate) fn forget_times(&mut self) {
        let oldest = self.follower.as_ref().and_then(|follower| follower.pending(0).next());
        let oldest = oldest.map_or(u64::MAX, |made| made.number);
        self.times.retain(|(number, _)| *number >= oldest);
    }
}

/// State of the write transaction.
pub(crate) struct State {
    pub(crate) ids: Range<u64>,
    /// For files with pending content, the node that gets the content in case of a conflict.
    pub(crate) beside: HashMap<NodeId, NodeId>,
    /// Temporary names that stand for existing files.
    pub(crate) aliases: HashMap<Vec<u8>, NodeId>,
    pub(crate) unkept: Wal,
    /// Own content in limbo; none before the folder was read.
    pub(crate) asides: Option<Asides>,
    /// Entries that a killed PoP left in the write-ahead log.
    pub(crate) left: Vec<WalRecord>,
}

/// The quota share of one volume.
#[derive(Default)]
pub(crate) struct QuotaReserve {
    pub(super) is_limited: AtomicBool,
    pub(super) state: Mutex<ReserveState>,
    pub(super) moved: Condvar,
    /// Held from a request to its answer: answers of the home must be handled in order.
    pub(super) asking: Mutex<()>,
}

/// The share, and the changes that wait for more.
#[derive(Default)]
pub(super) struct ReserveState {
    pub(super) allowed: Allowed,
    /// Additions that wait for a grant.
    pub(super) more: Vec<Charge>,
    /// Whether the home was told of them: an answer to an earlier request does not answer them.
    pub(super) is_said: bool,
    /// Count of answers of the home.
    pub(super) heard: u64,
}

/// Progress of group commit.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) queue: VecDeque<Item>,
    pub(crate) is_storing: bool,
    /// The last change that was made, and the last that was stored.
    pub(crate) made: u64,
    kept: u64,
    failures: u64,
    error: Option<Error>,
    /// Counts the wake-ups of the thread that pushes changes to the home.
    calls: u64,
    /// Count of new connections to the home.
    connections: u64,
    is_stopped: bool,
}

/// Changes that were made together.
#[derive(Clone)]
pub(crate) struct Item {
    pub(crate) changes: Vec<SequencedChange>,
    pub(crate) held: Vec<(NodeId, Option<HeldReplica>)>,
    pub(crate) sign: Option<Sign>,
    /// Directories of plain files that must be synced first.
    pub(crate) dirs: Vec<Arc<dyn Dir>>,
}

impl Item {
    pub(crate) fn did(&self) -> WalRecord {
        WalRecord::Made(self.changes.clone(), self.held.clone(), self.sign.clone())
    }
}

/// A page of a directory listing.
pub struct Listed {
    /// The names with their nodes, in order.
    pub names: Vec<(Name, NodeId, Node)>,
    /// The name after which the next page begins; none after the last page.
    pub next: Option<Name>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds the lock")
}

impl Outbox {
    /// The outbox of the volume `name`, as its tree has it; `journal` is the file of the write-ahead log.
    ///
    /// # Errors
    /// `CatalogueFailed`, and those of the file system.
    pub fn open(
        name: &str,
        tree: Arc<VolumeTree>,
        journal: &Path,
        leases: LeaseTable,
    ) -> Result<Arc<Self>, Error> {
        let pending = Self::load(name, tree, journal, leases)?;
        let keeper = pending.clone();
        let spawned = std::thread::Builder::new().name("keep".into()).spawn(move || keeper.keep());
        spawned.map_err(|error| Error::new(Code::SystemCall, "start thread", name, error))?;
        Ok(pending)
    }

    /// The same without the thread that stores changes.
    pub(crate) fn load(
        name: &str,
        tree: Arc<VolumeTree>,
        journal: &Path,
        leases: LeaseTable,
    ) -> Result<Arc<Self>, Error> {
        let (unkept, left) = Wal::open(journal)?;
        let has_left = AtomicBool::new(!left.is_empty());
        let enlisted = ENLISTED.read(&tree)?;
        let state =
            State { ids: 0..0, beside: HashMap::new(), aliases: HashMap::new(), unkept, asides: None, left };
        let seen = Seen { enlisted, ..Seen::default() };
        let fellows = PeerFollowers::load(&tree)?;
        let leases = Arc::new(leases);
        let pending = Arc::new(Outbox {
            name: name.into(),
            tree,
            own_lease: FollowerLease::new(leases.clone()),
            leases,
            seen: RwLock::new(seen),
            differs: AtomicBool::new(false),
            has_left,
            epoch: AtomicU64::new(0),
            turn: Mutex::new(state),
            progress: Mutex::default(),
            rooms: QuotaReserve::default(),
            moved: Condvar::new(),
            fellows,
        });
        if let Some(enlisted) = enlisted {
            pending.resume(&mut lock(&pending.turn), enlisted.origin, Vec::new())?;
        }
        Ok(pending)
    }

    /// Resumes with the stored pending changes and with those that were made and not stored.
    pub(crate) fn resume(
        &self,
        state: &mut State,
        origin: Origin,
        unstored: Vec<SequencedChange>,
    ) -> Result<(), Error> {
        let (position, mut pending) = (self.tree.position()?, VecDeque::new());
        loop {
            let after = pending.back().map_or(0, |made: &SequencedChange| made.number);
            let page = self.tree.pending(after, PAGE)?;
            let is_last = page.len() < PAGE;
            pending.extend(page);
            if is_last {
                break;
            }
        }
        let stored = pending.back().map_or(position.number, |made| made.number.max(position.number));
        pending.extend(unstored.into_iter().filter(|made| made.number > stored));
        for made in &pending {
            if let Change::SetContent { id, beside: Some(beside), .. } = &made.change {
                state.beside.insert(*id, beside.id);
            }
        }
        let number = pending.back().map_or(stored, |made| made.number.max(stored));
        let merged = self.merged_before(pending.iter())?;
        self.resume_room(pending.iter())?;
        let mut follower = Follower::resume(origin, position.seq, number, pending);
        self.rebase(&mut follower)?;
        let mut progress = lock(&self.progress);
        (progress.made, progress.kept) = (number, stored);
        drop(progress);
        self.show(|seen| {
            seen.merged.settle(merged.into_iter());
            seen.merged.lay(follower.layer());
            seen.follower = Some(follower);
            seen.times = VecDeque::from([(number, Instant::now())]);
        });
        Ok(())
    }

    /// Directories that changes name and that were merged into others, as the copy has it.
    fn merged_before<'c>(
        &self,
        changes: impl Iterator<Item = &'c SequencedChange>,
    ) -> Result<Vec<(NodeId, NodeId)>, Error> {
        let dirs = changes.flat_map(|made| made.change.spots()).map(|at| at.dir);
        let dirs: Vec<NodeId> = dirs.collect::<BTreeSet<_>>().into_iter().collect();
        let found = self.tree.nodes(&dirs)?;
        Ok(found.into_iter().filter_map(|(id, node)| Some((id, node.merged_into()?))).collect())
    }

    pub(crate) fn rebase(&self, follower: &mut Follower) -> Result<(), Error> {
        let asked = TreeReader::of(&self.tree);
        asked.read_ahead(follower.pending(0))?;
        follower.rebase(&asked);
        asked.check()
    }

    // ---- the view ----------------------------------------------------------------------------------------------------

    pub(crate) fn seen(&self) -> RwLockReadGuard<'_, Seen> {
        self.seen.read().expect("no thread panics while it holds the lock")
    }

    /// Changes the overlay that readers see.
    pub(crate) fn show<T>(&self, change: impl FnOnce(&mut Seen) -> T) -> T {
        let mut seen: RwLockWriteGuard<'_, Seen> =
            self.seen.write().expect("no thread panics while it holds the lock");
        let changed = change(&mut seen);
        let is_laid = seen.follower.as_ref().is_some_and(|follower| !follower.layer().is_empty());
        let differs = is_laid || !seen.held.is_empty() || !seen.merged.is_empty();
        self.epoch.fetch_add(1, Ordering::Release);
        self.differs.store(differs, Ordering::Release);
        changed
    }

    /// The epoch of the overlay. A change that is settled while the copy is read may be missing in both: it was not
    /// in the copy yet, and does not lie over it any more. A reader that finds another epoch reads the copy again.
    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    fn differs(&self) -> bool {
        self.differs.load(Ordering::Acquire)
    }

    /// The leases on this view of the volume.
    pub fn leases(&self) -> &Arc<LeaseTable> {
        &self.leases
    }

    /// The site leases of this site.
    pub fn own_lease(&self) -> &FollowerLease {
        &self.own_lease
    }

    /// The copy of the tree.
    pub fn tree(&self) -> &Arc<VolumeTree> {
        &self.tree
    }

    /// The directory for a node number, resolving an alias of a merged directory.
    pub(crate) fn meant(&self, id: NodeId) -> NodeId {
        if self.differs() { self.seen().merged.meant(id) } else { id }
    }

    /// The node number under which a node is shown.
    pub(crate) fn shown_number(&self, id: NodeId) -> NodeId {
        if self.differs() { self.seen().merged.shown(id) } else { id }
    }

    /// The aliases of merged directories.
    pub fn merged(&self) -> DirAliases {
        self.seen().merged.clone()
    }

    /// The invalidation for lease holders.
    pub fn told(&self, news: &Invalidations) -> Changed {
        news.told(&self.seen().merged)
    }

    /// The node of a number.
    ///
    /// # Errors
    /// `CatalogueFailed`, as those of the other questions.
    pub fn node(&self, id: NodeId) -> Result<Option<Node>, Error> {
        match self.own_node(id) {
            Some(node) => Ok(node),
            None => self.tree.node(id),
        }
    }

    /// The extended attributes of a node.
    pub(crate) fn xattrs(&self, id: NodeId) -> Result<Vec<Xattr>, Error> {
        Ok(self.node(id.xattrs())?.map(Node::into_xattrs).unwrap_or_default())
    }

    fn own_node(&self, id: NodeId) -> Option<Option<Node>> {
        if !self.differs() {
            return None;
        }
        self.seen().follower.as_ref()?.layer().own_node(id).map(|node| node.cloned())
    }

    /// The node of a name.
    pub fn child(&self, at: &Dentry) -> Result<Option<(NodeId, Node)>, Error> {
        let epoch = self.epoch();
        let own = || self.seen().follower.as_ref()?.layer().own_name(at);
        match if self.differs() { own() } else { None } {
            Some(None) => Ok(None),
            Some(Some(id)) => Ok(self.node(id)?.map(|node| (id, node))),
            None => {
                let Some((id, node)) = self.tree.child(at)? else { return Ok(None) };
                let node = match self.own_node(id) {
                    Some(own) => own,
                    None if self.epoch() == epoch => Some(node),
                    None => self.tree.node(id)?,
                };
                Ok(node.map(|node| (id, node)))
            }
        }
    }

    /// The mode for creating a plain directory: that of the volume, so that local accounts get no more access than
    /// its owner meant. The volume's account always has full access.
    pub fn mode_of_dir(&self, path: &RelPath) -> u32 {
        match self.at(path) {
            Ok(Some((_, node))) => node.attributes.mode & 0o777 | 0o700,
            _ => 0o700,
        }
    }

    /// The node of a path.
    pub fn at(&self, path: &RelPath) -> Result<Option<(NodeId, Node)>, Error> {
        follow_names(path, || self.node(ROOT), |at| self.child(at))
    }

    /// A page of the names of a directory after `after`, about `most` of them.
    pub fn list(&self, dir: NodeId, after: Option<&Name>, most: usize) -> Result<Listed, Error> {
        // The overlay first: a change that is settled in between is in the copy then.
        let epoch = self.epoch();
        let own = self.own_names(dir, after, most);
        let page = self.tree.list(dir, after, most)?;
        let end = |len: usize, last: Option<&Name>| if len < most { None } else { last.cloned() };
        let ends = [
            end(page.len(), page.last().map(|(name, ..)| name)),
            end(own.len(), own.last().map(|(name, ..)| name)),
        ];
        let next = ends.into_iter().flatten().min();
        let page = self.lay_over(page, epoch)?;
        if own.is_empty() {
            return Ok(Listed { names: page, next });
        }
        let is_within = |name: &Name| next.as_ref().is_none_or(|next| name <= next);
        let mut names = std::collections::BTreeMap::new();
        for (name, id, node) in page.into_iter().filter(|(name, ..)| is_within(name)) {
            names.insert(name, (id, node));
        }
        for (name, id) in own.into_iter().filter(|(name, _)| is_within(name)) {
            names.remove(&name);
            if let Some(id) = id
                && let Some(node) = self.node(id)?
            {
                names.insert(name, (id, node));
            }
        }
        let names = names.into_iter().map(|(name, (id, node))| (name, id, node)).collect();
        Ok(Listed { names, next })
    }

    fn own_names(&self, dir: NodeId, after: Option<&Name>, most: usize) -> Vec<(Name, Option<NodeId>)> {
        if !self.differs() {
            return Vec::new();
        }
        let seen = self.seen();
        let Some(follower) = &seen.follower else { return Vec::new() };
        let names = follower.layer().own_names(dir, after).take(most);
        names.map(|(name, id)| (name.clone(), id)).collect()
    }

    /// Names of the copy, read since `epoch`, with the nodes of the view.
    fn lay_over(
        &self,
        page: Vec<(Name, NodeId, Node)>,
        epoch: u64,
    ) -> Result<Vec<(Name, NodeId, Node)>, Error> {
        let own: Vec<Option<Option<Node>>> = page.iter().map(|(_, id, _)| self.own_node(*id)).collect();
        let again = match self.epoch() == epoch {
            true => None,
            false => Some(self.tree.nodes(&page.iter().map(|(_, id, _)| *id).collect::<Vec<_>>())?),
        };
        let laid = page.into_iter().zip(own).filter_map(|((name, id, node), own)| {
            let copied = || again.as_ref().map_or(Some(node), |again| again.get(&id).cloned());
            own.unwrap_or_else(copied).map(|node| (name, id, node))
        });
        Ok(laid.collect())
    }

    /// The name that a directory has in another one.
    pub fn name_in(&self, dir: NodeId, id: NodeId) -> Result<Option<Name>, Error> {
        {
            let seen = self.seen();
            let own = seen.follower.as_ref().and_then(|follower| follower.layer().own_place(id));
            if let Some(at) = own.filter(|at| at.dir == dir) {
                return Ok(Some(at.name.clone()));
            }
        }
        let known = self.tree.name_in(dir, id)?;
        let Some(name) = known else { return Ok(None) };
        let at = Dentry { dir, name };
        Ok(self.child(&at)?.filter(|(of, _)| *of == id).map(|_| at.name))
    }

    /// All names of a file.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub(crate) fn spots_of(&self, id: NodeId) -> Result<Vec<Dentry>, Error> {
        let mut spots = Vec::new();
        for at in self.tree.names_of(&[id])?.remove(&id).unwrap_or_default() {
            if self.child(&at)?.is_some_and(|(of, _)| of == id) {
                spots.push(at);
            }
        }
        let seen = self.seen();
        let Some(follower) = &seen.follower else { return Ok(spots) };
        let is_own = |at: &&Dentry| follower.layer().own_name(at) == Some(Some(id));
        let own = follower.layer().all_names().filter(is_own).filter(|at| !spots.contains(at)).cloned();
        let own: Vec<Dentry> = own.collect();
        spots.extend(own);
        Ok(spots)
    }

    /// The path of a name; none if its directory is not in the tree, or if the path is too long.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn path_of(&self, at: &Dentry) -> Result<Option<RelPath>, Error> {
        Ok(self.path_of_dir(at.dir)?.and_then(|dir| dir.child(&at.name.0).ok()))
    }

    /// The path of a directory; none if it is not in the tree.
    ///
    /// # Errors
    /// As [`Outbox::path_of`].
    pub fn path_of_dir(&self, dir: NodeId) -> Result<Option<RelPath>, Error> {
        let (mut names, mut dir, mut steps) = (Vec::new(), dir, 0);
        while dir != ROOT {
            steps += 1;
            if steps > 2 * MAX_DEPTH {
                // A hostile home may send a cycle of directories: no path leads there.
                return Ok(None);
            }
            let parent = match self.node(dir)?.map(|node| node.kind) {
                Some(Kind::Dir { parent, .. }) => parent,
                Some(Kind::Merged { into }) => {
                    dir = into;
                    continue;
                }
                _ => return Ok(None),
            };
            let Some(name) = self.name_in(parent, dir)? else { return Ok(None) };
            names.push(name);
            dir = parent;
        }
        // A hostile home may also nest directories deeper than a path can hold.
        Ok(names.iter().rev().try_fold(RelPath::root(), |path, name| path.child(&name.0).ok()))
    }

    /// The replica row of a node: state of this site's plain file.
    pub fn held(&self, id: NodeId) -> Result<Option<HeldReplica>, Error> {
        if self.differs()
            && let Some((held, _)) = self.seen().held.get(&id)
        {
            return Ok(held.clone());
        }
        self.tree.held(id)
    }

    /// Whether the view has content of a file that the home has not ordered yet.
    pub fn is_unsent(&self, id: NodeId) -> bool {
        let content = |node: Node| matches!(node.kind, Kind::File(content) if content.version == 0);
        self.own_node(id).flatten().is_some_and(content)
    }

    /// The registration of this site at the home, if the home ever answered.
    pub fn enlisted(&self) -> Option<Enlisted> {
        self.seen().enlisted
    }

    /// The number of the last change that was made.
    pub fn last_made(&self) -> u64 {
        lock(&self.progress).made
    }

    /// Number of changes that the home has not ordered yet.
    pub fn count(&self) -> u64 {
        self.seen().follower.as_ref().map_or(0, |follower| follower.count() as u64)
    }

    /// The number of the first pending change after `number`, if there is one.
    pub fn next_after(&self, number: u64) -> Option<u64> {
        self.seen().follower.as_ref()?.pending(number).next().map(|made| made.number)
    }

    /// Stored pending changes after `number`, at most `most`.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn next_kept(&self, number: u64, most: usize) -> Result<Vec<SequencedChange>, Error> {
        self.tree.pending(number, most)
    }

    /// Age of the oldest pending change, at most the time since the PoP started.
    pub fn waiting(&self) -> Option<Duration> {
        let seen = self.seen();
        let oldest = seen.follower.as_ref()?.pending(0).next()?.number;
        let made = seen.times.iter().find(|(number, _)| *number >= oldest);
        made.map(|(_, made)| made.elapsed())
    }

    /// The last refusals.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn refusals(&self) -> Result<Vec<Refusal>, Error> {
        Ok(REFUSALS.read(&self.tree)?.unwrap_or_default())
    }

    /// The peers of this site.
    pub fn fellows(&self) -> Arc<Vec<Fellow>> {
        self.fellows.all()
    }

    /// Stores the peers that the home named.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn set_fellows(&self, told: &[Fellow]) -> Result<(), Error> {
        self.fellows.set(&self.tree, told)
    }

    // ---- the registration --------------------------------------------------------------------------------------------

    /// Notes the registration of this site at the home.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn enlist(&self, origin: Origin, writes: bool) -> Result<(), Error> {
        let mut turn = self.turn();
        let before = self.enlisted();
        let same = before.filter(|before| before.origin == origin);
        let enlisted = Enlisted { origin, writes, is_ready: same.is_some_and(|before| before.is_ready) };
        self.note(before, enlisted)?;
        if same.is_none() {
            self.resume(&mut turn.state, origin, Vec::new())?;
        }
        Ok(())
    }

    /// Resumes with a copy that was replaced as a whole.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn begin_anew(&self) -> Result<(), Error> {
        let mut turn = self.quiet_turn()?;
        let enlisted = self.enlisted();
        enlisted.map_or(Ok(()), |enlisted| self.resume(&mut turn.state, enlisted.origin, Vec::new()))
    }

    /// Notes that the copy has caught up with the log.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn on_whole(&self) -> Result<(), Error> {
        let _turn = self.turn();
        match self.enlisted() {
            Some(before) if !before.is_ready => {
                self.note(Some(before), Enlisted { is_ready: true, ..before })
            }
            _ => Ok(()),
        }
    }

    fn note(&self, before: Option<Enlisted>, enlisted: Enlisted) -> Result<(), Error> {
        if before != Some(enlisted) {
            ENLISTED.write(&self.tree, &enlisted)?;
            self.show(|seen| seen.enlisted = Some(enlisted));
        }
        Ok(())
    }

    pub(crate) fn note_refusals(&self, refused: &[(Refused, String)]) -> Result<(), Error> {
        let mut refusals = self.refusals()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        for (Refused { number, error, .. }, change) in refused {
            tracing::warn!(volume = self.name, number, change, %error, "the home refused a change made here");
            let refusal =
                Refusal { number: *number, at_unix: now, change: change.clone(), error: error.clone() };
            refusals.push(refusal);
        }
        let surplus = refusals.len().saturating_sub(MOST_REFUSALS);
        REFUSALS.write(&self.tree, &refusals[surplus..].to_vec())
    }

    // ---- storing -----------------------------------------------------------------------------------------------------

    /// Returns when all changes made before are stored.
    ///
    /// # Errors
    /// The error of the failed write; storing is retried.
    pub fn flush(&self) -> Result<(), Error> {
        let mut progress = lock(&self.progress);
        let (made, failures) = (progress.made, progress.failures);
        loop {
            if progress.kept >= made {
                return Ok(());
            }
            if progress.failures != failures || progress.is_stopped {
                return Err(progress.error.clone().unwrap_or_else(stopped));
            }
            progress = self.moved.wait(progress).expect("no thread panics while it holds the lock");
        }
    }

    /// Stores changes as they are made, until the outbox is stopped.
    fn keep(&self) {
        while let Some(items) = self.next_items() {
            let kept = self.store(&items);
            let failed = kept.is_err();
            self.on_stored(items, kept);
            if failed {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Stores all changes made so far, where no thread does.
    #[cfg(test)]
    pub(crate) fn store_all(&self) {
        let items = std::mem::take(&mut lock(&self.progress).queue);
        let stored = self.store(&items);
        self.on_stored(items, stored);
    }

    fn next_items(&self) -> Option<VecDeque<Item>> {
        let mut progress = lock(&self.progress);
        while progress.queue.is_empty() {
            if progress.is_stopped {
                return None;
            }
            progress = self.moved.wait(progress).expect("no thread panics while it holds the lock");
        }
        progress.is_storing = true;
        Some(std::mem::take(&mut progress.queue))
    }

    fn store(&self, items: &VecDeque<Item>) -> Result<(), Error> {
        let mut synced: Vec<&Arc<dyn Dir>> = Vec::new();
        for dir in items.iter().flat_map(|item| &item.dirs) {
            if !synced.iter().any(|known| Arc::ptr_eq(known, dir)) {
                dir.sync()?;
                synced.push(dir);
            }
        }
        let changes: Vec<SequencedChange> =
            items.iter().flat_map(|item| item.changes.iter().cloned()).collect();
        let held: Vec<_> = items.iter().flat_map(|item| item.held.iter().cloned()).collect();
        self.tree.keep_with(&changes, &held)
    }

    fn on_stored(&self, mut items: VecDeque<Item>, stored: Result<(), Error>) {
        let mut state = lock(&self.turn);
        let mut progress = lock(&self.progress);
        progress.is_storing = false;
        match stored {
            Ok(()) => {
                let last = items.iter().flat_map(|item| &item.changes).map(|made| made.number).max();
                progress.kept = last.unwrap_or(0).max(progress.kept);
                let kept = progress.kept;
                let queued = progress.queue.iter().flat_map(|item| item.held.iter().map(|(id, _)| *id));
                let queued: HashSet<NodeId> = queued.collect();
                self.show(|seen| seen.held.retain(|id, (_, since)| *since > kept || queued.contains(id)));
                let left = progress.queue.iter().map(Item::did);
                if let Err(error) = state.unkept.keep_only(left) {
                    tracing::warn!(volume = self.name, %error, "the journal of plain files cannot be written");
                }
                progress.calls += 1;
            }
            Err(error) => {
                tracing::warn!(volume = self.name, %error, "changes could not be stored");
                items.append(&mut progress.queue);
                progress.queue = items;
                progress.failures += 1;
                progress.error = Some(error);
            }
        }
        self.moved.notify_all();
    }

    /// Waits until there may be changes to push to the home: when the counter is past `calls`, or after `at_most`.
    /// Returns the counter for the next call.
    pub fn wait_for_call(&self, calls: u64, at_most: Duration) -> u64 {
        let progress = lock(&self.progress);
        let is_quiet = |progress: &mut Progress| progress.calls == calls && !progress.is_stopped;
        let waited = self.moved.wait_timeout_while(progress, at_most, is_quiet);
        waited.expect("no thread panics while it holds the lock").0.calls
    }

    /// Wakes the thread that pushes changes to the home.
    pub fn call(&self) {
        lock(&self.progress).calls += 1;
        self.moved.notify_all();
    }

    /// Notes a new connection to the home: changes pushed over the former one may be lost and are pushed again.
    pub fn on_connected(&self) {
        let mut progress = lock(&self.progress);
        (progress.connections, progress.calls) = (progress.connections + 1, progress.calls + 1);
        self.moved.notify_all();
    }

    /// Count of new connections to the home.
    pub fn connections(&self) -> u64 {
        lock(&self.progress).connections
    }

    /// Stops the thread that stores changes.
    pub fn stop(&self) {
        lock(&self.progress).is_stopped = true;
        self.moved.notify_all();
    }
}

fn stopped() -> Error {
    Error::new(Code::PopStopping, "store", "volume", "the volume is closed")
}
