//! The trees of volumes on both of their databases: against the rules in memory, and after failures.

use crate::catalogue::postgres::Postgres;
use renkei_catalogue::{HeldReplica, Trees, VolumeId, VolumeTree};
use renkei_config::home::Home;
use renkei_core::entry::{FileTime, Stamp};
use renkei_core::error::Code;
use renkei_core::namespace::home::Home as Order;
use renkei_core::namespace::memory::MemoryTree;
use renkei_core::namespace::page::{Page, Reached};
use renkei_core::namespace::quota::{ByOwner, weight};
use renkei_core::namespace::tree::Tree;
use renkei_core::namespace::{
    Attributes, Base, Beside, Change, Dentry, Kind, Name, NewKind, Node, NodeId, Origin, ROOT, Record,
    SequencedChange,
};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const HERE: Origin = Origin(0);
const THERE: Origin = Origin(3);
const VOLUME: VolumeId = [1; 16];
const OTHER: VolumeId = [2; 16];

/// Where trees are kept.
struct Place {
    folder: TempDir,
    named: String,
}

impl Place {
    fn new(named: String) -> Self {
        Place { folder: tempfile::tempdir().unwrap(), named }
    }

    fn open(&self) -> Trees {
        Trees::open(&self.named, &Home::at(self.folder.path())).unwrap()
    }

    fn file(&self, volume: VolumeId) -> PathBuf {
        let name = volume.map(|byte| format!("{byte:02x}")).concat();
        self.folder.path().join(format!("state/volumes/{name}.sqlite"))
    }

    /// Executes statements past the tree that is open.
    fn meddle(&self, statements: &[&'static str]) {
        if self.named.is_empty() {
            let connection = rusqlite::Connection::open(self.file(VOLUME)).unwrap();
            return statements.iter().for_each(|statement| connection.execute_batch(statement).unwrap());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let connected = <sqlx::PgConnection as sqlx::Connection>::connect(&self.named);
            let mut connection = connected.await.unwrap();
            for statement in statements {
                sqlx::query(*statement).execute(&mut connection).await.unwrap();
            }
        });
    }
}

type Check = fn(&Place);

/// Properties of both databases. Each gets a directory of its own, or a server without volumes.
const CHECKS: &[(&str, Check)] = &[
    ("a tree follows the rules in memory", a_tree_follows_the_rules_in_memory),
    ("a copy that follows is equal", a_copy_that_follows_is_equal),
    ("pages and the log make a copy", pages_and_the_log_make_a_copy),
    ("a snapshot replaces the old copy", a_snapshot_replaces_the_old_copy),
    ("local changes are stored until the log has them", local_changes_are_stored),
    ("listings are sorted by bytes", listings_are_sorted_by_bytes),
    ("numbers are allocated once", numbers_are_allocated_once),
    ("files and dirty names are stored", files_and_dirty_names_are_stored),
    ("volumes are separate", volumes_are_separate),
    ("a failed batch changes nothing", a_failed_batch_changes_nothing),
    (
        "an unreadable row is an error and not a missing one",
        an_unreadable_row_is_an_error_and_not_a_missing_one,
    ),
    ("a wrong count is corrected", a_wrong_count_is_corrected),
];

#[test]
fn trees_in_files() {
    for (what, check) in CHECKS {
        eprintln!("{what}");
        check(&Place::new(String::new()));
    }
}

#[test]
fn trees_on_a_server() {
    let Some(server) = Postgres::start() else { return };
    for (what, check) in CHECKS {
        eprintln!("{what}");
        let place = Place::new(server.url());
        check(&place);
        let trees = place.open();
        trees.remove(VOLUME).unwrap();
        trees.remove(OTHER).unwrap();
    }
}

// ---- scripts ---------------------------------------------------------------------------------------------------------

/// The same numbers in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % sides
    }
}

fn time(secs: i64) -> FileTime {
    FileTime { secs, nanos: 7 }
}

fn attributes(mode: u32) -> Attributes {
    let owner = if mode == 0o640 { "bob" } else { "alice" };
    Attributes { mode, owner: owner.into(), group: String::new(), mtime: time(-1) }
}

