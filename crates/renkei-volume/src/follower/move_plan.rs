//! The move plan: how plain files of a followed volume get from their paths to those that the volume gives them.
//!
//! The names that records may change are looked up before and after; the difference becomes a list of steps.
//! Directories are moved as a whole, by their node numbers; files in them by node and version. Each step names its
//! inode, and skips any other: so steps are idempotent and may be repeated after a kill, and no unknown file is moved
//! or removed. Guarantee: content that was written here and has no name at the moment is kept in limbo as long as it
//! may get one.

use super::limbo::park;
use super::outbox::Outbox;
use super::plain_file::{Item, Of, Parted, PlainEntry};
use renkei_core::entry::{EntryKind, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{Dentry, Kind, NodeId, Origin, ROOT};
use renkei_core::path::RelPath;
use renkei_store::local::LocalStore;
use renkei_store::temp::temp_name;
use renkei_store::tree::{dir_of, make_dirs, remove_tree};
use renkei_store::{Detail, Dir, Store};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Key of the temporary names of plain files that are moved out of the way.
const MAKING_WAY: u64 = 0x7261_696c;

/// The items of names in the current view, each path once.
///
/// # Errors
/// `CatalogueFailed`.
pub(crate) fn look(pending: &Outbox, origin: Origin, spots: &BTreeSet<Dentry>) -> Result<Vec<Item>, Error> {
    let (mut found, mut dirs) = (BTreeMap::new(), HashMap::from([(ROOT, Some(RelPath::root()))]));
    for at in spots {
        let at = Dentry { dir: pending.meant(at.dir), name: at.name.clone() };
        let Some((id, node)) = pending.child(&at)? else { continue };
        let of = match node.kind {
            Kind::File(content) if content.by.0 == origin => Of::Own(content.by.1),
            Kind::Dir { .. } => Of::Dir(id),
            _ => Of::Node(id),
        };
        let dir = match dirs.entry(at.dir) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(pending.path_of_dir(at.dir)?),
        };
        if let Some(path) = dir.as_ref().and_then(|dir| dir.child(&at.name.0).ok()) {
            found.insert(path.clone(), Item { of, id, path });
        }
    }
    Ok(found.into_values().collect())
}

/// The items that have a plain file or directory.
pub(crate) fn find(plain: &LocalStore, items: Vec<Item>) -> Vec<PlainEntry> {
    let found = items.into_iter().filter_map(|item| {
        let (is_dir, stamp) = stat(plain, &item.path)?;
        let way = RelPath::parse(&temp_name(MAKING_WAY, &item.path)).ok()?;
        (is_dir == matches!(item.of, Of::Dir(_))).then_some(PlainEntry { item, stamp, way })
    });
    found.collect()
}

/// Whether a path is a directory, and its stamp.
pub(crate) fn stat(plain: &LocalStore, path: &RelPath) -> Option<(bool, Stamp)> {
    let (dir, name) = dir_of(plain, path).ok()?;
    let (entry, raw) = dir.entry(name, Detail::Basic).ok()?;
    Some(match entry.kind {
        EntryKind::File { stamp, .. } => (false, stamp),
        kind => (kind == EntryKind::Dir, Stamp { ino: raw.ino, ..Stamp::default() }),
    })
}

fn is_there(plain: &LocalStore, path: &RelPath, ino: u64) -> bool {
    stat(plain, path).is_some_and(|(_, stamp)| stamp.ino == ino)
}

