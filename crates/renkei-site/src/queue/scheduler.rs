//! The scheduler of queued transfers: one thread decides which are due, and each attempt has a thread.
//!
//! An attempt does what a client would do: it asks the destination what is there, has it grant a place, and has the
//! source push. So the data goes from site to site, and the user's PoP only controls and follows the transfer. The
//! state of the destination is stored before anything is sent. Guarantees: an attempt begins only after the
//! catalogue records it as running; its end is stored before it is reported; transfers that ran when the PoP was
//! killed are requeued at the next start.

use super::{Active, With, writes};
use crate::Site;
use crate::submission::{now_ms, read_lane, read_spec};
use crate::transfer::push::no_choice;
use renkei_catalogue::{Catalogue, Row, Update, hex_id};
use renkei_config::home::{read_text, write_file};
use renkei_core::error::{Code, Error, Kind};
use renkei_core::former_names::FormerNames;
use renkei_core::mover::digest::SLOT_BYTES;
use renkei_core::path::SiteName;
use renkei_core::queue::{Event, Head, Limits, Link, State};
use renkei_core::units::counted;
use renkei_core::wire::message::{
    Choice, Control, EntryFailure, Existing, Found, OpenReceive, OpenSend, Progress, ReceiveOptions, Reply,
    Request, Summary, TransferId,
};
use renkei_core::wire::queue::{Attempt, Submission, Verify};
use renkei_core::wire::violation;
use renkei_mover::connect::dial::{DialHints, Dialler, Session};
use renkei_mover::connect::routes::RouteContext;
use renkei_mover::connect::slow_connect::CurrentAttempt;
use renkei_mover::progress::{Note, Watch};
use renkei_mover::{Stop, fresh_id};
use renkei_net::identity::delegation::Delegation;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Poll interval of an idle queue.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Batch size of one turn; the rest follows in the next turn, without a wait.
const BATCH: usize = 256;
/// Retry interval for storing the end of an attempt while the catalogue fails.
const STORE_EVERY: Duration = Duration::from_secs(1);
/// Grace period for running attempts when the PoP stops.
const SETTLE_WITHIN: Duration = Duration::from_secs(5);
/// Delay of a transfer whose destination is busy, in milliseconds.
const HELD_MS: u64 = 1000;
/// Maximum listed failures of one transfer; all are counted.
const MAX_FAILURES: u64 = 100_000;
/// Interval at which old transfers are deleted.
const FORGET_EVERY_MS: u64 = 60 * 60 * 1000;
const DAY_MS: u64 = 24 * 3600 * 1000;

/// Starts the scheduler thread, which runs as long as the PoP lives.
pub fn spawn_queue(site: &Arc<Site>) -> Result<(), Error> {
    let (weak, queue) = (Arc::downgrade(site), site.queue.clone());
    let work = move || {
        let (mut forgotten_ms, mut last) = (0, None);
        while let Some(site) = weak.upgrade() {
            let turn = site.context.workers.begin("queue");
            let looked = site.look_at_queue(&mut forgotten_ms);
            drop(turn);
            let error = looked.as_ref().err().cloned();
            site.context.workers.note("queue", error.clone());
            drop(site);
            if let Some(error) = error.as_ref().filter(|_| error != last) {
                tracing::error!(%error, "the queue waits");
            }
            queue.note_trouble(error.clone());
            last = error;
            if !matches!(looked, Ok(true)) {
                queue.wait(LOOK_EVERY);
            }
        }
    };
    let thread = std::thread::Builder::new().name("queue".into()).spawn(work);
    thread.map(drop).map_err(|error| Error::new(Code::SystemCall, "start thread", "queue", error))
}

