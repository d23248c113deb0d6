//! Three sites of one volume with caching mounts at each, on a virtual clock: messages take their time and pass each other on
//! different streams, connections are cut and the two ends notice at different times, PoPs and mounts are killed and restarted,
//! and all clocks run at different rates. No mount ever shows a state older than a change whose maker, through the same PoP,
//! was answered before.
//!
//! A seed that fails is printed; `RENKEI_SIM_SEED=n cargo test -p renkei-core --test it leases` runs it alone,
//! `RENKEI_SIM_SEEDS=n` the first n.

use crate::fixture::variable;
use crate::mounts::{Answer, CachedName, Mount, Request};
use crate::namespace::{Ids, Step, Wrote, change};
use renkei_core::lease::callbacks::{Callback, CallbackQueue, Settling};
use renkei_core::lease::{HolderId, Moment, Noted};
use renkei_core::namespace::dir_aliases::DirAliases;
use renkei_core::namespace::follower::Follower;
use renkei_core::namespace::home::Home;
use renkei_core::namespace::invalidations::Invalidations;
use renkei_core::namespace::memory::MemoryTree;
use renkei_core::namespace::tree::{Clash, Tree, decide};
use renkei_core::namespace::{
    Change, Dentry, Kind, Name, NewKind, Node, NodeId, Origin, ROOT, Record, SequencedChange,
};
use renkei_core::sim::chance::Chance;
use renkei_core::wire::file::Changed;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

pub const TERM: Duration = Duration::from_millis(1000);
/// Most directories that the holders of a PoP hold together: some find no room.
const MOST: usize = 40;
const POPS: usize = 3;
const MOUNTS: usize = 7;
const STEPS: usize = 900;
const SEEDS: u64 = 250;

fn ms(count: u64) -> Moment {
    Duration::from_millis(count)
}

/// Something that is shown, by the numbers that are shown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Name(u64, Name),
    Node(u64),
}

/// The kind of the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Child(u64),
    Node(Attr),
}

/// The attributes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    pub is_dir: bool,
    pub links: u32,
    size: u64,
    mode: u32,
    mtime: i64,
}

impl Attr {
    fn of(node: &Node) -> Attr {
        let size = if let Kind::File(content) = &node.kind { content.size } else { 0 };
        let (mode, mtime) = (node.attributes.mode, node.attributes.mtime.secs);
        Attr { is_dir: node.is_dir(), links: node.links, size, mode, mtime }
    }
}

type Shown = BTreeMap<Key, Value>;

/// All that is shown of a tree.
fn shown(tree: &impl Tree, merged: &DirAliases) -> Shown {
    let (mut all, mut todo) = (Shown::new(), vec![ROOT]);
    while let Some(id) = todo.pop() {
        let number = merged.shown(id).0;
        let Some(node) = tree.node(id) else { continue };
        if node.is_dir() {
            for (name, child) in tree.list(id, None, usize::MAX) {
                all.insert(Key::Name(number, name), Value::Child(merged.shown(child).0));
                todo.push(child);
            }
        }
        all.insert(Key::Node(number), Value::Node(Attr::of(&node)));
    }
    all
}

/// A change that is shown, and not acknowledged.
struct Open {
    settling: Settling,
    event: u64,
    keys: Vec<Key>,
    /// The maker of a change, and the answer it gets.
    by: Option<(usize, u64, Box<Answer>, Vec<u64>)>,
}

/// A mount as the PoP sees it.
#[derive(Clone, Copy)]
struct Serving {
    mount: usize,
    session: u64,
    holder: HolderId,
}

struct Pop {
    /// How its clock goes, in thousandths.
    rate: u32,
    down_until: Option<Moment>,
    telling: CallbackQueue,
    /// On its disk: whether terms were given that may last.
    gave_terms: bool,
    sessions: Vec<Serving>,
    open: Vec<Open>,
    origin: Origin,
    tree: MemoryTree,
    /// The overlay of a follower over its copy.
    follower: Option<Follower>,
    merged: DirAliases,
    wrote: Wrote,
    now: Shown,
    /// The state of each after each event.
    history: BTreeMap<Key, Vec<(u64, Option<Value>)>>,
    event: u64,
    // To the home and from it.
    out: VecDeque<SequencedChange>,
    sent: u64,
    back: VecDeque<Record>,
    fed: u64,
}

