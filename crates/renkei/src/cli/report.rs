//! The report at the end of a transfer.

use super::Context;
use super::output::{Report, error_json};
use super::transfer::Verb;
use crate::mover::hex;
use crate::mover::progress::Note;
use indicatif::HumanBytes;
use renkei_core::error::{Code, Error, Kind};
use renkei_core::wire::message::{Summary, TransferId};
use serde::Serialize;
use std::io::{self, Write};
use std::time::Duration;

/// Failures shown as text without `-v`.
const SHOWN_FAILURES: usize = 20;

/// What a transfer did; the schema is in docs/json.md.
#[derive(Debug, Serialize)]
struct Transferred {
    transfer: String,
    files: u64,
    dirs: u64,
    links: u64,
    bytes: u64,
    files_skipped: u64,
    bytes_skipped: u64,
    bytes_moved: u64,
    deleted: u64,
    special_skipped: u64,
    seconds: f64,
    failed: u64,
    failures: Vec<serde_json::Value>,
    would_send: Vec<String>,
    removed: Vec<String>,
    dry_run: bool,
    #[serde(skip)]
    verb: &'static str,
    #[serde(skip)]
    shown: usize,
}

/// Prints the report and gives the exit status.
pub(super) fn transferred(
    verb: Verb,
    dry_run: bool,
    summary: &Summary,
    notes: Vec<Note>,
    took: Duration,
    transfer: &TransferId,
    context: &Context,
) -> Result<u8, Error> {
    let failure = |failure: &renkei_core::wire::message::EntryFailure| {
        let mut json = error_json(&failure.error)["error"].take();
        json["path"] = failure.path.to_string().into();
        json["kept"] = failure.kept.into();
        json
    };
    let (mut would_send, mut removed) = (Vec::new(), Vec::new());
    for note in notes {
        match note {
            Note::WouldSend(path) => would_send.push(path.to_string()),
            Note::Removed(path) => removed.push(path.to_string()),
        }
    }
    let report = Transferred {
        transfer: hex(transfer),
        files: summary.files,
        dirs: summary.dirs,
        links: summary.links,
        bytes: summary.bytes,
        files_skipped: summary.files_skipped,
        bytes_skipped: summary.bytes_skipped,
        bytes_moved: summary.bytes_moved,
        deleted: summary.deleted,
        special_skipped: summary.special,
        seconds: took.as_secs_f64(),
        failed: summary.failed,
        failures: summary.failures.iter().map(failure).collect(),
        would_send,
        removed,
        verb: if verb == Verb::Cp { "copied" } else { "synchronised" },
        dry_run,
        shown: if context.verbose > 0 { usize::MAX } else { SHOWN_FAILURES },
    };
    context.output.done(&report)?;
    if summary.failed == 0 {
        return Ok(0);
    }
    print_failures(summary, report.shown, context);
    let single = summary.files + summary.dirs + summary.links == 0 && summary.failed == 1;
    let status = summary.failures.iter().find(|failure| failure.error.code != Code::SpecialFile);
    Ok(match status {
        Some(failure) if single => failure.error.kind().exit_status(),
        _ => Kind::Partial.exit_status(),
    })
}

fn print_failures(summary: &Summary, shown: usize, context: &Context) {
    if context.output.is_json() {
        return;
    }
    let real = summary.failures.iter().filter(|failure| failure.error.code != Code::SpecialFile);
    for failure in real.clone().take(shown) {
        eprintln!("renkei: {}: {}", failure.path, failure.error);
        eprintln!("  what to do: {}", failure.error.code.row().remedy);
    }
    let listed = real.count().min(shown) as u64;
    if summary.failed > listed {
        eprintln!("renkei: {} more failed; -v or --json lists them", summary.failed - listed);
    }
    let row = Code::PartialFailure.row();
    eprintln!("renkei: {}: {}: {} failed", row.id, row.title, summary.failed);
}

impl Report for Transferred {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write_notes(out)?;
        if self.dry_run {
            let (send, remove) = (self.would_send.len(), self.deleted);
            writeln!(
                out,
                "dry run: {send} files would be sent, {remove} names removed; nothing was changed"
            )?;
        } else {
            self.write_done(out)?;
        }
        if self.special_skipped > 0 {
            writeln!(out, "{} devices, FIFOs or sockets passed over", self.special_skipped)?;
        }
        Ok(())
    }
}

impl Transferred {
    fn write_notes(&self, out: &mut dyn Write) -> io::Result<()> {
        self.would_send.iter().try_for_each(|path| writeln!(out, "would send    {path}"))?;
        let removed = if self.dry_run { "would remove " } else { "removed      " };
        self.removed.iter().try_for_each(|path| writeln!(out, "{removed} {path}"))
    }

    fn write_done(&self, out: &mut dyn Write) -> io::Result<()> {
        let rate = self.bytes_moved as f64 / self.seconds.max(1e-3);
        writeln!(
            out,
            "{} {} files ({}), {} directories, {} links in {:.1} s: {} moved at {}/s, verified with BLAKE3",
            self.verb,
            self.files,
            HumanBytes(self.bytes),
            self.dirs,
            self.links,
            self.seconds,
            HumanBytes(self.bytes_moved),
            HumanBytes(rate as u64),
        )?;
        if self.files_skipped > 0 {
            writeln!(
                out,
                "{} files ({}) were there already",
                self.files_skipped,
                HumanBytes(self.bytes_skipped)
            )?;
        }
        if self.deleted > 0 {
            writeln!(out, "{} names removed at the destination", self.deleted)?;
        }
        Ok(())
    }
}
