//! `renkei cat`: the content of files at sites, and here, to standard output.

use crate::cli::Context;
use crate::cli::connect::{dialler, place};
use crate::cli::output::{is_reader_gone, print_part};
use crate::cli::volume_path::Namespace;
use renkei_config::home::file_error;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::path::{EndpointPath, Place, RelPath, SiteName, printable};
use renkei_mover::files::remote_files::{Config, RemoteDir, RemoteFiles};
use renkei_mover::files::workspace::{Follow, Reader, Workspace};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Bytes per read call.
const READ_BYTES: usize = 1 << 20;
/// Maximum of symbolic links that are followed.
const MAX_LINKS: usize = 32;

/// Print the content of files
///
/// Reads at the speed of the path: renkei cat kek:/data/run7.tar | tar t. With --json the content is printed as it is,
/// too; a failure is an object on standard error.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files: SITE:/STORAGE/PATH, /VOLUME/PATH or local paths
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    match print_all(args, context) {
        Err(error) if is_reader_gone(&error) => Ok(0),
        // Standard output carries only file content.
        Err(error) if context.output.is_json() => Ok(context.output.error_beside(&error)),
        printed => printed.map(|()| 0),
    }
}

fn print_all(args: &Args, context: &Context) -> Result<(), Error> {
    let mut namespace = Namespace::new(context);
    for path in &args.paths {
        match namespace.endpoint(path)? {
            Some(far) => print_far(&far, context)?,
            None => print_local(Path::new(path))?,
        }
    }
    Ok(())
}

fn print_local(path: &Path) -> Result<(), Error> {
    let failed = |op: &'static str| {
        move |error: io::Error| {
            let subject = printable(path.as_os_str().as_bytes());
            Error { subject, ..file_error(op, path, &error) }.at("client")
        }
    };
    let mut file = File::open(path).map_err(failed("open"))?;
    print_parts(|buf, _| file.read(buf).map_err(failed("read")))
}

fn print_far(path: &EndpointPath, context: &Context) -> Result<(), Error> {
    let reader = open(context, &path.site, place(path)?)?;
    reader.expect_order();
    print_parts(|buf, offset| reader.read_at(buf, offset))
}

/// Prints in parts what `read` returns for a buffer and an offset.
fn print_parts(mut read: impl FnMut(&mut [u8], u64) -> Result<usize, Error>) -> Result<(), Error> {
    let (mut buf, mut offset) = (vec![0; READ_BYTES], 0);
    loop {
        let count = read(&mut buf, offset)?;
        if count == 0 {
            return Ok(());
        }
        print_part(&buf[..count])?;
        offset += count as u64;
    }
}

/// Opens a file, following symbolic links within its storage.
fn open(context: &Context, site: &SiteName, mut place: Place) -> Result<Reader, Error> {
    for _ in 0..MAX_LINKS {
        let (dir, name) = split(&place)?;
        let far = RemoteDir {
            dialler: dialler(context, &[site])?,
            site: site.clone(),
            place: dir.clone(),
            write: false,
        };
        let workspace = Workspace::new(Arc::new(RemoteFiles::open(far, Config::default())?));
        match workspace.open(&name) {
            Ok(reader) => return Ok(reader),
            Err(error) if error.code == Code::BadPath => return Err(error),
            Err(error) => place = follow(&workspace, &dir, &name)?.ok_or(error)?,
        }
    }
    Err(Error::new(Code::BadPath, "open", &place, "too many levels of symbolic links"))
}

/// The directory of a place, and its name there.
pub(crate) fn split(place: &Place) -> Result<(Place, RelPath), Error> {
    let top = || Error::new(Code::IsADirectory, "open", place, "");
    let name = RelPath::parse(place.path.name().ok_or_else(top)?)?;
    let dir = Place { storage: place.storage.clone(), path: place.path.parent().unwrap_or_default() };
    Ok((dir, name))
}

/// The target of a symbolic link, if it is one and leads into its storage.
fn follow(workspace: &Workspace, dir: &Place, name: &RelPath) -> Result<Option<Place>, Error> {
    let Ok(item) = workspace.stat(name, Follow::No) else { return Ok(None) };
    let EntryKind::Symlink { target } = item.entry.kind else { return Ok(None) };
    if target.starts_with(b"/") {
        return Ok(None);
    }
    let mut path = dir.path.clone();
    for part in target.split(|&byte| byte == b'/') {
        path = match part {
            b"" | b"." => path,
            b".." => match path.parent() {
                Some(parent) => parent,
                None => return Ok(None),
            },
            name => path.child(name)?,
        };
    }
    Ok(Some(Place { storage: dir.storage.clone(), path }))
}
