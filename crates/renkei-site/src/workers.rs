//! The background threads: purpose, last turn and last error of each.
//!
//! Each thread reports when a turn begins and ends; the results are elsewhere. A hanging thread shows as a turn
//! that does not end. Non-goal: threads that serve one connection, transfer or volume.

use renkei_core::error::{Code, Error};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

/// The purpose of each thread, by name.
const TASKS: &[(&str, &str)] = &[
    ("buffer", "removes from the buffer what was delivered or is too old"),
    ("cleanup", "removes journals and temporary files of abandoned transfers"),
    ("conditions", "looks for what is not as it should be"),
    ("copies", "closes the idle sessions of third-party copies"),
    ("drafts", "removes what file sessions left open"),
    ("following", "follows volumes of other homes, and brings replicas that are to be held here"),
    ("given-up", "tells destinations which transfers were cancelled"),
    ("lines", "keeps lines to the sites in `reverse`"),
    ("logs", "cuts the logs of volumes"),
    ("notices", "tells web servers how transfers ended"),
    ("partners", "tells partners when this site's card changes"),
    ("queue", "starts queued transfers, and ends those that are overdue"),
    ("rates", "measures how fast transfers are"),
    ("renewal", "renews the PoP's certificate before it ends"),
    ("rules", "looks into drop folders and queues what is complete"),
    ("storages", "looks whether storages are there and are the directories that were recorded"),
    ("verifying", "reads replicas in the background and compares their digests"),
    ("volumes", "opens volumes and closes those that are gone"),
    ("watch", "reads changed configuration, mapping and trust, and stops what they forbid"),
    ("web", "reads the web certificate again when it changes"),
];

/// A thread as it is shown.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Worker {
    /// Its name.
    pub name: String,
    /// Its purpose.
    pub task: String,
    /// Completed turns.
    pub turns: u64,
    /// End of the last completed turn.
    pub ended: Option<SystemTime>,
    /// Duration of that turn.
    pub took: Duration,
    /// The age of the current turn, if there is one.
    pub busy: Option<Duration>,
    /// When the next turn is due, where turns are regular.
    pub next: Option<SystemTime>,
    /// Work that is due, where the thread has a queue of it.
    pub backlog: Option<u64>,
    /// The error of the last turn.
    pub trouble: Option<Error>,
}

#[derive(Default)]
struct State {
    turns: u64,
    ended: Option<SystemTime>,
    took: Duration,
    began: Option<Instant>,
    every: Option<Duration>,
    backlog: Option<u64>,
    trouble: Option<Error>,
}

/// The threads that have worked since the PoP started.
#[derive(Default)]
pub struct Workers(Mutex<BTreeMap<String, State>>);

/// A turn of one thread, until it is dropped.
pub struct WorkerRun<'a> {
    workers: &'a Workers,
    name: &'a str,
}

impl Drop for WorkerRun<'_> {
    fn drop(&mut self) {
        let mut all = self.workers.lock();
        let state = all.entry(self.name.to_owned()).or_default();
        state.turns += 1;
        state.took = state.began.take().map(|began| began.elapsed()).unwrap_or_default();
        state.ended = Some(SystemTime::now());
    }
}

impl Workers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, State>> {
        self.0.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Begins a turn of a thread.
    pub fn begin<'a>(&'a self, name: &'a str) -> WorkerRun<'a> {
        self.lock().entry(name.to_owned()).or_default().began = Some(Instant::now());
        WorkerRun { workers: self, name }
    }

    /// Records the period of a thread.
    pub(crate) fn note_period(&self, name: &str, every: Duration) {
        self.lock().entry(name.to_owned()).or_default().every = Some(every);
    }

    /// Records how much work of a thread is due.
    pub(crate) fn note_backlog(&self, name: &str, backlog: usize) {
        self.lock().entry(name.to_owned()).or_default().backlog = Some(backlog as u64);
    }

    /// Records the error of a thread's last turn, or clears it.
    pub(crate) fn note(&self, name: &str, trouble: Option<Error>) {
        self.lock().entry(name.to_owned()).or_default().trouble = trouble;
    }

    /// All threads, by name.
    pub(crate) fn all(&self) -> Vec<Worker> {
        let shown = |(name, state): (&String, &State)| Worker {
            name: name.clone(),
            task: TASKS
                .iter()
                .find(|(of, _)| of == name)
                .map_or(String::new(), |(_, task)| (*task).to_owned()),
            turns: state.turns,
            ended: state.ended,
            took: state.took,
            busy: state.began.map(|began| began.elapsed()),
            next: state
                .ended
                .zip(state.every)
                .filter(|_| state.began.is_none())
                .map(|(end, every)| end + every),
            backlog: state.backlog,
            trouble: state.trouble.clone(),
        };
        self.lock().iter().map(shown).collect()
    }
}

/// Starts a thread.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let spawned = std::thread::Builder::new().name(name.into()).spawn(work);
    spawned.map(drop).map_err(|error| Error::new(Code::SystemCall, "start thread", name, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_active_until_it_ends() {
        let workers = Workers::default();
        let turn = workers.begin("queue");
        let one = || workers.all().remove(0);
        assert!(one().busy.is_some() && one().turns == 0 && one().ended.is_none());
        drop(turn);
        assert!(one().busy.is_none() && one().turns == 1 && one().ended.is_some() && !one().task.is_empty());
        let ended = one().ended.unwrap();
        assert_eq!((one().next, one().backlog), (None, None));
        workers.note_period("queue", Duration::from_secs(60));
        workers.note_backlog("queue", 3);
        assert_eq!((one().next, one().backlog), (Some(ended + Duration::from_secs(60)), Some(3)));
        workers.note("queue", Some(Error::new(Code::CatalogueFailed, "open", "catalogue", "")));
        assert_eq!(one().trouble.map(|error| error.code), Some(Code::CatalogueFailed));
        workers.note("queue", None);
        assert!(one().trouble.is_none());
    }
}
