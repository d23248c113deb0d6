//! Locks of programs over two mounts of one volume, at its home and at a site that follows it.

use crate::federation::{Federation, Site, account};
use crate::mount::leases::{Point, SLACK, TERM, two};
use crate::mount::{can_mount, number};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

fn flock(file: &File, how: i32) -> std::io::Result<()> {
    // SAFETY: the descriptor is open as long as the file.
    match unsafe { libc::flock(file.as_raw_fd(), how) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Locks a range of a file, as a process.
fn range(file: &File, kind: i32, start: i64, bytes: i64) -> std::io::Result<()> {
    let lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: bytes,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the kernel reads the structure during the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn open(point: &Point, name: &str) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(point.path(name)).unwrap()
}

const TRY: i32 = libc::LOCK_NB;

#[test]
fn locks_exclude_each_other_over_two_mounts() {
    let Some((_dir, _kek, [a, b])) = two() else { return };
    let (first, second) = (open(&a, "f"), open(&b, "f"));
    flock(&first, libc::LOCK_EX | TRY).unwrap();
    assert_eq!(number(flock(&second, libc::LOCK_SH | TRY)), libc::EWOULDBLOCK);
    // A new version is the same file, and the waiter gets the lock.
    std::fs::write(a.path("f"), "another version").unwrap();
    let waiting = thread::spawn(move || {
        let begun = Instant::now();
        flock(&second, libc::LOCK_EX).unwrap();
        (second, begun.elapsed())
    });
    thread::sleep(Duration::from_millis(200));
    assert!(!waiting.is_finished());
    drop(first);
    let (second, waited) = waiting.join().unwrap();
    assert!(waited < Duration::from_secs(5), "{waited:?}");
    flock(&second, libc::LOCK_UN).unwrap();
    // Ranges.
    let first = open(&a, "f");
    range(&first, libc::F_WRLCK, 0, 10).unwrap();
    range(&second, libc::F_WRLCK, 10, 10).unwrap();
    assert_eq!(number(range(&second, libc::F_RDLCK, 5, 10)), libc::EAGAIN);
    range(&first, libc::F_UNLCK, 5, 5).unwrap();
    range(&second, libc::F_RDLCK, 5, 10).unwrap();
    assert_eq!(number(range(&first, libc::F_WRLCK, 0, 0)), libc::EAGAIN);
    drop(second);
    range(&first, libc::F_WRLCK, 0, 0).expect("`close` gives ranges up");
}

#[test]
fn waiting_for_a_lock_can_be_interrupted() {
    let Some((_dir, _kek, [a, b])) = two() else { return };
    let first = open(&a, "f");
    flock(&first, libc::LOCK_EX | TRY).unwrap();
    let mut waiting = waiting(&b);
    thread::sleep(Duration::from_millis(300));
    assert!(waiting.try_wait().unwrap().is_none(), "it waits");
    let begun = Instant::now();
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

/// A program that waits for a lock.
fn waiting(point: &Point) -> Child {
    let mut command = Command::new("flock");
    command.arg(point.path("f")).arg("true").stdin(Stdio::null());
    command.spawn().unwrap()
}

#[test]
fn locks_of_a_dead_mount_expire_with_its_lease_term() {
    let Some((_dir, _kek, [a, b])) = two() else { return };
    let (first, second) = (open(&a, "f"), open(&b, "f"));
    flock(&first, libc::LOCK_EX | TRY).unwrap();
    a.kill(libc::SIGKILL);
    let begun = Instant::now();
    while let Err(error) = flock(&second, libc::LOCK_EX | TRY) {
        assert_eq!(error.raw_os_error(), Some(libc::EWOULDBLOCK));
        assert!(begun.elapsed() < TERM + SLACK);
        thread::sleep(Duration::from_millis(20));
    }
}

fn follow(kek: &Site, titech: &Site) {
    kek.ok(&["volume", "create", "genome", "--storage", "data"]);
    kek.ok(&["volume", "grant", "genome", "titech", "read"]);
    let subscribe = ["volume", "subscribe", "genome", "--from", "kek", "--storage", "data", "--account"];
    titech.ok(&[&subscribe[..], &[&account()]].concat());
}

#[test]
fn locks_exclude_each_other_over_two_sites_and_need_the_home() {
    if !can_mount() {
        return;
    }
    let mut federation = Federation::two();
    follow(&federation.kek, &federation.titech);
    std::fs::write(federation.kek.root().join("genome/f"), "content").unwrap();
    let home = Point::new(&federation.kek, "kek:/genome", &federation.scratch(), "home");
    let begun = Instant::now();
    while !federation.titech.renkei(&["stat", "titech:/genome/f"]).status.success() {
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
    let far = Point::new(&federation.titech, "titech:/genome", &federation.scratch(), "far");
    let (first, second) = (open(&home, "f"), File::open(far.path("f")).unwrap());
    flock(&first, libc::LOCK_EX | TRY).unwrap();
    assert_eq!(number(flock(&second, libc::LOCK_SH | TRY)), libc::EWOULDBLOCK);
    flock(&first, libc::LOCK_UN).unwrap();
    flock(&second, libc::LOCK_SH | TRY).unwrap();
    assert_eq!(number(flock(&first, libc::LOCK_EX | TRY)), libc::EWOULDBLOCK);
    drop(second);
    // The kernel reports the end of a descriptor after `close`.
    flock(&first, libc::LOCK_EX).unwrap();
    let second = File::open(far.path("f")).unwrap();
    federation.kek.kill9();
    let begun = Instant::now();
    assert_eq!(number(flock(&second, libc::LOCK_SH | TRY)), libc::ENOLCK);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}
