//! Mounts: one made for each test, over a PoP of its own, and how they begin and end.

pub(crate) mod credential;
pub(crate) mod data;
pub(crate) mod leases;
pub(crate) mod locks;
pub(crate) mod posix;
pub(crate) mod prefetch;
pub(crate) mod sites;
pub(crate) mod two;
pub(crate) mod user;

use crate::federation::Site;
use std::ffi::CString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A test whose mount does not answer fails after this time; nothing hangs for ever.
const PATIENCE: Duration = Duration::from_secs(120);

/// A mount of a site's storage `data`.
pub struct Mount {
    pub site: Site,
    pub point: PathBuf,
    process: i32,
    /// Signalled when the test ends, so that the mount is not ended twice.
    _watched: Sender<()>,
    dir: TempDir,
}

/// Whether there can be mounts here; says so if not.
pub fn can_mount() -> bool {
    let can = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !can {
        eprintln!("SKIPPED: /dev/fuse cannot be opened");
    }
    can
}

impl Mount {
    /// Mounts the storage of a new site; none where that cannot be.
    pub fn new() -> Option<Mount> {
        Mount::with(&[])
    }

    /// The same with more words for the verb.
    pub fn with(words: &[&str]) -> Option<Mount> {
        if !can_mount() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let site = Site::start(dir.path(), "kek");
        let point = dir.path().join("mnt");
        fs::create_dir(&point).unwrap();
        let (watched, ended) = mpsc::channel();
        let mut mount = Mount { site, point, process: 0, _watched: watched, dir };
        mount.mount(words);
        let (point, process) = (mount.point.clone(), mount.process);
        thread::spawn(move || {
            if ended.recv_timeout(PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("the mount is ended because the test takes too long");
                end(&point, process);
            }
        });
        Some(mount)
    }

    /// Mounts, again.
    pub fn mount(&mut self, words: &[&str]) {
        let (place, point) = (self.site.root_place(), self.point.to_str().unwrap().to_owned());
        let (status, report) = self.site.json(&[&["mount", &place, &point], words].concat());
        assert_eq!(status, 0, "{report}");
        self.process = i32::try_from(report["process"].as_u64().unwrap()).unwrap();
    }

    /// A path in the mount.
    pub fn path(&self, path: &str) -> PathBuf {
        self.point.join(path)
    }

    /// The same as the site has it.
    pub fn there(&self, path: &str) -> PathBuf {
        self.site.root().join(path)
    }

