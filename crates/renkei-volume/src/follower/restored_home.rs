//! Reconciliation of a follower with a restored home: the home was restored from a backup and has another log than the
//! one that was followed.
//!
//! The view of this site, with own changes over its copy, is compared with the home's current tree, name by name.
//! Names that only this site has become changes of its own for the home; where both have a name with different
//! content both stay, unless the home's version is known to be an older one. Nothing is removed at the home but what
//! was removed here from the same content. Guarantee: each content that this site holds has a name afterwards, in the
//! volume or, where the site may not change that, in a folder of its plain files. Non-goal: renames since the backup,
//! which leave a file under both names.

use super::apply::{RunAs, run_one};
use super::outbox::{Enlisted, Outbox, enlisted_note, lock};
use super::plain_file;
use super::write_txn::WriteTxn;
use crate::lineage::followed_notes;
use renkei_catalogue::{HeldReplica, LogSwitch, TreeNote, VolumeTree, own_version};
use renkei_core::entry::{EntryKind, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{
    Attributes, Base, Beside, Change, Content, Dentry, Kind, Name, NewKind, Node, NodeId, Origin, ROOT,
    RemovedName, SequencedChange,
};
use renkei_core::path::RelPath;
use renkei_core::wire::decode;
use renkei_core::wire::volume::Incarnation;
use renkei_store::Detail;
use renkei_store::Store;
use renkei_store::local::LocalStore;
use renkei_store::tree::{dir_of, make_dirs};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Names read from the database at once.
const PAGE: usize = 1000;
/// Names listed in each category; all are counted.
const MOST_LISTED: usize = 100;
/// Longest name of a file.
const MAX_NAME_BYTES: usize = 255;
/// The note with the last report.
pub(crate) const REPORT: TreeNote<RestoreReport> = TreeNote::of("reconciled", &[decode]);

/// Prefix of folders for plain files that are not in the volume.
pub(crate) const KEPT: &str = "renkei-kept-";

/// Report of a reconciliation with a restored home.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreReport {
    /// Time of the reconciliation, in seconds since 1970.
    pub at_unix: u64,
    /// The last record of the log that was followed before.
    pub records_before: u64,
    /// The last record of the home's log at that time.
    pub records_now: u64,
    /// Files, directories and links that only this site had; they become changes for the home.
    pub kept: Names,
    /// Files of which the home had an older version, or another file that was replaced here.
    pub renewed: Names,
    /// Names with different content on both sides: the home's has the name, and the local one is a conflict copy.
    pub beside: Names,
    /// Names that were removed here and are removed at the home now.
    pub removed: Names,
    /// Files that this site knew and that are at neither site: their content was never fetched here.
    pub lost: Names,
    /// Files that only this site had, if it may not change the volume: their paths in its storage.
    pub aside: Names,
}

/// Names of one category.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Names {
    /// Number of names.
    pub count: u64,
    /// The first names.
    pub paths: Vec<String>,
}

impl Names {
    fn add(&mut self, path: &RelPath) {
        self.count += 1;
        if self.paths.len() < MOST_LISTED {
            self.paths.push(path.to_string());
        }
    }
}

/// The relation of the two logs, and the registration of this site.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The registration of this site at the home.
    pub enlisted: Enlisted,
    /// The incarnation of the home's current log.
    pub incarnation: Incarnation,
    /// The last record that both logs have; 0 if unknown.
    pub until: u64,
}

/// A local file whose content the home does not have under its name.
struct File {
    /// Its node number in the tree that was followed.
    id: NodeId,
    path: RelPath,
    content: Content,
    attributes: Attributes,
    held: Option<HeldReplica>,
    /// The node of the target directory in the home's tree.
    dir: NodeId,
    /// The path of that directory.
    into: RelPath,
    fate: Fate,
}

/// The outcome for one file.
enum Fate {
    /// The home has nothing under the name.
    New,
    /// The home has an older version.
    Newer(NodeId, u64),
    /// The home has another file, which the local one replaced.
    Replaced(RemovedName),
    /// The home has an unrelated entry: the local file becomes a conflict copy.
    Beside,
}

