//! The buffer as users see it: reservations, uploads, opening and expiry of transfers whose files are in the PoP's
//! buffer.
//!
//! A user of the site reserves space for a transfer, sends the files there as to any other place, and submits the
//! transfer. From then on the files belong to the transfer: they are sealed, and removed when it is done or
//! cancelled, or when they expire, which ends it with RK-STORE-22. The end of a transfer is always stored before
//! its files are removed; leftovers of a crash between the two are found by garbage collection, at the start and
//! once a minute.
//!
//! Files of the buffer are opened only for their owner, as the owner's account; a transfer's own credential reaches
//! only the files of that transfer ([`renkei_core::identity::Scope`]).

use super::digests::{Keeping, compare};
use super::{Buffer, Filling, Reservation, UNFINISHED_MS, gone};
use crate::Context;
use crate::access::{Access, Caller, Opened};
use crate::submission::{now_ms, read_spec, refused};
use renkei_catalogue::{Row, hex_id};
use renkei_core::buffer::{Answer, Charge, STORAGE, split};
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Need, Principal};
use renkei_core::path::{Place, RelPath};
use renkei_core::queue::State;
use renkei_core::wire::buffer::{BufferStatus, Buffered, Piece, Room, RoomState, Stage, Waiter};
use renkei_core::wire::message::{BATCH_ENTRIES, OpenSend, Source, TransferId};
use renkei_core::wire::queue::Submission;
use renkei_mover::hooks::{ReceiveHooks, SourceCheck};
use renkei_store::scoped::ScopedStore;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Poll interval for expired transfers and waiting requests.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval at which all pieces are checked against the catalogue, in milliseconds.
const LOOK_AT_ALL_EVERY_MS: u64 = 60 * 1000;
/// Time after which a waiting request expires if it is not repeated, in milliseconds.
const PATIENCE_MS: u64 = 30 * 1000;
/// Maximum unfinished uploads of one owner: each has a folder.
const MAX_UNFINISHED: usize = 1000;
/// Extension of a piece whose transfer runs, in milliseconds.
const A_WHILE_MS: u64 = 60 * 1000;
const DAY_MS: u64 = 24 * 3600 * 1000;

/// The guard and the hooks of a transfer that is received into the buffer.
type Custody = (Filling, Arc<dyn ReceiveHooks>);

/// The queued transfers, as the buffer needs to know them; the queue is above it.
pub(crate) trait QueuedTransfers: Send + Sync {
    /// Whether transfers can be looked up already.
    fn is_open(&self) -> bool;

    /// The row of a transfer, if it was submitted.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    fn row(&self, id: &TransferId) -> Result<Option<Row>, Error>;

    /// Whether an attempt of a transfer runs at this PoP.
    fn runs(&self, id: &TransferId) -> bool;

    /// Ends a transfer whose files are gone, unless it has ended already.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    fn lose(&self, id: &TransferId, error: Error) -> Result<(), Error>;
}

/// The buffer of a PoP and the transfers whose files are there.
pub struct BufferService {
    context: Arc<Context>,
    queued: Arc<dyn QueuedTransfers>,
}

/// Starts the garbage collection thread of the buffer, which runs as long as the PoP lives.
pub fn spawn_buffer(room: &Arc<BufferService>) -> Result<(), Error> {
    let looked_ms = AtomicU64::new(0);
    room.context.spawn_every(room, "buffer", LOOK_EVERY, move |room| {
        let now = now_ms();
        let all = now.saturating_sub(looked_ms.load(Ordering::Relaxed)) >= LOOK_AT_ALL_EVERY_MS;
        let tended = room.tend_buffer(now, all);
        if all && !matches!(tended, Ok(false)) {
            looked_ms.store(now, Ordering::Relaxed);
        }
        room.context.workers.note("buffer", tended.as_ref().err().cloned());
        if let Some(error) = tended.err().filter(|_| all) {
            tracing::error!(%error, "the buffer is not tended");
        }
    })
}

/// Whether a transfer's sources were uploaded to the buffer.
pub(crate) fn is_uploaded(spec: &Submission) -> bool {
    spec.send.sources.iter().any(|source| source.from.storage == STORAGE)
}

/// The transfer of a place in the buffer, and the path in its tree.
fn owner_of(place: &Place) -> Result<(TransferId, RelPath), Error> {
    let unknown = || Error::new(Code::BufferGone, "open", place, "it names no transfer");
    split(place).ok_or_else(unknown)
}

