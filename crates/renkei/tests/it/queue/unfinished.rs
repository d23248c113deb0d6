//! Leftovers of an unfinished copy: only whole blocks, visible to their owner, and gone when it is abandoned.

use crate::cli::errors::Mounted;
use crate::federation::{Federation, Site};
use crate::queue::{self, SLOWLY, detach, large};
use crate::relay::proxy::Proxy;
use crate::tree::MIB;
use crate::wire::raw;
use renkei_core::error::{Code, Error};
use renkei_core::mover::digest::slot_range;
use renkei_core::mover::journal::{Partial, State};
use renkei_core::wire::message::{Reply, Request};
use renkei_core::wire::unfinished::{AboutUnfinished, UnfinishedAction, UnfinishedReply};
use renkei_net::identity::authority::Authority;
use renkei_net::identity::credential::Credential;
use renkei_store::temp::temp_job;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// How long anything here may take.
const WITHIN: Duration = Duration::from_secs(40);
/// Rate of the connection per second, slow enough to look at a running copy.
const RATE: u64 = 30_000_000;
/// A copy that takes some ten seconds.
const SIZE: usize = 300 * MIB;
/// Limit of preallocation, and of blocks in flight.
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
    let job = |path: &PathBuf| temp_job(path.file_name().unwrap().as_encoded_bytes());
    let below = dirs.iter().flat_map(|dir| temps(dir));
    files.into_iter().filter(|path| job(path).is_some()).chain(below).filter(|path| path.exists()).collect()
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

