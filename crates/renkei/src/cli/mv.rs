//! `renkei mv`: renames within one storage of one site; between storages and sites it copies, compares and removes.

use super::Context;
use super::connect::{place, remote, unexpected, written};
use super::done::done;
use super::glob;
use super::many::Many;
use super::transfer::{Common, Job, Verb};
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::path::EndpointPath;
use renkei_core::wire::message::{Existing, ReceiveOptions, Reply, Request};
use std::ffi::OsString;

/// Rename or move at a site, or between sites
///
/// A source goes into DESTINATION if that is a directory and becomes it otherwise; a file that is there is
/// replaced. Within one storage it is a rename. Between storages and sites all is copied and verified, both ends are
/// compared, and then the source is removed: what is interrupted leaves the source, and the same command goes on.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to move: SITE:/STORAGE/PATH
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,
    /// The new name, or the directory to move into
    #[arg(required = true, value_name = "DESTINATION")]
    destination: OsString,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let mut many = Many::new(context);
    let sources = glob::expanded(&args.sources, context)?;
    let destination = remote(&args.destination, context).map_err(|error| error.at("client"))?;
    if sources.len() > 1 || destination.trailing_slash {
        require_dir(&mut many, &destination)?;
    }
    let mut moved = Vec::new();
    many.each(&sources, |many, path| {
        rename(many, path, &destination, context)?;
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

fn rename(
    many: &mut Many<'_>,
    from: &EndpointPath,
    to: &EndpointPath,
    context: &Context,
) -> Result<(), Error> {
    let (source, target) = (place(from)?, place(to)?);
    if from.site != to.site || source.storage != target.storage {
        return carry(many, from, to, context);
    }
    if source == target {
        return Err(Error::new(Code::SameFile, "move", from, ""));
    }
    if target.path.starts_with(&source.path) {
        return Err(Error::new(Code::IntoItself, "move", from, "the destination is inside the source"));
    }
    many.ask_done(&from.site, Request::Rename { from: source, to: target })
}

/// Moves to another storage: copies, compares, removes.
fn carry(
    many: &mut Many<'_>,
    from: &EndpointPath,
    to: &EndpointPath,
    context: &Context,
) -> Result<(), Error> {
    let source = place(from)?;
    if source.path.is_root() {
        return Err(Error::new(Code::UsageInvalid, "move", from, "a storage itself cannot be moved"));
    }
    let slash = if to.trailing_slash { "/" } else { "" };
    let job = Job {
        verb: Verb::Cp,
        sources: vec![written(from, "")],
        destination: written(to, slash),
        recursive: true,
        options: ReceiveOptions::plain(Existing::Replace),
        common: Common::default(),
    };
    if !job.copy_and_compare(context)? {
        let cause =
            "the source changed while it was copied, or has devices, FIFOs or sockets; nothing was removed";
        return Err(Error::new(Code::SourceChanged, "move", from, cause));
    }
    many.ask_done(&from.site, Request::Remove { place: source, recursive: true })
}
