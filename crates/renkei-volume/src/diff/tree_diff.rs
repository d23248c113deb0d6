//! The tree diff: finds where a volume's plain tree differs from its catalogue, and makes changes of the differences.
//!
//! The plain tree is always right: its state becomes that of the catalogue. Changes are batched and decided together
//! ([`TreeDiff::commit`]). One thread does this for a volume, so that the catalogue does not change between a
//! comparison and the change made of it; concurrent changes of the plain tree are marked as dirty by their writers,
//! or found later.
//!
//! A file is identified by its inode number; its content counts as changed when size, modification time or inode number
//! did, as far as [`HeldReplica`] tells. Devices, sockets and FIFOs, and files that are still being received, are not
//! in the catalogue.

use super::arrived_digests::ArrivedDigests;
use super::catalogue_dir::CatalogueDir;
use super::replacing::Replacing;
use super::scan_counts::ScanCounts;
use crate::plain_entry::{Plain, Seen, look, seen};
use renkei_catalogue::{HeldReplica, VolumeTree};
use renkei_core::entry::Stamp;
use renkei_core::error::Error;
use renkei_core::namespace::{
    Attributes, Change, Dentry, Kind, Name, NewKind, Node, NodeId, ROOT, Record, SequencedChange,
};
use renkei_core::path::RelPath;
use renkei_store::temp::is_temp_name;
use renkei_store::{Detail, Dir};
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// The home's own changes.
pub(crate) use renkei_catalogue::OWN;

/// Changes in a batch.
const MOST_CHANGES: usize = 2000;

/// Names processed before a batch is committed and its caches are dropped.
const MOST_DONE: usize = 20_000;

/// Names whose last state is cached.
const MOST_SEEN: usize = 65_536;

/// Node numbers drawn at a time.
const DRAW: u64 = 4096;

/// The comparison of one volume.
pub(crate) struct TreeDiff {
    pub(crate) tree: Arc<VolumeTree>,
    /// Digests of recently arrived files.
    pub(crate) digests: Arc<ArrivedDigests>,
    top: Arc<dyn Dir>,
    numbers: Numbers,
    /// Files with several hard links, by device and inode number.
    pub(crate) links: HashMap<(u64, u64), NodeId>,
    pub(crate) batch: Batch,
    /// States of names when they were last reconciled.
    seen: HashMap<RelPath, Option<Seen>>,
    /// Counts since they were last read.
    pub(crate) tally: ScanCounts,
    /// Directories and links of other sites that could not be created.
    pub(crate) unplaced: HashSet<NodeId>,
    /// Names that a writer replaces knowing of the remote version.
    pub(crate) replacing: Arc<Replacing>,
    /// Plain files that are being placed, also those of a killed PoP: by node, the versions and inode numbers.
    pub(crate) placing: HashMap<NodeId, Vec<(u64, u64)>>,
    /// The uid of the account that owns the volume's files.
    pub(crate) uid: Option<u32>,
}

/// The next numbers of changes and nodes.
struct Numbers {
    /// Next change number; none if it must be looked up.
    change: Option<u64>,
    /// Drawn node numbers.
    ids: Range<u64>,
}

/// Changes that are gathered and not decided yet.
#[derive(Default)]
pub(crate) struct Batch {
    changes: Vec<SequencedChange>,
    pub(crate) held: Vec<Holds>,
    /// Prefetched catalogue entries of names.
    children: HashMap<Dentry, Option<(NodeId, Node)>>,
    /// Prefetched replica rows.
    before: HashMap<NodeId, Option<HeldReplica>>,
    /// Files with several hard links that were reconciled in this batch.
    pub(crate) settled: HashSet<NodeId>,
    /// Node numbers of directories by path.
    pub(crate) ids: HashMap<RelPath, NodeId>,
    /// Directories that the catalogue does not have yet.
    pub(crate) fresh: HashSet<NodeId>,
    /// Names that were processed.
    done: HashSet<RelPath>,
    /// Directories in which names changed.
    pub(crate) touched: BTreeMap<RelPath, NodeId>,
    /// Directories in which names may have changed and changed back.
    pub(crate) doubtful: BTreeMap<RelPath, NodeId>,
    pub(crate) gone: HashSet<NodeId>,
    /// Remote nodes that are in the plain tree now.
    pub(crate) arrived: Vec<NodeId>,
    /// Conflict copies: paths to be renamed, by the change that creates the node.
    pub(crate) aside: Vec<(u64, RelPath)>,
    /// Removed directories in which remote content remains.
    pub(crate) lost: Vec<NodeId>,
    last: Option<(RelPath, Arc<dyn Dir>)>,
}

