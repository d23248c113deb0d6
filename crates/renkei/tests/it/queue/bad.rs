//! Failures of queued transfers, each case with its code; the table of all is in docs/operations.md.

use crate::cli::errors::Mounted;
use crate::federation::{Federation, Site, account};
use crate::queue::{SLOWLY, detach, ended, large, moves, refused, same, until, why};
use crate::tree::{MIB, noise};
use crate::wire::raw;
use renkei_catalogue::{Catalogue, Update, parse_id};
use renkei_net::identity::authority::Authority;
use renkei_net::identity::delegation::{Delegation, Delegator, issue};
use renkei_store::temp::temp_job;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

const DAY: Duration = Duration::from_secs(86_400);

fn code(told: &Value) -> &str {
    told["reason"]["code"].as_str().unwrap_or_default()
}

/// A folder of files of a megabyte that look random.
fn folder(at: &Path, files: u64, seed: u64) {
    fs::create_dir_all(at).unwrap();
    (0..files).for_each(|n| fs::write(at.join(n.to_string()), noise(seed + n, MIB)).unwrap());
}

#[test]
fn a_copy_waits_for_a_full_destination_and_continues() {
    let Federation { titech, kek, .. } = &Federation::two();
    let Some(small) = Mounted::tmpfs(&kek.root().join("small"), "size=40m") else { return };
    fs::create_dir(titech.root().join("run")).unwrap();
    (0..6).for_each(|n| fs::write(titech.root().join(format!("run/{n}")), noise(n, 9 * MIB)).unwrap());
    let id = detach(titech, &["-r", &titech.place("run"), &kek.place("small/copy")]);
    let waits = until(titech, &id, |told| told["state"] == "waiting");
    assert_eq!((code(&waits), waits["reason"]["side"].as_str()), ("RK-STORE-6", Some("kek")), "{waits:#}");
    assert!(waits["next"].is_string());
    small.remount("size=100m");
    assert_eq!(ended(titech, &id), 0, "{:#}", why(titech, &id));
    same(&titech.root().join("run"), &kek.root().join("small/copy"));
    let last = why(titech, &id)["story"].as_array().unwrap().last().unwrap()["bytes_moved"].as_u64().unwrap();
    assert!(last < 54 * MIB as u64, "received blocks were sent again: {last}");
}

/// The temporary files below a folder: how much they take.
fn kept_below(folder: &Path) -> u64 {
    let files = fs::read_dir(folder)
        .unwrap()
        .flatten()
        .filter(|file| temp_job(file.file_name().as_encoded_bytes()).is_some());
    files.map(|file| file.metadata().unwrap().blocks() * 512).sum()
}

