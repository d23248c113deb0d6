//! A home and three followers of a volume, on a virtual clock: closes and opens at each, delayed messages, broken connections,
//! killed sites and homes, full disks, clocks of different rates. An open sees every close before it, or gets the name of the
//! lost site or the error that the home is unreachable.
//!
//! A seed that fails is printed; `RENKEI_SIM_SEED=n cargo test -p renkei-core --test it site_leases` runs it alone,
//! `RENKEI_SIM_SEEDS=n` the first n.

use crate::fixture::variable;
use renkei_core::lease::Moment;
use renkei_core::lease::site::{Awaited, LeaseAsk, LeaseDuty, LeaseGiven, SiteLease, SiteLeases};
use renkei_core::namespace::Origin;
use renkei_core::sim::chance::Chance;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const SITES: u16 = 3;
const TERM: Duration = Duration::from_millis(1000);
const IDLE: Duration = Duration::from_millis(600);
/// How long the home holds a question for leases.
const PATIENCE: Duration = Duration::from_millis(300);
/// Longest wait of a program at a site for the home.
const WITHIN: Duration = Duration::from_millis(1500);
/// Longest wait of an open at the home, in all cases.
const WAITS: Duration = Duration::from_millis(3000);
const STEPS: usize = 4_000;
const SEEDS: u64 = 250;

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A change that was made, by its number, and where.
type ChangeId = u64;

/// Messages between a site and its home.
#[derive(Clone, Debug)]
enum Message {
    /// The site asks for its leases; the home answers.
    Ask(LeaseAsk, Moment),
    Given(LeaseGiven, Moment, BTreeSet<Origin>),
    /// The site wants to write, or to open; the home says that it may.
    Acquire(Moment),
    Acquired(u64, Moment),
    Open(u64),
    Opened {
        open: u64,
        last: usize,
        lost: BTreeSet<Origin>,
    },
    /// The site hands changes in; the home says how many of them it has.
    Submit(Vec<ChangeId>),
    Taken,
    /// Records of the log.
    Log(usize),
}

/// A program at a site that waits for the acknowledgement of a close.
struct Closing {
    change: ChangeId,
    until: Moment,
}

/// A program that opens a file at a site.
struct Opening {
    open: u64,
    begun: Moment,
    until: Moment,
    /// The answer of the home: the necessary position of the copy, and the lost sites.
    told: Option<(usize, BTreeSet<Origin>)>,
}

struct Site {
    /// Thousandths by which its clock goes.
    rate: u32,
    lease: SiteLease,
    connection: u64,
    /// Until when it stores no records and hands nothing in, and answers all the same.
    full_until: Moment,
    is_asked: bool,
    is_acquiring: bool,
    is_submitting: bool,
    duty: LeaseDuty,
    /// Own changes that must be in the log before the flush is done.
    flushing: BTreeSet<ChangeId>,
    seq: usize,
    pending: Vec<ChangeId>,
    closing: Vec<Closing>,
    opening: Vec<Opening>,
    /// The lost sites, as reported by the home with its leases.
    lost: BTreeSet<Origin>,
}

/// A program for which the home waits.
enum Waiter {
    Acquire { site: Origin, epoch: u64, asked: Moment },
    Open { site: Option<Origin>, open: u64, begun: Moment },
    Close(ChangeId),
}

struct Home {
    leases: SiteLeases,
    log: Vec<ChangeId>,
    waiters: Vec<(Awaited, Waiter, u64)>,
    /// Questions that are held.
    held: Vec<(Origin, LeaseAsk, Moment, Moment, u64)>,
    /// On its disk.
    writers: Vec<Origin>,
    down_until: Option<Moment>,
}

struct World {
    now: Moment,
    chance: Chance,
    home: Home,
    sites: BTreeMap<Origin, Site>,
    /// Messages with when they arrive; to the home if the flag is set, of one connection.
    wires: Vec<(Moment, Origin, bool, u64, Message)>,
    /// Closes that were acknowledged, with when and where; none for the home.
    closed: Vec<(ChangeId, Moment, Option<Origin>)>,
    next: u64,
    opens: u64,
    /// Checked opens of each kind: local, asked at the home, reported a lost site.
    judged: [u64; 3],
}

