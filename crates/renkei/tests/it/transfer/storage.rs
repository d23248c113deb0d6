//! A storage is the directory that was meant: mounted late, exchanged, moved, read-only, removed, accepted.

use crate::cli::errors::Mounted;
use crate::console::get;
use crate::federation::{Federation, Site};
use crate::wire::raw;
use renkei_core::error::Code;
use renkei_store::marker::STORAGE;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take; generous, because machines that run tests are busy.
const WITHIN: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A process that ends with the test.
struct Guarded(Option<Child>);

impl Guarded {
    /// Its report, if it ended within [`WITHIN`].
    fn output(mut self) -> Output {
        let begin = Instant::now();
        while self.0.as_mut().unwrap().try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < WITHIN, "the command does not end");
            std::thread::yield_now();
        }
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Two directories that stand for disks, and a mount point at which one of them is mounted or none.
struct Disks {
    federation: Federation,
    point: PathBuf,
}

impl Disks {
    fn new() -> Disks {
        let federation = Federation::two();
        let point = federation.scratch().join("small");
        for name in ["a", "b", "small"] {
            fs::create_dir(federation.scratch().join(name)).unwrap();
        }
        Disks { federation, point }
    }

    fn disk(&self, name: &str) -> PathBuf {
        self.federation.scratch().join(name)
    }

    /// Mounts a disk; none where that is not allowed.
    fn mount(&self, name: &str) -> Option<Mounted> {
        let mounted =
            Mounted::by(&self.point, "mount", &["--bind", text(&self.disk(name)), text(&self.point)]);
        if mounted.is_none() {
            eprintln!("SKIPPED: cannot mount");
        }
        mounted
    }

    fn kek(&self) -> &Site {
        &self.federation.kek
    }

    /// Copies a small file into the storage `small` under a name; its code if that fails.
    fn copy(&self, name: &str) -> Result<(), String> {
        let file = self.federation.scratch().join("file");
        fs::write(&file, name).unwrap();
        let place = format!("kek:/small/{name}");
        let (_, told) = self.federation.titech.json(&["cp", "--retry-for", "0", text(&file), &place]);
        match told["error"]["code"].as_str() {
            None if told["files"] == 1 => Ok(()),
            code => Err(code.unwrap_or_else(|| panic!("{told}")).to_owned()),
        }
    }

    /// Copies until it succeeds, as it must by itself.
    fn copy_in_time(&self, name: &str) {
        let begin = Instant::now();
        while let Err(code) = self.copy(name) {
            assert!(begin.elapsed() < WITHIN, "still {code}\n{}", self.kek().logged());
        }
    }

    fn assert_stopped(&self, code: &str) {
        // Copies stop from the first moment on; the code of the condition may change within the second.
        assert!(self.copy("x").is_err());
        assert_reported(self.kek(), "small", Some(code));
        assert_eq!(self.copy("x"), Err(code.to_owned()));
    }
}

/// Waits until health and metrics of a site say that one storage is stopped, or none; then doctor says so too.
fn assert_reported(site: &Site, storage: &str, code: Option<&str>) {
    await_health(site, code.map(|code| format!("storage: {code}")));
    let (_, doctor) = site.json(&["doctor"]);
    let what = format!("storage {storage}");
    let check = doctor["checks"].as_array().unwrap().iter().find(|check| check["what"] == what.as_str());
    assert_eq!(check.unwrap()["code"].as_str(), code, "{doctor:#}");
}

fn await_health(site: &Site, problem: Option<String>) {
    let begin = Instant::now();
    loop {
        let (health, metrics) = (get(site, "/healthz", "").body, get(site, "/metrics", "").body);
        let is_counted = metrics.contains("what=\"storage\"") == problem.is_some();
        let is_told = match &problem {
            Some(problem) => health.contains(&format!("\"{problem}\"")),
            None => health.contains("\"ok\""),
        };
        if is_told && is_counted {
            return;
        }
        assert!(begin.elapsed() < WITHIN, "{problem:?}: {health}");
    }
}

/// The entries of a directory beside the marker.
fn names(dir: &Path) -> Vec<String> {
    let listed = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = listed.filter(|name| name != STORAGE).collect();
    names.sort();
    names
}

#[test]
fn a_storage_mounted_after_the_start_of_the_pop_is_used() {
    let mut disks = Disks::new();
    let Some(mut mounted) = disks.mount("a") else { return };
    let point = disks.point.clone();
    disks.kek().ok(&["storage", "add", "small", text(&point)]);
    assert!(disks.kek().ok(&["storage", "list"]).contains("(a mount)"));
    disks.copy_in_time("before");
    for (choice, code) in [("yes", "RK-STORE-28"), ("no", "RK-STORE-27")] {
        disks.kek().ok(&["storage", "accept", "small", &format!("--require-mount={choice}")]);
        disks.federation.kek.stop();
        drop(mounted);
        disks.federation.kek.restart();
        disks.assert_stopped(code);
        assert!(fs::read_dir(&point).unwrap().next().is_none(), "nothing is written below the mount point");
        mounted = disks.mount("a").unwrap();
        disks.copy_in_time("after");
        assert_reported(disks.kek(), "small", None);
    }
    assert_eq!(names(&disks.disk("a")), ["after", "before"]);
}

