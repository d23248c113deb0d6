//! `renkei sync`: makes a destination equal to a source, sending only differences.

use super::options::{Common, Verb};
use super::transfer::Job;
use crate::cli::Context;
use renkei_core::error::Error;
use renkei_core::wire::message::{Existing, ReceiveOptions};
use std::ffi::OsString;

/// Make DESTINATION equal to SOURCE, sending only differences
///
/// Both are directories, with or without a trailing slash. A file counts as equal if size and time are; with
/// --checksum if the content is.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei sync -n --delete ./run7 kek:/data/alice/run7   what would be sent and removed\n  renkei sync --delete ./run7 kek:/data/alice/run7      do it\n  renkei sync kek:/data/alice/run7 ./run7               the other way"
)]
pub struct Args {
    /// The directory to follow: a local path or SITE:/STORAGE/PATH
    source: OsString,
    /// The directory to change; made if missing
    destination: OsString,
    /// Remove files that SOURCE does not have
    #[arg(long)]
    delete: bool,
    /// Only list the files that would be sent and removed
    #[arg(short = 'n', long, conflicts_with = "detach")]
    dry_run: bool,
    /// Compare content (BLAKE3) instead of size and time
    #[arg(short, long)]
    checksum: bool,
    #[command(flatten)]
    common: Common,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let existing = if args.checksum { Existing::SameContent } else { Existing::SameStamp };
    let job = Job {
        verb: Verb::Sync,
        sources: vec![args.source.clone()],
        destination: args.destination.clone(),
        recursive: true,
        options: ReceiveOptions {
            delete: args.delete,
            dry_run: args.dry_run,
            ..ReceiveOptions::plain(existing)
        },
        common: args.common.clone(),
    };
    job.run(context)
}
