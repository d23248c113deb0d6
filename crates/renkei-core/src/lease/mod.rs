//! Leases: who is told of changes before whoever makes them hears that they are done.
//!
//! A *holder* is somebody who believes what he was told of the names and attributes in some directories, so as not to
//! ask again. The side that tells him keeps a table ([`Leases`]) of who looked into which directory. When something
//! changes there, each holder is *called*, and the change is acknowledged when each has answered or his term is over.
//! The holder ([`holder::Term`]) counts his term from the moment he asked for it, the table from the moment it heard
//! of that, so his ends first, without any agreement about clocks.
//!
//! A holder reads what the table says in the order in which it was said: a term that comes after a call is taken after the
//! call. So a call need be waited for until the term that the holder had when he was called, whatever he was given since.
//! An answer to a question may come after a call about what it says; [`holder::Recent`] tells those that came too late.
//!
//! Guarantee: nobody believes what is older than an acknowledged change. Bounded: what does not fit the table is told
//! without a lease. Non-goals: what is written and not published; content of files, which `open` asks for.

pub mod callbacks;
pub mod holder;
pub mod locks;
pub mod site;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A moment, as time since some fixed one.
pub type Moment = Duration;

/// A holder of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(pub u64);

/// Who has looked into which directory. Directories are known by number.
pub struct Leases {
    term: Duration,
    most: usize,
    next: u64,
    entries: usize,
    holders: BTreeMap<HolderId, Standing>,
    lookers: BTreeMap<u64, BTreeSet<HolderId>>,
}

/// How it stands with one holder.
struct Standing {
    until: Moment,
    /// Counts how often his term was over, and with it all that he held.
    round: u64,
    called: u64,
    answered: u64,
    dirs: BTreeSet<u64>,
    /// Whether he cannot be told anything any more.
    has_ended: bool,
}

/// A call that a holder has to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Who.
    pub holder: HolderId,
    /// Which of his calls.
    pub number: u64,
    /// When he believes nothing more, whether he answers or not.
    pub until: Moment,
}

/// What became of a wish to hold a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It is held from now on.
    New,
    /// It was held already.
    Known,
    /// It is not: there is no room, or the holder's term is over.
    No,
}

impl Leases {
    /// A table of at most so many directories of holders, each for `term` after it was heard of him.
    pub fn new(term: Duration, most: usize) -> Self {
        Leases { term, most, next: 1, entries: 0, holders: BTreeMap::new(), lookers: BTreeMap::new() }
    }

    /// How long a term is.
    pub fn term(&self) -> Duration {
        self.term
    }

    /// A new holder, who holds nothing.
    pub fn join(&mut self, now: Moment) -> HolderId {
        let id = HolderId(self.next);
        self.next += 1;
        let until = now + self.term;
        let (dirs, has_ended) = (BTreeSet::new(), false);
        let standing = Standing { until, round: 1, called: 0, answered: 0, dirs, has_ended };
        self.holders.insert(id, standing);
        id
    }

    /// A holder was heard of. Tells the round he is in: another one than before says that he holds nothing any more.
    pub fn renew(&mut self, id: HolderId, now: Moment) -> Option<u64> {
        self.end_if_over(id, now);
        let standing = self.holders.get_mut(&id)?;
        standing.until = now + self.term;
        Some(standing.round)
    }

    /// A holder is about to look into a directory.
    pub fn note(&mut self, id: HolderId, dir: u64, now: Moment) -> Noted {
        let full = self.entries >= self.most;
        let Some(standing) = self.holders.get_mut(&id).filter(|standing| standing.until > now) else {
            return Noted::No;
        };
        if standing.dirs.contains(&dir) {
            return Noted::Known;
        }
        if full {
            return Noted::No;
        }
        standing.dirs.insert(dir);
        self.lookers.entry(dir).or_default().insert(id);
        self.entries += 1;
        Noted::New
    }