/// The current paths of items that were found before a kill: the temporary path, the target, or the former path,
/// possibly below a directory that was moved.
pub(crate) fn find_again(plain: &LocalStore, before: &[PlainEntry], after: &[Item]) -> Vec<PlainEntry> {
    let mut before: Vec<&PlainEntry> = before.iter().collect();
    before.sort_by_key(|found| found.item.path.components().count());
    let mut dirs: Vec<(RelPath, RelPath)> = Vec::new();
    let mut now = Vec::new();
    for found in before {
        let above = dirs.iter().rev().find(|(was, _)| found.item.path.starts_with(was));
        let along = above.map_or_else(
            || found.item.path.clone(),
            |(was, is)| {
                let mut path = found.item.path.clone();
                follow_path(&mut path, was, is);
                path
            },
        );
        let belongs = after.iter().filter(|item| item.of == found.item.of).map(|item| item.path.clone());
        let way = std::iter::once(found.way.clone());
        let mut places = way.chain(belongs).chain([along, found.item.path.clone()]);
        // Each name of a file with several names is an item of its own.
        let is_free = |path: &RelPath| now.iter().all(|other: &PlainEntry| other.item.path != *path);
        let place = places.find(|path| is_free(path) && is_there(plain, path, found.stamp.ino));
        let Some(path) = place else { continue };
        if matches!(found.item.of, Of::Dir(_)) {
            dirs.push((found.item.path.clone(), path.clone()));
        }
        now.push(PlainEntry { item: Item { path, ..found.item.clone() }, ..found.clone() });
    }
    now
}

/// A replica that was renamed, which changed its ctime.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) id: NodeId,
    pub(crate) before: Stamp,
    pub(crate) after: Stamp,
}

/// A step on the file or directory with this inode number; skipped if another one is there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    path: RelPath,
    ino: u64,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Move(RelPath),
    Link(RelPath),
    Park(Parted),
    Remove,
}

/// The steps for the plain files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct MovePlan {
    steps: Vec<Step>,
    /// Replicas that are moved.
    replicas: Vec<(NodeId, Stamp, RelPath)>,
}

/// A plan under construction.
struct Plan<'f> {
    found: &'f [PlainEntry],
    /// Current path of each item; none once it was removed.
    now: Vec<Option<RelPath>>,
    steps: Vec<Step>,
}

impl Plan<'_> {
    fn path(&self, index: usize) -> Option<&RelPath> {
        self.now[index].as_ref()
    }

    /// Moves an item; any item at the target, or at an ancestor that must be a directory, is moved out of the way.
    fn rename(&mut self, index: usize, to: &RelPath) {
        for other in 0..self.now.len() {
            let is_dir = matches!(self.found[other].item.of, Of::Dir(_));
            let is_above = |path: &RelPath| !is_dir && path != to && to.starts_with(path);
            if self.path(other).is_some_and(is_above) {
                self.make_way(other);
            }
        }
        let there = (0..self.now.len()).find(|other| *other != index && self.path(*other) == Some(to));
        there.into_iter().for_each(|other| self.make_way(other));
        self.put(index, to.clone());
    }

    fn make_way(&mut self, index: usize) {
        self.put(index, self.found[index].way.clone());
    }

    fn put(&mut self, index: usize, to: RelPath) {
        let Some(from) = self.now[index].replace(to.clone()) else { return };
        if matches!(self.found[index].item.of, Of::Dir(_)) {
            self.now.iter_mut().flatten().for_each(|path| follow_path(path, &from, &to));
        }
        self.push(index, from, What::Move(to));
    }

    fn drop(&mut self, index: usize, parted: Option<Parted>) {
        if let Some(path) = self.now[index].take() {
            self.push(index, path, parted.map_or(What::Remove, What::Park));
        }
    }

    fn push(&mut self, index: usize, path: RelPath, what: What) {
        self.steps.push(Step { path, ino: self.found[index].stamp.ino, what });
    }
}

