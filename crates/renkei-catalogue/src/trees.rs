//! The databases of the volumes of a PoP.
//!
//! Each volume has an SQLite file of its own below `state/volumes`, so that a large volume and the queue do not slow
//! each other, and removing a volume removes its file. If the catalogue is on PostgreSQL, all volumes share its
//! tables, with a volume number in front of each key. The statements are the same. An SQLite file has one connection
//! for writes and others for concurrent reads; each reads the state after the last commit.

use super::connections::Connections;
use super::schema::{TREES, bring_up_to_date};
use super::tree::{Tail, VolumeTree};
use super::tree_rows::Scope;
use super::{ACQUIRE_WITHIN, BUSY_MS, Engine, Prepared, SERVER_CONNECTIONS, failed, start_runtime};
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::units::hex;
pub use renkei_core::wire::volume::VolumeId;
use sqlx::any::{AnyPoolOptions, install_default_drivers};
use sqlx::{AnyConnection, AnyPool, AssertSqlSafe, Connection as _, Executor as _, Row as _};
use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::runtime::{EnterGuard, Runtime};

/// Connections for concurrent reads, of an SQLite file or a server.
const READERS: u32 = 4;
/// Page cache of SQLite's connection for writes, in KiB.
const WRITER_CACHE_KIB: u32 = 16 * 1024;
/// Page cache of each connection for reads, in KiB; the kernel's page cache is behind it.
const READER_CACHE_KIB: u32 = 4 * 1024;
/// Pages of 4 KiB in SQLite's write-ahead log after which a checkpoint runs.
const CHECKPOINT_PAGES: u32 = 8 * 1024;
/// Attempts to draw a volume number while other processes draw one.
const DRAWS: u32 = 100;

/// The databases of a PoP's volumes.
pub struct Trees {
    place: Place,
    base: Arc<Database>,
    open: Mutex<BTreeMap<VolumeId, Arc<VolumeTree>>>,
}

enum Place {
    Folder(PathBuf),
    Server { writers: Arc<Connections>, readers: Arc<Connections> },
}

/// The runtime and the name of the database, shared by all trees of a PoP.
pub(super) struct Database {
    /// The database without its password, for messages.
    shown: String,
    runtime: Option<Runtime>,
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A caller on a thread of a runtime must not block.
            runtime.shutdown_background();
        }
    }
}

impl Database {
    pub(super) fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("it is there until the base is dropped")
    }

    /// Runs some work in a database and waits for it.
    pub(super) fn run<T>(
        &self,
        op: &str,
        work: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, Error> {
        self.runtime().block_on(work).map_err(|error| self.failed(op, &error))
    }

    /// Enters the runtime, as needed for dropping a pooled connection.
    pub(super) fn enter(&self) -> EnterGuard<'_> {
        self.runtime().enter()
    }

    /// Waits for work that cannot fail.
    pub(super) fn run_to_end(&self, work: impl Future<Output = ()>) {
        self.runtime().block_on(work);
    }

    /// The error for a failure of the database.
    pub(super) fn failed(&self, op: &str, error: &sqlx::Error) -> Error {
        failed(op, &self.shown, error)
    }
}

impl Trees {
    /// As [`Catalogue::open`](super::Catalogue::open): SQLite files in the PoP's directory, or the server of the
    /// configuration.
    ///
    /// # Errors
    /// `CatalogueFailed`, `ConfigInvalid`.
    pub fn open(named: &str, home: &Home) -> Result<Self, Error> {
        install_default_drivers();
        let engine = Engine::choose(named, home)?;
        let base = Arc::new(Database { shown: engine.shown(), runtime: Some(start_runtime("trees")?) });
        let place = match &engine {
            Engine::Sqlite(_) => Place::Folder(home.state_dir().join("volumes")),
            Engine::Server(url) => {
                let pool = base.run("open", open_server(url))?;
                // A server may restart: the pool tests its connections for writes each time.
                let writers = Connections::of(&base, pool.clone(), SERVER_CONNECTIONS - READERS, false);
                Place::Server { writers, readers: Connections::of(&base, pool, READERS, true) }
            }
        };
        Ok(Trees { place, base, open: Mutex::default() })
    }

