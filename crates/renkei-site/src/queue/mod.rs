//! Queued transfers: submission, listing, details and changes. The [`scheduler`] runs them.
//!
//! A user sees and changes the user's own transfers, the PoP's administrator all. Only users of the site itself may
//! queue: the PoP acts for them at other sites. [`drop_folders`] submits files that others put there, `spill` brings a
//! transfer into the buffer while its destination is down, [`webhooks`] reports ends, [`cancel_cleanup`] removes what a
//! cancelled transfer left. The rules are in `renkei_core::queue`, the stored state in `renkei_catalogue`.

pub mod cancel_cleanup;
pub mod drop_folders;
mod revocation;
pub mod scheduler;
pub(crate) mod spill;
pub mod webhooks;

use super::Site;
use super::access::{Access, Caller};
use super::buffer::api::QueuedTransfers;
use super::queue::spill::spill_permits;
use super::submission::{ambiguous, lane, now_ms, read_lane, read_spec, refused, short, unknown, write_spec};
use renkei_catalogue::{Catalogue, Listing, New, Put, Row, Update, first_digits, hex_id, no_digits};
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Principal, Scope};
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_core::queue::{Change, Event, Link, Load, Requested};
use renkei_core::wire::message::{BATCH_ENTRIES, EntryFailure, Found, TransferId};
use renkei_core::wire::queue::{
    Listed, MAX_AFTER, MAX_LABEL_BYTES, MAX_ORIGIN_BYTES, Queued, Story, Submission, Terms,
};
use renkei_core::wire::{encode, parts};
use renkei_mover::Stop;
use renkei_mover::connect::slow_connect::CurrentAttempt;
use renkei_mover::progress::Watch;
use renkei_net::identity::delegation::Delegation;
use rustls::pki_types::CertificateDer;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, SystemTime};

/// Maximum sources of one transfer, the mover's own limit.
const MAX_SOURCES: usize = 1024;
/// Page size of a list.
const PART: usize = 256;
const DAY_MS: u64 = 24 * 3600 * 1000;

/// One answer for each submission of a batch, and the rows and scopes of the accepted ones.
type Screened = (Vec<Result<(), Error>>, Vec<(usize, New, Scope)>);

/// A running attempt of this PoP.
#[derive(Clone)]
pub(super) struct Active {
    pub(super) watch: Watch,
    pub(super) stop: Stop,
    /// The places it may write.
    pub(super) writes: Arc<Vec<(SiteName, Place)>>,
    /// The source and the destination site.
    pub(super) sites: [SiteName; 2],
    /// The credential it works with, and since when.
    pub(super) shown: Arc<OnceLock<Shown>>,
    /// The site that does not answer it at the moment.
    pub(super) trying: CurrentAttempt,
}