/// A replica that was written here, while the equal version of the home is of another origin: its ctime was not
/// noted.
struct Replica {
    /// Its node number in the home's tree.
    id: NodeId,
    path: RelPath,
    held: HeldReplica,
    /// The home's version.
    version: u64,
}

/// A plain file to be renamed.
#[derive(Clone)]
pub(crate) struct Move {
    /// The node in the home's tree, if the file becomes part of it.
    pub(crate) id: Option<NodeId>,
    pub(crate) from: RelPath,
    pub(crate) to: RelPath,
}

/// A pair of directories to be compared.
struct Pair {
    mine: Option<NodeId>,
    /// The node in the copy without own changes.
    base: Option<NodeId>,
    /// The node in the home's tree; a directory that is about to be created there is not in it yet.
    theirs: NodeId,
    is_there: bool,
    path: RelPath,
    /// The path in the home's tree.
    into: RelPath,
}

type Listing = BTreeMap<Name, (NodeId, Node)>;

struct Comparison<'c> {
    pending: &'c Outbox,
    late: &'c VolumeTree,
    terms: Terms,
    first: u64,
    given: u64,
    /// The last number of a file of each origin that the home knows.
    drawn: BTreeMap<Origin, u64>,
    /// Changes for the home; those that create directories and links come first.
    made: Vec<Change>,
    removals: Vec<Change>,
    files: Vec<File>,
    replicas: Vec<Replica>,
    held: Vec<(NodeId, HeldReplica)>,
    moves: Vec<Move>,
    /// Number of names that are longer than a path can hold.
    passed_over: u64,
    report: RestoreReport,
}

impl WriteTxn<'_> {
    /// Compares the copy with the home's tree, `late`, and switches to that. `run_as` examines and renames plain
    /// files with the rights of their account.
    ///
    /// # Errors
    /// `CatalogueFailed`, and those of the file system; nothing was changed then except for additional hard links of
    /// plain files.
    pub fn reconcile(
        &mut self,
        late: &VolumeTree,
        terms: Terms,
        plain: Option<(&Arc<LocalStore>, &RunAs<'_>)>,
    ) -> Result<RestoreReport, Error> {
        let mut comparison = Comparison::begin(self.pending, late, terms)?;
        comparison.walk()?;
        let mut stamps = HashMap::new();
        if let Some((plain, run_as)) = plain {
            let paths = comparison.paths();
            let plain = plain.clone();
            stamps = run_one(run_as, move || stamps_of(&plain, paths))?;
        }
        comparison.settle(&stamps);
        let (anew, moves, report) = comparison.end()?;
        if let Some((plain, run_as)) = plain {
            let (plain, moves) = (plain.clone(), moves.clone());
            run_one(run_as, move || link(&plain, &moves))??;
        }
        self.pending.tree.begin_again(terms.enlisted.origin, late, &anew)?;
        self.begin_again(terms.enlisted)?;
        if let Some((plain, run_as)) = plain {
            let plain = plain.clone();
            let stamps = run_one(run_as, move || unlink(&plain, &moves))?;
            self.pending.note_stamps(&stamps)?;
        }
        Ok(report)
    }

    /// Drops the state in memory of the tree that was followed before.
    fn begin_again(&mut self, enlisted: Enlisted) -> Result<(), Error> {
        let pending = self.pending;
        (self.state.ids, self.state.asides) = (0..0, None);
        self.state.beside.clear();
        self.state.aliases.clear();
        self.state.left.clear();
        self.state.unkept.keep_only(std::iter::empty())?;
        lock(&pending.progress).queue.clear();
        pending.show(|seen| seen.forget(enlisted));
        pending.resume(&mut self.state, enlisted.origin, Vec::new())
    }
}

impl Outbox {
    /// Notes the stamps of plain files that were renamed.
    fn note_stamps(&self, stamps: &[(NodeId, Stamp)]) -> Result<(), Error> {
        let known = self.tree.held_of(&stamps.iter().map(|(id, _)| *id).collect::<Vec<_>>())?;
        let now = stamps.iter().filter_map(|(id, stamp)| {
            let held = known.get(id)?.clone();
            Some((*id, Some(HeldReplica { stamp: *stamp, ..held })))
        });
        self.tree.set_held(&now.collect::<Vec<_>>())
    }

