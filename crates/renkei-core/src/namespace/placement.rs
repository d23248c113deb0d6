//! Which sites shall hold the replicas of a folder.
//!
//! A [`Policy`] asks for a number of replicas and may name sites. The home has every file and counts as one. The others
//! come from the sites that follow, in this order: those that are named, in the order they are named; those that hold the
//! folder by themselves anyway; those that were chosen before; then the others, a good way before much room, both only as
//! far as they differ clearly. So files do not wander because a rate or a number of free bytes changed a little. A site
//! that was not heard for long, that refuses or has no room is passed over, and its share goes to the next one.
//! Guarantee: a site is let go only when those that take its place have all files. Non-goal: bringing the files.

use super::source::steps;
use crate::path::{RelPath, SiteName};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How many replicas a folder shall have, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The folder, with all below it.
    pub folder: RelPath,
    /// How many, the home's among them.
    pub replicas: u32,
    /// The sites that come first.
    pub at: Vec<SiteName>,
}

/// A site that follows, as its home knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its name.
    pub site: SiteName,
    /// How long ago it was heard.
    pub heard: Duration,
    /// Whether it takes what the home gives it to hold.
    pub accepts: bool,
    /// Whether it holds the folder by its own will.
    pub holds_anyway: bool,
    /// Bytes of the folder that it does not have yet.
    pub missing: u64,
    /// Whether it has all files of the folder.
    pub is_whole: bool,
    /// Bytes for which it has room.
    pub free: u64,
    /// Bytes a second on the way to it, if that was ever measured.
    pub rate: Option<u64>,
}

/// Why a site that is named, or that was chosen before, holds nothing of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// It does not follow the volume.
    NotFollowing,
    /// It was not heard for too long.
    Lost,
    /// It takes nothing: it has no storage for the volume, or its administrator does not want it.
    Refuses,
    /// It has no room.
    NoRoom,
}

/// Why a site shall hold a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The policy names it.
    Named,
    /// It holds the folder by its own will.
    Anyway,
    /// It was chosen before.
    Before,
    /// Its way and its room are good enough.
    Way,
    /// Those in its place have not all files yet.
    StandsIn,
}

/// What was decided for a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The sites that shall hold it, beside the home.
    pub sites: BTreeSet<SiteName>,
    /// Replicas that are asked for and have no site.
    pub unplaced: u32,
    /// Sites that were passed over, and why.
    pub passed: BTreeMap<SiteName, Why>,
    /// Why each of the sites was chosen.
    pub reasons: BTreeMap<SiteName, Reason>,
}

/// Decides who shall hold a folder. `before` are those that were to hold it until now; a site that was not heard for
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

/// Why a site cannot be used.
fn refusal(candidate: &Candidate, lost_after: Duration) -> Option<Why> {
    match candidate {
        one if one.heard >= lost_after => Some(Why::Lost),
        one if !one.accepts => Some(Why::Refuses),
        one if one.free < one.missing => Some(Why::NoRoom),
        _ => None,
    }
}

/// The files that have fewer replicas than asked for, at most: each site tells how many it has not, and not which.
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
    fn others_are_chosen_by_way_and_room_where_they_differ_clearly() {
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
    fn a_lost_site_is_replaced_and_let_go_of_nothing_before_it_is_back() {
        let lost = Candidate { heard: DAY, ..whole("titech") };
        let told = ask(&policy(2, "titech"), &[lost, site("osaka")], "titech");
        assert_eq!(told.sites, names("osaka"));
        assert_eq!(told.passed, BTreeMap::from([(name("titech"), Why::Lost)]));
        // It is back and has not all: the one that stood in stays until it has.
        let back = [site("titech"), whole("osaka")];
        let told = ask(&policy(2, "titech"), &back, "osaka");
        assert_eq!(told.sites, names("osaka titech"));
        let reasons = [(name("osaka"), Reason::StandsIn), (name("titech"), Reason::Named)];
        assert_eq!(told.reasons, BTreeMap::from(reasons));
        let back = [whole("titech"), whole("osaka")];
        assert_eq!(ask(&policy(2, "titech"), &back, "osaka titech").sites, names("titech"));
    }

    #[test]
    fn who_holds_it_anyway_is_preferred_to_who_was_chosen() {
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
        /// As many as asked for as far as there are usable ones, none that is not usable, and the same when asked again.
        #[test]
        fn decisions_hold(all in candidates(), replicas in 0..6u32, before in 0..64u32, at in 0..6usize) {
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
            // Nobody goes whose place is not taken by sites that have all.
            let is_whole = |site: &SiteName| all.iter().any(|one| one.site == *site && one.is_whole);
            let gone = before.iter().filter(|site| usable.contains(site) && !told.sites.contains(*site)).count();
            let good = told.sites.iter().filter(|site| is_whole(site)).count();
            prop_assert!(gone == 0 || good >= wanted);
            let again = decide(&policy, &name("nig"), &all, &told.sites, DAY);
            prop_assert_eq!(&again.sites, &told.sites);
            // A little more room or a little slower way changes nothing.
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