/// The certificate chain of an attempt, leaf first, and the time it was verified.
pub(super) type Shown = (Vec<CertificateDer<'static>>, SystemTime);

/// The queue of a PoP.
#[derive(Default)]
pub(crate) struct Queue {
    pub(super) catalogue: OnceLock<Catalogue>,
    /// The error with which the catalogue could not be opened, or with which the last turn failed.
    pub(super) trouble: Mutex<Option<Error>>,
    /// The name of this PoP among those that share the catalogue.
    pub(super) runner: OnceLock<String>,
    pub(super) load: Mutex<Load>,
    pub(super) active: Mutex<HashMap<TransferId, Active>>,
    bell: Mutex<bool>,
    rung: Condvar,
    stopping: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds a lock: a panic aborts")
}

impl Queue {
    /// The catalogue, once it is open.
    pub(super) fn catalogue(&self) -> Result<&Catalogue, Error> {
        self.catalogue.get().ok_or_else(|| {
            let starting = || Error::new(Code::CatalogueFailed, "open", "catalogue", "the PoP is starting");
            lock(&self.trouble).clone().unwrap_or_else(starting)
        })
    }

    /// The error that blocks the queue, if any.
    pub(super) fn trouble(&self) -> Option<Error> {
        lock(&self.trouble).clone()
    }

    pub(super) fn note_trouble(&self, trouble: Option<Error>) {
        *lock(&self.trouble) = trouble;
    }

    pub(super) fn load(&self) -> MutexGuard<'_, Load> {
        lock(&self.load)
    }

    pub(super) fn active(&self) -> MutexGuard<'_, HashMap<TransferId, Active>> {
        lock(&self.active)
    }

    /// A running transfer with a write target that equals, contains or lies inside one of these.
    pub(super) fn in_the_way(&self, writes: &[(SiteName, Place)]) -> Option<TransferId> {
        let overlap = |(site, place): &(SiteName, Place), (other_site, other): &(SiteName, Place)| {
            let within = place.path.starts_with(&other.path) || other.path.starts_with(&place.path);
            site == other_site && place.storage == other.storage && within
        };
        let meets =
            |active: &Active| active.writes.iter().any(|one| writes.iter().any(|two| overlap(one, two)));
        self.active().iter().find(|(_, active)| meets(active)).map(|(id, _)| *id)
    }

    /// Wakes the scheduler.
    pub(super) fn ring(&self) {
        *lock(&self.bell) = true;
        self.rung.notify_all();
    }

    /// Waits for [`Queue::ring`], at most for `most`.
    pub(super) fn wait(&self, most: Duration) {
        let bell = lock(&self.bell);
        let waited = self.rung.wait_timeout_while(bell, most, |rung| !*rung);
        *waited.expect("no thread panics while it holds a lock: a panic aborts").0 = false;
    }

    /// Prevents further attempts from starting.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Whether the PoP is stopping.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Waits until no attempt runs, at most for `most`.
    pub(super) fn settle(&self, most: Duration) {
        let deadline = std::time::Instant::now() + most;
        while !self.active().is_empty() && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Applies an event to a transfer, unless `more` refuses, and returns the updated row. The update is
    /// optimistic: on a concurrent change it is retried with the new row.
    ///
    /// # Errors
    /// `TransferUnknown`, and those of `Course::handle`.
    pub(super) fn happen(
        &self,
        id: &TransferId,
        event: &Event,
        more: &dyn Fn(&mut Row) -> Result<(), Error>,
        with: &With<'_>,
    ) -> Result<Row, Error> {
        let catalogue = self.catalogue()?;
        loop {
            let mut row = catalogue.load(id)?.ok_or_else(|| unknown(&hex_id(id)))?;
            more(&mut row)?;
            row.course.handle(event.clone(), now_ms()).map_err(|error| about(error, &row.id))?;
            let With { attempt, met, credential } = *with;
            if catalogue.update(&Update { attempt, met, credential, ..Update::of(&row) })? {
                return Ok(row);
            }
        }
    }
}

impl QueuedTransfers for Queue {
    fn is_open(&self) -> bool {
        self.catalogue().is_ok()
    }

    fn row(&self, id: &TransferId) -> Result<Option<Row>, Error> {
        self.catalogue()?.load(id)
    }

    fn runs(&self, id: &TransferId) -> bool {
        self.active().contains_key(id)
    }

    fn lose(&self, id: &TransferId, error: Error) -> Result<(), Error> {
        match self.happen(id, &Event::Lost(error), &|_| Ok(()), &With::default()) {
            Err(error) if error.code != Code::ChangeRefused => Err(error),
            _ => Ok(()),
        }
    }
}

/// Columns written together with a course change.
#[derive(Clone, Copy, Default)]
pub(super) struct With<'a> {
    pub(super) attempt: Option<&'a renkei_core::wire::queue::Attempt>,
    pub(super) met: Option<TransferId>,
    pub(super) credential: Option<&'a [u8]>,
}

/// Sets the transfer as the subject of an error of its course.
fn about(error: Error, id: &TransferId) -> Error {
    Error { subject: short(id), ..error }
}

