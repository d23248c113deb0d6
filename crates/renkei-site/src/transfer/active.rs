//! The active transfers: owner, progress and stop handle of each.
//!
//! A job has one active run: a new run supersedes older ones. No lock is held while a peer is told or a transfer is
//! judged.

use super::history::{History, Run, Trace, Way};
use crate::snapshot::Snapshot;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::wire::message::{Summary, TransferStatus};
use renkei_mover::Stop;
use renkei_mover::progress::Watch;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Timeout of a new run of a job for the old one to end.
const SUPERSEDE_WITHIN: Duration = Duration::from_secs(10);

/// Checks whether a transfer may continue under a new configuration.
pub(crate) type Judge = Arc<dyn Fn(&Arc<Snapshot>) -> Result<(), Error> + Send + Sync>;

/// An active transfer.
pub(crate) struct Running {
    /// Its status, except for the progress.
    pub(crate) status: TransferStatus,
    /// Its progress.
    pub(crate) watch: Watch,
    /// Its stop handle.
    pub(crate) stop: Stop,
    /// The check whether it may continue.
    pub(crate) judge: Judge,
    /// The result of the last check.
    pub(crate) judged: Judged,
    /// Its trace for the history.
    pub(crate) trace: Trace,
    /// The storages and volumes of this site it works in.
    pub(crate) storages: Vec<String>,
}

impl Running {
    fn status_now(&self) -> TransferStatus {
        TransferStatus { progress: self.watch.look(), ..self.status.clone() }
    }
}

/// The configuration of a transfer's last check, and the result.
#[derive(Default)]
pub(crate) struct Judged {
    by: Option<Arc<Snapshot>>,
    refused: bool,
}

/// Active transfers by key, each with a sequence number.
type TransfersByKey = HashMap<u64, (u64, Running)>;

/// The active transfers.
#[derive(Default)]
pub struct ActiveTransfers {
    running: Mutex<TransfersByKey>,
    changed: Condvar,
    next: Mutex<u64>,
    history: Mutex<History>,
}

/// A transfer's entry in the list, removed on drop.
pub(crate) struct Listed<'a>(&'a ActiveTransfers, u64);

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let mut all = self.0.lock();
        if let Some((number, running)) = all.remove(&self.1) {
            // Under the lock: a transfer is always in one of the two lists.
            self.0.history().take(number, running.status_now(), running.trace);
        }
        drop(all);
        self.0.changed.notify_all();
    }
}

impl Listed<'_> {
    /// Records the protocol of a third-party copy.
    pub(crate) fn goes_by(&self, protocol: &'static str) {
        if let Some((_, running)) = self.0.lock().get_mut(&self.1) {
            running.trace.goes_by(Instant::now(), protocol);
        }
    }

    /// Records an event and the RTT to the other side.
    pub(crate) fn tell(&self, text: String, round_trip: Duration) {
        if let Some((_, running)) = self.0.lock().get_mut(&self.1) {
            running.trace.tell(Instant::now(), text);
            running.trace.met(round_trip);
        }
    }
}

