//! The tables, and the migrations from those of older versions of renkei.
//!
//! Each file in `migrations/` is applied once, in order, in the transaction that records it.

use super::database::{Connection, DatabaseError, Pool, query};
use renkei_core::format::newer;
use std::sync::Arc;

/// A set of tables that are migrated together.
pub(super) struct Tables {
    /// The table that records the applied migrations.
    version: &'static str,
    /// All migrations, in order.
    steps: &'static [&'static str],
}

/// The tables of the queue.
pub(super) const QUEUE: Tables = Tables {
    version: "renkei_schema",
    steps: &[
        include_str!("migrations/0001-queue.sql"),
        include_str!("migrations/0002-notices.sql"),
        include_str!("migrations/0003-reached.sql"),
        include_str!("migrations/0004-links.sql"),
    ],
};

/// The tables of the volumes' trees.
pub(super) const TREES: Tables = Tables {
    version: "renkei_tree_schema",
    steps: &[include_str!("migrations/tree-0001.sql"), include_str!("migrations/tree-0002-usage.sql")],
};

/// Applies the missing migrations, in one transaction.
///
/// # Errors
/// Those of the database, and an error of its own if the tables are of a newer renkei.
pub(super) fn bring_up_to_date(pool: &Arc<Pool>, tables: &Tables) -> Result<(), DatabaseError> {
    let mut work = pool.begin()?;
    migrate(&mut work, tables)?;
    work.commit()
}

fn migrate(work: &mut Connection, Tables { version: noted, steps }: &Tables) -> Result<(), DatabaseError> {
    work.run(&format!("CREATE TABLE IF NOT EXISTS {noted} (version BIGINT NOT NULL)"))?;
    let row = query(format!("SELECT COUNT(*) FROM {noted}")).only(work)?;
    let done = usize::try_from(row.get::<i64>(0)?).unwrap_or(usize::MAX);
    if done > steps.len() {
        return Err(DatabaseError::Newer(newer("catalogue", done as u64, steps.len() as u64)));
    }
    for (step, version) in steps.iter().zip(0_i64..).skip(done) {
        for statement in statements(step) {
            work.run(&in_dialect(&statement, work.is_sqlite()))?;
        }
        query(format!("INSERT INTO {noted} (version) VALUES ($1)")).bind(version).execute(work)?;
    }
    Ok(())
}

/// A statement in the dialect of the engine.
fn in_dialect(statement: &str, is_sqlite: bool) -> String {
    if is_sqlite { statement.replace("BYTEA", "BLOB") } else { statement.replace("WITHOUT ROWID", "") }
}

/// The statements of a migration, without comments.
fn statements(step: &str) -> Vec<String> {
    let code: Vec<&str> = step.lines().map(|line| line.split("--").next().unwrap_or_default()).collect();
    let statements = code.join("\n");
    statements.split(';').map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_cut_into_statements() {
        let cut = statements("-- a; b\nCREATE TABLE t (a TEXT); -- c\n\nCREATE INDEX i ON t (a);\n");
        assert_eq!(cut, ["CREATE TABLE t (a TEXT)", "CREATE INDEX i ON t (a)"]);
        let mut steps = [QUEUE, TREES].into_iter().flat_map(|tables| tables.steps);
        assert!(steps.all(|step| !statements(step).is_empty()));
    }
}
