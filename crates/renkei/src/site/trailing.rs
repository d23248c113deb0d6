//! Keeps the plain files of a followed volume under the names that the volume gives them: what is removed there goes here,
//! what is renamed there is renamed here, and what was written here and lost its place goes where the home put it.
//!
//! Plain files follow what is seen here: the copy with own changes over it. So records that do what is seen already move
//! nothing. For others the names that they may change are looked up before and after, and the difference is done. The catalogue
//! is written first; a kill in between leaves a plain file under an old name, and a journal that says so.

use crate::catalogue::Held;
use crate::identity::account::Account;
use crate::store::local::LocalStore;
use crate::store::temp::temp_name;
use crate::store::tree::{dir_of, make_dirs, remove_tree};
use crate::store::{Detail, Store};
use crate::volume::pending::{Pending, Turn};
use renkei_core::entry::{EntryKind, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::merged::Merged;
use renkei_core::namespace::news::News;
use renkei_core::namespace::{Kind, NodeId, Origin, ROOT, Record, Spot};
use renkei_core::path::RelPath;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The key in the names of plain files that make way for each other.
const MAKING_WAY: u64 = 0x7261_696c;

/// Stores what records did, follows it with the plain files, and tells those who hold leases.
///
/// # Errors
/// `CatalogueFailed`, `ProtocolViolation`; what happens to plain files is logged.
pub(super) fn apply(
    pending: &Pending,
    origin: Origin,
    records: &[Record],
    plain: Option<(&Arc<LocalStore>, &Account)>,
) -> Result<(), Error> {
    let (stored, leases) = (store(pending, origin, records, plain), pending.leases());
    if leases.is_held() {
        leases.changed_anywhere(None, &pending.told(&News::of_records(records)));
    }
    stored
}

fn store(
    pending: &Pending,
    origin: Origin,
    records: &[Record],
    plain: Option<(&Arc<LocalStore>, &Account)>,
) -> Result<(), Error> {
    let mut turn = pending.turn();
    let Some((plain, account)) = plain else { return turn.follow(records, &[]) };
    for run in runs(origin, records) {
        let is_expected = turn.expects(run);
        let steps = follow(&mut turn, pending, origin, run, is_expected)?;
        let fates = turn.fates(run, !is_expected)?;
        if steps.is_empty() && fates.is_empty() {
            continue;
        }
        turn.note_moves(&steps.moves)?;
        let plain = plain.clone();
        let work = move || {
            let moved = steps.take(&plain);
            (moved, fates.take(&*plain, origin))
        };
        let (moved, back) = account.spawn("replicas", work)?.join().expect("a panic aborts the process");
        note_moved(pending, &moved)?;
        turn.hold_again(back);
        turn.forget_notes();
    }
    Ok(())
}

/// A plain file that was renamed: its time of change is another one.
#[derive(Debug, PartialEq, Eq)]
struct Moved {
    id: NodeId,
    before: Stamp,
    after: Stamp,
}

/// Notes how replicas are after they were renamed; those that were not as they were noted stay doubtful.
fn note_moved(pending: &Pending, moved: &[Moved]) -> Result<(), Error> {
    for Moved { id, before, after } in moved {
        let held = pending.tree().held(*id)?;
        if let Some(held) = held.filter(|held| held.stamp == *before) {
            pending.tree().replace_held(*id, &held, Some(&Held { stamp: *after, ..held.clone() }))?;
        }
    }
    Ok(())
}

/// Cuts records so that own ones are together, and a rename of others stands alone: the paths of all others can be told from
/// the tree before their run.
fn runs(origin: Origin, records: &[Record]) -> impl Iterator<Item = &[Record]> {
    records.chunk_by(move |a, b| match (a.origin == origin, b.origin == origin) {
        (false, false) => !renames(a) && !renames(b),
        (a, b) => a && b,
    })
}

fn renames(record: &Record) -> bool {
    record.outcome.as_ref().is_ok_and(|effects| {
        let frees = effects.names.iter().any(|(_, id)| id.is_none());
        frees && effects.names.iter().any(|(_, id)| id.is_some())
    })
}

/// Stores a run; gives what it means for plain files.
fn follow(
    turn: &mut Turn<'_>,
    pending: &Pending,
    origin: Origin,
    run: &[Record],
    is_expected: bool,
) -> Result<Steps, Error> {
    if is_expected {
        turn.follow(run, &[])?;
        return Ok(Steps::default());
    }
    let effects = || run.iter().filter_map(|record| record.outcome.as_ref().ok());
    let is_apart = run.iter().all(|record| record.origin != origin) && turn.is_apart_from(run);
    let frees = effects().any(|effects| effects.names.iter().any(|(_, id)| id.is_none()));
    let mut spots = BTreeSet::new();
    if frees || !is_apart {
        spots.extend(effects().flat_map(|effects| effects.names.iter().map(|(at, _)| at.clone())));
    }
    if !is_apart {
        spots.extend(turn.own_spots());
    }
    let gone = effects().flat_map(|effects| effects.nodes.iter().filter(|(_, node)| node.is_none()));
    let mut held: Vec<(NodeId, Option<Held>)> = gone.map(|(id, _)| (*id, None)).collect();
    held.extend(turn.displaced(run)?);
    let merged = pending.merged();
    let (before, anchors) = look(pending, origin, &spots)?;
    turn.note_anchors(anchors)?;
    turn.follow(run, &held)?;
    if !is_apart {
        spots.extend(turn.own_spots());
    }
    let (after, _) = look(pending, origin, &spots)?;
    let one = Merged::one_for_all(&merged, &pending.merged());
    Ok(Steps::between(one_for_all(before, &one), one_for_all(after, &one)))
}

/// Directories that have several numbers by one of them.
fn one_for_all(looked: Looked, one: &HashMap<NodeId, NodeId>) -> Looked {
    let number = |id: NodeId| one.get(&id).copied().unwrap_or(id);
    let by_one = looked.into_iter().map(|(Spot { dir, name }, (of, path))| {
        let of = match of {
            Of::Node(id) => Of::Node(number(id)),
            change => change,
        };
        (Spot { dir: number(dir), name }, (of, path))
    });
    by_one.collect()
}

/// What a plain file is of: content that was written here goes with its change, everything else with its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Of {
    Node(NodeId),
    Change(u64),
}

