//! `renkei doctor`: checks this machine and its PoP, or the way to another site.

use super::check::Checks;
use super::connect::site_argument;
use super::quantity::{human, span};
use super::{Context, doctor_site, kernel};
use crate::config::{Config, Storage};
use crate::home::Home;
use crate::identity::account::Account;
use crate::identity::certificate::utc;
use crate::identity::credential::Credential;
use crate::identity::{map, socket};
use crate::store::Store;
use crate::store::local::{Access, LocalStore};
use renkei_core::error::{Code, Error};
use renkei_core::identity::AccountRule;
use renkei_core::path::RelPath;
use renkei_core::wire::message::{AgentStatus, LineStatus};
use rustix::fs::StatVfsMountFlags;
use serde_json::json;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Certificates of PoPs should be renewed this long before their end.
const RENEW_BEFORE: Duration = Duration::from_secs(30 * 86_400);
/// Less room than this share of a storage is a warning.
const LITTLE_ROOM: f64 = 0.05;
/// How long our own port may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Journals older than this were given up; the PoP removes them at its next round.
const ABANDONED_AFTER: Duration = crate::site::cleanup::ABANDONED_AFTER;

/// Check this PoP and machine, or with SITE each step of the way to that site
///
/// One line a check: ok, warn or FAIL, what was found and what to do. The exit status is 0 if nothing failed.
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
        Err(error) => checks.error("configuration", &error),
    }
    check_login(&home, context, checks);
    kernel::check(checks);
    Ok(())
}

fn check_pop(home: &Home, config: &Config, context: &Context, checks: &mut Checks) {
    let site = config.site.as_ref().map(ToString::to_string).unwrap_or_default();
    checks.ok("configuration", format!("{} is valid, site {site}", home.config_file().display()));
    check_host_certificate(home, context.now(), checks);
    check_authority_key(home, checks);
    if config.storage.is_empty() {
        checks.warn("storages", "none", "`renkei storage add NAME PATH` shares a directory");
    }
    config.storage.iter().for_each(|(name, storage)| check_storage(name, storage, checks));
    check_running(home, config, checks);
    check_mapping(home, checks);
    check_journals(home, context.now(), checks);
}

fn check_host_certificate(home: &Home, now: SystemTime, checks: &mut Checks) {
    let facts = Credential::host(home, now).and_then(|credential| credential.facts());
    let end = match facts {
        Ok(facts) => facts.not_after,
        // The key is readable by the account of the PoP alone.
        Err(error) if error.code == Code::PermissionDenied => {
            return checks.warn("host certificate", error.to_string(), "run this as the PoP's account");
        }
        Err(error) => return checks.error("host certificate", &error),
    };
    let left = end.duration_since(now).unwrap_or_default();
    let found = format!("valid until {} ({})", utc(end), span(left));
    match left > RENEW_BEFORE {
        true => checks.ok("host certificate", found),
        false => checks.warn("host certificate", found, "`renkei renew`"),
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
            checks.warn(what, found, "without it nobody can log in and nothing can be renewed here");
        }
    }
}

fn check_storage(name: &str, storage: &Storage, checks: &mut Checks) {
    let what = format!("storage {name}");
    if let Some(account) = &storage.agent {
        return checks.ok(&what, format!("an agent of {account} serves it"));
    }
    let path = &storage.path;
    let room = LocalStore::open(path, Access::ReadOnly).and_then(|store| store.space(&RelPath::root()));
    let room = match room {
        Ok(room) => room,
        Err(error) => return checks.error(&what, &error),
    };
    if let Err((found, remedy)) = check_writable(storage) {
        return checks.fail(&what, found, remedy);
    }
    let mode = if storage.read_only { "read-only" } else { "writable" };
    let found =
        format!("{}, {mode}, {} of {} free", path.display(), human(room.available), human(room.total));
    match (room.available as f64) < room.total as f64 * LITTLE_ROOM && !storage.read_only {
        true => checks.warn(&what, found, "free space, or transfers will end with RK-STORE-6"),
        false => checks.ok(&what, found),
    }
}

