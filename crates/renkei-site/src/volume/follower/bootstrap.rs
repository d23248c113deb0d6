//! Bootstrap of a follower from a snapshot: the home has truncated records that a new or late site would need, so
//! the site takes the tree in pages.
//!
//! Pages, and the records made meanwhile, go into a shadow copy beside the visible one; when that is complete it
//! replaces the visible one atomically. After a kill the transfer continues with the page after the last one.
//! Replicas stay: nodes have the same ids in both copies. Their plain files are renamed and removed as the names
//! changed.

use crate::volume::request::ask;
use crate::volume::tree_walk::each_page;
use renkei_catalogue::{HeldReplica, VolumeId, VolumeTree};
use renkei_core::entry::{EntryKind, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::page::{Page, Reached};
use renkei_core::namespace::{NodeId, Origin, Record};
use renkei_core::path::RelPath;
use renkei_core::wire::violation;
use renkei_core::wire::volume::{AboutVolume, VolumeReply};
use renkei_mover::connect::dial::Session;
use renkei_net::identity::account::Account;
use renkei_store::local::LocalStore;
use renkei_store::tree::{dir_of, make_dirs};
use renkei_store::{Detail, Store};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

/// Maximum restarts because the home truncated the records after the pages; then it is an error.
const MOST_BEGINS: u32 = 3;

/// Pages queued for storing, a megabyte each.
const PAGES_WAITING: usize = 2;

/// The store of plain files and the account that owns them.
pub(crate) type Plain<'p> = Option<(&'p Arc<LocalStore>, &'p Account)>;

/// Takes the whole tree of a volume and makes it visible.
///
/// # Errors
/// Those of the home; `CatalogueFailed`.
pub(crate) fn take_pages(
    session: &mut Session,
    volume: VolumeId,
    tree: &VolumeTree,
    origin: Origin,
    plain: Plain<'_>,
    go_on: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let late = tree.late_copy()?;
    let mut begins = 0;
    while go_on() {
        if late.position()?.seq == 0 {
            take_rest(session, volume, &late, origin, go_on)?;
        }
        match take_records(session, volume, &late, origin, go_on) {
            Err(error) if error.code == Code::RecordsForgotten && begins < MOST_BEGINS => {
                begins += 1;
                let page = ask_page(session, volume, None)?;
                late.load(origin, &page)?;
            }
            Err(error) => return Err(error),
            Ok(false) => break,
            Ok(true) => return show(tree, &late, origin, plain),
        }
    }
    Ok(())
}

/// Takes the whole tree of the home's current log without making it visible; `None` if it is no longer wanted.
/// Starts from the first page, because earlier pages may be of another log.
///
/// # Errors
/// Those of the home; `CatalogueFailed`.
pub(crate) fn take_another(
    session: &mut Session,
    volume: VolumeId,
    tree: &VolumeTree,
    origin: Origin,
    go_on: &dyn Fn() -> bool,
) -> Result<Option<VolumeTree>, Error> {
    let late = tree.late_copy()?;
    for begun in 0.. {
        let first = ask_page(session, volume, None)?;
        late.load(origin, &first)?;
        if first.next.is_some() {
            take_rest(session, volume, &late, origin, go_on)?;
        }
        match take_records(session, volume, &late, origin, go_on) {
            Err(error) if error.code == Code::RecordsForgotten && begun < MOST_BEGINS => {}
            Err(error) => return Err(error),
            Ok(is_whole) => return Ok(is_whole.then_some(late)),
        }
    }
    Ok(None)
}

fn ask_page(session: &mut Session, volume: VolumeId, after: Option<Reached>) -> Result<Box<Page>, Error> {
    match ask(session, AboutVolume::Page { volume, after })? {
        VolumeReply::Page(page) => Ok(page),
        other => Err(violation("page", format_args!("{other:?}"))),
    }
}

/// Takes the remaining pages. The next one is requested while one is being stored.
fn take_rest(
    session: &mut Session,
    volume: VolumeId,
    late: &VolumeTree,
    origin: Origin,
    go_on: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let mut after = late.loading()?;
    std::thread::scope(|scope| {
        let (to_store, pages) = sync_channel::<Box<Page>>(PAGES_WAITING);
        let storing = scope.spawn(move || pages.iter().try_for_each(|page| late.load(origin, &page)));
        let mut ask = || {
            while go_on() {
                let page = ask_page(session, volume, after.take())?;
                after.clone_from(&page.next);
                // If the storing thread has failed, it returns the error.
                if to_store.send(page).is_err() || after.is_none() {
                    break;
                }
            }
            Ok(())
        };
        let asked = ask();
        drop(to_store);
        storing.join().expect("a panic aborts the process").and(asked)
    })
}

/// Takes the records made while pages were taken; whether the copy is complete.
fn take_records(
    session: &mut Session,
    volume: VolumeId,
    late: &VolumeTree,
    origin: Origin,
    go_on: &dyn Fn() -> bool,
) -> Result<bool, Error> {
    loop {
        let position = late.position()?;
        if position.seq > 0 && position.is_whole() {
            return Ok(true);
        }
        if !go_on() || late.loading()?.is_some() {
            return Ok(false);
        }
        let asked = AboutVolume::Log { volume, after: position.seq, patience_ms: 0 };
        match ask(session, asked)? {
            VolumeReply::Records { records, .. } if is_next(&records, position.seq) => {
                late.follow(origin, &records)?;
            }
            // The log is empty.
            VolumeReply::Records { last: 0, .. } => return Ok(true),
            VolumeReply::Records { records, .. } if records.is_empty() => {
                return Err(violation("log", "an end before that of the tree"));
            }
            VolumeReply::Records { .. } => return Err(violation("log", "records that do not follow")),
            other => return Err(violation("log", format_args!("{other:?}"))),
        }
    }
}

/// Whether the records continue after `seq`.
fn is_next(records: &[Record], seq: u64) -> bool {
    records.first().is_some_and(|first| first.seq.checked_sub(1) == Some(seq))
}

/// Makes the new copy visible, and renames the plain files accordingly.
fn show(tree: &VolumeTree, late: &VolumeTree, origin: Origin, plain: Plain<'_>) -> Result<(), Error> {
    let plain = if tree.holds_any()? { plain } else { None };
    let Some((plain, account)) = plain else { return tree.show_late(origin, late) };
    let left = left(tree, &paths(late, tree)?)?;
    // Not held until they have their new names, so that a kill in between leaves no wrong entry.
    tree.set_held(&left.iter().map(|left| (left.id, None)).collect::<Vec<_>>())?;
    tree.show_late(origin, late)?;
    let (plain, count) = (plain.clone(), left.len());
    let moved = account.spawn("replicas", move || move_all(&plain, &left))?;
    let moved = moved.join().expect("a panic aborts the process");
    tracing::info!(
        replicas = count,
        moved = moved.len(),
        "plain files follow a tree that was received again"
    );
    tree.set_held(&moved)
}

/// The paths in a tree of the files that `tree` holds.
fn paths(of: &VolumeTree, tree: &VolumeTree) -> Result<HashMap<NodeId, Vec<RelPath>>, Error> {
    let mut paths: HashMap<NodeId, Vec<RelPath>> = HashMap::new();
    each_page(of, &RelPath::root(), &mut |page| {
        let held = tree.held_of(&page.iter().map(|found| found.id).collect::<Vec<_>>())?;
        for found in page.into_iter().filter(|found| held.contains_key(&found.id)) {
            paths.entry(found.id).or_default().push(found.path);
        }
        Ok(())
    })?;
    Ok(paths)
}

/// A plain file under a name that its file no longer has.
struct RenamedFile {
    id: NodeId,
    from: RelPath,
    /// Its new name, if it has exactly one.
    to: Option<RelPath>,
    held: HeldReplica,
}

/// Held files under removed names.
fn left(tree: &VolumeTree, new: &HashMap<NodeId, Vec<RelPath>>) -> Result<Vec<RenamedFile>, Error> {
    let mut left = Vec::new();
    each_page(tree, &RelPath::root(), &mut |page| {
        let held = tree.held_of(&page.iter().map(|found| found.id).collect::<Vec<_>>())?;
        for found in page {
            let Some(held) = held.get(&found.id) else { continue };
            let names = new.get(&found.id).map(Vec::as_slice).unwrap_or_default();
            if names.contains(&found.path) {
                continue;
            }
            let to = match names {
                [only] if found.node.links == 1 => Some(only.clone()),
                _ => None,
            };
            left.push(RenamedFile { id: found.id, from: found.path, to, held: held.clone() });
        }
        Ok(())
    })?;
    Ok(left)
}

/// Moves and removes plain files; returns the held state of those moved.
fn move_all(plain: &LocalStore, left: &[RenamedFile]) -> Vec<(NodeId, Option<HeldReplica>)> {
    // Removals first: another file may have the name by now.
    for gone in left.iter().filter(|left| left.to.is_none()) {
        let removed = dir_of(plain, &gone.from).and_then(|(dir, name)| dir.remove_file(name));
        tell(removed, &gone.from);
    }
    let moving = left.iter().filter_map(|left| Some((left, left.to.as_ref()?)));
    let moved = moving.filter_map(|(left, to)| match rename(plain, left, to) {
        Ok(held) => Some((left.id, Some(held))),
        Err(error) => {
            tell(Err(error), &left.from);
            None
        }
    });
    let moved = moved.collect();
    left.iter().for_each(|left| remove_empty(plain, &left.from));
    moved
}

fn tell(done: Result<(), Error>, path: &RelPath) {
    if let Err(error) = done {
        tracing::debug!(%error, %path, "a plain file of a volume could not follow");
    }
}

/// Renames a plain file; only its change time may differ afterwards.
fn rename(plain: &LocalStore, left: &RenamedFile, to: &RelPath) -> Result<HeldReplica, Error> {
    let (from_dir, from_name) = dir_of(plain, &left.from)?;
    let stamp = stamp_of(plain, &left.from)?;
    if stamp != left.held.stamp {
        return Err(Error::new(Code::SourceChanged, "rename", &left.from, "the plain file was changed"));
    }
    let (parent, to_name) = to.split().ok_or_else(|| Error::new(Code::IsADirectory, "rename", to, ""))?;
    let to_dir = make_dirs(&plain.root()?, &RelPath::parse(parent)?)?;
    from_dir.rename(from_name, &*to_dir, to_name)?;
    Ok(HeldReplica { stamp: stamp_of(plain, to)?, ..left.held.clone() })
}

fn stamp_of(plain: &LocalStore, path: &RelPath) -> Result<Stamp, Error> {
    let (dir, name) = dir_of(plain, path)?;
    match dir.entry(name, Detail::Basic)?.0.kind {
        EntryKind::File { stamp, .. } => Ok(stamp),
        _ => Err(Error::new(Code::SourceChanged, "look at", path, "it is no longer a file")),
    }
}

/// Removes the directories above a path that have become empty.
fn remove_empty(plain: &LocalStore, path: &RelPath) {
    let mut at = path.parent();
    while let Some(dir) = at.filter(|dir| !dir.is_root()) {
        let removed = dir_of(plain, &dir).and_then(|(above, name)| above.remove_dir(name));
        if removed.is_err() {
            return;
        }
        at = dir.parent();
    }
}
