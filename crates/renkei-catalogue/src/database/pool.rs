//! Connection pools, and the transactions on their connections.

use super::postgres::Server;
use super::query::Connection;
use super::sqlite::File;
use super::value::DatabaseError;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The database to which a pool connects.
pub(crate) enum Source {
    /// A file of SQLite. Free connections are kept.
    File(File),
    /// A server. Free connections are kept in this pool, too.
    Server(Arc<Server>),
    /// A server. Free connections go back to the driver's pool, which tests each one before it is used: a server may
    /// restart.
    Tested(Arc<Server>),
}

/// A pool of connections to one database.
pub(crate) struct Pool {
    state: Mutex<State>,
    most: usize,
    source: Source,
}

/// Threads get connections in the order in which they asked.
#[derive(Default)]
struct State {
    free: Vec<Connection>,
    lent: usize,
    is_closed: bool,
    waiting: VecDeque<Arc<Condvar>>,
    /// The number of threads that have waited, and of those that were called.
    asked: u64,
    called: u64,
    /// A thread that closes the pool waits for the connections in use.
    closing: Arc<Condvar>,
}

impl Pool {
    /// A pool of at most `most` connections.
    pub(crate) fn new(source: Source, most: u32) -> Arc<Self> {
        Arc::new(Pool { state: Mutex::default(), most: most as usize, source })
    }

