//! The display of a queued transfer.

use super::pace::{self, Paces};
use crate::cli::output::error_json;
use crate::cli::quantity::{counted, human, span};
use crate::cli::time::{local, utc};
use renkei_catalogue::hex_id;
use renkei_core::entry::FileTime;
use renkei_core::error::Error;
use renkei_core::queue::State;
use renkei_core::wire::buffer::Buffered;
use renkei_core::wire::message::{Class, Progress, Summary};
use renkei_core::wire::queue::Queued;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Digits of an id in lists.
pub(crate) const SHORT: usize = 8;

/// One transfer; the schema is in docs/json.md.
#[derive(Debug, Serialize)]
pub(crate) struct Shown {
    pub(crate) id: String,
    owner: String,
    from: String,
    to: String,
    pub(crate) state: State,
    stopping: bool,
    reason: Option<Value>,
    waits_for: u32,
    next: Option<String>,
    submitted: String,
    deadline: String,
    ended: Option<String>,
    attempts: u32,
    priority: i32,
    class: Class,
    label: String,
    progress: Option<Progress>,
    /// Bytes per second of a running transfer, if known.
    rate: Option<u64>,
    summary: Option<Summary>,
    buffered: Option<Value>,
    #[serde(skip)]
    raw: Queued,
}

impl Shown {
    /// The display form of a queued transfer.
    pub(crate) fn new(raw: Queued) -> Self {
        let queued = raw.clone();
        Shown {
            id: hex_id(&queued.id),
            owner: queued.owner,
            from: queued.from,
            to: queued.to,
            state: queued.state,
            stopping: queued.stopping,
            reason: queued.reason.map(|error| reason_json(&error)),
            waits_for: queued.needs,
            next: queued.next_ms.map(moment),
            submitted: moment(queued.submitted_ms),
            deadline: if queued.deadline_ms == 0 { String::new() } else { moment(queued.deadline_ms) },
            ended: queued.ended_ms.map(moment),
            attempts: queued.attempts,
            priority: queued.priority,
            class: queued.class,
            label: queued.label,
            progress: queued.progress,
            rate: None,
            summary: queued.summary,
            buffered: queued.buffered.as_ref().map(buffered_json),
            raw,
        }
    }

    /// With its rate since the previous look.
    pub(crate) fn paced(mut self, paces: &mut Paces) -> Self {
        let progress = self.progress.filter(|_| self.state == State::Running);
        self.rate = progress.and_then(|progress| paces.rate(self.raw.id, &progress, Instant::now()));
        self
    }

    /// With its average rate since its attempt began.
    pub(crate) fn since(mut self, started_ms: u64) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let took = now.saturating_sub(Duration::from_millis(started_ms));
        let progress = self.progress.filter(|_| self.state == State::Running);
        self.rate = progress.and_then(|progress| pace::rate(progress.bytes_moved, took));
        self
    }

    /// The progress and rate of a running transfer.
    pub(crate) fn pace_text(&self) -> Option<String> {
        let text = self.progress.map(|progress| pace::text(&progress, self.rate));
        text.filter(|text| !text.is_empty())
    }

    /// The reason why it waits or failed.
    pub(crate) fn reason(&self) -> Option<&Error> {
        self.raw.reason.as_ref()
    }

    /// The hops of a transfer through the buffer, with their states.
    pub(crate) fn hops(&self) -> Vec<String> {
        let Some(Buffered { site, bytes, whole, .. }) = &self.raw.buffered else { return Vec::new() };
        let (from, to, state) = (&self.from, &self.to, self.state_text());
        let amount = human(*bytes);
        let first = match whole {
            true => format!("{from} -> buffer at {site}: {amount}, all of it"),
            false => format!("{from} -> buffer at {site}: {amount} so far"),
        };
        let second = if *whole { state } else { "not yet" };
        vec![first, format!("buffer at {site} -> {to}: {second}")]
    }

    /// Writes one line, and a second one if there is a detail.
    pub(crate) fn write_line(&self, out: &mut dyn Write) -> io::Result<()> {
        let (id, label) = (&self.id[..SHORT], &self.label);
        let label = if label.is_empty() { String::new() } else { format!("  [{label}]") };
        let (from, to, state) = (&self.from, &self.to, self.state_text());
        writeln!(out, "{id}  {state:<9}  {:>18}  {from} -> {to}{label}", self.amount())?;
        match self.standing() {
            Some(standing) => writeln!(out, "          {standing}"),
            None => Ok(()),
        }
    }

    /// The name of the state.
    pub(crate) fn state_text(&self) -> &'static str {
        if self.stopping { "stopping" } else { self.state.name() }
    }

    /// The progress, or the final amount.
    fn amount(&self) -> String {
        match (&self.progress, &self.summary) {
            (Some(progress), _) => progress_text(progress),
            (None, Some(summary)) => {
                format!("{} {}", counted(summary.files, "file", "files"), human(summary.bytes))
            }
            (None, None) => String::new(),
        }
    }

    /// The reason why it waits, or why it failed.
    pub(crate) fn standing(&self) -> Option<String> {
        let reason = || self.reason().map(Error::to_string);
        match self.state {
            State::Waiting if self.waits_for > 0 => {
                Some(format!("waits for {}", counted(self.waits_for, "other transfer", "other transfers")))
            }
            State::Waiting => {
                let again = match self.raw.next_ms {
                    Some(next) => format!("; tried again in {}", span(until(next))),
                    None => String::new(),
                };
                reason().map(|reason| format!("{reason}{again}"))
            }
            State::Failed | State::Partial => reason(),
            // An unreachable site is more important than the progress.
            State::Running => reason().or_else(|| self.pace_text()),
            State::Paused => self.pace_text(),
            State::Queued if self.attempts > 0 => reason().map(|reason| format!("before: {reason}")),
            _ => None,
        }
    }
}

fn buffered_json(buffered: &Buffered) -> Value {
    let Buffered { site, bytes, whole, until_ms } = buffered;
    json!({"site": site, "bytes": bytes, "whole": whole, "until": moment(*until_ms)})
}

/// The progress of an attempt.
fn progress_text(progress: &Progress) -> String {
    let done = pace::bytes_there(progress);
    let more = if progress.walk_done { "" } else { "+" };
    format!("{} of {}{more}", human(done), human(progress.bytes_found))
}

/// The JSON form of a reason.
pub(crate) fn reason_json(error: &Error) -> Value {
    error_json(error)["error"].take()
}

/// The time until a timestamp.
pub(crate) fn until(ms: u64) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_millis(ms).saturating_sub(now)
}

/// A time for programs.
pub(crate) fn moment(ms: u64) -> String {
    utc(file_time(ms))
}

/// A time for people.
pub(crate) fn local_moment(ms: u64) -> String {
    local(file_time(ms), "%Y-%m-%d %H:%M:%S")
}

fn file_time(ms: u64) -> FileTime {
    FileTime { secs: (ms / 1000).cast_signed(), nanos: (ms % 1000) as u32 * 1_000_000 }
}
