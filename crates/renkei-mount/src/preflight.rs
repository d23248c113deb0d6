//! Preflight checks of a mount point, and the reason why the kernel refused a mount, with the command that helps.

use renkei_core::error::{Code, Error};
use renkei_store::passwd::{group_name, user_name};
use rustix::fs::Access;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The device that a mount needs.
const DEVICE: &str = "/dev/fuse";
/// The configuration file that permits `--allow-other` to users who are not root.
const FUSE_CONF: &str = "/etc/fuse.conf";

/// Refuses a directory that is a mount of renkei already, or that is not empty: the mount would hide its files.
///
/// # Errors
/// `MountBusy`, `NotEmpty`.
pub fn check(point: &Path) -> Result<(), Error> {
    // A stale mount of a killed process is cleaned up by the next mount.
    if let Some(source) = mounted(point).filter(|_| fs::read_dir(point).is_ok()) {
        let cause = format!("{source} is mounted there already");
        return Err(Error::new(Code::MountBusy, "mount", point.display(), cause));
    }
    // The error of a directory that cannot be listed is reported when it is mounted on.
    match fs::read_dir(point).ok().and_then(|mut names| names.next()) {
        Some(Ok(_)) => {
            let cause = "a mount hides the files in its mount point";
            Err(Error::new(Code::NotEmpty, "mount", point.display(), cause))
        }
        _ => Ok(()),
    }
}

/// The source of the FUSE file system that is mounted on a directory, if one is.
fn mounted(point: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let point = fs::canonicalize(point).ok()?;
    let written = point.to_str()?.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011");
    mounts.lines().rev().find_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        let mut back = back.split(' ');
        let is_there = front.split(' ').nth(4) == Some(&written)
            && back.next().is_some_and(|kind| kind.starts_with("fuse"));
        back.next().filter(|_| is_there).map(str::to_owned)
    })
}

/// The error of a mount that the system refused.
pub(super) fn refused(point: &Path, allow_other: bool, error: &io::Error) -> Error {
    let is_denied =
        matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) || error.raw_os_error().is_none();
    let cause = Some(error).filter(|_| is_denied).and_then(|_| why(point, allow_other));
    Error::new(Code::MountFailed, "mount", point.display(), cause.unwrap_or_else(|| error.to_string()))
}

fn why(point: &Path, allow_other: bool) -> Option<String> {
    match OpenOptions::new().read(true).write(true).open(DEVICE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Some(format!("there is no {DEVICE}; as root: `modprobe fuse`"));
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let whose = whose(Path::new(DEVICE)).unwrap_or_default();
            return Some(format!("you may not open {DEVICE}: {whose}; as root: `chmod 666 {DEVICE}`"));
        }
        _ => {}
    }
    if rustix::process::geteuid().is_root() {
        return None;
    }
    if !is_in_path("fusermount3") && !is_in_path("fusermount") {
        return Some("fusermount3 is not installed; as root: `apt install fuse3`".into());
    }
    if rustix::fs::access(point, Access::WRITE_OK).is_err() {
        let whose = whose(point).unwrap_or_default();
        return Some(format!(
            "you may not write in the mount point: {whose}; choose a directory of your own"
        ));
    }
    let is_allowed = fs::read_to_string(FUSE_CONF)
        .is_ok_and(|text| text.lines().any(|line| line.trim() == "user_allow_other"));
    (allow_other && !is_allowed).then(|| {
        format!("--allow-other needs the line `user_allow_other` in {FUSE_CONF}, which root can add")
    })
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).exists())
}

/// Owner, group and mode.
fn whose(path: &Path) -> Option<String> {
    let data = fs::metadata(path).ok()?;
    let owner = user_name(data.uid()).unwrap_or_else(|| data.uid().to_string());
    let group = group_name(data.gid()).unwrap_or_else(|| data.gid().to_string());
    Some(format!("{owner}:{group}, mode {:03o}", data.mode() & 0o7777))
}
