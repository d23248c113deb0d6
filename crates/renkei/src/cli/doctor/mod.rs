//! `renkei doctor`: checks this machine and its PoP, or the way to another site.
//!
//! `check` is one line of the output. `kernel`, `config_files` and `running_pop` check this machine and its PoP,
//! `partner_site` the way to a site.

pub(crate) mod check;
pub(crate) mod config_files;
pub(crate) mod kernel;
pub(crate) mod partner_site;
pub(crate) mod running_pop;

use super::Context;
use super::connect::site_argument;
use super::doctor::check::Checks;
use super::doctor::running_pop::Running;
use super::doctor::{config_files as doctor_files, partner_site as doctor_site};
use super::quantity::{counted, human, span};
use super::remedy::remedy;
use renkei_config::home::Home;
use renkei_config::{Config, Storage};
use renkei_core::error::{Code, Error};
use renkei_core::identity::AccountRule;
use renkei_core::path::RelPath;
use renkei_core::wire::message::Space;
use renkei_net::identity::account::Account;
use renkei_net::identity::certificate::utc;
use renkei_net::identity::credential::Credential;
use renkei_net::identity::kerberos::Service;
use renkei_net::identity::{map, socket};
use renkei_site::status::free_space::Served;
use renkei_site::status::health_checks::{certificate_ends, renewal_of_host, room_low};
use renkei_site::storage::identity as storage_identity;
use renkei_store::Store;
use renkei_store::local::{AccessMode, LocalStore};
use renkei_store::strict_modes::refuse_exposed;
use rustix::fs::StatVfsMountFlags;
use rustix::process::geteuid;
use serde_json::json;
use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Journals older than this are abandoned; the PoP removes them at its next round.
const ABANDONED_AFTER: Duration = renkei_site::transfer::cleanup::ABANDONED_AFTER;

/// Check this PoP and machine, or with SITE each step of the way to that site
///
/// One line a check: ok, info, warn or FAIL, what was found and what to do. The exit status is 0 if nothing failed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The site to check the way to [default: check this PoP and machine]
    site: Option<OsString>,
}

pub(super) fn run(args: &Args, context: &Context) -> Result<u8, Error> {
    let mut checks = Checks::default();
    match &args.site {
        Some(site) => doctor_site::check(&site_argument(site)?, context, &mut checks)?,
        None => check_here(context, &mut checks)?,
    }
    context.output.answer(&checks)?;
    Ok(checks.status())
}

fn check_here(context: &Context, checks: &mut Checks) -> Result<(), Error> {
    let home = context.home()?;
    match Config::load(&home) {
        Ok(config) if config.site.is_some() => check_pop(&home, &config, context, checks),
        Ok(_) => {
            let found = format!("no PoP in {}", home.config_dir().display());
            checks.ok("configuration", format!("{found}; checking the user and the machine"));
        }
        Err(error) => check_unusable(&home, &error, checks),
    }
    check_login(&home, context, checks);
    kernel::check(checks);
    Ok(())
}

/// Reports an invalid configuration, also where a PoP runs with an earlier one.
fn check_unusable(home: &Home, error: &Error, checks: &mut Checks) {
    let running = Running::ask(home);
    if !running.tells_of("configuration", "") {
        checks.error("configuration", error);
    }
    running.check_told(checks);
}

fn check_pop(home: &Home, config: &Config, context: &Context, checks: &mut Checks) {
    let site = config.site.as_ref().map(ToString::to_string).unwrap_or_default();
    checks.ok("configuration", format!("{} is valid, site {site}", home.config_file().display()));
    let running = Running::ask(home);
    running.check(home, config, checks);
    if !running.tells_of("certificate", "host") {
        check_host_certificate(home, context.now(), checks);
    }
    check_authority_key(home, checks);
    doctor_files::check(home, checks);
    running.check_authorities(home, context.now(), checks);
    running.check_volumes(home, checks);
    running.check_rules(config, checks);
    if config.storage.is_empty() {
        checks.ok("storages", "none yet; `renkei storage add NAME PATH` shares a directory");
    }
    let untold = config.storage.iter().filter(|(name, _)| !running.tells_of("storage", name));
    let served = served(home);
    untold.for_each(|(name, storage)| {
        let seen = served.iter().find(|served| served.name == *name).map(|served| served.space.clone());
        check_storage(name, storage, seen.unwrap_or_else(|| room_at(home, name, storage)), checks);
    });
    check_buffer(home, config, checks);
    if !running.tells_of("configuration", "kerberos") {
        check_kerberos(config, checks);
    }
    check_mapping(home, checks);
    check_journals(home, context.now(), checks);
}