/// Whether the storage can be written as it is meant to: by its account, else by this process.
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
    let remedy =
        || format!("give {name} the right to write there, or add the storage with another --account");
    let account = Account::lookup(name).and_then(|account| account.spawn("doctor", move || may_write(&path)));
    let written = account.map_err(|error| (error.to_string(), remedy()))?.join();
    match written {
        Ok(true) => Ok(()),
        _ => Err((format!("{name} may not write in {}", storage.path.display()), remedy())),
    }
}

/// Whether this thread's account may make names in a directory.
fn may_write(path: &Path) -> bool {
    use rustix::fs::{Access, AtFlags, CWD};
    rustix::fs::accessat(CWD, path, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

fn check_running(home: &Home, config: &Config, checks: &mut Checks) {
    match socket::request(&home.socket(), &json!({"op": "status"})) {
        Ok(status) => {
            checks.ok("PoP", format!("answers at {}", home.socket().display()));
            check_lines(&status, config, checks);
            check_agents(&status, checks);
        }
        Err(error) => checks.error("PoP", &error),
    }
    for address in &config.listen {
        let what = format!("port {address}");
        match TcpStream::connect_timeout(&reachable(*address), ANSWER_WITHIN) {
            Ok(_) => checks.ok(&what, "somebody listens"),
            Err(error) => {
                let error = crate::mover::reach::unreachable(&error);
                checks.error(&what, &Error { subject: address.to_string(), ..error }.at("client"));
            }
        }
    }
}

/// Whether the lines are up over which this PoP is reached.
fn check_lines(status: &serde_json::Value, config: &Config, checks: &mut Checks) {
    let lines: Vec<LineStatus> = serde_json::from_value(status["lines"].clone()).unwrap_or_default();
    for hub in &config.reverse {
        let what = format!("line to {hub}");
        match lines.iter().find(|line| line.kept_here && line.site == *hub) {
            Some(line) => checks.ok(&what, format!("up {}", span(Duration::from_secs(line.up_s)))),
            None => checks.fail(
                &what,
                "down: others do not reach this PoP over it",
                format!("`renkei doctor {hub}`"),
            ),
        }
    }
}

/// Whether the agents are connected that serve storages.
fn check_agents(status: &serde_json::Value, checks: &mut Checks) {
    let agents: Vec<AgentStatus> = serde_json::from_value(status["agents"].clone()).unwrap_or_default();
    for AgentStatus { storage, account, up_s } in agents {
        let what = format!("agent of {storage}");
        match up_s {
            Some(up_s) => checks.ok(&what, format!("up {}", span(Duration::from_secs(up_s)))),
            None => checks.warn(
                &what,
                format!("not connected; {account} runs it"),
                Code::AgentAbsent.row().remedy,
            ),
        }
    }
}

/// The address that reaches a listener of this machine on all addresses.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
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
    let found = format!("{} transfers running or to be resumed, {abandoned} of them abandoned", ages.len());
    match abandoned {
        0 => checks.ok("journals", found),
        _ => checks.warn(
            "journals",
            found,
            "a running PoP removes them and their temporary files within a day",
        ),
    }
}

/// The user's own certificate.
pub(super) fn check_login(home: &Home, context: &Context, checks: &mut Checks) -> Option<Credential> {
    let credential = match Credential::user(home, context.now()) {
        Ok(credential) => credential,
        Err(error) if error.code == Code::NotLoggedIn => {
            checks.warn("login", "there is no user certificate here", error.code.row().remedy);
            return None;
        }
        Err(error) => {
            checks.error("login", &error);
            return None;
        }
    };
    match credential.facts().and_then(|facts| Ok((facts.principal()?, facts.not_after))) {
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
    fn a_listener_on_all_addresses_is_reached_on_loopback() {
        let reached = |text: &str| reachable(text.parse().unwrap()).to_string();
        assert_eq!(reached("0.0.0.0:7512"), "127.0.0.1:7512");
        assert_eq!(reached("[::]:7512"), "[::1]:7512");
        assert_eq!(reached("192.0.2.1:7512"), "192.0.2.1:7512");
    }

    #[test]
    fn a_storage_that_is_not_there_fails() {
        let dir = tempfile::tempdir().unwrap();
        let mut checks = Checks::default();
        let storage = |path| Storage { path, ..Storage::default() };
        check_storage("data", &storage(dir.path().to_path_buf()), &mut checks);
        assert_eq!(checks.status(), 0);
        check_storage("gone", &storage(dir.path().join("gone")), &mut checks);
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
