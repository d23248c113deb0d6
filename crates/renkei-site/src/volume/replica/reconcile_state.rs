//! The state of the reconciliation of replicas: the folders to hold, what is missing of them, and the next check.

use super::dirty_set::DirtySet;
use crate::transfer::active::stop_soon;
use renkei_catalogue::VolumeId;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{NodeId, Record};
use renkei_core::path::RelPath;
use renkei_core::wire::volume::{Duties, Holding};
use renkei_mover::Stop;
use renkei_mover::progress::Watch;
use renkei_volume::Holds;
use renkei_volume::VolumeConfig;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Pause before a failed pull is retried.
pub(super) const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Poll interval of a waiting transfer.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A full check of all folders may take 1/20 of the time; between two of them only files touched by records are
/// checked.
const LOOK_SHARE: u32 = 20;

/// State of the reconciliation of all followed volumes.
#[derive(Default)]
pub(crate) struct ReplicaReconciler {
    volumes: Mutex<HashMap<VolumeId, State>>,
    /// Volumes with a transfer under way: one at a time.
    busy: Mutex<HashSet<VolumeId>>,
    freed: Condvar,
}

/// The turn of one transfer, given back on drop.
pub(crate) struct TransferSlot<'h> {
    holding: &'h ReplicaReconciler,
    id: VolumeId,
}

impl Drop for TransferSlot<'_> {
    fn drop(&mut self) {
        self.holding.busy().remove(&self.id);
        self.holding.freed.notify_all();
    }
}

/// The state of one volume.
#[derive(Default)]
pub(super) struct State {
    pub(super) duties: Duties,
    pub(super) asked: Option<Instant>,
    /// Whether there are unreported changes for the home.
    pub(super) has_news: bool,
    /// The record up to which everything is held, and the folders this is true of.
    pub(super) done: Option<(u64, Vec<RelPath>)>,
    /// Changes since that record.
    pub(super) touched: DirtySet,
    /// The last full check: when, its duration, and the record up to which it counted files.
    pub(super) looked: Option<(Instant, Duration, u64)>,
    pub(super) held: BTreeMap<RelPath, Holding>,
    pub(super) run: Option<Run>,
    /// No retry before this moment.
    pub(super) again: Option<Instant>,
}

/// A running reconciliation.
pub(super) struct Run {
    pub(super) folders: Vec<RelPath>,
    pub(super) stop: Stop,
    pub(super) part: Option<Part>,
}

/// The transfer under way.
pub(super) struct Part {
    watch: Watch,
    since: Instant,
    files: u64,
    bytes: u64,
}

