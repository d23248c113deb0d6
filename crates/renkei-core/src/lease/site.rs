//! Site leases: which sites of a volume may believe their copy without asking, and which may acknowledge changes.
//!
//! The home keeps the table ([`SiteLeases`]). A site with a *read lease* opens files from its copy of the tree without asking:
//! before anybody else acknowledges a change, that lease is revoked or over. A site with a *write lease* acknowledges changes at once
//! and hands them in afterwards; while it has the lease, no other site gets a read lease, and an open elsewhere has it *flush* first.
//! Several sites may have write leases; then each open asks. A site whose write lease ended before it was returned may have
//! acknowledged changes that nobody else has: it is *lost* until it is back and has handed them in, and opens elsewhere are
//! told so. A site that answers and for a term hands in nothing that a flush asked for, because its disk is full for instance, is
//! lost, too: opens wait no longer for it than for one that does not answer.
//!
//! The site's own end ([`SiteLease`]) counts a term from the moment it asked, less a share for clocks that do not go alike; the home
//! counts from the moment it answered. So the site's ends first.
//!
//! Guarantee (close to open): an open that began after a close was acknowledged under a write lease, or at the home, is made of a
//! copy that has what was closed, or the opener is told which site is lost. Non-goals: exclusive creation across sites, and changes
//! made past the volume's store.

use super::Moment;
use crate::namespace::Origin;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a site may go on without hearing its home.
pub const TERM: Duration = Duration::from_secs(6);
/// How long nobody must have written before other sites may believe their copies again.
pub const IDLE: Duration = Duration::from_secs(2);
/// Share of a term that is left for clocks that do not go alike.
const DRIFT_SHARE: u32 = 16;

/// The epoch of a write lease that is not renewed. Epochs are counted from 1 on.
const OF_ANOTHER_ROUND: u64 = 0;

/// What a site tells its home when it asks for its leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAsk {
    /// The round of the home that the numbers below are of.
    pub round: u64,
    /// The last revocation that it has obeyed.
    pub revoked: u64,
    /// The last flush that it has done.
    pub flushed: u64,
    /// The write lease that it returns, by its epoch: all that it changed under it is handed in.
    pub returns: Option<u64>,
    /// The last record of the log that it has.
    pub seq: u64,
}

/// What a site is given, for a term from the moment it asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseGiven {
    /// The round of the home: another one at each of its starts, with numbers of its own.
    pub round: u64,
    /// Whether it has a read lease.
    pub reads: bool,
    /// The epoch of the write lease that goes on.
    pub writes: Option<u64>,
    /// The last revocation of its read lease.
    pub revoke: u64,
    /// The last flush that somebody waits for.
    pub flush: u64,
}

/// The leases that a home has given, by site.
pub struct SiteLeases {
    term: Duration,
    idle: Duration,
    /// Up to when sites may believe what a home before this one gave them.
    quiet_until: Moment,
    /// Up to when the home itself counts as writing.
    busy_until: Moment,
    sites: BTreeMap<Origin, Standing>,
    round: u64,
    epochs: u64,
}

#[derive(Clone, Copy, Default)]
struct Standing {
    /// End of its read lease.
    reads_until: Moment,
    /// The record that it must have for one; unknown since others changed something. What it changes itself it has.
    needs: Option<u64>,
    /// Its write lease until it is returned: the epoch, and when it ends.
    writes: Option<(u64, Moment)>,
    revoke: u64,
    revoked: u64,
    flush: u64,
    flushed: u64,
    /// Since when a flush is not done.
    behind_since: Option<Moment>,
    /// The flush by which a lost site shows that all is handed in.
    recovery: Option<u64>,
}

impl Standing {
    /// Whether it may believe that it has a write lease.
    fn may_write(&self, now: Moment) -> bool {
        self.writes.is_some_and(|(_, until)| now < until)
    }

    /// Until when it is waited for: its write lease lasts, and it hands in what is asked for.
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

    /// Whether it was there for a term without doing a flush.
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

    /// Whether other copies may miss something because of it that nobody tells of.
    fn keeps_others_from_reading(&self, now: Moment) -> bool {
        self.may_write(now) || self.recovery.is_some()
    }
}

/// Answers of sites that somebody waits for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Awaited {
    revocations: Vec<(Origin, u64)>,
    flushes: Vec<(Origin, u64)>,
    /// Sites whose write lease ended while their flush was waited for: back or not, what they closed before may be missing.
    lost: Vec<Origin>,
    is_quiet_awaited: bool,
}

