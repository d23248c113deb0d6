//! Reading and applying the metadata of a local file.
//!
//! Reading costs one stat call and one more for extended attributes, on files that have none; both take a name below
//! a directory handle (through /proc/self/fd for attributes, which have no call of the `at` family on the kernels
//! supported), so nothing is opened and no final link is followed.
//!
//! Applying takes a handle. The order matters: chown first, because it clears set-id bits; ACLs before chmod, because
//! they rewrite the group bits. Set-id bits are a grant of the owner's authority, so they are applied only if the
//! file really belongs to the owner (and group) they were given for. A thread that works for others applies none of
//! these ([`privileges`]).

use super::errno::{self, Step};
use super::{Detail, Raw, passwd, privileges, setuid_files};
use renkei_core::entry::{Entry, EntryKind, FileTime, Meta, Stamp, Xattr};
use renkei_core::error::{Code, Error};
use renkei_core::path::{RelPath, printable};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::{self, Errno};
use std::fmt::Display;

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
/// Mode bits that delegate the owner's authority; new content loses them.
pub const SET_ID: u32 = SET_UID | SET_GID;
const MODE_BITS: u32 = 0o7777;
/// First buffer for the list of attribute names, and for a value.
const NAMES_BYTES: usize = 1024;
/// Limit of an attribute's value and of the list of names on Linux (XATTR_SIZE_MAX, XATTR_LIST_MAX).
const MAX_XATTR_BYTES: usize = 64 * 1024;
/// Limit of a file's attributes in total: what fits the metadata of one entry on the wire with its path.
const MAX_XATTRS_BYTES: usize = renkei_core::wire::data::MAX_META_BYTES / 2;
const NOT_THEIRS: &str = "the file does not belong to the owner or group they were set for";
/// The attribute that the kernel shows an access list as.
pub const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// The attribute of a directory that the kernel shows the access list of new entries as.
pub const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The entry of a stat result; `target` is a symbolic link's content.
pub(super) fn entry_of(stat: &Stat, path: RelPath, target: Vec<u8>) -> (Entry, Raw) {
    let kind = match file_type(stat) {
        FileType::RegularFile => EntryKind::File {
            stamp: stamp_of(stat),
            sparse: (stat.st_blocks as u64).saturating_mul(512) < stat.st_size as u64,
        },
        FileType::Directory => EntryKind::Dir,
        FileType::Symlink => EntryKind::Symlink { target },
        _ => EntryKind::Special,
    };
    let meta = Meta { mode: stat.st_mode & MODE_BITS, mtime: mtime(stat), ..Meta::default() };
    (Entry { path, meta, kind }, raw_of(stat))
}

/// The file type of a stat result.
pub(super) fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// The stamp of a stat result.
pub(super) fn stamp_of(stat: &Stat) -> Stamp {
    Stamp { size: stat.st_size as u64, mtime: mtime(stat), ctime: ctime(stat), ino: stat.st_ino }
}

#[allow(clippy::unnecessary_cast, reason = "the width of st_nlink differs between processors")]
fn raw_of(stat: &Stat) -> Raw {
    Raw {
        ino: stat.st_ino,
        dev: stat.st_dev,
        nlink: stat.st_nlink as u64,
        blocks: stat.st_blocks as u64,
        uid: stat.st_uid,
        gid: stat.st_gid,
        ctime: ctime(stat),
    }
}

fn mtime(stat: &Stat) -> FileTime {
    FileTime { secs: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 }
}

fn ctime(stat: &Stat) -> FileTime {
    FileTime { secs: stat.st_ctime, nanos: stat.st_ctime_nsec as u32 }
}

