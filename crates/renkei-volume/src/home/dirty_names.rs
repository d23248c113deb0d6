//! Dirty names: the set of names in a volume's plain tree that were touched and are not reconciled with its catalogue
//! yet.
//!
//! Each writer marks the name before and after its change ([`DirtyNames::touch`]). The reconciler, one thread a volume,
//! compares dirty names with the catalogue within 100 ms or when a flush waits for it ([`DirtyNames::flush`]). A mark
//! says where to look and not what happened, so a superfluous one does no harm.

use crate::diff::replacing::Replacing;
use crate::plain_entry::Seen;
use crate::reconciler_requests::Ask;
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

/// Longest time that a dirty name waits.
const WAIT: Duration = Duration::from_millis(100);

/// Pause after the catalogue could not be written, unless a flush asks for it.
const PAUSE: Duration = Duration::from_secs(1);

/// The dirty names of one volume, and the requests to its reconciler.
#[derive(Default)]
pub(crate) struct DirtyNames {
    state: Mutex<State>,
    changed: Condvar,
    replacing: Arc<Replacing>,
}

/// A batch for the reconciler.
#[derive(Default)]
pub(crate) struct Taken {
    /// Names that were changed through the volume.
    pub(crate) own: BTreeSet<RelPath>,
    /// Names that inotify reported.
    pub(crate) foreign: BTreeSet<RelPath>,
    /// Renames through the volume, in order.
    pub(crate) moved: Vec<(RelPath, RelPath)>,
    /// Versions that writers replaced knowing of them, of remote files.
    pub(crate) replaces: HashMap<RelPath, u64>,
    /// States of names after changes through the volume, if leases were held: a different state means a later change
    /// past renkei.
    pub(crate) left: HashMap<RelPath, Option<Seen>>,
    /// The last flush request that this batch answers.
    upto: u64,
}

#[derive(Default)]
struct State {
    taken: Taken,
    since: Option<Instant>,
    is_working: bool,
    asked: u64,
    done: u64,
    failures: u64,
    error: Option<Error>,
    scans_asked: u64,
    scans_done: u64,
    asks: VecDeque<ReconcileRequest>,
    is_stopped: bool,
}

/// A request to the reconciler, with the channel for its answer.
pub(crate) struct ReconcileRequest {
    pub(crate) ask: Ask,
    pub(crate) answer: mpsc::Sender<Result<(), Error>>,
}

impl State {
    fn is_empty(&self) -> bool {
        self.taken.own.is_empty() && self.taken.foreign.is_empty() && self.taken.moved.is_empty()
    }

    fn begin(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }
}

/// The next job of the reconciler.
pub(crate) enum Job {
    /// Stop.
    Stop,
    /// Answer a request.
    Ask(ReconcileRequest),
    /// Compare these names.
    Notes(Taken),
    /// Begin a scan.
    Scan,
    /// Go on with the running scan.
    Step,
}

/// Whether names are marked before or after their change.
#[derive(Clone, Copy)]
enum Moment {
    Before,
    After {
        /// Whether the remote version was replaced.
        done: bool,
    },
}

/// A flush request.
pub(crate) struct Awaited {
    number: u64,
    /// Count of failures at the request.
    failures: u64,
}

/// Names that are being changed; marked as dirty again on drop.
pub(crate) struct Touch<'n> {
    notes: &'n DirtyNames,
    paths: Vec<RelPath>,
    replaces: Option<(RelPath, u64)>,
    left: Vec<(RelPath, Option<Seen>)>,
    done: bool,
}

impl Touch<'_> {
    /// Notes that the plain file has replaced the remote version.
    pub(crate) fn done(&mut self) {
        self.done = true;
    }

    /// Notes the state of a name after the change.
    pub(crate) fn leave(&mut self, path: RelPath, left: Option<Seen>) {
        self.left.push((path, left));
    }
}

impl Drop for Touch<'_> {
    fn drop(&mut self) {
        let (left, replaced) = (std::mem::take(&mut self.left), self.replaces.take());
        let after = Moment::After { done: self.done };
        self.notes.add(std::mem::take(&mut self.paths), replaced, left, after);
    }
}