impl Pop {
    fn new(number: u16, rate: u32) -> Pop {
        let origin = Origin(number);
        let follower = (number > 0).then(|| Follower::resume(origin, 0, 0, VecDeque::new()));
        let mut pop = Pop {
            rate,
            down_until: None,
            telling: CallbackQueue::new(TERM, MOST),
            gave_terms: false,
            sessions: Vec::new(),
            open: Vec::new(),
            origin,
            tree: MemoryTree::default(),
            follower,
            merged: DirAliases::default(),
            wrote: Wrote::new(),
            now: Shown::new(),
            history: BTreeMap::new(),
            event: 0,
            out: VecDeque::new(),
            sent: 0,
            back: VecDeque::new(),
            fed: 0,
        };
        pop.look();
        pop
    }

    fn clock(&self, now: Moment) -> Moment {
        now * self.rate / 1000
    }

    fn serving(&self, mount: usize, session: u64) -> Option<Serving> {
        self.sessions.iter().find(|one| (one.mount, one.session) == (mount, session)).copied()
    }

    /// Records a changed view.
    fn look(&mut self) -> Vec<Key> {
        let now = match &self.follower {
            Some(follower) => shown(&follower.seen(&self.tree), &self.merged),
            None => shown(&self.tree, &self.merged),
        };
        self.event += 1;
        let mut keys: Vec<Key> = self.now.keys().filter(|key| !now.contains_key(key)).cloned().collect();
        keys.extend(
            now.iter().filter(|(key, value)| self.now.get(key) != Some(value)).map(|(key, _)| key.clone()),
        );
        for key in &keys {
            self.history.entry(key.clone()).or_default().push((self.event, now.get(key).cloned()));
        }
        self.now = now;
        keys
    }

    /// Whether something was so at a moment not before `done`.
    fn was_since(&self, key: &Key, done: u64, was: impl Fn(Option<&Value>) -> bool) -> bool {
        for (event, known) in self.history.get(key).into_iter().flatten().rev() {
            if was(known.as_ref()) {
                return true;
            }
            if *event <= done {
                return false;
            }
        }
        was(None)
    }

    /// The result of a lookup of a name.
    fn find(&self, dir: u64, name: &Name) -> Option<(u64, Attr)> {
        match self.now.get(&Key::Name(dir, name.clone())) {
            Some(Value::Child(child)) => Some((*child, self.node(*child)?)),
            _ => None,
        }
    }

    fn node(&self, number: u64) -> Option<Attr> {
        match self.now.get(&Key::Node(number)) {
            Some(Value::Node(attr)) => Some(attr.clone()),
            _ => None,
        }
    }

    /// The name that a directory has.
    fn place(&self, dir: u64) -> Option<(u64, Name)> {
        self.now.iter().find_map(|(key, value)| match (key, value) {
            (Key::Name(at, name), Value::Child(child)) if *child == dir => Some((*at, name.clone())),
            _ => None,
        })
    }

    fn names(&self, dir: u64) -> Vec<(Name, u64)> {
        let of = |(key, value): (&Key, &Value)| match (key, value) {
            (Key::Name(at, name), Value::Child(child)) if *at == dir => Some((name.clone(), *child)),
            _ => None,
        };
        self.now.iter().filter_map(of).collect()
    }

