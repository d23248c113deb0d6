//! `renkei backup`: saves the configuration and state of a PoP, an agent or a user.

use super::backup_set;
use crate::cli::Context;
use crate::cli::output::Report;
use crate::cli::quantity::{counted, human};
use crate::cli::remedy::here;
use renkei_config::Config;
use renkei_core::error::{Code, Error};
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

/// Save all that this PoP, agent or user knows, while it runs: keys, trust, mapping, volumes, the queue
///
/// The folder holds the site's keys: keep it as safe as them. Data of storages are not part of it, nor what is in the buffer; of
/// a catalogue on PostgreSQL it says so, and `pg_dump` saves that.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei backup /backup/renkei-2026-11-24\n  renkei restore /backup/renkei-2026-11-24"
)]
pub struct Args {
    /// The folder that is made; it must be new or empty
    folder: PathBuf,
}

#[derive(Serialize)]
struct Made {
    folder: String,
    site: Option<String>,
    files: usize,
    bytes: u64,
    /// The database server of the catalogue, which is not part of it.
    server: Option<String>,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let home = context.home()?;
    let is_user = home.user_credential().exists() || home.state_dir().join("agents").exists();
    let (site, server) = match home.config_file().exists() {
        true => {
            let config = Config::load(&home)?;
            (Some(config.site(&home)?.to_string()), renkei_catalogue::server(&config.catalogue))
        }
        false if is_user => (None, None),
        false => return Err(Error::new(Code::NotInitialised, "back up", home.config_dir().display(), "")),
    };
    let now_unix = context.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let list = backup_set::make(&home, &args.folder, backup_set::Of { site, server, now_unix })?;
    let made = Made {
        folder: args.folder.display().to_string(),
        site: list.site,
        files: list.files.len(),
        bytes: list.files.iter().map(|item| item.size).sum(),
        server: list.server,
    };
    context.output.done(&made)?;
    Ok(0)
}

impl Report for Made {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let of = self.site.as_ref().map_or_else(String::new, |site| format!(" of {site}"));
        writeln!(
            out,
            "backup{of} in {}: {}, {}",
            self.folder,
            counted(self.files, "file", "files"),
            human(self.bytes)
        )?;
        if let Some(server) = &self.server {
            writeln!(out, "the catalogue is in {server} and not part of it: save it with pg_dump, too")?;
        }
        writeln!(
            out,
            "it contains keys: keep it where no other user can read it. To restore it: {}",
            here(&format!("`renkei restore {}`", self.folder))
        )
    }
}
