//! `renkei storage`: the storages of a PoP, its named roots.

use crate::cli::Context;
use crate::cli::confirm::confirm;
use crate::cli::output::Report;
use crate::cli::quantity::counted;
use clap::Subcommand;
use renkei_config::home::{Home, file_error};
use renkei_config::{Config, LABEL_RULE, Storage, add_storage, remove_storage, set_require_mount};
use renkei_core::error::{Code, Error};
use renkei_core::path::is_label;
use renkei_net::identity::account::Account;
use renkei_net::identity::socket;
use renkei_site::storage::identity as storage_identity;
use renkei_store::local::{AccessMode, LocalStore};
use renkei_volume::volume_config;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Timeout for a running PoP to accept a storage again.
const NOTICED_WITHIN: Duration = Duration::from_secs(10);

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
        /// Stop the storage while nothing is mounted at its root directory [default: yes where something is now]
        #[arg(long, value_name = "yes|no", num_args = 0..=1, require_equals = true, default_missing_value = "yes", conflicts_with = "agent")]
        require_mount: Option<Choice>,
        /// Do all I/O as this account instead of the one each user is mapped to
        #[arg(long, conflicts_with = "agent")]
        account: Option<String>,
        /// Let this account serve the storage by `renkei agent`, from where the PoP cannot mount it
        #[arg(long, value_name = "ACCOUNT")]
        agent: Option<String>,
    },
    /// Accept the present directory at the path of a storage, after an intended exchange
    ///
    /// A storage records which directory it is. Where another one is found under its path (RK-STORE-27), because its file system
    /// is not mounted or the disk was exchanged, nothing is read or written there, until the right one is back or this command
    /// was given.
    Accept {
        /// Name of the storage
        name: String,
        /// Stop the storage while nothing is mounted at its root directory, or no more [default: as it was]
        #[arg(long, value_name = "yes|no", num_args = 0..=1, require_equals = true, default_missing_value = "yes")]
        require_mount: Option<Choice>,
    },
    /// List the storages
    List,
    /// Stop serving a storage; its files are kept
    Remove {
        /// Name of the storage
        name: String,
        /// Do it without asking, also if volumes are in it
        #[arg(long)]
        yes: bool,
    },
}

/// An option that is given with or without a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Choice {
    Yes,
    No,
}

#[derive(Serialize)]
struct Row {
    name: String,
    path: Option<PathBuf>,
    read_only: bool,
    require_mount: bool,
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

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    match &args.action {
        Action::Add { name, path, read_only, require_mount, account, agent } => {
            let path = path.as_deref().map(root).transpose()?.unwrap_or_default();
            let (read_only, account, agent) = (*read_only, account.clone(), agent.clone());
            let require_mount = require_mount.map_or_else(|| is_mount_point(&path), |it| it == Choice::Yes);
            add(name, &Storage { path, read_only, require_mount, account, agent, checksums: None }, context)
        }
        Action::Accept { name, require_mount } => accept(name, *require_mount, context),
        Action::List => list(context),
        Action::Remove { name, yes } => {
            let home = context.home()?;
            confirm(*yes, "remove storage", name, &volumes_in(&home, name)?)?;
            let path = Config::load(&home)?.storage.remove(name).map(|storage| storage.path);
            remove_storage(&home, name)?;
            storage_identity::forget(&home, name)?;
            let still = path.map_or(0, |path| await_release(&home, &path));
            if still > 0 {
                eprintln!(
                    "renkei: the PoP still has {} of it open; `renkei status` shows for what",
                    counted(still, "file", "files")
                );
            }
            changed("removed", name, context)
        }
    }
}

/// Warnings against removing a storage: the volumes that are in it.
fn volumes_in(home: &Home, storage: &str) -> Result<Vec<String>, Error> {
    let volumes = volume_config::load(home)?;
    let inside = volumes.iter().filter(|(_, facts)| facts.storage == storage);
    let told = |(name, _): (&String, &volume_config::VolumeConfig)| {
        format!(
            "the volume {name} is in it, and cannot be used until a storage of this name is back; its files stay"
        )
    };
    Ok(inside.map(told).collect())
}

