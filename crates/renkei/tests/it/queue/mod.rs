//! Queued transfers between real PoPs: submitted, run without their client, and reported.

pub(crate) mod bad;
pub(crate) mod buffer;
pub(crate) mod delegation;
pub(crate) mod kept;
pub(crate) mod many;
pub(crate) mod notify;
pub(crate) mod rule;
pub(crate) mod unfinished;

use crate::federation::{Federation, Site};
use crate::wire::raw;
use renkei_catalogue::hex_id;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::mover::layout::CopyForm;
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_core::wire::WireVersion;
use renkei_core::wire::copy::OpenCopy;
use renkei_core::wire::message::{OpenSend, Reply, Request, Source};
use renkei_core::wire::queue::{Submission, Terms};
use renkei_mover::connect::dial::{Dialler, Session};
use renkei_net::identity::credential::Credential;
use renkei_net::identity::trust::Trust;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// How long anything may take; generous, because machines that run tests are busy.
pub const WITHIN: Duration = Duration::from_secs(60);

/// Hands a copy over; gives its id.
pub fn detach(site: &Site, arguments: &[&str]) -> String {
    let mut all = vec!["cp", "--detach"];
    all.extend(arguments);
    site.ok(&all).trim().to_owned()
}

/// A transfer in `why --json`.
pub fn why(site: &Site, id: &str) -> Value {
    let (status, told) = site.json(&["why", id]);
    assert_eq!(status, 0, "{told}");
    told
}

/// Waits until `wanted` holds for a transfer.
pub fn until(site: &Site, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    until_within(WITHIN, site, id, wanted)
}

