//! The verbs that look at and change places at other sites, end to end.

use crate::federation::{Federation, Site, account};
use crate::relay::proxy::Proxy;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn status(site: &Site, arguments: &[&str]) -> i32 {
    site.renkei(arguments).status.code().unwrap()
}

/// A small tree at kek with a link, a hidden name and a name that is not UTF-8.
fn tree() -> Federation {
    let federation = Federation::two();
    let root = federation.kek.root();
    std::fs::create_dir_all(root.join("run/sub")).unwrap();
    std::fs::write(root.join("run/b.dat"), "hello").unwrap();
    std::fs::write(root.join("run/a.dat"), vec![1; 2000]).unwrap();
    std::fs::write(root.join("run/.hidden"), "").unwrap();
    std::fs::write(root.join("run/sub/c"), "deep").unwrap();
    std::fs::write(root.join("run/sub").join(OsStr::from_bytes(b"odd\xff\n")), "odd").unwrap();
    symlink("sub", root.join("run/link")).unwrap();
    std::fs::set_permissions(root.join("run/b.dat"), PermissionsExt::from_mode(0o640)).unwrap();
    federation
}

#[test]
fn ls_shows_the_entries() {
    let federation = tree();
    let titech = &federation.titech;
    let place = |path: &str| federation.kek.place(path);
    for site in ["kek", "kek:", "kek:/"] {
        assert_eq!(titech.ok(&["ls", site]), "data\n", "{site}");
        assert!(titech.ok(&["du", site]).ends_with("\tkek:/data\n"), "{site}");
    }
    assert_eq!(titech.ok(&["ls"]), "data\n");
    let storages = titech.ok(&["ls", "-l", "kek"]);
    assert!(storages.starts_with("drwx") && storages.contains(&account()), "{storages}");
    assert_eq!(titech.ok(&["ls", &place("run")]), "a.dat\nb.dat\nlink\nsub\n");
    assert_eq!(titech.ok(&["ls", "-a", &place("run")]), ".hidden\na.dat\nb.dat\nlink\nsub\n");
    assert_eq!(titech.ok(&["ls", "-rS", &place("run")]), "sub\nlink\nb.dat\na.dat\n");
    assert_eq!(titech.ok(&["ls", &place("run/sub")]), "c\nodd\\xff\\n\n");
    assert_eq!(titech.ok(&["ls", &place("run/b.dat")]), "kek:/data/run/b.dat\n");
    let long = titech.ok(&["ls", "-lh", &place("run")]);
    let lines: Vec<&str> = long.lines().collect();
    assert!(lines[0].starts_with("-rw") && lines[0].contains(" 2.0K "), "{long}");
    assert!(lines[1].starts_with("-rw-r----- ") && lines[1].contains(&account()), "{long}");
    assert!(lines[2].starts_with('l') && lines[2].ends_with(" link -> sub"), "{long}");
    let link = place("run/link");
    assert!(titech.ok(&["ls", "-l", &link]).ends_with("kek:/data/run/link -> sub\n"));
    assert_eq!(titech.ok(&["ls", &format!("{link}/")]).lines().count(), 2);
    let deep = titech.ok(&["ls", "-R", &place("run")]);
    assert_eq!(deep, "kek:/data/run:\na.dat\nb.dat\nlink\nsub\n\nkek:/data/run/sub:\nc\nodd\\xff\\n\n");
}

#[test]
fn a_large_directory_is_listed_whole_sorted_or_not() {
    let federation = Federation::two();
    let many = federation.kek.root().join("many");
    std::fs::create_dir(&many).unwrap();
    for i in 0..3000 {
        std::fs::write(many.join(format!("name-{i:04}")), "").unwrap();
    }
    let place = federation.kek.place("many");
    let sorted = federation.titech.ok(&["ls", &place]);
    let unsorted = federation.titech.ok(&["ls", "-U", &place]);
    assert_eq!(sorted.lines().count(), 3000);
    assert!(sorted.lines().is_sorted());
    let mut names: Vec<&str> = unsorted.lines().collect();
    names.sort_unstable();
    assert_eq!(names, sorted.lines().collect::<Vec<_>>());
    let (_, json) = federation.titech.json(&["ls", "-U", &place]);
    assert_eq!(json["listings"][0]["entries"].as_array().unwrap().len(), 3000);
}

