//! Materialisation: the records of followers' changes are carried out in the plain tree of the home.
//!
//! A plan is made for one run of records; a rename of a directory has a run of its own, so that the paths of
//! directories do not change within a run. The plan is carried out with the rights of the volume's account. A name is
//! changed only if it is still as the volume knew it, so a plan is idempotent and may be repeated after a kill, and
//! concurrent local changes stay. Failures are reported: a rename is undone in the catalogue, other names are
//! compared at once, and the comparison trusts the plain tree.

use super::name_lock::NameLock;
use super::node_paths::NodePaths;
use crate::plain_entry::{is_same_content, meta};
use crate::reconciler_requests::Arrived;
use renkei_catalogue::{HeldReplica, VolumeTree};
use renkei_core::entry::{EntryKind, Meta, Stamp, Xattr};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::xattrs::changes_of;
use renkei_core::namespace::{Attributes, Change, Content, Delta, Dentry, Kind, Node, NodeId, ROOT, Record};
use renkei_core::path::RelPath;
use renkei_store::temp::temp_name;
use renkei_store::{Detail, Dir};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Key of the temporary names of files that are created empty.
const JOB: u64 = 0x6177_6179;
/// Mode of directories until their entries are created.
const OPEN_MODE: u32 = 0o700;

/// One step of a plan.
#[derive(Debug)]
enum Step {
    /// Removes the file or directory of a name.
    Remove { path: RelPath, id: NodeId },
    /// Renames a node; the target replaces `replaced`.
    Rename { id: NodeId, from: RelPath, to: RelPath, replaced: Option<NodeId>, back: Change },
    /// Creates a directory.
    Dir { id: NodeId, path: RelPath },
    /// Creates a symbolic link.
    Symlink { id: NodeId, path: RelPath, target: Vec<u8>, attributes: Attributes },
    /// Adds a hard link to a file.
    Link { id: NodeId, names: Vec<RelPath>, to: RelPath },
    /// Creates an empty file, or replaces a file by an empty one.
    Empty { id: NodeId, names: Vec<RelPath>, version: u64, attributes: Attributes },
    /// Moves a fetched file to its names.
    Place { arrived: Arrived, names: Vec<RelPath>, content: Content, attributes: Attributes },
    /// Sets the extended attributes of a file or directory.
    Xattrs { id: NodeId, path: RelPath, xattrs: Vec<Xattr> },
    /// Sets the attributes of a file that holds this version, or of a symbolic link.
    Attributes { id: NodeId, path: RelPath, version: u64, attributes: Attributes },
}

/// The steps of a plan.
#[derive(Default)]
pub(crate) struct Plan {
    /// Steps on names; first, in the order of the records.
    steps: Vec<Step>,
    /// Steps on nodes, after those, by the final names of the nodes.
    later: Vec<Step>,
    /// Final attributes of directories, the deepest first.
    dirs: BTreeMap<std::cmp::Reverse<RelPath>, Attributes>,
    held: HashMap<NodeId, HeldReplica>,
    /// Final versions of files.
    last: HashMap<NodeId, u64>,
    /// Extended attributes of files that are placed.
    xattrs: HashMap<NodeId, Vec<Xattr>>,
}

/// Result of a plan.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Nodes that the plain tree has now.
    pub(crate) here: Vec<(NodeId, Option<HeldReplica>)>,
    /// Replicas whose plain files changed otherwise.
    pub(crate) held: Vec<(NodeId, Option<HeldReplica>)>,
    /// Directories that were created.
    pub(crate) made: Vec<RelPath>,
    /// Directories that were renamed, with all entries below them.
    pub(crate) moved: Vec<(RelPath, RelPath)>,
    /// Steps that failed.
    pub(crate) failed: Vec<Failed>,
}

/// A step that failed.
#[derive(Debug)]
pub(crate) struct Failed {
    /// The name that the step concerns.
    pub(crate) path: RelPath,
    /// The error.
    pub(crate) error: Error,
    /// The inverse change for the catalogue, where comparing that name alone does not restore the state of the plain
    /// tree.
    pub(crate) back: Option<Change>,
}

/// The name that a record removes.
fn freed(effects: &Delta) -> Option<&Dentry> {
    effects.names.iter().find(|(_, id)| id.is_none()).map(|(spot, _)| spot)
}