#[test]
fn a_disk_exchanged_under_a_running_pop_is_detected() {
    let disks = Disks::new();
    let Some(mounted) = disks.mount("a") else { return };
    disks.kek().ok(&["storage", "add", "small", text(&disks.point), "--require-mount=no"]);
    disks.copy_in_time("one");
    // As `umount -l` does, under open files.
    drop(mounted);
    disks.assert_stopped("RK-STORE-27");
    let mounted = disks.mount("b").unwrap();
    disks.assert_stopped("RK-STORE-27");
    drop(mounted);
    let mounted = disks.mount("a").unwrap();
    disks.copy_in_time("two");
    assert_reported(disks.kek(), "small", None);
    drop(mounted);
    assert_eq!(names(&disks.disk("a")), ["one", "two"]);
    assert!(names(&disks.disk("b")).is_empty() && names(&disks.point).is_empty());
}

#[test]
fn a_disk_formatted_in_the_same_second_is_a_different_one() {
    let disks = Disks::new();
    // Its root has the same inode number and time of birth.
    let make = ["env", "E2FSPROGS_FAKE_TIME=1700000000", "mkfs.ext4", "-q"];
    let mount = || Mounted::image(&disks.point, &make, "noatime");
    let Some(mounted) = mount() else { return eprintln!("SKIPPED: needs loop devices and mkfs.ext4") };
    disks.kek().ok(&["storage", "add", "small", text(&disks.point), "--require-mount=no"]);
    disks.copy_in_time("one");
    drop(mounted);
    disks.assert_stopped("RK-STORE-27");
    let mounted = mount().unwrap();
    disks.assert_stopped("RK-STORE-27");
    assert_eq!(names(&disks.point), ["lost+found"]);
    drop(mounted);
}

#[test]
fn a_directory_that_is_moved_is_not_followed() {
    let disks = Disks::new();
    disks.kek().ok(&["storage", "add", "small", text(&disks.point)]);
    disks.copy_in_time("one");
    let moved = disks.disk("moved");
    fs::rename(&disks.point, &moved).unwrap();
    disks.assert_stopped("RK-STORE-17");
    // A copy that waits for it says that once, however often it is tried again.
    let file = disks.federation.scratch().join("file");
    let waited = disks.federation.titech.renkei(&["cp", "--retry-for", "4", text(&file), "kek:/small/waits"]);
    let said = String::from_utf8_lossy(&waited.stderr).into_owned();
    assert!(!waited.status.success() && said.matches("trying again").count() == 1, "{said}");
    fs::create_dir(&disks.point).unwrap();
    disks.assert_stopped("RK-STORE-27");
    assert!(names(&moved) == ["one"] && fs::read_dir(&disks.point).unwrap().next().is_none());
    fs::remove_dir(&disks.point).unwrap();
    fs::rename(&moved, &disks.point).unwrap();
    disks.copy_in_time("two");
    assert_eq!(names(&disks.point), ["one", "two"]);
}

#[test]
fn read_only_file_systems_are_distinguished() {
    let disks = Disks::new();
    fs::write(disks.disk("a").join("which"), "a").unwrap();
    fs::write(disks.disk("b").join("which"), "b").unwrap();
    let mount = |name: &str| {
        let mounted = disks.mount(name)?;
        mounted.remount("bind,ro");
        Some(mounted)
    };
    let Some(mounted) = mount("a") else { return };
    disks.kek().ok(&["storage", "add", "small", text(&disks.point), "--read-only"]);
    let read = || {
        let (_, told) = disks.federation.titech.json(&["ls", "kek:/small"]);
        let code = told["error"]["code"].as_str().or(told["failures"][0]["code"].as_str()).map(str::to_owned);
        code.map_or_else(|| Ok(()), Err)
    };
    let in_time = |wanted: Result<(), String>| {
        let begin = Instant::now();
        while read() != wanted {
            assert!(begin.elapsed() < WITHIN, "{:?} instead of {wanted:?}", read());
        }
    };
    in_time(Ok(()));
    drop(mounted);
    let mounted = mount("b").unwrap();
    in_time(Err("RK-STORE-27".into()));
    assert_reported(disks.kek(), "small", Some("RK-STORE-27"));
    drop(mounted);
    let mounted = mount("a").unwrap();
    in_time(Ok(()));
    assert_eq!(fs::read_dir(disks.disk("a")).unwrap().count(), 1, "nothing can be written there");
    drop(mounted);
}

