//! The state that all services of a PoP share: its directories, the current configuration, counters and background threads.
//!
//! Files that the administrator changes are reloaded by the next request, or within a second by the watch thread. A
//! configuration that cannot be loaded leaves the previous one in force.

use crate::checksum_cache::CachedChecksums;
use crate::own_threads::OwnThreads;
use crate::snapshot::{self, Mark, Snapshot};
use crate::workers::Workers;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::former_names::FormerNames;
use renkei_core::path::SiteName;
use renkei_net::identity::borrowed::limit::LoginLimit;
use renkei_net::identity::trust::former_names;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// Retry interval for a configuration that could not be loaded and whose files have not changed since: the cause
/// may be a mode, or a file beside them.
const RETRY_EVERY: Duration = Duration::from_secs(10);

/// Counters of the PoP; docs/operations.md describes the metrics made of them.
#[derive(Default)]
pub struct Counters {
    /// Control sessions open now.
    pub sessions: AtomicU64,
    /// Control sessions since the start.
    pub sessions_total: AtomicU64,
    /// Connections that did not become a session.
    pub refused_total: AtomicU64,
    /// Connections closed before they identified themselves, to make room for others.
    pub over_share_total: AtomicU64,
    /// Transfers that ended without an error.
    pub transfers_done: AtomicU64,
    /// Transfers that ended with an error.
    pub transfers_failed: AtomicU64,
    /// Files received and acknowledged, or sent and acknowledged.
    pub files_total: AtomicU64,
    /// Bytes of content moved.
    pub bytes_total: AtomicU64,
    /// Transfers received on reused data streams of the previous transfer.
    pub kept_total: AtomicU64,
    /// Relayed circuits since the start.
    pub circuits_total: AtomicU64,
    /// Bytes relayed between other sites.
    pub relayed_bytes_total: AtomicU64,
    /// File sessions open now.
    pub file_sessions: AtomicU64,
    /// File sessions since the start.
    pub file_sessions_total: AtomicU64,
    /// Completed operations of file sessions.
    pub file_operations_total: AtomicU64,
    /// Bytes read and written by those operations.
    pub file_bytes_total: AtomicU64,
    /// Circuit connections whose ticket no session announced in time.
    pub tickets_refused_total: AtomicU64,
}

impl Counters {
    /// Adds `count` to a counter.
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// A changed configuration that could not be loaded.
pub(crate) struct Unusable {
    mark: Mark,
    pub(crate) error: Error,
    tried: Instant,
}

/// The shared state of a PoP.
pub struct Context {
    home: Home,
    current: RwLock<Arc<Snapshot>>,
    unusable: Mutex<Option<Unusable>>,
    /// The former names of sites that were known when the process started.
    former_names: FormerNames,
    /// Notified when a new former name of a site is known; the process restarts to use it.
    pub restart: Notify,
    restarts: AtomicBool,
    /// Whether all ports are open.
    listens: AtomicBool,
    started: Instant,
    /// Metrics.
    pub counters: Counters,
    /// The background threads.
    pub workers: Workers,
    /// Limits how many certificates are given for tokens and the like.
    pub(crate) logins: LoginLimit,
    /// Checksums that were computed on demand.
    pub(crate) checksums: Arc<CachedChecksums>,
    /// Threads with the identity of the PoP.
    pub(crate) own_threads: Arc<OwnThreads>,
}

impl Context {
    /// The state of a PoP that starts with a configuration.
    pub fn new(home: Home, snapshot: Snapshot) -> Self {
        let own_threads = Arc::new(OwnThreads::start());
        Context {
            checksums: CachedChecksums::new(home.checksum_dir(), own_threads.clone()),
            own_threads,
            home,
            current: RwLock::new(Arc::new(snapshot)),
            unusable: Mutex::default(),
            former_names: FormerNames::installed(),
            restart: Notify::new(),
            restarts: AtomicBool::new(false),
            listens: AtomicBool::new(false),
            started: Instant::now(),
            counters: Counters::default(),
            workers: Workers::default(),
            logins: LoginLimit::default(),
        }
    }

    /// When the process started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Whether the process restarts, because a site was renamed.
    pub(crate) fn restarts(&self) -> bool {
        self.restarts.load(Ordering::Acquire)
    }

    /// Notes that all ports are open; from then on partners may be told of them.
    pub fn note_listening(&self) {
        self.listens.store(true, Ordering::Release);
    }

    pub(crate) fn is_listening(&self) -> bool {
        self.listens.load(Ordering::Acquire)
    }

    /// The PoP's directories.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// The last loaded configuration, without a look at the files: for threads that must not wait for a disk. The
    /// watch thread keeps it at most a second old.
    pub fn last_snapshot(&self) -> Arc<Snapshot> {
        self.current.read().expect("no thread panics while it holds the lock").clone()
    }

