//! `renkei transfers`: lists queued transfers.

use super::pace::Paces;
use super::queued::Shown;
use crate::cli::Context;
use crate::cli::asker::Asker;
use crate::cli::output::Report;
use renkei_core::error::Error;
use renkei_core::wire::queue::Listed;
use serde::Serialize;
use std::io::{self, Write};
use std::time::Duration;

/// Refresh interval of `--watch`.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Clears a terminal.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";

/// List queued transfers, those of `cp --detach` and `sync --detach`
///
/// Yours, from your own site's PoP, newest first; those that have ended only with --ended.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei transfers               what has not ended\n  renkei transfers --watch       the same, every second\n  renkei transfers --ended       also what is done, failed or cancelled\n  renkei transfers --all         everybody's, as the administrator of the PoP of this machine"
)]
pub struct Args {
    /// Everybody's transfers: for the administrator, on the PoP's machine
    #[arg(long)]
    all: bool,
    /// Also those that have ended
    #[arg(long)]
    ended: bool,
    /// Only those with this label
    #[arg(long, value_name = "LABEL")]
    label: Option<String>,
    /// Show the list again every second, until Ctrl-C
    #[arg(long)]
    watch: bool,
}

impl Args {
    /// The text of an empty list.
    fn nothing(&self) -> &'static str {
        if self.ended { "no transfers" } else { "no transfers; --ended also lists those that have ended" }
    }
}

#[derive(Serialize)]
struct List {
    transfers: Vec<Shown>,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let listed = Listed { ended: args.ended, label: args.label.clone(), before: None };
    let mut asker = Asker::new(context, args.all);
    let mut paces = Paces::default();
    loop {
        let shown = |queued| Shown::new(queued).paced(&mut paces);
        let transfers = asker.all_transfers(&listed)?.into_iter().map(shown).collect();
        if args.watch && !context.output.is_json() {
            crate::cli::output::print_part(CLEAR)?;
        }
        let list = List { transfers };
        context.output.answer(&list)?;
        if list.transfers.is_empty() {
            context.output.notice(args.nothing());
        }
        if !args.watch {
            return Ok(0);
        }
        std::thread::sleep(WATCH_EVERY);
    }
}

impl Report for List {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for transfer in &self.transfers {
            transfer.write_line(out)?;
            transfer.hops().iter().try_for_each(|hop| writeln!(out, "          {hop}"))?;
        }
        Ok(())
    }
}
