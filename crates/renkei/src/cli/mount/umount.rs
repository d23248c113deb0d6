//! `renkei umount`: ends a mount.

use crate::cli::Context;
use crate::cli::output::Report;
use renkei_core::error::Error;
use renkei_mount::mountpoint::{UnmountMode, unmount};
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;

/// End a mount
///
/// Files that programs closed before are at the site already. A mount whose process was killed is cleaned up.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  renkei umount ~/run7\n  renkei umount --lazy /mnt/kek")]
pub struct Args {
    /// Where it is
    #[arg(value_name = "MOUNTPOINT", required = true)]
    points: Vec<PathBuf>,
    /// Also while programs use it: it is gone from the tree at once, and ends with the last of them
    #[arg(short, long)]
    lazy: bool,
}

#[derive(Serialize)]
struct Unmounted {
    unmounted: Vec<PathBuf>,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let how = if args.lazy { UnmountMode::Lazy } else { UnmountMode::Orderly };
    args.points.iter().try_for_each(|point| unmount(point, how))?;
    context.output.done(&Unmounted { unmounted: args.points.clone() })?;
    Ok(0)
}

impl Report for Unmounted {
    fn write_text(&self, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }
}
