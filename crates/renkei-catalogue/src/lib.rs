//! The catalogue: the database with the durable state of a PoP.
//!
//! SQLite in the PoP's own directory by default, PostgreSQL where the configuration names one (`catalogue`); the same
//! statements run on both. `transfers` and `webhooks` have the queue, `trees` and `tree*` the trees of volumes, one
//! database for each. Uses: `renkei-core`, `renkei-config`. Calls block; each statement is short. Guarantee: a write is
//! durable when its call returns. Non-goal: data of files.

mod connections;
mod duplicate;
mod schema;
mod transfers;
mod tree;
mod tree_apply;
mod tree_commit;
mod tree_log_switch;
mod tree_pages;
#[cfg(test)]
mod tree_plans;
mod tree_reader;
mod tree_remote;
mod tree_rows;
mod tree_shadow;
mod tree_usage;
mod trees;
mod webhooks;

pub use duplicate::duplicate;
pub use transfers::{
    Lane, Listing, New, Put, Row, Update, Waiting, first_digits, hex_id, no_digits, parse_id,
};
pub use tree::{HeldReplica, Position, VolumeTree, follow_names, own_version};
pub use tree_apply::{MARK, record_digest};
pub use tree_log_switch::LogSwitch;
pub use tree_reader::TreeReader;
pub use tree_remote::{Away, AwayAt, OWN};
pub use trees::{Trees, VolumeId};
pub use webhooks::Webhook;

use renkei_config::home::{Home, file_error, make_private_dir};
use renkei_core::error::{Code, Error};
use sqlx::any::{AnyPoolOptions, install_default_drivers};
use sqlx::{AnyConnection, AnyPool, Connection, Executor};
use std::fs::OpenOptions;
use std::future::Future;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Connections to a server; SQLite has one, since it allows one writer at a time anyway.
const SERVER_CONNECTIONS: u32 = 8;
/// Timeout for getting a free connection.
const ACQUIRE_WITHIN: Duration = Duration::from_secs(20);
/// Timeout of SQLite for a lock that another process holds, in milliseconds.
const BUSY_MS: u32 = 10_000;

/// An open catalogue.
pub struct Catalogue {
    pool: AnyPool,
    /// The database without its password, for messages.
    shown: String,
    runtime: Option<Runtime>,
}

impl Drop for Catalogue {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        // A caller on a thread of a runtime must not block.
        if tokio::runtime::Handle::try_current().is_err() {
            runtime.block_on(self.pool.close());
        }
        runtime.shutdown_background();
    }
}

/// The database that the configuration names.
enum Engine {
    Sqlite(String),
    Server(String),
}

impl Engine {
    fn choose(named: &str, home: &Home) -> Result<Self, Error> {
        if named.is_empty() {
            return Self::in_file(&home.state_dir().join("catalogue.sqlite"));
        }
        if named.starts_with("postgres://") || named.starts_with("postgresql://") {
            return Ok(Engine::Server(named.into()));
        }
        let cause = "write `postgres://USER@HOST/DATABASE`, or nothing for SQLite in the PoP's directory";
        Err(Error::new(Code::ConfigInvalid, "open catalogue", "catalogue", cause))
    }

    fn in_file(path: &Path) -> Result<Self, Error> {
        make_private_dir(path.parent().unwrap_or(Path::new("/")))?;
        // Created before SQLite does, which would use the umask.
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        file.map_err(|error| file_error("create", path, &error))?;
        let text = path.to_str().ok_or_else(|| {
            Error::new(Code::ConfigInvalid, "open catalogue", path.display(), "the path must be UTF-8")
        })?;
        let escaped: String = text.chars().map(escape).collect();
        Ok(Engine::Sqlite(format!("sqlite://{escaped}?mode=rwc")))
    }

    fn shown(&self) -> String {
        match self {
            Engine::Sqlite(_) => "SQLite".into(),
            Engine::Server(url) => {
                let end = url.rsplit_once('@').map_or(url.as_str(), |(_, end)| end);
                format!("PostgreSQL {}", end.split('?').next().unwrap_or_default())
            }
        }
    }
}

