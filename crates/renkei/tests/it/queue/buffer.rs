//! The PoP's buffer in use: uploads from the user's own machine, and transfers whose destination is down.

use crate::cli::errors::Mounted;
use crate::console::{get, log_in};
use crate::federation::{Federation, Site};
use crate::identity::administration;
use crate::queue::{until_within, why};
use crate::tree::{self, assert_same, assert_same_content, noise};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take; generous, because machines that run tests are busy.
const WITHIN: Duration = Duration::from_secs(90);
const MIB: usize = 1 << 20;

/// Two sites, the first with a buffer of so many MiB, all of which one user may have.
fn two(size_mib: u32) -> Federation {
    let mut federation = Federation::two();
    give_buffer(&mut federation.titech, &format!("size_mib = {size_mib}\nper_user_mib = {size_mib}"));
    federation
}

/// Gives a site's PoP a buffer, and restarts it.
pub fn give_buffer(site: &mut Site, lines: &str) {
    let config = site.dir().join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    let before = text.split("\n[buffer]").next().unwrap_or_default();
    fs::write(&config, format!("{before}\n[buffer]\n{lines}\n")).unwrap();
    site.restart();
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Hands files of this machine over; gives the transfer's id.
fn detach(site: &Site, arguments: &[&str]) -> String {
    site.ok(&[&["-q", "cp", "--detach"][..], arguments].concat()).trim().to_owned()
}

/// Exit status and code of a command that is refused.
fn refused(site: &Site, arguments: &[&str]) -> (i32, String, String) {
    let (status, told) = site.json(arguments);
    let field = |name: &str| told["error"][name].as_str().unwrap_or_default().to_owned();
    (status, field("code"), field("cause"))
}

fn until(site: &Site, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    until_within(WITHIN, site, id, wanted)
}

/// Waits until it has ended; gives the exit status of `wait`.
fn ended(site: &Site, id: &str) -> i32 {
    site.renkei(&["wait", "--timeout", "90", id]).status.code().unwrap()
}

/// The same, for one whose link may be paused because a site was down: it is tried again at once.
fn ended_soon(site: &Site, id: &str) -> i32 {
    let start = Instant::now();
    while start.elapsed() < WITHIN {
        let _ = site.renkei(&["retry", id]);
        let _ = site.renkei(&["wait", "--timeout", "2", id]);
        if ["done", "failed", "cancelled"].iter().any(|end| why(site, id)["state"] == *end) {
            return ended(site, id);
        }
    }
    panic!("{:#}", why(site, id));
}

fn buffer(site: &Site) -> Value {
    let (status, told) = site.json(&["buffer"]);
    assert_eq!(status, 0, "{told}");
    told
}

/// The folders of transfers in a site's buffer.
fn folders(site: &Site) -> Vec<PathBuf> {
    let listed = fs::read_dir(site.dir().join("state/buffer")).unwrap();
    listed.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect()
}

/// Waits until nothing is reserved and nothing is on the disk.
fn wait_until_empty(site: &Site) {
    let start = Instant::now();
    while buffer(site)["reserved"] != 0 || !folders(site).is_empty() {
        assert!(start.elapsed() < WITHIN, "{:#}\n{:?}", buffer(site), folders(site));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A file of this machine.
fn file(federation: &Federation, name: &str, bytes: usize) -> PathBuf {
    let path = federation.scratch().join(name);
    fs::write(&path, noise(bytes as u64, bytes)).unwrap();
    path
}

#[test]
fn files_buffered_for_a_disconnected_laptop_arrive_as_by_a_direct_copy() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: all modes and owners need root");
    }
    let mut federation = two(8192);
    let source = federation.scratch().join("nasty");
    tree::make_nasty(&source);
    let expected = tree::read(&source);
    federation.kek.stop();
    let id = detach(&federation.titech, &["-r", text(&source), "kek:/data/copy"]);
    // The laptop may go, with all that is on it.
    fs::remove_dir_all(&source).unwrap();
    let told = buffer(&federation.titech);
    let piece = &told["transfers"][0];
    assert_eq!((&piece["id"], &piece["stage"]), (&id.as_str().into(), &"whole".into()), "{told:#}");
    assert!(piece["used"].as_u64() > Some(1 << 30) && piece["used"] == piece["reserved"], "{told:#}");
    assert_eq!((&told["reserved"], &told["used"]), (&piece["reserved"], &piece["used"]));
    let story = until(&federation.titech, &id, |told| told["state"] == "waiting");
    assert!(story["from"].as_str().unwrap().ends_with("nasty"), "{story:#}");
    assert_eq!(story["buffered"]["whole"], true, "{story:#}");
    let shown = federation.titech.ok(&["why", &id]);
    assert!(shown.contains("hop 1") && shown.contains("buffer at titech -> kek:"), "{shown}");
    federation.kek.restart();
    assert_eq!(ended(&federation.titech, &id), 0, "{:#}", why(&federation.titech, &id));
    assert_same(&expected, &tree::read(&federation.kek.root().join("copy")));
    wait_until_empty(&federation.titech);
    assert_eq!(why(&federation.titech, &id)["buffered"], Value::Null);
}

#[test]
fn files_in_the_buffer_belong_to_the_account_of_their_owner() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    if !rustix::process::geteuid().is_root() {
        return eprintln!("SKIPPED: only root becomes other accounts");
    }
    let mut federation = two(64);
    let account = crate::federation::account();
    federation.titech.ok(&["map", "add", "--yes", &format!("{account}@titech"), "nobody"]);
    federation.kek.stop();
    let source = federation.scratch().join("tree");
    fs::create_dir_all(source.join("locked")).unwrap();
    fs::write(source.join("locked/f"), noise(1, 3 * MIB)).unwrap();
    for (name, mode) in [("locked/f", 0o400), ("locked", 0o500)] {
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let id = detach(&federation.titech, &["-r", "--verify", "both", text(&source), "kek:/data/tree"]);
    let folder = folders(&federation.titech)[0].clone();
    let owner = |path: &Path| fs::metadata(path).unwrap().uid();
    let file = folder.join("files/0/locked/f");
    assert_eq!((owner(&folder), owner(&folder.join("files")), owner(&file)), (0, 65534, 65534));
    for closed in [&folder, folder.parent().unwrap()] {
        assert_eq!(fs::metadata(closed).unwrap().permissions().mode() & 0o777, 0o700);
    }
    // A user who is mapped to another account since then has nothing there.
    federation.titech.ok(&["map", "remove", &format!("{account}@titech")]);
    federation.kek.restart();
    assert_eq!(ended(&federation.titech, &id), 5, "{:#}", why(&federation.titech, &id));
    assert_eq!(why(&federation.titech, &id)["reason"]["code"], "RK-AUTH-7");
    federation.titech.ok(&["map", "add", "--yes", &format!("{account}@titech"), "nobody"]);
    federation.titech.ok(&["retry", &id]);
    assert_eq!(ended(&federation.titech, &id), 0, "{:#}", why(&federation.titech, &id));
    assert_same_content(&tree::read(&source), &tree::read(&federation.kek.root().join("tree")));
    wait_until_empty(&federation.titech);
}

#[test]
fn names_at_the_destination_are_those_of_a_direct_copy() {
    let federation = two(64);
    let (Federation { titech, kek, .. }, scratch) = (&federation, federation.scratch());
    fs::create_dir_all(scratch.join("run/sub")).unwrap();
    for name in ["a", "b", "run/f", "run/sub/g"] {
        fs::write(scratch.join(name), name).unwrap();
    }
    let [a, b, run] = ["a", "b", "run"].map(|name| scratch.join(name));
    let contents = format!("{}/", run.display());
    let cases: &[&[&str]] = &[
        &[text(&a)],
        &[text(&a), text(&b)],
        &["-r", text(&run)],
        &["-r", &contents],
        &["-r", &contents, text(&a)],
    ];
    for (number, sources) in cases.iter().enumerate() {
        for exists in [false, true] {
            let [direct, detached] = ["direct", "detached"].map(|how| format!("{how}-{number}-{exists}"));
            for name in [&direct, &detached] {
                let made = kek.root().join(name);
                if exists || sources.len() > 2 {
                    fs::create_dir(&made).unwrap();
                }
            }
            titech.ok(&[&["-q", "cp"][..], *sources, &[&kek.place(&direct)]].concat());
            let id = detach(titech, &[*sources, &[&kek.place(&detached)]].concat());
            assert_eq!(ended(titech, &id), 0, "{:#}", why(titech, &id));
            let [direct, detached] = [direct, detached].map(|name| kek.root().join(name));
            match direct.is_dir() {
                true => assert_same_content(&tree::read(&direct), &tree::read(&detached)),
                false => assert_eq!(fs::read(direct).unwrap(), fs::read(detached).unwrap()),
            }
        }
    }
    // A sync removes files that the laptop lacks.
    fs::create_dir(kek.root().join("synced")).unwrap();
    fs::write(kek.root().join("synced/old"), "old").unwrap();
    let arguments = ["sync", "--detach", "--delete", text(&run), &kek.place("synced")];
    let id = titech.ok(&arguments);
    assert_eq!(ended(titech, id.trim()), 0);
    assert_same_content(&tree::read(&run), &tree::read(&kek.root().join("synced")));
    wait_until_empty(titech);
}

#[test]
fn a_copy_to_the_own_site_needs_no_buffer() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let source = file(&federation, "f", 1000);
    titech.ok(&["cp", "--detach", text(&source), &titech.place("f")]);
    assert_eq!(fs::read(titech.root().join("f")).unwrap(), fs::read(&source).unwrap());
    let there = ["cp", "--detach", text(&source), &kek.place("f")];
    let (status, code, _) = refused(titech, &there);
    assert_eq!((status, code.as_str()), (3, "RK-STORE-23"));
    assert_eq!(refused(titech, &["buffer"]).1, "RK-STORE-23");
    let here = federation.scratch().join("here");
    let (_, code, _) = refused(titech, &["cp", "--detach", &kek.place("f"), text(&here)]);
    assert_eq!(code, "RK-QUE-9");
}