/// Reads one line of a command's output and goes away, as `head -n 1` does.
fn read_a_line(site: &Site, arguments: &[&str]) -> (String, Output) {
    let mut command = site.command();
    let mut running = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::with_capacity(1, running.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (line, running.wait_with_output().unwrap())
}

#[test]
fn a_listing_into_a_closed_pipe_ends() {
    let federation = Federation::two();
    let many = federation.kek.root().join("many");
    std::fs::create_dir(&many).unwrap();
    for i in 0..1000 {
        // More names than a pipe holds.
        std::fs::create_dir(many.join(format!("{i:0200}"))).unwrap();
        std::fs::write(many.join(format!("{i:0200}/file")), "").unwrap();
    }
    let proxy = Proxy::to(&federation.kek);
    proxy.put_between(&federation.titech, &federation.kek);
    let place = federation.kek.place("many");
    for arguments in [&["ls", "-R", &place][..], &["ls", "-RU", &place], &["checksum", "-r", &place]] {
        let before = proxy.passed();
        federation.titech.ok(arguments);
        let whole = proxy.passed() - before;
        let (line, output) = read_a_line(&federation.titech, arguments);
        let part = proxy.passed() - before - whole;
        assert!(line.len() > 10 && output.status.success() && output.stderr.is_empty(), "{output:?}");
        assert!(part < whole * 3 / 4, "{arguments:?}: {part} of {whole} bytes were asked for");
    }
}

#[test]
fn cat_into_a_closed_pipe_ends() {
    let federation = Federation::two();
    // More than a pipe holds.
    std::fs::write(federation.kek.root().join("f"), "a line that is long enough\n".repeat(1 << 16)).unwrap();
    let here = federation.kek.root().join("f");
    for file in [&*federation.kek.place("f"), here.to_str().unwrap()] {
        let (line, output) = read_a_line(&federation.titech, &["cat", file]);
        assert!(line.len() > 10 && output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn a_failure_of_cat_is_reported_on_stderr() {
    let federation = tree();
    let (file, none) = (federation.kek.place("run/a.dat"), federation.kek.place("none"));
    let output = federation.titech.renkei(&["--json", "cat", &file, &none]);
    assert_eq!(output.stdout, std::fs::read(federation.kek.root().join("run/a.dat")).unwrap());
    let told: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((&told["error"]["code"], output.status.code()), (&"RK-STORE-1".into(), Some(3)), "{told}");
    let (_, told) = federation.titech.json(&["cat", federation.kek.root().to_str().unwrap()]);
    assert_eq!(told["error"]["code"], "RK-STORE-4", "{told}");
}

#[test]
fn a_failed_write_to_stdout_is_reported_with_its_cause() {
    let federation = tree();
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for (verb, path) in [("ls", "run"), ("stat", "run"), ("du", "run"), ("cat", "run/a.dat")] {
        let mut command = federation.titech.command();
        let output = command.args([verb, &federation.kek.place(path)]).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{verb}: {output:?}");
        assert!(errors(&output).contains("standard output"), "{verb}: {output:?}");
    }
}

#[test]
fn a_pattern_without_a_match_is_a_name_that_does_not_exist() {
    let federation = tree();
    let place = federation.kek.place("run/x*");
    let here = federation.scratch();
    for arguments in [&["ls", &place][..], &["cp", &place, here.to_str().unwrap()]] {
        let output = federation.titech.renkei(arguments);
        assert_eq!(output.status.code(), Some(3));
        assert!(errors(&output).contains("no name matches the pattern"), "{output:?}");
    }
    // An existing name is taken literally.
    std::fs::write(federation.kek.root().join("run/x*"), "star").unwrap();
    federation.titech.ok(&["cp", &place, here.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(here.join("x*")).unwrap(), "star");
}

#[test]
fn failures_do_not_stop_the_other_paths() {
    let federation = tree();
    let titech = &federation.titech;
    let place = |path: &str| federation.kek.place(path);
    let (good, none) = (place("run/sub"), place("none"));
    assert_eq!(status(titech, &["ls", &none]), 3);
    let both = titech.renkei(&["ls", &none, &good]);
    assert_eq!(both.status.code(), Some(3));
    assert!(text(&both).contains("odd") && errors(&both).contains("RK-STORE-1"), "{both:?}");
    // A local path, a missing one and an unknown site fail each in its way.
    let mixed = titech.renkei(&["stat", "./passwd", &none, &good]);
    assert_eq!(mixed.status.code(), Some(23));
    assert!(errors(&mixed).contains("SITE:/STORAGE/PATH") && text(&mixed).contains("directory"), "{mixed:?}");
    assert_eq!(status(titech, &["ls", "osaka:/"]), 3);
    assert_eq!(status(titech, &["rm", "./file"]), 2);
    let (status, json) = titech.json(&["stat", &none]);
    assert_eq!((status, json["error"]["code"].as_str()), (3, Some("RK-STORE-1")));
    assert_eq!(json["error"]["side"], "kek");
    let (status, json) = titech.json(&["stat", &none, &good]);
    assert_eq!((status, json["failures"][0]["path"].as_str()), (3, Some(none.as_str())));
    assert_eq!(json["entries"].as_array().unwrap().len(), 1);
}

#[test]
fn stat_shows_everything() {
    let federation = tree();
    let path = federation.kek.root().join("run/b.dat");
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_600_000_000, 123_456_789);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    let (_, json) = federation.titech.json(&["stat", &federation.kek.place("run/b.dat")]);
    let entry = &json["entries"][0];
    assert_eq!(entry["mtime"], "2020-09-13T12:26:40.123456789Z");
    assert_eq!((entry["size"].as_u64(), entry["mode"].as_str()), (Some(5), Some("0640")));
    assert_eq!(entry["inode"].as_u64(), Some(path.metadata().unwrap().ino()));
    let shown = federation.titech.ok(&["stat", &federation.kek.place("run/link")]);
    assert!(shown.starts_with("path      kek:/data/run/link -> sub\ntype      symlink\n"), "{shown}");
}

#[test]
fn directories_and_files_are_created_moved_and_removed() {
    let federation = tree();
    let (titech, root) = (&federation.titech, federation.kek.root());
    let place = |path: &str| federation.kek.place(path);
    assert_eq!(status(titech, &["mkdir", &place("x/y/z")]), 3);
    assert_eq!(titech.ok(&["mkdir", "-p", &place("x/y/z")]), "");
    assert!(root.join("x/y/z").is_dir());
    assert_eq!(status(titech, &["mkdir", &place("x")]), 4);
    titech.ok(&["mkdir", "-p", &place("x")]);
    titech.ok(&["mv", &place("run/a.dat"), &place("x/new.dat")]);
    assert!(root.join("x/new.dat").exists() && !root.join("run/a.dat").exists());
    titech.ok(&["mv", &place("x/new.dat"), &place("run/b.dat"), &place("x/y")]);
    assert!(root.join("x/y/new.dat").exists() && root.join("x/y/b.dat").exists());
    assert_eq!(status(titech, &["mv", &place("x/y/new.dat"), &place("x/y/b.dat/")]), 4);
    assert_eq!(status(titech, &["mv", &place("x/y/new.dat"), "titech:/data/"]), 0);
    assert!(titech.root().join("new.dat").exists() && !root.join("x/y/new.dat").exists());
    assert_eq!(status(titech, &["rm", &place("x")]), 4);
    let shown = titech.ok(&["rm", "-rv", &place("x"), &place("run/link")]);
    assert_eq!(shown, format!("removed {}\nremoved {}\n", place("x"), place("run/link")));
    assert!(!root.join("x").exists() && root.join("run/sub/c").exists());
    assert_eq!(status(titech, &["rm", &place("x")]), 3);
    assert_eq!(status(titech, &["rm", "-f", &place("x")]), 0);
    assert_ne!(status(titech, &["rm", "-rf", "kek:/data"]), 0);
    assert_ne!(status(titech, &["rm", "-rf", "kek:/"]), 0);
    assert!(root.exists());
}

#[test]
fn sizes_and_free_space_are_shown() {
    let federation = tree();
    let titech = &federation.titech;
    let place = federation.kek.place("run");
    let total = 2000 + 5 + 4 + 3;
    let shown = titech.ok(&["du", "-s", &place]);
    let bytes: u64 = shown.split('\t').next().unwrap().parse().unwrap();
    let (_, json) = titech.json(&["du", "kek:/"]);
    assert_eq!(json["usage"][0]["path"], "kek:/data");
    assert!(bytes >= total && json["usage"][0]["files"].as_u64().unwrap() >= 5, "{shown} {json}");
    assert!(titech.ok(&["du", "-h", &place]).starts_with("2.0K\t"));
    for argument in ["kek", "kek:", "kek:/", "kek:/data"] {
        let (_, json) = titech.json(&["df", argument]);
        assert_eq!(json["storages"][0]["path"], "kek:/data", "{argument}");
        assert!(json["storages"][0]["total_bytes"].as_u64().unwrap() > 0);
    }
    assert!(titech.ok(&["df", "-h"]).contains("titech:/data"));
    // A file is where its directory is; a path that is not there is no table.
    let (_, json) = titech.json(&["df", &format!("{place}/b.dat")]);
    assert_eq!(json["storages"][0]["path"], "kek:/data/run/b.dat", "{json}");
    let none = titech.renkei(&["df", &federation.kek.place("none")]);
    assert_eq!((none.status.code(), text(&none).as_str()), (Some(3), ""), "{none:?}");
}

#[test]
fn checksums_make_a_manifest_that_can_be_checked() {
    let federation = tree();
    let (titech, root) = (&federation.titech, federation.kek.root());
    let place = |path: &str| federation.kek.place(path);
    let expected = blake3::hash(b"hello").to_hex();
    assert_eq!(titech.ok(&["checksum", &place("run/b.dat")]), format!("{expected}  kek:/data/run/b.dat\n"));
    let known = [
        ("md5", "5d41402abc4b2a76b9719d911017c592"),
        ("adler32", "062c0215"),
        ("crc32c", "9a71bb4c"),
        ("sha256", "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"),
    ];
    for (algorithm, digest) in known {
        let shown = titech.ok(&["checksum", "-a", algorithm, &place("run/b.dat")]);
        assert_eq!(shown.split_whitespace().next(), Some(digest), "{algorithm}");
    }
    let remote = titech.renkei(&["checksum", "-r", "-a", "sha256", &place("run")]);
    let local = titech.renkei(&["checksum", "-r", "-a", "sha256", root.join("run").to_str().unwrap()]);
    assert!(remote.status.success());
    assert_eq!(remote.stdout, local.stdout);
    check_manifest("sha256sum", &remote.stdout, &root.join("run"));
    assert_eq!(text(&remote).lines().count(), 5);
    assert_eq!(status(titech, &["checksum", &place("run")]), 4);
}

#[test]
fn remembered_checksums_are_those_of_the_present_content() {
    let mut federation = Federation::two();
    let config = federation.kek.dir().join("config.toml");
    let before = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("checksums = [\"md5\", \"adler32\"]\n{before}")).unwrap();
    federation.kek.stop();
    federation.kek.restart();
    let here = federation.scratch().join("f");
    std::fs::write(&here, "hello").unwrap();
    if rustix::fs::setxattr(&here, "user.a", b"", rustix::fs::XattrFlags::empty()).is_err() {
        eprintln!("SKIPPED: no attributes of users on this file system");
        return;
    }
    let (titech, place) = (&federation.titech, federation.kek.place("f"));
    let known = |algorithm| titech.renkei(&["checksum", "--known", "-a", algorithm, &place]);
    let expected = [("md5", "5d41402abc4b2a76b9719d911017c592"), ("adler32", "062c0215")];
    // A transfer, and a draft of a file session.
    let mut put = titech.command();
    put.args(["put", &place]).stdin(std::fs::File::open(&here).unwrap()).stdout(Stdio::null());
    assert!(put.status().unwrap().success());
    let are_known = || {
        for (algorithm, digest) in expected {
            assert_eq!(text(&known(algorithm)), format!("{digest}  {place}\n"), "{:?}", known(algorithm));
        }
        assert!(!known("sha256").status.success());
    };
    are_known();
    titech.ok(&["cp", here.to_str().unwrap(), &place]);
    are_known();
    // They do not travel.
    let copy = federation.scratch().join("copy");
    titech.ok(&["cp", &place, copy.to_str().unwrap()]);
    assert_eq!(rustix::fs::listxattr(&copy, &mut [0_u8; 64]).unwrap(), "user.a\0".len());
    // A change past renkei, which sets the time back.
    let file = std::fs::File::options().write(true).open(federation.kek.root().join("f")).unwrap();
    let mtime = file.metadata().unwrap().modified().unwrap();
    std::os::unix::fs::FileExt::write_at(&file, b"j", 0).unwrap();
    file.set_modified(mtime).unwrap();
    assert!(expected.iter().all(|(algorithm, _)| !known(algorithm).status.success()));
}

#[test]
fn a_checksum_that_was_asked_for_is_known_until_the_file_changes() {
    let federation = Federation::two();
    let (titech, place) = (&federation.titech, federation.kek.place("f"));
    let path = federation.kek.root().join("f");
    std::fs::write(&path, "hello").unwrap();
    let known = |algorithm| titech.renkei(&["checksum", "--known", "-a", algorithm, &place]);
    for algorithm in ["blake3", "md5"] {
        assert!(!known(algorithm).status.success(), "{algorithm}");
        let shown = titech.ok(&["checksum", "-a", algorithm, &place]);
        assert_eq!(text(&known(algorithm)), shown);
    }
    // Past renkei, with the time set back.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let mtime = file.metadata().unwrap().modified().unwrap();
    std::os::unix::fs::FileExt::write_at(&file, b"j", 0).unwrap();
    file.set_modified(mtime).unwrap();
    assert!(!known("blake3").status.success() && !known("md5").status.success());
}

/// Lets another program check a manifest; says so where it is not installed.
fn check_manifest(program: &str, manifest: &[u8], tree: &Path) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), manifest).unwrap();
    let checked = std::process::Command::new(program).arg("-c").arg(file.path()).current_dir(tree).output();
    match checked {
        Ok(checked) => assert!(checked.status.success(), "{checked:?}"),
        Err(error) => eprintln!("SKIPPED: no {program} to check the manifest with: {error}"),
    }
}

