//! The holder's side of leases: the expiry of its cache, and the detection of stale answers.

use super::Moment;
use crate::invalidation::Changed;
use std::collections::VecDeque;
use std::time::Duration;

/// Most outstanding requests for a term.
const MOST_ASKED: usize = 64;

/// Number of recent changes that are remembered.
const MOST_RECENT: usize = 512;

/// Divisor of a term: this share of it is not used, as a margin for clock drift.
const MARGIN: u32 = 16;

/// The term of a holder.
#[derive(Debug, Default)]
pub struct Term {
    asked: VecDeque<(u64, Moment)>,
    next: u64,
    round: u64,
    until: Option<Moment>,
    /// Counts the invalidations of the whole cache.
    age: u64,
}

impl Term {
    /// Registers a request for a term; returns its number.
    pub fn ask(&mut self, now: Moment) -> u64 {
        self.next += 1;
        if self.asked.len() == MOST_ASKED {
            self.asked.pop_front();
        }
        self.asked.push_back((self.next, now));
        self.next
    }

    /// A term was granted; a different round than before says that nothing from before is held.
    pub fn on_given(&mut self, number: u64, round: u64, term: Duration) {
        while self.asked.front().is_some_and(|(asked, _)| *asked < number) {
            self.asked.pop_front();
        }
        let Some((_, begun)) = self.asked.front().filter(|(asked, _)| *asked == number).copied() else {
            return;
        };
        if round != self.round {
            self.give_up();
            self.round = round;
        }
        self.until = self.until.max(Some(begun + term - term / MARGIN));
    }

    /// Invalidates everything cached so far.
    pub fn give_up(&mut self) {
        self.age += 1;
    }

    /// The session was replaced: the new one has granted no term yet.
    pub fn begin_again(&mut self) {
        *self = Term { age: self.age + 1, next: self.next, ..Term::default() };
    }

    /// The current age, with which cached answers are tagged.
    pub fn age(&self) -> u64 {
        self.age
    }

    /// Expiry of answers that were cached in `age`.
    pub fn until(&self, age: u64) -> Option<Moment> {
        self.until.filter(|_| age == self.age)
    }
}

/// The most recent changes, to detect that an answer crossed one on its way.
#[derive(Debug, Default)]
pub struct Recent {
    count: u64,
    last: VecDeque<Changed>,
}

impl Recent {
    /// Number of changes so far: to be read before a request is sent.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds a change.
    pub fn add(&mut self, changed: Changed) {
        if self.last.len() == MOST_RECENT {
            self.last.pop_front();
        }
        self.last.push_back(changed);
        self.count += 1;
    }

    /// Whether a change since `count` satisfies `concerns`; changes that were dropped count as if they did.
    pub fn is_concerned(&self, count: u64, concerns: impl Fn(&Changed) -> bool) -> bool {
        let since = usize::try_from(self.count - count).unwrap_or(usize::MAX);
        since > self.last.len() || self.last.iter().rev().take(since).any(concerns)
    }
}

/// The state when a request was sent, and whether its answer is under a lease.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// The age then.
    pub age: u64,
    /// Number of changes received before.
    pub count: u64,
    /// Whether the answer is under a lease.
    pub is_held: bool,
}

impl Mark {
    /// The same state, for an answer that is under a lease or not.
    pub fn held(self, is_held: bool) -> Mark {
        Mark { is_held, ..self }
    }

    /// The age in which an answer may be cached; `None` if a change since the request concerns it.
    pub fn learnable(&self, recent: &Recent, concerns: impl Fn(&Changed) -> bool) -> Option<u64> {
        let is_late = || recent.is_concerned(self.count, |changed| changed.all || concerns(changed));
        (self.is_held && !is_late()).then_some(self.age)
    }
}
