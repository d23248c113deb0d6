//! Probes of partners: each is dialled periodically, so that its reported state is true.
//!
//! A partner that was not reached, or whose clock differs, is probed every `AGAIN_AFTER`; one without recent
//! traffic every `IDLE_AFTER` and a jitter, so that a dead idle host is reported within two minutes. Each probe is
//! one connection, which is closed at once. Partners with a reverse connection to or from this PoP are not probed:
//! the line itself shows their state.

use super::Partners;
use crate::snapshot::Snapshot;
use renkei_core::error::{Error, Kind};
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use renkei_core::wire::message::TriedWay;
use renkei_mover::fresh_id;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Probe interval after a failure.
const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// Idle time after which a partner is probed, and its jitter: partners that start at the same time do not all dial
/// at the same time. A silent host is detected 15 s later.
const IDLE_AFTER: Duration = Duration::from_secs(45);
const IDLE_VARIES_MS: u64 = 30_000;
/// Backoff for a partner that answers and refuses, or has the wrong identity: its log is not flooded.
const REFUSED_FOR: Duration = Duration::from_secs(2 * 60);

/// Maximum clock skew; the limit of Kerberos, and the backdating of a user certificate's start.
pub const MAX_SKEW: Duration = Duration::from_secs(300);
/// Clock skew that is reported.
pub const SKEW_WORTH_A_WORD: Duration = Duration::from_secs(30);

/// State of the probes.
#[derive(Default)]
pub(crate) struct PartnerProbes(Mutex<Tried>);

#[derive(Default)]
struct Tried {
    now: BTreeSet<SiteName>,
    /// Sites probed because of conditions from before the restart.
    once: BTreeSet<SiteName>,
    /// Due time of the next probe of each partner, without traffic meanwhile.
    due: BTreeMap<SiteName, Instant>,
    /// Errors of partners that answered, and when.
    refused: BTreeMap<SiteName, (Error, Instant)>,
}

/// The next probe of a partner that was reached at this moment.
fn due_after(reached: Instant) -> Instant {
    // Without randomness all are due at the same time, which is harmless.
    let random = fresh_id().map_or(0, |id| u64::from(u16::from_le_bytes([id[0], id[1]])));
    reached + IDLE_AFTER + Duration::from_millis(random % IDLE_VARIES_MS)
}

impl PartnerProbes {
    fn lock(&self) -> MutexGuard<'_, Tried> {
        self.0.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Whether a partner is due for a probe; recent traffic counts as a probe.
    fn is_due(&self, site: &SiteName, reached: Option<Instant>, now: Instant) -> bool {
        let mut tried = self.lock();
        let due = tried.due.entry(site.clone()).or_insert_with(|| due_after(now));
        if now < *due {
            return false;
        }
        let is_quiet = reached.is_none_or(|reached| now.saturating_duration_since(reached) >= IDLE_AFTER);
        *due = due_after(if is_quiet { now } else { reached.unwrap_or(now) });
        is_quiet
    }

    /// Records the result of a probe; unreachable partners are recorded by the dialler.
    fn note(&self, site: &SiteName, outcome: Result<(), Error>, now: Instant) {
        let mut tried = self.lock();
        tried.now.remove(site);
        match outcome {
            Err(error) if error.kind() != Kind::Unavailable => {
                tried.due.insert(site.clone(), now + REFUSED_FOR);
                tried.refused.insert(site.clone(), (error, now));
            }
            _ => drop(tried.refused.remove(site)),
        }
    }

    /// The partners that answered with an error, and were not reached since.
    fn refused(&self, reached: impl Fn(&SiteName) -> Option<Instant>) -> BTreeMap<SiteName, Error> {
        let mut tried = self.lock();
        tried.refused.retain(|site, (_, since)| reached(site).is_none_or(|reached| reached < *since));
        tried.refused.iter().map(|(site, (error, _))| (site.clone(), error.clone())).collect()
    }
}

impl Partners {
    /// The routes to a trusted site, each tested now.
    ///
    /// # Errors
    /// `SiteUnknown`.
    pub fn try_ways(&self, to: &SiteName) -> Result<Vec<TriedWay>, Error> {
        self.relay.dialler(&self.context.snapshot())?.test_ways(to)
    }

    /// The trusted sites whose last connection failed or that answered with an error, with the errors; also probes
    /// those whose failure is old, and those `before`: that were unreachable before this PoP was restarted.
    pub(crate) fn unreached(
        self: &Arc<Self>,
        snapshot: &Snapshot,
        before: &[String],
    ) -> BTreeMap<SiteName, Error> {
        let mut unreached = self.relay.memory.unreached();
        unreached.retain(|site, _| snapshot.trust.card(site).is_some());
        let before = before.iter().filter_map(|name| SiteName::parse(name).ok());
        let is_new = |site: &SiteName| self.probing.lock().once.insert(site.clone());
        before.filter(is_new).for_each(|site| self.probe(site));
        for (site, _) in unreached.iter().filter(|(_, last)| last.tried.elapsed() > AGAIN_AFTER) {
            self.probe(site.clone());
        }
        let mut failed: BTreeMap<SiteName, Error> =
            unreached.into_iter().map(|(site, last)| (site, last.error)).collect();
        // An answer is newer than a failure to connect.
        let refused = self.probing.refused(|site| self.relay.memory.reached(site));
        failed.extend(refused.into_iter().filter(|(site, _)| snapshot.trust.card(site).is_some()));
        failed
    }

