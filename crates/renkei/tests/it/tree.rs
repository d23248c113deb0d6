//! Trees with everything a file system can hold, and their contents for comparison.
//!
//! All access is by directory handle, one name at a time, so paths may be longer than the system's limit.

#![allow(dead_code, reason = "each test file uses a part of it")]

use renkei_store::marker::is_marker;
use renkei_store::temp::is_temp_name;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, SeekFrom, Timespec, Timestamps, XattrFlags};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// One mebibyte.
pub const MIB: usize = 1 << 20;

/// The object of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    kind: FileType,
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, u64),
    size: u64,
    digest: Option<blake3::Hash>,
    /// Ranges of data between holes.
    data: Vec<(u64, u64)>,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first of a file's names, in the order of the map.
    first_name: Option<Vec<u8>>,
}

/// A tree by path below its top; the top itself is the empty path.
pub type Tree = BTreeMap<Vec<u8>, Node>;

/// Reads all of a tree.
pub fn read(top: &Path) -> Tree {
    let dir = open_dir(CWD, top.as_os_str().as_bytes());
    let mut reader = Reader { tree: Tree::new(), inodes: HashMap::new() };
    reader.add(dir.as_fd(), b".", Vec::new());
    reader.below(dir.as_fd(), b"");
    reader.name_links();
    reader.tree
}

/// How many names a directory has, without the markers by which renkei knows it.
pub fn count(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| !is_marker(name.as_bytes())).count()
}

struct Reader {
    tree: Tree,
    inodes: HashMap<(u64, u64), Vec<Vec<u8>>>,
}

fn open_dir(at: BorrowedFd<'_>, name: &[u8]) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty()).unwrap()
}

impl Reader {
    fn below(&mut self, dir: BorrowedFd<'_>, prefix: &[u8]) {
        for listed in Dir::read_from(dir).unwrap() {
            let listed = listed.unwrap();
            let name = listed.file_name().to_bytes();
            if name == b"." || name == b".." || is_marker(name) {
                continue;
            }
            let mut path = prefix.to_vec();
            path.extend_from_slice(name);
            if self.add(dir, name, path.clone()) == FileType::Directory {
                path.push(b'/');
                self.below(open_dir(dir, name).as_fd(), &path);
            }
        }
    }

    fn add(&mut self, dir: BorrowedFd<'_>, name: &[u8], path: Vec<u8>) -> FileType {
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        let kind = FileType::from_raw_mode(stat.st_mode);
        let mut node = Node {
            kind,
            mode: stat.st_mode & 0o7777,
            owner: (stat.st_uid, stat.st_gid),
            mtime: (stat.st_mtime, stat.st_mtime_nsec),
            size: if kind == FileType::RegularFile { stat.st_size as u64 } else { 0 },
            digest: None,
            data: Vec::new(),
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            first_name: None,
        };
        match kind {
            FileType::RegularFile => {
                let file = rustix::fs::openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
                let mut file = File::from(file.unwrap());
                node.data = data_ranges(&file, node.size);
                let mut hasher = blake3::Hasher::new();
                std::io::copy(&mut file, &mut hasher).unwrap();
                node.digest = Some(hasher.finalize());
                if stat.st_nlink > 1 {
                    self.inodes.entry((stat.st_dev, stat.st_ino)).or_default().push(path.clone());
                }
            }
            FileType::Symlink => {
                node.target = rustix::fs::readlinkat(dir, name, Vec::new()).unwrap().into_bytes();
            }
            _ => {}
        }
        if kind != FileType::Symlink {
            node.xattrs = xattrs(dir, name);
        }
        self.tree.insert(path, node);
        kind
    }

    fn name_links(&mut self) {
        for names in self.inodes.values() {
            let first = names.iter().min().unwrap();
            for name in names.iter().filter(|_| names.len() > 1) {
                self.tree.get_mut(name).unwrap().first_name = Some(first.clone());
            }
        }
    }
}

