//! Bulk statements, and the encoding of rows.
//!
//! A list of rows is split into parts of a few sizes, so that the database sees few different statements and keeps
//! them prepared.

use super::transfers::{pack, unpack};
use renkei_core::namespace::{Delta, Dentry, Name, Node, NodeId};
use sqlx::any::{Any, AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{AnyConnection, AssertSqlSafe, Row as _};
use std::fmt::Write as _;

/// Rows in one statement, from the largest to the smallest part.
const PARTS: [usize; 5] = [256, 64, 16, 4, 1];

/// Largest number of values for which SQLite gets several statements in one call.
const MOST_TOGETHER: usize = 64;

/// A value of a row.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// A text.
    Text(String),
    /// A number.
    Number(i64),
    /// Bytes.
    Bytes(Vec<u8>),
}

/// A statement with its values.
pub(super) type Bound<'q> = Query<'q, Any, AnyArguments>;

fn bind(query: Bound<'_>, value: Value) -> Bound<'_> {
    match value {
        Value::Text(text) => query.bind(text),
        Value::Number(number) => query.bind(number),
        Value::Bytes(bytes) => query.bind(bytes),
    }
}

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
    pub(super) async fn fetch<const N: usize>(
        &self,
        work: &mut AnyConnection,
        scope: Scope,
        rows: Vec<[Value; N]>,
    ) -> Result<Vec<AnyRow>, sqlx::Error> {
        let mut script = Script::new(scope);
        script.add(self, scope, rows);
        script.fetch(work).await
    }
}

/// A list of statements that are executed in order.
///
/// SQLite runs on a thread of its own, and waking that costs more than a short statement; so short statements are
/// joined into one call. A server keeps only single statements prepared.
#[derive(Default)]
pub(super) struct Script {
    is_sqlite: bool,
    steps: Vec<(String, Vec<Value>)>,
}

impl Script {
    /// An empty script for the database of this volume.
    pub(super) fn new(scope: Scope) -> Self {
        Script { is_sqlite: scope.is_sqlite, steps: Vec::new() }
    }

    /// Whether the script has no statements.
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Adds a statement for all rows, in parts.
    pub(super) fn add<const N: usize>(&mut self, many: &BulkStatement, scope: Scope, rows: Vec<[Value; N]>) {
        for part in parts(rows) {
            let sql = many.sql(part.len(), scope);
            let volume = (!scope.is_sqlite).then_some(Value::Number(scope.volume));
            self.steps.push((sql, volume.into_iter().chain(part.into_iter().flatten()).collect()));
        }
    }

    /// Puts a statement without values in front.
    pub(super) fn after(mut self, sql: &str) -> Self {
        self.steps.insert(0, (sql.into(), Vec::new()));
        self
    }

    /// Appends a statement without values.
    pub(super) fn before(mut self, sql: &str) -> Self {
        self.steps.push((sql.into(), Vec::new()));
        self
    }

    fn queries(mut self) -> impl Iterator<Item = Bound<'static>> {
        let values: usize = self.steps.iter().map(|(_, values)| values.len()).sum();
        if self.is_sqlite && values <= MOST_TOGETHER {
            let together = |mut all: (String, Vec<Value>), (sql, values): (String, Vec<Value>)| {
                all.0 += "; ";
                all.0 += &sql;
                all.1.extend(values);
                all
            };
            self.steps = self.steps.into_iter().reduce(together).into_iter().collect();
        }
        let query = |(sql, values): (String, Vec<Value>)| {
            values.into_iter().fold(sqlx::query(AssertSqlSafe(sql)), bind)
        };
        self.steps.into_iter().map(query)
    }

    /// Executes all statements.
    pub(super) async fn execute(self, work: &mut AnyConnection) -> Result<(), sqlx::Error> {
        for query in self.queries() {
            query.execute(&mut *work).await?;
        }
        Ok(())
    }

    /// Executes all statements, and returns the rows that they find.
    pub(super) async fn fetch(self, work: &mut AnyConnection) -> Result<Vec<AnyRow>, sqlx::Error> {
        let mut found = Vec::new();
        for query in self.queries() {
            found.extend(query.fetch_all(&mut *work).await?);
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
pub(super) fn id_at(row: &AnyRow, column: usize) -> Result<NodeId, sqlx::Error> {
    Ok(NodeId(row.try_get::<i64, _>(column)?.cast_unsigned()))
}

/// A name in a row.
pub(super) fn name_at(row: &AnyRow, column: usize) -> Result<Name, sqlx::Error> {
    Ok(Name(row.try_get(column)?))
}

/// The key of a name as values.
pub(super) fn by_name(at: &Dentry) -> [Value; 2] {
    [number(at.dir), Value::Bytes(at.name.0.clone())]
}

/// The key of a name in a row.
pub(super) fn spot_at(row: &AnyRow, column: usize) -> Result<Dentry, sqlx::Error> {
    Ok(Dentry { dir: id_at(row, column)?, name: name_at(row, column + 1)? })
}

/// A node in a row; none for NULL.
pub(super) fn node_at(row: &AnyRow, column: usize) -> Result<Option<Node>, sqlx::Error> {
    row.try_get::<Option<Vec<u8>>, _>(column)?.map(|bytes| unpack(&bytes)).transpose()
}

/// A count in a row.
pub(super) fn count_at(row: &AnyRow, column: usize) -> Result<u64, sqlx::Error> {
    Ok(row.try_get::<i64, _>(column)?.unsigned_abs())
}
