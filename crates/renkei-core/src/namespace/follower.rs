//! A follower of a volume: a copy of the tree, with its own pending changes over it until the home has ordered them.
//!
//! The copy is kept by the caller (in memory, or in a database); this module has the layer over it. Changes made here
//! are decided against the local view, shown at once (optimistic), and kept until the log has them. When records
//! arrive, the copy advances below the layer. As long as the home decided as was seen here, and others changed
//! nothing that own changes touch, that is free; otherwise the remaining changes are rebased on the copy. Directories
//! in which others work too are an exception: their counts of names are added up.

use super::overlay::{Layer, Overlay};
use super::tree::{Clash, Tree, decide, meant_spot};
use super::{
    Beside, Change, Delta, Dentry, Kind, Name, Node, NodeId, Origin, Record, RemovedName, SequencedChange,
};
use crate::entry::FileTime;
use crate::error::{Code, Error};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A change made here that the home refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its number.
    pub number: u64,
    /// The change.
    pub change: Change,
    /// The error it was refused with.
    pub error: Error,
}

/// Result of following a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// The effects to apply to the copy, together with the record's number.
    pub effects: Delta,
    /// A refused change of this site.
    pub refused: Option<Refused>,
}

/// A pending change.
#[derive(Clone, Debug)]
struct Made {
    numbered: SequencedChange,
    /// Hash of its effects here; `None` if it could not be applied.
    mark: Option<u64>,
}

/// A directory's number of names, link count, and mtime.
type Counts = (u64, u32, FileTime);

/// The counts of a directory that does not exist yet.
const NEW_DIR: Counts = (0, 2, FileTime { secs: 0, nanos: 0 });

/// The changes made here that are not in the log yet.
#[derive(Clone, Debug)]
pub struct Follower {
    origin: Origin,
    /// The last record applied to the copy.
    seq: u64,
    /// The last change made here.
    number: u64,
    pending: VecDeque<Made>,
    layer: Layer,
    /// Counts in the copy, of directories in the layer.
    below: BTreeMap<NodeId, Counts>,
    /// Names that pending changes wanted and did not get, because they were taken.
    missed: BTreeSet<Dentry>,
    /// Whether a pending change failed to apply, and any change of others may make it apply.
    needs_rebase: bool,
    /// Number of pending changes that refer to existing names: changes of others may affect their outcome in many
    /// ways.
    delicate: usize,
    /// Whether the copy advanced below the layer in a way that requires a rebase.
    is_stale: bool,
}

impl Follower {
    /// Resumes with a copy up to record `seq`, and with the `pending` changes; `number` is that of the last change
    /// made.
    pub fn resume(origin: Origin, seq: u64, number: u64, pending: VecDeque<SequencedChange>) -> Self {
        let is_stale = !pending.is_empty();
        let delicate = pending.iter().filter(|made| is_order_sensitive(made)).count();
        let pending = pending.into_iter().map(|numbered| Made { numbered, mark: None }).collect();
        Follower {
            origin,
            seq,
            number,
            pending,
            layer: Layer::default(),
            below: BTreeMap::new(),
            missed: BTreeSet::new(),
            needs_rebase: false,
            delicate,
            is_stale,
        }
    }

    /// The origin of these changes.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The last record applied to the copy.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The last change made here.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The pending changes with numbers above `after`.
    pub fn pending(&self, after: u64) -> impl Iterator<Item = &SequencedChange> {
        self.pending.iter().map(|made| &made.numbered).filter(move |sent| sent.number > after)
    }

    /// Number of pending changes.
    pub fn count(&self) -> usize {
        self.pending.len()
    }

    /// The differences from the copy, as of the last rebase.
    pub fn layer(&self) -> &Layer {
        &self.layer
    }

    /// Whether the layer has to be rebased.
    pub fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// The tree as seen here, rebased if necessary.
    pub fn view<'a, T: Tree>(&'a mut self, copy: &'a T) -> Seen<'a, T> {
        self.rebase(copy);
        self.seen(copy)
    }

    /// The same, without a rebase.
    pub fn seen<'a, T: Tree>(&'a self, copy: &'a T) -> Seen<'a, T> {
        Seen { layer: &self.layer, copy }
    }

    /// Makes a change, to be sent to the home; returns it with its number, to be stored first.
    ///
    /// # Errors
    /// As [`decide`], by the local view.
    pub fn submit(&mut self, copy: &impl Tree, change: Change) -> Result<SequencedChange, Error> {
        self.rebase(copy);
        let weighed = self.weigh(copy, vec![change])?;
        self.make(weighed);
        Ok(self.pending.back().expect("it was made").numbered.clone())
    }