/// The command that copies a large file slowly, begun.
fn slow_copy(from: &Site, scratch: &Path, to: &str) -> Guarded {
    let large = scratch.join("large");
    if !large.exists() {
        fs::write(&large, vec![7; 64 * MIB]).unwrap();
    }
    let mut command = from.command();
    command.args(["--json", "cp", "--retry-for", "0", "--limit", "2M", text(&large), to]);
    Guarded(Some(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()))
}

/// Waits until a directory has a file that is being received.
fn await_part(dir: &Path) {
    let begin = Instant::now();
    let has_part = || names(dir).iter().any(|name| name.starts_with(".rk~"));
    while !has_part() {
        assert!(begin.elapsed() < WITHIN, "nothing comes into {}", dir.display());
    }
}

#[test]
fn a_running_copy_ends_when_its_storage_is_exchanged_and_others_continue() {
    let disks = Disks::new();
    let (kek, titech, scratch) = (disks.kek(), &disks.federation.titech, disks.federation.scratch());
    kek.ok(&["storage", "add", "small", text(&disks.point)]);
    disks.copy_in_time("one");
    let copy = slow_copy(titech, &scratch, "kek:/small/large");
    await_part(&disks.point);
    let other = slow_copy(titech, &scratch, "kek:/data/large");
    await_part(kek.root());
    let moved = disks.disk("moved");
    fs::rename(&disks.point, &moved).unwrap();
    fs::create_dir(&disks.point).unwrap();
    let ended = copy.output();
    let told: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let code = told["error"]["code"].as_str().unwrap_or_else(|| panic!("{told}")).to_owned();
    assert!(["RK-STORE-27", "RK-STORE-17"].contains(&code.as_str()), "{told}");
    assert_eq!(told["error"]["side"], "kek", "{told}");
    assert!(!names(&moved).contains(&"large".to_owned()) && names(&disks.point).is_empty());
    let (_, status) = kek.json(&["status"]);
    assert_eq!(status["transfers"][0]["place"], "/data", "{status:#}");
    drop(other);
}

#[test]
fn an_upload_to_the_buffer_continues_when_storages_disappear() {
    let mut disks = Disks::new();
    let config = disks.kek().dir().join("config.toml");
    let before = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{before}\n[buffer]\nsize_mib = 200\nper_user_mib = 200\n")).unwrap();
    disks.federation.kek.restart();
    let (kek, scratch) = (disks.kek(), disks.federation.scratch());
    kek.ok(&["storage", "add", "small", text(&disks.point)]);
    disks.copy_in_time("one");
    let file = scratch.join("upload");
    fs::write(&file, vec![9; 12 * MIB]).unwrap();
    let mut command = kek.command();
    command.args(["--json", "cp", "--detach", "--limit", "3M", text(&file), "titech:/data/upload"]);
    let upload = Guarded(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()));
    let begin = Instant::now();
    while kek.json(&["status"]).1["transfers"].as_array().unwrap().is_empty() {
        assert!(begin.elapsed() < WITHIN, "nothing is uploaded");
    }
    fs::rename(&disks.point, disks.disk("moved")).unwrap();
    assert_reported(kek, "small", Some("RK-STORE-17"));
    kek.ok(&["storage", "remove", "small"]);
    await_health(kek, None);
    let ended = upload.output();
    assert!(ended.status.success(), "{ended:?}");
}

#[test]
fn an_intended_exchange_is_accepted() {
    let disks = Disks::new();
    let kek = disks.kek();
    kek.ok(&["storage", "add", "small", text(&disks.point)]);
    disks.copy_in_time("one");
    fs::rename(&disks.point, disks.disk("moved")).unwrap();
    fs::create_dir(&disks.point).unwrap();
    disks.assert_stopped("RK-STORE-27");
    kek.ok(&["storage", "accept", "small"]);
    disks.copy_in_time("two");
    assert_reported(kek, "small", None);
    assert_eq!(names(&disks.point), ["two"]);
    for (name, code) in [("none", "RK-STORE-16"), ("small", "RK-STORE-28")] {
        let (_, refused) = kek.json(&["storage", "accept", name, "--require-mount"]);
        assert_eq!(refused["error"]["code"], code, "{refused}");
    }
    disks.copy_in_time("three");
}