    /// Runs some work on a connection, outside of a transaction.
    pub(crate) fn lend<T>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut Connection) -> Result<T, DatabaseError>,
    ) -> Result<T, DatabaseError> {
        let mut lent = self.take()?;
        let result = work(lent.connection());
        if result.is_err() {
            lent.close();
        }
        result
    }

    /// Begins a transaction.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<Work, DatabaseError> {
        let mut lent = self.take()?;
        match lent.connection().run("BEGIN") {
            Ok(()) => Ok(Work { lent, is_open: true }),
            Err(error) => {
                lent.close();
                Err(error)
            }
        }
    }

    /// Closes all connections when they are not in use any more; later calls fail.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.waiting.drain(..).for_each(|turn| turn.notify_one());
        let closing = state.closing.clone();
        while state.lent > 0 {
            state = closing.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.free.clear();
    }

    fn take(self: &Arc<Self>) -> Result<Lent, DatabaseError> {
        let free = self.wait_for_turn()?;
        let mut lent = Lent { pool: self.clone(), connection: free };
        if lent.connection.is_none() {
            lent.connection = Some(self.connect()?);
        }
        Ok(lent)
    }

    /// Waits until fewer than `most` connections are in use; returns a free one, if there is one.
    fn wait_for_turn(&self) -> Result<Option<Connection>, DatabaseError> {
        let mut state = self.state();
        if state.lent < self.most {
            state.lent += 1;
        } else {
            let turn = Arc::new(Condvar::new());
            state.waiting.push_back(turn.clone());
            state.asked += 1;
            let number = state.asked;
            while state.called < number && !state.is_closed {
                state = turn.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.called < number {
                return Err(DatabaseError::Closed);
            }
        }
        if !state.is_closed {
            return Ok(state.free.pop());
        }
        drop(state);
        self.give_back(None);
        Err(DatabaseError::Closed)
    }

    fn connect(&self) -> Result<Connection, DatabaseError> {
        match &self.source {
            Source::File(file) => file.connect().map(Connection::Sqlite),
            Source::Server(server) | Source::Tested(server) => server.connect().map(Connection::Server),
        }
    }

    /// Takes a connection back, if it can be used again, and lets the next thread have its turn.
    fn give_back(&self, connection: Option<Connection>) {
        let is_kept = !matches!(self.source, Source::Tested(_));
        let mut state = self.state();
        let is_closed = state.is_closed;
        // A connection that is closed here is closed before it counts as returned.
        let connection = connection.filter(|_| is_kept && !is_closed);
        state.free.extend(connection);
        match state.waiting.pop_front() {
            Some(turn) => {
                state.called += 1;
                turn.notify_one();
            }
            None => state.lent -= 1,
        }
        if is_closed {
            state.closing.notify_all();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection in use.
struct Lent {
    pool: Arc<Pool>,
    connection: Option<Connection>,
}

impl Lent {
    fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("it is there until it is closed")
    }

    fn close(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.close();
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.give_back(self.connection.take());
    }
}

/// A transaction with its connection; it is rolled back on drop unless it was committed.
pub(crate) struct Work {
    lent: Lent,
    is_open: bool,
}

impl Work {
    /// Commits. After a failure, as on a full disk, it is not known whether the transaction is still open; later
    /// statements would be part of it and be lost with it. So the connection is closed.
    pub(crate) fn commit(mut self) -> Result<(), DatabaseError> {
        self.is_open = false;
        let committed = self.lent.connection().run("COMMIT");
        if committed.is_err() {
            self.lent.close();
        }
        committed
    }
}

impl Deref for Work {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.lent.connection.as_ref().expect("it is there until the transaction ends")
    }
}

impl DerefMut for Work {
    fn deref_mut(&mut self) -> &mut Connection {
        self.lent.connection()
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let connection = self.lent.connection();
        if connection.run("ROLLBACK").is_err() || !connection.is_idle() {
            self.lent.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::{Opener, create_private, query};
    use std::path::Path;
    use std::sync::mpsc::channel;
    use std::thread::scope;
    use std::time::Duration;

    fn pool(folder: &Path, most: u32) -> Arc<Pool> {
        let path = folder.join("state/db");
        create_private(&path).unwrap();
        let file = File::new(&Opener::start().unwrap(), &path, "PRAGMA journal_mode = WAL".into());
        let pool = Pool::new(Source::File(file), most);
        pool.lend(|connection| connection.run("CREATE TABLE t (n BIGINT)")).unwrap();
        pool
    }

    fn add(pool: &Arc<Pool>, number: i64) -> Result<(), DatabaseError> {
        pool.lend(|connection| query("INSERT INTO t VALUES ($1)").bind(number).execute(connection).map(drop))
    }

    fn numbers(pool: &Arc<Pool>) -> Vec<i64> {
        let rows = pool.lend(|connection| query("SELECT n FROM t ORDER BY rowid").rows(connection)).unwrap();
        rows.iter().map(|row| row.get(0).unwrap()).collect()
    }

    #[test]
    fn a_transaction_that_is_dropped_is_rolled_back_before_the_next_thread_gets_the_connection() {
        let folder = tempfile::tempdir().unwrap();
        let pool = pool(folder.path(), 1);
        for number in 0..50 {
            let mut work = pool.begin().unwrap();
            query("INSERT INTO t VALUES (-1)").execute(&mut work).unwrap();
            drop(work);
            add(&pool, number).unwrap();
        }
        assert_eq!(numbers(&pool), (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn a_connection_that_failed_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let pool = pool(folder.path(), 1);
        let mut work = pool.begin().unwrap();
        assert!(query("INSERT INTO nothing VALUES (1)").execute(&mut work).is_err());
        drop(work);
        assert!(pool.lend(|connection| connection.run("BEGIN; nonsense")).is_err());
        assert!(query("SELECT $2").bind(1).rows(&mut pool.begin().unwrap()).is_err(), "a value is missing");
        add(&pool, 7).unwrap();
        assert_eq!(numbers(&pool), [7]);
    }

    #[test]
    fn threads_get_their_turn_in_the_order_in_which_they_asked() {
        let folder = tempfile::tempdir().unwrap();
        let pool = pool(folder.path(), 1);
        scope(|scope| {
            let work = pool.begin().unwrap();
            for number in 0..8 {
                let of_thread = pool.clone();
                scope.spawn(move || add(&of_thread, number).unwrap());
                while pool.state().asked < u64::try_from(number).unwrap() + 1 {
                    std::thread::yield_now();
                }
            }
            work.commit().unwrap();
        });
        assert_eq!(numbers(&pool), (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn a_pool_is_closed_when_no_connection_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let pool = pool(folder.path(), 1);
        let (sender, closed) = channel();
        scope(|scope| {
            let work = pool.begin().unwrap();
            let waits = scope.spawn(|| add(&pool, 1));
            while pool.state().waiting.is_empty() {
                std::thread::yield_now();
            }
            scope.spawn(|| {
                pool.close();
                sender.send(()).unwrap();
            });
            assert!(matches!(waits.join().unwrap(), Err(DatabaseError::Closed)));
            assert!(closed.try_recv().is_err(), "a connection is in use");
            drop(work);
            closed.recv_timeout(Duration::from_secs(60)).unwrap();
        });
        assert!(matches!(add(&pool, 2), Err(DatabaseError::Closed)));
    }

    #[test]
    fn a_thread_with_the_rights_of_another_account_gets_connections() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let pool = pool(folder.path(), 4);
        let nobody = rustix::process::Uid::from_raw(65_534);
        let as_nobody = || {
            rustix::thread::set_thread_res_uid(
                rustix::process::Uid::ROOT,
                nobody,
                rustix::process::Uid::ROOT,
            )
            .unwrap();
            assert!(std::fs::File::open(folder.path().join("state/db")).is_err());
            let begun: Vec<Work> = (0..3).map(|_| pool.begin().unwrap()).collect();
            add(&pool, 1).unwrap();
            begun
                .into_iter()
                .for_each(|mut work| query("SELECT n FROM t").rows(&mut work).map(drop).unwrap());
        };
        scope(|scope| scope.spawn(as_nobody).join().unwrap());
        assert_eq!(numbers(&pool), [1]);
    }
}
