//! Mounts and their credentials: they outlive a login, and may have a credential that needs none. A program that waits for
//! one, or for a storage that is stopped, gets the reason.
//!
//! Programs that may wait in a mount are processes of their own, which the end of the mount's process frees: none outlives
//! its test.

use crate::federation::{Site, account, binary};
use crate::mount::{Mount, can_mount, end, errors};
use crate::wire::raw;
use renkei_config::home::Home;
use renkei_core::error::Code;
use renkei_core::wire::message::Request;
use renkei_net::identity::authority::Authority;
use renkei_net::identity::credential::{Credential, KeyRequest};
use renkei_net::identity::mounting;
use renkei_net::identity::mounting::MOUNT_LIFE;
use renkei_net::identity::trust::Trust;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

const HOUR: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition holds, and fails with `what` after a timeout.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A program that reads a file of a mount. It must be dropped after the mount is ended, or have ended.
struct Reader(Child);

impl Reader {
    fn new(file: &Path) -> Reader {
        let mut command = Command::new("cat");
        command.arg(file).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Reader(command.spawn().unwrap())
    }

    fn is_waiting(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// The bytes it read; nothing if it failed.
    fn result(mut self) -> Option<String> {
        let begin = Instant::now();
        while self.is_waiting() {
            assert!(begin.elapsed() < PATIENCE, "the program still waits");
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut text = String::new();
        std::io::Read::read_to_string(self.0.stdout.as_mut().unwrap(), &mut text).unwrap();
        self.0.wait().unwrap().success().then_some(text)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // A program that waits in a mount dies with the mount's process, not by this: it is not waited for.
        let _ = self.0.kill();
        let _ = self.0.try_wait();
    }
}

fn read(file: &Path) -> Option<String> {
    Reader::new(file).result()
}

/// Lets the login of a site's user be one that expired an hour ago.
fn expire(site: &Site) {
    let authority = Authority::load(&raw::home(site)).unwrap();
    let key = KeyRequest::generate().unwrap();
    let then = SystemTime::now() - 2 * HOUR;
    let pem = authority.issue_user(&account(), &key.request, 1, then).unwrap().pem;
    fs::write(raw::home(site).user_credential(), format!("{pem}{}", key.key)).unwrap();
}

/// The result of a call that must not wait.
fn within<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (give, given) = std::sync::mpsc::channel();
    std::thread::spawn(move || give.send(work()));
    given.recv_timeout(Duration::from_secs(20)).expect("it waits")
}

/// The log of the mounts of a directory.
fn logged(dir: &Path) -> String {
    let Ok(logs) = fs::read_dir(dir.join("state/mounts")) else { return String::new() };
    logs.flatten().map(|log| fs::read_to_string(log.path()).unwrap_or_default()).collect()
}

#[test]
fn a_mount_waits_for_the_next_login_and_continues() {
    let Some(mut mount) = Mount::new() else { return };
    fs::write(mount.there("f"), "of kek").unwrap();
    expire(&mount.site);
    mount.site.restart();
    let mut reader = Reader::new(&mount.path("f"));
    until("the mount says that it waits", || logged(mount.site.dir()).contains("RK-MNT-7"));
    assert!(reader.is_waiting(), "it did not wait for a login");
    // The root names the cause while the call waits.
    let point = mount.path("");
    let told = within(move || fs::symlink_metadata(&point).map(|_| errors(&point)));
    assert!(told.as_ref().is_ok_and(|told| told.contains("RK-AUTH-")), "{told:?}");
    let year = logged(mount.site.dir()).lines().all(|line| line.trim_start().starts_with("20"));
    assert!(year, "a line without its time: {}", logged(mount.site.dir()));
    mount.site.ok(&["login"]);
    assert_eq!(reader.result().as_deref(), Some("of kek"));
}

#[test]
fn a_mount_waits_for_its_original_storage_and_reports_it() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.there("f"), "of kek").unwrap();
    let (meant, aside) = (mount.there(""), mount.scratch().join("aside"));
    fs::rename(&meant, &aside).unwrap();
    fs::create_dir(&meant).unwrap();
    until("the storage is stopped", || mount.site.logged().contains("a transfer is stopped"));
    let mut reader = Reader::new(&mount.path("f"));
    until("the mount says that it waits", || logged(mount.site.dir()).contains("RK-STORE-27"));
    let point = mount.path("");
    let told = within(move || errors(&point));
    assert!(told.contains("RK-STORE-27") && told.contains("storage accept"), "{told}");
    assert!(reader.is_waiting(), "it did not wait for the storage");
    fs::remove_dir(&meant).unwrap();
    fs::rename(&aside, &meant).unwrap();
    assert_eq!(reader.result().as_deref(), Some("of kek"));
}

#[test]
fn a_no_wait_mount_works_again_after_the_next_login() {
    let Some(mut mount) = Mount::with(&["--when-lost", "fail", "--attr-ttl", "0"]) else { return };
    fs::write(mount.there("f"), "of kek").unwrap();
    expire(&mount.site);
    mount.site.restart();
    until("calls fail", || read(&mount.path("f")).is_none());
    mount.site.ok(&["login"]);
    until("calls work", || read(&mount.path("f")).as_deref() == Some("of kek"));
}

/// A machine whose mounts have a credential of their own: a directory without a login.
struct Machine {
    dir: PathBuf,
    point: PathBuf,
    process: i32,
}