type Looked = BTreeMap<Spot, (Of, RelPath)>;

/// Directories, and files with content of changes that were made here: where they are.
type Anchors = Vec<(RelPath, NodeId, Option<u64>)>;

/// What names are of, and their paths, as it is seen now.
fn look(pending: &Pending, origin: Origin, spots: &BTreeSet<Spot>) -> Result<(Looked, Anchors), Error> {
    let (mut found, mut anchors, mut dirs) =
        (Looked::new(), Anchors::new(), HashMap::from([(ROOT, Some(RelPath::root()))]));
    for at in spots {
        let Some((id, node)) = pending.child(at)? else { continue };
        let (of, anchor) = match node.kind {
            Kind::File(content) if content.by.0 == origin => {
                (Of::Change(content.by.1), Some(Some(content.by.1)))
            }
            Kind::Dir { .. } => (Of::Node(id), Some(None)),
            _ => (Of::Node(id), None),
        };
        let dir = match dirs.entry(at.dir) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(pending.path_of_dir(at.dir)?),
        };
        if let Some(dir) = dir {
            let path = dir.child(&at.name.0)?;
            anchors.extend(anchor.map(|number| (path.clone(), id, number)));
            found.insert(at.clone(), (of, path));
        }
    }
    Ok((found, anchors))
}

/// What is to be done with plain files.
#[derive(Debug, Default, PartialEq, Eq)]
struct Steps {
    moves: Vec<(RelPath, RelPath)>,
    removals: Vec<RelPath>,
    /// Which nodes get their places from where to where.
    nodes: Vec<(NodeId, RelPath, RelPath)>,
}

impl Steps {
    fn is_empty(&self) -> bool {
        self.moves.is_empty() && self.removals.is_empty()
    }

    /// By what names are of before and after.
    fn between(before: Looked, after: Looked) -> Self {
        let same = |at: &Spot, of: &Of, others: &Looked| others.get(at).is_some_and(|(other, _)| other == of);
        let mut gained: BTreeMap<Of, Vec<RelPath>> = BTreeMap::new();
        for (at, (of, path)) in &after {
            if !same(at, of, &before) {
                gained.entry(*of).or_default().push(path.clone());
            }
        }
        let mut steps = Steps::default();
        for (at, (of, path)) in &before {
            if same(at, of, &after) {
                continue;
            }
            match gained.get_mut(of).and_then(Vec::pop) {
                Some(to) if to == *path => {}
                Some(to) => {
                    if let Of::Node(id) = of {
                        steps.nodes.push((*id, path.clone(), to.clone()));
                    }
                    steps.moves.push((path.clone(), to));
                }
                None => steps.removals.push(path.clone()),
            }
        }
        // What a directory takes along is there before anything is put into it.
        steps.moves.sort_by_key(|(_, to)| to.components().count());
        steps
    }

    /// Takes them; gives the files that have other places now.
    fn take(self, plain: &LocalStore) -> Vec<Moved> {
        let Steps { mut moves, mut removals, nodes } = self;
        let before: Vec<Option<Stamp>> = nodes.iter().map(|(_, from, _)| stamp_of(plain, from)).collect();
        for index in 0..moves.len() {
            let (from, to) = moves[index].clone();
            for (waiting, _) in &mut moves[index + 1..] {
                make_way(plain, waiting, &to);
            }
            if from != to {
                logged(rename(plain, &from, &to), &from);
            }
            let rest = moves[index + 1..].iter_mut().map(|(from, _)| from).chain(&mut removals);
            rest.for_each(|path| follow_path(path, &from, &to));
            removals.retain(|path| *path != to);
        }
        for path in &removals {
            logged(remove(plain, path), path);
        }
        let moved = nodes.into_iter().zip(before).filter_map(|((id, _, to), before)| {
            let (before, after) = before.zip(stamp_of(plain, &to))?;
            (before.ino == after.ino).then_some(Moved { id, before, after })
        });
        moved.collect()
    }
}

