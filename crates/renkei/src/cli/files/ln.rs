//! `renkei ln`: makes links at sites.

use super::done::done;
use super::single::FileSessions;
use crate::cli::Context;
use crate::cli::connect::{place, remote};
use crate::cli::many::Many;
use renkei_core::error::{Code, Error};
use renkei_core::path::{EndpointPath, RelPath, printable};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Make a symbolic link or, without -s, a hard link at a site
///
/// With -s, TARGET is stored as it is written: it is looked up at the site, from the directory of the link. Without it,
/// TARGET is a file in the directory of the link or below.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei ln -s run7 kek:/data/alice/latest\n  renkei ln kek:/data/alice/a.dat kek:/data/alice/b.dat"
)]
pub struct Args {
    /// The target of the link
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// The link: SITE:/STORAGE/PATH or /VOLUME/PATH
    #[arg(value_name = "LINK")]
    link: OsString,
    /// Make a symbolic link
    #[arg(short, long)]
    symbolic: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let (many, mut sessions) = (Many::new(context), FileSessions::new(context));
    let mut make = || -> Result<String, Error> {
        let link = remote(&args.link, context)?;
        let (files, name) = sessions.parent_of(&link)?;
        match args.symbolic {
            true => files.symlink(args.target.as_bytes(), &name)?,
            false => files.link(&target_below(&remote(&args.target, context)?, &link)?, &name)?,
        };
        Ok(format!("{link} -> {}", printable(args.target.as_bytes())))
    };
    let made = make().map_err(|error| error.at("client"))?;
    done("made", vec![made], &many, context)
}

/// The path of a hard link's target, relative to the directory of the new name.
fn target_below(target: &EndpointPath, link: &EndpointPath) -> Result<RelPath, Error> {
    let cause = "the file must be at the same site, in the directory of the link or below";
    let elsewhere = || Error::new(Code::CrossDevice, "link", target, cause);
    let (from, to) = (place(target)?, place(link)?);
    let dir = to.path.parent().unwrap_or_default();
    if target.site != link.site || from.storage != to.storage {
        return Err(elsewhere());
    }
    from.path.below(&dir).ok_or_else(elsewhere)
}
