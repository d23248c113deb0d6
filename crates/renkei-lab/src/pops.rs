//! The PoPs of a lab: one at each site that is configured for it, all trusting each other.
//!
//! Each is made, started and logged in to with the commands an administrator would use. The user who runs the lab has
//! the same account at every site; other accounts of the machine are not mapped at other sites. A PoP ends with its
//! namespace.

use super::folder::LabFolder;
use super::network::host_names;
use super::topology::{Gate, Site, Topology};
use renkei_config::home::{Home, make_dir};
use renkei_config::{DEFAULT_PORT, MAX_REVERSE, add_reverse, allow_private};
use renkei_core::error::{Code, Error};
use renkei_net::identity::account::Account;
use renkei_net::identity::map;
use renkei_net::identity::trust::Trust;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Timeout for a PoP to answer after its start.
const START_WITHIN: Duration = Duration::from_secs(60);

/// Makes and starts the PoPs; returns when each has its user logged in.
pub fn start(folder: &LabFolder, topology: &Topology) -> Result<Vec<Child>, Error> {
    let sites: Vec<(usize, &Site)> = topology.sites.iter().enumerate().filter(|(_, site)| site.pop).collect();
    run_all(sites.iter().map(|(at, site)| {
        let mut command = own(folder, site);
        command.args(["init", "--site", site.name.as_str()]);
        for path in topology.paths_of(*at) {
            command.arg("--endpoint").arg(endpoint(topology, *at, path));
        }
        command
    }))?;
    for (at, site) in &sites {
        add_storage(folder, site)?;
        keep_lines(folder, topology, (*at, site))?;
    }
    introduce(folder, &sites)?;
    let mut processes = Vec::new();
    for (_, site) in &sites {
        processes.push(serve(folder, site)?);
    }
    for ((_, site), process) in sites.iter().zip(&mut processes) {
        wait_for(folder, site, process)?;
    }
    run_all(sites.iter().map(|(_, site)| {
        let mut command = own(folder, site);
        command.arg("login");
        command
    }))?;
    Ok(processes)
}

/// The endpoint of a site's PoP on a path.
fn endpoint(topology: &Topology, site: usize, path: usize) -> String {
    format!("{}:{DEFAULT_PORT}", host_names(topology, site, path)[0])
}

/// The folder of a site's storage.
pub fn storage(folder: &LabFolder, site: &Site) -> PathBuf {
    site.storage.clone().unwrap_or_else(|| folder.site(site.name.as_str()).join("data"))
}

/// The same program for a site's directory, without `RENKEI_` variables of the environment.
fn own(folder: &LabFolder, site: &Site) -> Command {
    let program = std::env::current_exe().unwrap_or_else(|_| "renkei".into());
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RENKEI_")) {
        command.env_remove(name);
    }
    command.env("RENKEI_LAB_DIR", folder.base());
    command.arg("--dir").arg(folder.pop(site.name.as_str())).stdin(Stdio::null());
    command
}

/// Runs commands concurrently; returns the first error.
fn run_all(commands: impl Iterator<Item = Command>) -> Result<(), Error> {
    let spawn = |mut command: Command| {
        let child = command.arg("--json").stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        child.map_err(|error| Error::new(Code::SystemCall, "run", format!("{command:?}"), error))
    };
    let children: Vec<_> = commands.map(spawn).collect();
    let outcomes: Vec<_> = children.into_iter().map(|child| child.and_then(finish)).collect();
    outcomes.into_iter().collect()
}

fn finish(child: Child) -> Result<(), Error> {
    let output = child.wait_with_output().map_err(|error| Error::new(Code::SystemCall, "run", "", error))?;
    if output.status.success() {
        return Ok(());
    }
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let error = serde_json::from_value::<Error>(answer["error"].clone());
    Err(error.unwrap_or_else(|_| Error::new(Code::Internal, "run", "renkei", output.status)))
}

/// Configures lines from a site behind a border to the PoPs of all open sites it has a link to.
fn keep_lines(folder: &LabFolder, topology: &Topology, (at, site): (usize, &Site)) -> Result<(), Error> {
    if site.gate == Gate::Open {
        return Ok(());
    }
    let home = Home::at(&folder.pop(site.name.as_str()));
    let is_hub = |(number, other): &(usize, &Site)| {
        let linked = topology.links.iter().any(|link| link.from == at && link.to == *number);
        other.pop && other.gate == Gate::Open && linked
    };
    let hubs = topology.sites.iter().enumerate().filter(is_hub);
    hubs.take(MAX_REVERSE).try_for_each(|(_, hub)| add_reverse(&home, &hub.name))
}

fn add_storage(folder: &LabFolder, site: &Site) -> Result<(), Error> {
    let path = storage(folder, site);
    make_dir(&path, 0o755)?;
    let mut command = own(folder, site);
    command.args(["storage", "add", "data"]).arg(path);
    run_all(std::iter::once(command))
}

/// Exchanges the cards between all sites and maps the user who runs the lab.
fn introduce(folder: &LabFolder, sites: &[(usize, &Site)]) -> Result<(), Error> {
    let Account { name: account, uid, .. } = Account::own()?;
    // An account without a name cannot be told from others.
    let user = if account == format!("uid-{uid}") { "*" } else { &account };
    let home = |site: &Site| Home::at(&folder.pop(site.name.as_str()));
    for (_, site) in sites {
        let mut trust = Trust::load(&home(site))?;
        for (_, other) in sites.iter().filter(|(_, other)| other.name != site.name) {
            let card = Trust::load(&home(other))?.export(&other.name);
            let card = card.expect("a PoP that was just made has its own card");
            trust.add(card.for_others())?;
            // All addresses of a lab are private.
            allow_private(&home(site), other.name.as_str())?;
            map::add(&home(site), &format!("{user}@{}", other.name), &account)?;
        }
    }
    Ok(())
}

/// Starts a PoP in its namespace; the child process is the PoP itself.
fn serve(folder: &LabFolder, site: &Site) -> Result<Child, Error> {
    let path = folder.site(site.name.as_str()).join("log");
    let failed = |error: std::io::Error| Error::new(Code::SystemCall, "start PoP", &site.name, error);
    let log = File::create(&path).map_err(failed)?;
    let mut command = own(folder, site);
    let program = command.get_program().to_owned();
    command.args(["lab", "run", "--lab", folder.name(), site.name.as_str(), "--"]).arg(program).arg("serve");
    command.stdout(Stdio::null()).stderr(log).spawn().map_err(failed)
}

fn wait_for(folder: &LabFolder, site: &Site, process: &mut Child) -> Result<(), Error> {
    let socket = Home::at(&folder.pop(site.name.as_str())).socket();
    let log = folder.site(site.name.as_str()).join("log");
    let start = Instant::now();
    while UnixStream::connect(&socket).is_err() {
        let failed = |cause: String| Err(Error::new(Code::LabSetupFailed, "start PoP", &site.name, cause));
        if let Ok(Some(status)) = process.try_wait() {
            return failed(format!("it ended with {status}: {}", last_words(&log)));
        }
        if start.elapsed() > START_WITHIN {
            return failed(format!("it does not answer within {} s", START_WITHIN.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// The last lines of a log, on one line.
pub fn last_words(log: &Path) -> String {
    const LINES: usize = 3;
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().filter(|line| !line.trim().is_empty()).take(LINES).collect();
    lines.into_iter().rev().map(str::trim).collect::<Vec<_>>().join("; ")
}
