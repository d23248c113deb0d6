//! The tree of one volume in its database: reading it, and the rows that are kept beside it.
//!
//! A write is durable when its call returns, and atomic. Reads see whole transactions. A failed read is an error,
//! never "not found". Non-goals: the meaning of a change (`renkei_core::namespace`), and permissions.

use super::database::{Connection, DatabaseError, Pool, Query, Row, Value, Work, query};
use super::failed;
use super::stored::{Stored, pack, unpack};
use super::transfers::{count, moment};
use super::tree_commit::{FIND_NAMES, FIND_NODES};
use super::tree_rows::{
    BulkStatement, Scope, Script, by_name, count_at, id_at, name_at, node_at, number, signed, spot_at, store,
};
use super::trees::VolumeId;
use renkei_core::entry::{Stamp, Xattr};
use renkei_core::error::{Code, Error};
use renkei_core::format::Format;
use renkei_core::namespace::memory::MemoryTree;
use renkei_core::namespace::{
    Content, Delta, Dentry, Name, Node, NodeId, Origin, ROOT, Record, SequencedChange,
};
use renkei_core::path::RelPath;
use renkei_core::wire::decode;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Records after which a server's table statistics are first collected (ANALYZE).
const COUNTED_FROM: u64 = 512;

/// Replica rows read at once.
const HELD_AT_ONCE: i64 = 10_000;

/// The tree of a volume.
pub struct VolumeTree {
    /// The database without its password, for messages.
    pub(super) database: Arc<str>,
    pub(super) id: VolumeId,
    pub(super) scope: Scope,
    /// The volume number of the visible nodes and names.
    pub(super) shown: AtomicI64,
    pub(super) writers: Arc<Pool>,
    pub(super) readers: Arc<Pool>,
    pub(super) tail: Tail,
}

/// The last log record that this process wrote, for threads that wait for more.
#[derive(Default)]
pub(super) struct Tail {
    seq: Mutex<u64>,
    grown: Condvar,
}

impl Tail {
    /// Wakes the waiters when the log has grown to `seq`.
    pub(super) fn grow(&self, seq: u64) {
        let mut last = self.seq.lock().expect("no thread panics while it holds the lock");
        *last = seq.max(*last);
        self.grown.notify_all();
    }

    fn wait_beyond(&self, seq: u64, at_most: Duration) {
        let last = self.seq.lock().expect("no thread panics while it holds the lock");
        drop(self.grown.wait_timeout_while(last, at_most, |last| *last <= seq));
    }
}

/// Position of a tree in its log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The last record that the tree contains.
    pub seq: u64,
    /// The last change of each origin in the tree.
    pub taken: BTreeMap<Origin, u64>,
    /// The last node number that was drawn, for each origin.
    pub given: BTreeMap<Origin, u64>,
    /// The last change that was made here.
    pub number: u64,
    /// The record from which on the copy is consistent; before, its pages are from different moments.
    pub whole: u64,
}

impl Position {
    /// Whether the tree is consistent and may be shown.
    pub fn is_whole(&self) -> bool {
        self.seq >= self.whole
    }
}

/// The replica row of a plain file at this site.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldReplica {
    /// The version of the content that the file holds.
    pub version: u64,
    /// The stamp of the file at that time.
    pub stamp: Stamp,
    /// BLAKE3 digest of the content, once it is known.
    pub digest: Option<[u8; 32]>,
}

impl Stored for HeldReplica {
    const FORMAT: Format<Self> = Format::numbered("replica of a file", &[decode]);
}

/// Flag of a version that this site made and that had no record when it was noted.
const OWN_VERSION: u64 = 1 << 63;

/// Largest number of changes of one origin.
const CHANGES_OF_ONE: u64 = 1 << 47;

/// The version of content that a change of this site made, as in a held replica, whether it has a record yet or not.
pub fn own_version((origin, number): (Origin, u64)) -> u64 {
    OWN_VERSION | (u64::from(origin.0) * CHANGES_OF_ONE) | (number % CHANGES_OF_ONE)
}

impl HeldReplica {
    /// Whether the replica has this content.
    pub fn is_of(&self, content: &Content) -> bool {
        let has_record = content.version > 0 && self.version == content.version;
        has_record || self.version == own_version(content.by)
    }

