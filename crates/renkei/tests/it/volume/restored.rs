//! A home restored from a backup, as a follower sees it: files that only the follower has stay and reach the home.

use crate::console;
use crate::federation::{Federation, Site, account};
use renkei_core::error::Code;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

const WITHIN: Duration = Duration::from_secs(45);

fn await_that(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < WITHIN, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn followed(site: &Site) -> Value {
    site.json(&["volume", "show", "genome"]).1["standing"]["followed"].clone()
}

/// kek's volume `genome` with some files, which titech follows with a right.
fn with_follower(right: &str) -> Federation {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    kek.ok(&["volume", "create", "genome", "--storage", "data"]);
    let top = kek.root().join("genome");
    fs::create_dir(top.join("dir")).unwrap();
    for (name, content) in [("same", "as it was"), ("both", "of the home"), ("dir/gone", "to be removed")] {
        fs::write(top.join(name), content).unwrap();
    }
    kek.ok(&["volume", "check", "genome"]);
    follow(titech, kek, right);
    federation
}

fn follow(site: &Site, home: &Site, right: &str) {
    let (account, name) = (account(), site.name.as_str());
    home.ok(&["volume", "grant", "genome", name, right]);
    let with = ["--from", &home.name, "--storage", "data", "--account", &account];
    site.ok(&[&["volume", "subscribe", "genome"], &with[..]].concat());
    if right == "write" {
        site.ok(&["volume", "grant", "genome", &format!("*@{name}"), "write"]);
        await_that("it may write", || followed(site)["writes"] == true);
    }
    await_that("the tree is here", || site.renkei(&["ls", "/genome/dir"]).status.success());
}

fn put(federation: &Federation, path: &str, content: &str) {
    let source = federation.scratch().join("source");
    fs::write(&source, content).unwrap();
    federation.titech.ok(&["cp", source.to_str().unwrap(), path]);
}

/// The contents of all files of the volume, as a site serves them.
fn contents(site: &Site, scratch: &Path) -> BTreeMap<String, String> {
    let to = scratch.join(format!("contents-{}", site.name));
    let _ = fs::remove_dir_all(&to);
    let copied = site.renkei(&["cp", "-r", "/genome/", to.to_str().unwrap()]);
    let (mut found, mut dirs) = (BTreeMap::new(), vec![to.clone()]);
    while let Some(dir) = dirs.pop() {
        for item in fs::read_dir(dir).into_iter().flatten() {
            let path = item.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                let name = path.strip_prefix(&to).unwrap().to_str().unwrap().to_owned();
                found.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    assert!(copied.status.success() || copied.status.code() == Some(23), "{copied:?}");
    found
}

/// Waits until nothing waits at titech and both sites give out the same, and gives that.
fn await_one(federation: &Federation) -> BTreeMap<String, String> {
    let Federation { titech, kek, .. } = federation;
    let begun = Instant::now();
    loop {
        let here = contents(titech, &federation.scratch());
        let there = contents(kek, &federation.scratch());
        let standing = followed(titech);
        if standing["pending"] == 0 && !standing["restored"].is_null() && here == there {
            return here;
        }
        assert!(begun.elapsed() < WITHIN, "{standing}\nhere {here:?}\nthere {there:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A copy of a site's directory and data, made while its PoP is stopped.
struct Saved {
    parts: Vec<(PathBuf, PathBuf)>,
}

impl Saved {
    fn of(site: &mut Site, scratch: &Path) -> Saved {
        site.stop();
        let part = |from: &Path, name: &str| {
            (from.to_path_buf(), scratch.join(format!("saved-{}-{name}", site.name)))
        };
        let parts = vec![part(site.dir(), "dir"), part(&site.root().join("genome"), "data")];
        for (from, to) in &parts {
            copy(from, to);
        }
        site.restart();
        Saved { parts }
    }

    /// Puts it back; the directory of the volume stays the one it is.
    fn put_back(&self) {
        for (to, from) in &self.parts {
            for item in fs::read_dir(to).unwrap() {
                let path = item.unwrap().path();
                if path.is_dir() {
                    fs::remove_dir_all(&path).unwrap()
                } else {
                    fs::remove_file(&path).unwrap()
                }
            }
            copy(from, to);
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    let done = Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status().unwrap();
    assert!(done.success());
}

fn remove_trees(site: &Site) {
    for item in fs::read_dir(site.dir().join("state/volumes")).unwrap() {
        fs::remove_file(item.unwrap().path()).unwrap();
    }
}

#[test]
fn files_only_the_follower_has_are_pushed_to_a_home_with_a_lost_catalogue() {
    let mut federation = with_follower("write");
    federation.titech.ok(&["replicate", "/genome/same"]);
    put(&federation, "/genome/dir/written", "by titech, and known to the home");
    await_that("the home has it", || federation.kek.root().join("genome/dir/written").exists());
    federation.kek.stop();
    // Written while the home is away.
    put(&federation, "/genome/waits", "not known to the home");
    put(&federation, "/genome/both", "of titech");
    federation.titech.ok(&["rm", "/genome/dir/gone"]);
    federation.titech.ok(&["mkdir", "/genome/new"]);
    // The home is restored: without its catalogue, and without its newest files.
    remove_trees(&federation.kek);
    fs::remove_file(federation.kek.root().join("genome/dir/written")).unwrap();
    federation.kek.restart();
    let all = await_one(&federation);
    let holds = |name: &str| all.get(name).map(String::as_str);
    assert_eq!(holds("same"), Some("as it was"));
    assert_eq!(holds("waits"), Some("not known to the home"));
    assert_eq!(holds("dir/written"), Some("by titech, and known to the home"));
    assert_eq!(holds("dir/gone"), None, "{all:?}");
    let both: Vec<_> =
        all.iter().filter(|(name, _)| name.starts_with("both")).map(|(_, text)| text.as_str()).collect();
    assert_eq!(both, ["of the home", "of titech"], "{all:?}");
    assert!(federation.kek.ok(&["ls", "/genome"]).contains("new"));
    let restored = &followed(&federation.titech)["restored"];
    let count = |kind: &str| restored[kind]["count"].as_u64().unwrap();
    assert_eq!((count("kept"), count("beside"), count("removed"), count("lost")), (3, 1, 1, 0), "{restored}");
    let shown = federation.titech.ok(&["volume", "show", "genome"]);
    assert!(shown.contains("restored") && shown.contains("dir/written"), "{shown}");
    let cookie = console::log_in(&federation.titech, &federation.titech.ok(&["console"]));
    let page = console::get(&federation.titech, "/console/volumes/genome", &cookie).body;
    let (_, told) = page.split_once("id=\"reconciled\"").unwrap();
    assert!(told.contains("3 only here, sent to the home") && told.contains("dir/written"), "{told}");
    for site in [&federation.titech, &federation.kek] {
        assert!(site.logged().contains(&Code::HistoryDiffers.to_string()), "{}", site.name);
    }
    // Both continue: later writes are replicated as ever.
    put(&federation, "/genome/after", "the restore");
    await_that("it comes", || federation.kek.root().join("genome/after").exists());
    let standing = federation.kek.json(&["volume", "show", "genome"]).1["standing"].clone();
    assert!(standing["trouble"].is_null(), "{standing}");
}

#[test]
fn a_write_at_a_silently_restored_home_is_not_replaced() {
    let mut federation = with_follower("write");
    let scratch = federation.scratch();
    let saved = Saved::of(&mut federation.kek, &scratch);
    put(&federation, "/genome/both", "of titech, newer");
    put(&federation, "/genome/dir/late", "after the backup");
    let has = |name: &str, text: &str| {
        fs::read_to_string(federation.kek.root().join("genome").join(name)).is_ok_and(|read| read == text)
    };
    await_that("the home has both", || {
        has("both", "of titech, newer") && has("dir/late", "after the backup")
    });
    await_that("and titech heard of it", || followed(&federation.titech)["pending"] == 0);
    federation.kek.stop();
    saved.put_back();
    // A user writes there before any site connects, with a time older than that of titech's.
    let both = federation.kek.root().join("genome/both");
    fs::write(&both, "written after the restore").unwrap();
    let past = SystemTime::now() - Duration::from_secs(3600);
    File::options().write(true).open(&both).unwrap().set_modified(past).unwrap();
    federation.kek.restart();
    let all = await_one(&federation);
    let mut texts: Vec<_> =
        all.iter().filter(|(name, _)| name.starts_with("both")).map(|(_, text)| text.as_str()).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["of titech, newer", "written after the restore"], "{all:?}");
    assert_eq!(all["both"], "written after the restore");
    assert_eq!(all["dir/late"], "after the backup");
}

#[test]
fn a_different_log_is_detected_even_if_it_is_longer() {
    let mut federation = with_follower("write");
    let scratch = federation.scratch();
    let saved = Saved::of(&mut federation.kek, &scratch);
    put(&federation, "/genome/dir/late", "after the backup");
    await_that("the home has it", || federation.kek.root().join("genome/dir/late").exists());
    await_that("and titech heard of it", || followed(&federation.titech)["pending"] == 0);
    federation.kek.stop();
    federation.titech.stop();
    saved.put_back();
    federation.kek.restart();
    let many = federation.kek.root().join("genome/many");
    fs::create_dir(&many).unwrap();
    (0..50).for_each(|number| fs::write(many.join(number.to_string()), "x").unwrap());
    federation.kek.ok(&["volume", "check", "genome"]);
    federation.titech.restart();
    let all = await_one(&federation);
    assert_eq!(all["dir/late"], "after the backup");
    assert_eq!(all.keys().filter(|name| name.starts_with("many/")).count(), 50);
}

/// Restores kek's volume to the saved state, as `renkei restore` does.
fn restore(federation: &mut Federation, saved: &Saved) {
    federation.kek.stop();
    saved.put_back();
    fs::write(federation.kek.dir().join("state/restored"), "").unwrap();
    federation.kek.restart();
}

/// Files written at titech enter the home's catalogue; their content stays at titech.
fn with_content_at_the_follower() -> Federation {
    let federation = with_follower("write");
    federation.kek.ok(&["volume", "pause", "genome"]);
    federation
}

fn await_handed_in(federation: &Federation) {
    await_that("titech has handed in", || followed(&federation.titech)["pending"] == 0);
}

#[test]
fn content_only_the_follower_has_is_readable_after_a_restore_of_the_home() {
    let mut federation = with_content_at_the_follower();
    let scratch = federation.scratch();
    put(&federation, "/genome/held", "by titech, before the backup");
    await_handed_in(&federation);
    let saved = Saved::of(&mut federation.kek, &scratch);
    put(&federation, "/genome/late", "after the backup");
    await_handed_in(&federation);
    restore(&mut federation, &saved);
    let all = await_one(&federation);
    let holds = |name: &str| all.get(name).map(String::as_str);
    assert_eq!(holds("late"), Some("after the backup"), "{all:?}");
    assert_eq!(holds("held"), Some("by titech, before the backup"), "{all:?}");
    let evicted = federation.titech.renkei(&["evict", "/genome/held"]);
    assert!(!evicted.status.success(), "it is the only replica: {evicted:?}");
}

#[test]
fn a_rename_over_a_file_after_the_backup_leaves_no_name_without_content() {
    let mut federation = with_content_at_the_follower();
    let scratch = federation.scratch();
    let files = ["replaced", "other", "one", "two"];
    for name in files {
        put(&federation, &format!("/genome/{name}"), &format!("{name} before the backup"));
    }
    await_handed_in(&federation);
    let saved = Saved::of(&mut federation.kek, &scratch);
    let rename = |from: &str, to: &str| {
        federation.titech.ok(&["mv", &format!("/genome/{from}"), &format!("/genome/{to}")]);
    };
    put(&federation, "/genome/temporary", "replaced after the backup");
    rename("temporary", "replaced");
    rename("other", "moved");
    put(&federation, "/genome/other", "made after the backup");
    for (from, to) in [("one", "three"), ("two", "one"), ("three", "two")] {
        rename(from, to);
    }
    await_handed_in(&federation);
    restore(&mut federation, &saved);
    let all = await_one(&federation);
    let holds = |name: &str| all.get(name).map(String::as_str);
    assert_eq!(holds("replaced"), Some("replaced after the backup"), "{all:?}");
    assert_eq!(holds("moved"), Some("other before the backup"), "{all:?}");
    assert_eq!(holds("other"), Some("made after the backup"), "{all:?}");
    assert_eq!(
        (holds("one"), holds("two")),
        (Some("two before the backup"), Some("one before the backup")),
        "{all:?}"
    );
    assert!(!all.keys().any(|name| name.contains("conflict")), "{all:?}");
    let restored = &followed(&federation.titech)["restored"];
    assert_eq!((&restored["renewed"]["count"], &restored["beside"]["count"]), (&4.into(), &0.into()));
}

#[test]
fn a_backup_can_be_restored_twice() {
    let mut federation = with_content_at_the_follower();
    let scratch = federation.scratch();
    put(&federation, "/genome/replaced", "before the backup");
    put(&federation, "/genome/renewed", "before the backup");
    await_handed_in(&federation);
    let saved = Saved::of(&mut federation.kek, &scratch);
    put(&federation, "/genome/late", "after the backup");
    await_handed_in(&federation);
    restore(&mut federation, &saved);
    await_one(&federation);
    put(&federation, "/genome/temporary", "after the first restore");
    federation.titech.ok(&["mv", "/genome/temporary", "/genome/replaced"]);
    put(&federation, "/genome/renewed", "after the first restore");
    await_handed_in(&federation);
    restore(&mut federation, &saved);
    let all = await_one(&federation);
    let holds = |name: &str| all.get(name).map(String::as_str);
    assert_eq!(holds("late"), Some("after the backup"), "{all:?}");
    assert_eq!(holds("replaced"), Some("after the first restore"), "{all:?}");
    assert_eq!(holds("renewed"), Some("after the first restore"), "{all:?}");
    assert!(!all.keys().any(|name| name.contains("conflict")), "{all:?}");
}

#[test]
fn files_of_a_site_without_write_access_stay_in_its_storage() {
    let mut federation = with_follower("read");
    let scratch = federation.scratch();
    let saved = Saved::of(&mut federation.kek, &scratch);
    fs::write(federation.kek.root().join("genome/dir/late"), "after the backup").unwrap();
    await_that("titech sees it", || federation.titech.ok(&["ls", "/genome/dir"]).contains("late"));
    federation.titech.ok(&["replicate", "/genome/dir/late"]);
    federation.kek.stop();
    saved.put_back();
    federation.kek.restart();
    let all = await_one(&federation);
    assert!(!all.contains_key("dir/late"), "{all:?}");
    let restored = &followed(&federation.titech)["restored"];
    assert_eq!(restored["aside"]["count"], 1, "{restored}");
    let aside = restored["aside"]["paths"][0].as_str().unwrap();
    let kept = federation.titech.root().join("genome").join(aside);
    assert_eq!(fs::read_to_string(&kept).unwrap(), "after the backup", "{aside}");
}