impl MovePlan {
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The plan from the items that were found before to those after. With `parted`, content that was written here
    /// and has no name any more is parked in limbo.
    pub(crate) fn between(
        found: &[PlainEntry],
        after: &[Item],
        parted: Option<&dyn Fn(NodeId, u64) -> Parted>,
    ) -> Self {
        let mut places: HashMap<Of, Vec<&RelPath>> = HashMap::new();
        for item in after {
            places.entry(item.of).or_default().push(&item.path);
        }
        let now = found.iter().map(|found| Some(found.item.path.clone())).collect();
        let mut plan = Plan { found, now, steps: Vec::new() };
        let of = |index: usize| found[index].item.of;
        let (dirs, files): (Vec<usize>, Vec<usize>) =
            (0..found.len()).partition(|index| matches!(of(*index), Of::Dir(_)));

        // Parents first: they take their entries along.
        let (mut stay, gone): (Vec<usize>, Vec<usize>) =
            dirs.into_iter().partition(|index| places.contains_key(&of(*index)));
        stay.sort_by_key(|index| places[&of(*index)][0].components().count());
        for index in stay {
            let to = places[&of(index)][0];
            if plan.path(index) != Some(to) {
                plan.rename(index, to);
            }
        }

        // Names that stay, then those that are removed, so that fewer items must be moved out of the way.
        let mut left = Vec::new();
        for index in files {
            let wanted = places.get_mut(&of(index)).filter(|wanted| !wanted.is_empty());
            match wanted.as_ref().and_then(|all| all.iter().position(|path| plan.path(index) == Some(*path)))
            {
                Some(same) => drop(wanted.map(|wanted| wanted.swap_remove(same))),
                None => left.push(index),
            }
        }
        // Of several names of a file one is parked.
        let mut kept: BTreeSet<Of> = after.iter().map(|item| item.of).collect();
        let mut moving = Vec::new();
        for index in left {
            match places.get_mut(&of(index)).and_then(Vec::pop) {
                Some(to) => moving.push((index, to)),
                None => {
                    let own = match (of(index), parted) {
                        (Of::Own(number), Some(parted)) if kept.insert(of(index)) => {
                            Some(parted(found[index].item.id, number))
                        }
                        _ => None,
                    };
                    plan.drop(index, own);
                }
            }
        }
        for (index, to) in moving {
            plan.rename(index, to);
        }
        // A removed directory whose path another one now has is left to that one, with its entries.
        let is_taken =
            |path: &RelPath| after.iter().any(|item| matches!(item.of, Of::Dir(_)) && item.path == *path);
        let mut gone: Vec<(usize, usize)> = gone
            .into_iter()
            .filter(|index| plan.path(*index).is_some_and(|path| !is_taken(path)))
            .map(|index| (plan.path(index).map_or(0, |path| path.components().count()), index))
            .collect();
        gone.sort_unstable();
        for (_, index) in gone.into_iter().rev() {
            plan.drop(index, None);
        }

        // Further names of existing files.
        for index in 0..found.len() {
            let more = places.get_mut(&of(index)).filter(|_| !matches!(of(index), Of::Dir(_)));
            for to in more.map(std::mem::take).unwrap_or_default() {
                if let Some(from) = plan.path(index).cloned() {
                    plan.push(index, from, What::Link(to.clone()));
                }
            }
        }
        let moved = (0..found.len()).filter(|index| plan.path(*index) != Some(&found[*index].item.path));
        let replicas = moved.filter_map(|index| match found[index].item.of {
            Of::Node(id) => Some((id, found[index].stamp, plan.path(index)?.clone())),
            _ => None,
        });
        let replicas = replicas.collect();
        MovePlan { steps: plan.steps, replicas }
    }

    /// Executes the steps; returns the replicas that were moved.
    pub(crate) fn take(self, plain: &LocalStore) -> Vec<Moved> {
        let known: HashSet<u64> = self.steps.iter().map(|step| step.ino).collect();
        for step in &self.steps {
            if let Err(error) = step.take(plain, &known) {
                tracing::warn!(?step, %error, "a plain file of a volume could not follow");
            }
        }
        let moved = self.replicas.into_iter().filter_map(|(id, before, path)| {
            let (_, after) = stat(plain, &path).filter(|(_, after)| after.ino == before.ino)?;
            Some(Moved { id, before, after })
        });
        moved.collect()
    }

