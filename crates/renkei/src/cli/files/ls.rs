//! `renkei ls`: lists directories at sites.
//!
//! A directory is sorted before it is shown, so it is held in memory once; with `-U` its entries are shown as they
//! arrive, and memory does not grow with the directory.

use super::row::{Row, write_long};
use crate::cli::Context;
use crate::cli::connect::{own_site_if_none, site_or_place, unexpected};
use crate::cli::glob;
use crate::cli::many::Many;
use crate::cli::output::{is_reader_gone, print, print_part};
use crate::cli::quantity::Sizes;
use renkei_core::entry::{Entry, EntryKind};
use renkei_core::error::{Code, Error};
use renkei_core::path::{EndpointPath, Place, RelPath};
use renkei_core::wire::message::{Reply, Request};
use std::ffi::OsString;

/// List directories at a site, or its storages
///
/// Names are sorted by their bytes; names with a dot in front are shown with -a. Bytes that are not UTF-8 and
/// control characters are shown as \xNN; --json has the exact bytes.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The directory or file to list: SITE:/STORAGE/PATH, or SITE for its storages [default: your site]
    #[arg(value_name = "PATH")]
    paths: Vec<OsString>,
    /// Show type, permissions, owner, group, size, time and link target
    #[arg(short, long)]
    long: bool,
    /// Show names that begin with a dot, too
    #[arg(short, long, visible_short_alias = 'A')]
    all: bool,
    /// List directories themselves, not their entries
    #[arg(short, long, conflicts_with = "recursive")]
    directory: bool,
    /// List directories below, too; symbolic links are not followed
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Sort by time, newest first
    #[arg(short, conflicts_with_all = ["by_size", "unsorted"])]
    time: bool,
    /// Sort by size, largest first
    #[arg(short = 'S', conflicts_with = "unsorted")]
    by_size: bool,
    /// Do not sort: show entries as they arrive
    #[arg(short = 'U', long)]
    unsorted: bool,
    /// Reverse the order
    #[arg(short, long, conflicts_with = "unsorted")]
    reverse: bool,
    /// One name a line, which is always so
    #[arg(short = '1', hide = true)]
    one: bool,
    #[command(flatten)]
    sizes: Sizes,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let paths = glob::expanded(&own_site_if_none(&args.paths, context)?, context)?;
    let mut many = Many::new(context);
    let mut printer = Printer {
        json: context.output.is_json(),
        long: args.long,
        sizes: args.sizes,
        headers: args.recursive || paths.len() > 1,
        listings: 0,
        entries: 0,
    };
    many.each_argument(&paths, |many, path| list(many, &site_or_place(path, context)?, args, &mut printer))?;
    printer.finish(many.failures())?;
    Ok(many.status())
}

/// Lists one argument: the content of a directory, or else the entry itself.
fn list(many: &mut Many<'_>, path: &EndpointPath, args: &Args, printer: &mut Printer) -> Result<(), Error> {
    if args.directory {
        return show_one(stat(many, path)?, path, printer);
    }
    // As ls -l does: a link named without a slash is shown, not followed.
    if args.long && !path.trailing_slash && path.place.is_some() {
        let entry = stat(many, path)?;
        if entry.kind != EntryKind::Dir {
            return show_one(entry, path, printer);
        }
    }
    match list_tree(many, path, args, printer) {
        Err(error) if error.code == Code::NotADirectory && !path.trailing_slash => {
            let entry = stat(many, path)?;
            show_one(entry, path, printer)
        }
        outcome => outcome,
    }
}

fn stat(many: &mut Many<'_>, path: &EndpointPath) -> Result<Entry, Error> {
    match many.ask(&path.site, Request::Stat(path.place.clone()))? {
        Reply::Entry(entry) => Ok(entry),
        other => Err(unexpected(&other)),
    }
}

fn show_one(entry: Entry, path: &EndpointPath, printer: &mut Printer) -> Result<(), Error> {
    let name = match &path.place {
        Some(place) => {
            [format!("{}:/{}/", path.site, place.storage).as_bytes(), place.path.as_bytes()].concat()
        }
        None => format!("{}:/", path.site).into_bytes(),
    };
    let name = if path.trailing_slash { &name[..] } else { name.strip_suffix(b"/").unwrap_or(&name) };
    printer.begin(path, false)?;
    printer.entries(&[Row::new(&entry, name)])?;
    printer.end()
}

/// Lists a directory and, with `-R`, those below; a failure below does not end the listing.
fn list_tree(
    many: &mut Many<'_>,
    top: &EndpointPath,
    args: &Args,
    printer: &mut Printer,
) -> Result<(), Error> {
    let mut todo = list_one(many, top, args, printer)?;
    while let Some(path) = todo.pop() {
        match list_one(many, &path, args, printer) {
            Ok(below) => todo.extend(below),
            // Removed or replaced since its parent was listed.
            Err(error) if matches!(error.code, Code::PathNotFound | Code::NotADirectory) => {}
            Err(error) if is_reader_gone(&error) => return Err(error),
            Err(error) => many.fail(path.to_string(), &error),
        }
    }
    Ok(())
}

