//! `renkei where`: the sites that have files of a volume.

use super::replica_status::write_kept;
use super::replicate::ask;
use crate::cli::Context;
use crate::cli::connect::{place, unexpected};
use crate::cli::glob;
use crate::cli::many::Many;
use crate::cli::output::Report;
use crate::cli::quantity::human;
use renkei_core::error::Error;
use renkei_core::path::SiteName;
use renkei_core::wire::message::Reply;
use renkei_core::wire::volume::{AboutVolume, Kept, Tally, VolumeReply, Whereabouts};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, Write};

/// Show which sites have the files of a volume: its home, and those that hold replicas
///
/// Each site is asked for itself. One that does not answer is told with the reason; while the home is away, only what the site that
/// was asked holds is known.
#[derive(Debug, clap::Args)]
#[command(name = "where")]
pub struct Args {
    /// SITE:/VOLUME/PATH or /VOLUME/PATH; a directory stands for all files below it
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

#[derive(Serialize)]
struct Row {
    path: String,
    site: SiteName,
    /// `home` or `replica`.
    role: &'static str,
    files: u64,
    bytes: u64,
    of_files: u64,
    of_bytes: u64,
}

#[derive(Serialize)]
struct ReplicaLocations {
    replicas: Vec<Row>,
    /// If the home was asked: how the policies of folders are fulfilled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kept: Vec<Kept>,
    failures: Vec<serde_json::Value>,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let (mut many, mut replicas, mut kept) = (Many::new(context), Vec::new(), Vec::new());
    many.each(&glob::expanded(&args.paths, context)?, |many, path| {
        match ask(many, path, AboutVolume::Where(place(path)?))? {
            VolumeReply::Whereabouts(found) => {
                replicas.extend(rows(&path.to_string(), &found));
                kept.extend(found.kept.clone());
                for (site, error) in
                    found.others.iter().filter_map(|(site, has)| Some((site, has.as_ref().err()?)))
                {
                    many.fail(site.to_string(), error);
                }
            }
            other => return Err(unexpected(&Reply::Volume(other))),
        }
        Ok(())
    })?;
    let failures = many.failures().to_vec();
    context.output.answer(&ReplicaLocations { replicas, kept, failures })?;
    Ok(many.status())
}

fn rows(path: &str, found: &Whereabouts) -> Vec<Row> {
    let row = |site: &SiteName, role, has: &Tally| Row {
        path: path.into(),
        site: site.clone(),
        role,
        files: has.files,
        bytes: has.bytes,
        of_files: found.all.files,
        of_bytes: found.all.bytes,
    };
    let at_home = found.others.iter().find(|(site, _)| *site == found.home);
    let at_home = at_home.and_then(|(_, has)| has.as_ref().ok()).unwrap_or(&found.all);
    let mut rows = vec![row(&found.home, "home", at_home)];
    if found.here != found.home {
        rows.push(row(&found.here, "replica", &found.held));
    }
    let others = found.others.iter().filter(|(site, _)| *site != found.home);
    let known = others.filter_map(|(site, has)| Some((site, has.as_ref().ok()?)));
    rows.extend(known.map(|(site, has)| row(site, "replica", has)));
    rows
}

impl Report for ReplicaLocations {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{:<16} {:<8} {:>21} {:>22}  PATH", "SITE", "ROLE", "FILES", "BYTES")?;
        self.replicas.iter().try_for_each(|row| {
            let of = |has: u64, all: u64, size: fn(u64) -> String| format!("{} of {}", size(has), size(all));
            let files = of(row.files, row.of_files, |count| count.to_string());
            let bytes = of(row.bytes, row.of_bytes, human);
            writeln!(out, "{:<16} {:<8} {files:>21} {bytes:>22}  {}", row.site.as_str(), row.role, row.path)
        })?;
        write_kept(&self.kept, out)
    }
}