impl Awaited {
    /// Nobody waits any longer: sites that have not flushed count as lost.
    pub fn give_up(&mut self) {
        self.lost.extend(self.flushes.drain(..).map(|(site, _)| site));
    }
}

impl SiteLeases {
    /// A table without leases.
    ///
    /// `round` is another one at each start of the home.
    pub fn new(term: Duration, idle: Duration, round: u64) -> Self {
        let (quiet_until, busy_until) = (Moment::ZERO, Moment::ZERO);
        SiteLeases { term, idle, quiet_until, busy_until, sites: BTreeMap::new(), round, epochs: 0 }
    }

    /// The same table at the start of a home whose predecessor gave leases; `writers` had write leases.
    pub fn after_another(self, writers: &[Origin], now: Moment) -> Self {
        let mut leases = SiteLeases { quiet_until: now + self.term, ..self };
        for site in writers {
            let writes = Some((leases.draw_epoch(), now + leases.term));
            leases.sites.insert(*site, Standing { writes, ..Standing::default() });
        }
        leases
    }

    fn draw_epoch(&mut self) -> u64 {
        self.epochs += 1;
        self.epochs
    }

    /// A site asks for its leases; `last` is the last record of the log.
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

    fn others(&self, site: Origin) -> impl Iterator<Item = &Standing> {
        self.sites.iter().filter(move |(other, _)| **other != site).map(|(_, one)| one)
    }

    /// Notes what a site has done, before it is asked whether there is news for it.
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

    /// A lost site is back: it hands in what it has, and nobody else believes a copy meanwhile.
    fn recover(&mut self, site: Origin, now: Moment) {
        let others_read = self.revoke_reads(Some(site), now).is_some();
        let one = self.sites.entry(site).or_default();
        // One that is not waited for any more may go on writing until its term is over.
        let writes = one.may_write(now);
        match one.recovery {
            None => {
                // Who was away is given a term to hand in what it has.
                one.behind_since = one.behind_since.filter(|_| writes);
                one.recovery = Some(one.ask_flush(now));
            }
            Some(flush) if one.flushed >= flush && !others_read && !writes => {
                (one.recovery, one.writes) = (None, None);
            }
            Some(_) => {}
        }
    }

    /// Something changes: revokes the read leases of all other sites; none if nobody has one.
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

    /// The home itself has changed something; it is acknowledged when no answer is awaited any more.
    pub fn change_here(&mut self, now: Moment) -> Awaited {
        self.busy_until = now + self.idle;
        self.awaited_revocations(None, now)
    }

    /// A site wants to acknowledge changes. It may when no answer is awaited any more, by the write lease of this epoch.
    pub fn acquire(&mut self, site: Origin, now: Moment) -> (u64, Awaited) {
        let (epoch, until) = (self.draw_epoch(), now + self.term);
        let one = self.sites.entry(site).or_default();
        // Who hands in nothing gets no lease for which others would wait again.
        if !one.is_overdue(self.term, now) {
            one.behind_since = one.behind_since.filter(|_| one.recovery.is_some() || one.may_write(now));
            (one.writes, one.recovery) = (Some((epoch, until)), None);
        }
        (epoch, self.awaited_revocations(Some(site), now))
    }

    /// Whether a write lease that a site waits for is its own still, after all answers have come.
    pub fn has_lease(&self, site: Origin, epoch: u64, now: Moment) -> bool {
        let one = self.sites.get(&site).filter(|one| one.is_awaited(self.term, now));
        one.is_some_and(|one| one.writes.is_some_and(|(own, _)| own == epoch))
    }

    /// Somebody opens a file who has no read lease (the home itself if no site is named): all that was acknowledged
    /// elsewhere is in the log when no answer is awaited any more.
    pub fn flush(&mut self, asker: Option<Origin>, now: Moment) -> Awaited {
        let lost = self.lost(asker, &Awaited::default(), now).into_iter().collect();
        let (term, writers) = (self.term, self.sites.iter_mut());
        let writers = writers.filter(|(site, one)| Some(**site) != asker && one.is_awaited(term, now));
        let flushes = writers.map(|(site, one)| (*site, one.ask_flush(now))).collect();
        Awaited { flushes, lost, ..Awaited::default() }
    }

