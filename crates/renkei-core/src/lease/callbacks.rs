//! The callback queue of lease holders: which callbacks each holder is sent, in which order, and when a change may be
//! acknowledged.
//!
//! Beside the table ([`Leases`]) there is a queue for each holder: changes that wait become one callback, and a
//! requested term comes after it. The sender takes them with [`CallbackQueue::next_told`] and sends them in that order
//! on one stream: so no holder has a term that was given after a change without knowing of the change. A writer reports
//! its change after it is done ([`CallbackQueue::changed`]); before that is acknowledged all called holders have
//! answered or their terms have expired ([`CallbackQueue::settling`], [`CallbackQueue::wait_until`]).

use super::{Call, HolderId, Leases, Moment, Noted};
use crate::wire::file::Changed;
use std::collections::BTreeMap;
use std::time::Duration;

/// The leases on one place, and what of it is not said yet.
pub struct CallbackQueue {
    leases: Leases,
    waiting: BTreeMap<HolderId, Waiting>,
    open: Vec<Call>,
    /// Up to when holders of a table before this one may believe what they were told.
    quiet: Moment,
}

/// What a holder has to be told.
#[derive(Default)]
struct Waiting {
    number: u64,
    what: Option<Changed>,
    /// The number of the term that he asked for last, and the round of the locks then.
    asked: Option<(u64, u64)>,
}

/// What a holder is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Callback {
    /// Something has changed.
    Call {
        /// Which of his calls it is.
        number: u64,
        /// What has changed.
        what: Changed,
    },
    /// He has a term.
    Term {
        /// Which of his questions it answers.
        number: u64,
        /// The round he is in: another one than before says that he holds nothing any more.
        round: u64,
        /// How long it is; none if he left.
        length: Duration,
        /// The round of the locks.
        locks: u64,
    },
}

/// Calls that somebody waits for.
#[derive(Clone, Debug)]
pub struct Settling(Vec<Call>);

impl CallbackQueue {
    /// A table for terms of this length, of at most so many directories.
    pub fn new(term: Duration, most: usize) -> Self {
        let (leases, waiting, open) = (Leases::new(term, most), BTreeMap::new(), Vec::new());
        CallbackQueue { leases, waiting, open, quiet: Moment::ZERO }
    }

    /// The table that comes `now` after one whose holders may believe still what they were told: for a term nothing is
    /// acknowledged.
    pub fn after_another(term: Duration, most: usize, now: Moment) -> Self {
        CallbackQueue { quiet: now + term, ..CallbackQueue::new(term, most) }
    }

    /// Whether holders of a table before this one may believe something.
    pub fn is_quiet(&self, now: Moment) -> bool {
        now < self.quiet
    }

    /// Whether nobody believes anything, of this table or of one before it, nor will: what comes after it need not wait.
    pub fn is_forgotten(&self, now: Moment) -> bool {
        !self.is_quiet(now) && !self.leases.may_have_terms(now)
    }

    /// How long a term is.
    pub fn term(&self) -> Duration {
        self.leases.term()
    }

    /// A new holder.
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

    /// A holder asks for a term, with this number, in this round of the locks. It is given when nothing else waits to be
    /// told to him, and begins then.
    pub fn ask_term(&mut self, id: HolderId, number: u64, locks: u64) {
        if let Some(waiting) = self.waiting.get_mut(&id) {
            waiting.asked = Some((number, locks));
        }
    }

    /// Something has changed, by a holder or somebody else: those are called who looked into the directories in question. Tells
    /// whether there are any.
    pub fn changed(&mut self, by: Option<HolderId>, what: &Changed, now: Moment) -> bool {
        match what.all {
            true => self.changed_anywhere(by, what, now),
            false => {
                let calls = self.leases.change(by, &what.dirs(), now);
                self.call(calls, what)
            }
        }
    }

    /// The same where it is not known in which directories: all are called.
    pub fn changed_anywhere(&mut self, by: Option<HolderId>, what: &Changed, now: Moment) -> bool {
        let calls = self.leases.change_anywhere(by, now);
        self.call(calls, what)
    }

    fn call(&mut self, calls: Vec<Call>, what: &Changed) -> bool {
        let is_any = !calls.is_empty();
        for call in &calls {
            // Who has gone is not told, but waited for.
            if let Some(waiting) = self.waiting.get_mut(&call.holder) {
                waiting.number = call.number;
                waiting.what.get_or_insert_default().merge(what);
            }
        }
        self.open.extend(calls);
        is_any
    }

    /// What a holder is told next, if there is something; a term is that of this moment.
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

    /// A holder has answered his calls up to this one.
    pub fn answer(&mut self, id: HolderId, number: u64) {
        self.leases.answer(id, number);
    }

    /// A holder says that he believes nothing more, and comes back no more.
    pub fn leave(&mut self, id: HolderId) {
        self.leases.leave(id);
    }

    /// A holder cannot be told anything any more. He may not know yet, and is waited for to the end of his term.
    pub fn end(&mut self, id: HolderId) {
        self.waiting.remove(&id);
        self.leases.end(id);
    }

    /// The calls that whoever changes something waits for: all that are open, but for his own.
    pub fn settling(&self, by: Option<HolderId>) -> Settling {
        Settling(self.open.iter().filter(|call| Some(call.holder) != by).copied().collect())
    }

    /// Until when they are to be waited for, if nobody answers; none if all have answered or their terms are over.
    pub fn wait_until(&mut self, settling: &mut Settling, now: Moment) -> Option<Moment> {
        let CallbackQueue { leases, open, .. } = &mut *self;
        settling.0.retain(|call| leases.is_open(call, now));
        open.retain(|call| leases.is_open(call, now));
        let called = settling.0.iter().map(|call| call.until).max();
        called.max((now < self.quiet).then_some(self.quiet))
    }

    /// Whether nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Holders, and the directories that they hold.
    pub fn counts(&self) -> (usize, usize) {
        self.leases.counts()
    }
}
