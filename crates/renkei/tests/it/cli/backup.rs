//! `renkei backup` and `renkei restore`: the state of a PoP is back after the loss of its machine.

use crate::catalogue::postgres::Postgres;
use crate::federation::{Federation, Site, account};
use renkei_core::error::Code;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(45);

fn await_that(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < WITHIN, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn code(told: &(i32, Value)) -> &str {
    told.1["error"]["code"].as_str().unwrap_or_default()
}

/// Saves a PoP while it runs.
fn backup(site: &Site, scratch: &Path, name: &str) -> PathBuf {
    let folder = scratch.join(name);
    site.ok(&["backup", folder.to_str().unwrap()]);
    folder
}

/// The machine of a site is lost, and its PoP is put back on a new one and started.
fn lose_and_restore(site: &mut Site, folder: &Path) {
    site.kill9();
    fs::remove_dir_all(site.dir()).unwrap();
    site.ok(&["restore", folder.to_str().unwrap()]);
    site.restart();
}

fn followed(site: &Site) -> Value {
    site.json(&["volume", "show", "genome"]).1["standing"]["followed"].clone()
}

/// kek's volume `genome`, which titech follows and may write.
fn with_volume() -> Federation {
    let federation = Federation::two();
    fill(&federation);
    federation
}

fn fill(federation: &Federation) {
    let Federation { titech, kek, .. } = federation;
    kek.ok(&["volume", "create", "genome", "--storage", "data"]);
    fs::write(kek.root().join("genome/both"), "before the backup").unwrap();
    kek.ok(&["volume", "check", "genome"]);
    kek.ok(&["volume", "grant", "genome", "titech", "write"]);
    let account = account();
    let with = ["--from", "kek", "--storage", "data", "--account", &account];
    titech.ok(&[&["volume", "subscribe", "genome"], &with[..]].concat());
    titech.ok(&["volume", "grant", "genome", "*@titech", "write"]);
    await_that("titech may write", || titech.renkei(&["mkdir", "/genome/dir"]).status.success());
    await_that("nothing waits", || followed(titech)["pending"] == 0);
}

fn put(federation: &Federation, path: &str, content: &str) {
    let source = federation.scratch().join("source");
    fs::write(&source, content).unwrap();
    federation.titech.ok(&["cp", source.to_str().unwrap(), path]);
}

fn names(site: &Site) -> Vec<String> {
    let mut names: Vec<String> = site.ok(&["find", "/genome"]).lines().map(str::to_owned).collect();
    names.sort();
    names
}

/// Puts the home's data back as they were at the backup, and waits until both sites are one.
fn restore_home(federation: &mut Federation, restore: impl FnOnce(&mut Site)) {
    put(federation, "/genome/both", "after the backup");
    put(federation, "/genome/dir/late", "only titech has it after the restore");
    let top = federation.kek.root().join("genome");
    let has = |name: &str, text: &str| fs::read_to_string(top.join(name)).is_ok_and(|read| read == text);
    await_that("the home has all", || {
        has("dir/late", "only titech has it after the restore") && has("both", "after the backup")
    });
    federation.kek.stop();
    fs::remove_file(top.join("dir/late")).unwrap();
    fs::rename(federation.kek.root().join("saved-both"), top.join("both")).unwrap();
    restore(&mut federation.kek);
    let Federation { titech, kek, .. } = &*federation;
    await_that("titech noticed", || !followed(titech)["restored"].is_null());
    await_that("nothing waits", || followed(titech)["pending"] == 0);
    await_that("the home has all again", || {
        has("dir/late", "only titech has it after the restore") && has("both", "after the backup")
    });
    let expected = ["/genome", "/genome/both", "/genome/dir", "/genome/dir/late"];
    assert_eq!(
        (names(kek), names(titech)),
        (expected.map(String::from).to_vec(), expected.map(String::from).to_vec())
    );
    let restored = &followed(titech)["restored"];
    assert_eq!(
        (&restored["renewed"]["count"], &restored["beside"]["count"]),
        (&1.into(), &0.into()),
        "{restored}"
    );
}

/// A second name of the file as it is now, which stands for the backup of the data.
fn save_data(kek: &Site) {
    let top = kek.root().join("genome");
    fs::hard_link(top.join("both"), kek.root().join("saved-both")).unwrap();
}

#[test]
fn a_home_and_its_follower_agree_after_a_restore() {
    let mut federation = with_volume();
    let folder = backup(&federation.kek, &federation.scratch(), "kek");
    save_data(&federation.kek);
    restore_home(&mut federation, |kek| lose_and_restore(kek, &folder));
}

#[test]
fn writes_after_a_restore_are_not_confused_with_writes_before_it() {
    let mut federation = with_volume();
    let folder = backup(&federation.titech, &federation.scratch(), "titech");
    for number in 0..5 {
        put(&federation, &format!("/genome/dir/before-{number}"), "written before the machine was lost");
    }
    await_that("nothing waits", || followed(&federation.titech)["pending"] == 0);
    let top = federation.kek.root().join("genome/dir");
    await_that("the home has it", || top.join("before-4").exists());
    lose_and_restore(&mut federation.titech, &folder);
    await_that("titech may write", || federation.titech.renkei(&["mkdir", "/genome/again"]).status.success());
    put(&federation, "/genome/dir/after", "written after the restore");
    await_that("the home has it", || top.join("after").exists());
    await_that("nothing waits", || followed(&federation.titech)["pending"] == 0);
    let all = names(&federation.kek);
    assert!(all.contains(&"/genome/again".into()) && all.contains(&"/genome/dir/before-0".into()), "{all:?}");
    assert_eq!(all, names(&federation.titech));
}

#[test]
fn writes_of_a_follower_after_its_backup_survive_a_restore() {
    let mut federation = with_volume();
    let folder = backup(&federation.titech, &federation.scratch(), "titech");
    federation.kek.kill9();
    put(&federation, "/genome/dir/new", "acknowledged after the backup");
    put(&federation, "/genome/both", "and this, too");
    lose_and_restore(&mut federation.titech, &folder);
    federation.kek.restart();
    await_that("titech may write", || federation.titech.renkei(&["mkdir", "/genome/again"]).status.success());
    put(&federation, "/genome/dir/new", "another");
    put(&federation, "/genome/both", "yet another");
    let top = federation.titech.root().join("genome");
    let names = fs::read_dir(&top).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let kept: Vec<String> = names.filter(|name| name.starts_with("renkei-kept-")).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let content = |path: &str| fs::read_to_string(top.join(&kept[0]).join(path)).unwrap_or_default();
    assert_eq!(content("dir/new"), "acknowledged after the backup");
    assert_eq!(content("both"), "and this, too");
    assert!(federation.titech.logged().contains(&kept[0]));
    assert!(!federation.titech.ok(&["ls", "/genome"]).contains("renkei-kept"), "it is no part of the volume");
}

#[test]
fn files_on_the_new_disk_of_a_restored_follower_are_compared_when_accepted() {
    let mut federation = with_volume();
    put(&federation, "/genome/dir/held", "written before the backup");
    await_that("nothing waits", || followed(&federation.titech)["pending"] == 0);
    federation.titech.ok(&["replicate", "/genome"]);
    let folder = backup(&federation.titech, &federation.scratch(), "titech");
    federation.kek.kill9();
    put(&federation, "/genome/dir/new", "acknowledged after the backup");
    let top = federation.titech.root().join("genome");
    let old = federation.titech.root().join("old");
    federation.titech.kill9();
    fs::rename(&top, &old).unwrap();
    let copied = std::process::Command::new("cp").arg("-a").args([&old, &top]).status().unwrap();
    assert!(copied.success());
    fs::remove_file(top.join("both")).unwrap();
    lose_and_restore(&mut federation.titech, &folder);
    let titech = &federation.titech;
    assert!(
        !titech.renkei(&["cat", "/genome/dir/held"]).status.success(),
        "another directory is in its place"
    );
    let told = titech.ok(&["volume", "check", "genome", "--accept"]);
    assert!(told.contains("1 removed") && told.contains("renkei-kept-"), "{told}");
    federation.kek.restart();
    let titech = &federation.titech;
    let is_read = |path: &str, text: &str| titech.renkei(&["cat", path]).stdout == text.as_bytes();
    await_that("it is read", || is_read("/genome/dir/held", "written before the backup"));
    // Existing files are held, missing ones are not.
    let held = |path: &str| {
        let told = titech.json(&["where", path]).1;
        let rows = told["replicas"].as_array().cloned().unwrap_or_default();
        rows.iter().find(|row| row["site"] == "titech").map(|row| row["files"].clone())
    };
    assert_eq!((held("/genome/dir/held"), held("/genome/both")), (Some(1.into()), Some(0.into())));
    // Files that only this site has stay.
    let names = fs::read_dir(&top).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let kept: Vec<String> = names.filter(|name| name.starts_with("renkei-kept-")).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let new = fs::read_to_string(top.join(&kept[0]).join("dir/new")).unwrap_or_default();
    assert_eq!(new, "acknowledged after the backup");
    assert!(!top.join(&kept[0]).join("dir/held").exists(), "it is known");
    await_that("missing files are read at the home", || is_read("/genome/both", "before the backup"));
}

#[test]
fn missing_files_on_the_new_disk_of_a_follower_need_confirmation() {
    let federation = with_volume();
    put(&federation, "/genome/dir/own", "written at titech");
    await_that("nothing waits", || followed(&federation.titech)["pending"] == 0);
    let titech = &federation.titech;
    let top = titech.root().join("genome");
    fs::rename(&top, titech.root().join("old")).unwrap();
    fs::create_dir(&top).unwrap();
    fs::write(top.join("else"), "not empty").unwrap();
    let told = titech.json(&["volume", "check", "genome", "--accept"]);
    assert_eq!(code(&told), Code::VolumeChanged.to_string(), "{told:?}");
    assert!(told.1["error"]["cause"].as_str().unwrap().contains("1 file"), "{told:?}");
    titech.ok(&["volume", "check", "genome", "--accept", "--yes"]);
    let told = titech.json(&["where", "/genome/dir/own"]).1;
    let rows = told["replicas"].as_array().unwrap();
    assert_eq!(rows.iter().find(|row| row["site"] == "titech").unwrap()["files"], 0, "{told}");
}

#[test]
fn a_home_restored_onto_another_directory_has_no_duplicates() {
    let mut federation = with_volume();
    let folder = backup(&federation.kek, &federation.scratch(), "kek");
    put(&federation, "/genome/dir/new", "written by titech after the backup");
    put(&federation, "/genome/both", "written over by titech");
    let top = federation.kek.root().join("genome");
    await_that("the home has both", || {
        let both = fs::read(top.join("both")).unwrap_or_default();
        top.join("dir/new").exists() && both.starts_with(b"written")
    });
    fs::write(top.join("here"), "written at the home after the backup").unwrap();
    federation.kek.ok(&["volume", "check", "genome"]);
    await_that("titech has heard of it", || names(&federation.titech).contains(&"/genome/here".to_owned()));
    federation.kek.kill9();
    let old = federation.kek.root().join("old");
    fs::rename(&top, &old).unwrap();
    let copied = std::process::Command::new("cp").arg("-a").args([&old, &top]).status().unwrap();
    assert!(copied.success());
    lose_and_restore(&mut federation.kek, &folder);
    let shut = federation.kek.json(&["volume", "check", "genome"]);
    assert_eq!(code(&shut), "RK-NS-10", "{shut:?}");
    federation.kek.ok(&["volume", "check", "genome", "--accept", "--yes"]);
    await_that("both sites agree", || {
        followed(&federation.titech)["pending"] == 0 && names(&federation.kek) == names(&federation.titech)
    });
    let all = names(&federation.kek);
    assert!(!all.iter().any(|name| name.contains("conflict")), "{all:?}");
    for site in [&federation.kek, &federation.titech] {
        assert_eq!(site.ok(&["cat", "/genome/both"]), "written over by titech");
        assert_eq!(site.ok(&["cat", "/genome/here"]), "written at the home after the backup");
    }
}

#[test]
fn content_that_the_home_received_after_its_backup_is_recognised() {
    let mut federation = with_volume();
    let (path, text) = ("/genome/dir/came", "written by titech before the backup");
    federation.kek.ok(&["volume", "pause", "genome"]);
    put(&federation, path, text);
    await_that("nothing waits", || followed(&federation.titech)["pending"] == 0);
    let folder = backup(&federation.kek, &federation.scratch(), "kek");
    federation.kek.ok(&["volume", "resume", "genome"]);
    let top = federation.kek.root().join("genome");
    await_that("it came", || top.join("dir/came").exists());
    await_that("titech gives it up", || {
        federation.titech.renkei(&["evict", path]).status.success()
            && !federation.titech.root().join("genome/dir/came").exists()
    });
    federation.kek.kill9();
    let old = federation.kek.root().join("old");
    fs::rename(&top, &old).unwrap();
    let copied = std::process::Command::new("cp").arg("-a").args([&old, &top]).status().unwrap();
    assert!(copied.success());
    lose_and_restore(&mut federation.kek, &folder);
    federation.kek.ok(&["volume", "check", "genome", "--accept"]);
    for site in [&federation.kek, &federation.titech] {
        let is_read = || site.renkei(&["cat", path]).stdout == text.as_bytes();
        await_that("it is read", is_read);
    }
    await_that("both sites agree", || names(&federation.kek) == names(&federation.titech));
    let all = names(&federation.kek);
    assert!(!all.iter().any(|name| name.contains("conflict")), "{all:?}");
}

#[test]
fn a_queued_copy_continues_after_a_restore() {
    let mut federation = Federation::two();
    fs::write(federation.titech.root().join("data"), "queued").unwrap();
    federation.kek.stop();
    let (from, to) = (federation.titech.place("data"), federation.kek.place("data"));
    let id = federation.titech.ok(&["cp", "--detach", &from, &to]).trim().to_owned();
    let id = id.split_whitespace().next().unwrap().to_owned();
    let folder = backup(&federation.titech, &federation.scratch(), "titech");
    lose_and_restore(&mut federation.titech, &folder);
    federation.kek.restart();
    federation.titech.ok(&["retry", &id]);
    federation.titech.ok(&["wait", &id]);
    assert_eq!(fs::read(federation.kek.root().join("data")).unwrap(), b"queued");
}

#[test]
fn a_restored_hub_relays_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Site::start(dir.path(), "hub");
    let left = Site::start_private(dir.path(), "left", &hub);
    let right = Site::start_private(dir.path(), "right", &hub);
    left.befriend(&right);
    right.befriend(&left);
    let folder = backup(&hub, dir.path(), "saved");
    lose_and_restore(&mut hub, &folder);
    let source = dir.path().join("source");
    fs::write(&source, "through the hub").unwrap();
    let copied = || left.renkei(&["cp", source.to_str().unwrap(), &right.place("copy")]).status.success();
    await_that("the lines are open again", copied);
    assert_eq!(fs::read(right.root().join("copy")).unwrap(), b"through the hub");
}