#[test]
fn checksums_of_many_files_are_pipelined() {
    let federation = Federation::two();
    let root = federation.kek.root();
    for dir in 0..20 {
        std::fs::create_dir(root.join(format!("d{dir}"))).unwrap();
        for file in 0..100 {
            std::fs::write(root.join(format!("d{dir}/f{file}")), format!("{dir} {file}")).unwrap();
        }
    }
    let shown = federation.titech.ok(&["checksum", "-r", "kek:/data"]);
    assert_eq!(shown.lines().count(), 2000);
    let line = format!("{}  d7/f42", blake3::hash(b"7 42").to_hex());
    assert!(shown.lines().any(|found| found == line));
}

#[test]
fn whoami_and_status_show_principal_and_state() {
    let federation = Federation::two();
    let titech = &federation.titech;
    let (_, me) = titech.json(&["whoami", "kek"]);
    assert_eq!(me["principal"], format!("{}@titech", account()));
    assert_eq!((me["account"].as_str(), me["site"].as_str()), (Some(account().as_str()), Some("kek")));
    assert_eq!(me["storages"][0]["name"], "data");
    assert!(titech.ok(&["status"]).starts_with("titech  renkei/"));
    let (_, there) = titech.json(&["status", "kek"]);
    assert_eq!((there["site"].as_str(), there["sessions"].as_u64()), (Some("kek"), Some(1)));
}

