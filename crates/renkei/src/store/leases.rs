//! Leases at work: the table of a place whose changes are all known, with a clock and threads that wait.
//!
//! Who serves somebody that wants to be told joins as a [`Lessee`], notes each directory that is looked into before it is
//! read, and sends on the calls that [`Lessee::next_call`] gives. Who changes something says so after it is done
//! ([`LeaseTable::changed`]) and, before that is acknowledged, waits until all who were called have answered or their
//! terms are over ([`LeaseTable::settle`]). Calls of one holder that wait to be sent become one.

use renkei_core::lease::{Call, HolderId, Leases, Moment, Noted};
use renkei_core::wire::file::Changed;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a holder may believe what he was told after he was heard of; so long he may hold up who changes something.
pub const TERM: Duration = Duration::from_secs(3);

/// Most directories that all holders of a place hold together.
const MOST: usize = 100_000;

/// The leases on one place.
pub struct LeaseTable {
    state: Mutex<State>,
    changed: Condvar,
    begun: Instant,
    /// Whether anybody holds something: looked at before each change.
    is_held: AtomicBool,
}

struct State {
    leases: Leases,
    waiting: HashMap<HolderId, Waiting>,
    open: Vec<Call>,
}

/// What a holder has to be told.
#[derive(Default)]
struct Waiting {
    number: u64,
    what: Option<Changed>,
}

/// A holder of leases, as who serves him sees him.
pub struct Lessee {
    table: Arc<LeaseTable>,
    id: HolderId,
    /// Whether the session that serves him has ended.
    is_over: AtomicBool,
}

impl Default for LeaseTable {
    fn default() -> Self {
        LeaseTable::new(TERM, MOST)
    }
}

impl LeaseTable {
    /// A table for terms of this length, of at most so many directories.
    pub fn new(term: Duration, most: usize) -> Self {
        let state = State { leases: Leases::new(term, most), waiting: HashMap::new(), open: Vec::new() };
        LeaseTable {
            state: Mutex::new(state),
            changed: Condvar::new(),
            begun: Instant::now(),
            is_held: AtomicBool::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }

    fn now(&self) -> Moment {
        self.begun.elapsed()
    }

    /// A new holder.
    pub fn join(self: &Arc<Self>) -> Lessee {
        let (mut state, now) = (self.state(), self.now());
        state.leases.sweep(now);
        let id = state.leases.join(now);
        state.waiting.insert(id, Waiting::default());
        Lessee { table: self.clone(), id, is_over: AtomicBool::new(false) }
    }

    /// Whether anybody would have to be told of a change.
    pub fn is_held(&self) -> bool {
        self.is_held.load(Ordering::SeqCst)
    }

    /// Something has changed, by a holder or somebody else: tells those who looked into the directories in question.
    pub fn changed(&self, by: Option<HolderId>, what: &Changed) {
        if what.all {
            return self.changed_anywhere(by, what);
        }
        self.tell(what, |leases, now| leases.change(by, &what.dirs(), now));
    }

    /// The same where it is not known in which directories: tells everybody.
    pub fn changed_anywhere(&self, by: Option<HolderId>, what: &Changed) {
        self.tell(what, |leases, now| leases.change_anywhere(by, now));
    }

    fn tell(&self, what: &Changed, call: impl FnOnce(&mut Leases, Moment) -> Vec<Call>) {
        if !self.is_held() {
            return;
        }
        let (mut state, now) = (self.state(), self.now());
        let calls = call(&mut state.leases, now);
        self.is_held.store(!state.leases.is_empty(), Ordering::SeqCst);
        for call in &calls {
            let waiting = state.waiting.entry(call.holder).or_default();
            waiting.number = call.number;
            waiting.what.get_or_insert_default().merge(what);
        }
        state.open.extend(calls);
        drop(state);
        self.changed.notify_all();
    }

    /// Returns when all who were called so far have answered or their terms are over; a holder does not wait for himself.
    pub fn settle(&self, by: Option<HolderId>) {
        if !self.is_held() {
            return;
        }
        let mut state = self.state();
        let mut mine: Vec<Call> = state.open.iter().filter(|call| Some(call.holder) != by).copied().collect();
        loop {
            let now = self.now();
            mine.retain(|call| state.leases.is_open(call, now));
            let State { leases, open, .. } = &mut *state;
            open.retain(|call| leases.is_open(call, now));
            let Some(until) = mine.iter().map(|call| call.until).max() else { return };
            let waited = self.changed.wait_timeout(state, until.saturating_sub(now));
            state = waited.expect("no thread panics while it holds the lock").0;
        }
    }

    /// Holders, and the directories that they hold.
    pub fn counts(&self) -> (usize, usize) {
        self.state().leases.counts()
    }
}

impl Lessee {
    /// Which holder it is.
    pub fn id(&self) -> HolderId {
        self.id
    }