/// The state of a plain file, if it is one.
fn stamp_of(plain: &LocalStore, path: &RelPath) -> Option<Stamp> {
    let (dir, name) = dir_of(plain, path).ok()?;
    match dir.entry(name, Detail::Basic).ok()?.0.kind {
        EntryKind::File { stamp, .. } => Some(stamp),
        _ => None,
    }
}

/// What is renamed later and lies where something is put now is set aside.
fn make_way(plain: &LocalStore, from: &mut RelPath, to: &RelPath) {
    if !from.starts_with(to) {
        return;
    }
    let Ok(aside) = RelPath::parse(&temp_name(MAKING_WAY, from)) else { return };
    logged(rename(plain, from, &aside), from);
    *from = aside;
}

fn follow_path(path: &mut RelPath, from: &RelPath, to: &RelPath) {
    if let Some(Ok(moved)) = path.below(from).filter(|below| !below.is_root()).map(|below| to.join(&below)) {
        *path = moved;
    }
}

fn logged(done: Result<(), Error>, path: &RelPath) {
    match done {
        Err(error) if !is_missing(&error) => {
            tracing::warn!(%error, %path, "a plain file of a volume could not follow");
        }
        _ => {}
    }
}

fn is_missing(error: &Error) -> bool {
    matches!(error.code, Code::PathNotFound | Code::NotADirectory)
}

fn remove(plain: &LocalStore, path: &RelPath) -> Result<(), Error> {
    let (dir, name) = dir_of(plain, path)?;
    match dir.remove_file(name) {
        Err(error) if error.code == Code::IsADirectory => remove_tree(&*dir, name).map(drop),
        done => done,
    }
}

/// Without a plain file of what is renamed, that of what was there is wrong all the same.
fn rename(plain: &LocalStore, from: &RelPath, to: &RelPath) -> Result<(), Error> {
    let found = dir_of(plain, from).and_then(|(dir, name)| {
        dir.entry(name, Detail::Basic)?;
        Ok((dir, name))
    });
    let _ = remove(plain, to);
    let (from_dir, from_name) = found?;
    let (parent, to_name) = to.split().ok_or_else(|| Error::new(Code::IsADirectory, "rename", to, ""))?;
    let to_dir = make_dirs(&plain.root()?, &RelPath::parse(parent)?)?;
    from_dir.rename(from_name, &*to_dir, to_name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::local::Access;
    use renkei_core::namespace::Name;
    use std::fs;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    /// Names of one directory, each with what it is of.
    fn looked(names: &[(&str, Of)]) -> Looked {
        let spot = |name: &str| Spot { dir: ROOT, name: Name::from(name) };
        names.iter().map(|(name, of)| (spot(name), (*of, path(name)))).collect()
    }

    #[test]
    fn files_that_change_places_pass_each_other() {
        let top = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c", "gone"] {
            fs::write(top.path().join(name), name).unwrap();
        }
        let node = |id| Of::Node(NodeId(id));
        let before = looked(&[("a", node(1)), ("b", node(2)), ("c", Of::Change(3)), ("gone", node(4))]);
        let after = looked(&[("a", node(2)), ("b", node(1)), ("c", node(5)), ("c.conflict", Of::Change(3))]);
        let plain = LocalStore::open(top.path(), Access::ReadWrite).unwrap();
        let moved = Steps::between(before, after).take(&plain);
        assert_eq!(moved.iter().map(|moved| moved.id).collect::<Vec<_>>(), [NodeId(1), NodeId(2)]);
        let now = |name| stamp_of(&plain, &path(name)).unwrap();
        assert!(moved[0].after == now("b") && moved[1].after == now("a"), "{moved:?}");
        let read = |name: &str| fs::read_to_string(top.path().join(name)).ok();
        let found = ["a", "b", "c", "c.conflict", "gone"].map(read);
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(found, [text("b"), text("a"), None, text("c"), None]);
        assert_eq!(fs::read_dir(top.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_directory_takes_along_what_is_in_it() {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir_all(top.path().join("d/sub")).unwrap();
        fs::write(top.path().join("d/f"), "f").unwrap();
        fs::write(top.path().join("d/sub/g"), "g").unwrap();
        let moves = vec![(path("d"), path("e")), (path("d/f"), path("e/sub/h"))];
        let plain = LocalStore::open(top.path(), Access::ReadWrite).unwrap();
        let moved = Steps { moves, removals: vec![path("d/sub/g")], nodes: Vec::new() }.take(&plain);
        assert!(moved.is_empty());
        assert_eq!(fs::read_to_string(top.path().join("e/sub/h")).unwrap(), "f");
        assert!(!top.path().join("d").exists() && !top.path().join("e/sub/g").exists());
    }
}
