//! A lab's folder: its state file, lock, log, control socket and the sites' data.
//!
//! `/var/lib/renkei-lab/NAME`, or below `RENKEI_LAB_DIR`. The lab's process holds the lock for as long as it lives,
//! so a folder whose lock is free remains from a crash, whatever its state file says. [`LabFolder::sweep`] removes
//! all of it: processes, namespaces, devices, files.

use super::namespace::{self, LET_GO_WITHIN, try_lock};
use super::topology::{Topology, check_name};
use renkei_config::home::{file_error, make_dir, read_text, write_file};
use renkei_core::error::{Code, Error};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The default base folder, without `RENKEI_LAB_DIR`.
const BASE: &str = "/var/lib/renkei-lab";
/// The name of the lock, which marks a lab's folder.
const LOCK: &str = "lock";
/// Version of the state file.
const VERSION: u32 = 1;

/// The folder of one lab.
#[derive(Clone, Debug)]
pub struct LabFolder {
    base: PathBuf,
    name: String,
}

/// The state file of a lab, written before anything of it is made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    version: u32,
    /// The lab's process.
    pub pid: i32,
    /// Start time of that process, in the kernel's ticks: detects a reused pid.
    pub started: u64,
    /// The emulated topology, as it was at the start.
    pub topology: Topology,
}

impl State {
    /// The state of a lab that this process runs.
    pub fn of_this_process(topology: &Topology) -> Self {
        let pid = std::process::id() as i32;
        State { version: VERSION, pid, started: start_time(pid).unwrap_or(0), topology: topology.clone() }
    }

    /// Whether the process that wrote this still runs.
    pub fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.started)
    }

    /// Signals the process that wrote this, and no other process with a reused pid.
    pub fn signal(&self, signal: Signal) {
        let process = Pid::from_raw(self.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some(process) = process.filter(|_| self.is_alive()) {
            let _ = pidfd_send_signal(process, signal);
        }
    }
}

/// Field 22 of /proc/PID/stat; none for a zombie.
fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    fields.nth(18)?.parse().ok().filter(|_| !ended)
}

impl LabFolder {
    /// The folder of the lab `name`, whether it exists or not.
    pub fn of(name: &str) -> Result<Self, Error> {
        check_name(name).map_err(|cause| Error::new(Code::UsageInvalid, "find lab", name, cause))?;
        Ok(LabFolder { base: base(), name: name.into() })
    }

    /// The only lab there is, or the one that `RENKEI_LAB` names: the default of commands without `--lab`.
    pub fn only() -> Result<Self, Error> {
        if let Ok(name) = std::env::var("RENKEI_LAB") {
            return LabFolder::of(&name);
        }
        let names: Vec<String> = LabFolder::all().into_iter().collect();
        match &names[..] {
            [name] => LabFolder::of(name),
            [] => Err(Error::new(Code::LabUnknown, "find lab", "", "there is none on this machine")),
            several => {
                let cause = format!("there are several, name one with --lab: {}", several.join(", "));
                Err(Error::new(Code::UsageInvalid, "find lab", "", cause))
            }
        }
    }

    /// The names of all labs, running or left over.
    pub fn all() -> BTreeSet<String> {
        let folders = std::fs::read_dir(base()).into_iter().flatten();
        let named = folders.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let is_lab = |name: &String| LabFolder::of(name).is_ok_and(|folder| folder.exists());
        named.filter(is_lab).chain(namespace::labs()).collect()
    }

    /// The lab's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder itself.
    pub fn path(&self) -> PathBuf {
        self.base.join(&self.name)
    }

    /// The folder that all labs are in.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// The control socket.
    pub fn socket(&self) -> PathBuf {
        self.path().join("control.sock")
    }

    /// The log of the lab's process.
    pub fn log(&self) -> PathBuf {
        self.path().join("log")
    }

    /// The folder of a site's PoP directory, storage and log.
    pub fn site(&self, site: &str) -> PathBuf {
        self.path().join("sites").join(site)
    }

