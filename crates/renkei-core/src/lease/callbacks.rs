//! The callback queue of lease holders: which callbacks each holder is sent, in which order, and when a change may be
//! acknowledged.
//!
//! Beside the table ([`Leases`]) there is a queue for each holder: waiting changes are merged into one callback, and
//! a requested term comes after it. The sender takes them with [`CallbackQueue::next_told`] and sends them in that
//! order on one stream: so no holder gets a term granted after a change without receiving the change first. A writer
//! reports its change after it is done ([`CallbackQueue::changed`]); the change is acknowledged after all called
//! holders have answered or their terms have expired ([`CallbackQueue::settling`], [`CallbackQueue::wait_until`]).

use super::{Call, HolderId, Leases, Moment, Noted};
use crate::invalidation::Changed;
use std::collections::BTreeMap;
use std::time::Duration;

/// The leases on one place, and the queued callbacks.
pub struct CallbackQueue {
    leases: Leases,
    waiting: BTreeMap<HolderId, Waiting>,
    open: Vec<Call>,
    /// Until when holders of a previous table may use their caches.
    quiet: Moment,
}

/// Queued messages for a holder.
#[derive(Default)]
struct Waiting {
    number: u64,
    what: Option<Changed>,
    /// The number of the last term it requested, and the round of the locks then.
    asked: Option<(u64, u64)>,
}

/// A message to a holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Callback {
    /// An invalidation.
    Call {
        /// The number of the callback.
        number: u64,
        /// The changes.
        what: Changed,
    },
    /// A term.
    Term {
        /// The number of the request it answers.
        number: u64,
        /// The holder's round: a different one than before says that it holds nothing any more.
        round: u64,
        /// Length of the term; zero if the holder left.
        length: Duration,
        /// The round of the locks.
        locks: u64,
    },
}

/// Callbacks that a writer waits for.
#[derive(Clone, Debug)]
pub struct Settling(Vec<Call>);

impl CallbackQueue {
    /// A queue with terms of this length, for at most `most` directories.
    pub fn new(term: Duration, most: usize) -> Self {
        let (leases, waiting, open) = (Leases::new(term, most), BTreeMap::new(), Vec::new());
        CallbackQueue { leases, waiting, open, quiet: Moment::ZERO }
    }

    /// The queue of a server restarted `now`, while holders of its predecessor may still use their caches: nothing is
    /// acknowledged for one term (grace period).
    pub fn after_another(term: Duration, most: usize, now: Moment) -> Self {
        CallbackQueue { quiet: now + term, ..CallbackQueue::new(term, most) }
    }

    /// Whether holders of a previous table may still use their caches (grace period).
    pub fn is_quiet(&self, now: Moment) -> bool {
        now < self.quiet
    }

    /// Whether no holder, of this table or a previous one, has a term or may get one: a successor needs no grace
    /// period.
    pub fn is_forgotten(&self, now: Moment) -> bool {
        !self.is_quiet(now) && !self.leases.may_have_terms(now)
    }

    /// Length of a term.
    pub fn term(&self) -> Duration {
        self.leases.term()
    }

    /// Adds a holder.
    pub fn join(&mut self, now: Moment) -> HolderId {
        self.leases.sweep(now);
        let id = self.leases.join(now);
        self.waiting.insert(id, Waiting::default());
        id
    }

    /// As [`Leases::note`].
    pub fn note(&mut self, id: HolderId, dir: u64, now: Moment) -> Noted {
        self.leases.note(id, dir, now)
    }

    /// A holder requests a term, with this number, in this round of the locks. It is granted after the holder's
    /// queued callbacks, and starts then.
    pub fn ask_term(&mut self, id: HolderId, number: u64, locks: u64) {
        if let Some(waiting) = self.waiting.get_mut(&id) {
            waiting.asked = Some((number, locks));
        }
    }

    /// Something changed, by a holder or otherwise: queues callbacks to the holders of the directories in question.
    /// Returns whether there are any.
    pub fn changed(&mut self, by: Option<HolderId>, what: &Changed, now: Moment) -> bool {
        match what.all {
            true => self.changed_anywhere(by, what, now),
            false => {
                let calls = self.leases.change(by, &what.dirs(), now);
                self.call(calls, what)
            }
        }
    }

    /// The same for a change in unknown directories: all holders are called.
    pub fn changed_anywhere(&mut self, by: Option<HolderId>, what: &Changed, now: Moment) -> bool {
        let calls = self.leases.change_anywhere(by, now);
        self.call(calls, what)
    }

    fn call(&mut self, calls: Vec<Call>, what: &Changed) -> bool {
        let is_any = !calls.is_empty();
        for call in &calls {
            // A holder that has ended gets no message, but is waited for.
            if let Some(waiting) = self.waiting.get_mut(&call.holder) {
                waiting.number = call.number;
                waiting.what.get_or_insert_default().merge(what);
            }
        }
        self.open.extend(calls);
        is_any
    }

    /// The next message to a holder, if there is one; a term starts now.
    pub fn next_told(&mut self, id: HolderId, now: Moment) -> Option<Callback> {
        let waiting = self.waiting.get_mut(&id)?;
        if let Some(what) = waiting.what.take() {
            return Some(Callback::Call { number: waiting.number, what });
        }
        let (number, locks) = waiting.asked.take()?;
        let (round, length) =
            self.leases.renew(id, now).map_or((0, Duration::ZERO), |round| (round, self.leases.term()));
        Some(Callback::Term { number, round, length, locks })
    }

    /// A holder answered its callbacks up to this one.
    pub fn answer(&mut self, id: HolderId, number: u64) {
        self.leases.answer(id, number);
    }

    /// A holder dropped its cache and leaves for good.
    pub fn leave(&mut self, id: HolderId) {
        self.leases.leave(id);
    }

    /// A holder is unreachable. It may not know yet, so it is waited for until its term expires.
    pub fn end(&mut self, id: HolderId) {
        self.waiting.remove(&id);
        self.leases.end(id);
    }

    /// The callbacks that a writer waits for: all open ones, except its own.
    pub fn settling(&self, by: Option<HolderId>) -> Settling {
        Settling(self.open.iter().filter(|call| Some(call.holder) != by).copied().collect())
    }

    /// Deadline of the wait if no further answer comes; `None` if all have answered or their terms have expired.
    pub fn wait_until(&mut self, settling: &mut Settling, now: Moment) -> Option<Moment> {
        let CallbackQueue { leases, open, .. } = &mut *self;
        settling.0.retain(|call| leases.is_open(call, now));
        open.retain(|call| leases.is_open(call, now));
        let called = settling.0.iter().map(|call| call.until).max();
        called.max((now < self.quiet).then_some(self.quiet))
    }

    /// Whether no holder holds anything.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Number of holders, and of directories that they hold.
    pub fn counts(&self) -> (usize, usize) {
        self.leases.counts()
    }
}