impl ReplicaReconciler {
    fn lock(&self) -> MutexGuard<'_, HashMap<VolumeId, State>> {
        self.volumes.lock().expect("no thread panics while it holds the lock")
    }

    fn busy(&self) -> MutexGuard<'_, HashSet<VolumeId>> {
        self.busy.lock().expect("no thread panics while it holds the lock")
    }

    /// Waits until no other transfer of a volume is under way. A background transfer yields to any other request.
    ///
    /// # Errors
    /// `Cancelled`.
    pub(crate) fn take_turn(&self, id: &VolumeId, stop: &Stop) -> Result<TransferSlot<'_>, Error> {
        let mut busy = self.busy();
        while !busy.insert(*id) {
            drop(busy);
            stop.check()?;
            self.give_way(id, stop);
            let waited = self.freed.wait_timeout(self.busy(), LOOK_EVERY);
            busy = waited.expect("no thread panics while it holds the lock").0;
        }
        Ok(TransferSlot { holding: self, id: *id })
    }

    fn give_way(&self, id: &VolumeId, to: &Stop) {
        let volumes = self.lock();
        let run = volumes.get(id).and_then(|state| state.run.as_ref());
        if let Some(run) = run.filter(|run| run.stop.stopped().is_none() && !run.stop.is_same(to)) {
            let cause = "another request has priority; the transfer resumes afterwards";
            stop_soon(run.stop.clone(), Error::new(Code::Cancelled, "hold", "volume", cause));
        }
    }

    pub(super) fn change<T>(&self, id: &VolumeId, change: impl FnOnce(&mut State) -> T) -> T {
        change(self.lock().entry(*id).or_default())
    }

    /// Adds the changes of applied records to the dirty set.
    pub(crate) fn touch(&self, id: &VolumeId, records: &[Record]) {
        self.change(id, |state| state.touched.note(records));
    }

    /// Marks the whole tree as changed.
    pub(crate) fn touch_all(&self, id: &VolumeId) {
        self.change(id, |state| state.touched.all = true);
    }

    /// The last duties received from the home.
    pub(crate) fn duties(&self, id: &VolumeId) -> Duties {
        self.lock().get(id).map(|state| state.duties.clone()).unwrap_or_default()
    }

    /// Forces a new check: a file that must be held was found corrupt.
    pub(crate) fn look_again(&self, id: &VolumeId) {
        self.change(id, |state| (state.done, state.again) = (None, None));
    }

    /// Whether the home should receive a report soon.
    pub(crate) fn has_news(&self, id: &VolumeId) -> bool {
        self.change(id, |state| state.has_news || state.run.is_some())
    }

    /// Records the start of a transfer of the missing files of a folder.
    pub(crate) fn begins(&self, id: &VolumeId, found: Holding, watch: &Watch) {
        self.change(id, |state| {
            let (files, bytes) = (found.missing_files, found.missing_bytes);
            if let Some(run) = &mut state.run {
                run.part = Some(Part { watch: watch.clone(), since: Instant::now(), files, bytes });
            }
            state.note(found);
        });
    }

    /// Records the start of a transfer of some files of a folder of which all others are held.
    pub(super) fn begins_some(&self, id: &VolumeId, found: &Holding, watch: &Watch) {
        self.change(id, |state| {
            let (files, bytes) = (found.missing_files, found.missing_bytes);
            if let Some(run) = &mut state.run {
                run.part = Some(Part { watch: watch.clone(), since: Instant::now(), files, bytes });
            }
            if let Some(held) = state.held.get_mut(&found.folder) {
                (held.missing_files, held.missing_bytes) = (files, bytes);
                state.has_news = true;
            }
        });
    }

    /// Records a full check of a folder.
    pub(super) fn note(&self, id: &VolumeId, found: Holding) {
        self.change(id, |state| state.note(found));
    }

    /// The state as it is shown.
    pub(crate) fn shown(&self, id: &VolumeId, facts: &VolumeConfig) -> Holds {
        let volumes = self.lock();
        let Some(state) = volumes.get(id) else { return Holds::default() };
        let part = state.run.as_ref().and_then(|run| run.part.as_ref());
        let missing = |of: fn(&Holding) -> u64| state.held.values().map(of).fold(0, u64::saturating_add);
        let mut shown = Holds {
            by_policy: duties_taken(state, facts).iter().map(RelPath::to_string).collect(),
            is_paused: is_paused(state, facts),
            is_running: state.run.is_some(),
            files_to_go: missing(|held| held.missing_files),
            bytes_to_go: missing(|held| held.missing_bytes),
            rate: None,
            trouble: state.held.values().find_map(|held| held.trouble.clone()),
        };
        if let Some(part) = part {
            let progress = part.watch.look();
            shown.files_to_go = part.files.saturating_sub(progress.files_done);
            shown.bytes_to_go = part.bytes.saturating_sub(progress.bytes_done);
            shown.rate =
                Some((progress.bytes_moved as f64 / part.since.elapsed().as_secs_f64().max(0.001)) as u64);
        }
        shown
    }
}

/// The extent of the next check.
pub(super) enum Look {
    /// No files.
    Nothing,
    /// Only these files.
    At(BTreeSet<NodeId>),
    /// All files of the folders.
    Through,
}