    /// The content that the steps park in limbo.
    pub(crate) fn parted(&self) -> impl Iterator<Item = Parted> {
        self.steps.iter().filter_map(|step| match step.what {
            What::Park(parted) => Some(parted),
            _ => None,
        })
    }

    /// Keeps the first steps only, as a kill does.
    #[cfg(test)]
    pub(crate) fn cut(&mut self, count: usize) {
        self.steps.truncate(count);
    }
}

impl Step {
    fn take(&self, plain: &LocalStore, known: &HashSet<u64>) -> Result<(), Error> {
        let Step { path, ino, what } = self;
        if !is_there(plain, path, *ino) {
            // The step was done before a kill.
            return Ok(());
        }
        let (dir, name) = dir_of(plain, path)?;
        match what {
            // Another name of the same file: rename would do nothing.
            What::Move(to) if is_there(plain, to, *ino) => dir.remove_file(name),
            What::Move(to) => {
                let (to_dir, to_name) = room_at(plain, to, known)?;
                dir.rename(name, &*to_dir, to_name)
            }
            What::Link(to) if is_there(plain, to, *ino) => Ok(()),
            What::Link(to) => {
                let (to_dir, to_name) = room_at(plain, to, known)?;
                dir.hard_link(name, &*to_dir, to_name)
            }
            What::Park(parted) => park(&plain.root()?, *parted, &*dir, name),
            What::Remove => remove_tree(&*dir, name).map(drop),
        }
    }
}

/// Frees a name and creates its directory; an existing entry that is no item is not in the catalogue, and is removed.
fn room_at<'p>(
    plain: &LocalStore,
    path: &'p RelPath,
    known: &HashSet<u64>,
) -> Result<(Arc<dyn Dir>, &'p [u8]), Error> {
    let (parent, name) = path.split().ok_or_else(|| Error::new(Code::IsADirectory, "rename", path, ""))?;
    let dir = make_dirs(&plain.root()?, &RelPath::parse(parent)?)?;
    if stat(plain, path).is_some_and(|(_, stamp)| known.contains(&stamp.ino)) {
        return Err(Error::new(Code::PathExists, "rename", path, "the existing entry could not be moved"));
    }
    match remove_tree(&*dir, name) {
        Err(error) if error.code != Code::PathNotFound => Err(error),
        _ => Ok((dir, name)),
    }
}

