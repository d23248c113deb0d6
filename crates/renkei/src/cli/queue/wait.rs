//! `renkei wait`: waits until queued transfers have ended; the exit status tells how.

use super::pace::Paces;
use super::queued::{SHORT, Shown};
use crate::cli::Context;
use crate::cli::asker::Asker;
use crate::cli::output::Report;
use renkei_core::error::{Code, Error, Kind};
use renkei_core::queue::State;
use serde::Serialize;
use std::io::{self, Write};
use std::time::{Duration, Instant};

/// Poll interval.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// Delay of the first progress message, and the interval of further ones.
const FIRST_AFTER: Duration = Duration::from_secs(2);
const TELL_EVERY: Duration = Duration::from_secs(10);
/// How long the PoP may be unreachable: it may be restarted meanwhile.
const BEAR_SILENCE: Duration = Duration::from_secs(600);

/// Wait until queued transfers have ended; the exit status tells how
///
/// 0 if all are done, 23 if files of one failed, 130 if one was cancelled, else that of the first failure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The transfers, by the first digits (4 at least) of their ids
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Wait so many seconds at most; exit status 8 if they are over
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
}

#[derive(Serialize)]
struct Ended {
    transfers: Vec<Shown>,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let deadline = args.timeout.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut asker = Asker::new(context, false);
    let (mut transfers, mut status) = (Vec::new(), 0);
    for id in &args.ids {
        let ended = wait_for(id, &mut asker, deadline, context)?;
        if status == 0 {
            status = exit_status(&ended);
        }
        transfers.push(ended);
    }
    context.output.done(&Ended { transfers })?;
    Ok(status)
}

fn wait_for(
    id: &str,
    asker: &mut Asker<'_>,
    deadline: Option<Instant>,
    context: &Context,
) -> Result<Shown, Error> {
    let (mut heard, mut telling) = (Instant::now(), ProgressMessages::new());
    loop {
        match asker.story(id) {
            Ok(story) if story.transfer.state.is_end() => return Ok(Shown::new(story.transfer)),
            Ok(story) => {
                heard = Instant::now();
                telling.look(Shown::new(story.transfer), context);
            }
            Err(error) if error.kind() != Kind::Unavailable || heard.elapsed() > BEAR_SILENCE => {
                return Err(error);
            }
            Err(_) => {}
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(Error::new(
                Code::Stalled,
                "wait",
                id,
                "the time of --timeout has passed; the transfer continues",
            ));
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Occasional progress messages about the transfers.
struct ProgressMessages {
    paces: Paces,
    next: Instant,
    told: String,
}

impl ProgressMessages {
    fn new() -> Self {
        ProgressMessages { paces: Paces::default(), next: Instant::now() + FIRST_AFTER, told: String::new() }
    }

    fn look(&mut self, shown: Shown, context: &Context) {
        let shown = shown.paced(&mut self.paces);
        let standing = shown.standing().map_or_else(String::new, |standing| format!("  {standing}"));
        let text = format!("{}  {}{standing}", &shown.id[..SHORT], shown.state_text());
        // An unreachable site, and the retries, are reported at once.
        let is_news = shown.reason().is_some() && text != self.told;
        if is_news || (Instant::now() >= self.next && text != self.told) {
            context.output.notice(&text);
            (self.next, self.told) = (Instant::now() + TELL_EVERY, text);
        }
    }
}

fn exit_status(ended: &Shown) -> u8 {
    match (ended.state, ended.reason()) {
        (State::Done, _) => 0,
        (State::Failed | State::Partial, Some(error)) => error.kind().exit_status(),
        _ => Kind::Interrupted.exit_status(),
    }
}

impl Report for Ended {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.transfers.iter().try_for_each(|transfer| transfer.write_line(out))
    }
}