/// The name that a record adds, with its node.
fn given(effects: &Delta) -> Option<(&Dentry, NodeId)> {
    effects.names.iter().find_map(|(spot, id)| Some((spot, (*id)?)))
}

/// Names of nodes.
type Named = HashMap<NodeId, Vec<Dentry>>;

/// For each record that adds a hard link, the names that the file has before it; `named` are the names after all
/// records.
fn linked(named: &Named, records: &[Record]) -> Vec<Vec<Dentry>> {
    let mut named: HashMap<NodeId, BTreeSet<Dentry>> =
        named.iter().map(|(id, spots)| (*id, spots.iter().cloned().collect())).collect();
    let mut before = |record: &Record| {
        let Ok(effects) = &record.outcome else { return Vec::new() };
        let freed = freed(effects);
        let given = given(effects);
        let mut spots = Vec::new();
        if let Some((to, id)) = given {
            let own = named.entry(id).or_default();
            own.remove(to);
            own.extend(freed.cloned());
            spots.extend(own.iter().cloned());
        }
        // The node that lost its name by this record.
        let lost = given.map(|(to, _)| to).filter(|_| freed.is_some()).or(freed);
        let is_other = |(id, node): &&(NodeId, Option<Node>)| {
            given.is_none_or(|(_, own)| own != *id) && node.as_ref().is_none_or(|node| !node.is_dir())
        };
        if let Some((spot, (id, _))) = lost.zip(effects.nodes.iter().find(is_other)) {
            named.entry(*id).or_default().insert(spot.clone());
        }
        spots
    };
    let mut linked: Vec<Vec<Dentry>> = records.iter().rev().map(&mut before).collect();
    linked.reverse();
    linked
}

/// Last names of nodes that were removed, by the records that removed them.
fn gone(records: &[Record]) -> HashMap<NodeId, Dentry> {
    let mut gone = HashMap::new();
    for effects in records.iter().filter_map(|record| record.outcome.as_ref().ok()) {
        let freed = freed(effects);
        let ended = effects.nodes.iter().find(|(_, node)| node.is_none());
        if let (Some(spot), Some((id, _))) = (freed, ended) {
            gone.insert(*id, spot.clone());
        }
    }
    gone
}

impl Plan {
    /// The plan for a run of records; the tree already contains them, and those in `later`.
    pub(crate) fn of(tree: &VolumeTree, records: &[Record], later: &[Record]) -> Result<Self, Error> {
        let (mut plan, mut paths) = (Plan::default(), NodePaths::of_tree(tree, gone(records)));
        let mut ids = BTreeSet::new();
        for effects in records.iter().filter_map(|record| record.outcome.as_ref().ok()) {
            ids.extend(effects.nodes.iter().map(|(id, _)| *id));
            ids.extend(effects.nodes.iter().filter_map(|(id, _)| id.described()));
            ids.extend(effects.names.iter().filter_map(|(_, id)| *id));
            plan.last.extend(effects.nodes.iter().filter_map(|(id, node)| match &node.as_ref()?.kind {
                Kind::File(content) => Some((*id, content.version)),
                _ => None,
            }));
        }
        let ids: Vec<NodeId> = ids.into_iter().collect();
        plan.held = tree.held_of(&ids)?;
        let named = tree.names_of(&ids)?;
        let linked = linked(&named, &[records, later].concat());
        for (record, linked) in records.iter().zip(linked) {
            if let Ok(effects) = &record.outcome {
                plan.add((&named, linked), &mut paths, record.seq, effects)?;
            }
        }
        plan.set_xattrs(tree, &mut paths, ids.iter().filter_map(|id| id.described()).collect())?;
        Ok(plan)
    }

    /// The plan that moves fetched files to their names; files that are not wanted any more are left out.
    pub(crate) fn placing(tree: &VolumeTree, arrived: Vec<Arrived>) -> Result<Self, Error> {
        let ids: Vec<NodeId> = arrived.iter().map(|arrived| arrived.id).collect();
        let (mut plan, mut paths) = (Plan::default(), NodePaths::of_tree(tree, HashMap::new()));
        plan.held = tree.held_of(&ids)?;
        let named = tree.names_of(&ids)?;
        // Creating the incoming folder changed the time of the root.
        plan.settle(tree, &mut paths, ROOT)?;
        for arrived in arrived {
            let Some(Node { kind: Kind::File(content), attributes, .. }) = tree.node(arrived.id)? else {
                continue;
            };
            let spots = named.get(&arrived.id).map(Vec::as_slice).unwrap_or_default();
            if content.version != arrived.version || spots.is_empty() {
                continue;
            }
            for spot in spots {
                plan.settle(tree, &mut paths, spot.dir)?;
            }
            let names = all_paths(&mut paths, spots)?;
            plan.steps.push(Step::Place { arrived, names, content, attributes });
        }
        plan.set_xattrs(tree, &mut paths, BTreeSet::new())?;
        Ok(plan)
    }

