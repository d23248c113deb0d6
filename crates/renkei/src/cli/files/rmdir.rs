//! `renkei rmdir`: removes empty directories at sites.

use super::done::done;
use super::single::FileSessions;
use crate::cli::Context;
use crate::cli::glob;
use crate::cli::many::Many;
use renkei_core::error::Error;
use std::ffi::OsString;

/// Remove empty directories at a site
#[derive(Debug, clap::Args)]
pub struct Args {
    /// SITE:/STORAGE/PATH or /VOLUME/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let (mut many, mut sessions) = (Many::new(context), FileSessions::new(context));
    let mut removed = Vec::new();
    many.each(&glob::expanded(&args.paths, context)?, |_, path| {
        let (files, name) = sessions.parent_of(path)?;
        files.rmdir(&name)?;
        removed.push(path.to_string());
        Ok(())
    })?;
    done("removed", removed, &many, context)
}
