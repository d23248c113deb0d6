//! Recovery after a kill: the write-ahead log is replayed. Changes that were made and not stored are made again as
//! they were, and plain files that records should have moved are moved.

use super::apply::note_moved;
use super::limbo::{hold_back, paths_of, place_of};
use super::move_plan::{find_again, stat};
use super::outbox::{Item, Outbox};
use super::plain_file::{Item as Place, Of, PlainEntry, Writer};
use super::wal::{Sign, WalRecord};
use super::write_txn::WriteTxn;
use renkei_catalogue::HeldReplica;
use renkei_core::error::Error;
use renkei_core::namespace::{Kind, Node, NodeId, SequencedChange};
use renkei_store::Detail;
use renkei_store::tree::dir_of;
use std::sync::atomic::Ordering;

/// Recovers the changes that a killed PoP had made and not stored.
///
/// # Errors
/// `CatalogueFailed`, and those of the file system.
pub fn recover(pending: &Outbox, writer: &Writer) -> Result<(), Error> {
    recover_left(&mut pending.turn(), writer)
}

/// The same for the holder of the write lock; idempotent.
///
/// # Errors
/// As [`recover`]; recovery is retried with the next write.
pub(crate) fn recover_left(turn: &mut WriteTxn<'_>, writer: &Writer) -> Result<(), Error> {
    if !turn.state.left.is_empty() {
        let left = std::mem::take(&mut turn.state.left);
        make_again(turn, writer, &left)
            .and_then(|()| follow_again(turn, writer, &left))
            .inspect_err(|_| turn.state.left = left)?;
        turn.pending.has_left.store(false, Ordering::Release);
    }
    turn.find_asides(writer)
}

/// Changes after number `stored` that were done to plain files.
fn unstored(writer: &Writer, left: &[WalRecord], stored: u64) -> Vec<Item> {
    let mut made: Vec<Item> = Vec::new();
    let undo = |made: &mut Vec<Item>, from: u64| {
        made.retain(|one| one.changes.first().is_none_or(|first| first.number < from));
    };
    for did in left {
        match did {
            WalRecord::Made(changes, held, sign) => {
                if let Some(first) = changes.first() {
                    undo(&mut made, first.number);
                }
                let (changes, held, sign) = (changes.clone(), held.clone(), sign.clone());
                made.push(Item { changes, held, sign, dirs: Vec::new() });
            }
            WalRecord::Undone(from) => undo(&mut made, *from),
            WalRecord::Follows(_) | WalRecord::Followed | WalRecord::Back(..) => {}
        }
    }
    // One transaction runs at a time, so only the last operation may be incomplete.
    if matches!(left.last(), Some(WalRecord::Made(..))) {
        made.pop_if(|last| last.sign.as_ref().is_some_and(|sign| !is_done(writer, sign)));
    }
    made.retain(|one| one.changes.first().is_none_or(|first| first.number > stored));
    made
}

fn is_done(writer: &Writer, sign: &Sign) -> bool {
    let look = |path| {
        let (dir, name) = dir_of(&*writer.plain, path).ok()?;
        dir.entry(name, Detail::Basic).ok()
    };
    match sign {
        Sign::Wrote(path, ino) => look(path).is_some_and(|(_, raw)| *ino == 0 || raw.ino == *ino),
        Sign::Gone(path) => look(path).is_none(),
        Sign::Dated(path, time) => look(path).is_some_and(|(entry, _)| entry.meta.mtime == *time),
    }
}

fn make_again(turn: &mut WriteTxn<'_>, writer: &Writer, left: &[WalRecord]) -> Result<(), Error> {
    let Ok(origin) = turn.origin() else { return Ok(()) };
    let mut all = unstored(writer, left, turn.next_number()? - 1);
    if all.is_empty() {
        return Ok(());
    }
    let changes: Vec<SequencedChange> = all.iter().flat_map(|one| one.changes.iter().cloned()).collect();
    tracing::info!(
        volume = turn.pending.name,
        changes = changes.len(),
        "changes made before a kill are made"
    );
    turn.pending.resume(&mut turn.state, origin, changes)?;
    for one in all.iter_mut().filter(|one| one.changes.is_empty()) {
        // Rows that were stored since may be more recent.
        one.held = one
            .held
            .iter()
            .filter_map(|known| still_held(turn, known).transpose())
            .collect::<Result<_, _>>()?;
    }
    for one in &mut all {
        if let Some(Sign::Wrote(path, _)) = &one.sign {
            one.dirs.extend(dir_of(&*writer.plain, path).map(|(dir, _)| dir));
        }
    }
    turn.store_soon(all);
    Ok(())
}

/// A replica row, if it is of the node's current content.
fn still_held(
    turn: &WriteTxn<'_>,
    known: &(NodeId, Option<HeldReplica>),
) -> Result<Option<(NodeId, Option<HeldReplica>)>, Error> {
    let (id, held) = known;
    let is_of =
        |held: &HeldReplica, node: Node| matches!(&node.kind, Kind::File(content) if held.is_of(content));
    let node = turn.pending.node(*id)?;
    Ok(node.zip(held.as_ref()).is_some_and(|(node, held)| is_of(held, node)).then(|| known.clone()))
}

/// Moves plain files to their places after records that were being followed.
fn follow_again(turn: &mut WriteTxn<'_>, writer: &Writer, left: &[WalRecord]) -> Result<(), Error> {
    let done = left.iter().rposition(|did| *did == WalRecord::Followed).map_or(0, |last| last + 1);
    for did in &left[done..] {
        if let WalRecord::Follows(before) = did {
            let after = places(turn, before)?;
            let found = find_again(&writer.plain, before, &after);
            let steps = turn.steps(&found, &after)?;
            if !steps.is_empty() {
                tracing::info!(volume = turn.pending.name, "plain files follow what was done before a kill");
            }
            note_moved(turn.pending, &steps.take(&writer.plain))?;
        }
    }
    for did in left {
        if let WalRecord::Back(path, parted) = did
            && let Some((false, stamp)) = stat(&writer.plain, path)
        {
            hold_back(turn, writer, path, *parted, stamp)?;
        }
    }
    turn.note_followed()
}

/// The target paths of plain files that were found before.
fn places(turn: &WriteTxn<'_>, before: &[PlainEntry]) -> Result<Vec<Place>, Error> {
    let (pending, origin, mut places) = (turn.pending, turn.origin()?, Vec::new());
    for Place { of, id, path } in before.iter().map(|found| &found.item) {
        if let Of::Dir(_) = of {
            let is_dir = pending.node(*id)?.as_ref().is_some_and(Node::is_dir);
            let now = if is_dir { pending.path_of_dir(*id)? } else { None };
            places.extend(now.map(|path| Place { of: *of, id: *id, path }));
            // Another directory may have the path.
            let there = pending.at(path)?.filter(|(there, node)| node.is_dir() && there != id);
            places.extend(there.map(|(id, _)| Place { of: Of::Dir(id), id, path: path.clone() }));
            continue;
        }
        let now = match of {
            Of::Own(number) => place_of(pending, turn.parted(*id, *number), origin, &[])?,
            _ => paths_of(pending, *id)?.map(|paths| (*id, paths)),
        };
        let now = now.into_iter().flat_map(|(id, paths)| paths.into_iter().map(move |path| (id, path)));
        places.extend(now.map(|(id, path)| Place { of: *of, id, path }));
    }
    places.sort_by(|a, b| a.path.cmp(&b.path));
    places.dedup();
    Ok(places)
}
