//! The rules of sshd's StrictModes: the accounts that could replace a directory or file, because they own one of its
//! ancestors or may write there.
//!
//! Each directory and each link on the path from the root of the file system must be owned by root or by one of the
//! trusted accounts, and writable by no other. A directory with the sticky bit may be world-writable, because only
//! the owner of an entry may replace that. The owner of `/` counts as root, also in a namespace that cannot name
//! root. Non-goals: ACLs, and the right to mount.

use renkei_core::error::{Code, Error};
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display, Formatter};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Most links followed, as in the kernel.
const MAX_LINKS: usize = 40;
const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o002;
const GROUP_WRITES: u32 = 0o020;

/// Explains how another account could replace or change a file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exposed {
    /// The file, directory or link.
    pub path: PathBuf,
    /// The weakness.
    pub how: ExposedBy,
}

/// The weakness of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExposedBy {
    /// It is owned by this account.
    Owner(u32),
    /// Its mode lets other accounts write.
    Mode(u32),
    /// It is a link that cannot be followed.
    Link,
}

impl Display for Exposed {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.how {
            ExposedBy::Owner(uid) => write!(out, "{path} belongs to the account number {uid}"),
            ExposedBy::Mode(mode) => write!(out, "{path} may be written by other accounts (mode {mode:o})"),
            ExposedBy::Link => write!(out, "{path} cannot be followed"),
        }
    }
}

/// Fails if an account other than root and the trusted ones could replace this directory, which may be missing.
///
/// # Errors
/// `BufferExposed` names the directory that allows it.
pub fn refuse_exposed(folder: &Path, trusted: &[u32]) -> Result<(), Error> {
    let refused =
        |by: Exposed| Err(Error::new(Code::BufferExposed, "open buffer", folder.display(), by.to_string()));
    exchangeable(folder, trusted).map_or(Ok(()), refused)
}

/// The path by which an account other than root and the trusted ones could change or add to what is read here; it may
/// be missing.
pub fn exposed(path: &Path, trusted: &[u32]) -> Option<Exposed> {
    exchangeable(path, trusted).or_else(|| {
        // The sticky bit prevents replacing existing entries, not adding new ones.
        let found = path.metadata().ok().filter(may_be_written_by_others)?;
        Some(Exposed { path: path.into(), how: ExposedBy::Mode(found.mode() & 0o7777) })
    })
}

fn exchangeable(path: &Path, trusted: &[u32]) -> Option<Exposed> {
    let (mut todo, mut at, mut links) = (names(path), PathBuf::from("/"), 0);
    let root = at.metadata().map_or(0, |root| root.uid());
    let is_trusted = |owner: u32| owner == 0 || owner == root || trusted.contains(&owner);
    while let Some(name) = todo.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        let by = |how: ExposedBy| Some(Exposed { path: next.clone(), how });
        // The missing rest of the path is created by the caller.
        let found = next.symlink_metadata().ok()?;
        if !is_trusted(found.uid()) {
            return by(ExposedBy::Owner(found.uid()));
        }
        if found.is_symlink() {
            links += 1;
            let Some(target) = next.read_link().ok().filter(|_| links <= MAX_LINKS) else {
                return by(ExposedBy::Link);
            };
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            todo.extend(names(&target));
            continue;
        }
        let is_sticky = found.is_dir() && found.mode() & STICKY != 0;
        if may_be_written_by_others(&found) && !is_sticky {
            return by(ExposedBy::Mode(found.mode() & 0o7777));
        }
        at = next;
    }
    None
}

/// The components of the path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let named = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(named).collect()
}

/// The group of root or the process's own primary group is treated as private, as it is on most machines.
fn may_be_written_by_others(found: &Metadata) -> bool {
    let mode = found.mode();
    let is_own_group = found.gid() == 0 || found.gid() == rustix::process::getegid().as_raw();
    let by_group = mode & GROUP_WRITES != 0 && !is_own_group;
    mode & OTHERS_WRITE != 0 || by_group
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, create_dir, create_dir_all, set_permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn a_directory_writable_by_others_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (open, inside) = (dir.path().join("open"), dir.path().join("open/a/buffer"));
        create_dir_all(&inside).unwrap();
        let own = [rustix::process::geteuid().as_raw()];
        let judged = |path: &Path| refuse_exposed(path, &own).map_err(|error| error.cause);
        let with_mode = |mode: u32| {
            set_permissions(&open, Permissions::from_mode(mode)).unwrap();
            judged(&inside)
        };
        assert_eq!((with_mode(0o755), with_mode(0o1777)), (Ok(()), Ok(())));
        assert!(with_mode(0o777).unwrap_err().contains("/open may be written by other accounts (mode 777)"));
        // The path is refused as well if it leads there over a link, through `..`, or to a directory that does not
        // exist yet.
        let link = dir.path().join("link");
        symlink("open/a", &link).unwrap();
        let ways = [link.join("buffer"), open.join("../open/new"), link.join("../../open/x/y")];
        for way in &ways {
            assert!(judged(way).unwrap_err().contains("/open may"), "{way:?}");
        }
        set_permissions(&open, Permissions::from_mode(0o700)).unwrap();
        ways.iter().for_each(|way| judged(way).unwrap());
        let circle = dir.path().join("circle");
        symlink("circle", &circle).unwrap();
        assert!(judged(&circle).unwrap_err().contains("cannot be followed"));
    }

    #[test]
    fn a_directory_below_that_of_another_account_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("SKIPPED: only root gives directories away");
        }
        let dir = tempfile::tempdir().unwrap();
        let theirs = dir.path().join("theirs");
        create_dir(&theirs).unwrap();
        chown(&theirs, Some(65_534), None).unwrap();
        let inside = theirs.join("buffer");
        let refused = refuse_exposed(&inside, &[]).unwrap_err();
        assert_eq!(refused.code, Code::BufferExposed);
        assert!(refused.cause.contains("/theirs belongs to the account number 65534"), "{refused}");
        refuse_exposed(&inside, &[65_534]).unwrap();
    }
}