/// The database server of a configuration without its password; none for SQLite in the PoP's directory.
pub fn server(named: &str) -> Option<String> {
    (!named.is_empty()).then(|| Engine::Server(named.into()).shown())
}

fn escape(c: char) -> String {
    match c {
        '%' | '?' | '#' | ' ' | '"' | '<' | '>' | '`' | '{' | '}' => format!("%{:02X}", c as u32),
        c => c.into(),
    }
}

/// How a transaction ends.
#[derive(Clone, Copy)]
enum End {
    /// Commit.
    Commit,
    /// Roll back.
    Rollback,
}

impl End {
    fn statement(self) -> &'static str {
        match self {
            End::Commit => "COMMIT",
            End::Rollback => "ROLLBACK",
        }
    }
}

impl Catalogue {
    /// Opens the catalogue that the configuration names, and applies missing migrations.
    ///
    /// # Errors
    /// `CatalogueFailed`, `ConfigInvalid`.
    pub fn open(named: &str, home: &Home) -> Result<Self, Error> {
        install_default_drivers();
        let engine = Engine::choose(named, home)?;
        let runtime = start_runtime("catalogue")?;
        let shown = engine.shown();
        let opened = runtime.block_on(open(&engine));
        let pool = opened.map_err(|error| failed("open", &shown, &error))?;
        Ok(Catalogue { pool, shown, runtime: Some(runtime) })
    }

    /// The database, for messages.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Runs some work in a transaction, which is committed or rolled back as the work says.
    ///
    /// A connection with any error is closed. After a failed commit, as on a full disk, it is not known whether its
    /// transaction is still open; later statements would be part of it and be lost with it.
    async fn transaction<T>(
        &self,
        work: impl AsyncFnOnce(&mut AnyConnection) -> Result<(T, End), sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        let done = async {
            connection.execute("BEGIN").await?;
            let (done, end) = work(&mut connection).await?;
            connection.execute(end.statement()).await?;
            Ok(done)
        }
        .await;
        if done.is_err() {
            connection.close_on_drop();
        }
        done
    }

    /// Runs some work in the database and waits for it.
    fn run<T>(&self, op: &str, work: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, Error> {
        let runtime = self.runtime.as_ref().expect("it is there until the catalogue is dropped");
        runtime.block_on(work).map_err(|error| failed(op, &self.shown, &error))
    }
}

/// A runtime for the drivers; callers block on their own threads.
fn start_runtime(name: &str) -> Result<Runtime, Error> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let started = runtime.worker_threads(1).thread_name(name).enable_all().build();
    started.map_err(|error| Error::new(Code::SystemCall, "start runtime", name, error))
}

async fn open(engine: &Engine) -> Result<AnyPool, sqlx::Error> {
    let (url, connections) = match engine {
        Engine::Sqlite(url) => (url, 1),
        Engine::Server(url) => (url, SERVER_CONNECTIONS),
    };
    let is_sqlite = matches!(engine, Engine::Sqlite(_));
    let options = AnyPoolOptions::new().max_connections(connections).acquire_timeout(ACQUIRE_WITHIN);
    let pool =
        options.after_connect(move |connection, _| prepare(connection, is_sqlite)).connect(url).await?;
    let mut connection = pool.acquire().await?;
    let mut work = connection.begin().await?;
    schema::bring_up_to_date(&mut work, &schema::QUEUE, is_sqlite).await?;
    work.commit().await?;
    drop(connection);
    Ok(pool)
}

type Prepared<'c> = std::pin::Pin<Box<dyn Future<Output = Result<(), sqlx::Error>> + Send + 'c>>;

/// Configures a connection of SQLite: commits survive a power cut.
fn prepare(connection: &mut AnyConnection, is_sqlite: bool) -> Prepared<'_> {
    Box::pin(async move {
        if is_sqlite {
            connection.execute("PRAGMA journal_mode = WAL").await?;
            connection.execute("PRAGMA synchronous = FULL").await?;
            connection.execute(sqlx::AssertSqlSafe(format!("PRAGMA busy_timeout = {BUSY_MS}"))).await?;
        }
        Ok(())
    })
}

fn failed(op: &str, shown: &str, error: &sqlx::Error) -> Error {
    Error::new(Code::CatalogueFailed, op, shown, error)
}