impl ActiveTransfers {
    fn lock(&self) -> MutexGuard<'_, TransfersByKey> {
        self.running.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Enters a transfer under `key`. Older runs under the same key are stopped first, including one that still
    /// waits here and came in before.
    ///
    /// # Errors
    /// `Cancelled` if a newer run came in meanwhile: not to be retried, as a retry would end that run.
    /// `TransferBusy` if the older one does not end in time.
    pub(crate) fn enter(&self, key: u64, running: Running) -> Result<Listed<'_>, Error> {
        let number = self.next_number();
        let deadline = Instant::now() + SUPERSEDE_WITHIN;
        let refused = |code, cause| Error::new(code, "open", &running.status.place, cause);
        let mut all = self.lock();
        while let Some((held, other)) = all.get(&key) {
            if *held > number {
                return Err(refused(Code::Cancelled, "a newer run of it began"));
            }
            let (held, stop) = (*held, other.stop.clone());
            drop(all);
            let cause = "a newer run of the same transfer took over";
            stop_soon(stop, Error::new(Code::Cancelled, "supersede", "transfer", cause));
            let left = deadline.saturating_duration_since(Instant::now());
            let holds = |all: &mut TransfersByKey| all.get(&key).is_some_and(|(number, _)| *number == held);
            let waited = self.changed.wait_timeout_while(self.lock(), left, holds);
            let (left, wait) = waited.expect("no thread panics while it holds the lock");
            if wait.timed_out() {
                return Err(refused(Code::TransferBusy, "the older run continues"));
            }
            all = left;
        }
        all.insert(key, (number, running));
        Ok(Listed(self, key))
    }

    fn next_number(&self) -> u64 {
        let mut next = self.next.lock().expect("no thread panics while it holds the lock");
        *next += 1;
        *next
    }

    /// A unique key.
    pub(crate) fn fresh_key(&self) -> u64 {
        // Job keys are hashes; those of sends count down from the top, so collisions do not occur in practice.
        u64::MAX - self.next_number()
    }

    /// The status of all of them.
    pub fn list(&self) -> Vec<TransferStatus> {
        let mut all: Vec<_> = self.lock().values().map(|(_, running)| running.status_now()).collect();
        all.sort_by(|a, b| a.id.cmp(&b.id));
        all
    }

    /// Samples the progress of each.
    pub(crate) fn look(&self) {
        let now = Instant::now();
        for (_, running) in self.lock().values_mut() {
            let progress = running.watch.look();
            running.trace.look(now, progress);
        }
    }

    /// Active and past runs that `visible` accepts, active ones first, each part newest first.
    pub(crate) fn runs(&self, visible: impl Fn(&TransferStatus) -> bool) -> Vec<Run> {
        let now = Instant::now();
        let all = self.lock();
        let running = all.values().filter(|(_, running)| visible(&running.status));
        let run = |(number, running): &(u64, Running)| running.trace.run(*number, running.status_now(), now);
        let mut runs: Vec<_> = running.map(run).collect();
        runs.sort_by_key(|run| std::cmp::Reverse(run.number));
        runs.extend(self.history().past().filter(|run| visible(&run.status)).cloned());
        runs
    }

    /// Records the result of a transfer that is no longer active.
    pub(crate) fn ended(&self, id: &str, direction: &str, result: &Result<Summary, Error>) {
        self.history().ended(id, direction, result);
    }

    /// Rates and RTT measured by transfers with a site.
    pub(crate) fn way(&self, site: &SiteName) -> Way {
        self.history().way(site)
    }

    /// Stops the runs of one transfer, of one principal if given, and waits until they have ended.
    pub(crate) fn stop_of(&self, id: &str, of: Option<&str>, error: &Error) {
        let is_of = |running: &Running| {
            running.status.id == id && of.is_none_or(|principal| running.status.principal == principal)
        };
        let all = self.lock();
        let of = all.values().filter(|(_, running)| is_of(running));
        let stops: Vec<Stop> = of.map(|(_, running)| running.stop.clone()).collect();
        drop(all);
        stops.into_iter().for_each(|stop| stop_soon(stop, error.clone()));
        let runs = |all: &mut TransfersByKey| all.values().any(|(_, running)| is_of(running));
        drop(self.changed.wait_timeout_while(self.lock(), SUPERSEDE_WITHIN, runs));
    }

    /// Stops all of them concurrently: one with a blocked peer must not delay the others.
    pub fn stop_all(&self, error: &Error) {
        let stops: Vec<Stop> = self.lock().values().map(|(_, running)| running.stop.clone()).collect();
        stops.into_iter().for_each(|stop| stop_soon(stop, error.clone()));
        let none = |all: &mut TransfersByKey| !all.is_empty();
        drop(self.changed.wait_timeout_while(self.lock(), SUPERSEDE_WITHIN, none));
    }

    /// Stops those that may not continue under the new configuration; each is checked once per snapshot.
    ///
    /// A refused transfer is stopped only when the next check refuses it too: the files may be in the middle of an
    /// update.
    pub(crate) fn judge(&self, now: &Arc<Snapshot>) {
        for (key, stop, judge) in self.not_judged_by(now) {
            let refused = judge(now).err();
            let again = self.note_refusal(key, refused.is_some());
            if let (Some(error), true) = (refused, again) {
                tracing::warn!(target: "audit", %error, "a transfer is stopped");
                stop_soon(stop, error);
            }
        }
    }

    /// Stops transfers that work in an unusable storage or volume; `trouble` gives the error.
    pub(crate) fn stop_in(&self, trouble: impl Fn(&str) -> Option<Error>) {
        let all = self.lock();
        let running = all.values().filter(|(_, running)| running.stop.stopped().is_none());
        let of = |(_, running): &(u64, Running)| {
            let error = running.storages.iter().find_map(|storage| trouble(storage))?;
            Some((running.stop.clone(), error))
        };
        let stops: Vec<_> = running.filter_map(of).collect();
        drop(all);
        for (stop, error) in stops {
            tracing::warn!(%error, "a transfer is stopped: its storage cannot be used");
            stop_soon(stop, error);
        }
    }

    fn not_judged_by(&self, now: &Arc<Snapshot>) -> Vec<(u64, Stop, Judge)> {
        let mut all = self.lock();
        let others = all.iter_mut().map(|(key, (_, running))| (*key, running));
        let others = others.filter(|(_, running)| {
            running.judged.by.as_ref().is_none_or(|by| !Arc::ptr_eq(by, now)) || running.judged.refused
        });
        let judged = |(key, running): (u64, &mut Running)| {
            running.judged.by = Some(now.clone());
            (key, running.stop.clone(), running.judge.clone())
        };
        others.map(judged).collect()
    }

    /// Stores whether a transfer was refused and returns the previous value.
    fn note_refusal(&self, key: u64, refused: bool) -> bool {
        let mut all = self.lock();
        all.get_mut(&key).is_some_and(|(_, running)| std::mem::replace(&mut running.judged.refused, refused))
    }
}