/// Whether the journal of a site says when its only unfinished file was changed last.
fn is_idle(site: &Site) -> bool {
    let (journals, temps) = (journals(site), temps(site.root()));
    let ([journal], [temp]) = (&journals[..], &temps[..]) else { return false };
    let state = State::read(&fs::read(journal).unwrap_or_default()).0;
    let found = temp.metadata().unwrap();
    let is_so = |left: Partial| {
        left.at_rest.is_some_and(|at| (at.secs, i64::from(at.nanos)) == (found.ctime(), found.ctime_nsec()))
    };
    state.partial.into_values().any(is_so)
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

    /// The same command once more, at full speed, sends only the missing blocks.
    fn assert_continues(&self, arguments: &[&str], kept: u64, copy: &Path) {
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
fn an_interrupted_upload_keeps_whole_blocks_and_preallocates_little() {
    let stage = Stage::set_up();
    let Federation { titech, kek, .. } = &stage.federation;
    let arguments = ["cp", text(&stage.source), &kek.place("copy")];
    let run = Run::start(titech, &arguments);
    until("something is whole", || whole(kek) > 4 << 20);
    let (taken_then, whole_then) = (taken(kek.root()), whole(kek));
    assert!(taken_then < SIZE as u64, "all of it was taken at once");
    assert!(taken_then <= whole_then + AHEAD + ARRIVING, "{taken_then} taken, {whole_then} whole");
    assert_eq!(run.interrupt(), Some(130));
    until("space of partial blocks is released", || taken(kek.root()) <= whole(kek) + (64 << 10));
    until("its state is recorded, so that it is not read back", || is_idle(kek));
    let kept = whole(kek);
    stage.assert_continues(&arguments, kept, &kek.root().join("copy"));
}

#[test]
fn an_interrupted_download_keeps_whole_blocks() {
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
    stage.assert_continues(
        &["cp", &stage.federation.kek.place("large"), text(&copy)],
        whole(&stage.federation.titech),
        &copy,
    );
}

#[test]
fn a_file_that_does_not_fit_reserves_no_space() {
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

#[test]
fn a_copy_that_failed_without_stored_data_is_not_listed_as_unfinished() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let file = federation.scratch().join("file");
    fs::write(&file, "x").unwrap();
    let (status, report) = titech.json(&["cp", text(&file), &kek.place("nowhere/copy")]);
    assert_eq!((status, report["error"]["code"].as_str()), (3, Some("RK-STORE-1")), "{report}");
    // Its receiver may take a moment to end.
    let is_empty = |site: &Site, arguments: &[&str]| {
        site.json(arguments).1["unfinished"].as_array().is_some_and(Vec::is_empty)
    };
    until("its owner sees nothing of it", || is_empty(titech, &["unfinished", "kek"]));
    until("nor does the administrator", || is_empty(kek, &["unfinished", "--all"]));
}

/// A queued copy from titech to kek of which something is whole there; its id.
fn begun(federation: &Federation, name: &str) -> String {
    let Federation { titech, kek, .. } = federation;
    if !titech.root().join("large").exists() {
        large(titech, "large");
    }
    let id = detach(titech, &[&SLOWLY[..], &[&titech.place("large"), &kek.place(name)]].concat());
    until("something is whole", || whole(kek) > 2 << 20);
    id
}

/// Nothing is left of any copy at a site.
fn until_clean(site: &Site) {
    until("leftovers of the abandoned copy are gone", || {
        temps(site.root()).is_empty() && journals(site).is_empty()
    });
}

#[test]
fn cancelling_frees_space_at_once() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    // One that runs.
    let id = begun(&federation, "runs");
    titech.ok(&["cancel", &id]);
    until_clean(kek);
    // One that is paused.
    let id = begun(&federation, "paused");
    titech.ok(&["pause", &id]);
    queue::until(titech, &id, |told| told["state"] == "paused");
    assert!(!temps(kek.root()).is_empty(), "a paused copy keeps its files");
    titech.ok(&["cancel", &id]);
    until_clean(kek);
    assert!(!kek.root().join("runs").exists() && !kek.root().join("paused").exists());
    // It may be tried again, from the beginning.
    titech.ok(&["retry", &id]);
    assert_eq!(queue::ended(titech, &id), 0);
    queue::same(&titech.root().join("large"), &kek.root().join("paused"));
    until_clean(kek);
}

#[test]
fn an_offline_site_learns_of_a_cancellation_later() {
    let mut federation = Federation::two();
    let id = begun(&federation, "waits");
    federation.kek.stop();
    let titech = &federation.titech;
    queue::until(titech, &id, |told| told["state"] == "waiting");
    titech.ok(&["cancel", &id]);
    assert!(!temps(federation.kek.root()).is_empty());
    // Also if the PoP that has to deliver it was restarted.
    federation.titech.restart();
    federation.kek.restart();
    until_clean(&federation.kek);
}

/// An upload that was interrupted and left whole blocks at kek; its row in the list.
fn interrupted(stage: &Stage) -> Value {
    let Federation { titech, kek, .. } = &stage.federation;
    let run = Run::start(titech, &["cp", text(&stage.source), &kek.place("copy")]);
    until("something is whole", || whole(kek) > 4 << 20);
    run.interrupt();
    let mut listed = Value::Null;
    until("it does not run any more", || {
        let (status, report) = titech.json(&["unfinished", "kek"]);
        assert_eq!(status, 0, "{report}");
        listed = report["unfinished"][0].clone();
        listed["running"] == false
    });
    listed
}

/// The list of unfinished transfers of a site.
fn ask(
    from: &Site,
    credential: &Credential,
    to: &Site,
    what: UnfinishedAction,
) -> Result<UnfinishedReply, Error> {
    let request = Request::Unfinished(AboutUnfinished { storage: None, what });
    match raw::connect(from, credential, to)?.ask(request)? {
        Reply::Unfinished(reply) => Ok(reply),
        other => panic!("{other:?}"),
    }
}

#[test]
fn unfinished_transfers_are_listed_and_dropped_by_their_owners() {
    let stage = Stage::set_up();
    let Federation { titech, kek, .. } = &stage.federation;
    let listed = interrupted(&stage);
    let (id, owner) = (listed["id"].as_str().unwrap(), listed["owner"].as_str().unwrap());
    assert_eq!((owner, &listed["files"]), (&*format!("{}@titech", crate::federation::account()), &1.into()));
    assert_eq!((listed["at"].as_str(), listed["to"].as_str()), (Some("kek"), Some("/data")));
    assert_eq!(listed["bytes"].as_u64(), Some(whole(kek)));
    // Another user of that site, with an account at kek, sees and removes nothing of it.
    kek.ok(&["map", "add", "--yes", "bob@titech", &crate::federation::account()]);
    let authority = Authority::load(&raw::home(titech)).unwrap();
    let bob = raw::issue_user(&authority, "bob", 1, SystemTime::now());
    let ask_bob = |what| ask(titech, &bob, kek, what);
    assert_eq!(ask_bob(UnfinishedAction::List).unwrap().listed, []);
    assert_eq!(ask_bob(UnfinishedAction::Drop(vec![id.into()])).unwrap_err().code, Code::UnfinishedUnknown);
    assert_eq!(ask_bob(UnfinishedAction::Drop(Vec::new())).unwrap().listed, []);
    let transfer: [u8; 16] = renkei_catalogue::parse_id(id).unwrap();
    let give_up = |owner: &str| UnfinishedAction::GiveUp { transfer, owner: owner.into() };
    assert_eq!(ask_bob(give_up(owner)).unwrap().listed, []);
    assert!(!temps(kek.root()).is_empty());
    // The administrator of kek sees it, and its owner removes it.
    let (_, all) = kek.json(&["unfinished", "--all"]);
    assert_eq!(
        (&all["unfinished"][0]["id"], &all["unfinished"][0]["owner"]),
        (&id.into(), &owner.into()),
        "{all}"
    );
    let (status, report) = titech.json(&["unfinished", "kek", "--drop", "--id", "ffff"]);
    assert_eq!((status, report["error"]["code"].as_str()), (3, Some("RK-MOVE-14")), "{report}");
    let (status, report) = titech.json(&["unfinished", "kek", "--drop", "--id", &id[..8]]);
    assert_eq!(
        (status, &report["dropped"], &report["unfinished"][0]["id"]),
        (0, &true.into(), &id.into()),
        "{report}"
    );
    assert!(temps(kek.root()).is_empty() && journals(kek).is_empty());
    assert_eq!(titech.json(&["unfinished", "kek"]).1["unfinished"], Value::Array(Vec::new()));
}

#[test]
fn a_pop_drops_transfers_of_its_own_users_only() {
    let stage = Stage::set_up();
    let Federation { titech, kek, .. } = &stage.federation;
    let listed = interrupted(&stage);
    let transfer = renkei_catalogue::parse_id(listed["id"].as_str().unwrap()).unwrap();
    let owner = listed["owner"].as_str().unwrap().to_owned();
    let host = |site: &Site| Credential::host(&raw::home(site), SystemTime::now()).unwrap();
    let give_up = |owner: &str| UnfinishedAction::GiveUp { transfer, owner: owner.into() };
    let code = |from: &Site, what| ask(from, &host(from), kek, what).unwrap_err().code;
    // kek's own PoP does not speak for users of titech, and no PoP sees the transfers of users.
    assert_eq!(code(kek, give_up(&owner)), Code::NotAllowed);
    assert_eq!(code(titech, give_up("alice@kek")), Code::NotAllowed);
    assert_eq!(code(titech, UnfinishedAction::List), Code::NotAllowed);
    assert_eq!(code(titech, UnfinishedAction::Drop(Vec::new())), Code::NotAllowed);
    assert!(!temps(kek.root()).is_empty());
    let given_up = ask(titech, &host(titech), kek, give_up(&owner)).unwrap();
    assert_eq!((given_up.listed.len(), given_up.dropped), (1, true));
    assert!(temps(kek.root()).is_empty() && journals(kek).is_empty());
}

#[test]
fn unfinished_downloads_are_listed_and_dropped_locally() {
    let stage = Stage::set_up();
    let Federation { titech, kek, .. } = &stage.federation;
    fs::rename(&stage.source, kek.root().join("large")).unwrap();
    let here = stage.federation.scratch().join("here");
    fs::create_dir(&here).unwrap();
    let run = Run::start(titech, &["cp", &kek.place("large"), text(&here.join("copy"))]);
    until("something is whole", || whole(titech) > 4 << 20);
    // Running transfers are not removed.
    let (status, report) = titech.json(&["unfinished", "--drop"]);
    assert_eq!((status, &report["unfinished"]), (0, &Value::Array(Vec::new())), "{report}");
    let running = titech.json(&["unfinished"]).1["unfinished"][0].clone();
    assert_eq!(running["running"], true, "{running}");
    let named = ["unfinished", "--drop", "--id", running["id"].as_str().unwrap()];
    let (status, report) = titech.json(&named);
    assert_eq!((status, report["error"]["code"].as_str()), (2, Some("RK-MOVE-15")), "{report}");
    run.interrupt();
    let told = titech.ok(&["unfinished"]);
    assert!(told.contains(&format!("this machine:{}", here.display())) && told.contains("kept"), "{told}");
    assert_eq!(titech.json(&named).0, 0);
    assert!(temps(&here).is_empty());
    assert!(titech.ok(&["unfinished"]).contains("nothing is unfinished"));
}
