//! A volume's directory belongs to one volume of one site, by whatever path; and a directory to which its files were copied is
//! accepted on request.

use crate::cli::errors::Mounted;
use crate::federation::{Federation, Site, account};
use renkei_store::marker::VOLUME;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long anything may take; generous, because machines that run tests are busy.
const WITHIN: Duration = Duration::from_secs(60);

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A volume at kek with some files, which titech may follow.
fn genome() -> Federation {
    let federation = Federation::two();
    let kek = &federation.kek;
    let run = kek.root().join("genome/run");
    fs::create_dir_all(&run).unwrap();
    for n in 0..5 {
        fs::write(run.join(format!("f{n}")), vec![n; 1000 + usize::from(n)]).unwrap();
    }
    kek.ok(&[
        "volume",
        "create",
        "genome",
        "--storage",
        "data",
        "--in-place",
        "genome",
        "--account",
        &account(),
    ]);
    kek.ok(&["volume", "grant", "genome", "titech", "read"]);
    federation
}

fn subscribe(site: &Site, storage: &str) -> (i32, Value) {
    site.json(&["volume", "subscribe", "genome", "--from", "kek", "--storage", storage])
}

fn code(told: &Value) -> &str {
    told["error"]["code"].as_str().unwrap_or_default()
}

/// The home's files, by their content.
fn files(federation: &Federation) -> Vec<Vec<u8>> {
    let run = federation.kek.root().join("genome/run");
    (0..5).map(|n| fs::read(run.join(format!("f{n}"))).unwrap()).collect()
}

#[test]
fn replicas_are_refused_in_the_directory_of_the_home() {
    let federation = genome();
    let (titech, kek, scratch) = (&federation.titech, &federation.kek, federation.scratch());
    let before = files(&federation);
    let linked = scratch.join("linked");
    fs::create_dir(&linked).unwrap();
    symlink(kek.root().join("genome"), linked.join("genome")).unwrap();
    let bound = scratch.join("bound");
    let mounted = Mounted::by(&bound, "mount", &["--bind", text(kek.root()), text(&bound)]);
    let mut ways: Vec<(&str, PathBuf)> =
        vec![("same", kek.root().into()), ("linked", linked), ("inside", kek.root().join("genome/run"))];
    // A part of the home's files within the directory that is to have the replicas.
    let (around, part) = (scratch.join("around"), kek.root().join("genome/run"));
    let within = around.join("genome/x y");
    fs::create_dir_all(&within).unwrap();
    let mounted_within = Mounted::by(&within, "mount", &["--bind", text(&part), text(&within)]);
    match mounted.is_some() && mounted_within.is_some() {
        true => ways.extend([("bound", bound), ("within", around)]),
        false => eprintln!("SKIPPED: cannot mount"),
    }
    for (name, path) in ways {
        titech.ok(&["storage", "add", name, text(&path)]);
        let (status, told) = subscribe(titech, name);
        assert_eq!((status, code(&told)), (4, "RK-STORE-29"), "{name}: {told}");
        assert!(told["error"]["cause"].as_str().unwrap().contains("site kek"), "{told}");
        assert!(!titech.ok(&["volume", "list"]).contains("genome"));
        let (_, evicted) = titech.json(&["evict", "titech:/genome"]);
        assert!(!code(&evicted).is_empty(), "{evicted}");
    }
    assert_eq!(files(&federation), before);
    assert!(!kek.root().join("genome/run/genome").exists());
    // Elsewhere it may; and the home, or anybody else, then not there.
    let (status, told) = subscribe(titech, "data");
    assert_eq!(status, 0, "{told}");
    kek.ok(&["storage", "add", "theirs", text(titech.root())]);
    for way in [&["--in-place", "genome"][..], &["--path", "genome/new"]] {
        let (_, told) = kek.json(&[&["volume", "create", "other", "--storage", "theirs"][..], way].concat());
        assert_eq!(code(&told), "RK-STORE-29", "{told}");
    }
    titech.ok(&["volume", "unsubscribe", "genome"]);
    assert!(!titech.root().join("genome").join(VOLUME).exists());
    kek.ok(&[
        "volume",
        "create",
        "other",
        "--storage",
        "theirs",
        "--in-place",
        "genome",
        "--account",
        &account(),
    ]);
    drop((mounted, mounted_within));
}

