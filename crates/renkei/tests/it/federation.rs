//! A federation of real PoPs on this machine, for end-to-end tests.
//!
//! Each site is a `renkei serve` process in a directory of its own that is both the PoP's and the user's, with one
//! storage `data`. Nothing sleeps for a fixed time, and every process ends with the value that started it.

#![allow(dead_code, reason = "each test file uses a part of it")]

use renkei_net::identity::account::Account;
use std::ffi::OsStr;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a PoP may take to listen; generous, because machines that run tests are busy, and their disks stall.
const START_WITHIN: Duration = Duration::from_secs(100);
/// Ports tried: below those the kernel gives to outgoing connections (from 32768 on).
const PORTS: std::ops::Range<u32> = 20_000..32_000;

/// Sites that trust each other both ways, each user mapped to the same account at the others, logged in, serving.
pub struct Federation {
    /// The first site.
    pub titech: Site,
    /// The second site.
    pub kek: Site,
    dir: TempDir,
}

/// One site: a PoP process and its directory.
pub struct Site {
    /// Its name, as in `NAME:/data/...`.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    dir: PathBuf,
    root: PathBuf,
    process: Option<Child>,
    /// Whether its commands have a listening address.
    listens: bool,
    /// Further options of its commands; empty means none.
    pub environment: Vec<(&'static str, &'static str)>,
    /// Its program, if it is another one than that under test.
    pub program: Option<PathBuf>,
}

impl Federation {
    /// Two sites, `titech` and `kek`.
    pub fn two() -> Federation {
        let dir = tempfile::tempdir().unwrap();
        let titech = Site::start(dir.path(), "titech");
        let kek = Site::start(dir.path(), "kek");
        let federation = Federation { titech, kek, dir };
        federation.titech.befriend(&federation.kek);
        federation.kek.befriend(&federation.titech);
        federation
    }

    /// A folder for the test's own files, removed at the end.
    pub fn scratch(&self) -> PathBuf {
        let scratch = self.dir.path().join("scratch");
        std::fs::create_dir_all(&scratch).unwrap();
        scratch
    }
}

impl Site {
    /// Makes a site in a folder below `parent`, starts its PoP and logs its user in.
    pub fn start(parent: &Path, name: &str) -> Site {
        let dir = parent.join(name);
        let root = parent.join(format!("{name}-data"));
        std::fs::create_dir_all(&root).unwrap();
        let address = free_address();
        let mut site = Site {
            name: name.into(),
            address,
            dir,
            root,
            process: None,
            listens: false,
            environment: Vec::new(),
            program: None,
        };
        site.ok(&["init", "--site", name, "--listen", &address.to_string()]);
        site.ok(&["storage", "add", "data", site.root.to_str().unwrap()]);
        site.restart();
        site.ok(&["login"]);
        site
    }

    /// A directory without a site; a site made there listens on an address of its own.
    pub fn empty(parent: &Path, name: &str) -> Site {
        let root = parent.join(format!("{name}-data"));
        std::fs::create_dir_all(&root).unwrap();
        let (dir, address) = (parent.join(name), free_address());
        std::fs::create_dir_all(&dir).unwrap();
        Site {
            name: name.into(),
            address,
            dir,
            root,
            process: None,
            listens: true,
            environment: Vec::new(),
            program: None,
        }
    }

    /// Makes a site that names no endpoint and keeps a line to `hub`, and starts its PoP.
    pub fn start_private(parent: &Path, name: &str, hub: &Site) -> Site {
        let dir = parent.join(name);
        let root = parent.join(format!("{name}-data"));
        std::fs::create_dir_all(&root).unwrap();
        let address = free_address();
        let mut site = Site {
            name: name.into(),
            address,
            dir,
            root,
            process: None,
            listens: false,
            environment: Vec::new(),
            program: None,
        };
        let (line, storage) = (hub.ok(&["invite"]), format!("data={}", site.root.display()));
        let listen = address.to_string();
        let init =
            ["init", "--site", name, "--listen", &listen, "--storage", &storage, "--reverse", line.trim()];
        site.ok(&init);
        site.restart();
        site.ok(&["login"]);
        site
    }

    /// Trusts another site by the card it exports now.
    pub fn take_card(&self, other: &Site) {
        let card = self.dir.join(format!("{}.card", other.name));
        std::fs::write(&card, other.ok(&["trust", "export"])).unwrap();
        self.ok(&["trust", "add", "--yes", card.to_str().unwrap()]);
    }

    /// Trusts another site and gives its user of our name our account.
    pub fn befriend(&self, other: &Site) {
        self.take_card(other);
        let account = account();
        self.ok(&["map", "add", "--yes", &format!("{account}@{}", other.name), &account]);
    }

    /// The command `renkei --dir ITS-DIRECTORY`, to be given arguments.
    pub fn command(&self) -> Command {
        let mut command = self.command_in(&self.dir);
        if self.listens {
            command.env("RENKEI_LISTEN", self.address.to_string());
        }
        for (name, value) in &self.environment {
            if value.is_empty() {
                command.env_remove(name)
            } else {
                command.env(name, value)
            };
        }
        command
    }

