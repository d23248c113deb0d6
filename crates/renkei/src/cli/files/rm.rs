//! `renkei rm`: removes files and trees at sites.

use super::done::done;
use crate::cli::Context;
use crate::cli::connect::place;
use crate::cli::glob;
use crate::cli::many::Many;
use renkei_core::error::{Code, Error};
use renkei_core::wire::message::Request;
use std::ffi::OsString;

/// Remove files at a site and, with -r, directories with all in them
///
/// A symbolic link is removed itself, never its target. A storage itself is never removed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// SITE:/STORAGE/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Remove directories with all in them
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// A path that does not exist is no error
    #[arg(short, long)]
    force: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let mut many = Many::new(context);
    let mut removed = Vec::new();
    many.each(&glob::expanded(&args.paths, context)?, |many, path| {
        let request = Request::Remove { place: place(path)?, recursive: args.recursive };
        match many.ask_done(&path.site, request) {
            Ok(()) => removed.push(path.to_string()),
            Err(error) if args.force && error.code == Code::PathNotFound => {}
            Err(error) => return Err(error),
        }
        Ok(())
    })?;
    done("removed", removed, &many, context)
}