impl Access {
    /// Opens the files of a transfer in the buffer.
    pub(crate) fn enter_buffer(&self, place: &Place, need: Need) -> Result<Opened, Error> {
        let (id, path) = owner_of(place)?;
        let buffer = self.snapshot.buffer()?;
        let entered = buffer.enter(&id, &self.principal, &self.account.name, need == Need::Write);
        let mut store = entered.map_err(|error| error.at(self.site()))?;
        if let Some(scope) = &self.proof.scope {
            let here = |path: &RelPath| {
                let place = Place { storage: STORAGE.into(), path: path.clone() };
                split(&place).filter(|(other, _)| *other == id).map(|(_, path)| path)
            };
            let allowed = scope.paths(&self.snapshot.site, STORAGE, need).filter_map(here).collect();
            store = Arc::new(ScopedStore::new(store, allowed));
        }
        Ok(Opened { store, path, account: self.account.clone() })
    }

    /// The guard and the hooks for a transfer that is received into the buffer; `None` for any other place.
    pub(crate) fn fill_buffer(&self, to: &Place) -> Result<Option<Custody>, Error> {
        let Some((id, _)) = split(to) else { return Ok(None) };
        let buffer = self.snapshot.buffer()?;
        let filling = buffer.filling(id, now_ms())?;
        let keeping: Arc<dyn ReceiveHooks> = Arc::new(Keeping::open(&buffer, id, buffer.digests(&id))?);
        Ok(Some((filling, keeping)))
    }

    /// The check of files sent from the buffer against their recorded digests; all sources of a transfer are in the
    /// buffer, or none.
    pub(crate) fn compare_buffered(&self, open: &OpenSend) -> Result<Option<SourceCheck>, Error> {
        let first = open.sources.first().and_then(|source| split(&source.from));
        let Some((id, _)) = first else { return Ok(None) };
        let same = |source: &Source| split(&source.from).is_some_and(|(other, _)| other == id);
        if !open.sources.iter().all(same) {
            let cause = "a transfer sends from the buffer what is its own, and nothing else";
            return Err(Error::new(Code::NotAllowed, "open", hex_id(&id), cause));
        }
        compare(&self.snapshot.buffer()?.digests(&id), id).map(Some)
    }
}

impl BufferService {
    /// The buffer of a PoP; its folder is opened when it is first needed.
    pub(crate) fn new(context: &Arc<Context>, queued: Arc<dyn QueuedTransfers>) -> Self {
        BufferService { context: context.clone(), queued }
    }

    /// The folder.
    ///
    /// # Errors
    /// `BufferMissing`.
    pub(crate) fn buffer(&self) -> Result<Arc<Buffer>, Error> {
        self.context.last_snapshot().buffer()
    }

    /// Retention of files that wait to be forwarded, in milliseconds.
    pub(crate) fn keep_ms(&self) -> u64 {
        self.context.last_snapshot().config.buffer.keep_days.saturating_mul(DAY_MS)
    }

    /// Reserves space for a transfer that a user of this site will submit, or reports the shortage.
    ///
    /// # Errors
    /// `NotAllowed` for users of other sites, `BufferMissing`, `BufferTooSmall`, `BufferFull`, `SubmissionConflict`.
    pub fn reserve(&self, access: &Access, id: TransferId, bytes: u64, waits: bool) -> Result<Room, Error> {
        let owner = &access.principal;
        self.context.is_own_user(owner)?;
        let buffer = self.context.snapshot().buffer()?;
        let standing = match self.queued.row(&id)? {
            Some(row) if row.owner == owner.to_string() && !row.job.state.is_end() => RoomState::HandedIn,
            Some(_) => return Err(refused(Code::SubmissionConflict, &id, "")),
            None => self.ask_for_room(&buffer, access, id, bytes, waits)?,
        };
        Ok(buffer.room(owner, bytes, standing))
    }

