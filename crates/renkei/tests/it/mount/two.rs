//! One volume through two mounts at two sites: random calls against a model, and kills at random moments.

use crate::federation::{Federation, Site, account};
use crate::mount::data::Chance;
use crate::mount::{can_mount, end, errors};
use crate::tree::noise;
use std::fs::{self, File};
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// A test whose mounts do not answer fails after this time.
const PATIENCE: Duration = Duration::from_secs(120);

/// The home of a volume and another site, with a mount at each.
struct Two {
    mounts: [Arc<Point>; 2],
    federation: Federation,
    _watched: Sender<()>,
}

struct Point {
    at: PathBuf,
    words: &'static [&'static str],
    process: AtomicI32,
}

impl Point {
    fn mount(&self, site: &Site) {
        let (status, told) =
            site.json(&[&["mount", "kek:/genome", self.at.to_str().unwrap()], self.words].concat());
        assert_eq!(status, 0, "{told}");
        self.process.store(i32::try_from(told["process"].as_u64().unwrap()).unwrap(), Ordering::Relaxed);
    }

    fn end(&self) {
        end(&self.at, self.process.load(Ordering::Relaxed));
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        self.mounts.iter().for_each(|point| point.end());
    }
}

impl Two {
    fn new() -> Option<Two> {
        Self::with(&[])
    }

    /// The same with more words for the verb.
    fn with(words: &'static [&'static str]) -> Option<Two> {
        if !can_mount() {
            return None;
        }
        let federation = Federation::two();
        federation.kek.ok(&["volume", "create", "genome", "--storage", "data"]);
        let point = |site: &Site| {
            let at = federation.scratch().join(&site.name);
            fs::create_dir(&at).unwrap();
            let point = Arc::new(Point { at, words, process: AtomicI32::new(0) });
            point.mount(site);
            point
        };
        let mounts = [point(&federation.kek), point(&federation.titech)];
        let (watched, ended) = mpsc::channel();
        let points = mounts.clone();
        thread::spawn(move || {
            if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the mounts are ended because the test takes too long");
                points.iter().for_each(|point| point.end());
            }
        });
        Some(Two { mounts, federation, _watched: watched })
    }

    fn path(&self, side: usize, name: &str) -> PathBuf {
        self.mounts[side].at.join(name)
    }
}

/// The targets of the names.
type Model = [Option<Vec<u8>>; 3];

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Works on one file through one mount from `open` to `close`.
fn work_on(chance: &mut Chance, path: &Path, model: &mut Option<Vec<u8>>) {
    let truncate = chance.below(6) == 0;
    let file = File::options().read(true).write(true).create(true).truncate(truncate).open(path).unwrap();
    let content = model.get_or_insert_default();
    if truncate {
        content.clear();
    }
    for _ in 0..1 + chance.below(5) {
        let (from, count) = (chance.below(150_000), 1 + chance.below(30_000));
        match chance.below(5) {
            0 | 1 => {
                let bytes = noise(chance.below(1000) as u64, count);
                file.write_all_at(&bytes, from as u64).unwrap();
                content.resize(content.len().max(from + count), 0);
                content[from..from + count].copy_from_slice(&bytes);
            }
            2 | 3 => {
                let mut bytes = vec![0; count];
                let read = file.read_at(&mut bytes, from as u64).unwrap();
                let expected = &content[from.min(content.len())..(from + count).min(content.len())];
                assert!(bytes[..read] == *expected, "{} at {from}", path.display());
            }
            _ => {
                file.set_len(from as u64).unwrap();
                content.resize(from, 0);
            }
        }
    }
    close(file).unwrap();
}

/// Closes a file and returns the result.
fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor is this file's alone.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// All of a file that is opened now; none if there is none.
fn content(path: &Path) -> Option<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        read => Some(read.unwrap()),
    }
}

#[test]
fn an_open_sees_a_file_closed_at_the_other_site() {
    let Some(two) = Two::new() else { return };
    let (mut chance, mut model) = (Chance(0x2545_f491_4f6c_dd1d), Model::default());
    for round in 0..200 {
        let (side, name, other) = (chance.below(2), chance.below(3), chance.below(3));
        match chance.below(8) {
            0 if model[name].is_some() && name != other => {
                fs::rename(two.path(side, NAMES[name]), two.path(side, NAMES[other])).unwrap();
                model[other] = model[name].take();
            }
            1 if model[name].is_some() => {
                fs::remove_file(two.path(side, NAMES[name])).unwrap();
                model[name] = None;
            }
            _ => work_on(&mut chance, &two.path(side, NAMES[name]), &mut model[name]),
        }
        for (name, expected) in NAMES.iter().zip(&model) {
            let seen = content(&two.path(1 - side, name));
            let sizes = [&seen, expected].map(|content| content.as_ref().map(Vec::len));
            assert!(seen == *expected, "{name} after round {round}, seen from side {}: {sizes:?}", 1 - side);
        }
    }
    for (name, expected) in NAMES.iter().zip(&model) {
        assert!(content(&two.federation.kek.root().join("genome").join(name)) == *expected);
    }
}

/// Ends the writers, also when a test fails.
struct Over<'a>(&'a AtomicBool, [Arc<Point>; 2]);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if thread::panicking() {
            self.1.iter().for_each(|point| point.end());
        }
    }
}

/// A file that one thread writes again and again.
struct Written {
    path: PathBuf,
    /// The last round whose `close` succeeded.
    closed: u64,
    /// The last one that was begun.
    begun: u64,
}

