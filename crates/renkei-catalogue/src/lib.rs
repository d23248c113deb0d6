//! The catalogue: the database with the durable state of a PoP.
//!
//! SQLite in the PoP's own directory by default, PostgreSQL where the configuration names one (`catalogue`); the same
//! statements run on both. `transfers` and `webhooks` have the queue, `links` those for strangers, `trees` and `tree*` the trees of volumes, one
//! database for each. Uses: `renkei-core`, `renkei-config`. Calls block; each statement is short. Guarantee: a write is
//! durable when its call returns. Non-goal: data of files.

mod database;
mod duplicate;
mod links;
mod schema;
mod stored;
mod transfers;
mod tree;
mod tree_apply;
mod tree_commit;
mod tree_log_switch;
mod tree_note;
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
pub use links::StoredLink;
pub use transfers::{
    Lane, Listing, New, Put, Row, Update, Waiting, first_digits, hex_id, no_digits, parse_id,
};
pub use tree::{HeldReplica, Position, VolumeTree, follow_names, own_version};
pub use tree_apply::{MARK, record_digest};
pub use tree_log_switch::LogSwitch;
pub use tree_note::TreeNote;
pub use tree_reader::TreeReader;
pub use tree_remote::{Away, AwayAt, OWN};
pub use trees::{Trees, VolumeId};
pub use webhooks::Webhook;

use database::{Connection, DatabaseError, File, Opener, Pool, Server, Source, create_private};
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use std::path::PathBuf;
use std::sync::Arc;

/// Connections to a server; SQLite has one, since it allows one writer at a time anyway.
const SERVER_CONNECTIONS: u32 = 8;
/// Commits survive a power cut.
const DURABLE: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;";

/// An open catalogue.
pub struct Catalogue {
    pool: Arc<Pool>,
    /// The database without its password, for messages.
    shown: String,
}

/// The database that the configuration names.
enum Engine {
    Sqlite(PathBuf),
    Server(String),
}

impl Engine {
    fn choose(named: &str, home: &Home) -> Result<Self, Error> {
        if named.is_empty() {
            return Ok(Engine::Sqlite(home.state_dir().join("catalogue.sqlite")));
        }
        if named.starts_with("postgres://") || named.starts_with("postgresql://") {
            return Ok(Engine::Server(named.into()));
        }
        let cause = "write `postgres://USER@HOST/DATABASE`, or nothing for SQLite in the PoP's directory";
        Err(Error::new(Code::ConfigInvalid, "open catalogue", "catalogue", cause))
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

    fn pool(&self) -> Result<Arc<Pool>, Error> {
        match self {
            Engine::Sqlite(path) => {
                create_private(path)?;
                let file = File::new(&Opener::start()?, path, DURABLE.into());
                Ok(Pool::new(Source::File(file), 1))
            }
            Engine::Server(url) => {
                let server = Server::new(url, "catalogue", SERVER_CONNECTIONS, &[])?;
                Ok(Pool::new(Source::Tested(server), SERVER_CONNECTIONS))
            }
        }
    }
}

/// The database server of a configuration without its password; none for SQLite in the PoP's directory.
pub fn server(named: &str) -> Option<String> {
    (!named.is_empty()).then(|| Engine::Server(named.into()).shown())
}

impl Catalogue {
    /// Opens the catalogue that the configuration names, and applies missing migrations.
    ///
    /// # Errors
    /// `CatalogueFailed`, `ConfigInvalid`.
    pub fn open(named: &str, home: &Home) -> Result<Self, Error> {
        let engine = Engine::choose(named, home)?;
        let catalogue = Catalogue { pool: engine.pool()?, shown: engine.shown() };
        catalogue.run("open", |pool| schema::bring_up_to_date(pool, &schema::QUEUE))?;
        Ok(catalogue)
    }

    /// The database, for messages.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Runs some work on a connection, outside of a transaction.
    fn lend<T>(
        &self,
        op: &str,
        work: impl FnOnce(&mut Connection) -> Result<T, DatabaseError>,
    ) -> Result<T, Error> {
        self.run(op, |pool| pool.lend(work))
    }

    /// Runs some work in a transaction, which is committed unless the work fails.
    fn transaction<T>(
        &self,
        op: &str,
        work: impl FnOnce(&mut Connection) -> Result<T, DatabaseError>,
    ) -> Result<T, Error> {
        self.run(op, |pool| {
            let mut begun = pool.begin()?;
            let done = work(&mut begun)?;
            begun.commit()?;
            Ok(done)
        })
    }

    /// Runs some work on the connections to the database.
    fn run<T>(
        &self,
        op: &str,
        work: impl FnOnce(&Arc<Pool>) -> Result<T, DatabaseError>,
    ) -> Result<T, Error> {
        work(&self.pool).map_err(|error| failed(op, &self.shown, &error))
    }
}

fn failed(op: &str, shown: &str, error: &DatabaseError) -> Error {
    match error {
        DatabaseError::Newer(error) => error.clone(),
        _ => Error::new(Code::CatalogueFailed, op, shown, error),
    }
}
