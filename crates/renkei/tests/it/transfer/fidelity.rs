//! Copies are faithful: content, names, metadata, links and holes, in every direction.

use crate::federation::{Federation, Site};
use crate::relay::proxy::Proxy;
use crate::tree::{self, MIB, Tree, assert_same, assert_same_content, noise, path};
use rustix::fs::{CWD, FileType, Mode};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// No temporary name and no journal is left.
fn assert_tidy(sites: [&Site; 2], trees: &[&Tree]) {
    trees.iter().for_each(|tree| tree::assert_no_temporary(tree));
    let deadline = Instant::now() + Duration::from_secs(20);
    for site in sites {
        // The receiver removes its journal when the sender has said how it ended, and may be gone itself.
        while !journals(site).is_empty() {
            assert!(Instant::now() < deadline, "{:?} are left", journals(site));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn journals(site: &Site) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![site.dir().to_path_buf()];
    while let Some(dir) = pending.pop() {
        for listed in fs::read_dir(dir).unwrap().map(|listed| listed.unwrap().path()) {
            if listed.is_dir() {
                pending.push(listed);
            } else if listed
                .extension()
                .is_some_and(|extension| extension == "journal" || extension == "becomes")
            {
                found.push(listed);
            }
        }
    }
    found
}

#[test]
fn everything_is_preserved_in_every_direction() {
    if !is_root() {
        eprintln!("skipped: all modes and owners need root");
        return;
    }
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let source = federation.scratch().join("nasty");
    tree::make_nasty(&source);
    for name in ["sizes/0", "names/-rf", "deep"] {
        std::os::unix::fs::chown(source.join(name), Some(65534), Some(65534)).unwrap();
    }
    let expected = tree::read(&source);
    titech.ok(&["cp", "-r", text(&source), &kek.place("up")]);
    let up = tree::read(&kek.root().join("up"));
    assert_same(&expected, &up);
    let here = federation.scratch().join("down");
    titech.ok(&["cp", "-r", &kek.place("up"), text(&here)]);
    let down = tree::read(&here);
    assert_same(&expected, &down);
    titech.ok(&["cp", "-r", &kek.place("up"), &titech.place("between")]);
    let between = tree::read(&titech.root().join("between"));
    assert_same(&expected, &between);
    assert_tidy([titech, kek], &[&up, &down, &between]);
}

#[test]
fn special_files_are_skipped_and_reported() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let source = federation.scratch().join("special");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("plain"), b"x").unwrap();
    let mode = Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(CWD, source.join("fifo"), FileType::Fifo, mode, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(source.join("socket")).unwrap();
    let mut special = vec!["fifo", "socket"];
    if is_root() {
        let null = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(CWD, source.join("device"), FileType::CharacterDevice, mode, null).unwrap();
        special.insert(0, "device");
    }
    let here = federation.scratch().join("down");
    fs::create_dir(&here).unwrap();
    kek.ok(&["whoami"]);
    let (status, report) = titech.json(&["cp", "-r", text(&source), &kek.place("special")]);
    check_special(status, &report, &special);
    assert_eq!(fs::read_dir(kek.root().join("special")).unwrap().count(), 1);
    rustix::fs::mknodat(CWD, kek.root().join("fifo"), FileType::Fifo, mode, 0).unwrap();
    let (status, report) = titech.json(&["cp", "-r", &kek.place(""), text(&here)]);
    check_special(status, &report, &["fifo"]);
    assert!(!here.join("fifo").exists());
}

fn check_special(status: i32, report: &Value, names: &[&str]) {
    assert_eq!((status, &report["failed"]), (0, &0.into()), "{report}");
    assert_eq!(report["special_skipped"], names.len(), "{report}");
    let failures = report["failures"].as_array().unwrap();
    let mut found: Vec<&str> = failures.iter().map(|f| f["path"].as_str().unwrap()).collect();
    found.sort_unstable();
    assert!(found.iter().zip(names).all(|(path, name)| path.ends_with(name)), "{found:?}");
    assert!(failures.iter().all(|failure| failure["code"] == "RK-STORE-14"), "{report}");
}

/// Each directory of a source takes a descriptor; the soft limit of this shell is no bound.
#[test]
fn more_source_directories_than_the_soft_limit_of_descriptors() {
    const SOURCES: usize = 100;
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let source = |index: usize| federation.scratch().join(format!("d{index}/f{index}"));
    let sources: Vec<PathBuf> = (0..SOURCES).map(source).collect();
    for source in &sources {
        fs::create_dir(source.parent().unwrap()).unwrap();
        fs::write(source, b"x").unwrap();
    }
    let renkei = titech.command();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -S -n 64 && exec \"$0\" \"$@\""]).arg(renkei.get_program());
    shell.args(renkei.get_args()).arg("cp").args(&sources).arg(kek.place("many/"));
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_dir(kek.root().join("many")).unwrap().count(), SOURCES);
}

