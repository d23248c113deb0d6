//! Leases: the table of a store all of whose changes are seen, with a clock and threads that wait.
//!
//! The session of a client that wants callbacks joins as a [`LeaseHolder`], registers it on each directory before
//! reading it, and sends the callbacks that [`LeaseHolder::next_told`] returns. A writer reports a change after it is
//! made ([`LeaseTable::changed`]) and, before the change is acknowledged, waits until all called holders have
//! answered or their terms have expired ([`LeaseTable::settle`]). Pending callbacks of one holder are merged into
//! one.

use renkei_core::error::{Code, Error};
use renkei_core::lease::callbacks::{Callback, CallbackQueue};
use renkei_core::lease::{HolderId, Moment, Noted};
use renkei_core::wire::file::Changed;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a holder may use its cache after its last sign of life, and so the longest time for which it delays a
/// change.
pub const TERM: Duration = Duration::from_secs(3);

/// Most directories under lease in one table, over all holders.
pub const MOST: usize = 100_000;

/// The leases on one store.
pub struct LeaseTable {
    telling: Mutex<CallbackQueue>,
    changed: Condvar,
    begun: Instant,
    /// Whether any lease is held: checked before each change, without the lock.
    is_held: AtomicBool,
    /// Whether holders of the previous table may have valid leases (grace period).
    is_quiet: AtomicBool,
    /// Whether granting is suspended.
    is_suspended: AtomicBool,
    /// A file that exists as long as a holder may have a valid lease, read by the next table.
    note: Option<Note>,
}

struct Note {
    path: PathBuf,
    is_there: AtomicBool,
}

/// A lease holder, as seen by its session.
pub struct LeaseHolder {
    table: Arc<LeaseTable>,
    id: HolderId,
    /// Whether its session has ended.
    is_over: AtomicBool,
}

impl Default for LeaseTable {
    fn default() -> Self {
        LeaseTable::new(TERM, MOST)
    }
}

impl LeaseTable {
    /// A table with this length of terms, and this limit of directories.
    pub fn new(term: Duration, most: usize) -> Self {
        let (changed, begun, is_held) = (Condvar::new(), Instant::now(), AtomicBool::new(false));
        let (telling, is_quiet) = (Mutex::new(CallbackQueue::new(term, most)), AtomicBool::new(false));
        let is_suspended = AtomicBool::new(false);
        LeaseTable { telling, changed, begun, is_held, is_quiet, is_suspended, note: None }
    }

    /// A table of a store that outlives this process: a file records whether a holder may have a valid lease. If it
    /// exists already, changes made within the next term are acknowledged only at the end of that term (grace
    /// period).
    pub fn noted_in(path: PathBuf, term: Duration, most: usize) -> Self {
        let (table, is_there) = (LeaseTable::new(term, most), path.exists());
        let telling = match is_there {
            true => CallbackQueue::after_another(term, most, table.now()),
            false => CallbackQueue::new(term, most),
        };
        let note = Some(Note { path, is_there: AtomicBool::new(is_there) });
        LeaseTable { telling: Mutex::new(telling), is_quiet: AtomicBool::new(is_there), note, ..table }
    }

