//! Remembered tables of names.
//!
//! A table is found as long as its directory has the version that it had before and after it was read, so a name that came,
//! went or changed its type since is never missed. A directory that was changed a moment ago has no version
//! ([`Dir::version`](crate::Dir::version)): the next change could leave the same times. All tables are bounded in bytes; the
//! one that was not used for longest goes first.

use crate::DirVersion;
use renkei_core::name_table::{NameTable, NamesFrom};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Tables by directory.
pub(super) struct Cache {
    most_bytes: usize,
    least_names: usize,
    age: Duration,
    tables: Mutex<HashMap<(u64, u64), Remembered>>,
}

struct Remembered {
    version: DirVersion,
    table: Arc<NameTable>,
    used: Instant,
}

impl Cache {
    pub(super) fn new(most_bytes: usize, least_names: usize, age: Duration) -> Self {
        Cache { most_bytes, least_names, age, tables: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(u64, u64), Remembered>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table of a directory, if it has the wanted names.
    pub(super) fn find(&self, version: &DirVersion, from: &NamesFrom) -> Option<Arc<NameTable>> {
        let mut tables = self.lock();
        let found = tables.get_mut(&(version.device, version.ino))?;
        if found.version != *version || !found.table.covers(from) {
            return None;
        }
        found.used = Instant::now();
        Some(found.table.clone())
    }

    /// Whether there is a table of the directory that has a part of its names.
    pub(super) fn has_other_part(&self, version: &DirVersion) -> bool {
        let tables = self.lock();
        let found = tables.get(&(version.device, version.ino));
        found.is_some_and(|found| found.version == *version)
    }

    /// Remembers a table in place of another of the directory.
    pub(super) fn keep(&self, version: DirVersion, table: Arc<NameTable>) {
        let bytes = table.footprint();
        if table.len() < self.least_names || bytes > self.most_bytes {
            return;
        }
        let mut gone = Vec::new();
        let mut tables = self.lock();
        gone.extend(tables.remove(&(version.device, version.ino)));
        gone.extend(tables.extract_if(|_, one| one.used.elapsed() >= self.age).map(|(_, one)| one));
        let mut total: usize = tables.values().map(|one| one.table.footprint()).sum();
        while total + bytes > self.most_bytes {
            let oldest = tables.iter().min_by_key(|(_, one)| one.used).map(|(key, _)| *key);
            let Some(one) = oldest.and_then(|key| tables.remove(&key)) else { break };
            total -= one.table.footprint();
            gone.push(one);
        }
        tables.insert((version.device, version.ino), Remembered { version, table, used: Instant::now() });
        drop(tables);
        // Memory is given back outside the lock.
        drop(gone);
    }

    /// Forgets what was not used for a while.
    pub(super) fn expire(&self) {
        let gone: Vec<_> = self.lock().extract_if(|_, one| one.used.elapsed() >= self.age).collect();
        drop(gone);
    }

    #[cfg(test)]
    pub(super) fn footprint(&self) -> usize {
        self.lock().values().map(|one| one.table.footprint()).sum()
    }
}