#[test]
fn a_hundred_thousand_empty_files_in_one_directory() {
    const FILES: usize = 100_000;
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let source = federation.scratch().join("many");
    fs::create_dir(&source).unwrap();
    for index in 0..FILES {
        File::create(source.join(format!("file-{index}"))).unwrap();
    }
    let start = Instant::now();
    let (status, report) = titech.json(&["cp", "-r", text(&source), &kek.place("many")]);
    let took = start.elapsed();
    assert_eq!((status, &report["files"]), (0, &FILES.into()), "{report}");
    assert_eq!(fs::read_dir(kek.root().join("many")).unwrap().count(), FILES);
    assert!(took < Duration::from_secs(90), "{took:?}");
    let (status, report) = titech.json(&["sync", text(&source), &kek.place("many")]);
    assert_eq!((status, &report["files_skipped"]), (0, &FILES.into()), "{report}");
}

/// Starts a command in the background; its report is JSON.
fn start(site: &Site, arguments: &[&str]) -> std::process::Child {
    let mut command = site.command();
    command.arg("--json").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn failures(report: &Value) -> Vec<(String, String)> {
    let of = |failure: &Value| {
        (failure["path"].as_str().unwrap().to_owned(), failure["code"].as_str().unwrap().to_owned())
    };
    let mut found: Vec<_> = report["failures"].as_array().unwrap().iter().map(of).collect();
    found.sort();
    found
}

/// Waits until the client's walk, a thread of its own, has come to its end.
fn wait_for_walk(pid: u32) {
    let end = Instant::now() + Duration::from_secs(30);
    let walks = || {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        threads
            .flatten()
            .any(|thread| fs::read(thread.path().join("comm")).is_ok_and(|name| name == b"walk\n"))
    };
    while walks() {
        assert!(Instant::now() < end, "the walk does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Files are changed after they were found and before they are read: the connection is blocked in between.
#[test]
fn files_that_change_fail_alone() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let source = federation.scratch().join("changing");
    let sub = source.join("sub");
    fs::create_dir_all(&sub).unwrap();
    // Large enough that its bytes fill all buffers on the way, so that deeper files are not read yet.
    fs::write(source.join("first"), noise(1, 96 * MIB)).unwrap();
    for name in ["grows", "kept", "replaced", "shrinks", "vanishes"] {
        fs::write(sub.join(name), noise(2, 3 * MIB)).unwrap();
    }
    let proxy = Proxy::to(kek);
    proxy.put_between(titech, kek);
    proxy.allow(8 * MIB as u64);
    let copy = start(titech, &["cp", "-r", text(&source), &kek.place("changing")]);
    proxy.wait_until_used_up();
    wait_for_walk(copy.id());
    File::options().append(true).open(sub.join("grows")).unwrap().write_all(b"more").unwrap();
    fs::write(sub.join("new"), noise(3, 3 * MIB)).unwrap();
    fs::rename(sub.join("new"), sub.join("replaced")).unwrap();
    File::options().write(true).open(sub.join("shrinks")).unwrap().set_len(MIB as u64).unwrap();
    fs::remove_file(sub.join("vanishes")).unwrap();
    proxy.open();
    let output = copy.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(23), "{report}");
    let changed = |name: &str, code: &str| (format!("changing/sub/{name}"), code.to_owned());
    let expected = [
        changed("grows", "RK-MOVE-1"),
        changed("replaced", "RK-MOVE-1"),
        changed("shrinks", "RK-MOVE-1"),
        changed("vanishes", "RK-MOVE-2"),
    ];
    assert_eq!(failures(&report), expected);
    let arrived = tree::read(&kek.root().join("changing"));
    let files: Vec<&[u8]> = arrived.keys().map(Vec::as_slice).collect();
    assert_eq!(files, [&b""[..], b"first", b"sub", b"sub/kept"]);
    // The same command again completes the copy, although the directory it makes exists now.
    titech.ok(&["cp", "-r", text(&source), &kek.place("changing")]);
    let arrived = tree::read(&kek.root().join("changing"));
    assert_same(&tree::read(&source), &arrived);
    assert_tidy([titech, kek], &[&arrived]);
}

/// A file that is appended to all the time never arrives half.
#[test]
fn a_file_that_is_continuously_written_is_reported() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let source = federation.scratch().join("busy");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("log"), noise(1, 40 * MIB)).unwrap();
    fs::write(source.join("still"), noise(2, 3 * MIB)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut log = File::options().append(true).open(source.join("log")).unwrap();
            while !stop.load(Ordering::Relaxed) {
                log.write_all(b"line\n").unwrap();
            }
        });
        let (status, report) = titech.json(&["cp", "-r", text(&source), &kek.place("busy")]);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(status, 23, "{report}");
        assert_eq!(failures(&report), [("busy/log".to_owned(), "RK-MOVE-1".to_owned())]);
    });
    assert!(!kek.root().join("busy/log").exists());
    assert_eq!(fs::read(kek.root().join("busy/still")).unwrap(), noise(2, 3 * MIB));
}