/// The plain file of a node.
pub(crate) struct Holds {
    pub(crate) id: NodeId,
    pub(crate) of: Of,
    pub(crate) stamp: Stamp,
    pub(crate) digest: Option<[u8; 32]>,
}

/// The version of a plain file's content.
pub(crate) enum Of {
    Version(u64),
    /// The version that this change creates.
    Change(u64),
}

/// A directory in both trees.
pub(crate) struct Place {
    pub(crate) dir: Arc<dyn Dir>,
    pub(crate) path: RelPath,
    pub(crate) id: NodeId,
}

impl Batch {
    /// Node numbers of directories by path, if they remain valid after this batch.
    fn take_lasting_ids(&mut self) -> HashMap<RelPath, NodeId> {
        let is_of_files = |made: &SequencedChange| match &made.change {
            Change::Make { kind, .. } => !matches!(kind, NewKind::Dir),
            Change::SetContent { .. } | Change::SetAttributes { .. } | Change::Remove { .. } => true,
            Change::Link { .. } | Change::SetXattr { .. } => true,
            Change::Rename { .. } | Change::RemoveDir { .. } => false,
        };
        let lasts =
            self.ids.len() < MOST_DONE && self.lost.is_empty() && self.changes.iter().all(is_of_files);
        if lasts { std::mem::take(&mut self.ids) } else { HashMap::new() }
    }
}

impl Place {
    /// A name in it.
    pub(crate) fn spot(&self, name: &[u8]) -> Dentry {
        Dentry { dir: self.id, name: Name(name.to_vec()) }
    }
}

/// The ancestors of a path from the top on, then the path itself.
fn chain(path: &RelPath) -> Vec<RelPath> {
    let mut chain = vec![path.clone()];
    while let Some(above) = chain.last().and_then(RelPath::parent).filter(|above| !above.is_root()) {
        chain.push(above);
    }
    chain.reverse();
    chain
}

impl TreeDiff {
    /// A diff of the tree below `top` and the catalogue.
    pub(crate) fn new(
        tree: Arc<VolumeTree>,
        top: Arc<dyn Dir>,
        digests: Arc<ArrivedDigests>,
        replacing: Arc<Replacing>,
    ) -> Self {
        let numbers = Numbers { change: None, ids: 0..0 };
        let (links, seen) = (HashMap::new(), HashMap::new());
        TreeDiff {
            tree,
            digests,
            top,
            numbers,
            links,
            batch: Batch::default(),
            seen,
            tally: ScanCounts::default(),
            unplaced: HashSet::new(),
            replacing,
            placing: HashMap::new(),
            uid: None,
        }
    }

    /// Reconciles one name and the directories above it; returns new directories, which must be scanned.
    ///
    /// # Errors
    /// Those of the database; errors of the file system are counted.
    pub(crate) fn bring(&mut self, path: &RelPath) -> Result<Vec<RelPath>, Error> {
        let mut at = path.clone();
        // The entries of a removed directory were removed with it.
        while let Some(above) = at.parent() {
            if self.open(&above).is_some() {
                break;
            }
            at = above;
        }
        let Some(parent) = at.parent() else {
            return self.compare_top().map(|()| Vec::new());
        };
        let missing = self.dir_id(&parent)?.is_none();
        let mut new = Vec::new();
        for one in if missing { chain(&at) } else { vec![at] } {
            new.extend(self.bring_one(&one)?);
        }
        Ok(new)
    }

    fn bring_one(&mut self, path: &RelPath) -> Result<Option<RelPath>, Error> {
        let Some((parent, name)) = path.split() else { return Ok(None) };
        let parent = RelPath::parse(parent)?;
        let (Some(dir), Some(id)) = (self.open(&parent), self.dir_id(&parent)?) else { return Ok(None) };
        self.batch.doubtful.insert(parent.clone(), id);
        let place = Place { dir, path: parent, id };
        let spot = place.spot(name);
        let known = match self.batch.children.get(&spot) {
            _ if self.batch.fresh.contains(&id) => None,
            Some(known) => known.clone(),
            None => self.tree.child(&spot)?,
        };
        self.bring_name(&place, name, known)
    }

