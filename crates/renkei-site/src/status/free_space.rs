//! The free space of the storages, from a cache that a thread for each query fills.
//!
//! A page must not wait for a disk, so it shows the cached value; each query has a thread of its own, one at a time
//! for a storage and account, since a query of a file system that hangs never ends.

use super::Monitor;
use crate::access::{Access, Caller};
use crate::files::space;
use crate::storage::root::Root;
use renkei_core::error::Error;
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::message::Space;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Lifetime of a cached value.
const GOOD_FOR: Duration = Duration::from_secs(10);
/// Cache entries that were not requested for this long are dropped.
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// A storage and the account that queries it.
type Key = (String, String);

/// A cache entry.
struct Look {
    asked: Instant,
    began: Instant,
    under_way: bool,
    seen: Option<Result<Space, Error>>,
}

/// The cache of free space.
#[derive(Default)]
pub(crate) struct FreeSpace(Mutex<HashMap<Key, Look>>);

/// A storage and its free space.
#[derive(Clone, Debug)]
pub struct StorageSpace {
    /// The storage's name.
    pub name: String,
    /// Whether it is read-only.
    pub read_only: bool,
    /// Its path, for the administrator alone.
    pub path: Option<String>,
    /// Whether the agent that serves it is connected, if one does; the PoP cannot query its space.
    pub agent: Option<bool>,
    /// The space, or the error of the query; `None` before the first query.
    pub space: Option<Result<Space, Error>>,
    /// The age of a hanging query.
    pub hanging: Option<Duration>,
}

impl FreeSpace {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Look>> {
        self.0.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Whether the caller has to query now; marks the query as under way.
    fn begin(&self, key: &Key, now: Instant) -> bool {
        let mut looks = self.lock();
        looks.retain(|_, look| look.under_way || now - look.asked < FORGET_AFTER);
        let fresh = || Look { asked: now, began: now - GOOD_FOR, under_way: false, seen: None };
        let look = looks.entry(key.clone()).or_insert_with(fresh);
        look.asked = now;
        if look.under_way || now - look.began < GOOD_FOR {
            return false;
        }
        (look.under_way, look.began) = (true, now);
        true
    }

    fn end(&self, key: &Key, seen: Result<Space, Error>) {
        if let Some(look) = self.lock().get_mut(key) {
            (look.under_way, look.seen) = (false, Some(seen));
        }
    }

    fn room(&self, key: &Key, root: &Root, agent: Option<bool>, is_admin: bool) -> StorageSpace {
        let looks = self.lock();
        let look = looks.get(key);
        let hanging = look.filter(|look| look.under_way).map(|look| look.began.elapsed());
        StorageSpace {
            name: key.0.clone(),
            read_only: root.storage.read_only,
            path: (is_admin && agent.is_none()).then(|| root.storage.path.display().to_string()),
            agent,
            space: root
                .trouble()
                .filter(|_| agent.is_none())
                .map(Err)
                .or_else(|| look.and_then(|look| look.seen.clone())),
            hanging: hanging.filter(|hanging| *hanging > GOOD_FOR),
        }
    }
}

impl Monitor {
    /// The space of the storages as the account of `access` sees it, or the PoP's own; starts queries for expired
    /// entries.
    pub fn rooms(self: &Arc<Self>, caller: Caller<'_>) -> Vec<StorageSpace> {
        let access = caller.user();
        let snapshot = self.context.last_snapshot();
        let account = access.map(|access| access.account.name.clone()).unwrap_or_default();
        let room = |(name, root): (&String, &Arc<Root>)| {
            let key = (name.clone(), account.clone());
            if root.trouble().is_none() && self.rooms.begin(&key, Instant::now()) {
                self.look_at(&key, root.clone(), access.cloned());
            }
            let has_line = || self.relay.reverse_registry.has_line(&snapshot.agent(name));
            let agent = snapshot.agent_of(name).map(|_| has_line());
            self.rooms.room(&key, root, agent, access.is_none())
        };
        let seen = |(name, _): &(&String, &Arc<Root>)| access.is_none_or(|access| access.may_see(name));
        snapshot.storages.iter().filter(seen).map(room).collect()
    }

    fn look_at(self: &Arc<Self>, key: &Key, root: Arc<Root>, access: Option<Access>) {
        let look = {
            let (room, key) = (self.clone(), key.clone());
            move || {
                let seen = match access {
                    Some(access) => space(&access, &Place { storage: key.0.clone(), path: RelPath::root() }),
                    None => own_space(&root),
                };
                room.rooms.end(&key, seen);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("room".into()).spawn(look) {
            tracing::warn!(%error, "no thread to look at a storage");
        }
    }
}

/// A storage as the PoP serves it, for the administrator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Served {
    /// The storage's name.
    pub name: String,
    /// The space of a served storage, or why it is not served.
    pub space: Result<Space, Error>,
}

impl Monitor {
    /// The storages that this PoP serves itself; queries each.
    pub fn served(&self) -> Vec<Served> {
        let now = self.context.snapshot();
        let own = now.storages.iter().filter(|(_, root)| root.storage.agent.is_none());
        own.map(|(name, root)| Served { name: name.clone(), space: own_space(root) }).collect()
    }
}

fn own_space(root: &Root) -> Result<Space, Error> {
    root.store()?.space(&RelPath::root())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_probed_by_one_thread_and_not_too_often() {
        let (rooms, key, now) = (FreeSpace::default(), ("data".to_owned(), String::new()), Instant::now());
        assert!(rooms.begin(&key, now) && !rooms.begin(&key, now + 3 * GOOD_FOR), "one is under way");
        rooms.end(&key, Ok(Space::default()));
        assert!(!rooms.begin(&key, now + GOOD_FOR / 2) && rooms.begin(&key, now + GOOD_FOR));
        rooms.end(&key, Ok(Space::default()));
        let other = ("other".to_owned(), String::new());
        rooms.begin(&other, now + GOOD_FOR + FORGET_AFTER);
        assert_eq!(rooms.lock().len(), 1);
    }
}
