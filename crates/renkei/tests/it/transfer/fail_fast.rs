//! Copies that cannot work fail at once, once, and stop.

use crate::federation::{Federation, Site, account};
use crate::identity::administration::until;
use renkei_net::identity::account::Account;
use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long anything may take; generous, because machines that run tests are busy.
const WITHIN: Duration = Duration::from_secs(60);

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn give_to_daemon(path: &Path) {
    let daemon = Account::lookup("daemon").unwrap();
    std::os::unix::fs::chown(path, Some(daemon.uid), Some(daemon.gid)).unwrap();
}

/// A federation whose user of titech is `daemon` at kek, the owner of the storage; none where that account is
/// unavailable.
pub fn with_daemon() -> Option<Federation> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root to serve another account");
        return None;
    }
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let user = format!("{}@titech", account());
    kek.ok(&["map", "remove", &user]);
    kek.ok(&["map", "add", &user, "daemon"]);
    set_mode(kek.root().parent().unwrap(), 0o755);
    give_to_daemon(kek.root());
    assert!(titech.ok(&["whoami", "kek"]).contains("daemon"));
    Some(federation)
}

/// A tree of files small and large, in directories of their own and beside each other.
fn tree(at: &Path) {
    for dir in 0..30 {
        let dir = at.join("closed").join(format!("d{dir}"));
        std::fs::create_dir_all(&dir).unwrap();
        (0..50).for_each(|file| std::fs::write(dir.join(format!("f{file}")), b"small").unwrap());
    }
    (0..1500).for_each(|file| std::fs::write(at.join("closed").join(format!("f{file}")), b"small").unwrap());
    std::fs::write(at.join("closed/large"), vec![7; 3 << 20]).unwrap();
    std::fs::create_dir(at.join("open")).unwrap();
    std::fs::write(at.join("open/good"), b"good").unwrap();
    // A further name of a file that does not arrive cannot arrive either.
    std::fs::hard_link(at.join("closed/f0"), at.join("closed/again")).unwrap();
}

#[test]
fn a_directory_that_cannot_be_written_is_one_failure() {
    let Some(federation) = with_daemon() else { return };
    let Federation { titech, kek, .. } = &federation;
    let local = federation.scratch().join("tree");
    tree(&local);
    // It is there, and root's.
    std::fs::create_dir_all(kek.root().join("tree/closed")).unwrap();
    give_to_daemon(&kek.root().join("tree"));
    let there = kek.place("tree");
    let (status, report) = titech.json(&["sync", local.to_str().unwrap(), &there]);
    assert_eq!((status, report["failed"].as_u64()), (23, Some(1)), "{report}");
    let failure = &report["failures"][0];
    assert_eq!((&failure["code"], &failure["path"]), (&"RK-STORE-5".into(), &"closed".into()), "{report}");
    assert_eq!((&failure["side"], &failure["subject"]), (&"kek".into(), &"/data/tree/closed".into()));
    let cause = failure["cause"].as_str().unwrap();
    assert!(cause.starts_with("daemon may not write in it: root:root drwxr-xr-x"), "{cause}");
    assert!(cause.ends_with(" entries in it not copied"), "{cause}");
    assert_eq!(std::fs::read(kek.root().join("tree/open/good")).unwrap(), b"good");
    assert_eq!(std::fs::read_dir(kek.root().join("tree/closed")).unwrap().count(), 0);

    // An existing writable directory in it gets its files.
    let inner = kek.root().join("tree/closed/d7");
    std::fs::create_dir(&inner).unwrap();
    give_to_daemon(&inner);
    let (status, report) = titech.json(&["sync", local.to_str().unwrap(), &there]);
    assert_eq!((status, report["failed"].as_u64()), (23, Some(1)), "{report}");
    assert_eq!(std::fs::read_dir(&inner).unwrap().count(), 50);

    // And when it is mended, the same command brings the rest.
    give_to_daemon(&kek.root().join("tree/closed"));
    let (status, report) = titech.json(&["sync", local.to_str().unwrap(), &there]);
    assert_eq!((status, report["failed"].as_u64()), (0, Some(0)), "{report}");
    assert_eq!(std::fs::read_dir(kek.root().join("tree/closed")).unwrap().count(), 1500 + 30 + 2);
}

