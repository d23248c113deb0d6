//! Patterns in places at sites: `kek:/data/*.h5`, quoted so that the shell leaves them alone.
//!
//! `*`, `?` and `[...]` are expanded as a shell at the site would: within one name, hidden names only by a pattern
//! that begins with a dot, sorted by their bytes. A literal match takes precedence. A pattern without a match stays
//! as it is, and is reported as a name that does not exist. Destinations and lists of names (`--files-from`) are not
//! expanded, as in rsync.

use super::Context;
use super::connect::{unexpected, written};
use super::many::Many;
use super::volume_path::Namespace;
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error};
use renkei_core::mover::filter::fits_name;
use renkei_core::path::{EndpointPath, Place, RelPath};
use renkei_core::wire::message::{Reply, Request};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Maximum of names after expansion of one command line.
const MAX_NAMES: usize = 100_000;

/// The arguments with each pattern replaced by the matching names.
///
/// # Errors
/// Errors of asking a site; `TooManyEntries`.
pub(super) fn expanded(arguments: &[OsString], context: &Context) -> Result<Vec<OsString>, Error> {
    if !arguments.iter().any(|argument| is_pattern(argument.as_bytes())) {
        return Ok(arguments.to_vec());
    }
    let (mut many, mut namespace) = (Many::new(context), Namespace::new(context));
    let mut all = Vec::new();
    for argument in arguments {
        match pattern(argument, &mut namespace) {
            Some((path, place)) => all.extend(matches(&mut many, argument, &path, &place)?),
            None => all.push(argument.clone()),
        }
        if all.len() > MAX_NAMES {
            let cause = format!("the pattern matches more than {MAX_NAMES} names");
            return Err(Error::new(Code::TooManyEntries, "expand", argument.display(), cause).at("client"));
        }
    }
    Ok(all)
}

/// The place of an argument that is a pattern at a site.
fn pattern(argument: &OsStr, namespace: &mut Namespace<'_>) -> Option<(EndpointPath, Place)> {
    if !is_pattern(argument.as_bytes()) {
        return None;
    }
    // The verb reports errors of an argument.
    let path = namespace.endpoint(argument).ok().flatten()?;
    let place = path.place.clone().filter(|place| is_pattern(place.path.as_bytes()))?;
    Some((path, place))
}

fn is_pattern(bytes: &[u8]) -> bool {
    bytes.iter().any(|byte| b"*?[".contains(byte))
}

fn matches(
    many: &mut Many<'_>,
    argument: &OsString,
    path: &EndpointPath,
    place: &Place,
) -> Result<Vec<OsString>, Error> {
    if is_there(many, path, place)? {
        return Ok(vec![argument.clone()]);
    }
    let mut found = vec![RelPath::root()];
    for component in place.path.as_bytes().split(|byte| *byte == b'/') {
        let mut next = Vec::new();
        for dir in &found {
            match is_pattern(component) {
                true => next.extend(matching(many, path, place, dir, component)?),
                false => next.push(dir.child(component)?),
            }
        }
        found = next;
    }
    let mut all = Vec::new();
    for name in found {
        let at = Place { path: name, ..place.clone() };
        // Components after the last pattern need not exist.
        if is_pattern(place.path.name().unwrap_or_default()) || is_there(many, path, &at)? {
            let slash = if path.trailing_slash { "/" } else { "" };
            all.push(written(&EndpointPath { place: Some(at), ..path.clone() }, slash));
        }
    }
    if all.is_empty() {
        all.push(argument.clone());
    }
    Ok(all)
}

fn is_there(many: &mut Many<'_>, path: &EndpointPath, place: &Place) -> Result<bool, Error> {
    match many.ask(&path.site, Request::Stat(Some(place.clone()))) {
        Ok(Reply::Entry(_)) => Ok(true),
        Ok(other) => Err(unexpected(&other)),
        Err(error) if is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_absent(error: &Error) -> bool {
    matches!(error.code, Code::PathNotFound | Code::NotADirectory | Code::PermissionDenied)
}

/// The names in a directory that match a component, with the directory in front.
fn matching(
    many: &mut Many<'_>,
    path: &EndpointPath,
    place: &Place,
    dir: &RelPath,
    component: &[u8],
) -> Result<Vec<RelPath>, Error> {
    let is_dir_wanted = path.trailing_slash && place.path.name() == Some(component);
    let mut names = Vec::new();
    let at = Place { path: dir.clone(), ..place.clone() };
    let listed = many.session(&path.site)?.ask_parts(Request::List(Some(at)), |part| {
        for entry in part {
            let name = entry.path.as_bytes();
            let is_hidden = name.starts_with(b".") && !component.starts_with(b".");
            let is_kind = !is_dir_wanted || entry.kind == EntryKind::Dir;
            if !is_hidden && is_kind && fits_name(component, name) {
                names.push(dir.child(name)?);
            }
        }
        Ok(())
    });
    match listed {
        Err(error) if !is_absent(&error) => return Err(error),
        _ => {}
    }
    names.sort();
    Ok(names)
}
