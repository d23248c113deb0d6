//! `renkei stat`: all attributes of one path.

use super::row::{Row, hex_unless_plain};
use crate::cli::connect::unexpected;
use crate::cli::glob;
use crate::cli::many::Many;
use crate::cli::output::Report;
use crate::cli::{Context, time};
use renkei_core::entry::{Entry, EntryKind, Xattr};
use renkei_core::error::Error;
use renkei_core::path::{EndpointPath, printable};
use renkei_core::wire::message::{Reply, Request};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, Write};

/// Show everything about a path at a site; a symbolic link is shown itself
#[derive(Debug, clap::Args)]
pub struct Args {
    /// SITE:/STORAGE/PATH
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

#[derive(Serialize)]
struct Shown {
    path: String,
    #[serde(flatten)]
    row: Row,
    inode: Option<u64>,
    ctime: Option<String>,
    sparse: bool,
    xattrs: Vec<Attribute>,
}

#[derive(Serialize)]
struct Attribute {
    name: String,
    value: String,
    value_hex: Option<String>,
}

#[derive(Serialize)]
struct Listing {
    entries: Vec<Shown>,
    failures: Vec<serde_json::Value>,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let mut many = Many::new(context);
    let mut entries = Vec::new();
    many.each(&glob::expanded(&args.paths, context)?, |many, path| {
        // With a slash the directory behind a link is meant.
        let request = if path.trailing_slash { Request::StatDir } else { Request::Stat };
        match many.ask(&path.site, request(path.place.clone()))? {
            Reply::Entry(entry) => entries.push(Shown::new(path, &entry)),
            other => return Err(unexpected(&other)),
        }
        Ok(())
    })?;
    context.output.answer(&Listing { entries, failures: many.failures().to_vec() })?;
    Ok(many.status())
}

impl Shown {
    fn new(path: &EndpointPath, entry: &Entry) -> Self {
        let name = path.place.as_ref().map(|place| place.path.name().unwrap_or(place.storage.as_bytes()));
        let (stamp, sparse) = match &entry.kind {
            EntryKind::File { stamp, sparse } => (Some(stamp), *sparse),
            _ => (None, false),
        };
        Shown {
            path: path.to_string(),
            row: Row::new(entry, name.unwrap_or_default()),
            inode: stamp.map(|stamp| stamp.ino),
            ctime: stamp.map(|stamp| time::utc(stamp.ctime)),
            sparse,
            xattrs: entry.meta.xattrs.iter().map(attribute).collect(),
        }
    }
}

fn attribute(xattr: &Xattr) -> Attribute {
    let value_hex = hex_unless_plain(&xattr.value);
    Attribute { name: printable(&xattr.name), value: printable(&xattr.value), value_hex }
}

impl Report for Listing {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for (index, shown) in self.entries.iter().enumerate() {
            if index > 0 {
                writeln!(out)?;
            }
            shown.write_text(out)?;
        }
        Ok(())
    }
}

impl Shown {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let (row, (owner, group)) = (&self.row, self.row.owners());
        writeln!(out, "path      {}{}", self.path, row.arrow())?;
        writeln!(out, "type      {}{}", row.kind, if self.sparse { ", with holes" } else { "" })?;
        writeln!(out, "size      {}", row.size)?;
        writeln!(out, "mode      {} {}", row.mode(), row.mode_text())?;
        writeln!(out, "owner     {owner}\ngroup     {group}")?;
        let nanos = format!("%Y-%m-%d %H:%M:%S.{:09} %z", row.time.nanos);
        writeln!(out, "modified  {}", time::local(row.time, &nanos))?;
        for Attribute { name, value, .. } in &self.xattrs {
            writeln!(out, "attribute {name} = {value}")?;
        }
        Ok(())
    }
}
