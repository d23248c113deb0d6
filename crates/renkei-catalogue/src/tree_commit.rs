//! Commits to a tree at the home of its volume: changes become records of the log, in one transaction for each batch.
//!
//! The rows that a batch names are prefetched with a few bulk statements; other rows are read on demand. The changes of
//! the batch are an overlay over what was read, and written once at its end: a directory in which a batch makes a
//! thousand files is written once. The volume's row is locked first, so batches of several daemons are serialised.

use super::database::{DatabaseError, Row, Value, Work};
use super::stored::pack;
use super::transfers::moment;
use super::tree::{HeldReplica, POSITION_COLUMNS, Position, VolumeTree, position_at};
use super::tree_rows::{BulkStatement, Script, by_name, id_at, node_at, number, spot_at, store};
use renkei_core::error::Error;
use renkei_core::namespace::home::Home;
use renkei_core::namespace::overlay::Overlay;
use renkei_core::namespace::quota::{Difference, differences};
use renkei_core::namespace::tree::{Tree, meant_spot, merging};
use renkei_core::namespace::{Change, Delta, Dentry, Name, Node, NodeId, Origin, Record, SequencedChange};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Differences in usage by owner.
type ByDifference = BTreeMap<String, Difference>;
/// A note with its key.
type Note = (String, Vec<u8>);

impl VolumeTree {
    /// Decides changes in order against the tree, and stores the records, their effects, and the position,
    /// atomically; returns the records of changes that were not in the log yet.
    ///
    /// # Errors
    /// `CatalogueFailed`; `ProtocolViolation` if changes before one are missing.
    pub fn decide(&self, changes: &[SequencedChange]) -> Result<Vec<Record>, Error> {
        self.decide_holding(changes, |_| Vec::new())
    }

    /// The same, with replica rows of this site after those records; see [`VolumeTree::set_held`].
    ///
    /// # Errors
    /// As [`VolumeTree::decide`].
    pub fn decide_holding(
        &self,
        changes: &[SequencedChange],
        held: impl FnOnce(&[Record]) -> Vec<(NodeId, Option<HeldReplica>)>,
    ) -> Result<Vec<Record>, Error> {
        if changes.is_empty() {
            let held = held(&[]);
            return if held.is_empty() { Ok(Vec::new()) } else { self.set_held(&held).map(|()| Vec::new()) };
        }
        self.decide_with(changes, held, |_, _| None)
    }

    /// The same, with a note under a key, made of the records and of their differences in usage.
    ///
    /// # Errors
    /// As [`VolumeTree::decide`].
    pub fn decide_noting(
        &self,
        changes: &[SequencedChange],
        note: impl FnOnce(&[Record], &ByDifference) -> Option<Note>,
    ) -> Result<Vec<Record>, Error> {
        self.decide_with(changes, |_| Vec::new(), note)
    }

    fn decide_with(
        &self,
        changes: &[SequencedChange],
        held: impl FnOnce(&[Record]) -> Vec<(NodeId, Option<HeldReplica>)>,
        note: impl FnOnce(&[Record], &ByDifference) -> Option<Note>,
    ) -> Result<Vec<Record>, Error> {
        let (reading, position) = Reading::begin(self, changes)?;
        let (records, effects) = decide_all(&reading, position.clone(), changes)?;
        let differences = reading.differences(&effects)?;
        let (work, before, held) = (reading.work.into_inner(), position.seq, held(&records));
        let note = note(&records, &differences);
        let done = (effects, differences, note);
        self.run("decide", || self.store_records(work, position, &records, done, &held))?;
        self.count_again(before, before + records.len() as u64)?;
        Ok(records)
    }

