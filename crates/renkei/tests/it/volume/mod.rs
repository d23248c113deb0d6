//! Volumes at their home, end to end.

pub(crate) mod away;
pub(crate) mod care;
pub(crate) mod content;
pub(crate) mod directories;
pub(crate) mod following;
pub(crate) mod following_writes;
pub(crate) mod leaving;
pub(crate) mod restored;
pub(crate) mod users;
pub(crate) mod xattrs;

use crate::federation::{Federation, Site, account};
use crate::tree;
use renkei_store::marker::is_marker;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A site with the volume `genome` in its storage `data`.
fn site() -> (tempfile::TempDir, Site) {
    let dir = tempfile::tempdir().unwrap();
    let kek = Site::start(dir.path(), "kek");
    kek.ok(&["volume", "create", "genome", "--storage", "data"]);
    (dir, kek)
}

/// The entries of a tree: kinds, sizes, modes, times and contents by path.
fn tree(top: &Path) -> BTreeMap<String, (u32, i64, i64, Vec<u8>)> {
    let (mut found, mut todo) = (BTreeMap::new(), vec![String::new()]);
    while let Some(dir) = todo.pop() {
        for item in fs::read_dir(top.join(&dir)).unwrap() {
            let name = item.unwrap().file_name().into_string().unwrap();
            if is_marker(name.as_bytes()) {
                continue;
            }
            let path = format!("{dir}{name}");
            let data = fs::symlink_metadata(top.join(&path)).unwrap();
            let content = match data.file_type() {
                kind if kind.is_dir() => {
                    todo.push(format!("{path}/"));
                    Vec::new()
                }
                kind if kind.is_symlink() => {
                    fs::read_link(top.join(&path)).unwrap().into_os_string().into_encoded_bytes()
                }
                _ => fs::read(top.join(&path)).unwrap(),
            };
            found.insert(path, (data.mode(), data.mtime(), data.mtime_nsec(), content));
        }
    }
    found
}

/// The differences to the catalogue that `volume check` found.
fn check(site: &Site) -> serde_json::Value {
    let (status, found) = site.json(&["volume", "check", "genome"]);
    assert_eq!(status, 0, "{found}");
    found["found"].clone()
}

/// The records of a volume's log.
fn records(site: &Site) -> u64 {
    site.json(&["volume", "show", "genome"]).1["standing"]["records"].as_u64().unwrap()
}

fn run7(dir: &Path) -> std::path::PathBuf {
    let run = dir.join("run7");
    fs::create_dir_all(run.join("sub/deep")).unwrap();
    for (name, content) in
        [("a.bam", &b"aaaa"[..]), ("b.txt", b""), ("sub/c.bam", &[7; 3_000_000]), ("sub/deep/d", b"d")]
    {
        fs::write(run.join(name), content).unwrap();
    }
    fs::hard_link(run.join("a.bam"), run.join("sub/again")).unwrap();
    symlink("a.bam", run.join("link")).unwrap();
    run
}

#[test]
fn a_volume_is_created_used_and_deleted() {
    let (dir, kek) = site();
    let run = run7(dir.path());
    let run = run.to_str().unwrap();
    kek.ok(&["mkdir", "/genome/2026"]);
    kek.ok(&["cp", "-r", run, "/genome/2026/"]);
    assert_eq!(kek.ok(&["ls", "/genome/2026/run7"]), "a.bam\nb.txt\nlink\nsub\n");
    assert_eq!(kek.ok(&["ls", "kek:/genome/2026/run7"]), "a.bam\nb.txt\nlink\nsub\n");
    assert_eq!(tree(&kek.root().join("genome/2026/run7")), tree(Path::new(run)), "plain files, as they were");
    // All of it was in the catalogue before the copy was acknowledged.
    let before = records(&kek);
    assert!(before > 8, "{before}");
    let found = check(&kek);
    assert_eq!(
        (found["new"].as_u64(), found["changed"].as_u64(), found["failed"].as_u64()),
        (Some(0), Some(0), Some(0)),
        "{found}"
    );
    let back = dir.path().join("back");
    kek.ok(&["cp", "-r", "/genome/2026/run7", back.to_str().unwrap()]);
    assert_eq!(tree(&back), tree(Path::new(run)));
    kek.ok(&["mv", "/genome/2026/run7/a.bam", "/genome/2026/e.bam"]);
    kek.ok(&["rm", "-r", "/genome/2026/run7/sub"]);
    assert!(kek.ok(&["stat", "/genome/2026/e.bam"]).contains("e.bam"));
    assert!(kek.ok(&["du", "/genome"]).contains("\tkek:/genome\n"));
    assert!(kek.ok(&["checksum", "/genome/2026/e.bam"]).ends_with("  /genome/2026/e.bam\n"));
    assert_eq!(check(&kek)["new"], 0);
    assert!(kek.ok(&["volume", "list"]).starts_with("genome "));
    kek.ok(&["volume", "set", "genome", "scan_every_s=5"]);
    let shown = kek.ok(&["volume", "show", "genome"]);
    assert!(shown.contains("scans      every 5 s") && shown.contains("files      data:/genome"), "{shown}");
    kek.ok(&["volume", "delete", "genome"]);
    assert_eq!(kek.renkei(&["ls", "/genome"]).status.code(), Some(3));
    assert!(kek.root().join("genome/2026/e.bam").exists(), "the plain files stay");
    assert_eq!(fs::read_dir(kek.dir().join("state/volumes")).unwrap().count(), 0, "the tree is gone");
    kek.ok(&["volume", "create", "genome", "--storage", "data", "--in-place", "genome"]);
    kek.ok(&["volume", "delete", "genome", "--files"]);
    assert!(!kek.root().join("genome").exists());
}

