//! Names of copied files: listed with -v, given by patterns in places at sites, selected by rules as in rsync.

use crate::federation::{Federation, Site};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

fn write_all(root: &Path, names: &[&str]) {
    for name in names {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, name).unwrap();
    }
}

fn lines(text: &str) -> BTreeSet<String> {
    text.lines().filter(|line| line.starts_with("run")).map(str::to_owned).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// All files and directories below a place.
fn below(root: &Path) -> BTreeSet<String> {
    let (mut found, mut todo) = (BTreeSet::new(), vec![root.to_path_buf()]);
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten() {
            let path = entry.unwrap().path();
            let shown = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                todo.push(path);
                found.insert(format!("{shown}/"));
            } else {
                found.insert(shown);
            }
        }
    }
    found
}

#[test]
fn verbose_copies_list_what_arrived_in_each_direction() {
    let federation = Federation::two();
    let (titech, kek) = (&federation.titech, &federation.kek);
    write_all(titech.root(), &["run/a", "run/b c", "run/sub/d"]);
    let here = titech.root().join("run").to_str().unwrap().to_owned();
    let all = set(&["run/a", "run/b c", "run/sub/d"]);
    let listed = |words: &[&str]| lines(&titech.ok(words));
    assert_eq!(listed(&["cp", "-rv", &here, &kek.place("")]), all, "up");
    assert_eq!(listed(&["cp", "-r", "-v", &titech.place("run"), &kek.place("between/")]), all, "between");
    let down = federation.scratch().join("down");
    fs::create_dir(&down).unwrap();
    assert_eq!(listed(&["cp", "-rv", &kek.place("run"), down.to_str().unwrap()]), all, "down");
    // Existing files are not listed, and without -v no names are.
    fs::write(titech.root().join("run/a"), "another content").unwrap();
    let (from, to) = (format!("{here}/"), kek.place(""));
    assert_eq!(listed(&["cp", "-ruv", &here, &to]), set(&["run/a"]));
    let quiet = titech.ok(&["cp", "-r", &from, &kek.place("other")]);
    assert_eq!(quiet.lines().count(), 1, "{quiet}");
}

#[test]
fn patterns_in_places_at_sites_are_expanded() {
    let federation = Federation::two();
    let (titech, kek) = (&federation.titech, &federation.kek);
    write_all(
        kek.root(),
        &["run/a.dat", "run/b.dat", "run/.hidden.dat", "run/c.txt", "run/sub/e.dat", "old/a.dat"],
    );
    write_all(kek.root(), &["odd/[x]", "odd/x"]);
    let here = federation.scratch().join("here");
    fs::create_dir(&here).unwrap();
    let to = here.to_str().unwrap();
    titech.ok(&["cp", &kek.place("run/*.dat"), to]);
    assert_eq!(below(&here), set(&["a.dat", "b.dat"]));
    titech.ok(&["cp", &kek.place("r*/a.dat"), &kek.place("[ro]*/sub/?.dat"), to]);
    assert_eq!(below(&here), set(&["a.dat", "b.dat", "e.dat"]));
    // Site to site, and by the queue.
    titech.ok(&["cp", &kek.place("run/*.dat"), &titech.place("")]);
    assert!(titech.root().join("b.dat").exists() && !titech.root().join(".hidden.dat").exists());
    let id = titech.ok(&["cp", "--detach", &kek.place("run/c*"), &titech.place("c/")]);
    titech.ok(&["wait", id.split_whitespace().next().unwrap()]);
    assert!(titech.root().join("c/c.txt").exists());
    // A name that exists as it is written is that name.
    assert_eq!(titech.ok(&["cat", &kek.place("odd/[x]")]), "odd/[x]");
    titech.ok(&["rm", &kek.place("odd/[x]")]);
    assert_eq!(below(&kek.root().join("odd")), set(&["x"]));
    // Other verbs.
    assert_eq!(titech.ok(&["ls", "-d", &kek.place("run/*.dat")]).lines().count(), 2);
    titech.ok(&["mv", &kek.place("run/?.dat"), &kek.place("old")]);
    assert_eq!(below(&kek.root().join("old")), set(&["a.dat", "b.dat"]));
    titech.ok(&["rm", &kek.place("old/*")]);
    assert!(below(&kek.root().join("old")).is_empty());
    // Without a match it is a name that does not exist.
    let none = titech.renkei(&["rm", &kek.place("old/*")]);
    let told = String::from_utf8_lossy(&none.stderr);
    assert!(none.status.code() == Some(3) && told.contains("no name matches the pattern"), "{told}");
}