/// The write targets of a transfer: those of the `Found` its destination turned out to be, else of all its choices.
pub(super) fn writes(spec: &Submission, found: Option<Found>) -> Vec<(SiteName, Place)> {
    let chosen = spec.open.choices.iter().filter(|(what, _)| found.is_none_or(|found| found == *what));
    let place = |base: &RelPath, target: &RelPath| {
        let path = base.join(target).ok()?;
        Some((spec.to.clone(), Place { storage: spec.open.to.storage.clone(), path }))
    };
    // Transfers of many files into one directory that was not examined yet do not conflict with each other.
    let as_dir = found.is_none() && spec.open.choice(Found::Dir).is_some();
    let chosen = chosen.filter(|(what, _)| !as_dir || *what == Found::Dir);
    chosen
        .flat_map(|(_, choice)| choice.targets.iter().filter_map(|target| place(&choice.base, target)))
        .collect()
}

impl Site {
    /// Queues transfers for a user of this site; the result has one answer for each, in order.
    ///
    /// # Errors
    /// `NotAllowed` for users of other sites, `CatalogueFailed`.
    pub fn submit(&self, access: &Access, all: Vec<Submission>) -> Result<Vec<Result<(), Error>>, Error> {
        let owner = &access.principal;
        self.context.is_own_user(owner)?;
        let catalogue = self.queue.catalogue()?;
        let (mut answers, mut good) = self.screen(&owner.to_string(), &all)?;
        good.retain(|(at, _, _)| {
            let sealed = self.buffer.seal_sources(owner, &all[*at]);
            let is_sealed = sealed.is_ok();
            answers[*at] = sealed;
            is_sealed
        });
        let scopes: Vec<Scope> = good.iter().map(|(_, _, scope)| scope.clone()).collect();
        for ((_, row, _), made) in good.iter_mut().zip(self.context.delegate(&access.proof, &scopes)?) {
            row.credential = made.to_bytes();
        }
        // Submissions that others of the batch depend on are inserted first.
        let good = in_order(good.into_iter().map(|(at, row, _)| (at, row)).collect());
        let rows: Vec<New> = good.iter().map(|(_, row)| row.clone()).collect();
        for ((at, row), put) in good.iter().zip(catalogue.submit(&rows)?) {
            answers[*at] = answer(row, put);
        }
        self.buffer.keep_sources(&all, &answers);
        let accepted = answers.iter().filter(|answer| answer.is_ok()).count();
        tracing::info!(target: "audit", principal = %owner, accepted, refused = all.len() - accepted, "queued");
        self.queue.ring();
        Ok(answers)
    }

    /// Validates each submission of a batch by itself; rows, with their indices in it, for the valid ones.
    fn screen(&self, owner: &str, all: &[Submission]) -> Result<Screened, Error> {
        let snapshot = self.snapshot();
        let limits = &snapshot.config.queue;
        let room = limits.max_queued_user.saturating_sub(self.queue.catalogue()?.open_of(owner)?);
        let in_circle = in_circle(all);
        let (mut answers, mut good) = (Vec::with_capacity(all.len()), Vec::new());
        for (at, submission) in all.iter().enumerate() {
            let id = &submission.send.transfer;
            let checked = match in_circle.contains(id) {
                true => Err(Error::new(Code::DependencyCycle, "submit", short(id), "")),
                false => check(submission, &snapshot.trust).and_then(|()| has_room(good.len(), room, owner)),
            };
            let checked = checked.and_then(|()| self.check_notify(&submission.terms.notify));
            let checked = checked.and_then(|()| self.scope(submission)).map(|scope| {
                good.push((at, new_row(owner, submission, limits.deadline_days), scope));
            });
            answers.push(checked);
        }
        Ok((answers, good))
    }

    /// A page of the queue: a user's own transfers, or all for the administrator.
    pub fn list_queue(&self, caller: Caller<'_>, listed: &Listed) -> Result<Vec<Queued>, Error> {
        let who = caller.principal();
        let owner = who.map(Principal::to_string);
        let listing =
            Listing { owner: owner.as_deref(), listed, state: None, limit: PART.min(BATCH_ENTRIES) };
        let rows = self.queue.catalogue()?.list(&listing)?;
        rows.iter().map(|row| self.told(row)).collect()
    }

