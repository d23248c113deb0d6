//! `--detach`: hands a copy over to the queue of the user's own PoP, and leaves.

use super::asker::Asker;
use super::connect::own_site;
use super::output::Report;
use super::{Context, transfer};
use crate::catalogue::{hex_id, parse_id};
use crate::net::unix_ms;
use renkei_core::error::{Code, Error, Kind};
use renkei_core::wire::message::TransferId;
use renkei_core::wire::queue::{Submission, Terms, Verify};
use serde::Serialize;
use std::io::{self, Write};
use std::time::Duration;

/// How often a hand-over is tried when the connection is lost; the id makes it one.
const TRIES: u32 = 3;

/// What `--verify` compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Compared {
    /// What was read with what was written, on the way
    #[default]
    Source,
    /// Also both as they are afterwards, read once more
    Both,
}

/// Options of a copy that is handed over.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Detach {
    /// Hand the copy over to your site's PoP, print its id and leave; only between places at sites
    #[arg(long)]
    detach: bool,
    /// Give up after this time: 90s, 30m, 12h, 7d [default: the PoP's, 30 days]
    #[arg(long, requires = "detach", value_name = "TIME", value_parser = parse_time)]
    deadline: Option<Duration>,
    /// Among your own transfers, higher numbers go first
    #[arg(long, requires = "detach", value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Wait until this transfer is done; may be given several times
    #[arg(long, requires = "detach", value_name = "ID")]
    after: Vec<String>,
    /// Words of your own, shown in lists
    #[arg(long, requires = "detach", value_name = "TEXT", default_value = "", hide_default_value = true)]
    label: String,
    /// What is compared
    #[arg(long, requires = "detach", value_name = "WHAT", value_enum, default_value_t = Compared::Source)]
    verify: Compared,
    /// Where to tell how it ended, by an HTTP POST of JSON; the PoP's administrator says where that is allowed
    #[arg(long, requires = "detach", value_name = "URL", default_value = "", hide_default_value = true)]
    notify: String,
    /// The transfer's id, 32 hexadecimal digits; the same id again is the same transfer
    #[arg(long, requires = "detach", value_name = "ID", value_parser = parse_whole_id)]
    id: Option<TransferId>,
}

#[derive(Serialize)]
struct Queued {
    transfer: String,
    site: String,
}

impl Detach {
    /// Whether the copy shall be handed over.
    pub(super) fn is_wanted(&self) -> bool {
        self.detach
    }

    /// The id that was chosen.
    pub(super) fn id(&self) -> Option<TransferId> {
        self.id
    }

    fn terms(&self, asker: &mut Asker<'_>, context: &Context) -> Result<Terms, Error> {
        let mut after = Vec::new();
        for id in &self.after {
            after.push(match parse_id(id) {
                Some(id) => id,
                None => asker.story(id)?.transfer.id,
            });
        }
        Ok(Terms {
            deadline_ms: self.deadline.map(|time| unix_ms(context.now() + time)),
            priority: self.priority,
            after,
            label: self.label.clone(),
            verify: match self.verify {
                Compared::Source => Verify::Source,
                Compared::Both => Verify::Both,
            },
            notify: self.notify.clone(),
        })
    }
}

/// Hands a copy over and prints its id.
pub(super) fn hand_over(job: &transfer::Job, detach: &Detach, context: &Context) -> Result<u8, Error> {
    let mut asker = Asker::new(context, false);
    let terms = detach.terms(&mut asker, context)?;
    let submission = Submission { terms, ..job.submission(context)? };
    let transfer = hex_id(&submission.send.transfer);
    let mut tries = 1;
    loop {
        match asker.submit(submission.clone()) {
            Ok(()) => break,
            Err(error) if error.kind() == Kind::Unavailable && tries < TRIES => tries += 1,
            Err(error) => return Err(error),
        }
    }
    context.output.answer(&Queued { transfer, site: own_site(context)?.to_string() })?;
    Ok(0)
}

impl Report for Queued {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{}", self.transfer)
    }
}

fn parse_whole_id(text: &str) -> Result<TransferId, String> {
    parse_id(text).ok_or_else(|| "write 32 hexadecimal digits".into())
}

/// A time as `90s`, `30m`, `12h` or `7d`.
fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || "write a number and s, m, h or d, as 12h".to_owned();
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(at);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    // A century is enough for everybody, and fits every clock.
    match number.checked_mul(seconds).filter(|seconds| (1..=36_525 * 86_400).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => Err("write a time of 1s to 36525d".into()),
    }
}

/// A copy that cannot be handed over.
pub(super) fn not_between_sites(shown: impl std::fmt::Display) -> Error {
    let cause = "one side is a path of this machine; --detach is for copies between places at sites";
    Error::new(Code::NotQueueable, "queue", shown, cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        assert_eq!(parse_time("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_time("7d"), Ok(Duration::from_secs(7 * 86_400)));
        for bad in ["", "90", "h", "1w", "-1h", "0s", "99999999999999999999d", "1.5h"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }
}
