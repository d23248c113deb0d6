//! `renkei s3`: what S3 clients need of a PoP.

mod key;

use super::Context;
use clap::Subcommand;
use renkei_core::error::Error;

/// Make keys for programs that speak S3
///
/// Storages and volumes of a site are buckets at its PoP, for all programs that speak S3.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Key(key::Args),
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    match &args.action {
        Action::Key(args) => key::run(args, context),
    }
}