impl DirtyNames {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }

    /// Names whose remote versions are being replaced.
    pub(crate) fn replacing(&self) -> Arc<Replacing> {
        self.replacing.clone()
    }

    /// Marks names as dirty now and when the returned value is dropped.
    pub(crate) fn touch(&self, paths: Vec<RelPath>) -> Touch<'_> {
        self.touch_away(paths, None)
    }

    /// The same, where one name is that of a remote file; `replaces` is its version.
    pub(crate) fn touch_away(&self, paths: Vec<RelPath>, replaces: Option<(RelPath, u64)>) -> Touch<'_> {
        self.add(paths.clone(), replaces.clone(), Vec::new(), Moment::Before);
        Touch { notes: self, paths, replaces, left: Vec::new(), done: false }
    }

    fn add(
        &self,
        paths: Vec<RelPath>,
        replaces: Option<(RelPath, u64)>,
        left: Vec<(RelPath, Option<Seen>)>,
        moment: Moment,
    ) {
        let mut state = self.state();
        let was_empty = state.is_empty();
        match (&replaces, moment) {
            (Some((path, version)), Moment::Before) => self.replacing.begin(path.clone(), *version),
            (Some((path, _)), Moment::After { done }) => self.replacing.end(path, done),
            (None, _) => {}
        }
        for path in &paths {
            state.taken.left.remove(path);
        }
        state.taken.left.extend(left);
        state.taken.own.extend(paths);
        state.taken.replaces.extend(replaces);
        self.wake(state, was_empty);
    }

    /// Marks the names that inotify reported.
    pub(crate) fn add_foreign(&self, paths: Vec<RelPath>) {
        let mut state = self.state();
        let was_empty = state.is_empty();
        state.taken.foreign.extend(paths);
        self.wake(state, was_empty);
    }

    fn wake(&self, mut state: MutexGuard<'_, State>, was_empty: bool) {
        if was_empty && !state.is_empty() {
            state.begin();
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Notes a rename: dirty names below the old path are also marked below the new one.
    pub(crate) fn add_move(&self, from: RelPath, to: RelPath) -> Result<(), Error> {
        let mut state = self.state();
        let was_empty = state.is_empty();
        let below: Vec<RelPath> = state.taken.own.iter().filter_map(|path| path.below(&from)).collect();
        for path in below {
            state.taken.own.insert(to.join(&path)?);
        }
        state.taken.moved.push((from, to));
        self.wake(state, was_empty);
        Ok(())
    }

    /// Sends a request to the reconciler and waits for the answer.
    ///
    /// # Errors
    /// The error of the request; `PopStopping`.
    pub(crate) fn ask(&self, ask: Ask) -> Result<(), Error> {
        let (answer, answers) = mpsc::channel();
        let mut state = self.state();
        if state.is_stopped {
            return Err(stopped());
        }
        state.asks.push_back(ReconcileRequest { ask, answer });
        self.changed.notify_all();
        drop(state);
        answers.recv().unwrap_or_else(|_| Err(stopped()))
    }

    /// Sleeps; returns false if the volume was closed.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let state = self.state();
        let waited = self.changed.wait_timeout_while(state, time, |state| !state.is_stopped);
        !waited.expect("no thread panics while it holds the lock").0.is_stopped
    }

    /// Whether a name is dirty.
    pub(crate) fn holds(&self, path: &RelPath) -> bool {
        self.state().taken.own.contains(path)
    }

    /// Requests a flush of all dirty names; none if there are none.
    pub(crate) fn ask_all(&self) -> Option<Awaited> {
        let mut state = self.state();
        if state.is_empty() && !state.is_working {
            return None;
        }
        state.asked += 1;
        self.changed.notify_all();
        Some(Awaited { number: state.asked, failures: state.failures })
    }

    /// Returns when the requested flush is durable in the catalogue.
    ///
    /// # Errors
    /// The error of the write; it is retried later.
    pub(crate) fn wait(&self, asked: &Awaited) -> Result<(), Error> {
        let mut state = self.state();
        loop {
            // A failure that came later is reported as well, which does no harm.
            if state.failures != asked.failures {
                return Err(state.error.clone().unwrap_or_else(stopped));
            }
            if state.done >= asked.number {
                return Ok(());
            }
            if state.is_stopped {
                return Err(stopped());
            }
            state = self.changed.wait(state).expect("no thread panics while it holds the lock");
        }
    }

    /// Requests a flush and waits for it.
    ///
    /// # Errors
    /// As [`DirtyNames::wait`].
    pub(crate) fn flush(&self) -> Result<(), Error> {
        self.ask_all().map_or(Ok(()), |asked| self.wait(&asked))
    }

    /// Requests a scan; returns its number.
    pub(crate) fn ask_scan(&self) -> u64 {
        let mut state = self.state();
        state.scans_asked += 1;
        self.changed.notify_all();
        state.scans_asked
    }

    /// Waits for the end of that scan; false if `go_on` returns false first.
    pub(crate) fn wait_scan(&self, number: u64, go_on: impl Fn() -> bool) -> bool {
        let mut state = self.state();
        while state.scans_done < number {
            if state.is_stopped || !go_on() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, WAIT);
            state = waited.expect("no thread panics while it holds the lock").0;
        }
        true
    }

    /// Ends the scan that began after request `number`.
    pub(crate) fn end_scan(&self, number: u64) {
        let mut state = self.state();
        state.scans_done = state.scans_done.max(number);
        self.changed.notify_all();
    }

    /// Number of scan requests so far.
    pub(crate) fn scans_asked(&self) -> u64 {
        self.state().scans_asked
    }

    /// Waits for the next job of the reconciler, which `is_scanning` or begins a scan at `scan_at`.
    pub(crate) fn next(&self, is_scanning: bool, scan_at: Option<Instant>, begun: u64) -> Job {
        let mut state = self.state();
        loop {
            let now = Instant::now();
            if state.is_stopped {
                state.asks.clear();
                return Job::Stop;
            }
            if let Some(asked) = state.asks.pop_front() {
                return Job::Ask(asked);
            }
            let is_due = state.asked > state.done || state.since.is_some_and(|since| since + WAIT <= now);
            if is_due && !(state.is_empty() && state.asked == state.done) {
                return Job::Notes(take(&mut state));
            }
            if is_scanning {
                return Job::Step;
            }
            if state.scans_asked > begun || scan_at.is_some_and(|at| at <= now) {
                return Job::Scan;
            }
            let until = [scan_at, state.since.map(|since| since + WAIT)].into_iter().flatten().min();
            let wait = until.map_or(Duration::from_secs(3600), |until| until.saturating_duration_since(now));
            let waited = self.changed.wait_timeout(state, wait);
            state = waited.expect("no thread panics while it holds the lock").0;
        }
    }

    /// The batch is stored in the catalogue.
    pub(crate) fn on_stored(&self, taken: &Taken) {
        let mut state = self.state();
        let settled = taken.replaces.keys().filter(|path| !state.taken.replaces.contains_key(*path));
        settled.for_each(|path| self.replacing.settle(path));
        state.is_working = false;
        state.done = state.done.max(taken.upto);
        self.changed.notify_all();
    }

    /// The batch could not be stored; its names are dirty again.
    pub(crate) fn on_failed(&self, taken: Taken, error: &Error) {
        let mut state = self.state();
        state.is_working = false;
        state.taken.own.extend(taken.own);
        state.taken.foreign.extend(taken.foreign);
        let later = std::mem::replace(&mut state.taken.moved, taken.moved);
        state.taken.moved.extend(later);
        state.taken.replaces.extend(taken.replaces);
        let later = std::mem::replace(&mut state.taken.left, taken.left);
        state.taken.left.extend(later);
        state.since = Some(Instant::now() + PAUSE);
        // Flushes that wait fail now; a later flush has the batch retried.
        state.done = state.asked;
        state.failures += 1;
        state.error = Some(error.clone());
        self.changed.notify_all();
    }

    /// Stops the reconciler.
    pub(crate) fn stop(&self) {
        let mut state = self.state();
        state.is_stopped = true;
        // Dropping the requests answers their callers with `PopStopping`.
        state.asks.clear();
        drop(state);
        self.changed.notify_all();
    }
}

