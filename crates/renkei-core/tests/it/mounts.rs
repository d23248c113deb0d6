//! A mount in the simulation of leases: its cache, by the rules of `renkei_core::lease::holder`.

use crate::leases::{Attr, Key, Value, name};
use crate::namespace::Step;
use renkei_core::lease::Moment;
use renkei_core::lease::holder::{Mark, Recent, Term};
use renkei_core::namespace::{Change, Name};
use renkei_core::wire::file::Changed;
use std::collections::BTreeMap;

/// The request of a program.
#[derive(Clone, Debug)]
pub enum Request {
    Look(u64, Name),
    List(u64),
    Do(Step),
}

/// A name with the file that it leads to.
pub type CachedName = (Name, u64, Attr);

#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "there are few at a time")]
pub enum Answer {
    Found {
        dir: u64,
        name: Name,
        found: Option<(u64, Attr)>,
        is_held: bool,
    },
    Listed {
        dir: u64,
        found: Vec<CachedName>,
        is_held: bool,
    },
    /// A change was made, by these names; with the directories as they are then.
    Done {
        names: Vec<(u64, Name)>,
        /// The former files of these names.
        files: Vec<u64>,
        change: Change,
        made: Option<u64>,
        dirs: Option<Vec<(u64, Attr)>>,
        /// The names by which these directories were found.
        places: Vec<Option<(u64, Name)>>,
        event: u64,
        keys: Vec<Key>,
    },
}

/// Arrival of the latest message on the control stream of the last session.
#[derive(Clone, Copy, Default)]
pub struct Arrivals {
    session: u64,
    up: Moment,
    down: Moment,
}

impl Arrivals {
    /// Those of another session, which has a number that no other has.
    fn restarted(self) -> Arrivals {
        Arrivals { session: self.session + 1, ..Arrivals::default() }
    }

    pub fn up(&mut self, at: Moment) -> Moment {
        self.up = self.up.max(at);
        self.up
    }

    pub fn down(&mut self, at: Moment) -> Moment {
        self.down = self.down.max(at);
        self.down
    }
}

/// The view of a mount.
#[derive(Debug)]
pub enum CachedState {
    Exactly(Value),
    /// That a name is there, or not.
    Listed(bool),
}

impl CachedState {
    pub fn is(&self, known: Option<&Value>) -> bool {
        match self {
            CachedState::Exactly(value) => known == Some(value),
            CachedState::Listed(is_there) => known.is_some() == *is_there,
        }
    }
}

/// The cached attributes of a name.
struct Entry {
    child: u64,
    attr: Option<Attr>,
    /// In which age its attributes were learnt.
    learnt: Option<u64>,
}

pub struct Mount {
    pub pop: usize,
    /// How its clock goes, in thousandths.
    rate: u32,
    pub session: Option<u64>,
    pub ways: Arrivals,
    pub term: Term,
    recent: Recent,
    entries: BTreeMap<(u64, Name), Entry>,
    /// In which age it was learnt that all names of a directory are known.
    whole: BTreeMap<u64, u64>,
    marks: BTreeMap<u64, Mark>,
    asked: u64,
    /// The last event of each thing that was acknowledged before now.
    pub done: BTreeMap<Key, u64>,
}

impl Mount {
    pub fn new(pop: usize, rate: u32) -> Mount {
        Mount {
            pop,
            rate,
            session: None,
            ways: Arrivals::default(),
            term: Term::default(),
            recent: Recent::default(),
            entries: BTreeMap::new(),
            whole: BTreeMap::new(),
            marks: BTreeMap::new(),
            asked: 0,
            done: BTreeMap::new(),
        }
    }

    /// Another one in its place.
    pub fn restarted(&self) -> Mount {
        Mount { ways: self.ways, ..Mount::new(self.pop, self.rate) }
    }

    pub fn clock(&self, now: Moment) -> Moment {
        now * self.rate / 1000
    }

