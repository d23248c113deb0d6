//! One volume through two mounts at two sites, its home and a follower: files closed at one are read at the other, and
//! nothing is ever lost.

use crate::federation::{Federation, Site, account};
use crate::mount::posix::expect_hard_links_independent_when_written;
use crate::mount::{can_mount, end};
use crate::tree::noise;
use crate::volume::following::subscribe;
use std::fs::{self, File, FileTimes};
use std::io::{self, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Longest wait for a file closed at the other site.
const WITHIN: Duration = Duration::from_secs(40);
/// A test in which nothing happens for so long fails: its mounts are ended.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// The home of a volume and a site that follows it and may write, each with a mount over its own PoP.
struct Sites {
    points: Vec<Point>,
    federation: Federation,
    _watched: Sender<()>,
}

#[derive(Clone)]
struct Point {
    at: PathBuf,
    process: i32,
}

impl Point {
    fn mount(site: &Site, at: PathBuf) -> Point {
        Point::mount_with(site, at, "close-to-open")
    }

    fn mount_with(site: &Site, at: PathBuf, consistency: &str) -> Point {
        fs::create_dir(&at).unwrap();
        let words = ["mount", "--consistency", consistency, "/genome", at.to_str().unwrap()];
        let (status, told) = site.json(&words);
        assert_eq!(status, 0, "{told}");
        Point { at, process: i32::try_from(told["process"].as_u64().unwrap()).unwrap() }
    }
}

impl Drop for Sites {
    fn drop(&mut self) {
        self.points.iter().for_each(|point| end(&point.at, point.process));
    }
}

impl Sites {
    fn new() -> Option<Sites> {
        if !can_mount() {
            return None;
        }
        let federation = Federation::two();
        let Federation { kek, titech, .. } = &federation;
        kek.ok(&["volume", "create", "genome", "--storage", "data"]);
        kek.ok(&["volume", "grant", "genome", "titech", "write"]);
        subscribe(titech);
        titech.ok(&["volume", "grant", "genome", &format!("{}@titech", account()), "write"]);
        until("titech may write", || titech.renkei(&["mkdir", "/genome/first"]).status.success());
        until("kek hears of it", || kek.root().join("genome/first").is_dir());
        let (watched, ended) = mpsc::channel();
        let mut sites = Sites { points: Vec::new(), federation, _watched: watched };
        for site in [&sites.federation.kek, &sites.federation.titech] {
            let point = Point::mount(site, sites.federation.scratch().join(&site.name));
            sites.points.push(point);
        }
        let points = sites.points.clone();
        thread::spawn(move || {
            loop {
                match ended.recv_timeout(PATIENCE) {
                    Ok(()) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        eprintln!("the mounts are ended because nothing happens");
                        return points.iter().for_each(|point| end(&point.at, point.process));
                    }
                }
            }
        });
        Some(sites)
    }

    /// Something happened.
    fn tick(&self) {
        self._watched.send(()).unwrap();
    }

    fn path(&self, side: usize, name: &str) -> PathBuf {
        self.points[side].at.join(name)
    }

    /// Waits until a file has this content at a side.
    fn await_content(&self, side: usize, name: &str, expected: &[u8]) {
        let mut seen = None;
        let is_there = || {
            seen = Some(fs::read(self.path(side, name)));
            self.tick();
            seen.as_ref().is_some_and(|seen| seen.as_ref().is_ok_and(|seen| seen == expected))
        };
        until_reported(is_there, || format!("{name} at side {side}"));
    }

    /// The names in the top of the volume at a side.
    fn names(&self, side: usize) -> Vec<String> {
        let dir = fs::read_dir(&self.points[side].at).unwrap();
        let mut names: Vec<String> =
            dir.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Waits until nothing is on its way between the two.
    fn settle(&self) {
        let Federation { kek, titech, .. } = &self.federation;
        until("all is at the home", || {
            self.tick();
            let (_, here) = titech.json(&["volume", "show", "genome"]);
            let (_, home) = kek.json(&["volume", "show", "genome"]);
            here["standing"]["followed"]["pending"] == 0 && home["standing"]["away"].is_null()
        });
    }

    /// Both sites end with this content and nothing beside it.
    fn expect_alone(&self, name: &str, expected: &[u8]) {
        self.settle();
        for side in 0..2 {
            self.await_content(side, name, expected);
            assert_eq!(self.names(side), ["first", name], "at side {side}");
        }
        let home = self.federation.kek.root().join("genome").join(name);
        assert!(fs::read(home).unwrap() == expected, "the plain file at the home");
    }
}

fn until(what: &str, is_so: impl FnMut() -> bool) {
    until_reported(is_so, || what.into());
}

fn until_reported(mut is_so: impl FnMut() -> bool, what: impl Fn() -> String) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WITHIN, "{} has not come", what());
        thread::sleep(PAUSE);
    }
}