    /// The report of the last reconciliation with a restored home.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn reconciled(&self) -> Result<Option<RestoreReport>, Error> {
        REPORT.read(&self.tree)
    }
}

impl<'c> Comparison<'c> {
    fn begin(pending: &'c Outbox, late: &'c VolumeTree, terms: Terms) -> Result<Self, Error> {
        let (before, now) = (pending.tree.position()?, late.position()?);
        let origin = terms.enlisted.origin;
        let of = |counts: &BTreeMap<_, u64>| counts.get(&origin).copied().unwrap_or(0);
        let at_unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let report =
            RestoreReport { at_unix, records_before: before.seq, records_now: now.seq, ..Default::default() };
        Ok(Comparison {
            pending,
            late,
            terms,
            first: of(&now.taken) + 1,
            given: of(&before.given).max(of(&now.given)),
            drawn: now.given,
            made: Vec::new(),
            removals: Vec::new(),
            files: Vec::new(),
            replicas: Vec::new(),
            held: Vec::new(),
            moves: Vec::new(),
            passed_over: 0,
            report,
        })
    }

    fn draw(&mut self) -> NodeId {
        self.given += 1;
        self.terms.enlisted.origin.id(self.given)
    }

    /// The plain files to be examined.
    fn paths(&self) -> Vec<RelPath> {
        let replicas = self.replicas.iter().map(|replica| &replica.path);
        self.files.iter().map(|file| &file.path).chain(replicas).cloned().collect()
    }

    fn walk(&mut self) -> Result<(), Error> {
        let (path, into) = (RelPath::root(), RelPath::root());
        let top = Pair { mine: Some(ROOT), base: Some(ROOT), theirs: ROOT, is_there: true, path, into };
        // A hostile home may send a cycle of directories.
        let (mut todo, mut seen) = (vec![top], HashSet::from([ROOT]));
        while let Some(pair) = todo.pop() {
            let mine = list(pair.mine, |dir, last| {
                self.pending.list(dir, last, PAGE).map(|listed| (listed.names, listed.next))
            })?;
            let theirs = list(pair.is_there.then_some(pair.theirs), paged(self.late))?;
            let base = list(pair.base, paged(&self.pending.tree))?;
            for (name, (id, node)) in &mine {
                let theirs = theirs.get(name);
                let base = base.get(name).map(|(id, _)| *id);
                let below = self.compare(&pair, name, (*id, node), theirs, base);
                let below = self.if_it_has_a_path(below)?.flatten();
                todo.extend(below.filter(|below| below.mine.is_none_or(|id| seen.insert(id))));
            }
            for (name, (_, before)) in base.iter().filter(|(name, _)| !mine.contains_key(*name)) {
                if let Some((id, now)) = theirs.get(name) {
                    let removed = self.remove_again(&pair, name, before, (*id, now));
                    self.if_it_has_a_path(removed)?;
                }
            }
        }
        if self.passed_over > 0 {
            let (volume, passed_over) = (&*self.pending.name, self.passed_over);
            tracing::warn!(volume, passed_over, "names that are longer than a path holds are not compared");
        }
        Ok(())
    }

    /// The result for a name; none if its path is too long. Such a name, which a hostile home may make up, has no
    /// plain file here and does not stop the walk.
    fn if_it_has_a_path<T>(&mut self, answer: Result<T, Error>) -> Result<Option<T>, Error> {
        match answer {
            Err(error) if matches!(error.code, Code::BadPath | Code::NameTooLong) => {
                self.passed_over += 1;
                Ok(None)
            }
            answer => answer.map(Some),
        }
    }