    /// Another session; returns its number.
    pub fn connect(&mut self) -> u64 {
        self.term.begin_again();
        self.marks.clear();
        self.asked += 1;
        self.ways = self.ways.restarted();
        self.session = Some(self.ways.session);
        self.ways.session
    }

    pub fn note_done(&mut self, key: &Key, event: u64) {
        let known = self.done.entry(key.clone()).or_default();
        *known = event.max(*known);
    }

    fn is_valid(&self, age: Option<u64>, clock: Moment) -> bool {
        age.and_then(|age| self.term.until(age)).is_some_and(|until| clock < until)
    }

    /// Whether a program is answered from the cache.
    pub fn knows(&self, question: &Request, clock: Moment) -> bool {
        let is_whole = |dir: &u64| self.is_valid(self.whole.get(dir).copied(), clock);
        match question {
            Request::Look(dir, name) => match self.entries.get(&(*dir, name.clone())) {
                Some(entry) => self.is_valid(entry.learnt, clock),
                None => is_whole(dir),
            },
            Request::List(dir) => is_whole(dir),
            Request::Do(_) => false,
        }
    }

    /// All that it would show without asking.
    pub fn cached(&self, clock: Moment) -> Vec<(Key, CachedState)> {
        let mut all = Vec::new();
        for ((dir, name), Entry { child, attr, learnt }) in &self.entries {
            if self.is_valid(*learnt, clock) {
                all.push((Key::Name(*dir, name.clone()), CachedState::Exactly(Value::Child(*child))));
                all.extend(
                    attr.iter()
                        .map(|attr| (Key::Node(*child), CachedState::Exactly(Value::Node(attr.clone())))),
                );
            }
        }
        for (dir, age) in &self.whole {
            for name in (0..5).map(name).filter(|_| self.is_valid(Some(*age), clock)) {
                let is_there = self.entries.contains_key(&(*dir, name.clone()));
                all.push((Key::Name(*dir, name), CachedState::Listed(is_there)));
            }
        }
        all
    }

    pub fn ask(&mut self, _question: &Request) -> u64 {
        self.asked += 1;
        let mark = Mark { age: self.term.age(), count: self.recent.count(), is_held: false };
        self.marks.insert(self.asked, mark);
        self.asked
    }

    /// The site says that something has changed.
    pub fn on_changed(&mut self, what: &Changed) {
        if what.all {
            self.term.give_up();
        }
        self.recent.add(what.clone());
        self.invalidate(what);
    }

    fn invalidate(&mut self, what: &Changed) {
        let Mount { entries, whole, .. } = self;
        for ((dir, name), entry) in entries.iter_mut() {
            if what.concerns(*dir, |other| other == name.0, entry.child) {
                entry.learnt = None;
            }
        }
        whole.retain(|dir, _| !what.concerns_names_of(*dir));
    }

    pub fn on_answer(&mut self, answer: Answer, asked: u64) {
        let Some(mark) = self.marks.remove(&asked) else { return };
        match answer {
            Answer::Found { dir, name, found, is_held } => {
                if let Some((child, attr)) = found {
                    self.cache(mark.held(is_held), dir, name, child, attr);
                }
            }
            Answer::Listed { dir, found, is_held } => {
                let mark = mark.held(is_held);
                let listed: Vec<&Name> = found.iter().map(|(name, ..)| name).collect();
                self.entries.retain(|(at, name), _| *at != dir || listed.contains(&name));
                for (name, child, attr) in found {
                    self.cache(mark, dir, name, child, attr);
                }
                self.cache_listing(mark, dir);
            }
            Answer::Done { names, files, change, made, dirs, places, .. } => {
                // The file is known, also if it is by another name.
                let changed = Changed { nodes: files, ..Changed::default() };
                self.invalidate(&changed);
                self.on_done(mark, &names, dirs.as_deref(), &places);
                self.recent.add(changed);
                self.rename_here(&names, &change);
                if let Some(made) = made {
                    self.cache_listing(mark.held(dirs.is_some()), made);
                }
            }
        }
    }

