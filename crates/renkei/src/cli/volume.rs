//! `renkei volume`: the volumes of a PoP, for its administrator.

use super::output::Report;
use super::volume_show::{Shown, ask, show};
use super::{Context, login, subscribe};
use crate::config::{Config, Storage};
use crate::home::{Home, file_error};
use crate::identity::account::Account;
use crate::identity::socket;
use crate::mover::fresh_id;
use crate::store::Store;
use crate::store::local::{Access, LocalStore};
use crate::store::names::user_name;
use crate::store::tree::remove_tree;
use crate::volume::facts::{self, Facts, SCAN_EVERY_S, id_text};
use crate::volume::grant::{Grant, Grantee};
use crate::volume::{Scanned, Volumes};
use clap::Subcommand;
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use serde::Serialize;
use serde_json::json;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Make trees with a name of their own: plain files, and a catalogue that follows them
///
/// For the administrator, in the directory of a PoP.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei volume create genome --storage pool\n  renkei volume create genome --storage pool --in-place genome-2025\n  \
                       renkei volume grant genome '*@titech' read --on public\n  renkei ls -l /genome"
)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a volume whose plain files are in a storage of this PoP
    Create(Create),
    /// List the volumes
    List,
    /// Show a volume, and how its catalogue stands to its files
    Show {
        /// Name of the volume
        name: String,
    },
    /// Change what is known of a volume
    Set {
        /// Name of the volume
        name: String,
        /// `scan_every_s=SECONDS` (0: never by itself), `account=ACCOUNT`; where it is followed `hold=/FOLDER,...`, whose files
        /// are all held here (`hold=/` for all of them, `hold=` for none)
        #[arg(required = true, value_name = "KEY=VALUE")]
        values: Vec<String>,
    },
    /// Let somebody in, as the volume's account
    Grant {
        /// Name of the volume
        name: String,
        /// NAME@SITE, *@SITE for all users of a site, or SITE for that site to follow the volume
        who: String,
        /// `read` or `write`
        level: String,
        /// This folder and all below it [default: the whole volume]
        #[arg(long, value_name = "FOLDER", default_value = "")]
        on: String,
    },
    /// Take grants back
    Revoke {
        /// Name of the volume
        name: String,
        /// As it was granted
        who: String,
        /// Of this folder alone [default: all that were given to WHO]
        #[arg(long, value_name = "FOLDER")]
        on: Option<String>,
    },
    Subscribe(subscribe::Args),
    /// Follow a volume of another site no more; replicas stay as plain files
    Unsubscribe {
        /// Name of the volume
        name: String,
        /// Remove the replicas, too
        #[arg(long)]
        files: bool,
    },
    /// Compare a volume's catalogue with its plain files now
    Check {
        /// Name of the volume
        name: String,
    },
    /// Forget a volume; its plain files stay
    Delete {
        /// Name of the volume
        name: String,
        /// Remove the plain files, too
        #[arg(long)]
        files: bool,
        /// Let the plain files be, which is always so
        #[arg(long, hide = true, conflicts_with = "files")]
        keep_files: bool,
    },
}

/// A new volume.
#[derive(Debug, clap::Args)]
struct Create {
    /// Name of the volume, as in /NAME/...
    name: String,
    /// The storage that has its files
    #[arg(long, value_name = "STORAGE")]
    storage: String,
    /// The directory in it, made if it is missing [default: the volume's name]
    #[arg(long, value_name = "DIR", conflicts_with = "in_place")]
    path: Option<PathBuf>,
    /// A directory that is there becomes the volume: no byte is moved
    #[arg(long, value_name = "DIR")]
    in_place: Option<PathBuf>,
    /// Who works for those whom a grant lets in [default: the storage's account, else the directory's owner]
    #[arg(long)]
    account: Option<String>,
    /// Seconds between two scans for what changed behind the PoP's back; 0 for none
    #[arg(long, value_name = "SECONDS", default_value_t = SCAN_EVERY_S)]
    scan_every_s: u64,
}

#[derive(Serialize)]
struct Listing {
    volumes: Vec<Shown>,
}

