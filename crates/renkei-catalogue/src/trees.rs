//! The databases of the volumes of a PoP.
//!
//! Each volume has an SQLite file of its own below `state/volumes`, so that a large volume and the queue do not slow
//! each other, and removing a volume removes its file. If the catalogue is on PostgreSQL, all volumes share its
//! tables, with a volume number in front of each key. The statements are the same. An SQLite file has one connection
//! for writes and others for concurrent reads; each reads the state after the last commit.

use super::database::{DatabaseError, File, Opener, Pool, Server, Source, create_private, query};
use super::schema::{TREES, bring_up_to_date};
use super::tree::{Tail, VolumeTree};
use super::tree_rows::Scope;
use super::{DURABLE, Engine, SERVER_CONNECTIONS, failed};
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::units::hex;
pub use renkei_core::wire::volume::VolumeId;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, PoisonError};

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

/// Settings of each connection to a server.
///
/// All statements use keys, but the planner of a server might choose otherwise for a new table without statistics. One
/// generic plan is then as good as a plan for each execution, which costs as much as the execution of statements with
/// many rows.
const BY_KEYS: &[&str] = &[
    "SET enable_seqscan = off",
    "SET enable_hashjoin = off",
    "SET enable_mergejoin = off",
    "SET jit = off",
    "SET plan_cache_mode = force_generic_plan",
];

/// The databases of a PoP's volumes.
pub struct Trees {
    place: Place,
    /// The database without its password, for messages.
    database: Arc<str>,
    open: Mutex<BTreeMap<VolumeId, Arc<VolumeTree>>>,
}

enum Place {
    Folder { path: PathBuf, opener: Arc<Opener> },
    Server { writers: Arc<Pool>, readers: Arc<Pool> },
}

impl Trees {
    /// As [`Catalogue::open`](super::Catalogue::open): SQLite files in the PoP's directory, or the server of the
    /// configuration.
    ///
    /// # Errors
    /// `CatalogueFailed`, `ConfigInvalid`.
    pub fn open(named: &str, home: &Home) -> Result<Self, Error> {
        let engine = Engine::choose(named, home)?;
        let database: Arc<str> = engine.shown().into();
        let place = match &engine {
            Engine::Sqlite(_) => {
                Place::Folder { path: home.state_dir().join("volumes"), opener: Opener::start()? }
            }
            Engine::Server(url) => {
                let server = Server::new(url, "trees", SERVER_CONNECTIONS, BY_KEYS)?;
                let writers = Pool::new(Source::Tested(server.clone()), SERVER_CONNECTIONS - READERS);
                let opened = bring_up_to_date(&writers, &TREES);
                opened.map_err(|error| failed("open", &database, &error))?;
                Place::Server { writers, readers: Pool::new(Source::Server(server), READERS) }
            }
        };
        Ok(Trees { place, database, open: Mutex::default() })
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
            Place::Folder { path, .. } => {
                if let Some(tree) = tree {
                    tree.close();
                }
                remove_files(path, volume)
            }
            Place::Server { writers, .. } => self.told("remove", remove_rows(writers, volume)),
        }
    }

    fn open_tree(&self, volume: VolumeId) -> Result<VolumeTree, Error> {
        let (writers, readers) = match &self.place {
            Place::Server { writers, readers } => (writers.clone(), readers.clone()),
            Place::Folder { path, opener } => {
                let path = file(path, volume);
                create_private(&path)?;
                let writers = Pool::new(Source::File(File::new(opener, &path, for_writes())), 1);
                self.told("open", bring_up_to_date(&writers, &TREES))?;
                (writers, Pool::new(Source::File(File::new(opener, &path, for_reads())), READERS))
            }
        };
        let (number, shown) = self.told("open", number(&writers, volume))?;
        let scope = Scope { volume: number, is_sqlite: matches!(self.place, Place::Folder { .. }) };
        let (database, tail, shown) = (self.database.clone(), Tail::default(), AtomicI64::new(shown));
        VolumeTree { database, id: volume, scope, shown, writers, readers, tail }.with_root()
    }

    fn told<T>(&self, op: &str, result: Result<T, DatabaseError>) -> Result<T, Error> {
        result.map_err(|error| failed(op, &self.database, &error))
    }
}

fn file(folder: &Path, volume: VolumeId) -> PathBuf {
    folder.join(format!("{}.sqlite", hex(&volume)))
}

fn remove_files(folder: &Path, volume: VolumeId) -> Result<(), Error> {
    // The database file first: its write-ahead log is useless without it.
    for end in ["", "-wal", "-shm"] {
        let mut path = file(folder, volume).into_os_string();
        path.push(end);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::new(Code::CatalogueFailed, "remove", path.display(), error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Settings of the connection for writes to a file.
fn for_writes() -> String {
    format!(
        "{DURABLE} PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}; PRAGMA cache_size = -{WRITER_CACHE_KIB};"
    )
}

/// Settings of each connection for reads of a file.
fn for_reads() -> String {
    format!("PRAGMA query_only = ON; PRAGMA cache_size = -{READER_CACHE_KIB};")
}

/// The id of the shadow tree of a volume.
pub(super) fn beside(volume: VolumeId) -> VolumeId {
    volume.map(|byte| !byte)
}

/// The volume's number in the tables, newly drawn if it has none, and the number of its visible nodes and names.
pub(super) fn number(writers: &Arc<Pool>, volume: VolumeId) -> Result<(i64, i64), DatabaseError> {
    let known = "SELECT number, COALESCE(shown, number) FROM tree_volumes WHERE id = $1";
    // Without a condition SQLite parses ON as that of a join.
    let draw = "INSERT INTO tree_volumes (number, id, seq, made, whole) \
        SELECT COALESCE(MAX(number), 0) + 1, $1, 0, 0, 0 FROM tree_volumes WHERE TRUE ON CONFLICT DO NOTHING";
    writers.lend(|connection| {
        for _ in 0..DRAWS {
            if let Some(row) = query(known).bind(volume.to_vec()).first(connection)? {
                return Ok((row.get(0)?, row.get(1)?));
            }
            query(draw).bind(volume.to_vec()).execute(connection)?;
        }
        Err(DatabaseError::Invalid("no number could be drawn for the volume".into()))
    })
}

fn remove_rows(writers: &Arc<Pool>, volume: VolumeId) -> Result<(), DatabaseError> {
    let mut work = writers.begin()?;
    for id in [volume, beside(volume)] {
        let forget =
            "UPDATE tree_volumes SET id = NULL WHERE id = $1 RETURNING number, COALESCE(shown, number)";
        let Some(row) = query(forget).bind(id.to_vec()).first(&mut work)? else { continue };
        let (number, shown): (i64, i64) = (row.get(0)?, row.get(1)?);
        for table in ["nodes", "names", "log", "origins", "pending", "held", "notes", "usage", "away"] {
            let sql = format!("DELETE FROM tree_{table} WHERE volume = $1 OR volume = $2");
            query(sql).bind(number).bind(shown).execute(&mut work)?;
        }
    }
    work.commit()
}