impl Site {
    /// One turn of the scheduler; whether there is more to do at once.
    fn look_at_queue(self: &Arc<Self>, forgotten_ms: &mut u64) -> Result<bool, Error> {
        self.open_queue()?;
        let catalogue = self.queue.catalogue()?;
        if self.queue.is_stopping() {
            return Ok(false);
        }
        self.stop_what_others_ended(catalogue)?;
        let now = now_ms();
        let overdue = catalogue.overdue(now, BATCH)?;
        for row in &overdue {
            self.note(row, &Event::Overdue, None);
        }
        let met = catalogue.met(BATCH)?;
        for (id, needs, state) in &met {
            self.meet(id, needs, *state);
        }
        let due = catalogue.due(now, BATCH)?;
        for row in &due {
            self.note(row, &Event::Due, None);
        }
        self.start_what_fits(catalogue)?;
        if now.saturating_sub(*forgotten_ms) > FORGET_EVERY_MS {
            *forgotten_ms = now;
            let keep = self.snapshot().config.queue.keep_days * DAY_MS;
            while catalogue.forget(now.saturating_sub(keep), BATCH)? == BATCH {}
        }
        // Overdue transfers that run do not count: they stay overdue until their attempt has ended.
        Ok(met.len() == BATCH || due.len() == BATCH)
    }

    /// Stops local attempts whose stop was requested through another PoP of the site.
    fn stop_what_others_ended(&self, catalogue: &Catalogue) -> Result<(), Error> {
        let ids: Vec<TransferId> = self.queue.active().keys().copied().collect();
        for id in ids {
            if let Some(row) = catalogue.load(&id)? {
                self.stop_as_wished(&row);
            }
        }
        Ok(())
    }

    /// Opens the catalogue and requeues the attempts that ran when the PoP ended.
    pub(crate) fn open_queue(&self) -> Result<(), Error> {
        if self.queue.catalogue.get().is_some() {
            return Ok(());
        }
        let opened = self.try_open_queue();
        self.queue.note_trouble(opened.as_ref().err().cloned());
        opened
    }

    fn try_open_queue(&self) -> Result<(), Error> {
        let catalogue = Catalogue::open(&self.snapshot().config.catalogue, self.home())?;
        for (former, current) in FormerNames::installed().iter() {
            catalogue.rename_site(former, current)?;
        }
        let runner = self.runner_name()?;
        for mut row in catalogue.running_at(&runner)? {
            tracing::info!(transfer = hex_id(&row.id), "an attempt was interrupted");
            row.course.handle(Event::Interrupted, now_ms())?;
            catalogue.update(&Update::of(&row))?;
        }
        tracing::info!(catalogue = catalogue.shown(), "the queue is open");
        let _ = self.queue.runner.set(runner);
        let _ = self.queue.catalogue.set(catalogue);
        Ok(())
    }

    /// The name of this PoP among those that share a catalogue: generated once, kept in its directory.
    fn runner_name(&self) -> Result<String, Error> {
        let path = self.home().runner_file();
        if let Some(name) = read_text(&path, 100)? {
            return Ok(name.trim().to_owned());
        }
        let name = hex_id(&fresh_id()?);
        write_file(&path, format!("{name}\n").as_bytes(), 0o600)?;
        Ok(name)
    }

    /// Applies an event to a transfer and stops its attempt if the event requires it.
    fn note(&self, row: &Row, event: &Event, met: Option<TransferId>) {
        let with = With { met, ..With::default() };
        match self.queue.happen(&row.id, event, &|_| Ok(()), &with) {
            Ok(row) => self.stop_as_wished(&row),
            Err(error) if error.code == Code::ChangeRefused => {}
            Err(error) => tracing::error!(%error, transfer = hex_id(&row.id), "not noted"),
        }
    }

