//! Application of the home's log to the plain files of a followed volume: files are removed and renamed by the
//! records, and own content that lost its name moves to the name that the home gave it.
//!
//! Plain files follow the view of this site: the copy with own changes over it. So records of changes that are in the
//! view already move nothing. For others the names that they may change are looked up before and after, and the
//! difference is carried out (`move_plan`). The intent is logged, then the catalogue is written, then plain files are
//! moved; recovery finds an interruption in the log.

use super::limbo::{Back, Fates};
use super::move_plan::{MovePlan, Moved, find, look};
use super::outbox::Outbox;
use super::plain_file::{Item, Of, PlainEntry, if_there, of_plain_dir};
use super::write_txn::WriteTxn;
use crate::plain_entry::meta;
use renkei_catalogue::{HeldReplica, own_version};
use renkei_core::entry::{Meta, Stamp};
use renkei_core::error::Error;
use renkei_core::namespace::invalidations::Invalidations;
use renkei_core::namespace::{Delta, Node, NodeId, Origin, Record};
use renkei_core::path::RelPath;
use renkei_store::Store;
use renkei_store::local::LocalStore;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Runs a function to its end as the account that owns the plain files.
pub type RunAs<'a> = dyn Fn(Box<dyn FnOnce() + Send>) -> Result<(), Error> + 'a;

pub(crate) fn run_one<T: Send + 'static>(
    run_as: &RunAs<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let (done, result) = std::sync::mpsc::channel();
    run_as(Box::new(move || drop(done.send(work()))))?;
    Ok(result.recv().expect("it ran to its end"))
}

