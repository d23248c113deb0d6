//! `--detach`: submits a copy to the queue of the user's own PoP, and returns.

use super::copy_plan::Direction;
use super::transfer::Run;
use super::upload;
use crate::cli::Context;
use crate::cli::asker::Asker;
use crate::cli::connect::own_site;
use crate::cli::output::Report;
use renkei_catalogue::{hex_id, parse_id};
use renkei_core::error::{Code, Error, Kind};
use renkei_core::units::parse_span;
use renkei_core::wire::message::TransferId;
use renkei_core::wire::queue::{Submission, Terms, Verify};
use renkei_net::unix_ms;
use serde::Serialize;
use std::io::{self, Write};
use std::time::Duration;

/// Attempts of a submission over lost connections; the id makes it idempotent.
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
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Detach {
    /// Hand the copy over to your site's PoP, print its id and leave; files of this machine go to its buffer first
    #[arg(long)]
    detach: bool,
    /// End at once where the buffer has no room for files of this machine
    #[arg(long, requires = "detach")]
    no_wait: bool,
    /// Give up after this time: 90s, 30m, 12h, 7d [default: the PoP's, 30 days]
    #[arg(long, requires = "detach", value_name = "TIME", value_parser = parse_span)]
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
    /// Whether the copy is to be submitted.
    pub(crate) fn is_wanted(&self) -> bool {
        self.detach
    }

    /// The given id.
    pub(crate) fn id(&self) -> Option<TransferId> {
        self.id
    }

    /// Whether to wait for space in the buffer.
    pub(crate) fn waits(&self) -> bool {
        !self.no_wait
    }

    /// Whether it waits for other transfers.
    pub(crate) fn is_after_others(&self) -> bool {
        !self.after.is_empty()
    }

    pub(crate) fn terms(&self, asker: &mut Asker<'_>, context: &Context) -> Result<Terms, Error> {
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
            origin: String::new(),
        })
    }
}

/// Submits a copy and prints its id.
pub(crate) fn hand_over(run: Run<'_>, detach: &Detach, context: &Context) -> Result<u8, Error> {
    if let Direction::Up(_) = run.direction {
        return upload::hand_over(run, detach, context);
    }
    let mut asker = Asker::new(context, false);
    let terms = detach.terms(&mut asker, context)?;
    hand_in(&mut asker, &Submission { terms, ..run.submission()? }, context)
}

/// Submits a transfer and prints its id.
pub(crate) fn hand_in(
    asker: &mut Asker<'_>,
    submission: &Submission,
    context: &Context,
) -> Result<u8, Error> {
    let mut tries = 1;
    loop {
        match asker.submit(submission.clone()) {
            Ok(()) => break,
            Err(error) if error.kind() == Kind::Unavailable && tries < TRIES => tries += 1,
            Err(error) => return Err(error),
        }
    }
    let transfer = hex_id(&submission.send.transfer);
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

/// The error of a copy that cannot be submitted.
pub(crate) fn not_to_here(shown: impl std::fmt::Display) -> Error {
    let cause = "it is a path of this machine, which may not be reachable when the copy runs";
    Error::new(Code::NotQueueable, "queue", shown, cause)
}
