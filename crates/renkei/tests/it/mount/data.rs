//! Reading and writing through a mount: random calls against a model, mappings, appending, many threads, real programs.

use crate::cli::errors::Mounted;
use crate::mount::{Mount, number};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Time within which repeated reads become correct.
const WITHIN: Duration = Duration::from_secs(20);
/// Largest size of the file that random calls work on.
const MODEL_BYTES: usize = 200_000;

/// A sequence of numbers that is the same in every run.
pub struct Chance(pub u64);

impl Chance {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }
}

/// A mapping of a whole file, shared.
struct Mapping {
    at: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    fn of(file: &File, len: usize) -> Mapping {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the place, and the mapping is used up to the file's length alone.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Mapping { at, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has that length and lives as long as this.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped so.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

#[test]
fn data_refused_by_a_full_disk_is_not_shown() {
    let Some(mount) = Mount::new() else { return };
    let Some(_small) = Mounted::tmpfs(&mount.there("small"), "size=2m") else { return };
    let (path, there) = (mount.path("small/file"), mount.there("small/file"));
    for (size, truncates) in [(5000, true), (700_000, true), (700_000, false)] {
        let old = vec![b'o'; size];
        fs::write(&path, &old).unwrap();
        let filler = mount.there("small/filler");
        assert!(fs::write(&filler, vec![0; 2 << 20]).is_err());
        let mut file = File::options().write(true).truncate(truncates).open(&path).unwrap();
        let written = file.write_all(&vec![b'n'; size]).and_then(|()| file.sync_all());
        assert_eq!(number(written), libc::ENOSPC, "{size}, {truncates}");
        drop(file);
        let begin = Instant::now();
        while fs::read(&path).is_ok_and(|seen| seen != old) {
            assert!(begin.elapsed() < WITHIN, "{size}, {truncates}: refused data is shown");
        }
        assert_eq!(fs::read(&there).unwrap(), old);
        fs::remove_file(&filler).unwrap();
    }
}

/// One random call on the file and the model.
fn step(chance: &mut Chance, file: &mut File, path: &Path, model: &mut Vec<u8>) {
    let from = chance.below(MODEL_BYTES);
    let count = 1 + chance.below(20_000).min(MODEL_BYTES - from);
    let call = chance.below(10);
    match call {
        0..=3 => {
            let bytes = chance.bytes(count);
            file.write_all_at(&bytes, from as u64).unwrap();
            put(model, from, &bytes);
        }
        4..=6 => {
            let mut bytes = vec![0; count];
            let read = file.read_at(&mut bytes, from as u64).unwrap();
            let expected = &model[from.min(model.len())..(from + count).min(model.len())];
            assert_eq!((read, &bytes[..read]), (expected.len(), expected));
        }
        7 => {
            file.set_len(from as u64).unwrap();
            model.resize(from, 0);
        }
        8 if !model.is_empty() => map(chance, file, model),
        8 => {}
        _ => reopen(chance, file, path, model),
    }
    assert_eq!(file.metadata().unwrap().len(), model.len() as u64, "after call {call} of {count} at {from}");
}

fn put(model: &mut Vec<u8>, from: usize, bytes: &[u8]) {
    model.resize(model.len().max(from + bytes.len()), 0);
    model[from..from + bytes.len()].copy_from_slice(bytes);
}

/// Reads all through a mapping, and writes a part.
fn map(chance: &mut Chance, file: &File, model: &mut [u8]) {
    let mut mapping = Mapping::of(file, model.len());
    assert!(mapping.bytes() == model, "the mapping differs");
    let from = chance.below(model.len());
    let count = (1 + chance.below(5000)).min(model.len() - from);
    let bytes = chance.bytes(count);
    mapping.bytes()[from..from + count].copy_from_slice(&bytes);
    model[from..from + count].copy_from_slice(&bytes);
}

/// Syncs, or closes the file and opens it again, or reads it as another program does.
fn reopen(chance: &mut Chance, file: &mut File, path: &Path, model: &[u8]) {
    match chance.below(3) {
        0 => file.sync_all().unwrap(),
        1 => assert!(fs::read(path).unwrap() == model, "another open sees other bytes"),
        _ => *file = File::options().read(true).write(true).open(path).unwrap(),
    }
}

#[test]
fn random_calls_agree_with_the_model() {
    let Some(mount) = Mount::new() else { return };
    for seed in [1, 0x9e37_79b9_7f4a_7c15] {
        let (mut chance, mut model) = (Chance(seed), Vec::new());
        let path = mount.path("model");
        let mut file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        for _ in 0..250 {
            step(&mut chance, &mut file, &path, &mut model);
        }
        drop(file);
        assert!(fs::read(&path).unwrap() == model);
        assert!(fs::read(mount.there("model")).unwrap() == model, "the site has other bytes");
    }
}

#[test]
fn mapped_pages_are_written_back_after_close() {
    let Some(mount) = Mount::new() else { return };
    let file = File::options().read(true).write(true).create_new(true).open(mount.path("f")).unwrap();
    file.set_len(10_000).unwrap();
    let mut mapping = Mapping::of(&file, 10_000);
    drop(file);
    mapping.bytes()[9_000] = 7;
    drop(mapping);
    // The kernel writes the mapped pages back and closes the file by itself.
    let begin = std::time::Instant::now();
    while fs::read(mount.there("f")).unwrap().get(9_000) != Some(&7) {
        assert!(begin.elapsed().as_secs() < 20, "mapped pages are not at the site");
        thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn appends_go_to_the_end_of_the_file() {
    let Some(mount) = Mount::new() else { return };
    let append = |text: &str| {
        let mut file = File::options().append(true).create(true).open(mount.path("log")).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    };
    append("one ");
    fs::metadata(mount.path("log")).unwrap();
    let mut there = File::options().append(true).open(mount.there("log")).unwrap();
    there.write_all(b"two ").unwrap();
    append("three ");
    assert_eq!(fs::read_to_string(mount.path("log")).unwrap(), "one two three ");
    let threads: Vec<_> = (0..4)
        .map(|number| {
            let path = mount.path("log");
            thread::spawn(move || {
                let mut file = File::options().append(true).open(path).unwrap();
                for line in 0..50 {
                    file.write_all(format!("{number}.{line}\n").as_bytes()).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let text = fs::read_to_string(mount.there("log")).unwrap();
    assert_eq!(text.lines().count(), 200);
    let first = |number: usize| {
        text.lines()
            .filter(move |line| line.trim_start_matches("one two three ").starts_with(&format!("{number}.")))
    };
    for number in 0..4 {
        assert_eq!(first(number).count(), 50, "{text}");
    }
}

#[test]
fn a_removed_file_is_usable_until_it_is_closed() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.path("f"), "content").unwrap();
    let mut reader = File::open(mount.path("f")).unwrap();
    let mut file = File::options().read(true).write(true).open(mount.path("f")).unwrap();
    fs::remove_file(mount.path("f")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(b" and more").unwrap();
    file.sync_all().unwrap();
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "content and more");
    text.clear();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "content and more");
    drop((file, reader));
    // The kernel says later that the file was closed.
    let begin = std::time::Instant::now();
    while crate::tree::count(mount.site.root()) > 0 {
        assert!(begin.elapsed().as_secs() < 20, "something stays");
        thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_file_renamed_while_open_is_published_at_the_new_name() {
    let Some(mount) = Mount::new() else { return };
    fs::create_dir_all(mount.path("a/b")).unwrap();
    fs::create_dir(mount.path("z")).unwrap();
    let mut file = File::create(mount.path("a/b/f")).unwrap();
    file.write_all(b"one ").unwrap();
    fs::rename(mount.path("a/b/f"), mount.path("a/b/g")).unwrap();
    file.write_all(b"two ").unwrap();
    fs::rename(mount.path("a"), mount.path("z/a")).unwrap();
    file.write_all(b"three").unwrap();
    drop(file);
    assert_eq!(fs::read_to_string(mount.there("z/a/b/g")).unwrap(), "one two three");
    assert_eq!(fs::read_dir(mount.there("z/a/b")).unwrap().count(), 1);
    // A rename over a file that is open for writing: its writes are lost.
    let mut old = File::create(mount.path("old")).unwrap();
    old.write_all(b"old").unwrap();
    fs::write(mount.path("new"), "new").unwrap();
    fs::rename(mount.path("new"), mount.path("old")).unwrap();
    drop(old);
    assert_eq!(fs::read_to_string(mount.there("old")).unwrap(), "new");
}

#[test]
fn times_modes_and_sizes_are_preserved() {
    let Some(mount) = Mount::new() else { return };
    let path = mount.path("f");
    let mut file = File::create(&path).unwrap();
    file.write_all(b"x").unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    file.set_modified(time).unwrap();
    file.set_permissions(PermissionsExt::from_mode(0o640)).unwrap();
    drop(file);
    let there = fs::metadata(mount.there("f")).unwrap();
    assert_eq!((there.modified().unwrap(), there.mode() & 0o7777), (time, 0o640));
    // On a file without a writer.
    File::options().write(true).open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o604)).unwrap();
    let (here, there) = (fs::metadata(&path).unwrap(), fs::metadata(mount.there("f")).unwrap());
    assert_eq!((there.mtime(), there.mode() & 0o7777), (0, 0o604));
    assert_eq!((here.mtime(), here.mode() & 0o7777, here.len()), (0, 0o604, 1));
    // truncate(2), without a close.
    let cut =
        |bytes: u64| Command::new("truncate").args(["-s", &bytes.to_string()]).arg(&path).status().unwrap();
    for bytes in [5000, 3, 0] {
        assert!(cut(bytes).success());
        assert_eq!(fs::metadata(mount.there("f")).unwrap().len(), bytes);
        assert_eq!(fs::metadata(&path).unwrap().len(), bytes);
    }
}

#[test]
fn many_threads_create_and_remove_concurrently() {
    let Some(mount) = Mount::new() else { return };
    fs::create_dir(mount.path("shared")).unwrap();
    let work = |number: usize, base: std::path::PathBuf| {
        let own = base.join(format!("own-{number}"));
        fs::create_dir(&own).unwrap();
        for round in 0..25 {
            let (a, b) = (own.join("a"), base.join("shared").join(format!("{number}-{round}")));
            fs::write(&a, format!("{number} {round}")).unwrap();
            fs::rename(&a, &b).unwrap();
            assert_eq!(fs::read_to_string(&b).unwrap(), format!("{number} {round}"));
            if round % 2 == 0 {
                fs::remove_file(&b).unwrap();
            }
        }
        fs::remove_dir(&own).unwrap();
    };
    let threads: Vec<_> = (0..8)
        .map(|number| {
            let base = mount.path("");
            thread::spawn(move || work(number, base))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(fs::read_dir(mount.path("shared")).unwrap().count(), 8 * 12);
    assert_eq!(fs::read_dir(mount.there("shared")).unwrap().count(), 8 * 12);
}

#[test]
fn a_directory_is_renamed_while_others_work_below_it() {
    let Some(mount) = Mount::new() else { return };
    fs::create_dir(mount.path("a")).unwrap();
    fs::write(mount.path("a/f"), "x").unwrap();
    let dir = File::open(mount.path("a")).unwrap();
    let reader = {
        let below = format!("/proc/self/fd/{}/f", dir.as_raw_fd());
        thread::spawn(move || (0..100).for_each(|_| assert_eq!(fs::read_to_string(&below).unwrap(), "x")))
    };
    let (mut from, mut to) = (mount.path("a"), mount.path("b"));
    for _ in 0..100 {
        fs::rename(&from, &to).unwrap();
        (from, to) = (to, from);
    }
    reader.join().unwrap();
}

#[test]
fn a_large_directory_is_listed_completely_and_again() {
    let Some(mount) = Mount::new() else { return };
    fs::create_dir(mount.there("many")).unwrap();
    for number in 0..3000 {
        File::create(mount.there(&format!("many/file-{number:05}"))).unwrap();
    }
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(mount.path("many")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let first = names();
    assert_eq!((first.len(), first[2999].to_str()), (3000, Some("file-02999")));
    File::create(mount.path("many/new")).unwrap();
    fs::remove_file(mount.path("many/file-00000")).unwrap();
    let second = names();
    assert_eq!((second.len(), second[0].to_str()), (3000, Some("file-00001")));
    // rm continues to remove the entries it lists.
    fs::remove_dir_all(mount.path("many")).unwrap();
    assert_eq!(number(fs::metadata(mount.there("many"))), libc::ENOENT);
}

#[test]
fn common_programs_work() {
    let Some(mount) = Mount::new() else { return };
    let tree = mount.scratch().join("tree");
    fs::create_dir_all(tree.join("sub/deep")).unwrap();
    for number in 0..30 {
        fs::write(tree.join(format!("sub/{number}")), vec![number; 1000 * usize::from(number)]).unwrap();
    }
    fs::write(tree.join("program"), "#!/bin/sh\necho it runs\n").unwrap();
    fs::set_permissions(tree.join("program"), PermissionsExt::from_mode(0o755)).unwrap();
    symlink("sub/7", tree.join("link")).unwrap();
    fs::hard_link(tree.join("sub/8"), tree.join("sub/deep/eight")).unwrap();
    fs::copy(tree.join("sub/29"), tree.join("name with \u{fffd} and ' quotes")).unwrap();
    let tree = tree.display();
    mount.sh(&format!("cp -a {tree} copy; diff -r {tree} copy; [ \"$(./copy/program)\" = 'it runs' ]"));
    mount.sh("tar cf a.tar copy; mkdir out; tar xf a.tar -C out; diff -r copy out/copy; tar df a.tar -C out");
    let links = mount.sh("stat -c '%h %i' out/copy/sub/8 out/copy/sub/deep/eight | sort -u");
    assert!(links.starts_with("2 ") && links.lines().count() == 1, "{links}");
    mount.sh("find copy -type f | wc -l | grep -qx 33; rm -r copy out; ls | grep -qx a.tar");
    if Command::new("git").arg("--version").output().is_ok() {
        mount.sh(
            "git init -q g; cd g; git config user.email a@b; git config user.name n; for i in 1 2 3; do echo $i > f$i; git add f$i; \
             git commit -qm $i; done; git mv f1 g1; git commit -qam moved; git gc -q; git fsck --strict; [ -z \"$(git status --short)\" ]; \
             git log --oneline | wc -l | grep -qx 4",
        );
    }
    mount.sh("python3 -c \"import sqlite3; c = sqlite3.connect('db'); c.execute('create table t (a)'); c.executemany('insert into t values (?)', [(n,) for n in range(1000)]); c.commit(); c.close(); c = sqlite3.connect('db'); assert c.execute('select sum(a) from t').fetchone() == (499500,); assert c.execute('pragma integrity_check').fetchone() == ('ok',)\"");
    mount.sh("exec 9> lock; flock -n 9; ! flock -n lock true; exec 9>&-; flock -n lock true");
    assert!(mount.sh("df -P . | tail -1").contains("kek:/data"));
}