/// Whether the PoP accepts Kerberos tickets, as far as this account can tell, which may not read the keytab.
fn check_kerberos(config: &Config, checks: &mut Checks) {
    let (service, chosen) = (Service::load(&config.kerberos), config.kerberos.is_chosen());
    let keytab = config.kerberos.keytab.display();
    match service.trouble() {
        None => checks.ok("kerberos", format!("tickets are accepted, by the keys in {keytab}")),
        Some(trouble) if chosen => checks.warn("kerberos", trouble.to_string(), remedy(trouble)),
        Some(trouble) => {
            checks.ok("kerberos", format!("tickets are not accepted: {keytab}: {}", trouble.cause))
        }
    }
}

fn check_host_certificate(home: &Home, now: SystemTime, checks: &mut Checks) {
    let facts = Credential::host(home, now).and_then(|credential| credential.facts());
    let end = match facts {
        Ok(facts) => facts.not_after,
        // Only the account of the PoP can read the key.
        Err(error) if error.code == Code::PermissionDenied => {
            return checks.warn("host certificate", error.to_string(), "run this as the PoP's account");
        }
        Err(error) => return checks.error("host certificate", &error),
    };
    let left = end.duration_since(now).unwrap_or_default();
    let found = format!("valid until {} ({})", utc(end), span(left));
    match certificate_ends("host", end, now, renewal_of_host(home)) {
        None => checks.ok("host certificate", found),
        Some(finding) => checks.ends("host certificate", found, finding),
    }
}

fn check_authority_key(home: &Home, checks: &mut Checks) {
    let (path, what) = (home.ca_key(), "authority's key");
    match std::fs::metadata(&path) {
        Ok(metadata) if metadata.permissions().mode() & 0o077 == 0 => {
            checks.ok(what, format!("{} is mode 600", path.display()));
        }
        Ok(metadata) => {
            let mode = metadata.permissions().mode() & 0o7777;
            let remedy = Code::SecretExposed.row().remedy;
            checks.fail(what, format!("{} has mode {mode:o}: others can read it", path.display()), remedy);
        }
        Err(error) => {
            let found = format!("{}: {error}", path.display());
            checks.warn(
                what,
                found,
                "without it users cannot log in and certificates cannot be renewed here",
            );
        }
    }
}

/// The storages as the PoP serves them; none while it does not run, or without permission to ask.
fn served(home: &Home) -> Vec<Served> {
    let told = socket::request(&home.socket(), &json!({"op": "storages"}));
    told.ok().and_then(|told| serde_json::from_value(told).ok()).unwrap_or_default()
}

/// The space in a storage, as a PoP that is started now would find it.
fn room_at(home: &Home, name: &str, storage: &Storage) -> Result<Space, Error> {
    storage_identity::check(home, name, storage)?.space(&RelPath::root())
}

fn check_storage(name: &str, storage: &Storage, room: Result<Space, Error>, checks: &mut Checks) {
    let what = format!("storage {name}");
    if let Some(account) = &storage.agent {
        return checks.ok(&what, format!("an agent of {account} serves it"));
    }
    let (path, room) = (
        &storage.path,
        match room {
            Ok(room) => room,
            Err(error) => return checks.error(&what, &error),
        },
    );
    if let Err((found, remedy)) = check_writable(storage) {
        return checks.fail(&what, found, remedy);
    }
    let mode = if storage.read_only { "read-only" } else { "writable" };
    let (free, all) = (room.available_bytes, room.total_bytes);
    let found = format!("{}, {mode}, {} of {} free", path.display(), human(free), human(all));
    match room_low(name, &room).filter(|_| !storage.read_only) {
        Some(low) => checks.warn(&what, found, low.remedy),
        None => checks.ok(&what, found),
    }
}

/// Checks that the buffer's file system has the configured space.
fn check_buffer(home: &Home, config: &Config, checks: &mut Checks) {
    let (buffer, what) = (&config.buffer, "buffer");
    let folder = buffer.folder(home);
    if buffer.size_mib == 0 {
        return checks
            .ok(what, "none: `cp --detach` takes no files of users' own machines (`buffer.size_mib`)");
    }
    // The PoP's account may differ from the caller's.
    let pop = home.state_dir().metadata().map(|state| state.uid()).into_iter().chain([geteuid().as_raw()]);
    if let Err(error) = refuse_exposed(&folder, &pop.collect::<Vec<_>>()) {
        return checks.error(what, &error);
    }
    let there = folder.ancestors().find(|path| path.exists()).unwrap_or(folder.as_path());
    let room = LocalStore::open(there, AccessMode::ReadOnly).and_then(|store| store.space(&RelPath::root()));
    let room = match room {
        Ok(room) => room,
        Err(error) => return checks.error(what, &error),
    };
    if !may_write(there) {
        let found = format!("{} cannot be written", there.display());
        return checks.fail(what, found, "give the PoP's account write access there, or set `buffer.path`");
    }
    let found = format!(
        "{}, {} for all and {} for one user; the file system has {} free of {}",
        folder.display(),
        human(buffer.size()),
        human(buffer.per_user()),
        human(room.available_bytes),
        human(room.total_bytes)
    );
    match buffer.size() > room.total_bytes {
        true => checks.warn(what, found, "lower `buffer.size_mib`, or transfers will wait with RK-STORE-24"),
        false => checks.ok(what, found),
    }
}