#[test]
fn replicas_do_not_follow_planted_links() {
    let federation = genome();
    let (titech, target) = (&federation.titech, federation.scratch().join("elsewhere"));
    fs::create_dir(&target).unwrap();
    let planted = titech.root().join("genome");
    for to in [&target, &federation.scratch().join("nowhere")] {
        symlink(to, &planted).unwrap();
        let (status, told) = subscribe(titech, "data");
        assert!(status != 0 && !code(&told).is_empty(), "{told}");
        assert!(!titech.ok(&["volume", "list"]).contains("genome"));
        assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "something was written where the link leads");
        assert!(!federation.scratch().join("nowhere").exists());
        fs::remove_file(&planted).unwrap();
    }
    let (status, told) = subscribe(titech, "data");
    assert_eq!(status, 0, "{told}");
    assert!(planted.join(VOLUME).exists());
}

#[test]
fn a_directory_claimed_by_two_sites_stays_with_the_first() {
    let mut federation = genome();
    let (status, told) = subscribe(&federation.titech, "data");
    assert_eq!(status, 0, "{told}");
    // As two PoPs of an older version may have it: one directory, and no marker.
    let own = federation.titech.root().join("genome");
    federation.titech.stop();
    fs::remove_dir_all(&own).unwrap();
    symlink(federation.kek.root(), federation.scratch().join("link")).unwrap();
    let config = federation.titech.dir().join("config.toml");
    let before = fs::read_to_string(&config).unwrap();
    let there = before.replace(text(federation.titech.root()), text(federation.kek.root()));
    assert_ne!(before, there);
    fs::write(&config, there).unwrap();
    federation.titech.restart();
    let before = files(&federation);
    let (_, told) = federation.titech.json(&["evict", "titech:/genome"]);
    assert_eq!(code(&told), "RK-STORE-29", "{told}");
    assert_eq!(files(&federation), before);
    assert_eq!(federation.kek.ok(&["ls", "kek:/genome/run"]).lines().count(), 5);
}

/// The shown state of the volume at its home.
fn shown(site: &Site) -> Value {
    let (status, told) = site.json(&["volume", "show", "genome"]);
    assert_eq!(status, 0, "{told}");
    told
}

/// Copies the volume's files to another directory, which takes its place; gives where they were.
fn copy_away(federation: &Federation, name: &str) -> PathBuf {
    let (at, aside) = (federation.kek.root().join("genome"), federation.kek.root().join(name));
    let copy = federation.scratch().join("copy");
    let copied = Command::new("cp").args(["-a", text(&at), text(&copy)]).status().unwrap();
    assert!(copied.success());
    fs::rename(&at, &aside).unwrap();
    fs::rename(&copy, &at).unwrap();
    aside
}

/// Waits until the volume's trouble has a code.
fn await_trouble(site: &Site, wanted: &str) {
    let begin = Instant::now();
    loop {
        let (_, told) = site.json(&["volume", "check", "genome"]);
        if code(&told) == wanted {
            return;
        }
        assert!(begin.elapsed() < WITHIN, "{told}");
    }
}

fn await_condition(site: &Site, code: &str, is_told: bool) {
    let begin = Instant::now();
    while site.json(&["doctor"]).1.to_string().contains(code) != is_told {
        assert!(begin.elapsed() < WITHIN, "{}", site.logged());
    }
}