#[derive(Serialize)]
struct Changed {
    action: &'static str,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<Scanned>,
    #[serde(skip)]
    note: &'static str,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let home = context.home()?;
    Config::load(&home)?.site(&home)?;
    match &args.action {
        Action::Create(args) => create(args, &home, context),
        Action::List => {
            let volumes =
                facts::load(&home)?.into_iter().map(|(name, facts)| Shown::new(&name, facts, &home));
            context.output.answer(&Listing { volumes: volumes.collect() })?;
            Ok(0)
        }
        Action::Show { name } => show(name, &home, context),
        Action::Set { name, values } => change(name, "changed", &home, context, |facts| {
            values.iter().try_for_each(|value| set(facts, value))
        }),
        Action::Grant { name, who, level, on } => {
            let grant = Grant::parse(who, level, on)?;
            change(name, "granted", &home, context, |facts| {
                add_grant(facts, grant);
                Ok(())
            })
        }
        Action::Revoke { name, who, on } => {
            let who = Grantee::parse(who)?;
            change(name, "revoked", &home, context, |facts| take_back(facts, &who, on.as_deref()))
        }
        Action::Subscribe(args) => subscribe::run(args, context),
        Action::Unsubscribe { name, files } => {
            let facts = facts::find(&home, name)?;
            if facts.home == *Config::load(&home)?.site(&home)? {
                return Err(invalid("unsubscribe", name, "its home is here; `renkei volume delete` ends it"));
            }
            delete(name, *files, &home, context)
        }
        Action::Check { name } => {
            facts::find(&home, name)?;
            let found: Scanned = ask(&home, json!({"op": "volume", "act": "check", "name": name}))?;
            report("checked", name, Some(found), "", context)
        }
        Action::Delete { name, files, .. } => delete(name, *files, &home, context),
    }
}

fn report(
    action: &'static str,
    name: &str,
    found: Option<Scanned>,
    note: &'static str,
    context: &Context,
) -> Result<u8, Error> {
    context.output.done(&Changed { action, name: name.into(), found, note })?;
    Ok(0)
}

fn invalid(op: &str, subject: impl std::fmt::Display, cause: impl std::fmt::Display) -> Error {
    Error::new(Code::UsageInvalid, op, subject, cause)
}

// ---- create ----------------------------------------------------------------------------------------------------------

fn create(args: &Create, home: &Home, context: &Context) -> Result<u8, Error> {
    let config = Config::load(home)?;
    let storage = check_name(&args.name, &args.storage, &config, home)?;
    let path = relative(args, storage)?;
    let folder = storage.path.join(std::ffi::OsStr::from_bytes(path.as_bytes()));
    refuse_overlap(&folder, &config, home)?;
    let is_new = args.in_place.is_none();
    let account =
        account(args, storage, is_new.then_some(folder.as_path()).filter(|_| !folder.exists()), &folder)?;
    make_folder(storage, &path, is_new, &account)?;
    let site = config.site(home)?.clone();
    let facts = Facts {
        id: fresh_id()?,
        home: site,
        storage: args.storage.clone(),
        path: text(&path)?,
        account: account.name,
        in_place: !is_new,
        scan_every_s: args.scan_every_s,
        hold: Vec::new(),
        grant: Vec::new(),
    };
    facts.store(home, &args.name)?;
    // The PoP, if it runs, has looked at all of it before this ends.
    match ask(home, json!({"op": "volume", "act": "check", "name": args.name})) {
        Ok(found) => report("created", &args.name, Some(found), "", context),
        Err(error) if error.code == Code::PopNotRunning => {
            report("created", &args.name, None, "; its files are looked at when the PoP runs", context)
        }
        Err(error) => Err(error),
    }
}

/// The storage, if a volume may have this name and be in it.
fn check_name<'c>(name: &str, storage: &str, config: &'c Config, home: &Home) -> Result<&'c Storage, Error> {
    if !renkei_core::path::is_label(name) {
        return Err(invalid("create volume", name, "1 to 63 of a-z, 0-9 and -, starting with a letter"));
    }
    let taken = |what: &str| {
        let cause = format!("there is a {what} of that name");
        Error::new(Code::PathExists, "create volume", name, cause)
    };
    if config.storage.contains_key(name) {
        return Err(taken("storage"));
    }
    if facts::load(home)?.contains_key(name) {
        return Err(taken("volume"));
    }
    let unknown = || Error::new(Code::StorageUnknown, "create volume", storage, "not in config.toml");
    let found = config.storage.get(storage).ok_or_else(unknown)?;
    if found.agent.is_some() {
        return Err(invalid("create volume", storage, "the storage of an agent can hold no volume"));
    }
    Ok(found)
}