/// A user who has a directory of their own, and logged in before the site trusted the others.
#[test]
fn a_site_added_after_the_login_is_found() {
    let keep = tempfile::tempdir().unwrap();
    let sites = ["titech", "kek", "cern"].map(|name| Site::start(keep.path(), name));
    let [titech, kek, cern] = &sites;
    let user = keep.path().join("user");
    let run = |arguments: &[&str]| titech.command_in(&user).arg("--json").args(arguments).output().unwrap();
    let pop = titech.dir().to_str().unwrap();
    assert!(run(&["login", "--pop", pop]).status.success());
    let asked = run(&["whoami", "kek"]);
    assert_eq!(asked.status.code(), Some(3), "{}", text(&asked));
    assert!(text(&asked).contains("RK-CONF-5") && text(&asked).contains("titech does not know it either"));
    for (one, other) in [(titech, kek), (titech, cern)] {
        one.befriend(other);
        other.befriend(one);
    }
    let asked = run(&["whoami", "kek"]);
    assert!(asked.status.success(), "{}", text(&asked));
    std::fs::write(titech.root().join("file"), b"hello").unwrap();
    let copied = run(&["cp", &titech.place("file"), &cern.place("")]);
    assert!(copied.status.success(), "{}", text(&copied));
    assert_eq!(std::fs::read(cern.root().join("file")).unwrap(), b"hello");
    // A site shows its trusted partners to its own users only.
    let mut session = crate::wire::raw::connect(kek, &crate::wire::raw::user(kek), titech).unwrap();
    let refused =
        session.ask(renkei_core::wire::message::Request::Card(crate::wire::raw::name(cern))).unwrap_err();
    assert_eq!(refused.code, renkei_core::error::Code::NotAllowed);
}

