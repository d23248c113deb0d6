//! `renkei du`: the space used by trees at sites.

use super::ls::child;
use crate::cli::Context;
use crate::cli::connect::{place, site_or_place, unexpected};
use crate::cli::glob;
use crate::cli::many::Many;
use crate::cli::output::Report;
use crate::cli::quantity::Sizes;
use renkei_core::error::Error;
use renkei_core::path::EndpointPath;
use renkei_core::wire::message::{Reply, Request, Usage};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, Write};

/// Show the size of trees at a site: bytes of content, each hard-linked file once
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// SITE:/STORAGE/PATH; SITE means each of its storages
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Show bytes on disk, files and directories, too
    #[arg(short, long)]
    long: bool,
    /// Only the total of each path, which is always so
    #[arg(short, hide = true)]
    summarize: bool,
    #[command(flatten)]
    sizes: Sizes,
}

#[derive(Serialize)]
struct Row {
    path: String,
    bytes: u64,
    allocated_bytes: u64,
    files: u64,
    dirs: u64,
}

#[derive(Serialize)]
struct Listing {
    usage: Vec<Row>,
    failures: Vec<serde_json::Value>,
    #[serde(skip)]
    sizes: Sizes,
    #[serde(skip)]
    long: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let mut many = Many::new(context);
    let mut usage = Vec::new();
    many.each_argument(&glob::expanded(&args.paths, context)?, |many, argument| {
        for path in places(many, &site_or_place(argument, context)?)? {
            match many.ask(&path.site, Request::Usage(place(&path)?))? {
                Reply::Usage(used) => usage.push(row(&path, &used)),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(())
    })?;
    let failures = many.failures().to_vec();
    context.output.answer(&Listing { usage, failures, sizes: args.sizes, long: args.long })?;
    Ok(many.status())
}

/// The place, or for a site's root each of its storages.
pub(crate) fn places(many: &mut Many<'_>, path: &EndpointPath) -> Result<Vec<EndpointPath>, Error> {
    if path.place.is_some() {
        return Ok(vec![path.clone()]);
    }
    let mut places = Vec::new();
    let session = many.session(&path.site)?;
    let outcome = session.ask_parts(Request::List(None), |entries| {
        for entry in entries {
            places.push(child(path, entry.path.as_bytes())?);
        }
        Ok(())
    });
    many.keep_or_drop(&path.site, outcome)?;
    Ok(places)
}

fn row(path: &EndpointPath, used: &Usage) -> Row {
    let Usage { bytes, allocated_bytes, files, dirs } = *used;
    Row { path: path.to_string(), bytes, allocated_bytes, files, dirs }
}

impl Report for Listing {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let text = |bytes| self.sizes.text(bytes);
        if !self.long {
            return self.usage.iter().try_for_each(|row| writeln!(out, "{}\t{}", text(row.bytes), row.path));
        }
        writeln!(out, "{:>14} {:>14} {:>10} {:>10}  PATH", "BYTES", "ON DISK", "FILES", "DIRS")?;
        for row in &self.usage {
            let (bytes, allocated) = (text(row.bytes), text(row.allocated_bytes));
            writeln!(out, "{bytes:>14} {allocated:>14} {:>10} {:>10}  {}", row.files, row.dirs, row.path)?;
        }
        Ok(())
    }
}