    /// The plan that creates missing directories and symbolic links.
    pub(crate) fn making(tree: &VolumeTree, ids: &BTreeSet<NodeId>) -> Result<Self, Error> {
        let (mut plan, mut paths) = (Plan::default(), NodePaths::of_tree(tree, HashMap::new()));
        for id in ids {
            let Some(node) = tree.node(*id)? else { continue };
            let named = tree.names_of(&[*id])?.remove(id).and_then(|mut names| names.pop());
            let Some(path) = named.map(|spot| paths.of(&spot)).transpose()?.flatten() else { continue };
            plan.make(*id, &node, path);
        }
        // Parents before children.
        plan.steps.sort_by(|a, b| a.path().cmp(b.path()));
        plan.set_xattrs(tree, &mut paths, BTreeSet::new())?;
        Ok(plan)
    }

    /// `named` are the final names of nodes; `linked` the names that the file has before this record adds a hard
    /// link.
    fn add(
        &mut self,
        (named, linked): (&Named, Vec<Dentry>),
        paths: &mut NodePaths<'_>,
        seq: u64,
        effects: &Delta,
    ) -> Result<(), Error> {
        for (id, node) in &effects.nodes {
            if let Some(node) = node.as_ref().filter(|node| node.is_dir())
                && let Some(path) = paths.of_dir(*id)?
            {
                self.dirs.insert(std::cmp::Reverse(path), node.attributes.clone());
            }
        }
        let freed = freed(effects);
        let given = given(effects);
        match (freed, given) {
            (Some(from), Some((to, id))) => self.rename(paths, effects, id, from, to),
            (Some(from), None) => {
                let ended = effects.nodes.iter().find(|(_, node)| node.as_ref().is_none_or(|n| !n.is_dir()));
                let Some((path, (id, _))) = paths.of(from)?.zip(ended) else { return Ok(()) };
                self.steps.push(Step::Remove { path, id: *id });
                Ok(())
            }
            (None, Some((to, id))) => {
                let node = effects.nodes.iter().find(|(node, _)| *node == id).and_then(|(_, n)| n.as_ref());
                let Some(node) = node else { return Ok(()) };
                match &node.kind {
                    Kind::File(content) if content.version != seq => {
                        let Some(to) = paths.of(to)? else { return Ok(()) };
                        let names = all_paths(paths, &linked)?;
                        self.steps.push(Step::Link { id, names, to });
                        Ok(())
                    }
                    Kind::Dir { .. } => {
                        if let Some(path) = paths.of(to)? {
                            self.make(id, node, path);
                        }
                        Ok(())
                    }
                    _ => self.alter(named, paths, (seq, true), (id, node)),
                }
            }
            (None, None) => effects.nodes.iter().try_for_each(|(id, node)| match node {
                Some(node) => self.alter(named, paths, (seq, false), (*id, node)),
                None => Ok(()),
            }),
        }
    }

    fn rename(
        &mut self,
        paths: &mut NodePaths<'_>,
        effects: &Delta,
        id: NodeId,
        from_spot: &Dentry,
        to_spot: &Dentry,
    ) -> Result<(), Error> {
        let time = effects.nodes.iter().find_map(|(_, node)| Some(node.as_ref()?.attributes.mtime));
        let time = time.unwrap_or_default();
        let is_other = |node: &Option<Node>| node.as_ref().is_none_or(|node| !node.is_dir());
        let replaced = effects.nodes.iter().find(|(other, node)| *other != id && is_other(node));
        let replaced = replaced.map(|(id, _)| *id);
        if let (Some(from), Some(to)) = (paths.of(from_spot)?, paths.of(to_spot)?) {
            let (now, before) = (to_spot.clone(), from_spot.clone());
            let back = Change::Rename { from: now, to: before, replace: false, seen: None, time };
            self.steps.push(Step::Rename { id, from, to, replaced, back });
        }
        Ok(())
    }