    /// The directory of a site's PoP and of its user: `RENKEI_DIR` there.
    pub fn pop(&self, site: &str) -> PathBuf {
        self.site(site).join("pop")
    }

    fn lock_file(&self) -> PathBuf {
        self.path().join(LOCK)
    }

    fn state_file(&self) -> PathBuf {
        self.path().join("state.json")
    }

    /// Makes the folder and takes its lock.
    ///
    /// # Errors
    /// `LabRunning` if a lab's process holds it, `PathExists` if the folder is not a lab's.
    pub fn lock(&self) -> Result<File, Error> {
        let path = self.lock_file();
        if self.is_foreign() {
            let cause = "the folder is there already and is no lab's";
            return Err(Error::new(Code::PathExists, "make lab", self.path().display(), cause));
        }
        let failed = |error: io::Error| file_error("lock", &path, &error);
        let start = Instant::now();
        loop {
            make_dir(&self.path(), 0o755)?;
            let open = File::options().create(true).truncate(false).write(true).open(&path);
            // The previous holder may have removed the folder, before or after the lock in it was opened.
            let file = match open {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.map_err(failed)?,
            };
            let is_there = || path.metadata().is_ok_and(|now| Some(now.ino()) == inode(&file));
            match try_lock(&file, &path)? {
                true if is_there() => return Ok(file),
                true => continue,
                // A killed process releases the lock when its last thread has ended.
                false if self.has_died() && start.elapsed() < LET_GO_WITHIN => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                false => {
                    let cause = "its process holds the lock";
                    return Err(Error::new(Code::LabRunning, "lock", &self.name, cause));
                }
            }
        }
    }

    /// Whether the folder of this name is not a lab's: it must not be swept.
    fn is_foreign(&self) -> bool {
        // One listing: the lock is the last to go when a lab is removed concurrently.
        let names = self.entries();
        !names.is_empty() && !names.iter().any(|name| name == LOCK)
    }

    /// Whether anything of this lab exists.
    pub fn exists(&self) -> bool {
        self.lock_file().exists() || !namespace::of_lab(&self.name).is_empty()
    }

    /// Writes the state.
    pub fn write(&self, state: &State) -> Result<(), Error> {
        let text = serde_json::to_vec_pretty(state).expect("the state is plain data");
        write_file(&self.state_file(), &text, 0o644)
    }

    /// The state of a lab.
    pub fn state(&self) -> Result<State, Error> {
        const MAX_BYTES: u64 = 64 << 20;
        let path = self.state_file();
        let text = read_text(&path, MAX_BYTES)?
            .ok_or_else(|| Error::new(Code::LabUnknown, "find lab", &self.name, "it has no state file"))?;
        let state: State = serde_json::from_str(&text)
            .map_err(|error| Error::new(Code::LabDied, "read", path.display(), error))?;
        match state.version {
            VERSION => Ok(state),
            other => Err(Error::new(Code::LabDied, "read", path.display(), format!("version {other}"))),
        }
    }

    /// The state of a lab whose process runs.
    pub fn running(&self) -> Result<State, Error> {
        let state = self.state()?;
        match state.is_alive() {
            true => Ok(state),
            false => Err(Error::new(Code::LabDied, "find lab", &self.name, "its process has ended")),
        }
    }

    fn has_died(&self) -> bool {
        self.state().is_ok_and(|state| !state.is_alive())
    }

    /// Removes the lab's namespaces with their processes, and the sites' data. To be called with the lock held.
    pub fn sweep(&self) -> Result<(), Error> {
        for name in namespace::of_lab(&self.name) {
            namespace::remove(&name)?;
        }
        // A process that was killed while it wrote its state leaves the temporary file.
        let unfinished = |name: &String| name.starts_with(".state.json.") && name.ends_with(".new");
        let unfinished = self.entries().into_iter().filter(unfinished).map(|name| self.path().join(name));
        for path in unfinished.chain([self.state_file(), self.socket()]) {
            remove_file(&path)?;
        }
        remove_tree(&self.path().join("sites"))
    }