    /// Whether a plain file is unchanged since it was noted. The ctime is not compared for a file that was written
    /// here: the rename to its final name changed it.
    pub fn is_as(&self, stamp: &Stamp) -> bool {
        let known = Stamp { ctime: if self.is_own() { stamp.ctime } else { self.stamp.ctime }, ..self.stamp };
        known == *stamp
    }

    /// Whether a plain file is unchanged since it was noted, and of another version than this content.
    pub fn is_other(&self, content: &Content, stamp: &Stamp) -> bool {
        !self.is_of(content) && self.is_as(stamp)
    }

    /// Whether the content was written here.
    pub fn is_own(&self) -> bool {
        let origin = self.version / CHANGES_OF_ONE % (1 << 16);
        self.version >= OWN_VERSION && origin != u64::from(Origin::HOME.0)
    }

    /// The row of a corrupt plain file: it does not count as held, and its replacement should have this digest.
    pub fn spoiled(version: u64, digest: [u8; 32]) -> Self {
        // The complement is no version of any record.
        HeldReplica { version: !version, stamp: Stamp::default(), digest: Some(digest) }
    }

    /// The row of a missing or corrupt plain file without a known digest.
    pub fn lost(version: u64) -> Self {
        HeldReplica { version: !version, stamp: Stamp::default(), digest: None }
    }

    /// Whether the plain file of this version was found missing or corrupt, and was not replaced since.
    pub fn is_lost(&self, version: u64) -> bool {
        self.version == !version
    }

    /// The expected digest of the replacement of a corrupt plain file.
    pub fn expected(&self, version: u64) -> Option<[u8; 32]> {
        self.digest.filter(|_| self.version == !version)
    }
}

impl VolumeTree {
    /// Creates the root node, if the tree is new.
    pub(super) fn with_root(self) -> Result<Self, Error> {
        self.run("open", || self.make_root())?;
        Ok(self)
    }

    fn make_root(&self) -> Result<(), DatabaseError> {
        let (mut work, position) = self.begin()?;
        let sql = "SELECT COUNT(*) FROM tree_nodes WHERE volume = $1 AND id = $2";
        let root = self.ask_shown(sql).bind(signed(ROOT));
        let is_there = count_at(&root.only(&mut work)?, 0)? > 0;
        let mut script = Script::default();
        if position.seq == 0 && !is_there {
            let nodes = MemoryTree::default().nodes().map(|(id, node)| (id, Some(node.clone()))).collect();
            store(&mut script, self.shown(), Delta { nodes, names: Vec::new() });
        }
        script.commit(work)
    }

    /// Closes the connections; later calls on this tree fail.
    pub(super) fn close(&self) {
        self.readers.close();
        self.writers.close();
    }

    /// Runs some work in the database.
    pub(super) fn run<T>(
        &self,
        op: &str,
        work: impl FnOnce() -> Result<T, DatabaseError>,
    ) -> Result<T, Error> {
        work().map_err(|error| self.failed(op, &error))
    }

    /// The error for a failure of the database.
    pub(super) fn failed(&self, op: &str, error: &DatabaseError) -> Error {
        failed(op, &self.database, error)
    }

    /// Reads with a connection of its own.
    pub(super) fn read<T>(
        &self,
        op: &str,
        read: impl FnOnce(&mut Connection) -> Result<T, DatabaseError>,
    ) -> Result<T, Error> {
        self.run(op, || self.readers.lend(read))
    }

    /// Runs one write statement on the connection for writes.
    pub(super) fn write<T>(
        &self,
        op: &str,
        write: impl FnOnce(&mut Connection) -> Result<T, DatabaseError>,
    ) -> Result<T, Error> {
        self.run(op, || self.writers.lend(write))
    }