    fn make(&mut self, id: NodeId, node: &Node, path: RelPath) {
        match &node.kind {
            Kind::Dir { .. } => {
                self.dirs.insert(std::cmp::Reverse(path.clone()), node.attributes.clone());
                self.steps.push(Step::Dir { id, path });
            }
            Kind::Symlink { target } => {
                let (target, attributes) = (target.clone(), node.attributes.clone());
                self.steps.push(Step::Symlink { id, path, target, attributes });
            }
            Kind::File(_) | Kind::Merged { .. } | Kind::Xattrs(_) => {}
        }
    }

    /// A node is created, or its content or attributes change. Empty content need not be fetched.
    fn alter(
        &mut self,
        named: &Named,
        paths: &mut NodePaths<'_>,
        (seq, is_made): (u64, bool),
        (id, node): (NodeId, &Node),
    ) -> Result<(), Error> {
        let names = all_paths(paths, named.get(&id).map(Vec::as_slice).unwrap_or_default())?;
        let Some(path) = names.first().cloned() else { return Ok(()) };
        let attributes = node.attributes.clone();
        let step = match &node.kind {
            Kind::File(Content { version, size, .. }) if *version == seq => {
                if *size > 0 || self.last.get(&id).is_some_and(|last| last != version) {
                    return Ok(());
                }
                Step::Empty { id, names, version: *version, attributes }
            }
            Kind::File(Content { version, .. }) => {
                Step::Attributes { id, path, version: *version, attributes }
            }
            Kind::Symlink { target } if is_made => {
                Step::Symlink { id, path, target: target.clone(), attributes }
            }
            Kind::Symlink { .. } => Step::Attributes { id, path, version: 0, attributes },
            Kind::Dir { .. } | Kind::Merged { .. } | Kind::Xattrs(_) => return Ok(()),
        };
        self.later.push(step);
        Ok(())
    }

    /// Adds the steps that set extended attributes: those of `ids`, and of files and directories that are made.
    fn set_xattrs(
        &mut self,
        tree: &VolumeTree,
        paths: &mut NodePaths<'_>,
        mut ids: BTreeSet<NodeId>,
    ) -> Result<(), Error> {
        let made = self.steps.iter().chain(&self.later).filter_map(Step::made);
        let wanted: Vec<NodeId> = made.chain(ids.iter().copied()).map(NodeId::xattrs).collect();
        let found = tree.nodes(&wanted)?.into_iter();
        self.xattrs = found.filter_map(|(id, node)| Some((id.described()?, node.into_xattrs()))).collect();
        ids.extend(self.xattrs.keys());
        let named = tree.names_of(&ids.iter().copied().collect::<Vec<_>>())?;
        for id in ids {
            let path = match named.get(&id).and_then(|spots| spots.first()) {
                Some(spot) => paths.of(spot)?,
                None => (id == ROOT).then(RelPath::root),
            };
            let xattrs = self.xattrs.get(&id).cloned().unwrap_or_default();
            self.later.extend(path.map(|path| Step::Xattrs { id, path, xattrs }));
        }
        Ok(())
    }

    /// Adds a directory to those that get the attributes of the catalogue at the end.
    fn settle(&mut self, tree: &VolumeTree, paths: &mut NodePaths<'_>, dir: NodeId) -> Result<(), Error> {
        let Some(path) = paths.of_dir(dir)? else { return Ok(()) };
        if !self.dirs.contains_key(&std::cmp::Reverse(path.clone()))
            && let Some(node) = tree.node(dir)?
        {
            self.dirs.insert(std::cmp::Reverse(path), node.attributes);
        }
        Ok(())
    }

    /// Whether the plan has no steps.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.later.is_empty() && self.dirs.is_empty()
    }

    /// Carries the plan out below `top`; fetched files are in `incoming`. While the name lock is held, no writer
    /// changes a name between its check and its change.
    pub(crate) fn carry_out(
        self,
        top: Arc<dyn Dir>,
        incoming: Option<Arc<dyn Dir>>,
        names: NameLock,
    ) -> Done {
        let (done, touched) = (Done::default(), BTreeSet::new());
        let (held, xattrs) = (self.held, self.xattrs);
        let mut hand = Hand { top, incoming, names, held, xattrs, done, touched };
        for step in self.steps.iter().chain(&self.later) {
            if let Err(error) = hand.take(step) {
                hand.done.failed.push(Failed { path: step.path().clone(), error, back: step.back() });
            }
        }
        for (std::cmp::Reverse(path), attributes) in &self.dirs {
            hand.settle(path, attributes);
        }
        hand.sync();
        hand.done
    }
}

