//! Volumes over two sites: the view, the replicas and the reads of a follower.

use crate::federation::{Federation, Site, account};
use crate::tree;
use renkei_core::error::Code;
use std::fs;
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(20);

/// A volume of kek, that titech may follow, with some files in it.
fn with_volume() -> Federation {
    let federation = Federation::two();
    let kek = &federation.kek;
    let folder = kek.root().join("genome");
    fs::create_dir_all(folder.join("2026/raw")).unwrap();
    (0..300).for_each(|n| fs::write(folder.join(format!("2026/raw/{n}")), format!("read {n}")).unwrap());
    fs::write(folder.join("2026/x.bam"), tree::noise(1, 5 << 20)).unwrap();
    std::os::unix::fs::symlink("x.bam", folder.join("2026/newest")).unwrap();
    kek.ok(&["volume", "create", "genome", "--storage", "data", "--in-place", "genome"]);
    kek.ok(&["volume", "grant", "genome", "titech", "read"]);
    federation
}

/// Has a site follow kek's volume, with a storage for replicas.
pub fn subscribe(titech: &Site) {
    let account = account();
    titech.ok(&[
        "volume",
        "subscribe",
        "genome",
        "--from",
        "kek",
        "--storage",
        "data",
        "--account",
        &account,
    ]);
}