    /// Handles the end of a transfer that `id` depends on.
    fn meet(&self, id: &TransferId, needs: &TransferId, state: State) {
        let event = match state {
            State::Done => Event::Released,
            _ => {
                let cause = format!("{} is {}", hex_id(needs), state.name());
                Event::Abandoned(Error::new(Code::DependencyFailed, "wait", hex_id(needs), cause))
            }
        };
        match self.queue.catalogue().and_then(|catalogue| catalogue.load(id)) {
            Ok(Some(row)) if row.course.state.is_end() || row.course.needs == 0 => {
                // The dependent transfer waits no longer.
                let with = Update { met: Some(*needs), ..Update::of(&row) };
                let _ = self.queue.catalogue().and_then(|catalogue| catalogue.update(&with));
            }
            Ok(Some(row)) => self.note(&row, &event, Some(*needs)),
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "the queue waits"),
        }
    }

    /// Starts transfers up to the limits.
    fn start_what_fits(self: &Arc<Self>, catalogue: &Catalogue) -> Result<(), Error> {
        let limits = self.queue_limits();
        if self.queue.load().running() >= limits.all {
            return Ok(());
        }
        let mut heads = Vec::new();
        for lane in catalogue.lanes()? {
            heads.extend(self.head_of(catalogue, &lane, limits)?);
        }
        loop {
            let only_heads: Vec<Head> = heads.iter().map(|(_, _, head)| head.clone()).collect();
            let picked = self.queue.load().pick(&only_heads, limits, now_ms());
            let Some(at) = picked else { return Ok(()) };
            let (id, lane, head) = heads.swap_remove(at);
            self.start(catalogue, &id, &head)?;
            heads.extend(self.head_of(catalogue, &lane, limits)?);
        }
    }

    fn queue_limits(&self) -> Limits {
        let queue = &self.snapshot().config.queue;
        let limit = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Limits {
            all: limit(queue.max_running),
            user: limit(queue.max_running_user),
            link: limit(queue.max_running_link),
        }
    }

    /// The first transfer of a lane, if the limits allow one of it to start.
    fn head_of(
        &self,
        catalogue: &Catalogue,
        lane: &str,
        limits: Limits,
    ) -> Result<Option<(TransferId, String, Head)>, Error> {
        let Some((owner, link)) = read_lane(lane) else { return Ok(None) };
        if !self.queue.load().has_room(&owner, &link, limits, now_ms()) {
            return Ok(None);
        }
        let first = catalogue.first_in(lane, 1)?.into_iter().next();
        Ok(first.map(|first| {
            let head = Head { owner, link, priority: first.priority, submitted_ms: first.submitted_ms };
            (first.id, lane.to_owned(), head)
        }))
    }

    /// Begins an attempt, unless another PoP began one or the transfer was changed concurrently.
    fn start(self: &Arc<Self>, catalogue: &Catalogue, id: &TransferId, head: &Head) -> Result<(), Error> {
        let Some(mut row) = catalogue.load(id)? else { return Ok(()) };
        let writes = writes(&read_spec(&row)?, row.course.found);
        if let Some(other) = self.queue.in_the_way(&writes) {
            let cause = format!("{} runs", hex_id(&other));
            let reason = Error::new(Code::DestinationBusy, "start", hex_id(id), cause);
            let reason = reason.at(self.name().as_str());
            self.note(&row, &Event::Held { reason, next_ms: now_ms() + HELD_MS }, None);
            return Ok(());
        }
        if row.course.handle(Event::Begun, now_ms()).is_err() {
            return Ok(());
        }
        row.runner = self.queue.runner.get().cloned().unwrap_or_default();
        let attempt = Attempt {
            number: row.course.attempts,
            started_ms: now_ms(),
            ended_ms: None,
            bytes_moved: 0,
            files_done: 0,
            error: None,
        };
        // Registered before the catalogue shows it as running, so that a request to stop finds it.
        let active = Active {
            watch: Watch::with_notes(),
            stop: Stop::default(),
            writes: Arc::new(writes),
            sites: [head.link.from.clone(), head.link.to.clone()],
            shown: Arc::default(),
            trying: CurrentAttempt::default(),
        };
        self.queue.active().insert(row.id, active.clone());
        let update = Update { attempt: Some(&attempt), forgets_failures: true, ..Update::of(&row) };
        let begun = catalogue.update(&update);
        if !matches!(begun, Ok(true)) {
            self.queue.active().remove(&row.id);
            return begun.map(drop);
        }
        self.queue.load().start(&head.owner, &head.link);
        let (site, link, id) = (self.clone(), head.link.clone(), row.id);
        let work = move || Run { site: &site, row, link, active, attempt, listed: Cell::new(0) }.run();
        if let Err(error) = std::thread::Builder::new().name("transfer".into()).spawn(work) {
            tracing::error!(%error, "no thread for a transfer");
            self.queue.active().remove(&id);
            self.queue.load().end(&head.owner, &head.link);
            self.queue.happen(&id, &Event::Interrupted, &|_| Ok(()), &With::default())?;
        }
        Ok(())
    }

    /// Stops all attempts; they are requeued.
    pub(crate) fn stop_queue(&self, error: &Error) {
        self.queue.stop();
        let all: Vec<Active> = self.queue.active().values().cloned().collect();
        all.iter().for_each(|active| active.stop.stop(error.clone()));
        self.queue.settle(SETTLE_WITHIN);
    }
}