fn data_ranges(file: &File, size: u64) -> Vec<(u64, u64)> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let Ok(start) = rustix::fs::seek(file, SeekFrom::Data(at)) else { break };
        at = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap();
        ranges.push((start, at));
    }
    rustix::fs::seek(file, SeekFrom::Start(0)).unwrap();
    ranges
}

fn proc_path(dir: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    path
}

fn xattrs(dir: BorrowedFd<'_>, name: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let path = proc_path(dir, name);
    let mut names = vec![0; 65536];
    let len = rustix::fs::llistxattr(&path, &mut names[..]).unwrap_or(0);
    let value = |name: &[u8]| {
        let mut value = vec![0; 65536];
        let len = rustix::fs::lgetxattr(&path, name, &mut value[..]).unwrap();
        (name.to_vec(), value[..len].to_vec())
    };
    names[..len].split(|&b| b == 0).filter(|name| !name.is_empty()).map(value).collect()
}

/// Fails with the differences between two trees, if there are any.
pub fn assert_same(expected: &Tree, found: &Tree) {
    let mut differences = Vec::new();
    for (path, node) in expected {
        match found.get(path) {
            None => differences.push(format!("missing {}", path.escape_ascii())),
            Some(other) if other != node => {
                differences
                    .push(format!("{}:\n  expected {node:?}\n  found    {other:?}", path.escape_ascii()));
            }
            Some(_) => {}
        }
    }
    for path in found.keys().filter(|path| !expected.contains_key(*path)) {
        differences.push(format!("surplus {}", path.escape_ascii()));
    }
    let shown: Vec<String> =
        differences.iter().take(20).map(|text| text.chars().take(1500).collect()).collect();
    assert!(differences.is_empty(), "{} differences\n{}", differences.len(), shown.join("\n"));
}

/// Whether two trees have the same names, types, contents and link targets; times and modes do not count.
pub fn assert_same_content(expected: &Tree, found: &Tree) {
    let plain = |tree: &Tree| -> Tree {
        let plain = |node: &Node| Node {
            mode: 0,
            owner: (0, 0),
            mtime: (0, 0),
            data: Vec::new(),
            xattrs: BTreeMap::new(),
            first_name: None,
            ..node.clone()
        };
        tree.iter().map(|(path, node)| (path.clone(), plain(node))).collect()
    };
    assert_same(&plain(expected), &plain(found));
}

/// Fails if a name in the tree is that of an unfinished copy.
pub fn assert_no_temporary(tree: &Tree) {
    let temp = tree.keys().find(|path| path.split(|&byte| byte == b'/').any(is_temp_name));
    assert_eq!(temp, None, "a temporary name is left");
}

/// Bytes that look random and are the same for the same seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&seed.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// Changes a byte of a file without changing its attributes.
pub fn rot(path: &Path) {
    let before = std::fs::metadata(path).unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    bytes[0] ^= 1;
    std::fs::write(path, bytes).unwrap();
    File::options().write(true).open(path).unwrap().set_modified(before.modified().unwrap()).unwrap();
}

