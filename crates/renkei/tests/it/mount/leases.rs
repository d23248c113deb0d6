//! Two mounts of one volume: once a change through one is done, the other never shows the old state.

use crate::federation::{Federation, Site, account};
use crate::mount::{can_mount, end};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a loaded machine may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longest delay by a lost lease holder, with a margin for busy machines.
pub const TERM: Duration = Duration::from_secs(3);
pub const SLACK: Duration = Duration::from_secs(3);

/// A mount of a place of a site that is there already.
pub struct Point {
    point: PathBuf,
    /// The folder in it that the tests work in.
    below: &'static str,
    process: i32,
}

impl Point {
    pub fn new(site: &Site, place: &str, parent: &Path, name: &str) -> Point {
        let point = parent.join(name);
        fs::create_dir_all(&point).unwrap();
        let (status, report) = site.json(&["mount", place, point.to_str().unwrap()]);
        assert_eq!(status, 0, "{report}");
        Point { process: i32::try_from(report["process"].as_u64().unwrap()).unwrap(), point, below: "" }
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.point.join(self.below).join(path)
    }

    /// A file's length, if it is there.
    fn len(&self, name: &str) -> Option<u64> {
        match fs::symlink_metadata(self.path(name)) {
            Ok(data) => Some(data.len()),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => None,
            Err(error) => panic!("{name}: {error}"),
        }
    }

    pub fn kill(&self, signal: i32) {
        // SAFETY: the process is this test's own.
        unsafe { libc::kill(self.process, signal) };
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        end(&self.point, self.process);
    }
}

