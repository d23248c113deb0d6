//! Acknowledged data is never lost, whatever is killed or cut and whenever, and the same command resumes.

use crate::federation::Federation;
use crate::relay::proxy::Proxy;
use crate::tree::{self, MIB, Tree, assert_same, noise};
use renkei_core::mover::digest::slot_range;
use renkei_core::mover::journal::State;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Kill points of one of the two federations that are worked on at the same time.
const KILLS: u32 = 52;
/// Kill points of one copy, which then runs to its end.
const KILLS_EACH: u32 = 6;
/// Rate of the connection per second, slow enough to kill a process during the copy.
const RATE: u64 = 45_000_000;
/// A run that was not killed ends within.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// Numbers that look random (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
    Between,
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    KillClient,
    KillSender,
    KillReceiver,
    CutConnection,
}

/// About 60 MB: large files, small ones, links, directories with times of their own.
fn make_tree(top: &Path) -> u64 {
    fs::create_dir_all(top.join("small/deep/er")).unwrap();
    let mut total = 0;
    let mut file = |name: String, seed: u64, size: usize| {
        fs::write(top.join(name), noise(seed, size)).unwrap();
        total += size as u64;
    };
    file("large".into(), 1, 17 * MIB + 1);
    (0..9).for_each(|i| file(format!("medium-{i}"), 2 + i, 4 * MIB));
    (0..5).for_each(|i| file(format!("one-extent-{i}"), i, MIB + MIB / 2));
    for i in 0..300u64 {
        let dir = ["small", "small/deep", "small/deep/er"][i as usize % 3];
        file(format!("{dir}/f{i}"), i, (i * 67) as usize);
    }
    fs::hard_link(top.join("large"), top.join("small/large-too")).unwrap();
    symlink("../large", top.join("small/link")).unwrap();
    total
}

/// Two sites with slow connections between them and to their users.
struct Stage {
    federation: Federation,
    to_kek: Proxy,
    to_titech: Proxy,
    source: PathBuf,
    expected: Tree,
    total: u64,
}

impl Stage {
    fn set_up() -> Stage {
        let federation = Federation::two();
        let (to_kek, to_titech) = (Proxy::to(&federation.kek), Proxy::to(&federation.titech));
        to_kek.put_between(&federation.titech, &federation.kek);
        to_titech.put_between(&federation.kek, &federation.titech);
        for proxy in [&to_kek, &to_titech] {
            proxy.set_rate(RATE);
        }
        let source = federation.scratch().join("source");
        let total = make_tree(&source);
        let expected = tree::read(&source);
        let at_kek = federation.kek.root().join("source");
        assert_eq!(make_tree(&at_kek), total);
        Stage { federation, to_kek, to_titech, source, expected, total }
    }

    fn destination(&self, direction: Direction, round: u32) -> (PathBuf, Vec<String>) {
        let Federation { titech, kek, .. } = &self.federation;
        let name = format!("copy{round}");
        let from_kek = kek.place("source");
        let (at, from, to) = match direction {
            Direction::Up => (kek.root().join(&name), self.source.display().to_string(), kek.place(&name)),
            Direction::Down => {
                let at = self.federation.scratch().join(&name);
                (at.clone(), from_kek, at.display().to_string())
            }
            Direction::Between => (titech.root().join(&name), from_kek, titech.place(&name)),
        };
        (at, vec!["cp".into(), "-r".into(), from, to])
    }

    /// The connection that the data of a direction takes.
    fn proxy(&self, direction: Direction) -> &Proxy {
        if direction == Direction::Between { &self.to_titech } else { &self.to_kek }
    }

