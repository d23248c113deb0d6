//! SQLite in the calling thread.
//!
//! Connections are opened on a thread of their own, since the calling thread may have the rights of another account,
//! which cannot open the files. All that a connection opens is open when it is handed over.

use super::value::{DatabaseError, Row, Value};
use renkei_config::home::{file_error, make_private_dir};
use renkei_core::error::{Code, Error};
use rusqlite::config::DbConfig;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, OpenFlags, ToSql};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel, sync_channel};

/// Statements that a connection keeps prepared: about twenty for rows, each for a few numbers of rows.
const KEPT_PREPARED: usize = 100;
/// Timeout for a lock that another process holds, in milliseconds.
const BUSY_MS: u32 = 10_000;

/// A thread that opens files with the rights of the thread that started it.
pub(crate) struct Opener(Sender<Box<dyn FnOnce() + Send>>);

impl Opener {
    /// Starts the thread; it ends with this value.
    ///
    /// # Errors
    /// `SystemCall`.
    pub(crate) fn start() -> Result<Arc<Self>, Error> {
        let (sender, requests) = channel::<Box<dyn FnOnce() + Send>>();
        let work = move || requests.into_iter().for_each(|request| request());
        let started = std::thread::Builder::new().name("sqlite".into()).spawn(work);
        started.map_err(|error| Error::new(Code::SystemCall, "start thread", "sqlite", error))?;
        Ok(Arc::new(Opener(sender)))
    }

    fn open(&self, path: &Path, pragmas: &str) -> Result<Connection, DatabaseError> {
        let (reply, opened) = sync_channel(1);
        let (path, pragmas) = (path.to_owned(), pragmas.to_owned());
        let request = Box::new(move || drop(reply.send(open(&path, &pragmas))));
        self.0.send(request).map_err(|_| DatabaseError::Closed)?;
        opened.recv().map_err(|_| DatabaseError::Closed)?.map_err(DatabaseError::from)
    }
}

/// A database in a file, and how its connections are configured.
pub(crate) struct File {
    opener: Arc<Opener>,
    path: PathBuf,
    pragmas: String,
}

impl File {
    /// The database in an existing file; each connection begins with these pragmas.
    pub(crate) fn new(opener: &Arc<Opener>, path: &Path, pragmas: String) -> Self {
        File { opener: opener.clone(), path: path.to_owned(), pragmas }
    }

    pub(super) fn connect(&self) -> Result<Connection, DatabaseError> {
        self.opener.open(&self.path, &self.pragmas)
    }
}

/// Creates a database file, readable by nobody else, unless it exists.
///
/// # Errors
/// Those of the file system.
pub(crate) fn create_private(path: &Path) -> Result<(), Error> {
    make_private_dir(path.parent().unwrap_or(Path::new("/")))?;
    // Created before SQLite does, which would use the umask.
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    file.map(drop).map_err(|error| file_error("create", path, &error))
}

/// Copies the database in a file to a new file.
pub(crate) fn copy(from: &Path, to: &str) -> Result<(), DatabaseError> {
    let connection = open(from, "")?;
    connection.execute("VACUUM INTO ?", [to])?;
    Ok(())
}

/// Opens a connection. Temporary files would be created with the rights of the thread that needs one.
fn open(path: &Path, pragmas: &str) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.set_prepared_statement_cache_capacity(KEPT_PREPARED);
    // Otherwise SQLite plans a statement again when its values change.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection
        .execute_batch(&format!("PRAGMA busy_timeout = {BUSY_MS}; PRAGMA temp_store = MEMORY; {pragmas}"))?;
    // The first read opens the write-ahead log and its index.
    connection.query_row("SELECT COUNT(*) FROM sqlite_schema", [], |_| Ok(()))?;
    Ok(connection)
}

/// Executes a statement; returns the rows that it finds.
pub(super) fn rows(connection: &Connection, sql: &str, values: &[Value]) -> Result<Vec<Row>, DatabaseError> {
    let mut statement = prepare(connection, sql, values)?;
    let columns = statement.column_count();
    let mut rows = statement.raw_query();
    let mut found = Vec::new();
    // All rows are fetched: SQLite returns the first one before it commits, and a caller that stops there misses the
    // error of a full disk.
    while let Some(row) = rows.next()? {
        let value = |column| owned(row.get_ref(column)?);
        found.push(Row::of((0..columns).map(value).collect::<Result<_, DatabaseError>>()?));
    }
    Ok(found)
}

/// Executes a statement; returns how many rows it changed.
pub(super) fn execute(connection: &Connection, sql: &str, values: &[Value]) -> Result<u64, DatabaseError> {
    Ok(prepare(connection, sql, values)?.raw_execute()? as u64)
}

/// SQLite numbers the parameters `$1`, `$2` in the order in which they occur, as it does with any name.
fn prepare<'c>(
    connection: &'c Connection,
    sql: &str,
    values: &[Value],
) -> Result<CachedStatement<'c>, DatabaseError> {
    let mut statement = connection.prepare_cached(sql)?;
    for place in 1..=statement.parameter_count() {
        let number = statement.parameter_name(place).and_then(|name| name[1..].parse().ok());
        let value = values.get(number.unwrap_or(place) - 1);
        let missing = || DatabaseError::Invalid(format!("parameter {place} has no value"));
        statement.raw_bind_parameter(place, value.ok_or_else(missing)?)?;
    }
    Ok(statement)
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Null => ValueRef::Null,
            Value::Number(number) => ValueRef::Integer(*number),
            Value::Float(number) => ValueRef::Real(*number),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
            Value::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

fn owned(value: ValueRef<'_>) -> Result<Value, DatabaseError> {
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Number(number),
        ValueRef::Real(number) => Value::Float(number),
        ValueRef::Text(text) => {
            let text = std::str::from_utf8(text);
            Value::Text(text.map_err(|error| DatabaseError::Invalid(error.to_string()))?.into())
        }
        ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
    })
}
