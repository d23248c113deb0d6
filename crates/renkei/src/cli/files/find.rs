//! `renkei find`: names below places at sites, by name, type, size and time.

use super::du::places;
use super::ls::child;
use super::row::Row;
use crate::cli::Context;
use crate::cli::connect::{site_or_place, unexpected};
use crate::cli::glob;
use crate::cli::many::Many;
use crate::cli::output::{Report, is_reader_gone, print_part};
use renkei_core::entry::{Entry, EntryKind, FileTime};
use renkei_core::error::{Code, Error};
use renkei_core::path::EndpointPath;
use renkei_core::wire::message::{Reply, Request};
use serde::Serialize;
use std::ffi::{CString, OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Find names below places at sites
///
/// Prints each place and all below it for which every test holds, a directory before what is in it. Symbolic links are
/// not followed.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei find /genome --name '*.bam' --size +1G\n  renkei find kek:/data/run7 --type f --newer-than 2d"
)]
pub struct Args {
    /// SITE:/STORAGE/PATH or /VOLUME/PATH; SITE means all its storages and volumes
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// The name alone (also -name), with `*`, `?` and `[...]` as in the shell
    #[arg(long, value_name = "PATTERN", value_parser = clap::builder::OsStringValueParser::new())]
    name: Option<OsString>,
    /// f: files, d: directories, l: symbolic links
    #[arg(long = "type", value_name = "TYPE", value_enum)]
    kind: Option<KindName>,
    /// Files larger than (+1G), smaller than (-10K) or of exactly so many bytes; K, M, G, T are powers of 1024
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_hyphen_values = true)]
    size: Option<Size>,
    /// Only entries modified less than so long ago: 30s, 15m, 12h, 2d
    #[arg(long, value_name = "AGE", value_parser = parse_age)]
    newer_than: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum KindName {
    /// Files
    F,
    /// Directories
    D,
    /// Symbolic links
    L,
}

/// A test of a file's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Over(u64),
    Under(u64),
    Exactly(u64),
}

const SIZES: &str = "write a size as +1G, -10K or 4096";
const AGES: &str = "write an age as 30s, 15m, 12h or 2d";

fn parse_size(text: &str) -> Result<Size, String> {
    let (make, rest): (fn(u64) -> Size, &str) = match text.split_at_checked(1) {
        Some(("+", rest)) => (Size::Over, rest),
        Some(("-", rest)) => (Size::Under, rest),
        _ => (Size::Exactly, text),
    };
    with_unit(rest, &[("K", 1 << 10), ("M", 1 << 20), ("G", 1 << 30), ("T", 1 << 40), ("", 1)])
        .map(make)
        .ok_or_else(|| SIZES.into())
}

fn parse_age(text: &str) -> Result<Duration, String> {
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];
    with_unit(text, &units).map(Duration::from_secs).ok_or_else(|| AGES.into())
}

/// A whole number with the first of these units that fits.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, factor) =
        units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    number.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(*factor)
}

/// Tests that find(1) writes with one dash.
const SHORT_TESTS: [&str; 3] = ["-name", "-type", "-size"];

/// Translates the single-dash tests of find(1) in a `renkei find` command line to this verb's options.
pub(crate) fn translated(mut words: Vec<OsString>) -> Vec<OsString> {
    // Of the global options only `--dir` has a value that is a word of its own.
    let mut before = words.iter().skip(1);
    let verb = loop {
        match before.next() {
            Some(word) if word == "--dir" => drop(before.next()),
            Some(word) if word.as_bytes().starts_with(b"-") => {}
            verb => break verb,
        }
    };
    if verb.is_none_or(|verb| verb != "find") {
        return words;
    }
    for word in &mut words {
        if SHORT_TESTS.iter().any(|test| word == test) {
            *word = [OsStr::new("-"), word].into_iter().collect();
        }
    }
    words
}

/// The tests that an entry must pass.
struct Tests {
    name: Option<CString>,
    kind: Option<KindName>,
    size: Option<Size>,
    since: Option<FileTime>,
}