/// The same, for so long.
pub fn until_within(within: Duration, site: &Site, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let told = why(site, id);
        if wanted(&told) {
            return told;
        }
        assert!(start.elapsed() < within, "{told:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until it has ended; gives the exit status of `wait`.
pub fn ended(site: &Site, id: &str) -> i32 {
    site.renkei(&["wait", "--timeout", "60", id]).status.code().unwrap()
}

/// A tree with some of everything.
pub fn tree(root: &Path) {
    fs::create_dir_all(root.join("sub/empty")).unwrap();
    for n in 0..50 {
        fs::write(root.join(format!("sub/{n}")), vec![n as u8; 1000 * n]).unwrap();
    }
    fs::write(root.join("big"), vec![7; 20 << 20]).unwrap();
    std::os::unix::fs::symlink("big", root.join("link")).unwrap();
}

pub fn same(a: &Path, b: &Path) {
    let output = std::process::Command::new("diff").arg("-r").arg(a).arg(b).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_submitted_copy_runs_without_its_client() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    tree(&titech.root().join("run"));
    // Sent by the user's own site, received by it, and within it.
    for (home, from, to) in [(titech, titech, kek), (kek, titech, kek), (titech, titech, titech)] {
        let name = format!("to-{}-by-{}", to.name, home.name);
        let id = detach(home, &["-r", "--label", "first", &from.place("run"), &to.place(&name)]);
        assert_eq!(id.len(), 32);
        assert_eq!(ended(home, &id), 0, "{:#}", why(home, &id));
        same(&titech.root().join("run"), &to.root().join(&name));
        let told = why(home, &id[..8]);
        assert_eq!((&told["state"], &told["label"]), (&"done".into(), &"first".into()));
        assert_eq!((told["summary"]["files"].as_u64(), told["story"][0]["error"].as_str()), (Some(51), None));
    }
    let listed = titech.ok(&["transfers", "--ended"]);
    assert_eq!(listed.lines().count(), 2, "{listed}");
    assert!(titech.ok(&["transfers"]).is_empty());
}

#[test]
fn several_sources_with_blanks_in_their_names_are_kept_apart() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    fs::create_dir(kek.root().join("in to")).unwrap();
    ["a b", "c"].iter().for_each(|name| fs::write(titech.root().join(name), "x").unwrap());
    let id = detach(titech, &[&titech.place("a b"), &titech.place("c"), &kek.place("in to/")]);
    assert_eq!(ended(titech, &id), 0, "{:#}", why(titech, &id));
    assert_eq!(why(titech, &id)["from"], "'titech:/data/a b' titech:/data/c");
    let listed = titech.ok(&["transfers", "--ended"]);
    assert!(listed.contains("  'titech:/data/a b' titech:/data/c -> kek:/data/in to"), "{listed}");
}

/// Sites that all trust each other, in a folder of their own.
pub fn sites<const N: usize>(folder: &Path, names: [&str; N]) -> [Site; N] {
    let sites = names.map(|name| Site::start(folder, name));
    for (a, b) in (0..N).flat_map(|a| (0..N).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        sites[a].befriend(&sites[b]);
    }
    sites
}

/// The code of a refusal.
pub fn refused(site: &Site, arguments: &[&str]) -> String {
    let (status, told) = site.json(arguments);
    assert_ne!(status, 0, "{told}");
    told["error"]["code"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_transfer_waits_for_a_destination_that_is_down() {
    let mut federation = Federation::two();
    fs::write(federation.titech.root().join("f"), "content").unwrap();
    federation.kek.stop();
    let titech = &federation.titech;
    let id = detach(titech, &[&titech.place("f"), "kek:/data/f"]);
    let waits = until(titech, &id, |told| told["state"] == "waiting");
    assert_eq!(waits["reason"]["code"], "RK-NET-2", "{waits:#}");
    assert!(waits["next"].is_string() && waits["story"][0]["error"]["code"] == "RK-NET-2");
    let text = titech.ok(&["why", &id[..8]]);
    assert!(text.contains("tried again in") && text.contains("what to do"), "{text}");
    federation.kek.restart();
    assert_eq!(ended(&federation.titech, &id), 0);
    assert_eq!(fs::read(federation.kek.root().join("f")).unwrap(), b"content");
    assert!(why(&federation.titech, &id)["attempts"].as_u64() > Some(1));
}

#[test]
fn the_same_id_is_the_same_transfer() {
    let Federation { titech, kek, .. } = &Federation::two();
    fs::write(titech.root().join("f"), "content").unwrap();
    let id = "00112233445566778899aabbccddeeff";
    for _ in 0..3 {
        assert_eq!(detach(titech, &["--id", id, &titech.place("f"), &kek.place("f")]), id);
    }
    assert_eq!(ended(titech, id), 0);
    assert_eq!(why(titech, id)["attempts"], 1);
    let other = ["cp", "--detach", "--id", id, &titech.place("f"), &kek.place("g")];
    assert_eq!(refused(titech, &other), "RK-QUE-2");
    assert_eq!(refused(titech, &["why", "ffffffff"]), "RK-QUE-1");
    // Of another site's users it knows none.
    assert_eq!(refused(kek, &["why", id]), "RK-QUE-1");
}

#[test]
fn an_id_prefix_names_a_transfer_and_ambiguous_ones_are_listed() {
    let Federation { titech, kek, .. } = &Federation::two();
    fs::write(titech.root().join("f"), "content").unwrap();
    let ids = [
        "abcd0011000000000000000000000000",
        "abcd00ff000000000000000000000000",
        "feed0123000000000000000000000000",
    ];
    for id in ids {
        detach(titech, &["--id", id, &titech.place("f"), &kek.place(id)]);
        assert_eq!(ended(titech, id), 0);
    }
    for verb in ["status", "why", "wait"] {
        assert!(titech.ok(&[verb, "FEED"]).starts_with("feed0123"), "{verb}");
    }
    for verb in ["status", "why", "wait", "cancel", "pause", "resume", "retry", "renew"] {
        let (_, told) = titech.json(&[verb, "abcd"]);
        let error = if told["error"].is_object() { &told["error"] } else { &told["failures"][0] };
        assert_eq!(error["code"], "RK-QUE-10", "{verb}: {told}");
        let cause = error["cause"].as_str().unwrap();
        assert!(
            cause.contains(ids[0]) && cause.contains(ids[1]) && !cause.contains(ids[2]),
            "{verb}: {told}"
        );
        let (_, told) = titech.json(&[verb, "abcd00f"]);
        assert!(!told.to_string().contains("RK-QUE-10"), "{verb}: {told}");
    }
    assert_eq!(refused(titech, &["why", "fee"]), "RK-QUE-1");
}

#[test]
fn a_site_whose_name_could_be_an_id_has_a_status() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::start(dir.path(), "beef");
    assert!(site.ok(&["status", "beef"]).starts_with("beef  renkei/"));
    assert_eq!(refused(&site, &["status", "bee5"]), "RK-QUE-1");
}

#[test]
fn unsuitable_copies_are_not_queued() {
    let Federation { titech, kek, .. } = &Federation::two();
    let refused = |arguments: &[&str]| refused(titech, &[&["cp", "--detach"], arguments].concat());
    assert_eq!(refused(&[&kek.place("f"), "/tmp/here"]), "RK-QUE-9");
    assert_eq!(refused(&["/etc/passwd", &kek.place("f")]), "RK-STORE-23");
    assert_eq!(refused(&[&kek.place("f"), &kek.place("f")]), "RK-MOVE-7");
    assert_eq!(refused(&["--after", "abcdef12", &kek.place("f"), &kek.place("g")]), "RK-QUE-1");
    assert_eq!(refused(&["nosuch:/data/f", &kek.place("g")]), "RK-CONF-5");
    let missing = detach(titech, &[&kek.place("missing"), &titech.place("g")]);
    assert_eq!(ended(titech, &missing), 3, "{:#}", why(titech, &missing));
}

/// A file that takes some seconds at the rate of `slowly`.
pub fn large(site: &Site, name: &str) {
    let content: Vec<u8> = (0..40_u32 << 18).flat_map(u32::to_le_bytes).collect();
    fs::write(site.root().join(name), content).unwrap();
}

pub const SLOWLY: [&str; 2] = ["--limit", "10M"];

/// Whether an attempt has sent some of it.
pub fn moves(told: &Value) -> bool {
    told["state"] == "running" && told["progress"]["bytes_moved"].as_u64() > Some(12 << 20)
}

#[test]
fn pausing_keeps_progress_and_cancelling_ends_the_transfer() {
    let mut federation = Federation::two();
    let Federation { titech, kek, .. } = &mut federation;
    large(titech, "large");
    let start = |titech: &Site, to: &str| {
        detach(titech, &[&SLOWLY[..], &[&titech.place("large"), &kek.place(to)]].concat())
    };
    let id = start(titech, "paused");
    until(titech, &id, moves);
    titech.ok(&["pause", &id]);
    let paused = until(titech, &id, |told| told["state"] == "paused");
    let moved = paused["story"][0]["bytes_moved"].as_u64().unwrap();
    let reached = paused["progress"].clone();
    assert_eq!(reached["bytes_moved"], moved, "{reached}");
    titech.restart();
    assert_eq!(until(titech, &id, |told| told["state"] == "paused")["progress"], reached);
    titech.ok(&["resume", &id]);
    assert_eq!(ended(titech, &id), 0);
    let again = why(titech, &id)["story"][1]["bytes_moved"].as_u64().unwrap();
    assert!(again < (40 << 20) - 4 * (1 << 20) && moved + again < 60 << 20, "{moved} and {again}");
    same(&titech.root().join("large"), &kek.root().join("paused"));

    let id = start(titech, "cancelled");
    until(titech, &id, moves);
    titech.ok(&["cancel", &id]);
    assert_eq!(ended(titech, &id), 130);
    assert!(!kek.root().join("cancelled").exists());
    assert_eq!(refused(titech, &["pause", &id]), "RK-QUE-6");
    titech.ok(&["retry", &id]);
    assert_eq!(ended(titech, &id), 0);
    same(&titech.root().join("large"), &kek.root().join("cancelled"));
}

#[test]
fn transfers_wait_for_others_and_for_no_longer_than_their_deadline() {
    let mut federation = Federation::two();
    fs::write(federation.titech.root().join("f"), "content").unwrap();
    federation.kek.stop();
    let titech = &federation.titech;
    let first = detach(titech, &["--deadline", "2s", &titech.place("f"), "kek:/data/first"]);
    let second = detach(titech, &["--after", &first[..10], &titech.place("f"), &titech.place("second")]);
    let told = why(titech, &second);
    assert_eq!((&told["state"], &told["after"][0]["id"]), (&"waiting".into(), &first.as_str().into()));
    assert_eq!(ended(titech, &first), 11);
    assert_eq!(why(titech, &first)["reason"]["code"], "RK-QUE-4");
    assert_eq!(ended(titech, &second), 130);
    assert_eq!(why(titech, &second)["reason"]["code"], "RK-QUE-5");
    federation.kek.restart();
    let titech = &federation.titech;
    titech.ok(&["retry", &first]);
    let third = detach(titech, &["--after", &first, &titech.place("f"), &titech.place("third")]);
    assert_eq!((ended(titech, &first), ended(titech, &third)), (0, 0));
    assert!(why(titech, &first)["ended"].as_str() <= why(titech, &third)["story"][0]["started"].as_str());
}

#[test]
fn files_that_failed_are_listed() {
    let Federation { titech, kek, .. } = &Federation::two();
    tree(&titech.root().join("run"));
    // A directory that is not empty stands where a file shall go.
    fs::create_dir_all(kek.root().join("to/sub/7/x")).unwrap();
    let id = detach(titech, &["-r", "--verify", "both", &titech.place("run/"), &kek.place("to")]);
    assert_eq!(ended(titech, &id), 23);
    let told = why(titech, &id);
    assert_eq!((&told["state"], &told["summary"]["failed"]), (&"partial".into(), &1.into()));
    assert_eq!(told["failures"][0]["path"], "sub/7", "{told:#}");
    fs::remove_dir_all(kek.root().join("to/sub/7")).unwrap();
    titech.ok(&["retry", &id]);
    assert_eq!(ended(titech, &id), 0, "{:#}", why(titech, &id));
    same(&titech.root().join("run"), &kek.root().join("to"));
}

#[test]
fn the_administrator_sees_all_and_a_new_credential_comes_from_its_owner() {
    let Federation { titech, kek, .. } = &Federation::two();
    fs::write(titech.root().join("f"), "content").unwrap();
    let id = detach(titech, &["--label", "x", &titech.place("f"), &kek.place("f")]);
    assert_eq!(ended(titech, &id), 0);
    let listed = titech.ok(&["transfers", "--all", "--ended", "--label", "x"]);
    assert!(listed.starts_with(&id[..8]) && listed.contains("[x]"), "{listed}");
    let (_, told) = titech.json(&["why", "--all", &id]);
    assert_eq!(told["state"], "done");
    // Waits behind one that does not end, so that it can be cancelled before it runs.
    large(titech, "large");
    let first = detach(titech, &[&SLOWLY[..], &[&titech.place("large"), &kek.place("g")]].concat());
    titech.ok(&["pause", &first]);
    let id = detach(titech, &["--after", &first, &titech.place("f"), &kek.place("h")]);
    titech.ok(&["cancel", "--all", &id]);
    assert_eq!(ended(titech, &id), 130);
    titech.ok(&["retry", "--all", &id]);
    let waits = until(titech, &id, |told| told["state"] == "waiting");
    assert_eq!(waits["reason"]["code"], "RK-AUTH-19", "{waits:#}");
    titech.ok(&["renew", &id]);
    assert_eq!(ended(titech, &id), 0);
}

/// A number that looks random and is the same each time.
fn chance(n: u64, below: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) % below
}

#[test]
fn kills_at_random_moments_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut sites = sites(folder.path(), ["home", "from", "to"]);
    tree(&sites[1].root().join("run"));
    large(&sites[1], "run/large");
    let ids: Vec<String> = (0..3)
        .map(|n| {
            let to = format!("to:/data/to{n}");
            detach(&sites[0], &[&SLOWLY[..], &["-r", "from:/data/run", &to]].concat())
        })
        .collect();
    for n in 0..24 {
        std::thread::sleep(Duration::from_millis(chance(n, 700)));
        let which = [0, 0, 1, 2][chance(n + 100, 4) as usize];
        sites[which].restart();
    }
    for (id, n) in ids.iter().zip(0..) {
        assert_eq!(ended(&sites[0], id), 0, "{:#}", why(&sites[0], id));
        same(&sites[1].root().join("run"), &sites[2].root().join(format!("to{n}")));
        assert!(why(&sites[0], id)["attempts"].as_u64() > Some(1));
    }
}