/// Adds the fields of [`Detail::Full`] that stat lacks; `name` is below `dir`, or empty for `dir` itself.
pub(super) fn add_detail(
    (entry, raw): &mut (Entry, Raw),
    detail: Detail,
    dir: BorrowedFd<'_>,
    name: &[u8],
) -> io::Result<()> {
    if detail == Detail::Basic {
        return Ok(());
    }
    entry.meta.owner = passwd::user_name(raw.uid).unwrap_or_default();
    entry.meta.group = passwd::group_name(raw.gid).unwrap_or_default();
    if matches!(entry.kind, EntryKind::File { .. } | EntryKind::Dir) {
        entry.meta.xattrs = read_xattrs(&proc_path(dir, name), !name.is_empty())?;
    }
    Ok(())
}

/// The path under /proc of a handle, or of a name in it.
pub(super) fn proc_path(dir: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}", dir.as_raw_fd()).into_bytes();
    if !name.is_empty() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    path
}

fn read_xattrs(path: &[u8], last_is_name: bool) -> io::Result<Vec<Xattr>> {
    let list = |room: &mut [u8]| match last_is_name {
        true => rustix::fs::llistxattr(path, room),
        false => rustix::fs::listxattr(path, room),
    };
    let read = |name: &[u8], room: &mut [u8]| match last_is_name {
        true => rustix::fs::lgetxattr(path, name, room),
        false => rustix::fs::getxattr(path, name, room),
    };
    let mut few = [0; NAMES_BYTES];
    match list(&mut few) {
        Ok(0) | Err(Errno::OPNOTSUPP) => Ok(Vec::new()),
        Ok(len) => read_values(&few[..len], read),
        Err(Errno::RANGE) => {
            let mut many = vec![0; MAX_XATTR_BYTES];
            let len = list(&mut many)?;
            read_values(&many[..len], read)
        }
        Err(errno) => Err(errno),
    }
}

fn read_values(list: &[u8], read: impl Fn(&[u8], &mut [u8]) -> io::Result<usize>) -> io::Result<Vec<Xattr>> {
    let mut xattrs = Vec::new();
    let mut left = MAX_XATTRS_BYTES;
    for name in list.split(|&b| b == 0).filter(|name| travels(name)) {
        match read_value(|room| read(name, room)) {
            Ok(value) => {
                left = left.checked_sub(name.len() + value.len()).ok_or(Errno::TOOBIG)?;
                xattrs.push(Xattr { name: name.to_vec(), value });
            }
            // Removed since it was listed; or denied to this account, which then cannot read the content either.
            Err(Errno::NODATA | Errno::ACCESS) => {}
            Err(errno) => return Err(errno),
        }
    }
    xattrs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(xattrs)
}

/// A value, which is short most often.
fn read_value(read: impl Fn(&mut [u8]) -> io::Result<usize>) -> io::Result<Vec<u8>> {
    let mut short = [0; NAMES_BYTES];
    match read(&mut short) {
        Ok(len) => Ok(short[..len].to_vec()),
        Err(Errno::RANGE) => {
            let mut long = vec![0; MAX_XATTR_BYTES];
            let len = read(&mut long)?;
            long.truncate(len);
            Ok(long)
        }
        Err(errno) => Err(errno),
    }
}

/// Whether an attribute belongs to the user; the others belong to the system that sets them.
fn travels(name: &[u8]) -> bool {
    name.starts_with(b"user.") && !is_own(name) || name == ACCESS_ACL || name == DEFAULT_ACL
}

/// Whether an attribute is one of those that the PoP itself keeps, such as the remembered checksums: users do not set
/// it, and it does not travel.
pub fn is_own(name: &[u8]) -> bool {
    name.starts_with(b"user.renkei.")
}