#[test]
fn a_file_where_a_directory_is_needed_is_one_failure() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let local = federation.scratch().join("tree");
    tree(&local);
    std::fs::write(kek.root().join("file"), b"mine").unwrap();
    let (status, report) = titech.json(&["cp", "-r", local.to_str().unwrap(), &kek.place("file")]);
    assert_eq!((report["error"]["code"].as_str(), report["failed"].as_u64()), (None, Some(1)), "{report}");
    let failure = &report["failures"][0];
    assert_eq!(
        (status, &failure["code"], &failure["subject"]),
        (4, &"RK-STORE-3".into(), &"/data/file".into()),
        "{report}"
    );
    assert_eq!(std::fs::read(kek.root().join("file")).unwrap(), b"mine");
}

#[test]
fn nothing_is_removed_from_an_unwritable_directory() {
    let Some(federation) = with_daemon() else { return };
    let Federation { titech, kek, .. } = &federation;
    let local = federation.scratch().join("tree");
    tree(&local);
    let inner = kek.root().join("tree/closed/d7");
    std::fs::create_dir_all(&inner).unwrap();
    give_to_daemon(&kek.root().join("tree"));
    give_to_daemon(&inner);
    std::fs::write(inner.join("other"), b"mine").unwrap();
    let (status, report) = titech.json(&["sync", "--delete", local.to_str().unwrap(), &kek.place("tree")]);
    assert_eq!((status, report["failed"].as_u64()), (23, Some(1)), "{report}");
    assert!(inner.join("other").exists());
}

#[test]
fn an_unreadable_source_names_the_account() {
    let Some(federation) = with_daemon() else { return };
    let Federation { titech, kek, .. } = &federation;
    std::fs::create_dir_all(kek.root().join("run/dir")).unwrap();
    std::fs::write(kek.root().join("run/secret"), b"x").unwrap();
    set_mode(&kek.root().join("run/secret"), 0o640);
    set_mode(&kek.root().join("run/dir"), 0o700);
    let here = federation.scratch().join("run");
    let (status, report) = titech.json(&["cp", "-r", &kek.place("run"), here.to_str().unwrap()]);
    assert_eq!((status, report["failed"].as_u64()), (23, Some(2)), "{report}");
    let failures = report["failures"].as_array().unwrap();
    let cause = |path: &str| {
        let of = failures.iter().find(|one| one["path"] == path);
        of.unwrap_or_else(|| panic!("{path} is not in {report}"))["cause"].as_str().unwrap()
    };
    assert_eq!(cause("run/secret"), "daemon may not read it: root:root -rw-r-----");
    assert_eq!(cause("run/dir"), "daemon may not read it: root:root drwx------");
}

/// A command that runs, ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The first line of a command on the terminal.
fn first_word(site: &Site, arguments: &[&str]) -> String {
    let mut command = site.command();
    let child = command.args(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut running = Running(child);
    let stderr = running.0.stderr.take().unwrap();
    let (heard, said) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = BufReader::new(stderr).read_line(&mut line);
        let _ = heard.send(line);
    });
    said.recv_timeout(WITHIN).expect("it says something")
}