/// Stops a transfer without waiting until its peer is told.
pub(crate) fn stop_soon(stop: Stop, error: Error) {
    let stopping = {
        let (stop, error) = (stop.clone(), error.clone());
        std::thread::Builder::new().name("stop".into()).spawn(move || stop.stop(error))
    };
    if stopping.is_err() {
        stop.stop(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::wire::message::{Class, Progress};
    use std::sync::mpsc;

    fn run(stop: &Stop) -> Running {
        let text = String::new;
        let progress = Progress::default();
        let status = TransferStatus {
            id: text(),
            principal: text(),
            direction: text(),
            place: text(),
            class: Class::Normal,
            progress,
        };
        let judge = Arc::new(|_: &_| Ok(()));
        let (watch, judged, trace) = (Watch::default(), Judged::default(), Trace::begin(None));
        Running { status, watch, stop: stop.clone(), judge, judged, trace, storages: Vec::new() }
    }

    /// Enters and stays until stopped; returns the code of the error.
    fn enter_and_stay(transfers: &ActiveTransfers) -> Code {
        let (stop, (end, ended)) = (Stop::default(), mpsc::channel());
        let _listed = match transfers.enter(7, run(&stop)) {
            Ok(listed) => listed,
            Err(error) => return error.code,
        };
        let _hook = stop.on_stop(move |error| end.send(error.code).unwrap_or_default());
        ended.recv().unwrap()
    }

    fn snapshot(dir: &std::path::Path) -> Arc<Snapshot> {
        use renkei_config::Config;
        use renkei_net::identity::authority::{Authority, renew_host};
        let (home, now) = (renkei_config::home::Home::at(dir), std::time::SystemTime::now());
        let authority = Authority::create(&renkei_net::identity::testing::site("kek"), now).unwrap();
        authority.store(&home).unwrap();
        std::fs::write(home.config_file(), "site = 'kek'\n").unwrap();
        renew_host(&home, &authority, &["127.0.0.1:7512".into()], false, now).unwrap();
        Arc::new(Snapshot::load(&home, Config::load(&home).unwrap()).unwrap())
    }

    #[test]
    fn transfers_refused_twice_are_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let (transfers, now) = (ActiveTransfers::default(), snapshot(dir.path()));
        let (good, bad, unlucky) = (Stop::default(), Stop::default(), Stop::default());
        let times = Arc::new(Mutex::new(0));
        let refuse = || Err(Error::new(Code::NotMapped, "map", "alice@kek", ""));
        let once = {
            let times = times.clone();
            move |_: &_| {
                *times.lock().unwrap() += 1;
                if *times.lock().unwrap() == 1 { refuse() } else { Ok(()) }
            }
        };
        let _good = transfers.enter(1, run(&good)).unwrap();
        let _bad = transfers.enter(2, Running { judge: Arc::new(move |_| refuse()), ..run(&bad) }).unwrap();
        let _unlucky = transfers.enter(3, Running { judge: Arc::new(once), ..run(&unlucky) }).unwrap();
        let (told, hears) = mpsc::channel();
        let _hook = bad.on_stop(move |error| told.send(error.code).unwrap());
        transfers.judge(&now);
        assert!(bad.stopped().is_none());
        (0..3).for_each(|_| transfers.judge(&now));
        assert_eq!(hears.recv_timeout(SUPERSEDE_WITHIN), Ok(Code::NotMapped));
        assert!(good.stopped().is_none() && unlucky.stopped().is_none());
        assert_eq!(*times.lock().unwrap(), 2, "judged again by the same files");
    }

    #[test]
    fn only_transfers_of_a_missing_storage_are_stopped() {
        let transfers = ActiveTransfers::default();
        let (here, gone, buffer) = (Stop::default(), Stop::default(), Stop::default());
        let of = |stop, storage: &str| Running { storages: vec![storage.into()], ..run(stop) };
        let _here = transfers.enter(1, of(&here, "data")).unwrap();
        let _gone = transfers.enter(2, of(&gone, "pool")).unwrap();
        let _buffer = transfers.enter(3, of(&buffer, renkei_core::buffer::STORAGE)).unwrap();
        let (told, hears) = mpsc::channel();
        let _hook = gone.on_stop(move |error| told.send(error.code).unwrap());
        let error = Error::new(Code::StorageChanged, "open storage", "/pool", "");
        transfers.stop_in(|name| (name == "pool").then(|| error.clone()));
        assert_eq!(hears.recv_timeout(SUPERSEDE_WITHIN), Ok(Code::StorageChanged));
        assert!(here.stopped().is_none() && buffer.stopped().is_none());
    }

    #[test]
    fn a_slowly_stopping_transfer_does_not_delay_others() {
        let transfers = ActiveTransfers::default();
        let (slow, quick) = (Stop::default(), Stop::default());
        let (hold, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let _slow = slow.on_stop(move |_| held.lock().unwrap().recv().unwrap_or_default());
        let (told, hears) = mpsc::channel();
        let _quick = quick.on_stop(move |error| told.send(error.code).unwrap());
        // Many slow ones, so that one of them comes before the quick one in any iteration order.
        let stops = [&slow; 20].into_iter().chain([&quick]).zip(0..);
        let listed: Vec<_> = stops.map(|(stop, key)| transfers.enter(key, run(stop)).unwrap()).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| transfers.stop_all(&Error::new(Code::PopStopping, "test", "", "")));
            assert_eq!(hears.recv_timeout(SUPERSEDE_WITHIN / 2), Ok(Code::PopStopping));
            drop(hold);
            drop(listed);
        });
    }

    #[test]
    fn the_newest_run_takes_over_from_all_older_ones() {
        let transfers = ActiveTransfers::default();
        let start = Instant::now();
        std::thread::scope(|scope| {
            let runs: Vec<_> = (0..4).map(|_| scope.spawn(|| enter_and_stay(&transfers))).collect();
            let left = || runs.iter().filter(|run| !run.is_finished()).count();
            let holder = || transfers.lock().get(&7).map(|(number, _)| *number);
            while (left() > 1 || holder().is_none()) && start.elapsed() < SUPERSEDE_WITHIN {
                std::thread::yield_now();
            }
            let newest = holder();
            transfers.stop_all(&Error::new(Code::Cancelled, "test", "", ""));
            assert_eq!(newest, Some(4));
            // Including the one that only waited: a retry of it would end the newest.
            assert!(runs.into_iter().all(|run| run.join().unwrap() == Code::Cancelled));
        });
        assert!(transfers.lock().is_empty() && start.elapsed() < SUPERSEDE_WITHIN);
    }
}