/// A site with a volume, and two mounts of it.
pub fn two() -> Option<(TempDir, Site, [Point; 2])> {
    if !can_mount() {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let kek = Site::start(dir.path(), "kek");
    kek.ok(&["volume", "create", "genome", "--storage", "data"]);
    let points = ["a", "b"].map(|name| Point::new(&kek, "kek:/genome", dir.path(), name));
    Some((dir, kek, points))
}

/// The same, of which one is of all that the site has.
fn two_with_one_of_the_whole_site() -> Option<(TempDir, Site, [Point; 2])> {
    let (dir, kek, [first, _]) = two()?;
    let mut all = Point::new(&kek, "kek:/", dir.path(), "all");
    all.below = "genome";
    Some((dir, kek, [first, all]))
}

/// Numbers that follow from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

#[test]
fn a_change_by_one_mount_is_seen_by_the_other() {
    let Some((_dir, kek, points)) = two() else { return };
    change_and_look(&kek, &points);
}

#[test]
fn a_change_by_one_mount_is_seen_by_a_mount_of_the_whole_site() {
    let Some((_dir, kek, points)) = two_with_one_of_the_whole_site() else { return };
    // A storage beside it, without callbacks.
    fs::write(kek.root().join("plain"), "1").unwrap();
    let plain = points[1].point.join("data/plain");
    assert_eq!(fs::metadata(&plain).unwrap().len(), 1);
    change_and_look(&kek, &points);
    fs::write(kek.root().join("plain"), "three").unwrap();
    assert_eq!(fs::read(&plain).unwrap(), b"three");
}

fn change_and_look(kek: &Site, points: &[Point; 2]) {
    let (mut numbers, mut model) = (Numbers(7), BTreeMap::<String, u64>::new());
    fs::create_dir(points[0].path("d")).unwrap();
    let (begun, mut rounds) = (Instant::now(), 0);
    while rounds <= 20 || (rounds < 400 && begun.elapsed() < Duration::from_millis(2500)) {
        assert!(begun.elapsed() < PATIENCE, "{rounds} rounds");
        rounds += 1;
        let maker = &points[numbers.below(2) as usize];
        let name =
            |number: u64| format!("{}{}", if number.is_multiple_of(2) { "d/" } else { "" }, number % 6);
        let (name, other) = (name(numbers.below(12)), name(numbers.below(12)));
        match numbers.below(6) {
            0..=2 => {
                let bytes = numbers.below(5000);
                fs::write(maker.path(&name), vec![7; bytes as usize]).unwrap();
                model.insert(name, bytes);
            }
            3 => {
                let done = fs::rename(maker.path(&name), maker.path(&other));
                assert_eq!(done.is_ok(), model.contains_key(&name), "round {rounds}: {name} to {other}");
                if let Some(bytes) = model.remove(&name) {
                    model.insert(other, bytes);
                }
            }
            4 => {
                let done = fs::remove_file(maker.path(&name));
                assert_eq!(done.is_ok(), model.remove(&name).is_some(), "round {rounds}: {name}");
            }
            _ => {
                let done =
                    fs::File::options().write(true).open(maker.path(&name)).and_then(|f| f.set_len(77));
                assert_eq!(done.is_ok(), model.contains_key(&name), "round {rounds}: {name}");
                model.entry(name).and_modify(|bytes| *bytes = 77);
            }
        }
        for number in 0..12 {
            let name = format!("{}{}", if number % 2 == 0 { "d/" } else { "" }, number % 6);
            for (at, point) in points.iter().enumerate() {
                assert_eq!(point.len(&name), model.get(&name).copied(), "round {rounds}, mount {at}: {name}");
            }
        }
        if rounds % 20 == 0 {
            let names = |point: &Point| {
                let names = fs::read_dir(point.path("d")).unwrap();
                let mut names: Vec<_> = names.map(|item| item.unwrap().file_name()).collect();
                names.sort();
                names
            };
            assert_eq!(names(&points[0]), names(&points[1]));
            assert_eq!(names(&points[0]).len(), model.keys().filter(|name| name.starts_with("d/")).count());
        }
    }
    // By a verb, and behind the back of the volume.
    fs::write(points[0].path("verb"), "1").unwrap();
    assert_eq!(points[1].len("verb"), Some(1));
    kek.ok(&["mv", "/genome/verb", "/genome/moved"]);
    assert_eq!((points[1].len("verb"), points[0].len("moved")), (None, Some(1)));
    fs::write(kek.root().join("genome/moved"), "behind").unwrap();
    let begun = Instant::now();
    while points[0].len("moved") != Some(6) {
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "a change behind the volume's back is not heard of"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn no_mount_shows_state_older_than_an_acknowledged_change() {
    let Some((_dir, _kek, [writer, reader])) = two_with_one_of_the_whole_site() else { return };
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    fs::write(writer.path("f"), "").unwrap();
    thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut looks = 0u64;
            while !over.load(Ordering::SeqCst) {
                let least = done.load(Ordering::SeqCst);
                let shown = reader.len("f").unwrap();
                assert!(shown >= least, "{shown} is shown, {least} was done");
                looks += 1;
            }
            looks
        });
        let begun = Instant::now();
        let mut version = 0;
        while version <= 10 || begun.elapsed() < Duration::from_millis(1500) {
            assert!(begun.elapsed() < PATIENCE, "{version} versions");
            version += 1;
            if version % 3 == 0 {
                fs::write(writer.path("g"), vec![1; version as usize]).unwrap();
                fs::rename(writer.path("g"), writer.path("f")).unwrap();
            } else {
                fs::write(writer.path("next"), vec![1; version as usize]).unwrap();
                fs::rename(writer.path("next"), writer.path("f")).unwrap();
                assert_eq!(writer.len("f"), Some(version));
            }
            done.store(version, Ordering::SeqCst);
        }
        over.store(true, Ordering::SeqCst);
        let looks = looking.join().unwrap();
        assert!(looks > version, "{version} versions, {looks} looks");
    });
}

#[test]
fn a_dead_mount_delays_others_for_its_lease_term_at_most() {
    let Some((_dir, _kek, [maker, gone])) = two() else { return };
    fs::create_dir(maker.path("d")).unwrap();
    assert!(fs::read_dir(gone.path("d")).unwrap().next().is_none());
    gone.kill(libc::SIGKILL);
    let begun = Instant::now();
    fs::create_dir(maker.path("d/e")).unwrap();
    assert!(begun.elapsed() < TERM + SLACK, "{:?}", begun.elapsed());
    let begun = Instant::now();
    fs::create_dir(maker.path("d/f")).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1), "it costs its term once, not {:?}", begun.elapsed());
}

