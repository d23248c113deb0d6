//! Log truncation at the home: records that all followers have are removed, and of the others a bounded number is
//! kept, for a bounded number of days. A follower that needs removed ones is bootstrapped from a snapshot in pages.
//!
//! A follower that waits for records has all before them, which confirms its position. Records carry no time; so
//! the position of the log is noted periodically, which later tells the age of its parts.

use crate::volume::VolumeService;
use renkei_catalogue::{TreeNote, VolumeId, VolumeTree};
use renkei_core::error::Error;
use renkei_core::path::SiteName;
use renkei_core::wire::decode;
use renkei_net::unix_ms;
use renkei_volume::VolumeConfig;
use renkei_volume::home::follower_registry::followers;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

/// Poll interval of the truncation.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Minimum records kept, unless fewer are configured: local readers of the log are never late.
const ALWAYS_KEPT: u64 = 10_000;
/// The note with the positions of the log by time, in the tree.
pub(crate) const AGES: TreeNote<Vec<Age>> = TreeNote::of("log-ages", &[decode]);
/// Positions noted within the retention period.
const AGES_NOTED: u64 = 200;
const DAY_MS: u64 = 24 * 3600 * 1000;

/// A time, in milliseconds since 1970, and the last record then.
pub(crate) type Age = (u64, u64);

/// Positions confirmed by followers.
#[derive(Default)]
pub(crate) struct Confirmed {
    seen: Mutex<HashMap<(VolumeId, SiteName), (u64, Instant)>>,
    /// The record up to which each log was truncated.
    cut: Mutex<HashMap<VolumeId, u64>>,
}

impl Confirmed {
    fn seen(&self) -> MutexGuard<'_, HashMap<(VolumeId, SiteName), (u64, Instant)>> {
        self.seen.lock().expect("no thread panics while it holds the lock")
    }

    /// Records that a follower has all records up to `seq`.
    pub(crate) fn on_follower(&self, volume: VolumeId, site: &SiteName, seq: u64) {
        self.seen().insert((volume, site.clone()), (seq, Instant::now()));
    }

    /// The last confirmed position of a follower, and when it was confirmed.
    pub(crate) fn of(&self, volume: VolumeId, site: &SiteName) -> Option<(u64, Instant)> {
        self.seen().get(&(volume, site.clone())).copied()
    }

    /// Time of a follower's last confirmation.
    pub(crate) fn last(&self, volume: VolumeId, site: &SiteName) -> Option<Instant> {
        self.seen().get(&(volume, site.clone())).map(|(_, at)| *at)
    }

    /// The record up to which some sites have all records; `None` if the position of one is unknown.
    fn by_all<'s>(&self, volume: VolumeId, sites: impl Iterator<Item = &'s SiteName>) -> Option<u64> {
        let seen = self.seen();
        sites
            .map(|site| seen.get(&(volume, site.clone())).map(|(seq, _)| *seq))
            .try_fold(u64::MAX, |least, seq| Some(least.min(seq?)))
    }

    /// Whether a log has to be truncated further than before.
    fn is_further(&self, volume: VolumeId, upto: u64) -> bool {
        let mut cut = self.cut.lock().expect("no thread panics while it holds the lock");
        let last = cut.entry(volume).or_default();
        let is_further = upto > *last;
        *last = upto.max(*last);
        is_further
    }
}

/// Starts the truncation thread, which runs as long as the site exists.
pub(crate) fn spawn_trimming(site: &Arc<VolumeService>) -> Result<(), Error> {
    site.context.spawn_every(site, "logs", LOOK_EVERY, |site| {
        let snapshot = site.context.last_snapshot();
        for (name, facts) in snapshot.volumes.iter().filter(|(_, facts)| !snapshot.follows(facts)) {
            let trimmed = snapshot.volume_tree(facts.id).and_then(|tree| site.trim(name, facts, &tree));
            if let Err(error) = trimmed {
                tracing::warn!(volume = name, %error, "a log could not be cut");
            }
        }
    })
}