    /// Compares one name of the view; returns the directories to be compared next, if it is a directory.
    fn compare(
        &mut self,
        pair: &Pair,
        name: &Name,
        (id, node): (NodeId, &Node),
        theirs: Option<&(NodeId, Node)>,
        base: Option<NodeId>,
    ) -> Result<Option<Pair>, Error> {
        let path = pair.path.child(&name.0)?;
        match (&node.kind, theirs) {
            (Kind::Dir { .. }, Some((their_id, Node { kind: Kind::Dir { .. }, .. }))) => {
                let into = pair.into.child(&name.0)?;
                Ok(Some(Pair { mine: Some(id), base, theirs: *their_id, is_there: true, path, into }))
            }
            (Kind::Dir { .. }, theirs) => {
                let at = self.make_node(pair, name, theirs.is_some(), NewKind::Dir, node, &path)?;
                Ok(at.map(|(theirs, into)| Pair {
                    mine: Some(id),
                    base,
                    theirs,
                    is_there: false,
                    path,
                    into,
                }))
            }
            (Kind::Symlink { target }, theirs) => {
                let is_same =
                    |node: &Node| matches!(&node.kind, Kind::Symlink { target: other } if other == target);
                if !theirs.is_some_and(|(_, theirs)| is_same(theirs)) {
                    let kind = NewKind::Symlink(target.clone());
                    self.make_node(pair, name, theirs.is_some(), kind, node, &path)?;
                }
                Ok(None)
            }
            (Kind::File(content), theirs) => {
                self.compare_file(pair, (id, node, content), theirs, path)?;
                Ok(None)
            }
            (Kind::Merged { .. } | Kind::Xattrs(_), _) => Ok(None),
        }
    }

    /// Creates a directory or link that the home does not have; returns its node and path there, if it is a
    /// directory.
    fn make_node(
        &mut self,
        pair: &Pair,
        name: &Name,
        is_taken: bool,
        kind: NewKind,
        node: &Node,
        path: &RelPath,
    ) -> Result<Option<(NodeId, RelPath)>, Error> {
        let is_dir = kind == NewKind::Dir;
        if !self.terms.enlisted.writes {
            // The files are put aside under their paths; nothing is created in the volume.
            let id = NodeId(0);
            return Ok(is_dir.then(|| (id, path.clone())));
        }
        let name = if is_taken { self.name_beside(name, self.made.len()) } else { name.clone() };
        let into = pair.into.child(&name.0)?;
        match is_taken {
            true => self.report.beside.add(&into),
            false => self.report.kept.add(&into),
        }
        let (id, at) = (self.draw(), Dentry { dir: pair.theirs, name });
        let attributes = node.attributes.clone();
        self.made.push(Change::Make { id, at, kind, attributes, keep_both: true });
        Ok(is_dir.then_some((id, into)))
    }

    /// The name of a conflict copy, as the rules of the namespace form it.
    fn name_beside(&self, name: &Name, changes_before: usize) -> Name {
        let number = self.first + changes_before as u64;
        let mark = format!(".conflict-{}-{number}", self.terms.enlisted.origin.0);
        let kept = name.0.len().min(MAX_NAME_BYTES - mark.len());
        Name([&name.0[..kept], mark.as_bytes()].concat())
    }

    fn compare_file(
        &mut self,
        pair: &Pair,
        (id, node, content): (NodeId, &Node, &Content),
        theirs: Option<&(NodeId, Node)>,
        path: RelPath,
    ) -> Result<(), Error> {
        let held = self.pending.held(id)?.filter(|held| held.is_of(content));
        let fate = match theirs {
            None => Fate::New,
            Some((their_id, their_node)) => match &their_node.kind {
                Kind::File(now) if is_equal((node, content), (their_node, now)) => {
                    if let Some(held) = held {
                        let digest = held.digest.or(content.digest);
                        self.hold_on(*their_id, now, HeldReplica { digest, ..held }, path);
                    }
                    return Ok(());
                }
                Kind::File(now) if *their_id == id && self.is_known(now) => {
                    // The home has an earlier version, or the same one.
                    if content.version > 0 && content.version == now.version {
                        if let Some(held) = held {
                            self.hold_on(id, now, held, path);
                        }
                        return Ok(());
                    }
                    Fate::Newer(*their_id, now.version)
                }
                Kind::File(now) if self.is_replaced((id, content), (*their_id, now))? => {
                    Fate::Replaced(RemovedName::of(*their_id, their_node))
                }
                _ => Fate::Beside,
            },
        };
        let (content, attributes) = (content.clone(), node.attributes.clone());
        let (dir, into) = (pair.theirs, pair.into.clone());
        self.files.push(File { id, path, content, attributes, held, dir, into, fate });
        Ok(())
    }