    /// A change by a program of this PoP; returns the callbacks.
    fn make(
        &mut self,
        step: &Step,
        ids: &mut Ids,
        home: &mut Home,
        log: &mut Vec<Record>,
    ) -> Option<(Invalidations, Change)> {
        match &mut self.follower {
            Some(follower) => {
                let (id, seen) = (self.origin.id(follower.number() + 1), follower.seen(&self.tree));
                let change = change(step, &seen, &ids.found_in(&seen), id, &self.wrote);
                let weighed = follower.weigh(&self.tree, vec![change]).ok()?;
                let made = weighed.made.clone();
                follower.make(weighed);
                if let Change::SetContent { id, beside: Some(beside), .. } = &made[0].0.change {
                    self.wrote.insert(*id, (made[0].0.number, beside.id));
                }
                Some((Invalidations::of_made(&made), made[0].0.change.clone()))
            }
            None => {
                let (number, ids) = (home.taken(self.origin) + 1, ids.found_in(&self.tree));
                let change = change(step, &self.tree, &ids, self.origin.id(number), &Wrote::new());
                let made = SequencedChange { origin: self.origin, number, change };
                // Its own programs work on plain files, which refuse as any do.
                let effects = decide(&self.tree, home.seq() + 1, &made, Clash::Refuse).ok()?;
                log.extend(home.handle(&self.tree, &made).unwrap());
                self.tree.apply(&effects);
                Some((Invalidations::of_made(&[(made.clone(), effects)]), made.change))
            }
        }
    }

    /// Takes a record from the home.
    fn follow(&mut self, record: Record, now: Moment) {
        let Some(follower) = &mut self.follower else { return };
        if record.origin == self.origin {
            self.wrote.retain(|_, (number, _)| *number > record.number);
        }
        let Some(followed) = follower.handle(record.clone()).unwrap() else { return };
        let (records, merged) = ([record], self.merged.clone());
        let mut news = Invalidations::of_records(&records);
        self.tree.apply(&followed.effects);
        self.merged.settle_records(&records);
        if follower.is_stale() {
            let before = follower.layer().clone();
            follower.rebase(&self.tree);
            news.merge(Invalidations::of_laying(&before, follower.layer()));
            self.merged.lay(follower.layer());
        }
        let all = merged != self.merged;
        let told = news.told(&self.merged);
        let keys = self.look();
        let clock = self.clock(now);
        if all {
            self.telling.changed_anywhere(None, &Changed { all, ..Changed::default() }, clock);
        }
        self.telling.changed_anywhere(None, &told, clock);
        self.await_acknowledgements(keys);
    }

    /// No change waits for it, but once all have received it no mount shows the former state.
    fn await_acknowledgements(&mut self, keys: Vec<Key>) {
        let settling = self.telling.settling(None);
        self.open.push(Open { settling, event: self.event, keys, by: None });
    }

    /// The disk survives.
    fn restart(&mut self) {
        self.telling = CallbackQueue::new(TERM, MOST);
        if let Some(follower) = &self.follower {
            let pending: VecDeque<_> = follower.pending(0).cloned().collect();
            let dirs: BTreeSet<NodeId> =
                pending.iter().flat_map(|made| made.change.spots()).map(|at| at.dir).collect();
            let mut fresh = Follower::resume(self.origin, follower.seq(), follower.number(), pending);
            fresh.rebase(&self.tree);
            self.merged = DirAliases::default();
            let tree = &self.tree;
            let into = |id: NodeId| Some((id, tree.node(id)?.merged_into()?));
            self.merged.settle(dirs.into_iter().filter_map(into));
            self.merged.lay(fresh.layer());
            self.follower = Some(fresh);
        }
        self.sessions.clear();
        self.open.clear();
        self.unlink();
        self.look();
    }

    /// The link to the home reconnects.
    fn unlink(&mut self) {
        self.out.clear();
        self.back.clear();
        (self.sent, self.fed) = (0, self.follower.as_ref().map_or(0, Follower::seq));
    }
}

/// Messages between a mount and its PoP, or requests in progress there.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "there are few at a time")]
enum Body {
    Renew(u64),
    Settled(u64),
    Ask(Request, u64),
    /// The PoP has recorded the lease, and will look up the name.
    Work(Request, u64, bool),
    Told(Callback),
    Answer(Answer, u64),
    /// An end finds out that the connection is lost.
    PopNotices,
    MountNotices,
}

struct Flight {
    at: Moment,
    order: u64,
    mount: usize,
    session: u64,
    body: Body,
}