/// Closes a file and returns the result.
fn close(file: File) -> io::Result<()> {
    // SAFETY: the descriptor is this file's alone.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn open(path: &Path) -> File {
    let opened = File::options().read(true).write(true).open(path);
    opened.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// One file that two programs change in turns.
struct Turns {
    rounds: usize,
    /// Writes one round into the file, as `state` has it.
    write: fn(&File, usize),
    /// The content of the file after so many rounds.
    state: fn(usize) -> Vec<u8>,
    /// Whether another file takes its name instead, as editors do it.
    renames: bool,
}

const FILE: &str = "turns";
const FILE_BYTES: usize = 20_000;
const PART_BYTES: usize = 700;

/// Where a round overwrites.
fn part_at(round: usize) -> usize {
    (round * 3331) % (FILE_BYTES - PART_BYTES)
}

fn overwritten(rounds: usize) -> Vec<u8> {
    let mut content = noise(0, FILE_BYTES);
    for round in 1..=rounds {
        content[part_at(round)..][..PART_BYTES].copy_from_slice(&noise(round as u64, PART_BYTES));
    }
    content
}

fn overwrite(file: &File, round: usize) {
    file.write_all_at(&noise(round as u64, PART_BYTES), part_at(round) as u64).unwrap();
}

fn appended(rounds: usize) -> Vec<u8> {
    (0..=rounds).flat_map(|round| noise(round as u64, 100 + round)).collect()
}

fn append(file: &File, round: usize) {
    let end = file.metadata().unwrap().len();
    file.write_all_at(&noise(round as u64, 100 + round), end).unwrap();
}

/// Overwrites, and gives the file the time that it had.
fn overwrite_unseen(file: &File, round: usize) {
    overwrite(file, round);
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    file.set_times(FileTimes::new().set_modified(time)).unwrap();
}

impl Turns {
    /// In turns, each side writes a round after it has read the round before.
    fn run(&self) {
        let Some(sites) = Sites::new() else { return };
        let first = File::create(sites.path(0, FILE)).unwrap();
        first.write_all_at(&(self.state)(0), 0).unwrap();
        close(first).unwrap();
        let so_far = SoFar::default();
        thread::scope(|scope| {
            for side in 0..2 {
                let (sites, so_far) = (&sites, &so_far);
                scope.spawn(move || {
                    let _failing = Failing(&so_far.has_failed);
                    let own = (1..=self.rounds).filter(|round| round % 2 == side);
                    own.for_each(|round| self.take_turn(sites, side, round, so_far));
                });
            }
        });
        sites.expect_alone(FILE, &(self.state)(self.rounds));
    }

    fn take_turn(&self, sites: &Sites, side: usize, round: usize, so_far: &SoFar) {
        let path = sites.path(side, FILE);
        self.await_round(&path, round - 1, so_far);
        sites.tick();
        if self.renames {
            let new = path.with_extension(side.to_string());
            let file = File::create(&new).unwrap();
            file.write_all_at(&(self.state)(round), 0).unwrap();
            close(file).unwrap();
            fs::rename(&new, &path).unwrap();
        } else {
            let file = open(&path);
            (self.write)(&file, round);
            close(file).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        let seen = fs::read(&path).unwrap();
        let is_own = seen == (self.state)(round);
        assert!(is_own, "round {round} is not seen by its writer, but {}", self.content_text(&seen));
        so_far.closed.store(round, Ordering::Release);
    }

    /// Which round some content is of, or how it differs from all of them.
    fn content_text(&self, seen: &[u8]) -> String {
        if let Some(round) = (0..=self.rounds).find(|round| (self.state)(*round) == seen) {
            return format!("round {round}");
        }
        let is_like =
            |state: Vec<u8>| state.iter().zip(seen).take_while(|(state, seen)| state == seen).count();
        let like = (0..=self.rounds).map(|round| is_like((self.state)(round))).max().unwrap_or_default();
        let zeros = seen.iter().rev().take_while(|byte| **byte == 0).count();
        format!("{} bytes that were never written, from {like} on, {zeros} zeros at the end", seen.len())
    }

    /// Waits until the file has the content that the other side closed; until then it has the previous
    /// one.
    fn await_round(&self, path: &Path, round: usize, so_far: &SoFar) {
        let (expected, begun) = ((self.state)(round), Instant::now());
        loop {
            assert!(!so_far.has_failed.load(Ordering::Relaxed), "the other side failed");
            let seen = match fs::read(path) {
                Ok(seen) => seen,
                Err(error) if round == 0 && error.kind() == io::ErrorKind::NotFound => Vec::new(),
                Err(error) => panic!("reading round {round}: {error}"),
            };
            if seen == expected && so_far.closed.load(Ordering::Acquire) == round {
                return;
            }
            let which = (0..=round + 1).find(|round| (self.state)(*round) == seen);
            assert!(which.is_some() || seen.is_empty(), "{}", self.content_text(&seen));
            assert!(which <= Some(round), "round {round} is over before it was read");
            assert!(begun.elapsed() < WITHIN, "round {round} is lost; {} shows {which:?}", path.display());
            thread::sleep(PAUSE);
        }
    }
}

/// How far both are.
#[derive(Default)]
struct SoFar {
    /// The last round whose file was closed: processes that other tests start publish the files open
    /// here.
    closed: AtomicUsize,
    has_failed: AtomicBool,
}

/// Says that a side failed, so that the other one does not wait for it.
struct Failing<'a>(&'a AtomicBool);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn two_sites_that_overwrite_in_turns_lose_nothing() {
    Turns { rounds: 60, write: overwrite, state: overwritten, renames: false }.run();
}

#[test]
fn two_sites_that_rename_over_in_turns_lose_nothing() {
    Turns { rounds: 60, write: overwrite, state: overwritten, renames: true }.run();
}

#[test]
fn two_sites_that_append_in_turns_lose_nothing() {
    Turns { rounds: 40, write: append, state: appended, renames: false }.run();
}

#[test]
fn versions_of_equal_length_and_time_are_told_apart() {
    Turns { rounds: 30, write: overwrite_unseen, state: overwritten, renames: false }.run();
}

/// A program that has a file open, has written it and waits. A process of its own: each that this one starts for another test
/// closes the files open here, and closing publishes.
struct LateDraft(Child);

impl LateDraft {
    fn begin(path: &Path, text: &str) -> LateDraft {
        let mut command = Command::new("dd");
        command.arg(format!("of={}", path.display())).arg(format!("bs={}", text.len()));
        command.arg("conv=notrunc").stdin(Stdio::piped()).stderr(Stdio::null());
        let mut draft = LateDraft(command.spawn().unwrap());
        draft.0.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
        draft
    }

    fn close(&mut self) {
        drop(self.0.stdin.take());
        until("the program ends", || self.0.try_wait().unwrap().is_some());
    }
}

impl Drop for LateDraft {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.kill();
        // It may be in a call of the mount, which ends when that does.
        let _ = self.0.try_wait();
    }
}

