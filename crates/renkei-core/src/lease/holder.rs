//! The holder's side: how long it may believe, and which answers came too late to be believed.

use super::Moment;
use crate::wire::file::Changed;
use std::collections::VecDeque;
use std::time::Duration;

/// Terms that were asked for and not given yet, at most.
const MOST_ASKED: usize = 64;

/// Changes that are remembered.
const MOST_RECENT: usize = 512;

/// What of a term is not used, for clocks that do not go alike.
const MARGIN: u32 = 16;

/// The term of a holder.
#[derive(Debug, Default)]
pub struct Term {
    asked: VecDeque<(u64, Moment)>,
    next: u64,
    round: u64,
    until: Option<Moment>,
    /// Counts how often all that was believed was given up.
    age: u64,
}

impl Term {
    /// Asks for a term; gives the number of the question.
    pub fn ask(&mut self, now: Moment) -> u64 {
        self.next += 1;
        if self.asked.len() == MOST_ASKED {
            self.asked.pop_front();
        }
        self.asked.push_back((self.next, now));
        self.next
    }

    /// A term was given; another round than before says that nothing from before is held.
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

    /// Nothing that was told before is believed any more.
    pub fn give_up(&mut self) {
        self.age += 1;
    }

    /// The session is another one: it has given no term.
    pub fn begin_again(&mut self) {
        *self = Term { age: self.age + 1, next: self.next, ..Term::default() };
    }

    /// In which age things are learnt.
    pub fn age(&self) -> u64 {
        self.age
    }

    /// Up to when what was learnt in `age` may be believed.
    pub fn until(&self, age: u64) -> Option<Moment> {
        self.until.filter(|_| age == self.age)
    }
}

/// The last changes, so that an answer that passed one on its way is not believed.
#[derive(Debug, Default)]
pub struct Recent {
    count: u64,
    last: VecDeque<Changed>,
}

impl Recent {
    /// How many there were: to be asked before a question is.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// One more.
    pub fn add(&mut self, changed: Changed) {
        if self.last.len() == MOST_RECENT {
            self.last.pop_front();
        }
        self.last.push_back(changed);
        self.count += 1;
    }

    /// Whether one since `count` concerns what `concerns` says; those that are forgotten do.
    pub fn is_concerned(&self, count: u64, concerns: impl Fn(&Changed) -> bool) -> bool {
        let since = usize::try_from(self.count - count).unwrap_or(usize::MAX);
        since > self.last.len() || self.last.iter().rev().take(since).any(concerns)
    }
}

/// When a question was asked, and whether its answer is under a lease.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// What was believed then is of this age.
    pub age: u64,
    /// How many changes were heard of before.
    pub count: u64,
    /// Whether the answer is under a lease.
    pub is_held: bool,
}

impl Mark {
    /// The same moment, of an answer that is under a lease or not.
    pub fn held(self, is_held: bool) -> Mark {
        Mark { is_held, ..self }
    }

    /// In which age an answer may be believed; not if one of the changes since the question concerns it.
    pub fn learnable(&self, recent: &Recent, concerns: impl Fn(&Changed) -> bool) -> Option<u64> {
        let is_late = || recent.is_concerned(self.count, |changed| changed.all || concerns(changed));
        (self.is_held && !is_late()).then_some(self.age)
    }
}
