//! Replica placement: the sites that shall hold the replicas of a folder.
//!
//! A [`Policy`] asks for a number of replicas and may name sites. The home has every file and counts as one. The
//! others come from the followers, in this order: named sites, in the order they are named; sites that replicate the
//! folder by their own decision; sites that were chosen before; then the rest, by measured rate before free room,
//! both compared only in coarse steps. So replicas do not migrate because a rate or a number of free bytes changed a
//! little (hysteresis). A site that was not in contact for long, refuses or has no room is skipped, and its share
//! goes to the next one. Guarantee: a site is released only when its replacements have all files. Non-goal:
//! transferring the files.

use super::source::steps;
use crate::path::{RelPath, SiteName};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Replication policy of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The folder, with everything below it.
    pub folder: RelPath,
    /// Number of replicas, including the home's.
    pub replicas: u32,
    /// The preferred sites.
    pub at: Vec<SiteName>,
}

/// A follower, as its home knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its name.
    pub site: SiteName,
    /// Time since its last contact.
    pub heard: Duration,
    /// Whether it accepts replicas that the home places there.
    pub accepts: bool,
    /// Whether it replicates the folder by its own decision.
    pub holds_anyway: bool,
    /// Bytes of the folder that it lacks.
    pub missing: u64,
    /// Whether it has all files of the folder.
    pub is_whole: bool,
    /// Bytes of free room for replicas.
    pub free: u64,
    /// Measured bytes per second to it, if known.
    pub rate: Option<u64>,
}

/// Reason why a site that is named, or was chosen before, was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// It does not follow the volume.
    NotFollowing,
    /// It was not in contact for too long.
    Lost,
    /// It accepts no replicas: it has no storage for the volume, or its administrator disabled them.
    Refuses,
    /// It has not enough room.
    NoRoom,
}

/// Reason why a site was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The policy names it.
    Named,
    /// It replicates the folder by its own decision.
    Anyway,
    /// It was chosen before.
    Before,
    /// Its rate and its room are good enough.
    Way,
    /// Its replacements do not have all files yet.
    StandsIn,
}

/// The placement of a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The chosen sites, without the home.
    pub sites: BTreeSet<SiteName>,
    /// Replicas without a site.
    pub unplaced: u32,
    /// Sites that were skipped, with the reasons.
    pub passed: BTreeMap<SiteName, Why>,
    /// The reasons of the chosen sites.
    pub reasons: BTreeMap<SiteName, Reason>,
}

/// Decides the placement of a folder. `before` is the previous decision's sites; a site without contact for
/// `lost_after` is lost.
pub fn decide(
    policy: &Policy,
    home: &SiteName,
    candidates: &[Candidate],
    before: &BTreeSet<SiteName>,
    lost_after: Duration,
) -> Decision {
    let wanted = policy.replicas.saturating_sub(1) as usize;
    let named = |site: &SiteName| policy.at.iter().filter(|at| *at != home).position(|at| at == site);
    let refusal = |candidate: &Candidate| refusal(candidate, lost_after);
    let mut usable: Vec<&Candidate> = candidates.iter().filter(|one| refusal(one).is_none()).collect();
    usable.sort_by_cached_key(|one| {
        let order = match named(&one.site) {
            Some(place) => place,
            None if one.holds_anyway => usize::MAX - 2,
            None if before.contains(&one.site) => usize::MAX - 1,
            None => usize::MAX,
        };
        let (is_new, lacks) = (!before.contains(&one.site), !one.is_whole);
        let (rate, room) = (steps(one.rate.unwrap_or(0)), steps(one.free));
        (order, is_new, lacks, Reverse(rate), Reverse(room), one.site.clone())
    });
    let chosen: Vec<&Candidate> = usable.iter().take(wanted).copied().collect();
    let reason = |one: &Candidate| match () {
        () if named(&one.site).is_some() => Reason::Named,
        () if one.holds_anyway => Reason::Anyway,
        () if before.contains(&one.site) => Reason::Before,
        () => Reason::Way,
    };
    let mut reasons: BTreeMap<SiteName, Reason> =
        chosen.iter().map(|one| (one.site.clone(), reason(one))).collect();
    if wanted > 0 && !chosen.iter().all(|one| one.is_whole) {
        for one in usable.iter().filter(|one| before.contains(&one.site)) {
            reasons.entry(one.site.clone()).or_insert(Reason::StandsIn);
        }
    }
    let sites = reasons.keys().cloned().collect();
    let unplaced = wanted.saturating_sub(chosen.len()) as u32;
    let expected: BTreeSet<&SiteName> = policy.at.iter().chain(before).filter(|site| *site != home).collect();
    let why = |site: &SiteName| match candidates.iter().find(|one| one.site == *site) {
        None => Some(Why::NotFollowing),
        Some(one) => refusal(one),
    };
    let passed = expected.into_iter().filter_map(|site| Some((site.clone(), why(site)?))).collect();
    Decision { sites, unplaced, passed, reasons }
}

