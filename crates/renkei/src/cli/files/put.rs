//! `renkei put`: standard input to a file at a site.

use super::cat::split;
use super::done::done;
use crate::cli::Context;
use crate::cli::connect::{dialler, place, remote};
use crate::cli::many::Many;
use renkei_core::error::{Code, Error};
use renkei_mover::files::remote_files::{Config, RemoteDir, RemoteFiles};
use renkei_mover::files::workspace::{Create, Workspace};
use std::ffi::OsString;
use std::io::{self, Read};
use std::sync::Arc;

/// Bytes per read call.
const READ_BYTES: usize = 1 << 20;

/// Write standard input to a file at a site
///
/// The file is there, whole and durable, when the command succeeded, and not before: tar c run7 | renkei put
/// kek:/data/run7.tar
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The file: SITE:/STORAGE/PATH; one that is there is replaced
    #[arg(value_name = "PATH")]
    path: OsString,
    /// Permission bits of a file that is new, as chmod takes them
    #[arg(long, value_name = "MODE", default_value = "644", value_parser = parse_mode)]
    mode: u32,
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).map_err(|error| error.to_string())?;
    if mode > 0o777 { Err("three octal digits, as 644".into()) } else { Ok(mode) }
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let path = remote(&args.path, context)?;
    let shown = path.to_string();
    let (dir, name) = split(&place(&path)?)?;
    let far =
        RemoteDir { dialler: dialler(context, &[&path.site])?, site: path.site, place: dir, write: true };
    let workspace = Workspace::new(Arc::new(RemoteFiles::open(far, Config::default())?));
    let writer = workspace.create(&name, Create { mode: args.mode, ..Create::default() })?;
    let (mut input, mut buf, mut offset) = (io::stdin().lock(), vec![0; READ_BYTES], 0);
    loop {
        let count = match input.read(&mut buf) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(Error::new(Code::IoFailed, "read", "standard input", error).at("client"));
            }
        };
        writer.write_at(&buf[..count], offset)?;
        offset += count as u64;
    }
    writer.publish(None, None)?;
    done("written", vec![shown], &Many::new(context), context)
}