    /// The current configuration; changed files are reloaded.
    ///
    /// A file that became invalid is reported in the log, once, and the last good state stays.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        let (current, mark) = (self.last_snapshot(), snapshot::mark(&self.home));
        if *current.mark() == mark {
            *self.unusable() = None;
            return current;
        }
        if self.is_unusable(&mark) || self.must_restart() {
            return current;
        }
        match current.reload(&self.home) {
            Ok(fresh) => {
                let fresh = Arc::new(fresh);
                *self.current.write().expect("no thread panics while it holds the lock") = fresh.clone();
                *self.unusable() = None;
                tracing::info!("configuration, mapping or trust changed and was read again");
                fresh
            }
            Err(error) => {
                self.note_unusable(mark, error);
                current
            }
        }
    }

    /// Reloads files that this process has just written, whose timestamps may equal those of the version loaded
    /// before.
    pub fn read_again(&self) {
        if self.must_restart() {
            return;
        }
        match self.last_snapshot().reload(&self.home) {
            Ok(fresh) => {
                *self.current.write().expect("no thread panics while it holds the lock") = Arc::new(fresh);
                *self.unusable() = None;
            }
            Err(error) => self.note_unusable(snapshot::mark(&self.home), error),
        }
    }

    /// Whether a site was renamed since the process started; the process then restarts before it uses the changed
    /// files.
    fn must_restart(&self) -> bool {
        let has_more = former_names::has_more(&self.home, &self.former_names).unwrap_or_else(|error| {
            tracing::error!(%error, "the former names of sites cannot be read");
            false
        });
        if has_more && !self.restarts.swap(true, Ordering::AcqRel) {
            self.restart.notify_one();
        }
        has_more
    }

    pub(crate) fn unusable(&self) -> MutexGuard<'_, Option<Unusable>> {
        self.unusable.lock().expect("no thread panics while it holds the lock")
    }

    /// Whether loading the files in this state failed within the last `RETRY_EVERY`.
    fn is_unusable(&self, mark: &Mark) -> bool {
        self.unusable().as_ref().is_some_and(|last| last.mark == *mark && last.tried.elapsed() < RETRY_EVERY)
    }

    fn note_unusable(&self, mark: Mark, error: Error) {
        let mut last = self.unusable();
        if last.as_ref().is_none_or(|last| last.mark != mark || last.error != error) {
            tracing::error!(%error, "a changed configuration file is invalid; the previous state stays in force");
        }
        *last = Some(Unusable { mark, error, tried: Instant::now() });
    }

    /// Starts a thread that repeats some work of a room with a pause, as long as the room lives.
    pub(crate) fn spawn_every<Room: Send + Sync + 'static>(
        self: &Arc<Self>,
        room: &Arc<Room>,
        name: &'static str,
        pause: Duration,
        work: impl Fn(&Room) + Send + 'static,
    ) -> Result<(), Error> {
        self.workers.note_period(name, pause);
        let (context, room) = (Arc::downgrade(self), Arc::downgrade(room));
        let repeat = move || {
            while let (Some(context), Some(room)) = (context.upgrade(), room.upgrade()) {
                let turn = context.workers.begin(name);
                work(&room);
                drop(turn);
                drop((room, context));
                std::thread::sleep(pause);
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(repeat);
        thread.map(drop).map_err(|error| Error::new(Code::SystemCall, "start thread", name, error))
    }

    /// The site's name.
    pub fn name(&self) -> SiteName {
        self.last_snapshot().site.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_config::Config;

    #[test]
    fn unusable_files_are_reloaded_when_they_change() {
        let dir = tempfile::tempdir().unwrap();
        let (home, _) = snapshot::tests::site(dir.path());
        let site = Context::new(home.clone(), Snapshot::load(&home, Config::load(&home).unwrap()).unwrap());
        let good = site.last_snapshot();
        let tried = || site.unusable().as_ref().map(|last| last.tried);
        std::fs::write(home.map_file(), "nonsense").unwrap();
        assert!(Arc::ptr_eq(&site.snapshot(), &good));
        let first = tried().unwrap();
        assert!(Arc::ptr_eq(&site.snapshot(), &good));
        assert_eq!(tried(), Some(first));
        std::fs::write(home.map_file(), "more nonsense").unwrap();
        assert!(Arc::ptr_eq(&site.snapshot(), &good));
        assert_ne!(tried(), Some(first));
        std::fs::remove_file(home.map_file()).unwrap();
        std::fs::write(home.config_file(), "site = 'kek'\n").unwrap();
        assert!(!Arc::ptr_eq(&site.snapshot(), &good));
    }
}
