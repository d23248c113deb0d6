//! POSIX semantics of names: the error of each call in each situation, and the state afterwards.

use crate::mount::{Mount, number};
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn done(status: libc::c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn rename_with(from: &Path, to: &Path, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: both strings end with NUL.
    done(unsafe { libc::renameat2(libc::AT_FDCWD, c(from).as_ptr(), libc::AT_FDCWD, c(to).as_ptr(), flags) })
}

fn make_fifo(path: &Path) -> io::Result<()> {
    // SAFETY: the string ends with NUL.
    done(unsafe { libc::mkfifo(c(path).as_ptr(), 0o644) })
}

/// A file, a directory with something in it, an empty one, a link to each and one that leads nowhere.
fn furnished() -> Option<Mount> {
    let mount = Mount::with(&["--attr-ttl", "0.2"])?;
    fs::write(mount.path("file"), "text").unwrap();
    fs::create_dir_all(mount.path("full/sub")).unwrap();
    fs::create_dir(mount.path("empty")).unwrap();
    for (name, target) in [("to-file", "file"), ("to-dir", "full"), ("nowhere", "nothing"), ("loop", "loop")]
    {
        symlink(target, mount.path(name)).unwrap();
    }
    Some(mount)
}

#[test]
fn opening() {
    let Some(mount) = furnished() else { return };
    let open = |name: &str, flags: i32| {
        let write = flags & libc::O_ACCMODE != libc::O_RDONLY;
        File::options().read(true).write(write).custom_flags(flags).open(mount.path(name))
    };
    let rows = [
        ("nothing", 0, libc::ENOENT),
        ("nothing/x", 0, libc::ENOENT),
        ("file/x", 0, libc::ENOTDIR),
        ("loop", 0, libc::ELOOP),
        ("nowhere", 0, libc::ENOENT),
        ("to-file", libc::O_NOFOLLOW, libc::ELOOP),
        ("file", libc::O_DIRECTORY, libc::ENOTDIR),
        ("full", libc::O_WRONLY, libc::EISDIR),
        ("file", libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, libc::EEXIST),
        ("to-file", libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, libc::EEXIST),
        ("nowhere", libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, libc::EEXIST),
        ("full", libc::O_CREAT | libc::O_WRONLY, libc::EISDIR),
        ("nothing/x", libc::O_CREAT | libc::O_WRONLY, libc::ENOENT),
    ];
    for (name, flags, expected) in rows {
        assert_eq!(number(open(name, flags)), expected, "{name} {flags:o}");
    }
    assert!(open("to-file", 0).is_ok() && open("full", libc::O_DIRECTORY).is_ok());
    // By a link that leads nowhere a file is made where it leads.
    fs::write(mount.path("nowhere"), "made").unwrap();
    assert_eq!(fs::read_to_string(mount.path("nothing")).unwrap(), "made");
    let cut = File::options().write(true).truncate(true).open(mount.path("file")).unwrap();
    assert_eq!(cut.metadata().unwrap().len(), 0);
    drop(cut);
    assert_eq!(fs::metadata(mount.there("file")).unwrap().len(), 0);
}

#[test]
fn modes_of_new_entries_follow_the_umask() {
    let Some(mount) = Mount::new() else { return };
    mount.sh("umask 027; echo x > a; mkdir d; umask 077; echo x > b; mkdir e; umask 0; echo x > c; mkdir f");
    let modes = mount.sh("stat -c %a a b c d e f").replace('\n', " ");
    assert_eq!(modes, "640 600 666 750 700 777 ");
    mount.sh("chmod 1777 f; chmod 2755 d; chmod 4755 a");
    assert_eq!(mount.sh("stat -c %a f d a").replace('\n', " "), "1777 2755 4755 ");
    mount.sh("echo more >> a");
    assert_eq!(mount.sh("stat -c %a a"), "755\n", "content loses the bits that lend authority");
}

#[test]
fn directories() {
    let Some(mount) = furnished() else { return };
    let (make, remove) = (|name| fs::create_dir(mount.path(name)), |name| fs::remove_dir(mount.path(name)));
    for name in ["file", "full", "to-dir", "nowhere"] {
        assert_eq!(number(make(name)), libc::EEXIST, "{name}");
    }
    assert_eq!((number(make("nothing/x")), number(make("file/x"))), (libc::ENOENT, libc::ENOTDIR));
    assert_eq!(number(remove("full")), libc::ENOTEMPTY);
    assert_eq!((number(remove("file")), number(remove("to-dir"))), (libc::ENOTDIR, libc::ENOTDIR));
    assert_eq!((number(remove("nothing")), number(remove("empty/."))), (libc::ENOENT, libc::EINVAL));
    assert_eq!(number(remove("full/sub/..")), libc::ENOTEMPTY);
    remove("empty").unwrap();
    assert_eq!(number(remove("empty")), libc::ENOENT);
    make("empty").unwrap();
    // Nothing is made in a directory that was removed while it was open.
    let inside = File::open(mount.path("empty")).unwrap();
    remove("empty").unwrap();
    let below = format!("/proc/self/fd/{}/x", std::os::fd::AsRawFd::as_raw_fd(&inside));
    assert_eq!(number(File::create(below)), libc::ENOENT);
    let links = || fs::metadata(mount.path("full")).unwrap().nlink();
    let before = links();
    make("full/more").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(250));
    assert_eq!(links(), before + 1, "a directory has the links of those below it");
}