    /// A folder beside the mount.
    pub fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// Runs a script in the mount, which must succeed.
    pub fn sh(&self, script: &str) -> String {
        let output = Command::new("sh").args(["-euc", script]).current_dir(&self.point).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn umount(&self, words: &[&str]) -> Output {
        let point = self.point.to_str().unwrap();
        self.site.renkei(&[&["umount", point], words].concat())
    }

    /// Sends a signal to the process of the mount and waits for its end.
    fn signal(&self, signal: i32) {
        // SAFETY: the process is this test's own.
        unsafe { libc::kill(self.process, signal) };
        self.wait_for_end();
    }

    fn wait_for_end(&self) {
        let begin = Instant::now();
        while Path::new(&format!("/proc/{}", self.process)).exists() {
            assert!(begin.elapsed() < PATIENCE, "the process of the mount goes on");
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_mounted(&self) -> bool {
        let line = format!(" {} fuse", self.point.display());
        fs::read_to_string("/proc/mounts").unwrap().contains(&line)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        end(&self.point, self.process);
    }
}

#[test]
fn a_late_unmount_leaves_the_next_mount_in_place() {
    let Some(mut mount) = Mount::new() else { return };
    fs::write(mount.there("held"), "held").unwrap();
    let held = fs::File::open(mount.path("held")).unwrap();
    let old = mount.process;
    assert!(mount.umount(&["--lazy"]).status.success());
    mount.mount(&[]);
    let new = std::mem::replace(&mut mount.process, old);
    drop(held);
    mount.wait_for_end();
    mount.process = new;
    fs::write(mount.path("after"), "after").unwrap();
    assert_eq!(fs::read(mount.there("after")).unwrap(), b"after");
    assert!(mount.is_mounted());
}

/// Takes a mount away and ends its process.
pub fn end(point: &Path, process: i32) {
    let point = CString::new(point.as_os_str().as_bytes()).unwrap();
    // SAFETY: a string that ends with NUL, and a process that this test started.
    unsafe {
        libc::umount2(point.as_ptr(), libc::MNT_DETACH);
        if process > 0 {
            libc::kill(process, libc::SIGKILL);
        }
    }
}

/// The error number of a failure.
pub fn number<T>(outcome: io::Result<T>) -> i32 {
    outcome.err().and_then(|error| error.raw_os_error()).expect("it fails, by the system's word")
}

// ---- begin and end ---------------------------------------------------------------------------------------------------

#[test]
fn closed_files_are_at_the_site_and_changes_at_the_site_are_seen() {
    let Some(mount) = Mount::new() else { return };
    fs::create_dir(mount.path("run")).unwrap();
    fs::write(mount.path("run/a"), "from the mount").unwrap();
    assert_eq!(fs::read(mount.there("run/a")).unwrap(), b"from the mount");
    // An open revalidates: no time passes between.
    for round in 0..20 {
        let text = format!("from the site, {round}");
        fs::write(mount.there("run/next"), &text).unwrap();
        fs::rename(mount.there("run/next"), mount.there("run/a")).unwrap();
        assert_eq!(fs::read_to_string(mount.path("run/a")).unwrap(), text);
        fs::write(mount.there("run/b"), &text).unwrap();
        assert_eq!(fs::read_to_string(mount.path("run/b")).unwrap(), text, "also after changes in place");
    }
    fs::remove_file(mount.there("run/a")).unwrap();
    assert_eq!(number(fs::read(mount.path("run/a"))), libc::ENOENT);
}

#[test]
fn an_open_version_stays_readable() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.there("f"), "the first version").unwrap();
    let mut first = fs::File::open(mount.path("f")).unwrap();
    let mut begin = [0; 4];
    first.read_exact(&mut begin).unwrap();
    fs::write(mount.there("g"), "2").unwrap();
    fs::rename(mount.there("g"), mount.there("f")).unwrap();
    assert_eq!(fs::read_to_string(mount.path("f")).unwrap(), "2");
    let mut rest = String::new();
    first.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "first version");
}

#[test]
fn files_are_invisible_until_closed() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.path("f"), "old").unwrap();
    let mut file = fs::File::create(mount.path("f")).unwrap();
    file.write_all(b"new content").unwrap();
    assert_eq!(fs::read_to_string(mount.path("f")).unwrap(), "new content", "here it is seen at once");
    assert_eq!(fs::metadata(mount.path("f")).unwrap().len(), 11);
    assert_eq!(fs::read_to_string(mount.there("f")).unwrap(), "old");
    file.sync_all().unwrap();
    assert_eq!(fs::read_to_string(mount.there("f")).unwrap(), "new content", "fsync publishes");
    file.write_all(b", more").unwrap();
    assert_eq!(fs::read_to_string(mount.there("f")).unwrap(), "new content");
    drop(file);
    assert_eq!(fs::read_to_string(mount.there("f")).unwrap(), "new content, more");
}

#[test]
fn umount_refuses_while_in_use_and_leaves_nothing() {
    let Some(mount) = Mount::new() else { return };
    let mut file = fs::File::create(mount.path("f")).unwrap();
    file.write_all(b"written").unwrap();
    let refused = mount.umount(&[]);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(4) && words.contains("RK-MNT-2"), "{words}");
    drop(file);
    // A program that another test starts just then has it, too, for a moment.
    let begun = Instant::now();
    while !mount.umount(&[]).status.success() {
        assert!(begun.elapsed() < Duration::from_secs(10));
        thread::sleep(Duration::from_millis(10));
    }
    mount.wait_for_end();
    assert!(!mount.is_mounted());
    let again = mount.umount(&[]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("RK-MNT-3"), "{again:?}");
    assert!(mount.there("f").exists());
    assert_eq!(crate::tree::count(mount.site.root()), 1, "no temporary file stays");
}

#[test]
fn open_files_are_published_on_sigterm() {
    let Some(mount) = Mount::new() else { return };
    let mut file = fs::File::create(mount.path("f")).unwrap();
    file.write_all(b"not closed").unwrap();
    mount.signal(libc::SIGTERM);
    assert_eq!(fs::read_to_string(mount.there("f")).unwrap(), "not closed");
    assert!(!mount.is_mounted());
    assert!(file.write_all(b"x").and_then(|()| file.sync_all()).is_err(), "later writes are refused");
}

