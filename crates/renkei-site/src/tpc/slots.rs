//! How many copies run at a time, of one user and in all; others wait in the order in which they came.

use renkei_core::error::{Code, Error};
use renkei_mover::Stop;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How often a waiting copy looks whether it was stopped.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Most copies of a user that wait: each has a thread and an open file.
const MAX_WAITING_USER: usize = 256;

/// The limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) all: usize,
    pub(super) user: usize,
}

#[derive(Default)]
struct State {
    running: HashMap<String, usize>,
    /// Number and user of each waiting copy, the oldest first.
    waiting: Vec<(u64, String)>,
    next: u64,
}

impl State {
    fn has_room(&self, user: &str, limits: Limits) -> bool {
        let own = self.running.get(user).copied().unwrap_or_default();
        own < limits.user && self.running.values().sum::<usize>() < limits.all
    }

    /// Whether it is this one's turn: none that came before has room.
    fn is_next(&self, number: u64, limits: Limits) -> bool {
        let first = self.waiting.iter().find(|(_, user)| self.has_room(user, limits));
        first.is_some_and(|(first, _)| *first == number)
    }
}

/// The running copies and those that wait.
#[derive(Default)]
pub(super) struct Slots {
    state: Mutex<State>,
    changed: Condvar,
}

/// The place of a copy among those that wait, until it runs or is dropped.
pub(super) struct Turn {
    slots: Arc<Slots>,
    user: String,
    number: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.slots.lock().waiting.retain(|(waiting, _)| *waiting != self.number);
        self.slots.changed.notify_all();
    }
}

/// The right to run, until it is dropped.
pub(super) struct Slot {
    slots: Arc<Slots>,
    user: String,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.slots.lock();
        if let Some(count) = state.running.get_mut(&self.user) {
            *count -= 1;
        }
        state.running.retain(|_, count| *count > 0);
        drop(state);
        self.slots.changed.notify_all();
    }
}

impl Slots {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Notes a copy of a user as the last one that waits.
    ///
    /// # Errors
    /// `TooManyUnfinished`.
    pub(super) fn queue(self: &Arc<Self>, user: &str) -> Result<Turn, Error> {
        let mut state = self.lock();
        if state.waiting.iter().filter(|(_, waiting)| waiting == user).count() >= MAX_WAITING_USER {
            let cause = format!("{MAX_WAITING_USER} copies of the user wait; ask again when some have ended");
            return Err(Error::new(Code::TooManyUnfinished, "copy", user, cause));
        }
        let number = state.next;
        state.next += 1;
        state.waiting.push((number, user.to_owned()));
        Ok(Turn { slots: self.clone(), user: user.to_owned(), number })
    }
}

impl Turn {
    /// Waits until the copy may run.
    ///
    /// # Errors
    /// The reason of the stop.
    pub(super) fn wait(&self, limits: impl Fn() -> Limits, stop: &Stop) -> Result<Slot, Error> {
        let mut state = self.slots.lock();
        loop {
            stop.check()?;
            if state.is_next(self.number, limits()) {
                state.waiting.retain(|(waiting, _)| *waiting != self.number);
                *state.running.entry(self.user.clone()).or_default() += 1;
                drop(state);
                self.slots.changed.notify_all();
                return Ok(Slot { slots: self.slots.clone(), user: self.user.clone() });
            }
            let waited = self.slots.changed.wait_timeout(state, LOOK_EVERY);
            state = waited.expect("no thread panics while it holds the lock").0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { all: 3, user: 2 };

    #[test]
    fn a_user_with_many_copies_leaves_room_for_others() {
        let slots = Arc::<Slots>::default();
        let enter = |user: &str| slots.queue(user).unwrap().wait(|| LIMITS, &Stop::default()).unwrap();
        let first = enter("alice");
        let _second = enter("alice");
        std::thread::scope(|scope| {
            let third = scope.spawn(|| drop(enter("alice")));
            while slots.lock().waiting.is_empty() {
                std::thread::yield_now();
            }
            // The waiting copy of alice does not hold bob's.
            let _bob = enter("bob");
            assert!(!third.is_finished());
            drop(first);
            third.join().unwrap();
        });
    }

    #[test]
    fn a_waiting_copy_can_be_stopped() {
        let slots = Arc::<Slots>::default();
        let stop = Stop::default();
        let one = Limits { all: 1, user: 1 };
        let _first = slots.queue("alice").unwrap().wait(|| one, &stop).unwrap();
        stop.stop(Error::new(Code::Cancelled, "test", "", ""));
        let stopped = slots.queue("bob").unwrap().wait(|| one, &stop);
        assert_eq!(stopped.map(drop).unwrap_err().code, Code::Cancelled);
        assert!(slots.lock().waiting.is_empty());
    }

    #[test]
    fn the_copies_of_a_user_that_wait_are_limited() {
        let slots = Arc::<Slots>::default();
        let mut turns: Vec<_> = (0..MAX_WAITING_USER).map(|_| slots.queue("alice").unwrap()).collect();
        assert_eq!(slots.queue("alice").map(drop).unwrap_err().code, Code::TooManyUnfinished);
        slots.queue("bob").unwrap();
        turns.pop();
        slots.queue("alice").unwrap();
    }
}
