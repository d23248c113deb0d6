//! How volumes are kept: replicas by policy over three sites, verifying in the background, limits.

use crate::federation::{Federation, Site, account};
use crate::tree;
use renkei_core::error::Code;
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(30);

/// A volume of kek with some files in it, that titech may follow.
fn with_volume() -> Federation {
    let federation = Federation::two();
    let kek = &federation.kek;
    let folder = kek.root().join("genome");
    fs::create_dir_all(folder.join("raw")).unwrap();
    (0..40).for_each(|n| fs::write(folder.join(format!("raw/{n}")), format!("read {n}")).unwrap());
    fs::write(folder.join("x.bam"), tree::noise(1, 1 << 20)).unwrap();
    kek.ok(&["volume", "create", "genome", "--storage", "data", "--in-place", "genome"]);
    kek.ok(&["volume", "grant", "genome", "titech", "read"]);
    federation
}

fn subscribe(site: &Site, more: &[&str]) {
    let account = account();
    let with = ["volume", "subscribe", "genome", "--from", "kek", "--storage", "data", "--account", &account];
    site.ok(&[&with[..], more].concat());
}

/// Waits until the shown state of the volume at a site meets a condition.
fn await_shown(site: &Site, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let (_, shown) = site.json(&["volume", "show", "genome"]);
        if is(&shown) {
            return shown;
        }
        assert!(begun.elapsed() < WITHIN, "{}: {what}: {shown:#}", site.name);
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn short(shown: &Value) -> Option<u64> {
    shown["standing"]["kept"][0]["short"].as_u64()
}

/// The files that a site says it holds for the policy of the home, by their folders.
fn by_policy(shown: &Value) -> Vec<&str> {
    let folders = shown["standing"]["holds"]["by_policy"].as_array();
    folders.map(|all| all.iter().filter_map(Value::as_str).collect()).unwrap_or_default()
}

#[test]
fn replicas_follow_the_policy_and_are_moved_when_a_site_is_lost() {
    let mut federation = with_volume();
    let osaka = Site::start(&federation.scratch(), "osaka");
    let kek = &federation.kek;
    kek.take_card(&osaka);
    osaka.take_card(kek);
    kek.ok(&["volume", "grant", "genome", "osaka", "read"]);
    kek.ok(&["volume", "set", "genome", "replicas=2", "at=kek,titech", "repair_after=3s"]);
    subscribe(&osaka, &[]);
    subscribe(&federation.titech, &[]);
    let shown = await_shown(kek, "all replicas are there", |shown| {
        short(shown) == Some(0) && shown["standing"]["kept"][0]["sites"][0]["site"] == "titech"
    });
    assert_eq!(shown["standing"]["kept"][0]["files"], 41, "{shown:#}");
    await_shown(&osaka, "it is not needed", |shown| by_policy(shown).is_empty());
    assert!(federation.titech.root().join("genome/x.bam").exists());
    federation.titech.stop();
    let shown = await_shown(&federation.kek, "osaka has all", |shown| {
        let sites = shown["standing"]["kept"][0]["sites"].as_array().unwrap();
        let of = |name: &str| sites.iter().find(|site| site["site"] == name).cloned().unwrap_or_default();
        short(shown) == Some(0) && of("titech")["passed"] == "Lost" && of("osaka")["missing_files"] == 0
    });
    assert!(osaka.root().join("genome/raw/7").exists(), "{shown:#}");
    // Back again: newer files are pulled, then the substitute is released.
    fs::write(federation.kek.root().join("genome/late"), "late").unwrap();
    await_shown(&federation.kek, "the catalogue has it", |shown| shown["standing"]["kept"][0]["files"] == 42);
    federation.titech.restart();
    await_shown(&osaka, "it is let go", |shown| by_policy(shown).is_empty());
    assert_eq!(fs::read(federation.titech.root().join("genome/late")).unwrap(), b"late");
    let told = federation.kek.ok(&["where", "/genome"]);
    assert!(told.contains("all 42 files have 2 replicas"), "{told}");
}

#[test]
fn a_refusing_or_paused_site_gets_no_replicas() {
    let federation = with_volume();
    let Federation { kek, titech, .. } = &federation;
    subscribe(titech, &["--no-policy"]);
    kek.ok(&["volume", "set", "genome", "--folder", "/raw", "at=kek,titech"]);
    await_shown(kek, "it refuses", |shown| {
        short(shown) == Some(40) && shown["standing"]["kept"][0]["sites"][0]["passed"] == "Refuses"
    });
    titech.ok(&["volume", "pause", "genome"]);
    titech.ok(&["volume", "set", "genome", "policy=yes", "hold=/raw"]);
    await_shown(titech, "it is paused", |shown| shown["standing"]["holds"]["is_paused"] == true);
    assert!(!titech.root().join("genome/raw").exists());
    titech.ok(&["volume", "resume", "genome"]);
    await_shown(titech, "the policy is taken", |shown| by_policy(shown) == ["raw"]);
    await_shown(kek, "all are held", |shown| short(shown) == Some(0));
    assert!(titech.root().join("genome/raw/7").exists() && !titech.root().join("genome/x.bam").exists());
    let shown = titech.ok(&["volume", "show", "genome"]);
    assert!(shown.contains("holds      /raw by the home's policy"), "{shown}");
}

#[test]
fn scrub_finds_and_repairs_corrupt_replicas_in_the_background() {
    let federation = with_volume();
    let Federation { kek, titech, .. } = &federation;
    subscribe(titech, &["--hold"]);
    await_shown(titech, "all is held", |shown| {
        shown["standing"]["holds"]["is_running"] == false && titech.root().join("genome/x.bam").exists()
    });
    let is_read = |shown: &Value| {
        let verified = &shown["standing"]["verified"];
        verified["is_under_way"] == false && verified["ended_unix"].is_u64()
    };
    await_shown(titech, "all is read once", is_read);
    await_shown(kek, "all is read once", is_read);
    titech.ok(&["volume", "set", "genome", "verify_rate=0"]);
    titech.ok(&["verify", "titech:/genome"]);
    kek.ok(&["volume", "set", "genome", "verify_rate=0"]);
    kek.ok(&["verify", "kek:/genome"]);
    let wrong = |shown: &Value| shown["standing"]["verified"]["wrong_now"] == 1;
    let plain = |site: &Site| site.root().join("genome/raw/7");
    tree::rot(&plain(titech));
    titech.ok(&["volume", "set", "genome", "verify_rate=100MB/s"]);
    let shown = await_shown(titech, "it is found", wrong);
    assert_eq!(shown["standing"]["verified"]["examples"][0][0], "raw/7", "{shown:#}");
    await_shown(titech, "it is mended", |_| fs::read(plain(titech)).is_ok_and(|bytes| bytes == b"read 7"));
    // At the home the digest decides which bytes are correct.
    tree::rot(&plain(kek));
    kek.ok(&["volume", "set", "genome", "verify_rate=100MB/s"]);
    let shown = await_shown(kek, "it is found", wrong);
    assert_eq!(shown["standing"]["verified"]["examples"][0][1]["code"], Code::DigestMismatch.to_string());
    await_shown(kek, "it is mended", |_| fs::read(plain(kek)).is_ok_and(|bytes| bytes == b"read 7"));
}

#[test]
fn quotas_are_exact() {
    let federation = with_volume();
    let (kek, scratch) = (&federation.kek, federation.scratch());
    let used = |shown: &Value| {
        let all = &shown["used"][0];
        (all["files"].as_u64().unwrap(), all["bytes"].as_u64().unwrap())
    };
    let (_, shown) = kek.json(&["volume", "quota", "genome", "--bytes", "1100000", "--files", "50"]);
    let (files, bytes) = used(&shown);
    assert_eq!((files, shown["used"][0]["limit_bytes"].as_u64()), (42, Some(1_100_000)), "{shown:#}");
    let room = 1_100_000 - bytes;
    let put = |name: &str, size: u64| {
        let file = scratch.join(name);
        fs::write(&file, vec![b'x'; size as usize]).unwrap();
        kek.json(&["cp", file.to_str().unwrap(), &format!("kek:/genome/{name}")])
    };
    let refused = put("more", room + 1);
    assert_eq!(refused.1["error"]["code"], Code::QuotaExceeded.to_string(), "{refused:?}");
    assert!(refused.1["error"]["cause"].as_str().unwrap().contains("all together may have"), "{refused:?}");
    assert!(!kek.root().join("genome/more").exists());
    assert_eq!(put("fits", room).0, 0);
    let df = kek.json(&["df", "kek:/genome"]).1;
    let row = &df["storages"][0];
    assert_eq!(
        (row["total_bytes"].as_u64(), row["available_bytes"].as_u64()),
        (Some(1_100_000), Some(0)),
        "{df:#}"
    );
    // Shrinking is never refused, and removed files free space at once.
    assert_eq!(put("fits", room - 10).0, 0);
    kek.ok(&["rm", "kek:/genome/fits"]);
    assert_eq!(put("again", room).0, 0);
    assert_ne!(put("one", 1).0, 0);
    // Local changes are counted and not refused; seven more names are the last.
    fs::remove_file(kek.root().join("genome/again")).unwrap();
    fs::write(kek.root().join("genome/behind"), vec![0; room as usize + 7]).unwrap();
    assert!(kek.ok(&["volume", "check", "genome"]).contains("checked"));
    let (_, shown) = kek.json(&["volume", "quota", "genome"]);
    assert_eq!(used(&shown), (files + 1, 1_100_007), "{shown:#}");
    (0..7).for_each(|n| drop(kek.ok(&["mkdir", &format!("kek:/genome/dir{n}")])));
    let refused = kek.json(&["mkdir", "kek:/genome/dir7"]);
    let text = refused.1.to_string();
    assert!(text.contains(&Code::QuotaExceeded.to_string()) && text.contains("50 files"), "{text}");
    // One owner's own limit.
    kek.ok(&["volume", "quota", "genome", "--bytes", "none", "--files", "none"]);
    let (account, limit) = (account(), (1_100_007 + 5).to_string());
    kek.ok(&["volume", "quota", "genome", "--user", &format!("{account}@kek"), "--bytes", &limit]);
    assert_ne!(put("six", 6).0, 0);
    assert_eq!(put("five", 5).0, 0);
}
