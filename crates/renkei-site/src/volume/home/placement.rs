//! Placement at the home: which sites hold replicas of which folders, as the policies of a volume ask
//! (`renkei_core::namespace::placement`).
//!
//! A follower reports periodically what it holds and how much space is free, and is told its duties. The decision
//! is made again when a follower asks or waits for records, at most once a second. Decisions, and the time for
//! which sites have been silent, are kept beside the tree, so that a restart moves nothing. Non-goal: the
//! transfers, which are the follower's (`replica::reconcile`).

use crate::access::Proof;
use crate::volume::VolumeService;
use crate::volume::replica::source_selection::TELLING_BYTES;
use crate::volume::request::may;
use renkei_catalogue::{TreeNote, VolumeId, VolumeTree};
use renkei_core::error::Error;
use renkei_core::identity::{Need, Principal};
use renkei_core::namespace::Origin;
use renkei_core::namespace::placement::{self, Candidate, Decision, Policy};
use renkei_core::namespace::quota::{Limit, Use};
use renkei_core::namespace::quota_share::{QuotaShare, ShareRequest};
use renkei_core::namespace::source::Fellow;
use renkei_core::path::{RelPath, SiteName};
use renkei_core::wire::decode;
use renkei_core::wire::message::{BATCH_ENTRIES, Space};
use renkei_core::wire::volume::{Duties, Holding, Kept, KeptAt, Offer};
use renkei_volume::VolumeConfig;
use renkei_volume::home::follower_registry::followers;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The note with the decisions in the tree.
pub(crate) const NOTE: TreeNote<Stored> = TreeNote::of("placement", &[decode]);
/// Minimum interval between two decisions.
const DECIDE_EVERY: Duration = Duration::from_secs(1);
/// Interval at which the silence of sites is stored.
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// The placement of all volumes of this site.
#[derive(Default)]
pub(crate) struct PlacementState {
    volumes: Mutex<HashMap<VolumeId, Placed>>,
}

/// The placement of one volume.
#[derive(Default)]
struct Placed {
    is_loaded: bool,
    decided: Option<Instant>,
    saved: Option<Instant>,
    sites: BTreeMap<SiteName, Told>,
    folders: BTreeMap<RelPath, Decision>,
    /// The duties last sent to each site; `None` if they must be sent again.
    duties: BTreeMap<SiteName, Option<(Vec<RelPath>, bool)>>,
}

/// The report of a site.
struct Told {
    at: Instant,
    /// The last record when the site came back: its report is valid only if it covers that record.
    back_at: u64,
    /// `None` until the first report since this PoP was started.
    offer: Option<Offer>,
}

/// The stored state.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    pub(crate) folders: Vec<(RelPath, Vec<SiteName>)>,
    /// Seconds for which each site had been silent.
    pub(crate) silent: Vec<(SiteName, u64)>,
}

impl PlacementState {
    fn lock(&self) -> MutexGuard<'_, HashMap<VolumeId, Placed>> {
        self.volumes.lock().expect("no thread panics while it holds the lock")
    }

    /// Marks the duties of all followers to be sent again: a follower was added.
    pub(crate) fn tell_all(&self, id: VolumeId) {
        if let Some(placed) = self.lock().get_mut(&id) {
            placed.duties.values_mut().for_each(|told| *told = None);
        }
    }
}

impl Told {
    fn holding(&self, folder: &RelPath) -> Option<&Holding> {
        self.offer.as_ref()?.held.iter().find(|holding| holding.folder == *folder)
    }

    /// Records contact with the site, with the log at `seq`; a site silent for `lost_after` counts as having been
    /// away.
    fn hear(&mut self, seq: u64, lost_after: Duration) {
        if self.at.elapsed() >= lost_after {
            self.back_at = seq;
        }
        self.at = Instant::now();
    }

    /// Whether it has all files of a folder, including those that were added while it was away.
    fn is_whole(&self, folder: &RelPath) -> bool {
        self.holding(folder).is_some_and(|holding| holding.missing_files == 0 && holding.seq >= self.back_at)
    }
}

