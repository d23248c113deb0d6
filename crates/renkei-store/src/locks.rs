//! Byte-range locks: one table per PoP, of clients that may lose their connection and reconnect.
//!
//! A client is a mount, identified by a number it has chosen, over all its successive sessions. Its locks expire when
//! it was disconnected for [`TERM`]; if it reconnects later it begins anew, and sees that by a new epoch.

use super::leases::TERM;
use renkei_core::error::{Code, Error};
use renkei_core::lease::locks::{FileKey, Hold, Locks, Owner, Span};
use renkei_core::path::RelPath;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Most locked ranges at a PoP.
const MOST: usize = 100_000;

/// A client's principal and its own number.
pub type ClientKey = (String, [u8; 16]);

/// The locks of a PoP.
#[derive(Default)]
pub struct LockTable(Mutex<State>);

#[derive(Default)]
struct State {
    locks: Locks,
    clients: HashMap<ClientKey, Client>,
    last: u64,
}

struct Client {
    number: u64,
    sessions: usize,
    gone: Instant,
}

/// Decides about the locks of a store.
pub trait Locker: Send + Sync {
    /// Locks or unlocks a range of a file.
    ///
    /// # Errors
    /// `LockHeld`; `LocksAway` if the lock manager cannot be reached.
    fn lock(&self, at: LockAt, owner: u64, wanted: &Span) -> Result<(), Error>;

    /// The conflicting lock, if any.
    ///
    /// # Errors
    /// `LocksAway`.
    fn find(&self, at: LockAt, owner: u64, wanted: &Span) -> Result<Option<Span>, Error>;

    /// The epoch of the client's locks: a changed number means that all of them are lost.
    fn round(&self) -> u64;
}

/// A file to be locked.
pub struct LockAt {
    /// Its path below the root of the store.
    pub path: RelPath,
    /// Its parent directory and name.
    pub key: FileKey,
}

/// A client's session with the local lock table.
pub struct LockSession {
    table: Arc<LockTable>,
    key: ClientKey,
    number: u64,
}

impl LockTable {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }

    /// Begins a session of a client, new or reconnected.
    pub fn begin(self: &Arc<Self>, key: ClientKey) -> LockSession {
        let mut state = self.state();
        state.sweep();
        // A fresh table must not reuse a number that a client had in the previous one.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        state.last = state.last.max(now.as_nanos() as u64) + 1;
        let fresh = state.last;
        let client = state.clients.entry(key.clone()).or_insert(Client {
            number: fresh,
            sessions: 0,
            gone: Instant::now(),
        });
        client.sessions += 1;
        LockSession { table: self.clone(), key, number: client.number }
    }

    /// Number of locked ranges.
    pub fn count(&self) -> usize {
        self.state().locks.count()
    }
}

impl State {
    /// Expires clients that were disconnected for too long.
    fn sweep(&mut self) {
        let is_over = |client: &Client| client.sessions == 0 && client.gone.elapsed() >= TERM;
        let over: Vec<u64> =
            self.clients.values().filter(|client| is_over(client)).map(|client| client.number).collect();
        self.clients.retain(|_, client| !is_over(client));
        over.into_iter().for_each(|number| self.locks.end_client(number));
    }
}

impl Locker for LockSession {
    fn lock(&self, at: LockAt, owner: u64, wanted: &Span) -> Result<(), Error> {
        let mut state = self.table.state();
        state.sweep();
        let owner = Owner { client: self.number, owner };
        let adds = wanted.hold != Hold::Nothing || state.locks.splits(&at.key, owner, wanted);
        if adds && state.locks.count() >= MOST {
            let cause = format!("{MOST} ranges are locked here");
            return Err(Error::new(Code::LocksAway, "lock", at.path, cause));
        }
        state.locks.set(&at.key, owner, wanted).map_err(|other| held(&at, &other))
    }

    fn find(&self, at: LockAt, owner: u64, wanted: &Span) -> Result<Option<Span>, Error> {
        let mut state = self.table.state();
        state.sweep();
        Ok(state.locks.conflict(&at.key, Owner { client: self.number, owner }, wanted))
    }

    fn round(&self) -> u64 {
        self.number
    }
}

impl Drop for LockSession {
    fn drop(&mut self) {
        if let Some(client) = self.table.state().clients.get_mut(&self.key) {
            client.sessions = client.sessions.saturating_sub(1);
            client.gone = Instant::now();
        }
    }
}

fn held(at: &LockAt, other: &Span) -> Error {
    let cause = format!("bytes {} to {} are locked by process {}", other.start, other.end, other.pid);
    Error::new(Code::LockHeld, "lock", &at.path, cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_refuses_locks_and_takes_unlocks() {
        let table = Arc::new(LockTable::default());
        let session = table.begin(("alice@kek".into(), [1; 16]));
        let key = |number: usize| FileKey { device: 1, dir: 1, name: number.to_be_bytes().to_vec() };
        let range = |hold| Span { start: 0, end: 9, hold, pid: 1 };
        let owner = Owner { client: session.number, owner: 1 };
        for number in 0..MOST {
            table.state().locks.set(&key(number), owner, &range(Hold::Exclusive)).unwrap();
        }
        let lock =
            |number, hold| session.lock(LockAt { path: RelPath::root(), key: key(number) }, 1, &range(hold));
        assert_eq!(lock(MOST, Hold::Shared).unwrap_err().code, Code::LocksAway);
        let inside = Span { start: 4, end: 5, hold: Hold::Nothing, pid: 1 };
        let split = session.lock(LockAt { path: RelPath::root(), key: key(1) }, 1, &inside);
        assert_eq!(split.unwrap_err().code, Code::LocksAway, "it would add a range");
        lock(0, Hold::Nothing).unwrap();
        lock(MOST, Hold::Shared).unwrap();
    }
}
