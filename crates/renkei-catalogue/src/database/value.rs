//! Values of columns, and the errors of databases.

use renkei_core::error::Error;
use std::fmt;

/// A value of a column.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// No bytes.
    Null,
    /// A number.
    Number(i64),
    /// A number with a fraction.
    Float(f64),
    /// A text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Value::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.into())
    }
}

impl From<&String> for Value {
    fn from(text: &String) -> Self {
        Value::Text(text.clone())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text)
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Value::Bytes(bytes)
    }
}

impl From<Option<Vec<u8>>> for Value {
    fn from(bytes: Option<Vec<u8>>) -> Self {
        bytes.map_or(Value::Null, Value::Bytes)
    }
}

/// A type that a column is read as.
pub(crate) trait FromValue<'r>: Sized {
    /// The value as this type; none if it is of another one.
    fn from_value(value: &'r Value) -> Option<Self>;
}

impl FromValue<'_> for i64 {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Number(number) = value { Some(*number) } else { None }
    }
}

impl FromValue<'_> for f64 {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Float(number) = value { Some(*number) } else { None }
    }
}

impl FromValue<'_> for String {
    fn from_value(value: &Value) -> Option<Self> {
        if let Value::Text(text) = value { Some(text.clone()) } else { None }
    }
}

impl<'r> FromValue<'r> for &'r [u8] {
    fn from_value(value: &'r Value) -> Option<Self> {
        if let Value::Bytes(bytes) = value { Some(bytes) } else { None }
    }
}

impl FromValue<'_> for Vec<u8> {
    fn from_value(value: &Value) -> Option<Self> {
        <&[u8]>::from_value(value).map(<[u8]>::to_vec)
    }
}

impl<'r, T: FromValue<'r>> FromValue<'r> for Option<T> {
    fn from_value(value: &'r Value) -> Option<Self> {
        if matches!(value, Value::Null) { Some(None) } else { T::from_value(value).map(Some) }
    }
}

/// A row that was found.
#[derive(Debug)]
pub(crate) struct Row(Vec<Value>);

impl Row {
    pub(super) fn of(values: Vec<Value>) -> Self {
        Row(values)
    }

    /// The number of columns.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The value of a column.
    ///
    /// # Errors
    /// `Invalid` if it is of another type.
    pub(crate) fn get<'r, T: FromValue<'r>>(&'r self, column: usize) -> Result<T, DatabaseError> {
        let value = self.0.get(column).and_then(T::from_value);
        value.ok_or_else(|| DatabaseError::Invalid(format!("column {column} is of another type")))
    }
}

/// An error of a database, or of what was read from it.
#[derive(Debug)]
pub(crate) enum DatabaseError {
    /// SQLite failed.
    Sqlite(rusqlite::Error),
    /// PostgreSQL failed, or the connection to it.
    Postgres(sqlx::Error),
    /// The database has something that this program cannot read.
    Invalid(String),
    /// A value or a table was stored by a newer version of renkei.
    Newer(Error),
    /// The database was closed.
    Closed,
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DatabaseError::Sqlite(error) => error.fmt(out),
            DatabaseError::Postgres(error) => error.fmt(out),
            DatabaseError::Invalid(cause) => out.write_str(cause),
            DatabaseError::Newer(error) => error.fmt(out),
            DatabaseError::Closed => out.write_str("the database was closed"),
        }
    }
}

impl From<rusqlite::Error> for DatabaseError {
    fn from(error: rusqlite::Error) -> Self {
        DatabaseError::Sqlite(error)
    }
}

impl From<sqlx::Error> for DatabaseError {
    fn from(error: sqlx::Error) -> Self {
        DatabaseError::Postgres(error)
    }
}
