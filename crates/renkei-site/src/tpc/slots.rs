//! How many copies run at a time, of one user and in all; others wait in the order in which they came.

use renkei_core::error::Error;
use renkei_mover::Stop;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How often a waiting copy looks whether it was stopped.
const LOOK_EVERY: Duration = Duration::from_millis(200);

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

/// The right to run, until it is dropped.
pub(super) struct Slot<'s> {
    slots: &'s Slots,
    user: String,
}

impl Drop for Slot<'_> {
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

    /// Waits until a copy of a user may run.
    ///
    /// # Errors
    /// The reason of the stop.
    pub(super) fn enter(
        &self,
        user: &str,
        limits: impl Fn() -> Limits,
        stop: &Stop,
    ) -> Result<Slot<'_>, Error> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.push((number, user.to_owned()));
        loop {
            let stopped = stop.stopped();
            let is_next = stopped.is_none() && state.is_next(number, limits());
            if stopped.is_some() || is_next {
                state.waiting.retain(|(waiting, _)| *waiting != number);
            }
            if is_next {
                *state.running.entry(user.to_owned()).or_default() += 1;
            }
            if stopped.is_some() || is_next {
                drop(state);
                self.changed.notify_all();
                return match stopped {
                    Some(error) => Err(error),
                    None => Ok(Slot { slots: self, user: user.to_owned() }),
                };
            }
            let waited = self.changed.wait_timeout(state, LOOK_EVERY);
            state = waited.expect("no thread panics while it holds the lock").0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::error::Code;

    const LIMITS: Limits = Limits { all: 3, user: 2 };

    #[test]
    fn a_user_with_many_copies_leaves_room_for_others() {
        let (slots, stop) = (Slots::default(), Stop::default());
        let enter = |user: &str| slots.enter(user, || LIMITS, &stop).unwrap();
        let first = enter("alice");
        let _second = enter("alice");
        std::thread::scope(|scope| {
            let third = scope.spawn(|| slots.enter("alice", || LIMITS, &stop).map(drop));
            while slots.lock().waiting.is_empty() {
                std::thread::yield_now();
            }
            // The waiting copy of alice does not hold bob's.
            let _bob = enter("bob");
            assert!(!third.is_finished());
            drop(first);
            third.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_waiting_copy_can_be_stopped() {
        let (slots, stop) = (Slots::default(), Stop::default());
        let one = Limits { all: 1, user: 1 };
        let _first = slots.enter("alice", || one, &stop).unwrap();
        stop.stop(Error::new(Code::Cancelled, "test", "", ""));
        assert_eq!(slots.enter("bob", || one, &stop).map(drop).unwrap_err().code, Code::Cancelled);
        assert!(slots.lock().waiting.is_empty());
    }
}