#[test]
fn doctor_finds_problems() {
    let mut federation = Federation::two();
    let well = federation.titech.renkei(&["doctor", "kek"]);
    assert_eq!(well.status.code(), Some(0), "{}", text(&well));
    for step in
        ["name", "port", "TLS", "certificate", "greeting", "clock", "mapping", "storage data", "round trip"]
    {
        assert!(text(&well).lines().any(|line| line.contains(step) && !line.starts_with("FAIL")), "{step}");
    }
    let here = federation.titech.renkei(&["doctor"]);
    assert_eq!(here.status.code(), Some(0), "{}", text(&here));
    federation.kek.kill9();
    let down = federation.titech.renkei(&["doctor", "kek"]);
    assert_eq!(down.status.code(), Some(8));
    assert!(text(&down).contains("FAIL") && text(&down).contains("RK-NET-2"), "{}", text(&down));
    let dead = federation.kek.renkei(&["doctor"]);
    assert!(text(&dead).contains("RK-CONF-7"), "{}", text(&dead));
    let port = format!("nothing listens on the port: {}", federation.kek.address);
    assert!(text(&dead).contains(&port), "{}", text(&dead));
    assert_eq!(federation.titech.json(&["status", "kek"]).0, 8);
    let (_, unknown) = federation.titech.json(&["doctor", "osaka"]);
    assert_eq!(
        (unknown["fail"].as_u64(), unknown["checks"][0]["code"].as_str()),
        (Some(1), Some("RK-CONF-5"))
    );
    std::fs::remove_dir_all(federation.titech.root()).unwrap();
    let (status, gone) = federation.titech.json(&["doctor"]);
    assert_ne!(status, 0, "{gone}");
}

#[test]
fn leftovers_of_an_abandoned_transfer_are_removed_at_the_next_start() {
    let mut federation = Federation::two();
    let kek = &mut federation.kek;
    kek.kill9();
    let journals = kek.dir().join("state/journal");
    let temp = kek.root().join(".rk~00000000000000ab-0123456789abcdef");
    let other = kek.root().join(".rk~00000000000000ac-0123456789abcdef");
    std::fs::write(&temp, "part").unwrap();
    std::fs::write(&other, "part").unwrap();
    let path = journals.join("00000000000000ab.journal");
    std::fs::write(&path, journal_of(0xab)).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(8 * 86_400);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
    kek.restart();
    let start = std::time::Instant::now();
    // The journal goes first, the log line comes last.
    while path.exists() || !kek.logged().contains("removed an abandoned transfer") {
        assert!(start.elapsed() < Duration::from_secs(30), "{}", kek.logged());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!temp.exists() && other.exists());
}

/// A user's directory has no PoP that cleans it up: the next copy does.
#[test]
fn local_leftovers_of_an_abandoned_copy_are_removed_by_the_next() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let journals = titech.dir().join("state/journal");
    std::fs::create_dir_all(&journals).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(8 * 86_400);
    let [old, new] = ["00000000000000ad.becomes", "00000000000000ae.becomes"].map(|name| journals.join(name));
    for (path, time) in [(&old, long_ago), (&new, SystemTime::now())] {
        std::fs::File::create(path).unwrap().set_modified(time).unwrap();
    }
    let file = federation.scratch().join("file");
    std::fs::write(&file, b"hello").unwrap();
    titech.ok(&["cp", file.to_str().unwrap(), &kek.place("")]);
    assert!(!old.exists() && new.exists());
}

