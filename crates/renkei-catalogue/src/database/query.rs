//! Statements with their values, on a connection of either kind.

use super::postgres::ServerConnection;
use super::sqlite;
use super::value::{DatabaseError, Row, Value};
use std::borrow::Cow;

/// A connection to a database.
pub(crate) enum Connection {
    /// To a file of SQLite.
    Sqlite(rusqlite::Connection),
    /// To a server of PostgreSQL.
    Server(ServerConnection),
}

impl Connection {
    /// Whether this is SQLite.
    pub(crate) fn is_sqlite(&self) -> bool {
        matches!(self, Connection::Sqlite(_))
    }

    /// Runs statements without values, which are not kept prepared.
    pub(crate) fn run(&mut self, sql: &str) -> Result<(), DatabaseError> {
        match self {
            Connection::Sqlite(connection) => Ok(connection.execute_batch(sql)?),
            Connection::Server(connection) => connection.run(sql),
        }
    }

    /// Whether no transaction is open, so far as the connection knows.
    pub(super) fn is_idle(&self) -> bool {
        match self {
            Connection::Sqlite(connection) => connection.is_autocommit(),
            Connection::Server(_) => true,
        }
    }

    /// Closes the connection for good.
    pub(super) fn close(self) {
        if let Connection::Server(connection) = self {
            connection.close();
        }
    }
}

/// A statement with its values, which are `$1`, `$2` and so on in its text.
pub(crate) struct Query<'q> {
    sql: Cow<'q, str>,
    values: Vec<Value>,
}

/// A statement without values yet. It is kept prepared by the connection.
pub(crate) fn query<'q>(sql: impl Into<Cow<'q, str>>) -> Query<'q> {
    Query { sql: sql.into(), values: Vec::new() }
}

impl Query<'_> {
    /// Adds the next value.
    pub(crate) fn bind(mut self, value: impl Into<Value>) -> Self {
        self.values.push(value.into());
        self
    }

    /// Adds values.
    pub(crate) fn bind_all(mut self, values: impl IntoIterator<Item = Value>) -> Self {
        self.values.extend(values);
        self
    }

    /// Executes the statement; returns the rows that it finds.
    pub(crate) fn rows(&self, connection: &mut Connection) -> Result<Vec<Row>, DatabaseError> {
        match connection {
            Connection::Sqlite(connection) => sqlite::rows(connection, &self.sql, &self.values),
            Connection::Server(connection) => connection.rows(&self.sql, &self.values),
        }
    }

    /// The first row that the statement finds.
    pub(crate) fn first(&self, connection: &mut Connection) -> Result<Option<Row>, DatabaseError> {
        Ok(self.rows(connection)?.into_iter().next())
    }

    /// The row of a statement that always finds one.
    pub(crate) fn only(&self, connection: &mut Connection) -> Result<Row, DatabaseError> {
        let missing = || DatabaseError::Invalid("a row is missing".into());
        self.first(connection)?.ok_or_else(missing)
    }

    /// Executes the statement; returns how many rows it changed.
    pub(crate) fn execute(&self, connection: &mut Connection) -> Result<u64, DatabaseError> {
        match connection {
            Connection::Sqlite(connection) => sqlite::execute(connection, &self.sql, &self.values),
            Connection::Server(connection) => connection.execute(&self.sql, &self.values),
        }
    }
}