/// A draft that is begun at one side and closed after the other side's version has come there.
fn publish_late(late: usize) {
    let Some(mut sites) = Sites::new() else { return };
    fs::write(sites.path(0, FILE), "of both").unwrap();
    sites.await_content(1, FILE, b"of both");
    sites.settle();
    // The mount itself shows the unpublished writes.
    let site = if late == 0 { &sites.federation.kek } else { &sites.federation.titech };
    sites.points.push(Point::mount(site, sites.federation.scratch().join("second")));
    let mut draft = LateDraft::begin(&sites.path(late, FILE), "late one");
    // Programs of one mount see the unpublished writes.
    sites.await_content(late, FILE, b"late one");
    fs::write(sites.path(1 - late, FILE), "early").unwrap();
    sites.await_content(2, FILE, b"early");
    draft.close();
    sites.settle();
    for side in 0..2 {
        until_reported(
            || {
                sites.tick();
                sites.names(side).len() == 3
            },
            || format!("late drafts at side {side}: {:?}", sites.names(side)),
        );
        let names = sites.names(side);
        let beside = names.iter().find(|name| name.contains(".conflict-")).unwrap();
        sites.await_content(side, FILE, b"early");
        sites.await_content(side, beside, b"late one");
    }
}

#[test]
fn an_older_draft_of_the_home_becomes_a_conflict_copy() {
    publish_late(0);
}