struct World {
    now: Moment,
    chance: Chance,
    order: u64,
    home: Home,
    log: Vec<Record>,
    ids: Ids,
    pops: Vec<Pop>,
    mounts: Vec<Mount>,
    flights: Vec<Flight>,
    /// Sessions whose connection is cut.
    cut: BTreeSet<(usize, u64)>,
    cached: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut chance = Chance::new(seed);
        // Together less than a sixteenth apart.
        let mut rate = || 969 + chance.below(63) as u32;
        let pops = (0..POPS as u16).map(|number| Pop::new(number, rate())).collect();
        let mounts = (0..MOUNTS).map(|number| Mount::new(number % POPS, rate())).collect();
        World {
            now: ms(0),
            chance,
            order: 0,
            home: Home::default(),
            log: Vec::new(),
            ids: Ids::new(),
            pops,
            mounts,
            flights: Vec::new(),
            cut: BTreeSet::new(),
            cached: 0,
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.chance.below(end)
    }

    fn delay(&mut self) -> Moment {
        let most = if self.chance.percent(4) { 700 } else { 40 };
        ms(1 + self.below(most))
    }

    fn fly(&mut self, mount: usize, session: u64, at: Moment, body: Body) {
        self.order += 1;
        self.flights.push(Flight { at, order: self.order, mount, session, body });
    }

    /// Sends over the connection of a session; on the control stream in order.
    fn send(&mut self, mount: usize, session: u64, body: Body) {
        let at = self.now + self.delay();
        // A PoP that has not noticed yet sends over the last session, too, while the mount has another one.
        if self.cut.contains(&(mount, session)) {
            return;
        }
        let ways = &mut self.mounts[mount].ways;
        let at = match body {
            Body::Renew(_) | Body::Settled(_) => ways.up(at),
            Body::Told(_) => ways.down(at),
            _ => at,
        };
        self.fly(mount, session, at, body);
    }

    // ---- events ----------------------------------------------------------------------------------------------------------

    fn step(&mut self) {
        self.now += ms(1 + self.chance.below(20));
        let mount = self.below(MOUNTS as u64) as usize;
        match self.below(1000) {
            0..=499 => self.run_program(mount),
            500..=509 => self.cut(mount),
            510..=513 => self.kill_pop(),
            514..=516 => self.kill_mount(mount),
            517..=519 => self.pops.iter_mut().for_each(Pop::unlink),
            _ => {}
        }
        self.tend();
        self.carry();
        self.deliver();
        self.acknowledge();
        self.check();
    }

    fn run_program(&mut self, at: usize) {
        let Some(session) = self.mounts[at].session else { return };
        let pop = self.mounts[at].pop;
        let mut dirs: Vec<u64> = self.pops[pop].now.keys().filter_map(dir_of).collect();
        dirs.dedup();
        let dir = if dirs.is_empty() { ROOT.0 } else { *self.chance.pick(&dirs) };
        let question = match self.below(10) {
            0..=4 => Request::Look(dir, name(self.chance.below(5))),
            5..=6 => Request::List(dir),
            _ => Request::Do(self.some_step()),
        };
        let clock = self.mounts[at].clock(self.now);
        if self.mounts[at].knows(&question, clock) {
            return;
        }
        let asked = self.mounts[at].ask(&question);
        self.send(at, session, Body::Ask(question, asked));
    }

    fn some_step(&mut self) -> Step {
        let (dir, other, node) = (self.below(6), self.below(6), self.below(12));
        let (one, two, number) = (self.below(5) as u8, self.below(5) as u8, self.below(100));
        let (dir, node) = (dir as usize, node as usize);
        match number {
            0..=34 => Step::Make { dir, name: one, kind: self.below(4) as u8 },
            35..=42 => Step::Link { node, dir, name: one },
            43..=52 => Step::Remove { dir, name: one },
            53..=60 => Step::RemoveDir { dir, name: one },
            61..=79 => Step::Rename { from: (dir, one), to: (other as usize, two), replace: number % 4 > 0 },
            80..=89 => Step::SetMode { node, mode: self.below(0o1000) as u32 },
            _ => Step::Write { node, stale: false },
        }
    }

