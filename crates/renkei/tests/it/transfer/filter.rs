//! Which names a copy is about: rules, and lists of names, in each direction.

use crate::federation::Federation;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A tree with sources, built files, and a directory without interest.
fn fill(root: &Path) {
    for (path, text) in [
        ("run/a.h5", "a"),
        ("run/a.tmp", "t"),
        ("run/sub/b.h5", "b"),
        ("run/sub/b.o", "o"),
        ("run/sub/deep/c.h5", "c"),
        ("run/tmp/x.h5", "x"),
        ("run/sub/tmp", "a file"),
    ] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
}

/// All files and directories below a place.
fn below(root: &Path) -> BTreeSet<String> {
    let (mut found, mut todo) = (BTreeSet::new(), vec![root.to_path_buf()]);
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
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

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn filter_rules_hold_in_each_direction() {
    let federation = Federation::two();
    let (titech, kek) = (&federation.titech, &federation.kek);
    fill(titech.root());
    let here = titech.root().join("run").to_str().unwrap().to_owned();
    let rules = ["--exclude", "/run/tmp/", "--exclude", "*.tmp", "--exclude", "sub/*.o"];
    let expected = set(&["a.h5", "sub/", "sub/b.h5", "sub/deep/", "sub/deep/c.h5", "sub/tmp"]);
    titech.ok(&[&["cp", "-r"], &rules[..], &[&here, &kek.place("")]].concat());
    assert_eq!(below(&kek.root().join("run")), expected, "up");
    titech.ok(&[&["cp", "-r"], &rules[..], &[&titech.place("run"), &kek.place("between/")]].concat());
    assert_eq!(below(&kek.root().join("between/run")), expected, "between");
    // Below a source with a slash, its name is no part of the paths.
    let rules = ["--include", "*/", "--include", "*.h5", "--exclude", "*"];
    let down = titech.root().join("down");
    fill(&kek.root().join("all"));
    let source = format!("{}/", kek.place("all/run"));
    titech.ok(&[&["cp", "-r"], &rules[..], &[&source, down.to_str().unwrap()]].concat());
    let all = ["a.h5", "sub/", "sub/b.h5", "sub/deep/", "sub/deep/c.h5", "tmp/", "tmp/x.h5"];
    assert_eq!(below(&down), set(&all), "down");
    // Rules of a file, and those that make no sense.
    let file = titech.root().join("rules");
    fs::write(&file, "# none of these\n*.tmp\ntmp/\n").unwrap();
    let to = kek.place("from-file");
    titech.ok(&["cp", "-r", "--exclude-from", file.to_str().unwrap(), &format!("{here}/"), &to]);
    assert!(!kek.root().join("from-file/tmp").exists() && kek.root().join("from-file/sub/tmp").exists());
    assert_eq!(titech.renkei(&["cp", "-r", "--exclude", "", &here, &to]).status.code(), Some(2));
}

#[test]
fn sync_neither_sends_nor_removes_excluded_files() {
    let federation = Federation::two();
    let (titech, kek) = (&federation.titech, &federation.kek);
    fill(titech.root());
    let there = kek.root().join("run");
    fs::create_dir_all(there.join("old/tmp")).unwrap();
    fs::create_dir_all(there.join("gone")).unwrap();
    for path in ["keep.tmp", "gone/x", "old/y", "old/tmp/z", "z"] {
        fs::write(there.join(path), "there").unwrap();
    }
    let here = titech.root().join("run").to_str().unwrap().to_owned();
    let words = ["sync", "--delete", "--exclude", "*.tmp", "--exclude", "tmp/", &here, &kek.place("run")];
    let dry = titech.ok(&[&words[..], &["-n"]].concat());
    assert!(dry.contains("would remove  z") && !dry.contains("tmp/z") && !dry.contains("keep.tmp"), "{dry}");
    titech.ok(&words);
    let expected = [
        "a.h5",
        "keep.tmp",
        "old/",
        "old/tmp/",
        "old/tmp/z",
        "sub/",
        "sub/b.h5",
        "sub/b.o",
        "sub/deep/",
        "sub/deep/c.h5",
        "sub/tmp",
    ];
    assert_eq!(below(&there), set(&expected));
    // The same by the queue, the other way round.
    let back = kek.place("back");
    let queued = ["sync", "--detach", "--exclude", "*.tmp", "--delete", &titech.place("run"), &back];
    fs::create_dir(kek.root().join("back")).unwrap();
    fs::write(kek.root().join("back/own.tmp"), "own").unwrap();
    let id = titech.ok(&queued);
    titech.ok(&["wait", id.trim()]);
    let found = below(&kek.root().join("back"));
    assert!(found.contains("own.tmp") && found.contains("tmp/x.h5") && !found.contains("a.tmp"), "{found:?}");
}

#[test]
fn files_from_reads_names_of_a_list() {
    let federation = Federation::two();
    let (titech, kek) = (&federation.titech, &federation.kek);
    fill(titech.root());
    let list = titech.root().join("list");
    fs::write(&list, "sub/deep/c.h5\n./a.h5\n").unwrap();
    let list = list.to_str().unwrap();
    let here = titech.root().join("run").to_str().unwrap().to_owned();
    let expected = set(&["a.h5", "sub/", "sub/deep/", "sub/deep/c.h5"]);
    titech.ok(&["cp", "--files-from", list, &here, &kek.place("up")]);
    assert_eq!(below(&kek.root().join("up")), expected, "up");
    titech.ok(&["cp", "--files-from", list, &titech.place("run"), &kek.place("between")]);
    assert_eq!(below(&kek.root().join("between")), expected, "between");
    let down = titech.root().join("down");
    titech.ok(&["cp", "--files-from", list, &kek.place("up"), down.to_str().unwrap()]);
    assert_eq!(below(&down), expected, "down");
    fs::write(list, "sub\nmissing\n").unwrap();
    let partly = titech.renkei(&["cp", "-r", "--files-from", list, &here, &kek.place("whole")]);
    assert!(String::from_utf8_lossy(&partly.stderr).contains("missing"), "{partly:?}");
    assert!(!partly.status.success() && kek.root().join("whole/sub/deep/c.h5").exists());
    fs::write(list, "../list\n").unwrap();
    let refused = titech.renkei(&["cp", "--files-from", list, &here, &kek.place("up")]);
    assert!(!refused.status.success(), "{refused:?}");
    // More names than a site sends: refused before the destination is created.
    fs::write(list, (0..=1024).map(|number| format!("{number}\n")).collect::<String>()).unwrap();
    for to in [kek.place("many"), titech.root().join("many").to_str().unwrap().to_owned()] {
        let (_, report) = titech.json(&["cp", "--files-from", list, &titech.place("run"), &to]);
        assert_eq!(
            (report["error"]["code"].as_str(), report["error"]["side"].as_str()),
            (Some("RK-WIRE-7"), Some("client")),
            "{report}"
        );
    }
    assert!(!kek.root().join("many").exists() && !titech.root().join("many").exists());
}

#[test]
fn filter_rules_hold_for_buffered_copies() {
    let mut federation = Federation::two();
    let config = federation.titech.dir().join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}\n[buffer]\nsize_mib = 100\nper_user_mib = 100\n")).unwrap();
    federation.titech.restart();
    let (titech, kek) = (&federation.titech, &federation.kek);
    fill(&federation.scratch());
    let here = federation.scratch().join("run").to_str().unwrap().to_owned();
    let rules = ["--include", "/run/", "--include", "/run/*.h5", "--exclude", "*"];
    let id = titech.ok(&[&["-q", "cp", "-r", "--detach"], &rules[..], &[&here, "kek:/data/copy/"]].concat());
    titech.ok(&["wait", "--timeout", "60", id.trim()]);
    assert_eq!(below(&kek.root().join("copy/run")), set(&["a.h5"]));
}
