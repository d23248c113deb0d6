//! `renkei mkdir`: makes directories at sites.

use super::done::done;
use crate::cli::Context;
use crate::cli::connect::place;
use crate::cli::many::Many;
use renkei_core::error::Error;
use renkei_core::wire::message::Request;
use std::ffi::OsString;

/// Make directories at a site
#[derive(Debug, clap::Args)]
pub struct Args {
    /// SITE:/STORAGE/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Make missing parents, too; a directory that exists is no error
    #[arg(short, long)]
    parents: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let mut many = Many::new(context);
    let mut made = Vec::new();
    many.each(&args.paths, |many, path| {
        let request = Request::Mkdir { place: place(path)?, parents: args.parents };
        many.ask_done(&path.site, request)?;
        made.push(path.to_string());
        Ok(())
    })?;
    done("made", made, &many, context)
}