/// The reason why a site cannot be used.
fn refusal(candidate: &Candidate, lost_after: Duration) -> Option<Why> {
    match candidate {
        one if one.heard >= lost_after => Some(Why::Lost),
        one if !one.accepts => Some(Why::Refuses),
        one if one.free < one.missing => Some(Why::NoRoom),
        _ => None,
    }
}

/// Upper bound of the files that have fewer replicas than wanted: each site reports how many it lacks, not which.
pub fn short(files: u64, unplaced: u32, missing: impl Iterator<Item = u64>) -> u64 {
    if unplaced > 0 { files } else { missing.fold(0, u64::saturating_add).min(files) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn name(text: &str) -> SiteName {
        SiteName::parse(text).unwrap()
    }

    fn names(text: &str) -> BTreeSet<SiteName> {
        text.split_whitespace().map(name).collect()
    }

    fn site(text: &str) -> Candidate {
        Candidate {
            site: name(text),
            heard: Duration::from_secs(1),
            accepts: true,
            holds_anyway: false,
            missing: 100,
            is_whole: false,
            free: 1 << 40,
            rate: None,
        }
    }

    fn whole(text: &str) -> Candidate {
        Candidate { missing: 0, is_whole: true, ..site(text) }
    }

    fn policy(replicas: u32, at: &str) -> Policy {
        let at = at.split_whitespace().map(name).collect();
        Policy { folder: RelPath::root(), replicas, at }
    }

    fn ask(policy: &Policy, candidates: &[Candidate], before: &str) -> Decision {
        decide(policy, &name("nig"), candidates, &names(before), DAY)
    }

    #[test]
    fn named_sites_come_first_and_the_home_is_one() {
        let all = [site("kek"), site("osaka"), site("titech")];
        assert_eq!(ask(&policy(2, "nig titech"), &all, "").sites, names("titech"));
        assert_eq!(ask(&policy(3, "titech"), &all, "").sites, names("kek titech"));
        assert_eq!(ask(&policy(1, "titech"), &all, "kek"), Decision::default());
        let told = ask(&policy(3, "riken titech"), &all[2..], "");
        assert_eq!((told.sites, told.unplaced), (names("titech"), 1));
        assert_eq!(told.passed, BTreeMap::from([(name("riken"), Why::NotFollowing)]));
    }

    #[test]
    fn others_are_chosen_by_path_and_space_if_clearly_different() {
        let fast = Candidate { rate: Some(1_000_000_000), free: 1 << 30, ..site("osaka") };
        let slow = Candidate { rate: Some(10_000_000), ..site("kek") };
        let unknown = Candidate { free: 1 << 50, ..site("riken") };
        let small = Candidate { free: 99, ..site("titech") };
        let all = [small, slow.clone(), unknown.clone(), fast.clone()];
        assert_eq!(ask(&policy(2, ""), &all, "").sites, names("osaka"));
        assert_eq!(ask(&policy(2, ""), &all, "kek").sites, names("kek"));
        let told = ask(&policy(3, "titech"), &all, "");
        assert_eq!((told.sites, told.passed.get(&name("titech"))), (names("kek osaka"), Some(&Why::NoRoom)));
        let near = Candidate { rate: Some(9_000_000), free: 1 << 41, ..site("aizu") };
        let same = [Candidate { rate: Some(12_000_000), ..slow }, near];
        assert_eq!(ask(&policy(2, ""), &same, "").sites, names("aizu"), "much the same, so by name");
    }

    #[test]
    fn a_lost_site_is_replaced_and_evicts_nothing_until_it_is_back() {
        let lost = Candidate { heard: DAY, ..whole("titech") };
        let told = ask(&policy(2, "titech"), &[lost, site("osaka")], "titech");
        assert_eq!(told.sites, names("osaka"));
        assert_eq!(told.passed, BTreeMap::from([(name("titech"), Why::Lost)]));
        // It is back without all files: its replacement stays until it has them.
        let back = [site("titech"), whole("osaka")];
        let told = ask(&policy(2, "titech"), &back, "osaka");
        assert_eq!(told.sites, names("osaka titech"));
        let reasons = [(name("osaka"), Reason::StandsIn), (name("titech"), Reason::Named)];
        assert_eq!(told.reasons, BTreeMap::from(reasons));
        let back = [whole("titech"), whole("osaka")];
        assert_eq!(ask(&policy(2, "titech"), &back, "osaka titech").sites, names("titech"));
    }

    #[test]
    fn sites_that_pin_a_file_are_preferred_to_chosen_ones() {
        let anyway = Candidate { holds_anyway: true, ..whole("osaka") };
        let all = [whole("kek"), anyway];
        assert_eq!(ask(&policy(2, ""), &all, "kek").sites, names("osaka"));
        assert_eq!(short(10, 0, [3, 4].into_iter()), 7);
        assert_eq!(short(10, 1, [3].into_iter()), 10);
    }

    fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
        let one = (0..3u64, any::<bool>(), any::<bool>(), 0..2u64, 0..200u64, 0..5u32);
        proptest::collection::vec(one, 0..6).prop_map(|all| {
            let numbered = all.into_iter().zip(0..);
            let candidate =
                |((heard, accepts, holds_anyway, have, free, rate), number): (_, u32)| Candidate {
                    site: name(&format!("s{number}")),
                    heard: DAY * heard as u32 / 2,
                    accepts,
                    holds_anyway,
                    missing: 100 * (1 - have),
                    is_whole: have == 1,
                    free,
                    rate: 1_000_u64.checked_pow(rate),
                };
            numbered.map(candidate).collect()
        })
    }

    proptest! {
        /// A decision has as many sites as wanted, as far as enough are usable, only usable ones, and is stable when
        /// repeated.
        #[test]
        fn placements_satisfy_the_policy(all in candidates(), replicas in 0..6u32, before in 0..64u32, at in 0..6usize) {
            let policy = Policy { at: (0..at).map(|n| name(&format!("s{n}"))).collect(), ..policy(replicas, "") };
            let before: BTreeSet<SiteName> =
                (0..6).filter(|n| before >> n & 1 == 1).map(|n| name(&format!("s{n}"))).collect();
            let told = decide(&policy, &name("nig"), &all, &before, DAY);
            let usable: BTreeSet<&SiteName> =
                all.iter().filter(|one| refusal(one, DAY).is_none()).map(|one| &one.site).collect();
            let wanted = replicas.saturating_sub(1) as usize;
            prop_assert!(told.sites.iter().all(|site| usable.contains(site)));
            prop_assert!(told.sites.len() >= wanted.min(usable.len()));
            prop_assert_eq!(told.unplaced as usize, wanted.saturating_sub(usable.len()));
            // No site is released before its replacements have everything.
            let is_whole = |site: &SiteName| all.iter().any(|one| one.site == *site && one.is_whole);
            let gone = before.iter().filter(|site| usable.contains(site) && !told.sites.contains(*site)).count();
            let good = told.sites.iter().filter(|site| is_whole(site)).count();
            prop_assert!(gone == 0 || good >= wanted);
            let again = decide(&policy, &name("nig"), &all, &told.sites, DAY);
            prop_assert_eq!(&again.sites, &told.sites);
            // Slightly more room or a slightly lower rate changes nothing.
            let shaken: Vec<Candidate> = all.iter().cloned().map(|one| Candidate {
                free: one.free + one.free / 50,
                rate: one.rate.map(|rate| rate - rate / 50),
                ..one
            }).collect();
            let fits = |all: &[Candidate]| all.iter().map(|one| refusal(one, DAY)).collect::<Vec<_>>();
            if fits(&shaken) == fits(&all) {
                prop_assert_eq!(decide(&policy, &name("nig"), &shaken, &told.sites, DAY).sites, told.sites);
            }
        }
    }
}