/// Large enough for several requests.
const VERSION_BYTES: usize = 700_000;

fn version(number: u64) -> Vec<u8> {
    noise(number, VERSION_BYTES + usize::try_from(number % 1000).unwrap())
}

impl Written {
    fn write_until(&mut self, over: &AtomicBool) {
        let begun = Instant::now();
        // On a busy machine the last kill may come before anything was closed.
        while !over.load(Ordering::Relaxed) || (self.closed < 2 && begun.elapsed() < PATIENCE) {
            // Others want the disk, too.
            thread::sleep(Duration::from_millis(5));
            self.begun += 1;
            match self.write(self.begun) {
                Ok(()) => self.closed = self.begun,
                // The mount is being remade.
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn write(&self, number: u64) -> io::Result<()> {
        let file = File::create(&self.path)?;
        let written = file.write_all_at(&version(number), 0);
        close(file).and(written)
    }

    /// The version that is there is whole, and not older than the last that was closed.
    fn check(&self, there: &Path) {
        let seen = content(there).expect("it was closed once");
        // Opening with O_TRUNC is no version before it is closed.
        let found = (self.closed..=self.begun).find(|number| version(*number) == seen);
        assert!(
            found.is_some() || (seen.is_empty() && self.closed < self.begun),
            "{} bytes, none of versions {} to {}",
            seen.len(),
            self.closed,
            self.begun
        );
    }
}

#[test]
fn kills_at_random_moments_lose_no_closed_file() {
    let Some(mut two) = Two::new() else { return };
    let mut chance = Chance(0x9e37_79b9_7f4a_7c15);
    let over = AtomicBool::new(false);
    // The directory exists in the mounts alone: writes while none is mounted fail.
    fs::create_dir(two.path(0, "d")).unwrap();
    let name = |number: usize| format!("d/{number}");
    let mut files: Vec<Written> = (0..4)
        .map(|number| Written { path: two.path(number % 2, &name(number)), closed: 0, begun: 0 })
        .collect();
    thread::scope(|scope| {
        let _over = Over(&over, two.mounts.clone());
        files.iter_mut().for_each(|file| drop(scope.spawn(|| file.write_until(&over))));
        for _ in 0..9 {
            thread::sleep(Duration::from_millis(100 + chance.below(300) as u64));
            let (Two { federation, mounts, .. }, victim) = (&mut two, chance.below(3));
            match victim {
                0 => federation.kek.restart(),
                _ => {
                    // SAFETY: the process is this test's own.
                    unsafe { libc::kill(mounts[victim - 1].process.load(Ordering::Relaxed), libc::SIGKILL) };
                    let site = if victim == 1 { &federation.kek } else { &federation.titech };
                    mounts[victim - 1].mount(site);
                }
            }
        }
    });
    for (number, file) in files.iter().enumerate() {
        assert!(file.closed > 1, "nothing was written through mount {}", number % 2);
        file.check(&two.federation.kek.root().join("genome").join(name(number)));
        file.check(&two.path(1 - number % 2, &name(number)));
    }
    two.federation.kek.ok(&["volume", "check", "genome"]);
}

/// Files that are closed without waiting for the home.
const EARLY: u64 = 120;

#[test]
fn early_closes_are_seen_locally_at_once_and_are_at_the_home_after_umount() {
    let Some(mut two) = Two::with(&["--close", "early"]) else { return };
    let content = |number: u64| noise(number, usize::try_from(number * 3001 % 300_000).unwrap());
    let name = |number: u64| format!("{}/{number}", number % 3);
    (0..3).for_each(|dir| fs::create_dir(two.path(1, &dir.to_string())).unwrap());
    for number in 0..EARLY {
        if number == EARLY / 2 {
            two.federation.kek.restart();
        }
        let path = two.path(1, &name(number));
        fs::write(&path, content(number)).unwrap();
        assert!(fs::read(&path).unwrap() == content(number), "{number} is not here");
    }
    fs::rename(two.path(1, "0/0"), two.path(1, "renamed")).unwrap();
    fs::remove_file(two.path(1, "1/1")).unwrap();
    two.federation.titech.ok(&["umount", two.path(1, "").to_str().unwrap()]);
    let there = two.federation.kek.root().join("genome");
    for number in 2..EARLY {
        assert!(fs::read(there.join(name(number))).unwrap() == content(number), "{number} is not there");
    }
    assert!(fs::read(there.join("renamed")).unwrap() == content(0) && !there.join("1/1").exists());
    two.federation.kek.ok(&["volume", "check", "genome"]);
}

#[test]
fn failed_publishing_after_an_early_close_is_reported() {
    let Some(two) = Two::with(&["--close", "early"]) else { return };
    let (path, user) = (two.path(1, "f"), format!("{}@titech", account()));
    let file = File::create(&path).unwrap();
    file.write_all_at(b"not to be", 0).unwrap();
    two.federation.kek.ok(&["map", "remove", &user]);
    // The session ends when its rights are judged again.
    thread::sleep(Duration::from_secs(2));
    drop(file);
    let begun = Instant::now();
    while !errors(&two.path(1, "")).contains("RK-AUTH-") {
        assert!(begun.elapsed() < Duration::from_secs(30), "nothing is told: {}", errors(&two.path(1, "")));
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(fs::read(two.federation.kek.root().join("genome/f")).unwrap(), b"");
}