#[test]
fn it_works_the_same_on_postgresql() {
    let Some(server) = crate::catalogue::postgres::Postgres::start() else { return };
    let mut federation = Federation::two();
    let config = federation.titech.dir().join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("catalogue = \"{}\"\n{text}", server.url())).unwrap();
    federation.titech.restart();
    let Federation { titech, kek, .. } = &mut federation;
    large(titech, "large");
    let id = detach(titech, &[&SLOWLY[..], &[&titech.place("large"), &kek.place("to")]].concat());
    until(titech, &id, moves);
    titech.restart();
    assert_eq!(ended(titech, &id), 0, "{:#}", why(titech, &id));
    same(&titech.root().join("large"), &kek.root().join("to"));
    assert_eq!(why(titech, &id)["attempts"], 2);
}

/// A copy of one file, as a client hands it in.
pub fn submission(n: u32, name: &str) -> Submission {
    let site = |name: &str| SiteName::parse(name).unwrap();
    let place = |text: String| Place::parse(text.as_bytes()).unwrap().unwrap();
    let mut transfer = [0; 16];
    transfer[..4].copy_from_slice(&n.to_be_bytes());
    let to = RelPath::parse(name.as_bytes()).unwrap();
    let source = Source { from: place(format!("/data/{name}")), to, alone: false };
    let max_streams = 64;
    let form = CopyForm { directory: false, contents: false, resumed: false };
    let copy = raw::open_copy(&format!("/data/{name}-{n}"));
    Submission {
        from: site("titech"),
        send: OpenSend { max_streams, ..OpenSend::plain(transfer, vec![source]) },
        to: site("kek"),
        copy: OpenCopy { transfer, job: u64::from(n), form, max_streams, ..copy },
        terms: Terms::default(),
    }
}