#[test]
fn removing() {
    let Some(mount) = furnished() else { return };
    let remove = |name| fs::remove_file(mount.path(name));
    assert_eq!(number(remove("full")), libc::EISDIR);
    assert_eq!((number(remove("nothing")), number(remove("file/x"))), (libc::ENOENT, libc::ENOTDIR));
    remove("to-dir").unwrap();
    remove("to-file").unwrap();
    assert_eq!(fs::read_to_string(mount.path("file")).unwrap(), "text", "a link goes, not where it leads");
    fs::hard_link(mount.path("file"), mount.path("second")).unwrap();
    assert_eq!(fs::metadata(mount.path("file")).unwrap().nlink(), 2);
    remove("file").unwrap();
    let second = fs::metadata(mount.path("second")).unwrap();
    assert_eq!((second.nlink(), fs::read_to_string(mount.path("second")).unwrap()), (1, "text".into()));
}

#[test]
fn renaming() {
    let Some(mount) = furnished() else { return };
    let rename = |from: &str, to: &str| fs::rename(mount.path(from), mount.path(to));
    let rows = [
        ("nothing", "x", libc::ENOENT),
        ("file", "nothing/x", libc::ENOENT),
        ("file", "file/x", libc::ENOTDIR),
        ("file", "full", libc::EISDIR),
        ("full", "file", libc::ENOTDIR),
        ("empty", "full", libc::ENOTEMPTY),
        ("full", "full/sub/x", libc::EINVAL),
        ("full/sub", "full", libc::ENOTEMPTY),
    ];
    for (from, to, expected) in rows {
        assert_eq!(number(rename(from, to)), expected, "{from} {to}");
    }
    rename("file", "file").unwrap();
    rename("full", "empty").unwrap();
    assert!(fs::metadata(mount.path("empty/sub")).unwrap().is_dir(), "an empty directory is replaced");
    rename("to-file", "moved-link").unwrap();
    assert_eq!(fs::read_link(mount.path("moved-link")).unwrap(), Path::new("file"));
    fs::write(mount.path("over"), "over").unwrap();
    rename("over", "file").unwrap();
    assert_eq!(fs::read_to_string(mount.there("file")).unwrap(), "over");
    // Two names of one file: nothing happens, and both stay.
    fs::hard_link(mount.path("file"), mount.path("second")).unwrap();
    rename("file", "second").unwrap();
    assert!(mount.path("file").exists() && mount.path("second").exists());
}

#[test]
fn renaming_with_flags() {
    let Some(mount) = furnished() else { return };
    let [file, to_file, fresh] = ["file", "to-file", "fresh"].map(|name| mount.path(name));
    assert_eq!(number(rename_with(&file, &to_file, libc::RENAME_NOREPLACE)), libc::EEXIST);
    rename_with(&file, &fresh, libc::RENAME_NOREPLACE).unwrap();
    assert_eq!(number(rename_with(&fresh, &to_file, libc::RENAME_EXCHANGE)), libc::EINVAL);
    assert_eq!(fs::read_to_string(fresh).unwrap(), "text");
}