    /// The tree of a volume, created with its root if it does not exist.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn tree(&self, volume: VolumeId) -> Result<Arc<VolumeTree>, Error> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tree) = open.get(&volume) {
            return Ok(tree.clone());
        }
        let tree = Arc::new(self.open_tree(volume)?);
        open.insert(volume, tree.clone());
        Ok(tree)
    }

    /// Removes a volume's tree; later calls on it fail.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn remove(&self, volume: VolumeId) -> Result<(), Error> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let tree = open.remove(&volume);
        match &self.place {
            Place::Folder(_) => {
                if let Some(tree) = tree {
                    tree.close();
                }
                self.remove_files(volume)
            }
            Place::Server { writers, .. } => self.base.run("remove", remove_rows(writers.pool(), volume)),
        }
    }

    fn open_tree(&self, volume: VolumeId) -> Result<VolumeTree, Error> {
        let (writers, readers) = match &self.place {
            Place::Server { writers, readers } => (writers.clone(), readers.clone()),
            Place::Folder(folder) => {
                let engine = Engine::in_file(&folder.join(format!("{}.sqlite", hex(&volume))))?;
                let Engine::Sqlite(url) = engine else { unreachable!("a file is one of SQLite") };
                let (writer, reader) = self.base.run("open", open_file(&url))?;
                let writers = Connections::of(&self.base, writer, 1, true);
                (writers, Connections::of(&self.base, reader, READERS, true))
            }
        };
        let (number, shown) = self.base.run("open", number(&writers, volume))?;
        let scope = Scope { volume: number, is_sqlite: matches!(self.place, Place::Folder(_)) };
        let (base, tail, shown) = (self.base.clone(), Tail::default(), AtomicI64::new(shown));
        let is_beside = false;
        VolumeTree { base, id: volume, scope, shown, is_beside, writers, readers, tail }.with_root()
    }

    fn remove_files(&self, volume: VolumeId) -> Result<(), Error> {
        let Place::Folder(folder) = &self.place else { return Ok(()) };
        // The database file first: its write-ahead log is useless without it.
        for end in ["", "-wal", "-shm"] {
            let path = folder.join(format!("{}.sqlite{end}", hex(&volume)));
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::new(Code::CatalogueFailed, "remove", path.display(), error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The id of the shadow tree of a volume.
pub(super) fn beside(volume: VolumeId) -> VolumeId {
    volume.map(|byte| !byte)
}

/// Options of a pool of connections for writes, or for reads only.
fn file_options(connections: u32, is_writer: bool) -> AnyPoolOptions {
    let options = AnyPoolOptions::new().max_connections(connections).acquire_timeout(ACQUIRE_WITHIN);
    // A file, unlike a server, does not go away.
    options.test_before_acquire(false).after_connect(move |connection, _| prepare_file(connection, is_writer))
}

fn prepare_file(connection: &mut AnyConnection, is_writer: bool) -> Prepared<'_> {
    Box::pin(async move {
        let cache = if is_writer { WRITER_CACHE_KIB } else { READER_CACHE_KIB };
        let ways = match is_writer {
            true => format!(
                "journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}"
            ),
            false => "query_only = ON".into(),
        };
        connection.execute(AssertSqlSafe(format!("PRAGMA {ways}"))).await?;
        let limits = format!("PRAGMA busy_timeout = {BUSY_MS}; PRAGMA cache_size = -{cache}");
        connection.execute(AssertSqlSafe(limits)).await?;
        Ok(())
    })
}

async fn open_file(url: &str) -> Result<(AnyPool, AnyPool), sqlx::Error> {
    let writer = file_options(1, true).connect(url).await?;
    up_to_date(&writer, true).await?;
    Ok((writer, file_options(READERS, false).connect_lazy(url)?))
}

async fn open_server(url: &str) -> Result<AnyPool, sqlx::Error> {
    let options = AnyPoolOptions::new().max_connections(SERVER_CONNECTIONS).acquire_timeout(ACQUIRE_WITHIN);
    let pool = options.after_connect(|connection, _| prepare_server(connection)).connect(url).await?;
    up_to_date(&pool, false).await?;
    Ok(pool)
}

/// All statements use keys, but the planner of a server might choose otherwise for a new table without statistics.
/// One generic plan is then as good as a plan for each execution, which costs as much as the execution of statements
/// with many rows.
fn prepare_server(connection: &mut AnyConnection) -> Prepared<'_> {
    Box::pin(async move {
        for way in ["enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit"] {
            connection.execute(AssertSqlSafe(format!("SET {way} = off"))).await?;
        }
        connection.execute("SET plan_cache_mode = force_generic_plan").await?;
        Ok(())
    })
}

async fn up_to_date(pool: &AnyPool, is_sqlite: bool) -> Result<(), sqlx::Error> {
    let mut connection = pool.acquire().await?;
    let mut work = connection.begin().await?;
    bring_up_to_date(&mut work, &TREES, is_sqlite).await?;
    work.commit().await
}

/// The volume's number in the tables, newly drawn if it has none, and the number of its visible nodes and names.
pub(super) async fn number(writers: &Connections, volume: VolumeId) -> Result<(i64, i64), sqlx::Error> {
    let known = "SELECT number, COALESCE(shown, number) FROM tree_volumes WHERE id = $1";
    // Without a condition SQLite parses ON as that of a join.
    let draw = "INSERT INTO tree_volumes (number, id, seq, made, whole) \
        SELECT COALESCE(MAX(number), 0) + 1, $1, 0, 0, 0 FROM tree_volumes WHERE TRUE ON CONFLICT DO NOTHING";
    let number = async |connection: &mut AnyConnection| {
        for _ in 0..DRAWS {
            if let Some(row) =
                sqlx::query(known).bind(volume.to_vec()).fetch_optional(&mut *connection).await?
            {
                return Ok((row.try_get(0)?, row.try_get(1)?));
            }
            sqlx::query(draw).bind(volume.to_vec()).execute(&mut *connection).await?;
        }
        Err(sqlx::Error::Protocol("no number could be drawn for the volume".into()))
    };
    writers.lend(number).await
}

async fn remove_rows(pool: &AnyPool, volume: VolumeId) -> Result<(), sqlx::Error> {
    let mut work = pool.begin().await?;
    for id in [volume, beside(volume)] {
        let forget =
            "UPDATE tree_volumes SET id = NULL WHERE id = $1 RETURNING number, COALESCE(shown, number)";
        let Some(row) = sqlx::query(forget).bind(id.to_vec()).fetch_optional(&mut *work).await? else {
            continue;
        };
        let (number, shown): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        for table in ["nodes", "names", "log", "origins", "pending", "held", "notes", "usage", "away"] {
            let sql = format!("DELETE FROM tree_{table} WHERE volume = $1 OR volume = $2");
            sqlx::query(AssertSqlSafe(sql)).bind(number).bind(shown).execute(&mut *work).await?;
        }
    }
    work.commit().await
}