#[test]
fn an_unmounted_mount_returns_its_leases() {
    let Some((_dir, kek, [first, second])) = two() else { return };
    fs::write(first.path("f"), "one").unwrap();
    assert_eq!(second.len("f"), Some(3));
    let believes = || {
        let notes = fs::read_dir(kek.dir().join("state/volumes")).unwrap();
        notes.flatten().any(|note| note.path().extension().is_some_and(|end| end == "leased"))
    };
    assert!(believes());
    first.kill(libc::SIGTERM);
    kek.ok(&["umount", second.path("").to_str().unwrap()]);
    let begun = Instant::now();
    while believes() {
        assert!(begun.elapsed() < PATIENCE, "the site still waits for one of them");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_restarted_pop_waits_for_leases_given_before_it_was_killed() {
    let Some((_dir, mut kek, [maker, other])) = two() else { return };
    fs::write(maker.path("f"), "1").unwrap();
    assert_eq!(other.len("f"), Some(1));
    // Its cache is valid, and it receives no callbacks.
    other.kill(libc::SIGSTOP);
    kek.restart();
    kek.ok(&["mv", "/genome/f", "/genome/g"]);
    let shown = thread::scope(|scope| {
        let looking = scope.spawn(|| other.len("f"));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(300) && !looking.is_finished() {
            thread::sleep(Duration::from_millis(5));
        }
        // Lookups that miss the kernel's cache go to the mount.
        other.kill(libc::SIGCONT);
        looking.join().unwrap()
    });
    assert_eq!(shown, None, "it was renamed");
    let begun = Instant::now();
    kek.ok(&["mv", "/genome/g", "/genome/h"]);
    assert!(begun.elapsed() < TERM, "only the first change waits, not {:?}", begun.elapsed());
}

#[test]
fn entries_made_by_another_mount_in_a_new_directory_are_seen() {
    let Some((_dir, _kek, points)) = two() else { return };
    for round in 0..20 {
        let dir = format!("d{round}");
        let (maker, other) = (&points[round % 2], &points[(round + 1) % 2]);
        fs::create_dir(maker.path(&dir)).unwrap();
        let file = format!("{dir}/f");
        fs::write(other.path(&file), "1").unwrap();
        assert_eq!(maker.len(&file), Some(1), "round {round}");
        fs::write(other.path(&format!("{dir}/g")), "2").unwrap();
        for _ in 0..3 {
            assert_eq!(fs::read_dir(maker.path(&dir)).unwrap().count(), 2, "round {round}");
        }
        fs::remove_file(other.path(&file)).unwrap();
        for _ in 0..3 {
            assert_eq!(fs::read_dir(maker.path(&dir)).unwrap().count(), 1, "round {round}");
        }
    }
}

#[test]
fn a_mount_at_a_follower_shows_the_tree_of_the_follower() {
    if !can_mount() {
        return;
    }
    let federation = Federation::two();
    let (kek, titech) = (&federation.kek, &federation.titech);
    kek.ok(&["volume", "create", "genome", "--storage", "data"]);
    kek.ok(&["volume", "grant", "genome", "titech", "read"]);
    let subscribe = ["volume", "subscribe", "genome", "--from", "kek", "--storage", "data", "--account"];
    titech.ok(&[&subscribe[..], &[&account()]].concat());
    let home = Point::new(kek, "kek:/genome", &federation.scratch(), "home");
    let begun = Instant::now();
    while !titech.renkei(&["ls", "titech:/genome"]).status.success() {
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
    let far = Point::new(titech, "titech:/genome", &federation.scratch(), "far");
    for version in 1..=20 {
        let _ = (far.len("f"), fs::read_dir(far.path("")).unwrap().count());
        fs::write(home.path("f"), vec![1; version as usize]).unwrap();
        let begun = Instant::now();
        while far.len("f") != Some(version) {
            assert!(begun.elapsed() < Duration::from_secs(2), "it shows {:?}, not {version}", far.len("f"));
            thread::sleep(Duration::from_millis(2));
        }
    }
}