    fn telling(&self) -> MutexGuard<'_, CallbackQueue> {
        self.telling.lock().expect("no thread panics while it holds the lock")
    }

    fn now(&self) -> Moment {
        self.begun.elapsed()
    }

    /// Adds a holder.
    ///
    /// # Errors
    /// The file that records holders cannot be written.
    pub fn join(self: &Arc<Self>) -> Result<LeaseHolder, Error> {
        let (mut telling, now) = (self.telling(), self.now());
        if let Some(note) = &self.note
            && !note.is_there.load(Ordering::SeqCst)
        {
            make_note(&note.path)?;
            note.is_there.store(true, Ordering::SeqCst);
        }
        let id = telling.join(now);
        Ok(LeaseHolder { table: self.clone(), id, is_over: AtomicBool::new(false) })
    }

    /// Removes the file once no lease is valid, so that the next table needs no grace period.
    fn tidy_note(&self, telling: &CallbackQueue) {
        let Some(note) = &self.note else { return };
        if note.is_there.load(Ordering::SeqCst) && telling.is_forgotten(self.now()) {
            // A file that stays costs one grace period.
            let _ = std::fs::remove_file(&note.path);
            note.is_there.store(false, Ordering::SeqCst);
        }
    }

    /// Whether any holder would have to be called for a change.
    pub fn is_held(&self) -> bool {
        self.is_held.load(Ordering::SeqCst)
    }

    /// Grants a holder the lease on a directory it has created, whose content it takes to be empty; calls the
    /// holders back at once if the grant fails or the directory is not empty.
    pub fn hold_made(&self, holder: HolderId, dir: u64, is_empty: impl FnOnce() -> bool) {
        if self.note(holder, dir) == Noted::No || !is_empty() {
            self.changed_anywhere(None, &Changed::name(dir, b""));
        }
    }

    /// Suspends or resumes granting. A suspension returns when no lease is valid any more.
    pub fn suspend(&self, is_suspended: bool) {
        if self.is_suspended.swap(is_suspended, Ordering::SeqCst) == is_suspended || !is_suspended {
            return;
        }
        self.changed_anywhere(None, &Changed { all: true, ..Changed::default() });
        self.settle(None);
    }

    fn note(&self, holder: HolderId, dir: u64) -> Noted {
        let (mut telling, now) = (self.telling(), self.now());
        // Checked under the lock: a holder registered before the suspension gets its callback.
        if self.is_suspended.load(Ordering::SeqCst) {
            return Noted::No;
        }
        let noted = telling.note(holder, dir, now);
        if noted == Noted::New {
            self.is_held.store(true, Ordering::SeqCst);
        }
        noted
    }

    /// Reports a change, by a holder or another writer: calls the holders of the directories concerned.
    pub fn changed(&self, by: Option<HolderId>, what: &Changed) {
        self.tell(|telling, now| telling.changed(by, what, now));
    }

    /// Reports a change whose directories are unknown: calls all holders.
    pub fn changed_anywhere(&self, by: Option<HolderId>, what: &Changed) {
        self.tell(|telling, now| telling.changed_anywhere(by, what, now));
    }

    fn tell(&self, call: impl FnOnce(&mut CallbackQueue, Moment) -> bool) {
        if !self.is_held() {
            return;
        }
        let (mut telling, now) = (self.telling(), self.now());
        let is_any_called = call(&mut telling, now);
        self.is_held.store(!telling.is_empty(), Ordering::SeqCst);
        drop(telling);
        if is_any_called {
            self.changed.notify_all();
        }
    }

    /// Waits until all holders called so far have answered or their terms have expired; a holder does not wait for
    /// itself.
    pub fn settle(&self, by: Option<HolderId>) {
        let was_quiet = self.is_quiet.load(Ordering::SeqCst);
        if !self.is_held() && !was_quiet {
            return;
        }
        let mut telling = self.telling();
        let mut mine = telling.settling(by);
        loop {
            let now = self.now();
            let Some(until) = telling.wait_until(&mut mine, now) else {
                if was_quiet {
                    self.is_quiet.store(false, Ordering::SeqCst);
                    self.tidy_note(&telling);
                }
                return;
            };
            let waited = self.changed.wait_timeout(telling, until.saturating_sub(now));
            telling = waited.expect("no thread panics while it holds the lock").0;
        }
    }

    /// Number of holders, and of the directories under lease.
    pub fn counts(&self) -> (usize, usize) {
        self.telling().counts()
    }
}

/// Creates the file that records that a holder may have a valid lease, durably.
fn make_note(path: &Path) -> Result<(), Error> {
    let made = File::create(path).and_then(|file| file.sync_all());
    let synced = made.and_then(|()| File::open(path.parent().unwrap_or(path))?.sync_all());
    synced.map_err(|error| Error::new(Code::SystemCall, "note leases", path.display(), error))
}

impl LeaseHolder {
    /// Id of the holder.
    pub fn id(&self) -> HolderId {
        self.id
    }

    /// The table.
    pub fn table(&self) -> &Arc<LeaseTable> {
        &self.table
    }

