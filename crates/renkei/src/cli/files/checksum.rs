//! `renkei checksum`: digests of files at sites and here, as `b3sum` and `sha256sum` print them.
//!
//! A line is `HEX  PATH`. As those programs do, a path with a newline or backslash is escaped and the line begins
//! with a backslash; other bytes are printed as they are, so that the output is a manifest their `-c` can check.

use super::local_tree;
use super::ls::child;
use super::row::hex_unless_plain;
use crate::cli::Context;
use crate::cli::connect::{place, unexpected};
use crate::cli::glob;
use crate::cli::many::Many;
use crate::cli::output::{Report, print_part};
use crate::cli::volume_path::Namespace;
use renkei_core::entry::{Entry, EntryKind};
use renkei_core::error::{Code, Error};
use renkei_core::path::{EndpointPath, RelPath, printable};
use renkei_core::wire::message::{Algorithm, Reply, Request};
use renkei_core::wire::volume::{AboutVolume, VolumeReply};
use renkei_mover::hex;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Batch of files per digest request.
const BATCH_FILES: usize = 1024;

/// Print digests of files, as b3sum and sha256sum do
///
/// With -r the paths are relative to the tree (with several trees: to their parents), so that the output can be
/// checked in a copy of it: renkei checksum -r kek:/data/run7 > m; cd run7; b3sum -c ../m
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files: SITE:/STORAGE/PATH or local paths
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
    /// Which digest
    #[arg(short, long, value_enum, default_value_t = Digest::Blake3)]
    algorithm: Digest,
    /// Every file in directories and below; symbolic links are passed over
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Digests that are known of the present content, without reading it: BLAKE3 in volumes, the checksums that the site
    /// remembers (`checksums` in config.toml), and those that were asked for before
    #[arg(long)]
    known: bool,
}

/// The digests, as options name them.
#[derive(Clone, Copy, Debug, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Digest {
    Blake3,
    Sha256,
    Md5,
    Adler32,
    Crc32c,
}

impl From<Digest> for Algorithm {
    fn from(digest: Digest) -> Self {
        match digest {
            Digest::Blake3 => Algorithm::Blake3,
            Digest::Sha256 => Algorithm::Sha256,
            Digest::Md5 => Algorithm::Md5,
            Digest::Adler32 => Algorithm::Adler32,
            Digest::Crc32c => Algorithm::Crc32c,
        }
    }
}

#[derive(Serialize)]
struct Line {
    path: String,
    path_hex: Option<String>,
    digest: String,
}

#[derive(Serialize)]
struct Listing {
    algorithm: Digest,
    files: Vec<Line>,
    failures: Vec<serde_json::Value>,
}

/// The output: lines at once, or a list for JSON.
struct Sink {
    json: bool,
    files: Vec<Line>,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let mut many = Many::new(context);
    let mut sink = Sink { json: context.output.is_json(), files: Vec::new() };
    let mut namespace = Namespace::new(context);
    many.each_argument(&glob::expanded(&args.paths, context)?, |many, argument| {
        match namespace.endpoint(argument)? {
            Some(path) if args.recursive => remote_tree(many, &path, args, &mut sink),
            Some(path) => {
                let reply = many.ask(&path.site, request(&path, args)?)?;
                sink.put(argument.as_bytes(), &digest_of(reply)?)
            }
            None => local(many, argument, args, &mut sink),
        }
    })?;
    if sink.json {
        let failures = many.failures().to_vec();
        context.output.answer(&Listing { algorithm: args.algorithm, files: sink.files, failures })?;
    }
    Ok(many.status())
}

fn request(path: &EndpointPath, args: &Args) -> Result<Request, Error> {
    if args.known {
        return Ok(match args.algorithm {
            // PoPs that remember no others know this request.
            Digest::Blake3 => Request::Volume(AboutVolume::Known(place(path)?)),
            other => Request::KnownChecksum { place: place(path)?, algorithm: other.into() },
        });
    }
    Ok(Request::Checksum { place: place(path)?, algorithm: args.algorithm.into() })
}

fn digest_of(reply: Reply) -> Result<Vec<u8>, Error> {
    match reply {
        Reply::Checksum(digest) => Ok(digest),
        Reply::Volume(VolumeReply::Digest(Some(digest))) => Ok(digest.to_vec()),
        Reply::Volume(VolumeReply::Digest(None)) => {
            let cause = "no digest of what is there is known; without --known the file is read";
            Err(Error::new(Code::PathNotFound, "tell digest", "file", cause))
        }
        other => Err(unexpected(&other)),
    }
}

/// A file in the batch: its place and its path in the manifest.
type FileToDigest = (EndpointPath, Vec<u8>);

