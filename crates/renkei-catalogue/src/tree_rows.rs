//! Bulk statements, and the encoding of rows.
//!
//! A list of rows is split into parts of a few sizes, so that the database sees few different statements and keeps
//! them prepared.

use super::database::{Connection, DatabaseError, Pool, Query, Row, Value, Work, query};
use super::stored::{pack, unpack};
use renkei_core::namespace::{Delta, Dentry, Name, Node, NodeId};
use std::fmt::Write as _;
use std::sync::Arc;

/// Rows in one statement, from the largest to the smallest part.
const PARTS: [usize; 5] = [256, 64, 16, 4, 1];

/// A statement for many rows of one volume, whose number is `$1`.
pub(super) struct BulkStatement {
    /// The text before the rows.
    pub(super) before: &'static str,
    /// The text of a row; each `?` stands for a value.
    pub(super) row: &'static str,
    /// The separator of rows.
    pub(super) between: &'static str,
    /// The text after the rows.
    pub(super) after: &'static str,
}

/// A volume in bulk statements.
#[derive(Clone, Copy)]
pub(super) struct Scope {
    /// The volume's number.
    pub(super) volume: i64,
    /// Whether it is in SQLite, which resolves each named parameter by a linear search: there parameters have no
    /// names, and the volume's number is part of the text.
    pub(super) is_sqlite: bool,
}

impl BulkStatement {
    /// The statement for a number of rows.
    pub(super) fn sql(&self, rows: usize, scope: Scope) -> String {
        let mut sql = String::with_capacity(self.before.len() + self.after.len() + rows * 64);
        let mut number = 1;
        sql += self.before;
        for row in 0..rows {
            sql += if row == 0 { "" } else { self.between };
            for (index, text) in self.row.split('?').enumerate() {
                if index > 0 && scope.is_sqlite {
                    sql.push('?');
                } else if index > 0 {
                    number += 1;
                    write!(sql, "${number}").expect("a string takes all");
                }
                sql += text;
            }
        }
        sql += self.after;
        if scope.is_sqlite { sql.replace("$1", &scope.volume.to_string()) } else { sql }
    }

    /// Executes the statement for all rows, and returns the rows that it finds.
    pub(super) fn fetch<const N: usize>(
        &self,
        work: &mut Connection,
        scope: Scope,
        rows: Vec<[Value; N]>,
    ) -> Result<Vec<Row>, DatabaseError> {
        let mut script = Script::default();
        script.add(self, scope, rows);
        script.fetch(work)
    }
}

