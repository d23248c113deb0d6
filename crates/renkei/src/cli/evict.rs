//! `renkei evict`: gives up replicas.

use super::Context;
use super::replicate::{At, each};
use renkei_core::error::Error;
use renkei_core::wire::volume::AboutVolume;
use std::ffi::OsString;

/// Have a site that follows a volume give up its replicas of files, and of all files below directories
///
/// The files stay in the volume: its home has them all.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// SITE:/VOLUME/PATH or /VOLUME/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    #[command(flatten)]
    at: At,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    each(&args.paths, &args.at, "given up", context, AboutVolume::Evict)
}