/// The handle that metadata is applied to.
#[derive(Clone, Copy)]
pub(super) enum Handle<'a> {
    /// Open for reading or writing.
    File(BorrowedFd<'a>),
    /// Open with O_PATH only.
    Path(BorrowedFd<'a>),
}

impl Handle<'_> {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Handle::File(fd) | Handle::Path(fd) => fd.as_fd(),
        }
    }

    fn chown(self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        rustix::fs::chownat(self.fd(), c"", uid, gid, AtFlags::EMPTY_PATH)
    }

    fn chmod(self, mode: Mode) -> io::Result<()> {
        match self {
            Handle::File(fd) => rustix::fs::fchmod(fd, mode),
            Handle::Path(fd) => rustix::fs::chmodat(CWD, proc_path(fd, b""), mode, AtFlags::empty()),
        }
    }

    fn set_times(self, times: &Timestamps) -> io::Result<()> {
        match self {
            Handle::File(fd) => rustix::fs::futimens(fd, times),
            Handle::Path(fd) => rustix::fs::utimensat(fd, c"", times, AtFlags::EMPTY_PATH),
        }
    }

    fn set_xattr(self, xattr: &Xattr) -> io::Result<()> {
        let (name, value, flags) = (xattr.name.as_slice(), xattr.value.as_slice(), XattrFlags::empty());
        match self {
            Handle::File(fd) => rustix::fs::fsetxattr(fd, name, value, flags),
            Handle::Path(fd) => rustix::fs::setxattr(proc_path(fd, b""), name, value, flags),
        }
    }

    fn remove_xattr(self, name: &[u8]) -> io::Result<()> {
        match self {
            Handle::File(fd) => rustix::fs::fremovexattr(fd, name),
            Handle::Path(fd) => rustix::fs::removexattr(proc_path(fd, b""), name),
        }
    }
}

/// Applies `meta` and returns the attributes that could not be kept; `subject` names the file in errors.
pub(super) fn apply(handle: Handle<'_>, meta: &Meta, subject: &dyn Display) -> Result<Vec<Error>, Error> {
    let mut lost = Lost { subject, errors: Vec::new() };
    let stat =
        rustix::fs::fstat(handle.fd()).map_err(|errno| errno::error(errno, Step::Meta, "stat", subject))?;
    let (uid, gid) = match privileges::is_lent() {
        true => (stat.st_uid, stat.st_gid),
        false => give_away(handle, meta, &stat),
    };
    let kind = file_type(&stat);
    if kind != FileType::Symlink {
        // Checksums that another site's PoP has sent as an attribute are no loss.
        for xattr in meta.xattrs.iter().filter(|xattr| !is_own(&xattr.name)) {
            lost.note("set attribute", set_xattr(handle, xattr), &printable(&xattr.name))?;
        }
    }
    lost.note("set mtime", set_mtime(handle, meta.mtime), "")?;
    if kind != FileType::Symlink {
        let mode = lost.safe_mode(meta, &stat, uid, gid);
        match setuid_files::refuses_mode(handle.fd(), &stat, mode) {
            None => lost.note("chmod", handle.chmod(Mode::from_raw_mode(mode)), "")?,
            Some(why) => lost.errors.push(Error::new(
                Code::PermissionDenied,
                "chmod",
                subject,
                format!("{why} change its mode"),
            )),
        }
    }
    Ok(lost.errors)
}

/// Changes owner and group as far as the account may; returns the resulting ids.
fn give_away(handle: Handle<'_>, meta: &Meta, stat: &Stat) -> (u32, u32) {
    let uid = passwd::user_id(&meta.owner).filter(|&uid| uid != stat.st_uid && file_uid() == 0);
    let gid = passwd::group_id(&meta.group).filter(|&gid| gid != stat.st_gid);
    let given = |uid: Option<u32>, gid: Option<u32>| {
        (uid.is_some() || gid.is_some()) && handle.chown(uid, gid).is_ok()
    };
    if given(uid, gid) {
        (uid.unwrap_or(stat.st_uid), gid.unwrap_or(stat.st_gid))
    } else if uid.is_some() && given(None, gid) {
        (stat.st_uid, gid.unwrap_or(stat.st_gid))
    } else {
        (stat.st_uid, stat.st_gid)
    }
}

/// The uid by which this thread's file operations are judged (fsuid).
pub(super) fn file_uid() -> u32 {
    // SAFETY: an invalid id changes nothing; the call then returns the current one (setfsuid(2)).
    unsafe { libc::setfsuid(u32::MAX) as u32 }
}

