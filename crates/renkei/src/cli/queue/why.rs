//! `renkei why ID` and `renkei status ID`: the state of a queued transfer, and its history.

use super::queued::{SHORT, Shown, local_moment, moment, reason_json, until};
use crate::cli::Context;
use crate::cli::asker::Asker;
use crate::cli::output::{Report, wildcard_note};
use crate::cli::quantity::{human, span};
use crate::cli::remedy::remedy_of;
use renkei_catalogue::hex_id;
use renkei_core::error::Error;
use renkei_core::queue::State;
use renkei_core::wire::message::{EntryFailure, TransferId};
use renkei_core::wire::queue::{Attempt, Story};
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::Duration;

/// Failures shown as text.
const SHOWN_FAILURES: usize = 20;

/// Show the history of a queued transfer: the cause of its wait, its attempts and their errors
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The transfer, by the first digits (4 at least) of its id
    id: String,
    /// Also somebody else's: for the administrator, on the PoP's machine
    #[arg(long)]
    all: bool,
    /// List every file that failed, not only the first
    #[arg(long)]
    failures: bool,
}

#[derive(Serialize)]
struct TransferHistory {
    #[serde(flatten)]
    transfer: Shown,
    after: Vec<Value>,
    story: Vec<Value>,
    failures: Vec<Value>,
    link_rests_until: Option<String>,
    #[serde(skip)]
    raw: Story,
    #[serde(skip)]
    whole: bool,
    /// Failures shown as text.
    #[serde(skip)]
    shown: usize,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    tell(&args.id, args.all, true, args.failures, context)
}

/// Shows a transfer; the full history, and all failed files, only if requested.
pub(crate) fn tell(id: &str, all: bool, whole: bool, failures: bool, context: &Context) -> Result<u8, Error> {
    let mut asker = Asker::new(context, all);
    let mut story = asker.story(id)?;
    if failures {
        story.failures = all_failures(&mut asker, story.transfer.id)?;
    }
    let shown = if failures { usize::MAX } else { SHOWN_FAILURES };
    context.output.answer(&TransferHistory::new(story, whole, shown))?;
    Ok(0)
}

/// All failures that the PoP lists, fetched in pages.
fn all_failures(asker: &mut Asker<'_>, id: TransferId) -> Result<Vec<EntryFailure>, Error> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let part = asker.failures(id, after)?;
        let Some((last, _)) = part.last() else { return Ok(all) };
        after = *last;
        all.extend(part.into_iter().map(|(_, failure)| failure));
    }
}

impl TransferHistory {
    fn new(raw: Story, whole: bool, shown: usize) -> Self {
        let failure = |failure: &EntryFailure| {
            let mut json = reason_json(&failure.error);
            json["path"] = failure.path.to_string().into();
            json["kept"] = failure.kept.into();
            json
        };
        let transfer = Shown::new(raw.transfer.clone());
        let running = raw.attempts.last().filter(|attempt| attempt.ended_ms.is_none());
        TransferHistory {
            transfer: match running {
                Some(attempt) => transfer.since(attempt.started_ms),
                None => transfer,
            },
            after: raw.after.iter().map(|(id, state)| json!({"id": hex_id(id), "state": state})).collect(),
            story: raw.attempts.iter().map(attempt_json).collect(),
            failures: raw.failures.iter().map(failure).collect(),
            link_rests_until: raw.link_rests_until_ms.map(moment),
            raw,
            whole,
            shown,
        }
    }

    fn write_times(&self, out: &mut dyn Write) -> io::Result<()> {
        let queued = &self.raw.transfer;
        writeln!(out, "  submitted   {} by {}", local_moment(queued.submitted_ms), queued.owner)?;
        match queued.ended_ms {
            Some(ended) => writeln!(out, "  ended       {}", local_moment(ended))?,
            // A third-party copy, which ends with its client.
            None if queued.deadline_ms == 0 => {}
            None => {
                let left = span(until(queued.deadline_ms));
                writeln!(out, "  deadline    {}, in {left}", local_moment(queued.deadline_ms))?;
            }
        }
        for (hop, number) in self.transfer.hops().iter().zip(1..) {
            writeln!(out, "  hop {number}       {hop}")?;
        }
        if let Some(buffered) = &queued.buffered {
            writeln!(out, "  in buffer   until {}", local_moment(buffered.until_ms))?;
        }
        for (id, state) in &self.raw.after {
            writeln!(out, "  after       {} ({})", &hex_id(id)[..SHORT], state.name())?;
        }
        Ok(())
    }

    fn write_what_to_do(&self, out: &mut dyn Write) -> io::Result<()> {
        if let Some(rests) = self.raw.link_rests_until_ms {
            writeln!(
                out,
                "  link        nothing was reached over it; it is tried again in {}",
                span(until(rests))
            )?;
        }
        let stands = matches!(self.transfer.state, State::Waiting | State::Failed | State::Partial);
        match self.transfer.reason().filter(|_| stands) {
            Some(error) => {
                writeln!(
                    out,
                    "  what to do  {}{}",
                    remedy_of(error, Some(&self.transfer.id[..SHORT])),
                    wildcard_note(error)
                )
            }
            None => Ok(()),
        }
    }

    fn write_failures(&self, out: &mut dyn Write) -> io::Result<()> {
        for failure in self.raw.failures.iter().take(self.shown) {
            writeln!(out, "  failed      {}: {}", failure.path, failure.error)?;
        }
        let failed = self.raw.transfer.summary.as_ref().map_or(0, |summary| summary.failed);
        let shown = self.raw.failures.len().min(self.shown) as u64;
        match failed.saturating_sub(shown) {
            0 => Ok(()),
            more if self.shown == usize::MAX => {
                writeln!(out, "  failed      {more} more, which are not listed")
            }
            more => writeln!(out, "  failed      {more} more; --failures lists them"),
        }
    }
}

impl Report for TransferHistory {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.transfer.write_line(out)?;
        self.write_times(out)?;
        if self.whole {
            let last = self.raw.attempts.last().filter(|_| self.raw.transfer.state == State::Running);
            for attempt in &self.raw.attempts {
                write_attempt(attempt, last.is_some_and(|last| last.number == attempt.number), out)?;
            }
        }
        self.write_failures(out)?;
        self.write_what_to_do(out)
    }
}

fn attempt_json(attempt: &Attempt) -> Value {
    json!({
        "attempt": attempt.number,
        "started": moment(attempt.started_ms),
        "ended": attempt.ended_ms.map(moment),
        "bytes_moved": attempt.bytes_moved,
        "files_done": attempt.files_done,
        "error": attempt.error.as_ref().map(reason_json),
    })
}

fn write_attempt(attempt: &Attempt, runs: bool, out: &mut dyn Write) -> io::Result<()> {
    let started = local_moment(attempt.started_ms);
    let took = match attempt.ended_ms {
        Some(ended) => {
            let took = Duration::from_millis(ended.saturating_sub(attempt.started_ms));
            format!("{:.1} s, {} moved", took.as_secs_f64(), human(attempt.bytes_moved))
        }
        None if runs => "running".into(),
        None => "no end is known".into(),
    };
    let how = attempt.error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
    writeln!(out, "  attempt {:<3} {started}  {took}{how}", attempt.number)
}
