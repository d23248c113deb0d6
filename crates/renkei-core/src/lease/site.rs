//! Site leases: read leases let a site serve from its copy of a volume without asking; write leases let it
//! acknowledge changes.
//!
//! The home keeps the table ([`SiteLeases`]). A site with a *read lease* opens files from its copy of the tree
//! without asking: before another site's change is acknowledged, the lease is revoked or has expired. A site with a
//! *write lease* acknowledges changes at once and submits them afterwards (write-behind); while it has the lease, no
//! other site gets a read lease, and an open elsewhere makes it *flush* first. Several sites may have write leases;
//! then each open asks. A site whose write lease expired before it was returned may have acknowledged changes that no
//! other site has: it is *lost* until it is back and has submitted them, and opens elsewhere report it. A site that
//! answers but for a term submits nothing that a flush asked for, for instance because its disk is full, is lost,
//! too: opens wait no longer for it than for an unreachable one.
//!
//! The site's side ([`SiteLease`]) counts a term from the moment it sent the request, less a margin for clock drift;
//! the home counts from the moment it answered. So the site's term ends first.
//!
//! Guarantee (close to open): an open that began after a close was acknowledged under a write lease, or at the home,
//! sees a copy that includes the close, or reports the lost sites. Non-goals: exclusive creation across sites, and
//! changes made behind the volume's store.

use super::Moment;
use crate::namespace::Origin;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Length of a term: how long a site may go on without contact to its home.
pub const TERM: Duration = Duration::from_secs(6);
/// How long no site must have written before other sites get read leases again.
pub const IDLE: Duration = Duration::from_secs(2);
/// Divisor of a term: this share of it is a margin for clock drift.
const DRIFT_SHARE: u32 = 16;

/// The epoch of a write lease that cannot be renewed. Real epochs are counted from 1 on.
const OF_ANOTHER_ROUND: u64 = 0;

/// A site's request to renew its leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAsk {
    /// The round of the home that the numbers below belong to.
    pub round: u64,
    /// The last revocation it carried out.
    pub revoked: u64,
    /// The last flush it completed.
    pub flushed: u64,
    /// The epoch of the write lease that it returns: all changes under it have been submitted.
    pub returns: Option<u64>,
    /// The last record of the log that the site has.
    pub seq: u64,
}

/// The home's answer, valid for a term from the moment of the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGiven {
    /// The round of the home: a new one at each start, with revocation and flush numbers of its own.
    pub round: u64,
    /// Whether the site has a read lease.
    pub reads: bool,
    /// The epoch of the write lease that is renewed.
    pub writes: Option<u64>,
    /// The number of the last revocation of its read lease.
    pub revoke: u64,
    /// The number of the last flush it was asked for.
    pub flush: u64,
}

/// The leases that a home has granted, by site.
pub struct SiteLeases {
    term: Duration,
    idle: Duration,
    /// Until when sites may use leases of a previous instance of the home (grace period).
    quiet_until: Moment,
    /// Until when the home itself counts as a writer.
    busy_until: Moment,
    sites: BTreeMap<Origin, SiteState>,
    round: u64,
    epochs: u64,
}

#[derive(Clone, Copy, Default)]
struct SiteState {
    /// Expiry of its read lease.
    reads_until: Moment,
    /// The record that its copy must reach for a read lease; `None` since another writer changed something. Own
    /// changes do not count: the site has them.
    needs: Option<u64>,
    /// Its write lease until it is returned: epoch and expiry.
    writes: Option<(u64, Moment)>,
    revoke: u64,
    revoked: u64,
    flush: u64,
    flushed: u64,
    /// Since when a flush is outstanding.
    behind_since: Option<Moment>,
    /// The flush whose completion shows that a lost site has submitted everything.
    recovery: Option<u64>,
}

impl SiteState {
    /// Whether its write lease has not expired.
    fn may_write(&self, now: Moment) -> bool {
        self.writes.is_some_and(|(_, until)| now < until)
    }

    /// Until when flushes wait for it: its write lease is valid, and it makes progress with the flushes.
    fn awaited_until(&self, term: Duration) -> Option<Moment> {
        let (_, until) = self.writes.filter(|_| self.recovery.is_none())?;
        Some(self.behind_since.map_or(until, |since| until.min(since + term)))
    }

    fn is_awaited(&self, term: Duration, now: Moment) -> bool {
        self.awaited_until(term).is_some_and(|until| now < until)
    }

    fn is_lost(&self, term: Duration, now: Moment) -> bool {
        self.writes.is_some() && !self.is_awaited(term, now)
    }

    /// Whether it was connected for a term without completing a flush.
    fn is_overdue(&self, term: Duration, now: Moment) -> bool {
        let was_there = self.recovery.is_some() || self.may_write(now);
        was_there && self.behind_since.is_some_and(|since| now >= since + term)
    }

