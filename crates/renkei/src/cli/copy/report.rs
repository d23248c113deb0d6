//! The report at the end of a transfer.

use super::options::Verb;
use crate::cli::Context;
use crate::cli::output::{Report, error_json, wildcard_note};
use crate::cli::quantity::{counted, human};
use crate::cli::remedy::remedy;
use renkei_core::error::{Code, Error, Kind};
use renkei_core::wire::message::{Class, Summary, TransferId};
use renkei_mover::hex;
use renkei_mover::progress::Note;
use serde::Serialize;
use std::io::{self, Write};
use std::time::Duration;

/// Failures shown as text without `-v`.
const SHOWN_FAILURES: usize = 20;

/// The result of a transfer; the schema is in docs/json.md.
#[derive(Debug, Serialize)]
struct Transferred {
    transfer: String,
    class: Class,
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

/// Prints the report and returns the exit status.
pub(crate) fn transferred(
    verb: Verb,
    dry_run: bool,
    summary: &Summary,
    notes: Vec<Note>,
    took: Duration,
    (transfer, class): (&TransferId, Class),
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
            // The summary lists the first failed ones; arrived ones were printed.
            Note::Failed(_) | Note::Arrived(_) => {}
        }
    }
    let report = Transferred {
        transfer: hex(transfer),
        class,
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
    let single = summary.files + summary.dirs + summary.links == 0 && summary.failed == 1;
    print_failures(summary, report.shown, !single, context);
    let status = summary.failures.iter().find(|failure| failure.error.code != Code::SpecialFile);
    Ok(match status {
        Some(failure) if single => failure.error.kind().exit_status(),
        _ => Kind::Partial.exit_status(),
    })
}

fn print_failures(summary: &Summary, shown: usize, sum_up: bool, context: &Context) {
    if context.output.is_json() {
        return;
    }
    let real = summary.failures.iter().filter(|failure| failure.error.code != Code::SpecialFile);
    for failure in real.clone().take(shown) {
        // A failure of the source as a whole has no path below it.
        let path = if failure.path.is_root() { String::new() } else { format!("{}: ", failure.path) };
        let error = &failure.error;
        eprintln!("renkei: {path}{error}\n  what to do: {}{}", remedy(error), wildcard_note(error));
    }
    let listed = real.count().min(shown) as u64;
    if summary.failed > listed {
        eprintln!("renkei: {} more failed; -v or --json lists them", summary.failed - listed);
    }
    if sum_up {
        let row = Code::PartialFailure.row();
        eprintln!("renkei: {}: {}: {} failed", row.id, row.title, summary.failed);
    }
}

impl Report for Transferred {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.write_notes(out)?;
        if self.dry_run {
            let send = counted(self.would_send.len() as u64, "file", "files");
            let remove = counted(self.deleted, "name", "names");
            writeln!(out, "dry run: {send} would be sent, {remove} removed; nothing was changed")?;
        } else if self.failed == 0 || !self.is_nothing() {
            self.write_done(out)?;
        }
        if self.special_skipped > 0 {
            let special =
                counted(self.special_skipped, "device, FIFO or socket", "devices, FIFOs or sockets");
            writeln!(out, "{special} passed over")?;
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
        let (verb, what, seconds) = (self.verb, self.what(), self.seconds);
        let moved = human(self.bytes_moved);
        match self.bytes_moved {
            0 => writeln!(out, "{verb} {what} in {seconds:.1} s")?,
            // A rate over less than a second is meaningless.
            _ if seconds < 1.0 => {
                writeln!(out, "{verb} {what} in {seconds:.1} s: {moved} moved, verified with BLAKE3")?;
            }
            bytes => {
                let rate = human((bytes as f64 / seconds) as u64);
                writeln!(
                    out,
                    "{verb} {what} in {seconds:.1} s: {moved} moved at {rate}/s, verified with BLAKE3"
                )?;
            }
        }
        if self.files_skipped > 0 {
            let files = counted(self.files_skipped, "file", "files");
            let there = if self.files_skipped == 1 { "was" } else { "were" };
            writeln!(out, "{files} ({}) {there} there already", human(self.bytes_skipped))?;
        }
        if self.deleted > 0 {
            writeln!(out, "{} removed at the destination", counted(self.deleted, "name", "names"))?;
        }
        Ok(())
    }

    /// `2 files (28 MiB), 1 directory, 3 links`, without zero counts.
    fn what(&self) -> String {
        let mut parts = vec![format!("{} ({})", counted(self.files, "file", "files"), human(self.bytes))];
        for (count, one, many) in [(self.dirs, "directory", "directories"), (self.links, "link", "links")] {
            if count > 0 {
                parts.push(counted(count, one, many));
            }
        }
        parts.join(", ")
    }

    fn is_nothing(&self) -> bool {
        self.files + self.dirs + self.links + self.deleted == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(report: &Transferred) -> String {
        let mut text = Vec::new();
        report.write_text(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn copied(files: u64, dirs: u64, bytes_moved: u64, seconds: f64) -> Transferred {
        Transferred {
            transfer: String::new(),
            class: Class::Normal,
            files,
            dirs,
            links: 0,
            bytes: 3 << 20,
            files_skipped: 0,
            bytes_skipped: 0,
            bytes_moved,
            deleted: 0,
            special_skipped: 0,
            seconds,
            failed: 0,
            failures: Vec::new(),
            would_send: Vec::new(),
            removed: Vec::new(),
            dry_run: false,
            verb: "copied",
            shown: SHOWN_FAILURES,
        }
    }

    #[test]
    fn the_last_line_summarises_the_copy() {
        let done = copied(1, 0, 3 << 20, 2.0);
        assert_eq!(
            text(&done),
            "copied 1 file (3.0M) in 2.0 s: 3.0M moved at 1.5M/s, verified with BLAKE3\n"
        );
        let nothing_new = Transferred { files_skipped: 2, bytes_skipped: 3 << 20, ..copied(2, 1, 0, 0.1) };
        assert_eq!(
            text(&nothing_new),
            "copied 2 files (3.0M), 1 directory in 0.1 s\n2 files (3.0M) were there already\n"
        );
        assert_eq!(text(&Transferred { failed: 1, ..copied(0, 0, 0, 0.1) }), "");
    }

    #[test]
    fn a_dry_run_counts_in_words() {
        let report =
            Transferred { dry_run: true, would_send: vec!["a".into()], deleted: 2, ..copied(1, 0, 0, 0.1) };
        assert_eq!(
            text(&report),
            "would send    a\ndry run: 1 file would be sent, 2 names removed; nothing was changed\n"
        );
    }
}