impl VolumeService {
    /// Takes the report of a follower and returns its duties.
    pub(crate) fn duties(
        &self,
        proof: &Proof,
        facts: &VolumeConfig,
        tree: &VolumeTree,
        offer: Offer,
    ) -> Result<Duties, Error> {
        let site = proof.principal.site();
        let mut volumes = self.placing.lock();
        let placed = volumes.entry(facts.id).or_default();
        placed.load(tree)?;
        let claim = offer.claim.clone();
        let seq = tree.position()?.seq;
        let told = placed.sites.entry(site.clone());
        let told = told.or_insert_with(|| Told { at: Instant::now(), back_at: 0, offer: None });
        told.hear(seq, facts.care.repair_after());
        told.offer = Some(offer);
        self.decide(placed, facts, tree, true)?;
        let (folders, is_paused) = placed.duties_of(site, facts);
        placed.duties.insert(site.clone(), Some((folders.clone(), is_paused)));
        drop(volumes);
        let used = tree.usage()?.values().fold(Use::default(), |all, one| all.changed((*one).into()));
        let total = facts.care.quotas().into_iter().find(|quota| quota.owner.is_none());
        let limit = total.map_or_else(Limit::default, |quota| quota.limit);
        let allowance = claim.map_or(Ok(None), |claim| self.hand_out(site, facts, tree, &claim))?;
        let fellows = self.fellows(facts, tree, Some(site))?;
        let space = self.room_at_home(facts);
        Ok(Duties { folders, is_paused, used, limit, space, allowance, fellows })
    }

    /// The quota share of a site in a volume of this one; `None` for a site that may not write.
    fn hand_out(
        &self,
        site: &SiteName,
        facts: &VolumeConfig,
        tree: &VolumeTree,
        claim: &ShareRequest,
    ) -> Result<Option<QuotaShare>, Error> {
        let known = followers(tree)?;
        let writes = |site: &SiteName| may(facts, &Principal::Host(site.clone()), Need::Write);
        let writers: Vec<Origin> =
            known.iter().filter(|(site, _)| writes(site)).map(|(_, origin)| *origin).collect();
        let origin = known.get(site).filter(|origin| writers.contains(origin));
        let Some((origin, volume)) = origin.zip(self.context.last_snapshot().volume_of(facts.id)) else {
            return Ok(None);
        };
        volume?.hand(*origin, claim, &writers).map(Some)
    }

    /// The followers of a volume of this site that may read it, all but one, each with the folders it holds
    /// completely.
    pub(crate) fn fellows(
        &self,
        facts: &VolumeConfig,
        tree: &VolumeTree,
        but: Option<&SiteName>,
    ) -> Result<Vec<Fellow>, Error> {
        let volumes = self.placing.lock();
        let placed = volumes.get(&facts.id);
        let whole = |site: &SiteName| {
            let told = placed.and_then(|placed| placed.sites.get(site)?.offer.as_ref());
            let held = told.map(|offer| offer.held.as_slice()).unwrap_or_default();
            let whole = held.iter().filter(|holding| holding.missing_files == 0);
            whole.map(|holding| holding.folder.clone()).collect()
        };
        let reads = |site: &SiteName| may(facts, &Principal::Host(site.clone()), Need::Read);
        let sites = followers(tree)?.into_keys().filter(|site| Some(site) != but && reads(site));
        Ok(sites.take(BATCH_ENTRIES).map(|site| Fellow { whole: whole(&site), site }).collect())
    }

    /// Space in a volume of this site; zero if it cannot be determined.
    fn room_at_home(&self, facts: &VolumeConfig) -> Space {
        let snapshot = self.context.last_snapshot();
        let name = snapshot.volumes.iter().find(|(_, now)| now.id == facts.id).map(|(name, _)| name);
        let store = name.and_then(|name| snapshot.store(name).ok());
        store.and_then(|store| store.space(&RelPath::root()).ok()).unwrap_or_default()
    }

    /// Whether a site's duties changed since they were sent; false for one that never asked.
    pub(crate) fn has_news(&self, site: &SiteName, facts: &VolumeConfig, tree: &VolumeTree) -> bool {
        let mut volumes = self.placing.lock();
        let Some(placed) = volumes.get_mut(&facts.id).filter(|placed| placed.duties.contains_key(site))
        else {
            return false;
        };
        // A site that waits for records is reachable.
        if let (Some(told), Ok(position)) = (placed.sites.get_mut(site), tree.position()) {
            told.hear(position.seq, facts.care.repair_after());
        }
        if let Err(error) = self.decide(placed, facts, tree, false) {
            tracing::warn!(%error, "who shall hold what is not decided");
        }
        placed.duties.get(site) != Some(&Some(placed.duties_of(site, facts)))
    }