    /// The connection of a mount is cut: the latest messages are lost. Its ends notice one after the other.
    fn cut(&mut self, at: usize) {
        let Some(session) = self.mounts[at].session else { return };
        let until = self.now + ms(self.chance.below(100));
        let is_of = |flight: &Flight| (flight.mount, flight.session) == (at, session);
        self.flights.retain(|flight| !is_of(flight) || flight.at <= until);
        self.cut.insert((at, session));
        let (pop, mount) = (ms(self.chance.below(3000)), ms(self.chance.below(3000)));
        self.fly(at, session, until + pop, Body::PopNotices);
        self.fly(at, session, until + mount, Body::MountNotices);
    }

    fn kill_pop(&mut self) {
        let (pop, now) = (self.below(POPS as u64) as usize, self.now);
        if self.pops[pop].down_until.is_some() {
            return;
        }
        for at in (0..MOUNTS).filter(|at| at % POPS == pop) {
            self.cut(at);
        }
        // Its requests in progress are lost, and messages to it.
        let is_down = |body: &Body| matches!(body, Body::Told(_) | Body::Answer(..) | Body::MountNotices);
        self.flights.retain(|flight| flight.mount % POPS != pop || is_down(&flight.body));
        self.pops[pop].restart();
        self.pops[pop].down_until = Some(now + ms(self.chance.below(2000)));
        if pop == 0 {
            let taken =
                (0..POPS as u16).map(|origin| (Origin(origin), self.home.taken(Origin(origin)))).collect();
            self.home = Home::resume(self.home.seq(), taken);
            self.pops.iter_mut().for_each(Pop::unlink);
        }
    }

    fn kill_mount(&mut self, at: usize) {
        self.cut(at);
        let done = std::mem::take(&mut self.mounts[at].done);
        self.mounts[at] = self.mounts[at].restarted();
        self.mounts[at].done = done;
    }

    /// Steps of the programs: PoPs start, mounts connect and ask for terms, PoPs send waiting callbacks.
    fn tend(&mut self) {
        let now = self.now;
        for pop in &mut self.pops {
            if pop.down_until.is_some_and(|until| until <= now) {
                pop.down_until = None;
                let clock = pop.clock(now);
                pop.start(clock);
            }
            if pop.down_until.is_none() && pop.telling.is_forgotten(pop.clock(now)) {
                pop.gave_terms = false;
            }
        }
        for at in 0..MOUNTS {
            let pop = self.mounts[at].pop;
            match self.mounts[at].session {
                None if self.pops[pop].down_until.is_none() && self.chance.percent(10) => self.connect(at),
                Some(session) if self.chance.percent(10) => {
                    let clock = self.mounts[at].clock(now);
                    let number = self.mounts[at].term.ask(clock);
                    self.send(at, session, Body::Renew(number));
                }
                _ => {}
            }
        }
        for pop in 0..POPS {
            for serving in self.pops[pop].sessions.clone() {
                if self.chance.percent(40) {
                    self.send_callbacks(pop, serving);
                }
            }
        }
    }

    fn connect(&mut self, at: usize) {
        let (pop, now) = (self.mounts[at].pop, self.now);
        let session = self.mounts[at].connect();
        let pop = &mut self.pops[pop];
        let clock = pop.clock(now);
        let holder = pop.telling.join(clock);
        pop.gave_terms = true;
        pop.sessions.push(Serving { mount: at, session, holder });
    }

    fn send_callbacks(&mut self, pop: usize, serving: Serving) {
        let clock = self.pops[pop].clock(self.now);
        while let Some(told) = self.pops[pop].telling.next_told(serving.holder, clock) {
            self.send(serving.mount, serving.session, Body::Told(told));
        }
    }