    /// The command `renkei --dir DIR` of another user on the same machine.
    pub fn command_in(&self, dir: &Path) -> Command {
        let mut command = Command::new(self.program.clone().unwrap_or_else(binary));
        let foreign = std::env::vars_os().map(|(name, _)| name);
        for name in foreign.filter(|name| name.to_string_lossy().starts_with("RENKEI_")) {
            command.env_remove(name);
        }
        for name in ["BEARER_TOKEN", "BEARER_TOKEN_FILE", "X509_USER_PROXY", "KRB5CCNAME"] {
            command.env_remove(name);
        }
        // All sites of tests are on this machine.
        command.env("RENKEI_RELAY_PRIVATE", "*");
        // Files that tests make as root may be root's.
        command.env("RENKEI_VOLUMES_ACCOUNT", account());
        command.arg("--dir").arg(dir).stdin(Stdio::null());
        command
    }

    /// Runs a command of its user to the end.
    pub fn renkei<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Output {
        self.command().args(arguments).output().unwrap()
    }

    /// Runs a command that must succeed and returns its output.
    pub fn ok<A: AsRef<OsStr> + std::fmt::Debug>(&self, arguments: &[A]) -> String {
        let output = self.renkei(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {arguments:?}: {}\n{error}", self.name, output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a command with `--json`; returns its exit status and its output.
    pub fn json<A: AsRef<OsStr>>(&self, arguments: &[A]) -> (i32, serde_json::Value) {
        let output = self.command().arg("--json").args(arguments).output().unwrap();
        // Verbs that print content report their failure on stderr.
        let told = if output.stdout.is_empty() { &output.stderr } else { &output.stdout };
        let value = serde_json::from_slice(told);
        let value = value.unwrap_or_else(|error| panic!("{error}: {output:?}"));
        (output.status.code().unwrap(), value)
    }

    /// The root of its storage `data`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Its directory: configuration, keys, state.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The place `path` in its storage `data`, as commands name it.
    pub fn place(&self, path: &str) -> String {
        format!("{}:/data/{path}", self.name)
    }

    /// Its storage `data` itself, as commands name it.
    pub fn root_place(&self) -> String {
        format!("{}:/data", self.name)
    }

    /// Process id of its PoP.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("the PoP runs").id()
    }

    /// Kills its PoP at once, as a crash would.
    pub fn kill9(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            process.wait().unwrap();
        }
    }

    /// Ends its PoP as a service manager does, and waits for it.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            rustix::process::kill_process(
                rustix::process::Pid::from_child(&process),
                rustix::process::Signal::TERM,
            )
            .unwrap();
            assert!(process.wait().unwrap().success());
        }
    }

    /// Starts its PoP, after killing the one that runs, and waits until it listens.
    pub fn restart(&mut self) {
        self.kill9();
        let log = File::options().create(true).append(true).open(self.log()).unwrap();
        let process =
            self.command().arg("serve").stdout(Stdio::null()).stderr(Stdio::from(log)).spawn().unwrap();
        self.process = Some(process);
        self.wait_until_listening();
    }

    /// The log of its PoP so far.
    pub fn logged(&self) -> String {
        // A test may have made it a device, which has no end.
        let is_file = std::fs::metadata(self.log()).is_ok_and(|log| log.is_file());
        if is_file { std::fs::read_to_string(self.log()).unwrap_or_default() } else { String::new() }
    }

    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    fn wait_until_listening(&mut self) {
        let start = Instant::now();
        let process = self.process.as_mut().expect("just started");
        while TcpStream::connect(self.address).is_err() {
            let ended = process.try_wait().unwrap();
            assert!(ended.is_none(), "the PoP ended: {ended:?}\n{}", self.logged());
            let at = if start.elapsed() < START_WITHIN { String::new() } else { threads(process.id()) };
            assert!(at.is_empty(), "the PoP does not listen\n{}\nits threads:\n{at}", self.logged());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.kill9();
        if std::thread::panicking() {
            eprintln!("--- log of {}\n{}", self.name, self.logged());
        }
    }
}

/// The wait channels of the threads of a process.
fn threads(process: u32) -> String {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{process}/task")) else { return "gone".into() };
    let told = tasks.flatten().map(|task| {
        let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let state =
            read("status").lines().find(|line| line.starts_with("State")).unwrap_or_default().to_owned();
        format!("{} {state} {} {}{}\n", read("comm").trim(), read("wchan"), read("syscall"), read("stack"))
    });
    told.collect()
}

/// The program under test: named by cargo at run time, else at build time.
pub fn binary() -> PathBuf {
    let named = std::env::var_os("CARGO_BIN_EXE_renkei");
    named.map_or_else(|| env!("CARGO_BIN_EXE_renkei").into(), PathBuf::from)
}

/// The name of the account the tests run as.
pub fn account() -> String {
    Account::own().unwrap().name
}

/// A free port on loopback, another one at each call.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = PORTS.end - PORTS.start;
    // Processes that run at the same time start far apart.
    let first = std::process::id().wrapping_mul(2_654_435_761) % count;
    for _ in 0..count {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = PORTS.start + (first + step) % count;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port as u16));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
    panic!("no free port in {PORTS:?}");
}