    fn start(&self, arguments: &[String], retries: bool) -> Child {
        let mut command = self.federation.titech.command();
        command.arg("--json").args(arguments).args(["--retry-for", if retries { "60" } else { "0" }]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn strike(&mut self, direction: Direction, fault: Fault, client: &mut Child) {
        match (fault, direction) {
            (Fault::KillClient, _) => client.kill().unwrap(),
            (Fault::CutConnection, _) => self.proxy(direction).cut(),
            // The client is the sender or the receiver; its site's daemon has no part.
            (Fault::KillSender, Direction::Up) | (Fault::KillReceiver, Direction::Down) => {
                client.kill().unwrap()
            }
            (Fault::KillReceiver, Direction::Between) => self.federation.titech.restart(),
            _ => self.federation.kek.restart(),
        }
    }

    /// Bytes that the receiver's journal says need not come again.
    fn kept(&self) -> u64 {
        let sites = [&self.federation.titech, &self.federation.kek];
        let journals = sites.map(|site| site.dir().join("state/journal"));
        let files =
            journals.iter().flat_map(|dir| fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()));
        files.filter(|file| file.extension().is_some_and(|e| e == "journal")).map(|file| kept_by(&file)).sum()
    }

    /// Leftovers beside the copy: journals and markers.
    fn left(&self) -> Vec<PathBuf> {
        let sites = [&self.federation.titech, &self.federation.kek];
        let folders = sites.map(|site| fs::read_dir(site.dir().join("state/journal")).unwrap());
        folders.into_iter().flatten().map(|file| file.unwrap().path()).collect()
    }

    /// Waits until nothing is left; true if it came to that.
    fn ends_without_leftovers(&self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(3);
        while !self.left().is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.left().is_empty()
    }
}

fn kept_by(journal: &Path) -> u64 {
    let (state, _) = State::read(&fs::read(journal).unwrap_or_default());
    let finished: u64 = state.finished.values().map(|(source, _)| source.size).sum();
    let of_slot = |slot: u32, size: u64| {
        let range = slot_range(slot, size);
        range.end - range.start
    };
    let partial = state
        .partial
        .values()
        .flat_map(|file| file.slots.keys().map(|&slot| of_slot(slot, file.source.size)));
    finished + partial.sum::<u64>()
}

/// Waits for the child to end; false if `until` said stop first.
fn runs_on(child: &mut Child, mut until: impl FnMut() -> bool) -> bool {
    while !until() {
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// The final report of a run.
fn report(child: Child) -> (Option<i32>, Value) {
    let output = child.wait_with_output().unwrap();
    let value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if value == Value::Null {
        eprintln!("no report: {}", String::from_utf8_lossy(&output.stderr));
    }
    (output.status.code(), value)
}

#[test]
fn a_copy_survives_a_hundred_kills_and_cuts() {
    let seed = std::env::var("RENKEI_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed: u64 = seed.unwrap_or(now);
    eprintln!("RENKEI_TEST_SEED={seed}");
    let half = |seed| std::thread::spawn(move || copies_under_faults(&mut Random(seed)));
    // Both are waited for before one may fail the test, so that no PoP outlives it.
    let halves = [half(seed), half(!seed)].map(std::thread::JoinHandle::join).map(Result::unwrap);
    let (faults, copies, resumed) =
        halves.into_iter().fold((0, 0, 0), |a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2));
    eprintln!("{faults} faults in {copies} copies; {resumed} ended with more than a quarter kept");
    assert!(faults >= 100 && resumed >= 2, "{faults} {resumed}");
}

/// Copies in all directions; returns the faults, the copies, and how many of these had something to go on from.
fn copies_under_faults(random: &mut Random) -> (u32, u32, u32) {
    let mut stage = Stage::set_up();
    let (mut faults, mut resumed, mut round) = (0, 0, 0);
    while faults < KILLS {
        let direction = [Direction::Up, Direction::Down, Direction::Between][round as usize % 3];
        let (struck, kept) = one_copy(&mut stage, direction, round, random);
        faults += struck;
        resumed += u32::from(kept > stage.total / 4);
        round += 1;
    }
    (faults, round, resumed)
}

/// Copies under kills and cuts until none is left, then to the end; returns their number and the extents
/// the last run kept.
fn one_copy(stage: &mut Stage, direction: Direction, round: u32, random: &mut Random) -> (u32, u64) {
    let (at, arguments) = stage.destination(direction, round);
    let (mut struck, mut kept) = (0, 0);
    let mut client = None;
    for _ in 0..KILLS_EACH {
        let child = client.get_or_insert_with(|| stage.start(&arguments, random.below(2) == 0));
        if wait_for_moment(stage, direction, random, child) {
            let fault = [Fault::KillClient, Fault::KillSender, Fault::KillReceiver, Fault::CutConnection]
                [random.below(4) as usize];
            stage.strike(direction, fault, child);
            struck += 1;
            if random.below(2) == 0 {
                // It may try again by itself.
                continue;
            }
        }
        if put_down(client.take()) {
            stage.check(direction, &at);
            return (struck, 0);
        }
        let before = std::mem::replace(&mut kept, stage.kept());
        // The fault may have come when all was done and nothing is kept any more, but before the client had ended;
        // between two sites the copy may even come to its end without the client.
        assert!(
            kept >= before || kept == 0 || direction == Direction::Between,
            "{direction:?}: {before} bytes were kept, and then {kept}"
        );
    }
    if put_down(client.take()) {
        stage.check(direction, &at);
        return (struck, 0);
    }
    (struck, finish(stage, direction, &at, &arguments))
}

/// Kills a client; true if it had come to a good end before, and said so.
fn put_down(child: Option<Child>) -> bool {
    let Some(mut child) = child else { return false };
    let _ = child.kill();
    let (status, report) = report(child);
    // Its report counts even if it was killed before its end.
    status.is_none_or(|status| status == 0) && report["failed"] == 0
}

/// Waits for a random moment of the run: a number of bytes or a time; false if it ended before.
fn wait_for_moment(stage: &Stage, direction: Direction, random: &mut Random, child: &mut Child) -> bool {
    let proxy = stage.proxy(direction);
    let bytes = proxy.passed() + random.below(30 << 20);
    let time = Instant::now() + Duration::from_millis(random.below(1500));
    let by_bytes = random.below(3) > 0;
    let deadline = Instant::now() + Duration::from_secs(3);
    runs_on(child, || match by_bytes {
        true => proxy.passed() >= bytes || Instant::now() > deadline,
        false => Instant::now() >= time,
    })
}

/// The same command once more, to the end; returns the bytes it did not have to send.
fn finish(stage: &Stage, direction: Direction, at: &Path, arguments: &[String]) -> u64 {
    // A receiver that has not noticed yet that its peer is gone may keep more than this, never less.
    let kept = stage.kept();
    let mut child = stage.start(arguments, true);
    let deadline = Instant::now() + ENDS_WITHIN;
    let late = runs_on(&mut child, || Instant::now() > deadline);
    assert!(!late, "{direction:?} {arguments:?} does not end");
    let (status, report) = report(child);
    assert_eq!(status, Some(0), "{direction:?} {arguments:?}: {report}");
    let moved = report["bytes_moved"].as_u64().unwrap();
    // Between two sites a copy may have come to its end without its client; then this is a new one.
    let anew = direction == Direction::Between && moved == stage.total;
    assert!(stage.ends_without_leftovers(), "{direction:?}: {:?} are left", stage.left());
    assert!(
        moved <= stage.total - kept || anew,
        "{direction:?} {arguments:?}: {moved} of {} moved although {kept} were kept",
        stage.total
    );
    stage.check(direction, at);
    kept
}

impl Stage {
    /// The copy is whole and nothing else is left; removes it.
    fn check(&self, direction: Direction, at: &Path) {
        let copy = tree::read(at);
        assert_same(&self.expected_at(direction), &copy);
        tree::assert_no_temporary(&copy);
        fs::remove_dir_all(at).unwrap();
        // A receiver that was struck when all was done, before it heard so, keeps its journal for a week.
        if !self.ends_without_leftovers() {
            self.left().iter().for_each(|file| fs::remove_file(file).unwrap());
        }
    }

    fn expected_at(&self, direction: Direction) -> Tree {
        match direction {
            Direction::Up => self.expected.clone(),
            _ => tree::read(&self.federation.kek.root().join("source")),
        }
    }
}

#[test]
fn an_unwritable_log_does_not_stop_a_copy() {
    let mut federation = Federation::two();
    let log = federation.kek.dir().join("log");
    federation.kek.stop();
    fs::remove_file(&log).unwrap();
    symlink("/dev/full", &log).unwrap();
    federation.kek.restart();
    let file = federation.scratch().join("file");
    fs::write(&file, "content").unwrap();
    for _ in 0..3 {
        let (status, told) =
            federation.titech.json(&["cp", file.to_str().unwrap(), &federation.kek.place("file")]);
        assert_eq!(status, 0, "{told}");
        assert_eq!(federation.titech.ok(&["cat", &federation.kek.place("file")]), "content");
    }
    assert_eq!(federation.kek.json(&["status"]).0, 0);
}