#[test]
fn a_hanging_pop_is_reported_to_its_administrator() {
    let federation = Federation::two();
    let kek = &federation.kek;
    let pid = rustix::process::Pid::from_raw(kek.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let line = first_word(kek, &["status"]);
    let (status, told) = kek.json(&["transfers", "--all"]);
    let (_, doctor) = kek.json(&["doctor"]);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert!(line.starts_with("renkei: the PoP does not answer yet"), "{line}");
    assert!(status == 8 && told["error"]["code"] == "RK-NET-1", "{told}");
    let checks = doctor["checks"].as_array().unwrap();
    assert!(checks.iter().any(|check| check["code"] == "RK-NET-1"), "{doctor}");
    // One that is only busy is waited for.
    kek.ok(&["status"]);
}

#[test]
fn a_storage_in_use_by_a_volume_is_not_removed() {
    let federation = Federation::two();
    let kek = &federation.kek;
    kek.ok(&["volume", "create", "genome", "--storage", "data", "--path", "genome"]);
    let (status, told) = kek.json(&["storage", "remove", "data"]);
    let error = &told["error"];
    assert!(status != 0 && error["code"] == "RK-CONF-11", "{told}");
    assert!(error["cause"].as_str().unwrap().contains("the volume genome is in it"), "{told}");
    assert!(kek.ok(&["storage", "list"]).contains("data "));
    kek.ok(&["storage", "remove", "data", "--yes"]);
    // A user who did it all the same gets the remedy.
    until("the volume has a condition", || {
        let (_, status) = kek.json(&["status"]);
        let conditions = status["conditions"].as_array().unwrap().clone();
        let volume = conditions.iter().find(|one| one["what"] == "volume" && one["name"] == "genome");
        volume.is_some_and(|one| one["remedy"].as_str().unwrap().contains("storage add data PATH"))
    });
}

#[test]
fn a_silent_host_is_reported_while_it_is_dialled() {
    let mut federation = Federation::two();
    let Federation { titech, kek, .. } = &mut federation;
    kek.stop();
    // It takes connections and says nothing.
    let silent = TcpListener::bind(kek.address).unwrap();
    let line = first_word(titech, &["ls", &kek.root_place()]);
    let expected = format!("renkei: kek does not answer yet; trying it at {}", silent.local_addr().unwrap());
    assert!(line.starts_with(&expected), "{line}");
    std::fs::write(titech.root().join("file"), "x").unwrap();
    let line = first_word(titech, &["cp", &titech.place("file"), &kek.place("file")]);
    assert!(line.starts_with("renkei: kek does not answer titech yet"), "{line}");
    let line = first_word(titech, &["doctor", "kek"]);
    assert!(line.contains("does not answer yet"), "{line}");
    // Mere attempts are given up as soon as they would be reported.
    let start = Instant::now();
    for arguments in [&["route", "kek"][..], &["route", &titech.root_place(), "kek"]] {
        let (_, told) = titech.json(arguments);
        let failed = told["ways"][0]["failed"].as_str().unwrap_or_else(|| panic!("{told}"));
        assert!(failed.contains("RK-NET-1") && failed.contains("hangs or is stopped"), "{told}");
        assert_eq!(told["ways"][0]["chosen"], false, "{told}");
    }
    assert!(start.elapsed() < WITHIN, "{:?}", start.elapsed());
}

/// Stops a process, as if its host hung, until this is dropped.
struct Hanging(rustix::process::Pid);

impl Hanging {
    fn of(site: &Site) -> Self {
        let pid = rustix::process::Pid::from_raw(site.pid() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        Hanging(pid)
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::CONT);
    }
}

#[test]
fn a_hanging_hub_is_reported_as_soon_as_a_hanging_site() {
    let federation = Federation::two();
    let Federation { titech, kek: hub, .. } = &federation;
    let private = Site::start_private(&federation.scratch(), "private", hub);
    titech.befriend(&private);
    private.befriend(titech);
    titech.ok(&["ls", &private.root_place()]);
    std::fs::write(titech.root().join("file"), "x").unwrap();
    let hanging = Hanging::of(hub);
    let line = first_word(titech, &["ls", &private.root_place()]);
    let expected = format!("renkei: private does not answer yet; trying it through kek at {}", hub.address);
    assert!(line.starts_with(&expected), "{line}");
    let copy = ["cp", &titech.place("file"), &private.place("file")];
    for arguments in [&["ls", &private.root_place()][..], &copy] {
        let (status, told) = titech.json(arguments);
        let cause = told["error"]["cause"].as_str().unwrap_or_else(|| panic!("{told}"));
        assert!(status == 8 && told["error"]["code"] == "RK-NET-1", "{told}");
        assert!(cause.contains("nothing answers within 7 s"), "{told}");
    }
    drop(hanging);
    let is_there = || titech.renkei(&["ls", &private.root_place()]).status.success();
    until("the line of the private site is up again", is_there);
}

#[test]
fn a_queued_copy_says_which_site_does_not_answer() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    std::fs::write(titech.root().join("file"), "x").unwrap();
    let _hanging = Hanging::of(kek);
    let detach = ["cp", "--detach", &titech.place("file"), &kek.place("file")];
    let id = titech.json(&detach).1["transfer"].as_str().unwrap().to_owned();
    let tried = format!("kek (at titech, connect): trying it at {}", kek.address);
    until("the site that is tried is named", || titech.ok(&["why", &id]).contains(&tried));
    let line = first_word(titech, &["wait", &id]);
    assert!(line.contains("RK-NET-1") && line.contains(&kek.address.to_string()), "{line}");
    until("the attempt ends as soon as at a terminal", || {
        let (_, story) = titech.json(&["why", &id]);
        let error = &story["story"][0]["error"];
        error["code"] == "RK-NET-1" && error["cause"].as_str().unwrap().contains("within 7 s")
    });
}