/// Changes of one origin: among few names, so that they meet.
struct Script {
    dice: Dice,
    origin: Origin,
    number: u64,
    ids: Vec<NodeId>,
}

impl Script {
    fn new(origin: Origin, seed: u64) -> Self {
        Script { dice: Dice(seed | 1), origin, number: 0, ids: vec![ROOT] }
    }

    fn node(&mut self) -> NodeId {
        let of = self.dice.roll(self.ids.len());
        self.ids[of]
    }

    fn spot(&mut self) -> Dentry {
        let name = match self.dice.roll(8) {
            0 => vec![0xff, 0xfe],
            1 => vec![b'x'; 255],
            few => vec![b'a' + few as u8],
        };
        Dentry { dir: self.node(), name: Name(name) }
    }

    fn next(&mut self, tree: &impl Tree) -> SequencedChange {
        self.number += 1;
        let id = self.origin.id(self.number);
        let change = match self.dice.roll(16) {
            0..6 => self.make(id),
            6 => Change::Link { id: self.node(), at: self.spot(), time: time(2) },
            7 => Change::Remove { at: self.spot(), seen: None, time: time(3) },
            8 => Change::RemoveDir { at: self.spot(), time: time(4) },
            9..13 => {
                let (from, to) = (self.spot(), self.spot());
                Change::Rename { from, to, replace: self.dice.roll(4) > 0, seen: None, time: time(5) }
            }
            13 => Change::SetAttributes { id: self.node(), attributes: attributes(0o640) },
            _ => self.write(tree, id),
        };
        self.ids.push(id);
        SequencedChange { origin: self.origin, number: self.number, change }
    }

    fn make(&mut self, id: NodeId) -> Change {
        let kind = match self.dice.roll(3) {
            0 => NewKind::File,
            1 => NewKind::Symlink(vec![b'/', 0xff]),
            _ => NewKind::Dir,
        };
        let keep_both = self.dice.roll(2) == 0;
        Change::Make { id, at: self.spot(), kind, attributes: attributes(0o755), keep_both }
    }

    fn write(&mut self, tree: &impl Tree, spare: NodeId) -> Change {
        let id = self.node();
        let base = match tree.node(id).map(|node| node.kind) {
            Some(Kind::File(content)) if self.dice.roll(4) > 0 => content.base(),
            _ => Base::Version(1_000_000),
        };
        let beside = Beside { id: spare, at: self.spot(), attributes: attributes(0o600) };
        let digest = Some([self.number as u8; 32]);
        Change::SetContent { id, base, size: 1 << 40, digest, mtime: time(6), beside: Some(beside) }
    }
}

/// A tree in memory, with its order.
#[derive(Default)]
struct Model {
    tree: MemoryTree,
    order: Order,
}

impl Model {
    fn decide(&mut self, changes: &[SequencedChange]) -> Vec<Record> {
        let mut records = Vec::new();
        for change in changes {
            let Some(record) = self.order.handle(&self.tree, change).unwrap() else { continue };
            if let Ok(effects) = &record.outcome {
                self.tree.apply(effects);
            }
            records.push(record);
        }
        records
    }
}

/// All that hangs below the top.
fn whole(tree: &VolumeTree) -> (BTreeMap<NodeId, Node>, BTreeMap<Dentry, NodeId>) {
    let mut nodes = BTreeMap::from([(ROOT, tree.node(ROOT).unwrap().unwrap())]);
    let mut names = BTreeMap::new();
    let mut dirs = vec![ROOT];
    while let Some(dir) = dirs.pop() {
        for (name, id, node) in pages(tree, dir, 3) {
            let at = Dentry { dir, name };
            assert_eq!(tree.child(&at).unwrap(), Some((id, node.clone())));
            if node.is_dir() {
                dirs.push(id);
            }
            names.insert(at, id);
            nodes.insert(id, node);
        }
    }
    (nodes, names)
}