/// A path from bytes.
pub fn path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn set_mtime(top: &Path, name: &[u8], secs: i64, nanos: i64) {
    let time = Timespec { tv_sec: secs, tv_nsec: nanos };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, top.join(path(name)), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn set_mode(path: &Path, mode: u32) {
    rustix::fs::chmod(path, Mode::from_raw_mode(mode)).unwrap();
}

/// Makes a tree below `top`, which must not exist, with all that must survive a copy.
pub fn make_nasty(top: &Path) {
    std::fs::create_dir(top).unwrap();
    make_sizes(&top.join("sizes"));
    make_sparse(&top.join("sparse"));
    make_links(&top.join("links"));
    make_modes(&top.join("modes"));
    make_names(&top.join("names"));
    make_attributes(&top.join("attributes"));
    make_deep(&top.join("deep"));
    make_times(&top.join("times"));
    set_mtime(top, b"", 1_000_000_000, 7);
}

fn make_sizes(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    let sizes = [0, 1, 4095, 4096, MIB - 1, MIB, MIB + 1, 16 * MIB, 16 * MIB + 1, 33 * MIB];
    for (seed, size) in sizes.into_iter().enumerate() {
        std::fs::write(dir.join(size.to_string()), noise(seed as u64, size)).unwrap();
    }
    std::fs::write(dir.join("zeros"), vec![0; 3 * MIB]).unwrap();
}

/// Files with holes at the start, in the middle, at the end and everywhere, small and large.
fn make_sparse(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    let file = |name: &str, size: u64, data: &[u64]| {
        let file = File::create(dir.join(name)).unwrap();
        file.set_len(size).unwrap();
        for &at in data {
            file.write_all_at(&noise(at, 8192), at).unwrap();
        }
    };
    const M: u64 = MIB as u64;
    file("all-hole", 40 * M, &[]);
    file("small-all-hole", 600_000, &[]);
    file("start", 20 * M, &[20 * M - 8192]);
    file("middle", 20 * M, &[0, 20 * M - 8192]);
    file("end", 20 * M, &[0]);
    file("many", 48 * M, &[M, 5 * M, 16 * M - 8192, 16 * M + 8192, 40 * M]);
    file("small-middle", 900_000, &[0, 819_200]);
    file("odd-end", 17 * M + 123, &[4 * M]);
    file("huge", 1 << 30, &[1 << 29]);
}

fn make_links(dir: &Path) {
    use std::os::unix::fs::symlink;
    std::fs::create_dir_all(dir.join("a/b")).unwrap();
    std::fs::create_dir(dir.join("c")).unwrap();
    std::fs::write(dir.join("a/first"), b"one file").unwrap();
    std::fs::write(dir.join("large"), noise(5, 2 * MIB)).unwrap();
    for (from, to) in
        [("a/first", "a/b/second"), ("a/first", "c/third"), ("large", "c/large"), ("large", "a/also-large")]
    {
        std::fs::hard_link(dir.join(from), dir.join(to)).unwrap();
    }
    for (target, name) in [
        (&b"/etc/passwd"[..], "absolute"),
        (b"a/first", "relative"),
        (b"nowhere/at/all", "dangling"),
        (b"a", "to-dir"),
        (b"../../../../etc", "out"),
        (b".", "self"),
        (b"loop", "loop"),
        (b"\xff\xfe/\x01\n", "not-utf8"),
        (&[b'x'; 4000], "long"),
    ] {
        symlink(path(target), dir.join(name)).unwrap();
        set_mtime(dir, name.as_bytes(), 1_100_000_000, 42);
    }
}

/// Every mode on files, a selection on directories.
fn make_modes(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    for mode in 0..0o10000 {
        let file = dir.join(format!("f{mode:04o}"));
        std::fs::write(&file, b"").unwrap();
        set_mode(&file, mode);
    }
    for mode in (0..0o10000).step_by(61).chain([0, 0o7777, 0o1777, 0o2755, 0o111]) {
        let sub = dir.join(format!("d{mode:04o}"));
        let _ = std::fs::create_dir(&sub);
        std::fs::write(sub.join("inside"), b"x").unwrap();
        set_mode(&sub, mode);
    }
    let big = dir.join("large-unreadable");
    std::fs::write(&big, noise(6, 2 * MIB)).unwrap();
    set_mode(&big, 0);
    set_mode(dir, 0o2750);
}

fn make_names(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    for byte in (1..=255u8).filter(|b| *b != b'/') {
        std::fs::write(dir.join(path(&[b'n', byte])), [byte]).unwrap();
        if byte != b'.' {
            std::fs::create_dir(dir.join(path(&[byte]))).unwrap();
        }
    }
    let long = [b'L'; 255];
    let long_odd: Vec<u8> = (0..255).map(|i| if i % 2 == 0 { 0xfe } else { 0x80 }).collect();
    for name in [
        &b"-rf"[..],
        b"--help",
        b"a\nb",
        b"...",
        b"..a",
        b"  ",
        b" lead",
        b"trail ",
        b"~x",
        b"**",
        b"$(x)",
        b"kek:",
        b"kek:\xff",
        b"C:\\x",
        b".rk~",
        b".rk~0-0",
        b"\xc3\xa9",
        b"e\xcc\x81",
        &long,
        &long_odd,
    ] {
        std::fs::write(dir.join(path(name)), name).unwrap();
    }
    let deep = dir.join(path(&[b'D'; 255])).join(path(&[0xff; 255]));
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::write(deep.join(path(&[b'F'; 255])), b"deep").unwrap();
}

fn make_attributes(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    let file = dir.join("file");
    let sub = dir.join("dir");
    let large = dir.join("large");
    std::fs::write(&file, b"x").unwrap();
    std::fs::write(&large, noise(8, 2 * MIB)).unwrap();
    std::fs::create_dir(&sub).unwrap();
    for target in [&file, &sub, &large] {
        set_xattr(target, b"user.text", b"plain");
        set_xattr(target, b"user.empty", b"");
        set_xattr(target, b"user.binary", &noise(9, 2000));
        set_xattr(target, b"user.\xff name", b"\0\xff\n");
    }
    for target in [&file, &sub, &large] {
        set_xattr(target, b"system.posix_acl_access", &acl(0o6));
    }
    set_xattr(&sub, b"system.posix_acl_default", &acl(0o7));
}

/// Sets an extended attribute; a file system without them is no place for these tests.
pub fn set_xattr(path: &Path, name: &[u8], value: &[u8]) {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty()).unwrap();
}