impl VolumeService {
    fn trim(&self, name: &str, facts: &VolumeConfig, tree: &VolumeTree) -> Result<(), Error> {
        let seq = tree.position()?.seq;
        let now_ms = unix_ms(SystemTime::now());
        let ages = noted(tree, facts, seq, now_ms)?;
        let followers = followers(tree)?;
        let confirmed = self.confirmed.by_all(facts.id, followers.keys());
        let upto = forgotten(facts, seq, confirmed, &ages, now_ms);
        if !self.confirmed.is_further(facts.id, upto) {
            return Ok(());
        }
        let records = tree.trim(upto)?;
        if records > 0 {
            tracing::info!(volume = name, records, upto, "records forgotten");
        }
        Ok(())
    }
}

/// The record up to which a log is truncated.
fn forgotten(facts: &VolumeConfig, seq: u64, confirmed: Option<u64>, ages: &[Age], now_ms: u64) -> u64 {
    let too_many = seq.saturating_sub(facts.log_records);
    let since = now_ms.saturating_sub(facts.log_days.saturating_mul(DAY_MS));
    let too_old = ages.iter().filter(|(at, _)| *at <= since).map(|(_, seq)| *seq).max().unwrap_or(0);
    let kept = ALWAYS_KEPT.min(facts.log_records);
    too_many.max(too_old).max(confirmed.unwrap_or(0)).min(seq.saturating_sub(kept))
}

/// The noted positions of the log, including the current one if that is due.
fn noted(tree: &VolumeTree, facts: &VolumeConfig, seq: u64, now_ms: u64) -> Result<Vec<Age>, Error> {
    let mut ages = AGES.read(tree)?.unwrap_or_default();
    let kept_ms = facts.log_days.saturating_mul(DAY_MS);
    let is_due = match ages.last() {
        None => seq > 0,
        Some((at, last)) => *last < seq && now_ms.saturating_sub(*at) >= kept_ms / AGES_NOTED,
    };
    if is_due {
        ages.push((now_ms, seq));
        // Of the expired ones only the last is needed.
        let old = ages.iter().take_while(|(at, _)| *at <= now_ms.saturating_sub(kept_ms)).count();
        ages.drain(..old.saturating_sub(1));
        AGES.write(tree, &ages)?;
    }
    Ok(ages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_volume::VolumeConfig;

    fn facts(log_records: u64, log_days: u64) -> VolumeConfig {
        let kek = SiteName::parse("kek").unwrap();
        VolumeConfig {
            log_records,
            log_days,
            ..VolumeConfig::new([7; 16], kek, "pool", String::new(), "alice".into())
        }
    }

    #[test]
    fn records_that_all_followers_have_or_that_are_too_many_or_old_are_truncated() {
        let now = 100 * DAY_MS;
        let ages = [(now - 40 * DAY_MS, 50_000), (now - 20 * DAY_MS, 90_000)];
        let upto =
            |records, days, confirmed| forgotten(&facts(records, days), 200_000, confirmed, &ages, now);
        assert_eq!(upto(1_000_000, 30, None), 50_000);
        assert_eq!(upto(1_000_000, 10, None), 90_000);
        assert_eq!(upto(1_000_000, 50, None), 0);
        assert_eq!(upto(30_000, 50, None), 170_000);
        assert_eq!(upto(1_000_000, 50, Some(120_000)), 120_000);
        assert_eq!(upto(1_000_000, 50, Some(200_000)), 190_000, "some are always kept");
        assert_eq!(upto(5, 50, Some(200_000)), 199_995);
        assert_eq!(forgotten(&facts(5, 0), 3, None, &[], now), 0);
    }

    #[test]
    fn a_log_waits_for_the_last_known_follower() {
        let (confirmed, sites) =
            (Confirmed::default(), ["nig", "titech"].map(|name| SiteName::parse(name).unwrap()));
        let by_all = |sites: &[SiteName]| confirmed.by_all([1; 16], sites.iter());
        assert_eq!(by_all(&[]), Some(u64::MAX));
        confirmed.on_follower([1; 16], &sites[0], 7);
        assert_eq!(by_all(&sites), None);
        confirmed.on_follower([1; 16], &sites[1], 5);
        assert_eq!(by_all(&sites), Some(5));
        assert!(confirmed.is_further([1; 16], 5) && !confirmed.is_further([1; 16], 5));
    }
}
