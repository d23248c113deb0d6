//! `renkei verify`: reads replicas and compares them with their digests.

use super::replicate::{Which, each};
use crate::cli::Context;
use renkei_core::error::Error;
use renkei_core::wire::volume::AboutVolume;

/// Have a site read its replicas of files, and of all files below directories, and compare them with their digests
///
/// A corrupt file is no longer served; readers get the file from another site that has it. A wrong replica is removed. At
/// the volume's home the wrong file stays until a right one has come.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
    /// Bring anew what was wrong, from any site that has it
    #[arg(long)]
    repair: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let about = |place| AboutVolume::Verify { place, repair: args.repair };
    each(&args.which, "good", context, about)
}