#[test]
fn buffered_files_are_shown_to_their_owner_and_the_administrator() {
    let mut federation = two(2);
    federation.kek.stop();
    let titech = &federation.titech;
    let large = file(&federation, "large", MIB + MIB / 2);
    let id = detach(titech, &[text(&large), "kek:/data/large"]);
    for whose in [&["buffer"][..], &["buffer", "--all"]] {
        let shown = titech.ok(whose);
        assert!(shown.starts_with("buffer at titech: 1.5M reserved of 2.0M, 1.5M there"), "{shown}");
        assert!(shown.contains(&id[..8]) && shown.contains("to be forwarded  1.5M of 1.5M"), "{shown}");
    }
    let cookie = log_in(titech, &titech.ok(&["console"]));
    let page = get(titech, "/console/storages", &cookie).body;
    let account = crate::federation::account();
    for part in [&id[..8], "to be forwarded", "1.5M", &format!("{account}@titech")] {
        assert!(page.contains(part), "{part} is not in {page}");
    }
    let metrics = get(titech, "/metrics", "").body;
    for line in
        ["renkei_buffer_size_bytes 2097152", "renkei_buffer_charged_bytes 1572864", "renkei_buffer_waiting 0"]
    {
        assert!(metrics.contains(line), "{metrics}");
    }
}

