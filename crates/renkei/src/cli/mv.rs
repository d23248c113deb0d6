//! `renkei mv`: renames within one storage of one site.

use super::Context;
use super::connect::{place, remote, unexpected};
use super::done::done;
use super::many::Many;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::path::EndpointPath;
use renkei_core::wire::message::{Reply, Request};
use std::ffi::OsString;

/// Rename or move within one storage of a site
///
/// A source goes into DESTINATION if that is a directory and becomes it otherwise; a file that is there is
/// replaced. Between storages or sites use `renkei cp`, then `renkei rm`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to move: SITE:/STORAGE/PATH
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,
    /// The new name, or the directory to move into; same site and storage
    #[arg(required = true, value_name = "DESTINATION")]
    destination: OsString,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let mut many = Many::new(context);
    let destination = remote(&args.destination, context).map_err(|error| error.at("client"))?;
    if args.sources.len() > 1 || destination.trailing_slash {
        require_dir(&mut many, &destination)?;
    }
    let mut moved = Vec::new();
    many.each(&args.sources, |many, path| {
        rename(many, path, &destination)?;
        moved.push(path.to_string());
        Ok(())
    })?;
    done("moved", moved, &many, context)
}

fn require_dir(many: &mut Many<'_>, path: &EndpointPath) -> Result<(), Error> {
    match many.ask(&path.site, Request::StatDir(Some(place(path)?)))? {
        Reply::Entry(entry) if entry.kind == EntryKind::Dir => Ok(()),
        Reply::Entry(_) => Err(Error::new(Code::NotADirectory, "move", path, "the destination is a file")),
        other => Err(unexpected(&other)),
    }
}

fn rename(many: &mut Many<'_>, from: &EndpointPath, to: &EndpointPath) -> Result<(), Error> {
    if from.site != to.site {
        let cause = format!("{from} and {to} are at different sites");
        return Err(Error::new(Code::CrossDevice, "move", from, cause));
    }
    let (source, target) = (place(from)?, place(to)?);
    if source == target {
        return Err(Error::new(Code::SameFile, "move", from, ""));
    }
    if source.storage == target.storage && target.path.starts_with(&source.path) {
        return Err(Error::new(Code::IntoItself, "move", from, "the destination is inside the source"));
    }
    many.ask_done(&from.site, Request::Rename { from: source, to: target })
}