#[test]
fn a_storage_of_an_older_version_is_accepted_and_its_marker_kept() {
    let mut disks = Disks::new();
    let root = disks.kek().root().to_owned();
    disks.federation.kek.stop();
    let marker = root.join(STORAGE);
    fs::remove_file(&marker).unwrap();
    fs::remove_dir_all(disks.kek().dir().join("state/storages")).unwrap();
    fs::write(root.join("old"), "old").unwrap();
    disks.federation.kek.restart();
    assert_eq!(disks.federation.titech.ok(&["cat", "kek:/data/old"]), "old");
    let text = fs::read_to_string(&marker).unwrap();
    // Removing it has no effect: renkei refuses it, and a marker removed by hand is written again.
    let (status, refused) = disks.federation.titech.json(&["rm", &format!("kek:/data/{STORAGE}")]);
    let told = refused.to_string();
    assert!(status != 0 && told.contains(Code::PermissionDenied.row().id), "{told}");
    assert!(!disks.federation.titech.ok(&["ls", "kek:/data"]).contains(STORAGE));
    fs::remove_file(&marker).unwrap();
    let begin = Instant::now();
    while fs::read_to_string(&marker).ok().as_ref() != Some(&text) {
        assert!(begin.elapsed() < WITHIN, "{}", disks.kek().logged());
    }
    assert_eq!(raw::home(disks.kek()).storages_dir(), disks.kek().dir().join("state/storages"));
}

/// Roots of such file systems have one inode number.
fn disk(at: &Path) -> Option<Mounted> {
    let mounted = Mounted::image(at, &["mkfs.ext4", "-q", "-F"], "defaults")?;
    fs::remove_dir(at.join("lost+found")).unwrap();
    Some(mounted)
}

#[test]
fn a_volume_is_closed_while_another_file_system_is_in_its_place() {
    let mut federation = Federation::two();
    let (a, b) = (federation.scratch().join("a"), federation.scratch().join("b"));
    let (Some(_a), Some(_b)) = (disk(&a), disk(&b)) else {
        return eprintln!("SKIPPED: cannot mount");
    };
    fs::write(b.join("foreign"), "foreign").unwrap();
    let point = federation.kek.root().join("genome");
    fs::create_dir(&point).unwrap();
    let bind = |disk: &Path| Mounted::by(&point, "mount", &["--bind", text(disk), text(&point)]).unwrap();
    let _right = bind(&a);
    federation.kek.ok(&["volume", "create", "genome", "--storage", "data"]);
    let file = federation.scratch().join("f");
    fs::write(&file, "f").unwrap();
    let put = |site: &Site, name: &str| {
        let (_, told) = site.json(&["cp", "--retry-for", "0", text(&file), &format!("kek:/genome/{name}")]);
        match told["error"]["code"].as_str() {
            None if told["files"] == 1 => None,
            code => Some(code.map_or_else(|| told.to_string(), str::to_owned)),
        }
    };
    assert_eq!(put(&federation.kek, "before"), None);
    for is_running in [true, false] {
        if !is_running {
            federation.kek.stop();
        }
        let wrong = bind(&b);
        if !is_running {
            federation.kek.restart();
        }
        // From the first moment on.
        assert_eq!(put(&federation.kek, "lost").as_deref(), Some("RK-NS-10"), "{is_running}");
        let (_, doctor) = federation.kek.json(&["doctor"]);
        assert!(doctor.to_string().contains("RK-NS-10"), "{doctor:#}");
        let (status, told) = federation.kek.json(&["volume", "check", "genome", "--accept"]);
        assert!(status != 0 && told.to_string().contains("missing"), "{told}");
        assert_eq!(names(&b), ["foreign"]);
        drop(wrong);
        let begin = Instant::now();
        while let Some(code) = put(&federation.kek, "after") {
            assert!(begin.elapsed() < WITHIN, "still {code}\n{}", federation.kek.logged());
        }
        let listed = federation.kek.ok(&["ls", "/genome"]);
        assert_eq!(listed, "after\nbefore\n");
    }
}

#[test]
fn a_copy_with_its_marker_is_not_added_as_another_storage() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::start(dir.path(), "kek");
    let copy = dir.path().join("copy");
    fs::create_dir(&copy).unwrap();
    fs::copy(site.root().join(STORAGE), copy.join(STORAGE)).unwrap();
    let add = ["storage", "add", "copy", text(&copy)];
    let (status, told) = site.json(&add);
    assert_eq!((status, told["error"]["code"].as_str()), (8, Some("RK-STORE-30")), "{told}");
    let said = told.to_string();
    assert!(
        said.contains("of the storage data, ") && said.contains("remove `.rk~storage` from it"),
        "{said}"
    );
    assert!(!site.ok(&["storage", "list"]).contains("copy"));
    fs::remove_file(copy.join(STORAGE)).unwrap();
    site.ok(&add);
    let [one, other] = [site.root(), &copy].map(|root| fs::read(root.join(STORAGE)).unwrap());
    assert_ne!(one, other);
}
