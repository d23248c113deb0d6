//! The part of the suite about where files are: handles of files, and locality.
#![allow(clippy::unwrap_used)] // a fixture that fails is a failed test

use super::workspace::{Create, Replace, Workspace};
use renkei_core::error::Code;
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Changes, Depth, FileHandle, Locality, MAX_FILE_HANDLE_BYTES, Watch};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Timeout for what comes at once.
const SOON: Duration = Duration::from_secs(30);

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

fn put(workspace: &Workspace, name: &str) {
    workspace.create(&path(name), Create::default()).unwrap().publish(None, None).unwrap();
}

fn found(workspace: &Workspace, handle: &FileHandle) -> Result<String, Code> {
    let found = workspace.by_handle(handle);
    found.map(|item| item.entry.path.to_string()).map_err(|error| error.code)
}

/// A handle leads to its file, whatever it is called now, until it is gone.
pub fn handles(workspace: &Workspace) {
    for dir in ["hand", "hand/a", "hand/b", "hand/b/deep"] {
        workspace.mkdir(&path(dir), 0o755).unwrap();
    }
    put(workspace, "hand/a/file");
    let handle = |name: &str| workspace.handle(&path(name)).unwrap();
    let (file, dir, top) = (handle("hand/a/file"), handle("hand/b"), handle(""));
    assert!([&file, &dir, &top].iter().all(|handle| handle.0.len() <= MAX_FILE_HANDLE_BYTES));
    assert_eq!(handle("hand/a/file"), file);
    assert_eq!(found(workspace, &dir).as_deref(), Ok("hand/b"));
    assert_eq!(found(workspace, &top), Ok(path("").to_string()));
    // In its directory, to another one, and with one above it.
    for (from, to, now) in [
        ("hand/a/file", "hand/a/named", "hand/a/named"),
        ("hand/a/named", "hand/b/deep/file", "hand/b/deep/file"),
        ("hand/b", "hand/c", "hand/c/deep/file"),
    ] {
        workspace.rename(&path(from), &path(to), Replace::No).unwrap();
        assert_eq!(found(workspace, &file).as_deref(), Ok(now));
    }
    assert_eq!(found(workspace, &dir).as_deref(), Ok("hand/c"));
    workspace.remove(&path("hand/c/deep/file")).unwrap();
    assert_eq!(found(workspace, &file), Err(Code::PathNotFound));
    assert_eq!(workspace.handle(&path("hand/none")).unwrap_err().code, Code::PathNotFound);
    for other in [vec![], vec![1; 16], vec![2; 20], [&file.0[..], &[0; MAX_FILE_HANDLE_BYTES]].concat()] {
        assert_eq!(found(workspace, &FileHandle(other)), Err(Code::UsageInvalid));
    }
    for dir in ["hand/c/deep", "hand/c", "hand/a", "hand"] {
        workspace.rmdir(&path(dir)).unwrap();
    }
}

/// What was written here is here; to stage it does nothing.
pub fn own_content_is_online(workspace: &Workspace) {
    put(workspace, "local");
    workspace.symlink(b"local", &path("way")).unwrap();
    workspace.stage(&path("way")).unwrap();
    assert_eq!(workspace.locality(&path("way")), Ok(Locality::Online));
    assert_eq!(workspace.locality(&path("")), Ok(Locality::Online));
    assert_eq!(workspace.locality(&path("none")).unwrap_err().code, Code::PathNotFound);
    assert_eq!(workspace.stage(&path("none")).unwrap_err().code, Code::PathNotFound);
    workspace.remove(&path("way")).unwrap();
    workspace.remove(&path("local")).unwrap();
}

/// Whether or not the place tells of changes.
pub fn changes_are_told_or_refused(workspace: &Workspace) {
    if let Err(error) = workspace.watch(&path(""), Depth::Tree) {
        assert_eq!(error.code, Code::Unsupported);
    }
}

/// The next changes.
fn told(watch: &mut dyn Watch) -> Vec<RelPath> {
    let begun = Instant::now();
    loop {
        let changes = watch.next(SOON).unwrap();
        assert!(!changes.is_incomplete && begun.elapsed() < SOON, "no changes are told");
        if !changes.paths.is_empty() {
            return changes.paths;
        }
    }
}

/// Waits until changes of these paths were told, in any order and maybe with others.
fn expect_told(watch: &mut dyn Watch, wanted: &[&str]) {
    let mut missing: BTreeSet<RelPath> = wanted.iter().map(|name| path(name)).collect();
    while !missing.is_empty() {
        let told = told(watch);
        missing.retain(|path| !told.contains(path));
    }
}

/// Changes, for places that tell of them.
pub fn changes(workspace: &Workspace) {
    for dir in ["seen", "seen/below", "unseen"] {
        workspace.mkdir(&path(dir), 0o755).unwrap();
    }
    let mut tree = workspace.watch(&path("seen"), Depth::Tree).unwrap();
    let mut one = workspace.watch(&path("seen"), Depth::One).unwrap();
    put(workspace, "unseen/file");
    put(workspace, "seen/below/file");
    expect_told(&mut *tree, &["seen/below/file"]);
    // Directories that came later, by either way.
    workspace.mkdir(&path("seen/new"), 0o755).unwrap();
    put(workspace, "seen/new/file");
    workspace.mkdir(&path("unseen/dir"), 0o755).unwrap();
    workspace.rename(&path("unseen/dir"), &path("seen/dir"), Replace::No).unwrap();
    put(workspace, "seen/dir/file");
    expect_told(&mut *tree, &["seen/new", "seen/new/file", "seen/dir", "seen/dir/file"]);
    expect_told(&mut *one, &["seen/new", "seen/dir"]);
    // One that goes is not told of any more.
    workspace.rename(&path("seen/dir"), &path("unseen/dir"), Replace::No).unwrap();
    expect_told(&mut *tree, &["seen/dir"]);
    workspace.remove(&path("unseen/dir/file")).unwrap();
    workspace.remove(&path("seen/new/file")).unwrap();
    assert_eq!(told(&mut *tree), [path("seen/new/file")]);
    assert_eq!(told(&mut *one), [path("seen/dir")]);
    assert_eq!(one.next(Duration::ZERO).unwrap(), Changes::default());
    for file in ["seen/below/file", "unseen/file"] {
        workspace.remove(&path(file)).unwrap();
    }
    for dir in ["seen/below", "seen/new", "seen", "unseen/dir", "unseen"] {
        workspace.rmdir(&path(dir)).unwrap();
    }
}
