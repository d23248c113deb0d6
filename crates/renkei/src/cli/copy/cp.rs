//! `renkei cp`: copies files and trees to, from and between sites.

use super::options::{Common, Verb};
use super::transfer::Job;
use crate::cli::Context;
use renkei_core::error::Error;
use renkei_core::wire::message::{Existing, ReceiveOptions};
use std::ffi::OsString;

/// Copy files and trees: here to a site, a site to here, or site to site
///
/// A source goes into DESTINATION if that is a directory and becomes it if it does not exist. SOURCE/ means what
/// is in it; DESTINATION/ is a directory, made if missing. Modes, times, attributes, links and holes are kept.
/// A copy that was interrupted goes on where it stopped when the same command is given again.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei cp -r ./run7 kek:/data/alice/      up: makes kek:/data/alice/run7\n  renkei cp kek:/data/alice/run7/a.dat .    down\n  renkei cp -r titech:/data/a kek:/data/b   between sites, not through this machine\n  renkei cp --detach -r titech:/data/a kek:/data/b   the same when you have left: your PoP does it\n  renkei cp --detach -r ./run7 titech:/data/    from here, by way of your PoP's buffer\n  renkei cp --limit 50M big kek:/data/      at most 50 MiB/s\n  renkei cp -rn ./run7 kek:/data/alice/     only say what would be sent"
)]
pub struct Args {
    /// The sources: a local path or SITE:/STORAGE/PATH
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,
    /// Where to: a local path or SITE:/STORAGE/PATH
    #[arg(required = true, value_name = "DESTINATION")]
    destination: OsString,
    /// Copy directories with all in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Leave files at the destination that have the same size and time
    #[arg(short, long)]
    update: bool,
    /// Only list the files that would be sent
    #[arg(short = 'n', long, conflicts_with = "detach")]
    dry_run: bool,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let existing = if args.update { Existing::SameStamp } else { Existing::Replace };
    let job = Job {
        verb: Verb::Cp,
        sources: args.sources.clone(),
        destination: args.destination.clone(),
        recursive: args.recursive,
        options: ReceiveOptions { dry_run: args.dry_run, ..ReceiveOptions::plain(existing) },
        common: args.common.clone(),
    };
    job.run(context)
}
