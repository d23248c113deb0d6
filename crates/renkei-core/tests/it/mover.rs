//! Whole transfers with faults, on the simulator.

use renkei_core::entry::{FileTime, Meta};
use renkei_core::mover::digest::SLOT_BYTES;
use renkei_core::path::RelPath;
use renkei_core::sim::content::{Content, SlotDigests};
use renkei_core::sim::disk::{Crash, Disk, ROOT};
use renkei_core::sim::net::Path;
use renkei_core::sim::transfer::{Fault, Outcome, Setup, World};
use std::time::Duration;

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

fn put(disk: &mut Disk, name: &str, content: &Content) {
    let name = path(name);
    let (dir, name) = disk.place(&name).unwrap();
    disk.replace(dir, name, content).unwrap();
}

fn put_dir(disk: &mut Disk, name: &str) {
    let name = path(name);
    let (dir, name) = disk.place(&name).unwrap();
    disk.mkdir(dir, name, 0o755).unwrap();
}

fn put_link(disk: &mut Disk, first: &str, name: &str) {
    let (first, name) = (path(first), path(name));
    let (dir, first) = disk.place(&first).unwrap();
    let ino = disk.entry(dir, first).unwrap().ino;
    let (dir, name) = disk.place(&name).unwrap();
    disk.hard_link(ino, dir, name).unwrap();
}

/// A file of several extents, mostly holes.
fn large(size: u64, version: u8) -> Content {
    let mut content = Content::hole(size);
    for slot in 0..size.div_ceil(SLOT_BYTES) {
        let start = slot * SLOT_BYTES;
        content.write(start + 4_096, &[version; 3_000]);
        content.write((start + 700_000).min(size - 1_200), &[version + slot as u8; 1_200]);
    }
    content
}

/// A few of everything: small, empty, large, links, directories.
fn put_mixed_tree(disk: &mut Disk) {
    put_dir(disk, "d");
    put_dir(disk, "d/e");
    put_dir(disk, "locked");
    put(disk, "a", &Content::of(b"first"));
    put(disk, "empty", &Content::default());
    put(disk, "d/b", &Content::of(&[7; 3_000]));
    put(disk, "d/e/c", &Content::of(b"deep"));
    put(disk, "d/large", &large(2 * SLOT_BYTES + 5_000_000, 1));
    put(disk, "d/e/one", &large(1_500_000, 2));
    put(disk, "locked/x", &Content::of(b"x"));
    put_link(disk, "d/b", "d/e/b2");
    put_link(disk, "d/large", "large2");
    disk.symlink(ROOT, b"link", b"d/e/c").unwrap();
    let locked = disk.descend(&path("locked")).unwrap();
    let meta = Meta { mode: 0o555, mtime: FileTime { secs: 77, nanos: 5 }, ..Meta::default() };
    disk.set_meta(locked, &meta).unwrap();
}

fn world(setup: Setup, memo: &SlotDigests) -> World {
    let mut world = World::new(setup, memo.clone());
    put_mixed_tree(&mut world.source);
    world
}

fn slow() -> Setup {
    let path = Path { latency: Duration::from_millis(50), rate: 5_000 };
    Setup { path, sync_time: Duration::from_millis(250), ..Setup::default() }
}

#[test]
fn a_plain_run_copies_everything() {
    let memo = SlotDigests::default();
    let summary = world(Setup::default(), &memo).settle().unwrap();
    assert_eq!((summary.files, summary.dirs, summary.links, summary.failed), (7, 4, 3, 0));
}

#[test]
fn a_crash_after_any_change_loses_nothing() {
    let memo = SlotDigests::default();
    let mut broken = std::collections::BTreeMap::<String, Vec<String>>::new();
    for base in [Setup::default(), slow()] {
        let mut plain = world(base.clone(), &memo);
        plain.session(Fault::None).unwrap();
        let changes = plain.changes();
        assert!(changes > 50);
        eprintln!("{changes} {:?}", plain.now());
        for crash in [Crash::Kill, Crash::PowerLosesAll, Crash::Power] {
            for after in 0..changes {
                for privileged in [true, false] {
                    let setup = Setup { seed: after, privileged, ..base.clone() };
                    let mut world = world(setup, &memo);
                    let ended = world.session(Fault::Crash(crash, after));
                    let settled = ended.and_then(|outcome| {
                        assert!(matches!(outcome, Outcome::Crashed), "{outcome:?}");
                        world.settle()
                    });
                    if let Err(why) = settled {
                        broken.entry(why).or_default().push(format!("{crash:?} {after} {privileged}"));
                    }
                }
            }
        }
    }
    for (why, w) in &broken {
        eprintln!("{why}: {} {:?}", w.len(), &w[..w.len().min(4)]);
    }
    assert!(broken.is_empty());
}
