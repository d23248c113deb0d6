//! Connection pools for the databases of volumes, and the transactions on them.
//!
//! Free connections are kept here and not in the pool of sqlx, which tests each connection when it is taken and
//! returned. A transaction begins and ends with the statements of its first and last script: each call of SQLite
//! wakes another thread and waits for it, which costs more than the statement itself.

use super::tree_rows::Script;
use super::trees::Database;
use sqlx::any::AnyRow;
use sqlx::pool::PoolConnection;
use sqlx::{Any, AnyConnection, AnyPool, Executor as _};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const BEGIN: &str = "BEGIN";

/// A pool of connections of one kind.
pub(super) struct Connections {
    base: Arc<Database>,
    pool: AnyPool,
    /// Permits: one for each connection in use.
    lent: Arc<Semaphore>,
    free: Mutex<Vec<PoolConnection<Any>>>,
    /// Whether free connections are kept here.
    keeps: bool,
}

impl Drop for Connections {
    fn drop(&mut self) {
        let _within = self.base.enter();
        self.free().clear();
    }
}

impl Connections {
    /// At most `most` connections of a pool.
    pub(super) fn of(base: &Arc<Database>, pool: AnyPool, most: u32, keeps: bool) -> Arc<Self> {
        let (lent, free) = (Arc::new(Semaphore::new(most as usize)), Mutex::default());
        Arc::new(Connections { base: base.clone(), pool, lent, free, keeps })
    }

    /// The underlying pool.
    pub(super) fn pool(&self) -> &AnyPool {
        &self.pool
    }

    /// Runs some work on a connection, outside of a transaction. After an error the connection goes back to the pool,
    /// which tests it.
    pub(super) async fn lend<T>(
        &self,
        work: impl AsyncFnOnce(&mut AnyConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, sqlx::Error> {
        let _one = self.lent.acquire().await.map_err(|_| sqlx::Error::PoolClosed)?;
        let mut connection = self.take().await?;
        let result = work(&mut connection).await;
        if result.is_ok() {
            self.put(connection);
        }
        result
    }

    /// Begins a transaction with a script; returns the rows that it finds.
    pub(super) async fn begin(self: &Arc<Self>, script: Script) -> Result<(Work, Vec<AnyRow>), sqlx::Error> {
        let mut work = self.work().await?;
        let found = script.after(BEGIN).fetch(&mut work).await?;
        Ok((work, found))
    }

    /// Executes a script in a transaction of its own, unless it is empty.
    pub(super) async fn execute(self: &Arc<Self>, script: Script) -> Result<(), sqlx::Error> {
        if script.is_empty() {
            return Ok(());
        }
        self.work().await?.commit_with(script.after(BEGIN)).await
    }

    /// Takes a connection for a transaction.
    async fn work(self: &Arc<Self>) -> Result<Work, sqlx::Error> {
        let one = self.lent.clone().acquire_owned().await.map_err(|_| sqlx::Error::PoolClosed)?;
        Ok(Work(Some(Begun { connection: self.take().await?, of: self.clone(), _one: one })))
    }

    async fn take(&self) -> Result<PoolConnection<Any>, sqlx::Error> {
        let free = self.free().pop();
        match free {
            Some(connection) => Ok(connection),
            None => self.connect().await,
        }
    }

    fn put(&self, connection: PoolConnection<Any>) {
        let mut free = self.free();
        if self.keeps && !self.lent.is_closed() {
            free.push(connection);
        }
    }

    /// Connects on a thread of the runtime: the calling thread may have the rights of another account, and the thread
    /// of an SQLite connection inherits the rights of the thread that created it.
    async fn connect(&self) -> Result<PoolConnection<Any>, sqlx::Error> {
        let pool = self.pool.clone();
        let connecting = self.base.runtime().spawn(async move { pool.acquire().await });
        connecting.await.map_err(|_| sqlx::Error::PoolClosed)?
    }

    /// Closes all connections; later calls fail.
    pub(super) async fn close(&self) {
        self.lent.close();
        self.free().clear();
        self.pool.close().await;
    }

    fn free(&self) -> MutexGuard<'_, Vec<PoolConnection<Any>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A transaction with its connection; it is rolled back on drop unless committed.
pub(super) struct Work(Option<Begun>);

struct Begun {
    connection: PoolConnection<Any>,
    of: Arc<Connections>,
    _one: OwnedSemaphorePermit,
}

impl Work {
    /// Commits.
    pub(super) async fn commit(self) -> Result<(), sqlx::Error> {
        self.commit_with(Script::default()).await
    }

    /// Executes a script and commits.
    pub(super) async fn commit_with(mut self, script: Script) -> Result<(), sqlx::Error> {
        script.before("COMMIT").execute(&mut self).await?;
        if let Some(Begun { connection, of, _one }) = self.0.take() {
            of.put(connection);
        }
        Ok(())
    }
}

impl Deref for Work {
    type Target = AnyConnection;

    fn deref(&self) -> &AnyConnection {
        &self.0.as_ref().expect("it is there until the transaction ends").connection
    }
}

impl DerefMut for Work {
    fn deref_mut(&mut self) -> &mut AnyConnection {
        &mut self.0.as_mut().expect("it is there until the transaction ends").connection
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let Some(begun) = self.0.take() else { return };
        let base = begun.of.base.clone();
        base.runtime().spawn(async move {
            // The permit is kept meanwhile, so the connection is not used before the rollback.
            let Begun { mut connection, of, _one } = begun;
            match connection.execute("ROLLBACK").await {
                Ok(_) => of.put(connection),
                Err(_) => connection.close_on_drop(),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::Trees;
    use renkei_config::home::Home;

    #[test]
    fn what_was_not_committed_is_taken_back_before_somebody_else_gets_the_connection() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::at(folder.path());
        let tree = Trees::open("", &home).unwrap().tree([1; 16]).unwrap();
        for round in 0..50 {
            let mut script = tree.script();
            tree.put_note(&mut script, "lost", vec![round]);
            let (work, _) = tree.base.run("begin", tree.writers.begin(script)).unwrap();
            drop(work);
            tree.set_note("kept", &[round]).unwrap();
            assert_eq!((tree.note("lost").unwrap(), tree.note("kept").unwrap()), (None, Some(vec![round])));
        }
    }
}