impl World {
    fn new(seed: u64) -> World {
        let mut chance = Chance::new(seed);
        let site = |chance: &mut Chance| Site {
            rate: 970 + chance.below(61) as u32,
            lease: SiteLease::new(TERM, IDLE),
            connection: 1,
            full_until: Moment::ZERO,
            is_asked: false,
            is_acquiring: false,
            is_submitting: false,
            duty: LeaseDuty::default(),
            flushing: BTreeSet::new(),
            seq: 0,
            pending: Vec::new(),
            closing: Vec::new(),
            opening: Vec::new(),
            lost: BTreeSet::new(),
        };
        let sites = (1..=SITES).map(|number| (Origin(number), site(&mut chance))).collect();
        let home = Home {
            leases: SiteLeases::new(TERM, IDLE, 1),
            log: Vec::new(),
            waiters: Vec::new(),
            held: Vec::new(),
            writers: Vec::new(),
            down_until: None,
        };
        let (wires, closed) = (Vec::new(), Vec::new());
        World { now: ms(5_000), chance, home, sites, wires, closed, next: 1, opens: 0, judged: [0; 3] }
    }

    fn local(&self, site: Origin) -> Moment {
        self.now * self.sites[&site].rate / 1000
    }

    fn site(&mut self, site: Origin) -> &mut Site {
        self.sites.get_mut(&site).expect("one of those that there are")
    }

    fn send(&mut self, site: Origin, to_home: bool, message: Message) {
        let connection = self.sites[&site].connection;
        if connection == 0 {
            return;
        }
        // Each kind of message has a stream of its own and keeps its order there.
        let kind = std::mem::discriminant(&message);
        let same = |wire: &&(Moment, Origin, bool, u64, Message)| {
            (wire.1, wire.2) == (site, to_home) && std::mem::discriminant(&wire.4) == kind
        };
        let after = self.wires.iter().filter(same).map(|wire| wire.0).max().unwrap_or_default();
        let arrives = (self.now + ms(1 + self.chance.below(80))).max(after);
        self.wires.push((arrives, site, to_home, connection, message));
    }

    // ---- actions of programs ----------------------------------------------------------------------------------------------

    fn close_at_site(&mut self, site: Origin) {
        let (change, local, now) = (self.next, self.local(site), self.now);
        self.next += 1;
        let one = self.site(site);
        one.pending.push(change);
        one.lease.on_changed(local);
        if one.lease.may_write(local) {
            self.closed.push((change, now, Some(site)));
        } else {
            one.closing.push(Closing { change, until: now + WITHIN });
        }
    }

    fn close_at_home(&mut self) {
        let change = self.next;
        self.next += 1;
        self.home.log.push(change);
        let awaited = self.home.leases.change_here(self.now);
        self.home.waiters.push((awaited, Waiter::Close(change), 0));
        self.tell_log();
    }

    fn open_at_site(&mut self, site: Origin) {
        let (local, begun) = (self.local(site), self.now);
        self.opens += 1;
        let open = self.opens;
        if self.sites[&site].lease.may_read(local) {
            let lost = &self.sites[&site].lost;
            self.judged[if lost.is_empty() { 0 } else { 2 }] += 1;
            return self.judge(Some(site), begun, lost);
        }
        self.site(site).opening.push(Opening { open, begun, until: begun + WITHIN, told: None });
        self.send(site, true, Message::Open(open));
    }

    fn open_at_home(&mut self) {
        let awaited = self.home.leases.flush(None, self.now);
        let begun = self.now;
        self.home.waiters.push((awaited, Waiter::Open { site: None, open: 0, begun }, 0));
    }

    /// Files closed before an open began are here, or their site is reported as lost.
    fn judge(&self, at: Option<Origin>, begun: Moment, lost: &BTreeSet<Origin>) {
        let seen: BTreeSet<ChangeId> = match at {
            Some(site) => {
                let one = &self.sites[&site];
                self.home.log[..one.seq].iter().chain(&one.pending).copied().collect()
            }
            None => self.home.log.iter().copied().collect(),
        };
        for (change, when, by) in &self.closed {
            let is_told = by.is_some_and(|by| lost.contains(&by));
            assert!(
                *when >= begun || is_told || seen.contains(change),
                "an open of {begun:?} at {at:?} misses what {by:?} closed at {when:?}"
            );
        }
    }

    // ---- at a site -------------------------------------------------------------------------------------------------

