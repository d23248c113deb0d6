//! Says who was refused by the file system, where, and by which owner and mode: what somebody needs to mend it.

use crate::identity::account::Account;
use crate::store::names::{group_name, user_name};
use crate::store::{Detail, Dir, Raw};
use renkei_core::entry::{Entry, EntryKind};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;

/// Operations that make a name in a directory.
const MAKING: [&str; 3] = ["create", "mkdir", "symlink"];

/// The directory that does not take `path`, if that is why it failed, with an error that says so.
///
/// It is the deepest one that is there; of directories that cannot even be entered the first one on the way.
pub(super) fn closed_above(base: &dyn Dir, path: &RelPath, error: &Error) -> Option<(RelPath, Error)> {
    if error.code != Code::PermissionDenied {
        return None;
    }
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
        (None, Some(dir)) if MAKING.contains(&error.op.as_str()) => (at, dir.self_entry(Detail::Basic).ok()),
        _ => return None,
    };
    let whole = base.path().join(&closed).unwrap_or_else(|_| closed.clone());
    let error = Error { subject: whole.to_string(), ..error.clone() };
    Some((closed, explained(error, "write in it", seen)))
}

/// An error of a source that could not be read, with who was refused by what.
pub(super) fn unreadable(dir: &dyn Dir, from: &RelPath, error: Error) -> Error {
    if error.code != Code::PermissionDenied || is_explained(&error) {
        return error;
    }
    let mut at = from.clone();
    loop {
        let seen = match at.split() {
            None => dir.self_entry(Detail::Basic).ok(),
            Some((parent, name)) => {
                let parent = RelPath::parse(parent).and_then(|parent| dir.descend(&parent));
                parent.and_then(|parent| parent.entry(name, Detail::Basic)).ok()
            }
        };
        match (seen, at.parent()) {
            (None, Some(parent)) => at = parent,
            (seen, _) => return explained(error, "read it", seen),
        }
    }
}

fn is_explained(error: &Error) -> bool {
    error.cause.contains(" may not ")
}

/// Puts into the cause who may not do what, and whose the thing is.
fn explained(error: Error, verb: &str, seen: Option<(Entry, Raw)>) -> Error {
    let account = Account::own().map_or_else(|_| "this account".into(), |account| account.name);
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
