//! Finds where a volume's plain tree differs from its catalogue, and makes changes of it.
//!
//! The plain tree is always right: what is found there becomes what the catalogue says. Changes are gathered and decided
//! together ([`Compare::commit`]). One thread does this for a volume, so that nothing changes in the catalogue between a
//! look and the change made of it; what changes in the plain tree meanwhile is noted by whoever does it, or found later.
//!
//! A file is known again by its inode number; its content counts as changed when size, time of modification or inode
//! number did, as far as [`Held`] tells. Devices, sockets and FIFOs, and files that are still being received, are not
//! in the catalogue.

use crate::catalogue::{Held, VolumeTree};
use crate::store::temp::is_temp_name;
use crate::store::{Detail, Dir, Raw, names};
use renkei_core::entry::{Entry, EntryKind, FileTime, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{
    Attributes, Base, Change, Content, Kind, Name, NewKind, Node, NodeId, Numbered, Origin, ROOT, Record,
    Spot,
};
use renkei_core::path::RelPath;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// The home's own changes.
pub(super) const OWN: Origin = Origin(0);

/// Changes that are decided together.
const MOST_CHANGES: usize = 2000;

/// Names that are dealt with before all that is remembered of them is forgotten.
const MOST_DONE: usize = 20_000;

/// Names of which the last look is remembered.
const MOST_SEEN: usize = 65_536;

/// Numbers of nodes that are drawn at a time.
const DRAW: u64 = 4096;

/// Names of the catalogue that are read at a time.
const PAGE: usize = 1000;

/// Examples that a tally keeps.
const MOST_EXAMPLES: usize = 20;

/// The comparison of one volume.
pub(super) struct Compare {
    tree: Arc<VolumeTree>,
    top: Arc<dyn Dir>,
    numbers: Numbers,
    /// Files with several names, by device and inode number.
    links: HashMap<(u64, u64), NodeId>,
    batch: Batch,
    /// What names were when they were brought up to date last.
    seen: HashMap<RelPath, Option<Seen>>,
    /// What was found since somebody looked.
    pub(super) tally: Tally,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Names that the catalogue did not have.
    pub(super) new: u64,
    /// Names that it had and are gone.
    pub(super) gone: u64,
    /// Files with other content.
    pub(super) changed: u64,
    /// Other modes, owners or times alone.
    pub(super) attributes: u64,
    /// What could not be looked at or stored.
    pub(super) failed: u64,
    /// Some of all these, for people.
    pub(super) examples: Vec<String>,
}

impl Tally {
    fn note(&mut self, what: &str, path: &RelPath) {
        if self.examples.len() < MOST_EXAMPLES {
            self.examples.push(format!("{what} {path}"));
        }
    }

    fn fail(&mut self, path: &RelPath, error: &Error) {
        self.failed += 1;
        self.note(&format!("failed ({error})"), path);
    }
}

/// Numbers that the next changes and nodes get.
struct Numbers {
    /// Of changes; none if it must be looked up.
    change: Option<u64>,
    /// Of nodes.
    ids: Range<u64>,
}

/// What was gathered and is not decided yet.
#[derive(Default)]
struct Batch {
    changes: Vec<Numbered>,
    held: Vec<(NodeId, Of, Stamp)>,
    /// Directories by their paths.
    ids: HashMap<RelPath, NodeId>,
    /// Directories that the catalogue does not have yet.
    fresh: HashSet<NodeId>,
    /// Names that were dealt with.
    done: HashSet<RelPath>,
    /// Directories of which names changed.
    touched: BTreeMap<RelPath, NodeId>,
    /// Directories of which names may have changed there and back.
    doubtful: BTreeMap<RelPath, NodeId>,
    gone: HashSet<NodeId>,
    last: Option<(RelPath, Arc<dyn Dir>)>,
}

/// Which version of a content a file has.
enum Of {
    Version(u64),
    /// The one that this change makes.
    Change(u64),
}

/// A directory in both trees.
struct Place {
    dir: Arc<dyn Dir>,
    path: RelPath,
    id: NodeId,
}

impl Place {
    fn spot(&self, name: &[u8]) -> Spot {
        Spot { dir: self.id, name: Name(name.to_vec()) }
    }
}

/// What the plain tree has under a name.
struct Plain {
    entry: Entry,
    raw: Raw,
}

impl Plain {
    fn attributes(&self) -> Attributes {
        let Raw { uid, gid, .. } = self.raw;
        Attributes {
            mode: self.entry.meta.mode,
            owner: names::user_name(uid).unwrap_or_else(|| uid.to_string()),
            group: names::group_name(gid).unwrap_or_else(|| gid.to_string()),
            mtime: self.entry.meta.mtime,
        }
    }

    /// What it would be as a new node; none for what is not in catalogues.
    fn kind(&self) -> Option<NewKind> {
        match &self.entry.kind {
            EntryKind::File { .. } => Some(NewKind::File),
            EntryKind::Dir => Some(NewKind::Dir),
            EntryKind::Symlink { target } => Some(NewKind::Symlink(target.clone())),
            EntryKind::HardLink { .. } | EntryKind::Special => None,
        }
    }

    fn stamp(&self) -> Stamp {
        match self.entry.kind {
            EntryKind::File { stamp, .. } => stamp,
            _ => Stamp::default(),
        }
    }

    /// Whether a node of the catalogue may become this without being another one.
    fn is_kind_of(&self, node: &Node) -> bool {
        match (&self.entry.kind, &node.kind) {
            (EntryKind::File { .. }, Kind::File(_)) | (EntryKind::Dir, Kind::Dir { .. }) => true,
            (EntryKind::Symlink { target }, Kind::Symlink { target: known }) => target == known,
            _ => false,
        }
    }
}

/// What tells one state of a name from the next: kind of clock, number, size.
type Seen = (FileTime, u64, u64);

fn seen(plain: &Option<Plain>) -> Option<Seen> {
    plain.as_ref().map(|plain| (plain.raw.ctime, plain.raw.ino, plain.entry.size()))
}

/// Whether a file has the content that it had, by all that can be seen without reading it.
pub(super) fn is_same_content(a: &Stamp, b: &Stamp) -> bool {
    (a.size, a.mtime, a.ino) == (b.size, b.mtime, b.ino)
}

/// What the plain tree has under a name; nothing for what does not belong into the catalogue.
fn look(dir: &dyn Dir, name: &[u8]) -> Result<Option<Plain>, Error> {
    if is_temp_name(name) {
        return Ok(None);
    }
    match dir.entry(name, Detail::Basic) {
        Ok((entry, raw)) => Ok(Some(Plain { entry, raw }).filter(|plain| plain.kind().is_some())),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(error.code, Code::PathNotFound | Code::NotADirectory)
}

/// The path's directories from the top on, then the path itself.
fn chain(path: &RelPath) -> Vec<RelPath> {
    let mut chain = vec![path.clone()];
    while let Some(above) = chain.last().and_then(RelPath::parent).filter(|above| !above.is_root()) {
        chain.push(above);
    }
    chain.reverse();
    chain
}

impl Compare {
    /// Compares the tree below `top` with the catalogue's.
    pub(super) fn new(tree: Arc<VolumeTree>, top: Arc<dyn Dir>) -> Self {
        let numbers = Numbers { change: None, ids: 0..0 };
        let (links, seen) = (HashMap::new(), HashMap::new());
        Compare { tree, top, numbers, links, batch: Batch::default(), seen, tally: Tally::default() }
    }

    /// Brings one name up to date, and the directories on the way to it; gives directories that are new, and into which
    /// somebody should look.
    ///
    /// # Errors
    /// Those of the database; what the file system refuses is counted.
    pub(super) fn bring(&mut self, path: &RelPath) -> Result<Vec<RelPath>, Error> {
        let mut at = path.clone();
        // What lay in a directory that is gone went with it.
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
        let known = if self.batch.fresh.contains(&id) { None } else { self.tree.child(&place.spot(name))? };
        self.bring_name(&place, name, known)
    }

    /// Brings the names of one directory up to date; gives the directories in it.
    ///
    /// # Errors
    /// As [`Compare::bring`].
    pub(super) fn look_into(
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

    /// Goes through the names of both trees side by side.
    fn merge(
        &mut self,
        place: &Place,
        mut names: VecDeque<Vec<u8>>,
        skip: impl Fn(&RelPath) -> bool,
    ) -> Result<Vec<RelPath>, Error> {
        let mut known = Known::of(place.id, self.batch.fresh.contains(&place.id));
        let mut dirs = Vec::new();
        loop {
            let order = match (names.front(), known.peek(&self.tree)?) {
                (None, None) => return Ok(dirs),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(name), Some((known, ..))) => name.cmp(&known.0),
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

    /// Brings one name up to date; gives its path if it is a directory that is new.
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

    /// Whether a name is as it was when it was brought up to date last.
    pub(super) fn is_as_seen(&mut self, path: &RelPath) -> bool {
        let Some(last) = self.seen.get(path).copied() else { return false };
        let Some((parent, name)) = path.split() else { return false };
        let Ok(parent) = RelPath::parse(parent) else { return false };
        let Some(dir) = self.open(&parent) else { return last.is_none() };
        look(&*dir, name).is_ok_and(|plain| seen(&plain) == last)
    }

    // ---- what becomes of one name ------------------------------------------------------------------------------------

    fn make(&mut self, place: &Place, path: &RelPath, plain: &Plain) -> Result<Option<RelPath>, Error> {
        let Some(kind) = plain.kind() else { return Ok(None) };
        let at = place.spot(path.name().unwrap_or_default());
        self.tally.new += 1;
        self.tally.note("new", path);
        self.batch.touched.insert(place.path.clone(), place.id);
        if let Some(id) = self.twin(plain)? {
            let time = plain.entry.meta.mtime;
            self.change(Change::Link { id, at, time })?;
            return Ok(None);
        }
        let (id, attributes) = (self.draw()?, plain.attributes());
        let is_dir = kind == NewKind::Dir;
        let is_file = kind == NewKind::File;
        let number = self.change(Change::Make { id, at, kind, attributes, keep_both: false })?;
        if is_dir {
            self.batch.ids.insert(path.clone(), id);
            self.batch.fresh.insert(id);
            return Ok(Some(path.clone()));
        }
        if is_file {
            self.set_content(id, Base::Own(number), plain)?;
        }
        Ok(None)
    }

    /// The node of a file with several names, if one of them is known.
    fn twin(&mut self, plain: &Plain) -> Result<Option<NodeId>, Error> {
        let is_file = matches!(plain.entry.kind, EntryKind::File { .. });
        if !is_file || plain.raw.nlink < 2 {
            return Ok(None);
        }
        let Some(id) = self.links.get(&(plain.raw.dev, plain.raw.ino)).copied() else { return Ok(None) };
        if self.batch.gone.contains(&id) {
            return Ok(None);
        }
        let pending = self.batch.held.iter().rev().find(|(node, ..)| *node == id).map(|(.., stamp)| *stamp);
        let stamp = match pending {
            Some(stamp) => Some(stamp),
            None => self.tree.held(id)?.map(|held| held.stamp),
        };
        // The number may be that of another file by now.
        Ok(stamp.filter(|stamp| stamp.ino == plain.raw.ino).map(|_| id))
    }

    /// The file has this content now.
    fn set_content(&mut self, id: NodeId, base: Base, plain: &Plain) -> Result<(), Error> {
        let (stamp, mtime) = (plain.stamp(), plain.entry.meta.mtime);
        let size = stamp.size;
        let number = self.change(Change::SetContent { id, base, size, digest: None, mtime, beside: None })?;
        self.batch.held.push((id, Of::Change(number), stamp));
        self.remember_links(id, plain);
        Ok(())
    }

    fn remember_links(&mut self, id: NodeId, plain: &Plain) {
        if plain.raw.nlink > 1 {
            self.links.insert((plain.raw.dev, plain.raw.ino), id);
        }
    }

    fn update(
        &mut self,
        place: &Place,
        path: &RelPath,
        plain: &Plain,
        id: NodeId,
        node: Node,
    ) -> Result<(), Error> {
        if let Kind::File(content) = &node.kind {
            if let Some(twin) = self.twin(plain)?.filter(|twin| *twin != id) {
                tracing::debug!(node = id.0, other = twin.0, "another name of another file");
                self.remove(place, path, id, &node)?;
                return self.make(place, path, plain).map(drop);
            }
            let held = self.tree.held(id)?;
            let is_other = held.as_ref().is_some_and(|held| held.stamp.ino != plain.raw.ino);
            if is_other && node.links > 1 {
                self.remove(place, path, id, &node)?;
                return self.make(place, path, plain).map(drop);
            }
            if self.update_content(path, plain, id, &node, content, held)? {
                let attributes = Attributes { mtime: plain.entry.meta.mtime, ..node.attributes };
                return self.update_attributes(path, plain, id, &attributes, false);
            }
        } else if plain.entry.kind == EntryKind::Dir {
            self.batch.ids.insert(path.clone(), id);
            if self.batch.touched.contains_key(path) {
                return Ok(());
            }
        }
        self.update_attributes(path, plain, id, &node.attributes, true)
    }

    /// Whether the content is new.
    fn update_content(
        &mut self,
        path: &RelPath,
        plain: &Plain,
        id: NodeId,
        node: &Node,
        content: &Content,
        held: Option<Held>,
    ) -> Result<bool, Error> {
        let stamp = plain.stamp();
        let is_same = match &held {
            Some(held) => held.version == content.version && is_same_content(&held.stamp, &stamp),
            // It ended between the change and what this site holds of it.
            None => (content.size, node.attributes.mtime) == (stamp.size, stamp.mtime),
        };
        if !is_same {
            self.tally.changed += 1;
            self.tally.note("changed", path);
            self.set_content(id, content.base(), plain)?;
            return Ok(true);
        }
        if held.is_none() {
            self.batch.held.push((id, Of::Version(content.version), stamp));
        }
        self.remember_links(id, plain);
        Ok(false)
    }

    fn update_attributes(
        &mut self,
        path: &RelPath,
        plain: &Plain,
        id: NodeId,
        known: &Attributes,
        counts: bool,
    ) -> Result<(), Error> {
        let attributes = plain.attributes();
        if attributes == *known {
            return Ok(());
        }
        if counts {
            self.tally.attributes += 1;
            self.tally.note("attributes", path);
        }
        self.change(Change::SetAttributes { id, attributes }).map(drop)
    }

    /// A name goes from the catalogue, with all below it.
    fn remove(&mut self, place: &Place, path: &RelPath, id: NodeId, node: &Node) -> Result<(), Error> {
        self.tally.gone += 1;
        self.tally.note("gone", path);
        self.batch.touched.insert(place.path.clone(), place.id);
        let (at, time) = (place.spot(path.name().unwrap_or_default()), node.attributes.mtime);
        if !node.is_dir() {
            if node.links == 1 {
                self.batch.gone.insert(id);
            }
            return self.change(Change::Remove { at, time }).map(drop);
        }
        self.batch.ids.retain(|below, _| !below.starts_with(path));
        self.batch.touched.retain(|below, _| !below.starts_with(path));
        self.batch.doubtful.retain(|below, _| !below.starts_with(path));
        self.remove_tree(at, id, time)
    }

    fn remove_tree(&mut self, at: Spot, id: NodeId, time: FileTime) -> Result<(), Error> {
        let mut levels = vec![(at, Known::of(id, self.batch.fresh.contains(&id)))];
        while let Some((_, known)) = levels.last_mut() {
            let dir = known.dir;
            if known.peek(&self.tree)?.is_none() {
                if let Some((at, _)) = levels.pop() {
                    self.batch.gone.insert(dir);
                    self.change(Change::RemoveDir { at, time })?;
                }
                continue;
            }
            let (name, node) = known.take();
            let at = Spot { dir, name: Name(name) };
            match node {
                Some((id, node)) if node.is_dir() => levels.push((at, Known::of(id, false))),
                _ => drop(self.change(Change::Remove { at, time })?),
            }
            self.decide_if_full()?;
        }
        Ok(())
    }

    /// Compares the attributes of the top; those of other directories are compared where they lie.
    fn compare_top(&mut self) -> Result<(), Error> {
        let path = RelPath::root();
        if self.batch.touched.contains_key(&path) {
            return Ok(());
        }
        let Some(node) = self.tree.node(ROOT)? else { return Ok(()) };
        match self.top.self_entry(Detail::Basic) {
            Ok((entry, raw)) => {
                self.update_attributes(&path, &Plain { entry, raw }, ROOT, &node.attributes, true)
            }
            Err(error) => {
                self.tally.fail(&path, &error);
                Ok(())
            }
        }
    }

    // ---- renames -----------------------------------------------------------------------------------------------------

    /// Follows a rename that was done in the plain tree; false if it cannot be told from a removal and something new.
    ///
    /// # Errors
    /// As [`Compare::bring`].
    pub(super) fn follow_move(&mut self, from: &RelPath, to: &RelPath) -> Result<bool, Error> {
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
        self.change(Change::Rename { from, to, replace: false, time })?;
        self.batch.touched.extend([(source.path, source.id), (target.path, target.id)]);
        self.commit()?;
        Ok(true)
    }

    /// The directory in which a path lies.
    fn place_of(&mut self, path: &RelPath) -> Result<Option<Place>, Error> {
        let Some(path) = path.parent() else { return Ok(None) };
        let (dir, id) = (self.open(&path), self.dir_id(&path)?);
        Ok(dir.zip(id).map(|(dir, id)| Place { dir, path, id }))
    }

    // ---- finding things ----------------------------------------------------------------------------------------------

    /// A directory of the plain tree, if it is there and no link.
    fn open(&mut self, path: &RelPath) -> Option<Arc<dyn Dir>> {
        if let Some((last, dir)) = &self.batch.last
            && last == path
        {
            return Some(dir.clone());
        }
        let dir = if path.is_root() { self.top.clone() } else { self.top.descend(path).ok()? };
        self.batch.last = Some((path.clone(), dir.clone()));
        Some(dir)
    }

    /// The number of a directory, as the catalogue and what was gathered have it.
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
            match self.tree.child(&Spot { dir: id, name })? {
                Some((child, node)) if node.is_dir() && !self.batch.gone.contains(&child) => id = child,
                _ => return Ok(None),
            }
            self.batch.ids.insert(path, id);
        }
        Ok(Some(id))
    }

    fn draw(&mut self) -> Result<NodeId, Error> {
        if self.numbers.ids.is_empty() {
            self.numbers.ids = self.tree.draw(OWN, DRAW)?;
        }
        Ok(OWN.id(self.numbers.ids.next().unwrap_or_default()))
    }

    /// Adds a change; gives its number.
    fn change(&mut self, change: Change) -> Result<u64, Error> {
        let number = match self.numbers.change {
            Some(number) => number,
            None => self.tree.position()?.taken.get(&OWN).copied().unwrap_or_default() + 1,
        };
        self.numbers.change = Some(number + 1);
        self.batch.changes.push(Numbered { origin: OWN, number, change });
        Ok(number)
    }

    // ---- storing -----------------------------------------------------------------------------------------------------

    fn commit_if_full(&mut self) -> Result<(), Error> {
        let is_full = self.batch.changes.len() >= MOST_CHANGES || self.batch.done.len() >= MOST_DONE;
        if is_full { self.commit() } else { Ok(()) }
    }

    /// As [`Compare::commit_if_full`] in the middle of something: what was gathered is still needed.
    fn decide_if_full(&mut self) -> Result<(), Error> {
        if self.batch.changes.len() < MOST_CHANGES {
            return Ok(());
        }
        let (changes, held) = (std::mem::take(&mut self.batch.changes), std::mem::take(&mut self.batch.held));
        self.decide(&changes, held)?;
        self.batch.fresh.clear();
        Ok(())
    }

    /// Stores what was gathered; it is durable then.
    ///
    /// # Errors
    /// Those of the database; what was gathered is forgotten.
    pub(super) fn commit(&mut self) -> Result<(), Error> {
        let settled = self.settle_dirs();
        let batch = std::mem::take(&mut self.batch);
        settled
            .and_then(|()| self.decide(&batch.changes, batch.held))
            .inspect_err(|_| self.numbers.change = None)
    }

    /// Forgets what was gathered.
    pub(super) fn forget(&mut self) {
        self.batch = Batch::default();
        self.numbers.change = None;
    }

    /// Directories of which names changed get the times that they have.
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

    /// Gives a directory the attributes that it has, unless those are `known`.
    fn settle_dir(&mut self, path: &RelPath, id: NodeId, known: Option<Attributes>) -> Result<(), Error> {
        let Some(dir) = self.open(path) else { return Ok(()) };
        let Ok((entry, raw)) = dir.self_entry(Detail::Basic) else { return Ok(()) };
        let attributes = Plain { entry, raw }.attributes();
        if known.as_ref() == Some(&attributes) {
            return Ok(());
        }
        self.change(Change::SetAttributes { id, attributes }).map(drop)
    }

    fn decide(&mut self, changes: &[Numbered], held: Vec<(NodeId, Of, Stamp)>) -> Result<(), Error> {
        if changes.is_empty() && held.is_empty() {
            return Ok(());
        }
        let records = self.tree.decide(changes)?;
        let by_number: HashMap<u64, &Record> = records.iter().map(|record| (record.number, record)).collect();
        let mut rows = Vec::new();
        for (id, of, stamp) in held {
            let version = match of {
                Of::Version(version) => Some(version),
                Of::Change(number) => by_number.get(&number).and_then(|record| version_in(record, id)),
            };
            let held = version.map(|version| Held { version, stamp, digest: None });
            rows.extend(held.map(|held| (id, Some(held))));
        }
        for record in &records {
            match &record.outcome {
                Ok(effects) => {
                    let gone = effects.nodes.iter().filter(|(_, node)| node.is_none());
                    rows.extend(gone.map(|(id, _)| (*id, None)));
                }
                Err(error) => {
                    self.tally.failed += 1;
                    tracing::warn!(%error, number = record.number, "a change found on the disk was refused");
                }
            }
        }
        self.tree.set_held(&rows)
    }
}

/// The version of a file's content after a change.
fn version_in(record: &Record, id: NodeId) -> Option<u64> {
    let effects = record.outcome.as_ref().ok()?;
    effects.nodes.iter().find_map(|(node, state)| match state {
        Some(Node { kind: Kind::File(content), .. }) if *node == id => Some(content.version),
        _ => None,
    })
}

/// The names that the catalogue has in a directory, read on as they are taken.
struct Known {
    dir: NodeId,
    page: VecDeque<(Name, NodeId, Node)>,
    after: Option<Name>,
    is_ended: bool,
}

impl Known {
    /// Of a directory; nothing of one that the catalogue does not have yet.
    fn of(dir: NodeId, is_fresh: bool) -> Self {
        Known { dir, page: VecDeque::new(), after: None, is_ended: is_fresh }
    }

    fn peek(&mut self, tree: &VolumeTree) -> Result<Option<&(Name, NodeId, Node)>, Error> {
        if self.page.is_empty() && !self.is_ended {
            self.page = tree.list(self.dir, self.after.as_ref(), PAGE)?.into();
            self.is_ended = self.page.len() < PAGE;
            self.after = self.page.back().map(|(name, ..)| name.clone());
        }
        Ok(self.page.front())
    }

    /// The next one, which was seen before.
    fn take(&mut self) -> (Vec<u8>, Option<(NodeId, Node)>) {
        match self.page.pop_front() {
            Some((name, id, node)) => (name.0, Some((id, node))),
            None => (Vec::new(), None),
        }
    }
}