/// Sets an attribute, or removes it if it is there.
pub(super) fn set_attribute(
    handle: Handle<'_>,
    name: &[u8],
    value: Option<&[u8]>,
    subject: &dyn Display,
) -> Result<(), Error> {
    let done = match value {
        Some(value) => set_xattr(handle, &Xattr { name: name.to_vec(), value: value.to_vec() }),
        None => check_settable(name).and_then(|()| handle.remove_xattr(name)),
    };
    match done {
        Err(Errno::NODATA) => Ok(()),
        done => done.map_err(|errno| errno::error(errno, Step::Meta, "set attribute", subject)),
    }
}

fn check_settable(name: &[u8]) -> io::Result<()> {
    if !travels(name) || name.contains(&0) {
        return Err(Errno::OPNOTSUPP);
    }
    if name.starts_with(b"system.") && !privileges::may_set_acls() {
        return Err(Errno::PERM);
    }
    Ok(())
}

fn set_xattr(handle: Handle<'_>, xattr: &Xattr) -> io::Result<()> {
    check_settable(&xattr.name)?;
    // ext4 reports too many or too large attributes as ENOSPC, with plenty of free space.
    handle.set_xattr(xattr).map_err(|errno| if errno == Errno::NOSPC { Errno::TOOBIG } else { errno })
}

fn set_mtime(handle: Handle<'_>, mtime: FileTime) -> io::Result<()> {
    if mtime.nanos >= 1_000_000_000 {
        return Err(Errno::INVAL);
    }
    handle.set_times(&Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.secs, tv_nsec: mtime.nanos.into() },
    })
}

/// Collects the attributes that could not be kept.
struct Lost<'a> {
    subject: &'a dyn Display,
    errors: Vec<Error>,
}

impl Lost<'_> {
    /// Records a refusal; any other error is returned.
    fn note(&mut self, op: &str, done: io::Result<()>, what: &str) -> Result<(), Error> {
        let Err(errno) = done else { return Ok(()) };
        let mut error = errno::error(errno, Step::Meta, op, self.subject);
        if !what.is_empty() {
            error.cause = format!("{what}: {}", error.cause);
        }
        match error.code {
            Code::Unsupported | Code::PermissionDenied => self.errors.push(error),
            _ => return Err(error),
        }
        Ok(())
    }

    /// The mode without set-id bits that would delegate another account's authority.
    ///
    /// A directory's set-gid bit only sets the group of new files; a thread that works for others leaves it as it is.
    fn safe_mode(&mut self, meta: &Meta, stat: &Stat, uid: u32, gid: u32) -> u32 {
        let mode = meta.mode & MODE_BITS;
        if file_type(stat) == FileType::Directory {
            return if privileges::is_lent() { mode & !SET_GID | stat.st_mode & SET_GID } else { mode };
        }
        if mode & (SET_UID | SET_GID) == 0 {
            return mode;
        }
        let is_owners = !meta.owner.is_empty() && passwd::user_name(uid).as_ref() == Some(&meta.owner);
        let is_groups = !meta.group.is_empty() && passwd::group_name(gid).as_ref() == Some(&meta.group);
        let (kept, why) = match (privileges::is_lent(), is_owners, is_groups) {
            // Existing set-id bits are dropped too: the other bits may let more users execute the file.
            (true, ..) => (mode & !(SET_UID | SET_GID), "the account here works for others"),
            (_, true, true) => (mode, ""),
            (_, true, false) => (mode & !SET_GID, NOT_THEIRS),
            (_, false, _) => (mode & !(SET_UID | SET_GID), NOT_THEIRS),
        };
        if kept != mode {
            let why = format!("set-id bits dropped: {why}");
            self.errors.push(Error::new(Code::PermissionDenied, "chmod", self.subject, why));
        }
        kept
    }
}