/// One attempt.
pub(crate) struct Run<'a> {
    pub(crate) site: &'a Arc<Site>,
    pub(crate) row: Row,
    link: Link,
    active: Active,
    attempt: Attempt,
    /// Number of failures stored in the catalogue.
    listed: Cell<u64>,
}

impl Run<'_> {
    fn run(mut self) {
        let id = hex_id(&self.row.id);
        let span = tracing::info_span!(
            "queued",
            transfer = id,
            owner = self.row.owner,
            attempt = self.attempt.number
        );
        let _entered = span.enter();
        tracing::info!("begins");
        let before = self.files_before();
        let outcome = self.attempt();
        match &outcome {
            Ok(summary) => tracing::info!(files = summary.files, failed = summary.failed, "done"),
            Err(error) => tracing::warn!(%error, "failed"),
        }
        self.rest_or_wake(&outcome);
        let progress = self.active.watch.look();
        self.attempt.ended_ms = Some(now_ms());
        self.attempt.bytes_moved = progress.bytes_moved;
        self.attempt.files_done = progress.files_done;
        self.attempt.error = outcome.as_ref().err().cloned();
        // Blocks that a full target did not keep are no progress.
        let kept = !matches!(&outcome, Err(error) if error.kind() == Kind::NoSpace);
        let further = progress.files_done > before || (kept && progress.bytes_moved >= SLOT_BYTES);
        // The row loses its credential when it ends; the clean-up needs it.
        let credential = self.site.queue.catalogue().and_then(|all| all.credential(&self.row.id));
        self.store_end(outcome, further, progress);
        self.site.queue.active().remove(&self.row.id);
        self.site.queue.load().end(&self.row.owner, &self.link);
        self.site.queue.ring();
        self.free_room(credential.ok().flatten());
    }

    /// Releases the files in the buffer of a transfer that has ended, now that this is stored, and starts the
    /// clean-up of a cancelled one.
    fn free_room(&self, credential: Option<Vec<u8>>) {
        if let Ok(Some(row)) = self.site.queue.catalogue().and_then(|catalogue| catalogue.load(&self.row.id))
        {
            self.site.buffer.leave_buffer(&row);
            self.site.give_up(&row, credential);
        }
    }

    /// The most files that any earlier attempt had done.
    fn files_before(&self) -> u64 {
        let attempts = self.site.queue.catalogue().and_then(|catalogue| catalogue.attempts(&self.row.id));
        attempts.map_or(0, |all| all.iter().map(|attempt| attempt.files_done).max().unwrap_or(0))
    }

    /// Backs off from a link on which an attempt failed as unavailable and moved no bytes; any other outcome ends
    /// the backoff.
    fn rest_or_wake(&self, outcome: &Result<Summary, Error>) {
        let mut load = self.site.queue.load();
        match outcome {
            Err(error) if error.kind() == Kind::Unavailable && self.active.watch.look().bytes_moved == 0 => {
                load.rest(&self.link, now_ms());
            }
            _ => load.wake(&self.link),
        }
    }

    /// Stores how the attempt ended; retries while the catalogue fails, because the result is known nowhere else.
    fn store_end(&self, outcome: Result<Summary, Error>, further: bool, progress: Progress) {
        let event = match outcome {
            Err(_) if self.site.queue.is_stopping() => Event::Interrupted,
            Err(error) if error.code == Code::DelegationExpired => Event::NoCredential(error),
            outcome => Event::Ended { outcome, further },
        };
        let with = With { attempt: Some(&self.attempt), ..With::default() };
        let reached = |row: &mut Row| {
            row.reached = Some(progress);
            Ok(())
        };
        loop {
            match self.site.queue.happen(&self.row.id, &event, &reached, &with) {
                Ok(row) => return tracing::info!(state = row.course.state.name(), "stored"),
                Err(error) if error.code == Code::CatalogueFailed && !self.site.queue.is_stopping() => {
                    tracing::error!(%error, "the end of an attempt is not stored yet");
                    std::thread::sleep(STORE_EVERY);
                }
                Err(error) => return tracing::error!(%error, "the end of an attempt was not stored"),
            }
        }
    }

    fn attempt(&mut self) -> Result<Summary, Error> {
        let spec = read_spec(&self.row)?;
        let snapshot = self.site.snapshot();
        self.site.partners.await_new_name(&snapshot, [&spec.from, &spec.to])?;
        let delegation = self.delegation()?;
        // Relays authenticate this PoP: the delegated credential is for the two sites alone.
        let dialler =
            Dialler::new(&delegation.credential, snapshot.trust.clone(), snapshot.config.stall_timeout())?
                .with_ways(RouteContext {
                    trying: self.active.trying.clone(),
                    ..self.site.relay.ways(&snapshot)
                })
                .passed_on_for(&snapshot.credential)?;
        let side = snapshot.site.to_string();
        let ended = self.transfer(&dialler, &spec).map_err(|error| match error.side.as_str() {
            "client" => Error { side, ..error },
            _ => error.at(&side),
        });
        ended.map_err(|error| of_relay(error, [&snapshot.site, &spec.from, &spec.to]))
    }

    /// The delegation of the user, if it is still valid.
    pub(crate) fn delegation(&self) -> Result<Delegation, Error> {
        let kept = self.site.queue.catalogue()?.credential(&self.row.id)?;
        let none = || {
            let cause = "it has none any more; `renkei renew ID` gives it one";
            Error::new(Code::DelegationExpired, "work for", &self.row.owner, cause)
        };
        let delegation = Delegation::from_bytes(&kept.ok_or_else(none)?)?;
        self.site.context.check_delegation(&delegation)?;
        let _ = self.active.shown.set((delegation.credential.chain.clone(), SystemTime::now()));
        Ok(delegation)
    }

    fn transfer(&mut self, dialler: &Dialler, spec: &Submission) -> Result<Summary, Error> {
        let (mut target, now) = self.reach(dialler, spec)?;
        let spec = &now;
        let found = match self.row.course.found {
            Some(found) => found,
            None => self.store_found(target.find(&spec.open.to)?)?,
        };
        self.active.stop.check()?;
        let choice = spec.open.choice(found).ok_or_else(|| no_choice(found))?;
        if choice.make {
            make(&mut target, spec)?;
        }
        let open = spec.open.receive(choice);
        let summary = self.push(dialler, &mut target, spec, choice, open.clone(), false)?;
        if spec.terms.verify == Verify::Both && summary.failed == 0 {
            drop(target);
            self.compare(dialler, spec, choice, open)?;
        }
        Ok(summary)
    }

    /// Stores what the destination is before anything is done there; a value stored before takes precedence.
    fn store_found(&mut self, found: Found) -> Result<Found, Error> {
        let queue = &self.site.queue;
        self.row = queue.happen(&self.row.id, &Event::Found(found), &|_| Ok(()), &With::default())?;
        Ok(self.row.course.found.unwrap_or(found))
    }

    /// Has the source push to the place that the destination grants.
    pub(crate) fn push(
        &self,
        dialler: &Dialler,
        target: &mut Session,
        spec: &Submission,
        choice: &Choice,
        open: OpenReceive,
        dry_run: bool,
    ) -> Result<Summary, Error> {
        let grant = match target.ask(Request::Grant { open, peer: spec.from.clone() })? {
            Reply::Granted(grant) => grant,
            other => return Err(violation("reply", format_args!("{other:?}"))),
        };
        let mut send = OpenSend { dry_run, digests: spec.send.digests || dry_run, ..spec.send.clone() };
        for (source, target) in send.sources.iter_mut().zip(&choice.targets) {
            source.to = target.clone();
        }
        let push = Request::Push { send, to: spec.to.clone(), grant };
        let ahead = DialHints { streams: 0, sends: false, request: Some(push.clone()) };
        let mut source = dialler.connect_ahead(&spec.from, &ahead)?;
        match source.ask(push)? {
            Reply::Pushing => self.follow(&mut source),
            other => Err(violation("reply", format_args!("{other:?}"))),
        }
    }

    /// Follows the source until it reports the end; tells it to stop when that is requested.
    fn follow(&self, source: &mut Session) -> Result<Summary, Error> {
        let link = source.control.sender();
        let _hook = self.active.stop.on_stop(move |error| drop(link.send(&Control::Abort(error))));
        loop {
            match source.control.recv()? {
                Control::Progress(progress) => self.active.watch.set(progress),
                Control::WouldSend(paths) => self.active.watch.note_would_send(paths),
                Control::Removed(_) | Control::Found(_) => {}
                Control::Failures(failures) => self.list(&failures),
                Control::Finished(ended) => return ended,
                other => return Err(violation("push", format_args!("{other:?}"))),
            }
        }
    }

    /// Stores failed files up to the limit. A failure that cannot be stored is counted all the same.
    fn list(&self, failures: &[EntryFailure]) {
        let room = MAX_FAILURES.saturating_sub(self.listed.get());
        let listed = &failures[..failures.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        let catalogue = self.site.queue.catalogue();
        match catalogue.and_then(|all| all.add_failures(&self.row.id, self.listed.get(), listed)) {
            Ok(()) => self.listed.set(self.listed.get() + listed.len() as u64),
            Err(error) => tracing::warn!(%error, "failures are not listed"),
        }
    }

    /// Verifies content by a dry run that compares digests: it must find nothing to send.
    fn compare(
        &self,
        dialler: &Dialler,
        spec: &Submission,
        choice: &Choice,
        open: OpenReceive,
    ) -> Result<(), Error> {
        let seen = self.active.watch.look();
        let options = ReceiveOptions { dry_run: true, ..ReceiveOptions::plain(Existing::SameContent) };
        let mut target = dialler.connect(&spec.to)?;
        self.active.watch.take_notes();
        self.push(dialler, &mut target, spec, choice, OpenReceive { options, ..open }, true)?;
        self.active.watch.set(seen);
        let differ = self.active.watch.take_notes();
        let Some(Note::WouldSend(first)) = differ.first() else { return Ok(()) };
        let cause =
            format!("{}, the first is {first}", counted(differ.len(), "file differs", "files differ"));
        Err(Error::new(Code::DigestMismatch, "compare", spec.to.as_str(), cause).at(spec.to.as_str()))
    }
}