    fn ask_for_room(
        &self,
        buffer: &Buffer,
        access: &Access,
        id: TransferId,
        bytes: u64,
        waits: bool,
    ) -> Result<RoomState, Error> {
        let (owner, account, now) = (&access.principal, &access.account.name, now_ms());
        if buffer.owner_of(&id).is_none() && buffer.unfinished_of(owner) >= MAX_UNFINISHED {
            let cause =
                format!("{MAX_UNFINISHED} of your uploads are not finished; `renkei buffer` lists them");
            return Err(Error::new(Code::BufferFull, "reserve", owner, cause));
        }
        let wanted = Reservation::new(owner, account, bytes, now, now + UNFINISHED_MS);
        let shortage = match buffer.reserve(id, wanted, now + PATIENCE_MS)? {
            Answer::Granted => {
                let transfer = hex_id(&id);
                tracing::info!(target: "audit", principal = %owner, transfer, bytes, "room reserved in the buffer");
                return Ok(RoomState::Granted);
            }
            Answer::Waits(shortage) => shortage,
        };
        if !waits {
            buffer.leave(&id)?;
        }
        Ok(RoomState::Waits(shortage))
    }

    /// Seals the sources that a transfer sends from the buffer.
    ///
    /// # Errors
    /// `BufferGone` if they are not there, `NotQueueable` if they belong to another transfer.
    pub(crate) fn seal_sources(&self, owner: &Principal, submission: &Submission) -> Result<(), Error> {
        let id = &submission.send.transfer;
        if submission.copy.to.storage == STORAGE {
            return Err(refused(Code::NotQueueable, id, "nothing is sent to the buffer but by the PoP"));
        }
        if !is_uploaded(submission) {
            return Ok(());
        }
        let own = |place: &Place| split(place).is_some_and(|(other, path)| other == *id && !path.is_root());
        let all_own = submission.send.sources.iter().all(|source| own(&source.from));
        if submission.from != self.context.name() || !all_own {
            return Err(refused(Code::NotQueueable, id, "it sends what is not its own in the buffer"));
        }
        match self.buffer()?.seal(id, owner, now_ms() + UNFINISHED_MS) {
            Ok(_) => Ok(()),
            // A repeated submission, after it was done.
            Err(error) if error.code == Code::BufferGone && self.queued.row(id)?.is_some() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Extends the retention of the sources of submitted transfers.
    pub(crate) fn keep_sources(&self, all: &[Submission], answers: &[Result<(), Error>]) {
        let until_ms = now_ms().saturating_add(self.keep_ms());
        let taken = all.iter().zip(answers).filter(|(one, answer)| answer.is_ok() && is_uploaded(one));
        for (one, _) in taken {
            if let Ok(buffer) = self.buffer() {
                buffer.keep(&one.send.transfer, until_ms);
            }
        }
    }

    /// Removes the files of a transfer that has ended; its end is stored.
    pub(crate) fn leave_buffer(&self, row: &Row) {
        if !matches!(row.job.state, State::Done | State::Cancelled) {
            return;
        }
        let Ok(buffer) = self.buffer() else { return };
        if let Err(error) = buffer.leave(&row.id) {
            tracing::warn!(transfer = hex_id(&row.id), %error, "is kept in the buffer for now");
        }
    }

    /// Whether there is an upload that was not submitted, of this principal if one is given.
    pub(crate) fn has_upload(&self, who: Option<&Principal>, id: &TransferId) -> bool {
        let owner = self.buffer().ok().and_then(|buffer| buffer.owner_of(id));
        owner.is_some_and(|owner| who.is_none_or(|who| *who == owner))
    }

    /// Removes an upload that was not submitted.
    ///
    /// # Errors
    /// `BufferMissing`, and those of the file system.
    pub(crate) fn abandon_upload(&self, id: &TransferId) -> Result<(), Error> {
        let buffer = self.buffer()?;
        let owner = buffer.owner_of(id).map(|owner| owner.to_string());
        buffer.leave(id)?;
        tracing::info!(target: "audit", transfer = hex_id(id), owner, "upload cancelled");
        Ok(())
    }

    /// The part of a queued transfer that is in the buffer.
    pub(crate) fn buffered(&self, id: &TransferId) -> Option<Buffered> {
        let (held, kept) = self.buffer().ok()?.held_by(id).filter(|(held, _)| !held.leaving)?;
        let Charge { written: bytes, until_ms, .. } = held;
        Some(Buffered { site: self.context.name(), bytes, whole: kept.sealed, until_ms })
    }

    /// The buffer as a user may see it, or as the administrator (`None`).
    ///
    /// # Errors
    /// `BufferMissing`.
    pub fn buffer_status(&self, caller: Caller<'_>) -> Result<BufferStatus, Error> {
        let who = caller.principal();
        let buffer = self.context.snapshot().buffer()?;
        let (limits, held) = (buffer.limits(), buffer.held());
        let seen = |owner: Option<&Principal>| who.is_none_or(|who| owner == Some(who));
        let owners = buffer.owners().into_iter().filter(|(owner, _)| seen(owner.as_ref()));
        let waiting = buffer.waiting().into_iter().filter(|waits| seen(Some(&waits.owner)));
        let pieces = held.iter().filter(|(held, _)| seen(held.owner.as_ref())).map(piece);
        Ok(BufferStatus {
            site: self.context.name(),
            size: limits.capacity,
            quota: limits.quota,
            charged: held.iter().map(|(held, _)| held.reserved).sum(),
            written: held.iter().map(|(held, _)| held.written).sum(),
            owners: owners.map(|(owner, bytes)| (shown(owner.as_ref()), bytes)).take(BATCH_ENTRIES).collect(),
            pieces: pieces.take(BATCH_ENTRIES).collect(),
            waiting: waiting
                .map(|waits| Waiter {
                    id: waits.id,
                    owner: waits.owner.to_string(),
                    bytes: waits.bytes,
                    shortage: waits.shortage,
                })
                .take(BATCH_ENTRIES)
                .collect(),
        })
    }

    /// Removes expired files and grants waiting requests; with `all`, every piece is checked. False if the
    /// catalogue is not open yet, so that no piece could be checked.
    fn tend_buffer(&self, now: u64, all: bool) -> Result<bool, Error> {
        let snapshot = self.context.last_snapshot();
        let buffer = match snapshot.buffer() {
            Err(error) if error.code == Code::BufferMissing && snapshot.config.buffer.size_mib == 0 => {
                return Ok(true);
            }
            buffer => buffer?,
        };
        if !self.queued.is_open() {
            return Ok(false);
        }
        for (held, _) in buffer.held() {
            if !held.leaving && (all || held.until_ms <= now) {
                self.judge_piece(&buffer, &held, now)?;
            }
        }
        buffer.tend(now);
        Ok(true)
    }

    /// Applies the state of its transfer to a piece.
    fn judge_piece(&self, buffer: &Buffer, held: &Charge, now: u64) -> Result<(), Error> {
        // Before submission it expires after the last write.
        let Some(row) = self.queued.row(&held.id)? else { return Ok(()) };
        let kept_until = row.submitted_ms.saturating_add(self.keep_ms());
        let runs = self.queued.runs(&row.id);
        match row.job.state {
            State::Done | State::Cancelled if !runs => self.leave_buffer(&row),
            _ if runs => buffer.keep(&held.id, now + A_WHILE_MS),
            State::Failed | State::Partial => {}
            _ if kept_until > now => buffer.keep(&held.id, kept_until),
            _ if held.until_ms <= now && is_uploaded(&read_spec(&row)?) => self.lose(&row)?,
            _ => {}
        }
        Ok(())
    }

    /// Ends a transfer whose files have expired.
    fn lose(&self, row: &Row) -> Result<(), Error> {
        let cause = "they waited for their destination too long and were removed";
        let error = Error { cause: cause.into(), ..gone(&row.id) }.at(self.context.name().as_str());
        self.queued.lose(&row.id, error)
    }
}

fn shown(owner: Option<&Principal>) -> String {
    owner.map(Principal::to_string).unwrap_or_default()
}

fn piece((held, kept): &(Charge, Option<Reservation>)) -> Piece {
    let stage = match kept {
        _ if held.leaving => Stage::Leaving,
        Some(kept) if kept.sealed => Stage::Whole,
        _ => Stage::Filling,
    };
    Piece {
        id: held.id,
        owner: shown(held.owner.as_ref()),
        charged: held.reserved,
        written: held.written,
        since_ms: kept.as_ref().map_or(0, |kept| kept.since_ms),
        until_ms: held.until_ms,
        stage,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Site;
    use crate::queue::state::With;
    use crate::snapshot::tests::site;
    use renkei_catalogue::New;
    use renkei_config::Config;
    use renkei_core::buffer::source;
    use renkei_core::queue::{Change, Event};
    use renkei_core::wire::message::Source;
    use renkei_net::identity::account::Account;

    fn alice() -> Principal {
        Principal::parse("alice@kek").unwrap()
    }

    /// A PoP whose buffer holds a sealed file of each of these transfers, which are submitted.
    fn pop(dir: &std::path::Path, ids: &[TransferId]) -> Arc<Site> {
        let (home, data) = site(dir);
        std::fs::create_dir(data).unwrap();
        let config = std::fs::read_to_string(home.config_file()).unwrap();
        std::fs::write(home.config_file(), format!("{config}\n[buffer]\nsize_mib = 1\n")).unwrap();
        let site = Site::open(home.clone(), Config::load(&home).unwrap()).unwrap();
        site.queue().open_queue().unwrap();
        let (buffer, account) = (site.buffer().buffer().unwrap(), Account::own().unwrap().name);
        for id in ids {
            let until = now_ms() + UNFINISHED_MS;
            let wanted = Reservation::new(&alice(), &account, 100, now_ms(), until);
            assert_eq!(buffer.reserve(*id, wanted, until), Ok(Answer::Granted));
            let files = buffer.folder().join(hex_id(id)).join("files");
            std::fs::write(files.join("0"), [7; 60]).unwrap();
            buffer.seal(id, &alice(), until).unwrap();
            site.queue().state.catalogue().unwrap().submit(&[row(id)]).unwrap();
        }
        site
    }

    /// A transfer from the buffer, as a row of the catalogue.
    fn row(id: &TransferId) -> New {
        let from = Source { from: source(id, 0), to: RelPath::root(), alone: false };
        let spec = Submission { send: OpenSend::plain(*id, vec![from]), ..crate::stored_tests::submission() };
        New {
            id: *id,
            owner: alice().to_string(),
            lane: "alice@kek\nkek\ntitech".into(),
            label: String::new(),
            priority: 0,
            submitted_ms: now_ms(),
            digest: [0; 32],
            spec: crate::submission::write_spec(&spec),
            deadline_ms: u64::MAX / 2,
            after: Vec::new(),
            credential: Vec::new(),
            notify: String::new(),
        }
    }

    fn state(site: &Site, id: &TransferId) -> (State, Option<Code>) {
        let job = site.queue().state.catalogue().unwrap().load(id).unwrap().unwrap().job;
        (job.state, job.reason.map(|error| error.code))
    }

    fn ask(site: &Site, id: &TransferId, change: Change) {
        let event = Event::Asked { change, deadline_ms: 0 };
        site.queue().state.happen(id, &event, &|_| Ok(()), &With::default()).unwrap();
    }

    #[test]
    fn files_expire_with_their_transfer() {
        let dir = tempfile::tempdir().unwrap();
        let ids = [[1; 16], [2; 16]];
        let site = pop(dir.path(), &ids);
        ask(&site, &ids[1], Change::Pause);
        let (start, held) = (now_ms(), || site.buffer().buffer().unwrap().held().len());
        for day in 0..7 {
            site.buffer().tend_buffer(start + day * DAY_MS, day % 2 == 0).unwrap();
            assert_eq!((held(), state(&site, &ids[0]).0), (2, State::Queued), "day {day}");
        }
        site.buffer().tend_buffer(start + 8 * DAY_MS, false).unwrap();
        for id in &ids {
            assert_eq!(state(&site, id), (State::Failed, Some(Code::BufferGone)));
        }
        assert_eq!(held(), 0);
    }

    #[test]
    fn leftovers_of_a_crash_and_unsubmitted_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let ids = [[1; 16], [2; 16]];
        let site = pop(dir.path(), &ids);
        // It was cancelled, and the PoP killed before the files were removed.
        ask(&site, &ids[0], Change::Cancel);
        let buffer = site.buffer().buffer().unwrap();
        let until = now_ms() + UNFINISHED_MS;
        let account = Account::own().unwrap().name;
        let wanted = Reservation::new(&alice(), &account, 10, now_ms(), until);
        buffer.reserve([3; 16], wanted, until).unwrap();
        let held = || buffer.held().iter().map(|(held, _)| held.id[0]).collect::<Vec<_>>();
        site.buffer().tend_buffer(now_ms(), false).unwrap();
        assert_eq!(held(), [1, 2, 3]);
        site.buffer().tend_buffer(now_ms(), true).unwrap();
        assert_eq!(held(), [2, 3]);
        site.buffer().tend_buffer(now_ms() + 2 * DAY_MS, false).unwrap();
        assert_eq!(held(), [2]);
        let bob = Principal::parse("bob@kek").unwrap();
        assert!(!site.buffer().has_upload(Some(&bob), &[2; 16]));
    }
}