    fn store_records(
        &self,
        work: Work,
        mut position: Position,
        records: &[Record],
        (effects, differences, note): (Delta, ByDifference, Option<Note>),
        held: &[(NodeId, Option<HeldReplica>)],
    ) -> Result<(), DatabaseError> {
        position.note(records);
        let mut script = Script::default();
        store(&mut script, self.shown(), effects);
        self.add_usage(&mut script, differences);
        let rows = records.iter().map(|record| [stored(record.seq), Value::Bytes(pack(record))]).collect();
        script.add(&PUT_RECORDS, self.scope, rows);
        self.note_away(&mut script, records);
        self.put_held(&mut script, held);
        if let Some((key, value)) = note {
            self.put_note(&mut script, &key, value);
        }
        self.store_position(&mut script, &position);
        script.commit(work)?;
        self.tail.grow(position.seq);
        Ok(())
    }

    /// Adds statements that store the position.
    pub(super) fn store_position(&self, script: &mut Script, position: &Position) {
        script.add(&PUT_POSITION, self.scope, vec![[stored(position.seq), stored(position.number)]]);
        let origins: BTreeSet<&Origin> = position.taken.keys().chain(position.given.keys()).collect();
        let row = |origin: &Origin| {
            let (taken, given) = (position.taken.get(origin), position.given.get(origin));
            let [taken, given] = [taken, given].map(|count| stored(count.copied().unwrap_or(0)));
            [Value::Number(origin.0.into()), taken, given]
        };
        script.add(&PUT_ORIGINS, self.scope, origins.into_iter().map(row).collect());
    }
}

impl Position {
    /// Advances the position over some records.
    pub(super) fn note(&mut self, records: &[Record]) {
        for record in records {
            self.seq = record.seq;
            self.taken.insert(record.origin, record.number);
            let nodes = record.outcome.iter().flat_map(|effects| &effects.nodes);
            for (origin, count) in nodes.filter_map(|(id, _)| id.drawn()) {
                let given = self.given.entry(origin).or_default();
                *given = count.max(*given);
            }
        }
    }
}

/// For one row only.
const PUT_POSITION: BulkStatement = BulkStatement {
    before: "UPDATE tree_volumes SET ",
    row: "seq = ?, made = ?",
    between: ", ",
    after: " WHERE number = $1",
};
const PUT_RECORDS: BulkStatement = BulkStatement {
    before: "INSERT INTO tree_log (volume, seq, record) VALUES ",
    row: "($1, ?, ?)",
    between: ", ",
    after: "",
};
/// Numbers are drawn concurrently, so the given ones never decrease.
const PUT_ORIGINS: BulkStatement = BulkStatement {
    before: "INSERT INTO tree_origins (volume, origin, taken, given) VALUES ",
    row: "($1, ?, ?, ?)",
    between: ", ",
    after: " ON CONFLICT (volume, origin) DO UPDATE SET taken = excluded.taken, given = \
        CASE WHEN excluded.given > tree_origins.given THEN excluded.given ELSE tree_origins.given END",
};
/// Columns of the rows that [`FIND_NODES`] finds; those of [`FIND_NAMES`] begin with the same.
const NODE_COLUMNS: usize = 2;
/// A cross join makes SQLite look up each wanted row by key, and not the other way round.
pub(super) const FIND_NAMES: BulkStatement = BulkStatement {
    before: "WITH wanted (dir, name) AS (VALUES ",
    row: "(?, ?)",
    between: ", ",
    after: ") SELECT n.node, d.node, n.dir, n.name FROM wanted w CROSS JOIN tree_names n \
        LEFT JOIN tree_nodes d ON d.volume = n.volume AND d.id = n.node \
        WHERE n.volume = $1 AND n.dir = w.dir AND n.name = w.name",
};
pub(super) const FIND_NODES: BulkStatement = BulkStatement {
    before: "SELECT id, node FROM tree_nodes WHERE volume = $1 AND id IN (",
    row: "?",
    between: ", ",
    after: ")",
};

/// A count as a value.
pub(super) fn stored(count: u64) -> Value {
    Value::Number(moment(count))
}

