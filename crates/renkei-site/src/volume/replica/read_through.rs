//! Read-through: content of files of followed volumes is read from plain files here, else from a site that has it
//! (`source_selection`).
//!
//! File sessions with other sites are opened by the first read, are shared by
//! all readers of a volume, and are closed when idle.

use super::source_selection::{Failing, is_of_the_way};
use crate::Context;
use crate::relay::Relay;
use crate::transfer::active::ActiveTransfers;
use renkei_core::entry::Stamp;
use renkei_core::error::{Code, Error};
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_core::wire::file::Consistency;
use renkei_mover::files::remote_files::{Config, RemoteDir, RemoteFiles, WhenLost};
use renkei_mover::files::workspace::{Reader, Workspace};
use renkei_store::ReadFile;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Idle timeout of a session.
const IDLE: Duration = Duration::from_secs(60);
/// Timeout of a read while the connection to a site is lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pool of file sessions with other sites for volumes.
pub(crate) struct ReadThrough {
    pub(super) context: Arc<Context>,
    relay: Arc<Relay>,
    /// Running and ended transfers, which show how good the paths are.
    pub(super) transfers: Arc<ActiveTransfers>,
    open: Mutex<HashMap<(String, SiteName), Arc<Slot>>>,
    failing: Failing,
}

/// The session with one site for one volume, and its last use.
type Slot = Mutex<Option<(Arc<RemoteFiles>, Instant)>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds the lock")
}

impl ReadThrough {
    /// A pool without sessions.
    pub(crate) fn new(context: &Arc<Context>, relay: &Arc<Relay>, transfers: &Arc<ActiveTransfers>) -> Self {
        ReadThrough {
            context: context.clone(),
            relay: relay.clone(),
            transfers: transfers.clone(),
            open: Mutex::default(),
            failing: Failing::default(),
        }
    }

    /// Sites whose last request failed.
    pub(crate) fn failing(&self) -> &Failing {
        &self.failing
    }

    /// The session with a site for a volume; opened if there is none.
    pub(crate) fn session(&self, name: &str, at: &SiteName) -> Result<Arc<RemoteFiles>, Error> {
        let began = Instant::now();
        let slot = lock(&self.open).entry((name.into(), at.clone())).or_default().clone();
        let mut slot = lock(&slot);
        if let Some((files, used)) = &mut *slot {
            *used = Instant::now();
            return Ok(files.clone());
        }
        // A caller that waited for another's failed attempt gets its error.
        if let Some(error) = self.failing.since(at, began) {
            return Err(error);
        }
        let dialler = self.relay.dialler(&self.context.last_snapshot())?;
        let place = Place { storage: name.into(), path: RelPath::root() };
        let far = RemoteDir { dialler, site: at.clone(), place, write: false };
        // The wanted version is known here; the opener has caught up.
        let consistency = Consistency::Relaxed;
        let config = Config { when_lost: WhenLost::Fail(PATIENCE), consistency, ..Config::default() };
        let opened = RemoteFiles::open(far, config).inspect_err(|error| self.failing.note(at, Some(error)));
        let files = Arc::new(opened?);
        *slot = Some((files.clone(), Instant::now()));
        Ok(files)
    }

    /// Drops a lost session: the next request opens another.
    fn leave(&self, name: &str, at: &SiteName, lost: &Arc<RemoteFiles>) {
        let slot = lock(&self.open).get(&(name.into(), at.clone())).cloned();
        let Some(slot) = slot else { return };
        let mut slot = lock(&slot);
        if slot.as_ref().is_some_and(|(files, _)| Arc::ptr_eq(files, lost)) {
            *slot = None;
        }
    }

    /// Closes idle sessions.
    pub(crate) fn close_idle(&self) {
        let slots: Vec<Arc<Slot>> = lock(&self.open).values().cloned().collect();
        for slot in slots {
            let mut slot = lock(&slot);
            if slot
                .as_ref()
                .is_some_and(|(files, used)| Arc::strong_count(files) == 1 && used.elapsed() > IDLE)
            {
                *slot = None;
            }
        }
    }
}

impl ReadThrough {
    /// Opens a file of a volume at a site.
    pub(crate) fn open(
        &self,
        name: &str,
        site: &SiteName,
        path: &RelPath,
        expected: Stamp,
    ) -> Result<Box<dyn ReadFile>, Error> {
        let files = self.session(name, site)?;
        let opened = Workspace::new(files.clone()).open(path).inspect_err(|error| {
            if is_of_the_way(error, site) {
                self.leave(name, site, &files);
            }
        });
        let reader = opened?;
        let Ok(stamp) = reader.version() else {
            let cause = format!("it is no longer a file at {site}");
            return Err(Error::new(Code::SourceChanged, "open", path, cause));
        };
        let stamp = if stamp.may_be(&expected) { expected } else { stamp };
        Ok(Box::new(FarFile { reader, stamp }))
    }
}

/// A file at another site.
struct FarFile {
    reader: Reader,
    stamp: Stamp,
}

impl ReadFile for FarFile {
    fn stamp(&self) -> Result<Stamp, Error> {
        Ok(self.stamp)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        self.reader.read_at(buf, offset)
    }

    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Error> {
        Ok((from < self.stamp.size).then_some(from..self.stamp.size))
    }

    fn advise_sequential(&self, _range: Range<u64>) {}

    fn has_writer(&self) -> bool {
        false
    }

    fn is_version(&self) -> bool {
        true
    }
}