#[test]
fn progress_shows_bytes_rate_and_remaining_time() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    std::fs::write(titech.root().join("big"), vec![7; 64 << 20]).unwrap();
    let detach = ["cp", "--detach", "--limit", "1MB", &titech.place("big"), &kek.place("big")];
    let id = titech.json(&detach).1["transfer"].as_str().unwrap().to_owned();
    let line = first_word(titech, &["wait", &id]);
    let words = ["running", " %, ", "/s, ETA "];
    assert!(words.iter().all(|word| line.contains(word)), "{line}");
    let why = titech.ok(&["why", &id]);
    assert!(words.iter().all(|word| why.contains(word)), "{why}");
    // A paused one keeps its progress, without a rate.
    titech.ok(&["pause", &id]);
    let start = std::time::Instant::now();
    let paused = loop {
        let listed = titech.ok(&["transfers"]);
        if listed.contains("paused") {
            break listed;
        }
        assert!(start.elapsed() < WITHIN, "{listed}");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(paused.contains(" of 64M") && paused.contains(" %") && !paused.contains("/s"), "{paused}");
    let why = titech.ok(&["why", &id]);
    assert!(why.contains(" of 64M") && !why.contains("ETA"), "{why}");
    titech.ok(&["cancel", &id]);
    assert!(!titech.ok(&["why", &id]).contains(" of 64M"));
}

#[test]
fn a_route_that_just_failed_is_not_shown_as_good() {
    let mut federation = Federation::two();
    let Federation { titech, kek, .. } = &mut federation;
    let good = titech.json(&["route", "kek"]).1;
    assert_eq!(
        (&good["ways"][0]["chosen"], &good["ways"][0]["failed"]),
        (&true.into(), &().into()),
        "{good}"
    );
    kek.stop();
    let (_, bad) = titech.json(&["route", "kek"]);
    assert_eq!(bad["ways"][0]["chosen"], false, "{bad}");
    assert!(bad["ways"][0]["failed"].as_str().unwrap().contains("RK-NET-2"), "{bad}");
    let shown = titech.renkei(&["route", "kek"]);
    assert_eq!(shown.status.code(), Some(8), "no way leads there");
    assert!(!String::from_utf8_lossy(&shown.stdout).contains("->"));
    // Between two places the PoP of the first tries; for a PoP that cannot be asked, only the cards
    // are used.
    let (_, between) = titech.json(&["route", &titech.root_place(), &kek.root_place()]);
    assert_eq!(between["ways"][0]["chosen"], false, "{between}");
    assert!(between["ways"][0]["failed"].as_str().unwrap().contains("RK-NET-2"), "{between}");
    assert_eq!(between["untested"], serde_json::Value::Null, "{between}");
    let (_, back) = titech.json(&["route", &kek.root_place(), &titech.root_place()]);
    assert!(back["untested"].as_str().unwrap().contains("RK-NET-2"), "{back}");
}
