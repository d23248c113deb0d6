//! `renkei volume unsubscribe`: stops following a volume of another site.

use super::show::ask;
use crate::cli::output::Report;
use crate::cli::{Context, volume};
use renkei_config::Config;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_volume::Volumes;
use renkei_volume::follower::unreplicated::Unreplicated;
use renkei_volume::volume_config;
use renkei_volume::volume_config::VolumeConfig;
use serde::Serialize;
use serde_json::json;
use std::io::{self, Write};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the volume
    name: String,
    /// Remove the replicas, too
    #[arg(long)]
    files: bool,
    /// Give up changes made here that the home does not have yet: they are listed, and their contents stay as plain files
    #[arg(long, conflicts_with = "files")]
    abandon: bool,
}

#[derive(Serialize)]
struct Unsubscribed {
    action: &'static str,
    name: String,
    abandoned: Unreplicated,
    #[serde(skip)]
    files: bool,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let (home, name) = (context.home()?, &args.name);
    let (facts, config) = (volume_config::find(&home, name)?, Config::load(&home)?);
    if facts.home == *config.site(&home)? {
        let cause = "its home is here; `renkei volume delete` ends it";
        return Err(Error::new(Code::UsageInvalid, "unsubscribe", name, cause));
    }
    if args.files {
        volume::refuse_whole_storage(name, &facts)?;
    }
    let request = json!({"op": "volume", "act": "unsubscribe", "name": name, "abandon": args.abandon});
    let abandoned = match ask(&home, request) {
        Err(error) if error.code == Code::PopNotRunning => leave(args, &facts, &home, &config)?,
        asked => asked?,
    };
    if args.files {
        volume::remove_files(&facts, &config)?;
    }
    let left = Unsubscribed { action: "deleted", name: name.clone(), abandoned, files: args.files };
    context.output.done(&left)?;
    Ok(0)
}

/// The same without a running PoP: the home cannot be asked for its state.
fn leave(args: &Args, facts: &VolumeConfig, home: &Home, config: &Config) -> Result<Unreplicated, Error> {
    let volumes = Volumes::new(home, &config.catalogue);
    let pending = volumes.pending(&args.name, facts.id)?;
    let only = pending.only_here(|path| format!("{}:/{}/{path}", facts.storage, facts.path))?;
    if !args.abandon {
        let cause = match only.is_empty() {
            false => only.told(),
            true if pending.tree().wrote_any()? => {
                "files were written here, and whether the home has them is known only while the PoP runs \
                 (`renkei serve`)"
                    .into()
            }
            true => String::new(),
        };
        if !cause.is_empty() {
            return Err(Error::new(Code::ChangesWait, "unsubscribe", &args.name, cause));
        }
    }
    volume_config::remove(home, &args.name)?;
    volume::release(facts, config, home)?;
    drop(pending);
    volumes.forget(facts.id)?;
    Ok(only)
}

impl Report for Unsubscribed {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let files = if self.files { "with its files" } else { "its files were kept" };
        writeln!(out, "volume {} is no longer followed; {files}", self.name)?;
        if self.abandoned.is_empty() {
            return Ok(());
        }
        writeln!(out, "abandoned, {}:", self.abandoned.told())?;
        for item in &self.abandoned.items {
            match &item.file {
                Some(file) => writeln!(out, "  {}  (its content is in {file})", item.change)?,
                None => writeln!(out, "  {}", item.change)?,
            }
        }
        let more = self.abandoned.changes + self.abandoned.files - self.abandoned.items.len() as u64;
        if more > 0 {
            writeln!(out, "  and {more} more")?;
        }
        Ok(())
    }
}