/// Restores a changed backup on a machine where nothing is; gives the code, and must not hang.
fn restore_changed(site: &Site, folder: &Path, to: &Path) -> String {
    let mut command = site.command_in(to);
    let started =
        command.arg("--json").arg("restore").arg(folder).stdout(std::process::Stdio::piped()).spawn();
    let mut restore = started.unwrap();
    let begun = Instant::now();
    while restore.try_wait().unwrap().is_none() {
        if begun.elapsed() > WITHIN {
            restore.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = restore.wait_with_output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    told["error"]["code"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_tampered_backup_cannot_write_outside() {
    let federation = Federation::two();
    let (titech, scratch) = (&federation.titech, federation.scratch());
    let folder = backup(titech, &scratch, "saved");
    let list = folder.join("backup.json");
    let good: Value = serde_json::from_slice(&fs::read(&list).unwrap()).unwrap();
    let map = good["files"].as_array().unwrap().iter().position(|item| item["path"] == "config/map").unwrap();
    let outside = scratch.join("outside");
    let new_home = scratch.join("new-home");
    let bad = Code::BackupInvalid.to_string();
    // Names that lead out of the directory; each is a file of the backup, too, with the right digest.
    for path in [
        format!("config/{}", outside.display()),
        "config/../outside".into(),
        "../outside".into(),
        outside.display().to_string(),
        "state//../../outside".into(),
        "else/outside".into(),
    ] {
        let mut changed = good.clone();
        changed["files"][map]["path"] = path.clone().into();
        fs::write(&list, changed.to_string()).unwrap();
        let at = folder.join(&path);
        let made = at.parent().map(fs::create_dir_all).is_some_and(|made| made.is_ok());
        let _ = made && fs::copy(folder.join("config/map"), &at).is_ok();
        let _ = fs::remove_file(&outside);
        assert_eq!(restore_changed(titech, &folder, &new_home), bad, "{path}");
        assert!(!outside.exists() && !new_home.join("config.toml").exists(), "{path}");
    }
    // A link, a FIFO or a device in place of a file.
    fs::write(&list, good.to_string()).unwrap();
    let file = folder.join("config/map");
    let kept = scratch.join("kept");
    fs::rename(&file, &kept).unwrap();
    for plant in [&["ln", "-s", kept.to_str().unwrap()][..], &["mkfifo"], &["ln", "-s", "/dev/zero"]] {
        let planted = std::process::Command::new(plant[0]).args(&plant[1..]).arg(&file).status().unwrap();
        assert!(planted.success());
        assert_eq!(restore_changed(titech, &folder, &new_home), bad, "{plant:?}");
        fs::remove_file(&file).unwrap();
    }
    // Set-id bits are not put back.
    fs::rename(&kept, &file).unwrap();
    let mut changed = good.clone();
    changed["files"][map]["mode"] = 0o6755.into();
    fs::write(&list, changed.to_string()).unwrap();
    assert_eq!(restore_changed(titech, &folder, &new_home), "");
    assert_eq!(new_home.join("map").metadata().unwrap().permissions().mode() & 0o7777, 0o755);
}

#[test]
fn a_backup_is_complete_private_and_never_overwrites() {
    let mut federation = Federation::two();
    let scratch = federation.scratch();
    let folder = backup(&federation.kek, &scratch, "saved");
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&folder.join("config/pki/ca.key"))), (0o700, 0o600));
    let kek = &federation.kek;
    let path = folder.to_str().unwrap();
    // A folder that has something in it, a PoP that runs, and one that is stopped.
    assert_eq!(code(&kek.json(&["backup", path])), Code::PathExists.to_string());
    assert_eq!(code(&kek.json(&["restore", path])), Code::AlreadyInitialised.to_string());
    federation.kek.stop();
    let map = federation.kek.dir().join("map");
    let before = fs::read(&map).unwrap();
    fs::write(&map, [&before[..], b"# changed since\n"].concat()).unwrap();
    assert_eq!(code(&federation.kek.json(&["restore", path])), Code::AlreadyInitialised.to_string());
    assert!(fs::read_to_string(&map).unwrap().contains("changed since"));
    // A file that differs from the backup, or is missing.
    let saved = folder.join("config/map");
    fs::write(&saved, "* root\n").unwrap();
    assert_eq!(code(&federation.kek.json(&["restore", path])), Code::BackupInvalid.to_string());
    fs::remove_file(&saved).unwrap();
    assert_eq!(code(&federation.kek.json(&["restore", path])), Code::BackupInvalid.to_string());
    // It can be given again after it was cut off.
    fs::write(&saved, &before).unwrap();
    fs::remove_dir_all(federation.kek.dir()).unwrap();
    federation.kek.ok(&["restore", path]);
    fs::remove_file(&map).unwrap();
    federation.kek.ok(&["restore", path]);
    assert_eq!((fs::read(&map).unwrap(), mode(&federation.kek.dir().join("pki/ca.key"))), (before, 0o600));
    federation.kek.restart();
    federation.titech.ok(&["ls", &federation.kek.root_place()]);
}

#[test]
fn a_home_whose_catalogue_is_on_postgresql_is_restored_with_it() {
    let Some(server) = Postgres::start() else { return };
    let mut federation = with_volume_on(&server);
    let scratch = federation.scratch();
    let told = federation.kek.json(&["backup", scratch.join("kek").to_str().unwrap()]).1;
    assert!(told["server"].as_str().unwrap().starts_with("PostgreSQL"), "{told}");
    let dump = server.dump();
    save_data(&federation.kek);
    let folder = scratch.join("kek");
    restore_home(&mut federation, |kek| {
        kek.kill9();
        server.restore(&dump);
        lose_and_restore(kek, &folder);
    });
}

/// As [`with_volume`], with the home's catalogue on a server.
fn with_volume_on(server: &Postgres) -> Federation {
    let mut federation = Federation::two();
    let config = federation.kek.dir().join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("catalogue = \"{}\"\n{text}", server.url())).unwrap();
    federation.kek.restart();
    fill(&federation);
    federation
}