fn journal_of(job: u64) -> Vec<u8> {
    use renkei_core::mover::journal::{Header, Record, VERSION};
    use renkei_core::path::Place;
    let to = Place::parse(b"/data").unwrap();
    let header = Header { version: VERSION, job, boot: [0; 16], to, local: Vec::new(), account: account() };
    let mut bytes = Vec::new();
    Record::Header(header).write(&mut bytes);
    bytes
}

#[test]
fn an_upload_survives_a_crash() {
    let mut federation = Federation::two();
    let file = federation.scratch().join("a.dat");
    std::fs::write(&file, b"hello").unwrap();
    federation.titech.ok(&["cp", file.to_str().unwrap(), &federation.kek.place("a.dat")]);
    federation.kek.kill9();
    federation.kek.restart();
    assert_eq!(std::fs::read(federation.kek.root().join("a.dat")).unwrap(), b"hello");
}

#[test]
fn a_copy_continues_after_an_orderly_restart_of_the_pop() {
    let mut federation = Federation::two();
    let scratch = federation.scratch();
    std::fs::write(scratch.join("big"), vec![7; 40 << 20]).unwrap();
    let mut copy = federation.titech.command();
    copy.args(["cp", "--limit", "16M"]).arg(scratch.join("big")).arg(federation.kek.place("big"));
    let mut running = copy.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !federation.titech.ok(&["status", "kek"]).contains("receive") {
        assert!(running.try_wait().unwrap().is_none(), "the copy ended before the restart");
    }
    federation.kek.stop();
    federation.kek.restart();
    assert!(running.wait().unwrap().success());
    assert_eq!(std::fs::metadata(federation.kek.root().join("big")).unwrap().len(), 40 << 20);
}

#[test]
fn extents_changed_in_an_unfinished_file_are_sent_again() {
    let mut federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let source = federation.scratch().join("big");
    std::fs::write(&source, vec![7; 48 << 20]).unwrap();
    let mut copy = titech.command();
    copy.args(["cp", "--limit", "16M", "--retry-for", "0"]).arg(&source).arg(kek.place("big"));
    let mut running = copy.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let moved = || titech.json(&["status", "kek"]).1["transfers"][0]["progress"]["bytes_moved"].as_u64();
    while moved().unwrap_or(0) < 24 << 20 {
        assert!(running.try_wait().unwrap().is_none(), "the copy ended before the PoP was killed");
    }
    federation.kek.kill9();
    let kek = &federation.kek;
    let (mut journals, mut temps) = (Vec::new(), Vec::new());
    for (dir, found) in
        [(kek.dir().join("state/journal"), &mut journals), (kek.root().to_owned(), &mut temps)]
    {
        let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        found.extend(names.filter(|path| path.is_file() && !path.ends_with(".rk~storage")));
    }
    assert_eq!((journals.len(), temps.len()), (1, 1), "{journals:?} {temps:?}");
    let temp = std::fs::File::options().write(true).open(&temps[0]).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&temp, &[9; 8], 1_000_000).unwrap();
    running.wait().unwrap();
    add_slots(&journals[0], 40..48);
    federation.kek.restart();
    let Federation { titech, kek, .. } = &federation;
    let (status, told) = titech.json(&["cp", source.to_str().unwrap(), &kek.place("big")]);
    assert_eq!(status, 0, "{told}");
    assert!(std::fs::read(kek.root().join("big")).unwrap() == std::fs::read(&source).unwrap(), "{told}");
    let skipped = told["bytes_skipped"].as_u64().unwrap();
    assert!((16 << 20..40 << 20).contains(&skipped), "what nobody changed is not sent again: {told}");
}

/// Adds extents that never came to a journal of one file.
fn add_slots(journal: &std::path::Path, slots: std::ops::Range<u32>) {
    use renkei_core::mover::journal::{Record, State};
    let mut bytes = std::fs::read(journal).unwrap();
    let (state, good) = State::read(&bytes);
    bytes.truncate(good);
    let (&key, left) = state.partial.iter().next().unwrap();
    for slot in slots {
        let digest = [slot as u8; 32];
        Record::Slot { key, source: left.source, temp_ino: left.temp_ino, slot, digest }.write(&mut bytes);
    }
    std::fs::write(journal, bytes).unwrap();
}

#[test]
fn progress_counts_parts_of_a_block() {
    let federation = Federation::two();
    let scratch = federation.scratch();
    std::fs::write(scratch.join("big"), vec![7; 12 << 20]).unwrap();
    let mut copy = federation.titech.command();
    copy.args(["cp", "--limit", "4M"]).arg(scratch.join("big")).arg(federation.kek.place("big"));
    let mut running = copy.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut seen = 0;
    while running.try_wait().unwrap().is_none() {
        let (_, status) = federation.titech.json(&["status", "kek"]);
        seen = seen.max(status["transfers"][0]["progress"]["bytes_moved"].as_u64().unwrap_or(0));
    }
    assert!(seen > 0, "12 MiB in 3 s without a sign");
}

