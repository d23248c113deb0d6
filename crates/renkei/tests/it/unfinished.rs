//! What a copy that did not end leaves: no more than what is whole, visible to whom it belongs, and gone when it is given
//! up.

use crate::errors::Mounted;
use crate::federation::{Federation, Site};
use crate::proxy::Proxy;
use crate::tree::MIB;
use renkei_core::mover::digest::slot_range;
use renkei_core::mover::journal::State;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How long anything here may take.
const WITHIN: Duration = Duration::from_secs(40);
/// What the connection carries a second, so that there is time to look.
const RATE: u64 = 30_000_000;
/// A copy that takes some ten seconds.
const SIZE: usize = 300 * MIB;
/// Reserved ahead of what comes at most, and what is arriving.
const AHEAD: u64 = 128 << 20;
const ARRIVING: u64 = 48 << 20;

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + WITHIN;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {WITHIN:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A child that is ended with the test.
struct Run(Child);

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Run {
    fn start(site: &Site, arguments: &[&str]) -> Run {
        let mut command = site.command();
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Run(command.spawn().unwrap())
    }

    /// Presses Ctrl-C and waits for the end.
    fn interrupt(mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let mut status = None;
        until("the command ends after Ctrl-C", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

/// Temporary files below a directory.
fn temps(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let (dirs, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let is_temp =
        |path: &PathBuf| renkei::store::temp::is_temp_name(path.file_name().unwrap().as_encoded_bytes());
    let below = dirs.iter().flat_map(|dir| temps(dir));
    files.into_iter().filter(is_temp).chain(below).filter(|path| path.exists()).collect()
}

/// Room that temporary files below a directory take.
fn taken(dir: &Path) -> u64 {
    temps(dir).iter().filter_map(|path| path.metadata().ok()).map(|file| file.blocks() * 512).sum()
}

fn journals(site: &Site) -> Vec<PathBuf> {
    let listing = fs::read_dir(site.dir().join("state/journal"));
    let files = listing.into_iter().flatten().map(|file| file.unwrap().path());
    files.filter(|file| file.extension().is_some_and(|kind| kind == "journal")).collect()
}

/// Bytes that are whole by the journals of a site.
fn whole(site: &Site) -> u64 {
    let of = |path: PathBuf| {
        let state = State::read(&fs::read(path).unwrap_or_default()).0;
        let slots = state.partial.into_values().flat_map(|file| {
            let size = file.source.size;
            file.slots.into_keys().map(move |slot| slot_range(slot, size))
        });
        slots.map(|range| range.end - range.start).sum::<u64>()
    };
    journals(site).into_iter().map(of).sum()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Two sites, and a slow connection to the second.
struct Stage {
    federation: Federation,
    to_kek: Proxy,
    source: PathBuf,
}

impl Stage {
    fn set_up() -> Stage {
        let federation = Federation::two();
        let to_kek = Proxy::to(&federation.kek);
        to_kek.put_between(&federation.titech, &federation.kek);
        to_kek.set_rate(RATE);
        let source = federation.titech.root().join("large");
        fs::write(&source, vec![b'x'; SIZE]).unwrap();
        Stage { federation, to_kek, source }
    }

    /// The same command once more, at full speed, sends only what was not whole.
    fn assert_goes_on(&self, arguments: &[&str], kept: u64, copy: &Path) {
        self.to_kek.set_rate(0);
        let (status, report) = self.federation.titech.json(arguments);
        assert_eq!(status, 0, "{report}");
        let moved = report["bytes_moved"].as_u64().unwrap();
        assert!(kept > 0 && moved <= SIZE as u64 - kept, "{moved} moved, {kept} were kept");
        assert!(fs::read(copy).unwrap() == fs::read(&self.source).unwrap());
        assert!(temps(copy.parent().unwrap()).is_empty());
    }
}

#[test]
fn an_upload_that_is_interrupted_leaves_what_is_whole_and_reserves_little_ahead() {
    let stage = Stage::set_up();
    let Federation { titech, kek, .. } = &stage.federation;
    let arguments = ["cp", text(&stage.source), &kek.place("copy")];
    let run = Run::start(titech, &arguments);
    until("something is whole", || whole(kek) > 4 << 20);
    let (taken_then, whole_then) = (taken(kek.root()), whole(kek));
    assert!(taken_then < SIZE as u64, "all of it was taken at once");
    assert!(taken_then <= whole_then + AHEAD + ARRIVING, "{taken_then} taken, {whole_then} whole");
    assert_eq!(run.interrupt(), Some(130));
    until("what is not whole is given back", || taken(kek.root()) <= whole(kek) + (64 << 10));
    let kept = whole(kek);
    stage.assert_goes_on(&arguments, kept, &kek.root().join("copy"));
}

#[test]
fn a_download_that_is_interrupted_leaves_what_is_whole() {
    let stage = Stage::set_up();
    let Federation { titech, kek, .. } = &stage.federation;
    fs::rename(&stage.source, kek.root().join("large")).unwrap();
    let here = stage.federation.scratch().join("here");
    fs::create_dir(&here).unwrap();
    let copy = here.join("copy");
    let arguments = ["cp", &kek.place("large"), text(&copy)];
    let run = Run::start(titech, &arguments);
    until("something is whole", || whole(titech) > 4 << 20);
    assert!(taken(&here) <= whole(titech) + AHEAD + ARRIVING);
    assert_eq!(run.interrupt(), Some(130));
    assert!(taken(&here) <= whole(titech) + (64 << 10), "{} taken, {} whole", taken(&here), whole(titech));
    let stage = Stage { source: kek.root().join("large"), ..stage };
    stage.assert_goes_on(
        &["cp", &stage.federation.kek.place("large"), text(&copy)],
        whole(&stage.federation.titech),
        &copy,
    );
}

#[test]
fn a_file_that_does_not_fit_takes_no_room() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let small = kek.root().join("small");
    let Some(_small) = Mounted::tmpfs(&small, "size=40m") else { return };
    let large = federation.scratch().join("large");
    fs::write(&large, vec![b'x'; 60 * MIB]).unwrap();
    let (status, report) = titech.json(&["cp", text(&large), &kek.place("small/copy")]);
    let error = &report["error"];
    assert_eq!(
        (status, error["code"].as_str(), error["side"].as_str()),
        (7, Some("RK-STORE-6"), Some("kek")),
        "{report}"
    );
    assert!(error["cause"].as_str().unwrap().contains("are free"), "{report}");
    assert_eq!((temps(&small), taken(&small)), (Vec::new(), 0));
}