    /// Probes partners without recent traffic.
    pub(crate) fn probe_idle(self: &Arc<Self>, snapshot: &Snapshot) {
        let is_idle = |site: &SiteName| {
            *site != snapshot.site
                && !snapshot.config.reverse.contains(site)
                && !self.relay.reverse_registry.has_line(&Principal::Host(site.clone()))
        };
        let dialled = snapshot.trust.list().filter(|card| !card.endpoints.is_empty() && is_idle(&card.site));
        let partners: BTreeSet<&SiteName> = dialled.map(|card| &card.site).collect();
        self.probing.lock().due.retain(|site, _| partners.contains(site));
        for site in partners {
            if self.probing.is_due(site, self.relay.memory.reached(site), Instant::now()) {
                self.probe(site.clone());
            }
        }
    }

    /// Clock offsets of trusted sites, in milliseconds ahead of this one, where they are worth reporting; old
    /// values are measured again.
    pub(crate) fn differing_clocks(self: &Arc<Self>, snapshot: &Snapshot) -> BTreeMap<SiteName, i64> {
        let mut clocks = self.relay.memory.clocks();
        clocks.retain(|site, clock| {
            let apart = Duration::from_millis(clock.ahead_ms.unsigned_abs());
            apart >= SKEW_WORTH_A_WORD && snapshot.trust.card(site).is_some()
        });
        for (site, _) in clocks.iter().filter(|(_, clock)| clock.read.elapsed() > AGAIN_AFTER) {
            self.probe(site.clone());
        }
        clocks.into_iter().map(|(site, clock)| (site, clock.ahead_ms)).collect()
    }

    /// Probes a site in the background, unless a probe is under way; the dialler records the result.
    fn probe(self: &Arc<Self>, partner: SiteName) {
        if !self.probing.lock().now.insert(partner.clone()) {
            return;
        }
        let (partners, own) = (self.clone(), partner.clone());
        let work = move || {
            let reached = partners
                .relay
                .dialler(&partners.context.snapshot())
                .and_then(|dialler| dialler.connect(&own));
            if let Err(error) = &reached {
                tracing::debug!(site = %own, %error, "still not reached");
            }
            partners.probing.note(&own, reached.map(drop), Instant::now());
        };
        if let Err(error) = std::thread::Builder::new().name("probe".into()).spawn(work) {
            tracing::warn!(%error, "no thread to try a site");
            self.probing.lock().now.remove(&partner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::error::Code;

    #[test]
    fn the_refusal_of_a_partner_is_reported_until_it_is_reached() {
        let (probing, kek, start) =
            (PartnerProbes::default(), SiteName::parse("kek").unwrap(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let error = |code| Error::new(code, "connect", "kek", "");
        let codes = |reached: Option<Instant>| -> Vec<Code> {
            probing.refused(|_| reached).into_values().map(|error| error.code).collect()
        };
        probing.note(&kek, Err(error(Code::PeerDown)), at(1));
        assert_eq!(codes(None), [], "who dials notes that nobody answers");
        probing.note(&kek, Err(error(Code::UnknownAuthority)), at(2));
        assert_eq!(codes(Some(at(1))), [Code::UnknownAuthority]);
        assert!(!probing.is_due(&kek, None, at(100)) && probing.is_due(&kek, None, at(123)));
        probing.note(&kek, Err(error(Code::ClockSkew)), at(123));
        assert_eq!(codes(None), [Code::ClockSkew]);
        assert_eq!(codes(Some(at(130))), []);
        probing.note(&kek, Err(error(Code::ClockSkew)), at(140));
        probing.note(&kek, Ok(()), at(150));
        assert_eq!(codes(None), []);
    }

    #[test]
    fn a_partner_is_probed_within_75_s_unless_reached() {
        let (probing, site, start) =
            (PartnerProbes::default(), SiteName::parse("kek").unwrap(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(!probing.is_due(&site, None, at(0)), "nobody waits for it at the start");
        assert!(!probing.is_due(&site, None, at(44)));
        assert!(probing.is_due(&site, None, at(75)));
        assert!(!probing.is_due(&site, None, at(76)), "once each time");
        // The partner was reached at 100 s: the next probe is due a while after that.
        assert!(!probing.is_due(&site, Some(at(100)), at(140)));
        assert!(!probing.is_due(&site, Some(at(140)), at(150)));
        assert!(probing.is_due(&site, Some(at(140)), at(216)));
    }
}