#[test]
fn a_volume_copied_to_another_disk_continues() {
    let mut federation = genome();
    let (status, told) = subscribe(&federation.titech, "data");
    assert_eq!(status, 0, "{told}");
    federation.kek.ok(&["verify", "kek:/genome"]);
    let before = shown(&federation.kek);
    for restarts in [false, true] {
        if restarts {
            federation.kek.stop();
        }
        copy_away(&federation, &format!("aside-{restarts}"));
        if restarts {
            federation.kek.restart();
        }
        await_trouble(&federation.kek, "RK-NS-10");
        let (status, told) = federation.kek.json(&["volume", "check", "genome", "--accept"]);
        assert_eq!(status, 0, "{told}");
        let after = shown(&federation.kek);
        for field in ["id", "grants", "account", "home"] {
            assert_eq!(after[field], before[field], "{field}");
        }
        let records = |told: &Value| told["standing"]["records"].as_u64();
        assert_eq!(records(&after), records(&before), "no version is new: {told}");
        assert!(records(&after).is_some() && after["standing"]["trouble"].is_null(), "{after:#}");
    }
    // Both go on with it.
    fs::write(federation.kek.root().join("genome/run/new"), "new").unwrap();
    let begin = Instant::now();
    while federation.titech.renkei(&["cat", "titech:/genome/run/new"]).stdout != b"new" {
        assert!(begin.elapsed() < WITHIN, "{:#}", shown(&federation.titech));
    }
    assert_eq!(federation.titech.renkei(&["cat", "titech:/genome/run/f3"]).stdout, [3; 1003]);
}

#[test]
fn an_exchanged_replica_directory_is_reported_until_accepted() {
    let mut federation = genome();
    let (status, told) = subscribe(&federation.titech, "data");
    assert_eq!(status, 0, "{told}");
    federation.titech.ok(&["replicate", "/genome"]);
    let top = federation.titech.root().join("genome");
    fs::rename(&top, federation.titech.root().join("aside")).unwrap();
    fs::create_dir(&top).unwrap();
    fs::write(top.join("foreign"), "foreign").unwrap();
    for restarts in [false, true] {
        if restarts {
            federation.titech.stop();
            federation.titech.restart();
        }
        // Evicted files are read at the home.
        assert_eq!(federation.titech.renkei(&["cat", "titech:/genome/run/f3"]).stdout, [3; 1003]);
        await_condition(&federation.titech, "RK-NS-10", true);
    }
    federation.titech.ok(&["volume", "check", "genome", "--accept"]);
    await_condition(&federation.titech, "RK-NS-10", false);
    assert!(top.join("foreign").exists());
}

#[test]
fn an_incomplete_copy_needs_confirmation() {
    let federation = genome();
    let kek = &federation.kek;
    copy_away(&federation, "aside");
    fs::remove_file(kek.root().join("genome/run/f2")).unwrap();
    fs::write(kek.root().join("genome/run/f3"), "other").unwrap();
    await_trouble(kek, "RK-NS-10");
    let (_, told) = kek.json(&["volume", "check", "genome", "--accept"]);
    assert_eq!(code(&told), "RK-NS-10", "{told}");
    let cause = told["error"]["cause"].as_str().unwrap();
    assert!(cause.contains("1 are missing") && cause.contains("missing: run/f2"), "{cause}");
    let (status, told) = kek.json(&["volume", "check", "genome", "--accept", "--yes"]);
    assert_eq!((status, told["found"]["gone"].as_u64()), (0, Some(1)), "{told}");
    assert_eq!(told["found"]["changed"], 1, "{told}");
    assert_eq!(kek.ok(&["ls", "kek:/genome/run"]).lines().count(), 4);
}

#[test]
fn a_storage_that_is_removed_can_be_unmounted() {
    let federation = Federation::two();
    let (kek, point) = (&federation.kek, federation.scratch().join("disk"));
    let Some(mounted) = Mounted::tmpfs(&point, "size=20m") else { return };
    kek.ok(&["storage", "add", "disk", text(&point)]);
    fs::create_dir(point.join("sub")).unwrap();
    fs::write(point.join("sub/f"), "f").unwrap();
    kek.ok(&["volume", "create", "genome", "--storage", "disk", "--account", &account()]);
    let own = kek.ok(&["cat", "kek:/disk/sub/f"]);
    assert_eq!(own, "f");
    assert!(!Command::new("umount").arg(&point).status().unwrap().success(), "it is in use");
    kek.ok(&["storage", "remove", "disk", "--yes"]);
    let unmounted = Command::new("umount").arg(&point).output().unwrap();
    assert!(unmounted.status.success(), "{unmounted:?}\n{}", kek.logged());
    std::mem::forget(mounted);
    let (_, told) = kek.json(&["ls", "kek:/disk"]);
    assert!(told.to_string().contains("RK-STORE-16"), "{told}");
}
