//! Statements for many rows at a time, and what rows hold.
//!
//! A list of rows is cut into parts of a few sizes, so that the database sees few different statements and keeps
//! them prepared.

use super::transfers::unpack;
use renkei_core::namespace::{Effects, Name, Node, NodeId};
use sqlx::any::{Any, AnyArguments, AnyRow};
use sqlx::query::Query;
use sqlx::{AnyConnection, AssertSqlSafe, Row as _};
use std::fmt::Write as _;

/// Rows in one statement, from the largest part to the smallest.
const PARTS: [usize; 5] = [256, 64, 16, 4, 1];

/// A value of a row.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// A number.
    Number(i64),
    /// Bytes.
    Bytes(Vec<u8>),
}

type Bound<'q> = Query<'q, Any, AnyArguments>;

fn bind(query: Bound<'_>, value: Value) -> Bound<'_> {
    match value {
        Value::Number(number) => query.bind(number),
        Value::Bytes(bytes) => query.bind(bytes),
    }
}

/// A statement for many rows of one volume: `before`, the rows in brackets, `after`.
pub(super) struct Many {
    /// What stands before the rows.
    pub(super) before: &'static str,
    /// What stands after them.
    pub(super) after: &'static str,
    /// Whether each row begins with the volume's number; else that is `$1` alone.
    pub(super) with_volume: bool,
}

impl Many {
    /// The statement for so many rows of so many values.
    fn sql(&self, rows: usize, columns: usize) -> String {
        let mut sql = String::with_capacity(self.before.len() + self.after.len() + rows * columns * 8);
        sql += self.before;
        for row in 0..rows {
            sql += if row == 0 { "(" } else { ", (" };
            if self.with_volume {
                sql += "$1, ";
            }
            for column in 0..columns {
                let comma = if column == 0 { "" } else { ", " };
                write!(sql, "{comma}${}", 2 + row * columns + column).expect("a string takes all");
            }
            sql.push(')');
        }
        sql + self.after
    }

    /// Executes it for all rows.
    pub(super) async fn execute<const N: usize>(
        &self,
        work: &mut AnyConnection,
        volume: i64,
        rows: Vec<[Value; N]>,
    ) -> Result<(), sqlx::Error> {
        for part in parts(rows) {
            let sql = AssertSqlSafe(self.sql(part.len(), N));
            let query = part.into_iter().flatten().fold(sqlx::query(sql).bind(volume), bind);
            query.execute(&mut *work).await?;
        }
        Ok(())
    }

    /// Fetches what it finds for all rows.
    pub(super) async fn fetch<const N: usize>(
        &self,
        work: &mut AnyConnection,
        volume: i64,
        rows: Vec<[Value; N]>,
    ) -> Result<Vec<AnyRow>, sqlx::Error> {
        let mut found = Vec::new();
        for part in parts(rows) {
            let sql = AssertSqlSafe(self.sql(part.len(), N));
            let query = part.into_iter().flatten().fold(sqlx::query(sql).bind(volume), bind);
            found.extend(query.fetch_all(&mut *work).await?);
        }
        Ok(found)
    }
}

/// Cuts a list into parts of the sizes in [`PARTS`].
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

const PUT_NODES: Many = Many {
    before: "INSERT INTO tree_nodes (volume, id, node) VALUES ",
    after: " ON CONFLICT (volume, id) DO UPDATE SET node = excluded.node",
    with_volume: true,
};
const DROP_NODES: Many = Many {
    before: "DELETE FROM tree_nodes WHERE volume = $1 AND (id) IN (VALUES ",
    after: ")",
    with_volume: false,
};
const PUT_NAMES: Many = Many {
    before: "INSERT INTO tree_names (volume, dir, name, node) VALUES ",
    after: " ON CONFLICT (volume, dir, name) DO UPDATE SET node = excluded.node",
    with_volume: true,
};
const DROP_NAMES: Many = Many {
    before: "DELETE FROM tree_names WHERE volume = $1 AND (dir, name) IN (VALUES ",
    after: ")",
    with_volume: false,
};

/// Stores what changes did; each node and name at most once.
pub(super) async fn store(
    work: &mut AnyConnection,
    volume: i64,
    effects: Effects,
) -> Result<(), sqlx::Error> {
    let (mut put, mut gone) = (Vec::new(), Vec::new());
    for (id, node) in effects.nodes {
        match node {
            Some(node) => put.push([number(id), Value::Bytes(super::transfers::pack(&node))]),
            None => gone.push([number(id)]),
        }
    }
    PUT_NODES.execute(work, volume, put).await?;
    DROP_NODES.execute(work, volume, gone).await?;
    let (mut put, mut gone) = (Vec::new(), Vec::new());
    for (at, id) in effects.names {
        let (dir, name) = (number(at.dir), Value::Bytes(at.name.0));
        match id {
            Some(id) => put.push([dir, name, number(id)]),
            None => gone.push([dir, name]),
        }
    }
    PUT_NAMES.execute(work, volume, put).await?;
    DROP_NAMES.execute(work, volume, gone).await
}

/// A node's number as the database has it: the bits of one with a sign.
pub(super) fn signed(id: NodeId) -> i64 {
    id.0.cast_signed()
}

/// The same, to be bound.
pub(super) fn number(id: NodeId) -> Value {
    Value::Number(signed(id))
}

/// A node's number in a row.
pub(super) fn id_at(row: &AnyRow, column: usize) -> Result<NodeId, sqlx::Error> {
    Ok(NodeId(row.try_get::<i64, _>(column)?.cast_unsigned()))
}

/// A name in a row.
pub(super) fn name_at(row: &AnyRow, column: usize) -> Result<Name, sqlx::Error> {
    Ok(Name(row.try_get(column)?))
}

/// A node in a row, where there is one.
pub(super) fn node_at(row: &AnyRow, column: usize) -> Result<Option<Node>, sqlx::Error> {
    row.try_get::<Option<Vec<u8>>, _>(column)?.map(|bytes| unpack(&bytes)).transpose()
}

/// A count in a row.
pub(super) fn count_at(row: &AnyRow, column: usize) -> Result<u64, sqlx::Error> {
    Ok(row.try_get::<i64, _>(column)?.unsigned_abs())
}
