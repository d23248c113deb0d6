//! `renkei logout`: remove the certificates of the user from this machine.

use crate::cli::Context;
use crate::cli::login_origin;
use crate::cli::output::Report;
use crate::cli::quantity::counted;
use renkei_config::home::file_error;
use renkei_core::error::Error;
use serde::Serialize;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// Remove your certificate from this machine, and those that were got for tokens and proxies
///
/// They stay good for whoever has a copy: `renkei revoke` of the site's administrator takes them back. Queued transfers go on.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei logout                              before you leave a machine that is not yours"
)]
pub struct Args {}

/// What was removed.
#[derive(Serialize)]
struct Removed {
    login: bool,
    borrowed: u64,
}

pub(crate) fn run(_: &Args, context: &Context) -> Result<u8, Error> {
    let home = context.home()?;
    let login = remove(&home.user_credential())?;
    login_origin::forget(&home)?;
    let mut borrowed = 0;
    for file in std::fs::read_dir(home.borrowed_dir()).into_iter().flatten().flatten() {
        borrowed += u64::from(remove(&file.path())?);
    }
    context.output.done(&Removed { login, borrowed })?;
    Ok(0)
}

/// Removes a file; false if it is not there.
fn remove(path: &Path) -> Result<bool, Error> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(file_error("remove", path, &error)),
    }
}

impl Report for Removed {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let login = if self.login { "logged out" } else { "nobody was logged in" };
        match self.borrowed {
            0 => writeln!(out, "{login}"),
            count => {
                let removed =
                    counted(count, "certificate for a token or proxy", "certificates for tokens and proxies");
                writeln!(out, "{login}; removed {removed}")
            }
        }
    }
}