impl Tests {
    fn new(args: &Args, now: SystemTime) -> Result<Self, Error> {
        let pattern = args.name.as_ref().map(|name| CString::new(name.as_bytes()));
        let name =
            pattern.transpose().map_err(|error| Error::new(Code::UsageInvalid, "find", "--name", error))?;
        let since = |age: Duration| {
            let since = now.duration_since(UNIX_EPOCH).unwrap_or_default().saturating_sub(age);
            FileTime { secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
        };
        Ok(Tests { name, kind: args.kind, size: args.size, since: args.newer_than.map(since) })
    }

    fn hold(&self, name: &[u8], entry: &Entry) -> bool {
        let is_named = self.name.as_deref().is_none_or(|pattern| matches(pattern, name));
        let is_kind = self.kind.is_none_or(|kind| match entry.kind {
            EntryKind::File { .. } | EntryKind::HardLink { .. } => kind == KindName::F,
            EntryKind::Dir => kind == KindName::D,
            EntryKind::Symlink { .. } => kind == KindName::L,
            EntryKind::Special => false,
        });
        let is_file = matches!(entry.kind, EntryKind::File { .. });
        let is_sized = self.size.is_none_or(|size| {
            is_file
                && match size {
                    Size::Over(bytes) => entry.size() > bytes,
                    Size::Under(bytes) => entry.size() < bytes,
                    Size::Exactly(bytes) => entry.size() == bytes,
                }
        });
        is_named && is_kind && is_sized && self.since.is_none_or(|since| entry.meta.mtime >= since)
    }
}

/// Whether a name matches a shell pattern.
fn matches(pattern: &std::ffi::CStr, name: &[u8]) -> bool {
    let Ok(name) = CString::new(name) else { return false };
    // SAFETY: both are C strings that outlive the call.
    unsafe { libc::fnmatch(pattern.as_ptr(), name.as_ptr(), 0) == 0 }
}

#[derive(Serialize)]
struct Listing {
    found: Vec<Row>,
    failures: Vec<serde_json::Value>,
}

/// The output: lines at once, or a list for JSON.
struct Sink {
    json: bool,
    tests: Tests,
    found: Vec<Row>,
    /// Whether places of the own site are shown in short form.
    short: bool,
}

impl Sink {
    fn put(&mut self, path: &EndpointPath, name: &[u8], entry: &Entry) -> Result<(), Error> {
        if !self.tests.hold(name, entry) {
            return Ok(());
        }
        let shown = match (&path.place, self.short) {
            (Some(place), true) => format!("/{}/", place.storage),
            (Some(place), false) => format!("{}:/{}/", path.site, place.storage),
            (None, _) => format!("{}:/", path.site),
        };
        let below = path.place.as_ref().map(|place| place.path.as_bytes()).unwrap_or_default();
        let whole = [shown.as_bytes(), below].concat();
        let row = Row::new(entry, whole.strip_suffix(b"/").unwrap_or(&whole));
        if self.json {
            self.found.push(row);
            return Ok(());
        }
        print_part(format!("{}\n", row.name).as_bytes())
    }
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let mut many = Many::new(context);
    let tests = Tests::new(args, context.now())?;
    let mut sink = Sink { json: context.output.is_json(), tests, found: Vec::new(), short: false };
    many.each_argument(&glob::expanded(&args.paths, context)?, |many, argument| {
        sink.short = argument.as_bytes().starts_with(b"/");
        for path in places(many, &site_or_place(argument, context)?)? {
            find(many, &path, &mut sink)?;
        }
        Ok(())
    })?;
    if sink.json {
        context.output.answer(&Listing { found: sink.found, failures: many.failures().to_vec() })?;
    }
    Ok(many.status())
}

/// Walks a place and all below it; a failure below does not end it.
fn find(many: &mut Many<'_>, top: &EndpointPath, sink: &mut Sink) -> Result<(), Error> {
    let request = if top.trailing_slash { Request::StatDir } else { Request::Stat };
    let entry = match many.ask(&top.site, request(top.place.clone()))? {
        Reply::Entry(entry) => entry,
        other => return Err(unexpected(&other)),
    };
    let name = top.place.as_ref().map(|place| place.path.name().unwrap_or(place.storage.as_bytes()));
    sink.put(top, name.unwrap_or_default(), &entry)?;
    let mut todo = if entry.kind == EntryKind::Dir { vec![top.clone()] } else { Vec::new() };
    while let Some(path) = todo.pop() {
        match list(many, &path, sink) {
            Ok(below) => todo.extend(below),
            Err(error) if is_reader_gone(&error) || path == *top => return Err(error),
            // Removed or replaced since its parent was listed.
            Err(error) if matches!(error.code, Code::PathNotFound | Code::NotADirectory) => {}
            Err(error) => many.fail(path.to_string(), &error),
        }
    }
    Ok(())
}

/// Lists one directory; returns its subdirectories, last first.
fn list(many: &mut Many<'_>, dir: &EndpointPath, sink: &mut Sink) -> Result<Vec<EndpointPath>, Error> {
    let mut entries = Vec::new();
    let session = many.session(&dir.site)?;
    let outcome = session.ask_parts(Request::List(dir.place.clone()), |part| {
        entries.extend(part);
        Ok(())
    });
    many.keep_or_drop(&dir.site, outcome)?;
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    let mut dirs = Vec::new();
    for entry in &entries {
        let path = child(dir, entry.path.as_bytes())?;
        sink.put(&path, entry.path.as_bytes(), entry)?;
        if entry.kind == EntryKind::Dir {
            dirs.push(path);
        }
    }
    dirs.reverse();
    Ok(dirs)
}

impl Report for Listing {
    fn write_text(&self, _: &mut dyn Write) -> io::Result<()> {
        // Lines were printed as they were found.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ages() {
        assert_eq!(parse_size("+1G"), Ok(Size::Over(1 << 30)));
        assert_eq!(parse_size("-10K"), Ok(Size::Under(10 << 10)));
        assert_eq!(parse_size("4096"), Ok(Size::Exactly(4096)));
        for bad in ["", "+", "G", "1X", "1.5G", "+-1", "99999999999T"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_age("2d"), Ok(Duration::from_secs(2 * 86_400)));
        for bad in ["", "2", "d", "2w", "-2d"] {
            assert!(parse_age(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tests_of_find_have_one_dash_too() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let with = words("renkei --json find kek:/data -name *.h5 -type f");
        assert_eq!(translated(with), words("renkei --json find kek:/data --name *.h5 --type f"));
        assert_eq!(translated(words("renkei ls -name")), words("renkei ls -name"));
        let elsewhere = words("renkei --dir find ls -name");
        assert_eq!(translated(elsewhere.clone()), elsewhere);
    }

    #[test]
    fn patterns_match_as_in_the_shell() {
        let fits = |pattern: &str, name: &[u8]| matches(&CString::new(pattern).unwrap(), name);
        assert!(fits("*.bam", b"x.bam") && fits("*.bam", b".bam") && !fits("*.bam", b"x.bai"));
        assert!(fits("run[0-9]", b"run7") && !fits("run[0-9]", b"run70") && fits("?", b"x"));
    }
}
