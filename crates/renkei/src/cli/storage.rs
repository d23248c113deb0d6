//! `renkei storage`: the named roots of a PoP.

use super::Context;
use super::output::Report;
use crate::config::{Config, Storage, add_storage, remove_storage};
use crate::home::{Home, file_error};
use crate::identity::account::Account;
use crate::volume::facts;
use clap::Subcommand;
use renkei_core::error::{Code, Error};
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Name the directories a PoP serves
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Serve a directory under a name
    Add {
        /// Name of the storage, as in SITE:/NAME/...
        name: String,
        /// The root directory
        #[arg(required_unless_present = "agent", conflicts_with = "agent")]
        path: Option<PathBuf>,
        /// Refuse every change
        #[arg(long)]
        read_only: bool,
        /// Do all I/O as this account instead of the one each user is mapped to
        #[arg(long, conflicts_with = "agent")]
        account: Option<String>,
        /// Let this account serve the storage by `renkei agent`, from where the PoP cannot mount it
        #[arg(long, value_name = "ACCOUNT")]
        agent: Option<String>,
    },
    /// List the storages
    List,
    /// Stop serving a storage; its files stay
    Remove {
        /// Name of the storage
        name: String,
    },
}

#[derive(Serialize)]
struct Row {
    name: String,
    path: Option<PathBuf>,
    read_only: bool,
    account: Option<String>,
    agent: Option<String>,
}

#[derive(Serialize)]
struct Listing {
    storages: Vec<Row>,
}

#[derive(Serialize)]
struct Changed {
    action: &'static str,
    name: String,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    match &args.action {
        Action::Add { name, path, read_only, account, agent } => {
            let path = path.as_deref().map(root).transpose()?.unwrap_or_default();
            let (read_only, account, agent) = (*read_only, account.clone(), agent.clone());
            add(name, &Storage { path, read_only, account, agent }, context)
        }
        Action::List => list(context),
        Action::Remove { name } => {
            remove_storage(&context.home()?, name)?;
            changed("removed", name, context)
        }
    }
}

/// A storage and a volume never have the same name.
fn refuse_volume(home: &Home, name: &str) -> Result<(), Error> {
    match facts::load(home)?.contains_key(name) {
        true => Err(Error::new(Code::PathExists, "add storage", name, "there is a volume of that name")),
        false => Ok(()),
    }
}

/// Adds `NAME=PATH`, as it is given to `init`.
pub(super) fn add_named(argument: &str, context: &Context) -> Result<(), Error> {
    let (name, path) = argument.split_once('=').ok_or_else(|| {
        Error::new(Code::UsageInvalid, "add storage", argument, "write NAME=PATH, as data=/srv/data")
    })?;
    let storage = Storage { path: root(Path::new(path))?, ..Storage::default() };
    add_storage(&context.home()?, name, &storage)
}

fn add(name: &str, storage: &Storage, context: &Context) -> Result<u8, Error> {
    if let Some(account) = storage.account.as_ref().or(storage.agent.as_ref()) {
        Account::lookup(account)?;
    }
    refuse_volume(&context.home()?, name)?;
    add_storage(&context.home()?, name, storage)?;
    changed("added", name, context)
}

fn changed(action: &'static str, name: &str, context: &Context) -> Result<u8, Error> {
    context.output.done(&Changed { action, name: name.into() })?;
    Ok(0)
}

fn list(context: &Context) -> Result<u8, Error> {
    let home = context.home()?;
    let config = Config::load(&home)?;
    config.site(&home)?;
    let row = |(name, storage): (String, Storage)| Row {
        name,
        path: Some(storage.path).filter(|path| !path.as_os_str().is_empty()),
        read_only: storage.read_only,
        account: storage.account,
        agent: storage.agent,
    };
    context.output.answer(&Listing { storages: config.storage.into_iter().map(row).collect() })?;
    Ok(0)
}

/// The absolute path of a root; it must be a directory, so that a typo shows now.
fn root(path: &Path) -> Result<PathBuf, Error> {
    let absolute = std::path::absolute(path).map_err(|error| file_error("add storage", path, &error))?;
    let metadata = absolute.metadata().map_err(|error| file_error("add storage", path, &error))?;
    if !metadata.is_dir() {
        return Err(Error::new(
            Code::NotADirectory,
            "add storage",
            path.display(),
            "a storage is a directory",
        ));
    }
    Ok(absolute)
}

impl Report for Listing {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for row in &self.storages {
            let mode = if row.read_only { "read-only" } else { "read-write" };
            let account = row.account.as_ref().map(|name| format!("  as {name}")).unwrap_or_default();
            let place = match (&row.path, &row.agent) {
                (Some(path), _) => path.display().to_string(),
                (None, agent) => format!("agent of {}", agent.as_deref().unwrap_or_default()),
            };
            writeln!(out, "{:<16} {mode:<10} {place}{account}", row.name)?;
        }
        Ok(())
    }
}

impl Report for Changed {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "storage {} {}", self.name, self.action)
    }
}
