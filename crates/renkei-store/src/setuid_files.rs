//! Files that confer privileges on every user who reaches them: programs with set-id bits or file capabilities, and
//! devices.
//!
//! Their owner may keep them in a directory that no other account may enter. A thread that works for others
//! ([`privileges`]) exposes none of them: it does not move or link them, nor a directory that has one somewhere
//! below, and adds no permissions to such a directory. Guarantee: a directory that cannot be searched is treated as
//! one that has some. Non-goal: files that their owner adds meanwhile.

use super::metadata::{SET_ID, file_type, proc_path};
use super::privileges;
use renkei_core::entry::{Entry, EntryKind};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::{self, Errno};

/// Reason of a refusal for files.
pub(super) const WHY: &str = "it is a program with set-id bits or capabilities, or a device, and the account here works for others; its owner can";
/// Reason of a refusal for directories.
pub(super) const WHY_DIR: &str = "it has programs with set-id bits or capabilities, or devices, and the account here works for others; \
                                  their owner can";

/// Execute bits of group and others.
const OTHERS_EXECUTE: u32 = 0o011;
const ANY_EXECUTE: u32 = 0o111;
const CAPABILITIES: &str = "security.capability";

/// Whether a file confers privileges; `name` is below `dir`, or empty for `dir` itself.
pub(super) fn is_privileged(dir: BorrowedFd<'_>, name: &[u8], stat: &Stat) -> bool {
    match file_type(stat) {
        FileType::BlockDevice | FileType::CharacterDevice => true,
        FileType::RegularFile if stat.st_mode & SET_ID != 0 => true,
        FileType::RegularFile if stat.st_mode & ANY_EXECUTE != 0 => has_capabilities(dir, name),
        _ => false,
    }
}

fn has_capabilities(dir: BorrowedFd<'_>, name: &[u8]) -> bool {
    let path = proc_path(dir, name);
    let found = match name {
        b"" => rustix::fs::getxattr(path, CAPABILITIES, &mut [0; 0]),
        _ => rustix::fs::lgetxattr(path, CAPABILITIES, &mut [0; 0]),
    };
    !matches!(found, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

/// Whether a directory has such a file somewhere below it, or cannot be searched.
pub(super) fn holds_privileged(dir: BorrowedFd<'_>) -> bool {
    look_through(dir).unwrap_or(true)
}

fn look_through(top: BorrowedFd<'_>) -> io::Result<bool> {
    let mut above = vec![open(top, c".")?];
    while let Some(mut dir) = above.pop() {
        let Some(entry) = dir.read() else { continue };
        let entry = entry?;
        let here = dir.fd()?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            above.push(dir);
            continue;
        }
        let below = match rustix::fs::statat(here, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if is_privileged(here, name.to_bytes(), &stat) => return Ok(true),
            Ok(stat) if file_type(&stat) == FileType::Directory => Some(open(here, name)?),
            Ok(_) | Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno),
        };
        above.push(dir);
        above.extend(below);
    }
    Ok(false)
}

fn open(dir: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd: OwnedFd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    Dir::new(fd)
}

/// Reason for refusing a change of mode to `mode`, if any.
pub(super) fn refuses_mode(handle: BorrowedFd<'_>, stat: &Stat, mode: u32) -> Option<&'static str> {
    if !privileges::is_lent() {
        return None;
    }
    match file_type(stat) {
        // A change of mode clears the set-id bits.
        FileType::RegularFile if stat.st_mode & SET_ID != 0 => None,
        FileType::Directory => {
            let opens = mode & !stat.st_mode & OTHERS_EXECUTE != 0;
            (opens && holds_privileged(handle)).then_some(WHY_DIR)
        }
        _ => is_privileged(handle, b"", stat).then_some(WHY),
    }
}

/// Reason for refusing `mode` for an entry: set-id bits that the account may not set would be dropped.
pub fn refuses_set_id(entry: &Entry, mode: u32) -> Option<&'static str> {
    let is_file = matches!(entry.kind, EntryKind::File { .. });
    let refused = privileges::is_lent() && is_file && mode & SET_ID != 0;
    refused.then_some("set-id bits are not set by an account that works for others")
}

/// Reason for refusing another name in a directory, if any.
pub(super) fn refuses_name(
    dir: BorrowedFd<'_>,
    name: &[u8],
    stat: &Stat,
    is_elsewhere: bool,
) -> Option<&'static str> {
    match file_type(stat) {
        FileType::Directory if is_elsewhere => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(dir, name, flags, Mode::empty());
            opened.is_ok_and(|below| holds_privileged(below.as_fd())).then_some(WHY_DIR)
        }
        FileType::Directory => None,
        _ => is_privileged(dir, name, stat).then_some(WHY),
    }
}