/// Hands a batch in.
pub fn submit(session: &mut Session, batch: Vec<Submission>) -> Vec<Result<(), Error>> {
    match session.ask(Request::SubmitCopies(batch)).unwrap() {
        Reply::Submitted(answers) => answers,
        other => panic!("{other:?}"),
    }
}

/// A session with a site as its own user.
pub fn session(site: &Site) -> Session {
    let (home, now) = (Home::at(site.dir()), SystemTime::now());
    let credential = Credential::user(&home, now).unwrap();
    let trust = Arc::new(Trust::load(&home).unwrap());
    let dialler = Dialler::new(&credential, trust, WITHIN).unwrap();
    dialler.connect(&SiteName::parse(&site.name).unwrap()).unwrap()
}

#[test]
fn a_client_of_wire_3_queues_the_same_transfer() {
    let Federation { titech, kek, .. } = &Federation::two();
    fs::write(titech.root().join("f"), "content").unwrap();
    let newer = Request::SubmitCopies(vec![submission(1, "f")]);
    let older = newer.clone().for_version(WireVersion::V3).unwrap();
    assert!(matches!(older, Request::Submit(_)));
    let mut session = session(titech);
    for request in [older, newer] {
        assert_eq!(session.ask(request).unwrap(), Reply::Submitted(vec![Ok(())]));
    }
    let id = hex_id(&submission(1, "f").send.transfer);
    assert_eq!(ended(titech, &id), 0, "{:#}", why(titech, &id));
    assert_eq!(fs::read_to_string(kek.root().join("f-1")).unwrap(), "content");
}

