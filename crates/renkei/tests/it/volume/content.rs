//! Content of volumes comes from any site that has it, and a home that lost bytes gets them back.

use crate::federation::{Federation, Site, account};
use crate::tree;
use renkei_core::error::Code;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

const WITHIN: Duration = Duration::from_secs(30);
/// The folder in which the home receives files.
const INCOMING: &str = ".rk~0000617761790000-0000000000000000";

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WITHIN, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A volume of kek with some files, that titech may write and osaka read; all three trust each other.
fn with_volume() -> (Federation, Site) {
    let federation = Federation::two();
    let osaka = Site::start(&federation.scratch(), "osaka");
    let Federation { kek, titech, .. } = &federation;
    for site in [kek, titech] {
        site.take_card(&osaka);
        osaka.take_card(site);
    }
    let folder = kek.root().join("genome");
    fs::create_dir_all(folder.join("raw")).unwrap();
    (0..9).for_each(|n| fs::write(folder.join(format!("raw/{n}")), format!("read {n}")).unwrap());
    fs::write(folder.join("x.bam"), tree::noise(1, 3 << 20)).unwrap();
    kek.ok(&["volume", "create", "genome", "--storage", "data", "--in-place", "genome"]);
    kek.ok(&["volume", "set", "genome", "verify_rate=0"]);
    kek.ok(&["volume", "grant", "genome", "titech", "write"]);
    kek.ok(&["volume", "grant", "genome", "osaka", "read"]);
    let account = account();
    let with = ["volume", "subscribe", "genome", "--from", "kek", "--storage", "data", "--account", &account];
    titech.ok(&with);
    osaka.ok(&with);
    for (site, other) in [(titech, "osaka"), (&osaka, "titech")] {
        until("all have the names", || site.renkei(&["stat", &at(site, "x.bam")]).status.success());
        until("they know of each other", || {
            let told = site.json(&["volume", "show", "genome"]).1;
            let fellows = told["standing"]["followed"]["fellows"].as_array().cloned().unwrap_or_default();
            fellows.contains(&other.into())
        });
    }
    titech.ok(&["volume", "grant", "genome", "*@titech", "write"]);
    (federation, osaka)
}

fn at(site: &Site, path: &str) -> String {
    format!("{}:/genome/{path}", site.name)
}

fn plain(site: &Site, path: &str) -> Option<Vec<u8>> {
    fs::read(site.root().join("genome").join(path)).ok()
}

/// A file of the client's, with the time that all of them have.
fn dated(federation: &Federation, content: &[u8]) -> String {
    let path = federation.scratch().join("dated");
    fs::write(&path, content).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    path.to_str().unwrap().into()
}

#[test]
fn a_new_version_of_the_same_size_and_time_is_pulled() {
    let (federation, osaka) = with_volume();
    let Federation { kek, titech, .. } = &federation;
    titech.ok(&["volume", "set", "genome", "hold=/"]);
    for byte in [b'A', b'B', b'C'] {
        let content = vec![byte; 4000];
        kek.ok(&["cp", &dated(&federation, &content), &at(kek, "dated")]);
        until("it is held", || plain(titech, "dated").as_ref() == Some(&content));
        // A follower without replicas until a read.
        until("it can be had", || osaka.renkei(&["replicate", "/genome/dated"]).status.success());
        until("it is the requested content", || {
            osaka.ok(&["replicate", "/genome/dated"]);
            plain(&osaka, "dated").as_ref() == Some(&content)
        });
        for site in [titech, &osaka] {
            assert!(site.renkei(&["cat", &at(site, "dated")]).stdout == content, "at {}", site.name);
        }
    }
    titech.ok(&["verify", "/genome/dated"]);
}