/// A client that runs beside the test.
fn spawn(site: &Site, arguments: &[&str]) -> Child {
    site.command().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_client_waits_for_buffer_space_or_is_refused() {
    let mut federation = two(2);
    federation.kek.stop();
    let [one, two, large] = [("one", MIB + MIB / 2), ("two", MIB + 1), ("large", 2 * MIB + 1)]
        .map(|(name, bytes)| file(&federation, name, bytes));
    let titech = &federation.titech;
    let first = detach(titech, &[text(&one), "kek:/data/one"]);
    let (status, code, cause) =
        refused(titech, &["cp", "--detach", "--no-wait", text(&two), "kek:/data/two"]);
    assert_eq!((status, code.as_str()), (7, "RK-STORE-20"));
    assert!(cause.starts_with("waiting for 1.1M of buffer at titech: "), "{cause}");
    let (_, code, _) = refused(titech, &["cp", "--detach", text(&large), "kek:/data/large"]);
    assert_eq!(code, "RK-STORE-21");
    assert!(buffer(titech)["waiting"].as_array().unwrap().is_empty());
    let waits = spawn(titech, &["cp", "--detach", text(&two), "kek:/data/two"]);
    let start = Instant::now();
    while buffer(titech)["waiting"].as_array().unwrap().is_empty() {
        assert!(start.elapsed() < WITHIN);
        std::thread::sleep(Duration::from_millis(50));
    }
    titech.ok(&["cancel", &first]);
    let output = waits.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("waiting for 1.1M of buffer at titech"), "{told}");
    let second = String::from_utf8(output.stdout).unwrap();
    federation.kek.restart();
    assert_eq!(ended(&federation.titech, second.trim()), 0);
    assert_eq!(fs::read(federation.kek.root().join("two")).unwrap(), fs::read(&two).unwrap());
    assert!(!federation.kek.root().join("one").exists());
    // A cancelled upload has nothing left to send.
    federation.titech.ok(&["retry", &first]);
    assert_eq!(ended(&federation.titech, &first), 3);
    assert_eq!(why(&federation.titech, &first)["reason"]["code"], "RK-STORE-22");
    wait_until_empty(&federation.titech);
}

