//! `renkei verify`: reads replicas and compares them.

use super::Context;
use super::replicate::{Which, each};
use renkei_core::error::Error;
use renkei_core::wire::volume::AboutVolume;

/// Have a site read its replicas of files, and of all files below directories, and compare them with their digests
///
/// A replica that is wrong is removed and never given out again; readers get the file from the volume's home.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Replicate anew what was wrong
    #[arg(long)]
    repair: bool,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let about = |place| AboutVolume::Verify { place, repair: args.repair };
    each(&args.which, "good", context, about)
}