#[test]
fn an_older_draft_of_a_follower_becomes_a_conflict_copy() {
    publish_late(1);
}

/// Writes a file at one side and opens it once at the other, right after it was closed.
fn open_after_close(sites: &Sites, round: usize) {
    let (writer, reader) = (round % 2, 1 - round % 2);
    let name = format!("file-{}", round % 5);
    let content = noise(round as u64, 500 + round);
    // The other side has looked for it: it is missing in the first rounds, and of an older version in later ones.
    let before = fs::read(sites.path(reader, &name));
    assert_eq!(before.is_ok(), round > 5, "{before:?}");
    let file = File::create(sites.path(writer, &name)).unwrap();
    file.write_all_at(&content, 0).unwrap();
    close(file).unwrap();
    sites.tick();
    let seen = fs::read(sites.path(reader, &name));
    assert!(
        seen.is_ok_and(|seen| seen == content),
        "round {round}: an open at side {reader} after the close"
    );
    assert!(sites.names(reader).contains(&name), "round {round}: the directory at side {reader}");
}

#[test]
fn an_open_sees_earlier_closes_at_the_other_site() {
    let Some(sites) = Sites::new() else { return };
    (1..=30).for_each(|round| open_after_close(&sites, round));
    sites.settle();
    assert_eq!((sites.names(0).len(), sites.names(1).len()), (6, 6), "no conflict copies");
}

/// Reads at a side for some seconds without a writer: it has a lease then, and sends no requests.
fn read_in_peace(sites: &Sites, side: usize, name: &str, expected: &[u8]) {
    let until = Instant::now() + Duration::from_secs(4);
    while Instant::now() < until {
        sites.tick();
        assert!(fs::read(sites.path(side, name)).is_ok_and(|seen| seen == expected), "at side {side}");
        thread::sleep(PAUSE);
    }
}

#[test]
fn an_open_sees_a_close_after_an_idle_time() {
    let Some(sites) = Sites::new() else { return };
    let mut content = b"the first".to_vec();
    fs::write(sites.path(0, FILE), &content).unwrap();
    for round in 0..4 {
        let (writer, reader) = (round % 2, 1 - round % 2);
        sites.await_content(reader, FILE, &content);
        read_in_peace(&sites, reader, FILE, &content);
        content = format!("round {round}").into_bytes();
        fs::write(sites.path(writer, FILE), &content).unwrap();
        assert_eq!(fs::read(sites.path(reader, FILE)).unwrap(), content, "round {round} at side {reader}");
    }
}

/// A process that stands still until this goes.
struct Stopped(i32);

impl Stopped {
    fn stop(pid: u32) -> Stopped {
        let pid = i32::try_from(pid).unwrap();
        // SAFETY: a signal to a process that this test started.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::kill(self.0, libc::SIGCONT) };
    }
}

/// Whether a site reports another one as lost.
fn reports_a_lost_site(site: &Site) -> bool {
    let (_, status) = site.json(&["status"]);
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|condition| condition["code"] == "RK-NS-13")
}

/// Stops the follower while it has its lease, so that reads at the home in the strict way may not be the newest. On a busy
/// machine the lease may be back already when it stops; then it is tried again.
fn stop_while_it_writes(sites: &Sites) -> Stopped {
    for _ in 0..20 {
        sites.tick();
        fs::write(sites.path(1, "another"), "of titech").unwrap();
        assert_eq!(fs::read(sites.path(2, FILE)).unwrap(), b"of titech", "all is reached");
        let stopped = Stopped::stop(sites.federation.titech.pid());
        if fs::read(sites.path(2, FILE)).is_err() {
            return stopped;
        }
    }
    panic!("a read that may not be the newest succeeded");
}

/// The follower writes, and stops before it gave its lease back: it may have closed the only copy.
#[test]
fn a_site_lost_while_writing_is_reported_and_does_not_block_others() {
    let Some(mut sites) = Sites::new() else { return };
    let strict = sites.federation.scratch().join("strict");
    sites.points.push(Point::mount_with(&sites.federation.kek, strict, "strict"));
    fs::write(sites.path(1, FILE), "of titech").unwrap();
    sites.settle();
    let stopped = stop_while_it_writes(&sites);
    assert_eq!(fs::read(sites.path(0, FILE)).unwrap(), b"of titech");
    fs::write(sites.path(0, "beside"), "of kek").unwrap();
    until("kek tells of it", || {
        sites.tick();
        reports_a_lost_site(&sites.federation.kek)
    });
    drop(stopped);
    until("titech is back", || {
        sites.tick();
        !reports_a_lost_site(&sites.federation.kek)
    });
    assert_eq!(fs::read(sites.path(2, FILE)).unwrap(), b"of titech");
    sites.await_content(1, "beside", b"of kek");
}