#[test]
fn invalid_arguments_are_refused() {
    let (_dir, kek) = site();
    fs::create_dir_all(kek.root().join("full/sub")).unwrap();
    let status = |arguments: &[&str]| kek.renkei(arguments).status.code().unwrap();
    assert_eq!(
        status(&["volume", "create", "genome", "--storage", "data", "--path", "other"]),
        4,
        "the name is taken"
    );
    assert_eq!(status(&["volume", "create", "data", "--storage", "data"]), 4, "a storage has the name");
    assert_eq!(
        status(&["storage", "add", "genome", kek.root().to_str().unwrap()]),
        4,
        "a volume has the name"
    );
    assert_eq!(status(&["volume", "create", "x", "--storage", "none"]), 3);
    assert_eq!(
        status(&["volume", "create", "x", "--storage", "data", "--path", "full"]),
        4,
        "it is not empty"
    );
    assert_eq!(status(&["volume", "create", "x", "--storage", "data", "--in-place", "missing"]), 3);
    assert_eq!(
        status(&["volume", "create", "x", "--storage", "data", "--path", "genome/x"]),
        2,
        "one volume in another"
    );
    assert_eq!(status(&["volume", "create", "X", "--storage", "data"]), 2);
    assert_eq!(status(&["volume", "show", "none"]), 3);
    assert_eq!(status(&["volume", "grant", "genome", "titech/x", "read"]), 2);
    assert_eq!(status(&["volume", "set", "genome", "size=3"]), 2);
    assert_eq!(kek.ok(&["volume", "list"]).lines().count(), 1);
}

#[test]
fn a_relative_directory_is_resolved_in_the_working_directory() {
    let dir = tempfile::tempdir().unwrap();
    let kek = Site::start(dir.path(), "kek");
    fs::create_dir_all(kek.root().join("archive/2025/run")).unwrap();
    let create = |working: &std::path::Path, named: &str| {
        let mut command = kek.command();
        command.args(["volume", "create", "genome", "--storage", "data", "--in-place", named]);
        command.current_dir(working).output().unwrap()
    };
    for (working, named) in [("archive", "./2025"), ("archive", "2025"), ("archive/2025/run", "..")] {
        let made = create(&kek.root().join(working), named);
        assert!(made.status.success(), "{named}: {made:?}");
        let shown = kek.ok(&["volume", "show", "genome"]);
        assert!(shown.contains("files      data:/archive/2025"), "{named}: {shown}");
        kek.ok(&["volume", "delete", "genome"]);
    }
    let outside = create(kek.dir(), "./state");
    assert_eq!(outside.status.code(), Some(2), "{outside:?}");
}

#[test]
fn an_existing_tree_becomes_a_volume_in_place() {
    const FILES: usize = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let kek = Site::start(dir.path(), "kek");
    let old = kek.root().join("genome-2025");
    for at in 0..FILES {
        let folder = old.join(format!("d{}", at / 500));
        if at % 500 == 0 {
            fs::create_dir_all(&folder).unwrap();
        }
        fs::write(folder.join(format!("f{at}")), at.to_string()).unwrap();
    }
    let inode = fs::metadata(old.join("d0/f0")).unwrap().ino();
    let (status, made) =
        kek.json(&["volume", "create", "genome", "--storage", "data", "--in-place", "genome-2025"]);
    assert_eq!((status, made["found"]["failed"].as_u64()), (0, Some(0)), "{made}");
    // The scan with which the volume was opened may have come first.
    let records = records(&kek);
    assert!(records >= FILES as u64 + 40, "{records}");
    assert_eq!(kek.json(&["volume", "check", "genome"]).1["found"]["new"], 0);
    assert_eq!(fs::metadata(old.join("d0/f0")).unwrap().ino(), inode, "no byte was moved");
    let out = dir.path().join("out");
    kek.ok(&["cp", "-r", "/genome", out.to_str().unwrap()]);
    let (copy, source) = (tree(&out), tree(&old));
    assert_eq!(copy.len(), FILES + FILES / 500);
    assert!(copy == source, "the copy differs");
}