/// The directory below the storage's root.
fn relative(args: &Create, storage: &Storage) -> Result<RelPath, Error> {
    let named = args.in_place.as_deref().or(args.path.as_deref()).unwrap_or(Path::new(&args.name));
    let below = match named.is_absolute() {
        false => named,
        true => named.strip_prefix(&storage.path).map_err(|_| {
            let cause = format!("it is not below {}, the root of {}", storage.path.display(), args.storage);
            invalid("create volume", named.display(), cause)
        })?,
    };
    let bytes = below.as_os_str().as_bytes();
    RelPath::parse(bytes.strip_suffix(b"/").unwrap_or(bytes))
}

fn text(path: &RelPath) -> Result<String, Error> {
    let text = String::from_utf8(path.as_bytes().to_vec());
    text.map_err(|_| invalid("create volume", path, "the directory of a volume must have a name in UTF-8"))
}

/// Two volumes never have the same files.
fn refuse_overlap(folder: &Path, config: &Config, home: &Home) -> Result<(), Error> {
    for (name, facts) in facts::load(home)? {
        let Some(storage) = config.storage.get(&facts.storage) else { continue };
        let other = storage.path.join(&facts.path);
        if folder.starts_with(&other) || other.starts_with(folder) {
            let cause = format!("volume {name} has {}", other.display());
            return Err(invalid("create volume", folder.display(), cause));
        }
    }
    Ok(())
}

/// Whose the volume is.
fn account(
    args: &Create,
    storage: &Storage,
    missing: Option<&Path>,
    folder: &Path,
) -> Result<Account, Error> {
    if let Some(name) = args.account.as_ref().or(storage.account.as_ref()) {
        return Account::lookup(name);
    }
    if missing.is_some() {
        return Account::own();
    }
    let owner = folder.metadata().map_err(|error| file_error("create volume", folder, &error))?.uid();
    match user_name(owner) {
        Some(name) => Account::lookup(&name),
        None => Err(invalid(
            "create volume",
            folder.display(),
            format!("no account has its owner's number {owner}; give --account"),
        )),
    }
}

/// Makes the directory of a new volume, or makes sure that the one that is to be it is there.
fn make_folder(storage: &Storage, path: &RelPath, is_new: bool, account: &Account) -> Result<(), Error> {
    let store = LocalStore::open(&storage.path, Access::ReadWrite)?;
    if !is_new {
        return store.below(path).map(drop);
    }
    let mut at = RelPath::root();
    for name in path.components() {
        let dir = store.root()?.descend(&at)?;
        at = at.child(name)?;
        match dir.mkdir(name, 0o755) {
            Ok(()) => {
                let folder = storage.path.join(std::ffi::OsStr::from_bytes(at.as_bytes()));
                if at == *path && rustix::process::geteuid().is_root() {
                    std::os::unix::fs::lchown(&folder, Some(account.uid), Some(account.gid))
                        .map_err(|error| file_error("give", &folder, &error))?;
                }
                dir.sync()?;
            }
            Err(error) if error.code == Code::PathExists => {}
            Err(error) => return Err(error),
        }
    }
    match store.root()?.descend(path)?.list()?.next() {
        None => Ok(()),
        Some(_) => {
            let cause = "it is not empty; with --in-place it becomes the volume as it is";
            Err(Error::new(Code::NotEmpty, "create volume", path, cause))
        }
    }
}

// ---- change ----------------------------------------------------------------------------------------------------------

fn change(
    name: &str,
    action: &'static str,
    home: &Home,
    context: &Context,
    edit: impl FnOnce(&mut Facts) -> Result<(), Error>,
) -> Result<u8, Error> {
    let mut facts = facts::find(home, name)?;
    edit(&mut facts)?;
    facts.store(home, name)?;
    report(action, name, None, "", context)
}