    /// Decides changes one after the other by the local view, without making them (dry run). The layer must not be
    /// stale.
    ///
    /// # Errors
    /// As [`decide`].
    pub fn weigh(&self, copy: &impl Tree, changes: Vec<Change>) -> Result<Weighed, Error> {
        let seen = self.seen(copy);
        let mut tree = Overlay::over(&seen);
        let mut weighed = Weighed { made: Vec::new(), below: Vec::new(), missed: Vec::new() };
        for (change, number) in changes.into_iter().zip(self.number + 1..) {
            let change = with_seen(&tree, change);
            let numbered = SequencedChange { origin: self.origin, number, change };
            let effects = decide(&tree, 0, &numbered, Clash::Refuse)?;
            weighed.below.extend(self.new_below(copy, &effects));
            // A rename onto another name of the same file has no effect, as long as both are the same file.
            weighed.missed.extend(missed(&tree, &numbered.change, Some(&effects)));
            effects.nodes.iter().for_each(|(id, node)| tree.put_node(*id, node.clone()));
            effects.names.iter().for_each(|(at, id)| tree.put_name(at.clone(), *id));
            weighed.made.push((numbered, effects));
        }
        Ok(weighed)
    }

    /// Makes the changes decided last by [`Follower::weigh`], with nothing in between.
    pub fn make(&mut self, weighed: Weighed) {
        self.below.extend(weighed.below);
        self.missed.extend(weighed.missed);
        for (numbered, effects) in weighed.made {
            self.number = numbered.number;
            let mark = Some(mark(&effects));
            self.delicate += usize::from(is_order_sensitive(&numbered));
            self.layer.add(effects, numbered.number);
            self.pending.push_back(Made { numbered, mark });
        }
    }

    /// Whether records are of own changes, with exactly the effects already seen here.
    pub fn expects(&self, records: &[Record]) -> bool {
        let mut pending = self.pending.iter();
        !self.is_stale
            && records.iter().all(|record| {
                record.origin == self.origin
                    && pending.next().is_some_and(|made| {
                        let does = record.outcome.as_ref().ok().map(mark);
                        made.numbered.number == record.number && made.mark == does
                    })
            })
    }

    /// Follows the next record; `None` for one that is already in the copy.
    ///
    /// # Errors
    /// `ProtocolViolation` for a gap, or for a change never made here.
    pub fn handle(&mut self, record: Record) -> Result<Option<Followed>, Error> {
        let bad = |cause: String| Error::new(Code::ProtocolViolation, "volume", "record", cause);
        if record.seq <= self.seq {
            return Ok(None);
        }
        if record.seq != self.seq + 1 {
            return Err(bad(format!("{} after {}", record.seq, self.seq)));
        }
        if record.origin == self.origin && self.pending.is_empty() && record.number > self.number {
            // This site started over without its state: continue numbering after its last change in the log.
            self.number = record.number;
            self.seq = record.seq;
            return Ok(Some(Followed { effects: record.outcome.unwrap_or_default(), refused: None }));
        }
        let own = match record.origin == self.origin {
            true => Some(
                self.pending
                    .pop_front_if(|made| made.numbered.number == record.number)
                    .ok_or_else(|| bad(format!("change {} was not made here", record.number)))?,
            ),
            false => None,
        };
        self.seq = record.seq;
        self.delicate -= own.iter().filter(|made| is_order_sensitive(&made.numbered)).count();
        self.is_stale |= !self.moves_on(&record, own.as_ref());
        Ok(Some(match (record.outcome, own) {
            (Ok(effects), _) => Followed { effects, refused: None },
            (Err(error), own) => {
                let refused = own.map(|Made { numbered: SequencedChange { number, change, .. }, .. }| {
                    Refused { number, change, error }
                });
                Followed { effects: Delta::default(), refused }
            }
        }))
    }

    /// Advances the layer with the copy to a record; false if a rebase is needed.
    fn moves_on(&mut self, record: &Record, own: Option<&Made>) -> bool {
        match (&record.outcome, own) {
            _ if self.is_stale => false,
            (Err(_), own) => own.is_none_or(|made| made.mark.is_none()),
            (Ok(effects), Some(made)) => made.mark == Some(mark(effects)) && self.settle(effects, record),
            (Ok(_), None) if self.pending.is_empty() => true,
            (Ok(effects), None) if self.may_decide_anew(effects) => false,
            (Ok(effects), None) => !self.layer.meets(effects) || self.add_up(effects),
        }
    }

    /// Whether changes of others may affect the outcome of own changes that touch none of the same nodes and names.
    fn may_decide_anew(&self, effects: &Delta) -> bool {
        self.needs_rebase || self.delicate > 0 || self.frees_a_way(effects)
    }