#[test]
fn linking() {
    let Some(mount) = furnished() else { return };
    let link = |from: &str, to: &str| fs::hard_link(mount.path(from), mount.path(to));
    let rows = [
        ("nothing", "x", libc::ENOENT),
        ("file", "full", libc::EEXIST),
        ("file", "nowhere", libc::EEXIST),
        ("file", "nothing/x", libc::ENOENT),
        ("file", "file/x", libc::ENOTDIR),
        ("full", "x", libc::EPERM),
    ];
    for (from, to, expected) in rows {
        assert_eq!(number(link(from, to)), expected, "{from} {to}");
    }
    link("to-file", "second-link").unwrap();
    assert!(fs::symlink_metadata(mount.path("second-link")).unwrap().is_symlink());
    let outside = mount.scratch().join("outside");
    assert_eq!(number(fs::hard_link(mount.path("file"), outside)), libc::EXDEV);
    let sym = |target: &str, name: &str| symlink(target, mount.path(name));
    assert_eq!((number(sym("x", "file")), number(sym("x", "nothing/x"))), (libc::EEXIST, libc::ENOENT));
    let long = "t/".repeat(1000);
    sym(&long, "long").unwrap();
    assert_eq!(fs::read_link(mount.path("long")).unwrap(), Path::new(&long));
    assert_eq!(fs::symlink_metadata(mount.path("long")).unwrap().len(), 2000);
    assert_eq!(number(fs::read_link(mount.path("file"))), libc::EINVAL);
}

#[test]
fn names_of_any_bytes_and_lengths() {
    let Some(mount) = Mount::new() else { return };
    let odd: [&[u8]; 6] = [b"\xff\xfe", b"new\nline", b"-rf", b" ", b"\\", b"a:b"];
    for name in odd {
        let path = mount.path("").join(OsStr::from_bytes(name));
        fs::write(&path, name).unwrap();
        assert_eq!(fs::read(&path).unwrap(), name);
    }
    let mut listed: Vec<_> = fs::read_dir(mount.path(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().as_bytes().to_vec())
        .collect();
    listed.sort();
    let mut expected: Vec<_> = odd.iter().map(|name| name.to_vec()).collect();
    expected.sort();
    assert_eq!(listed, expected);
    let (most, more) = ("n".repeat(255), "n".repeat(256));
    fs::write(mount.path(&most), "x").unwrap();
    assert_eq!(number(fs::write(mount.path(&more), "x")), libc::ENAMETOOLONG);
    assert_eq!(number(fs::create_dir(mount.path(&more))), libc::ENAMETOOLONG);
    assert_eq!(number(fs::rename(mount.path(&most), mount.path(&more))), libc::ENAMETOOLONG);
    fs::rename(mount.path(&most), mount.path("short")).unwrap();
    // Deeper than a path may be long.
    mount.sh("i=0; while [ $i -lt 30 ]; do mkdir ddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd; cd -P ddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd; i=$((i + 1)); done; echo deep > f; cat f | grep -qx deep");
}

#[test]
fn special_files_and_attributes_are_refused() {
    let Some(mount) = furnished() else { return };
    assert_eq!(number(make_fifo(&mount.path("fifo"))), libc::EPERM);
    make_fifo(&mount.there("fifo")).unwrap();
    let seen = fs::symlink_metadata(mount.path("fifo")).unwrap();
    assert!(!seen.is_file() && seen.file_type().is_socket());
    assert_eq!(number(File::open(mount.path("fifo"))), libc::ENXIO);
    let file = c(&mount.path("file"));
    // SAFETY: strings end with NUL, and the value has the length given.
    let set = done(unsafe { libc::setxattr(file.as_ptr(), c"user.x".as_ptr(), c"1".as_ptr().cast(), 1, 0) });
    assert_eq!(number(set), libc::EOPNOTSUPP);
    // SAFETY: the string ends with NUL, and no room is given.
    let listed = unsafe { libc::listxattr(file.as_ptr(), std::ptr::null_mut(), 0) };
    assert_eq!((listed, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EOPNOTSUPP)));
}

#[test]
fn fallocate_extends_files() {
    let Some(mount) = Mount::new() else { return };
    let file = File::create(mount.path("f")).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: the file is open.
    let allocate = |mode, from, len| done(unsafe { libc::fallocate(fd, mode, from, len) });
    allocate(0, 0, 5000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 5000);
    allocate(0, 0, 100).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 5000);
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    assert_eq!(number(allocate(punch, 0, 100)), libc::EOPNOTSUPP);
    drop(file);
    assert_eq!(fs::read(mount.there("f")).unwrap(), vec![0; 5000]);
}