    /// Details of one transfer, by a prefix of its id.
    ///
    /// # Errors
    /// `TransferUnknown`, `IdAmbiguous`.
    pub fn transfer(&self, caller: Caller<'_>, digits: &str) -> Result<Story, Error> {
        let who = caller.principal();
        let catalogue = self.queue.catalogue()?;
        let row = self.find_one(who, digits)?;
        let spec = read_spec(&row)?;
        let link = Link { from: spec.from.clone(), to: spec.to.clone() };
        let link_rests_until_ms = self.queue.load().rests_until(&link, now_ms());
        let failures = self.failures(Caller::Administrator, &row.id, 0)?;
        Ok(Story {
            transfer: self.told(&row)?,
            after: catalogue.states(&spec.terms.after)?,
            attempts: catalogue.attempts(&row.id)?,
            failures: failures.into_iter().map(|(_, failure)| failure).collect(),
            link_rests_until_ms: link_rests_until_ms.filter(|_| !row.course.state.is_end()),
        })
    }

    /// A page of the failed files of a transfer: those after a number.
    ///
    /// # Errors
    /// `TransferUnknown`.
    pub fn failures(
        &self,
        caller: Caller<'_>,
        id: &TransferId,
        after: u64,
    ) -> Result<Vec<(u64, EntryFailure)>, Error> {
        let who = caller.principal();
        let row = self.find_one(who, &hex_id(id))?;
        let listed = self.queue.catalogue()?.failures(&row.id, after, BATCH_ENTRIES)?;
        // Only as many as fit in one message: names can be long.
        Ok(parts(listed, BATCH_ENTRIES).into_iter().next().unwrap_or_default())
    }

    /// Changes a transfer.
    ///
    /// # Errors
    /// `TransferUnknown`; `ChangeRefused` if the change does not fit the transfer's state.
    pub fn change_transfer(&self, caller: Caller<'_>, id: &TransferId, change: Change) -> Result<(), Error> {
        let (access, who) = (caller.user(), caller.principal());
        let deadline_ms = now_ms() + self.snapshot().config.queue.deadline_days * DAY_MS;
        let may = |row: &mut Row| match who {
            Some(who) if row.owner != who.to_string() => Err(unknown(&short(id))),
            _ => Ok(()),
        };
        let event = Event::Asked { change, deadline_ms };
        if change == Change::Cancel
            && self.queue.catalogue()?.load(id)?.is_none()
            && self.abandon_upload(who, id)?
        {
            return Ok(());
        }
        // A user who retries is present and may delegate anew.
        let fresh = match access.filter(|_| change == Change::Retry) {
            Some(access) => Some(self.delegate_again(access, id)?),
            None => None,
        };
        // The row loses its credential when it ends; the clean-up needs it.
        let credential = match change {
            Change::Cancel => self.queue.catalogue()?.credential(id)?,
            _ => None,
        };
        let with = With { credential: fresh.as_deref(), ..With::default() };
        let row = self.queue.happen(id, &event, &may, &with)?;
        tracing::info!(target: "audit", transfer = hex_id(id), owner = row.owner, by = who.map(|who| who.to_string()), ?change, "changed");
        if let Some((_, link)) = read_lane(&row.lane).filter(|_| change == Change::Retry) {
            self.queue.load().wake(&link);
        }
        self.stop_as_wished(&row);
        self.buffer.leave_buffer(&row);
        self.give_up(&row, credential);
        self.queue.ring();
        Ok(())
    }

    /// Cancels an upload that was not submitted; whether there was one.
    fn abandon_upload(&self, who: Option<&Principal>, id: &TransferId) -> Result<bool, Error> {
        if !self.buffer.has_upload(who, id) {
            return Ok(false);
        }
        let cause = "it was cancelled before it was submitted";
        let error = Error::new(Code::Cancelled, "upload", hex_id(id), cause);
        self.transfers.active.stop_of(&hex_id(id), None, &error);
        self.buffer.abandon_upload(id).map(|()| true)
    }

    /// Renews the credential of a transfer; a transfer that waited for it continues.
    ///
    /// # Errors
    /// `TransferUnknown`; `ChangeRefused` if the transfer has ended.
    pub fn renew_transfer(&self, access: &Access, id: &TransferId) -> Result<(), Error> {
        let fresh = self.delegate_again(access, id)?;
        let with = With { credential: Some(&fresh), ..With::default() };
        self.queue.happen(id, &Event::Renewed, &|_| Ok(()), &with)?;
        self.queue.ring();
        Ok(())
    }