    /// Registers the holder on a directory that it is about to read.
    pub fn note(&self, dir: u64) -> Noted {
        self.table.note(self.id, dir)
    }

    /// Requests a term for the holder, with this number and lock epoch: it is sent after the pending callbacks.
    pub fn ask_term(&self, number: u64, locks: u64) {
        self.table.telling().ask_term(self.id, number, locks);
        self.table.changed.notify_all();
    }

    /// Notes the holder's answer to a callback.
    pub fn answer(&self, number: u64) {
        self.table.telling().answer(self.id, number);
        self.table.changed.notify_all();
    }

    /// Ends the holder's leases; it does not return.
    pub fn leave(&self) {
        let mut telling = self.table.telling();
        telling.leave(self.id);
        self.table.tidy_note(&telling);
        drop(telling);
        self.table.changed.notify_all();
    }

    /// Waits for the next message to the holder; none once the session has ended.
    pub fn next_told(&self) -> Option<Callback> {
        let mut telling = self.table.telling();
        loop {
            if self.is_over.load(Ordering::SeqCst) {
                return None;
            }
            if let Some(told) = telling.next_told(self.id, self.table.now()) {
                return Some(told);
            }
            telling = self.table.changed.wait(telling).expect("no thread panics while it holds the lock");
        }
    }

    /// Ends the session. The client may not know yet, so changes wait for the end of its term.
    pub fn end(&self) {
        {
            let mut telling = self.table.telling();
            self.is_over.store(true, Ordering::SeqCst);
            telling.end(self.id);
        }
        self.table.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const SHORT: Duration = Duration::from_millis(300);

    fn table() -> Arc<LeaseTable> {
        Arc::new(LeaseTable::new(SHORT, 100))
    }

    #[test]
    fn a_change_waits_for_the_callbacks() {
        let table = table();
        let holder = table.join().unwrap();
        assert_eq!(holder.note(7), Noted::New);
        table.changed(None, &Changed::name(7, b"f"));
        table.changed(None, &Changed::name(7, b"g"));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let begun = Instant::now();
                table.settle(None);
                begun.elapsed()
            });
            let Some(Callback::Call { number, what }) = holder.next_told() else { panic!() };
            assert_eq!((number, what.names.len()), (2, 2), "both in one");
            thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished());
            holder.answer(number);
            assert!(waiting.join().unwrap() < SHORT);
        });
        table.settle(None);
    }

    #[test]
    fn a_lost_holder_delays_a_change_by_its_term_at_most() {
        let table = table();
        let holder = table.join().unwrap();
        holder.note(7);
        holder.end();
        let begun = Instant::now();
        table.changed(None, &Changed::name(7, b"f"));
        table.settle(Some(holder.id()));
        assert!(begun.elapsed() < SHORT, "his own change");
        table.settle(None);
        assert!(begun.elapsed() >= SHORT - Duration::from_millis(20) && begun.elapsed() < 3 * SHORT);
        table.changed(None, &Changed::name(7, b"f"));
        assert!(!table.is_held() && holder.next_told().is_none());
    }

    #[test]
    fn after_a_kill_changes_wait_for_a_term_if_leases_were_held() {
        let dir = tempfile::tempdir().unwrap();
        let begin = || Arc::new(LeaseTable::noted_in(dir.path().join("leased"), SHORT, 100));
        let waits = |table: &LeaseTable| {
            let begun = Instant::now();
            table.changed(None, &Changed::name(7, b"f"));
            table.settle(None);
            begun.elapsed() > SHORT / 2
        };
        assert!(!waits(&begin()), "nobody was there");
        let first = begin();
        let holder = first.join().unwrap();
        holder.note(7);
        holder.end();
        // The process is killed now, and the holder keeps using its cache.
        let second = begin();
        assert!(waits(&second) && !waits(&second), "once");
        assert!(!waits(&begin()), "nobody holds anything any more");
        let third = begin();
        let (gone, stays) = (third.join().unwrap(), third.join().unwrap());
        gone.leave();
        assert!(waits(&begin()));
        stays.leave();
        assert!(!waits(&begin()), "all said that they believe nothing");
    }
}