    /// Whether records are of others, neither affect the outcome of own changes nor conflict with them, except in
    /// directories that both changed.
    pub fn is_apart_from(&self, records: &[Record]) -> bool {
        let is_apart = |effects: &Delta| {
            let is_dir = |node: &Option<Node>| node.as_ref().is_some_and(Node::is_dir);
            !self.may_decide_anew(effects)
                && effects.names.iter().all(|(at, _)| self.layer.own_name(at).is_none())
                && effects.nodes.iter().all(|(id, node)| is_dir(node) || self.layer.own_node(*id).is_none())
        };
        records.iter().all(|record| record.origin != self.origin)
            && (self.pending.is_empty()
                || (!self.is_stale
                    && records.iter().all(|record| record.outcome.as_ref().is_ok_and(is_apart))))
    }

    /// The home decided as was seen here: drops the change from the layer.
    fn settle(&mut self, effects: &Delta, record: &Record) -> bool {
        self.layer.settle(effects, record.number);
        for (id, node) in &effects.nodes {
            match (self.layer.own_node_mut(*id), node) {
                (None, _) => drop(self.below.remove(id)),
                (Some(_), Some(Node { kind: Kind::Dir { names, .. }, links, attributes, .. })) => {
                    self.below.insert(*id, (*names, *links, attributes.mtime));
                }
                (Some(Node { kind: Kind::File(content), .. }), _)
                    if content.by == (record.origin, record.number) =>
                {
                    content.version = record.seq;
                }
                _ => {}
            }
        }
        true
    }

    /// Whether effects of others may affect the outcome of an own change that does not touch the same: a wanted name
    /// is free now, or a directory was moved.
    fn frees_a_way(&self, effects: &Delta) -> bool {
        let moved = |id: &NodeId| {
            let node = effects.nodes.iter().find(|(node, _)| node == id);
            node.is_some_and(|(_, node)| node.as_ref().is_some_and(Node::is_dir))
        };
        let frees = effects.names.iter().any(|(_, id)| id.is_none());
        effects
            .names
            .iter()
            .any(|(at, id)| self.missed.contains(at) || (frees && id.as_ref().is_some_and(moved)))
    }

    /// Merges effects of others with own changes of the same nodes; false if they differ in more than a directory's
    /// counts.
    fn add_up(&mut self, effects: &Delta) -> bool {
        if effects.names.iter().any(|(at, _)| self.layer.own_name(at).is_some()) {
            return false;
        }
        let met: Vec<_> = effects.nodes.iter().filter(|(id, _)| self.layer.own_node(*id).is_some()).collect();
        let same = |(id, node): &&(NodeId, Option<Node>)| {
            let (Some(Some(own)), Some(node)) = (self.layer.own_node(*id), node) else { return false };
            self.below.contains_key(id) && is_but_for_counts(own, node)
        };
        if !met.iter().all(same) {
            return false;
        }
        for (id, node) in met {
            let (Some(own), Some(node)) = (self.layer.own_node_mut(*id), node) else { return false };
            let (Some(now), Some(before)) = (counts(node), self.below.get(id).copied()) else { return false };
            if let Kind::Dir { names, .. } = &mut own.kind {
                *names = names.wrapping_add(now.0).wrapping_sub(before.0);
            }
            own.links = own.links.wrapping_add(now.1).wrapping_sub(before.1);
            if own.attributes.mtime == before.2 {
                own.attributes.mtime = now.2;
            }
            self.below.insert(*id, now);
        }
        true
    }

    /// The copy's counts of the directories that a change is the first to touch.
    fn new_below(&self, copy: &impl Tree, effects: &Delta) -> Vec<(NodeId, Counts)> {
        let is_new = |id: NodeId| self.layer.own_node(id).is_none() && !self.below.contains_key(&id);
        let dirs = effects.nodes.iter().filter(|(_, node)| node.as_ref().is_some_and(Node::is_dir));
        let new = dirs.filter(|(id, _)| is_new(*id));
        new.map(|(id, _)| (*id, copy.node(*id).as_ref().and_then(counts).unwrap_or(NEW_DIR))).collect()
    }

    /// Rebases the pending changes on the present copy, if needed. A change that no longer applies is not shown; the
    /// home decides its outcome.
    pub fn rebase(&mut self, copy: &impl Tree) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        self.layer = Layer::default();
        self.below.clear();
        self.missed.clear();
        self.needs_rebase = false;
        let mut pending = std::mem::take(&mut self.pending);
        for made in &mut pending {
            let decided = decide(&self.seen(copy), 0, &made.numbered, Clash::AsWanted);
            made.mark = decided.as_ref().ok().map(mark);
            self.needs_rebase |= decided.is_err();
            let missed = missed(&self.seen(copy), &made.numbered.change, decided.as_ref().ok());
            self.missed.extend(missed);
            if let Ok(effects) = decided {
                self.below.extend(self.new_below(copy, &effects));
                self.layer.add(effects, made.numbered.number);
            }
        }
        self.pending = pending;
    }
}

