//! The facade of a PoP: every operation that a door, the command line or an API may ask for.
//!
//! A request comes in as a [`Principal`] proved by the door; [`Site::authorise`] turns it into an [`Access`]: a local
//! account and the current [`Snapshot`]. All file work is then done by threads that run as that account. Files the
//! administrator changes (configuration, mapping, trust) take effect with the next request.
//!
//! A room for each service: [`transfer`], [`files`], [`queue`], [`buffer`], [`volume`], [`storage`], [`partners`],
//! [`relay`] and [`status`]. Each is an `impl Site` beside the others, so they call one another through [`Site`]. Uses:
//! all crates below but `renkei-mount` and `renkei-lab`. Non-goals: protocols, which are the doors'.

pub mod access;
pub mod buffer;
pub mod files;
pub mod partners;
pub mod queue;
pub mod relay;
pub mod scope;
pub mod snapshot;
pub mod status;
pub mod storage;
pub mod transfer;
pub mod volume;

use access::{Access, Peer, Proof};
use renkei_config::Config;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::former_names::FormerNames;
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use renkei_core::wire::message::{Status, TransferStatus};
use renkei_mover::connect::routes::ReachabilityCache;
use renkei_net::control::ControlSender;
use renkei_net::identity::trust::former_names;
use renkei_net::identity::verify::verify_holder;
use renkei_net::reverse_registry::ReverseRegistry;
use renkei_store::locks::LockTable;
use rustls::pki_types::CertificateDer;
use snapshot::{Mark, Snapshot};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Notify;
use transfer::active::Transfers;
use transfer::connection_pool::{InboundPool, OutboundPool};
use transfer::tickets::{Grants, Tickets};
use volume::site_leases::forget_writers;

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
struct Unusable {
    mark: Mark,
    error: Error,
    tried: Instant,
}

/// A running PoP.
pub struct Site {
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
    /// Open control sessions of each principal.
    pub sessions: Mutex<HashMap<Principal, usize>>,
    /// Tickets of data streams and circuits.
    pub tickets: Tickets,
    pub(crate) grants: Grants,
    pub(crate) dialled: transfer::push::Dialled,
    pub(crate) transfers: Transfers,
    pub(crate) kept_sessions: OutboundPool,
    pub(crate) parking: InboundPool,
    pub(crate) arrivals: queue::drop_folders::Arrivals,
    pub(crate) rule_states: queue::drop_folders::RuleStates,
    pub(crate) conditions: status::conditions::Conditions,
    /// The background threads.
    pub workers: status::workers::Workers,
    probing: partners::probes::PartnerProbes,
    untold: Mutex<partners::updates::Untold>,
    pub(crate) queue: Arc<queue::Queue>,
    pub(crate) circuits: relay::circuits::Circuits,
    pub(crate) locks: Arc<LockTable>,
    pub(crate) reverse_registry: Arc<ReverseRegistry>,
    /// Reachability of other sites.
    pub memory: ReachabilityCache,
    pub(crate) held: relay::reverse_connections::ReverseConnections,
    pub(crate) own_lines: relay::reverse_connections::OwnLines,
    console: status::console::Console,
    rooms: storage::free_space::FreeSpace,
    pub(crate) following: volume::log_shipping::Following,
    pub(crate) collecting: volume::home::backfill::Backfill,
    pub(crate) holding: volume::replica::reconcile::ReplicaReconciler,
    placing: volume::home::placement::PlacementState,
    verifying: volume::replica::scrub::Scrubber,
    confirmed: volume::home::log_truncation::Confirmed,
    strays: volume::follower::restored_home::Strays,
    /// Held while the facts of a volume change.
    managing: Mutex<()>,
    pub(crate) lending: files::file_sessions::FdPassing,
    pub(crate) left_drafts: files::file_sessions::LeftDrafts,
    pub(crate) workspaces: files::workspaces::Workspaces,
    giving_up: queue::cancel_cleanup::CancelCleanup,
}