#[test]
fn the_last_bytes_of_the_buffer_go_to_one_client() {
    let mut federation = two(2);
    federation.kek.stop();
    let titech = &federation.titech;
    for round in 0..4 {
        let names = [format!("a{round}"), format!("b{round}")];
        let files: Vec<PathBuf> = names.iter().map(|name| file(&federation, name, MIB + MIB / 2)).collect();
        let start = |at: usize| {
            let to = format!("kek:/data/{}", names[at]);
            spawn(titech, &["--json", "cp", "--detach", "--no-wait", text(&files[at]), &to])
        };
        let clients = [start(0), start(1)].map(|client| client.wait_with_output().unwrap());
        let told = clients.map(|output| serde_json::from_slice::<Value>(&output.stdout).unwrap());
        let ids: Vec<&str> = told.iter().filter_map(|told| told["transfer"].as_str()).collect();
        let codes: Vec<&str> = told.iter().filter_map(|told| told["error"]["code"].as_str()).collect();
        assert_eq!((ids.len(), &codes[..]), (1, &["RK-STORE-20"][..]), "{told:?}");
        titech.ok(&["cancel", ids[0]]);
        wait_until_empty(titech);
    }
}

#[test]
fn a_killed_upload_is_resumed_or_abandoned() {
    let mut federation = two(64);
    let source = federation.scratch().join("tree");
    fs::create_dir(&source).unwrap();
    for n in 0..8 {
        fs::write(source.join(n.to_string()), noise(n, 2 * MIB)).unwrap();
    }
    let arguments = ["cp", "--detach", "-r", "--limit", "4M", text(&source), "kek:/data/tree"];
    let start_and_wait = |titech: &Site| {
        let mut client = spawn(titech, &arguments);
        let start = Instant::now();
        while buffer(titech)["used"].as_u64() <= Some(5 << 20) {
            assert!(start.elapsed() < WITHIN && client.try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_millis(20));
        }
        client
    };
    let kill_in_the_middle = |titech: &Site| {
        let mut client = start_and_wait(titech);
        client.kill().unwrap();
        client.wait().unwrap();
    };
    // If cancelled while it runs, the client gets the reason.
    let client = start_and_wait(&federation.titech);
    let id = buffer(&federation.titech)["transfers"][0]["id"].clone();
    federation.titech.ok(&["cancel", id.as_str().unwrap()]);
    let output = client.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("RK-MOVE-5"), "{told}");
    wait_until_empty(&federation.titech);
    kill_in_the_middle(&federation.titech);
    let piece = buffer(&federation.titech)["transfers"][0].clone();
    assert_eq!(piece["stage"], "filling");
    // After a cancellation the received files are removed.
    federation.titech.ok(&["cancel", piece["id"].as_str().unwrap()]);
    wait_until_empty(&federation.titech);
    // The same command goes on where it stopped, also over a crash of the PoP.
    kill_in_the_middle(&federation.titech);
    let before = buffer(&federation.titech)["transfers"][0].clone();
    federation.titech.restart();
    let id = federation.titech.ok(&["-q", "cp", "--detach", "-r", text(&source), "kek:/data/tree"]);
    assert_eq!(before["id"], id.trim());
    assert_eq!(ended(&federation.titech, id.trim()), 0);
    assert_same_content(&tree::read(&source), &tree::read(&federation.kek.root().join("tree")));
    // Done is done: the same command again is another transfer.
    let again = federation.titech.ok(&["-q", "cp", "--detach", "-r", text(&source), "kek:/data/tree"]);
    assert_ne!(again, id);
    assert_eq!(ended(&federation.titech, again.trim()), 0);
    wait_until_empty(&federation.titech);
}