/// A POSIX ACL with a named user, as the kernel stores it (linux/posix_acl_xattr.h).
pub fn acl(user: u16) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let entries = [(1, 7, NOBODY), (2, user, 12345), (4, 5, NOBODY), (16, 7, NOBODY), (32, 0, NOBODY)];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&u16::to_le_bytes(tag));
        bytes.extend_from_slice(&u16::to_le_bytes(permissions));
        bytes.extend_from_slice(&u32::to_le_bytes(id));
    }
    bytes
}

/// 300 levels of directories, which makes a path of more than 4096 bytes.
fn make_deep(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    let mut here = open_dir(CWD, dir.as_os_str().as_bytes());
    for level in 0..300 {
        let name = format!("level-{level:03}-of-three-hundred");
        rustix::fs::mkdirat(&here, &name, Mode::from_raw_mode(0o755)).unwrap();
        here = open_dir(here.as_fd(), name.as_bytes());
        if level % 50 == 49 {
            let flags = OFlags::WRONLY | OFlags::CREATE;
            let file = rustix::fs::openat(&here, "file", flags, Mode::from_raw_mode(0o640)).unwrap();
            File::from(file).write_all(&noise(level, if level == 299 { 2 * MIB } else { 100 })).unwrap();
        }
    }
}

/// Times with nanoseconds, before 1970 and beyond 2038, on files and directories.
fn make_times(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    let times = [(0, 1), (-1, 999_999_999), (-1_000_000_000, 5), (4_000_000_000, 123_456_789), (1, 0)];
    for (index, (secs, nanos)) in times.into_iter().enumerate() {
        for name in [format!("file{index}"), format!("dir{index}"), format!("link{index}")] {
            match &name[..1] {
                "f" => std::fs::write(dir.join(&name), b"t").unwrap(),
                "d" => std::fs::create_dir_all(dir.join(&name).join("sub")).unwrap(),
                _ => std::os::unix::fs::symlink("x", dir.join(&name)).unwrap(),
            }
            set_mtime(dir, name.as_bytes(), secs, nanos);
        }
    }
    set_mtime(dir, b"", -5, 5);
}
