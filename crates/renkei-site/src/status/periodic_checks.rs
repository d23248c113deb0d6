//! Periodic checks of a PoP: changed files and the transfers they end, missing storages.
//!
//! The transfers of a principal that is no longer trusted, mapped or valid are stopped within seconds, and so are
//! those in a storage that is missing. The checks have a thread each, because one at a storage may block for ever
//! where a remote file system hangs; another one samples the progress of transfers.

use super::Monitor;
use crate::volume::home::log_truncation::spawn_trimming;
use renkei_core::error::{Code, Error};
use renkei_store::names;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval of the checks.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Interval of the look at the keytab, and at the files of grid authorities, which are hundreds and may be on a network file system.
const LOOK_AT_GRID_EVERY: Duration = Duration::from_secs(5);

/// Starts the threads of the checks, which run as long as the PoP lives.
pub(crate) fn spawn_checks(room: &Arc<Monitor>) -> Result<(), Error> {
    let context = &room.context;
    context.spawn_every(room, "rates", LOOK_EVERY, |room| room.transfers.active.look())?;
    context.spawn_every(room, "web", LOOK_EVERY, |room| {
        let now = room.context.last_snapshot();
        now.web.look(&now.config.web);
        now.host.look(&now.config.grid.host());
        room.context.workers.note("web", now.web.trouble().or_else(|| now.host.trouble()));
    })?;
    context.spawn_every(room, "grid", LOOK_AT_GRID_EVERY, |room| {
        let now = room.context.last_snapshot();
        if now.grid.is_stale(&now.config.grid) || now.kerberos.is_stale(&now.config.kerberos) {
            tracing::info!("files of the grid or the keytab changed");
            room.context.read_again();
        }
    })?;
    context.spawn_every(room, "volumes", LOOK_EVERY, |room| room.context.last_snapshot().follow_volumes())?;
    spawn_trimming(&room.volumes)?;
    context.spawn_every(room, "storages", LOOK_EVERY, |room| {
        names::expire();
        room.watch_storages();
    })
}

impl Monitor {
    /// Checks the storages, and stops transfers in one that is missing, was replaced by another directory or was
    /// removed.
    fn watch_storages(&self) {
        let now = self.context.last_snapshot();
        now.look_at_storages();
        let exchanged: Vec<&str> = now
            .storages
            .iter()
            .filter(|(_, root)| root.take_exchanged())
            .map(|(name, _)| name.as_str())
            .collect();
        self.transfers.active.stop_in(|name| {
            let storage = now.volumes.get(name).map_or(name, |facts| facts.storage.as_str());
            now.trouble_of(name).or_else(|| exchanged.contains(&storage).then(|| was_exchanged(storage)))
        });
    }
}

/// Timeout for the release of a removed storage.
const RELEASED_WITHIN: Duration = Duration::from_secs(20);

impl Monitor {
    /// Waits until no file below a directory is open any more, after its storage was removed; returns how many
    /// still are.
    pub fn await_release(&self, root: &Path) -> usize {
        self.context.read_again();
        // The kernel reports names without symbolic links.
        let root = root.canonicalize().unwrap_or_else(|_| root.into());
        let begin = Instant::now();
        loop {
            let now = self.context.last_snapshot();
            let mut others = now.storages.values().map(|other| &other.storage.path);
            // Files that another storage has open there are legitimate.
            let is_served = others.any(|other| other.starts_with(&root) || root.starts_with(other));
            let open = if is_served { 0 } else { open_below(&root) };
            if open == 0 || begin.elapsed() > RELEASED_WITHIN {
                return open;
            }
            self.watch_storages();
            now.follow_volumes();
            std::thread::sleep(LOOK_EVERY / 20);
        }
    }
}

/// Number of files and directories this process has open below a directory, by their names in /proc.
fn open_below(root: &Path) -> usize {
    let listed = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let links = listed.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links.filter(|link| link.starts_with(root)).count()
}

fn was_exchanged(storage: &str) -> Error {
    let cause =
        "the directory was replaced while the transfer ran; run the same command to continue in the new one";
    Error::new(Code::StorageChanged, "work in storage", storage, cause)
}
