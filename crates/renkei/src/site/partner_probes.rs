//! Probes of partners: each is dialled now and again, so that its reported state is true.
//!
//! A partner that was not reached, or whose clock differs, is probed every `AGAIN_AFTER`; one without recent traffic
//! every `IDLE_AFTER` and a jitter, so that a dead idle host is reported within two minutes. Each probe is one
//! connection, which is closed at once. Partners with a reverse connection to or from this PoP are not probed: that
//! tells by itself.

use super::Site;
use super::snapshot::Snapshot;
use crate::mover::fresh_id;
use renkei_core::error::{Error, Kind};
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use renkei_core::wire::message::TriedWay;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long after a failure a site is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(30);
/// How long nobody need reach a partner before it is tried, and by how much that varies: partners that start at one
/// moment do not all dial at one moment. A host that is silent is found out after 15 s more.
const IDLE_AFTER: Duration = Duration::from_secs(45);
const IDLE_VARIES_MS: u64 = 30_000;
/// How long a partner that answers and refuses, or is not who it should be, is left alone: its log need not fill.
const REFUSED_FOR: Duration = Duration::from_secs(2 * 60);

/// Clocks may differ by so much; what Kerberos allows, and what a user certificate's start is moved back by.
pub const MAX_SKEW: Duration = Duration::from_secs(300);
/// Clocks that differ by more are worth a word.
pub const SKEW_WORTH_A_WORD: Duration = Duration::from_secs(30);

/// The sites that are tried beside.
#[derive(Default)]
pub(super) struct PartnerProbes(Mutex<Tried>);

#[derive(Default)]
struct Tried {
    now: BTreeSet<SiteName>,
    /// Since this PoP started.
    once: BTreeSet<SiteName>,
    /// When partners are tried that nobody reaches meanwhile.
    due: BTreeMap<SiteName, Instant>,
    /// What was wrong with partners that answered, and since when.
    refused: BTreeMap<SiteName, (Error, Instant)>,
}

/// When a partner is due that was reached at this moment.
fn due_after(reached: Instant) -> Instant {
    // Without randomness all come at one time, and that is all.
    let random = fresh_id().map_or(0, |id| u64::from(u16::from_le_bytes([id[0], id[1]])));
    reached + IDLE_AFTER + Duration::from_millis(random % IDLE_VARIES_MS)
}

impl PartnerProbes {
    fn lock(&self) -> MutexGuard<'_, Tried> {
        self.0.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Whether a partner is to be tried now; whoever reached it lately has done so already.
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

    /// Takes how a try of a partner went: no answer at all is noted by who dialled.
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

    /// The partners that answered and were wrong, and that nobody has reached since.
    fn refused(&self, reached: impl Fn(&SiteName) -> Option<Instant>) -> BTreeMap<SiteName, Error> {
        let mut tried = self.lock();
        tried.refused.retain(|site, (_, since)| reached(site).is_none_or(|reached| reached < *since));
        tried.refused.iter().map(|(site, (error, _))| (site.clone(), error.clone())).collect()
    }
}

impl Site {
    /// The ways to a site that this PoP trusts, each tried now.
    ///
    /// # Errors
    /// `SiteUnknown`.
    pub fn try_ways(&self, to: &SiteName) -> Result<Vec<TriedWay>, Error> {
        self.dialler(&self.snapshot())?.test_ways(to)
    }

    /// The trusted sites that could not be reached the last time or answered and were wrong, and why; has them tried again where
    /// that was long ago, and those too that could not be reached before this PoP was restarted.
    pub(super) fn unreached(self: &Arc<Self>, snapshot: &Snapshot) -> BTreeMap<SiteName, Error> {
        let mut unreached = self.memory.unreached();
        unreached.retain(|site, _| snapshot.trust.card(site).is_some());
        let before = self.conditions.remembered("partner");
        let before = before.iter().filter_map(|name| SiteName::parse(name).ok());
        let is_new = |site: &SiteName| self.probing.lock().once.insert(site.clone());
        before.filter(is_new).for_each(|site| self.probe(site));
        for (site, _) in unreached.iter().filter(|(_, last)| last.tried.elapsed() > AGAIN_AFTER) {
            self.probe(site.clone());
        }
        let mut failed: BTreeMap<SiteName, Error> =
            unreached.into_iter().map(|(site, last)| (site, last.error)).collect();
        // What it says when it answers is newer than that it did not.
        let refused = self.probing.refused(|site| self.memory.reached(site));
        failed.extend(refused.into_iter().filter(|(site, _)| snapshot.trust.card(site).is_some()));
        failed
    }

    /// Has the partners tried that nobody has reached lately.
    pub(super) fn probe_idle(self: &Arc<Self>, snapshot: &Snapshot) {
        let is_idle = |site: &SiteName| {
            *site != snapshot.site
                && !snapshot.config.reverse.contains(site)
                && !self.reverse_registry.has_line(&Principal::Host(site.clone()))
        };
        let dialled = snapshot.trust.list().filter(|card| !card.endpoints.is_empty() && is_idle(&card.site));
        let partners: BTreeSet<&SiteName> = dialled.map(|card| &card.site).collect();
        self.probing.lock().due.retain(|site, _| partners.contains(site));
        for site in partners {
            if self.probing.is_due(site, self.memory.reached(site), Instant::now()) {
                self.probe(site.clone());
            }
        }
    }

    /// By how many milliseconds the clocks of trusted sites are ahead of ours, where that is worth a word; has them read
    /// again now and again.
    pub(super) fn differing_clocks(self: &Arc<Self>, snapshot: &Snapshot) -> BTreeMap<SiteName, i64> {
        let mut clocks = self.memory.clocks();
        clocks.retain(|site, clock| {
            let apart = Duration::from_millis(clock.ahead_ms.unsigned_abs());
            apart >= SKEW_WORTH_A_WORD && snapshot.trust.card(site).is_some()
        });
        for (site, _) in clocks.iter().filter(|(_, clock)| clock.read.elapsed() > AGAIN_AFTER) {
            self.probe(site.clone());
        }
        clocks.into_iter().map(|(site, clock)| (site, clock.ahead_ms)).collect()
    }

    /// Tries a site beside, unless somebody does; the dialler notes how that went.
    fn probe(self: &Arc<Self>, partner: SiteName) {
        if !self.probing.lock().now.insert(partner.clone()) {
            return;
        }
        let (site, own) = (self.clone(), partner.clone());
        let work = move || {
            let reached = site.dialler(&site.snapshot()).and_then(|dialler| dialler.connect(&own));
            if let Err(error) = &reached {
                tracing::debug!(site = %own, %error, "still not reached");
            }
            site.probing.note(&own, reached.map(drop), Instant::now());
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
    fn what_a_partner_refuses_with_is_told_until_somebody_reaches_it() {
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
    fn a_partner_is_tried_within_75_s_unless_somebody_reached_it() {
        let (probing, site, start) =
            (PartnerProbes::default(), SiteName::parse("kek").unwrap(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(!probing.is_due(&site, None, at(0)), "nobody waits for it at the start");
        assert!(!probing.is_due(&site, None, at(44)));
        assert!(probing.is_due(&site, None, at(75)));
        assert!(!probing.is_due(&site, None, at(76)), "once each time");
        // Somebody reached it at 100 s: it is due when that is long ago.
        assert!(!probing.is_due(&site, Some(at(100)), at(140)));
        assert!(!probing.is_due(&site, Some(at(140)), at(150)));
        assert!(probing.is_due(&site, Some(at(140)), at(216)));
    }
}
