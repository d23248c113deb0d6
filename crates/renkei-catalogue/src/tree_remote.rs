//! Remote nodes of a tree at its home: content that is at the site that wrote it only, and directories and links that
//! could not be created in the plain tree.
//!
//! The list is updated in the transactions that store records, so it is always complete. Non-goal: fetching.

use super::database::{DatabaseError, Row, Value};
use super::tree::{HeldReplica, VolumeTree};
use super::tree_commit::stored;
use super::tree_rows::{BulkStatement, Script, count_at, id_at, name_at, number};
use renkei_core::error::Error;
use renkei_core::namespace::{Delta, Dentry, Kind, Node, NodeId, Origin, Record};
use std::collections::{BTreeMap, HashMap};

/// The home's own changes, which come from the plain tree.
pub const OWN: Origin = Origin(0);

/// A node that the plain tree does not have, or not in this version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away {
    /// The node.
    pub id: NodeId,
    /// The record of that version.
    pub version: u64,
    /// The site that wrote it.
    pub origin: Origin,
    /// Bytes of its content.
    pub size: u64,
}

/// Remote nodes of one origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwayAt {
    /// The site.
    pub origin: Origin,
    /// Files, and directories and links that could not be created.
    pub count: u64,
    /// Bytes of their content.
    pub bytes: u64,
}

/// The nodes that become remote by some records, and those that are not remote any more.
fn changed(records: &[Record]) -> BTreeMap<NodeId, Option<Away>> {
    let mut changed = BTreeMap::new();
    for record in records {
        let Ok(effects) = &record.outcome else { continue };
        for (id, node) in &effects.nodes {
            match node {
                None => drop(changed.insert(*id, None)),
                Some(node) if is_new(record.seq, *id, node, effects) => {
                    let size = if let Kind::File(content) = &node.kind { content.size } else { 0 };
                    let away = Away { id: *id, version: record.seq, origin: record.origin, size };
                    changed.insert(*id, (record.origin != OWN).then_some(away));
                }
                Some(_) => {}
            }
        }
    }
    changed
}

/// Whether a record created a node, or gave a file new content.
fn is_new(seq: u64, id: NodeId, node: &Node, effects: &Delta) -> bool {
    let frees = effects.names.iter().any(|(_, id)| id.is_none());
    let is_named = effects.names.iter().any(|(_, named)| *named == Some(id));
    match &node.kind {
        Kind::File(content) => content.version == seq,
        Kind::Dir { .. } => is_named && !frees,
        Kind::Symlink { .. } => is_named && !frees && node.links == 1,
        Kind::Merged { .. } | Kind::Xattrs(_) => false,
    }
}

impl VolumeTree {
    /// Updates the list of remote nodes by records.
    pub(super) fn note_away(&self, script: &mut Script, records: &[Record]) {
        let (mut put, mut gone) = (Vec::new(), Vec::new());
        for (id, away) in changed(records) {
            match away {
                Some(away) => put.push(row(&away)),
                None => gone.push([number(id)]),
            }
        }
        script.add(&PUT_AWAY, self.scope, put);
        script.add(&DROP_AWAY, self.scope, gone);
    }

    /// Remote nodes after a version, by version, at most `most`.
    ///
    /// # Errors
    /// `CatalogueFailed`, as those of all other calls.
    pub fn away(&self, after: u64, most: usize) -> Result<Vec<Away>, Error> {
        let sql = "SELECT node, version, origin, size FROM tree_away \
            WHERE volume = $1 AND version > $2 ORDER BY version LIMIT $3";
        self.read("read", |connection| {
            let most = i64::try_from(most).unwrap_or(i64::MAX);
            let query = self.ask(sql).bind(after.cast_signed()).bind(most);
            query.rows(connection)?.iter().map(away_at).collect()
        })
    }

    /// Whether a node is in the list of remote nodes.
    pub fn is_away(&self, id: NodeId) -> Result<bool, Error> {
        let sql = "SELECT node FROM tree_away WHERE volume = $1 AND node = $2";
        self.read("read", |connection| {
            Ok(self.ask(sql).bind(id.0.cast_signed()).first(connection)?.is_some())
        })
    }

