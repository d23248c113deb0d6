//! The state machine of a queued transfer (job): its state, and the effect of each event.
//!
//! ```text
//!   queued ---- begun ----> running ---- ended well ----> done, partial
//!     ^  ^                   |   |  \--- for good ------> failed
//!     |  +-- due, released --+   +------ on request ----> paused, cancelled
//!     +------- waiting <-- for now
//! ```
//! Guarantees: a transfer runs only after it was queued, so a caller that keeps the job in one place starts it once;
//! it is done only when an attempt succeeded; the kind of the destination is noted only once; a restart loses
//! nothing but the running attempt.

use crate::backoff::Backoff;
use crate::error::{Code, Error, Retry};
use crate::mover::layout::DestinationKind;
use crate::mover::summary::Summary;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Backoff after a transient error.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5 * 60));

/// The state of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Ready; runs as soon as the limits allow.
    Queued,
    /// Not ready; the reason says why.
    Waiting,
    /// An attempt is running.
    Running,
    /// Paused on request.
    Paused,
    /// Everything is at the destination, durable and verified.
    Done,
    /// Permanently failed; see the reason.
    Failed,
    /// Cancelled on request.
    Cancelled,
    /// Some files failed; all others are at the destination, durable and verified.
    Partial,
}

impl State {
    /// All states.
    pub const ALL: [State; 8] = [
        State::Queued,
        State::Waiting,
        State::Running,
        State::Paused,
        State::Done,
        State::Failed,
        State::Cancelled,
        State::Partial,
    ];

    /// Whether it is a final state, left only on request.
    pub fn is_end(self) -> bool {
        matches!(self, State::Done | State::Failed | State::Cancelled | State::Partial)
    }

    /// The state's name.
    pub fn name(self) -> &'static str {
        match self {
            State::Queued => "queued",
            State::Waiting => "waiting",
            State::Running => "running",
            State::Paused => "paused",
            State::Done => "done",
            State::Failed => "failed",
            State::Cancelled => "cancelled",
            State::Partial => "partial",
        }
    }

    /// The state of that name.
    pub fn parse(name: &str) -> Option<Self> {
        State::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// The state to take when the attempt being stopped has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Requested {
    /// Pause it.
    Pause,
    /// Cancel it.
    Cancel,
    /// Fail it: its deadline passed.
    GiveUp,
}

/// A change that a user may request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Cancel it.
    Cancel,
    /// Pause it.
    Pause,
    /// Resume a paused one.
    Resume,
    /// Retry now, also after it failed or was cancelled.
    Retry,
}

/// Events of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An attempt started.
    Begun,
    /// The destination chose the layout that it has for this kind.
    Found(DestinationKind),
    /// The attempt ended; `further` if it made progress.
    Ended {
        /// The outcome.
        outcome: Result<Summary, Error>,
        /// Whether it finished a file or sent a block.
        further: bool,
    },
    /// The attempt's credential expired, and there is no other until the owner renews it.
    NoCredential(Error),
    /// The PoP stopped or was killed during the attempt.
    Interrupted,
    /// It is ready but cannot run now; it is tried again later.
    Held {
        /// The reason.
        reason: Error,
        /// The time of the next try.
        next_ms: u64,
    },
    /// The backoff expired.
    Due,
    /// A dependency is done.
    Released,
    /// A dependency failed.
    Abandoned(Error),
    /// Its data to send is permanently lost.
    Lost(Error),
    /// Its deadline passed.
    Overdue,
    /// Its credential was renewed.
    Renewed,
    /// A user requests a change.
    Asked {
        /// The change.
        change: Change,
        /// The deadline in case of a retry.
        deadline_ms: u64,
    },
}

/// A queued transfer. Times are milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The state.
    pub state: State,
    /// The error it waits or failed with; of a queued one the last failure.
    pub reason: Option<Error>,
    /// The time of the next try; `None` if it does not wait for a time.
    pub next_ms: Option<u64>,
    /// Attempts begun.
    pub attempts: u32,
    /// Consecutive attempts that failed without progress.
    pub in_vain: u32,
    /// Its deadline.
    pub deadline_ms: u64,
    /// The kind of the destination, as its first layout tells it: before the first attempt changed anything.
    pub found: Option<DestinationKind>,
    /// The state requested while an attempt runs.
    pub wish: Option<Requested>,
    /// Dependencies that are not done yet.
    pub needs: u32,
    /// When it ended.
    pub ended_ms: Option<u64>,
    /// The result, without the list of failures.
    pub summary: Option<Summary>,
}