/// The records of changes, and their combined effects.
fn decide_all(
    reading: &Reading<'_>,
    position: Position,
    changes: &[SequencedChange],
) -> Result<(Vec<Record>, Delta), Error> {
    let mut home = Home::resume(position.seq, position.taken);
    let mut draft = Overlay::over(reading);
    let mut records = Vec::with_capacity(changes.len());
    for change in changes {
        let decided = home.handle(&draft, change);
        reading.check()?;
        let Some(record) = decided? else { continue };
        if let Ok(effects) = &record.outcome {
            effects.nodes.iter().for_each(|(id, node)| draft.put_node(*id, node.clone()));
            effects.names.iter().for_each(|(at, id)| draft.put_name(at.clone(), *id));
        }
        records.push(record);
    }
    Ok((records, draft.into_effects()))
}

/// The reads of a batch: the tree as it was before, with a cache.
struct Reading<'a> {
    tree: &'a VolumeTree,
    work: RefCell<Work>,
    known: RefCell<ReadCache>,
    /// The first read error: all decisions since are void.
    failed: RefCell<Option<Error>>,
}

#[derive(Default)]
struct ReadCache {
    nodes: HashMap<NodeId, Option<Node>>,
    names: HashMap<Dentry, Option<NodeId>>,
}

impl<'a> Reading<'a> {
    /// Begins a batch: locks the tree, and prefetches the rows that the changes name.
    fn begin(tree: &'a VolumeTree, changes: &[SequencedChange]) -> Result<(Self, Position), Error> {
        let mut wanted = Wanted::default();
        changes.iter().for_each(|numbered| wanted.add(&numbered.change));
        let names = wanted.names.clone();
        let script = wanted.asked(tree, tree.lock());
        let begun = tree.run("decide", || {
            let (work, found) = script.begin(&tree.writers)?;
            let (position, found): (Vec<Row>, _) =
                found.into_iter().partition(|row| row.len() == POSITION_COLUMNS);
            Ok((work, position_at(&position)?, wanted.known(&found)?))
        });
        let (work, position, known) = begun?;
        let reading = Reading {
            tree,
            work: RefCell::new(work),
            known: RefCell::new(known),
            failed: RefCell::default(),
        };
        reading.read_meant(names, changes)?;
        Ok((reading, position))
    }

    fn check(&self) -> Result<(), Error> {
        self.failed.borrow().clone().map_or(Ok(()), Err)
    }

    /// Prefetches names with their directories resolved, if those were or will be merged.
    fn read_meant(&self, names: BTreeSet<Dentry>, changes: &[SequencedChange]) -> Result<(), Error> {
        let meant = |at: Dentry| meant_spot(self, &at);
        let mut spots: BTreeSet<Dentry> = names.into_iter().map(meant).collect();
        self.read(Wanted::of_names(spots.clone()))?;
        let merging = merging(self, changes.iter().map(|numbered| &numbered.change));
        let into = |at: Dentry| Some(Dentry { dir: *merging.get(&at.dir)?, ..at });
        spots = spots.into_iter().filter_map(into).collect();
        if !spots.is_empty() {
            self.read(Wanted::of_names(spots))?;
        }
        // Nodes that lose their names end with their extended attributes.
        let nodes = self.known.borrow().names.values().flatten().map(|id| id.xattrs()).collect();
        self.read(Wanted { nodes, ..Wanted::default() })
    }

    /// Reads rows that are not cached.
    fn read(&self, mut wanted: Wanted) -> Result<(), Error> {
        let mut known = self.known.borrow_mut();
        wanted.nodes.retain(|id| !known.nodes.contains_key(id));
        wanted.names.retain(|at| !known.names.contains_key(at));
        let script = wanted.asked(self.tree, Script::default());
        let found = self.tree.run("decide", || script.fetch(&mut self.work.borrow_mut()))?;
        let read = wanted.known(&found).map_err(|error| self.tree.failed("decide", &error))?;
        known.nodes.extend(read.nodes);
        known.names.extend(read.names);
        Ok(())
    }

    /// Differences in usage by a batch.
    fn differences(&self, effects: &Delta) -> Result<ByDifference, Error> {
        let before: Vec<Option<Node>> = effects.nodes.iter().map(|(id, _)| self.node(*id)).collect();
        self.check()?;
        let changes = effects.nodes.iter().zip(&before);
        Ok(differences(changes.map(|((id, after), before)| (*id, before.as_ref(), after.as_ref()))))
    }