/// Corrupts a byte of a plain file; the PoP is stopped in the meantime, so that it only sees the attributes of
/// before.
fn rot(site: &Site, path: &str) {
    let pid = Pid::from_raw(site.pid() as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    tree::rot(&site.root().join("genome").join(path));
    kill_process(pid, Signal::CONT).unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn content_is_readable_while_one_site_has_it() {
    let (mut federation, osaka) = with_volume();
    let out = federation.scratch().join("out");
    let (kek, titech) = (&federation.kek, &federation.titech);
    titech.ok(&["replicate", "titech:/genome"]);
    kek.ok(&["mv", "kek:/genome/raw/1", "kek:/genome/raw/moved"]);
    until("replicas follow", || plain(titech, "raw/moved").is_some());
    until("osaka has the names", || osaka.renkei(&["stat", "osaka:/genome/raw/moved"]).status.success());
    titech.ok(&["evict", "titech:/genome/raw/3"]);
    federation.kek.stop();
    let (kek, titech) = (&federation.kek, &federation.titech);
    assert_eq!(titech.ok(&["cat", "titech:/genome/raw/moved"]), "read 1", "a renamed replica is one");
    osaka.ok(&["cp", "osaka:/genome/x.bam", out.to_str().unwrap()]);
    assert!(fs::read(&out).unwrap() == fs::read(kek.root().join("genome/x.bam")).unwrap());
    osaka.ok(&["replicate", "osaka:/genome/raw/7"]);
    assert_eq!(plain(&osaka, "raw/7").unwrap(), b"read 7");
    let (_, told) = osaka.json(&["cp", "osaka:/genome/raw/3", out.with_file_name("no").to_str().unwrap()]);
    let told = told.to_string();
    assert!(told.contains("kek") && told.contains("titech"), "{told}");
    federation.kek.restart();
    // Files that titech wrote and osaka pulled reach the home from there.
    let (kek, titech) = (&federation.kek, &federation.titech);
    let blocker = kek.root().join("genome").join(INCOMING);
    fs::write(&blocker, "in the way").unwrap();
    let new = federation.scratch().join("new");
    fs::write(&new, "new").unwrap();
    until("titech may write", || {
        titech.renkei(&["cp", new.to_str().unwrap(), "titech:/genome/new"]).status.success()
    });
    until("osaka gets it", || osaka.renkei(&["replicate", "osaka:/genome/new"]).status.success());
    let was_here = plain(kek, "new").is_some();
    federation.titech.stop();
    let _ = fs::remove_file(&blocker);
    until("the home gets it", || plain(&federation.kek, "new").is_some_and(|bytes| bytes == b"new"));
    assert!(!was_here, "it came too early to tell");
}

#[test]
fn a_home_repairs_lost_bytes_from_a_replica() {
    let (federation, osaka) = with_volume();
    let Federation { kek, titech, .. } = &federation;
    kek.ok(&["verify", "kek:/genome"]);
    osaka.ok(&["replicate", "osaka:/genome/raw/7"]);
    titech.ok(&["replicate", "titech:/genome/raw/5"]);
    let modified = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let (wrong, lost) = (kek.root().join("genome/raw/7"), kek.root().join("genome/raw/3"));
    let before = (modified(&wrong), modified(&lost));
    rot(kek, "raw/7");
    rot(kek, "raw/3");
    let (status, told) = kek.json(&["verify", "kek:/genome", "--repair"]);
    let failures = told["failures"].as_array().unwrap();
    let cause = |path: &str| {
        let failure = failures.iter().find(|failure| failure["path"] == path);
        failure.unwrap_or_else(|| panic!("{told:#}"))["cause"].as_str().unwrap().to_owned()
    };
    assert!(status != 0 && failures.len() == 2, "{told:#}");
    assert!(cause("raw/7").contains("fetched again"), "{told:#}");
    assert!(
        cause("raw/3").contains("osaka, titech did not give it")
            || cause("raw/3").contains("titech, osaka did not"),
        "{told:#}"
    );
    let told_lost = failures.iter().find(|failure| failure["path"] == "raw/3").unwrap();
    assert_eq!(told_lost["code"], Code::ContentLost.to_string(), "{told:#}");
    let remedy = told_lost["remedy"].as_str().unwrap_or_default();
    assert!(remedy.contains("from a backup") && !remedy.contains("--repair"), "{told:#}");
    assert_eq!(plain(kek, "raw/7").unwrap(), b"read 7");
    assert_eq!((modified(&wrong), modified(&lost)), before);
    assert_eq!(kek.ok(&["cat", "kek:/genome/raw/7"]), "read 7");
    // Content that no site has is not served, and is left as it is.
    for site in [kek, titech] {
        let refused = site.renkei(&["cat", &at(site, "raw/3")]);
        assert!(!refused.status.success(), "{}", text(&refused.stdout));
        assert!(
            text(&refused.stderr).contains(&Code::DigestMismatch.to_string()),
            "{}",
            text(&refused.stderr)
        );
    }
    assert_eq!(plain(kek, "raw/3").unwrap()[1..], b"read 3"[1..]);
    let (_, found) = kek.json(&["volume", "check", "genome"]);
    assert_eq!(found["found"]["changed"], 0, "{found}");
    // A local file is corrupt and reached the home before: it is repaired from there.
    let new = federation.scratch().join("new");
    fs::write(&new, "written").unwrap();
    until("titech may write", || {
        titech.renkei(&["cp", new.to_str().unwrap(), "titech:/genome/own"]).status.success()
    });
    until("the home gets it", || plain(kek, "own").is_some());
    titech.ok(&["verify", "titech:/genome/own"]);
    rot(titech, "own");
    until("it comes back", || {
        titech.renkei(&["verify", "titech:/genome/own", "--repair"]);
        plain(titech, "own").is_some_and(|bytes| bytes == b"written")
    });
    // Once correct by any means it is served again. A write by its owner is a new version.
    rot(kek, "raw/3");
    assert!(kek.ok(&["verify", "kek:/genome"]).contains("11 files"));
    assert_eq!(kek.ok(&["cat", "kek:/genome/raw/3"]), "read 3");
    rot(kek, "raw/3");
    assert_ne!(kek.json(&["verify", "kek:/genome"]).0, 0);
    fs::write(&lost, "written anew").unwrap();
    until("it is the version", || text(&kek.renkei(&["cat", "kek:/genome/raw/3"]).stdout) == "written anew");
    assert!(kek.ok(&["verify", "kek:/genome"]).contains("11 files"));
    // A disk with undetected corruption: the received bytes have another digest than the home recorded, and are pulled from
    // another site.
    rot(kek, "raw/5");
    osaka.ok(&["replicate", "osaka:/genome/raw/5"]);
    assert_eq!(plain(&osaka, "raw/5").unwrap(), b"read 5");
}

#[test]
fn a_name_without_content_at_any_site_is_reported_and_removable() {
    let (federation, _osaka) = with_volume();
    let Federation { kek, titech, .. } = &federation;
    // The home hears of the name and fetches nothing.
    kek.ok(&["volume", "pause", "genome"]);
    let new = federation.scratch().join("new");
    fs::write(&new, "new").unwrap();
    until("titech may write", || {
        titech.renkei(&["cp", new.to_str().unwrap(), "titech:/genome/new"]).status.success()
    });
    until("the home has the name", || kek.ok(&["ls", "kek:/genome"]).contains("new"));
    assert!(kek.renkei(&["verify", "kek:/genome"]).status.success(), "titech has it");
    fs::remove_file(titech.root().join("genome/new")).unwrap();
    let (status, told) = titech.json(&["verify", "titech:/genome"]);
    assert!(status != 0 && told.to_string().contains("no longer exists"), "{told:#}");
    kek.ok(&["volume", "resume", "genome"]);
    for more in [&[][..], &["--repair"]] {
        let (status, told) = kek.json(&[&["verify", "kek:/genome"], more].concat());
        let failure = &told["failures"][0];
        assert_eq!((status, failure["path"].as_str()), (9, Some("new")), "{told:#}");
        assert_eq!(failure["code"], Code::ContentLost.to_string(), "{told:#}");
        assert!(failure["cause"].as_str().unwrap().contains("titech"), "{told:#}");
        assert!(failure["remedy"].as_str().unwrap().contains(" rm PLACE`"), "{told:#}");
    }
    kek.ok(&["rm", "kek:/genome/new"]);
    assert!(kek.renkei(&["verify", "kek:/genome"]).status.success());
    until("titech has heard of it", || !titech.ok(&["ls", "titech:/genome"]).contains("new"));
}