#[test]
fn unreadable_files_prevent_submission() {
    let federation = two(64);
    let (titech, source) = (&federation.titech, federation.scratch().join("tree"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("good"), "good").unwrap();
    // Without -r a directory is not sent.
    let good = source.join("good");
    let arguments = ["cp", "--detach", text(&good), text(&source), "kek:/data/"];
    let (status, told) = titech.json(&arguments);
    assert_ne!(status, 0, "{told}");
    assert_eq!(told["failed"], 1, "{told:#}");
    assert!(titech.ok(&["transfers", "--ended"]).is_empty());
    assert_eq!(buffer(titech)["transfers"][0]["stage"], "filling");
}

#[test]
fn a_full_disk_and_a_full_buffer_have_different_codes() {
    let mut federation = Federation::two();
    let path = federation.scratch().join("small");
    let Some(_small) = Mounted::tmpfs(&path, "size=4m") else { return };
    let lines = format!("size_mib = 100\npath = \"{}\"", path.display());
    give_buffer(&mut federation.titech, &lines);
    let source = file(&federation, "f", 9 * MIB);
    let arguments = ["cp", "--detach", text(&source), "kek:/data/f"];
    let (status, code, _) = refused(&federation.titech, &arguments);
    assert_eq!((status, code.as_str()), (7, "RK-STORE-24"));
    let checks = federation.titech.json(&["doctor"]).1;
    let checks = checks["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["what"] == "buffer").unwrap();
    assert_eq!(check["level"], "warn", "{check}");
}

#[test]
fn files_missing_from_the_buffer_fail_their_transfer() {
    let mut federation = two(64);
    federation.kek.stop();
    let source = file(&federation, "f", MIB);
    let id = detach(&federation.titech, &[text(&source), "kek:/data/f"]);
    federation.titech.stop();
    fs::remove_dir_all(federation.titech.dir().join("state/buffer")).unwrap();
    federation.titech.restart();
    federation.kek.restart();
    assert_eq!(ended(&federation.titech, &id), 3);
    assert_eq!(why(&federation.titech, &id)["reason"]["code"], "RK-STORE-22");
}

#[test]
fn transfers_of_a_buffer_on_another_disk_continue_after_a_restore() {
    let mut federation = Federation::two();
    let (scratch, folder) = (federation.scratch(), federation.scratch().join("buffer"));
    fs::create_dir(&folder).unwrap();
    give_buffer(&mut federation.titech, &format!("size_mib = 64\npath = {folder:?}"));
    federation.kek.stop();
    let source = file(&federation, "f", MIB);
    let id = detach(&federation.titech, &[text(&source), "kek:/data/f"]);
    let saved = scratch.join("saved");
    federation.titech.ok(&["backup", text(&saved)]);
    federation.titech.kill9();
    fs::remove_dir_all(federation.titech.dir()).unwrap();
    federation.titech.ok(&["restore", text(&saved)]);
    federation.titech.restart();
    federation.kek.restart();
    federation.titech.ok(&["retry", &id]);
    assert_eq!(ended(&federation.titech, &id), 0, "{:#}", why(&federation.titech, &id));
    assert!(fs::read(federation.kek.root().join("f")).unwrap() == fs::read(&source).unwrap());
}

#[test]
fn a_corrupt_byte_in_the_buffer_is_detected_and_reported() {
    let mut federation = two(64);
    federation.kek.stop();
    let source = federation.scratch().join("tree");
    fs::create_dir(&source).unwrap();
    for (name, bytes) in [("small", 1000), ("large", 9 * MIB)] {
        fs::write(source.join(name), noise(7, bytes)).unwrap();
    }
    let id = detach(&federation.titech, &["-r", text(&source), "kek:/data/tree"]);
    let files = folders(&federation.titech)[0].join("files/0");
    for (name, at) in [("small", 10), ("large", 5 * MIB)] {
        let path = files.join(name);
        let (mut content, times) =
            (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().modified().unwrap());
        content[at] ^= 1;
        fs::write(&path, content).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(times).unwrap();
    }
    federation.kek.restart();
    assert_eq!(ended(&federation.titech, &id), 23, "{:#}", why(&federation.titech, &id));
    let told = why(&federation.titech, &id);
    let failures = told["failures"].as_array().unwrap();
    assert_eq!(failures.len(), 2, "{told:#}");
    for failure in failures {
        assert_eq!((&failure["code"], &failure["side"]), (&"RK-MOVE-3".into(), &"titech".into()), "{told:#}");
    }
    for name in ["small", "large"] {
        assert!(!federation.kek.root().join("tree").join(name).exists());
    }
    // It is kept for another attempt, until it is cancelled.
    assert_eq!(buffer(&federation.titech)["transfers"][0]["stage"], "whole");
}

/// A number that looks random and is the same each time.
fn chance(n: u64, below: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) % below
}

#[test]
fn kills_at_random_moments_lose_nothing_of_an_upload() {
    let mut federation = two(64);
    let source = federation.scratch().join("tree");
    fs::create_dir(&source).unwrap();
    for n in 0..40 {
        fs::write(source.join(n.to_string()), noise(n, 20_000 * n as usize)).unwrap();
    }
    fs::write(source.join("large"), noise(99, 16 * MIB)).unwrap();
    let id = "00112233445566778899aabbccddeeff";
    let arguments =
        ["-q", "cp", "--detach", "--id", id, "-r", "--limit", "16M", text(&source), "kek:/data/tree"];
    let mut client = spawn(&federation.titech, &arguments);
    for n in 0..16 {
        std::thread::sleep(Duration::from_millis(chance(n, 900)));
        match chance(n + 100, 4) {
            0 => federation.kek.restart(),
            1 => {
                let _ = client.kill();
                client.wait().unwrap();
                client = spawn(&federation.titech, &arguments);
            }
            _ => federation.titech.restart(),
        }
    }
    let output = client.wait_with_output().unwrap();
    if !output.status.success() {
        federation.titech.ok(&arguments);
    }
    assert_eq!(ended(&federation.titech, id), 0, "{:#}", why(&federation.titech, id));
    assert_same_content(&tree::read(&source), &tree::read(&federation.kek.root().join("tree")));
    wait_until_empty(&federation.titech);
}

/// A home with a buffer to which transfers spill at once, and two other sites.
fn three(folder: &Path) -> [Site; 3] {
    let mut sites = ["home", "from", "to"].map(|name| Site::start(folder, name));
    for (a, b) in (0..3).flat_map(|a| (0..3).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        sites[a].befriend(&sites[b]);
    }
    give_buffer(&mut sites[0], "size_mib = 200\nper_user_mib = 200\nspill_after_s = 1");
    sites
}

fn fill(root: &Path) -> PathBuf {
    let run = root.join("run");
    fs::create_dir_all(run.join("sub/empty")).unwrap();
    for n in 0..30 {
        fs::write(run.join(format!("sub/{n}")), noise(n, 3000 * n as usize)).unwrap();
    }
    fs::write(run.join("large"), noise(77, 20 * MIB)).unwrap();
    std::os::unix::fs::symlink("large", run.join("link")).unwrap();
    run
}

#[test]
fn a_copy_between_other_sites_spills_and_no_longer_needs_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let [home, mut from, mut to] = three(folder.path());
    let run = fill(from.root());
    let expected = tree::read(&run);
    to.stop();
    let id = detach(&home, &["-r", "from:/data/run", "to:/data/copy"]);
    let told = until(&home, &id, |told| told["buffered"]["whole"] == true && told["state"] == "waiting");
    assert_eq!(told["buffered"]["site"], "home", "{told:#}");
    let shown = home.ok(&["why", &id]);
    assert!(shown.contains("from:/data/run -> buffer at home: ") && shown.contains("all of it"), "{shown}");
    assert!(shown.contains("buffer at home -> to:/data/copy: "), "{shown}");
    let listed = home.ok(&["transfers"]);
    assert!(listed.contains("buffer at home -> to:/data/copy: "), "{listed}");
    from.stop();
    fs::remove_dir_all(&run).unwrap();
    to.restart();
    assert_eq!(ended_soon(&home, &id), 0, "{:#}", why(&home, &id));
    assert_same(&expected, &tree::read(&to.root().join("copy")));
    wait_until_empty(&home);
}