    fn ask_flush(&mut self, now: Moment) -> u64 {
        self.flush += 1;
        self.behind_since.get_or_insert(now);
        self.flush
    }

    fn on_flushed(&mut self, number: u64, now: Moment) {
        if number > self.flushed {
            self.flushed = number;
            self.behind_since = (number < self.flush).then_some(now);
        }
    }

    /// Whether, because of this site, other copies may lack changes without notice.
    fn keeps_others_from_reading(&self, now: Moment) -> bool {
        self.may_write(now) || self.recovery.is_some()
    }
}

/// Answers of sites that an operation waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Awaited {
    revocations: Vec<(Origin, u64)>,
    flushes: Vec<(Origin, u64)>,
    /// Sites whose write lease expired while their flush was awaited: whether or not they are back, changes closed
    /// there before may be missing.
    lost: Vec<Origin>,
    is_quiet_awaited: bool,
}

impl Awaited {
    /// Ends the wait: sites that have not flushed count as lost.
    pub fn give_up(&mut self) {
        self.lost.extend(self.flushes.drain(..).map(|(site, _)| site));
    }
}

impl SiteLeases {
    /// A table without leases.
    ///
    /// `round` is a new one at each start of the home.
    pub fn new(term: Duration, idle: Duration, round: u64) -> Self {
        let (quiet_until, busy_until) = (Moment::ZERO, Moment::ZERO);
        SiteLeases { term, idle, quiet_until, busy_until, sites: BTreeMap::new(), round, epochs: 0 }
    }

    /// The same table for a restarted home whose predecessor granted leases; `writers` had write leases.
    pub fn after_another(self, writers: &[Origin], now: Moment) -> Self {
        let mut leases = SiteLeases { quiet_until: now + self.term, ..self };
        for site in writers {
            let writes = Some((leases.draw_epoch(), now + leases.term));
            leases.sites.insert(*site, SiteState { writes, ..SiteState::default() });
        }
        leases
    }

    fn draw_epoch(&mut self) -> u64 {
        self.epochs += 1;
        self.epochs
    }

    /// A site renews its leases; `last` is the last record of the log.
    pub fn renew(&mut self, site: Origin, ask: &LeaseAsk, last: u64, now: Moment) -> LeaseGiven {
        self.on_answers(site, ask, now);
        let others_write = self.others(site).any(|one| one.keeps_others_from_reading(now));
        let is_still = now >= self.quiet_until && now >= self.busy_until;
        let term = self.term;
        let one = self.sites.entry(site).or_default();
        let is_awaited = one.is_awaited(term, now);
        if let Some((_, until)) = one.writes.as_mut().filter(|_| is_awaited) {
            *until = now + term;
        }
        let has_obeyed = ask.round == self.round && ask.revoked == one.revoke;
        one.needs = if is_still && !others_write { one.needs.or(Some(last)) } else { None };
        let reads = has_obeyed && one.needs.is_some_and(|needed| ask.seq >= needed);
        if reads {
            one.reads_until = now + term;
        }
        let writes = one.writes.filter(|_| is_awaited).map(|(epoch, _)| epoch);
        LeaseGiven { round: self.round, reads, writes, revoke: one.revoke, flush: one.flush }
    }

    fn others(&self, site: Origin) -> impl Iterator<Item = &SiteState> {
        self.sites.iter().filter(move |(other, _)| **other != site).map(|(_, one)| one)
    }

    /// Records the answers in a site's request, before [`SiteLeases::has_news`] is asked.
    pub fn on_answers(&mut self, site: Origin, ask: &LeaseAsk, now: Moment) {
        let (is_of_this_round, term) = (ask.round == self.round, self.term);
        let one = self.sites.entry(site).or_default();
        let is_lost = one.is_lost(term, now);
        if is_of_this_round {
            if ask.revoked == one.revoke && one.revoked < one.revoke {
                (one.revoked, one.reads_until) = (one.revoke, Moment::ZERO);
            }
            one.on_flushed(ask.flushed, now);
            if one.writes.is_some_and(|(epoch, _)| ask.returns == Some(epoch)) && !is_lost {
                (one.writes, one.behind_since) = (None, None);
            }
        }
        if is_lost {
            self.recover(site, now);
        }
    }

    /// A lost site is back: it submits its changes, and no other site has a read lease meanwhile.
    fn recover(&mut self, site: Origin, now: Moment) {
        let others_read = self.revoke_reads(Some(site), now).is_some();
        let one = self.sites.entry(site).or_default();
        // A site that is no longer awaited may go on writing until its term expires.
        let writes = one.may_write(now);
        match one.recovery {
            None => {
                // A site that was disconnected gets a term to submit its changes.
                one.behind_since = one.behind_since.filter(|_| writes);
                one.recovery = Some(one.ask_flush(now));
            }
            Some(flush) if one.flushed >= flush && !others_read && !writes => {
                (one.recovery, one.writes) = (None, None);
            }
            Some(_) => {}
        }
    }