    /// Something moves between the home and those that follow.
    fn carry(&mut self) {
        let which = 1 + self.below(POPS as u64 - 1) as usize;
        if self.chance.percent(60)
            || self.pops[0].down_until.is_some()
            || self.pops[which].down_until.is_some()
        {
            return;
        }
        let (now, pop) = (self.now, &mut self.pops[which]);
        let Some(follower) = &pop.follower else { return };
        let fresh: Vec<_> = follower.pending(pop.sent).take(3).cloned().collect();
        pop.sent = fresh.last().map_or(pop.sent, |last| last.number);
        pop.out.extend(fresh);
        let told: Vec<_> = self.log.iter().skip(pop.fed as usize).take(2).cloned().collect();
        pop.fed += told.len() as u64;
        pop.back.extend(told);
        let record = pop.back.pop_front();
        if let Some(sent) = pop.out.pop_front() {
            self.hand_in(&sent);
        }
        if let Some(record) = record {
            self.pops[which].follow(record, now);
        }
    }

    fn hand_in(&mut self, sent: &SequencedChange) {
        let (now, home) = (self.now, &mut self.pops[0]);
        let Some(record) = self.home.handle(&home.tree, sent).unwrap() else { return };
        if let Ok(effects) = &record.outcome {
            home.tree.apply(effects);
        }
        self.log.push(record);
        let keys = home.look();
        let clock = home.clock(now);
        // The changes of the plain tree are not reported name by name.
        home.telling.changed_anywhere(None, &Changed { all: true, ..Changed::default() }, clock);
        home.await_acknowledgements(keys);
    }

    // ---- messages ----------------------------------------------------------------------------------------------------

    fn deliver(&mut self) {
        loop {
            let due = self.flights.iter().enumerate().filter(|(_, flight)| flight.at <= self.now);
            let Some((index, _)) = due.min_by_key(|(_, flight)| (flight.at, flight.order)) else { return };
            let Flight { mount, session, body, .. } = self.flights.swap_remove(index);
            match body {
                Body::Told(_) | Body::Answer(..) | Body::MountNotices => {
                    if self.mounts[mount].session == Some(session) {
                        self.at_mount(mount, session, body);
                    }
                }
                _ => {
                    let serving = self.pops[mount % POPS].serving(mount, session);
                    if let Some(serving) = serving {
                        self.at_pop(mount % POPS, serving, body);
                    }
                }
            }
        }
    }

    fn at_mount(&mut self, at: usize, session: u64, body: Body) {
        let mount = &mut self.mounts[at];
        match body {
            Body::Told(Callback::Call { number, what }) => {
                mount.on_changed(&what);
                self.send(at, session, Body::Settled(number));
            }
            Body::Told(Callback::Term { number, round, length, .. }) => {
                mount.term.on_given(number, round, length)
            }
            Body::Answer(answer, asked) => {
                if let Answer::Done { event, keys, .. } = &answer {
                    keys.iter().for_each(|key| mount.note_done(key, *event));
                }
                mount.on_answer(answer, asked);
            }
            _ => mount.session = None,
        }
    }

    fn at_pop(&mut self, pop: usize, serving: Serving, body: Body) {
        let (now, Serving { mount, session, holder }) = (self.now, serving);
        let clock = self.pops[pop].clock(now);
        match body {
            Body::Renew(number) => self.pops[pop].telling.ask_term(holder, number, 0),
            Body::Settled(number) => self.pops[pop].telling.answer(holder, number),
            Body::Ask(question, asked) => {
                let is_held = match &question {
                    Request::Look(dir, _) | Request::List(dir) => {
                        self.pops[pop].telling.note(holder, *dir, clock) != Noted::No
                    }
                    Request::Do(_) => true,
                };
                let at = now + ms(self.chance.below(30));
                self.fly(mount, session, at, Body::Work(question, asked, is_held));
            }
            Body::Work(Request::Do(step), asked, _) => self.work(pop, serving, &step, asked),
            Body::Work(question, asked, is_held) => {
                let answer = self.pops[pop].answer(&question, holder, is_held, clock);
                self.send(mount, session, Body::Answer(answer, asked));
            }
            _ => {
                let pop = &mut self.pops[pop];
                pop.telling.end(holder);
                pop.sessions.retain(|one| one.holder != holder);
            }
        }
    }

