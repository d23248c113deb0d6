//! `renkei df`: the space in the storages of sites.

use super::du::places;
use crate::cli::Context;
use crate::cli::connect::{own_site_if_none, place, site_or_place, unexpected};
use crate::cli::many::Many;
use crate::cli::output::Report;
use crate::cli::quantity::Sizes;
use renkei_core::error::{Code, Error};
use renkei_core::path::{EndpointPath, Place};
use renkei_core::wire::message::{Reply, Request, Space};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, Write};

/// Show the room in storages
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// SITE for all its storages, or SITE:/STORAGE/PATH for what PATH is on [default: your site]
    #[arg(value_name = "SITE[:/PATH]")]
    paths: Vec<OsString>,
    #[command(flatten)]
    sizes: Sizes,
}

#[derive(Serialize)]
struct Row {
    path: String,
    total_bytes: u64,
    used_bytes: u64,
    available_bytes: u64,
    total_files: u64,
    free_files: u64,
}

#[derive(Serialize)]
struct Listing {
    storages: Vec<Row>,
    failures: Vec<serde_json::Value>,
    #[serde(skip)]
    sizes: Sizes,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let paths = own_site_if_none(&args.paths, context)?;
    let mut many = Many::new(context);
    let mut storages = Vec::new();
    many.each_argument(&paths, |many, argument| {
        let path = site_or_place(argument, context)?;
        if path.place.is_some() {
            storages.push(row(&path, &space(many, &path)?));
            return Ok(());
        }
        for path in places(many, &path)? {
            match space(many, &path) {
                Ok(space) => storages.push(row(&path, &space)),
                // One unmounted storage does not hide the others.
                Err(error) => many.fail(path.to_string(), &error),
            }
        }
        Ok(())
    })?;
    let failures = many.failures().to_vec();
    context.output.answer(&Listing { storages, failures, sizes: args.sizes })?;
    Ok(many.status())
}

/// The space where a path is; for a file, that of its directory.
fn space(many: &mut Many<'_>, path: &EndpointPath) -> Result<Space, Error> {
    let place = place(path)?;
    let parent = place.path.parent().filter(|_| !path.trailing_slash);
    let outcome = match (many.ask(&path.site, Request::Space(place.clone())), parent) {
        (Err(error), Some(parent)) if error.code == Code::NotADirectory => {
            many.ask(&path.site, Request::Space(Place { path: parent, ..place }))
        }
        (outcome, _) => outcome,
    };
    match outcome? {
        Reply::Space(space) => Ok(space),
        other => Err(unexpected(&other)),
    }
}

fn row(path: &EndpointPath, space: &Space) -> Row {
    Row {
        path: path.to_string(),
        total_bytes: space.total_bytes,
        used_bytes: space.total_bytes.saturating_sub(space.available_bytes),
        available_bytes: space.available_bytes,
        total_files: space.total_files,
        free_files: space.free_files,
    }
}

impl Report for Listing {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let text = |bytes| self.sizes.text(bytes);
        writeln!(
            out,
            "{:>16} {:>16} {:>16} {:>4} {:>12}  STORAGE",
            "SIZE", "USED", "AVAIL", "USE%", "INODES FREE"
        )?;
        for row in &self.storages {
            let (total, used) = (text(row.total_bytes), text(row.used_bytes));
            let percent = (row.used_bytes as f64 * 100.0 / row.total_bytes.max(1) as f64).ceil();
            let available = text(row.available_bytes);
            writeln!(
                out,
                "{total:>16} {used:>16} {available:>16} {percent:>3}% {:>12}  {}",
                row.free_files, row.path
            )?;
        }
        Ok(())
    }
}