fn all_paths(paths: &mut NodePaths<'_>, spots: &[Dentry]) -> Result<Vec<RelPath>, Error> {
    spots.iter().filter_map(|spot| paths.of(spot).transpose()).collect()
}

impl Step {
    /// The name that the step concerns.
    fn path(&self) -> &RelPath {
        match self {
            Step::Remove { path, .. } | Step::Dir { path, .. } | Step::Symlink { path, .. } => path,
            Step::Attributes { path, .. } | Step::Xattrs { path, .. } => path,
            Step::Rename { to, .. } | Step::Link { to, .. } => to,
            Step::Empty { names, .. } | Step::Place { names, .. } => names.first().unwrap_or(&EMPTY),
        }
    }

    /// The file or directory that it makes.
    fn made(&self) -> Option<NodeId> {
        match self {
            Step::Empty { id, .. } | Step::Dir { id, .. } => Some(*id),
            Step::Place { arrived, .. } => Some(arrived.id),
            _ => None,
        }
    }

    /// See [`Failed::back`].
    fn back(&self) -> Option<Change> {
        match self {
            Step::Rename { back, .. } => Some(back.clone()),
            _ => None,
        }
    }
}

static EMPTY: std::sync::LazyLock<RelPath> = std::sync::LazyLock::new(RelPath::root);

/// The executor of a plan.
struct Hand {
    top: Arc<dyn Dir>,
    incoming: Option<Arc<dyn Dir>>,
    names: NameLock,
    held: HashMap<NodeId, HeldReplica>,
    xattrs: HashMap<NodeId, Vec<Xattr>>,
    done: Done,
    /// Directories in which names changed; they are synced at the end.
    touched: BTreeSet<RelPath>,
}

/// A name in a directory of the plain tree.
struct At<'p> {
    dir: Arc<dyn Dir>,
    name: &'p [u8],
}

impl Hand {
    fn take(&mut self, step: &Step) -> Result<(), Error> {
        match step {
            Step::Remove { path, id } => self.remove(path, *id),
            Step::Rename { id, from, to, replaced, .. } => self.rename(*id, from, to, *replaced),
            Step::Dir { id, path } => {
                let at = self.open(path)?;
                made(at.dir.mkdir(at.name, OPEN_MODE), || at.dir.child(at.name).map(drop))?;
                self.note(*id, None);
                self.done.made.push(path.clone());
                Ok(())
            }
            Step::Symlink { id, path, target, attributes } => {
                let at = self.open(path)?;
                let is_it = || match at.dir.entry(at.name, Detail::Basic)?.0.kind {
                    EntryKind::Symlink { target: known } if known == *target => Ok(()),
                    _ => Err(Error::new(Code::PathExists, "make link", path, "")),
                };
                made(at.dir.symlink(target, at.name), is_it)?;
                at.dir.set_meta(at.name, &meta(attributes))?;
                self.note(*id, None);
                Ok(())
            }
            Step::Link { id, names, to } => self.link(*id, names, to),
            Step::Empty { id, names, version, attributes } => self.empty(*id, names, *version, attributes),
            Step::Place { arrived, names, content, attributes } => {
                self.place(arrived, names, content, attributes)
            }
            Step::Attributes { id, path, version, attributes } => {
                self.set_attributes(*id, path, *version, attributes)
            }
            Step::Xattrs { id, path, xattrs } => self.set_xattrs(*id, path, xattrs),
        }
    }

    /// Notes that the plain tree has this node now.
    fn note(&mut self, id: NodeId, held: Option<HeldReplica>) {
        if let Some(held) = &held {
            self.held.insert(id, held.clone());
        }
        self.done.here.push((id, held));
    }