    /// Keeps the first error.
    fn note<T>(&self, read: Result<T, Error>) -> Option<T> {
        let remember = |error| {
            self.failed.borrow_mut().get_or_insert(error);
        };
        read.map_err(remember).ok()
    }

    fn lost<T>(&self, what: impl std::fmt::Display) -> Option<T> {
        let error = DatabaseError::Invalid(format!("{what} is not there"));
        self.note(Err(self.tree.failed("decide", &error)))
    }
}

impl Tree for Reading<'_> {
    fn node(&self, id: NodeId) -> Option<Node> {
        if !self.known.borrow().nodes.contains_key(&id) {
            self.note(self.read(Wanted { nodes: BTreeSet::from([id]), ..Wanted::default() }))?;
        }
        self.known.borrow().nodes.get(&id)?.clone()
    }

    fn child(&self, at: &Dentry) -> Option<NodeId> {
        if !self.known.borrow().names.contains_key(at) {
            self.note(self.read(Wanted::of_names(BTreeSet::from([at.clone()]))))?;
        }
        let id = (*self.known.borrow().names.get(at)?)?;
        match self.known.borrow().nodes.get(&id) {
            Some(Some(_)) => Some(id),
            _ => self.lost(format_args!("node {}, which a name leads to,", id.0)),
        }
    }

    /// No change needs a list; it is not cached.
    fn list(&self, dir: NodeId, after: Option<&Name>, most: usize) -> Vec<(Name, NodeId)> {
        let mut work = self.work.borrow_mut();
        let read = self.tree.run("decide", || self.tree.list_in(&mut work, dir, after, most));
        let rows = self.note(read).unwrap_or_default();
        rows.into_iter().map(|(name, id, _)| (name, id)).collect()
    }
}

/// Rows that changes name.
#[derive(Default)]
pub(super) struct Wanted {
    pub(super) nodes: BTreeSet<NodeId>,
    pub(super) names: BTreeSet<Dentry>,
}

impl Wanted {
    fn of_names(names: BTreeSet<Dentry>) -> Self {
        Wanted { names, ..Wanted::default() }
    }

    /// Adds statements that find the nodes, and the names with their nodes.
    fn asked(&self, tree: &VolumeTree, mut script: Script) -> Script {
        script.add(&FIND_NODES, tree.shown(), self.nodes.iter().map(|id| [number(*id)]).collect());
        script.add(&FIND_NAMES, tree.shown(), self.names.iter().map(by_name).collect());
        script
    }

    /// The cache for the rows that were found; rows that were not found do not exist.
    fn known(self, found: &[Row]) -> Result<ReadCache, DatabaseError> {
        let mut known = ReadCache::default();
        known.nodes.extend(self.nodes.into_iter().map(|id| (id, None)));
        known.names.extend(self.names.into_iter().map(|at| (at, None)));
        for row in found {
            let id = id_at(row, 0)?;
            known.nodes.insert(id, node_at(row, 1)?);
            if row.len() > NODE_COLUMNS {
                known.names.insert(spot_at(row, NODE_COLUMNS)?, Some(id));
            }
        }
        Ok(known)
    }

    pub(super) fn add(&mut self, change: &Change) {
        match change {
            Change::Make { id, at, .. } | Change::Link { id, at, .. } => {
                self.nodes.insert(*id);
                self.name(at);
            }
            Change::Remove { at, .. } | Change::RemoveDir { at, .. } => self.name(at),
            Change::Rename { from, to, .. } => {
                self.name(from);
                self.name(to);
            }
            Change::SetAttributes { id, .. } => drop(self.nodes.insert(*id)),
            Change::SetContent { id, .. } => drop(self.nodes.insert(*id)),
            Change::SetXattr { id, .. } => self.nodes.extend([*id, id.xattrs()]),
        }
    }

    fn name(&mut self, at: &Dentry) {
        self.nodes.insert(at.dir);
        self.names.insert(at.clone());
    }
}