impl Machine {
    /// Granted through ssh, which is a script here.
    fn granted(parent: &Path, site: &Site) -> Machine {
        let machine = Machine { dir: parent.join("node17"), point: parent.join("mnt"), process: 0 };
        fs::create_dir(&machine.point).unwrap();
        let (ssh, path) = (parent.join("ssh"), binary().parent().unwrap().display().to_string());
        fs::write(&ssh, format!("#!/bin/sh\nPATH={path}:$PATH exec sh -c \"$3\"\n")).unwrap();
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
        let user = account();
        let words = ["mount-credential", "grant", "node17", "--user", &user, "--ssh", "root@kek", "--pop"];
        let mut command = site.command_in(&machine.dir);
        let output = command.env("RENKEI_SSH", &ssh).args(words).arg(site.dir()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        machine
    }

    fn mount(&mut self, site: &Site) {
        let place = site.root_place();
        let mut command = site.command_in(&self.dir);
        let output = command.args(["--json", "mount", &place]).arg(&self.point).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        self.process = i32::try_from(report["process"].as_u64().unwrap()).unwrap();
    }

    fn home(&self) -> Home {
        Home::at(&self.dir)
    }

    fn credential(&self) -> Credential {
        Credential::of_mount(&self.home()).unwrap().unwrap()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        end(&self.point, self.process);
    }
}

#[test]
fn a_mount_credential_is_renewed_listed_and_revoked() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let site = Site::start(dir.path(), "kek");
    fs::write(site.root().join("f"), "of kek").unwrap();
    let mut machine = Machine::granted(dir.path(), &site);
    // As if it had been granted 29 days ago, and the machine had been off since.
    let (home, then) = (raw::home(&site), SystemTime::now() - 29 * 24 * HOUR);
    let grant = mounting::list(&home).unwrap().remove(0);
    let key = KeyRequest::again(&fs::read_to_string(machine.home().mount_credential()).unwrap()).unwrap();
    let old = Authority::load(&home).unwrap().issue_mount(&grant, &key.request, then, MOUNT_LIFE).unwrap();
    fs::write(machine.home().mount_credential(), format!("{}{}", old.pem, key.key)).unwrap();
    let end_of = |machine: &Machine| machine.credential().facts().unwrap().not_after;
    assert!(end_of(&machine) < SystemTime::now() + 48 * HOUR);
    machine.mount(&site);
    until("it is renewed", || end_of(&machine) > SystemTime::now() + 20 * 24 * HOUR);
    assert_eq!(read(&machine.point.join("f")).as_deref(), Some("of kek"));
    let (_, listed) = site.json(&["mount-credential", "list"]);
    let row = &listed["mounts"][0];
    assert_eq!((&row["mount"], &row["revoked"]), (&"node17".into(), &false.into()), "{listed}");
    let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(row["expires_unix"].as_u64().unwrap());
    assert_eq!(expires, end_of(&machine));
    site.ok(&["mount-credential", "revoke", "node17"]);
    until("the mount ends", || read(&machine.point.join("f")).is_none());
    let (status, report) = site.json(&["mount-credential", "revoke", "node17"]);
    assert_eq!((status, &report["error"]["code"]), (3, &"RK-STORE-1".into()), "{report}");
}

#[test]
fn a_mount_survives_rotation_of_its_authority() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let site = Site::start(dir.path(), "kek");
    fs::write(site.root().join("f"), "of kek").unwrap();
    let mut machine = Machine::granted(dir.path(), &site);
    let issuer = |machine: &Machine| machine.credential().facts().unwrap().issuer;
    assert_eq!(issuer(&machine), "CN=kek site authority");
    site.ok(&["site", "rotate-authority", "--keep-days", "1"]);
    machine.mount(&site);
    until("its credential is of the new authority", || issuer(&machine) == "CN=kek site authority 2");
    let known = |home: &Home| Trust::load(home).unwrap().card(&raw::name(&site)).unwrap().authority.clone();
    assert_eq!(known(&machine.home()), known(&raw::home(&site)));
    site.ok(&["site", "rotate-authority", "--finish"]);
    assert_eq!(read(&machine.point.join("f")).as_deref(), Some("of kek"));
}

#[test]
fn a_mount_credential_is_for_files_only_and_issued_by_the_administrator() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::start(dir.path(), "kek");
    let machine = Machine::granted(dir.path(), &site);
    let ask = |request| raw::connect(&site, &machine.credential(), &site).unwrap().ask(request);
    assert!(ask(Request::Whoami).is_ok());
    for request in [
        Request::Status,
        Request::Console,
        Request::Remove { place: raw::place("/data/f"), recursive: false },
    ] {
        assert_eq!(ask(request).unwrap_err().code, Code::OutOfScope);
    }
    let login =
        raw::connect(&site, &raw::user(&site), &site).unwrap().ask(Request::RenewMount(String::new()));
    assert_eq!(login.unwrap_err().code, Code::NotAllowed, "a login is not made one that never ends");
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: needs root to become another account");
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let theirs = dir.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(65_534), Some(65_534)).unwrap();
    let mut command = site.command_in(&theirs);
    command.args(["--json", "mount-credential", "grant", "x", "--user", "root", "--pop"]).arg(site.dir());
    let output = command.uid(65_534).gid(65_534).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(5) && told.contains("RK-AUTH-14"), "{output:?}");
}
