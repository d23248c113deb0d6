//! The tables, and how those of an older renkei become those of this one.
//!
//! Each file in `migrations/` is applied once, in order, within the transaction that notes it.

use sqlx::AnyConnection;
use sqlx::{AssertSqlSafe, Executor, Row};

/// Every step since the first.
const STEPS: &[&str] =
    &[include_str!("migrations/0001-queue.sql"), include_str!("migrations/0002-notices.sql")];

/// Applies the steps that are missing.
///
/// # Errors
/// Those of the database, and one that says so if the tables are of a newer renkei.
pub(super) async fn bring_up_to_date(connection: &mut AnyConnection, lite: bool) -> Result<(), sqlx::Error> {
    connection.execute("CREATE TABLE IF NOT EXISTS renkei_schema (version BIGINT NOT NULL)").await?;
    let row = connection.fetch_one("SELECT COUNT(*) AS steps FROM renkei_schema").await?;
    let done = usize::try_from(row.try_get::<i64, _>("steps")?).unwrap_or(usize::MAX);
    if done > STEPS.len() {
        return Err(sqlx::Error::Configuration("its tables are of a newer renkei".into()));
    }
    for (step, version) in STEPS.iter().zip(0_i64..).skip(done) {
        for statement in statements(step) {
            let statement = if lite { statement.replace("BYTEA", "BLOB") } else { statement };
            connection.execute(AssertSqlSafe(statement)).await?;
        }
        sqlx::query("INSERT INTO renkei_schema (version) VALUES ($1)")
            .bind(version)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// The statements of a step, without comments.
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
        assert!(STEPS.iter().all(|step| statements(step).len() > 2));
    }
}