/// A terminal that shows `^C` pushes the bar out of its line, where it stays.
#[test]
fn a_copy_interrupted_at_a_terminal_leaves_no_progress_bar() {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no script(1), which makes a terminal");
        return;
    }
    let federation = Federation::two();
    let scratch = federation.scratch();
    std::fs::write(scratch.join("big"), vec![7; 40 << 20]).unwrap();
    let mut copy = federation.titech.command();
    copy.args(["cp", "--limit", "4M"]).arg(scratch.join("big")).arg(federation.kek.place("big"));
    let words = std::iter::once(copy.get_program()).chain(copy.get_args());
    let line: Vec<String> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let mut terminal = Command::new("script");
    terminal.args(["-qefc", &line.join(" "), "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut terminal = terminal.spawn().unwrap();
    let (mut keys, mut screen) = (terminal.stdin.take().unwrap(), terminal.stdout.take().unwrap());
    let (mut shown, mut part) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&shown).contains("1 file ") {
        let read = screen.read(&mut part).unwrap();
        assert_ne!(read, 0, "{}", String::from_utf8_lossy(&shown));
        shown.extend(&part[..read]);
    }
    keys.write_all(b"\x03").unwrap();
    screen.read_to_end(&mut shown).unwrap();
    let shown = String::from_utf8_lossy(&shown);
    assert_eq!(terminal.wait().unwrap().code(), Some(130), "{shown}");
    assert!(shown.contains("RK-MOVE-5") && !shown.contains("^C"), "{shown}");
}

#[test]
fn a_directory_is_not_copied_into_itself() {
    let federation = tree();
    let (place, site) = (federation.kek.place("run"), &federation.titech);
    assert_eq!(status(site, &["cp", "-r", &place, &format!("{place}/below")]), 2);
    assert_eq!(status(site, &["sync", &place, &place]), 2);
    let code = |arguments: &[&str]| site.json(arguments).1["error"]["code"].as_str().unwrap().to_owned();
    assert_eq!(code(&["mv", &place, &format!("{place}/sub")]), "RK-MOVE-13");
    assert_eq!(code(&["mv", &place, &format!("{place}/")]), "RK-MOVE-7");
    assert_eq!(status(site, &["rm", "-r", "kek:/data"]), 2);
}

#[test]
fn a_dry_run_into_a_missing_destination_removes_nothing() {
    let federation = tree();
    let (titech, scratch) = (&federation.titech, federation.scratch());
    let source = scratch.join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("new"), "new").unwrap();
    std::fs::write(titech.root().join("sibling"), "").unwrap();
    let (up, here, run) = (source.to_str().unwrap(), scratch.join("new"), federation.kek.place("run"));
    for (from, to) in [
        (up, federation.kek.place("missing")),
        (&run, here.to_str().unwrap().into()),
        (&run, titech.place("missing")),
        (&run, federation.kek.place("missing")),
    ] {
        let (status, report) = titech.json(&["sync", "--delete", "--dry-run", from, &to]);
        assert_eq!(status, 0, "{from} {to}: {report}");
        assert_eq!((report["deleted"].as_u64(), report["removed"][0].as_str()), (Some(0), None), "{report}");
        assert!(report["would_send"].as_array().is_some_and(|paths| !paths.is_empty()), "{report}");
    }
    assert!(!here.exists() && !federation.kek.root().join("missing").exists());
    // Into an existing destination, entries that the source lacks are named.
    let (_, report) = titech.json(&["sync", "--delete", "--dry-run", up, &run]);
    assert!(report["deleted"].as_u64().unwrap() > 3, "{report}");
}

#[test]
fn a_dry_run_changes_nothing() {
    let federation = tree();
    let (titech, kek) = (&federation.titech, &federation.kek);
    let (here, run) = (titech.root().join("run"), kek.place("run"));
    for destination in ["new/", "new"] {
        let to = titech.root().join(destination);
        let said = titech.ok(&["cp", "-rn", &run, to.to_str().unwrap()]);
        assert!(said.contains("would send") && said.contains("a.dat"), "{said}");
        assert!(said.contains("5 files would be sent"), "{said}");
    }
    assert!(!titech.root().join("new").exists());
    std::fs::create_dir_all(here.join("sub")).unwrap();
    std::fs::write(here.join("x"), "x").unwrap();
    let said = titech.ok(&["cp", "-r", "--dry-run", here.to_str().unwrap(), &kek.place("other/")]);
    assert!(said.contains("other/run/x") && said.contains("1 file would be sent"), "{said}");
    let between = titech.ok(&["cp", "-rn", &titech.place("run"), &kek.place("")]);
    assert!(between.contains("run/x"), "{between}");
    assert!(!kek.root().join("other").exists() && !kek.root().join("run/x").exists());
}