    /// Opens the parent directory of a path to change names in it.
    fn open<'p>(&mut self, path: &'p RelPath) -> Result<At<'p>, Error> {
        let (parent, name) =
            path.split().ok_or_else(|| Error::new(Code::IsADirectory, "open", path, "the top"))?;
        let parent = RelPath::parse(parent)?;
        let dir = self.dir(&parent)?;
        if dir.is_locked()? {
            dir.unlock()?;
        }
        self.touched.insert(parent);
        Ok(At { dir, name })
    }

    fn dir(&self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        if path.is_root() { Ok(self.top.clone()) } else { self.top.descend(path) }
    }

    /// Whether a name is free, or has what the catalogue knows of the plain file of this node.
    fn is_ours(&self, at: &At<'_>, id: Option<NodeId>) -> Result<bool, Error> {
        let kind = match at.dir.entry(at.name, Detail::Basic) {
            Ok((entry, _)) => entry.kind,
            Err(error) if error.code == Code::PathNotFound => return Ok(true),
            Err(error) => return Err(error),
        };
        let held = id.and_then(|id| self.held.get(&id));
        Ok(match kind {
            EntryKind::File { stamp, .. } => held.is_some_and(|held| is_same_content(&held.stamp, &stamp)),
            EntryKind::Dir | EntryKind::Symlink { .. } => id.is_some() && held.is_none(),
            _ => false,
        })
    }

    /// Whether a name leads to the inode of a node's plain file, whatever its content.
    fn is_file(&self, at: &At<'_>, id: NodeId) -> bool {
        at.dir.entry(at.name, Detail::Basic).is_ok_and(|(entry, _)| self.is_file_of(&entry.kind, id))
    }

    /// The same for an entry that was read already.
    fn is_file_of(&self, kind: &EntryKind, id: NodeId) -> bool {
        let EntryKind::File { stamp, .. } = kind else { return false };
        self.held.get(&id).is_some_and(|held| held.stamp.ino == stamp.ino)
    }

    fn remove(&mut self, path: &RelPath, id: NodeId) -> Result<(), Error> {
        let (at, names) = (self.open(path)?, self.names.clone());
        let _names = names.own();
        if self.is_ours(&at, Some(id))? {
            match at.dir.remove_file(at.name) {
                Err(error) if error.code == Code::IsADirectory => at.dir.remove_dir(at.name)?,
                Err(error) if error.code == Code::PathNotFound => {}
                done => done?,
            }
        }
        Ok(())
    }

    fn rename(
        &mut self,
        id: NodeId,
        from: &RelPath,
        to: &RelPath,
        replaced: Option<NodeId>,
    ) -> Result<(), Error> {
        let (old, new, names) = (self.open(from)?, self.open(to)?, self.names.clone());
        let own = names.own();
        let there = old.dir.entry(old.name, Detail::Basic).map(|(entry, _)| entry.kind);
        let is_file = there.as_ref().is_ok_and(|kind| self.is_file_of(kind, id));
        if !self.is_ours(&new, replaced)? {
            // The rename was done before a kill, and an earlier step was repeated.
            if is_file && self.is_file(&new, id) {
                old.dir.remove_file(old.name)?;
            }
            return Ok(());
        }
        let is_dir = matches!(there, Ok(EntryKind::Dir));
        let is_it = match there {
            Ok(EntryKind::File { .. }) => is_file,
            Ok(EntryKind::Dir | EntryKind::Symlink { .. }) => !self.held.contains_key(&id),
            _ => false,
        };
        match replaced {
            _ if is_it => {
                old.dir.rename(old.name, &*new.dir, new.name)?;
                self.done.moved.extend(is_dir.then(|| (from.clone(), to.clone())));
                Ok(())
            }
            // The renamed file is remote and has the name of another one: the plain file of that one is removed.
            Some(replaced) => {
                drop(own);
                self.remove(to, replaced)
            }
            None => Ok(()),
        }
    }

    fn link(&mut self, id: NodeId, names: &[RelPath], to: &RelPath) -> Result<(), Error> {
        let new = self.open(to)?;
        for name in names.iter().filter(|name| *name != to) {
            let old = self.open(name)?;
            if self.is_file(&old, id) {
                return made(old.dir.hard_link(old.name, &*new.dir, new.name), || Ok(()));
            }
        }
        Ok(())
    }

    fn empty(
        &mut self,
        id: NodeId,
        names: &[RelPath],
        version: u64,
        attributes: &Attributes,
    ) -> Result<(), Error> {
        let Some(first) = names.first() else { return Ok(()) };
        let (at, temp) = (self.open(first)?, temp_name(JOB, first));
        at.dir.create_temp(&temp, false)?.sync_all()?;
        let stamp = self.put_there(id, &*at.dir.clone(), &temp, names, &meta(attributes))?;
        if let Some(stamp) = stamp {
            self.note(id, Some(HeldReplica { version, stamp, digest: None }));
        }
        Ok(())
    }

    fn place(
        &mut self,
        arrived: &Arrived,
        names: &[RelPath],
        content: &Content,
        attributes: &Attributes,
    ) -> Result<(), Error> {
        let Some(incoming) = self.incoming.clone() else { return Ok(()) };
        let stamp = match incoming.entry(&arrived.name, Detail::Basic).map(|(entry, _)| entry.kind) {
            Ok(EntryKind::File { stamp, .. }) => stamp,
            // The file was not fetched.
            _ => return Ok(()),
        };
        if (stamp.size, stamp.mtime) != (content.size, attributes.mtime) {
            incoming.remove_file(&arrived.name)?;
            return Ok(());
        }
        let expected = self.held.get(&arrived.id).and_then(|held| held.expected(content.version));
        let meta = match (expected, names.first()) {
            // A replica of the same version that was corrupt: its metadata stay.
            (Some(_), Some(name)) => self.meta_of(name)?,
            _ => meta(attributes),
        };
        let stamp = self.put_there(arrived.id, &*incoming, &arrived.name, names, &meta)?;
        if let Some(stamp) = stamp {
            let (version, digest) = (content.version, content.digest.or(expected));
            self.note(arrived.id, Some(HeldReplica { version, stamp, digest }));
        }
        Ok(())
    }

    /// Metadata of a plain file.
    fn meta_of(&mut self, path: &RelPath) -> Result<Meta, Error> {
        let at = self.open(path)?;
        Ok(at.dir.entry(at.name, Detail::Full)?.0.meta)
    }

    /// Moves a file to the first name of a node and hard-links it to the others; moves nothing if one name has a file
    /// that the catalogue does not know.
    fn put_there(
        &mut self,
        id: NodeId,
        from: &dyn Dir,
        temp: &[u8],
        names: &[RelPath],
        meta: &Meta,
    ) -> Result<Option<Stamp>, Error> {
        // Before the file has a name: a comparison after a kill trusts what it finds there.
        let mut meta = meta.clone();
        meta.xattrs.extend(self.xattrs.get(&id).into_iter().flatten().cloned());
        from.set_meta(temp, &meta)?;
        let names_now = self.names.clone();
        let _own = names_now.own();
        for name in names {
            let at = self.open(name)?;
            if !self.is_ours(&at, Some(id))? {
                from.remove_file(temp)?;
                return Ok(None);
            }
        }
        let Some((first, others)) = names.split_first() else { return Ok(None) };
        let at = self.open(first)?;
        from.rename(temp, &*at.dir, at.name)?;
        for other in others {
            let further = self.open(other)?;
            let _ = further.dir.remove_file(further.name);
            at.dir.hard_link(at.name, &*further.dir, further.name)?;
        }
        match at.dir.entry(at.name, Detail::Basic)?.0.kind {
            EntryKind::File { stamp, .. } => Ok(Some(stamp)),
            _ => Ok(None),
        }
    }

    fn set_attributes(
        &mut self,
        id: NodeId,
        path: &RelPath,
        version: u64,
        attributes: &Attributes,
    ) -> Result<(), Error> {
        let held = self.held.get(&id).cloned();
        if held.as_ref().map_or(0, |held| held.version) != version {
            return Ok(());
        }
        let (at, names) = (self.open(path)?, self.names.clone());
        let _names = names.own();
        if !self.is_ours(&at, Some(id))? {
            return Ok(());
        }
        at.dir.set_meta(at.name, &meta(attributes))?;
        self.note_stamp(id, &*at.dir, at.name)
    }

    /// Notes the stamp of a plain file whose metadata were changed here.
    fn note_stamp(&mut self, id: NodeId, dir: &dyn Dir, name: &[u8]) -> Result<(), Error> {
        let Some(held) = self.held.get(&id).cloned() else { return Ok(()) };
        let EntryKind::File { stamp, .. } = dir.entry(name, Detail::Basic)?.0.kind else { return Ok(()) };
        let held = HeldReplica { stamp, ..held };
        self.held.insert(id, held.clone());
        match self.done.here.iter_mut().rev().find(|(one, _)| *one == id) {
            Some((_, here)) => *here = Some(held),
            None => self.done.held.push((id, Some(held))),
        }
        Ok(())
    }

    /// Sets extended attributes, of a file only if it has the content that the catalogue knows.
    fn set_xattrs(&mut self, id: NodeId, path: &RelPath, xattrs: &[Xattr]) -> Result<(), Error> {
        let at = match path.is_root() {
            true => At { dir: self.top.clone(), name: b"" },
            false => self.open(path)?,
        };
        let names = self.names.clone();
        let _names = names.own();
        let found = match path.is_root() {
            true => at.dir.self_entry(Detail::Full),
            false => at.dir.entry(at.name, Detail::Full),
        };
        let entry = match found {
            Err(error) if error.code == Code::PathNotFound => return Ok(()),
            found => found?.0,
        };
        let is_file = matches!(entry.kind, EntryKind::File { .. });
        if is_file && !self.is_ours(&at, Some(id))? {
            return Ok(());
        }
        for change in changes_of(id, &entry.meta.xattrs, xattrs) {
            if let Change::SetXattr { name, value, .. } = change {
                at.dir.set_xattr(at.name, &name, value.as_deref())?;
            }
        }
        if is_file { self.note_stamp(id, &*at.dir, at.name) } else { Ok(()) }
    }

    /// Sets the mode and time of a directory to those of the catalogue, as far as the account may.
    fn settle(&mut self, path: &RelPath, attributes: &Attributes) {
        let Ok(dir) = self.dir(path) else { return };
        let now = dir.self_entry(Detail::Basic).map(|(entry, _)| (entry.meta.mode, entry.meta.mtime));
        if now.is_ok_and(|now| now != (attributes.mode, attributes.mtime))
            && let Err(error) = dir.set_own_meta(&meta(attributes))
        {
            tracing::debug!(%error, "a directory keeps its mode and time");
        }
    }

    /// Syncs all directories in which names changed; if that fails, no node counts as created.
    fn sync(&mut self) {
        let synced = self.touched.iter().try_for_each(|path| match self.dir(path) {
            Ok(dir) => dir.sync(),
            Err(_) => Ok(()),
        });
        if let Err(error) = synced {
            self.done.failed.push(Failed { path: RelPath::root(), error, back: None });
            self.done.here.clear();
        }
    }
}