fn take(state: &mut State) -> Taken {
    state.is_working = true;
    state.since = None;
    state.taken.upto = state.asked;
    std::mem::take(&mut state.taken)
}

fn stopped() -> Error {
    Error::new(Code::PopStopping, "store", "volume", "the volume is closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    fn take_all(notes: &DirtyNames) -> Taken {
        match notes.next(false, None, 0) {
            Job::Notes(taken) => taken,
            _ => panic!("there are notes"),
        }
    }

    #[test]
    fn a_dirty_name_is_recorded_before_and_after() {
        let notes = DirtyNames::default();
        let touch = notes.touch(vec![path("a")]);
        assert!(notes.holds(&path("a")));
        let first = take_all(&notes);
        assert_eq!(first.own.len(), 1);
        notes.on_stored(&first);
        assert!(!notes.holds(&path("a")));
        drop(touch);
        assert!(notes.holds(&path("a")));
    }

    #[test]
    fn dirty_names_follow_renames() {
        let notes = DirtyNames::default();
        drop(notes.touch(vec![path("a"), path("a/x"), path("ab")]));
        notes.add_move(path("a"), path("b")).unwrap();
        let own: Vec<String> = take_all(&notes).own.iter().map(RelPath::to_string).collect();
        assert_eq!(own, ["a", "a/x", "ab", "b", "b/x"]);
    }

    #[test]
    fn waiters_get_the_failure_and_the_name_is_dirty_again() {
        let notes = DirtyNames::default();
        drop(notes.touch(vec![path("a")]));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| notes.flush());
            while notes.state().asked == 0 {
                std::thread::yield_now();
            }
            let taken = take_all(&notes);
            notes.on_failed(taken, &Error::new(Code::CatalogueFailed, "store", "", "full"));
            assert_eq!(waiting.join().unwrap().unwrap_err().code, Code::CatalogueFailed);
            let waiting = scope.spawn(|| notes.flush());
            let taken = take_all(&notes);
            assert!(taken.own.contains(&path("a")));
            notes.on_stored(&taken);
            // The flush may have been requested before or after the commit: both are answered.
            while !waiting.is_finished() {
                let is_asked = {
                    let state = notes.state();
                    state.asked > state.done
                };
                if is_asked {
                    let taken = take_all(&notes);
                    notes.on_stored(&taken);
                }
            }
            waiting.join().unwrap().unwrap();
        });
    }
}