    /// A query whose first value is the volume's number.
    pub(super) fn ask(&self, sql: &'static str) -> Query<'static> {
        query(sql).bind(self.scope.volume)
    }

    /// The same with the number of the visible nodes and names.
    pub(super) fn ask_shown(&self, sql: &'static str) -> Query<'static> {
        query(sql).bind(self.shown().volume)
    }

    /// The scope of statements on the visible nodes and names.
    pub(super) fn shown(&self) -> Scope {
        Scope { volume: self.shown.load(Ordering::Acquire), ..self.scope }
    }

    /// The node of a number.
    ///
    /// # Errors
    /// `CatalogueFailed`, as those of all other calls.
    pub fn node(&self, id: NodeId) -> Result<Option<Node>, Error> {
        let sql = "SELECT node FROM tree_nodes WHERE volume = $1 AND id = $2";
        self.read("read", |connection| {
            let query = self.ask_shown(sql).bind(signed(id));
            query.first(connection)?.map_or(Ok(None), |row| node_at(&row, 0))
        })
    }

    /// The extended attributes of a node.
    pub fn xattrs(&self, id: NodeId) -> Result<Vec<Xattr>, Error> {
        Ok(self.node(id.xattrs())?.map(Node::into_xattrs).unwrap_or_default())
    }

    /// The node of a name.
    pub fn child(&self, at: &Dentry) -> Result<Option<(NodeId, Node)>, Error> {
        let sql = "SELECT n.name, n.node, d.node FROM tree_names n \
            LEFT JOIN tree_nodes d ON d.volume = n.volume AND d.id = n.node \
            WHERE n.volume = $1 AND n.dir = $2 AND n.name = $3";
        self.read("read", |connection| {
            let query = self.ask_shown(sql).bind(signed(at.dir)).bind(at.name.0.clone());
            let row = query.first(connection)?;
            row.map(|row| entry(&row).map(|(_, id, node)| (id, node))).transpose()
        })
    }

    /// The node of a path.
    pub fn at(&self, path: &RelPath) -> Result<Option<(NodeId, Node)>, Error> {
        follow_names(path, || self.node(ROOT), |at| self.child(at))
    }

    /// The nodes of many names; names that do not exist are left out.
    pub fn children(&self, names: &[Dentry]) -> Result<HashMap<Dentry, (NodeId, Node)>, Error> {
        let rows = names.iter().map(by_name).collect();
        self.read("read", |connection| {
            let mut found = HashMap::new();
            for row in FIND_NAMES.fetch(connection, self.shown(), rows)? {
                if let Some(node) = node_at(&row, 1)? {
                    found.insert(spot_at(&row, 2)?, (id_at(&row, 0)?, node));
                }
            }
            Ok(found)
        })
    }

    /// The nodes of many numbers; those that do not exist are left out.
    pub fn nodes(&self, ids: &[NodeId]) -> Result<HashMap<NodeId, Node>, Error> {
        let rows = ids.iter().map(|id| [number(*id)]).collect();
        self.read("read", |connection| {
            let found = FIND_NODES.fetch(connection, self.shown(), rows)?;
            let node = |row| Ok(node_at(row, 1)?.map(|node| (id_at(row, 0), node)));
            let nodes: Vec<_> = found.iter().map(node).collect::<Result<_, DatabaseError>>()?;
            nodes.into_iter().flatten().map(|(id, node)| Ok((id?, node))).collect()
        })
    }

    /// Up to `most` names of a directory after `after`, in the order of their bytes, each with its node.
    pub fn list(
        &self,
        dir: NodeId,
        after: Option<&Name>,
        most: usize,
    ) -> Result<Vec<(Name, NodeId, Node)>, Error> {
        self.read("list", |connection| self.list_in(connection, dir, after, most))
    }

    pub(super) fn list_in(
        &self,
        connection: &mut Connection,
        dir: NodeId,
        after: Option<&Name>,
        most: usize,
    ) -> Result<Vec<(Name, NodeId, Node)>, DatabaseError> {
        let sql = "SELECT n.name, n.node, d.node FROM tree_names n \
            LEFT JOIN tree_nodes d ON d.volume = n.volume AND d.id = n.node \
            WHERE n.volume = $1 AND n.dir = $2 AND n.name > $3 ORDER BY n.name LIMIT $4";
        let after = after.map_or(Vec::new(), |name| name.0.clone());
        let query = self.ask_shown(sql).bind(signed(dir)).bind(after).bind(count(most));
        query.rows(connection)?.iter().map(entry).collect()
    }

    /// Has a server collect the statistics of its tables when the tree has grown much (ANALYZE): without them the
    /// planner takes one volume for a small part of a table, and reads all its rows instead of using the index.
    pub(super) fn count_again(&self, before: u64, after: u64) -> Result<(), Error> {
        let magnitude = |seq: u64| (seq / COUNTED_FROM).checked_ilog(8);
        if self.scope.is_sqlite || magnitude(before) == magnitude(after) {
            return Ok(());
        }
        self.write("count", |connection| {
            for sql in ["ANALYZE tree_nodes", "ANALYZE tree_names"] {
                query(sql).execute(connection)?;
            }
            Ok(())
        })
    }

    /// A name that a node has in a directory.
    pub fn name_in(&self, dir: NodeId, id: NodeId) -> Result<Option<Name>, Error> {
        let sql = "SELECT name FROM tree_names WHERE volume = $1 AND dir = $2 AND node = $3 LIMIT 1";
        self.read("read", |connection| {
            let query = self.ask_shown(sql).bind(signed(dir)).bind(signed(id));
            query.first(connection)?.map(|row| name_at(&row, 0)).transpose()
        })
    }

    /// The position of the tree.
    pub fn position(&self) -> Result<Position, Error> {
        let rows =
            |connection: &mut Connection| position_at(&POSITION.fetch(connection, self.scope, vec![[]])?);
        self.read("read", rows)
    }

    /// Begins a transaction that locks the volume's row; returns the position of the tree.
    pub(super) fn begin(&self) -> Result<(Work, Position), DatabaseError> {
        let (work, found) = self.lock().begin(&self.writers)?;
        Ok((work, position_at(&found)?))
    }

    /// The statements that begin a transaction on the tree: the lock, and the rows of a [`Position`].
    pub(super) fn lock(&self) -> Script {
        let mut script = Script::default();
        script.add(&LOCK, self.scope, vec![[]]);
        script.add(&POSITION, self.scope, vec![[]]);
        script
    }

    /// Records after `after`, at most `most`.
    ///
    /// # Errors
    /// `RecordsForgotten` if the log was trimmed beyond that.
    pub fn log(&self, after: u64, most: usize) -> Result<Vec<Record>, Error> {
        let sql = "SELECT record FROM tree_log WHERE volume = $1 AND seq > $2 ORDER BY seq LIMIT $3";
        let mut records: Vec<Record> = self.values_after(sql, after, most)?;
        if records.is_empty() && most > 0 && self.position()?.seq > after {
            // They may have been written between the two reads.
            records = self.values_after(sql, after, most)?;
            if records.is_empty() {
                return Err(self.forgotten(after));
            }
        }
        match records.first() {
            Some(first) if first.seq != after + 1 => Err(self.forgotten(after)),
            _ => Ok(records),
        }
    }

    fn forgotten(&self, after: u64) -> Error {
        Error::new(
            Code::RecordsForgotten,
            "read log",
            "volume",
            format_args!("asked for those after {after}"),
        )
    }

    /// Returns when this process has written records after `seq`, or `at_most` has passed.
    pub fn wait_beyond(&self, seq: u64, at_most: Duration) {
        self.tail.wait_beyond(seq, at_most);
    }

    /// Own changes after `after` that are not in the log yet, at most `most`.
    pub fn pending(&self, after: u64, most: usize) -> Result<Vec<SequencedChange>, Error> {
        let sql =
            "SELECT change FROM tree_pending WHERE volume = $1 AND number > $2 ORDER BY number LIMIT $3";
        self.values_after(sql, after, most)
    }

    fn values_after<T>(&self, sql: &'static str, after: u64, most: usize) -> Result<Vec<T>, Error>
    where
        T: Stored,
    {
        self.read("read", |connection| {
            let query = self.ask(sql).bind(moment(after)).bind(count(most));
            let rows = query.rows(connection)?;
            rows.iter().map(|row| unpack(row.get::<&[u8]>(0)?)).collect()
        })
    }

    /// Draws node numbers: the next `count` of `origin`'s range (`Origin::id`), which are never given again.
    pub fn draw(&self, origin: Origin, count: u64) -> Result<Range<u64>, Error> {
        let sql = "INSERT INTO tree_origins (volume, origin, taken, given) VALUES ($1, $2, 0, $3) \
            ON CONFLICT (volume, origin) DO UPDATE SET given = tree_origins.given + excluded.given \
            RETURNING given";
        self.write("write", |connection| {
            let query = self.ask(sql).bind(i64::from(origin.0));
            let last = count_at(&query.bind(moment(count)).only(connection)?, 0)?;
            Ok(last + 1 - count..last + 1)
        })
    }

    /// The replica row of a node at this site.
    pub fn held(&self, id: NodeId) -> Result<Option<HeldReplica>, Error> {
        let sql = "SELECT held FROM tree_held WHERE volume = $1 AND node = $2";
        self.read("read", |connection| {
            let query = self.ask(sql).bind(signed(id));
            let row = query.first(connection)?;
            row.map(|row| unpack(row.get::<&[u8]>(0)?)).transpose()
        })
    }

    /// Whether this site has any replica row.
    pub fn holds_any(&self) -> Result<bool, Error> {
        let sql = "SELECT node FROM tree_held WHERE volume = $1 LIMIT 1";
        self.read("read", |connection| Ok(self.ask(sql).first(connection)?.is_some()))
    }

    /// Whether this site has a replica row of a file that was written here.
    pub fn wrote_any(&self) -> Result<bool, Error> {
        let sql = "SELECT node, held FROM tree_held WHERE volume = $1 AND node > $2 ORDER BY node LIMIT $3";
        let mut after = i64::MIN;
        loop {
            let page = self.read("read", |connection| {
                let rows = self.ask(sql).bind(after).bind(HELD_AT_ONCE).rows(connection)?;
                let held = |row: &Row| Ok((row.get::<i64>(0)?, unpack::<HeldReplica>(row.get::<&[u8]>(1)?)?));
                rows.iter().map(held).collect::<Result<Vec<_>, DatabaseError>>()
            })?;
            if page.iter().any(|(_, held)| held.is_own()) {
                return Ok(true);
            }
            match page.last() {
                Some((last, _)) => after = *last,
                None => return Ok(false),
            }
        }
    }

    /// The replica rows of many nodes; nodes without one are left out.
    pub fn held_of(&self, ids: &[NodeId]) -> Result<HashMap<NodeId, HeldReplica>, Error> {
        let rows = ids.iter().map(|id| [number(*id)]).collect();
        self.read("read", |connection| {
            let found = FIND_HELD.fetch(connection, self.scope, rows)?;
            found.iter().map(|row| Ok((id_at(row, 0)?, unpack(row.get::<&[u8]>(1)?)?))).collect()
        })
    }

    /// Sets replica rows of this site; `None` removes one. The last entry of a node counts.
    pub fn set_held(&self, held: &[(NodeId, Option<HeldReplica>)]) -> Result<(), Error> {
        let mut script = Script::default();
        self.put_held(&mut script, held);
        self.run("write", || script.run(&self.writers))
    }

    /// Adds that to a script.
    pub(super) fn put_held(&self, script: &mut Script, held: &[(NodeId, Option<HeldReplica>)]) {
        let last: BTreeMap<NodeId, &Option<HeldReplica>> =
            held.iter().map(|(id, held)| (*id, held)).collect();
        let (mut put, mut gone) = (Vec::new(), Vec::new());
        for (id, held) in last {
            match held {
                Some(held) => put.push([number(id), Value::Bytes(pack(held))]),
                None => gone.push([number(id)]),
            }
        }
        script.add(&PUT_HELD, self.scope, put);
        script.add(&DROP_HELD, self.scope, gone);
    }

    /// Replaces a replica row if it is still `known` (compare and swap); returns whether it was.
    pub fn replace_held(
        &self,
        id: NodeId,
        known: &HeldReplica,
        by: Option<&HeldReplica>,
    ) -> Result<bool, Error> {
        let changed = "UPDATE tree_held SET held = $4 WHERE volume = $1 AND node = $2 AND held = $3";
        let gone = "DELETE FROM tree_held WHERE volume = $1 AND node = $2 AND held = $3";
        self.write("write", |connection| {
            let query = self.ask(if by.is_some() { changed } else { gone });
            let query = query.bind(signed(id)).bind(pack(known));
            let query = if let Some(by) = by { query.bind(pack(by)) } else { query };
            Ok(query.execute(connection)? > 0)
        })
    }

    /// The note under a key.
    pub fn note(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        let sql = "SELECT value FROM tree_notes WHERE volume = $1 AND key = $2";
        self.read("read", |connection| {
            let query = self.ask(sql).bind(key.to_owned());
            query.first(connection)?.map(|row| row.get(0)).transpose()
        })
    }

    /// Sets the note under a key.
    pub fn set_note(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        let mut script = Script::default();
        self.put_note(&mut script, key, value.to_vec());
        self.run("write", || script.run(&self.writers))
    }

    /// Adds that to a script.
    pub(super) fn put_note(&self, script: &mut Script, key: &str, value: Vec<u8>) {
        script.add(&PUT_NOTE, self.scope, vec![[Value::Text(key.to_owned()), Value::Bytes(value)]]);
    }
}

/// Resolves a path, given the root node and a lookup of names.
pub fn follow_names(
    path: &RelPath,
    root: impl FnOnce() -> Result<Option<Node>, Error>,
    child: impl Fn(&Dentry) -> Result<Option<(NodeId, Node)>, Error>,
) -> Result<Option<(NodeId, Node)>, Error> {
    let (mut dir, mut found) = (ROOT, None);
    for name in path.components() {
        let Some((id, node)) = child(&Dentry { dir, name: Name(name.to_vec()) })? else { return Ok(None) };
        (dir, found) = (id, Some(node));
    }
    let node = if path.is_root() { root()? } else { found };
    Ok(node.map(|node| (dir, node)))
}

/// Columns of the rows that [`POSITION`] finds.
pub(super) const POSITION_COLUMNS: usize = 6;
/// The position of a tree: one row for each origin, or one row without an origin.
const POSITION: BulkStatement = BulkStatement {
    before: "SELECT v.seq, v.made, v.whole, o.origin, o.taken, o.given FROM tree_volumes v \
        LEFT JOIN tree_origins o ON o.volume = v.number WHERE v.number = $1 AND v.id IS NOT NULL",
    row: "",
    between: "",
    after: "",
};
const LOCK: BulkStatement = BulkStatement {
    before: "UPDATE tree_volumes SET seq = seq WHERE number = $1 AND id IS NOT NULL",
    row: "",
    between: "",
    after: "",
};

/// The position in the rows that [`POSITION`] finds.
pub(super) fn position_at(rows: &[Row]) -> Result<Position, DatabaseError> {
    let first = rows.first().ok_or_else(|| DatabaseError::Invalid("the volume was removed".into()))?;
    let (seq, number, whole) = (count_at(first, 0)?, count_at(first, 1)?, count_at(first, 2)?);
    let mut position = Position { seq, number, whole, ..Position::default() };
    for row in rows {
        let Some(origin) = row.get::<Option<i64>>(3)? else { continue };
        let origin =
            Origin(u16::try_from(origin).map_err(|error| DatabaseError::Invalid(error.to_string()))?);
        position.taken.insert(origin, count_at(row, 4)?);
        position.given.insert(origin, count_at(row, 5)?);
    }
    Ok(position)
}

const PUT_NOTE: BulkStatement = BulkStatement {
    before: "INSERT INTO tree_notes (volume, key, value) VALUES ",
    row: "($1, ?, ?)",
    between: ", ",
    after: " ON CONFLICT (volume, key) DO UPDATE SET value = excluded.value",
};
const FIND_HELD: BulkStatement = BulkStatement {
    before: "SELECT node, held FROM tree_held WHERE volume = $1 AND node IN (",
    row: "?",
    between: ", ",
    after: ")",
};
const PUT_HELD: BulkStatement = BulkStatement {
    before: "INSERT INTO tree_held (volume, node, held) VALUES ",
    row: "($1, ?, ?)",
    between: ", ",
    after: " ON CONFLICT (volume, node) DO UPDATE SET held = excluded.held",
};
const DROP_HELD: BulkStatement = BulkStatement {
    before: "DELETE FROM tree_held WHERE volume = $1 AND node IN (",
    row: "?",
    between: ", ",
    after: ")",
};

/// A name with its node.
fn entry(row: &Row) -> Result<(Name, NodeId, Node), DatabaseError> {
    let id = id_at(row, 1)?;
    let node = node_at(row, 2)?;
    let lost = || DatabaseError::Invalid(format!("a name leads to node {}, which is not there", id.0));
    Ok((name_at(row, 0)?, id, node.ok_or_else(lost)?))
}
