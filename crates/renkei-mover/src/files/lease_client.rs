//! The lease client of a file session: its lease, the renewal, and the listener for callbacks.

use renkei_core::lease::Moment;
use renkei_core::lease::holder::Term;
use renkei_core::wire::file::{Changed, Lessor, Listener};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// Renewal interval before the length of a term is known.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Renewals per term.
const ASKED_IN_ONE: u32 = 6;

/// The lease of a session, and of those that follow it.
pub(crate) struct LeaseClient {
    begun: Instant,
    /// Owner of the locks at the site.
    client: [u8; 16],
    state: Mutex<State>,
    listener: OnceLock<Listener>,
}

#[derive(Default)]
struct State {
    term: Term,
    length: Duration,
    is_leasing: Option<bool>,
    lock_round: u64,
}

impl LeaseClient {
    pub(crate) fn new(client: [u8; 16]) -> Self {
        LeaseClient { begun: Instant::now(), client, state: Mutex::default(), listener: OnceLock::new() }
    }

    /// The id by which the site recognises this client.
    pub(crate) fn client(&self) -> [u8; 16] {
        self.client
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }

    fn now(&self) -> Moment {
        self.begun.elapsed()
    }

    /// A new session begins: leases of the last one are invalid.
    pub(crate) fn begin_again(&self) {
        let mut state = self.state();
        state.term.begin_again();
        (state.is_leasing, state.lock_round) = (None, 0);
    }

    /// The number of the next renewal request; the term counts from now.
    pub(crate) fn ask(&self) -> u64 {
        let now = self.now();
        self.state().term.ask(now)
    }

    /// Time until the next renewal.
    pub(crate) fn pause(&self) -> Duration {
        let length = self.state().length;
        if length.is_zero() { FIRST_PAUSE } else { length / ASKED_IN_ONE }
    }

    /// Sets the listener for changes.
    pub(crate) fn listen(&self, listener: Listener) {
        // A second listener is never called, and so must not cache.
        let _ = self.listener.set(listener);
    }

    pub(crate) fn on_given(&self, number: u64, round: u64, length: Duration, locks: u64) {
        let mut state = self.state();
        state.lock_round = locks;
        (state.length, state.is_leasing) = (length, Some(!length.is_zero()));
        if !length.is_zero() {
            state.term.on_given(number, round, length);
        }
    }

    /// A callback: returns when the listener has invalidated all it names.
    pub(crate) fn on_changed(&self, what: &Changed) {
        if what.all {
            self.state().term.give_up();
        }
        if let Some(listener) = self.listener.get() {
            listener(what);
        }
    }
}

impl Lessor for LeaseClient {
    fn is_leasing(&self) -> Option<bool> {
        self.state().is_leasing
    }

    fn age(&self) -> u64 {
        self.state().term.age()
    }

    fn until(&self, age: u64) -> Option<Instant> {
        self.state().term.until(age).map(|until| self.begun + until)
    }

    fn lock_round(&self) -> u64 {
        self.state().lock_round
    }
}
