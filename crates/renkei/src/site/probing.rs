//! Sites that could not be reached are tried again now and again, so that what is told of them is true: nobody else might
//! ask for a long time; so are those whose clocks differ. Only such sites are dialled, one
//! connection each, which is closed at once.

use super::Site;
use super::snapshot::Snapshot;
use renkei_core::error::Error;
use renkei_core::path::SiteName;
use renkei_core::wire::message::TriedWay;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// How long after a failure a site is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Clocks may differ by so much; what Kerberos allows, and what a user certificate's start is moved back by.
pub const MAX_SKEW: Duration = Duration::from_secs(300);
/// Clocks that differ by more are worth a word.
pub const SKEW_WORTH_A_WORD: Duration = Duration::from_secs(30);

/// The sites that are tried beside.
#[derive(Default)]
pub(super) struct Probing(Mutex<Tried>);

#[derive(Default)]
struct Tried {
    now: BTreeSet<SiteName>,
    /// Since this PoP started.
    once: BTreeSet<SiteName>,
}

impl Probing {
    fn lock(&self) -> MutexGuard<'_, Tried> {
        self.0.lock().expect("no thread panics while it holds the lock: a panic aborts")
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

    /// The trusted sites that could not be reached the last time, and why; has them tried again where that was long ago,
    /// and those too that could not be reached before this PoP was restarted.
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
        unreached.into_iter().map(|(site, last)| (site, last.error)).collect()
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
            if let Err(error) = reached {
                tracing::debug!(site = %own, %error, "still not reached");
            }
            site.probing.lock().now.remove(&own);
        };
        if let Err(error) = std::thread::Builder::new().name("probe".into()).spawn(work) {
            tracing::warn!(%error, "no thread to try a site");
            self.probing.lock().now.remove(&partner);
        }
    }
}