/// Digests of all files below a place; a failure below does not end it.
fn remote_tree(many: &mut Many<'_>, top: &EndpointPath, args: &Args, sink: &mut Sink) -> Result<(), Error> {
    let name = top.place.as_ref().map(|place| place.path.name().unwrap_or(place.storage.as_bytes()));
    let name = name.unwrap_or(top.site.as_str().as_bytes());
    let base = if args.paths.len() > 1 { RelPath::parse(name)? } else { RelPath::root() };
    let mut files = Vec::new();
    let mut todo = match list(many, top) {
        Err(error) if error.code == Code::NotADirectory => {
            let reply = many.ask(&top.site, request(top, args)?)?;
            return sink.put(name, &digest_of(reply)?);
        }
        listed => sort_out(listed?, top, &base, &mut files)?,
    };
    while let Some((path, shown)) = todo.pop() {
        match list(many, &path) {
            Ok(entries) => todo.extend(sort_out(entries, &path, &shown, &mut files)?),
            Err(error) => many.fail(path.to_string(), &error),
        }
        if files.len() >= BATCH_FILES {
            ask_all(many, std::mem::take(&mut files), args, sink)?;
        }
    }
    ask_all(many, files, args, sink)
}

fn list(many: &mut Many<'_>, path: &EndpointPath) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    let session = many.session(&path.site)?;
    let outcome = session.ask_parts(Request::List(path.place.clone()), |part| {
        entries.extend(part);
        Ok(())
    });
    many.keep_or_drop(&path.site, outcome)?;
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

/// Appends a directory's files to `files` and returns its subdirectories, last first.
fn sort_out(
    entries: Vec<Entry>,
    dir: &EndpointPath,
    shown: &RelPath,
    files: &mut Vec<FileToDigest>,
) -> Result<Vec<(EndpointPath, RelPath)>, Error> {
    let mut dirs = Vec::new();
    for entry in entries {
        let (name, path) = (entry.path.as_bytes(), shown.child(entry.path.as_bytes())?);
        match entry.kind {
            EntryKind::Dir => dirs.push((child(dir, name)?, path)),
            EntryKind::File { .. } => files.push((child(dir, name)?, path.as_bytes().to_vec())),
            _ => {}
        }
    }
    dirs.reverse();
    Ok(dirs)
}

fn ask_all(many: &mut Many<'_>, files: Vec<FileToDigest>, args: &Args, sink: &mut Sink) -> Result<(), Error> {
    let Some((first, _)) = files.first() else { return Ok(()) };
    let site = first.site.clone();
    let requests = files.iter().map(|(path, _)| request(path, args)).collect::<Result<Vec<_>, _>>()?;
    let (mut failed, mut asked) = (Vec::new(), files.iter());
    let outcome = many.session(&site)?.ask_each(requests, |reply| {
        let (path, shown) = asked.next().expect("one reply for each request");
        match reply.and_then(digest_of) {
            Ok(digest) => sink.put(shown, &digest),
            Err(error) => {
                failed.push((path.to_string(), error));
                Ok(())
            }
        }
    });
    many.keep_or_drop(&site, outcome)?;
    failed.iter().for_each(|(path, error)| many.fail(path.clone(), error));
    Ok(())
}

fn local(many: &mut Many<'_>, argument: &OsStr, args: &Args, sink: &mut Sink) -> Result<(), Error> {
    let path = Path::new(argument);
    if args.known {
        let cause = "--known is for files at sites";
        return Err(Error::new(Code::UsageInvalid, "checksum", path.display(), cause));
    }
    if !args.recursive {
        return sink.put(argument.as_bytes(), &local_tree::checksum(path, args.algorithm.into())?);
    }
    let name = path.file_name().unwrap_or_default().as_bytes();
    let base = if args.paths.len() > 1 && path.is_dir() { RelPath::parse(name)? } else { RelPath::root() };
    local_tree::checksums(path, args.algorithm.into(), |below, digest| match digest {
        Ok(digest) if below.is_root() => sink.put(name, &digest),
        Ok(digest) => sink.put(base.join(below)?.as_bytes(), &digest),
        Err(error) => {
            many.fail(
                printable(path.join(OsStr::from_bytes(below.as_bytes())).as_os_str().as_bytes()),
                &error,
            );
            Ok(())
        }
    })
}

impl Sink {
    fn put(&mut self, path: &[u8], digest: &[u8]) -> Result<(), Error> {
        let digest = hex(digest);
        if self.json {
            self.files.push(Line { path: printable(path), path_hex: hex_unless_plain(path), digest });
            return Ok(());
        }
        print_part(&line(path, &digest))
    }
}

/// One line of a manifest.
fn line(path: &[u8], digest: &str) -> Vec<u8> {
    let mut line = Vec::new();
    if path.iter().any(|b| matches!(b, b'\\' | b'\n' | b'\r')) {
        line.push(b'\\');
    }
    line.extend_from_slice(digest.as_bytes());
    line.extend_from_slice(b"  ");
    for &byte in path {
        match byte {
            b'\\' => line.extend_from_slice(b"\\\\"),
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            byte => line.push(byte),
        }
    }
    line.push(b'\n');
    line
}

impl Report for Listing {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        self.files.iter().try_for_each(|file| writeln!(out, "{}  {}", file.digest, file.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_match_b3sum_and_sha256sum() {
        assert_eq!(line(b"a b", "00ff"), b"00ff  a b\n");
        assert_eq!(line(b"a\\b\nc", "00"), b"\\00  a\\\\b\\nc\n");
        assert_eq!(line(b"\xff", "00"), b"00  \xff\n");
    }
}