    /// Decides again which sites hold which folders.
    fn decide(
        &self,
        placed: &mut Placed,
        facts: &VolumeConfig,
        tree: &VolumeTree,
        now: bool,
    ) -> Result<(), Error> {
        if !now && placed.decided.is_some_and(|at| at.elapsed() < DECIDE_EVERY) {
            return Ok(());
        }
        placed.decided = Some(Instant::now());
        let policies = facts.care.policies();
        let used = tree.usage()?.values().fold(0, |all: u64, one| all.saturating_add(one.bytes));
        let mut folders = BTreeMap::new();
        for policy in &policies {
            let candidates: Vec<Candidate> =
                placed.sites.iter().map(|(site, told)| self.candidate(site, told, policy, used)).collect();
            let before = placed.folders.get(&policy.folder).map(|decision| decision.sites.clone());
            let before = before.unwrap_or_default();
            let lost_after = facts.care.repair_after();
            let decision = placement::decide(policy, &facts.home, &candidates, &before, lost_after);
            if decision.sites != before {
                let (sites, passed) = (&decision.sites, &decision.passed);
                tracing::info!(target: "audit", folder = %policy.folder, ?sites, ?passed, "replicas are placed");
            }
            folders.insert(policy.folder.clone(), decision);
        }
        let sites = |folders: &BTreeMap<RelPath, Decision>| {
            folders.iter().map(|(folder, one)| (folder.clone(), one.sites.clone())).collect::<Vec<_>>()
        };
        let is_other = sites(&folders) != sites(&placed.folders);
        placed.folders = folders;
        if is_other || (!policies.is_empty() && placed.saved.is_none_or(|at| at.elapsed() > SAVE_EVERY)) {
            placed.save(tree)?;
        }
        Ok(())
    }

    /// Bytes per second on the path to a site, if a transfer measured it.
    fn rate_to(&self, site: &SiteName) -> Option<u64> {
        self.transfers.way(site).out.filter(|seen| seen.bytes >= TELLING_BYTES).map(|seen| seen.rate)
    }

    /// A site as a candidate; `used` is the total of the volume, the upper bound for any folder.
    fn candidate(&self, site: &SiteName, told: &Told, policy: &Policy, used: u64) -> Candidate {
        let holding = told.holding(&policy.folder);
        let keeps = |offer: &Offer| offer.keeps.iter().any(|folder| policy.folder.starts_with(folder));
        Candidate {
            site: site.clone(),
            heard: told.at.elapsed(),
            // A site that has not reported since this PoP was started is presumed to accept.
            accepts: told.offer.as_ref().is_none_or(|offer| offer.accepts || keeps(offer)),
            holds_anyway: told.offer.as_ref().is_some_and(keeps),
            missing: holding.map_or(used, |holding| holding.missing_bytes),
            is_whole: told.is_whole(&policy.folder),
            free: told.offer.as_ref().map_or(u64::MAX, |offer| offer.free_bytes),
            rate: self.rate_to(site),
        }
    }

    /// The replication state of all policies of the volume.
    pub(crate) fn kept(&self, facts: &VolumeConfig, tree: &VolumeTree) -> Result<Vec<Kept>, Error> {
        let mut volumes = self.placing.lock();
        let placed = volumes.entry(facts.id).or_default();
        placed.load(tree)?;
        self.decide(placed, facts, tree, true)?;
        let mut kept = Vec::new();
        for policy in facts.care.policies() {
            kept.push(placed.kept(&policy, tree, &|site| self.rate_to(site))?);
        }
        Ok(kept)
    }
}