impl Site {
    /// Opens the PoP in `home` with `config`.
    pub fn open(home: Home, config: Config) -> Result<Arc<Self>, Error> {
        let snapshot = Snapshot::load(&home, config)?;
        let fetching = snapshot.fetching.clone();
        let site = Arc::new(Site {
            home,
            current: RwLock::new(Arc::new(snapshot)),
            unusable: Mutex::default(),
            former_names: FormerNames::installed(),
            restart: Notify::new(),
            restarts: AtomicBool::new(false),
            listens: AtomicBool::new(false),
            started: Instant::now(),
            counters: Counters::default(),
            sessions: Mutex::default(),
            tickets: Tickets::default(),
            grants: Grants::default(),
            dialled: transfer::push::Dialled::default(),
            transfers: Transfers::default(),
            kept_sessions: OutboundPool::default(),
            parking: InboundPool::default(),
            arrivals: queue::drop_folders::Arrivals::default(),
            rule_states: queue::drop_folders::RuleStates::default(),
            conditions: status::conditions::Conditions::default(),
            workers: status::workers::Workers::default(),
            probing: partners::probes::PartnerProbes::default(),
            untold: Mutex::default(),
            queue: Arc::default(),
            circuits: relay::circuits::Circuits::default(),
            locks: Arc::default(),
            reverse_registry: Arc::default(),
            memory: ReachabilityCache::default(),
            held: relay::reverse_connections::ReverseConnections::default(),
            own_lines: relay::reverse_connections::OwnLines::default(),
            console: status::console::Console::default(),
            rooms: storage::free_space::FreeSpace::default(),
            following: volume::log_shipping::Following::default(),
            collecting: volume::home::backfill::Backfill::default(),
            holding: volume::replica::reconcile::ReplicaReconciler::default(),
            placing: volume::home::placement::PlacementState::default(),
            verifying: volume::replica::scrub::Scrubber::default(),
            confirmed: volume::home::log_truncation::Confirmed::default(),
            strays: volume::follower::restored_home::Strays::default(),
            managing: Mutex::default(),
            lending: files::file_sessions::FdPassing::default(),
            left_drafts: files::file_sessions::LeftDrafts::default(),
            workspaces: files::workspaces::Workspaces::default(),
            giving_up: queue::cancel_cleanup::CancelCleanup::default(),
        });
        fetching.belongs_to(&site);
        Ok(site)
    }

    /// Notes that all ports are open; from then on partners may be told of them.
    pub fn note_listening(&self) {
        self.listens.store(true, Ordering::Release);
    }

