//! The quotas of a volume, enforced where its plain files change.
//!
//! The difference that a new name makes is reserved ([`Ledger`]) before the name is visible; with the next commit of
//! the reconciler the catalogue counts it and the reservation is settled. Weighing and renaming are one critical
//! section on a volume with quotas, so that two writers who replace the same file do not both subtract the old one.
//! Volumes without quotas do none of this. Changes past renkei are counted, and never refused.

use crate::plain_entry::{Plain, look};
use renkei_catalogue::{TreeNote, VolumeTree};
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::quota::{Difference, Excess, Ledger, Limit, Quota, Reservation, Use};
use renkei_core::namespace::quota_share::{GrantedShares, QuotaShare, ShareRequest};
use renkei_core::namespace::{Origin, Record, SequencedChange};
use renkei_core::path::RelPath;
use renkei_core::wire::decode;
use renkei_store::passwd::user_name;
use renkei_store::{Detail, Dir, Space};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// The note in the tree with the shares that were granted to writing sites.
pub(crate) const HANDED: TreeNote<GrantedShares> = TreeNote::of("handed", &[decode]);

/// Differences in usage, by owners.
pub(crate) type Parts = Vec<(String, Difference)>;

/// Reservations by the paths that were marked as dirty with them.
pub(crate) type Taken = Vec<(RelPath, Vec<Reservation>)>;

/// The quotas of one volume.
#[derive(Default)]
pub(crate) struct Quotas {
    is_limited: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    quotas: Vec<Quota>,
    ledger: Ledger,
    /// Reservations of changes that were done and are not in the catalogue, by path.
    done: HashMap<RelPath, Vec<Reservation>>,
}

/// A reservation during the change that it is for; it is cancelled unless the change is done.
pub(crate) struct Reserved<'q> {
    state: MutexGuard<'q, State>,
    number: Reservation,
}

impl Reserved<'_> {
    /// Keeps the reservation: the change is done, and its path is marked as dirty.
    pub(crate) fn keep(mut self, path: RelPath) {
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

    /// Whether there are quotas.
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Acquire)
    }

    /// Sets the quotas; the current usage is read from the catalogue.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub(crate) fn set(&self, quotas: Vec<Quota>, tree: &VolumeTree) -> Result<(), Error> {
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

    /// Resumes with the shares that were granted to writing sites.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub(crate) fn resume_handed(&self, tree: &VolumeTree) -> Result<(), Error> {
        if let Some(handed) = HANDED.read(tree)? {
            self.state().ledger.resume_handed(handed);
        }
        Ok(())
    }

    /// Grants a site its quota share, which is stored before the site is told.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub(crate) fn hand(
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
            HANDED.write(tree, state.ledger.handed())?;
        }
        Ok(told)
    }

    /// The unused part of all granted shares under a limit.
    pub(crate) fn handed(&self, owner: Option<&str>) -> Use {
        self.state().ledger.handed().out(owner)
    }

    /// Decides changes of a site and counts them in one critical section: the used part of its share and the rest
    /// after its last change are always consistent.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub(crate) fn decide(
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
            Some(HANDED.row(&handed))
        })?;
        state.ledger.resume_handed(handed);
        state.ledger.settle(&[], tree.usage()?);
        Ok(records)
    }

    /// Reserves quota; `Err` with the limit that is exceeded.
    pub(crate) fn reserve(
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

    /// Takes the reservations of paths that the reconciler is about to compare.
    pub(crate) fn taken(&self, paths: &BTreeSet<RelPath>) -> Taken {
        if !self.is_limited() {
            return Taken::new();
        }
        let mut state = self.state();
        paths.iter().filter_map(|path| state.done.remove_entry(path)).collect()
    }

    /// Puts reservations back: the commit failed.
    pub(crate) fn put_back(&self, taken: Taken) {
        let mut state = self.state();
        taken.into_iter().for_each(|(path, numbers)| state.done.entry(path).or_default().extend(numbers));
    }

    /// Takes over the usage from the catalogue, which now includes the changes of these reservations.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub(crate) fn settle(&self, taken: &Taken, tree: &VolumeTree) -> Result<(), Error> {
        if !self.is_limited() && taken.is_empty() {
            return Ok(());
        }
        let mut state = self.state();
        let used = tree.usage()?;
        let numbers: Vec<Reservation> = taken.iter().flat_map(|(_, numbers)| numbers).copied().collect();
        state.ledger.settle(&numbers, used);
        Ok(())
    }

    /// The space of the file system, narrowed to the quotas of this thread's account.
    pub(crate) fn narrow(&self, space: Space) -> Space {
        if !self.is_limited() {
            return space;
        }
        let (most, left) = self.state().ledger.room(&own_name());
        let least = |limit: Option<u64>, has: u64| limit.map_or(has, |limit| limit.min(has));
        Space {
            total_bytes: most.bytes.unwrap_or(space.total_bytes),
            available_bytes: least(left.bytes, space.available_bytes),
            total_files: most.files.unwrap_or(space.total_files),
            free_files: match left {
                Limit { files: Some(left), .. } if space.total_files == 0 => left,
                Limit { files, .. } => least(files, space.free_files),
            },
        }
    }
}

/// The name of the account that this thread works as.
fn own_name() -> String {
    let uid = rustix::process::geteuid().as_raw();
    user_name(uid).unwrap_or_else(|| uid.to_string())
}

/// The difference of a new directory or symbolic link.
pub(crate) fn one_more() -> Result<Parts, Error> {
    Ok(vec![(own_name(), Difference { files: 1, bytes: 0 })])
}

/// The difference when a file under a temporary name replaces an existing entry.
///
/// # Errors
/// Those of the file system.
pub(crate) fn of_rename(from: (&dyn Dir, &[u8]), to: (&dyn Dir, &[u8])) -> Result<Parts, Error> {
    let (entry, raw) = from.0.entry(from.1, Detail::Basic)?;
    let new = Plain { entry, raw };
    let mut parts = vec![weighed(&new, 1)];
    // The content of a file with several names stays.
    let old = look(to.0, to.1)?.filter(|old| old.raw.nlink < 2 && old.raw.ino != new.raw.ino);
    parts.extend(old.filter(|old| old.entry.kind != EntryKind::Dir).map(|old| weighed(&old, -1)));
    Ok(parts)
}

fn weighed(plain: &Plain, sign: i64) -> (String, Difference) {
    let bytes = i64::try_from(plain.stamp().size).unwrap_or(i64::MAX);
    (plain.attributes().owner, Difference { files: sign, bytes: sign * bytes })
}

/// The error of a change that exceeds a limit.
pub(crate) fn refused(op: &str, path: &RelPath, excess: &Excess) -> Error {
    Error::new(Code::QuotaExceeded, op, path, excess)
}