/// Lists one directory; returns its subdirectories, last first, if they are to be listed too.
fn list_one(
    many: &mut Many<'_>,
    path: &EndpointPath,
    args: &Args,
    printer: &mut Printer,
) -> Result<Vec<EndpointPath>, Error> {
    let (mut rows, mut below, mut begun) = (Vec::new(), Vec::new(), false);
    let unsorted = args.unsorted && path.place.is_some();
    let on_part = |entries: Vec<Entry>| {
        let part = entries.iter().filter(|entry| args.all || !is_hidden(entry));
        let part: Vec<Row> = part.map(|entry| Row::new(entry, entry.path.as_bytes())).collect();
        if args.recursive {
            below.extend(part.iter().filter(|row| row.kind == "directory").map(|row| row.raw_name.clone()));
        }
        if !unsorted {
            rows.extend(part);
            return Ok(());
        }
        if !std::mem::replace(&mut begun, true) {
            printer.begin(path, true)?;
        }
        printer.entries(&part)
    };
    let session = many.session(&path.site)?;
    let outcome = session.ask_parts(Request::List(path.place.clone()), on_part);
    many.keep_or_drop(&path.site, outcome)?;
    if !unsorted {
        if path.place.is_none() && (args.long || args.time) {
            look_at_storages(many, path, &mut rows)?;
        }
        sort(&mut rows, args);
        printer.begin(path, true)?;
        printer.entries(&rows)?;
        below = below_in_order(&rows, args.recursive);
    } else if !begun {
        printer.begin(path, true)?;
    }
    printer.end()?;
    below.iter().rev().map(|name| child(path, name)).collect()
}

/// A site lists its storages by name alone; their attributes are fetched one by one, for display and sorting.
fn look_at_storages(many: &mut Many<'_>, root: &EndpointPath, rows: &mut [Row]) -> Result<(), Error> {
    for row in rows {
        let storage = child(root, &row.raw_name)?;
        if let Ok(Reply::Entry(entry)) = many.ask(&root.site, Request::StatDir(storage.place)) {
            *row = Row::new(&entry, &row.raw_name);
        }
    }
    Ok(())
}

fn is_hidden(entry: &Entry) -> bool {
    entry.path.as_bytes().first() == Some(&b'.')
}

fn below_in_order(rows: &[Row], wanted: bool) -> Vec<Vec<u8>> {
    let dirs = rows.iter().filter(|row| wanted && row.kind == "directory");
    dirs.map(|row| row.raw_name.clone()).collect()
}

fn sort(rows: &mut [Row], args: &Args) {
    rows.sort_by(|a, b| {
        let first = match (args.time, args.by_size) {
            (true, _) => b.time.cmp(&a.time),
            (_, true) => b.size.cmp(&a.size),
            _ => std::cmp::Ordering::Equal,
        };
        first.then_with(|| a.raw_name.cmp(&b.raw_name))
    });
    if args.reverse {
        rows.reverse();
    }
}

/// The place of a name in a directory; in a site's root the names are storages.
pub(crate) fn child(path: &EndpointPath, name: &[u8]) -> Result<EndpointPath, Error> {
    let place = match &path.place {
        Some(place) => Place { storage: place.storage.clone(), path: place.path.child(name)? },
        None => Place { storage: String::from_utf8_lossy(name).into_owned(), path: RelPath::root() },
    };
    Ok(EndpointPath { site: path.site.clone(), place: Some(place), trailing_slash: false })
}

/// Prints listings as they arrive: text, or the parts of one JSON object.
struct Printer {
    json: bool,
    long: bool,
    sizes: Sizes,
    headers: bool,
    listings: usize,
    entries: usize,
}

impl Printer {
    fn begin(&mut self, path: &EndpointPath, directory: bool) -> Result<(), Error> {
        let first = self.listings == 0;
        self.listings += 1;
        self.entries = 0;
        let text = match self.json {
            true => {
                let path = serde_json::Value::from(path.to_string());
                let start = if first { "{\"listings\":[" } else { "," };
                format!("{start}{{\"path\":{path},\"directory\":{directory},\"entries\":[")
            }
            false if self.headers && directory => {
                format!("{}{path}:\n", if first { "" } else { "\n" })
            }
            false => return Ok(()),
        };
        print_part(text.as_bytes())
    }

    fn entries(&mut self, rows: &[Row]) -> Result<(), Error> {
        let mut text = Vec::new();
        let written = match (self.json, self.long) {
            (true, _) => rows.iter().try_for_each(|row| {
                if self.entries > 0 {
                    text.push(b',');
                }
                self.entries += 1;
                serde_json::to_writer(&mut text, row).map_err(std::io::Error::from)
            }),
            (false, true) => write_long(rows, self.sizes, &mut text),
            (false, false) => {
                rows.iter().for_each(|row| text.extend_from_slice(format!("{}\n", row.name).as_bytes()));
                Ok(())
            }
        };
        written.map_err(|error| Error::new(Code::IoFailed, "print", "", error))?;
        print_part(&text)
    }

    fn end(&self) -> Result<(), Error> {
        if self.json { print_part(b"]}") } else { Ok(()) }
    }

    fn finish(&self, failures: &[serde_json::Value]) -> Result<(), Error> {
        if !self.json {
            return Ok(());
        }
        let start = if self.listings == 0 { "{\"listings\":[" } else { "" };
        let failures = serde_json::Value::from(failures);
        print(format!("{start}],\"failures\":{failures}}}\n").as_bytes())
    }
}