    fn tick_site(&mut self, site: Origin) {
        let (local, now) = (self.local(site), self.now);
        let one = self.site(site);
        // A program that waited for too long continues alone: a site that is cut off.
        one.closing.retain(|closing| now < closing.until);
        one.opening.retain(|opening| now < opening.until);
        if one.connection == 0 {
            return;
        }
        let is_full = now < one.full_until;
        one.duty.flush = one.duty.flush.filter(|_| !is_full);
        let is_flushed = one.flushing.iter().all(|change| !one.pending.contains(change));
        if let Some(flush) = one.duty.flush.filter(|_| is_flushed) {
            one.lease.on_flushed(flush);
            one.duty.flush = None;
        }
        if !one.is_asked && one.duty == LeaseDuty::default() {
            one.is_asked = true;
            let ask = one.lease.ask(one.seq as u64, one.pending.is_empty() && one.closing.is_empty(), local);
            self.send(site, true, Message::Ask(ask, local));
        }
        let one = self.site(site);
        if !one.is_acquiring && !one.pending.is_empty() && !one.lease.may_write(local) {
            one.is_acquiring = true;
            self.send(site, true, Message::Acquire(local));
        }
        let one = self.site(site);
        if !is_full && !one.is_submitting && !one.pending.is_empty() && self.chance.percent(60) {
            let changes = self.sites[&site].pending.clone();
            self.site(site).is_submitting = true;
            self.send(site, true, Message::Submit(changes));
        }
        self.end_opens(site);
    }

    fn end_opens(&mut self, site: Origin) {
        let one = self.site(site);
        let seq = one.seq;
        let is_ready = |opening: &mut Opening| opening.told.as_ref().is_some_and(|(last, _)| *last <= seq);
        let ready: Vec<Opening> = one.opening.extract_if(.., is_ready).collect();
        for Opening { begun, told, .. } in ready {
            let (_, lost) = told.expect("it was looked for");
            self.judged[if lost.is_empty() { 1 } else { 2 }] += 1;
            self.judge(Some(site), begun, &lost);
        }
    }

    fn on_site_hears(&mut self, site: Origin, message: Message) {
        let (local, now) = (self.local(site), self.now);
        let one = self.sites.get_mut(&site).expect("one of those that there are");
        match message {
            Message::Given(given, asked, lost) => {
                (one.is_asked, one.lost) = (false, lost);
                one.duty = one.lease.on_given(asked, &given);
                if let Some(number) = one.duty.revoke.take() {
                    one.lease.on_revoked(number);
                }
                one.flushing = one.pending.iter().copied().collect();
            }
            Message::Acquired(epoch, asked) => {
                one.is_acquiring = false;
                one.lease.on_acquired(asked, epoch);
                if one.lease.may_write(local) {
                    one.lease.on_changed(local);
                    let done = one.closing.drain(..).map(|closing| (closing.change, now, Some(site)));
                    self.closed.extend(done);
                }
            }
            Message::Opened { open, last, lost } => {
                if let Some(opening) = one.opening.iter_mut().find(|opening| opening.open == open) {
                    opening.told = Some((last, lost));
                }
            }
            Message::Taken => one.is_submitting = false,
            Message::Log(_) if now < one.full_until => {}
            Message::Log(len) => {
                let log = &self.home.log[..len.max(one.seq)];
                one.seq = log.len();
                one.pending.retain(|change| !log.contains(change));
            }
            _ => unreachable!("the home does not say this"),
        }
    }

    // ---- at the home -----------------------------------------------------------------------------------------------

    fn tell_log(&mut self) {
        let (sites, len): (Vec<Origin>, _) = (self.sites.keys().copied().collect(), self.home.log.len());
        sites.into_iter().for_each(|site| self.send(site, false, Message::Log(len)));
    }

    fn on_home_hears(&mut self, site: Origin, connection: u64, message: Message) {
        let now = self.now;
        match message {
            Message::Ask(ask, asked) => self.home.held.push((site, ask, asked, now + PATIENCE, connection)),
            Message::Acquire(asked) => {
                if !self.home.writers.contains(&site) {
                    self.home.writers.push(site);
                }
                let (epoch, awaited) = self.home.leases.acquire(site, now);
                self.home.waiters.push((awaited, Waiter::Acquire { site, epoch, asked }, connection));
            }
            Message::Open(open) => {
                let awaited = self.home.leases.flush(Some(site), now);
                let waiter = Waiter::Open { site: Some(site), open, begun: now };
                self.home.waiters.push((awaited, waiter, connection));
            }
            Message::Submit(changes) => {
                let new: Vec<_> = changes.into_iter().filter(|one| !self.home.log.contains(one)).collect();
                self.home.log.extend(new);
                self.tell_log();
                self.send(site, false, Message::Taken);
            }
            _ => unreachable!("sites do not say this"),
        }
    }