    /// Keeps a replica of content that the home has, too.
    fn hold_on(&mut self, id: NodeId, now: &Content, held: HeldReplica, path: RelPath) {
        let version = now.version;
        if now.by.0 == self.terms.enlisted.origin {
            // The row stays marked as written here: it may be the only replica again, and the noted ctime is not that
            // of the plain file.
            self.held.push((id, HeldReplica { version: own_version(now.by), ..held }));
        } else if held.is_own() {
            self.replicas.push(Replica { id, path, held, version });
        } else {
            self.held.push((id, HeldReplica { version, ..held }));
        }
    }

    /// Whether a file replaced another one after the backup, and the home still has that one. Its removal at the home loses
    /// nothing: it was removed here as well, or its content goes to the home under the name that it has here.
    fn is_replaced(
        &self,
        (id, content): (NodeId, &Content),
        (their_id, now): (NodeId, &Content),
    ) -> Result<bool, Error> {
        if their_id == id || !self.is_known(now) {
            return Ok(false);
        }
        // A file that both had at the backup and that the home lacks now was replaced there, after the restore.
        if self.was_at_home(id, content) && self.late.node(id)?.is_none() {
            return Ok(false);
        }
        match self.pending.node(their_id)? {
            None => Ok(true),
            Some(Node { kind: Kind::File(content), .. }) => {
                Ok(self.pending.held(their_id)?.is_some_and(|held| held.is_of(&content)))
            }
            Some(_) => Ok(false),
        }
    }

    /// Whether the home had a file at its backup.
    fn was_at_home(&self, id: NodeId, content: &Content) -> bool {
        let is_drawn = id
            .drawn()
            .is_some_and(|(origin, number)| self.drawn.get(&origin).is_some_and(|last| number <= *last));
        is_drawn || (content.version > 0 && self.is_known(content))
    }

    /// Whether the home's content is one that both logs have.
    fn is_known(&self, content: &Content) -> bool {
        content.version <= self.terms.until
    }

    /// Repeats the removal of a name at the home, if it has not heard of the removal or has forgotten it, and the
    /// entry is the one that was removed.
    fn remove_again(
        &mut self,
        pair: &Pair,
        name: &Name,
        before: &Node,
        (id, now): (NodeId, &Node),
    ) -> Result<(), Error> {
        let is_same = match (&before.kind, &now.kind) {
            (Kind::File(old), Kind::File(new)) => is_equal((before, old), (now, new)),
            (Kind::Symlink { target: old }, Kind::Symlink { target: new }) => old == new,
            _ => false,
        };
        if is_same && self.terms.enlisted.writes {
            self.report.removed.add(&pair.path.child(&name.0)?);
            let (at, seen) =
                (Dentry { dir: pair.theirs, name: name.clone() }, Some(RemovedName::of(id, now)));
            self.removals.push(Change::Remove { at, seen, time: plain_file::now() });
        }
        Ok(())
    }