/// Applies records to the copy and to the plain files, and invalidates leases.
///
/// # Errors
/// `CatalogueFailed`, `ProtocolViolation`; errors of plain files are logged.
pub fn apply(
    pending: &Outbox,
    origin: Origin,
    records: &[Record],
    plain: Option<(&Arc<LocalStore>, &RunAs<'_>)>,
) -> Result<(), Error> {
    let (stored, leases) = (store(pending, origin, records, plain), pending.leases());
    if leases.is_held() {
        leases.changed_anywhere(None, &pending.told(&Invalidations::of_records(records)));
    }
    stored
}

fn store(
    pending: &Outbox,
    origin: Origin,
    records: &[Record],
    plain: Option<(&Arc<LocalStore>, &RunAs<'_>)>,
) -> Result<(), Error> {
    let mut turn = pending.turn();
    let Some((plain, run_as)) = plain else { return turn.follow(records, &[]) };
    let modes = changed_modes(pending, records)?;
    if !modes.is_empty() {
        let plain = plain.clone();
        run_one(run_as, move || modes.iter().for_each(|(dir, meta)| set_mode(&plain, dir, meta)))?;
    }
    for run in runs(origin, records) {
        let todo = follow(&mut turn, origin, run, |items| {
            let plain = plain.clone();
            run_one(run_as, move || find(&plain, items))
        })?;
        if !todo.is_empty() {
            let plain = plain.clone();
            let (moved, back) = run_one(run_as, move || todo.take(&plain, origin))?;
            note_moved(pending, &moved)?;
            turn.hold_again(back)?;
            turn.note_followed()?;
        }
    }
    Ok(())
}

/// Directories whose mode the records change. They are set before the records are stored, so that a kill in between
/// has it repeated.
fn changed_modes(pending: &Outbox, records: &[Record]) -> Result<Vec<(RelPath, Meta)>, Error> {
    let effects = records.iter().filter_map(|record| record.outcome.as_ref().ok());
    let nodes = effects.filter(|effects| effects.names.is_empty()).flat_map(|effects| &effects.nodes);
    let mut modes = Vec::new();
    for (id, node) in nodes {
        let Some(node) = node.as_ref().filter(|node| node.is_dir()) else { continue };
        if pending.node(*id)?.is_none_or(|seen| seen.attributes.mode == node.attributes.mode) {
            continue;
        }
        if let Some(path) = pending.path_of_dir(*id)? {
            modes.push((path, of_plain_dir(&meta(&node.attributes))));
        }
    }
    Ok(modes)
}

fn set_mode(plain: &LocalStore, dir: &RelPath, meta: &Meta) {
    let set = plain.root().and_then(|root| root.descend(dir)).and_then(|dir| dir.set_own_meta(meta));
    if let Err(error) = if_there(set.map(drop)) {
        tracing::warn!(dir = %dir, code = %error.code, error = %error, "a directory of replicas keeps its former mode");
    }
}

/// Notes the stamps of replicas after they were renamed; replicas that had changed before keep their rows.
pub(crate) fn note_moved(pending: &Outbox, moved: &[Moved]) -> Result<(), Error> {
    for Moved { id, before, after } in moved {
        let held = pending.tree().held(*id)?;
        if let Some(held) = held.filter(|held| held.stamp == *before) {
            pending.tree().replace_held(*id, &held, Some(&HeldReplica { stamp: *after, ..held.clone() }))?;
        }
    }
    Ok(())
}

/// Splits records into runs: own ones together, and each rename of another site alone, so that the paths of all
/// others can be taken from the tree before their run.
pub(crate) fn runs(origin: Origin, records: &[Record]) -> impl Iterator<Item = &[Record]> {
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

/// Whether a file that got a name by a record has several names.
fn is_linked(pending: &Outbox, effects: &Delta, id: NodeId) -> Result<bool, Error> {
    let is_linked = |node: &Node| !node.is_dir() && node.links > 1;
    match effects.nodes.iter().find(|(of, _)| *of == id) {
        Some((_, node)) => Ok(node.as_ref().is_some_and(is_linked)),
        // By the copy: own changes that are refused may hide some names.
        None => Ok(pending.tree().node(id)?.as_ref().is_some_and(is_linked)),
    }
}

/// The work that a run of records means for plain files.
#[derive(Default)]
pub(crate) struct Todo {
    pub(crate) steps: MovePlan,
    pub(crate) fates: Fates,
}

impl Todo {
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.fates.is_empty()
    }

    /// Carries the work out.
    fn take(self, plain: &LocalStore, origin: Origin) -> (Vec<Moved>, Vec<Back>) {
        (self.steps.take(plain), self.fates.take(plain, origin))
    }
}

/// Stores a run of records; returns the work on the plain files, which `find` looks up.
pub(crate) fn follow(
    turn: &mut WriteTxn<'_>,
    origin: Origin,
    run: &[Record],
    find: impl FnOnce(Vec<Item>) -> Result<Vec<PlainEntry>, Error>,
) -> Result<Todo, Error> {
    if turn.expects(run) {
        turn.follow(run, &[])?;
        return Ok(Todo { steps: MovePlan::default(), fates: turn.fates(run, false)? });
    }
    let pending = turn.pending;
    let effects = || run.iter().filter_map(|record| record.outcome.as_ref().ok());
    let is_apart = turn.is_apart_from(run);
    let frees = effects().any(|effects| effects.names.iter().any(|(_, id)| id.is_none()));
    let mut spots = BTreeSet::new();
    if frees || !is_apart {
        spots.extend(effects().flat_map(|effects| effects.names.iter().map(|(at, _)| at.clone())));
    }
    if !is_apart {
        spots.extend(turn.own_spots()?);
    }
    // A further name must be a hard link to the same plain file.
    for effects in effects() {
        for (at, id) in effects.names.iter().filter_map(|(at, id)| Some((at, (*id)?))) {
            if is_linked(pending, effects, id)? {
                spots.insert(at.clone());
                spots.extend(pending.spots_of(id)?);
            }
        }
    }
    let gone = effects().flat_map(|effects| effects.nodes.iter().filter(|(_, node)| node.is_none()));
    let held: Vec<(NodeId, Option<HeldReplica>)> = gone.map(|(id, _)| (*id, None)).collect();
    let found = match spots.is_empty() {
        true => Vec::new(),
        false => find(look(pending, origin, &spots)?)?,
    };
    turn.note_found(&found)?;
    turn.follow(run, &held)?;
    if !is_apart {
        spots.extend(turn.own_spots()?);
    }
    let after = if found.is_empty() { Vec::new() } else { look(pending, origin, &spots)? };
    let steps = turn.steps(&found, &after)?;
    Ok(Todo { steps, fates: turn.fates(run, true)? })
}

impl WriteTxn<'_> {
    /// The move plan; replica rows of own content are noted. Own content without a name is parked in limbo as long as
    /// changes are pending.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub(crate) fn steps(&mut self, found: &[PlainEntry], after: &[Item]) -> Result<MovePlan, Error> {
        self.hold_found(found, after)?;
        let parted = |id, number| self.parted(id, number);
        let waits = self.pending.count() > 0;
        let steps = MovePlan::between(found, after, if waits { Some(&parted) } else { None });
        self.note_asides(steps.parted());
        Ok(steps)
    }

    /// Notes own content under the node that it has now.
    fn hold_found(&mut self, found: &[PlainEntry], after: &[Item]) -> Result<(), Error> {
        let (origin, mut held) = (self.origin()?, Vec::new());
        let stamps: HashMap<Of, Stamp> = found.iter().map(|found| (found.item.of, found.stamp)).collect();
        for Item { of, id, .. } in after {
            let (Of::Own(number), Some(stamp)) = (*of, stamps.get(of)) else { continue };
            let version = own_version((origin, number));
            if self.pending.held(*id)?.is_none_or(|held| held.version != version) {
                held.push((*id, Some(HeldReplica { version, stamp: *stamp, digest: None })));
            }
        }
        if held.is_empty() { Ok(()) } else { self.hold(held, Vec::new()) }
    }
}
