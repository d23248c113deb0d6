//! `renkei volume`: the volumes of a PoP, for its administrator in its directory, and for users over the network.
//!
//! `subscribe` and `unsubscribe` begin and end the following of a volume. `replicate`, `evict`, `verify` and
//! `replica_locations` (`renkei where`) are about replicas; `show` and `replica_status` print the state. `remote` sends
//! the requests of users.

pub(crate) mod account;
pub(crate) mod evict;
pub(crate) mod quota;
pub(crate) mod remote;
pub(crate) mod replica_locations;
pub(crate) mod replica_status;
pub(crate) mod replicate;
pub(crate) mod show;
pub(crate) mod subscribe;
pub(crate) mod unsubscribe;
pub(crate) mod verify;

use super::output::Report;
use super::quantity::counted;
use super::volume::account::{chosen, warn_of_root};
use super::volume::quota as volume_quota;
use super::volume::remote::Far;
use super::volume::show::{ask, show, shown};
use super::{Context, login};
use clap::Subcommand;
use renkei_config::home::{Home, file_error};
use renkei_config::{Config, Storage};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::volume::Manage;
use renkei_mover::fresh_id;
use renkei_net::identity::account::Account;
use renkei_net::identity::socket;
use renkei_store::Store;
use renkei_store::local::{AccessMode, LocalStore};
use renkei_store::tree::remove_tree;
use renkei_volume::config_change::{add_grant, pair, set, take_back};
use renkei_volume::creation::{check_name, folder, make_folder, refuse_overlap, relative, resolved, text};
use renkei_volume::dir_claim;
use renkei_volume::dir_claim::DirectoryClaim;
use renkei_volume::grant::{Grant, Grantee};
use renkei_volume::volume_config;
use renkei_volume::volume_config::{SCAN_EVERY_S, VolumeConfig, id_text};
use renkei_volume::volume_status::VolumeStatus;
use renkei_volume::{Scanned, Volumes};
use serde::Serialize;
use serde_json::json;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Make trees with a name of their own: plain files, and a catalogue that follows them
///
/// In the directory of a PoP all of it is for its administrator. From elsewhere, or with --at SITE, the PoP of a site is asked:
/// whom its `volumes.create` names may make volumes, and whoever made one, or was named a manager of it, manages it.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  renkei volume create genome --storage pool\n  renkei volume create genome --home kek --storage pool --replicas 2 --at kek,titech\n  renkei volume create genome --storage pool --in-place genome-2025\n  \
                       renkei volume set genome replicas=2 at=nig,titech\n  \
                       renkei volume grant genome '*@titech' read --on public\n  renkei ls -l /genome"
)]
pub struct Args {
    /// Ask the PoP of this site, as the user you are [default: your own, unless this is the directory of a PoP]
    #[arg(long, global = true, value_name = "SITE")]
    home: Option<String>,
    /// The same; with `create --replicas` the sites that hold replicas first, as NAME,NAME
    #[arg(long, global = true, value_name = "SITE")]
    at: Option<String>,
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
    /// Change the settings of a volume
    Set {
        /// Name of the volume
        name: String,
        /// `scan_every_s=SECONDS` (0: never by itself), `managers=NAME@SITE,...`, `log_records=COUNT` and `log_days=DAYS` (what is
        /// kept for sites that follow and are behind), in the PoP's directory `account=ACCOUNT`; `verify_rate=RATE` (how fast
        /// files are read and compared; `month`: all within about a month, `0`: never). At the home `replicas=COUNT` (that of the
        /// home among them; 0: no policy), `at=SITE,...` (those that come first), `repair_after=TIME` (a site that is silent so
        /// long is lost). Where it is followed `hold=/FOLDER,...`, whose files are all held there (`hold=/` for all of them,
        /// `hold=` for none), `policy=yes|no` (whether what the home wants held there is)
        #[arg(required = true, value_name = "KEY=VALUE")]
        values: Vec<String>,
        /// The folder that `replicas` and `at` are for [default: the whole volume]
        #[arg(long, value_name = "FOLDER", default_value = "")]
        folder: String,
    },
    Quota(volume_quota::Args),
    /// Suspend background replication and scrubs; at the home, followers keep their own new files too
    Pause {
        /// Name of the volume
        name: String,
    },
    /// Go on after `pause`
    Resume {
        /// Name of the volume
        name: String,
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
    ///
    /// As long as something that was written here is not at the home, it is refused: `renkei volume show NAME` tells how many
    /// changes wait.
    Unsubscribe(unsubscribe::Args),
    /// Compare a volume's catalogue with its plain files now
    Check {
        /// Name of the volume
        name: String,
        /// Accept the present directory as the volume's, to which its files were copied: files with the size and time of the
        /// catalogue stay the same versions, for this site and all that follow
        #[arg(long)]
        accept: bool,
        /// Take it although files are missing or others: they are removed or changed for all sites
        #[arg(long, requires = "accept")]
        yes: bool,
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
    /// A directory in it that is there becomes the volume: no byte is moved. On the PoP's machine DIR may be one of the working
    /// directory
    #[arg(long, value_name = "DIR")]
    in_place: Option<PathBuf>,
    /// The account that works for the users and sites of grants [default: the storage's account, else the directory's owner, never root]
    #[arg(long)]
    account: Option<String>,
    /// Seconds between two scans for changes made past the PoP; 0 for none
    #[arg(long, value_name = "SECONDS", default_value_t = SCAN_EVERY_S)]
    scan_every_s: u64,
    /// Replicas of each file that there shall be, that of the home among them; first at the sites in --at
    #[arg(long, value_name = "COUNT")]
    replicas: Option<u32>,
}

#[derive(Serialize)]
struct Listing {
    volumes: Vec<VolumeStatus>,
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
    let asked = args.home.as_deref().or(args.at.as_deref().filter(|_| args.first_at().is_none()));
    let is_local = matches!(args.action, Action::Subscribe(_) | Action::Unsubscribe(_)) && asked.is_none();
    if !is_local && let Some(far) = Far::wanted(asked, args.action.name(), context)? {
        return run_far(args, far, context);
    }
    let home = context.home()?;
    Config::load(&home)?.site(&home)?;
    match &args.action {
        Action::Create(new) => create(new, args.first_at(), &home, context),
        Action::List => {
            let volumes =
                volume_config::load(&home)?.into_iter().map(|(name, facts)| shown(&name, &facts, &home).0);
            context.output.answer(&Listing { volumes: volumes.collect() })?;
            Ok(0)
        }
        Action::Show { name } => show(name, &home, context),
        Action::Set { name, values, folder } => change(name, "changed", &home, context, |facts| {
            values.iter().try_for_each(|value| set_locally(name, facts, &with_folder(value, folder)))
        }),
        Action::Quota(args) => volume_quota::run(args, &home, context),
        Action::Pause { name } => change(name, "paused", &home, context, |facts| set(facts, "paused", "yes")),
        Action::Resume { name } => {
            change(name, "resumed", &home, context, |facts| set(facts, "paused", "no"))
        }
        Action::Grant { name, who, level, on } => {
            let grant = Grant::parse(who, level, on)?;
            if let Ok(account) =
                volume_config::find(&home, name).and_then(|facts| Account::lookup(&facts.account))
            {
                warn_of_root(name, &account);
            }
            change(name, "granted", &home, context, |facts| add_grant(facts, grant))
        }
        Action::Revoke { name, who, on } => {
            let who = Grantee::parse(who)?;
            change(name, "revoked", &home, context, |facts| take_back(facts, &who, on.as_deref()))
        }
        Action::Subscribe(args) => subscribe::run(args, context),
        Action::Unsubscribe(args) => unsubscribe::run(args, context),
        Action::Check { name, accept: true, yes } => {
            volume_config::find(&home, name)?;
            let request = json!({"op": "volume", "act": "accept", "name": name, "incomplete": yes});
            report("accepted", name, Some(ask(&home, request)?), "", context)
        }
        Action::Check { name, .. } => {
            volume_config::find(&home, name)?;
            let found: Scanned = ask(&home, json!({"op": "volume", "act": "check", "name": name}))?;
            report("checked", name, Some(found), "", context)
        }
        Action::Delete { name, files, .. } => delete(name, *files, &home, context),
    }
}

impl Args {
    /// The preferred sites of a new volume's replicas.
    fn first_at(&self) -> Option<&str> {
        match &self.action {
            Action::Create(Create { replicas: Some(_), .. }) => self.at.as_deref(),
            _ => None,
        }
    }
}

impl Action {
    /// The volume's name, if one is named that a user may ask about.
    fn name(&self) -> Option<&str> {
        match self {
            Action::Create(Create { name, .. })
            | Action::Show { name }
            | Action::Set { name, .. }
            | Action::Pause { name }
            | Action::Resume { name }
            | Action::Quota(volume_quota::Args { name, .. })
            | Action::Grant { name, .. }
            | Action::Revoke { name, .. }
            | Action::Check { name, .. }
            | Action::Delete { name, .. } => Some(name),
            Action::List | Action::Subscribe(_) | Action::Unsubscribe(_) => None,
        }
    }
}

// ---- at a site -------------------------------------------------------------------------------------------------------

fn run_far(args: &Args, mut far: Far, context: &Context) -> Result<u8, Error> {
    let (name, action) = (far.name().to_owned(), &args.action);
    match action {
        Action::List => {
            context.output.answer(&far.list()?)?;
            Ok(0)
        }
        Action::Show { .. } => {
            context.output.answer(&far.ask::<VolumeStatus>(Manage::Show)?)?;
            Ok(0)
        }
        Action::Create(new) => {
            let wanted = create_far(new, args.first_at())?;
            report("created", &name, Some(far.ask(wanted)?), "", context)
        }
        Action::Set { values, folder, .. } => {
            let pairs =
                values.iter().map(|value| pair(&with_folder(value, folder))).collect::<Result<_, _>>()?;
            far.done(Manage::Set(pairs)).and_then(|()| report("changed", &name, None, "", context))
        }
        Action::Quota(args) => volume_quota::run_far(args, far, context),
        Action::Pause { .. } | Action::Resume { .. } => {
            let (text, told) =
                if matches!(action, Action::Pause { .. }) { ("yes", "paused") } else { ("no", "resumed") };
            far.done(Manage::Set(vec![("paused".into(), text.into())]))?;
            report(told, &name, None, "", context)
        }
        Action::Grant { who, level, on, .. } => {
            let on = RelPath::parse_lenient(on.as_bytes())?;
            far.done(Manage::Grant { who: who.clone(), level: level.clone(), on })?;
            report("granted", &name, None, "", context)
        }
        Action::Revoke { who, on, .. } => {
            let on = on.as_ref().map(|on| RelPath::parse_lenient(on.as_bytes())).transpose()?;
            far.done(Manage::Revoke { who: who.clone(), on })?;
            report("revoked", &name, None, "", context)
        }
        Action::Check { accept: true, .. } => {
            let cause = "its administrator does that, in the directory of its PoP";
            Err(invalid("accept volume", &name, cause))
        }
        Action::Check { .. } => report("checked", &name, Some(far.ask(Manage::Check)?), "", context),
        Action::Delete { files: false, .. } => {
            far.done(Manage::Delete)?;
            report("deleted", &name, None, "; its files were kept", context)
        }
        Action::Delete { .. } | Action::Subscribe(_) | Action::Unsubscribe(_) => {
            let cause = "the administrator does that, in the PoP's directory; files go with `renkei rm -r`";
            Err(Error::new(Code::NotAllowed, "manage volume", name, cause))
        }
    }
}

impl Create {
    /// The replica options as settings.
    fn policy(&self, first_at: Option<&str>) -> impl Iterator<Item = (String, String)> {
        let replicas = self.replicas.map(|count| ("replicas".to_owned(), count.to_string()));
        replicas.into_iter().chain(first_at.map(|at| ("at".to_owned(), at.to_owned())))
    }
}

/// `KEY=VALUE` for a folder: `KEY:FOLDER=VALUE`.
fn with_folder(value: &str, folder: &str) -> String {
    match value.split_once('=') {
        Some((key, text)) if !folder.is_empty() => format!("{key}:{folder}={text}"),
        _ => value.into(),
    }
}

fn create_far(args: &Create, first_at: Option<&str>) -> Result<Manage, Error> {
    if args.account.is_some() {
        let cause = "it becomes the account that you have there; another one is the administrator's to set";
        return Err(invalid("create volume", "--account", cause));
    }
    let utf8 = |path: &PathBuf| {
        let text = path.to_str().map(str::to_owned);
        text.ok_or_else(|| invalid("create volume", path.display(), "its name must be UTF-8"))
    };
    let path = args.in_place.as_ref().or(args.path.as_ref()).map(utf8).transpose()?;
    let mut settings = vec![("scan_every_s".to_owned(), args.scan_every_s.to_string())];
    settings.extend(args.policy(first_at));
    Ok(Manage::Create { storage: args.storage.clone(), path, in_place: args.in_place.is_some(), settings })
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

fn create(args: &Create, first_at: Option<&str>, home: &Home, context: &Context) -> Result<u8, Error> {
    let config = Config::load(home)?;
    let storage = check_name(&args.name, &args.storage, &config, home)?;
    let named = args.in_place.as_deref().or(args.path.as_deref()).unwrap_or(Path::new(&args.name));
    let is_new = args.in_place.is_none();
    let working = std::env::current_dir().unwrap_or_default();
    let path = relative(&resolved(named, !is_new, &working, &storage.path), &storage.path)?;
    let folder = folder(storage, &path);
    refuse_overlap(&folder, &config, home)?;
    let named = args.account.as_deref();
    let account = chosen("create volume", &args.name, named, Some(storage), Some(&folder), &config)?;
    make_it(storage, &path, is_new, &account)?;
    let facts =
        VolumeConfig::new(fresh_id()?, config.site(home)?.clone(), &args.storage, text(&path)?, account.name);
    let mut facts = VolumeConfig { in_place: !is_new, scan_every_s: args.scan_every_s, ..facts };
    args.policy(first_at).try_for_each(|(key, text)| set(&mut facts, &key, &text))?;
    dir_claim::mark(&storage.path, &path, &DirectoryClaim::new(&facts.id, &facts.home));
    facts.store(home, &args.name)?;
    // The PoP, if it runs, has scanned all of it before this ends.
    match ask(home, json!({"op": "volume", "act": "check", "name": args.name})) {
        Ok(found) => report("created", &args.name, Some(found), "", context),
        Err(error) if error.code == Code::PopNotRunning => {
            report("created", &args.name, None, "; its files are looked at when the PoP runs", context)
        }
        Err(error) => Err(error),
    }
}

/// Creates the directory of a new volume, or checks that the existing one is there.
fn make_it(storage: &Storage, path: &RelPath, is_new: bool, account: &Account) -> Result<(), Error> {
    let store = LocalStore::open(&storage.path, AccessMode::ReadWrite)?;
    if !is_new {
        let root = storage.path.display().to_string();
        return store.below(path).map(drop).map_err(|error| error.under(&root));
    }
    make_folder(&store, path, |made| {
        if made != path || !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let folder = folder(storage, made);
        std::os::unix::fs::lchown(&folder, Some(account.uid), Some(account.gid))
            .map_err(|error| file_error("give", &folder, &error))
    })
}

// ---- change ----------------------------------------------------------------------------------------------------------

fn change(
    name: &str,
    action: &'static str,
    home: &Home,
    context: &Context,
    edit: impl FnOnce(&mut VolumeConfig) -> Result<(), Error>,
) -> Result<u8, Error> {
    let mut facts = volume_config::find(home, name)?;
    edit(&mut facts)?;
    facts.store(home, name)?;
    report(action, name, None, "", context)
}

/// Sets a key that only the administrator may set.
fn set_locally(name: &str, facts: &mut VolumeConfig, value: &str) -> Result<(), Error> {
    let (key, text) = pair(value)?;
    match key.as_str() {
        "account" => {
            let account = Account::lookup(&text)?;
            warn_of_root(name, &account);
            facts.account = account.name;
        }
        _ => set(facts, &key, &text)?,
    }
    Ok(())
}

// ---- delete ----------------------------------------------------------------------------------------------------------

fn delete(name: &str, files: bool, home: &Home, context: &Context) -> Result<u8, Error> {
    let facts = volume_config::find(home, name)?;
    let config = Config::load(home)?;
    if files {
        refuse_whole_storage(name, &facts)?;
    }
    volume_config::remove(home, name)?;
    release(&facts, &config, home)?;
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
    report("deleted", name, None, if files { " with its files" } else { "; its files were kept" }, context)
}

/// Removes the marker of a dropped volume from its directory.
pub(super) fn release(facts: &VolumeConfig, config: &Config, home: &Home) -> Result<(), Error> {
    if let Some(storage) = config.storage.get(&facts.storage) {
        let own = DirectoryClaim::new(&facts.id, config.site(home)?);
        dir_claim::release(&folder(storage, &facts.place()?), &own);
    }
    Ok(())
}

/// Refuses to remove the files of a volume that is a whole storage.
pub(super) fn refuse_whole_storage(name: &str, facts: &VolumeConfig) -> Result<(), Error> {
    if facts.place()?.is_root() {
        let cause = "it is a whole storage, which is never removed; leave out --files";
        return Err(invalid("delete volume", name, cause));
    }
    Ok(())
}

pub(super) fn remove_files(facts: &VolumeConfig, config: &Config) -> Result<(), Error> {
    let (Some(storage), place) = (config.storage.get(&facts.storage), facts.place()?) else { return Ok(()) };
    let Some((parent, name)) = place.split() else { return Ok(()) };
    let dir =
        LocalStore::open(&storage.path, AccessMode::ReadWrite)?.root()?.descend(&RelPath::parse(parent)?)?;
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
        write!(out, "{new} new, {gone} removed, {changed} changed, {attributes} with other attributes")?;
        if *failed > 0 {
            write!(out, ", {failed} failed")?;
        }
        writeln!(out, " ({})", counted(found.dirs, "directory", "directories"))?;
        found
            .examples
            .iter()
            .filter(|_| self.action != "created")
            .try_for_each(|line| writeln!(out, "  {line}"))
    }
}