impl Job {
    /// A newly submitted transfer with `needs` dependencies.
    pub fn submitted(needs: u32, deadline_ms: u64) -> Self {
        Job {
            state: if needs == 0 { State::Queued } else { State::Waiting },
            reason: None,
            next_ms: None,
            attempts: 0,
            in_vain: 0,
            deadline_ms,
            found: None,
            wish: None,
            needs,
            ended_ms: None,
            summary: None,
        }
    }

    /// Applies an event.
    ///
    /// # Errors
    /// `ChangeRefused` if it is not valid in this state; nothing is changed then.
    pub fn handle(&mut self, event: Event, now_ms: u64) -> Result<(), Error> {
        match event {
            Event::Begun => self.begin(),
            Event::Found(found) => self.find(found),
            Event::Ended { outcome, further } => self.end_attempt(outcome, further, now_ms),
            Event::NoCredential(error) => self.end_running(now_ms, |job| job.wait(error, None)),
            Event::Interrupted => self.end_running(now_ms, Job::queue),
            Event::Held { reason, next_ms } => self.only_if(self.state == State::Queued, "hold", |job| {
                job.wait(reason, Some(next_ms));
            }),
            Event::Due => self.only_if(self.state == State::Waiting && self.needs == 0, "wake", Job::queue),
            Event::Released => self.release(),
            Event::Abandoned(error) => self.abandon(error, now_ms),
            Event::Lost(error) => self.lose(error, now_ms),
            Event::Overdue => self.give_up(now_ms),
            Event::Renewed => self.renew(),
            Event::Asked { change, deadline_ms } => self.ask(change, deadline_ms, now_ms),
        }
    }

    fn begin(&mut self) -> Result<(), Error> {
        self.only_if(self.state == State::Queued, "begin", |job| {
            job.state = State::Running;
            job.attempts += 1;
            job.next_ms = None;
        })
    }

    /// Only the first answer counts: a directory made by an attempt must not be taken for an existing one.
    fn find(&mut self, found: DestinationKind) -> Result<(), Error> {
        self.only_if(self.state == State::Running, "note the destination", |job| {
            job.found.get_or_insert(found);
        })
    }

    fn end_attempt(
        &mut self,
        outcome: Result<Summary, Error>,
        further: bool,
        now_ms: u64,
    ) -> Result<(), Error> {
        if further {
            self.in_vain = 0;
        }
        match outcome {
            // A success stands, regardless of requests made meanwhile.
            Ok(summary) => self.only_if(self.state == State::Running, "end", |job| {
                let state = state_after(&summary);
                let reason = partial_failure(&summary);
                job.summary = Some(Summary { failures: Vec::new(), ..summary });
                job.end(state, reason, now_ms);
            }),
            Err(error) => self.end_running(now_ms, |job| job.fail(error, now_ms)),
        }
    }

    /// Ends the attempt in the requested state, if any, otherwise with `otherwise`.
    fn end_running(&mut self, now_ms: u64, otherwise: impl FnOnce(&mut Self)) -> Result<(), Error> {
        self.only_if(self.state == State::Running, "end", |job| match job.wish.take() {
            Some(Requested::Pause) => job.state = State::Paused,
            Some(Requested::Cancel) => job.end(State::Cancelled, None, now_ms),
            Some(Requested::GiveUp) => job.end_overdue(now_ms),
            None => otherwise(job),
        })
    }

    fn fail(&mut self, error: Error, now_ms: u64) {
        if !may_pass(&error) {
            return self.end(State::Failed, Some(error), now_ms);
        }
        let pause = pause_ms(self.in_vain);
        self.in_vain += 1;
        self.wait(error, Some(now_ms + pause));
    }

    fn wait(&mut self, reason: Error, next_ms: Option<u64>) {
        self.state = State::Waiting;
        self.reason = Some(reason);
        self.next_ms = next_ms;
    }

    fn queue(&mut self) {
        self.state = State::Queued;
        self.next_ms = None;
    }

