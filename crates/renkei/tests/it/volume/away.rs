//! A home whose catalogue has files that are stored at a follower: shown and read at once, pulled soon.

use crate::federation::{Federation, Site, account};
use crate::tree;
use crate::volume::following::subscribe;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(30);
/// The folder in which the home receives files.
const INCOMING: &str = ".rk~0000617761790000-0000000000000000";

/// A volume of kek that titech writes and nig reads.
fn with_volume() -> (Federation, Site) {
    let federation = Federation::two();
    let nig = Site::start(&federation.scratch(), "nig");
    let Federation { kek, titech, .. } = &federation;
    nig.befriend(kek);
    kek.befriend(&nig);
    fs::create_dir_all(kek.root().join("genome")).unwrap();
    kek.ok(&["volume", "create", "genome", "--storage", "data", "--in-place", "genome"]);
    kek.ok(&["volume", "grant", "genome", "titech", "write"]);
    kek.ok(&["volume", "grant", "genome", "nig", "read"]);
    subscribe(titech);
    titech.ok(&["volume", "grant", "genome", "*@titech", "write"]);
    nig.ok(&["volume", "subscribe", "genome", "--from", "kek", "--account", &account()]);
    until("titech knows that it may write", || {
        titech.renkei(&["mkdir", "titech:/genome/first"]).status.success()
    });
    until("kek hears of it", || kek.root().join("genome/first").is_dir());
    (federation, nig)
}

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WITHIN, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The files that are stored elsewhere, according to the home.
fn elsewhere(kek: &Site) -> u64 {
    let (_, told) = kek.json(&["volume", "show", "genome"]);
    let sites = told["standing"]["away"].as_array().cloned().unwrap_or_default();
    assert!(sites.iter().all(|site| site["site"] == "titech"), "{told}");
    sites.iter().filter_map(|site| site["files"].as_u64()).sum()
}

/// How many files the home has, according to `where`.
fn at_home(kek: &Site) -> u64 {
    let (_, told) = kek.json(&["where", "kek:/genome"]);
    let rows = told["replicas"].as_array().unwrap();
    rows.iter().find(|row| row["site"] == "kek").unwrap()["files"].as_u64().unwrap()
}

fn written(folder: &Path, files: &[(&str, &[u8])]) -> String {
    fs::create_dir_all(folder).unwrap();
    files.iter().for_each(|(name, content)| fs::write(folder.join(name), content).unwrap());
    folder.to_str().unwrap().into()
}

#[test]
fn files_written_at_a_follower_are_readable_everywhere_before_their_upload() {
    let (mut federation, nig) = with_volume();
    let (out, far) = (federation.scratch().join("out"), federation.scratch().join("far"));
    let (kek, titech) = (&federation.kek, &federation.titech);
    kek.ok(&["volume", "pause", "genome"]);
    let content = tree::noise(7, 3 << 20);
    titech.ok(&["cp", "-r", &written(&far, &[("a", &content), ("b", b"b")]), "titech:/genome"]);
    until("kek hears of it", || elsewhere(kek) == 2);
    assert_eq!(kek.ok(&["ls", "kek:/genome/far"]), "a\nb\n");
    assert!(!kek.root().join("genome/far/a").exists());
    kek.ok(&["cp", "kek:/genome/far/a", out.to_str().unwrap()]);
    assert!(fs::read(&out).unwrap() == content);
    until("nig has the names", || nig.renkei(&["stat", "nig:/genome/far/b"]).status.success());
    fs::remove_file(&out).unwrap();
    nig.ok(&["cp", "nig:/genome/far/a", out.to_str().unwrap()]);
    assert!(fs::read(&out).unwrap() == content);
    kek.ok(&["mv", "kek:/genome/far/b", "kek:/genome/c"]);
    assert_eq!(kek.ok(&["ls", "kek:/genome"]), "c\nfar\nfirst\n");
    assert_eq!(at_home(kek), 0);
    // A site that cannot reach the only holder gets an error.
    federation.titech.stop();
    let (kek, titech) = (&federation.kek, &mut federation.titech);
    let (_, told) = kek.json(&["cp", "kek:/genome/far/a", out.with_file_name("no").to_str().unwrap()]);
    assert!(told.to_string().contains("titech"), "{told}");
    kek.ok(&["volume", "resume", "genome"]);
    titech.restart();
    until("it comes", || elsewhere(kek) == 0);
    assert!(fs::read(kek.root().join("genome/far/a")).unwrap() == content);
    assert_eq!(fs::read(kek.root().join("genome/c")).unwrap(), b"b");
    assert_eq!(at_home(kek), 2);
}

#[test]
fn a_home_killed_during_backfill_has_all_files_in_the_end() {
    let (mut federation, _nig) = with_volume();
    let mut files: Vec<(String, Vec<u8>)> =
        (0..200).map(|n| (format!("small{n}"), format!("content {n}").into_bytes())).collect();
    files.extend((0..4).map(|n| (format!("large{n}"), tree::noise(n, 4 << 20))));
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, content)| (&**name, &**content)).collect();
    for round in 0..3 {
        let folder = written(&federation.scratch().join(format!("run{round}")), &files);
        federation.titech.ok(&["cp", "-r", &folder, "titech:/genome"]);
        std::thread::sleep(Duration::from_millis(50 + 100 * round));
        federation.kek.kill9();
        federation.kek.restart();
    }
    let kek = &federation.kek;
    let is_there = |round, name| kek.root().join(format!("genome/run{round}/{name}")).exists();
    until("all comes", || {
        (0..3).all(|round| files.iter().all(|(name, _)| is_there(round, name))) && elsewhere(kek) == 0
    });
    for round in 0..3 {
        for (name, content) in &files {
            let path = kek.root().join(format!("genome/run{round}/{name}"));
            assert!(fs::read(&path).unwrap() == *content, "{path:?}");
        }
    }
    let (_, told) = kek.json(&["volume", "check", "genome"]);
    let count = |what: &str| told["found"][what].as_u64();
    assert_eq!((count("new"), count("gone"), count("changed")), (Some(0), Some(0), Some(0)), "{told}");
    until("nothing is left over", || !kek.root().join("genome").join(INCOMING).exists());
}
