//! Recent failures of ways: a way that failed is tried last.

use super::Way;
use crate::path::SiteName;
use std::collections::HashMap;
use std::time::Duration;

/// How long a failure is remembered.
const REMEMBERED: Duration = Duration::from_secs(120);
/// Most failures remembered; the oldest are evicted first.
const MAX_REMEMBERED: usize = 1024;

/// Ways that failed, with the time of the last failure, relative to any fixed point.
#[derive(Debug, Default)]
pub struct Failures(HashMap<(SiteName, Way), Duration>);

impl Failures {
    /// Records that a way to a site failed.
    pub fn note(&mut self, site: &SiteName, way: &Way, now: Duration) {
        self.0.retain(|_, at| now.saturating_sub(*at) < REMEMBERED);
        if self.0.len() >= MAX_REMEMBERED
            && let Some(oldest) = self.0.iter().min_by_key(|(_, at)| **at).map(|(key, _)| key.clone())
        {
            self.0.remove(&oldest);
        }
        self.0.insert((site.clone(), way.clone()), now);
    }

    /// Forgets a failure: the way works.
    pub fn clear(&mut self, site: &SiteName, way: &Way) {
        self.0.remove(&(site.clone(), way.clone()));
    }

    /// Time since the way failed, if that is still remembered.
    pub fn since(&self, site: &SiteName, way: &Way, now: Duration) -> Option<Duration> {
        let at = self.0.get(&(site.clone(), way.clone()))?;
        Some(now.saturating_sub(*at)).filter(|since| *since < REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_counts_for_a_time_or_until_a_success() {
        let (kek, at) = (SiteName::parse("kek").unwrap(), Duration::from_secs);
        let mut failures = Failures::default();
        failures.note(&kek, &Way::Direct, at(10));
        assert_eq!(failures.since(&kek, &Way::Direct, at(15)), Some(at(5)));
        assert_eq!(failures.since(&kek, &Way::Line, at(15)), None);
        assert_eq!(failures.since(&kek, &Way::Direct, at(10) + REMEMBERED), None);
        failures.clear(&kek, &Way::Direct);
        assert_eq!(failures.since(&kek, &Way::Direct, at(15)), None);
        for site in 0..2 * MAX_REMEMBERED {
            failures.note(&SiteName::parse(&format!("s{site}")).unwrap(), &Way::Line, at(20));
        }
        assert!(failures.0.len() <= MAX_REMEMBERED);
    }
}
