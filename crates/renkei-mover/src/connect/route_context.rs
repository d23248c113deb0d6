//! What a dialler knows beside the cards: rules, reachability of sites, and addresses at which sites proved themselves.

use super::slow_connect::{CurrentAttempt, Tell};
use crate::lock;
use renkei_core::error::Error;
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use renkei_core::route::{Failures, Rule};
use renkei_core::wire::circuit::MAX_FURTHER;
use renkei_net::reverse_registry::ReverseRegistry;
use renkei_net::unix_ms;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

/// Lifetime of a proof: as long as one session needs to open its streams.
const PROVED_FOR: Duration = Duration::from_secs(60);

/// The proofs of sites at addresses, with their times.
#[derive(Default)]
pub struct Proofs(Mutex<HashMap<(SiteName, SocketAddr), Instant>>);

impl Proofs {
    /// Those that hold still.
    pub(super) fn fresh(&self) -> MutexGuard<'_, HashMap<(SiteName, SocketAddr), Instant>> {
        let mut all = self.0.lock().expect("no thread panics while it holds the lock: a panic aborts");
        all.retain(|_, since| since.elapsed() < PROVED_FOR);
        all
    }
}

/// The checks of an address before circuits are relayed to it.
#[derive(Clone)]
pub struct Targets {
    /// Sites whose private addresses are allowed; `*` for all.
    pub inside: Vec<String>,
    /// The cached proofs.
    pub proofs: Arc<Proofs>,
}

/// The cache of failures and successes of connections to sites, shared by all diallers of a process.
#[derive(Clone)]
pub struct ReachabilityCache {
    pub(super) since: Instant,
    pub(super) failures: Arc<Mutex<Failures>>,
    pub(super) unreached: Arc<Mutex<BTreeMap<SiteName, Unreached>>>,
    pub(super) reached: Arc<Mutex<BTreeMap<SiteName, Instant>>>,
    clocks: Arc<Mutex<BTreeMap<SiteName, Clock>>>,
}

/// The clock of another site's PoP, as read from its greeting.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Offset from the local clock; negative if the PoP's is behind.
    pub ahead_ms: i64,
    /// When the clock was read.
    pub read: Instant,
}

/// A site that no route reached in the latest attempt.
#[derive(Clone, Debug)]
pub struct Unreached {
    /// The error.
    pub error: Error,
    /// Time of the attempt.
    pub tried: Instant,
}

impl ReachabilityCache {
    /// The sites that were not reached in the latest attempt.
    pub fn unreached(&self) -> BTreeMap<SiteName, Unreached> {
        lock(&self.unreached).clone()
    }

    /// When a site was last reached by this process, if ever.
    pub fn reached(&self, site: &SiteName) -> Option<Instant> {
        lock(&self.reached).get(site).copied()
    }

    /// The latest readings of other sites' clocks.
    pub fn clocks(&self) -> BTreeMap<SiteName, Clock> {
        lock(&self.clocks).clone()
    }

    /// Records a reading of the clock of a site's PoP.
    pub fn note_clock(&self, site: &SiteName, now_unix_ms: u64) {
        let ahead_ms = now_unix_ms.cast_signed().saturating_sub(unix_ms(SystemTime::now()).cast_signed());
        lock(&self.clocks).insert(site.clone(), Clock { ahead_ms, read: Instant::now() });
    }
}

impl Default for ReachabilityCache {
    fn default() -> Self {
        ReachabilityCache {
            since: Instant::now(),
            failures: Arc::default(),
            unreached: Arc::default(),
            reached: Arc::default(),
            clocks: Arc::default(),
        }
    }
}

/// The knowledge of routes that a dialler has beside the cards.
#[derive(Clone)]
pub struct RouteContext {
    /// The site whose PoP is dialling, if a PoP is.
    pub here: Option<SiteName>,
    /// The site of the dialling user or agent, if one is.
    pub home: Option<SiteName>,
    /// The reverse connections of sites to this PoP.
    pub reverse_registry: Option<Arc<ReverseRegistry>>,
    /// The administrator's rules for some sites.
    pub rules: BTreeMap<SiteName, Rule>,
    /// Cached failures and successes.
    pub memory: ReachabilityCache,
    /// Most relays that a route may lead through.
    pub further: u8,
    /// Checks of target addresses, if the connections are relayed for others.
    pub targets: Option<Targets>,
    /// Callback that reports slow attempts.
    pub tell: Option<Tell>,
    /// The current attempt, to be polled.
    pub trying: CurrentAttempt,
}

impl RouteContext {
    /// The context that follows from a principal alone.
    pub fn of(principal: &Principal) -> Self {
        let site = Some(principal.site().clone());
        let (here, home) = if matches!(principal, Principal::Host(_)) { (site, None) } else { (None, site) };
        let (rules, memory) = (BTreeMap::new(), ReachabilityCache::default());
        let (reverse_registry, tell, targets, trying) = (None, None, None, CurrentAttempt::default());
        RouteContext {
            here,
            home,
            reverse_registry,
            rules,
            memory,
            further: MAX_FURTHER,
            tell,
            targets,
            trying,
        }
    }
}
