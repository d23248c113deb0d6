//! Leases with callbacks: a change is acknowledged only after all caches of the old state are invalidated or expired.
//!
//! A *holder* caches the names and attributes of some directories. The server keeps a table ([`Leases`]) of the
//! directories each holder has read. A change there sends each holder a *call* (callback), and the change is
//! acknowledged when each has answered or its term has expired. The holder ([`holder::Term`]) counts its term from
//! the moment it sent the request, the table from the moment it received it, so the holder's ends first, without
//! clock synchronisation.
//!
//! A holder processes the table's messages in the order they were sent: a term sent after a call is received after
//! the call. So a call need be waited for only until the end of the term that the holder had when the call was sent,
//! whatever terms follow. The answer to a request may arrive after a call that invalidates it; [`holder::Recent`]
//! detects such stale answers.
//!
//! Guarantee: no holder uses cached state that is older than an acknowledged change. Bounded: directories that do not
//! fit the table are answered without a lease. Non-goals: unpublished writes; content of files, which `open`
//! revalidates.

pub mod callbacks;
pub mod holder;
pub mod locks;
pub mod site;
#[cfg(test)]
mod tests;
pub mod web_locks;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A point in time, as the duration since a fixed one.
pub type Moment = Duration;

/// A holder of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HolderId(pub u64);

/// The table of leases: the directories that each holder has read, by inode number.
pub struct Leases {
    term: Duration,
    most: usize,
    next: u64,
    entries: usize,
    holders: BTreeMap<HolderId, HolderState>,
    lookers: BTreeMap<u64, BTreeSet<HolderId>>,
}

/// State of one holder.
struct HolderState {
    until: Moment,
    /// Counts the expiries of its term that had it lose what it held.
    round: u64,
    called: u64,
    answered: u64,
    dirs: BTreeSet<u64>,
    /// Whether it is unreachable for good.
    has_ended: bool,
}

/// A callback that a holder has to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The holder.
    pub holder: HolderId,
    /// The number of the callback, counted for each holder.
    pub number: u64,
    /// End of the holder's term: it holds nothing from then on, whether it answers or not.
    pub until: Moment,
}

/// The result of a request to hold a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It is held from now on.
    New,
    /// It was held already.
    Known,
    /// It is not held: the table is full, or the holder's term has expired.
    No,
}

impl Leases {
    /// A table of at most `most` pairs of holder and directory, with terms of length `term`.
    pub fn new(term: Duration, most: usize) -> Self {
        Leases { term, most, next: 1, entries: 0, holders: BTreeMap::new(), lookers: BTreeMap::new() }
    }

    /// Length of a term.
    pub fn term(&self) -> Duration {
        self.term
    }

    /// Adds a holder, which holds nothing yet.
    pub fn join(&mut self, now: Moment) -> HolderId {
        let id = HolderId(self.next);
        self.next += 1;
        let until = now + self.term;
        let (dirs, has_ended) = (BTreeSet::new(), false);
        let standing = HolderState { until, round: 1, called: 0, answered: 0, dirs, has_ended };
        self.holders.insert(id, standing);
        id
    }

    /// Renews a holder's term. Returns its round: a different one than before says that it holds nothing any more.
    pub fn renew(&mut self, id: HolderId, now: Moment) -> Option<u64> {
        self.end_if_over(id, now);
        let standing = self.holders.get_mut(&id)?;
        standing.until = now + self.term;
        Some(standing.round)
    }

    /// Registers that a holder is about to read a directory.
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

    /// A change in these directories: returns the callbacks to their holders, except the one that made the change.
    pub fn change(&mut self, by: Option<HolderId>, dirs: &[u64], now: Moment) -> Vec<Call> {
        let lookers = dirs.iter().filter_map(|dir| self.lookers.get(dir)).flatten();
        let whom: BTreeSet<HolderId> = lookers.copied().collect();
        self.call(by, whom, now)
    }

    /// A change in unknown directories: returns the callbacks to all holders that hold anything.
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

    /// A holder answered its callbacks up to this one.
    pub fn answer(&mut self, id: HolderId, number: u64) {
        if let Some(standing) = self.holders.get_mut(&id) {
            standing.answered = standing.answered.max(number.min(standing.called));
        }
    }

    /// Whether a callback still has to be waited for.
    pub fn is_open(&self, call: &Call, now: Moment) -> bool {
        let unanswered = |standing: &HolderState| standing.answered < call.number;
        now < call.until && self.holders.get(&call.holder).is_some_and(unanswered)
    }

    /// A holder dropped its cache and leaves.
    pub fn leave(&mut self, id: HolderId) {
        self.drop_dirs(id);
        self.holders.remove(&id);
    }

    /// A holder is unreachable; it is dropped when its term expires.
    pub fn end(&mut self, id: HolderId) {
        if let Some(standing) = self.holders.get_mut(&id) {
            standing.has_ended = true;
        }
    }

    /// Whether a holder's term is running, or may be renewed.
    pub fn may_have_terms(&self, now: Moment) -> bool {
        self.holders.values().any(|standing| standing.until > now || !standing.has_ended)
    }

    /// Drops the directories of holders whose term has expired, and the holders that have ended.
    pub fn sweep(&mut self, now: Moment) {
        let over: Vec<_> = self.holders.iter().filter(|(_, standing)| standing.until <= now).collect();
        let over: Vec<HolderId> = over.into_iter().map(|(id, _)| *id).collect();
        over.into_iter().for_each(|id| self.end_if_over(id, now));
        self.holders.retain(|_, standing| standing.until > now || !standing.has_ended);
    }

    /// Whether no holder holds anything.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Number of holders, and of directories that they hold.
    pub fn counts(&self) -> (usize, usize) {
        (self.holders.len(), self.entries)
    }

    fn end_if_over(&mut self, id: HolderId, now: Moment) {
        let is_over = |standing: &HolderState| standing.until <= now && !standing.dirs.is_empty();
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