    fn cache(&mut self, mark: Mark, dir: u64, name: Name, child: u64, attr: Attr) {
        let learnt =
            mark.learnable(&self.recent, |changed| changed.concerns(dir, |other| other == name.0, child));
        let is_same = |changed: &Changed| changed.concerns_name(dir, |other| other == name.0);
        if mark.learnable(&self.recent, is_same).is_none() {
            // It may not be among the names of later callbacks.
            self.whole.remove(&dir);
        }
        // The cached attributes of a file with several names do not follow from those of one name.
        let learnt = learnt.filter(|_| attr.is_dir || attr.links <= 1);
        self.entries.insert((dir, name), Entry { child, attr: Some(attr), learnt });
    }

    fn cache_listing(&mut self, mark: Mark, dir: u64) {
        match mark.learnable(&self.recent, |changed| changed.concerns_names_of(dir)) {
            Some(age) => drop(self.whole.insert(dir, age)),
            None => drop(self.whole.remove(&dir)),
        }
    }

    /// Entries changed here leave the cache, except the directories in the answer.
    fn on_done(
        &mut self,
        mark: Mark,
        names: &[(u64, Name)],
        dirs: Option<&[(u64, Attr)]>,
        places: &[Option<(u64, Name)>],
    ) {
        let mark = mark.held(true);
        for (index, (dir, name)) in names.iter().enumerate() {
            let known = dirs.and_then(|dirs| dirs.get(index));
            let place = places.get(index).cloned().flatten();
            let is_moved = |changed: &Changed| {
                place
                    .as_ref()
                    .is_some_and(|(above, name)| changed.concerns_name(*above, |other| other == name.0))
            };
            let concerns = |changed: &Changed| changed.dirs().contains(dir) || is_moved(changed);
            let learnt = known.and_then(|_| mark.learnable(&self.recent, concerns));
            let is_same = |changed: &Changed| changed.concerns_name(*dir, |other| other == name.0);
            let whole = mark.learnable(&self.recent, is_same).and(self.whole.get(dir).copied());
            let changed = Changed::name(*dir, &name.0);
            self.invalidate(&changed);
            self.recent.add(changed);
            let Some((_, attr)) = known else { continue };
            let entry = place.and_then(|place| self.entries.get_mut(&place));
            if let Some(entry) = entry.filter(|entry| entry.child == *dir) {
                (entry.attr, entry.learnt) = (Some(attr.clone()), learnt);
            }
            whole.map(|age| self.whole.insert(*dir, age));
        }
    }

    /// Whether two names are known to be of one file.
    fn is_one(&self, a: &(u64, Name), b: &(u64, Name)) -> bool {
        let child = |at| self.entries.get(at).map(|entry| entry.child);
        child(a).is_some() && child(a) == child(b)
    }

    /// The cached names follow local changes.
    fn rename_here(&mut self, names: &[(u64, Name)], change: &Change) {
        let put = |entries: &mut BTreeMap<_, _>, at: &(u64, Name), child| {
            entries.insert(at.clone(), Entry { child, attr: None, learnt: None });
        };
        match (change, names) {
            (Change::Make { id, .. }, [at]) | (Change::Link { id, .. }, [_, at] | [at]) => {
                put(&mut self.entries, at, id.0);
            }
            (Change::Remove { .. } | Change::RemoveDir { .. }, [at]) => drop(self.entries.remove(at)),
            (Change::Rename { .. }, [from, to]) if self.is_one(from, to) => {
                // They may be two by now.
                for (dir, _) in [from, to] {
                    self.whole.remove(dir);
                }
            }
            (Change::Rename { .. }, [from, to]) => match self.entries.remove(from) {
                Some(Entry { child, .. }) => put(&mut self.entries, to, child),
                None => {
                    self.entries.remove(to);
                    for (dir, _) in [from, to] {
                        self.whole.remove(dir);
                    }
                }
            },
            _ => {}
        }
    }
}