impl State {
    /// The next check that ensures that all files of some folders are held.
    pub(super) fn next_look(&mut self, folders: &[RelPath]) -> Look {
        let is_same = self.done.as_ref().is_some_and(|(_, of)| of == folders);
        let is_due = self.looked.is_none_or(|(at, took, _)| at.elapsed() >= took * LOOK_SHARE);
        let counted = self.looked.map_or(0, |(_, _, upto)| upto);
        let is_new = !self.touched.files.is_empty() || counted < self.touched.upto;
        if !is_same || self.touched.all || (is_due && is_new) {
            self.touched.take();
            return Look::Through;
        }
        if !self.touched.files.is_empty() {
            return Look::At(self.touched.take());
        }
        self.advance(self.touched.upto);
        Look::Nothing
    }

    /// Records that everything is held up to a record.
    pub(super) fn advance(&mut self, seq: u64) {
        let Some((upto, _)) = &mut self.done else { return };
        let is_news = *upto < seq || self.held.values().any(|held| held.missing_files > 0);
        *upto = seq.max(*upto);
        for held in self.held.values_mut() {
            held.seq = held.seq.max(seq);
            (held.missing_files, held.missing_bytes, held.trouble) = (0, 0, None);
        }
        self.has_news |= is_news;
    }

    /// Records a failure: the next check is a full one.
    pub(super) fn on_failed(&mut self, name: &str, error: &Error) {
        self.done = None;
        if error.code == Code::Cancelled {
            tracing::info!(volume = name, %error, "holding is stopped");
        } else {
            tracing::warn!(volume = name, %error, "not all is held that shall be");
            self.again = Some(Instant::now() + AGAIN_AFTER);
        }
    }

    pub(super) fn note(&mut self, found: Holding) {
        self.has_news = true;
        self.held.insert(found.folder.clone(), found);
    }
}

fn is_paused(state: &State, facts: &VolumeConfig) -> bool {
    facts.care.is_paused || (state.duties.is_paused && facts.hold.is_empty())
}

/// The folders assigned by the home, if this site accepts them.
fn duties_taken(state: &State, facts: &VolumeConfig) -> Vec<RelPath> {
    let takes = !facts.storage.is_empty() && !facts.care.refuses_policy && !state.duties.is_paused;
    if takes { state.duties.folders.clone() } else { Vec::new() }
}

pub(super) fn kept(facts: &VolumeConfig) -> Vec<RelPath> {
    facts.hold.iter().filter_map(|folder| RelPath::parse(folder.as_bytes()).ok()).collect()
}

/// The folders to hold now, without those below another one.
pub(super) fn wanted(state: &State, facts: &VolumeConfig) -> Vec<RelPath> {
    if facts.care.is_paused || facts.storage.is_empty() {
        return Vec::new();
    }
    let mut all = kept(facts);
    all.extend(duties_taken(state, facts));
    all.sort();
    all.dedup();
    let is_below = |one: &RelPath| all.iter().any(|other| other != one && one.starts_with(other));
    all.iter().filter(|one| !is_below(one)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_examines_only_its_own_files() {
        let (mut state, all) = (State::default(), [RelPath::root()]);
        assert!(matches!(state.next_look(&all), Look::Through), "nothing is known yet");
        state.done = Some((3, all.to_vec()));
        // A full check took a minute: the next one is due in twenty.
        state.looked = Some((Instant::now(), Duration::from_secs(60), 3));
        state.note(Holding { seq: 3, files: 7, ..Holding::nothing(RelPath::root()) });
        assert!(matches!(state.next_look(&all), Look::Nothing));
        state.touched.files.insert(NodeId(10));
        state.touched.upto = 5;
        assert!(matches!(state.next_look(&all), Look::At(files) if files == [NodeId(10)].into()));
        state.advance(5);
        let held = &state.held[&RelPath::root()];
        assert_eq!((state.done.as_ref().map(|(upto, _)| *upto), held.seq, held.files), (Some(5), 5, 7));
        // A record that touches no file is skipped; a renamed directory is not.
        state.touched.upto = 6;
        assert!(matches!(state.next_look(&all), Look::Nothing));
        assert_eq!(state.held[&RelPath::root()].seq, 6);
        state.touched.all = true;
        assert!(matches!(state.next_look(&all), Look::Through) && !state.touched.all);
        assert!(matches!(state.next_look(&[]), Look::Through), "others are to be held");
    }
}