/// Waits until a command of a site prints something.
fn await_output(site: &Site, arguments: &[&str], what: impl Fn(&str) -> bool) -> String {
    let begun = Instant::now();
    loop {
        let output = site.renkei(arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if what(&text) {
            return text;
        }
        assert!(begun.elapsed() < WITHIN, "{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn held(site: &Site) -> (u64, u64) {
    let (_, told) = site.json(&["where", "titech:/genome"]);
    let rows = told["replicas"].as_array().unwrap();
    let here = rows.iter().find(|row| row["site"] == "titech").unwrap();
    (here["files"].as_u64().unwrap(), here["of_files"].as_u64().unwrap())
}

#[test]
fn a_follower_sees_the_tree_and_its_changes() {
    let federation = with_volume();
    let Federation { titech, kek, .. } = &federation;
    subscribe(titech);
    let listed = await_output(titech, &["ls", "titech:/genome/2026"], |text| text.contains("x.bam"));
    assert_eq!(listed, "newest\nraw\nx.bam\n");
    let names = await_output(titech, &["ls", "titech:/genome/2026/raw"], |text| text.lines().count() == 300);
    assert_eq!(names, kek.ok(&["ls", "kek:/genome/2026/raw"]));
    // Through the volume, and behind its back.
    fs::write(federation.scratch().join("new"), "new").unwrap();
    let new = federation.scratch().join("new");
    kek.ok(&["cp", new.to_str().unwrap(), "kek:/genome/2026/"]);
    fs::remove_file(kek.root().join("genome/2026/newest")).unwrap();
    let after = await_output(titech, &["ls", "titech:/genome/2026"], |text| !text.contains("newest"));
    assert!(after.contains("new\n"), "{after}");
    let refused = titech.json(&["mkdir", "titech:/genome/mine"]);
    assert_eq!(refused.1["error"]["code"], Code::ReadOnlyStorage.to_string(), "{refused:?}");
}

#[test]
fn content_is_read_from_the_home_or_from_valid_replicas() {
    let mut federation = with_volume();
    let copy = federation.scratch().join("copy");
    let same = |federation: &Federation, to: &str| {
        let out = copy.join(to);
        federation.titech.ok(&["cp", "-r", "titech:/genome/2026/", out.to_str().unwrap()]);
        tree::assert_same(&tree::read(&federation.kek.root().join("genome/2026")), &tree::read(&out));
    };
    fs::create_dir(&copy).unwrap();
    subscribe(&federation.titech);
    await_output(&federation.titech, &["ls", "titech:/genome/2026/raw"], |text| text.lines().count() == 300);
    same(&federation, "from-home");
    assert_eq!(held(&federation.titech), (0, 301));
    federation.titech.ok(&["replicate", "titech:/genome"]);
    assert_eq!(held(&federation.titech), (301, 301));
    assert!(federation.titech.ok(&["verify", "titech:/genome"]).contains("301 files"));
    // A corrupt replica is not served.
    let plain = federation.titech.root().join("genome/2026/x.bam");
    let mut bytes = fs::read(&plain).unwrap();
    bytes[1000] ^= 1;
    fs::write(&plain, bytes).unwrap();
    same(&federation, "spoiled");
    let told = federation.titech.json(&["verify", "titech:/genome", "--repair"]);
    assert_eq!(told.1["failures"][0]["code"], Code::ReplicaWrong.to_string(), "{told:?}");
    assert_eq!(held(&federation.titech), (301, 301));
    // At the home: other bytes in place, with the time set back, are found by the digest, and come from the replica.
    let told = federation.kek.ok(&["verify", "kek:/genome"]);
    assert!(told.contains("301 files"), "{told}");
    let plain = federation.kek.root().join("genome/2026/raw/7");
    tree::rot(&plain);
    let told = federation.kek.json(&["verify", "kek:/genome"]);
    assert_eq!(told.1["failures"][0]["path"], "2026/raw/7", "{told:?}");
    await_that(|| fs::read(&plain).is_ok_and(|bytes| bytes == b"read 7"));
    // Replicas can be read while the home is away, and the names of the rest are shown.
    fs::write(federation.kek.root().join("genome/2026/late"), "late").unwrap();
    await_output(&federation.titech, &["ls", "titech:/genome/2026"], |text| text.contains("late"));
    federation.kek.kill9();
    let out = copy.join("alone");
    federation.titech.ok(&["cp", "titech:/genome/2026/x.bam", out.to_str().unwrap()]);
    assert_eq!(fs::read(out).unwrap().len(), 5 << 20);
    assert!(federation.titech.ok(&["ls", "titech:/genome/2026"]).contains("late"));
    federation.kek.restart();
    same(&federation, "again");
    federation.titech.ok(&["evict", "titech:/genome/2026/raw"]);
    assert_eq!(held(&federation.titech), (1, 302));
    assert!(!federation.titech.root().join("genome/2026/raw/7").exists());
}

/// The files below the plain directory of a volume, with their contents.
fn plain(site: &Site) -> tree::Tree {
    tree::read(&site.root().join("genome"))
}

#[test]
fn pinned_replicas_are_pulled_and_follow_renames() {
    let federation = with_volume();
    let Federation { titech, kek, .. } = &federation;
    let account = account();
    let all = ["--storage", "data", "--hold", "--account", &account];
    titech.ok(&[&["volume", "subscribe", "genome", "--from", "kek"], &all[..]].concat());
    let (home, here) = (kek.root().join("genome"), titech.root().join("genome"));
    await_that(|| held(titech) == (301, 301));
    // New, rewritten, renamed, over another, with its folder, and removed.
    fs::create_dir(home.join("in")).unwrap();
    fs::write(home.join("in/new"), "new").unwrap();
    fs::write(home.join("2026/raw/1"), "written anew").unwrap();
    fs::rename(home.join("2026/raw/2"), home.join("2026/raw/renamed")).unwrap();
    fs::rename(home.join("2026/raw/3"), home.join("2026/raw/4")).unwrap();
    fs::remove_file(home.join("2026/raw/5")).unwrap();
    await_that(|| {
        held(titech) == (300, 300) && here.join("in/new").exists() && !here.join("2026/raw/5").exists()
    });
    fs::rename(home.join("2026"), home.join("2027")).unwrap();
    await_that(|| held(titech) == (300, 300) && here.join("2027/x.bam").exists());
    for name in ["2027/x.bam", "2027/raw/1", "2027/raw/renamed", "2027/raw/4", "in/new"] {
        assert_eq!(fs::read(here.join(name)).unwrap(), fs::read(home.join(name)).unwrap(), "{name}");
    }
    for gone in ["2026", "2027/raw/2", "2027/raw/3", "2027/raw/5"] {
        assert!(!here.join(gone).exists(), "{gone}");
    }
    fs::remove_dir_all(home.join("2027")).unwrap();
    await_that(|| held(titech) == (1, 1) && !here.join("2027").exists());
    assert_eq!(plain(titech).len(), plain(kek).len());
    titech.ok(&["volume", "unsubscribe", "genome", "--files"]);
    assert!(!here.exists() && home.join("in/new").exists());
}

fn await_that(is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < WITHIN, "it has not come to that");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_replica_survives_kills_at_random_moments() {
    let mut federation = with_volume();
    subscribe(&federation.titech);
    for round in 0..6 {
        let folder = federation.kek.root().join(format!("genome/round{round}"));
        fs::create_dir(&folder).unwrap();
        (0..200).for_each(|n| fs::write(folder.join(n.to_string()), "x").unwrap());
        std::thread::sleep(Duration::from_millis(37 * round));
        match round % 2 {
            0 => federation.titech.kill9(),
            _ => federation.kek.kill9(),
        }
        federation.titech.restart();
        federation.kek.restart();
    }
    let all = federation.kek.ok(&["find", "kek:/genome"]).replace("kek:", "");
    let same = |text: &str| text.replace("titech:", "") == all;
    await_output(&federation.titech, &["find", "titech:/genome"], same);
    assert_eq!(all.lines().count(), 1 + 2 + 302 + 6 * 201);
}

#[test]
fn corruption_found_by_verify_is_repaired_by_the_next_verify() {
    let federation = with_volume();
    let Federation { titech, .. } = &federation;
    subscribe(titech);
    titech.ok(&["replicate", "titech:/genome/2026"]);
    titech.ok(&["verify", "titech:/genome/2026"]);
    let raw = titech.root().join("genome/2026/raw");
    fs::remove_file(raw.join("7")).unwrap();
    tree::rot(&raw.join("8"));
    let all = held(titech);
    // Found, and reported with the remedy and the path.
    let verify = |more: &[&str]| titech.json(&[&["verify", "titech:/genome/2026/raw"], more].concat());
    let (status, told) = verify(&[]);
    let failures = told["failures"].as_array().unwrap();
    assert_eq!((status, failures.len()), (9, 2), "{told}");
    for failure in failures {
        assert_eq!(failure["code"], Code::ReplicaWrong.to_string(), "{told}");
        assert_eq!(failure["side"], "titech", "{told}");
        assert!(failure.to_string().contains("verify --repair"), "{told}");
    }
    assert_eq!(held(titech), (all.0 - 2, all.1));
    // Found again until it is repaired.
    assert_eq!(verify(&[]).1["failures"].as_array().unwrap().len(), 2);
    let (_, told) = verify(&["--repair"]);
    assert!(
        told["failures"].as_array().unwrap().iter().all(|one| one.to_string().contains("fetched again")),
        "{told}"
    );
    assert_eq!(held(titech), all);
    for number in ["7", "8"] {
        assert_eq!(fs::read_to_string(raw.join(number)).unwrap(), format!("read {number}"));
    }
    let (status, told) = verify(&[]);
    assert_eq!(status, 0, "{told}");
}

#[test]
fn corruption_of_a_pinned_replica_is_repaired_automatically() {
    let federation = with_volume();
    let Federation { titech, .. } = &federation;
    let account = account();
    let all = ["--from", "kek", "--storage", "data", "--hold", "--account", &account];
    titech.ok(&[&["volume", "subscribe", "genome"], &all[..]].concat());
    await_held(titech, (301, 301));
    let gone = titech.root().join("genome/2026/raw/7");
    fs::remove_file(&gone).unwrap();
    assert_ne!(titech.json(&["verify", "titech:/genome/2026/raw"]).0, 0);
    await_that(|| fs::read_to_string(&gone).is_ok_and(|text| text == "read 7"));
    await_held(titech, (301, 301));
}

#[test]
fn following_needs_a_grant() {
    let federation = with_volume();
    let Federation { titech, kek, .. } = &federation;
    kek.ok(&["volume", "revoke", "genome", "titech"]);
    let subscribe = ["volume", "subscribe", "genome", "--from", "kek"];
    let refused = titech.json(&subscribe);
    assert_eq!(refused.1["error"]["code"], Code::NotAllowed.to_string(), "{refused:?}");
    kek.ok(&["volume", "grant", "genome", "titech", "read"]);
    titech.ok(&subscribe);
    await_output(titech, &["ls", "titech:/genome"], |text| text.contains("2026"));
    let refused = titech.json(&["replicate", "titech:/genome"]);
    assert_eq!(refused.1["error"]["code"], Code::NotAllowed.to_string(), "{refused:?}");
    // Revoked: known names stay, no new ones come.
    kek.ok(&["volume", "revoke", "genome", "titech"]);
    let told = |text: &str| text.contains("RK-AUTH-14");
    await_output(titech, &["--json", "volume", "show", "genome"], told);
    let refused = titech.json(&["cp", "titech:/genome/2026/x.bam", "/dev/null"]);
    assert_ne!(refused.0, 0, "{refused:?}");
}

#[test]
fn each_site_reports_its_replicas() {
    let federation = with_volume();
    let Federation { titech, kek, .. } = &federation;
    let mut osaka = Site::start(&federation.scratch(), "osaka");
    kek.take_card(&osaka);
    osaka.take_card(kek);
    kek.ok(&["volume", "grant", "genome", "osaka", "read"]);
    subscribe(titech);
    let account = account();
    let with = ["--from", "kek", "--storage", "data", "--account", &account];
    osaka.ok(&[&["volume", "subscribe", "genome"], &with[..]].concat());
    for site in [titech, &osaka] {
        await_output(site, &["ls", "/genome/2026"], |text| text.contains("x.bam"));
    }
    osaka.ok(&["replicate", "/genome/2026/raw"]);
    let told = |site: &Site| {
        let (_, told) = site.json(&["where", "/genome/2026"]);
        let rows = told["replicas"].as_array().unwrap().iter();
        rows.map(|row| format!("{} {} {}", row["site"], row["role"], row["files"]).replace('"', ""))
            .collect::<Vec<_>>()
    };
    // A user of another site may read there, and not fill the disk.
    titech.take_card(&osaka);
    osaka.take_card(titech);
    osaka.ok(&["volume", "grant", "genome", "*@titech", "read"]);
    assert!(titech.ok(&["ls", "osaka:/genome"]).contains("2026"));
    let refused = titech.json(&["replicate", "osaka:/genome"]);
    assert_eq!(refused.1["error"]["code"], Code::NotAllowed.to_string(), "{refused:?}");
    assert_eq!(told(kek), ["kek home 301", "osaka replica 300", "titech replica 0"]);
    assert_eq!(told(titech), ["kek home 301", "titech replica 0", "osaka replica 300"]);
    osaka.stop();
    let (status, found) = titech.json(&["where", "/genome/2026"]);
    assert_eq!((status, found["failures"][0]["path"].as_str()), (8, Some("osaka")), "{found}");
}

fn await_held(site: &Site, files: (u64, u64)) {
    let begun = Instant::now();
    while held(site) != files {
        assert!(begun.elapsed() < WITHIN, "{:?} of {files:?}", held(site));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_late_follower_installs_a_snapshot_and_keeps_its_replicas() {
    let mut federation = with_volume();
    let account = account();
    let all = ["--storage", "data", "--hold", "--account", &account];
    federation.titech.ok(&[&["volume", "subscribe", "genome", "--from", "kek"][..], &all].concat());
    await_held(&federation.titech, (301, 301));
    let inode = |site: &Site, path: &str| {
        std::os::unix::fs::MetadataExt::ino(&fs::metadata(site.root().join("genome").join(path)).unwrap())
    };
    let (moved, stays) = (inode(&federation.titech, "2026/x.bam"), inode(&federation.titech, "2026/raw/8"));
    federation.titech.stop();
    let kek = &federation.kek;
    kek.ok(&["volume", "set", "genome", "log_records=2"]);
    kek.ok(&["mkdir", "kek:/genome/2027"]);
    kek.ok(&["mv", "kek:/genome/2026/x.bam", "kek:/genome/2027/y.bam"]);
    kek.ok(&["rm", "kek:/genome/2026/raw/7"]);
    fs::write(kek.root().join("genome/2026/raw/9"), "another 9").unwrap();
    kek.ok(&["volume", "check", "genome"]);
    let begun = Instant::now();
    while !kek.logged().contains("records forgotten") {
        assert!(begun.elapsed() < WITHIN, "the log is not cut");
        std::thread::sleep(Duration::from_millis(50));
    }
    federation.titech.restart();
    let titech = &federation.titech;
    await_held(titech, (300, 300));
    assert_eq!(titech.ok(&["ls", "titech:/genome/2027"]), "y.bam\n");
    let content = |site: &Site, path: &str| fs::read(site.root().join("genome").join(path)).ok();
    for path in ["2027/y.bam", "2026/x.bam", "2026/raw/7", "2026/raw/8", "2026/raw/9"] {
        assert!(content(titech, path) == content(kek, path), "{path}");
    }
    assert_eq!(inode(titech, "2027/y.bam"), moved, "it was renamed and not sent again");
    assert_eq!(inode(titech, "2026/raw/8"), stays);
    assert!(titech.ok(&["verify", "titech:/genome"]).contains("300 files"));
    // It goes on by the log.
    kek.ok(&["mkdir", "kek:/genome/2028"]);
    await_output(titech, &["ls", "titech:/genome"], |text| text.contains("2028"));
}

#[test]
fn a_grant_on_a_folder_at_a_follower_shows_only_that_folder() {
    let federation = with_volume();
    let Federation { titech, kek, .. } = &federation;
    std::os::unix::fs::symlink("..", kek.root().join("genome/2026/raw/up")).unwrap();
    let site_alone = kek.json(&["volume", "grant", "genome", "titech", "read", "--on", "2026"]).1;
    assert_eq!(site_alone["error"]["code"], Code::UsageInvalid.to_string(), "{site_alone}");
    subscribe(titech);
    await_output(titech, &["ls", "titech:/genome/2026/raw"], |text| text.lines().count() == 301);
    let me = format!("{}@titech", account());
    titech.ok(&["volume", "revoke", "genome", "*@titech"]);
    titech.ok(&["volume", "grant", "genome", &me, "read", "--on", "2026/raw"]);
    let out = federation.scratch().join("out");
    let to = out.to_str().unwrap();
    titech.ok(&["cp", "-r", "titech:/genome/2026/raw", to]);
    assert_eq!(titech.ok(&["cat", "titech:/genome/2026/raw/7"]), "read 7");
    assert_eq!(titech.ok(&["find", "titech:/genome/2026/raw", "--name", "7"]).lines().count(), 1);
    let outside = "titech:/genome/2026/x.bam";
    for arguments in [
        &["ls", "titech:/genome"][..],
        &["ls", "titech:/genome/2026"],
        &["stat", outside],
        &["cat", outside],
        &["cp", outside, to],
        &["checksum", outside],
        &["find", "titech:/genome"],
        &["du", "titech:/genome/2026"],
        &["where", "titech:/genome"],
        &["replicate", outside],
        &["evict", outside],
        &["verify", "titech:/genome"],
        &["ls", "titech:/genome/2026/raw/up/"],
        &["cat", "titech:/genome/2026/raw/up/x.bam"],
        &["rm", "titech:/genome/2026/raw/7"],
    ] {
        let output = titech.renkei(arguments);
        assert!(!output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    }
}