/// Makes the files of the trailing-slash cases.
fn make_case(dir: &Path) {
    for sub in ["run7/sub", "other", "old", "full/run7"] {
        fs::create_dir_all(dir.join(sub)).unwrap();
    }
    for file in ["run7/a", "run7/sub/b", "other/c", "f", "full/run7/kept", "old/f"] {
        fs::write(dir.join(file), file).unwrap();
    }
    symlink("a", dir.join("run7/l")).unwrap();
}

/// Each case is given to `cp -r` here and to renkei from here to a site; both must give the same.
#[test]
fn names_and_slashes_have_the_meaning_of_cp() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let cases: &[(&[&str], &str)] = &[
        (&["run7"], "old"),
        (&["run7"], "old/"),
        (&["run7"], "new"),
        (&["run7"], "full"),
        (&["run7/."], "full"),
        (&["run7/."], "new"),
        (&["run7", "other"], "old"),
        (&["f"], "old"),
        (&["f"], "old/"),
        (&["f"], "new"),
        (&["f"], "other/c"),
        (&["f", "run7"], "full"),
        (&["run7/a", "run7/sub"], "old"),
        (&["run7/sub/b"], "run7/a"),
    ];
    for (index, (sources, destination)) in cases.iter().enumerate() {
        let model = federation.scratch().join(format!("model{index}"));
        let far = kek.root().join(format!("case{index}"));
        make_case(&model);
        make_case(&far);
        let from: Vec<PathBuf> = sources.iter().map(|source| model.join(source)).collect();
        let mut given: Vec<String> = vec!["cp".into(), "-r".into()];
        // A copy, because the model of a source is also where cp writes.
        let here = federation.scratch().join(format!("here{index}"));
        make_case(&here);
        given.extend(sources.iter().map(|source| format!("{}/{source}", text(&here))));
        given.push(kek.place(&format!("case{index}/{destination}")));
        let cp = Command::new("cp").arg("-r").args(&from).arg(model.join(destination)).output().unwrap();
        assert!(cp.status.success(), "{sources:?} {destination}: {cp:?}");
        titech.ok(&given);
        assert_same_content(&tree::read(&model), &tree::read(&far));
    }
}

/// Where cp and rsync differ, a slash at the end of a source has the meaning of rsync.
#[test]
fn a_slash_after_a_source_means_its_contents() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let here = federation.scratch();
    make_case(&here);
    let run7 = tree::read(&here.join("run7"));
    titech.ok(&["cp", "-r", &format!("{}/run7/", text(&here)), &kek.place("made/")]);
    assert_same_content(&run7, &tree::read(&kek.root().join("made")));
    titech.ok(&["cp", "-r", &kek.place("made/"), &titech.place("there/")]);
    assert_same_content(&run7, &tree::read(&titech.root().join("there")));
    titech.ok(&["cp", "-r", &kek.place("made/"), text(&here.join("back"))]);
    assert_same_content(&run7, &tree::read(&here.join("back")));
    fs::create_dir(here.join("dir")).unwrap();
    titech.ok(&["cp", "-r", &kek.place("made"), text(&here.join("dir"))]);
    assert_same_content(&run7, &tree::read(&here.join("dir/made")));
}