    /// Something changed in these directories: who of their holders is to be called, but for the one who did it.
    pub fn change(&mut self, by: Option<HolderId>, dirs: &[u64], now: Moment) -> Vec<Call> {
        let lookers = dirs.iter().filter_map(|dir| self.lookers.get(dir)).flatten();
        let whom: BTreeSet<HolderId> = lookers.copied().collect();
        self.call(by, whom, now)
    }

    /// Something changed, and nobody knows where: all are called that hold anything.
    pub fn change_anywhere(&mut self, by: Option<HolderId>, now: Moment) -> Vec<Call> {
        let holding = self.holders.iter().filter(|(_, standing)| !standing.dirs.is_empty());
        let whom = holding.map(|(id, _)| *id).collect();
        self.call(by, whom, now)
    }

    fn call(&mut self, by: Option<HolderId>, whom: BTreeSet<HolderId>, now: Moment) -> Vec<Call> {
        let mut calls = Vec::new();
        for holder in whom.into_iter().filter(|holder| Some(*holder) != by) {
            self.end_if_over(holder, now);
            let Some(standing) = self.holders.get_mut(&holder).filter(|standing| standing.until > now) else {
                continue;
            };
            standing.called += 1;
            calls.push(Call { holder, number: standing.called, until: standing.until });
        }
        calls
    }

    /// A holder has answered his calls up to this one.
    pub fn answer(&mut self, id: HolderId, number: u64) {
        if let Some(standing) = self.holders.get_mut(&id) {
            standing.answered = standing.answered.max(number.min(standing.called));
        }
    }

    /// Whether a call has to be waited for still.
    pub fn is_open(&self, call: &Call, now: Moment) -> bool {
        let unanswered = |standing: &Standing| standing.answered < call.number;
        now < call.until && self.holders.get(&call.holder).is_some_and(unanswered)
    }

    /// A holder says that he believes nothing more.
    pub fn leave(&mut self, id: HolderId) {
        self.drop_dirs(id);
        self.holders.remove(&id);
    }

    /// A holder cannot be told anything any more, and is forgotten when his term is over.
    pub fn end(&mut self, id: HolderId) {
        if let Some(standing) = self.holders.get_mut(&id) {
            standing.has_ended = true;
        }
    }

    /// Whether the term of a holder is not over, or he may be heard of again and have another one.
    pub fn may_have_terms(&self, now: Moment) -> bool {
        self.holders.values().any(|standing| standing.until > now || !standing.has_ended)
    }

    /// Has holders hold nothing that were not heard of for a term, and forgets those that have ended.
    pub fn sweep(&mut self, now: Moment) {
        let over: Vec<_> = self.holders.iter().filter(|(_, standing)| standing.until <= now).collect();
        let over: Vec<HolderId> = over.into_iter().map(|(id, _)| *id).collect();
        over.into_iter().for_each(|id| self.end_if_over(id, now));
        self.holders.retain(|_, standing| standing.until > now || !standing.has_ended);
    }

    /// Whether nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Holders, and the directories that they hold.
    pub fn counts(&self) -> (usize, usize) {
        (self.holders.len(), self.entries)
    }

    fn end_if_over(&mut self, id: HolderId, now: Moment) {
        let is_over = |standing: &Standing| standing.until <= now && !standing.dirs.is_empty();
        if !self.holders.get(&id).is_some_and(is_over) {
            return;
        }
        self.drop_dirs(id);
        if let Some(standing) = self.holders.get_mut(&id) {
            standing.round += 1;
        }
    }

    fn drop_dirs(&mut self, id: HolderId) {
        let Some(standing) = self.holders.get_mut(&id) else { return };
        for dir in std::mem::take(&mut standing.dirs) {
            self.entries -= 1;
            if let Some(lookers) = self.lookers.get_mut(&dir) {
                lookers.remove(&id);
                if lookers.is_empty() {
                    self.lookers.remove(&dir);
                }
            }
        }
    }
}