fn set(facts: &mut Facts, value: &str) -> Result<(), Error> {
    let (key, text) = value.split_once('=').ok_or_else(|| invalid("set", value, "write KEY=VALUE"))?;
    match key {
        "scan_every_s" => {
            facts.scan_every_s =
                text.parse().map_err(|_| invalid("set", value, "write a number of seconds"))?;
        }
        "account" => facts.account = Account::lookup(text)?.name,
        "hold" if facts.storage.is_empty() => {
            return Err(invalid("set", key, "it was subscribed to without --storage"));
        }
        "hold" => facts.hold = folders(text)?,
        _ => return Err(invalid("set", key, "there is `scan_every_s`, `account` and `hold`")),
    }
    Ok(())
}

/// The folders of a volume that somebody wrote, `/2026/raw,/public`.
pub(super) fn folders(text: &str) -> Result<Vec<String>, Error> {
    let folder = |text: &str| {
        let path = RelPath::parse_lenient(text.as_bytes())?;
        Ok(String::from_utf8_lossy(path.as_bytes()).into_owned())
    };
    text.split(',').filter(|text| !text.is_empty()).map(folder).collect()
}

fn add_grant(facts: &mut Facts, grant: Grant) {
    facts.grant.retain(|other| other.to != grant.to || other.on != grant.on);
    facts.grant.push(grant);
}

fn take_back(facts: &mut Facts, who: &Grantee, on: Option<&str>) -> Result<(), Error> {
    let before = facts.grant.len();
    facts.grant.retain(|grant| grant.to != *who || on.is_some_and(|on| grant.on != on));
    if facts.grant.len() == before {
        return Err(Error::new(Code::PathNotFound, "revoke", who, "there is no such grant"));
    }
    Ok(())
}

// ---- delete ----------------------------------------------------------------------------------------------------------

fn delete(name: &str, files: bool, home: &Home, context: &Context) -> Result<u8, Error> {
    let facts = facts::find(home, name)?;
    let config = Config::load(home)?;
    if files {
        let place = facts.place()?;
        if place.is_root() {
            return Err(invalid(
                "delete volume",
                name,
                "it is a whole storage, which is never removed; leave out --files",
            ));
        }
    }
    facts::remove(home, name)?;
    let request = json!({"op": "volume", "act": "forget", "id": id_text(&facts.id)});
    match socket::request(&login::socket(home, None), &request) {
        Ok(_) => {}
        Err(error) if error.code == Code::PopNotRunning => {
            Volumes::new(home, &config.catalogue).forget(facts.id)?
        }
        Err(error) => return Err(error),
    }
    if files {
        remove_files(&facts, &config)?;
    }
    report("deleted", name, None, if files { " with its files" } else { "; its files stay" }, context)
}

fn remove_files(facts: &Facts, config: &Config) -> Result<(), Error> {
    let (Some(storage), place) = (config.storage.get(&facts.storage), facts.place()?) else { return Ok(()) };
    let Some((parent, name)) = place.split() else { return Ok(()) };
    let dir =
        LocalStore::open(&storage.path, Access::ReadWrite)?.root()?.descend(&RelPath::parse(parent)?)?;
    remove_tree(&*dir, name).map(drop)
}

impl Report for Listing {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for volume in &self.volumes {
            writeln!(
                out,
                "{:<16} {:<12} {}:/{}  as {}",
                volume.name, volume.home, volume.storage, volume.path, volume.account
            )?;
        }
        Ok(())
    }
}

impl Report for Changed {
    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let Some(found) = &self.found else {
            return writeln!(out, "volume {} {}{}", self.name, self.action, self.note);
        };
        let Scanned { new, gone, changed, attributes, failed, .. } = found;
        write!(out, "volume {} {}: ", self.name, self.action)?;
        write!(out, "{new} new, {gone} gone, {changed} changed, {attributes} other attributes")?;
        if *failed > 0 {
            write!(out, ", {failed} failed")?;
        }
        writeln!(out, " ({} directories)", found.dirs)?;
        found
            .examples
            .iter()
            .filter(|_| self.action == "checked")
            .try_for_each(|line| writeln!(out, "  {line}"))
    }
}