#[test]
fn a_later_attempt_keeps_the_layout_of_the_first() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    tree(&titech.root().join("run"));
    fs::create_dir(kek.root().join("there")).unwrap();
    let ids = ["new", "there"].map(|to| {
        let id = detach(titech, &[&SLOWLY[..], &["-r", &titech.place("run"), &kek.place(to)]].concat());
        until(titech, &id, moves);
        titech.ok(&["pause", &id]);
        until(titech, &id, |told| told["state"] == "paused");
        id
    });
    assert!(kek.root().join("new").is_dir());
    fs::remove_dir_all(kek.root().join("there")).unwrap();
    ids.iter().for_each(|id| drop(titech.ok(&["resume", id])));
    assert_eq!(ended(titech, &ids[0]), 0, "{:#}", why(titech, &ids[0]));
    same(&titech.root().join("run"), &kek.root().join("new"));
    assert_ne!(ended(titech, &ids[1]), 0);
    assert_eq!(why(titech, &ids[1])["reason"]["code"], "RK-STORE-1", "{:#}", why(titech, &ids[1]));
    assert!(!kek.root().join("there").exists());
}

#[test]
fn circular_dependencies_are_refused_and_the_rest_is_queued() {
    let Federation { titech, .. } = &Federation::two();
    fs::write(titech.root().join("f"), "content").unwrap();
    let after = |n: u32, on: &[u32]| {
        let mut one = submission(n, "f");
        one.terms.after = on.iter().map(|n| submission(*n, "f").send.transfer).collect();
        one
    };
    let batch =
        vec![after(1, &[2]), after(2, &[3]), after(3, &[1]), after(4, &[5]), after(5, &[]), after(6, &[6])];
    let answers = submit(&mut session(titech), batch);
    let codes: Vec<Option<Code>> =
        answers.into_iter().map(|answer| answer.err().map(|error| error.code)).collect();
    let circle = Some(Code::DependencyCycle);
    assert_eq!(codes, [circle, circle, circle, None, None, circle]);
    assert_eq!(ended(titech, "0000000400000000"), 0);
}

