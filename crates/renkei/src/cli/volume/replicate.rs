//! `renkei replicate`, and shared code of `evict` and `verify`.

use crate::cli::Context;
use crate::cli::connect::{place, unexpected};
use crate::cli::glob;
use crate::cli::many::Many;
use crate::cli::output::Report;
use crate::cli::quantity::{counted, human};
use renkei_core::error::Error;
use renkei_core::path::{EndpointPath, Place, SiteName};
use renkei_core::wire::message::{Reply, Request};
use renkei_core::wire::volume::{AboutVolume, Tally, VolumeReply};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, Write};

/// Have a site that follows a volume hold replicas of files, and of all files below directories
///
/// The site must have subscribed with --storage. What it holds already in the version of now is not sent again. Stop it with
/// Ctrl-C: what has arrived stays, and the same command goes on from there.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    which: Which,
}

/// Which replicas.
#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    /// SITE:/VOLUME/PATH or /VOLUME/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// The site that holds the replicas; else the one that PATH names
    #[arg(long = "to", visible_alias = "at", value_name = "SITE")]
    site: Option<String>,
}

#[derive(Serialize)]
struct Row {
    path: String,
    files: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Outcome {
    replicas: Vec<Row>,
    failures: Vec<serde_json::Value>,
    #[serde(skip)]
    done: &'static str,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    each(&args.which, "held", context, AboutVolume::Replicate)
}

/// Requests an action on the replicas of each path, and reports the results.
pub(crate) fn each(
    which: &Which,
    done: &'static str,
    context: &Context,
    about: impl Fn(Place) -> AboutVolume,
) -> Result<u8, Error> {
    let (mut many, mut replicas) = (Many::new(context), Vec::new());
    many.each(&glob::expanded(&which.paths, context)?, |many, path| {
        let path = which.at(path)?;
        let tally = match ask(many, &path, about(place(&path)?))? {
            VolumeReply::Tally(tally) => tally,
            other => return Err(unexpected(&Reply::Volume(other))),
        };
        tell_failures(many, &tally);
        replicas.push(Row { path: path.to_string(), files: tally.files, bytes: tally.bytes });
        Ok(())
    })?;
    let failures = many.failures().to_vec();
    context.output.answer(&Outcome { replicas, failures, done })?;
    Ok(many.status())
}

impl Which {
    fn at(&self, path: &EndpointPath) -> Result<EndpointPath, Error> {
        let site = self.site.as_deref().map_or_else(|| Ok(path.site.clone()), SiteName::parse)?;
        Ok(EndpointPath { site, ..path.clone() })
    }
}

/// Sends a request about a volume to a site.
pub(crate) fn ask(
    many: &mut Many<'_>,
    path: &EndpointPath,
    about: AboutVolume,
) -> Result<VolumeReply, Error> {
    match many.ask(&path.site, Request::Volume(about))? {
        Reply::Volume(reply) => Ok(reply),
        other => Err(unexpected(&other)),
    }
}

fn tell_failures(many: &mut Many<'_>, tally: &Tally) {
    for failure in &tally.failures {
        many.fail(failure.path.to_string(), &failure.error);
    }
}

impl Report for Outcome {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.replicas.iter().try_for_each(|row| {
            let size = human(row.bytes);
            let files = counted(row.files, "file", "files");
            writeln!(out, "{}: {files}, {size} {}", row.path, self.done)
        })
    }
}