#[test]
fn copies_too_large_or_unsuitable_to_spill_wait_at_their_source() {
    let folder = tempfile::tempdir().unwrap();
    let [mut home, from, mut to] = three(folder.path());
    give_buffer(&mut home, "size_mib = 8\nspill_after_s = 1");
    fill(from.root());
    to.stop();
    let large = detach(&home, &["-r", "from:/data/run", "to:/data/copy"]);
    let synced = home.ok(&["sync", "--detach", "from:/data/run/sub", "to:/data/synced"]);
    let told = until(&home, &large, |told| {
        told["reason"]["cause"].as_str().is_some_and(|cause| cause.contains("RK-STORE-21"))
    });
    assert_eq!((&told["state"], &told["buffered"]), (&"waiting".into(), &Value::Null), "{told:#}");
    until(&home, synced.trim(), |told| told["attempts"].as_u64() > Some(2) && told["buffered"].is_null());
    to.restart();
    for id in [&large, synced.trim()] {
        assert_eq!(ended_soon(&home, id), 0, "{:#}", why(&home, id));
    }
    wait_until_empty(&home);
}

#[test]
fn kills_at_random_moments_lose_nothing_of_a_spill() {
    let folder = tempfile::tempdir().unwrap();
    let mut sites = three(folder.path());
    let run = fill(sites[1].root());
    sites[2].stop();
    let id = detach(&sites[0], &["-r", "--limit", "10M", "from:/data/run", "to:/data/copy"]);
    for n in 0..10 {
        std::thread::sleep(Duration::from_millis(300 + chance(n, 900)));
        sites[[0, 0, 1][chance(n + 50, 3) as usize]].restart();
    }
    sites[2].restart();
    for n in 20..26 {
        std::thread::sleep(Duration::from_millis(chance(n, 900)));
        sites[[0, 2][chance(n + 50, 2) as usize]].restart();
    }
    assert_eq!(ended_soon(&sites[0], &id), 0, "{:#}", why(&sites[0], &id));
    assert_same_content(&tree::read(&run), &tree::read(&sites[2].root().join("copy")));
    wait_until_empty(&sites[0]);
}

#[test]
fn a_buffer_in_a_directory_writable_by_others_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut site = Site::start(dir.path(), "kek");
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    let close = |mode| fs::set_permissions(&open, fs::Permissions::from_mode(mode)).unwrap();
    close(0o777);
    give_buffer(&mut site, &format!("size_mib = 64\npath = {:?}", open.join("buffer")));
    let told = |site: &Site| {
        let (_, status) = site.json(&["status"]);
        let all = status["conditions"].as_array().unwrap().iter();
        all.filter(|one| one["what"] == "buffer").map(ToString::to_string).collect::<String>()
    };
    administration::until("the PoP says so", || told(&site).contains("RK-STORE-31"));
    let (_, doctor) = site.json(&["doctor"]);
    let check = doctor["checks"].as_array().unwrap().iter().find(|check| check["what"] == "buffer").unwrap();
    assert!(check["level"] != "ok" && check.to_string().contains("mode 777"), "{check}");
    assert!(!open.join("buffer").exists());
    close(0o755);
    administration::until("it is used", || told(&site).is_empty());
    assert!(open.join("buffer").exists());
}
