//! Files of a directory that is read file by file: those that follow are on their way before they are opened, in the order in
//! which programs read.

use crate::federation::Federation;
use crate::mount::can_mount;
use crate::tree::{self, MIB, noise};
use crate::wire::raw;
use crate::wire::raw::PATIENCE;
use renkei_core::entry::Entry;
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Answer, Files, Handle, Item, Op};
use renkei_mount::Options;
use renkei_mount::mountpoint;
use renkei_mount::mountpoint::Stop;
use renkei_mover::files::remote_files::{Config, RemoteDir, RemoteFiles, WhenLost};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

/// Files of the directory.
const FILES: u64 = 40;
/// So many may be opened before it is known in which order the others are: two, and some more if another order began alike.
const FIRST: u64 = 6;

fn rel(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

/// Files whose order by inode number differs from that by name.
fn make_files(dir: &Path) {
    fs::create_dir(dir).unwrap();
    for number in 0..FILES {
        let name = format!("f{:02}", number * 17 % FILES);
        fs::write(dir.join(name), noise(number, 3000 + number as usize)).unwrap();
    }
}

fn open(federation: &Federation, path: &str) -> RemoteFiles {
    let (titech, kek) = (&federation.titech, &federation.kek);
    let dialler = raw::dialler(titech, &raw::user(titech));
    let far = RemoteDir { dialler, site: raw::name(kek), place: raw::place(path), write: true };
    RemoteFiles::open(far, Config { when_lost: WhenLost::Fail(PATIENCE), ..Config::default() }).unwrap()
}

fn opened(files: &RemoteFiles, op: Op) -> Handle {
    match files.operate(op, b"").unwrap() {
        Answer::Opened { handle, .. } => handle,
        other => panic!("{other:?}"),
    }
}

/// The entries of a directory, as listed.
fn list(files: &RemoteFiles, dir: &str) -> Vec<Item> {
    let (handle, mut all) = (opened(files, Op::OpenDir(rel(dir))), Vec::new());
    loop {
        match files.operate(Op::ReadDir(handle), b"").unwrap().parted().0 {
            Answer::Items { items, more } => {
                all.extend(items);
                if !more {
                    files.operate(Op::Close(handle), b"").unwrap();
                    return all;
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

fn read(files: &RemoteFiles, path: &RelPath) -> Vec<u8> {
    let (handle, mut content) = (opened(files, Op::Open(path.clone())), vec![0; 10_000]);
    let count = files.read(handle, 0, &mut content).unwrap();
    content.truncate(count);
    files.operate(Op::Close(handle), b"").unwrap();
    content
}

#[test]
fn files_opened_by_inode_by_name_or_as_listed_are_prefetched() {
    let federation = Federation::two();
    make_files(&federation.kek.root().join("d"));
    let orders: [fn(&mut Vec<Item>); 3] = [
        |items| items.sort_by_key(|item| item.ino),
        |items| items.sort_by(|one, other| one.entry.path.cmp(&other.entry.path)),
        |_| {},
    ];
    for (number, order) in orders.iter().enumerate() {
        let files = open(&federation, "/data");
        let mut items = list(&files, "d");
        order(&mut items);
        for Item { entry: Entry { path, .. }, .. } in items {
            let path = rel("d").join(&path).unwrap();
            assert!(read(&files, &path) == fs::read(federation.kek.root().join(path.to_string())).unwrap());
        }
        assert!(files.foreseen() >= FILES - FIRST, "order {number}: {}", files.foreseen());
    }
}

#[test]
fn prefetched_content_is_dropped_if_it_changed_before_the_open() {
    let federation = Federation::two();
    let dir = federation.kek.root().join("d");
    make_files(&dir);
    let files = open(&federation, "/data");
    list(&files, "d");
    for name in 0..10 {
        read(&files, &rel(&format!("d/f{name:02}")));
    }
    let before = files.foreseen();
    assert!(before > 0);
    fs::write(dir.join("f10"), "in place").unwrap();
    fs::write(dir.join("new"), "another").unwrap();
    fs::rename(dir.join("new"), dir.join("f11")).unwrap();
    fs::remove_file(dir.join("f12")).unwrap();
    assert_eq!(read(&files, &rel("d/f10")), b"in place");
    assert_eq!(read(&files, &rel("d/f11")), b"another");
    assert!(files.operate(Op::Open(rel("d/f12")), b"").is_err());
    assert_eq!(read(&files, &rel("d/f13")), fs::read(dir.join("f13")).unwrap());
    assert_eq!(files.foreseen(), before + 3);
}

#[test]
fn a_prefetched_version_with_valid_attributes_is_opened_without_the_site() {
    let mut federation = Federation::two();
    let dir = federation.kek.root().join("d");
    make_files(&dir);
    // Of more than one part.
    let long = noise(1, 3 * MIB + 17);
    ["f10", "f12"].iter().for_each(|name| fs::write(dir.join(name), &long).unwrap());
    let files = open(&federation, "/data");
    let items = list(&files, "d");
    for name in 0..10 {
        read(&files, &rel(&format!("d/f{name:02}")));
    }
    let opens = |name: &str| {
        let (path, name) = (rel("d").join(&rel(name)).unwrap(), rel(name));
        let known = items.iter().find(|item| item.entry.path == name).unwrap();
        files.open_brought(&path, &|item| (item.ino, item.ctime) == (known.ino, known.ctime))
    };
    let content = |handle| {
        let mut content = vec![0; 4 * MIB];
        let count = files.read(handle, 0, &mut content).unwrap();
        content.truncate(count);
        content
    };
    assert_eq!(opens("f09"), None, "it was read, and nothing of it is left");
    let kept = opens("f10").unwrap();
    let mut piece = [0; 100];
    assert_eq!(files.read(kept, (2 * MIB - 50) as u64, &mut piece).unwrap(), 100);
    assert_eq!(piece, long[2 * MIB - 50..2 * MIB + 50]);
    assert_eq!(files.read(kept, long.len() as u64 - 3, &mut piece).unwrap(), 3);
    assert_eq!(files.read(kept, long.len() as u64, &mut piece).unwrap(), 0);
    // Another version than the known one is useless, but a request returns it.
    assert_eq!(files.open_brought(&rel("d/f11"), &|_| false), None);
    let before = files.foreseen();
    assert_eq!(read(&files, &rel("d/f11")), fs::read(dir.join("f11")).unwrap());
    assert_eq!(files.foreseen(), before + 1);
    // Open files keep their version.
    fs::write(dir.join("new"), "another").unwrap();
    fs::rename(dir.join("new"), dir.join("f10")).unwrap();
    let lost = opens("f12").unwrap();
    federation.kek.stop();
    assert!(content(kept) == long && content(lost) == long);
    for handle in [kept, lost] {
        files.operate(Op::Close(handle), b"").unwrap();
    }
}

#[test]
fn a_tree_copied_out_of_a_mount_is_prefetched() {
    if !can_mount() {
        return;
    }
    let federation = Federation::two();
    let there = federation.kek.root().join("d");
    make_files(&there);
    let numbers = (0..FILES).map(|name| fs::metadata(there.join(format!("f{name:02}"))).unwrap().ino());
    assert!(!numbers.is_sorted(), "else nothing is shown");
    let files = Arc::new(open(&federation, "/data"));
    let (point, copy) = (federation.scratch().join("mnt"), federation.scratch().join("copy"));
    fs::create_dir(&point).unwrap();
    let options = Options {
        source: "kek:/data".into(),
        point: point.clone(),
        is_read_only: true,
        allow_other: false,
        attr_ttl: Duration::from_secs(60),
        closes_early: false,
        locks_at_site: false,
        ends_process: false,
    };
    let (stop, (ready, is_ready)) = (Stop::default(), mpsc::channel());
    thread::scope(|scope| {
        scope.spawn(|| {
            let tell = || {
                ready.send(()).unwrap();
                Ok(())
            };
            mountpoint::run(files.clone(), &options, &stop, tell).unwrap();
        });
        is_ready.recv_timeout(PATIENCE).unwrap();
        let done =
            Command::new("timeout").arg("60").args(["cp", "-r"]).arg(point.join("d")).arg(&copy).status();
        stop.stop();
        assert!(done.unwrap().success());
    });
    tree::assert_same_content(&tree::read(&there), &tree::read(&copy));
    assert!(files.foreseen() >= FILES - FIRST, "{}", files.foreseen());
}
