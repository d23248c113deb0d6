//! PostgreSQL behind the runtime of its driver, for which the calling threads wait.

use super::value::{DatabaseError, Row, Value};
use renkei_core::error::{Code, Error};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgPoolOptions, PgRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Column as _, PgPool, Postgres, Row as _, TypeInfo as _};
use std::future::Future;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};

/// Timeout for getting a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(20);

/// A server with its connections.
pub(crate) struct Server {
    pool: PgPool,
    runtime: Option<Runtime>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        // A caller on a thread of a runtime must not block.
        if Handle::try_current().is_err() {
            runtime.block_on(self.pool.close());
        }
        runtime.shutdown_background();
    }
}

impl Server {
    /// Prepares up to `most` connections, each of which begins with these statements. None is opened yet.
    ///
    /// # Errors
    /// `SystemCall`, `ConfigInvalid`.
    pub(crate) fn new(
        url: &str,
        thread: &str,
        most: u32,
        begin: &'static [&'static str],
    ) -> Result<Arc<Self>, Error> {
        let started = Builder::new_multi_thread().worker_threads(1).thread_name(thread).enable_all().build();
        let runtime =
            started.map_err(|error| Error::new(Code::SystemCall, "start runtime", thread, error))?;
        let options = PgPoolOptions::new().max_connections(most).acquire_timeout(CONNECT_WITHIN);
        let options = options.after_connect(move |connection, _| {
            Box::pin(async move {
                for sql in begin {
                    sqlx::raw_sql(*sql).execute(&mut *connection).await?;
                }
                Ok(())
            })
        });
        let within = runtime.enter();
        let pool = options.connect_lazy(url);
        drop(within);
        let pool =
            pool.map_err(|error| Error::new(Code::ConfigInvalid, "open catalogue", "catalogue", error))?;
        Ok(Arc::new(Server { pool, runtime: Some(runtime) }))
    }

    pub(super) fn connect(self: &Arc<Self>) -> Result<ServerConnection, DatabaseError> {
        let connection = self.wait(self.pool.acquire())?;
        Ok(ServerConnection { connection: Some(connection), server: self.clone() })
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, DatabaseError> {
        Ok(self.runtime().block_on(work)?)
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is there until the server is dropped")
    }
}

/// A connection; it goes back to the driver's pool when it is dropped, which tests it before it is used again.
pub(crate) struct ServerConnection {
    connection: Option<PoolConnection<Postgres>>,
    server: Arc<Server>,
}

impl Drop for ServerConnection {
    fn drop(&mut self) {
        let _within = self.server.runtime().enter();
        self.connection = None;
    }
}

impl ServerConnection {
    pub(super) fn run(&mut self, sql: &str) -> Result<(), DatabaseError> {
        let (connection, server) = self.parts();
        server.wait(sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection)).map(drop)
    }

    pub(super) fn rows(&mut self, sql: &str, values: &[Value]) -> Result<Vec<Row>, DatabaseError> {
        let (connection, server) = self.parts();
        let found = server.wait(bound(sql, values).fetch_all(connection))?;
        found.iter().map(owned).collect()
    }

    pub(super) fn execute(&mut self, sql: &str, values: &[Value]) -> Result<u64, DatabaseError> {
        let (connection, server) = self.parts();
        Ok(server.wait(bound(sql, values).execute(connection))?.rows_affected())
    }

    pub(super) fn close(mut self) {
        self.connection.iter_mut().for_each(PoolConnection::close_on_drop);
    }

    fn parts(&mut self) -> (&mut sqlx::PgConnection, &Server) {
        let connection = self.connection.as_mut().expect("it is there until this is dropped");
        (connection.deref_mut(), &self.server)
    }
}

fn bound<'q>(sql: &str, values: &'q [Value]) -> Query<'q, Postgres, PgArguments> {
    let query = sqlx::query(AssertSqlSafe(sql.to_owned()));
    values.iter().fold(query, |query, value| match value {
        Value::Null => query.bind(None::<Vec<u8>>),
        Value::Number(number) => query.bind(number),
        Value::Float(number) => query.bind(number),
        Value::Text(text) => query.bind(text),
        Value::Bytes(bytes) => query.bind(bytes),
    })
}

fn owned(row: &PgRow) -> Result<Row, DatabaseError> {
    let columns = row.columns().iter().map(|column| {
        let (at, kind) = (column.ordinal(), column.type_info().name());
        let value = match kind {
            "INT8" => row.try_get::<Option<i64>, _>(at)?.map(Value::Number),
            "FLOAT8" => row.try_get::<Option<f64>, _>(at)?.map(Value::Float),
            "TEXT" => row.try_get::<Option<String>, _>(at)?.map(Value::Text),
            "BYTEA" => row.try_get::<Option<Vec<u8>>, _>(at)?.map(Value::Bytes),
            kind => return Err(DatabaseError::Invalid(format!("column {at} is of type {kind}"))),
        };
        Ok(value.unwrap_or(Value::Null))
    });
    Ok(Row::of(columns.collect::<Result<_, DatabaseError>>()?))
}