    /// Decides on each file, now that the existing plain files are known.
    fn settle(&mut self, stamps: &HashMap<RelPath, Stamp>) {
        for Replica { id, path, held, version } in std::mem::take(&mut self.replicas) {
            let stamp = stamps.get(&path).copied().filter(|stamp| held.is_as(stamp));
            self.held.extend(stamp.map(|stamp| (id, HeldReplica { version, stamp, ..held })));
        }
        let mut names: HashMap<NodeId, NodeId> = HashMap::new();
        let mut files = std::mem::take(&mut self.files);
        let is_there = |file: &File| stamps.get(&file.path).is_some_and(|stamp| is_here(file, stamp));
        let here: HashSet<NodeId> = files.iter().filter(|file| is_there(file)).map(|file| file.id).collect();
        for file in &mut files {
            // The replaced file is removed at the home: only if it was removed here as well, or its content is here.
            if let Fate::Replaced(seen) = &file.fate
                && !here.contains(&seen.id)
                && !matches!(self.pending.node(seen.id), Ok(None))
            {
                file.fate = Fate::Beside;
            }
        }
        for file in files {
            let Some(stamp) = stamps.get(&file.path).copied().filter(|stamp| is_here(&file, stamp)) else {
                if matches!(file.fate, Fate::New | Fate::Replaced(_)) {
                    self.report.lost.add(&file.path);
                }
                continue;
            };
            let settled = match self.terms.enlisted.writes {
                true => self.hand_in(&file, stamp, &mut names),
                false => self.put_aside(&file),
            };
            if let Err(error) = settled {
                tracing::warn!(path = %file.path, %error, "a file that only this site has gets no name");
            }
        }
    }

    /// Adds the changes that give a content to the home.
    fn hand_in(
        &mut self,
        file: &File,
        stamp: Stamp,
        names: &mut HashMap<NodeId, NodeId>,
    ) -> Result<(), Error> {
        let File { content: Content { size, digest, .. }, attributes, .. } = file;
        let digest = file.held.as_ref().and_then(|held| held.digest).or(*digest);
        let own = Name(file.path.name().unwrap_or_default().to_vec());
        let number = self.first + self.made.len() as u64;
        let held = HeldReplica { version: own_version((self.terms.enlisted.origin, number)), stamp, digest };
        let (size, attributes) = (*size, attributes.clone());
        if let Fate::Newer(id, version) = file.fate {
            let (base, mtime) = (Base::Version(version), attributes.mtime);
            let at = Dentry { dir: file.dir, name: own };
            let beside = Some(Beside { id: self.draw(), at, attributes });
            self.report.renewed.add(&file.path);
            self.made.push(Change::SetContent { id, base, size, digest, mtime, beside });
            self.held.push((id, held));
            return Ok(());
        }
        let (replaced, time) = (file.fate.replaced(), attributes.mtime);
        let is_new = matches!(file.fate, Fate::New);
        let name = if is_new { own.clone() } else { self.name_beside(&own, self.made.len()) };
        let to = file.into.child(if replaced.is_some() { &own.0 } else { &name.0 })?;
        match &file.fate {
            Fate::New => self.report.kept.add(&to),
            Fate::Beside => self.report.beside.add(&to),
            Fate::Newer(..) | Fate::Replaced(_) => self.report.renewed.add(&to),
        }
        let at = Dentry { dir: file.dir, name: name.clone() };
        let id = match names.get(&file.id).copied() {
            Some(id) => {
                self.made.push(Change::Link { id, at, time });
                id
            }
            None => {
                let (id, kind) = (self.draw(), NewKind::Content { size, digest });
                self.made.push(Change::Make { id, at, kind, attributes, keep_both: true });
                self.held.push((id, held));
                names.insert(file.id, id);
                id
            }
        };
        if replaced.is_some() {
            // If the home's file was changed meanwhile, both stay.
            let (from, to) = (Dentry { dir: file.dir, name }, Dentry { dir: file.dir, name: own });
            self.made.push(Change::Rename { from, to, replace: true, seen: replaced, time });
        }
        if to != file.path {
            self.moves.push(Move { id: Some(id), from: file.path.clone(), to });
        }
        Ok(())
    }

    /// Puts a content into a local folder: this site may not change the volume.
    fn put_aside(&mut self, file: &File) -> Result<(), Error> {
        let folder = format!("{KEPT}{}", self.report.at_unix);
        let to = RelPath::parse(folder.as_bytes())?.join(&file.path)?;
        self.report.aside.add(&to);
        self.moves.push(Move { id: None, from: file.path.clone(), to });
        Ok(())
    }