    /// Remote nodes by origin.
    pub fn away_by_site(&self) -> Result<Vec<AwayAt>, Error> {
        // A hostile site may declare huge files: the sum might overflow an integer.
        let sql = "SELECT origin, COUNT(*), SUM(CAST(size AS DOUBLE PRECISION)) FROM tree_away \
            WHERE volume = $1 GROUP BY origin ORDER BY origin";
        self.read("read", |connection| {
            let rows = self.ask(sql).rows(connection)?;
            let told = |row| {
                let origin = Origin(u16::try_from(count_at(row, 0)?).unwrap_or(u16::MAX));
                Ok(AwayAt { origin, count: count_at(row, 1)?, bytes: row.get::<f64>(2)? as u64 })
            };
            rows.iter().map(told).collect()
        })
    }

    /// Adds directories to the list that were removed from the plain tree while they had remote content.
    pub fn set_away(&self, away: &[Away]) -> Result<(), Error> {
        let mut script = Script::default();
        script.add(&PUT_AWAY, self.scope, away.iter().map(row).collect());
        self.run("write", || script.run(&self.writers))
    }

    /// Removes nodes from the list that the plain tree has now, and sets the replica rows of the files.
    pub fn set_here(&self, here: &[(NodeId, Option<HeldReplica>)]) -> Result<(), Error> {
        let held: Vec<_> = here.iter().filter(|(_, held)| held.is_some()).cloned().collect();
        let upto =
            |held: &Option<HeldReplica>| stored(held.as_ref().map_or(i64::MAX as u64, |held| held.version));
        let rows = here.iter().map(|(id, held)| [number(*id), upto(held)]).collect();
        let mut script = Script::default();
        self.put_held(&mut script, &held);
        script.add(&DROP_OLDER, self.scope, rows);
        self.run("write", || script.run(&self.writers))
    }

    /// All names of some nodes.
    pub fn names_of(&self, ids: &[NodeId]) -> Result<HashMap<NodeId, Vec<Dentry>>, Error> {
        let rows = ids.iter().map(|id| [number(*id)]).collect();
        self.read("read", |connection| {
            let mut found: HashMap<NodeId, Vec<Dentry>> = HashMap::new();
            for row in FIND_NAMES_OF.fetch(connection, self.shown(), rows)? {
                let spot = Dentry { dir: id_at(&row, 1)?, name: name_at(&row, 2)? };
                found.entry(id_at(&row, 0)?).or_default().push(spot);
            }
            Ok(found)
        })
    }
}

fn row(away: &Away) -> [Value; 4] {
    let origin = Value::Number(away.origin.0.into());
    [number(away.id), stored(away.version), origin, stored(away.size)]
}

fn away_at(row: &Row) -> Result<Away, DatabaseError> {
    let origin =
        u16::try_from(row.get::<i64>(2)?).map_err(|error| DatabaseError::Invalid(error.to_string()))?;
    Ok(Away {
        id: id_at(row, 0)?,
        version: count_at(row, 1)?,
        origin: Origin(origin),
        size: count_at(row, 3)?,
    })
}

const PUT_AWAY: BulkStatement = BulkStatement {
    before: "INSERT INTO tree_away (volume, node, version, origin, size) VALUES ",
    row: "($1, ?, ?, ?, ?)",
    between: ", ",
    after: " ON CONFLICT (volume, node) DO UPDATE SET version = excluded.version, \
        origin = excluded.origin, size = excluded.size",
};
const DROP_AWAY: BulkStatement = BulkStatement {
    before: "DELETE FROM tree_away WHERE volume = $1 AND node IN (",
    row: "?",
    between: ", ",
    after: ")",
};
/// A newer version is still remote.
const DROP_OLDER: BulkStatement = BulkStatement {
    before: "DELETE FROM tree_away WHERE ",
    row: "(volume = $1 AND node = ? AND version <= ?)",
    between: " OR ",
    after: "",
};
const FIND_NAMES_OF: BulkStatement = BulkStatement {
    before: "SELECT node, dir, name FROM tree_names WHERE volume = $1 AND node IN (",
    row: "?",
    between: ", ",
    after: ")",
};