    fn tick_home(&mut self) {
        let now = self.now;
        if let Some(until) = self.home.down_until {
            if now < until {
                return;
            }
            self.home.down_until = None;
            self.next += 1;
            let leases = SiteLeases::new(TERM, IDLE, self.next << 32);
            self.home.leases = leases.after_another(&self.home.writers, now);
        }
        for (mut awaited, waiter, connection) in std::mem::take(&mut self.home.waiters) {
            match self.home.leases.wait_until(&mut awaited, now) {
                Some(_) => self.home.waiters.push((awaited, waiter, connection)),
                None => self.done(&awaited, waiter, connection),
            }
        }
        for (site, ask, asked, until, connection) in std::mem::take(&mut self.home.held) {
            if self.sites[&site].connection != connection {
                continue;
            }
            if now < until && !self.home.leases.has_news(site, &ask) && ask.returns.is_none() {
                self.home.held.push((site, ask, asked, until, connection));
                continue;
            }
            let given = self.home.leases.renew(site, &ask, self.home.log.len() as u64, now);
            self.home.writers = self.home.leases.writers();
            let lost = self.home.leases.lost(Some(site), &Awaited::default(), now);
            self.send(site, false, Message::Given(given, asked, lost));
        }
    }

    fn done(&mut self, awaited: &Awaited, waiter: Waiter, connection: u64) {
        let now = self.now;
        match waiter {
            Waiter::Close(change) => self.closed.push((change, now, None)),
            Waiter::Open { site: None, begun, .. } => {
                assert!(now - begun < WAITS, "an open of {begun:?} at the home waited until {now:?}");
                let lost = self.home.leases.lost(None, awaited, now);
                self.judge(None, begun, &lost);
            }
            Waiter::Open { site: Some(site), open, .. } => {
                let lost = self.home.leases.lost(Some(site), awaited, now);
                let last = self.home.log.len();
                if self.sites[&site].connection == connection {
                    self.send(site, false, Message::Opened { open, last, lost });
                }
            }
            Waiter::Acquire { site, epoch, asked } => {
                let is_there = self.sites[&site].connection == connection;
                if is_there && self.home.leases.has_lease(site, epoch, now) {
                    self.send(site, false, Message::Acquired(epoch, asked));
                } else if is_there {
                    // It asks once more.
                    self.site(site).is_acquiring = false;
                }
            }
        }
    }

    // ---- faults -------------------------------------------------------------------------------------------------------

    fn cut(&mut self, site: Origin) {
        self.wires.retain(|wire| wire.1 != site);
        let one = self.site(site);
        one.connection = 0;
        (one.is_asked, one.is_acquiring, one.is_submitting) = (false, false, false);
        // The changes that a flush waited for are pushed later; the home asks again.
        one.duty = LeaseDuty::default();
    }

    fn connect(&mut self, site: Origin) {
        if self.home.down_until.is_some() || self.sites[&site].connection != 0 {
            return;
        }
        self.next += 1;
        let (connection, len) = (self.next, self.home.log.len());
        self.site(site).connection = connection;
        self.send(site, false, Message::Log(len));
    }

    /// A site's PoP is killed: its changes are on its disk, and its leases are lost.
    fn kill_site(&mut self, site: Origin) {
        self.cut(site);
        let one = self.site(site);
        one.lease = SiteLease::new(TERM, IDLE);
        one.closing.clear();
        one.opening.clear();
    }

    fn kill_home(&mut self) {
        let sites: Vec<Origin> = self.sites.keys().copied().collect();
        sites.into_iter().for_each(|site| self.cut(site));
        self.home.waiters.clear();
        self.home.held.clear();
        self.home.down_until = Some(self.now + ms(self.chance.below(1500)));
    }