#[test]
fn sync_sends_differences_and_removes_with_delete() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let source = federation.scratch().join("run");
    make_case(&source);
    let far = kek.root().join("run");
    let run = |options: &[&str]| {
        let to = kek.place("run");
        let arguments = [&["sync"], options, &[text(&source), &to]].concat();
        let (status, report) = titech.json(&arguments);
        assert_eq!(status, 0, "{report}");
        report
    };
    assert_eq!(run(&[])["files"], 6);
    assert_same(&tree::read(&source), &tree::read(&far));
    assert_eq!(run(&[])["bytes_moved"], 0);

    // Same size and time, other content: seen with --checksum alone.
    let stamp = fs::metadata(source.join("f")).unwrap().modified().unwrap();
    fs::write(source.join("f"), b"F").unwrap();
    File::options().write(true).open(source.join("f")).unwrap().set_modified(stamp).unwrap();
    assert_eq!(run(&[])["bytes_moved"], 0);
    assert_eq!(run(&["--checksum"])["bytes_moved"], 1);
    assert_same(&tree::read(&source), &tree::read(&far));

    fs::write(source.join("run7/a"), b"changed").unwrap();
    fs::remove_dir_all(source.join("full")).unwrap();
    fs::write(far.join("extra"), b"x").unwrap();
    fs::create_dir_all(far.join("surplus/deep")).unwrap();
    let before = tree::read(&far);
    let report = run(&["--delete", "--dry-run"]);
    assert_same(&before, &tree::read(&far));
    let names = |key: &str| {
        let listed = report[key].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned());
        let mut names: Vec<String> = listed.collect();
        names.sort();
        names
    };
    assert_eq!(names("removed"), ["extra", "full", "surplus"]);
    assert_eq!(names("would_send"), ["run7/a"]);
    run(&[]);
    assert!(far.join("extra").exists() && far.join("full/run7/kept").exists());
    assert_eq!(run(&["--delete"])["deleted"], 3);
    assert_same(&tree::read(&source), &tree::read(&far));

    // The same the other way and between sites.
    let here = federation.scratch().join("back");
    titech.ok(&["sync", "--delete", &kek.place("run"), text(&here)]);
    titech.ok(&["sync", "--delete", &kek.place("run"), &titech.place("run")]);
    fs::write(here.join("extra"), b"x").unwrap();
    fs::write(titech.root().join("run/extra"), b"x").unwrap();
    titech.ok(&["sync", "--delete", &kek.place("run"), text(&here)]);
    titech.ok(&["sync", "--delete", &kek.place("run"), &titech.place("run")]);
    for copy in [here.as_path(), &titech.root().join("run")] {
        assert_same(&tree::read(&source), &tree::read(copy));
    }
}

/// Entries that the source has and does not send are not removed at the destination.
#[test]
fn sync_removes_no_name_of_a_special_file() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let source = federation.scratch().join("run");
    let far = kek.root().join("run");
    fs::create_dir(&source).unwrap();
    let mode = Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(CWD, source.join("pipe"), FileType::Fifo, mode, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(source.join("socket")).unwrap();
    let fill = |to: &Path| {
        fs::create_dir_all(to.join("socket")).unwrap();
        for name in ["pipe", "socket/in", "extra"] {
            fs::write(to.join(name), name).unwrap();
        }
    };
    fill(&far);
    let (status, report) = titech.json(&["sync", "--delete", "--dry-run", text(&source), &kek.place("run")]);
    assert_eq!((status, &report["removed"]), (0, &serde_json::json!(["extra"])), "{report}");
    let (status, report) = titech.json(&["sync", "--delete", text(&source), &kek.place("run")]);
    assert_eq!((status, &report["deleted"]), (0, &1.into()), "{report}");
    assert_eq!(fs::read(far.join("pipe")).unwrap(), b"pipe");
    assert!(far.join("socket/in").exists() && !far.join("extra").exists());
    // The other way the special file is at a site.
    rustix::fs::mknodat(CWD, far.join("fifo"), FileType::Fifo, mode, 0).unwrap();
    let here = federation.scratch().join("here");
    fill(&here);
    fs::write(here.join("fifo"), "kept").unwrap();
    titech.ok(&["sync", "--delete", &kek.place("run"), text(&here)]);
    assert_eq!(fs::read(here.join("fifo")).unwrap(), b"kept");
    assert!(!here.join("extra").exists());
}