    /// Reconciles the names of one directory; returns its subdirectories.
    ///
    /// # Errors
    /// As [`TreeDiff::bring`].
    pub(crate) fn look_into(
        &mut self,
        path: &RelPath,
        skip: impl Fn(&RelPath) -> bool,
    ) -> Result<Vec<RelPath>, Error> {
        let Some(dir) = self.open(path) else { return Ok(Vec::new()) };
        let Some(id) = self.dir_id(path)? else { return self.bring(path) };
        if path.is_root() {
            self.compare_top()?;
        }
        let listed: Result<Vec<_>, Error> = dir.list().and_then(|listing| listing.collect());
        let mut names: VecDeque<Vec<u8>> = match listed {
            Ok(listed) => {
                listed.into_iter().map(|listed| listed.name).filter(|name| !is_temp_name(name)).collect()
            }
            Err(error) => {
                self.tally.fail(path, &error);
                return Ok(Vec::new());
            }
        };
        names.make_contiguous().sort_unstable();
        let place = Place { dir, path: path.clone(), id };
        self.merge(&place, names, skip)
    }

    /// Merges the sorted names of both trees.
    fn merge(
        &mut self,
        place: &Place,
        mut names: VecDeque<Vec<u8>>,
        skip: impl Fn(&RelPath) -> bool,
    ) -> Result<Vec<RelPath>, Error> {
        let mut known = CatalogueDir::of(place.id, self.batch.fresh.contains(&place.id));
        let mut dirs = Vec::new();
        loop {
            let next = known.peek(&self.tree)?.map(|(name, ..)| name.0.clone());
            self.read_held(&known.new_files())?;
            let order = match (names.front(), &next) {
                (None, None) => return Ok(dirs),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(name), Some(known)) => name.cmp(known),
            };
            let (mut name, mut node) = (Vec::new(), None);
            if order != Ordering::Less {
                (name, node) = known.take();
            }
            if order != Ordering::Greater {
                name = names.pop_front().unwrap_or_default();
            }
            let Ok(path) = place.path.child(&name) else {
                self.tally.failed += 1;
                continue;
            };
            let was_dir = node.as_ref().is_some_and(|(_, node)| node.is_dir());
            if skip(&path) {
                dirs.extend(was_dir.then_some(path));
                continue;
            }
            let new = self.bring_name(place, &name, node)?;
            if new.is_some() || (was_dir && self.batch.ids.contains_key(&path)) {
                dirs.push(path);
            }
            self.commit_if_full()?;
        }
    }

    /// Reconciles one name; returns its path if it is a new directory.
    fn bring_name(
        &mut self,
        place: &Place,
        name: &[u8],
        known: Option<(NodeId, Node)>,
    ) -> Result<Option<RelPath>, Error> {
        let path = place.path.child(name)?;
        if !self.batch.done.insert(path.clone()) {
            return Ok(None);
        }
        let plain = match look(&*place.dir, name) {
            Ok(plain) => plain,
            Err(error) => {
                self.tally.fail(&path, &error);
                return Ok(None);
            }
        };
        if self.seen.len() >= MOST_SEEN {
            self.seen.clear();
        }
        self.seen.insert(path.clone(), seen(&plain));
        match (plain, known) {
            (None, None) => Ok(None),
            (None, Some((id, node))) if self.is_away(id, &node)? => Ok(None),
            (Some(plain), Some((id, node))) if self.is_left_wrong(&path, &plain, id, &node)? => Ok(None),
            (Some(plain), Some((id, node)))
                if self.is_away(id, &node)? && self.update_away(place, &path, &plain, id, &node)? =>
            {
                Ok(None)
            }
            (Some(plain), Some((id, node))) if plain.is_kind_of(&node) => {
                self.update(place, &path, &plain, id, node).map(|()| None)
            }
            (plain, known) => {
                if let Some((id, node)) = known {
                    self.remove(place, &path, id, &node)?;
                }
                plain.map_or(Ok(None), |plain| self.make(place, &path, &plain))
            }
        }
    }

    /// Whether a name is in the state in which it was last reconciled.
    pub(crate) fn is_as_seen(&mut self, path: &RelPath) -> bool {
        self.seen.get(path).copied().is_some_and(|last| self.is_as(path, last))
    }

    /// Whether a name is in this state.
    pub(crate) fn is_as(&mut self, path: &RelPath, last: Option<Seen>) -> bool {
        let Some((parent, name)) = path.split() else { return false };
        let Ok(parent) = RelPath::parse(parent) else { return false };
        let Some(dir) = self.open(&parent) else { return last.is_none() };
        look(&*dir, name).is_ok_and(|plain| seen(&plain) == last)
    }

    /// Compares the attributes of the root; other directories are compared in their parents.
    fn compare_top(&mut self) -> Result<(), Error> {
        let path = RelPath::root();
        if self.batch.touched.contains_key(&path) {
            return Ok(());
        }
        let Some(node) = self.tree.node(ROOT)? else { return Ok(()) };
        match self.top.self_entry(Detail::Basic) {
            Ok((entry, raw)) => {
                let (top, plain) = (self.top.clone(), Plain { entry, raw });
                self.update_attributes(&path, &plain, ROOT, &node.attributes, true)?;
                self.update_xattrs(&*top, &plain, ROOT, false)
            }
            Err(error) => {
                self.tally.fail(&path, &error);
                Ok(())
            }
        }
    }

    // ---- renames -----------------------------------------------------------------------------------------------------

    /// Follows a rename in the plain tree; false if it cannot be told from a removal and a creation.
    ///
    /// # Errors
    /// As [`TreeDiff::bring`].
    pub(crate) fn follow_move(&mut self, from: &RelPath, to: &RelPath) -> Result<bool, Error> {
        self.commit()?;
        let (Some(source), Some(target)) = (self.place_of(from)?, self.place_of(to)?) else {
            return Ok(false);
        };
        let (from_name, to_name) = (from.name().unwrap_or_default(), to.name().unwrap_or_default());
        let Some((id, node)) = self.tree.child(&source.spot(from_name))? else { return Ok(false) };
        let (Ok(None), Ok(Some(plain))) = (look(&*source.dir, from_name), look(&*target.dir, to_name)) else {
            return Ok(false);
        };
        let held = self.tree.held(id)?;
        if !plain.is_kind_of(&node) || held.is_some_and(|held| held.stamp.ino != plain.raw.ino) {
            return Ok(false);
        }
        if let Some((other, replaced)) = self.tree.child(&target.spot(to_name))? {
            self.remove(&target, to, other, &replaced)?;
        }
        let time = plain.entry.meta.mtime;
        let (from, to) = (source.spot(from_name), target.spot(to_name));
        self.change(Change::Rename { from, to, replace: false, seen: None, time })?;
        self.batch.touched.extend([(source.path, source.id), (target.path, target.id)]);
        self.commit()?;
        Ok(true)
    }

    /// The parent directory of a path in both trees.
    fn place_of(&mut self, path: &RelPath) -> Result<Option<Place>, Error> {
        let Some(path) = path.parent() else { return Ok(None) };
        let (dir, id) = (self.open(&path), self.dir_id(&path)?);
        Ok(dir.zip(id).map(|(dir, id)| Place { dir, path, id }))
    }

    // ---- lookups -----------------------------------------------------------------------------------------------------

    /// A directory of the plain tree, if it exists and is no symbolic link.
    pub(crate) fn open(&mut self, path: &RelPath) -> Option<Arc<dyn Dir>> {
        if let Some((last, dir)) = &self.batch.last
            && last == path
        {
            return Some(dir.clone());
        }
        let dir = if path.is_root() { self.top.clone() } else { self.top.descend(path).ok()? };
        self.batch.last = Some((path.clone(), dir.clone()));
        Some(dir)
    }

    /// Prefetches the catalogue entries of names that are reconciled next, in bulk.
    ///
    /// # Errors
    /// As [`TreeDiff::bring`].
    pub(crate) fn read_ahead(&mut self, paths: &[RelPath]) -> Result<(), Error> {
        let mut spots = Vec::new();
        for path in paths {
            let (Some(dir), Some(name)) = (path.parent(), path.name()) else { continue };
            if let Some(dir) = self.dir_id(&dir)?.filter(|dir| !self.batch.fresh.contains(dir)) {
                spots.push(Dentry { dir, name: Name(name.to_vec()) });
            }
        }
        let mut found = self.tree.children(&spots)?;
        let is_file = |node: &Node| matches!(node.kind, Kind::File(_));
        let files: Vec<NodeId> =
            found.values().filter(|(_, node)| is_file(node)).map(|(id, _)| *id).collect();
        self.batch.children.extend(spots.into_iter().map(|at| {
            let known = found.remove(&at);
            (at, known)
        }));
        self.read_held(&files)
    }

    /// Prefetches replica rows, in bulk.
    fn read_held(&mut self, files: &[NodeId]) -> Result<(), Error> {
        if files.is_empty() {
            return Ok(());
        }
        // The file may have several names: rows are copied, not taken.
        let found = self.tree.held_of(files)?;
        self.batch.before.extend(files.iter().map(|id| (*id, found.get(id).cloned())));
        Ok(())
    }

    /// The replica row of a node.
    pub(crate) fn held(&self, id: NodeId) -> Result<Option<HeldReplica>, Error> {
        match self.batch.before.get(&id) {
            Some(held) => Ok(held.clone()),
            None => self.tree.held(id),
        }
    }

    /// The node number of a directory, in the catalogue with the batch over it.
    fn dir_id(&mut self, path: &RelPath) -> Result<Option<NodeId>, Error> {
        let (mut at, mut below) = (path.clone(), Vec::new());
        let mut id = loop {
            if let Some(id) = self.batch.ids.get(&at) {
                break *id;
            }
            let Some(above) = at.parent() else { break ROOT };
            below.push(std::mem::replace(&mut at, above));
        };
        for path in below.into_iter().rev() {
            if self.batch.fresh.contains(&id) {
                return Ok(None);
            }
            let name = Name(path.name().unwrap_or_default().to_vec());
            match self.tree.child(&Dentry { dir: id, name })? {
                Some((child, node)) if node.is_dir() && !self.batch.gone.contains(&child) => id = child,
                _ => return Ok(None),
            }
            self.batch.ids.insert(path, id);
        }
        Ok(Some(id))
    }

    /// Draws the number of a new node.
    pub(crate) fn draw(&mut self) -> Result<NodeId, Error> {
        if self.numbers.ids.is_empty() {
            self.numbers.ids = self.tree.draw(OWN, DRAW)?;
        }
        Ok(OWN.id(self.numbers.ids.next().unwrap_or_default()))
    }

    /// Adds a change to the batch; returns its number.
    pub(crate) fn change(&mut self, change: Change) -> Result<u64, Error> {
        let number = match self.numbers.change {
            Some(number) => number,
            None => self.tree.position()?.taken.get(&OWN).copied().unwrap_or_default() + 1,
        };
        self.numbers.change = Some(number + 1);
        self.batch.changes.push(SequencedChange { origin: OWN, number, change });
        Ok(number)
    }

    // ---- storing -----------------------------------------------------------------------------------------------------

    /// Commits the batch if it is full.
    ///
    /// # Errors
    /// As [`TreeDiff::commit`].
    pub(crate) fn commit_if_full(&mut self) -> Result<(), Error> {
        let is_full = self.batch.changes.len() >= MOST_CHANGES || self.batch.done.len() >= MOST_DONE;
        if is_full { self.commit() } else { Ok(()) }
    }

    /// As [`TreeDiff::commit_if_full`] in the middle of an operation: the caches of the batch are kept.
    pub(crate) fn decide_if_full(&mut self) -> Result<(), Error> {
        if self.batch.changes.len() < MOST_CHANGES {
            return Ok(());
        }
        let part = Batch {
            changes: std::mem::take(&mut self.batch.changes),
            held: std::mem::take(&mut self.batch.held),
            arrived: std::mem::take(&mut self.batch.arrived),
            aside: std::mem::take(&mut self.batch.aside),
            lost: std::mem::take(&mut self.batch.lost),
            ..Batch::default()
        };
        self.decide(part)?;
        self.batch.fresh.clear();
        Ok(())
    }

    /// Commits the batch; it is durable then.
    ///
    /// # Errors
    /// Those of the database; the batch is dropped.
    pub(crate) fn commit(&mut self) -> Result<(), Error> {
        let settled = self.settle_dirs();
        let mut batch = std::mem::take(&mut self.batch);
        let ids = batch.take_lasting_ids();
        settled.and_then(|()| self.decide(batch)).inspect_err(|_| self.numbers.change = None)?;
        self.batch.ids = ids;
        Ok(())
    }

    /// Drops the cached node numbers of directories, which may be out of date.
    pub(crate) fn forget_dirs(&mut self) {
        self.batch.ids.clear();
    }

    /// Drops the batch.
    pub(crate) fn forget(&mut self) {
        self.batch = Batch::default();
        self.numbers.change = None;
    }

    /// Updates the times of directories in which names changed.
    fn settle_dirs(&mut self) -> Result<(), Error> {
        let touched = std::mem::take(&mut self.batch.touched);
        let mut doubtful = std::mem::take(&mut self.batch.doubtful);
        doubtful.retain(|path, _| !touched.contains_key(path));
        for (path, id) in touched {
            self.settle_dir(&path, id, None)?;
        }
        for (path, id) in doubtful {
            let known = self.tree.node(id)?.map(|node| node.attributes);
            self.settle_dir(&path, id, known)?;
        }
        Ok(())
    }

    /// Sets the attributes of a directory to those of the plain tree, unless they are equal to `known`.
    fn settle_dir(&mut self, path: &RelPath, id: NodeId, known: Option<Attributes>) -> Result<(), Error> {
        let Some(dir) = self.open(path) else { return Ok(()) };
        let Ok((entry, raw)) = dir.self_entry(Detail::Basic) else { return Ok(()) };
        let plain = Plain { entry, raw };
        let is_others = id.drawn().is_some_and(|(origin, _)| origin != OWN);
        let named = match is_others && known.is_none() {
            true => self.tree.node(id)?.map(|node| node.attributes),
            false => known.clone(),
        };
        let attributes = self.attributes(id, &plain, named.as_ref());
        if known.as_ref() != Some(&attributes) {
            self.change(Change::SetAttributes { id, attributes })?;
        }
        self.update_xattrs(&*dir, &plain, id, false)
    }

    /// Decides one change that was not found in the plain tree; returns its record.
    ///
    /// # Errors
    /// As [`TreeDiff::commit`].
    pub(crate) fn decide_one(&mut self, change: Change) -> Result<Option<Record>, Error> {
        self.commit()?;
        self.change(change)?;
        let batch = std::mem::take(&mut self.batch);
        let decided = self.tree.decide(&batch.changes).inspect_err(|_| self.numbers.change = None)?;
        Ok(decided.into_iter().next())
    }

    fn decide(&mut self, batch: Batch) -> Result<(), Error> {
        let Batch { changes, held, arrived, aside, lost, .. } = batch;
        if changes.is_empty() && held.is_empty() && arrived.is_empty() && lost.is_empty() {
            return Ok(());
        }
        let records = self.tree.decide_holding(&changes, |records| rows(records, held))?;
        self.move_aside(&aside, &records);
        self.store_lost(&lost)?;
        for record in &records {
            if let Err(error) = &record.outcome {
                self.tally.failed += 1;
                tracing::warn!(%error, number = record.number, "a change found on the disk was refused");
            }
        }
        if arrived.is_empty() {
            return Ok(());
        }
        self.tree.set_here(&arrived.into_iter().map(|id| (id, None)).collect::<Vec<_>>())
    }

    /// The plain directory of a path, and its last name.
    pub(crate) fn plain_of(&mut self, path: &RelPath) -> Option<(Arc<dyn Dir>, Vec<u8>)> {
        let (parent, name) = path.split()?;
        let (parent, name) = (RelPath::parse(parent).ok()?, name.to_vec());
        Some((self.open(&parent)?, name))
    }
}

/// Replica rows after some records.
fn rows(records: &[Record], held: Vec<Holds>) -> Vec<(NodeId, Option<HeldReplica>)> {
    let by_number: HashMap<u64, &Record> = records.iter().map(|record| (record.number, record)).collect();
    let mut rows = Vec::with_capacity(held.len());
    for Holds { id, of, stamp, digest } in held {
        let version = match of {
            Of::Version(version) => Some(version),
            Of::Change(number) => by_number.get(&number).and_then(|record| version_in(record, id)),
        };
        rows.extend(version.map(|version| (id, Some(HeldReplica { version, stamp, digest }))));
    }
    for effects in records.iter().filter_map(|record| record.outcome.as_ref().ok()) {
        let gone = effects.nodes.iter().filter(|(_, node)| node.is_none());
        rows.extend(gone.map(|(id, _)| (*id, None)));
    }
    rows
}

/// The version of a file's content after a record.
fn version_in(record: &Record, id: NodeId) -> Option<u64> {
    let effects = record.outcome.as_ref().ok()?;
    effects.nodes.iter().find_map(|(node, state)| match state {
        Some(Node { kind: Kind::File(content), .. }) if *node == id => Some(content.version),
        _ => None,
    })
}