    fn step(&mut self) {
        self.now += ms(1 + self.chance.below(12));
        let site = Origin(1 + self.chance.below(u64::from(SITES)) as u16);
        let is_home_up = self.home.down_until.is_none();
        match self.chance.below(1000) {
            0..=39 => self.open_at_site(site),
            40..=49 if is_home_up => self.open_at_home(),
            50..=63 => self.close_at_site(site),
            64..=66 if is_home_up => self.close_at_home(),
            67..=69 => self.cut(site),
            70..=99 => self.connect(site),
            100 if self.chance.percent(50) => self.kill_site(site),
            101 if is_home_up && self.chance.percent(30) => self.kill_home(),
            // A time without writes.
            102 => self.now += ms(self.chance.below(700)),
            103 => self.site(site).full_until = self.now + ms(self.chance.below(5_000)),
            _ => {}
        }
        while let Some(first) = self.wires.iter().enumerate().min_by_key(|(_, wire)| wire.0) {
            if first.1.0 > self.now {
                break;
            }
            let (_, site, to_home, connection, message) = self.wires.remove(first.0);
            if self.sites[&site].connection != connection {
                continue;
            }
            match to_home {
                true => self.on_home_hears(site, connection, message),
                false => self.on_site_hears(site, message),
            }
        }
        self.tick_home();
        let sites: Vec<Origin> = self.sites.keys().copied().collect();
        sites.into_iter().for_each(|site| self.tick_site(site));
    }

    fn run(mut self) -> [u64; 3] {
        for _ in 0..STEPS {
            self.step();
        }
        self.judged
    }
}

#[test]
fn an_open_sees_every_earlier_close_or_its_site_is_reported_as_lost() {
    let one = variable("RENKEI_SIM_SEED");
    let seeds = one.map_or(0..variable("RENKEI_SIM_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    let mut judged = [0; 3];
    for seed in seeds {
        let run = std::panic::catch_unwind(|| World::new(seed).run());
        let run = run.unwrap_or_else(|_| panic!("RENKEI_SIM_SEED={seed}"));
        (0..3).for_each(|kind| judged[kind] += run[kind]);
    }
    println!("opens served locally, asked, with a lost site: {judged:?}");
    assert!(one.is_some() || judged.iter().all(|count| *count > 100), "{judged:?}");
}

/// A home with one site, whose answers arrive every 100 ms.
struct OneSite {
    leases: SiteLeases,
    ask: LeaseAsk,
    now: Moment,
}

impl OneSite {
    const SITE: Origin = Origin(1);

    fn answer(&mut self, flushes: bool) {
        self.now += ms(100);
        let given = self.leases.renew(Self::SITE, &self.ask, 0, self.now);
        (self.ask.round, self.ask.revoked) = (given.round, given.revoke);
        if flushes {
            self.ask.flushed = given.flush;
        }
    }

    /// How long an open at the home waits, and whether the site counts as lost then.
    fn open(&mut self) -> (Duration, bool) {
        let begun = self.now;
        let mut awaited = self.leases.flush(None, begun);
        while self.leases.wait_until(&mut awaited, self.now).is_some() {
            assert!(self.now - begun < 5 * TERM, "it waits for ever");
            self.answer(false);
        }
        (self.now - begun, self.leases.lost(None, &awaited, self.now).contains(&Self::SITE))
    }

    fn acquire(&mut self) -> bool {
        let (epoch, _) = self.leases.acquire(Self::SITE, self.now);
        self.leases.has_lease(Self::SITE, epoch, self.now)
    }
}

#[test]
fn a_site_that_answers_and_pushes_nothing_is_waited_for_once() {
    let (leases, ask) = (SiteLeases::new(TERM, IDLE, 1), LeaseAsk::default());
    let mut one = OneSite { leases, ask, now: ms(5_000) };
    assert!(one.acquire());
    one.answer(false);
    assert_eq!(one.open(), (TERM, true));
    for _ in 0..30 {
        assert_eq!(one.open(), (Duration::ZERO, true));
        assert!(!one.acquire(), "it would be waited for again");
        one.answer(false);
    }
    // It has space again, and pushes its changes.
    (0..10).for_each(|_| one.answer(true));
    assert_eq!(one.open(), (Duration::ZERO, false));
    assert!(one.acquire());
    one.answer(true);
    assert_eq!(one.open(), (TERM, true), "it is waited for as before");
}