    /// Makes the change of a program.
    fn work(&mut self, at: usize, serving: Serving, step: &Step, asked: u64) {
        let (now, Serving { mount, session, holder }) = (self.now, serving);
        let World { pops, ids, home, log, .. } = self;
        let pop = &mut pops[at];
        let clock = pop.clock(now);
        let before = pop.now.clone();
        let Some((news, change)) = pop.make(step, ids, home, log) else { return };
        ids.note(&change);
        let keys = pop.look();
        let names = names_of(&change, &pop.merged, &before);
        let dirs: Vec<u64> = names.iter().map(|(dir, _)| *dir).collect();
        let is_held = dirs.iter().all(|dir| pop.telling.note(holder, *dir, clock) != Noted::No);
        let told = news.told(&pop.merged);
        match news.is_anywhere {
            true => pop.telling.changed_anywhere(Some(holder), &told, clock),
            false => pop.telling.changed(Some(holder), &told, clock),
        };
        let made = pop.made_dir(&change, holder, clock);
        let places = dirs.iter().map(|dir| pop.place(*dir)).collect();
        let files = names.iter().filter_map(|(dir, name)| match before.get(&Key::Name(*dir, name.clone())) {
            Some(Value::Child(child)) => Some(*child),
            _ => None,
        });
        let files = files.collect();
        let (event, keys_done) = (pop.event, keys.clone());
        let answer = Answer::Done { names, files, change, made, dirs: None, places, event, keys: keys_done };
        let settling = pop.telling.settling(Some(holder));
        let by = Some((mount, session, Box::new(answer), vec![asked, u64::from(is_held)]));
        pop.open.push(Open { settling, event: pop.event, keys, by });
    }

    /// Settled changes are acknowledged.
    fn acknowledge(&mut self) {
        for at in 0..POPS {
            let clock = self.pops[at].clock(self.now);
            let pop = &mut self.pops[at];
            let (mut settled, mut open) = (Vec::new(), Vec::new());
            for mut one in std::mem::take(&mut pop.open) {
                match pop.telling.wait_until(&mut one.settling, clock) {
                    Some(_) => open.push(one),
                    None => settled.push(one),
                }
            }
            pop.open = open;
            for Open { event, keys, by, .. } in settled {
                let maker = by.as_ref().map(|(mount, ..)| *mount);
                for mount in (0..MOUNTS).filter(|mount| mount % POPS == at && Some(*mount) != maker) {
                    keys.iter().for_each(|key| self.mounts[mount].note_done(key, event));
                }
                let Some((mount, session, mut answer, asked)) = by else { continue };
                let pop = &self.pops[at];
                if let Answer::Done { names, change, dirs, .. } = &mut *answer
                    && asked[1] == 1
                    && !pop.is_left(names, change)
                {
                    *dirs = names.iter().map(|(dir, _)| Some((*dir, pop.node(*dir)?))).collect();
                }
                self.send(mount, session, Body::Answer(*answer, asked[0]));
            }
        }
    }

    /// Everything in a mount's cache was true after the acknowledged changes.
    fn check(&mut self) {
        for (at, mount) in self.mounts.iter().enumerate() {
            let pop = &self.pops[mount.pop];
            for (key, value) in mount.cached(mount.clock(self.now)) {
                let done = mount.done.get(&key).copied().unwrap_or_default();
                let is_true = pop.was_since(&key, done, |known| value.is(known));
                let history = || pop.history.get(&key);
                assert!(
                    is_true,
                    "at {:?} mount {at} of {} shows {key:?} {value:?}; after {done} were {:?}",
                    self.now,
                    mount.pop,
                    history()
                );
                self.cached += 1;
            }
        }
    }
}

impl Pop {
    /// It is there again.
    fn start(&mut self, clock: Moment) {
        if self.gave_terms {
            self.telling = CallbackQueue::after_another(TERM, MOST, clock);
        }
    }