#[test]
fn modes_deny_access_to_others() {
    let Some(mount) = Mount::with(&["--allow-other"]) else { return };
    // SAFETY: asks for a number alone.
    if unsafe { libc::geteuid() } != 0 {
        return eprintln!("SKIPPED: only root becomes other accounts");
    }
    fs::set_permissions(mount.scratch(), PermissionsExt::from_mode(0o755)).unwrap();
    fs::write(mount.path("open"), "x").unwrap();
    fs::write(mount.path("closed"), "x").unwrap();
    fs::set_permissions(mount.path("closed"), PermissionsExt::from_mode(0o600)).unwrap();
    let other = |script: &str| {
        let mut command = std::process::Command::new("sh");
        std::os::unix::process::CommandExt::uid(
            command.args(["-c", script]).current_dir(mount.path("")),
            65_534,
        );
        command.output().unwrap().status.success()
    };
    assert!(other("cat open"));
    assert!(!other("cat closed") && !other("echo y >> open") && !other("rm -f open") && !other("mkdir d"));
    fs::set_permissions(mount.path("open"), PermissionsExt::from_mode(0o666)).unwrap();
    assert!(other("echo y >> open"));
    assert_eq!(fs::read_to_string(mount.there("open")).unwrap(), "xy\n");
}

/// Operations on hard links in a mount, and their expected results.
pub fn expect_hard_links_independent_when_written(sh: impl Fn(&str) -> String) {
    // A backup is a link that is made before a change: it keeps the old content.
    assert_eq!(
        sh("echo one > f; ln f f.bak; stat -c %h f f.bak; test f -ef f.bak && echo one file"),
        "2\n2\none file\n"
    );
    assert_eq!(
        sh("ls -i f f.bak | sed 's/ .*//' | uniq | wc -l; find . -samefile f | sort"),
        "1\n./f\n./f.bak\n"
    );
    assert_eq!(
        sh("echo two >> f; sync f; cat f.bak; stat -c %h f f.bak; rm f.bak; cat f"),
        "one\n1\n1\none\ntwo\n"
    );
    // Written under the newer name; the older one is taken away, then the newer.
    assert_eq!(sh("echo one > g; ln g h; echo two >> h; cat g; rm g; cat h"), "one\none\ntwo\n");
    // A file that is open while it gets another name.
    assert_eq!(
        sh("exec 3> i; echo one >&3; ln i j; echo two >&3; exec 3>&-; cat i; rm j; cat i"),
        "one\ntwo\none\ntwo\n"
    );
    // A lock file as on a shared file system: a link count of two means that the lock is held.
    assert_eq!(sh("echo $$ > l.1; ln l.1 lock; stat -c %h l.1; rm l.1; stat -c %h lock"), "2\n1\n");
    // Renamed onto a name of itself: both stay, and each is written for itself.
    let rename = "python3 -c 'import os; os.rename(\"m\", \"n\")'";
    assert_eq!(
        sh(&format!("echo one > m; ln m n; {rename}; echo two >> n; cat m; rm m; cat n")),
        "one\none\ntwo\n"
    );
    let opened = "python3 -c 'import os; f = open(\"s\", \"w\"); f.write(\"two\\n\"); f.flush(); os.rename(\"r\", \"s\"); f.close()'";
    assert_eq!(
        sh(&format!("echo one > r; ln r s; {opened}; sort r s; rm r s")),
        "one\ntwo\n",
        "nothing is lost"
    );
    // An archive has it once.
    assert_eq!(
        sh("echo x > p; ln p q; tar cf - p q | tar tvf - | grep -c 'link to p'; rm f h i lock n p q"),
        "1\n"
    );
}

#[test]
fn prefetched_attributes_are_dropped_after_a_local_change() {
    let Some(mount) = Mount::new() else { return };
    mount.sh("mkdir d; for i in $(seq 10 29); do echo old > d/$i; done");
    std::thread::sleep(std::time::Duration::from_millis(1200));
    // The files after these are asked for before they are opened.
    let script = "ls d > /dev/null; for i in 10 11 12 13; do cat d/$i > /dev/null; done; rm d/16; test -e d/16 || echo gone";
    assert_eq!(mount.sh(script), "gone\n");
}

#[test]
fn hard_links_are_independent_when_written() {
    let Some(mount) = Mount::new() else { return };
    expect_hard_links_independent_when_written(|text| mount.sh(text));
}
