//! Trees to send in simulations.

use super::content::{Content, SlotDigests};
use super::disk::{Disk, ROOT};
use super::net::Path;
use super::transfer::{Setup, World};
use renkei_core::entry::{FileTime, Meta};
use renkei_core::mover::digest::SLOT_BYTES;
use renkei_core::path::RelPath;
use std::time::Duration;

pub fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

/// Puts a file under a name, replacing what is there.
pub fn put(disk: &mut Disk, name: &str, content: &Content) {
    let name = path(name);
    let (dir, name) = disk.place(&name).unwrap();
    disk.replace(dir, name, content).unwrap();
}

pub fn put_dir(disk: &mut Disk, name: &str) {
    let name = path(name);
    let (dir, name) = disk.place(&name).unwrap();
    disk.mkdir(dir, name, 0o755).unwrap();
}

pub fn put_link(disk: &mut Disk, first: &str, name: &str) {
    let (first, name) = (path(first), path(name));
    let (dir, first) = disk.place(&first).unwrap();
    let ino = disk.entry(dir, first).unwrap().ino;
    let (dir, name) = disk.place(&name).unwrap();
    disk.hard_link(ino, dir, name).unwrap();
}

pub fn remove(disk: &mut Disk, name: &str) {
    let name = path(name);
    let (dir, name) = disk.place(&name).unwrap();
    disk.remove_tree(dir, name).unwrap();
}

/// The bytes under a name.
pub fn read(disk: &Disk, name: &str) -> Vec<u8> {
    let name = path(name);
    let (dir, name) = disk.place(&name).unwrap();
    disk.content(disk.entry(dir, name).unwrap().ino).unwrap().read(0..u64::MAX)
}

/// A file with two patches of bytes in each extent and holes between them.
pub fn large(size: u64, version: u8) -> Content {
    let mut content = Content::hole(size);
    for slot in 0..size.div_ceil(SLOT_BYTES) {
        let start = slot * SLOT_BYTES;
        content.write(start + 4_096, &[version; 3_000]);
        content.write((start + 700_000).min(size - 1_200), &[version.wrapping_add(slot as u8); 1_200]);
    }
    content
}

/// A few of everything: small, empty, large, links, directories, names that are no text.
pub fn put_mixed_tree(disk: &mut Disk) {
    for dir in ["d", "d/e", "locked", "deep", "deep/only", "deep/only/one"] {
        put_dir(disk, dir);
    }
    put(disk, "a", &Content::of(b"first"));
    put(disk, "empty", &Content::default());
    put(disk, "d/b", &Content::of(&[7; 3_000]));
    put(disk, "d/e/c", &Content::of(b"deep"));
    put(disk, "d/large", &large(2 * SLOT_BYTES + 500_000, 1));
    put(disk, "d/e/one", &large(1_500_000, 2));
    put(disk, "locked/x", &Content::of(b"x"));
    put(disk, "deep/only/one/file", &Content::of(b"alone"));
    disk.replace(ROOT, b"\xff\n", &Content::of(b"no text")).unwrap();
    put_link(disk, "d/b", "d/e/b2");
    put_link(disk, "d/large", "large2");
    disk.symlink(ROOT, b"link", b"d/e/c").unwrap();
    lock(disk, "locked");
}

/// Takes the right to write away from a directory.
pub fn lock(disk: &mut Disk, name: &str) {
    let dir = disk.descend(&path(name)).unwrap();
    let meta = Meta { mode: 0o555, mtime: FileTime { secs: 77, nanos: 5 }, ..Meta::default() };
    disk.set_meta(dir, &meta).unwrap();
}

/// A world with that tree at its source.
pub fn mixed(setup: Setup, memo: &SlotDigests) -> World {
    let mut world = World::new(setup, memo.clone());
    put_mixed_tree(&mut world.source);
    world
}

/// A path so slow that several commits and many appends to the journal fall into one session.
pub fn slow() -> Setup {
    let path = Path { latency: Duration::from_millis(50), rate: 2_000 };
    Setup { path, sync_time: Duration::from_millis(250), ..Setup::default() }
}
