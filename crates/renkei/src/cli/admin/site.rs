//! `renkei site`: operations on a site as a whole: its name and its authority.

use super::{rename_site, rotate_authority};
use crate::cli::Context;
use clap::Subcommand;
use renkei_core::error::Error;

/// Change what a site is known by: its authority, its name
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Give the site another name; partners take it over by themselves
    ///
    /// The former name goes on to mean the site, here and at all partners: in rules, grants, queued transfers and commands. Certificates
    /// under it stay valid during an overlap. A running PoP starts again once; its transfers are resumed. Run again, the
    /// command completes a renaming that was interrupted. A former name is not used again.
    #[command(after_long_help = "Examples:\n  renkei site rename science-tokyo")]
    Rename(rename_site::Args),
    /// Replace the site's authority; partners take over the new one by themselves
    ///
    /// The old authority signs a hand-over to the new one, and both are valid during an overlap. Run again, the command shows the
    /// progress, or completes a rotation that was interrupted.
    #[command(
        after_long_help = "Examples:\n  renkei site rotate-authority                 overlap of 30 days\n  renkei site \
                           rotate-authority --finish        end the overlap\n  renkei site \
                           rotate-authority --now           the key is compromised"
    )]
    RotateAuthority(rotate_authority::Args),
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    match &args.action {
        Action::Rename(args) => rename_site::run(args, context),
        Action::RotateAuthority(args) => rotate_authority::run(args, context),
    }
}