/// Converts a refusal by a relay to the transient `NoRoute`: another route may open, or the relay's configuration
/// change.
fn of_relay(error: Error, ends: [&SiteName; 3]) -> Error {
    let refused = matches!(error.kind(), Kind::Identity | Kind::Permission);
    match SiteName::parse(&error.side) {
        Ok(side) if refused && !ends.contains(&&side) => {
            Error::new(Code::NoRoute, "go through", &side, &error).at(side.as_str())
        }
        _ => error,
    }
}

/// Creates the destination; idempotent, as an earlier attempt may have created it.
fn make(target: &mut Session, spec: &Submission) -> Result<(), Error> {
    match target.ask(Request::Mkdir { place: spec.open.to.clone(), parents: false }) {
        Ok(_) => Ok(()),
        Err(error) if error.code == Code::PathExists => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_in_between_ends_no_transfer() {
        let [home, from, to] = ["home", "from", "to"].map(|name| SiteName::parse(name).unwrap());
        let seen = |code, side: &str| {
            let error = of_relay(Error::new(code, "greet", "", "").at(side), [&home, &from, &to]);
            (error.code, error.side)
        };
        assert_eq!(seen(Code::UnknownAuthority, "hub"), (Code::NoRoute, "hub".into()));
        assert_eq!(seen(Code::RelayRefused, "hub"), (Code::NoRoute, "hub".into()));
        for (code, side) in [
            (Code::UnknownAuthority, "to"),
            (Code::NotMapped, "from"),
            (Code::CertificateRevoked, "home"),
            (Code::PathNotFound, "hub"),
        ] {
            assert_eq!(seen(code, side), (code, side.into()));
        }
    }
}