/// A directory's list, in pages.
fn pages(tree: &VolumeTree, dir: NodeId, most: usize) -> Vec<(Name, NodeId, Node)> {
    let mut all: Vec<(Name, NodeId, Node)> = Vec::new();
    loop {
        let page = tree.list(dir, all.last().map(|entry| &entry.0), most).unwrap();
        if page.is_empty() {
            return all;
        }
        assert!(page.len() <= most);
        all.extend(page);
    }
}

fn check_equal(tree: &VolumeTree, model: &MemoryTree) {
    let (nodes, names) = whole(tree);
    let expected: BTreeMap<NodeId, Node> = model.nodes().map(|(id, node)| (id, node.clone())).collect();
    assert_eq!(nodes, expected);
    assert_eq!(names, model.names().map(|(at, id)| (at.clone(), id)).collect());
}

// ---- properties of both databases --------------------------------------------------------------------------------------

fn a_tree_follows_the_rules_in_memory(place: &Place) {
    let mut model = Model::default();
    let mut scripts = [Script::new(HERE, 11), Script::new(THERE, 12)];
    let mut batch: Vec<SequencedChange> = Vec::new();
    for round in 0..25 {
        let trees = place.open();
        let tree = trees.tree(VOLUME).unwrap();
        for _ in 0..1 + scripts[0].dice.roll(24) {
            let which = scripts[0].dice.roll(2);
            let made = scripts[which].next(&model.tree);
            batch.push(made);
        }
        let records = tree.decide(&batch).unwrap();
        assert_eq!(records, model.decide(&batch), "round {round}");
        assert_eq!(tree.decide(&batch).unwrap(), [], "a batch that is sent again is in the log");
        batch.clear();
        let position = tree.position().unwrap();
        assert_eq!(position.seq, model.order.seq());
        assert_eq!(position.taken.get(&THERE).copied().unwrap_or(0), model.order.taken(THERE));
        check_equal(&tree, &model.tree);
        let gone = scripts[0].ids.iter().find(|id| model.tree.node(**id).is_none());
        assert_eq!(gone.and_then(|id| tree.node(*id).unwrap()), None);
        check_use(&tree, &model.tree);
    }
    assert!(model.tree.nodes().count() > 20, "the script made little");
}

/// The counts that change with each change equal the counts of the tree.
fn check_use(tree: &VolumeTree, model: &MemoryTree) {
    let mut all = ByOwner::new();
    for (owner, one) in model.nodes().filter_map(|(id, node)| weight(id, node)) {
        let sum = all.entry(owner.to_owned()).or_default();
        *sum = sum.changed(one.into());
    }
    assert_eq!(tree.usage().unwrap(), all);
}

fn a_wrong_count_is_corrected(place: &Place) {
    let trees = place.open();
    let tree = trees.tree(VOLUME).unwrap();
    tree.decide(&[file(1, ROOT, b"a"), file(2, ROOT, b"b")]).unwrap();
    let used = tree.usage().unwrap();
    assert!(!tree.recount().unwrap());
    place.meddle(&["UPDATE tree_usage SET files = 7, bytes = 9"]);
    assert_ne!(tree.usage().unwrap(), used);
    assert!(tree.recount().unwrap());
    assert_eq!(tree.usage().unwrap(), used);
}