/// A list of statements that are executed in order.
#[derive(Default)]
pub(super) struct Script(Vec<Query<'static>>);

impl Script {
    /// Adds a statement for all rows, in parts.
    pub(super) fn add<const N: usize>(&mut self, many: &BulkStatement, scope: Scope, rows: Vec<[Value; N]>) {
        for part in parts(rows) {
            let volume = (!scope.is_sqlite).then_some(Value::Number(scope.volume));
            let query = query(many.sql(part.len(), scope));
            self.0.push(query.bind_all(volume.into_iter().chain(part.into_iter().flatten())));
        }
    }

    /// Begins a transaction with these statements; returns the rows that they find.
    pub(super) fn begin(self, pool: &Arc<Pool>) -> Result<(Work, Vec<Row>), DatabaseError> {
        let mut work = pool.begin()?;
        let found = self.fetch(&mut work)?;
        Ok((work, found))
    }

    /// Executes all statements at the end of a transaction.
    pub(super) fn commit(self, mut work: Work) -> Result<(), DatabaseError> {
        self.execute(&mut work)?;
        work.commit()
    }

    /// Executes all statements in a transaction of their own.
    pub(super) fn run(self, pool: &Arc<Pool>) -> Result<(), DatabaseError> {
        if self.0.is_empty() { Ok(()) } else { self.commit(pool.begin()?) }
    }

    /// Executes all statements.
    pub(super) fn execute(self, work: &mut Connection) -> Result<(), DatabaseError> {
        self.0.iter().try_for_each(|query| query.execute(work).map(drop))
    }

    /// Executes all statements; returns the rows that they find.
    pub(super) fn fetch(self, work: &mut Connection) -> Result<Vec<Row>, DatabaseError> {
        let mut found = Vec::new();
        for query in self.0 {
            found.extend(query.rows(work)?);
        }
        Ok(found)
    }
}

/// Splits a list into parts of the sizes in [`PARTS`].
fn parts<T>(rows: Vec<T>) -> Vec<Vec<T>> {
    let mut rows = rows.into_iter();
    let mut parts = Vec::new();
    for size in PARTS {
        while rows.len() >= size {
            parts.push(rows.by_ref().take(size).collect());
        }
    }
    parts
}

const PUT_NODES: BulkStatement = BulkStatement {
    before: "INSERT INTO tree_nodes (volume, id, node) VALUES ",
    row: "($1, ?, ?)",
    between: ", ",
    after: " ON CONFLICT (volume, id) DO UPDATE SET node = excluded.node",
};
const DROP_NODES: BulkStatement = BulkStatement {
    before: "DELETE FROM tree_nodes WHERE volume = $1 AND id IN (",
    row: "?",
    between: ", ",
    after: ")",
};
const PUT_NAMES: BulkStatement = BulkStatement {
    before: "INSERT INTO tree_names (volume, dir, name, node) VALUES ",
    row: "($1, ?, ?, ?)",
    between: ", ",
    after: " ON CONFLICT (volume, dir, name) DO UPDATE SET node = excluded.node",
};
/// With the volume outside of the list, or with a list of pairs, SQLite would scan all names of the volume.
const DROP_NAMES: BulkStatement = BulkStatement {
    before: "DELETE FROM tree_names WHERE ",
    row: "(volume = $1 AND dir = ? AND name = ?)",
    between: " OR ",
    after: "",
};

/// Adds statements that store the effects of changes; each node and name occurs at most once.
pub(super) fn store(script: &mut Script, scope: Scope, effects: Delta) {
    let (mut put, mut gone) = (Vec::new(), Vec::new());
    for (id, node) in effects.nodes {
        match node {
            Some(node) => put.push([number(id), Value::Bytes(pack(&node))]),
            None => gone.push([number(id)]),
        }
    }
    script.add(&PUT_NODES, scope, put);
    script.add(&DROP_NODES, scope, gone);
    let (mut put, mut gone) = (Vec::new(), Vec::new());
    for (at, id) in effects.names {
        let (dir, name) = (number(at.dir), Value::Bytes(at.name.0));
        match id {
            Some(id) => put.push([dir, name, number(id)]),
            None => gone.push([dir, name]),
        }
    }
    script.add(&PUT_NAMES, scope, put);
    script.add(&DROP_NAMES, scope, gone);
}

/// A node number in the database: the same bits as a signed integer.
pub(super) fn signed(id: NodeId) -> i64 {
    id.0.cast_signed()
}

/// A node number as a value.
pub(super) fn number(id: NodeId) -> Value {
    Value::Number(signed(id))
}

/// A node number in a row.
pub(super) fn id_at(row: &Row, column: usize) -> Result<NodeId, DatabaseError> {
    Ok(NodeId(row.get::<i64>(column)?.cast_unsigned()))
}

/// A name in a row.
pub(super) fn name_at(row: &Row, column: usize) -> Result<Name, DatabaseError> {
    Ok(Name(row.get(column)?))
}

/// The key of a name as values.
pub(super) fn by_name(at: &Dentry) -> [Value; 2] {
    [number(at.dir), Value::Bytes(at.name.0.clone())]
}

/// The key of a name in a row.
pub(super) fn spot_at(row: &Row, column: usize) -> Result<Dentry, DatabaseError> {
    Ok(Dentry { dir: id_at(row, column)?, name: name_at(row, column + 1)? })
}

/// A node in a row; none for NULL.
pub(super) fn node_at(row: &Row, column: usize) -> Result<Option<Node>, DatabaseError> {
    row.get::<Option<&[u8]>>(column)?.map(unpack).transpose()
}

/// A count in a row.
pub(super) fn count_at(row: &Row, column: usize) -> Result<u64, DatabaseError> {
    Ok(row.get::<i64>(column)?.unsigned_abs())
}
