//! `renkei volume subscribe`: has this site follow a volume of another one.

use super::account::chosen;
use super::show::ask;
use crate::cli::output::Report;
use crate::cli::{Context, login};
use renkei_config::home::Home;
use renkei_config::{Config, Storage};
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_net::identity::socket;
use renkei_site::volume::follower::log_tailing::Subscription;
use renkei_volume::VolumeState;
use renkei_volume::config_change::folders;
use serde::Serialize;
use serde_json::json;
use std::io::{self, Write};
use std::thread;
use std::time::Duration;

/// Follow a volume of another site, which has granted it to this one
///
/// The names and metadata of all its files are kept here from now on, so that looking at them never leaves the site; content
/// comes from the volume's home, or from replicas here (--storage, `renkei replicate`). The users of this site may read it; `renkei
/// volume grant` lets in others. Returns when the tree is here; Ctrl-C leaves its coming to the PoP.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The volume; it has the same name here
    volume: String,
    /// Its home
    #[arg(long, value_name = "SITE")]
    from: String,
    /// The storage whose directory of the volume's name is to hold replicas
    #[arg(long, value_name = "STORAGE")]
    storage: Option<String>,
    /// Hold replicas of all files below a folder, also of those to come; without FOLDER of the whole volume
    #[arg(long, value_name = "/FOLDER", num_args = 0..=1, default_missing_value = "/", requires = "storage")]
    hold: Option<String>,
    /// Hold nothing that the home's policy wants held here; else what --storage has room for is held
    #[arg(long)]
    no_policy: bool,
    /// The account whose files the replicas are [default: the storage's account, else the directory's owner, never root]
    #[arg(long, value_name = "ACCOUNT")]
    account: Option<String>,
    /// Return at once: the tree comes by and by
    #[arg(long)]
    no_wait: bool,
}

/// Poll interval until the tree has arrived.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Serialize)]
struct Subscribed<'a> {
    volume: &'a str,
    home: &'a str,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let home = context.home()?;
    let config = Config::load(&home)?;
    let storage = args.storage.as_ref().map(|name| storage_of(name, &config)).transpose()?;
    let folder = storage.map(|storage| storage.path.join(&args.volume));
    let named = args.account.as_deref();
    let account = chosen("subscribe", &args.volume, named, storage, folder.as_deref(), &config)?;
    let subscription = Subscription {
        name: args.volume.clone(),
        home: SiteName::parse(&args.from)?,
        storage: args.storage.clone().unwrap_or_default(),
        hold: args.hold.as_deref().map_or_else(|| Ok(Vec::new()), folders)?,
        refuses_policy: args.no_policy,
        account: account.name,
    };
    let path = login::socket(&home, None);
    socket::request(&path, &json!({"op": "subscribe", "subscription": subscription}))?;
    if !args.no_wait
        && let Some(trouble) = await_tree(&args.volume, &home)?
    {
        eprintln!("renkei: its tree is not here yet: {trouble}");
    }
    context.output.answer(&Subscribed { volume: &args.volume, home: &args.from })?;
    Ok(0)
}

/// The storage of that name.
fn storage_of<'c>(name: &str, config: &'c Config) -> Result<&'c Storage, Error> {
    let cause = if name.contains('/') { "it is a path, and a storage is given by its name" } else { "" };
    let unknown = || Error::new(Code::StorageUnknown, "subscribe", name, cause);
    config.storage.get(name).ok_or_else(unknown)
}

/// Waits until the whole tree is here; returns the error if it does not come. The PoP keeps asking for it.
fn await_tree(volume: &str, home: &Home) -> Result<Option<Error>, Error> {
    loop {
        let standing: VolumeState = ask(home, json!({"op": "volume", "act": "standing", "name": volume}))?;
        if standing.followed.is_none_or(|followed| followed.is_whole) || standing.trouble.is_some() {
            return Ok(standing.trouble);
        }
        thread::sleep(LOOK_EVERY);
    }
}

impl Report for Subscribed<'_> {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "/{} of {} is followed here", self.volume, self.home)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_storage_is_reported_first() {
        let config =
            Config { storage: [("pool".to_owned(), Storage::default())].into(), ..Config::default() };
        assert!(storage_of("pool", &config).is_ok());
        for (name, cause) in [("pol", ""), ("./pool", "it is a path, and a storage is given by its name")] {
            let error = storage_of(name, &config).unwrap_err();
            assert_eq!((error.code, &*error.cause), (Code::StorageUnknown, cause));
        }
    }
}
