//! Usage of a tree by owner, counted at the home in the transaction of each change, so that a kill does not affect
//! it.
//!
//! A follower's copy has no counts: its home counts.

use super::database::{Connection, DatabaseError, Row, Value};
use super::transfers::count;
use super::tree::VolumeTree;
use super::tree_rows::{BulkStatement, Script, count_at, id_at, node_at, signed};
use renkei_core::error::Error;
use renkei_core::namespace::quota::{ByOwner, Difference, Use, weight};
use std::collections::BTreeMap;

/// Nodes read at once for a recount.
const PAGE: usize = 10_000;

/// The sum saturates: a hostile site may declare huge files.
const ADD_USAGE: BulkStatement = BulkStatement {
    before: "INSERT INTO tree_usage (volume, owner, files, bytes) VALUES ",
    row: "($1, ?, ?, ?)",
    between: ", ",
    after: " ON CONFLICT (volume, owner) DO UPDATE SET files = tree_usage.files + excluded.files, \
        bytes = CASE \
            WHEN tree_usage.bytes > 0 AND excluded.bytes > 9223372036854775807 - tree_usage.bytes \
            THEN 9223372036854775807 \
            WHEN tree_usage.bytes < 0 AND excluded.bytes < -9223372036854775807 - tree_usage.bytes \
            THEN -9223372036854775807 \
            ELSE tree_usage.bytes + excluded.bytes END",
};

impl VolumeTree {
    /// The usage of the tree, by owner.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn usage(&self) -> Result<ByOwner, Error> {
        self.read("count", |connection| self.usage_in(connection))
    }

    fn usage_in(&self, connection: &mut Connection) -> Result<ByOwner, DatabaseError> {
        let sql =
            "SELECT owner, files, bytes FROM tree_usage WHERE volume = $1 AND (files <> 0 OR bytes <> 0)";
        let rows = self.ask(sql).rows(connection)?;
        let row = |row: &Row| {
            let owner: &[u8] = row.get(0)?;
            let of = Use { files: count_at(row, 1)?, bytes: count_at(row, 2)? };
            Ok((String::from_utf8_lossy(owner).into_owned(), of))
        };
        rows.iter().map(row).collect()
    }

    /// Adds differences to the usage.
    pub(super) fn add_usage(&self, script: &mut Script, differences: BTreeMap<String, Difference>) {
        let rows = differences.into_iter().map(|(owner, by)| {
            [Value::Bytes(owner.into_bytes()), Value::Number(by.files), Value::Number(by.bytes)]
        });
        script.add(&ADD_USAGE, self.scope, rows.collect());
    }

    /// Recounts all nodes in a transaction; returns whether the counts were wrong.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn recount(&self) -> Result<bool, Error> {
        self.run("count", || {
            let (mut work, _) = self.begin()?;
            let known = self.usage_in(&mut work)?;
            let counted = self.count_nodes(&mut work)?;
            if counted == known {
                return Ok(false);
            }
            self.ask("DELETE FROM tree_usage WHERE volume = $1").execute(&mut work)?;
            let all = counted.into_iter().map(|(owner, of)| (owner, Difference::from(of))).collect();
            let mut script = Script::default();
            self.add_usage(&mut script, all);
            script.commit(work)?;
            Ok(true)
        })
    }

    fn count_nodes(&self, work: &mut Connection) -> Result<ByOwner, DatabaseError> {
        let sql = "SELECT id, node FROM tree_nodes WHERE volume = $1 AND id > $2 ORDER BY id LIMIT $3";
        let (mut counted, mut last) = (ByOwner::new(), i64::MIN);
        loop {
            let query = self.ask_shown(sql).bind(last).bind(count(PAGE));
            let rows = query.rows(work)?;
            for row in &rows {
                let id = id_at(row, 0)?;
                last = signed(id);
                let Some(node) = node_at(row, 1)? else { continue };
                if let Some((owner, one)) = weight(id, &node) {
                    let sum = counted.entry(owner.to_owned()).or_default();
                    *sum = sum.changed(one.into());
                }
            }
            if rows.len() < PAGE {
                return Ok(counted);
            }
        }
    }
}