/// A site that cannot reach the home continues with its local copy, and takes part again when it is
/// back.
#[test]
fn a_partitioned_site_continues_to_read_and_write() {
    let Some(mut sites) = Sites::new() else { return };
    fs::write(sites.path(1, FILE), "before").unwrap();
    sites.settle();
    sites.federation.kek.stop();
    for round in 0..3 {
        assert_eq!(fs::read(sites.path(1, FILE)).unwrap(), b"before", "{round}");
        fs::write(sites.path(1, &format!("alone-{round}")), "of titech").unwrap();
        sites.tick();
    }
    sites.federation.kek.restart();
    for round in 0..3 {
        sites.await_content(0, &format!("alone-{round}"), b"of titech");
    }
    fs::write(sites.path(0, FILE), "after").unwrap();
    assert_eq!(fs::read(sites.path(1, FILE)).unwrap(), b"after");
}

/// Closes that are made while the PoP is killed.
const CLOSES: usize = 60;

/// Writes a file repeatedly, and fails at the first one that is reported as lost. It is a process of its own: one that is
/// started here in the meantime would close the open files, and wait for the site.
const WRITER: &str =
    "for n in $(seq $2); do printf %08d $n | dd of=$1/$((n % 3)) conv=fsync status=none || exit 1; done";

#[test]
fn files_published_before_a_kill_are_not_reported_as_lost() {
    let Some(mut sites) = Sites::new() else { return };
    let (at, closes) = (sites.path(1, ""), CLOSES.to_string());
    let mut writer = Command::new("sh").args(["-c", WRITER, "sh"]).arg(at).arg(closes).spawn().unwrap();
    let status = loop {
        sites.tick();
        if let Some(status) = writer.try_wait().unwrap() {
            break status;
        }
        thread::sleep(Duration::from_millis(300));
        sites.federation.titech.restart();
    };
    assert!(status.success(), "{}", crate::mount::errors(&sites.points[1].at));
}

#[test]
fn hard_links_are_independent_when_written_at_both_sites() {
    let Some(sites) = Sites::new() else { return };
    for side in [0, 1] {
        expect_hard_links_independent_when_written(|text| {
            sites.tick();
            let run =
                Command::new("sh").args(["-c", text]).current_dir(&sites.points[side].at).output().unwrap();
            assert!(run.stderr.is_empty(), "{text}: {}", String::from_utf8_lossy(&run.stderr));
            String::from_utf8(run.stdout).unwrap()
        });
    }
}

#[test]
fn temporary_files_renamed_into_place_keep_mode_and_time_at_the_home() {
    let Some(sites) = Sites::new() else { return };
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let names: Vec<String> = (0..40).map(|number| format!("f{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        // As rsync does.
        let temp = sites.path(1, &format!(".{name}.x"));
        let file = File::options().write(true).create_new(true).mode(0o600).open(&temp).unwrap();
        (&file).write_all(&b"content"[..if number % 2 == 0 { 0 } else { 7 }]).unwrap();
        drop(file);
        let file = File::options().write(true).open(&temp).unwrap();
        file.set_times(FileTimes::new().set_modified(time)).unwrap();
        drop(file);
        fs::set_permissions(&temp, fs::Permissions::from_mode(0o644)).unwrap();
        fs::rename(&temp, sites.path(1, name)).unwrap();
        sites.tick();
    }
    let plain = sites.federation.kek.root().join("genome");
    let of = |name: &String| {
        let found = fs::metadata(plain.join(name)).ok()?;
        Some((found.permissions().mode() & 0o777, found.modified().unwrap()))
    };
    let mut seen = Vec::new();
    until_reported(
        || {
            sites.tick();
            seen = names.iter().map(of).collect();
            seen.iter().all(|seen| *seen == Some((0o644, time)))
        },
        || "the home has them".into(),
    );
    // It stays so.
    sites.settle();
    assert!(names.iter().all(|name| of(name) == Some((0o644, time))));
}