#[test]
fn directories_permissions_and_links_are_changed_at_sites() {
    let federation = tree();
    let (titech, root) = (&federation.titech, federation.kek.root());
    let place = |path: &str| federation.kek.place(path);
    titech.ok(&["mkdir", &place("run/empty")]);
    titech.ok(&["rmdir", &place("run/empty")]);
    assert!(!root.join("run/empty").exists());
    assert_ne!(status(titech, &["rmdir", &place("run/sub")]), 0);
    assert_ne!(status(titech, &["rmdir", &place("run/a.dat")]), 0);
    assert!(root.join("run/sub/c").exists() && root.join("run/a.dat").exists());

    let mode = |path: &str| std::fs::symlink_metadata(root.join(path)).unwrap().mode() & 0o7777;
    titech.ok(&["chmod", "600", &place("run/a.dat"), &place("run/b.dat")]);
    assert_eq!((mode("run/a.dat"), mode("run/b.dat")), (0o600, 0o600));
    titech.ok(&["chmod", "-R", "a=rX,u+w", &place("run")]);
    assert_eq!((mode("run/a.dat"), mode("run/sub"), mode("run/sub/c")), (0o644, 0o755, 0o644));
    assert_ne!(status(titech, &["chmod", "q+r", &place("run/a.dat")]), 0);

    titech.ok(&["ln", "-s", "a.dat", &place("run/latest")]);
    assert_eq!(std::fs::read_link(root.join("run/latest")).unwrap(), Path::new("a.dat"));
    titech.ok(&["ln", &place("run/a.dat"), &place("run/same")]);
    let ino = |path: &str| std::fs::metadata(root.join(path)).unwrap().ino();
    assert_eq!(ino("run/a.dat"), ino("run/same"));
    assert_ne!(status(titech, &["ln", "-s", "x", &place("run/latest")]), 0);
    assert_eq!(titech.ok(&["find", &place("run"), "-name", "l*", "-type", "l"]).lines().count(), 2);
}

#[test]
fn a_move_between_sites_copies_compares_and_removes() {
    let federation = tree();
    let (titech, kek) = (&federation.titech, &federation.kek);
    titech.ok(&["mv", &kek.place("run"), &titech.place("")]);
    let (here, there) = (titech.root().join("run"), kek.root().join("run"));
    assert!(!there.exists());
    assert_eq!(std::fs::read(here.join("sub").join(OsStr::from_bytes(b"odd\xff\n"))).unwrap(), b"odd");
    assert_eq!(std::fs::read_link(here.join("link")).unwrap(), Path::new("sub"));
    assert_eq!(std::fs::metadata(here.join("b.dat")).unwrap().mode() & 0o777, 0o640);
    titech.ok(&["mv", &titech.place("run/"), &kek.place("renamed")]);
    assert!(!here.exists() && kek.root().join("renamed/sub/c").exists());
    titech.ok(&["mv", &kek.place("renamed/a.dat"), &kek.place("renamed/b.dat"), &titech.place("")]);
    assert!(titech.root().join("a.dat").exists() && titech.root().join("b.dat").exists());
    assert!(!kek.root().join("renamed/a.dat").exists());
    // Entries that cannot be copied stay, with their siblings.
    let fifo = kek.root().join("renamed/fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let refused = titech.renkei(&["mv", &kek.place("renamed"), &titech.place("")]);
    assert!(!refused.status.success() && errors(&refused).contains("FIFOs"), "{}", errors(&refused));
    assert!(fifo.exists() && kek.root().join("renamed/sub/c").exists());
    assert_ne!(status(titech, &["mv", &kek.place(""), &titech.place("x")]), 0);
}

#[test]
fn a_move_from_and_to_this_machine_copies_compares_and_removes() {
    let federation = tree();
    let (titech, kek) = (&federation.titech, &federation.kek);
    let here = federation.scratch().join("here");
    let path = |name: &str| here.join(name).to_str().unwrap().to_owned();
    titech.ok(&["mv", &kek.place("run"), &path("")[..path("").len() - 1]]);
    assert!(!kek.root().join("run").exists());
    assert_eq!(std::fs::read(here.join("sub").join(OsStr::from_bytes(b"odd\xff\n"))).unwrap(), b"odd");
    titech.ok(&["mv", &path("a.dat"), &path("link"), &path("sub/"), &kek.place("")]);
    assert_eq!(std::fs::read_link(kek.root().join("link")).unwrap(), Path::new("sub"));
    assert!(kek.root().join("a.dat").exists() && kek.root().join("sub/c").exists());
    let listed = std::fs::read_dir(&here).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(listed.collect::<BTreeSet<_>>(), [".hidden", "b.dat"].map(OsString::from).into());
    // Entries that cannot be copied stay, with their siblings; and so do local entries.
    assert!(Command::new("mkfifo").arg(here.join("fifo")).status().unwrap().success());
    let refused = titech.renkei(&["mv", here.to_str().unwrap(), &kek.place("there")]);
    assert!(!refused.status.success() && errors(&refused).contains("FIFOs"), "{}", errors(&refused));
    assert!(here.join("fifo").exists() && here.join("b.dat").exists());
    for words in
        [["mv", &path("b.dat"), &path("c")], ["mv", here.join("..").to_str().unwrap(), &kek.place("up")]]
    {
        assert_ne!(status(titech, &words), 0, "{words:?}");
    }
    assert!(here.join("b.dat").exists());
}