fn follow_path(path: &mut RelPath, from: &RelPath, to: &RelPath) {
    if let Some(Ok(moved)) = path.below(from).filter(|below| !below.is_root()).map(|below| to.join(&below)) {
        *path = moved;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_store::local::AccessMode;
    use std::fs;
    use std::path::Path;

    fn item(name: &str, of: Of) -> Item {
        Item { of, id: NodeId(9), path: RelPath::parse(name.as_bytes()).unwrap() }
    }

    fn items(all: &[(&str, Of)]) -> Vec<Item> {
        all.iter().map(|(name, of)| item(name, *of)).collect()
    }

    fn take(top: &Path, before: &[(&str, Of)], after: &[(&str, Of)], parted: Option<Parted>) -> Vec<Moved> {
        let plain = LocalStore::open(top, AccessMode::ReadWrite).unwrap();
        let found = find(&plain, items(before));
        let of = |_, _| parted.unwrap();
        let steps = MovePlan::between(&found, &items(after), if parted.is_some() { Some(&of) } else { None });
        steps.take(&plain)
    }

    fn write(top: &Path, names: &[&str]) {
        for name in names {
            fs::create_dir_all(top.join(name).parent().unwrap()).unwrap();
            fs::write(top.join(name), name).unwrap();
        }
    }

    fn read<const N: usize>(top: &Path, names: [&str; N]) -> [Option<String>; N] {
        names.map(|name| fs::read_to_string(top.join(name)).ok())
    }

    fn text(text: &str) -> Option<String> {
        Some(text.into())
    }

    #[test]
    fn swapped_files_are_moved_past_each_other() {
        let top = tempfile::tempdir().unwrap();
        write(top.path(), &["a", "b", "c", "gone"]);
        let node = |id| Of::Node(NodeId(id));
        let before = [("a", node(1)), ("b", node(2)), ("c", Of::Own(3)), ("gone", node(4))];
        let after = [("a", node(2)), ("b", node(1)), ("c", node(5)), ("c.conflict", Of::Own(3))];
        let moved = take(top.path(), &before, &after, None);
        let mut ids: Vec<NodeId> = moved.iter().map(|moved| moved.id).collect();
        ids.sort();
        assert_eq!(ids, [NodeId(1), NodeId(2)]);
        let found = read(top.path(), ["a", "b", "c", "c.conflict", "gone"]);
        assert_eq!(found, [text("b"), text("a"), None, text("c"), None]);
        assert_eq!(fs::read_dir(top.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_moved_directory_keeps_its_entries() {
        let top = tempfile::tempdir().unwrap();
        write(top.path(), &["d/f", "d/sub/g", "d/not looked up"]);
        let (dir, file) = (Of::Dir(NodeId(1)), Of::Node(NodeId(2)));
        let before = [("d", dir), ("d/f", file), ("d/sub/g", Of::Node(NodeId(3)))];
        take(top.path(), &before, &[("e", dir), ("e/sub/h", file)], None);
        let found = read(top.path(), ["e/sub/h", "e/not looked up", "e/sub/g"]);
        assert_eq!(found, [text("d/f"), text("d/not looked up"), None]);
        assert!(!top.path().join("d").exists());
    }

    #[test]
    fn merged_directories_and_files_in_the_way_of_directories() {
        let top = tempfile::tempdir().unwrap();
        write(top.path(), &["mine/own", "theirs/old", "x"]);
        let (mine, theirs) = (Of::Dir(NodeId(1)), Of::Dir(NodeId(2)));
        let before = [("mine", mine), ("mine/own", Of::Own(1)), ("theirs", theirs), ("x", Of::Own(2))];
        let after = [("mine", theirs), ("mine/own", Of::Own(1)), ("x/y", Of::Own(2))];
        take(top.path(), &before, &after, None);
        let found = read(top.path(), ["mine/own", "mine/old", "x/y"]);
        assert_eq!(found, [text("mine/own"), text("theirs/old"), text("x")]);
        assert_eq!(fs::read_dir(top.path()).unwrap().count(), 2);
    }

    #[test]
    fn other_files_stay_and_replaced_local_content_is_set_aside() {
        let top = tempfile::tempdir().unwrap();
        write(top.path(), &["a", "b", "c"]);
        let plain = LocalStore::open(top.path(), AccessMode::ReadWrite).unwrap();
        let (own, node) = (Of::Own(1), Of::Node(NodeId(2)));
        let found = find(&plain, items(&[("a", own), ("b", node), ("c", Of::Own(4))]));
        let parted: Parted = serde_json::from_str(r#"{"id": 9, "beside": 10, "number": 1}"#).unwrap();
        let of = |_, _| parted;
        let steps = MovePlan::between(&found, &items(&[("c", Of::Own(4)), ("d", Of::Own(4))]), Some(&of));
        assert_eq!(steps.parted().collect::<Vec<_>>(), [parted]);
        // Another file replaced the plain file meanwhile.
        fs::write(top.path().join("new"), "new").unwrap();
        fs::rename(top.path().join("new"), top.path().join("b")).unwrap();
        steps.take(&plain);
        assert_eq!(read(top.path(), ["a", "b", "c", "d"]), [None, text("new"), text("c"), text("c")]);
        assert!(stat(&plain, &RelPath::parse(b".rk~0000006173696465-0000000000000000").unwrap()).is_some());
    }
}
