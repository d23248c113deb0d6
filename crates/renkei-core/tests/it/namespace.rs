//! The tree of a volume: against a plain model, and at three sites whose links are cut.

use proptest::prelude::*;
use renkei_core::entry::FileTime;
use renkei_core::error::Code;
use renkei_core::namespace::follower::Follower;
use renkei_core::namespace::home::Home;
use renkei_core::namespace::memory::MemoryTree;
use renkei_core::namespace::tree::{Clash, Tree, decide};
use renkei_core::namespace::{
    Attributes, Base, Beside, Change, Delta, Dentry, Kind, Name, NewKind, Node, NodeId, Origin, ROOT, Record,
    SequencedChange,
};
use std::collections::{BTreeMap, VecDeque};

const HERE: Origin = Origin(0);

fn time(secs: i64) -> FileTime {
    FileTime { secs, nanos: 0 }
}

fn attributes(mode: u32) -> Attributes {
    Attributes { mode, owner: "alice".into(), group: "users".into(), mtime: time(1) }
}

/// A step of a script: numbers name directories and nodes among those there are.
#[derive(Clone, Debug)]
pub enum Step {
    Make { dir: usize, name: u8, kind: u8 },
    Link { node: usize, dir: usize, name: u8 },
    Remove { dir: usize, name: u8 },
    RemoveDir { dir: usize, name: u8 },
    Rename { from: (usize, u8), to: (usize, u8), replace: bool },
    SetMode { node: usize, mode: u32 },
    SetXattr { node: usize, name: u8, value: Option<u8> },
    Write { node: usize, stale: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let dir = || 0..6_usize;
    let name = || 0..5_u8;
    prop_oneof![
        6 => (dir(), name(), 0..4_u8).prop_map(|(dir, name, kind)| Step::Make { dir, name, kind }),
        2 => (0..12_usize, dir(), name()).prop_map(|(node, dir, name)| Step::Link { node, dir, name }),
        2 => (dir(), name()).prop_map(|(dir, name)| Step::Remove { dir, name }),
        2 => (dir(), name()).prop_map(|(dir, name)| Step::RemoveDir { dir, name }),
        5 => ((dir(), name()), (dir(), name()), prop::bool::weighted(0.8))
            .prop_map(|(from, to, replace)| Step::Rename { from, to, replace }),
        1 => (0..12_usize, 0..0o1000_u32).prop_map(|(node, mode)| Step::SetMode { node, mode }),
        2 => (0..12_usize, 0..3_u8, prop::option::weighted(0.7, 0..3_u8))
            .prop_map(|(node, name, value)| Step::SetXattr { node, name, value }),
        3 => (0..12_usize, prop::bool::weighted(0.3)).prop_map(|(node, stale)| Step::Write { node, stale }),
    ]
}

fn spot(dir: NodeId, name: u8) -> Dentry {
    Dentry { dir, name: Name(vec![b'a' + name]) }
}

/// Local changes that wrote a file last, and where their content goes if another site's change came
/// before.
pub type Wrote = BTreeMap<NodeId, (u64, NodeId)>;

/// The change of a step in the view of `tree`; `id` is a fresh number, `last` are the local changes that wrote.
pub fn change(step: &Step, tree: &impl Tree, ids: &Ids, id: NodeId, own: &Wrote) -> Change {
    let (dirs, nodes) = (&ids.dirs, &ids.nodes);
    let dir = |which: usize| dirs[which % dirs.len()];
    let node = |which: usize| nodes[which % nodes.len()];
    let now = time(2);
    match *step {
        Step::Make { dir: at, name, kind } => {
            let kind = match kind {
                0 => NewKind::Dir,
                1 => NewKind::File,
                3 => NewKind::Content { size: 77, digest: Some([7; 32]) },
                _ => NewKind::Symlink(b"target".to_vec()),
            };
            Change::Make { id, at: spot(dir(at), name), kind, attributes: attributes(0o755), keep_both: true }
        }
        Step::Link { node: of, dir: at, name } => {
            Change::Link { id: node(of), at: spot(dir(at), name), time: now }
        }
        Step::Remove { dir: at, name } => Change::Remove { at: spot(dir(at), name), seen: None, time: now },
        Step::RemoveDir { dir: at, name } => Change::RemoveDir { at: spot(dir(at), name), time: now },
        Step::Rename { from, to, replace } => {
            let (from, to) = (spot(dir(from.0), from.1), spot(dir(to.0), to.1));
            Change::Rename { from, to, replace, seen: None, time: now }
        }
        Step::SetMode { node: of, mode } => {
            Change::SetAttributes { id: node(of), attributes: attributes(mode) }
        }
        Step::SetXattr { node: of, name, value } => {
            let (name, value) = ([&b"user."[..], &[b'a' + name]].concat(), value.map(|value| vec![value]));
            Change::SetXattr { id: node(of), name, value }
        }
        Step::Write { node: of, stale } => {
            let file = node(of);
            let known = tree.node(file).and_then(|node| match node.kind {
                Kind::File(content) => Some(content.base()),
                _ => None,
            });
            let base = known.filter(|_| !stale).unwrap_or(Base::Version(1_000_000));
            let beside = own.get(&file).map_or(id, |(_, beside)| *beside);
            let beside = Beside { id: beside, at: spot(ROOT, 0), attributes: attributes(0o600) };
            Change::SetContent {
                id: file,
                base,
                size: id.0 % 1000,
                digest: None,
                mtime: now,
                beside: Some(beside),
            }
        }
    }
}

/// Allocated numbers, so that a script names existing and former entries.
pub struct Ids {
    dirs: Vec<NodeId>,
    nodes: Vec<NodeId>,
}

impl Ids {
    pub fn new() -> Self {
        Ids { dirs: vec![ROOT], nodes: vec![ROOT] }
    }

