//! The table and its holders on a virtual clock: messages are delayed, connections are cut, and no holder ever shows
//! state older than an acknowledged change.

use super::callbacks::{Callback, CallbackQueue};
use super::holder::{Recent, Term};
use super::*;
use crate::invalidation::Changed;
use crate::sim::chance::Chance;

const TERM: Duration = Duration::from_millis(1000);
const DIRS: u64 = 4;
const HOLDERS: usize = 3;

fn ms(count: u64) -> Moment {
    Duration::from_millis(count)
}

#[test]
fn lease_holders_are_called_back_and_the_writer_is_not() {
    let mut leases = Leases::new(TERM, 10);
    let (a, b) = (leases.join(ms(0)), leases.join(ms(0)));
    assert_eq!((leases.note(a, 7, ms(1)), leases.note(a, 7, ms(1))), (Noted::New, Noted::Known));
    leases.note(b, 7, ms(1));
    assert!(leases.change(None, &[8], ms(2)).is_empty());
    let calls = leases.change(Some(a), &[7, 8], ms(2));
    assert_eq!(calls, [Call { holder: b, number: 1, until: TERM }]);
    assert!(leases.is_open(&calls[0], ms(3)) && !leases.is_open(&calls[0], TERM));
    leases.answer(b, 1);
    assert!(!leases.is_open(&calls[0], ms(3)));
    leases.leave(b);
    leases.leave(a);
    assert!(leases.is_empty());
}

#[test]
fn a_lost_holder_delays_others_by_one_term_only() {
    let mut leases = Leases::new(TERM, 10);
    let gone = leases.join(ms(0));
    leases.note(gone, 7, ms(0));
    let calls = leases.change(None, &[7], ms(900));
    assert!(leases.is_open(&calls[0], ms(999)) && !leases.is_open(&calls[0], ms(1000)));
    assert!(leases.change(None, &[7], ms(1000)).is_empty());
    assert_eq!(leases.renew(gone, ms(1001)), Some(2), "it holds nothing any more, and hears so");
    assert!(leases.is_empty());
}

#[test]
fn a_connected_holder_silent_for_a_term_keeps_its_leases() {
    let mut telling = CallbackQueue::new(TERM, 10);
    let (gone, silent) = (telling.join(ms(0)), telling.join(ms(0)));
    telling.end(gone);
    assert!(!telling.is_forgotten(ms(2000)));
    telling.ask_term(silent, 1, 0);
    assert!(matches!(telling.next_told(silent, ms(2000)), Some(Callback::Term { length: TERM, .. })));
    telling.end(silent);
    assert!(!telling.is_forgotten(ms(2999)) && telling.is_forgotten(ms(3000)));
}

#[test]
fn leases_over_the_limit_are_not_given() {
    let mut leases = Leases::new(TERM, 2);
    let id = leases.join(ms(0));
    let noted: Vec<Noted> = [1, 2, 3, 1].map(|dir| leases.note(id, dir, ms(0))).into();
    assert_eq!(noted, [Noted::New, Noted::New, Noted::No, Noted::Known]);
    assert_eq!(leases.note(id, 1, TERM), Noted::No, "after the term");
}

#[test]
fn answers_overtaken_by_a_change_are_detected() {
    let mut recent = Recent::default();
    let name = |dir: u64| Changed { names: vec![(dir, b"f".to_vec())], ..Changed::default() };
    recent.add(name(1));
    let begun = recent.count();
    assert!(!recent.is_concerned(begun, |_| true));
    recent.add(name(2));
    let concerns = |dir: u64| move |changed: &Changed| changed.names.iter().any(|(at, _)| *at == dir);
    assert!(recent.is_concerned(begun, concerns(2)) && !recent.is_concerned(begun, concerns(1)));
    (0..1000).for_each(|_| recent.add(Changed::default()));
    assert!(recent.is_concerned(begun, |_| false), "more than are remembered");
}

// ---- simulation on a virtual clock --------------------------------------------------------------------------------