/// The names rsync copies under the same rules.
fn by_rsync(from: &Path, rules: &[&str], to: &Path) -> BTreeSet<String> {
    let output = Command::new("rsync").arg("-r").args(rules).arg(from).arg(to).output().unwrap();
    assert!(output.status.success(), "{rules:?}: {output:?}");
    below(to)
}

fn by_renkei(site: &Site, from: &str, rules: &[&str], to: &str, at: &Path) -> BTreeSet<String> {
    site.ok(&[&["cp", "-r"], rules, &[from, to]].concat());
    below(at)
}

#[test]
fn filter_rules_select_the_same_files_as_rsync() {
    if Command::new("rsync").arg("--version").output().is_err() {
        return eprintln!("SKIPPED: needs rsync");
    }
    let federation = Federation::two();
    let (titech, kek) = (&federation.titech, &federation.kek);
    let run = federation.scratch().join("run");
    write_all(
        &run,
        &[
            "a.h5",
            "a.tmp",
            "sub/b.h5",
            "sub/b.o",
            "sub/deep/c.h5",
            "sub/deep/c.o",
            "tmp/x.h5",
            "sub/tmp",
            "sub/tmp2/y",
        ],
    );
    write_all(
        &run,
        &["[odd]", "B1", "b-1", "sub/run/z", ".hid/q", "core", "sub/core/w", "x y/z w", "back\\slash"],
    );
    let cases: [&[&str]; 30] = [
        &["--exclude", "*.tmp"],
        &["--exclude", "tmp"],
        &["--exclude", "tmp/"],
        &["--exclude", "/run/tmp"],
        &["--exclude", "/tmp"],
        &["--exclude", "run/tmp"],
        &["--exclude", "sub/*.o"],
        &["--exclude", "sub/**.o"],
        &["--exclude", "**/c.h5"],
        &["--exclude", "**/sub"],
        &["--exclude", "sub/**"],
        &["--exclude", "sub/***"],
        &["--exclude", "/run/sub/***"],
        &["--exclude", "deep/*"],
        &["--exclude", "[A-Z]*"],
        &["--exclude", "[!a-z]*"],
        &["--exclude", "[^.]*.o"],
        &["--exclude", "[[:upper:]]*"],
        &["--exclude", "\\[odd\\]"],
        &["--exclude", "back\\\\slash"],
        &["--exclude", "?1"],
        &["--exclude", "[[:digit:]B[:punct:]]*"],
        &["--exclude", "[\\[]*"],
        &["--exclude", ".*"],
        &["--exclude", "x y/"],
        &["--exclude", "core"],
        &["--include", "*/", "--include", "*.h5", "--exclude", "*"],
        &["--include", "/run/", "--include", "/run/sub/", "--include", "*.o", "--exclude", "*"],
        &["--include", "/run/sub/***", "--include", "/run/", "--exclude", "*"],
        &["--exclude", "*.o", "--include", "c.o", "--exclude", "deep/"],
    ];
    let from = run.to_str().unwrap();
    for (number, rules) in cases.iter().enumerate() {
        let expected = by_rsync(&run, rules, &federation.scratch().join(format!("by-rsync-{number}")));
        let name = format!("by-renkei-{number}/");
        let found = by_renkei(titech, from, rules, &kek.place(&name), &kek.root().join(&name));
        assert_eq!(found, expected, "{rules:?}");
    }
}

#[test]
fn a_files_from_list_is_read_as_by_rsync() {
    if Command::new("rsync").arg("--version").output().is_err() {
        return eprintln!("SKIPPED: needs rsync");
    }
    let federation = Federation::two();
    let (titech, kek) = (&federation.titech, &federation.kek);
    let run = federation.scratch().join("run");
    write_all(&run, &["a", "sub/b", "sub/deep/c", "*.x", "y.x", "#d", "x y", "other/e"]);
    let list = federation.scratch().join("list");
    // Comments, a leading slash, dots, a pattern that is a name, a directory.
    fs::write(&list, "# a comment\n; another\n/a\n./sub//deep/c\n*.x\nx y\nother\n\n").unwrap();
    let list = list.to_str().unwrap();
    let from = format!("{}/", run.display());
    for (name, recursive) in [("flat", &[][..]), ("deep", &["-r"])] {
        let by_rsync = federation.scratch().join(name);
        let output = Command::new("rsync")
            .arg("-t")
            .args(recursive)
            .args(["--files-from", list, &from])
            .arg(&by_rsync)
            .output();
        assert!(output.unwrap().status.success());
        titech.ok(&[&["cp"], recursive, &["--files-from", list, &from, &kek.place(name)]].concat());
        assert_eq!(below(&kek.root().join(name)), below(&by_rsync), "{name}");
    }
}