    /// As programs find them in a tree: in place of a directory that became part of another one, that one.
    pub fn found_in(&self, tree: &impl Tree) -> Self {
        let meant = |id: &NodeId| tree.node(*id).and_then(|node| node.merged_into()).unwrap_or(*id);
        let all_meant = |ids: &[NodeId]| ids.iter().map(meant).collect();
        Ids { dirs: all_meant(&self.dirs), nodes: all_meant(&self.nodes) }
    }

    pub fn note(&mut self, change: &Change) {
        if let Change::Make { id, kind, .. } = change {
            self.nodes.push(*id);
            if *kind == NewKind::Dir {
                self.dirs.push(*id);
            }
        }
    }
}

/// Kind, mode, and of a file version and length.
type ModelNode = (char, u32, Option<(u64, u64)>);

/// A tree as a list of names, searched linearly: the POSIX rules, and nothing else.
#[derive(Clone, Debug, Default)]
struct Model {
    /// Kind, mode and content of each node.
    nodes: BTreeMap<NodeId, ModelNode>,
    names: Vec<(NodeId, Name, NodeId)>,
    /// Extended attributes of nodes that have some, or had.
    xattrs: BTreeMap<NodeId, BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl Model {
    fn new() -> Self {
        Model { nodes: BTreeMap::from([(ROOT, ('d', 0o755, None))]), ..Model::default() }
    }

    fn kind(&self, id: NodeId) -> Option<char> {
        self.nodes.get(&id).map(|node| node.0)
    }

    fn find(&self, at: &Dentry) -> Option<NodeId> {
        self.names.iter().find(|(dir, name, _)| *dir == at.dir && *name == at.name).map(|(.., id)| *id)
    }

    fn dir(&self, id: NodeId) -> Result<(), Code> {
        match self.kind(id) {
            None => Err(Code::PathNotFound),
            Some('d') => Ok(()),
            Some(_) => Err(Code::NotADirectory),
        }
    }

    fn lookup(&self, at: &Dentry) -> Result<NodeId, Code> {
        self.dir(at.dir)?;
        self.find(at).ok_or(Code::PathNotFound)
    }

    fn is_empty(&self, id: NodeId) -> bool {
        !self.names.iter().any(|(dir, ..)| *dir == id)
    }

    fn drop_name(&mut self, at: &Dentry) {
        let id = self.find(at).unwrap();
        self.names.retain(|(dir, name, _)| !(*dir == at.dir && *name == at.name));
        if !self.names.iter().any(|(.., other)| *other == id) {
            self.nodes.remove(&id);
            self.xattrs.remove(&id);
        }
    }

    fn is_below(&self, dir: NodeId, above: NodeId) -> bool {
        let parent = |of: NodeId| self.names.iter().find(|(.., id)| *id == of).map(|(dir, ..)| *dir);
        std::iter::successors(Some(dir), |dir| parent(*dir)).any(|dir| dir == above)
    }

    fn rename(&mut self, from: &Dentry, to: &Dentry, replace: bool) -> Result<(), Code> {
        let id = self.lookup(from)?;
        self.dir(to.dir)?;
        let is_dir = self.kind(id) == Some('d');
        if is_dir && self.is_below(to.dir, id) {
            return Err(Code::RenamedIntoItself);
        }
        if let Some(other) = self.find(to) {
            match self.kind(other) {
                _ if !replace => return Err(Code::PathExists),
                _ if other == id => return Ok(()),
                Some('d') if !is_dir => return Err(Code::IsADirectory),
                Some('d') if !self.is_empty(other) => return Err(Code::NotEmpty),
                Some(kind) if is_dir && kind != 'd' => return Err(Code::NotADirectory),
                _ => self.drop_name(to),
            }
        }
        self.names.retain(|(dir, name, _)| !(*dir == from.dir && *name == from.name));
        self.names.push((to.dir, to.name.clone(), id));
        Ok(())
    }

    fn run(&mut self, seq: u64, change: &Change) -> Result<(), Code> {
        match change {
            Change::Make { id, at, kind, attributes, .. } => {
                self.dir(at.dir)?;
                if self.find(at).is_some() {
                    return Err(Code::PathExists);
                }
                let node = match kind {
                    NewKind::Dir => ('d', attributes.mode, None),
                    NewKind::File => ('f', attributes.mode, Some((seq, 0))),
                    NewKind::Content { size, .. } => ('f', attributes.mode, Some((seq, *size))),
                    NewKind::Symlink(_) => ('l', attributes.mode, None),
                };
                self.nodes.insert(*id, node);
                self.names.push((at.dir, at.name.clone(), *id));
            }
            Change::Link { id, at, .. } => {
                match self.kind(*id) {
                    None => return Err(Code::PathNotFound),
                    Some('d') => return Err(Code::IsADirectory),
                    Some(_) => self.dir(at.dir)?,
                }
                if self.find(at).is_some() {
                    return Err(Code::PathExists);
                }
                self.names.push((at.dir, at.name.clone(), *id));
            }
            Change::Remove { at, .. } => {
                let id = self.lookup(at)?;
                if self.kind(id) == Some('d') {
                    return Err(Code::IsADirectory);
                }
                self.drop_name(at);
            }
            Change::RemoveDir { at, .. } => {
                let id = self.lookup(at)?;
                match self.kind(id) {
                    Some('d') if self.is_empty(id) => self.drop_name(at),
                    Some('d') => return Err(Code::NotEmpty),
                    _ => return Err(Code::NotADirectory),
                }
            }
            Change::Rename { from, to, replace, .. } => self.rename(from, to, *replace)?,
            Change::SetAttributes { id, attributes } => match self.nodes.get_mut(id) {
                Some(node) => node.1 = attributes.mode,
                None => return Err(Code::PathNotFound),
            },
            Change::SetXattr { id, name, value } => {
                match self.kind(*id) {
                    None => return Err(Code::PathNotFound),
                    Some('l') => return Err(Code::Unsupported),
                    Some(_) => {}
                }
                let xattrs = self.xattrs.entry(*id).or_default();
                xattrs.remove(name);
                xattrs.extend(value.iter().map(|value| (name.clone(), value.clone())));
            }
            Change::SetContent { id, base: Base::Version(base), size, .. } => match self.nodes.get_mut(id) {
                None => return Err(Code::PathNotFound),
                Some(('d', ..)) => return Err(Code::IsADirectory),
                Some((_, _, Some(content))) if content.0 == *base => *content = (seq, *size),
                Some((_, _, Some(_))) => return Err(Code::ContentConflict),
                Some(_) => return Err(Code::BadPath),
            },
            Change::SetContent { .. } => unreachable!("scripts of one site know all versions"),
        }
        Ok(())
    }

    fn check(&self, tree: &MemoryTree) {
        let mut names: Vec<_> = self.names.iter().map(|(dir, name, id)| (*dir, name.clone(), *id)).collect();
        names.sort();
        let there: Vec<_> = tree.names().map(|(at, id)| (at.dir, at.name.clone(), id)).collect();
        assert_eq!(there, names);
        let (nodes, described): (Vec<_>, Vec<_>) = tree.nodes().partition(|(id, _)| id.described().is_none());
        assert!(nodes.iter().map(|(id, _)| id).eq(self.nodes.keys()));
        let found = described.into_iter().map(|(id, node)| {
            let xattrs = node.clone().into_xattrs().into_iter().map(|xattr| (xattr.name, xattr.value));
            (id.described().unwrap(), xattrs.collect::<BTreeMap<_, _>>())
        });
        let has_some = |(_, xattrs): &(NodeId, BTreeMap<_, _>)| !xattrs.is_empty();
        assert!(found.eq(self.xattrs.clone().into_iter().filter(has_some)));
        for (id, node) in nodes {
            let (kind, mode, content) = self.nodes[&id];
            let is_dir = |of: &NodeId| self.kind(*of) == Some('d');
            let within = || self.names.iter().filter(|(dir, ..)| *dir == id);
            let links = match kind {
                'd' => 2 + within().filter(|(.., child)| is_dir(child)).count(),
                _ => self.names.iter().filter(|(.., other)| *other == id).count(),
            };
            assert_eq!((node.links as usize, node.attributes.mode), (links, mode), "{id:?}");
            match &node.kind {
                Kind::Dir { names, parent } => {
                    let above =
                        self.names.iter().find(|(.., other)| *other == id).map_or(ROOT, |(dir, ..)| *dir);
                    assert_eq!((kind, *names as usize, *parent), ('d', within().count(), above));
                }
                Kind::File(found) => assert_eq!(Some((found.version, found.size)), content),
                Kind::Symlink { .. } => assert_eq!(kind, 'l'),
                Kind::Merged { .. } | Kind::Xattrs(_) => unreachable!("one site alone merges nothing"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_tree_follows_posix(steps in prop::collection::vec(step(), 1..60)) {
        let (mut tree, mut model, mut ids) = (MemoryTree::default(), Model::new(), Ids::new());
        for (count, step) in steps.iter().enumerate() {
            let seq = count as u64 + 1;
            let change = change(step, &tree, &ids, HERE.id(seq), &BTreeMap::new());
            let made = SequencedChange { origin: HERE, number: seq, change };
            let decided = decide(&tree, seq, &made, Clash::Refuse);
            let expected = model.run(seq, &made.change);
            prop_assert_eq!(decided.as_ref().map(drop).map_err(|error| error.code), expected, "{:?}", made.change);
            if let Ok(effects) = decided {
                tree.apply(&effects);
                ids.note(&made.change);
            }
            model.check(&tree);
        }
    }
}

/// Without the number of the record, which an overlay does not know, and the time of a directory that others change
/// too.
fn unstamped(mut node: Node) -> Node {
    if node.is_dir() {
        node.attributes.mtime = time(0);
    }
    Node { changed: 0, ..node }
}

/// A follower, with its disk.
struct Site {
    origin: Origin,
    copy: MemoryTree,
    follower: Follower,
    made: u64,
    /// How far the copy was when each change was made.
    knew: Vec<u64>,
    wrote: Wrote,
    refused: Vec<u64>,
    /// Changes on the way to the home, records on the way here; lost when the link is cut.
    out: VecDeque<SequencedChange>,
    sent: u64,
    back: VecDeque<Record>,
    fed: u64,
}

impl Site {
    fn new(origin: Origin) -> Self {
        Site {
            origin,
            copy: MemoryTree::default(),
            follower: Follower::resume(origin, 0, 0, VecDeque::new()),
            made: 0,
            knew: Vec::new(),
            wrote: BTreeMap::new(),
            refused: Vec::new(),
            out: VecDeque::new(),
            sent: 0,
            back: VecDeque::new(),
            fed: 0,
        }
    }

    /// The process is killed: its disk survives.
    fn restart(&mut self) {
        let pending: VecDeque<_> = self.follower.pending(0).cloned().collect();
        self.follower = Follower::resume(self.origin, self.follower.seq(), self.follower.number(), pending);
        self.cut();
    }

    fn cut(&mut self) {
        self.out.clear();
        self.back.clear();
        // Both sides restart at the position of the other one.
        (self.sent, self.fed) = (0, self.follower.seq());
    }

    /// How far the copy was when a change was made; all, if it was made past the script.
    fn knew_at(&self, number: u64) -> u64 {
        self.knew.get(number as usize - 1).copied().unwrap_or(u64::MAX)
    }

    fn submit(&mut self, step: &Step, ids: &mut Ids) -> Option<(u64, u64)> {
        let id = self.origin.id(self.follower.number() + 1);
        let view = self.follower.view(&self.copy);
        let change = change(step, &view, ids, id, &self.wrote);
        let made = self.follower.submit(&self.copy, change).ok()?;
        self.made += 1;
        self.knew.push(self.follower.seq());
        ids.note(&made.change);
        let Change::SetContent { id, size, beside: Some(beside), .. } = &made.change else { return None };
        self.wrote.insert(*id, (made.number, beside.id));
        Some((made.number, *size))
    }

    /// An overlay that was moved on equals one rebuilt from its changes.
    fn check_layer(&self) {
        if !self.follower.is_stale() {
            let pending = self.follower.pending(0).cloned().collect();
            let (seq, number) = (self.follower.seq(), self.follower.number());
            let mut fresh = Follower::resume(self.origin, seq, number, pending);
            fresh.rebase(&self.copy);
            let laid = fresh.seen(&self.copy);
            let moved = self.follower.seen(&self.copy);
            for at in fresh.layer().all_names().chain(self.follower.layer().all_names()) {
                assert_eq!(moved.child(at), laid.child(at), "{at:?}");
                let node = |tree: &dyn Tree| moved.child(at).and_then(|id| tree.node(id)).map(unstamped);
                assert_eq!(node(&moved), node(&laid), "{at:?}");
            }
            let layer = self.follower.layer();
            for at in layer.all_names() {
                let dir = layer
                    .own_name(at)
                    .flatten()
                    .filter(|id| moved.node(*id).is_some_and(|node| node.is_dir()));
                assert!(dir.is_none_or(|dir| layer.own_place(dir) == Some(at)), "{at:?}");
            }
        }
    }

    fn take(&mut self, record: Record) {
        if record.origin == self.origin {
            self.wrote.retain(|_, (number, _)| *number > record.number);
        }
        if let Some(followed) = self.follower.handle(record).unwrap() {
            self.copy.apply(&followed.effects);
            self.refused.extend(followed.refused.map(|refused| refused.number));
            self.check_layer();
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Do(usize, Step),
    /// A message gets to the home, or from it.
    Carry(usize),
    Cut(usize),
    Kill(usize),
    KillHome,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..3_usize, step()).prop_map(|(site, step)| Event::Do(site, step)),
        8 => (0..3_usize).prop_map(Event::Carry),
        1 => (0..3_usize).prop_map(Event::Cut),
        1 => (0..3_usize).prop_map(Event::Kill),
        1 => Just(Event::KillHome),
    ]
}

/// Directories of one name are merged into one. Every other created entry has a name.
fn check_merged(tree: &MemoryTree, sent: &SequencedChange, effects: &Delta) {
    let Change::Make { id, at, kind, .. } = &sent.change else { return };
    let dir = tree.node(at.dir).and_then(|dir| dir.merged_into()).unwrap_or(at.dir);
    let at = Dentry { dir, name: at.name.clone() };
    let there = tree.child(&at).filter(|there| tree.node(*there).is_some_and(|node| node.is_dir()));
    let made = effects.nodes.iter().find(|(made, _)| made == id).and_then(|(_, node)| node.as_ref());
    match there.filter(|_| *kind == NewKind::Dir) {
        Some(there) => {
            assert_eq!(made.unwrap().merged_into(), Some(there));
            assert!(effects.names.is_empty());
        }
        None => {
            assert!(made.unwrap().merged_into().is_none());
            let named: Vec<_> = effects.names.iter().filter(|(_, named)| *named == Some(*id)).collect();
            assert!(matches!(&named[..], [(named, _)] if named.dir == dir));
        }
    }
}

/// A remove deletes nothing that its maker had not seen.
fn check_seen(tree: &MemoryTree, sent: &SequencedChange, knew: u64, effects: &Delta) {
    for (id, _) in effects.nodes.iter().filter(|(_, node)| node.is_none()) {
        if let Kind::File(content) = tree.node(*id).unwrap().kind {
            let is_own = content.by.0 == sent.origin;
            assert!(is_own || content.version <= knew, "{sent:?} removes {content:?}");
        }
    }
}

/// Names are in directories, directories know their number of entries, and every entry has a name.
fn check_whole(tree: &MemoryTree) {
    let dir = |id: NodeId| tree.node(id).filter(Node::is_dir);
    for (at, id) in tree.names() {
        assert!(
            dir(at.dir).is_some() && tree.node(id).is_some_and(|node| node.merged_into().is_none()),
            "{at:?}"
        );
    }
    for (id, node) in tree.nodes() {
        let within = tree.names().filter(|(at, _)| at.dir == id).count() as u64;
        let named = tree.names().filter(|(_, of)| *of == id).count();
        match node.kind {
            Kind::Dir { names, parent } => {
                assert_eq!(names, within, "{id:?}");
                assert!(id == ROOT || (named == 1 && dir(parent).is_some()), "{id:?}");
            }
            Kind::Merged { .. } => assert_eq!((within, named), (0, 0), "{id:?}"),
            _ => assert_eq!(node.links as usize, named, "{id:?}"),
        }
    }
}

struct Federation {
    home: Home,
    tree: MemoryTree,
    log: Vec<Record>,
    sites: Vec<Site>,
    ids: Ids,
    /// Contents reported as written to a site: the site, the change, the length.
    written: Vec<(Origin, u64, u64)>,
}

impl Federation {
    fn new() -> Self {
        let sites = (0..3).map(|origin| Site::new(Origin(origin))).collect();
        let (home, tree, log) = (Home::default(), MemoryTree::default(), Vec::new());
        Federation { home, tree, log, sites, ids: Ids::new(), written: Vec::new() }
    }

    fn carry(&mut self, which: usize) {
        let site = &mut self.sites[which];
        let fresh: Vec<_> = site.follower.pending(site.sent).take(3).cloned().collect();
        site.sent = fresh.last().map_or(site.sent, |last| last.number);
        site.out.extend(fresh);
        if let Some(sent) = site.out.pop_front()
            && let Some(record) = self.home.handle(&self.tree, &sent).unwrap()
        {
            if let Ok(effects) = &record.outcome {
                check_merged(&self.tree, &sent, effects);
                check_seen(&self.tree, &sent, site.knew_at(sent.number), effects);
                self.tree.apply(effects);
            }
            self.log.push(record);
        }
        let told: Vec<_> = self.log.iter().skip(site.fed as usize).take(2).cloned().collect();
        site.fed += told.len() as u64;
        site.back.extend(told);
        if let Some(record) = site.back.pop_front() {
            site.take(record);
        }
    }

    fn run(&mut self, event: &Event) {
        match event {
            Event::Do(which, step) => {
                let site = &mut self.sites[*which];
                let written = site.submit(step, &mut self.ids);
                self.written.extend(written.map(|(number, size)| (site.origin, number, size)));
            }
            Event::Carry(which) => self.carry(*which),
            Event::Cut(which) => self.sites[*which].cut(),
            Event::Kill(which) => self.sites[*which].restart(),
            Event::KillHome => {
                let taken = (0..3).map(|origin| (Origin(origin), self.home.taken(Origin(origin)))).collect();
                self.home = Home::resume(self.home.seq(), taken);
                self.sites.iter_mut().for_each(Site::cut);
            }
        }
    }

    /// All links are up until nothing is left to say.
    fn settle(&mut self) {
        self.sites.iter_mut().for_each(Site::cut);
        for _ in 0..10_000 {
            (0..3).for_each(|which| self.carry(which));
            let quiet = |site: &Site| {
                site.follower.pending(0).next().is_none() && site.follower.seq() == self.home.seq()
            };
            if self.sites.iter().all(quiet) {
                return;
            }
        }
        panic!("the sites do not come to an end");
    }

    fn check(&mut self) {
        check_whole(&self.tree);
        for site in &mut self.sites {
            assert_eq!(site.copy, self.tree);
            let view = site.follower.view(&site.copy);
            assert!(
                self.ids.nodes.iter().all(|id| view.node(*id) == self.tree.node(*id)),
                "nothing lies over it"
            );
            let mine = self.log.iter().filter(|record| record.origin == site.origin);
            let numbers: Vec<_> = mine.clone().map(|record| record.number).collect();
            assert_eq!(
                numbers,
                (1..=site.made).collect::<Vec<_>>(),
                "each change is in the log once, in order"
            );
            let refused: Vec<_> =
                mine.filter(|record| record.outcome.is_err()).map(|record| record.number).collect();
            assert_eq!(site.refused, refused, "each site gets its refusals");
        }
        for (origin, number, size) in &self.written {
            let record =
                self.log.iter().find(|record| (record.origin, record.number) == (*origin, *number)).unwrap();
            let effects = record.outcome.as_ref().expect("content is never refused");
            let kept = effects.nodes.iter().any(|(_, node)| {
                matches!(node, Some(node) if matches!(&node.kind, Kind::File(content) if content.by == (*origin, *number) && content.size == *size))
            });
            assert!(kept, "what {origin:?} wrote as {number} got a version of its own");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn three_sites_converge_after_partitions_and_crashes(events in prop::collection::vec(event(), 1..120)) {
        let mut federation = Federation::new();
        for event in &events {
            federation.run(event);
        }
        federation.settle();
        federation.check();
    }
}

/// A federation whose sites have made these changes and pushed none.
fn apart(steps: &[(usize, Step)]) -> Federation {
    let mut federation = Federation::new();
    for (which, step) in steps {
        federation.run(&Event::Do(*which, step.clone()));
    }
    federation
}

fn names(tree: &impl Tree) -> Vec<String> {
    let listed = tree.list(ROOT, None, 100);
    listed.into_iter().map(|(name, _)| String::from_utf8(name.0).unwrap()).collect()
}

#[test]
fn a_site_sees_its_own_change_before_the_home_does() {
    let mut federation = apart(&[(1, Step::Make { dir: 0, name: 0, kind: 1 })]);
    let site = &mut federation.sites[1];
    assert_eq!(names(&site.follower.view(&site.copy)), ["a"]);
    assert_eq!((names(&site.copy), names(&federation.tree)), (vec![], vec![]));
    federation.settle();
    assert_eq!(names(&federation.sites[2].copy), ["a"]);
}

#[test]
fn two_files_of_one_name_are_both_kept() {
    let make = Step::Make { dir: 0, name: 0, kind: 1 };
    let mut federation = apart(&[(1, make.clone()), (2, make.clone())]);
    federation.settle();
    assert_eq!(names(&federation.tree), ["a", "a.conflict-2-1"]);
    // A site that knows of the first one is refused at once.
    let site = &mut federation.sites[1];
    assert!(site.submit(&make, &mut federation.ids).is_none());
    federation.settle();
    assert_eq!(names(&federation.tree).len(), 2);
}

#[test]
fn one_directory_made_at_three_sites_is_merged() {
    let dir = Step::Make { dir: 0, name: 0, kind: 0 };
    let mut federation = apart(&[(0, dir.clone()), (1, dir.clone()), (2, dir.clone())]);
    // In the one that each sees: a file of its own, one of a name that all have, and a directory that two have.
    for which in 0..3 {
        let mut ids = Ids { dirs: vec![federation.sites[which].origin.id(1)], nodes: vec![ROOT] };
        let site = &mut federation.sites[which];
        for (name, kind) in [(which as u8, 1), (3, 1), (if which == 0 { 5 } else { 4 }, 0)] {
            assert!(site.submit(&Step::Make { dir: 0, name, kind }, &mut ids).is_none());
        }
        federation.ids.nodes.extend(ids.nodes);
    }
    federation.settle();
    federation.check();
    assert_eq!(names(&federation.tree), ["a"]);
    let top = federation.tree.child(&spot(ROOT, 0)).unwrap();
    let listed = federation.tree.list(top, None, 100);
    let listed: Vec<_> =
        listed.iter().map(|(name, _)| String::from_utf8_lossy(&name.0).into_owned()).collect();
    assert_eq!(listed, ["a", "b", "c", "d", "d.conflict-1-3", "d.conflict-2-3", "e", "f"]);
    // A site that knew one of the others continues with it, and its mode is the home's.
    let own = federation.sites[2].origin.id(1);
    assert_eq!(federation.tree.node(own).unwrap().merged_into(), Some(top));
    let site = &mut federation.sites[2];
    let change = Change::SetAttributes { id: own, attributes: attributes(0o700) };
    site.follower.submit(&site.copy, change).unwrap();
    site.made += 1;
    federation.settle();
    federation.check();
    assert_eq!(federation.tree.node(top).unwrap().attributes.mode, 0o755);
}

#[test]
fn concurrent_writes_of_one_file_are_both_kept() {
    let mut federation = apart(&[(0, Step::Make { dir: 0, name: 0, kind: 1 })]);
    federation.settle();
    for which in [1, 2, 1, 2] {
        federation.run(&Event::Do(which, Step::Write { node: 1, stale: false }));
    }
    federation.settle();
    federation.check();
    // The second write of the site that lost goes where its first one went.
    assert_eq!(names(&federation.tree), ["a", "a.conflict-2-1"]);
}

#[test]
fn a_concurrent_write_of_another_site_is_not_removed() {
    let make = |name| Step::Make { dir: 0, name, kind: 1 };
    let mut federation = apart(&[(0, make(0)), (0, make(1)), (0, make(2)), (0, make(3))]);
    federation.settle();
    let write = |node| (1, Step::Write { node, stale: false });
    let over = |from, to| Step::Rename { from: (0, from), to: (0, to), replace: true };
    // One is removed, one renamed over, and one gets a name that another site gives to something new.
    let steps = [
        write(1),
        write(2),
        (1, make(4)),
        (2, Step::Remove { dir: 0, name: 0 }),
        (2, over(2, 1)),
        (2, over(3, 4)),
    ];
    for (which, step) in &steps {
        federation.run(&Event::Do(*which, step.clone()));
    }
    federation.settle();
    federation.check();
    assert_eq!(names(&federation.tree), ["a", "b", "c", "d", "e"]);
    assert_eq!(federation.sites[2].refused.len(), 3);
    // A site that has seen it may.
    federation.run(&Event::Do(2, Step::Remove { dir: 0, name: 0 }));
    federation.run(&Event::Do(2, over(2, 1)));
    federation.settle();
    assert_eq!(names(&federation.tree), ["b", "d", "e"]);
}

#[test]
fn listings_continue_after_a_name_with_an_overlay() {
    let make = |name| Step::Make { dir: 0, name, kind: 1 };
    let mut federation = apart(&[(0, make(0)), (0, make(2)), (0, make(3))]);
    federation.settle();
    federation.run(&Event::Do(0, make(1)));
    federation.run(&Event::Do(0, Step::Remove { dir: 0, name: 2 }));
    let site = &mut federation.sites[0];
    let view = site.follower.view(&site.copy);
    let list = |after: Option<&str>, most| -> Vec<_> {
        let listed = view.list(ROOT, after.map(Name::from).as_ref(), most);
        listed.into_iter().map(|(name, _)| String::from_utf8(name.0).unwrap()).collect()
    };
    assert_eq!(list(None, 2), ["a", "b"]);
    assert_eq!(list(Some("b"), 2), ["d"]);
    assert_eq!(list(Some("a"), 1), ["b"]);
}

#[test]
fn content_is_stored_even_if_its_number_is_taken() {
    let mut federation = apart(&[(0, Step::Make { dir: 0, name: 0, kind: 1 })]);
    federation.settle();
    let file = federation.ids.nodes[1];
    let beside = Beside { id: file, at: spot(ROOT, 0), attributes: attributes(0o600) };
    let write = |base| Change::SetContent {
        id: file,
        base,
        size: 5,
        digest: None,
        mtime: time(3),
        beside: Some(beside.clone()),
    };
    let made = SequencedChange { origin: Origin(1), number: 1, change: write(Base::Version(99)) };
    let effects = decide(&federation.tree, 2, &made, Clash::AsWanted).unwrap();
    federation.tree.apply(&effects);
    assert_eq!(names(&federation.tree), ["a", "a.conflict-1-1"]);
    assert_eq!(federation.tree.child(&Dentry { dir: ROOT, name: "a".into() }), Some(file));
    // A site that writes it now and has seen the newer one gets an error.
    let refused = decide(&federation.tree, 3, &made, Clash::Refuse).unwrap_err();
    assert_eq!(refused.code, Code::ContentConflict);
}