/// Messages from the table to a holder, in order on one stream; answers to lookups come on another one.
enum Down {
    Call { number: u64, dir: u64 },
    Term { number: u64, round: u64 },
}

/// Messages from a holder to the table.
enum Up {
    Renew(u64),
    Answer(u64),
}

/// Messages in flight, with their arrival times.
type Way<T> = Vec<(Moment, T)>;

struct Client {
    id: HolderId,
    is_cut: bool,
    term: Term,
    recent: Recent,
    /// Cached version of each directory, and the age in which it was cached.
    known: BTreeMap<u64, (u64, u64)>,
    down: Way<Down>,
    up: Way<Up>,
    /// Answers to lookups in flight: directory, version, age and number of changes at the request, and whether it is
    /// held.
    looks: Way<(u64, u64, u64, u64, bool)>,
}

struct World {
    now: Moment,
    chance: Chance,
    leases: Leases,
    versions: BTreeMap<u64, u64>,
    /// The newest acknowledged version of each directory.
    done: BTreeMap<u64, u64>,
    open: Vec<(u64, u64, Vec<Call>)>,
    holders: Vec<Client>,
    shown: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut leases = Leases::new(TERM, (DIRS as usize) * HOLDERS - 2);
        let holders = (0..HOLDERS).map(|_| Client::new(leases.join(ms(0)))).collect();
        let (versions, done) = (BTreeMap::new(), BTreeMap::new());
        let chance = Chance::new(seed);
        World { now: ms(0), chance, leases, versions, done, open: Vec::new(), holders, shown: 0 }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.chance.below(bound)
    }

    /// Arrival time of a message sent now on a stream whose last message in flight arrives at `last`.
    fn arrival(&mut self, last: Option<Moment>) -> Moment {
        let slow = if self.below(20) == 0 { 700 } else { 40 };
        (self.now + ms(1 + self.below(slow))).max(last.unwrap_or_default())
    }

    fn send_down(&mut self, at: usize, message: Down) {
        let last = self.holders[at].down.last().map(|(when, _)| *when);
        let when = self.arrival(last);
        if !self.holders[at].is_cut {
            self.holders[at].down.push((when, message));
        }
    }

    fn send_up(&mut self, at: usize, message: Up) {
        let last = self.holders[at].up.last().map(|(when, _)| *when);
        let when = self.arrival(last);
        if !self.holders[at].is_cut {
            self.holders[at].up.push((when, message));
        }
    }

    fn step(&mut self) {
        let pause = ms(1 + self.below(25));
        self.now += pause;
        let (at, dir) = (self.below(HOLDERS as u64) as usize, self.below(DIRS));
        match self.below(40) {
            0..=4 => self.change(dir, at),
            5..=20 => self.look(at, dir),
            21..=26 => {
                let number = self.holders[at].term.ask(self.now);
                self.send_up(at, Up::Renew(number));
            }
            27 => self.cut(at),
            _ => {}
        }
        (0..HOLDERS).for_each(|at| self.deliver(at));
        self.acknowledge();
        (0..HOLDERS).for_each(|at| self.show(at));
    }

    fn change(&mut self, dir: u64, by: usize) {
        let version = self.versions.entry(dir).or_default();
        *version += 1;
        let version = *version;
        // Some changes are made by holders, which invalidate their own caches.
        let by = (self.below(2) == 0 && !self.holders[by].is_cut).then_some(by);
        if let Some(by) = by {
            self.holders[by].on_changed(dir);
        }
        let calls = self.leases.change(by.map(|by| self.holders[by].id), &[dir], self.now);
        for call in &calls {
            let at = self.holders.iter().position(|held| held.id == call.holder);
            if let Some(at) = at {
                self.send_down(at, Down::Call { number: call.number, dir });
            }
        }
        self.open.push((dir, version, calls));
    }

    /// A holder looks a directory up: from its cache, or with a request.
    fn look(&mut self, at: usize, dir: u64) {
        if self.holders[at].believed(dir, self.now).is_some() || self.holders[at].is_cut {
            return;
        }
        let noted = self.leases.note(self.holders[at].id, dir, self.now);
        let version = self.versions.get(&dir).copied().unwrap_or_default();
        let (age, count) = (self.holders[at].term.age(), self.holders[at].recent.count());
        let when = self.arrival(None);
        self.holders[at].looks.push((when, (dir, version, age, count, noted != Noted::No)));
    }

    /// Toggles a holder's connection: a cut one loses all messages in flight; a new one joins again with an empty
    /// cache.
    fn cut(&mut self, at: usize) {
        let held = &mut self.holders[at];
        held.is_cut = !held.is_cut;
        if held.is_cut {
            held.down.clear();
            held.up.clear();
            held.looks.clear();
        } else {
            held.id = self.leases.join(self.now);
            held.term.begin_again();
        }
    }

    fn deliver(&mut self, at: usize) {
        let now = self.now;
        for (dir, version, age, count, is_held) in due(&mut self.holders[at].looks, now) {
            let held = &mut self.holders[at];
            let is_late = held.recent.is_concerned(count, |changed| concerns(changed, dir));
            if is_held && !is_late && age == held.term.age() {
                held.known.insert(dir, (version, age));
            }
        }
        for message in due(&mut self.holders[at].down, now) {
            match message {
                Down::Call { number, dir } => {
                    self.holders[at].on_changed(dir);
                    self.send_up(at, Up::Answer(number));
                }
                Down::Term { number, round } => self.holders[at].term.on_given(number, round, TERM),
            }
        }
        for message in due(&mut self.holders[at].up, now) {
            let id = self.holders[at].id;
            match message {
                Up::Answer(number) => self.leases.answer(id, number),
                Up::Renew(number) => {
                    if let Some(round) = self.leases.renew(id, now) {
                        self.send_down(at, Down::Term { number, round });
                    }
                }
            }
        }
    }

    fn acknowledge(&mut self) {
        let (leases, now, done) = (&self.leases, self.now, &mut self.done);
        self.open.retain(|(dir, version, calls)| {
            let is_open = calls.iter().any(|call| leases.is_open(call, now));
            if !is_open {
                let known = done.entry(*dir).or_default();
                *known = (*known).max(*version);
            }
            is_open
        });
    }

    /// Asserts that no holder's cache is older than an acknowledged change.
    fn show(&mut self, at: usize) {
        for dir in 0..DIRS {
            let Some(version) = self.holders[at].believed(dir, self.now) else { continue };
            let done = self.done.get(&dir).copied().unwrap_or_default();
            assert!(version >= done, "holder {at} shows {version} of {dir}, {done} was acknowledged");
            self.shown += 1;
        }
    }
}