    fn end(&mut self, state: State, reason: Option<Error>, now_ms: u64) {
        self.state = state;
        self.reason = reason;
        self.next_ms = None;
        self.wish = None;
        self.ended_ms = Some(now_ms);
    }

    fn release(&mut self) -> Result<(), Error> {
        self.only_if(self.needs > 0, "release", |job| {
            job.needs -= 1;
            if job.needs == 0 && job.state == State::Waiting {
                job.queue();
            }
        })
    }

    fn abandon(&mut self, error: Error, now_ms: u64) -> Result<(), Error> {
        self.only_if(self.needs > 0 && !self.state.is_end(), "abandon", |job| {
            job.end(State::Failed, Some(error), now_ms);
        })
    }

    /// A running attempt detects the loss itself.
    fn lose(&mut self, error: Error, now_ms: u64) -> Result<(), Error> {
        let may = !self.state.is_end() && self.state != State::Running;
        self.only_if(may, "give up", |job| job.end(State::Failed, Some(error), now_ms))
    }

    fn give_up(&mut self, now_ms: u64) -> Result<(), Error> {
        self.only_if(!self.state.is_end() && now_ms >= self.deadline_ms, "give up", |job| match job.state {
            State::Running => job.wish = Some(job.wish.unwrap_or(Requested::GiveUp)),
            _ => job.end_overdue(now_ms),
        })
    }

    fn end_overdue(&mut self, now_ms: u64) {
        let last = self.reason.take().map_or_else(|| "it never ran".into(), |error| error.to_string());
        let error = Error::new(Code::DeadlinePassed, "wait", "transfer", last);
        self.end(State::Failed, Some(error), now_ms);
    }

    /// A transfer that waits for a credential is queued again.
    fn renew(&mut self) -> Result<(), Error> {
        self.only_if(!self.state.is_end(), "renew", |job| {
            if job.state == State::Waiting && job.needs == 0 && job.next_ms.is_none() {
                job.queue();
            }
        })
    }

    fn ask(&mut self, change: Change, deadline_ms: u64, now_ms: u64) -> Result<(), Error> {
        match change {
            Change::Cancel => self.cancel(now_ms),
            Change::Pause => self.pause(),
            Change::Resume => self.resume(),
            Change::Retry => self.retry(deadline_ms),
        }
    }

    fn cancel(&mut self, now_ms: u64) -> Result<(), Error> {
        let may = !self.state.is_end() || self.state == State::Cancelled;
        self.only_if(may, "cancel", |job| match job.state {
            State::Running => job.wish = Some(Requested::Cancel),
            State::Cancelled => {}
            _ => job.end(State::Cancelled, None, now_ms),
        })
    }

    fn pause(&mut self) -> Result<(), Error> {
        let may = !self.state.is_end() && !matches!(self.wish, Some(Requested::Cancel | Requested::GiveUp));
        self.only_if(may, "pause", |job| match job.state {
            State::Running => job.wish = Some(Requested::Pause),
            _ => {
                job.state = State::Paused;
                job.next_ms = None;
            }
        })
    }

    fn resume(&mut self) -> Result<(), Error> {
        let pausing = self.state == State::Running && self.wish == Some(Requested::Pause);
        self.only_if(self.state == State::Paused || pausing, "resume", |job| match job.needs {
            // The attempt is already being stopped; it is queued again when it has ended.
            _ if pausing => job.wish = None,
            0 => job.queue(),
            _ => job.state = State::Waiting,
        })
    }

    fn retry(&mut self, deadline_ms: u64) -> Result<(), Error> {
        let may = matches!(self.state, State::Waiting | State::Failed | State::Cancelled | State::Partial);
        self.only_if(may, "retry", |job| {
            job.deadline_ms = job.deadline_ms.max(deadline_ms);
            (job.in_vain, job.needs, job.ended_ms, job.summary) = (0, 0, None, None);
            job.queue();
        })
    }

    fn only_if(&mut self, may: bool, op: &str, then: impl FnOnce(&mut Self)) -> Result<(), Error> {
        if may {
            then(self);
            return Ok(());
        }
        let cause = format!("it is {}", self.state.name());
        Err(Error::new(Code::ChangeRefused, op, "transfer", cause))
    }
}

/// The state after a completed attempt.
fn state_after(summary: &Summary) -> State {
    match summary.failed {
        0 => State::Done,
        _ if summary.files + summary.dirs + summary.links == 0 => State::Failed,
        _ => State::Partial,
    }
}