impl Placed {
    /// Loads the stored state.
    fn load(&mut self, tree: &VolumeTree) -> Result<(), Error> {
        if std::mem::replace(&mut self.is_loaded, true) {
            return Ok(());
        }
        let Some(Stored { folders, silent }) = NOTE.read(tree)? else { return Ok(()) };
        let now = Instant::now();
        for (site, seconds) in silent {
            let at = now.checked_sub(Duration::from_secs(seconds)).unwrap_or(now);
            self.sites.entry(site).or_insert(Told { at, back_at: 0, offer: None });
        }
        for (folder, sites) in folders {
            self.folders
                .insert(folder, Decision { sites: sites.into_iter().collect(), ..Decision::default() });
        }
        Ok(())
    }

    fn save(&mut self, tree: &VolumeTree) -> Result<(), Error> {
        let folders = self.folders.iter();
        let folders = folders.map(|(folder, one)| (folder.clone(), one.sites.iter().cloned().collect()));
        let silent = self.sites.iter().map(|(site, told)| (site.clone(), told.at.elapsed().as_secs()));
        let stored = Stored { folders: folders.collect(), silent: silent.collect() };
        NOTE.write(tree, &stored)?;
        self.saved = Some(Instant::now());
        Ok(())
    }

    /// The duties of a site, and whether pulls are paused.
    fn duties_of(&self, site: &SiteName, facts: &VolumeConfig) -> (Vec<RelPath>, bool) {
        let folders = self.folders.iter().filter(|(_, one)| one.sites.contains(site));
        (folders.map(|(folder, _)| folder.clone()).collect(), facts.care.is_paused)
    }

    fn kept(
        &self,
        policy: &Policy,
        tree: &VolumeTree,
        rate_to: &dyn Fn(&SiteName) -> Option<u64>,
    ) -> Result<Kept, Error> {
        let none = Decision::default();
        let decision = self.folders.get(&policy.folder).unwrap_or(&none);
        let shown: BTreeSet<&SiteName> = decision.sites.iter().chain(decision.passed.keys()).collect();
        let at = |site: &SiteName| {
            let told = self.sites.get(site);
            let holding = told.and_then(|told| told.holding(&policy.folder));
            let offer = told.and_then(|told| told.offer.as_ref());
            KeptAt {
                site: site.clone(),
                passed: decision.passed.get(site).copied(),
                missing_files: holding.map(|holding| holding.missing_files),
                missing_bytes: holding.map(|holding| holding.missing_bytes),
                heard_s: told.map(|told| told.at.elapsed().as_secs()),
                trouble: holding.and_then(|holding| holding.trouble.clone()),
                reason: decision.reasons.get(site).copied(),
                rate: rate_to(site),
                free_bytes: offer.map(|offer| offer.free_bytes),
            }
        };
        let sites: Vec<KeptAt> = shown.into_iter().map(at).collect();
        let known = self.sites.values().filter_map(|told| told.holding(&policy.folder)).map(|one| one.files);
        let files = match known.max() {
            Some(files) => files,
            None => crate::volume::tree_walk::count(tree, &policy.folder).map_or(0, |(all, _)| all.files),
        };
        // Sites that are replaced by others do not count.
        let holders = sites.iter().filter(|one| one.passed.is_none());
        let mut missing: Vec<u64> = holders.map(|one| one.missing_files.unwrap_or(files)).collect();
        missing.sort_unstable();
        let wanted = policy.replicas.saturating_sub(1) as usize;
        let short = placement::short(files, decision.unplaced, missing.into_iter().take(wanted));
        let folder = String::from_utf8_lossy(policy.folder.as_bytes()).into_owned();
        let (replicas, unplaced) = (policy.replicas, decision.unplaced);
        Ok(Kept { folder, replicas, files, short, unplaced, sites })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recovered_site_is_complete_once_it_has_the_newer_records() {
        let folder = RelPath::root();
        let holding = |seq| Holding { seq, files: 3, ..Holding::nothing(RelPath::root()) };
        let offer = |seq| Some(Offer { held: vec![holding(seq)], ..Offer::default() });
        let mut told = Told { at: Instant::now(), back_at: 0, offer: offer(7) };
        told.hear(9, Duration::from_secs(1000));
        assert!(told.is_whole(&folder), "it was never lost");
        told.hear(9, Duration::ZERO);
        assert!(!told.is_whole(&folder), "it told of record 7 before it was lost");
        told.offer = offer(9);
        told.hear(12, Duration::from_secs(1000));
        assert!(told.is_whole(&folder), "what comes now is not waited for");
    }
}
