//! `renkei evict`: evicts replicas.

use super::replicate::{Which, each};
use crate::cli::Context;
use renkei_core::error::Error;
use renkei_core::wire::volume::AboutVolume;

/// Have a site that follows a volume give up its replicas of files, and of all files below directories
///
/// The files stay in the volume: its home has them all.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    each(&args.which, "given up", context, AboutVolume::Evict)
}