    /// The scope of a transfer's credential: read its sources, write its targets, and bring them to the buffer here
    /// if that may be needed.
    fn scope(&self, submission: &Submission) -> Result<Scope, Error> {
        let Submission { from, send, to, open, .. } = submission;
        let scope = Scope::of_transfer(from, send, to, open)?;
        match self.spills(submission) {
            // A scope with no room for the extra permits stays as it is; the transfer is then not spilled.
            true => Ok(scope.with(spill_permits(&self.name(), &send.transfer)).unwrap_or(scope)),
            false => Ok(scope),
        }
    }

    /// A fresh credential for the user's own transfer.
    fn delegate_again(&self, access: &Access, id: &TransferId) -> Result<Vec<u8>, Error> {
        let row = self.queue.catalogue()?.load(id)?;
        let row = row.filter(|row| row.owner == access.principal.to_string());
        let row = row.ok_or_else(|| unknown(&short(id)))?;
        let made = self.context.delegate(&access.proof, &[self.scope(&read_spec(&row)?)?])?;
        Ok(made.first().map(Delegation::to_bytes).unwrap_or_default())
    }

    /// Stops the attempt of a transfer for which a pause, cancellation or give-up was requested.
    pub(super) fn stop_as_wished(&self, row: &Row) {
        let cause = match row.course.wish {
            Some(Requested::Pause) => "paused",
            Some(Requested::Cancel) => "cancelled",
            Some(Requested::GiveUp) => "its deadline passed",
            None => return,
        };
        let active = self.queue.active().get(&row.id).cloned();
        if let Some(active) = active {
            active.stop.stop(Error::new(Code::Cancelled, "stop", short(&row.id), cause));
        }
    }

    /// The only transfer whose id has this prefix.
    fn find_one(&self, who: Option<&Principal>, digits: &str) -> Result<Row, Error> {
        let none = || Error { cause: no_digits(digits), ..unknown(digits) };
        let digits = first_digits(digits).ok_or_else(none)?;
        let owner = who.map(Principal::to_string);
        let mut found = self.queue.catalogue()?.find(&digits, owner.as_deref())?;
        match found.len() {
            0 => Err(unknown(&digits)),
            1 => Ok(found.remove(0)),
            _ => Err(ambiguous(&digits, found.iter().map(|row| hex_id(&row.id)))),
        }
    }

    /// The transfer as it is listed.
    pub(super) fn told(&self, row: &Row) -> Result<Queued, Error> {
        let spec = read_spec(row)?;
        let active = self.queue.active().get(&row.id).cloned();
        let course = row.course.clone();
        let reached = row.reached.filter(|_| !course.state.is_end());
        let from = match spec.terms.origin.as_str() {
            "" => super::transfer::jobs::places_at(&spec.from, &spec.send),
            origin => origin.to_owned(),
        };
        Ok(Queued {
            id: row.id,
            owner: row.owner.clone(),
            from,
            to: format!("{}:{}", spec.to, spec.open.to),
            state: course.state,
            stopping: course.wish.is_some(),
            reason: match &active {
                Some(active) => active.trying.look().map(|silent| silent.at(self.name().as_str())),
                None => course.reason,
            },
            next_ms: course.next_ms,
            needs: course.needs,
            submitted_ms: row.submitted_ms,
            deadline_ms: course.deadline_ms,
            ended_ms: course.ended_ms,
            attempts: course.attempts,
            priority: spec.terms.priority,
            class: spec.send.class,
            label: spec.terms.label,
            progress: active.map(|active| active.watch.look()).or(reached),
            summary: course.summary,
            buffered: self.buffer.buffered(&row.id),
        })
    }
}