    fn is_listening(&self) -> bool {
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

    fn unusable(&self) -> MutexGuard<'_, Option<Unusable>> {
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

    /// The site's name.
    pub fn name(&self) -> SiteName {
        self.last_snapshot().site.clone()
    }

    /// Authenticates the holder of a certificate chain.
    pub fn authenticate(&self, chain: &[CertificateDer<'static>]) -> Result<Proof, Error> {
        let (snapshot, at) = (self.snapshot(), SystemTime::now());
        if self.restarts.load(Ordering::Acquire) {
            // Under the former name it would refuse permanently what the new one allows.
            let cause = "a site was renamed, and the PoP starts again";
            return Err(Error::new(Code::PopStopping, "authenticate", "", cause).at(snapshot.site.as_str()));
        }
        let holder = verify_holder(chain, &snapshot.trust, at);
        let (principal, scope) = holder.map_err(|error| error.at(snapshot.site.as_str()))?;
        Ok(Proof { principal, scope: scope.map(Arc::new), chain: chain.into(), at })
    }

    /// The card of a trusted site, for a user of this site, who trusts the sites that it trusts.
    ///
    /// # Errors
    /// `NotAllowed` for all other principals, `SiteUnknown`.
    pub fn card(&self, proof: &Proof, site: &SiteName) -> Result<String, Error> {
        let (snapshot, principal) = (self.snapshot(), &proof.principal);
        if principal.user_name().is_none() || *principal.site() != snapshot.site {
            let cause = format!("only users of {} learn from it whom it trusts", snapshot.site);
            return Err(Error::new(Code::NotAllowed, "give card", principal, cause));
        }
        let unknown = || Error::new(Code::SiteUnknown, "give card", site, "");
        snapshot.trust.export(site).map(|card| card.to_text()).ok_or_else(unknown)
    }

    /// Authorises a principal: its local account and permissions.
    ///
    /// # Errors
    /// `NotMapped`, `AccountUnknown`, `AccountNotServed`.
    pub fn authorise(&self, proof: &Proof) -> Result<Access, Error> {
        let snapshot = self.snapshot();
        let (side, principal) = (snapshot.site.clone(), &proof.principal);
        let access = Access::new(proof, snapshot).map_err(|error| error.at(side.as_str()));
        let transfer = proof.transfer();
        match &access {
            Ok(access) => {
                tracing::info!(target: "audit", %principal, transfer, account = access.account.name, "authorised");
            }
            Err(error) => tracing::warn!(target: "audit", %principal, transfer, %error, "refused"),
        }
        access
    }

    /// Status of the PoP, limited to what `access` may see: its own transfers and circuits, the line of its own
    /// site, the agents of its own account. Without an access (the administrator) all of it.
    pub fn status(&self, access: Option<&Access>) -> Status {
        let visible = |status: &TransferStatus| {
            access.is_none_or(|access| status.principal == access.principal.to_string())
        };
        Status {
            software: renkei_net::SOFTWARE.into(),
            uptime_s: self.started.elapsed().as_secs(),
            sessions: self.counters.sessions.load(Ordering::Relaxed) as u32,
            transfers: self.transfers.list().into_iter().filter(visible).collect(),
            lines: self.line_status(|site| access.is_none_or(|access| access.principal.site() == site)),
            relayed: self
                .circuits
                .list(|principal| access.is_none_or(|access| access.principal == *principal)),
            agents: self.agent_status(|storage| access.is_none_or(|access| access.may_see(storage))),
        }
    }

    /// The peer of a session; if it is a PoP, its data streams may be parked here between transfers.
    pub fn peer(&self, proof: Proof, link: &Arc<ControlSender>) -> Peer {
        let parked = self.parking.place(&proof, link);
        Peer { proof, parked }
    }

    /// Closes the idle sessions that are parked for later transfers.
    pub fn close_waiting(&self) {
        self.parking.give_way(0);
    }

    /// Re-evaluates running transfers, sessions and circuits against a new configuration and ends those it forbids.
    fn judge(&self, now: &Arc<Snapshot>) {
        self.transfers.judge(now);
        self.workspaces.judge(now);
        self.judge_queue(now);
        self.kept_sessions.look(now);
        self.parking.look(now);
        forget_writers(now);
        let left = self.held.look(now);
        let trusted = |site: &SiteName| now.trust.card(site).is_some();
        self.circuits
            .end(|principal, to| !trusted(principal.site()) || !trusted(to.site()) || left.contains(to));
        Counters::add(&self.counters.tickets_refused_total, self.circuits.refuse_late());
    }

    /// Stops the active transfers.
    pub(crate) fn stop_transfers(&self, error: &Error) {
        self.transfers.stop_all(error);
    }

    /// Stops all transfers; each can be resumed.
    pub fn stop_all(&self) {
        let error =
            Error::new(Code::PopStopping, "shut down", self.name(), "a restart or shutdown was asked for");
        let error = error.at(self.name().as_str());
        self.stop_queue(&error);
        self.transfers.stop_all(&error);
        self.workspaces.stop_all(&error);
        self.kept_sessions.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_cannot_be_used_are_read_again_when_they_change() {
        let dir = tempfile::tempdir().unwrap();
        let (home, _) = snapshot::tests::site(dir.path());
        let site = Site::open(home.clone(), Config::load(&home).unwrap()).unwrap();
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