#[test]
fn two_to_one_destination_take_turns() {
    let Federation { titech, kek, .. } = &Federation::two();
    large(titech, "large");
    let start = || detach(titech, &[&SLOWLY[..], &[&titech.place("large"), &kek.place("to")]].concat());
    let (first, second) = (start(), start());
    let held = until(titech, &second, |told| !told["reason"].is_null());
    assert_eq!(held["reason"]["code"], "RK-QUE-11", "{held:#}");
    assert_eq!((ended(titech, &first), ended(titech, &second)), (0, 0));
    let (first, second) = (why(titech, &first), why(titech, &second));
    assert_eq!((&first["attempts"], &second["attempts"]), (&1.into(), &1.into()));
    assert!(first["ended"].as_str() <= second["story"][0]["started"].as_str());
    same(&titech.root().join("large"), &kek.root().join("to"));
}

/// Many are taken and run. Prints how fast; `RENKEI_QUEUED=100000` measures with as many queued.
#[test]
fn many_are_taken_and_run() {
    let queued: u32 = std::env::var("RENKEI_QUEUED").map_or(1000, |number| number.parse().expect("a number"));
    let mut federation = Federation::two();
    fs::write(federation.titech.root().join("f"), "content").unwrap();
    let mut open = session(&federation.titech);
    let start = Instant::now();
    let batch: Vec<Submission> = (0..400).map(|n| submission(n, "f")).collect();
    assert!(submit(&mut open, batch).iter().all(Result::is_ok));
    let taken = start.elapsed();
    while !federation.titech.ok(&["transfers"]).is_empty() {
        std::thread::sleep(Duration::from_millis(200));
    }
    let took = start.elapsed().as_secs_f64();
    println!("400 copies of one small file: taken in {taken:?}, {:.0}/s done", 400.0 / took);
    federation.kek.stop();
    for round in 0..=queued / 500 {
        let batch: Vec<Submission> = (0..500).map(|n| submission(1000 + 500 * round + n, "f")).collect();
        let start = Instant::now();
        assert!(submit(&mut open, batch).iter().all(Result::is_ok));
        if [0, queued / 500].contains(&round) {
            println!("{} queued: {:.0} submissions/s", 500 * round, 500.0 / start.elapsed().as_secs_f64());
        }
    }
    let start = Instant::now();
    let (status, _) = federation.titech.json(&["why", "000003e8"]);
    println!("one of them told in {:?}", start.elapsed());
    assert_eq!(status, 0);
}