    /// The names in the folder.
    fn entries(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Sweeps, and removes the folder with the log and, last, the lock, which marks the folder as a lab's.
    ///
    /// # Errors
    /// `PathExists` if there are other files in the folder; it stays, with the lock.
    pub fn remove(&self) -> Result<(), Error> {
        self.sweep()?;
        remove_file(&self.log())?;
        let path = self.path();
        if let Some(other) = self.entries().into_iter().find(|name| name != LOCK) {
            let cause = "this folder belongs to no lab; it is kept until it is removed by hand";
            return Err(Error::new(Code::PathExists, "remove lab", path.join(other).display(), cause));
        }
        remove_file(&self.lock_file())?;
        match std::fs::remove_dir(&path) {
            // Another process that waited for the lock has recreated the folder already.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            outcome => outcome.map_err(|error| file_error("remove", &path, &error))?,
        }
        if self.base == Path::new(BASE) {
            let _ = std::fs::remove_dir(&self.base);
        }
        Ok(())
    }
}

fn inode(file: &File) -> Option<u64> {
    file.metadata().ok().map(|metadata| metadata.ino())
}

fn base() -> PathBuf {
    let named = std::env::var_os("RENKEI_LAB_DIR").filter(|value| !value.is_empty());
    named.map_or_else(|| BASE.into(), PathBuf::from)
}

fn remove_file(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_error("remove", path, &error)),
        _ => Ok(()),
    }
}

fn remove_tree(path: &Path) -> Result<(), Error> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_error("remove", path, &error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(base: &Path) -> LabFolder {
        LabFolder { base: base.into(), name: format!("unit-{}", std::process::id()) }
    }

    #[test]
    fn the_lock_is_held_by_one() {
        let dir = tempfile::tempdir().unwrap();
        let folder = folder(dir.path());
        let lock = folder.lock().unwrap();
        assert_eq!(folder.lock().unwrap_err().code, Code::LabRunning);
        drop(lock);
        folder.lock().unwrap();
    }

    #[test]
    fn a_folder_of_another_user_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let folder = folder(dir.path());
        std::fs::create_dir(folder.path()).unwrap();
        std::fs::write(folder.path().join("thesis.tex"), "x").unwrap();
        assert_eq!(folder.lock().unwrap_err().code, Code::PathExists);
        assert!(!folder.exists() && folder.path().join("thesis.tex").exists());
        assert_eq!(LabFolder::of("../etc").unwrap_err().code, Code::UsageInvalid);
    }

    #[test]
    fn half_written_leftovers_are_removed_and_files_of_others_stay() {
        let dir = tempfile::tempdir().unwrap();
        let folder = folder(dir.path());
        let _lock = folder.lock().unwrap();
        std::fs::write(folder.path().join(".state.json.7.ThreadId(1).new"), "{").unwrap();
        std::fs::write(folder.path().join("thesis.tex"), "x").unwrap();
        assert_eq!(folder.remove().unwrap_err().code, Code::PathExists);
        assert_eq!(folder.entries().len(), 2, "{:?}", folder.entries());
        std::fs::remove_file(folder.path().join("thesis.tex")).unwrap();
        folder.remove().unwrap();
        assert!(!folder.path().exists());
        folder.lock().unwrap();
    }

    #[test]
    fn a_state_is_alive_as_long_as_its_process() {
        let dir = tempfile::tempdir().unwrap();
        let folder = folder(dir.path());
        assert_eq!(folder.state().unwrap_err().code, Code::LabUnknown);
        let topology = Topology {
            name: folder.name.clone(),
            engine: Default::default(),
            seed: None,
            sites: Vec::new(),
            links: Vec::new(),
        };
        let _lock = folder.lock().unwrap();
        folder.write(&State::of_this_process(&topology)).unwrap();
        assert_eq!(folder.running().unwrap().topology, topology);
        // The same pid, but another process.
        let reused = State { started: 1, ..State::of_this_process(&topology) };
        folder.write(&reused).unwrap();
        assert_eq!(folder.running().unwrap_err().code, Code::LabDied);
        folder.remove().unwrap();
        assert!(!folder.exists());
    }
}