/// Treats `PathExists` as success if `is_it` confirms that the existing entry is the wanted one.
fn made(done: Result<(), Error>, is_it: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    match done {
        Err(error) if error.code == Code::PathExists => is_it(),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_catalogue::Trees;
    use renkei_config::home::Home;
    use renkei_core::namespace::{NewKind, Origin, SequencedChange};

    /// A file that is renamed, linked back and loses its new name: the link needs the name that the file had at that
    /// record, also where the tree already contains all records, as after a kill.
    #[test]
    fn a_link_is_made_from_an_earlier_name_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let tree = Trees::open("", &Home::at(folder.path())).unwrap().tree([7; 16]).unwrap();
        let (origin, time) = (Origin(0), renkei_core::entry::FileTime::default());
        let at = |name: &[u8]| Dentry { dir: ROOT, name: renkei_core::namespace::Name(name.to_vec()) };
        let attributes = Attributes { mode: 0o644, owner: String::new(), group: String::new(), mtime: time };
        let id = origin.id(1);
        let kind = NewKind::Content { size: 1, digest: None };
        let changes = [
            Change::Make { id, at: at(b"a"), kind, attributes, keep_both: false },
            Change::Rename { from: at(b"a"), to: at(b"b"), replace: false, seen: None, time },
            Change::Link { id, at: at(b"a"), time },
            Change::Remove { at: at(b"b"), seen: None, time },
        ];
        let numbered = changes.into_iter().zip(1..);
        let changes: Vec<_> =
            numbered.map(|(change, number)| SequencedChange { origin, number, change }).collect();
        let records = tree.decide(&changes).unwrap();
        assert!(records.iter().all(|record| record.outcome.is_ok()), "{records:?}");
        for cut in 3..=records.len() {
            let plan = Plan::of(&tree, &records[..cut], &records[cut..]).unwrap();
            let links = plan.steps.iter().filter_map(|step| match step {
                Step::Link { names, to, .. } => Some((names.clone(), to.clone())),
                _ => None,
            });
            let path = |name: &[u8]| RelPath::parse(name).unwrap();
            assert_eq!(links.collect::<Vec<_>>(), [(vec![path(b"b")], path(b"a"))], "cut at {cut}");
        }
    }
}