/// A directory of the source that cannot be read leads to no removal at the destination.
#[test]
fn sync_removes_nothing_if_the_source_was_not_fully_read() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let source = federation.scratch().join("run");
    fs::create_dir_all(source.join("sub")).unwrap();
    fs::create_dir_all(kek.root().join("run/sub")).unwrap();
    fs::write(kek.root().join("run/sub/precious"), b"x").unwrap();
    let (status, report) =
        titech.json(&["sync", "--delete", text(&source.join("missing")), &kek.place("run")]);
    assert_eq!((status, &report["error"]["code"]), (3, &"RK-STORE-1".into()), "{report}");
    assert!(kek.root().join("run/sub/precious").exists());
}

#[test]
fn files_replace_files_and_nothing_else() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let here = federation.scratch();
    let far = kek.root();
    fs::create_dir_all(here.join("src/name")).unwrap();
    fs::write(here.join("src/name/in"), b"in").unwrap();
    fs::write(here.join("file"), b"new").unwrap();

    // A file by a file: a new inode, so that readers of the old one continue.
    fs::write(far.join("file"), b"old and longer").unwrap();
    let old = fs::metadata(far.join("file")).unwrap().ino();
    titech.ok(&["cp", text(&here.join("file")), &kek.place("file")]);
    assert_eq!(fs::read(far.join("file")).unwrap(), b"new");
    assert_ne!(fs::metadata(far.join("file")).unwrap().ino(), old);

    // A symbolic link at the destination's name is replaced, never written through.
    fs::write(far.join("target"), b"target").unwrap();
    fs::create_dir(far.join("d")).unwrap();
    symlink("../target", far.join("d/file")).unwrap();
    titech.ok(&["cp", text(&here.join("file")), &kek.place("d")]);
    assert_eq!(fs::read(far.join("target")).unwrap(), b"target");
    assert!(fs::symlink_metadata(far.join("d/file")).unwrap().is_file());

    // A directory where a file should go, and the other way round.
    fs::create_dir_all(far.join("x/file/kept")).unwrap();
    let (status, report) = titech.json(&["cp", text(&here.join("file")), &kek.place("x")]);
    assert_eq!((status, failures(&report)[0].1.as_str()), (4, "RK-STORE-4"), "{report}");
    assert!(far.join("x/file/kept").is_dir());
    fs::create_dir(far.join("src")).unwrap();
    fs::write(far.join("src/name"), b"a file").unwrap();
    let (status, report) = titech.json(&["cp", "-r", text(&here.join("src")), &kek.place("")]);
    assert_eq!(status, 23, "{report}");
    assert!(failures(&report).iter().all(|(_, code)| code == "RK-STORE-3"), "{report}");
    assert_eq!(fs::read(far.join("src/name")).unwrap(), b"a file");

    // Without -r a directory is left out.
    let (status, report) = titech.json(&["cp", text(&here.join("src")), &kek.place("new")]);
    assert_eq!((status, failures(&report)[0].1.as_str()), (4, "RK-STORE-4"), "{report}");
    assert!(!far.join("new").exists());
}

/// A link named by itself is followed, a link in a tree is kept, as by cp.
#[test]
fn links_named_as_sources_are_copied_as_by_cp() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let here = federation.scratch();
    fs::write(here.join("f"), b"content").unwrap();
    symlink("f", here.join("l")).unwrap();
    titech.ok(&["cp", text(&here.join("l")), &kek.place("followed")]);
    assert!(fs::symlink_metadata(kek.root().join("followed")).unwrap().is_file());
    titech.ok(&["cp", "-r", text(&here.join("l")), &kek.place("kept")]);
    assert_eq!(fs::read_link(kek.root().join("kept")).unwrap(), path(b"f"));
    titech.ok(&["cp", &kek.place("kept"), text(&here.join("down"))]);
}
