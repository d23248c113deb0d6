//! `renkei restore`: restores a backup of `renkei backup`.

use super::backup_set;
use crate::cli::output::Report;
use crate::cli::quantity::counted;
use crate::cli::remedy::{here, start};
use crate::cli::{Context, login};
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_net::identity::socket;
use serde::Serialize;
use serde_json::json;
use std::io::{self, Write};
use std::path::PathBuf;

/// Put back what `renkei backup` saved, where nothing is yet
///
/// The PoP does not run meanwhile. When it is started, sites that follow its volumes hear that it was restored, compare their copies,
/// and hand in what only they have (`renkei volume show NAME` there tells what they did).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder that `renkei backup` made
    folder: PathBuf,
}

#[derive(Serialize)]
struct Restored {
    folder: String,
    site: Option<String>,
    files: usize,
    dir: String,
    /// The command that starts the PoP.
    #[serde(skip)]
    start: String,
    /// The database server of the catalogue.
    server: Option<String>,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let home = context.home()?;
    if socket::request(&login::socket(&home, None), &json!({"op": "status"})).is_ok() {
        let cause = match home == Home::system() {
            true => "a PoP runs there; stop it first (`systemctl stop renkei`)",
            false => "a PoP runs there; stop it first",
        };
        return Err(Error::new(Code::AlreadyInitialised, "restore", home.config_dir().display(), cause));
    }
    let list = backup_set::read(&args.folder)?;
    backup_set::put_back(&list, &args.folder, &home)?;
    let restored = Restored {
        folder: args.folder.display().to_string(),
        files: list.files.len(),
        site: list.site,
        dir: home.config_dir().display().to_string(),
        start: start(&home),
        server: list.server,
    };
    context.output.done(&restored)?;
    Ok(0)
}

impl Report for Restored {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let of = self.site.as_ref().map_or_else(String::new, |site| format!(" of {site}"));
        let are = if self.files == 1 { "is" } else { "are" };
        writeln!(out, "{}{of} {are} back in {}", counted(self.files, "file", "files"), self.dir)?;
        if let Some(server) = &self.server {
            writeln!(
                out,
                "its catalogue is in {server}: put that back with pg_restore before the PoP is started"
            )?;
        }
        match self.site {
            Some(_) => writeln!(
                out,
                "next: put the data of its storages back, then start it ({}) and see {}",
                self.start,
                here("`renkei doctor`")
            ),
            None => writeln!(out, "next: start what runs here, as `renkei agent`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_next_step_names_the_restored_directory() {
        let told = |home: &Home| {
            let restored = Restored {
                folder: "/backup".into(),
                site: Some("kek".into()),
                files: 8,
                dir: home.config_dir().display().to_string(),
                start: start(home),
                server: None,
            };
            let mut text = Vec::new();
            restored.write_text(&mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        assert!(told(&Home::system()).contains("then start it (`systemctl start renkei`)"));
        let of_a_directory = told(&Home::at(Path::new("/srv/my pop")));
        assert!(of_a_directory.contains("(`renkei --dir '/srv/my pop' serve`)"), "{of_a_directory}");
    }
}