/// Waits until the PoP, if it runs, has closed all files below a directory, so that it can be unmounted; returns the
/// number still open.
fn await_release(home: &Home, path: &Path) -> u64 {
    if path.as_os_str().is_empty() {
        return 0;
    }
    let answer = socket::request(&home.socket(), &json!({"op": "released", "path": path}));
    answer.ok().and_then(|open| open.as_u64()).unwrap_or(0)
}

/// Refuses the name of a volume for a storage.
fn refuse_volume(home: &Home, name: &str) -> Result<(), Error> {
    match volume_config::load(home)?.contains_key(name) {
        true => Err(Error::new(Code::PathExists, "add storage", name, "there is a volume of that name")),
        false => Ok(()),
    }
}

/// Parses `NAME=PATH` of `init`; the directory must exist.
pub(crate) fn named(argument: &str) -> Result<(String, Storage), Error> {
    let (name, path) = argument.split_once('=').ok_or_else(|| {
        Error::new(Code::UsageInvalid, "add storage", argument, "write NAME=PATH, as data=/srv/data")
    })?;
    let path = root(Path::new(path))?;
    let storage = Storage { require_mount: is_mount_point(&path), path, ..Storage::default() };
    match is_label(name) {
        true => Ok((name.to_owned(), storage)),
        false => Err(Error::new(Code::UsageInvalid, "add storage", name, LABEL_RULE)),
    }
}

fn is_mount_point(path: &Path) -> bool {
    LocalStore::open(path, AccessMode::ReadOnly).is_ok_and(|store| store.is_mount_point())
}

/// Adds a storage, and records the identity of its directory, which is checked from then on.
pub(crate) fn add_and_record(name: &str, storage: &Storage, home: &Home) -> Result<(), Error> {
    if storage.agent.is_some() {
        return add_storage(home, name, storage);
    }
    storage_identity::check_new(home, name, storage)?;
    add_storage(home, name, storage)?;
    match storage_identity::accept(home, name, storage) {
        // The PoP records it when the file system is mounted, or when it starts with more privileges.
        Err(error) if matches!(error.code, Code::StorageNotMounted | Code::PermissionDenied) => Ok(()),
        done => done,
    }
}

fn accept(name: &str, require_mount: Option<Choice>, context: &Context) -> Result<u8, Error> {
    let home = context.home()?;
    let unknown = || Error::new(Code::StorageUnknown, "accept storage", name, "not in config.toml");
    let mut storage = Config::load(&home)?.storage.remove(name).ok_or_else(unknown)?;
    if let Some(account) = &storage.agent {
        let cause = format!("an agent of {account} has it, and takes what is there when it starts");
        return Err(Error::new(Code::UsageInvalid, "accept storage", name, cause));
    }
    if let Some(choice) = require_mount {
        storage.require_mount = choice == Choice::Yes;
    }
    storage_identity::accept(&home, name, &storage)?;
    if require_mount.is_some() {
        set_require_mount(&home, name, storage.require_mount)?;
    }
    await_pop(name, &home);
    changed("accepted", name, context)
}

/// Waits until the PoP, if it runs, serves a storage again, so that the next command can use it.
fn await_pop(name: &str, home: &Home) {
    let since = Instant::now();
    let stops = |one: &Value| one["what"] == "storage" && one["name"] == name;
    while since.elapsed() < NOTICED_WITHIN
        && let Ok(status) = socket::request(&home.socket(), &json!({"op": "status"}))
        && status["conditions"].as_array().is_some_and(|all| all.iter().any(stops))
    {
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn add(name: &str, storage: &Storage, context: &Context) -> Result<u8, Error> {
    if let Some(account) = storage.account.as_ref().or(storage.agent.as_ref()) {
        Account::lookup(account)?;
    }
    refuse_volume(&context.home()?, name)?;
    add_and_record(name, storage, &context.home()?)?;
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
        require_mount: storage.require_mount,
        account: storage.account,
        agent: storage.agent,
    };
    context.output.answer(&Listing { storages: config.storage.into_iter().map(row).collect() })?;
    Ok(0)
}

/// The absolute path of a root; it must be a directory, so that a typo is reported now.
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
                (Some(path), _) if row.require_mount => format!("{} (a mount)", path.display()),
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
