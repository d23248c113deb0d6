//! The limits of a volume, kept where its plain files change.
//!
//! What is about to get a name is weighed against what it replaces and reserved ([`Ledger`]) before anybody sees it; with
//! the next commit of the keeper the catalogue counts it and the reservation is settled. Weighing and renaming are one
//! step for all who work on a limited volume, so that two who replace the same file do not both count what was there.
//! Volumes without limits do none of this. What others change behind our back is counted, and never refused.

use crate::catalogue::VolumeTree;
use crate::store::passwd::user_name;
use crate::store::{Detail, Dir, Space};
use crate::volume::plain_entry::{Plain, look};
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::quota::{Difference, Excess, Ledger, Limit, Quota, Reservation, Use};
use renkei_core::namespace::quota_share::{QuotaShare, ShareRequest};
use renkei_core::namespace::{Origin, Record, SequencedChange};
use renkei_core::path::RelPath;
use renkei_core::wire::{decode, encode};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Under which key the tree has what was handed out to sites that write first.
const HANDED: &str = "handed";

/// What something adds and takes, by owners.
pub(in crate::volume) type Parts = Vec<(String, Difference)>;

/// Reservations by the names that were noted with them.
pub(in crate::volume) type Taken = Vec<(RelPath, Vec<Reservation>)>;

/// The limits of one volume.
#[derive(Default)]
pub(in crate::volume) struct Quotas {
    is_limited: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    quotas: Vec<Quota>,
    ledger: Ledger,
    /// What was reserved and done, by the names that were noted with it.
    done: HashMap<RelPath, Vec<Reservation>>,
}

/// Room that was reserved, while that for which it was is done. It is given back unless it was.
pub(in crate::volume) struct Reserved<'q> {
    state: MutexGuard<'q, State>,
    number: Reservation,
}

impl Reserved<'_> {
    /// It was done, and the name is noted.
    pub(in crate::volume) fn keep(mut self, path: RelPath) {
        let number = std::mem::take(&mut self.number);
        self.state.done.entry(path).or_default().push(number);
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let number = self.number;
        self.state.ledger.cancel(&[number]);
    }
}