    /// The table.
    pub fn table(&self) -> &Arc<LeaseTable> {
        &self.table
    }

    /// Notes that the holder is about to look into a directory.
    pub fn note(&self, dir: u64) -> Noted {
        let (mut state, now) = (self.table.state(), self.table.now());
        let noted = state.leases.note(self.id, dir, now);
        if noted == Noted::New {
            self.table.is_held.store(true, Ordering::SeqCst);
        }
        noted
    }

    /// The holder was heard of: the round he is in, and the length of his term.
    pub fn renew(&self) -> (u64, Duration) {
        let (mut state, now) = (self.table.state(), self.table.now());
        let term = state.leases.term();
        state.leases.renew(self.id, now).map_or((0, Duration::ZERO), |round| (round, term))
    }

    /// The holder has answered.
    pub fn answer(&self, number: u64) {
        self.table.state().leases.answer(self.id, number);
        self.table.changed.notify_all();
    }

    /// The holder believes nothing any more, and comes back no more.
    pub fn leave(&self) {
        self.table.state().leases.leave(self.id);
        self.table.changed.notify_all();
    }

    /// Waits for what the holder is to be told next; none when the session has ended.
    pub fn next_call(&self) -> Option<(u64, Changed)> {
        let mut state = self.table.state();
        loop {
            if self.is_over.load(Ordering::SeqCst) {
                return None;
            }
            if let Some(waiting) = state.waiting.get_mut(&self.id)
                && let Some(what) = waiting.what.take()
            {
                return Some((waiting.number, what));
            }
            state = self.table.changed.wait(state).expect("no thread panics while it holds the lock");
        }
    }

    /// The session has ended. Who was served may not know yet, and is waited for to the end of his term.
    pub fn end(&self) {
        {
            let mut state = self.table.state();
            self.is_over.store(true, Ordering::SeqCst);
            state.waiting.remove(&self.id);
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
    fn whoever_changes_something_waits_for_the_answer() {
        let table = table();
        let holder = table.join();
        assert_eq!(holder.note(7), Noted::New);
        table.changed(None, &Changed::name(7, b"f"));
        table.changed(None, &Changed::name(7, b"g"));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let begun = Instant::now();
                table.settle(None);
                begun.elapsed()
            });
            let (number, what) = holder.next_call().unwrap();
            assert_eq!((number, what.names.len()), (2, 2), "both in one");
            thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished());
            holder.answer(number);
            assert!(waiting.join().unwrap() < SHORT);
        });
        table.settle(None);
    }

    #[test]
    fn whoever_is_gone_is_waited_for_no_longer_than_his_term() {
        let table = table();
        let holder = table.join();
        holder.note(7);
        holder.end();
        let begun = Instant::now();
        table.changed(None, &Changed::name(7, b"f"));
        table.settle(Some(holder.id()));
        assert!(begun.elapsed() < SHORT, "his own change");
        table.settle(None);
        assert!(begun.elapsed() >= SHORT - Duration::from_millis(20) && begun.elapsed() < 3 * SHORT);
        table.changed(None, &Changed::name(7, b"f"));
        assert!(!table.is_held() && holder.next_call().is_none());
    }
}