impl Client {
    fn new(id: HolderId) -> Client {
        let (term, recent) = (Term::default(), Recent::default());
        let (down, up, looks) = (Vec::new(), Vec::new(), Vec::new());
        Client { id, is_cut: false, term, recent, known: BTreeMap::new(), down, up, looks }
    }

    fn believed(&self, dir: u64, now: Moment) -> Option<u64> {
        let (version, age) = *self.known.get(&dir)?;
        self.term.until(age).filter(|until| now < *until).map(|_| version)
    }

    fn on_changed(&mut self, dir: u64) {
        self.known.remove(&dir);
        self.recent.add(Changed { names: vec![(dir, Vec::new())], ..Changed::default() });
    }
}

fn concerns(changed: &Changed, dir: u64) -> bool {
    changed.names.iter().any(|(at, _)| *at == dir)
}

fn due<T>(way: &mut Way<T>, now: Moment) -> Vec<T> {
    let (ready, later): (Way<T>, Way<T>) = way.drain(..).partition(|(when, _)| *when <= now);
    *way = later;
    ready.into_iter().map(|(_, message)| message).collect()
}

#[test]
fn no_holder_shows_state_older_than_an_acknowledged_change() {
    let mut shown = 0;
    for seed in 0..400 {
        let mut world = World::new(seed);
        (0..1500).for_each(|_| world.step());
        shown += world.shown;
    }
    assert!(shown > 200_000, "leases are used: {shown}");
}
