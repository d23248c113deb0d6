//! A PostgreSQL server of a test's own: in its own folder, on a socket there, ended with the value that started it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long the server may take to answer.
const START_WITHIN: Duration = Duration::from_secs(60);
/// The account `nobody`: the server refuses to run as root.
const NOBODY: u32 = 65_534;

/// A running server.
pub struct Postgres {
    process: Child,
    folder: TempDir,
}

impl Postgres {
    /// Starts one; `None`, with a word on standard error, where it is not installed.
    pub fn start() -> Option<Postgres> {
        let Some(programs) = programs() else {
            eprintln!("skipped: PostgreSQL is not installed (scripts/setup test)");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let data = folder.path().join("pg");
        fs::create_dir(&data).unwrap();
        if is_root() {
            chown(&data, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let made = unprivileged(&programs.join("initdb"), &data)
            .args(["--auth=trust", "--username=renkei", "--encoding=UTF8", "--no-sync", "-D"])
            .arg(&data)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let process = unprivileged(&programs.join("postgres"), &data)
            .args(["-c", "listen_addresses=", "-k"])
            .arg(&data)
            .arg("-D")
            .arg(&data)
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let server = Postgres { process, folder };
        server.wait(&programs);
        Some(server)
    }

    /// The value of `catalogue` in the configuration.
    pub fn url(&self) -> String {
        format!("postgres:///postgres?host={}&user=renkei", self.data().display())
    }

    /// The dump by `pg_dump`.
    pub fn dump(&self) -> Vec<u8> {
        let dump = Command::new(self.program("pg_dump"))
            .args(["--clean", "--if-exists", &self.url()])
            .output()
            .unwrap();
        assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
        dump.stdout
    }

    /// Restores a dump.
    pub fn restore(&self, dump: &[u8]) {
        let file = self.folder.path().join("dump.sql");
        fs::write(&file, dump).unwrap();
        let mut psql = Command::new(self.program("psql"));
        let restored =
            psql.args(["-q", "-v", "ON_ERROR_STOP=1", "-f"]).arg(file).arg(self.url()).output().unwrap();
        assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    }

    fn program(&self, name: &str) -> PathBuf {
        programs().expect("the server was started by one of them").join(name)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("pg")
    }

    fn wait(&self, programs: &Path) {
        let start = Instant::now();
        let answers = || {
            let mut ask = Command::new(programs.join("pg_isready"));
            ask.arg("-q").arg("-h").arg(self.data()).status().unwrap().success()
        };
        while !answers() {
            let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            assert!(start.elapsed() < START_WITHIN, "the server does not answer\n{log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // SIGINT asks for a fast shutdown: its own processes end with it.
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        let _ = self.process.wait();
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn unprivileged(program: &Path, data: &Path) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).current_dir(data).env("LC_ALL", "C");
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// The folder of the newest installed server's programs: Debian keeps them off the path.
fn programs() -> Option<PathBuf> {
    let debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut folders: Vec<PathBuf> = debian.filter_map(|entry| Some(entry.ok()?.path().join("bin"))).collect();
    folders.sort();
    folders.reverse();
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    folders.into_iter().find(|folder| folder.join("initdb").exists() && folder.join("postgres").exists())
}