#[test]
fn changes_made_past_renkei_are_found() {
    let (dir, mut kek) = site();
    kek.ok(&["cp", "-r", run7(dir.path()).to_str().unwrap(), "/genome/"]);
    kek.ok(&["volume", "set", "genome", "scan_every_s=0"]);
    check(&kek);
    let before = records(&kek);
    let run = kek.root().join("genome/run7");
    fs::write(run.join("b.txt"), "changed").unwrap();
    fs::remove_file(run.join("a.bam")).unwrap();
    fs::create_dir(run.join("new")).unwrap();
    fs::write(run.join("new/n"), "n").unwrap();
    // The kernel reports the changes, without a scan.
    let (until, mut last, mut quiet) = (Instant::now() + Duration::from_secs(20), 0, 0);
    while last < before + 6 || quiet < 5 {
        assert!(Instant::now() < until, "{}", kek.ok(&["volume", "show", "genome"]));
        std::thread::sleep(Duration::from_millis(50));
        let now = records(&kek);
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
    }
    let found = check(&kek);
    assert_eq!(
        (found["new"].as_u64(), found["gone"].as_u64(), found["changed"].as_u64()),
        (Some(0), Some(0), Some(0))
    );
    // Changes made while no PoP runs are found at its start.
    kek.stop();
    fs::write(run.join("late"), "late").unwrap();
    fs::remove_dir_all(run.join("sub")).unwrap();
    assert!(kek.json(&["volume", "show", "genome"]).1["standing"].is_null());
    kek.restart();
    check(&kek);
    assert!(records(&kek) > last);
    let shown = kek.ok(&["find", "/genome"]);
    assert!(shown.contains("/genome/run7/late\n") && !shown.contains("sub"), "{shown}");
}

#[test]
fn a_lost_tree_is_rebuilt() {
    let (dir, mut kek) = site();
    kek.ok(&["cp", "-r", run7(dir.path()).to_str().unwrap(), "/genome/"]);
    kek.stop();
    fs::remove_dir_all(kek.dir().join("state/volumes")).unwrap();
    kek.restart();
    check(&kek);
    assert_eq!(check(&kek)["new"], 0);
    assert!(records(&kek) > 8);
    assert_eq!(tree(&kek.root().join("genome/run7")), tree(&dir.path().join("run7")));
}