impl Quotas {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }

    /// Whether there are limits.
    pub(in crate::volume) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Acquire)
    }

    /// Sets the limits; what there is then is looked up.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub(in crate::volume) fn set(&self, quotas: Vec<Quota>, tree: &VolumeTree) -> Result<(), Error> {
        let mut state = self.state();
        if state.quotas == quotas {
            return Ok(());
        }
        let used = tree.usage()?;
        state.ledger.set_quotas(quotas.clone());
        state.ledger.settle(&[], used);
        self.is_limited.store(!quotas.is_empty(), Ordering::Release);
        state.quotas = quotas;
        Ok(())
    }

    /// Goes on with what was handed out to sites that write first.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub(in crate::volume) fn resume_handed(&self, tree: &VolumeTree) -> Result<(), Error> {
        if let Some(note) = tree.note(HANDED)? {
            self.state().ledger.resume_handed(decode("handed", &note)?);
        }
        Ok(())
    }

    /// Hands a site what it may add, and keeps that before it is told.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub(in crate::volume) fn hand(
        &self,
        tree: &VolumeTree,
        origin: Origin,
        claim: &ShareRequest,
        writers: &[Origin],
    ) -> Result<QuotaShare, Error> {
        let taken = tree.position()?.taken.get(&origin).copied().unwrap_or_default();
        let mut state = self.state();
        let (told, is_more) = state.ledger.hand(origin, taken, claim, writers);
        if is_more {
            tree.set_note(HANDED, &encode(state.ledger.handed()))?;
        }
        Ok(told)
    }

    /// What sites that write first may still add under a limit.
    pub(in crate::volume) fn handed(&self, owner: Option<&str>) -> Use {
        self.state().ledger.handed().out(owner)
    }

    /// Decides changes of a site and counts them, in one step: what it used of its share and what it may add after its
    /// last change are always of one moment.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub(in crate::volume) fn decide(
        &self,
        tree: &VolumeTree,
        changes: &[SequencedChange],
    ) -> Result<Vec<Record>, Error> {
        if !self.is_limited() {
            return tree.decide(changes);
        }
        let mut state = self.state();
        let mut handed = state.ledger.handed().clone();
        let records = tree.decide_noting(changes, |records, by| {
            let last = records.last()?;
            handed.count(last.origin, last.number, by);
            Some((HANDED, encode(&handed)))
        })?;
        state.ledger.resume_handed(handed);
        state.ledger.settle(&[], tree.usage()?);
        Ok(records)
    }

    /// Reserves what somebody is about to do; `Err` with the limit in the way.
    pub(in crate::volume) fn reserve(
        &self,
        parts: impl FnOnce() -> Result<Parts, Error>,
    ) -> Result<Result<Reserved<'_>, Excess>, Error> {
        let mut state = self.state();
        let parts = parts()?;
        Ok(match state.ledger.reserve(parts) {
            Ok(number) => Ok(Reserved { state, number }),
            Err(excess) => Err(excess),
        })
    }

    /// The reservations behind names that the keeper is about to compare.
    pub(in crate::volume) fn taken(&self, paths: &BTreeSet<RelPath>) -> Taken {
        if !self.is_limited() {
            return Taken::new();
        }
        let mut state = self.state();
        paths.iter().filter_map(|path| state.done.remove_entry(path)).collect()
    }

    /// What was taken is not in the catalogue.
    pub(in crate::volume) fn put_back(&self, taken: Taken) {
        let mut state = self.state();
        taken.into_iter().for_each(|(path, numbers)| state.done.entry(path).or_default().extend(numbers));
    }

    /// Takes over what the catalogue has, with what was taken in it.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub(in crate::volume) fn settle(&self, taken: &Taken, tree: &VolumeTree) -> Result<(), Error> {
        if !self.is_limited() && taken.is_empty() {
            return Ok(());
        }
        let mut state = self.state();
        let used = tree.usage()?;
        let numbers: Vec<Reservation> = taken.iter().flat_map(|(_, numbers)| numbers).copied().collect();
        state.ledger.settle(&numbers, used);
        Ok(())
    }

    /// The room that the limits leave this thread's account of what the file system has.
    pub(in crate::volume) fn narrow(&self, space: Space) -> Space {
        if !self.is_limited() {
            return space;
        }
        let (most, left) = self.state().ledger.room(&own_name());
        let least = |limit: Option<u64>, has: u64| limit.map_or(has, |limit| limit.min(has));
        let (total, free) = (most.bytes.unwrap_or(space.total), least(left.bytes, space.free));
        Space {
            total,
            free,
            available: least(left.bytes, space.available),
            files_total: most.files.unwrap_or(space.files_total),
            files_free: match left {
                Limit { files: Some(left), .. } if space.files_total == 0 => left,
                Limit { files, .. } => least(files, space.files_free),
            },
        }
    }
}

/// The name of the account that this thread works as.
fn own_name() -> String {
    let uid = rustix::process::geteuid().as_raw();
    user_name(uid).unwrap_or_else(|| uid.to_string())
}

/// What a new name adds that is no file.
pub(in crate::volume) fn one_more() -> Result<Parts, Error> {
    Ok(vec![(own_name(), Difference { files: 1, bytes: 0 })])
}

/// What a file that was written beside its place adds there, and what it takes away.
///
/// # Errors
/// Those of the file system.
pub(in crate::volume) fn of_rename(from: (&dyn Dir, &[u8]), to: (&dyn Dir, &[u8])) -> Result<Parts, Error> {
    let (entry, raw) = from.0.entry(from.1, Detail::Basic)?;
    let new = Plain { entry, raw };
    let mut parts = vec![weighed(&new, 1)];
    // Of a file with several names the content stays.
    let old = look(to.0, to.1)?.filter(|old| old.raw.nlink < 2 && old.raw.ino != new.raw.ino);
    parts.extend(old.filter(|old| old.entry.kind != EntryKind::Dir).map(|old| weighed(&old, -1)));
    Ok(parts)
}

fn weighed(plain: &Plain, sign: i64) -> (String, Difference) {
    let bytes = i64::try_from(plain.stamp().size).unwrap_or(i64::MAX);
    (plain.attributes().owner, Difference { files: sign, bytes: sign * bytes })
}

/// The error of who is over a limit.
pub(in crate::volume) fn refused(op: &str, path: &RelPath, excess: &Excess) -> Error {
    Error::new(Code::QuotaExceeded, op, path, excess)
}