    /// Until when the answers are to be waited for, if none comes; none if all have come or nobody can be waited for.
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

    /// The lost sites but for one, after nothing is awaited any more: what they closed may be missing.
    pub fn lost(&self, asker: Option<Origin>, awaited: &Awaited, now: Moment) -> BTreeSet<Origin> {
        let is_lost = |one: &Standing| one.is_lost(self.term, now);
        let lost = self.sites.iter().filter(|(site, one)| Some(**site) != asker && is_lost(one));
        lost.map(|(site, _)| *site).chain(awaited.lost.iter().copied()).collect()
    }

    /// The sites that have a write lease or are lost: a home that is started anew has to know them.
    pub fn writers(&self) -> Vec<Origin> {
        let writers = self.sites.iter().filter(|(_, one)| one.writes.is_some());
        writers.map(|(site, _)| *site).collect()
    }

    /// Whether the home may believe its own tree without asking anybody.
    pub fn may_read_here(&self, now: Moment) -> bool {
        !self.sites.values().any(|one| one.may_write(now))
    }

    /// Whether a site is told something by an answer now: a revocation or flush that it has not followed.
    pub fn has_news(&self, site: Origin, ask: &LeaseAsk) -> bool {
        let is_news = |one: &Standing| one.revoke > ask.revoked || one.flush > ask.flushed;
        ask.round != self.round || self.sites.get(&site).is_some_and(is_news)
    }

    /// A site that may not write any more is not waited for, nor lost; tells whether it was.
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
    /// When it was asked for.
    asked: Moment,
    until: Moment,
}

/// What a site has to do before it asks again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseDuty {
    /// Nobody here may believe the copy any more; this revocation is obeyed then.
    pub revoke: Option<u64>,
    /// All that was changed until now is handed in; this flush is done then.
    pub flush: Option<u64>,
}

impl SiteLease {
    /// A site without leases.
    pub fn new(term: Duration, idle: Duration) -> Self {
        let (reads_until, changed) = (Moment::ZERO, Moment::ZERO);
        let term = term - term / DRIFT_SHARE;
        SiteLease { term, idle, round: 0, reads_until, writes: None, revoked: 0, flushed: 0, changed }
    }

    /// What to ask; `seq` is the last record here, and `is_handed_in` whether the home has all own changes.
    pub fn ask(&mut self, seq: u64, is_handed_in: bool, now: Moment) -> LeaseAsk {
        let is_idle = is_handed_in && now >= self.changed + self.idle;
        let returned = if is_idle { self.writes.take() } else { None };
        let returns = returned.map(|lease| lease.epoch);
        LeaseAsk { round: self.round, revoked: self.revoked, flushed: self.flushed, returns, seq }
    }

    /// The answer to what was asked at `asked`.
    pub fn on_given(&mut self, asked: Moment, given: &LeaseGiven) -> LeaseDuty {
        if given.round != self.round {
            (self.round, self.revoked, self.flushed) = (given.round, 0, 0);
            // What an earlier home gave lasts to its end.
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

    /// A revocation was obeyed.
    pub fn on_revoked(&mut self, number: u64) {
        self.revoked = self.revoked.max(number);
    }

    /// A flush was done.
    pub fn on_flushed(&mut self, number: u64) {
        self.flushed = self.flushed.max(number);
    }

    /// The write lease that was asked for at `asked` is there.
    pub fn on_acquired(&mut self, asked: Moment, epoch: u64) {
        if self.writes.is_none_or(|known| known.asked < asked) {
            self.writes = Some(OwnWriteLease { epoch, asked, until: asked + self.term });
        }
    }

    /// Something was changed here.
    pub fn on_changed(&mut self, now: Moment) {
        self.changed = now;
    }

    /// Whether the copy may be believed without asking.
    pub fn may_read(&self, now: Moment) -> bool {
        now < self.reads_until
    }

    /// How long it may be.
    pub fn reads_for(&self, now: Moment) -> Duration {
        self.reads_until.saturating_sub(now)
    }

    /// Whether a write lease was not returned, over or not.
    pub fn has_write_lease(&self) -> bool {
        self.writes.is_some()
    }

    /// Whether changes may be acknowledged without asking.
    pub fn may_write(&self, now: Moment) -> bool {
        self.writes.is_some_and(|lease| now < lease.until)
    }
}