    /// Searches a holder for the name in the callback.
    fn answer(&mut self, question: &Request, holder: HolderId, is_held: bool, clock: Moment) -> Answer {
        match question {
            Request::Look(dir, name) => {
                let found = self.find(*dir, name);
                let is_held = is_held && self.note_found(found.as_ref(), holder, clock);
                Answer::Found { dir: *dir, name: name.clone(), found, is_held }
            }
            Request::List(dir) => {
                let names = self.names(*dir);
                let found: Vec<CachedName> = names
                    .into_iter()
                    .filter_map(|(name, child)| Some((name, child, self.node(child)?)))
                    .collect();
                let mut is_held = is_held;
                for (_, child, attr) in &found {
                    is_held &= self.note_found(Some(&(*child, attr.clone())), holder, clock);
                }
                Answer::Listed { dir: *dir, found, is_held: is_held && self.node(*dir).is_some() }
            }
            Request::Do(_) => unreachable!("it is no question"),
        }
    }

    /// Whether a renamed file keeps its old name: the new one was another name of it, or that name was given again.
    fn is_left(&self, names: &[(u64, Name)], change: &Change) -> bool {
        let is_there = |(dir, name): &(u64, Name)| self.find(*dir, name).is_some();
        matches!(change, Change::Rename { .. }) && names.first().is_some_and(is_there)
    }

    /// A directory that is looked at is held by its own number; it is looked at again at once if it was not before.
    fn note_found(&mut self, found: Option<&(u64, Attr)>, holder: HolderId, clock: Moment) -> bool {
        match found {
            Some((child, attr)) if attr.is_dir => self.telling.note(holder, *child, clock) != Noted::No,
            _ => true,
        }
    }

    /// The number of a directory that was made: its maker holds it, or gets a callback at once.
    fn made_dir(&mut self, change: &Change, holder: HolderId, clock: Moment) -> Option<u64> {
        let Change::Make { id, kind: NewKind::Dir, .. } = change else { return None };
        let number = self.merged.shown(*id).0;
        if self.telling.note(holder, number, clock) == Noted::No {
            self.telling.changed_anywhere(None, &Changed::name(number, b""), clock);
        }
        Some(number)
    }
}

fn dir_of(key: &Key) -> Option<u64> {
    match key {
        Key::Name(dir, _) => Some(*dir),
        Key::Node(_) => None,
    }
}

pub fn name(number: u64) -> Name {
    Name(vec![b'a' + number as u8])
}

/// The names by which a program would have made a change.
fn names_of(change: &Change, merged: &DirAliases, before: &Shown) -> Vec<(u64, Name)> {
    let number = |id: NodeId| merged.shown(merged.meant(id)).0;
    let spots = || change.spots().into_iter().map(|Dentry { dir, name }| (number(*dir), name.clone()));
    let (id, new) = match change {
        Change::SetAttributes { id, .. } | Change::SetContent { id, .. } => (id, None),
        Change::SetXattr { id, .. } => (id, None),
        Change::Link { id, .. } => (id, spots().next()),
        _ => return spots().collect(),
    };
    let is_of = |(key, value): (&Key, &Value)| match (key, value) {
        (Key::Name(dir, name), Value::Child(child)) if *child == number(*id) => Some((*dir, name.clone())),
        _ => None,
    };
    before.iter().find_map(is_of).into_iter().chain(new).collect()
}

fn run(seed: u64) -> u64 {
    let mut world = World::new(seed);
    (0..STEPS).for_each(|_| world.step());
    world.cached
}

#[test]
fn no_mount_shows_state_older_than_an_acknowledged_change() {
    let all = 0..variable("RENKEI_SIM_SEEDS").unwrap_or(SEEDS);
    let seeds = variable("RENKEI_SIM_SEED").map_or(all, |seed| seed..seed + 1);
    let (mut cached, mut broken) = (0, Vec::new());
    for seed in seeds.clone() {
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(count) => cached += count,
            Err(_) => broken.push(seed),
        }
    }
    assert!(
        broken.is_empty(),
        "of {seeds:?} these fail, as RENKEI_SIM_SEED={} does alone: {broken:?}",
        broken[0]
    );
    assert!(cached > 1000 * (seeds.end - seeds.start), "leases are used: {cached}");
}
