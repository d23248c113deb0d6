//! The scheduler of queued transfers: one thread decides which are due, and each attempt has a thread.
//!
//! Guarantees: an attempt begins only after the catalogue records it as running; transfers that ran when the PoP was
//! killed are requeued at the next start.

use super::Queue;
use super::attempt::Run;
use super::state::{Active, With, writes};
use crate::submission::{now_ms, read_lane, read_spec};
use renkei_catalogue::{Catalogue, Row, Update, hex_id};
use renkei_config::home::{read_text, write_file};
use renkei_core::error::{Code, Error};
use renkei_core::former_names::FormerNames;
use renkei_core::queue::{Event, Head, Limits, State};
use renkei_core::wire::message::TransferId;
use renkei_core::wire::queue::Attempt;
use renkei_mover::connect::slow_connect::CurrentAttempt;
use renkei_mover::progress::Watch;
use renkei_mover::{Stop, fresh_id};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// Poll interval of an idle queue.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Batch size of one turn; the rest follows in the next turn, without a wait.
const BATCH: usize = 256;
/// Grace period for running attempts when the PoP stops.
const SETTLE_WITHIN: Duration = Duration::from_secs(5);
/// Delay of a transfer whose destination is busy, in milliseconds.
const HELD_MS: u64 = 1000;
/// Interval at which old transfers are deleted.
const FORGET_EVERY_MS: u64 = 60 * 60 * 1000;
const DAY_MS: u64 = 24 * 3600 * 1000;

/// Starts the scheduler thread, which runs as long as the PoP lives.
pub fn spawn_queue(room: &Arc<Queue>) -> Result<(), Error> {
    let (weak, state) = (Arc::downgrade(room), room.state.clone());
    let work = move || {
        let (mut forgotten_ms, mut last) = (0, None);
        while let Some(room) = weak.upgrade() {
            let turn = room.context.workers.begin("queue");
            let looked = room.look_at_queue(&mut forgotten_ms);
            drop(turn);
            let error = looked.as_ref().err().cloned();
            room.context.workers.note("queue", error.clone());
            drop(room);
            if let Some(error) = error.as_ref().filter(|_| error != last) {
                tracing::error!(%error, "the queue waits");
            }
            state.note_trouble(error.clone());
            last = error;
            if !matches!(looked, Ok(true)) {
                state.wait(LOOK_EVERY);
            }
        }
    };
    let thread = std::thread::Builder::new().name("queue".into()).spawn(work);
    thread.map(drop).map_err(|error| Error::new(Code::SystemCall, "start thread", "queue", error))
}

impl Queue {
    /// One turn of the scheduler; whether there is more to do at once.
    fn look_at_queue(self: &Arc<Self>, forgotten_ms: &mut u64) -> Result<bool, Error> {
        self.open_queue()?;
        let catalogue = self.state.catalogue()?;
        if self.state.is_stopping() {
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
            let keep = self.context.snapshot().config.queue.keep_days * DAY_MS;
            while catalogue.forget(now.saturating_sub(keep), BATCH)? == BATCH {}
        }
        // Overdue transfers that run do not count: they stay overdue until their attempt has ended.
        Ok(met.len() == BATCH || due.len() == BATCH)
    }

    /// Stops local attempts whose stop was requested through another PoP of the site.
    fn stop_what_others_ended(&self, catalogue: &Catalogue) -> Result<(), Error> {
        let ids: Vec<TransferId> = self.state.active().keys().copied().collect();
        for id in ids {
            if let Some(row) = catalogue.load(&id)? {
                self.stop_as_wished(&row);
            }
        }
        Ok(())
    }

    /// Opens the catalogue and requeues the attempts that ran when the PoP ended.
    pub(crate) fn open_queue(&self) -> Result<(), Error> {
        if self.state.catalogue.get().is_some() {
            return Ok(());
        }
        let opened = self.try_open_queue();
        self.state.note_trouble(opened.as_ref().err().cloned());
        opened
    }