/// Checks that the storage is writable as configured: by its account, else by this process.
fn check_writable(storage: &Storage) -> Result<(), (String, String)> {
    let path = storage.path.clone();
    if storage.read_only {
        return Ok(());
    }
    let mounted = rustix::fs::statvfs(&path);
    if mounted.is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY)) {
        let remedy = "remount it, or add the storage with --read-only";
        return Err((format!("{} is on a read-only file system", path.display()), remedy.into()));
    }
    let Some(name) = &storage.account else { return Ok(()) };
    let remedy = || format!("give {name} write access there, or add the storage with another --account");
    let account = Account::lookup(name).and_then(|account| account.spawn("doctor", move || may_write(&path)));
    let written = account.map_err(|error| (error.to_string(), remedy()))?.join();
    match written {
        Ok(true) => Ok(()),
        _ => Err((format!("{name} may not write in {}", storage.path.display()), remedy())),
    }
}

/// Whether this thread's account may create names in a directory.
fn may_write(path: &Path) -> bool {
    use rustix::fs::{Access, AtFlags, CWD};
    rustix::fs::accessat(CWD, path, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

fn check_mapping(home: &Home, checks: &mut Checks) {
    let mapping = match map::load(home) {
        Ok(mapping) => mapping,
        Err(error) => return checks.error("mapping", &error),
    };
    let mut good = 0;
    for rule in mapping.rules() {
        let AccountRule::Named(name) = &rule.account else {
            good += 1;
            continue;
        };
        match Account::lookup(name).and_then(|account| account.check_servable()) {
            Ok(()) => good += 1,
            Err(error) => checks.error(&format!("mapping, line {}", rule.line), &error),
        }
    }
    checks.ok("mapping", format!("{good} of {} rules name accounts of this machine", mapping.rules().len()));
}

fn check_journals(home: &Home, now: SystemTime, checks: &mut Checks) {
    let Ok(listing) = std::fs::read_dir(home.journal_dir()) else {
        return checks.ok("journals", "none can be seen");
    };
    let ages = listing
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|kind| kind == "journal"))
        .filter_map(|entry| now.duration_since(entry.metadata().ok()?.modified().ok()?).ok());
    let ages: Vec<Duration> = ages.collect();
    let abandoned = ages.iter().filter(|age| **age > ABANDONED_AFTER).count();
    let found = format!(
        "{} running or to be resumed, {abandoned} of them abandoned",
        counted(ages.len(), "transfer", "transfers")
    );
    match abandoned {
        0 => checks.ok("journals", found),
        _ => checks.warn(
            "journals",
            found,
            "a running PoP removes them and their temporary files within a day",
        ),
    }
}

/// Checks the user's own certificate.
pub(super) fn check_login(home: &Home, context: &Context, checks: &mut Checks) -> Option<Credential> {
    let credential = match Credential::user(home, context.now()) {
        Ok(credential) => credential,
        Err(error) if error.code == Code::NotLoggedIn => {
            let found = "no user is logged in here";
            // With a PoP here, a login is optional.
            match Config::load(home).is_ok_and(|config| config.site.is_some()) {
                true => checks.advise("login", found, "`renkei login` for transfers of your own"),
                false => checks.warn("login", found, remedy(&error)),
            }
            return None;
        }
        Err(error) => {
            checks.error("login", &error);
            return None;
        }
    };
    match credential.facts().and_then(|facts| Ok((facts.holder()?.0, facts.not_after))) {
        Ok((principal, end)) => {
            let left = span(end.duration_since(context.now()).unwrap_or_default());
            checks.ok("login", format!("{principal} until {} ({left})", utc(end)));
        }
        Err(error) => checks.error("login", &error),
    }
    Some(credential)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_storage_fails() {
        let dir = tempfile::tempdir().unwrap();
        let mut checks = Checks::default();
        let storage = |path| Storage { path, ..Storage::default() };
        let home = Home::at(&dir.path().join("pop"));
        let check = |name: &str, path: std::path::PathBuf, checks: &mut Checks| {
            let storage = storage(path);
            check_storage(name, &storage, room_at(&home, name, &storage), checks);
        };
        check("data", dir.path().to_path_buf(), &mut checks);
        assert_eq!(checks.status(), 0);
        check("gone", dir.path().join("gone"), &mut checks);
        assert_eq!(checks.status(), 8);
    }

    #[test]
    fn an_exposed_authority_fails() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::at(dir.path());
        std::fs::create_dir_all(home.pki_dir()).unwrap();
        std::fs::write(home.ca_key(), "key").unwrap();
        for (mode, status) in [(0o600, 0), (0o640, 1)] {
            std::fs::set_permissions(home.ca_key(), PermissionsExt::from_mode(mode)).unwrap();
            let mut checks = Checks::default();
            check_authority_key(&home, &mut checks);
            assert_eq!(checks.status(), status, "{mode:o}");
        }
    }
}
