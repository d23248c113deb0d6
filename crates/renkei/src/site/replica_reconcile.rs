//! Reconciliation of replicas at a follower: missing replicas are pulled in the background. Folders pinned by the
//! administrator (`hold`) and those assigned by the home's policies, as far as the site accepts them, are treated
//! alike.
//!
//! One thread a volume pulls missing files, for as long as there are any; a changed setting stops it at once. The
//! result is told to the home with the next request, and shown in the volume's status.

use super::Site;
use super::active_transfers::stop_soon;
use super::dirty_set::DirtySet;
use super::log_shipping::ask;
use crate::catalogue::VolumeId;
use crate::mover::Stop;
use crate::mover::dial::Session;
use crate::mover::progress::Watch;
use crate::store::Store;
use crate::volume::Holds;
use crate::volume::VolumeConfig;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{NodeId, Record};
use renkei_core::path::RelPath;
use renkei_core::wire::violation;
use renkei_core::wire::volume::{AboutVolume, Duties, Holding as Held, Offer, VolumeReply};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Pause before what could not be brought is tried again.
const AGAIN_AFTER: Duration = Duration::from_secs(10);
/// How often it is looked whether it is one's turn.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Looking through all folders takes one part in so many of the time; between two looks what records touch is looked at.
const LOOK_SHARE: u32 = 20;
/// How often the home is told and asked though nothing changed.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// What is held in the background, of all volumes that are followed.
#[derive(Default)]
pub(crate) struct ReplicaReconciler {
    volumes: Mutex<HashMap<VolumeId, State>>,
    /// Volumes of which something is being brought: one transfer at a time.
    busy: Mutex<HashSet<VolumeId>>,
    freed: Condvar,
}

/// The turn of one transfer.
pub(super) struct Turn<'h> {
    holding: &'h ReplicaReconciler,
    id: VolumeId,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.holding.busy().remove(&self.id);
        self.holding.freed.notify_all();
    }
}

/// How it stands with one volume.
#[derive(Default)]
struct State {
    duties: Duties,
    asked: Option<Instant>,
    /// Whether there is something that the home was not told.
    has_news: bool,
    /// Up to which record all is held, of which folders.
    done: Option<(u64, Vec<RelPath>)>,
    /// What changed since.
    touched: DirtySet,
    /// When all was looked through last, how long that took, and up to which record it told the numbers of files.
    looked: Option<(Instant, Duration, u64)>,
    held: BTreeMap<RelPath, Held>,
    run: Option<Run>,
    /// What failed is not tried again before.
    again: Option<Instant>,
}

/// What is being brought.
struct Run {
    folders: Vec<RelPath>,
    stop: Stop,
    part: Option<Part>,
}

/// The transfer under way.
struct Part {
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