fn answer(row: &New, put: Put) -> Result<(), Error> {
    let refused = |code, cause| Err(Error::new(code, "submit", short(&row.id), cause));
    match put {
        Put::There => Ok(()),
        Put::Conflict => refused(Code::SubmissionConflict, String::new()),
        Put::Unknown(other) => {
            refused(Code::TransferUnknown, format!("it shall wait for {}", hex_id(&other)))
        }
        Put::Abandoned(other) => {
            refused(Code::DependencyFailed, format!("{} has already failed or was cancelled", hex_id(&other)))
        }
    }
}

fn new_row(owner: &str, submission: &Submission, deadline_days: u64) -> New {
    let (submitted_ms, terms) = (now_ms(), &submission.terms);
    New {
        id: submission.send.transfer,
        owner: owner.into(),
        lane: lane(owner, submission),
        label: terms.label.clone(),
        priority: terms.priority,
        submitted_ms,
        digest: digest(owner, submission),
        spec: write_spec(submission),
        deadline_ms: terms.deadline_ms.unwrap_or(submitted_ms + deadline_days * DAY_MS),
        after: terms.after.clone(),
        credential: Vec::new(),
        notify: terms.notify.clone(),
    }
}

/// The digest that tells whether two submissions are identical: all fields but the deadline, which is reckoned from
/// the submission.
fn digest(owner: &str, submission: &Submission) -> [u8; 32] {
    let terms = Terms { deadline_ms: None, ..submission.terms.clone() };
    let same = Submission { terms, ..submission.clone() };
    let filter = &submission.send.filter;
    let bytes = match filter.is_empty() {
        true => encode(&(owner, same)),
        false => encode(&(owner, same, filter)),
    };
    *blake3::hash(&bytes).as_bytes()
}

fn has_room(taken: usize, room: u64, owner: &str) -> Result<(), Error> {
    if (taken as u64) < room {
        return Ok(());
    }
    Err(Error::new(Code::QueueFull, "submit", owner, ""))
}

/// Validates a submission by itself.
fn check(submission: &Submission, trust: &renkei_net::identity::trust::Trust) -> Result<(), Error> {
    let Submission { from, send, to, open, terms } = submission;
    let refused = |cause: &str| Err(refused(Code::NotQueueable, &send.transfer, cause));
    if send.transfer != open.transfer {
        return refused("its two halves have different ids");
    }
    if send.dry_run || open.choices.iter().any(|(_, choice)| choice.options.dry_run) {
        return refused("a dry run is not queued");
    }
    let counts_agree = open.choices.iter().all(|(_, choice)| choice.targets.len() == send.sources.len());
    if send.sources.is_empty() || send.sources.len() > MAX_SOURCES || !counts_agree {
        return refused("it has no sources, too many, or another number of names than of sources");
    }
    let too_long = terms.label.len() > MAX_LABEL_BYTES || terms.origin.len() > MAX_ORIGIN_BYTES;
    if too_long || terms.after.len() > MAX_AFTER {
        return refused("its label is too long, or it waits for too many others");
    }
    if open.choices.is_empty() {
        return refused("there is nothing to open, whatever the destination is");
    }
    trust.endpoints(from).and_then(|_| trust.endpoints(to)).map(drop)
}

/// The submissions of a batch in a dependency cycle, or that depend on one.
fn in_circle(all: &[Submission]) -> HashSet<TransferId> {
    let mut left: HashMap<TransferId, &[TransferId]> =
        all.iter().map(|one| (one.send.transfer, one.terms.after.as_slice())).collect();
    loop {
        let free: Vec<TransferId> = left
            .iter()
            .filter(|(_, after)| !after.iter().any(|other| left.contains_key(other)))
            .map(|(id, _)| *id)
            .collect();
        if free.is_empty() {
            return left.into_keys().collect();
        }
        left.retain(|id, _| !free.contains(id));
    }
}

/// Topological order: each submission after those of the batch it depends on; there is no cycle.
fn in_order(mut left: Vec<(usize, New)>) -> Vec<(usize, New)> {
    let mut ordered = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let ids: HashSet<TransferId> = left.iter().map(|(_, row)| row.id).collect();
        let (later, now): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|(_, row)| row.after.iter().any(|other| ids.contains(other)));
        ordered.extend(now);
        left = later;
    }
    ordered
}
