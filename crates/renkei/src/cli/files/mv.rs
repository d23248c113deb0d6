//! `renkei mv`: renames within one storage of one site; between storages, sites and this machine it copies, compares
//! and removes.

use super::done::done;
use crate::cli::Context;
use crate::cli::connect::{place, remote, unexpected, written};
use crate::cli::copy::copy_plan::Spec;
use crate::cli::copy::options::{Common, Verb};
use crate::cli::copy::transfer::Job;
use crate::cli::glob;
use crate::cli::many::Many;
use renkei_config::home::file_error;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::path::EndpointPath;
use renkei_core::wire::message::{Existing, ReceiveOptions, Reply, Request};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Rename or move at a site, between sites, and between a site and this machine
///
/// A source goes into DESTINATION if that is a directory and becomes it otherwise; a file that is there is
/// replaced. Within one storage it is a rename. Between storages, sites and this machine all is copied and verified, both ends
/// are compared, and then the source is removed: an interrupted move leaves the source, and the same command resumes it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The source: SITE:/STORAGE/PATH, or a path of this machine
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<OsString>,
    /// The new name, or the directory to move into
    #[arg(required = true, value_name = "DESTINATION")]
    destination: OsString,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let mut many = Many::new(context);
    let sources = glob::expanded(&args.sources, context)?;
    let all = [&*sources, std::slice::from_ref(&args.destination)].concat();
    let parse = |argument: &OsString| parse(argument, &all, context);
    let destination = parse(&args.destination).map_err(|error| error.at("client"))?;
    let has_slash = match &destination {
        Spec::Local { slash, .. } => *slash,
        Spec::Remote(path) => path.trailing_slash,
    };
    if sources.len() > 1 || has_slash {
        require_dir(&mut many, &destination)?;
    }
    let mut moved = Vec::new();
    many.each_argument(&sources, |many, argument| {
        let source = parse(argument)?;
        rename(many, &source, &destination, context)?;
        moved.push(source.shown());
        Ok(())
    })?;
    done("moved", moved, &many, context)
}

/// Parses an argument: local files take precedence, as for `cp`. If no argument is at a site all are: local files are
/// not moved among themselves.
fn parse(argument: &OsString, all: &[OsString], context: &Context) -> Result<Spec, Error> {
    let at_site = |argument: &OsString| is_at_site(argument.as_bytes());
    match at_site(argument) || !all.iter().any(at_site) {
        true => remote(argument, context).map(Spec::Remote),
        false => Spec::parse_as(argument, |_| Ok(None)),
    }
}

fn is_at_site(argument: &[u8]) -> bool {
    match argument.strip_prefix(b"/") {
        Some(below) => {
            let first = below.split(|&byte| byte == b'/').next().unwrap_or_default();
            Path::new("/").join(OsStr::from_bytes(first)).symlink_metadata().is_err()
        }
        None => !matches!(EndpointPath::parse(argument), Ok(None)),
    }
}

fn require_dir(many: &mut Many<'_>, destination: &Spec) -> Result<(), Error> {
    let is_dir = match destination {
        Spec::Local { path, .. } => path.is_dir(),
        Spec::Remote(path) => match many.ask(&path.site, Request::StatDir(Some(place(path)?)))? {
            Reply::Entry(entry) => entry.kind == EntryKind::Dir,
            other => return Err(unexpected(&other)),
        },
    };
    match is_dir {
        true => Ok(()),
        false => Err(Error::new(
            Code::NotADirectory,
            "move",
            destination.shown(),
            "the destination is no directory",
        )),
    }
}

fn rename(many: &mut Many<'_>, from: &Spec, to: &Spec, context: &Context) -> Result<(), Error> {
    let (Spec::Remote(from_path), Spec::Remote(to_path)) = (from, to) else {
        return carry(many, from, to, context);
    };
    let (source, target) = (place(from_path)?, place(to_path)?);
    if from_path.site != to_path.site || source.storage != target.storage {
        return carry(many, from, to, context);
    }
    if source == target {
        return Err(Error::new(Code::SameFile, "move", from_path, ""));
    }
    if target.path.starts_with(&source.path) {
        return Err(Error::new(Code::IntoItself, "move", from_path, "the destination is inside the source"));
    }
    many.ask_done(&from_path.site, Request::Rename { from: source, to: target })
}

/// Moves to another storage, or from or to this machine: copies, compares, removes.
fn carry(many: &mut Many<'_>, from: &Spec, to: &Spec, context: &Context) -> Result<(), Error> {
    let whole = |what: &str| Error::new(Code::UsageInvalid, "move", from.shown(), what);
    let source = match from {
        Spec::Remote(path) if place(path)?.path.is_root() => {
            return Err(whole("a storage itself cannot be moved"));
        }
        Spec::Remote(path) => written(path, ""),
        // Without the slash, which would mean its contents.
        Spec::Local { path, .. } if path.file_name().is_none() => {
            return Err(whole("name the directory: `.`, `..` and `/` cannot be moved"));
        }
        Spec::Local { path, .. } => without_slash(path).into_os_string(),
    };
    let destination = match to {
        Spec::Remote(path) => written(path, if path.trailing_slash { "/" } else { "" }),
        Spec::Local { path, .. } => path.clone().into_os_string(),
    };
    let job = Job {
        verb: Verb::Cp,
        sources: vec![source],
        destination,
        recursive: true,
        options: ReceiveOptions::plain(Existing::Replace),
        common: Common::default(),
    };
    if !job.copy_and_compare(context)? {
        let cause =
            "the source changed while it was copied, or has devices, FIFOs or sockets; nothing was removed";
        return Err(Error::new(Code::SourceChanged, "move", from.shown(), cause));
    }
    match from {
        Spec::Remote(path) => {
            many.ask_done(&path.site, Request::Remove { place: place(path)?, recursive: true })
        }
        Spec::Local { path, .. } => remove(&without_slash(path)),
    }
}

fn without_slash(path: &Path) -> PathBuf {
    path.components().collect()
}

fn remove(path: &Path) -> Result<(), Error> {
    let removed = path.symlink_metadata().and_then(|found| match found.is_dir() {
        true => std::fs::remove_dir_all(path),
        false => std::fs::remove_file(path),
    });
    removed.map_err(|error| file_error("remove", path, &error))
}