    /// Waits until nothing else is brought of a volume. What runs in the background gives way to whoever else asks.
    ///
    /// # Errors
    /// `Cancelled`.
    pub(super) fn take_turn(&self, id: &VolumeId, stop: &Stop) -> Result<Turn<'_>, Error> {
        let mut busy = self.busy();
        while !busy.insert(*id) {
            drop(busy);
            stop.check()?;
            self.give_way(id, stop);
            let waited = self.freed.wait_timeout(self.busy(), LOOK_EVERY);
            busy = waited.expect("no thread panics while it holds the lock").0;
        }
        Ok(Turn { holding: self, id: *id })
    }

    fn give_way(&self, id: &VolumeId, to: &Stop) {
        let volumes = self.lock();
        let run = volumes.get(id).and_then(|state| state.run.as_ref());
        if let Some(run) = run.filter(|run| run.stop.stopped().is_none() && !run.stop.is_same(to)) {
            let cause = "another request has priority; the transfer resumes afterwards";
            stop_soon(run.stop.clone(), Error::new(Code::Cancelled, "hold", "volume", cause));
        }
    }

    fn change<T>(&self, id: &VolumeId, change: impl FnOnce(&mut State) -> T) -> T {
        change(self.lock().entry(*id).or_default())
    }

    /// Takes what records changed that the copy has.
    pub(super) fn touch(&self, id: &VolumeId, records: &[Record]) {
        self.change(id, |state| state.touched.note(records));
    }

    /// The whole tree may be another one.
    pub(super) fn touch_all(&self, id: &VolumeId) {
        self.change(id, |state| state.touched.all = true);
    }

    /// What the home said last that this site shall do.
    pub(super) fn duties(&self, id: &VolumeId) -> Duties {
        self.lock().get(id).map(|state| state.duties.clone()).unwrap_or_default()
    }

    /// Something that is to be held was found wrong: it is looked at anew.
    pub(super) fn look_again(&self, id: &VolumeId) {
        self.change(id, |state| (state.done, state.again) = (None, None));
    }

    /// Whether the home should hear of this site soon.
    pub(super) fn has_news(&self, id: &VolumeId) -> bool {
        self.change(id, |state| state.has_news || state.run.is_some())
    }

    /// A transfer begins that brings so much of a folder.
    pub(super) fn begins(&self, id: &VolumeId, found: Held, watch: &Watch) {
        self.change(id, |state| {
            let (files, bytes) = (found.missing_files, found.missing_bytes);
            if let Some(run) = &mut state.run {
                run.part = Some(Part { watch: watch.clone(), since: Instant::now(), files, bytes });
            }
            state.note(found);
        });
    }

    /// A transfer begins that brings some files of a folder of which all others are held.
    fn begins_some(&self, id: &VolumeId, found: &Held, watch: &Watch) {
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

    /// A folder was looked through.
    fn note(&self, id: &VolumeId, found: Held) {
        self.change(id, |state| state.note(found));
    }

    /// What is shown of it.
    pub(super) fn shown(&self, id: &VolumeId, facts: &VolumeConfig) -> Holds {
        let volumes = self.lock();
        let Some(state) = volumes.get(id) else { return Holds::default() };
        let part = state.run.as_ref().and_then(|run| run.part.as_ref());
        let missing = |of: fn(&Held) -> u64| state.held.values().map(of).fold(0, u64::saturating_add);
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

/// What is to be looked at.
enum Look {
    /// Nothing.
    Nothing,
    /// These files.
    At(BTreeSet<NodeId>),
    /// All in the folders.
    Through,
}

impl State {
    /// What is to be looked at so that all in some folders is held.
    fn next_look(&mut self, folders: &[RelPath]) -> Look {
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

    /// All is held up to a record.
    fn advance(&mut self, seq: u64) {
        let Some((upto, _)) = &mut self.done else { return };
        let is_news = *upto < seq || self.held.values().any(|held| held.missing_files > 0);
        *upto = seq.max(*upto);
        for held in self.held.values_mut() {
            held.seq = held.seq.max(seq);
            (held.missing_files, held.missing_bytes, held.trouble) = (0, 0, None);
        }
        self.has_news |= is_news;
    }

    /// It could not be done: all is looked through the next time.
    fn on_failed(&mut self, name: &str, error: &Error) {
        self.done = None;
        if error.code == Code::Cancelled {
            tracing::info!(volume = name, %error, "holding is stopped");
        } else {
            tracing::warn!(volume = name, %error, "not all is held that shall be");
            self.again = Some(Instant::now() + AGAIN_AFTER);
        }
    }

    fn note(&mut self, found: Held) {
        self.has_news = true;
        self.held.insert(found.folder.clone(), found);
    }
}

fn is_paused(state: &State, facts: &VolumeConfig) -> bool {
    facts.care.is_paused || (state.duties.is_paused && facts.hold.is_empty())
}

/// What the home wants held, if this site takes it.
fn duties_taken(state: &State, facts: &VolumeConfig) -> Vec<RelPath> {
    let takes = !facts.storage.is_empty() && !facts.care.refuses_policy && !state.duties.is_paused;
    if takes { state.duties.folders.clone() } else { Vec::new() }
}

fn kept(facts: &VolumeConfig) -> Vec<RelPath> {
    facts.hold.iter().filter_map(|folder| RelPath::parse(folder.as_bytes()).ok()).collect()
}

/// The folders that shall be held now, none of them below another.
fn wanted(state: &State, facts: &VolumeConfig) -> Vec<RelPath> {
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

impl Site {
    /// Asks the home what shall be held here, and tells it what is, if it is time to or `is_idle` says that the home had
    /// nothing else.
    pub(super) fn ask_duties(
        self: &Arc<Self>,
        session: &mut Session,
        name: &str,
        facts: &VolumeConfig,
        is_idle: bool,
    ) -> Result<(), Error> {
        let Some(facts) = self.snapshot().volumes.get(name).filter(|now| now.id == facts.id).cloned() else {
            return Ok(());
        };
        let pending = self.snapshot().pending(name, &facts)?;
        let is_due = self.holding.change(&facts.id, |state| {
            is_idle
                || pending.wants_room()
                || state.has_news
                || state.asked.is_none_or(|at| at.elapsed() >= ASK_EVERY)
        });
        if !is_due {
            return Ok(());
        }
        let _one = pending.asking();
        let offer = Offer { claim: pending.claim(), ..self.offer(name, &facts) };
        let duties = match ask(session, AboutVolume::Duties { volume: facts.id, offer })? {
            VolumeReply::Duties(duties) => duties,
            other => return Err(violation("duties", format_args!("{other:?}"))),
        };
        duties.allowance.clone().map_or(Ok(()), |told| pending.hear_allowance(told))?;
        self.snapshot().pending(name, &facts)?.set_fellows(&duties.fellows)?;
        self.holding.change(&facts.id, |state| {
            if state.duties.folders != duties.folders {
                tracing::info!(target: "audit", volume = name, folders = ?duties.folders, "the home wants held here");
            }
            (state.asked, state.duties) = (Some(Instant::now()), duties);
        });
        Ok(())
    }

    fn offer(&self, name: &str, facts: &VolumeConfig) -> Offer {
        let contents = self.snapshot().contents(name, facts).ok();
        let plain = contents.and_then(|contents| contents.plain);
        let space = plain.and_then(|plain| plain.space(&RelPath::root()).ok());
        let accepts = space.is_some() && !facts.care.refuses_policy;
        let held = self.holding.change(&facts.id, |state| {
            state.has_news = false;
            state.held.values().cloned().collect()
        });
        let free_bytes = space.map_or(0, |space| space.available);
        Offer { accepts, free_bytes, keeps: kept(facts), held, claim: None }
    }

    /// Has what shall be held brought here, beside following, unless nothing changed since that was done; stops what shall
    /// not be brought any more.
    pub(super) fn hold_what_shall_be(self: &Arc<Self>, name: &str, id: &VolumeId) {
        // What is to be held may have changed since the volume was opened.
        let snapshot = self.snapshot();
        let Some(facts) = snapshot.volumes.get(name).filter(|now| now.id == *id) else { return };
        let begun = self.holding.change(id, |state| {
            let folders = wanted(state, facts);
            if let Some(run) = &state.run {
                if run.folders != folders {
                    let cause = "other folders are to be held, or none for now";
                    stop_soon(run.stop.clone(), Error::new(Code::Cancelled, "hold", name, cause));
                }
                return None;
            }
            state.held.retain(|folder, _| folders.contains(folder));
            // What was let go is not there when it is wanted again.
            state.done.take_if(|(_, of)| *of != folders);
            if folders.is_empty() || state.again.is_some_and(|again| Instant::now() < again) {
                return None;
            }
            let look = state.next_look(&folders);
            if matches!(look, Look::Nothing) {
                return None;
            }
            let upto = state.touched.upto;
            let stop = Stop::default();
            state.run = Some(Run { folders: folders.clone(), stop: stop.clone(), part: None });
            Some((folders, stop, look, upto))
        });
        let Some((folders, stop, look, upto)) = begun else { return };
        let (site, named, facts, of) = (Arc::downgrade(self), name.to_owned(), facts.clone(), *id);
        let work = move || {
            if let Some(site) = site.upgrade() {
                match look {
                    Look::At(ids) => site.hold_touched(&named, &facts, &folders, (&ids, upto), &stop),
                    _ => site.hold_folders(&named, &facts, &folders, &stop),
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("hold".into()).spawn(work) {
            tracing::warn!(%error, "nothing is held");
            self.holding.change(&of, |state| state.run = None);
        }
    }

    /// Looks at what records touched, and brings what is missing of that.
    fn hold_touched(
        &self,
        name: &str,
        facts: &VolumeConfig,
        folders: &[RelPath],
        (ids, upto): (&BTreeSet<NodeId>, u64),
        stop: &Stop,
    ) {
        let begin = |found: Held, watch: &Watch| self.holding.begins_some(&facts.id, &found, watch);
        let left = folders.iter().try_fold(0, |left, folder| {
            stop.check()?;
            Ok(left + self.hold_some(name, facts, folder, ids, &begin, stop)?)
        });
        self.holding.change(&facts.id, |state| {
            state.run = None;
            match left {
                Ok(0) => state.advance(upto),
                Ok(_) => (state.done, state.again) = (None, Some(Instant::now() + AGAIN_AFTER)),
                Err(error) => state.on_failed(name, &error),
            }
        });
    }

    fn hold_folders(&self, name: &str, facts: &VolumeConfig, folders: &[RelPath], stop: &Stop) {
        let began = Instant::now();
        let held = self.snapshot().volume_tree(facts.id).and_then(|tree| {
            let seq = tree.position()?.seq;
            let mut is_whole = true;
            for folder in folders {
                stop.check()?;
                is_whole &= self.hold_folder(name, facts, folder, seq, stop)?;
            }
            Ok((seq, is_whole))
        });
        self.holding.change(&facts.id, |state| {
            state.run = None;
            match held {
                Ok((seq, true)) => {
                    state.done = Some((seq, folders.to_vec()));
                    state.looked = Some((Instant::now(), began.elapsed(), seq));
                }
                Ok((_, false)) => (state.done, state.again) = (None, Some(Instant::now() + AGAIN_AFTER)),
                Err(error) => state.on_failed(name, &error),
            }
        });
    }

    /// Brings what is missing of a folder, and notes how far that came; whether all is there.
    fn hold_folder(
        &self,
        name: &str,
        facts: &VolumeConfig,
        folder: &RelPath,
        seq: u64,
        stop: &Stop,
    ) -> Result<bool, Error> {
        let begin = |found: Held, watch: &Watch| self.holding.begins(&facts.id, Held { seq, ..found }, watch);
        let found = match self.hold_in_background(name, facts, folder, &begin, stop) {
            Ok(found) => found,
            // The folder is not there yet, or not any more: nothing is missing.
            Err(error) if error.code == Code::PathNotFound => Held::nothing(folder.clone()),
            Err(error) => {
                self.holding.change(&facts.id, |state| {
                    if let Some(held) = state.held.get_mut(folder) {
                        held.trouble = Some(error.clone());
                        state.has_news = true;
                    }
                });
                return Err(error);
            }
        };
        let is_whole = found.missing_files == 0;
        self.holding.note(&facts.id, Held { seq, ..found });
        Ok(is_whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_costs_a_look_at_its_own_files() {
        let (mut state, all) = (State::default(), [RelPath::root()]);
        assert!(matches!(state.next_look(&all), Look::Through), "nothing is known yet");
        state.done = Some((3, all.to_vec()));
        // A look took a minute: the next one is due in twenty.
        state.looked = Some((Instant::now(), Duration::from_secs(60), 3));
        state.note(Held { seq: 3, files: 7, ..Held::nothing(RelPath::root()) });
        assert!(matches!(state.next_look(&all), Look::Nothing));
        state.touched.files.insert(NodeId(10));
        state.touched.upto = 5;
        assert!(matches!(state.next_look(&all), Look::At(files) if files == [NodeId(10)].into()));
        state.advance(5);
        let held = &state.held[&RelPath::root()];
        assert_eq!((state.done.as_ref().map(|(upto, _)| *upto), held.seq, held.files), (Some(5), 5, 7));
        // A record that touches no file is passed over; a directory that moved is not.
        state.touched.upto = 6;
        assert!(matches!(state.next_look(&all), Look::Nothing));
        assert_eq!(state.held[&RelPath::root()].seq, 6);
        state.touched.all = true;
        assert!(matches!(state.next_look(&all), Look::Through) && !state.touched.all);
        assert!(matches!(state.next_look(&[]), Look::Through), "others are to be held");
    }
}