#[test]
fn partial_files_are_kept_while_the_destination_is_full() {
    let Federation { titech, kek, .. } = &Federation::two();
    let folder = kek.root().join("small");
    let Some(small) = Mounted::tmpfs(&folder, "size=220m") else { return };
    let size = 160 * MIB;
    fs::write(titech.root().join("f"), noise(7, size)).unwrap();
    let start = |more: &[&str]| {
        let mut words = vec!["cp", "--limit", "40M"];
        words.extend(more);
        titech.command().args(words).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
    };
    let place = kek.place("small/f");
    let mut direct = start(&[&titech.place("f"), &place]);
    let began = Instant::now();
    while kept_below(&folder) < 100 << 20 {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing arrives");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Another program takes the rest of the disk.
    let filler = folder.join("filler");
    let _ = fs::write(&filler, vec![1; 200 << 20]);
    assert!(!direct.wait().unwrap().success());
    let kept = kept_below(&folder);
    assert!(kept >= 16 << 20, "{kept}");
    for _ in 0..2 {
        let (status, told) = titech.json(&["cp", &titech.place("f"), &place]);
        let error = &told["error"];
        assert!(status != 0 && error["code"] == "RK-STORE-6", "{told}");
        assert!(error["subject"].as_str().unwrap().ends_with("data/small/f"), "{told}");
        assert!(
            kept_below(&folder) + (1 << 20) >= kept,
            "the next try threw it away: {} of {kept}",
            kept_below(&folder)
        );
    }
    let id = detach(titech, &[&titech.place("f"), &place]);
    until(titech, &id, |told| told["state"] == "waiting");
    fs::remove_file(filler).unwrap();
    let (status, told) = titech.json(&["cp", &titech.place("f"), &place]);
    assert_eq!(status, 0, "{told}");
    let moved = told["bytes_moved"].as_u64().unwrap();
    assert!(moved + kept <= (size + 4 * MIB) as u64, "{moved} moved, {kept} were there");
    // The queued one waits for room of its own.
    fs::remove_file(folder.join("f")).unwrap();
    titech.ok(&["retry", &id]);
    assert_eq!(ended(titech, &id), 0, "{:#}", why(titech, &id));
    drop(small);
}

#[test]
fn a_source_deleted_while_queued_is_named() {
    let mut federation = Federation::two();
    let root = federation.titech.root().to_path_buf();
    fs::write(root.join("f"), "content").unwrap();
    folder(&root.join("run"), 2, 0);
    federation.kek.stop();
    let titech = &federation.titech;
    let ids =
        ["f", "run"].map(|name| detach(titech, &["-r", &titech.place(name), &format!("kek:/data/{name}")]));
    ids.iter().for_each(|id| drop(until(titech, id, |told| told["state"] == "waiting")));
    fs::remove_file(root.join("f")).unwrap();
    fs::remove_dir_all(root.join("run")).unwrap();
    federation.kek.restart();
    let titech = &federation.titech;
    for id in ids {
        assert_eq!(ended(titech, &id), 3);
        let told = why(titech, &id);
        assert_eq!(
            (code(&told), told["reason"]["side"].as_str()),
            ("RK-STORE-1", Some("titech")),
            "{told:#}"
        );
        assert_eq!(told["state"], "failed");
    }
}

#[test]
fn a_source_deleted_during_the_copy_leaves_whole_files() {
    let Federation { titech, kek, .. } = &Federation::two();
    folder(&titech.root().join("run"), 60, 0);
    let id = detach(titech, &[&SLOWLY[..], &["-r", &titech.place("run"), &kek.place("run")]].concat());
    until(titech, &id, moves);
    fs::remove_dir_all(titech.root().join("run")).unwrap();
    assert_eq!(ended(titech, &id), 23, "{:#}", why(titech, &id));
    let (_, told) = titech.json(&["why", "--failures", &id]);
    assert_eq!((told["state"].as_str(), code(&told)), (Some("partial"), "RK-MOVE-4"));
    let failures = told["failures"].as_array().unwrap();
    // Those that were being read may have been seen to change by that.
    let gone = |one: &Value| one["code"] == "RK-MOVE-2" || one["code"] == "RK-MOVE-1";
    assert!(failures.iter().all(gone) && failures.iter().any(|one| one["code"] == "RK-MOVE-2"), "{told:#}");
    let there: Vec<_> = fs::read_dir(kek.root().join("run")).unwrap().map(|name| name.unwrap()).collect();
    assert_eq!(there.len() + failures.len(), 60);
    for file in there {
        let n: u64 = file.file_name().to_str().unwrap().parse().unwrap();
        assert!(fs::read(file.path()).unwrap() == noise(n, MIB), "{n} is not whole");
    }
}

#[test]
fn removing_a_mapping_ends_running_transfers() {
    let Federation { titech, kek, .. } = &Federation::two();
    large(titech, "large");
    let id = detach(titech, &[&SLOWLY[..], &[&titech.place("large"), &kek.place("large")]].concat());
    until(titech, &id, moves);
    let user = format!("{}@titech", account());
    kek.ok(&["map", "remove", &user]);
    assert_eq!(ended(titech, &id), 5, "{:#}", why(titech, &id));
    let told = why(titech, &id);
    assert_eq!((code(&told), told["reason"]["side"].as_str()), ("RK-AUTH-7", Some("kek")), "{told:#}");
    assert!(!kek.root().join("large").exists());
    kek.ok(&["map", "add", "--yes", &user, &account()]);
    titech.ok(&["retry", &id]);
    assert_eq!(ended(titech, &id), 0);
    same(&titech.root().join("large"), &kek.root().join("large"));
}

/// Puts a credential that expired yesterday in the place of a transfer's own.
fn expire(site: &Site, id: &str) {
    let (home, id, issued) = (raw::home(site), parse_id(id).unwrap(), SystemTime::now() - 8 * DAY);
    let catalogue = Catalogue::open("", &home).unwrap();
    let own = raw::user(site).facts().unwrap();
    let by = Delegator { user: own.principal().unwrap(), serial: own.serial };
    let scope = Delegation::from_bytes(&catalogue.credential(&id).unwrap().unwrap()).unwrap().scope;
    let old =
        issue(&home, &Authority::load(&home).unwrap(), &by, &[scope], issued, 7 * DAY).unwrap().remove(0);
    let row = catalogue.load(&id).unwrap().unwrap();
    let update = Update { credential: Some(&old.to_bytes()), ..Update::of(&row) };
    assert!(catalogue.update(&update).unwrap());
}

#[test]
fn an_expired_credential_fails_no_file_and_waits_for_a_new_one() {
    let mut federation = Federation::two();
    fs::write(federation.titech.root().join("f"), "content").unwrap();
    federation.kek.stop();
    let titech = &mut federation.titech;
    let id = detach(titech, &[&titech.place("f"), "kek:/data/f"]);
    until(titech, &id, |told| told["state"] == "waiting");
    titech.stop();
    expire(titech, &id);
    titech.restart();
    federation.kek.restart();
    let titech = &federation.titech;
    let waits = until(titech, &id, |told| code(told) == "RK-AUTH-19");
    assert_eq!((waits["state"].as_str(), waits["next"].as_str()), (Some("waiting"), None), "{waits:#}");
    assert!(waits["failures"].as_array().unwrap().is_empty());
    titech.ok(&["renew", &id]);
    assert_eq!(ended(titech, &id), 0, "{:#}", why(titech, &id));
}

/// The code a copy at kek ends with, given at once and as a transfer.
fn codes_of(titech: &Site, arguments: &[&str]) -> [String; 2] {
    let verb = arguments[0];
    let at_once = refused(titech, arguments);
    let (status, told) = titech.json(&[&[verb, "--detach"][..], &arguments[1..]].concat());
    if status != 0 {
        return [at_once, told["error"]["code"].as_str().unwrap().to_owned()];
    }
    let id = told["transfer"].as_str().unwrap();
    assert_eq!(ended(titech, id), 2, "{:#}", why(titech, id));
    [at_once, code(&why(titech, id)).to_owned()]
}

#[test]
fn nothing_is_copied_onto_or_into_itself_whatever_its_names() {
    let Federation { titech, kek, .. } = &Federation::two();
    let root = kek.root();
    fs::create_dir_all(root.join("a/b")).unwrap();
    fs::write(root.join("a/f"), "content").unwrap();
    fs::write(root.join("a/b/g"), "more").unwrap();
    symlink("a", root.join("link")).unwrap();
    kek.ok(&["storage", "add", "again", root.to_str().unwrap()]);
    let here = |path: &str| root.join(path).to_str().unwrap().to_owned();
    let before = crate::tree::read(root);
    let check = |code: &str, arguments: &[&str]| {
        assert_eq!(codes_of(titech, arguments), [code, code], "{arguments:?}");
        crate::tree::assert_same_content(&before, &crate::tree::read(root));
    };
    let (same, into) = ("RK-MOVE-7", "RK-MOVE-13");
    for a in ["kek:/data/a", "kek:/data/link", "kek:/again/a"] {
        check(same, &["cp", "kek:/data/a/f", &format!("{a}/f")]);
        check(same, &["cp", &format!("{a}/f"), "kek:/data/a"]);
        check(same, &["cp", "-r", "kek:/data/a/", a]);
        check(same, &["sync", "--delete", "kek:/data/a", a]);
        check(into, &["cp", "-r", "kek:/data/a", &format!("{a}/b")]);
        check(into, &["cp", "-r", "kek:/data/a", &format!("{a}/b/new")]);
        check(into, &["sync", "--delete", "kek:/data/a/b", a]);
    }
    // From and to this machine's own paths, where they are the site's.
    let check = |code: &str, arguments: &[&str]| {
        assert_eq!(refused(titech, arguments), code, "{arguments:?}");
        crate::tree::assert_same_content(&before, &crate::tree::read(root));
    };
    check(same, &["cp", &here("a/f"), "kek:/data/a/f"]);
    check(same, &["cp", "kek:/data/a/f", &here("a/f")]);
    check(same, &["cp", "kek:/data/link/f", &here("a")]);
    check(into, &["cp", "-r", &here("a"), "kek:/data/a/b"]);
    check(into, &["cp", "-r", "kek:/data/a", &here("a/b")]);
    check(into, &["sync", "--delete", &here("a/b"), "kek:/data/a"]);
    check(into, &["sync", "--delete", "kek:/data/a/b", &here("a")]);
    titech.ok(&["cp", "kek:/data/a/f", "kek:/again/a/h"]);
    titech.ok(&["cp", "-r", "kek:/data/a/b", "kek:/data/a/c"]);
}

#[test]
fn overlapping_transfers_never_mix() {
    let Federation { titech, kek, .. } = &Federation::two();
    for (name, seed) in [("one", 0), ("two", 1000)] {
        folder(&titech.root().join(name), 12, seed);
    }
    let ids: Vec<String> = (0..6)
        .map(|n| {
            let from = titech.place(["one/", "two/"][n % 2]);
            detach(titech, &["--limit", "30M", "-r", &from, &kek.place("to")])
        })
        .collect();
    ids.iter().for_each(|id| assert_eq!(ended(titech, id), 0, "{:#}", why(titech, id)));
    let told: Vec<Value> = ids.iter().map(|id| why(titech, id)).collect();
    let mut runs: Vec<(&str, &str, usize)> = told
        .iter()
        .zip(0..)
        .map(|(told, n)| (told["story"][0]["started"].as_str().unwrap(), told["ended"].as_str().unwrap(), n))
        .collect();
    runs.sort_unstable();
    assert!(runs.windows(2).all(|pair| pair[0].1 <= pair[1].0), "two ran at once: {runs:?}");
    let last = ["one", "two"][runs[5].2 % 2];
    same(&titech.root().join(last), &kek.root().join("to"));
}

#[test]
fn stop_on_error_ends_a_copy_at_the_first_failure() {
    let Federation { titech, kek, .. } = &Federation::two();
    folder(&titech.root().join("run"), 30, 0);
    // A directory that is not empty stands where a file shall go.
    let in_the_way = |name: &str| kek.root().join(name).join("7/x");
    ["skipped", "stopped", "now"].iter().for_each(|name| fs::create_dir_all(in_the_way(name)).unwrap());
    let start = |how: &str, to: &str| {
        detach(titech, &["--on-error", how, "--limit", "20M", "-r", &titech.place("run/"), &kek.place(to)])
    };
    let (skipped, stopped) = (start("skip", "skipped"), start("stop", "stopped"));
    assert_eq!((ended(titech, &skipped), ended(titech, &stopped)), (23, 4));
    let (skipped, told) = (why(titech, &skipped), why(titech, &stopped));
    assert_eq!((&skipped["state"], &skipped["summary"]["files"]), (&"partial".into(), &29.into()));
    let in_its_way = |code: &str| ["RK-STORE-2", "RK-STORE-3", "RK-STORE-4"].contains(&code);
    assert!(told["state"] == "failed" && in_its_way(code(&told)), "{told:#}");
    assert_eq!(told["failures"][0]["path"], "7", "{told:#}");
    let local = format!("{}/", titech.root().join("run").display());
    for source in [titech.place("run/"), local] {
        let refused = refused(titech, &["cp", "--on-error", "stop", "-r", &source, &kek.place("now")]);
        assert!(in_its_way(&refused), "{source}: {refused}");
    }
    fs::remove_dir_all(kek.root().join("stopped/7")).unwrap();
    titech.ok(&["retry", &stopped]);
    assert_eq!(ended(titech, &stopped), 0, "{:#}", why(titech, &stopped));
    same(&titech.root().join("run"), &kek.root().join("stopped"));
}