/// The error of a completed attempt in which files failed.
fn partial_failure(summary: &Summary) -> Option<Error> {
    let whole = summary.files + summary.dirs + summary.links == 0 && summary.failed == 1;
    match summary.failures.first() {
        _ if summary.failed == 0 => None,
        // For a transfer of a single entry, the error of that entry is the best one.
        Some(only) if whole => Some(only.error.clone()),
        _ => {
            let cause = format!("{} failed", summary.failed);
            Some(Error::new(Code::PartialFailure, "transfer", "files", cause))
        }
    }
}

/// Whether an error is transient for a queued transfer. An interactive copy fails at once when the target is full; a
/// queued one has until its deadline for space to be freed, or for a freshly booted machine's clock to be set.
fn may_pass(error: &Error) -> bool {
    error.retry() == Retry::Later
        || matches!(error.code, Code::NoSpace | Code::QuotaExceeded | Code::ClockSkew)
}

/// The backoff after this many attempts without progress.
pub(super) fn pause_ms(in_vain: u32) -> u64 {
    BACKOFF.limit(in_vain).as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u64 = 1_000_000;

    fn lost() -> Error {
        Error::new(Code::ConnectionLost, "read", "peer", "gone")
    }

    fn denied() -> Error {
        Error::new(Code::NotMapped, "map", "alice@kek", "")
    }

    fn ended(outcome: Result<Summary, Error>) -> Event {
        Event::Ended { outcome, further: false }
    }

    fn asked(change: Change) -> Event {
        Event::Asked { change, deadline_ms: 2 * END }
    }

    /// The state after events, one per millisecond, all of which are valid.
    fn after(events: impl IntoIterator<Item = Event>) -> Job {
        let mut job = Job::submitted(0, END);
        for (event, now) in events.into_iter().zip(1..) {
            job.handle(event, now).unwrap();
        }
        job
    }

    #[test]
    fn a_job_runs_and_is_done_when_its_attempt_is() {
        let job = after([Event::Begun, Event::Found(DestinationKind::Dir), ended(Ok(Summary::default()))]);
        assert_eq!((job.state, job.attempts, job.ended_ms), (State::Done, 1, Some(3)));
        assert!(job.reason.is_none() && job.found == Some(DestinationKind::Dir));
    }

    #[test]
    fn transient_errors_are_retried_with_backoff() {
        let mut job = Job::submitted(0, END);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            job.handle(Event::Begun, 0).unwrap();
            job.handle(ended(Err(lost())), 0).unwrap();
            pauses.push(job.next_ms.unwrap());
            job.handle(Event::Due, 0).unwrap();
        }
        assert_eq!(pauses[..4], [1000, 2000, 4000, 8000]);
        assert_eq!(pauses[11], 5 * 60 * 1000);
        job.handle(Event::Begun, 0).unwrap();
        job.handle(Event::Ended { outcome: Err(lost()), further: true }, 0).unwrap();
        assert_eq!(job.next_ms, Some(1000), "it got further");
        assert_eq!(job.reason.unwrap().code, Code::ConnectionLost);
    }

    #[test]
    fn permanent_errors_fail_at_once_and_can_be_retried_by_hand() {
        let mut job = after([Event::Begun, ended(Err(denied()))]);
        assert_eq!((job.state, job.reason.as_ref().unwrap().code), (State::Failed, Code::NotMapped));
        job.handle(asked(Change::Retry), 5).unwrap();
        assert_eq!((job.state, job.deadline_ms, job.ended_ms), (State::Queued, 2 * END, None));
    }

    #[test]
    fn a_lost_buffer_ends_a_job_unless_it_runs_or_has_ended() {
        let gone = || Event::Lost(Error::new(Code::BufferGone, "keep", "transfer", ""));
        for before in [vec![], vec![asked(Change::Pause)], vec![Event::Begun, ended(Err(lost()))]] {
            let job = after(before.into_iter().chain([gone()]));
            assert_eq!((job.state, job.reason.unwrap().code), (State::Failed, Code::BufferGone));
        }
        assert!(after([Event::Begun]).handle(gone(), 9).is_err());
        assert!(after([asked(Change::Cancel)]).handle(gone(), 9).is_err());
    }

    #[test]
    fn files_that_failed_make_it_partial() {
        let summary = Summary { files: 2, failed: 3, ..Summary::default() };
        let job = after([Event::Begun, ended(Ok(summary))]);
        assert_eq!(job.state, State::Partial);
        assert_eq!(job.reason.clone().unwrap().code, Code::PartialFailure);
        assert_eq!(job.summary.clone().unwrap().files, 2);
        let mut again = job;
        again.handle(asked(Change::Retry), 5).unwrap();
        assert_eq!(again.state, State::Queued);
        let nothing = Summary { failed: 3, ..Summary::default() };
        assert_eq!(after([Event::Begun, ended(Ok(nothing))]).state, State::Failed);
    }

    #[test]
    fn a_job_waits_for_a_full_target() {
        for code in [Code::NoSpace, Code::QuotaExceeded, Code::ClockSkew] {
            let job = after([Event::Begun, ended(Err(Error::new(code, "write", "f", "")))]);
            assert_eq!((job.state, job.next_ms), (State::Waiting, Some(1002)));
        }
    }

    #[test]
    fn the_state_of_the_destination_is_recorded_once() {
        let job = after([
            Event::Begun,
            Event::Found(DestinationKind::Nothing),
            Event::Found(DestinationKind::Dir),
            Event::Interrupted,
        ]);
        assert_eq!((job.state, job.found), (State::Queued, Some(DestinationKind::Nothing)));
    }

    #[test]
    fn a_running_attempt_ends_as_requested() {
        for (change, state) in [(Change::Pause, State::Paused), (Change::Cancel, State::Cancelled)] {
            for end in [ended(Err(lost())), ended(Err(denied())), Event::Interrupted] {
                let job = after([Event::Begun, asked(change), end]);
                assert_eq!(job.state, state);
            }
            let job = after([Event::Begun, asked(change), ended(Ok(Summary::default()))]);
            assert_eq!(job.state, State::Done, "done is done");
        }
        let job = after([Event::Begun, asked(Change::Pause), asked(Change::Resume), Event::Interrupted]);
        assert_eq!(job.state, State::Queued);
    }

    #[test]
    fn a_job_waits_for_its_dependencies() {
        let mut job = Job::submitted(2, END);
        assert!(job.handle(Event::Begun, 0).is_err() && job.handle(Event::Due, 0).is_err());
        job.handle(Event::Released, 0).unwrap();
        job.handle(asked(Change::Pause), 0).unwrap();
        job.handle(asked(Change::Resume), 0).unwrap();
        assert_eq!(job.state, State::Waiting);
        job.handle(Event::Released, 0).unwrap();
        assert_eq!(job.state, State::Queued);
        let mut job = Job::submitted(1, END);
        let error = Error::new(Code::DependencyFailed, "wait", "x", "");
        job.handle(Event::Abandoned(error), 0).unwrap();
        assert_eq!(job.state, State::Failed);
    }

    #[test]
    fn a_deadline_ends_a_job_in_every_state() {
        let overdue = |mut job: Job| {
            assert!(job.handle(Event::Overdue, END - 1).is_err());
            job.handle(Event::Overdue, END).unwrap();
            job
        };
        let waiting = overdue(after([Event::Begun, ended(Err(lost()))]));
        let reason = waiting.reason.unwrap();
        assert_eq!(reason.code, Code::DeadlinePassed);
        assert!(reason.cause.contains("RK-NET-3"), "{reason}");
        assert_eq!(overdue(after([])).state, State::Failed);
        let mut running = overdue(after([Event::Begun]));
        assert_eq!(running.state, State::Running);
        running.handle(ended(Err(lost())), END).unwrap();
        assert_eq!(running.reason.unwrap().code, Code::DeadlinePassed);
    }

    #[test]
    fn an_expired_credential_waits_for_a_new_one() {
        let expired = Error::new(Code::CertificateExpired, "show", "alice@kek", "");
        let mut job = after([Event::Begun, Event::NoCredential(expired)]);
        assert_eq!((job.state, job.next_ms), (State::Waiting, None));
        job.handle(Event::Renewed, 0).unwrap();
        assert_eq!(job.state, State::Queued);
    }

    #[test]
    fn states_have_names() {
        assert!(State::ALL.into_iter().all(|state| State::parse(state.name()) == Some(state)));
    }
}
