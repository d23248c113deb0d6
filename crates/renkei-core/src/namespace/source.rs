//! Order in which sites are asked for content that several of them may have (source selection).
//!
//! One of them is first by its role: the home, which has every file or knows which site has it, or the site that
//! wrote the content. Another one precedes it only if it is known to have all that is wanted, and measurements show
//! its path to be clearly better. All others follow, so that content is available as long as one site has it.
//! Guarantee: each site is listed once, and none is left out.

use crate::path::{RelPath, SiteName};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::time::Duration;

/// A peer follower of the same volume, as the home describes it to its other followers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fellow {
    /// Its name.
    pub site: SiteName,
    /// Folders of which it holds all files, as far as it reported to the home.
    #[serde(deserialize_with = "crate::batch::batch")]
    pub whole: Vec<RelPath>,
}

impl Fellow {
    /// Whether it holds everything at a path and below it.
    pub fn has(&self, path: &RelPath) -> bool {
        self.whole.iter().any(|folder| path.starts_with(folder))
    }
}

/// A site that may have content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its name.
    pub site: SiteName,
    /// Whether it is first by its role.
    pub is_first: bool,
    /// Whether it is known to have everything wanted.
    pub has_all: bool,
    /// Measured bytes per second from it, if known.
    pub rate: Option<u64>,
    /// Measured round-trip time to it, if known.
    pub round_trip: Option<Duration>,
    /// Whether it was unreachable a moment ago.
    pub fails: bool,
}

/// Sorts sources into the order in which they are asked.
pub fn order(mut sources: Vec<Source>) -> Vec<SiteName> {
    let first = sources.iter().find(|source| source.is_first).cloned();
    sources.sort_by_cached_key(|source| {
        let is_better = |first: &Source| source.has_all && is_better(source, first);
        let class = match source {
            source if source.is_first => 1,
            _ if first.as_ref().is_some_and(is_better) => 0,
            source if source.has_all => 2,
            _ => 3,
        };
        let (rate, trip) = (Reverse(source.rate.map(steps)), source.round_trip.map_or(u32::MAX, trip));
        (source.fails, class, rate, trip, source.site.clone())
    });
    sources.into_iter().map(|source| source.site).collect()
}

/// Whether the path to one site is clearly better than to another, by a measurement that exists for both.
fn is_better(one: &Source, other: &Source) -> bool {
    match (one.rate.zip(other.rate), one.round_trip.zip(other.round_trip)) {
        (Some((one, other)), _) => steps(one) > steps(other),
        (None, Some((one, other))) => trip(one) < trip(other),
        (None, None) => false,
    }
}

fn trip(round_trip: Duration) -> u32 {
    steps(u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX))
}

/// Logarithm in steps of a factor of four: a smaller difference is no reason to prefer one site to another.
pub(super) fn steps(count: u64) -> u32 {
    count.checked_ilog2().map_or(0, |log| 1 + log / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn source(site: &str, rate: u64) -> Source {
        let site = SiteName::parse(site).unwrap();
        Source {
            site,
            is_first: false,
            has_all: true,
            rate: Some(rate).filter(|rate| *rate > 0),
            round_trip: None,
            fails: false,
        }
    }

    fn home(rate: u64) -> Source {
        Source { is_first: true, ..source("home", rate) }
    }

    fn asked(sources: Vec<Source>) -> String {
        order(sources).iter().map(|site| site.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_first_source_is_replaced_only_by_a_clearly_better_one() {
        let (near, far) = (source("near", 1 << 30), source("far", 1 << 20));
        assert_eq!(asked(vec![far.clone(), near.clone(), home(1 << 24)]), "near home far");
        assert_eq!(asked(vec![far.clone(), near.clone(), home(0)]), "home near far");
        assert_eq!(asked(vec![source("same", 3 << 23), home(1 << 24)]), "home same");
        let part = Source { has_all: false, ..near.clone() };
        assert_eq!(asked(vec![part, far.clone(), home(1 << 24)]), "home far near");
        let lost = Source { fails: true, ..home(1 << 30) };
        assert_eq!(asked(vec![lost.clone(), far.clone()]), "far home");
        assert_eq!(asked(vec![lost, Source { fails: true, ..far }]), "home far");
    }

    #[test]
    fn round_trips_count_where_no_rate_is_known() {
        let at = |mut source: Source, ms| {
            source.round_trip = Some(Duration::from_millis(ms));
            source
        };
        let (near, long) = (at(source("near", 0), 2), at(source("long", 0), 300));
        assert_eq!(asked(vec![near.clone(), long.clone(), at(home(0), 100)]), "near home long");
        assert_eq!(asked(vec![long, near, at(home(0), 3)]), "home near long");
    }

    #[test]
    fn a_peer_follower_has_the_files_of_its_folders() {
        let path = |text: &str| RelPath::parse(text.as_bytes()).unwrap();
        let fellow = Fellow { site: source("a", 0).site, whole: vec![path("raw")] };
        assert!(fellow.has(&path("raw/7")) && fellow.has(&path("raw")));
        assert!(!fellow.has(&path("raws")) && !fellow.has(&RelPath::root()));
    }

    fn sources() -> impl Strategy<Value = Vec<Source>> {
        let one = (any::<bool>(), any::<bool>(), 0..4u32, 0..4u64);
        proptest::collection::vec(one, 1..6).prop_map(|all| {
            let source = |(number, (has_all, fails, rate, trip)): (usize, (bool, bool, u32, u64))| Source {
                is_first: number == 0,
                has_all: has_all || number == 0,
                round_trip: (trip > 0).then(|| Duration::from_millis(1 << (3 * trip))),
                fails,
                ..source(&format!("s{number}"), if rate > 0 { 1 << (5 * rate) } else { 0 })
            };
            all.into_iter().enumerate().map(source).collect()
        })
    }

    proptest! {
        /// Each site is listed once; only those that have everything and are better precede the first, all others
        /// follow it.
        #[test]
        fn orders_keep_sources_and_prefer_better_ones(all in sources()) {
            let told = order(all.clone());
            let mut names: Vec<_> = told.clone();
            names.sort();
            prop_assert_eq!(names, all.iter().map(|source| source.site.clone()).collect::<Vec<_>>());
            let of = |site: &SiteName| all.iter().find(|source| source.site == *site).cloned();
            let asked: Vec<Source> = told.iter().filter_map(of).collect();
            prop_assert!(asked.is_sorted_by_key(|source| source.fails));
            let first = all[0].clone();
            let before = asked.iter().take_while(|source| !source.is_first);
            for source in before.filter(|source| source.fails == first.fails) {
                prop_assert!(source.has_all && is_better(source, &first));
            }
        }
    }
}