fn a_copy_that_follows_is_equal(place: &Place) {
    let trees = place.open();
    let home = trees.tree(VOLUME).unwrap();
    let mut model = Model::default();
    let mut script = Script::new(HERE, 5);
    for _ in 0..12 {
        let batch: Vec<SequencedChange> = (0..20).map(|_| script.next(&model.tree)).collect();
        assert_eq!(home.decide(&batch).unwrap(), model.decide(&batch));
    }
    drop(home);
    let mut dice = Dice(77);
    let log = trees.tree(VOLUME).unwrap().log(0, 10_000).unwrap();
    assert_eq!(log.len() as u64, script.number);
    drop(trees);
    while place.open().tree(OTHER).unwrap().position().unwrap().seq < script.number {
        let trees = place.open();
        let (home, copy) = (trees.tree(VOLUME).unwrap(), trees.tree(OTHER).unwrap());
        let seq = copy.position().unwrap().seq;
        // Some records are delivered twice.
        let records = home.log(seq.saturating_sub(5), 6 + dice.roll(60)).unwrap();
        copy.follow(THERE, &records).unwrap();
        copy.follow(THERE, &records).unwrap();
        let missing = home.log(copy.position().unwrap().seq + 1, 5).unwrap();
        if !missing.is_empty() {
            assert_eq!(copy.follow(THERE, &missing).unwrap_err().code, Code::ProtocolViolation);
        }
    }
    let trees = place.open();
    let (home, copy) = (trees.tree(VOLUME).unwrap(), trees.tree(OTHER).unwrap());
    check_equal(&copy, &model.tree);
    assert_eq!(home.position().unwrap(), copy.position().unwrap(), "a copy may become the home");
    assert_eq!(copy.log(script.number, 10).unwrap(), []);
    assert_eq!(copy.log(0, 10).unwrap_err().code, Code::RecordsForgotten, "a copy has no log");
}

fn pages_and_the_log_make_a_copy(place: &Place) {
    let (mut model, mut script) = (Model::default(), Script::new(HERE, 21));
    let mut go_on = |home: &VolumeTree, count: usize| {
        let batch: Vec<SequencedChange> = (0..count).map(|_| script.next(&model.tree)).collect();
        assert_eq!(home.decide(&batch).unwrap(), model.decide(&batch));
    };
    let trees = place.open();
    let (home, copy) = (trees.tree(VOLUME).unwrap(), trees.tree(OTHER).unwrap());
    go_on(&home, 60);
    copy.follow(THERE, &home.log(0, 60).unwrap()).unwrap();
    go_on(&home, 200);
    assert_eq!(home.trim(150).unwrap(), 150);
    assert_eq!(home.log(60, 10).unwrap_err().code, Code::RecordsForgotten);
    assert_eq!(home.log(150, 1000).unwrap().len(), 110);
    drop((home, copy, trees));
    // One page at a time, each after a restart, while the home goes on.
    let (mut after, mut first, mut count) = (None, 0, 0);
    loop {
        let trees = place.open();
        let (home, copy) = (trees.tree(VOLUME).unwrap(), trees.tree(OTHER).unwrap());
        let page = home.page(after.as_ref(), 9).unwrap();
        copy.load(THERE, &page).unwrap();
        (first, count) = (if count == 0 { page.extent.seq } else { first }, count + 1);
        assert_eq!(copy.loading().unwrap(), page.next);
        go_on(&home, 6);
        let Some(next) = page.next else { break };
        let position = copy.position().unwrap();
        assert!(!position.is_whole(), "it has {count} pages");
        let early = copy.follow(THERE, &home.log(position.seq.max(150), 5).unwrap());
        assert_eq!(early.unwrap_err().code, Code::ProtocolViolation, "a record between pages");
        if count > 1 {
            let again = Page { after: Some(Reached::Node(NodeId(5))), ..home.page(None, 3).unwrap() };
            assert_eq!(copy.load(THERE, &again).unwrap_err().code, Code::ProtocolViolation);
        }
        after = Some(next);
    }
    assert!(count > 10, "{count} pages");
    let trees = place.open();
    let (home, copy) = (trees.tree(VOLUME).unwrap(), trees.tree(OTHER).unwrap());
    assert_eq!(copy.position().unwrap().seq, first);
    assert!(!copy.position().unwrap().is_whole(), "the home went on while it was read");
    copy.follow(THERE, &home.log(first, 1000).unwrap()).unwrap();
    assert!(copy.position().unwrap().is_whole());
    check_equal(&copy, &model.tree);
    for id in &script.ids {
        assert_eq!(copy.node(*id).unwrap(), model.tree.node(*id));
    }
    assert_eq!(copy.position().unwrap().taken, home.position().unwrap().taken);
    assert_eq!(copy.position().unwrap().given, home.position().unwrap().given);
}