    /// Revokes the read leases of all sites except one, for a change; `None` if there are none.
    fn revoke_reads(&mut self, except: Option<Origin>, now: Moment) -> Option<Vec<(Origin, u64)>> {
        let mut revoked = Vec::new();
        for (site, one) in &mut self.sites {
            if Some(*site) == except {
                continue;
            }
            one.needs = None;
            if one.reads_until <= now {
                continue;
            }
            if one.revoked == one.revoke {
                one.revoke += 1;
            }
            revoked.push((*site, one.revoke));
        }
        (!revoked.is_empty()).then_some(revoked)
    }

    fn awaited_revocations(&mut self, except: Option<Origin>, now: Moment) -> Awaited {
        let revocations = self.revoke_reads(except, now).unwrap_or_default();
        Awaited { revocations, is_quiet_awaited: now < self.quiet_until, ..Awaited::default() }
    }

    /// The home itself changed something; the change is acknowledged when no answer is awaited any more.
    pub fn change_here(&mut self, now: Moment) -> Awaited {
        self.busy_until = now + self.idle;
        self.awaited_revocations(None, now)
    }

    /// A site requests a write lease: returns its epoch, and the answers to await before the site may use it.
    pub fn acquire(&mut self, site: Origin, now: Moment) -> (u64, Awaited) {
        let (epoch, until) = (self.draw_epoch(), now + self.term);
        let one = self.sites.entry(site).or_default();
        // A site that is overdue with a flush gets no lease for which others would wait again.
        if !one.is_overdue(self.term, now) {
            one.behind_since = one.behind_since.filter(|_| one.recovery.is_some() || one.may_write(now));
            (one.writes, one.recovery) = (Some((epoch, until)), None);
        }
        (epoch, self.awaited_revocations(Some(site), now))
    }

    /// Whether a write lease that a site waited for is still its own, after all answers have come.
    pub fn has_lease(&self, site: Origin, epoch: u64, now: Moment) -> bool {
        let one = self.sites.get(&site).filter(|one| one.is_awaited(self.term, now));
        one.is_some_and(|one| one.writes.is_some_and(|(own, _)| own == epoch))
    }

    /// A reader without a read lease opens a file (the home itself if no site is named): when no answer is awaited
    /// any more, all that was acknowledged elsewhere is in the log.
    pub fn flush(&mut self, asker: Option<Origin>, now: Moment) -> Awaited {
        let lost = self.lost(asker, &Awaited::default(), now).into_iter().collect();
        let (term, writers) = (self.term, self.sites.iter_mut());
        let writers = writers.filter(|(site, one)| Some(**site) != asker && one.is_awaited(term, now));
        let flushes = writers.map(|(site, one)| (*site, one.ask_flush(now))).collect();
        Awaited { flushes, lost, ..Awaited::default() }
    }

    /// Deadline of the wait if no further answer comes; `None` if all have come or no site can be waited for.
    pub fn wait_until(&self, awaited: &mut Awaited, now: Moment) -> Option<Moment> {
        let mut until = None;
        awaited.revocations.retain(|(site, number)| {
            let one = self.sites.get(site).filter(|one| one.revoked < *number && now < one.reads_until);
            until = until.max(one.map(|one| one.reads_until));
            one.is_some()
        });
        let Awaited { flushes, lost, .. } = &mut *awaited;
        flushes.retain(|(site, number)| {
            let Some(one) = self.sites.get(site).filter(|one| one.flushed < *number) else { return false };
            let is_awaited = one.is_awaited(self.term, now);
            until = until.max(one.awaited_until(self.term).filter(|_| is_awaited));
            if one.is_lost(self.term, now) {
                lost.push(*site);
            }
            is_awaited
        });
        awaited.is_quiet_awaited &= now < self.quiet_until;
        until.max(awaited.is_quiet_awaited.then_some(self.quiet_until))
    }

    /// The lost sites except the asker, after the wait: changes closed there may be missing.
    pub fn lost(&self, asker: Option<Origin>, awaited: &Awaited, now: Moment) -> BTreeSet<Origin> {
        let is_lost = |one: &SiteState| one.is_lost(self.term, now);
        let lost = self.sites.iter().filter(|(site, one)| Some(**site) != asker && is_lost(one));
        lost.map(|(site, _)| *site).chain(awaited.lost.iter().copied()).collect()
    }

    /// The sites that have a write lease or are lost: persisted for the next start of the home.
    pub fn writers(&self) -> Vec<Origin> {
        let writers = self.sites.iter().filter(|(_, one)| one.writes.is_some());
        writers.map(|(site, _)| *site).collect()
    }