    fn try_open_queue(&self) -> Result<(), Error> {
        let catalogue = Catalogue::open(&self.context.snapshot().config.catalogue, self.context.home())?;
        for (former, current) in FormerNames::installed().iter() {
            catalogue.rename_site(former, current)?;
        }
        let runner = self.runner_name()?;
        for mut row in catalogue.running_at(&runner)? {
            tracing::info!(transfer = hex_id(&row.id), "an attempt was interrupted");
            row.job.handle(Event::Interrupted, now_ms())?;
            catalogue.update(&Update::of(&row))?;
        }
        tracing::info!(catalogue = catalogue.shown(), "the queue is open");
        let _ = self.state.runner.set(runner);
        let _ = self.state.catalogue.set(catalogue);
        Ok(())
    }

    /// The name of this PoP among those that share a catalogue: generated once, kept in its directory.
    fn runner_name(&self) -> Result<String, Error> {
        let path = self.context.home().runner_file();
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
        match self.state.happen(&row.id, event, &|_| Ok(()), &with) {
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
        match self.state.catalogue().and_then(|catalogue| catalogue.load(id)) {
            Ok(Some(row)) if row.job.state.is_end() || row.job.needs == 0 => {
                // The dependent transfer waits no longer.
                let with = Update { met: Some(*needs), ..Update::of(&row) };
                let _ = self.state.catalogue().and_then(|catalogue| catalogue.update(&with));
            }
            Ok(Some(row)) => self.note(&row, &event, Some(*needs)),
            Ok(None) => {}
            Err(error) => tracing::error!(%error, "the queue waits"),
        }
    }

    /// Starts transfers up to the limits.
    fn start_what_fits(self: &Arc<Self>, catalogue: &Catalogue) -> Result<(), Error> {
        let limits = self.queue_limits();
        if self.state.load().running() >= limits.all {
            return Ok(());
        }
        let mut heads = Vec::new();
        for lane in catalogue.lanes()? {
            heads.extend(self.head_of(catalogue, &lane, limits)?);
        }
        loop {
            let only_heads: Vec<Head> = heads.iter().map(|(_, _, head)| head.clone()).collect();
            let picked = self.state.load().pick(&only_heads, limits, now_ms());
            let Some(at) = picked else { return Ok(()) };
            let (id, lane, head) = heads.swap_remove(at);
            self.start(catalogue, &id, &head)?;
            heads.extend(self.head_of(catalogue, &lane, limits)?);
        }
    }

    fn queue_limits(&self) -> Limits {
        let queue = &self.context.snapshot().config.queue;
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
        if !self.state.load().has_room(&owner, &link, limits, now_ms()) {
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
        let writes = writes(&read_spec(&row)?, row.job.found);
        if let Some(other) = self.state.in_the_way(&writes) {
            let cause = format!("{} runs", hex_id(&other));
            let reason = Error::new(Code::DestinationBusy, "start", hex_id(id), cause);
            let reason = reason.at(self.context.name().as_str());
            self.note(&row, &Event::Held { reason, next_ms: now_ms() + HELD_MS }, None);
            return Ok(());
        }
        if row.job.handle(Event::Begun, now_ms()).is_err() {
            return Ok(());
        }
        row.runner = self.state.runner.get().cloned().unwrap_or_default();
        let attempt = Attempt {
            number: row.job.attempts,
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
        self.state.active().insert(row.id, active.clone());
        let update = Update { attempt: Some(&attempt), forgets_failures: true, ..Update::of(&row) };
        let begun = catalogue.update(&update);
        if !matches!(begun, Ok(true)) {
            self.state.active().remove(&row.id);
            return begun.map(drop);
        }
        self.state.load().start(&head.owner, &head.link);
        let (room, link, id) = (self.clone(), head.link.clone(), row.id);
        let work = move || Run { room: &room, row, link, active, attempt, listed: Cell::new(0) }.run();
        if let Err(error) = std::thread::Builder::new().name("transfer".into()).spawn(work) {
            tracing::error!(%error, "no thread for a transfer");
            self.state.active().remove(&id);
            self.state.load().end(&head.owner, &head.link);
            self.state.happen(&id, &Event::Interrupted, &|_| Ok(()), &With::default())?;
        }
        Ok(())
    }

    /// Stops all attempts; they are requeued.
    pub(crate) fn stop(&self, error: &Error) {
        self.state.stop();
        let all: Vec<Active> = self.state.active().values().cloned().collect();
        all.iter().for_each(|active| active.stop.stop(error.clone()));
        self.state.settle(SETTLE_WITHIN);
    }
}
