//! `renkei agent`: serves a folder as one of a site's storages, from a machine whose files its PoP cannot mount.

use super::serve::begin_again_if_renamed;
use crate::cli::Context;
use crate::daemon;
use renkei_config::home::file_error;
use renkei_config::telemetry;
use renkei_config::{DEFAULT_PORT, Log, is_endpoint};
use renkei_core::error::{Code, Error};
use renkei_site::agent::{Export, ExportConfig};
use std::path::{Path, PathBuf};

/// Serve a folder of this machine as a storage of your site, from inside a private network
///
/// The agent dials out to the PoP of the site that you are logged in to and needs no port, no privileges and no
/// configuration. It serves the files with your own rights, to those whom the site maps to your account, for as long as
/// it runs. The administrator of the site allows it once: `renkei storage add NAME --agent ACCOUNT`.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei login --ssh alice@titech-pop\n  renkei agent --pop titech-pop:7512 --export scratch=/lustre/scratch"
)]
pub struct Args {
    /// Where the PoP is reached from here [default: where its card says]
    #[arg(long, value_name = "HOST[:PORT]")]
    pop: Option<String>,
    /// Reach other sites through the PoP alone: where the network drops outgoing packets silently
    #[arg(long)]
    through_pop: bool,
    /// Name of the storage at the site, and the folder
    #[arg(long, value_name = "NAME=PATH")]
    export: String,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let (storage, path) = args.export.split_once('=').ok_or_else(|| {
        Error::new(Code::UsageInvalid, "export", &args.export, "write NAME=PATH, as scratch=/lustre/scratch")
    })?;
    let path = folder(Path::new(path))?;
    let pop = args.pop.as_deref().map(endpoint).transpose()?;
    let config =
        ExportConfig { storage: storage.into(), path: path.clone(), pop, through_pop: args.through_pop };
    let export = Export::new(context.home()?, config)?;
    telemetry::start(&Log::default())?;
    let ended = daemon::run_agent(export, |site| {
        tracing::info!(site = %site.name(), storage, path = %path.display(), "ready");
    })?;
    begin_again_if_renamed(ended)
}

/// The absolute path of the folder, which must exist.
fn folder(path: &Path) -> Result<PathBuf, Error> {
    let absolute = std::path::absolute(path).map_err(|error| file_error("export", path, &error))?;
    match absolute.metadata().map_err(|error| file_error("export", path, &error))?.is_dir() {
        true => Ok(absolute),
        false => Err(Error::new(Code::NotADirectory, "export", path.display(), "an agent serves a folder")),
    }
}

fn endpoint(text: &str) -> Result<String, Error> {
    let with_port = format!("{text}:{DEFAULT_PORT}");
    [text.to_owned(), with_port].into_iter().find(|text| is_endpoint(text)).ok_or_else(|| {
        Error::new(Code::UsageInvalid, "export", text, "the PoP is named HOST:PORT, as titech-pop:7512")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pop_is_named_with_or_without_its_port() {
        assert_eq!(endpoint("titech-pop:99").unwrap(), "titech-pop:99");
        assert_eq!(endpoint("titech-pop").unwrap(), format!("titech-pop:{DEFAULT_PORT}"));
        for bad in ["", "a b", "host:x", "-h"] {
            assert_eq!(endpoint(bad).unwrap_err().code, Code::UsageInvalid, "{bad}");
        }
    }

    #[test]
    fn a_folder_must_exist() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(folder(dir.path()).unwrap(), dir.path());
        assert!(folder(&dir.path().join("missing")).is_err());
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(folder(&dir.path().join("file")).unwrap_err().code, Code::NotADirectory);
    }
}