/// Records in a change the state of the entries that it removes: if the home has another or newer one, that is kept.
fn with_seen(tree: &impl Tree, change: Change) -> Change {
    let look = |at: &Dentry| {
        let id = tree.child(&meant_spot(tree, at))?;
        Some((id, tree.node(id)?))
    };
    let not_dir = |(id, node): (NodeId, Node)| (!node.is_dir()).then(|| RemovedName::of(id, &node));
    match change {
        Change::Remove { at, time, .. } => {
            let seen = look(&at).and_then(not_dir);
            Change::Remove { at, seen, time }
        }
        Change::Rename { from, to, replace, time, .. } => {
            let there = look(&to);
            // Also for a directory: at the home, a file unknown here may have taken its place.
            let (replace, seen) =
                (replace && there.is_some(), there.map(|(id, node)| RemovedName::of(id, &node)));
            Change::Rename { from, to, replace, seen, time }
        }
        change => change,
    }
}

fn is_order_sensitive(made: &SequencedChange) -> bool {
    !matches!(made.change, Change::Make { .. } | Change::SetAttributes { .. } | Change::SetContent { .. })
}

/// The name that a change wanted, if it got another one or none.
fn missed(tree: &impl Tree, change: &Change, effects: Option<&Delta>) -> Option<Dentry> {
    let at = match change {
        Change::Make { at, .. } | Change::Link { at, .. } | Change::Rename { to: at, .. } => at,
        Change::SetContent { beside: Some(Beside { at, .. }), .. } => at,
        _ => return None,
    };
    let is_of =
        |effects: &Delta, at: &Dentry| effects.names.iter().any(|(name, id)| name == at && id.is_some());
    if effects.is_some_and(|effects| is_of(effects, at)) {
        return None;
    }
    let at = meant_spot(tree, at);
    (!effects.is_some_and(|effects| is_of(effects, &at))).then_some(at)
}

fn counts(node: &Node) -> Option<Counts> {
    match node.kind {
        Kind::Dir { names, .. } => Some((names, node.links, node.attributes.mtime)),
        _ => None,
    }
}

/// Whether two states of a directory differ only in fields that change with the entries in it.
fn is_but_for_counts(a: &Node, b: &Node) -> bool {
    let parent = |node: &Node| match node.kind {
        Kind::Dir { parent, .. } => Some(parent),
        _ => None,
    };
    let (x, y) = (&a.attributes, &b.attributes);
    parent(a).is_some()
        && parent(a) == parent(b)
        && (x.mode, &x.owner, &x.group) == (y.mode, &y.owner, &y.group)
}

/// Changes that were decided and not made.
#[derive(Clone, Debug)]
pub struct Weighed {
    /// Each change with its effects.
    pub made: Vec<(SequencedChange, Delta)>,
    below: Vec<(NodeId, Counts)>,
    missed: Vec<Dentry>,
}

/// Hash of the effects of a change: equal at two sites whose touched nodes are equal, apart from the numbers assigned
/// by the home and the counts of directories.
fn mark(effects: &Delta) -> u64 {
    let mut plain = effects.clone();
    for node in plain.nodes.iter_mut().filter_map(|(_, node)| node.as_mut()) {
        node.changed = 0;
        match &mut node.kind {
            Kind::File(content) => content.version = 0,
            Kind::Dir { names, .. } => (*names, node.links) = (0, 0),
            Kind::Symlink { .. } | Kind::Merged { .. } | Kind::Xattrs(_) => {}
        }
    }
    let hash = blake3::hash(&crate::encoding::encode(&plain));
    u64::from_le_bytes(*hash.as_bytes().first_chunk().expect("BLAKE3 has 32 bytes"))
}

/// Borrowed view of a copy with a layer over it.
pub struct Seen<'a, T> {
    layer: &'a Layer,
    copy: &'a T,
}

impl<T: Tree> Tree for Seen<'_, T> {
    fn node(&self, id: NodeId) -> Option<Node> {
        self.layer.node(self.copy, id)
    }

    fn child(&self, at: &Dentry) -> Option<NodeId> {
        self.layer.child(self.copy, at)
    }

    fn list(&self, dir: NodeId, after: Option<&Name>, most: usize) -> Vec<(Name, NodeId)> {
        self.layer.list(self.copy, dir, after, most)
    }
}