    fn end(mut self) -> Result<(LogSwitch, Vec<Move>, RestoreReport), Error> {
        let origin = self.terms.enlisted.origin;
        let changes = self.made.into_iter().chain(self.removals).zip(self.first..);
        let changes = changes.map(|(change, number)| SequencedChange { origin, number, change }).collect();
        let mut notes = vec![enlisted_note(&self.terms.enlisted), REPORT.row(&self.report)];
        notes.extend(followed_notes(&self.pending.tree, self.terms.incarnation, self.terms.until)?);
        self.held.sort_by_key(|(id, _)| *id);
        Ok((LogSwitch { changes, held: self.held, given: self.given, notes }, self.moves, self.report))
    }
}

impl Fate {
    /// The file of the home that the local one replaces.
    fn replaced(&self) -> Option<RemovedName> {
        match self {
            Fate::Replaced(seen) => Some(*seen),
            _ => None,
        }
    }
}

/// Stamps of plain files; those that do not exist are left out.
fn stamps_of(plain: &LocalStore, paths: Vec<RelPath>) -> HashMap<RelPath, Stamp> {
    let look = |path: RelPath| stamp_of(plain, &path).map(|stamp| (path, stamp));
    paths.into_iter().filter_map(look).collect()
}

fn stamp_of(plain: &LocalStore, path: &RelPath) -> Option<Stamp> {
    let (dir, name) = dir_of(plain, path).ok()?;
    match dir.entry(name, Detail::Basic).ok()?.0.kind {
        EntryKind::File { stamp, .. } => Some(stamp),
        _ => None,
    }
}

/// Adds hard links to plain files, so that every file has a name at any moment.
pub(crate) fn link(plain: &LocalStore, moves: &[Move]) -> Result<(), Error> {
    let root = plain.root()?;
    for Move { from, to, .. } in moves {
        let (dir, name) = dir_of(plain, from)?;
        let to_dir = make_dirs(&root, &to.parent().unwrap_or_else(RelPath::root))?;
        match dir.hard_link(name, &*to_dir, to.name().unwrap_or_default()) {
            // An interrupted earlier attempt created the link.
            Err(error) if error.code == Code::PathExists && is_one(plain, from, to) => {}
            linked => linked?,
        }
        to_dir.sync()?;
    }
    Ok(())
}

fn is_one(plain: &LocalStore, one: &RelPath, other: &RelPath) -> bool {
    let number = |path| stamp_of(plain, path).map(|stamp| stamp.ino);
    number(one).is_some_and(|ino| number(other) == Some(ino))
}

/// Removes the former names of plain files; returns the stamps afterwards.
fn unlink(plain: &LocalStore, moves: &[Move]) -> Vec<(NodeId, Stamp)> {
    for Move { from, to, .. } in moves.iter().filter(|moved| is_one(plain, &moved.from, &moved.to)) {
        let removed = dir_of(plain, from).and_then(|(dir, name)| dir.remove_file(name));
        if let Err(error) = removed {
            tracing::debug!(path = %from, %to, %error, "a plain file also keeps its old name");
        }
    }
    moves.iter().filter_map(|Move { id, to, .. }| Some(((*id)?, stamp_of(plain, to)?))).collect()
}

/// Whether two versions have the same content, as far as can be told without reading them.
fn is_equal((mine, old): (&Node, &Content), (theirs, new): (&Node, &Content)) -> bool {
    old.size == new.size
        && match (old.digest, new.digest) {
            (Some(old), Some(new)) => old == new,
            _ => mine.attributes.mtime == theirs.attributes.mtime,
        }
}

/// Whether the plain file has the content of the view: as noted, or put back with its size and time.
fn is_here(file: &File, stamp: &Stamp) -> bool {
    let is_noted = file.held.as_ref().is_some_and(|held| held.stamp == *stamp);
    is_noted || (stamp.size == file.content.size && stamp.mtime == file.attributes.mtime)
}

type Listed = (Vec<(Name, NodeId, Node)>, Option<Name>);

/// All names of a directory.
fn list(
    dir: Option<NodeId>,
    page: impl Fn(NodeId, Option<&Name>) -> Result<Listed, Error>,
) -> Result<Listing, Error> {
    let (mut all, mut last) = (Listing::new(), None);
    let Some(dir) = dir else { return Ok(all) };
    loop {
        let (names, next) = page(dir, last.as_ref())?;
        all.extend(names.into_iter().map(|(name, id, node)| (name, (id, node))));
        if next.is_none() {
            return Ok(all);
        }
        last = next;
    }
}