fn a_snapshot_replaces_the_old_copy(place: &Place) {
    let (mut model, mut script) = (Model::default(), Script::new(HERE, 31));
    let mut go_on = |home: &VolumeTree, count: usize| {
        let batch: Vec<SequencedChange> = (0..count).map(|_| script.next(&model.tree)).collect();
        assert_eq!(home.decide(&batch).unwrap(), model.decide(&batch));
        model.tree.clone()
    };
    let trees = place.open();
    let (home, copy) = (trees.tree(VOLUME).unwrap(), trees.tree(OTHER).unwrap());
    let mut shown = go_on(&home, 60);
    copy.follow(THERE, &home.log(0, 60).unwrap()).unwrap();
    copy.set_held(&[(NodeId(77), Some(held(7)))]).unwrap();
    copy.draw(THERE, 500).unwrap();
    drop((home, copy, trees));
    // More than once: each copy goes when the next one is shown.
    for round in 0..3 {
        let mut after = None;
        loop {
            let trees = place.open();
            let (home, copy) = (trees.tree(VOLUME).unwrap(), trees.tree(OTHER).unwrap());
            let late = copy.late_copy().unwrap();
            assert_eq!(late.loading().unwrap(), after);
            let page = home.page(after.as_ref(), 40).unwrap();
            late.load(THERE, &page).unwrap();
            go_on(&home, 4);
            check_equal(&copy, &shown);
            assert!(copy.has_late_copy().unwrap());
            assert_eq!(copy.show_late(THERE, &late).unwrap_err().code, Code::ProtocolViolation);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let trees = place.open();
        let (home, copy) = (trees.tree(VOLUME).unwrap(), trees.tree(OTHER).unwrap());
        let late = copy.late_copy().unwrap();
        late.follow(THERE, &home.log(late.position().unwrap().seq, 1000).unwrap()).unwrap();
        shown = go_on(&home, 0);
        copy.show_late(THERE, &late).unwrap();
        check_equal(&copy, &shown);
        copy.remove_old_copies().unwrap();
        drop((home, copy, late, trees));
        let trees = place.open();
        let (home, copy) = (trees.tree(VOLUME).unwrap(), trees.tree(OTHER).unwrap());
        check_equal(&copy, &shown);
        assert!(!copy.has_late_copy().unwrap());
        assert_eq!(copy.held(NodeId(77)).unwrap(), Some(held(7)), "held files stay");
        let (at, of) = (copy.position().unwrap(), home.position().unwrap());
        assert_eq!((at.seq, at.taken[&HERE]), (of.seq, of.taken[&HERE]), "round {round}");
        assert_eq!(at.given[&THERE], 500, "no number is given twice");
        // It goes on by the log.
        shown = go_on(&home, 20);
        copy.follow(THERE, &home.log(at.seq, 100).unwrap()).unwrap();
        check_equal(&copy, &shown);
        go_on(&home, 30);
    }
}

fn local_changes_are_stored(place: &Place) {
    let trees = place.open();
    let (home, copy) = (trees.tree(VOLUME).unwrap(), trees.tree(OTHER).unwrap());
    let model = Model::default();
    let mut script = Script::new(THERE, 9);
    let made: Vec<SequencedChange> = (0..30).map(|_| script.next(&model.tree)).collect();
    copy.keep(&made[..10]).unwrap();
    copy.keep(&made[5..]).unwrap();
    assert_eq!(copy.position().unwrap().number, 30);
    assert_eq!(copy.pending(0, 100).unwrap(), made);
    assert_eq!(copy.pending(27, 2).unwrap(), made[27..29]);
    let records = home.decide(&made[..20]).unwrap();
    copy.follow(THERE, &records[..7]).unwrap();
    drop((home, copy, trees));
    let trees = place.open();
    let copy = trees.tree(OTHER).unwrap();
    assert_eq!(copy.pending(0, 100).unwrap(), made[7..]);
    copy.follow(THERE, &records).unwrap();
    assert_eq!(copy.pending(0, 100).unwrap(), made[20..]);
    assert_eq!(copy.position().unwrap().number, 30);
    // A site whose database was lost continues its numbers after the last one in the log.
    trees.remove(OTHER).unwrap();
    let copy = trees.tree(OTHER).unwrap();
    copy.follow(THERE, &records).unwrap();
    assert_eq!(copy.position().unwrap().number, 20);
    let made_before = records.iter().flat_map(|record| record.outcome.iter().flat_map(|e| &e.nodes));
    let last = made_before.filter_map(|(id, _)| id.drawn()).map(|(_, count)| count).max().unwrap();
    assert_eq!(copy.draw(THERE, 1).unwrap(), last + 1..last + 2);
}

fn file(number: u64, dir: NodeId, name: &[u8]) -> SequencedChange {
    let at = Dentry { dir, name: Name(name.to_vec()) };
    let attributes = attributes(0o644);
    let change = Change::Make { id: HERE.id(number), at, kind: NewKind::File, attributes, keep_both: false };
    SequencedChange { origin: HERE, number, change }
}

fn listings_are_sorted_by_bytes(place: &Place) {
    let trees = place.open();
    let tree = trees.tree(VOLUME).unwrap();
    let mut names: Vec<Vec<u8>> =
        (1..=255).filter(|byte| *byte != b'/' && *byte != b'.').map(|byte| vec![byte]).collect();
    names.extend([
        b"a\xff".to_vec(),
        b"aa".to_vec(),
        b"a\x01".to_vec(),
        "é".into(),
        "あ".into(),
        vec![0xff; 255],
    ]);
    names.sort();
    let mut made: Vec<SequencedChange> =
        names.iter().zip(1..).map(|(name, number)| file(number, ROOT, name)).collect();
    // The order in which they are made is another one.
    made.rotate_left(100);
    made.iter_mut().zip(1..).for_each(|(made, number)| made.number = number);
    tree.decide(&made).unwrap();
    for most in [1, 7, 100, 10_000] {
        let listed: Vec<Vec<u8>> = pages(&tree, ROOT, most).into_iter().map(|(name, ..)| name.0).collect();
        assert_eq!(listed, names, "pages of {most}");
    }
    assert_eq!(tree.list(ROOT, Some(&Name(b"a".to_vec())), 1).unwrap()[0].0.0, b"a\x01");
    assert_eq!(tree.list(NodeId(99), None, 10).unwrap(), []);
    let too_long = tree.decide(&[file(1000, ROOT, &[b'x'; 256])]);
    assert_eq!(too_long.unwrap_err().code, Code::ProtocolViolation, "999 changes are missing");
}

/// SQLite returns rows before the statement commits, which may fail.
#[test]
fn allocating_a_number_fails_if_it_is_not_stored() {
    let place = Place { folder: tempfile::tempdir().unwrap(), named: String::new() };
    let trees = place.open();
    let tree = trees.tree(VOLUME).unwrap();
    assert_eq!(tree.draw(THERE, 10).unwrap(), 1..11);
    place.meddle(&[
        "CREATE TABLE a (k INTEGER PRIMARY KEY)",
        "CREATE TABLE b (k INTEGER REFERENCES a (k) DEFERRABLE INITIALLY DEFERRED)",
        "CREATE TRIGGER fails AFTER UPDATE ON tree_origins BEGIN INSERT INTO b VALUES (7); END",
    ]);
    assert_eq!(tree.draw(THERE, 10).unwrap_err().code, Code::CatalogueFailed);
    place.meddle(&["DROP TRIGGER fails"]);
    assert_eq!(tree.draw(THERE, 10).unwrap(), 11..21);
}

fn numbers_are_allocated_once(place: &Place) {
    let trees = place.open();
    let tree = trees.tree(VOLUME).unwrap();
    assert_eq!(tree.draw(HERE, 10).unwrap(), 1..11);
    assert_eq!(tree.draw(HERE, 1).unwrap(), 11..12);
    assert_eq!(tree.draw(THERE, 5).unwrap(), 1..6);
    tree.decide(&[file(1, ROOT, b"a")]).unwrap();
    drop((tree, trees));
    let trees = place.open();
    let tree = trees.tree(VOLUME).unwrap();
    assert_eq!(tree.draw(HERE, 3).unwrap(), 12..15);
    let drawn = std::thread::scope(|scope| {
        let draw = || (0..50).flat_map(|_| tree.draw(HERE, 2).unwrap()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(draw)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect::<std::collections::BTreeSet<_>>()
    });
    assert_eq!(drawn, (15..415).collect());
    assert_eq!(tree.position().unwrap().given[&HERE], 414);
}

fn held(version: u64) -> HeldReplica {
    let stamp = Stamp { size: 5, mtime: time(1), ctime: time(2), ino: u64::MAX };
    HeldReplica { version, stamp, digest: Some([version as u8; 32]) }
}

fn files_and_dirty_names_are_stored(place: &Place) {
    let trees = place.open();
    let tree = trees.tree(VOLUME).unwrap();
    let all: Vec<_> = (1..=300).map(|n| (NodeId(n), Some(held(n)))).collect();
    tree.set_held(&all).unwrap();
    tree.set_held(&[(NodeId(1), Some(held(7))), (NodeId(2), Some(held(8))), (NodeId(2), None)]).unwrap();
    tree.set_note("name", b"/genome").unwrap();
    tree.set_note("name", b"/genome\xff").unwrap();
    drop((tree, trees));
    let trees = place.open();
    let tree = trees.tree(VOLUME).unwrap();
    assert_eq!(tree.held(NodeId(1)).unwrap(), Some(held(7)));
    assert_eq!(tree.held(NodeId(2)).unwrap(), None);
    assert_eq!(tree.held(NodeId(300)).unwrap(), Some(held(300)));
    assert_eq!(tree.note("name").unwrap(), Some(b"/genome\xff".to_vec()));
    assert_eq!(tree.note("other").unwrap(), None);
}

fn volumes_are_separate(place: &Place) {
    let trees = place.open();
    let (one, other) = (trees.tree(VOLUME).unwrap(), trees.tree(OTHER).unwrap());
    one.decide(&[file(1, ROOT, b"a"), file(2, ROOT, b"b")]).unwrap();
    other.decide(&[file(1, ROOT, b"c")]).unwrap();
    one.set_note("key", b"one").unwrap();
    one.set_held(&[(HERE.id(1), Some(held(1)))]).unwrap();
    let names =
        |tree: &VolumeTree| pages(tree, ROOT, 10).into_iter().map(|(name, ..)| name.0).collect::<Vec<_>>();
    assert_eq!((names(&one), names(&other)), (vec![b"a".to_vec(), b"b".to_vec()], vec![b"c".to_vec()]));
    assert_eq!((other.note("key").unwrap(), other.held(HERE.id(1)).unwrap()), (None, None));
    assert_eq!((one.log(0, 9).unwrap().len(), other.log(0, 9).unwrap().len()), (2, 1));
    std::thread::scope(|scope| {
        // A concurrent reader neither blocks nor is blocked.
        for _ in 0..6 {
            scope.spawn(|| while one.list(ROOT, None, 9).is_ok_and(|list| !list.is_empty()) {});
        }
        trees.remove(VOLUME).unwrap();
    });
    assert_eq!(names(&other), [b"c"]);
    assert!(one.decide(&[file(3, ROOT, b"d")]).is_err(), "it was removed");
    let again = trees.tree(VOLUME).unwrap();
    assert_eq!(names(&again), Vec::<Vec<u8>>::new());
    assert_eq!(again.position().unwrap(), Default::default());
    assert_eq!(again.note("key").unwrap(), None);
    assert!(one.decide(&[file(3, ROOT, b"d")]).is_err(), "another one has its name now");
}

fn a_failed_batch_changes_nothing(place: &Place) {
    let trees = place.open();
    let tree = trees.tree(VOLUME).unwrap();
    tree.decide(&[file(1, ROOT, b"a")]).unwrap();
    let before = (whole(&tree), tree.position().unwrap());
    // The log comes last: a record that lies there already makes it fail after all that was decided was written.
    place.meddle(&["INSERT INTO tree_log (volume, seq, record) SELECT number, 3, id FROM tree_volumes WHERE id IS NOT NULL"]);
    let failed = tree.decide(&[file(2, ROOT, b"b"), file(3, ROOT, b"c")]).unwrap_err();
    assert_eq!(failed.code, Code::CatalogueFailed);
    assert_eq!((whole(&tree), tree.position().unwrap()), before);
    place.meddle(&["DELETE FROM tree_log WHERE seq = 3"]);
    let records = tree.decide(&[file(2, ROOT, b"b"), file(3, ROOT, b"c")]).unwrap();
    assert_eq!(records.iter().map(|record| record.seq).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(whole(&tree).1.len(), 3);
}

fn an_unreadable_row_is_an_error_and_not_a_missing_one(place: &Place) {
    let trees = place.open();
    let tree = trees.tree(VOLUME).unwrap();
    tree.decide(&[file(1, ROOT, b"a")]).unwrap();
    let at = Dentry { dir: ROOT, name: Name(b"a".to_vec()) };
    let remove = Change::Remove { at: at.clone(), seen: None, time: time(1) };
    let remove = SequencedChange { origin: HERE, number: 2, change: remove };
    let damages: [&'static str; 2] =
        ["UPDATE tree_nodes SET node = $$ WHERE id <> 1", "DELETE FROM tree_nodes WHERE id <> 1"];
    for damage in damages {
        let empty = if place.named.is_empty() { "X''" } else { "''::BYTEA" };
        place.meddle(&[Box::leak(damage.replace("$$", empty).into_boxed_str())]);
        for result in [
            tree.child(&at).map(drop),
            tree.list(ROOT, None, 10).map(drop),
            tree.decide(std::slice::from_ref(&remove)).map(drop),
            tree.decide(&[file(2, ROOT, b"a")]).map(drop),
        ] {
            assert_eq!(result.unwrap_err().code, Code::CatalogueFailed, "{damage}");
        }
        assert_eq!(tree.position().unwrap().seq, 1);
    }
}

// ---- a process that is killed ----------------------------------------------------------------------------------------

/// Where the process that is killed has its tree.
const VICTIM: &str = "RENKEI_TREES_VICTIM";

/// Makes files and renames them until it is killed, and says how far it is; nothing unless it is that process.
#[test]
fn victim() {
    let Some(folder) = std::env::var_os(VICTIM) else { return };
    let trees = Trees::open("", &Home::at(folder.as_ref())).unwrap();
    let tree = trees.tree(VOLUME).unwrap();
    let mut number = tree.position().unwrap().taken.get(&HERE).copied().unwrap_or(0);
    loop {
        let mut batch = Vec::new();
        for _ in 0..50 {
            let name = format!("made-{number}").into_bytes();
            batch.push(file(number + 1, ROOT, &name));
            let from = Dentry { dir: ROOT, name: Name(name) };
            let to = Dentry { dir: ROOT, name: Name(format!("kept-{}", number % 64).into_bytes()) };
            let change = Change::Rename { from, to, replace: true, seen: None, time: time(9) };
            batch.push(SequencedChange { origin: HERE, number: number + 2, change });
            number += 2;
        }
        let records = tree.decide(&batch).unwrap();
        println!("decided {}", records.last().unwrap().seq);
    }
}

#[test]
fn batches_are_atomic_when_the_process_is_killed() {
    let place = Place::new(String::new());
    for round in 0..4 {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "catalogue::trees::victim", "--nocapture"])
            .env(VICTIM, place.folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut decided = lines.filter_map(|line| line.strip_prefix("decided ")?.parse::<u64>().ok());
        let told = decided.nth(3 + round).unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
        let trees = place.open();
        let tree = trees.tree(VOLUME).unwrap();
        let seq = tree.position().unwrap().seq;
        assert!(seq >= told && seq.is_multiple_of(100), "{seq} after {told} was told");
        let mut model = MemoryTree::default();
        for record in tree.log(0, 1_000_000).unwrap() {
            model.apply(&record.outcome.unwrap());
        }
        check_equal(&tree, &model);
    }
}