    /// Whether the home may serve from its own tree without asking other sites.
    pub fn may_read_here(&self, now: Moment) -> bool {
        !self.sites.values().any(|one| one.may_write(now))
    }

    /// Whether there is a revocation or flush that a site has not answered.
    pub fn has_news(&self, site: Origin, ask: &LeaseAsk) -> bool {
        let is_news = |one: &SiteState| one.revoke > ask.revoked || one.flush > ask.flushed;
        ask.round != self.round || self.sites.get(&site).is_some_and(is_news)
    }

    /// Drops the write lease of a site that may no longer write: it is neither awaited nor lost. Returns whether it
    /// had one.
    pub fn forget(&mut self, site: Origin) -> bool {
        let Some(one) = self.sites.get_mut(&site).filter(|one| one.writes.is_some()) else { return false };
        (one.writes, one.recovery, one.behind_since) = (None, None, None);
        true
    }
}

/// The leases of one site, at that site.
pub struct SiteLease {
    term: Duration,
    idle: Duration,
    round: u64,
    reads_until: Moment,
    writes: Option<OwnWriteLease>,
    revoked: u64,
    flushed: u64,
    changed: Moment,
}

#[derive(Clone, Copy)]
struct OwnWriteLease {
    epoch: u64,
    /// When it was requested.
    asked: Moment,
    until: Moment,
}

/// Recalls that a site has to carry out before its next request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseDuty {
    /// A revocation: to be acknowledged when the copy is no longer used without asking.
    pub revoke: Option<u64>,
    /// A flush: to be acknowledged when all changes made until now are submitted.
    pub flush: Option<u64>,
}

impl SiteLease {
    /// A site without leases.
    pub fn new(term: Duration, idle: Duration) -> Self {
        let (reads_until, changed) = (Moment::ZERO, Moment::ZERO);
        let term = term - term / DRIFT_SHARE;
        SiteLease { term, idle, round: 0, reads_until, writes: None, revoked: 0, flushed: 0, changed }
    }

    /// The next request; `seq` is the last record here, and `is_handed_in` whether the home has all own changes.
    pub fn ask(&mut self, seq: u64, is_handed_in: bool, now: Moment) -> LeaseAsk {
        let is_idle = is_handed_in && now >= self.changed + self.idle;
        let returned = if is_idle { self.writes.take() } else { None };
        let returns = returned.map(|lease| lease.epoch);
        LeaseAsk { round: self.round, revoked: self.revoked, flushed: self.flushed, returns, seq }
    }

    /// The answer to the request sent at `asked`.
    pub fn on_given(&mut self, asked: Moment, given: &LeaseGiven) -> LeaseDuty {
        if given.round != self.round {
            (self.round, self.revoked, self.flushed) = (given.round, 0, 0);
            // A lease of a previous instance of the home is valid until its expiry, but is not renewed.
            self.writes.iter_mut().for_each(|lease| lease.epoch = OF_ANOTHER_ROUND);
        }
        let revoke = (given.revoke > self.revoked).then_some(given.revoke);
        if revoke.is_some() {
            self.reads_until = Moment::ZERO;
        } else if given.reads {
            self.reads_until = self.reads_until.max(asked + self.term);
        }
        if let Some(lease) = self.writes.as_mut().filter(|lease| given.writes == Some(lease.epoch)) {
            lease.until = lease.until.max(asked + self.term);
        }
        LeaseDuty { revoke, flush: (given.flush > self.flushed).then_some(given.flush) }
    }

    /// A revocation was carried out.
    pub fn on_revoked(&mut self, number: u64) {
        self.revoked = self.revoked.max(number);
    }

    /// A flush was completed.
    pub fn on_flushed(&mut self, number: u64) {
        self.flushed = self.flushed.max(number);
    }

    /// The write lease requested at `asked` was granted.
    pub fn on_acquired(&mut self, asked: Moment, epoch: u64) {
        if self.writes.is_none_or(|known| known.asked < asked) {
            self.writes = Some(OwnWriteLease { epoch, asked, until: asked + self.term });
        }
    }

    /// Something changed here.
    pub fn on_changed(&mut self, now: Moment) {
        self.changed = now;
    }

    /// Whether the copy may be used without asking.
    pub fn may_read(&self, now: Moment) -> bool {
        now < self.reads_until
    }

    /// The remaining time of the read lease.
    pub fn reads_for(&self, now: Moment) -> Duration {
        self.reads_until.saturating_sub(now)
    }

    /// Whether a write lease was not returned yet, expired or not.
    pub fn has_write_lease(&self) -> bool {
        self.writes.is_some()
    }

    /// Whether changes may be acknowledged at once.
    pub fn may_write(&self, now: Moment) -> bool {
        self.writes.is_some_and(|lease| now < lease.until)
    }
}