fn paged(tree: &VolumeTree) -> impl Fn(NodeId, Option<&Name>) -> Result<Listed, Error> {
    move |dir, last| {
        let names = tree.list(dir, last, PAGE)?;
        let next = names.last().filter(|_| names.len() == PAGE).map(|(name, ..)| name.clone());
        Ok((names, next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deep_tree::{DEEPEST, deep};
    use renkei_catalogue::Trees;
    use renkei_config::home::Home;
    use renkei_core::entry::FileTime;
    use renkei_store::leases::LeaseTable;

    const HERE: Origin = Origin(1);

    #[test]
    fn a_file_renamed_over_another_after_the_restore_stays() {
        let folder = tempfile::tempdir().unwrap();
        let trees = Trees::open("", &Home::at(folder.path())).unwrap();
        let (mine, late) = (trees.tree([7; 16]).unwrap(), trees.tree([8; 16]).unwrap());
        let (a, b) = (Origin(0).id(1), Origin(0).id(2));
        let at = |name: &str| Dentry { dir: ROOT, name: Name(name.into()) };
        let attributes = Attributes {
            mode: 0o644,
            owner: String::new(),
            group: String::new(),
            mtime: FileTime::default(),
        };
        let make = |number: u64, id, name| {
            let kind = NewKind::Content { size: number, digest: None };
            let change =
                Change::Make { id, at: at(name), kind, attributes: attributes.clone(), keep_both: false };
            SequencedChange { origin: Origin(0), number, change }
        };
        for tree in [&mine, &late] {
            tree.decide(&[make(1, a, "a"), make(2, b, "b")]).unwrap();
        }
        let time = FileTime::default();
        let edit = Change::SetContent {
            id: a,
            base: Base::Version(1),
            size: 10,
            digest: None,
            mtime: time,
            beside: None,
        };
        let remove = Change::Remove { at: at("b"), seen: None, time };
        let here = [edit, remove].into_iter().zip(1..);
        let here = here.map(|(change, number)| SequencedChange { origin: HERE, number, change });
        mine.decide(&here.collect::<Vec<_>>()).unwrap();
        let change = Change::Rename { from: at("b"), to: at("a"), replace: true, seen: None, time };
        late.decide(&[SequencedChange { origin: Origin(0), number: 3, change }]).unwrap();
        let pending = Outbox::load("v", mine, &folder.path().join("journal"), LeaseTable::default()).unwrap();
        let enlisted = Enlisted { origin: HERE, writes: true, is_ready: true };
        let terms = Terms { enlisted, incarnation: [1; 16], until: 2 };
        let mut comparison = Comparison::begin(&pending, &late, terms).unwrap();
        comparison.walk().unwrap();
        assert!(matches!(comparison.files[..], [File { fate: Fate::Beside, .. }]));
    }

    #[test]
    fn directories_deeper_than_path_max_do_not_end_a_comparison() {
        let folder = tempfile::tempdir().unwrap();
        let trees = Trees::open("", &Home::at(folder.path())).unwrap();
        let (mine, late) = (trees.tree([7; 16]).unwrap(), trees.tree([8; 16]).unwrap());
        mine.decide(&deep()).unwrap();
        let journal = folder.path().join("journal");
        let pending = Outbox::load("v", mine, &journal, LeaseTable::default()).unwrap();
        let enlisted = Enlisted { origin: HERE, writes: true, is_ready: true };
        let terms = Terms { enlisted, incarnation: [1; 16], until: 0 };
        let mut comparison = Comparison::begin(&pending, &late, terms).unwrap();
        comparison.walk().unwrap();
        assert_eq!((comparison.report.kept.count, comparison.passed_over), (DEEPEST, 1));
        let files: Vec<String> = comparison.files.iter().map(|file| file.path.to_string()).collect();
        assert_eq!(files, ["z"], "what comes behind them is compared");
    }
}
