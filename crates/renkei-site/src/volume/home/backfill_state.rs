//! The state of backfills: which are running, and the sites that are not asked again for a while.

use renkei_catalogue::VolumeId;
use renkei_core::namespace::Origin;
use renkei_core::path::SiteName;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Backoff after a failed request: for a site that was heard from since, and for others.
const AGAIN_AFTER: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// State of the backfill of each volume.
#[derive(Default)]
pub(crate) struct Backfill(Mutex<HashMap<VolumeId, State>>);

#[derive(Default)]
struct State {
    is_running: bool,
    /// More content is due.
    again: bool,
    /// Failed requests: site and time.
    failed: HashMap<SiteName, Instant>,
    /// Sites that had none of the content of an origin when asked, and when.
    lacks: HashMap<(SiteName, Origin), Instant>,
}

/// The outcome of a request to a site.
pub(super) enum BackfillOutcome {
    Gave,
    Failed,
    /// It has none of the wanted files.
    Lacks,
}

impl Backfill {
    fn lock(&self) -> MutexGuard<'_, HashMap<VolumeId, State>> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }

    /// Whether the caller shall start the backfill, now that a site was heard from.
    pub(super) fn begin(&self, volume: VolumeId, heard: &SiteName) -> bool {
        let mut volumes = self.lock();
        let state = volumes.entry(volume).or_default();
        if state.failed.get(heard).is_some_and(|at| at.elapsed() <= AGAIN_AFTER.0) {
            return false;
        }
        state.failed.remove(heard);
        state.again = true;
        !std::mem::replace(&mut state.is_running, true)
    }

    /// Whether to continue; on false the backfill has ended.
    pub(super) fn goes_on(&self, volume: VolumeId) -> bool {
        let mut volumes = self.lock();
        let state = volumes.entry(volume).or_default();
        state.is_running = std::mem::take(&mut state.again);
        state.is_running
    }

    /// Whether a site may be asked for the content of an origin.
    pub(super) fn may_ask(&self, volume: VolumeId, site: &SiteName, wrote: Origin) -> bool {
        let volumes = self.lock();
        let Some(State { failed, lacks, .. }) = volumes.get(&volume) else { return true };
        let is_over = |at: &Instant| at.elapsed() > AGAIN_AFTER.1;
        failed.get(site).is_none_or(is_over) && lacks.get(&(site.clone(), wrote)).is_none_or(is_over)
    }

    /// Records the outcome of a request to a site for the content of an origin.
    pub(super) fn note(&self, volume: VolumeId, site: &SiteName, wrote: Origin, asked: BackfillOutcome) {
        let mut volumes = self.lock();
        let State { failed, lacks, .. } = volumes.entry(volume).or_default();
        failed.remove(site);
        lacks.remove(&(site.clone(), wrote));
        match asked {
            BackfillOutcome::Gave => {}
            BackfillOutcome::Failed => drop(failed.insert(site.clone(), Instant::now())),
            BackfillOutcome::Lacks => drop(lacks.insert((site.clone(), wrote), Instant::now())),
        }
    }

    /// Clears the backoff of all sites.
    pub(crate) fn forget_failures(&self, volume: VolumeId) {
        if let Some(state) = self.lock().get_mut(&volume) {
            state.failed.clear();
            state.lacks.clear();
        }
    }
}
