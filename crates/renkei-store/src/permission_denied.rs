//! Explanations of EACCES and EPERM: the account that was refused, the path, and the owner and mode that refused it.

use super::passwd::{group_name, user_name};
use super::{Detail, Dir, Raw};
use renkei_core::entry::{Entry, EntryKind};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;

/// Operations that create a name in a directory.
const MAKING: [&str; 3] = ["create", "mkdir", "symlink"];

/// The operation that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Reading a file, listing a directory.
    Read,
    /// Changing mode, times or owner.
    Alter,
    /// Creating, removing or renaming a name.
    Name,
}

/// Adds the denied account, and the owner and mode of the file that denied it, to an error.
pub fn refused(root: &dyn Dir, attempt: Attempt, paths: &[&RelPath], error: Error) -> Error {
    if error.code != Code::PermissionDenied || is_explained(&error) {
        return error;
    }
    let within = |path: &&RelPath| deeper(path, &error);
    let paths: Vec<RelPath> = paths.iter().map(within).collect();
    let Some(first) = paths.first() else { return error };
    match attempt {
        Attempt::Read => unreadable(root, first, error),
        Attempt::Alter => {
            let seen = seen(root, first);
            explained(Error { op: "change".into(), ..error }, "change it", seen)
        }
        Attempt::Name => {
            let closed = paths.iter().find_map(|path| unwritable(root, path, &error));
            closed.map(|(_, error)| error).unwrap_or_else(|| {
                let seen = seen(root, first);
                explained(error, "remove or replace it", seen)
            })
        }
    }
}

/// The path of the error, if it lies below `path`: an operation on a tree fails somewhere in it.
fn deeper(path: &RelPath, error: &Error) -> RelPath {
    let told = RelPath::parse(error.subject.as_bytes());
    told.ok().filter(|told| told.starts_with(path)).unwrap_or_else(|| path.clone())
}

/// The parent directory of a path in which the account cannot write, with an error that says so.
fn unwritable(root: &dyn Dir, path: &RelPath, error: &Error) -> Option<(RelPath, Error)> {
    let (closed, told) = closed(root, path, error, true)?;
    let (entry, raw) = root.descend(&closed).and_then(|dir| dir.self_entry(Detail::Basic)).ok()?;
    (!may_write(entry.meta.mode, raw.uid, raw.gid)).then_some((closed, told))
}

/// Whether the permission bits let this thread's account create names in a directory.
fn may_write(mode: u32, uid: u32, gid: u32) -> bool {
    let own = rustix::process::geteuid();
    let groups = rustix::process::getgroups().unwrap_or_default();
    let is_member =
        rustix::process::getegid().as_raw() == gid || groups.iter().any(|own| own.as_raw() == gid);
    let shift = match own.as_raw() {
        0 => return true,
        own if own == uid => 6,
        _ if is_member => 3,
        _ => 0,
    };
    (mode >> shift) & 0o3 == 0o3
}

/// The directory that refuses `path`, if that is the cause of the error, with an error that says so; or the file that
/// stands where a directory is needed.
///
/// It is the deepest directory that exists; of directories that cannot be entered the outermost.
pub fn closed_above(base: &dyn Dir, path: &RelPath, error: &Error) -> Option<(RelPath, Error)> {
    match error.code {
        Code::PermissionDenied => closed(base, path, error, MAKING.contains(&error.op.as_str())),
        Code::NotADirectory => file_above(base, path, error),
        _ => None,
    }
}

/// The first component that is not a directory.
fn file_above(base: &dyn Dir, path: &RelPath, error: &Error) -> Option<(RelPath, Error)> {
    let mut at = RelPath::root();
    for name in path.components() {
        at = at.child(name).ok()?;
        if base.descend(&at).is_err_and(|error| error.code == Code::NotADirectory) {
            let whole = base.path().join(&at).unwrap_or_else(|_| at.clone());
            let cause = "a file is where a directory is needed";
            return Some((at, Error { subject: whole.to_string(), cause: cause.into(), ..error.clone() }));
        }
    }
    None
}

fn closed(base: &dyn Dir, path: &RelPath, error: &Error, makes: bool) -> Option<(RelPath, Error)> {
    let (mut at, mut barred) = (path.parent()?, None);
    let found = loop {
        match base.descend(&at) {
            Ok(dir) => break Some(dir),
            Err(error) if error.code == Code::PermissionDenied => barred = Some(at.clone()),
            Err(error) if error.code == Code::PathNotFound => {}
            Err(_) => return None,
        }
        match at.parent() {
            Some(parent) => at = parent,
            None => break None,
        }
    };
    let (closed, seen) = match (barred, found) {
        (Some(barred), dir) => {
            let name = barred.name().unwrap_or_default();
            let seen = dir.and_then(|dir| dir.entry(name, Detail::Basic).ok());
            (barred, seen)
        }
        (None, Some(dir)) if makes => (at, dir.self_entry(Detail::Basic).ok()),
        _ => return None,
    };
    let whole = base.path().join(&closed).unwrap_or_else(|_| closed.clone());
    let error = Error { subject: whole.to_string(), ..error.clone() };
    Some((closed, explained(error, "write in it", seen)))
}

/// Explains an error of a source that could not be read, with the denied account and the owner.
pub fn unreadable(dir: &dyn Dir, from: &RelPath, error: Error) -> Error {
    if error.code != Code::PermissionDenied || is_explained(&error) {
        return error;
    }
    let mut at = from.clone();
    loop {
        match (seen(dir, &at), at.parent()) {
            (None, Some(parent)) => at = parent,
            (seen, _) => return explained(error, "read it", seen),
        }
    }
}

/// The attributes of a path, if its directory can be entered.
fn seen(dir: &dyn Dir, path: &RelPath) -> Option<(Entry, Raw)> {
    match path.split() {
        None => dir.self_entry(Detail::Basic).ok(),
        Some((parent, name)) => {
            let parent = RelPath::parse(parent).and_then(|parent| dir.descend(&parent));
            parent.and_then(|parent| parent.entry(name, Detail::Basic)).ok()
        }
    }
}

fn is_explained(error: &Error) -> bool {
    [" may not ", "set-id bits"].iter().any(|words| error.cause.contains(words))
}

/// Sets the cause: the account, the denied operation, and the owner and mode.
fn explained(error: Error, verb: &str, seen: Option<(Entry, Raw)>) -> Error {
    let uid = rustix::process::geteuid().as_raw();
    let account = user_name(uid).unwrap_or_else(|| uid.to_string());
    let whose = seen.map(|(entry, raw)| {
        let kind = if entry.kind == EntryKind::Dir { 'd' } else { '-' };
        let owner = user_name(raw.uid).unwrap_or_else(|| raw.uid.to_string());
        let group = group_name(raw.gid).unwrap_or_else(|| raw.gid.to_string());
        format!(": {owner}:{group} {kind}{}", mode_text(entry.meta.mode))
    });
    let cause = format!("{account} may not {verb}{}", whose.unwrap_or_default());
    Error { cause, ..error }
}

/// Permissions as `ls -l` writes them.
fn mode_text(mode: u32) -> String {
    let bits = "rwxrwxrwx".chars().enumerate();
    bits.map(|(at, letter)| if mode & (0o400 >> at) != 0 { letter } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_written_as_ls_does() {
        assert_eq!((mode_text(0o40_755), mode_text(0o600)), ("rwxr-xr-x".into(), "rw-------".into()));
    }
}