/// A program that has written a file and not closed it. Closing a descriptor publishes, and processes that other tests
/// start have copies of the descriptors of this process for a moment.
struct Writer(Child);

impl Writer {
    fn start(path: &Path, content: &[u8]) -> Self {
        let mut command = Command::new("tee");
        command.arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut writer = Writer(command.spawn().unwrap());
        writer.0.stdin.as_mut().unwrap().write_all(content).unwrap();
        let begun = Instant::now();
        while fs::metadata(path).map_or(0, |found| found.len()) < content.len() as u64 {
            assert!(begun.elapsed() < PATIENCE, "it is not written");
            thread::sleep(Duration::from_millis(5));
        }
        writer
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_killed_mount_is_cleaned_up_by_the_next_mount_and_by_umount() {
    let Some(mut mount) = Mount::new() else { return };
    fs::write(mount.path("f"), "closed").unwrap();
    let writer = Writer::start(&mount.path("g"), b"not closed");
    mount.signal(libc::SIGKILL);
    assert_eq!(number(fs::metadata(mount.path("f"))), libc::ENOTCONN);
    mount.mount(&[]);
    assert_eq!(fs::read_to_string(mount.path("f")).unwrap(), "closed");
    assert_eq!(fs::read_to_string(mount.path("g")).unwrap(), "", "only unpublished writes are lost");
    drop(writer);
    mount.signal(libc::SIGKILL);
    assert!(mount.umount(&[]).status.success());
    assert!(!mount.is_mounted());
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let Some(mount) = Mount::with(&["--read-only"]) else { return };
    fs::write(mount.there("f"), "there").unwrap();
    assert_eq!(fs::read_to_string(mount.path("f")).unwrap(), "there");
    assert_eq!(number(fs::write(mount.path("f"), "x")), libc::EROFS);
    assert_eq!(number(fs::create_dir(mount.path("d"))), libc::EROFS);
    assert_eq!(number(fs::remove_file(mount.path("f"))), libc::EROFS);
}

#[test]
fn a_failed_mount_names_its_cause() {
    let Some(mount) = Mount::new() else { return };
    let refused = |source: &str, point: &Path| {
        let output = mount.site.renkei(&["mount", source, point.to_str().unwrap()]);
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let point = mount.scratch().join("other");
    let (status, words) = refused("kek:/data", &point);
    assert!(status == 3 && words.contains("RK-STORE-1"), "{words}");
    fs::create_dir(&point).unwrap();
    let (status, words) = refused("kek:/nothing", &point);
    assert!(status == 3 && words.contains("RK-STORE-16"), "{words}");
    fs::write(mount.there("file"), "").unwrap();
    let (status, words) = refused("kek:/data/file", &point);
    assert!(status == 4 && words.contains("RK-STORE-3"), "{words}");
    let (status, words) = refused("titech:/data", &point);
    assert!(status == 3 && words.contains("RK-CONF-5"), "{words}");
    fs::write(mount.scratch().join("plain"), "").unwrap();
    let (status, words) = refused("kek:/data", &mount.scratch().join("plain"));
    assert!(status == 4 && words.contains("RK-STORE-3"), "{words}");
}

#[test]
fn calls_wait_while_the_pop_is_down_and_continue() {
    let Some(mut mount) = Mount::new() else { return };
    fs::write(mount.path("f"), "before").unwrap();
    fs::create_dir(mount.path("d")).unwrap();
    let mut open = fs::File::open(mount.path("f")).unwrap();
    mount.site.kill9();
    let (f, d) = (mount.path("f"), mount.path("d"));
    let waiting = [
        thread::spawn(move || fs::read_to_string(f).unwrap()),
        thread::spawn(move || fs::write(d.join("new"), "after").map(|()| "written".to_owned()).unwrap()),
    ];
    thread::sleep(Duration::from_millis(300));
    assert!(waiting.iter().all(|thread| !thread.is_finished()));
    mount.site.restart();
    let ends: Vec<_> = waiting.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(ends, ["before", "written"]);
    assert_eq!(fs::read_to_string(mount.there("d/new")).unwrap(), "after");
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before", "open files are reopened");
}

#[test]
fn a_writer_continues_after_the_pop_was_killed() {
    let Some(mut mount) = Mount::new() else { return };
    let content: Vec<u8> = (0..6 << 18).flat_map(|number: u32| number.to_le_bytes()).collect();
    let source = mount.scratch().join("source");
    fs::write(&source, &content).unwrap();
    // Another process: the PoP that is started below must not inherit its open files.
    let script = r#"{ head -c 2100000; sleep 0.6; cat; } <"$0" >"$1""#;
    let mut writer =
        Command::new("sh").args(["-ec", script]).args([&source, &mount.path("f")]).spawn().unwrap();
    while fs::metadata(mount.path("f")).map_or(0, |known| known.len()) < 2_000_000 {
        thread::sleep(Duration::from_millis(10));
    }
    mount.site.kill9();
    thread::sleep(Duration::from_millis(300));
    mount.site.restart();
    assert!(writer.wait().unwrap().success());
    assert!(fs::read(mount.there("f")).unwrap() == content);
}

#[test]
fn local_files_use_fuse_passthrough() {
    for words in [&[][..], &["--read-only"]] {
        let Some(mut mount) = Mount::with(words) else { return };
        let content: Vec<u8> = (0..1 << 19).flat_map(|number: u32| number.to_le_bytes()).collect();
        fs::write(mount.there("large"), &content).unwrap();
        let open = fs::File::open(mount.path("large")).unwrap();
        let read = || {
            let mut part = vec![0; 4096];
            open.read_exact_at(&mut part, 1 << 20).unwrap();
            assert!(part == content[1 << 20..][..4096], "{words:?}");
        };
        // It needs no PoP any more.
        mount.site.kill9();
        read();
        mount.site.restart();
        fs::write(mount.there("new"), "other").unwrap();
        fs::rename(mount.there("new"), mount.there("large")).unwrap();
        read();
        let begin = Instant::now();
        while fs::read(mount.path("large")).unwrap() != b"other" {
            assert!(begin.elapsed() < PATIENCE);
            thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn calls_of_a_no_wait_mount_fail_with_a_logged_cause() {
    let Some(mut mount) = Mount::with(&["--when-lost", "fail", "--attr-ttl", "0"]) else { return };
    fs::write(mount.path("f"), "before").unwrap();
    mount.site.kill9();
    let begin = Instant::now();
    assert_eq!(number(fs::read(mount.path("f"))), libc::EIO);
    assert!(begin.elapsed() < Duration::from_secs(30));
    mount.site.restart();
    let reason = errors(&mount.path(""));
    assert!(reason.contains("RK-NET-"), "{reason}");
    while fs::read_to_string(mount.path("f")).is_err() {
        assert!(begin.elapsed() < PATIENCE, "it does not come back: {}", errors(&mount.path("")));
        thread::sleep(Duration::from_millis(50));
    }
}

/// The last errors of a mount, as an attribute of its root.
pub fn errors(point: &Path) -> String {
    let point = CString::new(point.as_os_str().as_bytes()).unwrap();
    let mut text = vec![0; 16 << 10];
    // SAFETY: strings end with NUL, and the buffer has the length given.
    let count = unsafe {
        libc::getxattr(point.as_ptr(), c"user.renkei.error".as_ptr(), text.as_mut_ptr().cast(), text.len())
    };
    text.truncate(usize::try_from(count).expect("the root has the attribute"));
    String::from_utf8(text).unwrap()
}

#[test]
fn a_mount_point_in_use_or_with_files_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let site = Site::start(parent.path(), "kek");
    let full = parent.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("file"), "mine").unwrap();
    let (status, told) = site.json(&["mount", &site.root_place(), full.to_str().unwrap()]);
    assert_eq!((status, &told["error"]["code"]), (4, &"RK-STORE-12".into()), "{told}");
    assert!(told["error"]["remedy"].as_str().unwrap().contains("--non-empty"), "{told}");
    let Some(mount) = Mount::new() else { return };
    let point = mount.point.to_str().unwrap();
    let (status, told) = mount.site.json(&["mount", &mount.site.root_place(), point]);
    assert_eq!((status, &told["error"]["code"]), (4, &"RK-MNT-2".into()), "{told}");
    assert!(told["error"]["remedy"].as_str().unwrap().ends_with(&format!("umount {point}` first")), "{told}");
}