#[test]
fn unmounted_files_do_not_count_as_removed() {
    let (dir, mut kek) = site();
    kek.ok(&["cp", "-r", run7(dir.path()).to_str().unwrap(), "/genome/"]);
    let before = records(&kek);
    kek.stop();
    let (folder, aside) = (kek.root().join("genome"), kek.root().join("aside"));
    fs::rename(&folder, &aside).unwrap();
    kek.restart();
    let refused = kek.renkei(&["ls", "/genome"]);
    assert!(errors(&refused).contains("RK-STORE-17"), "{refused:?}");
    // An empty directory where it would be mounted.
    fs::create_dir(&folder).unwrap();
    for words in [&["volume", "check", "genome"][..], &["mkdir", "/genome/new"]] {
        let refused = kek.renkei(words);
        assert!(errors(&refused).contains("RK-STORE-17"), "{refused:?}");
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    kek.stop();
    fs::remove_dir(&folder).unwrap();
    fs::rename(&aside, &folder).unwrap();
    kek.restart();
    assert_eq!(records(&kek), before);
    assert_eq!(check(&kek)["gone"], 0);
}

#[test]
fn a_killed_pop_finds_unrecorded_files() {
    let (dir, mut kek) = site();
    let source = dir.path().join("many");
    fs::create_dir(&source).unwrap();
    for at in 0..1500 {
        fs::write(source.join(format!("f{at}")), at.to_string()).unwrap();
    }
    for round in 0..4u64 {
        let into = format!("/genome/r{round}");
        let mut copy = kek.command();
        let mut copy =
            copy.args(["cp", "-r", "--retry-for", "0", source.to_str().unwrap(), &into]).spawn().unwrap();
        // At another moment each time, also before the first rename.
        let plain = kek.root().join(format!("genome/r{round}"));
        let enough = |least: usize| fs::read_dir(&plain).map(|dir| dir.count() >= least).unwrap_or(false);
        let until = Instant::now() + Duration::from_secs(20);
        while !enough(1 + 300 * round as usize) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        kek.kill9();
        copy.kill().unwrap();
        copy.wait().unwrap();
        kek.restart();
        kek.ok(&["volume", "check", "genome"]);
        let (plain, known) = (tree(&kek.root().join("genome")), check(&kek));
        let files = plain.keys().filter(|path| !path.contains(".rk~")).count();
        assert!(files > 0 && known["new"] == 0 && known["changed"] == 0 && known["failed"] == 0, "{known}");
    }
    // Unfinished steps are resumed.
    kek.ok(&["cp", "-r", source.to_str().unwrap(), "/genome/r0"]);
}

#[test]
fn paths_name_volumes_if_nothing_local_has_the_name() {
    let (dir, kek) = site();
    let file = dir.path().join("f");
    fs::write(&file, "f").unwrap();
    let file = file.to_str().unwrap();
    // The table of docs/semantics.md, line by line.
    kek.ok(&["cp", file, "/genome/"]);
    assert_eq!(kek.ok(&["ls", "/genome"]), "f\n");
    assert_eq!(kek.ok(&["ls", "/data/genome"]), "f\n");
    assert_eq!(kek.ok(&["ls", "/"]), "data\ngenome\n");
    let local = dir.path().join("g");
    kek.ok(&["cp", "/genome/f", local.to_str().unwrap()]);
    assert_eq!(fs::read(&local).unwrap(), b"f");
    kek.ok(&["cp", file, "kek:/genome/h"]);
    let both = kek.renkei(&["cp", file, "/tmp/"]);
    assert!(errors(&both).contains("both are on this machine"), "{both:?}");
    let unknown = kek.renkei(&["cp", file, "/no-such-volume/"]);
    assert!(errors(&unknown).contains("both are on this machine"), "{unknown:?}");
    assert!(kek.ok(&["checksum", file]).ends_with(&format!("  {file}\n")));
    assert!(kek.ok(&["checksum", "/genome/h"]).ends_with("  /genome/h\n"));
    assert!(kek.ok(&["whoami", "kek"]).contains("kek:/genome  read-write  volume"));
}

#[test]
fn find_tests_names_types_sizes_and_times() {
    let (dir, kek) = site();
    kek.ok(&["cp", "-r", run7(dir.path()).to_str().unwrap(), "/genome/"]);
    assert_eq!(
        kek.ok(&["find", "/genome", "--name", "*.bam"]),
        "/genome/run7/a.bam\n/genome/run7/sub/c.bam\n"
    );
    assert_eq!(kek.ok(&["find", "kek:/genome/run7", "--type", "l"]), "kek:/genome/run7/link\n");
    assert_eq!(kek.ok(&["find", "/genome", "--type", "f", "--size", "+1M"]), "/genome/run7/sub/c.bam\n");
    assert_eq!(kek.ok(&["find", "/genome", "--size", "-1"]), "/genome/run7/b.txt\n");
    assert_eq!(
        kek.ok(&["find", "/genome", "--type", "d"]),
        "/genome\n/genome/run7\n/genome/run7/sub\n/genome/run7/sub/deep\n"
    );
    let old = fs::File::options().write(true).open(kek.root().join("genome/run7/b.txt")).unwrap();
    old.set_modified(std::time::SystemTime::now() - Duration::from_secs(3 * 86_400)).unwrap();
    let recent = kek.ok(&["find", "/genome", "--newer-than", "2d", "--type", "f"]);
    assert!(!recent.contains("b.txt") && recent.contains("a.bam"), "{recent}");
    let (status, found) = kek.json(&["find", "/genome", "--name", "b.*"]);
    assert_eq!((status, found["found"][0]["name"].as_str()), (0, Some("/genome/run7/b.txt")));
    assert_eq!(kek.renkei(&["find", "/genome/none"]).status.code(), Some(3));
    assert_eq!(kek.renkei(&["find", "/genome", "--size", "big"]).status.code(), Some(2));
}

#[test]
fn a_grant_admits_only_the_named_principals() {
    let federation = Federation::two();
    let (kek, titech) = (&federation.kek, &federation.titech);
    kek.ok(&["volume", "create", "genome", "--storage", "data"]);
    fs::create_dir_all(kek.root().join("genome/public")).unwrap();
    fs::create_dir_all(kek.root().join("genome/private")).unwrap();
    fs::write(kek.root().join("genome/public/f"), "f").unwrap();
    let user = format!("{}@titech", account());
    // Without a rule of the map and without a grant: refused.
    kek.ok(&["map", "remove", &user]);
    let refused = errors(&titech.renkei(&["ls", "kek:/genome/public"]));
    assert!(refused.contains("RK-AUTH-7"), "{refused}");
    kek.ok(&["volume", "grant", "genome", "*@titech", "read", "--on", "public"]);
    assert_eq!(titech.ok(&["ls", "kek:/genome/public"]), "f\n");
    assert_eq!(titech.ok(&["ls", "kek:"]), "genome\n", "of the storages nothing is seen");
    let here = federation.scratch().join("f");
    titech.ok(&["cp", "kek:/genome/public/f", here.to_str().unwrap()]);
    for place in ["kek:/genome/private", "kek:/genome", "kek:/data"] {
        let output = titech.renkei(&["ls", place]);
        assert_eq!(output.status.code(), Some(5), "{place}: {output:?}");
    }
    let write = titech.renkei(&["cp", here.to_str().unwrap(), "kek:/genome/public/g"]);
    assert_eq!(write.status.code(), Some(5), "{write:?}");
    kek.ok(&["volume", "grant", "genome", &user, "write", "--on", "public"]);
    titech.ok(&["cp", here.to_str().unwrap(), "kek:/genome/public/g"]);
    // A name elsewhere is not given by moving something there.
    fs::write(kek.root().join("genome/theirs"), "theirs").unwrap();
    for [from, to] in [["public/g", "theirs"], ["public/g", "new"], ["public/g", ""], ["public", "elsewhere"]]
    {
        let output = titech.renkei(&["mv", &format!("kek:/genome/{from}"), &format!("kek:/genome/{to}")]);
        assert_eq!(output.status.code(), Some(5), "{from} {to}: {output:?}");
    }
    assert_eq!(fs::read(kek.root().join("genome/theirs")).unwrap(), b"theirs");
    titech.ok(&["mv", "kek:/genome/public/g", "kek:/genome/public/h"]);
    titech.ok(&["mv", "kek:/genome/public/h", "kek:/genome/public/g"]);
    assert!(kek.ok(&["volume", "show", "genome"]).contains(&format!("grant      {user} write /public")));
    kek.ok(&["volume", "revoke", "genome", &user]);
    assert_eq!(titech.renkei(&["rm", "kek:/genome/public/g"]).status.code(), Some(5));
    assert_eq!(titech.ok(&["ls", "kek:/genome/public"]), "f\ng\n");
    kek.ok(&["volume", "revoke", "genome", "*@titech"]);
    assert!(errors(&titech.renkei(&["ls", "kek:/genome/public"])).contains("RK-AUTH-7"));
    assert_eq!(kek.renkei(&["volume", "revoke", "genome", "*@titech"]).status.code(), Some(3));
}

#[test]
fn received_files_get_their_digest_without_being_read() {
    let (dir, kek) = site();
    let run = run7(dir.path());
    kek.ok(&["cp", "-r", run.to_str().unwrap(), "/genome/"]);
    let plain = kek.root().join("genome/run7");
    let digest = |path: &str, how: &[&str]| kek.ok(&[&["checksum", path][..], how].concat());
    for path in ["/genome/run7/sub/c.bam", "/genome/run7/b.txt"] {
        assert_eq!(digest(path, &["--known"]), digest(path, &[]));
    }
    fs::write(plain.join("own"), "own").unwrap();
    assert!(!kek.renkei(&["checksum", "--known", "/genome/run7/own"]).status.success());
    let asked = digest("/genome/run7/own", &[]);
    assert_eq!(digest("/genome/run7/own", &["--known"]), asked);
    // One of one extent, one of several.
    tree::rot(&plain.join("sub/deep/d"));
    tree::rot(&plain.join("sub/c.bam"));
    let (status, told) = kek.json(&["verify", "/genome"]);
    let failures = told["failures"].as_array().unwrap();
    let mut wrong: Vec<&str> = failures.iter().map(|failure| failure["path"].as_str().unwrap()).collect();
    wrong.sort_unstable();
    assert_eq!(wrong, ["run7/sub/c.bam", "run7/sub/deep/d"], "{told}");
    assert_ne!(status, 0);
    // Rewritten files have another one.
    kek.ok(&["cp", run.join("sub/c.bam").to_str().unwrap(), "/genome/run7/sub/"]);
    fs::write(plain.join("sub/deep/d"), "e").unwrap();
    kek.ok(&["volume", "check", "genome"]);
    assert_eq!(kek.json(&["verify", "/genome"]).0, 0);
}
