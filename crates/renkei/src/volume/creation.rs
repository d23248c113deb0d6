//! What is looked at before a volume is made: its name, its directory, and that no other volume has the same files.
//!
//! Whose work it is, the administrator's or a user's, is the caller's matter.

use super::Facts;
use super::claim;
use super::facts;
use crate::config::{Config, Storage};
use crate::home::Home;
use crate::store::marker::is_marker;
use crate::store::{Detail, Dir, Listed, Store};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Mode of directories that are made.
const MODE: u32 = 0o755;

/// The storage, if a volume may have this name and be in it.
///
/// # Errors
/// `UsageInvalid`, `PathExists`, `StorageUnknown`.
pub fn check_name<'c>(
    name: &str,
    storage: &str,
    config: &'c Config,
    home: &Home,
) -> Result<&'c Storage, Error> {
    if !renkei_core::path::is_label(name) {
        return Err(invalid(name, "1 to 63 of a-z, 0-9 and -, starting with a letter"));
    }
    let taken = |what: &str| {
        let cause = format!("there is a {what} of that name");
        Error::new(Code::PathExists, "create volume", name, cause)
    };
    if config.storage.contains_key(name) {
        return Err(taken("storage"));
    }
    if facts::load(home)?.contains_key(name) {
        return Err(taken("volume"));
    }
    let unknown = || Error::new(Code::StorageUnknown, "create volume", storage, "not in config.toml");
    let found = config.storage.get(storage).ok_or_else(unknown)?;
    if found.agent.is_some() {
        return Err(invalid(storage, "the storage of an agent can hold no volume"));
    }
    Ok(found)
}

/// The directory below the root of a storage that somebody named.
///
/// # Errors
/// `UsageInvalid`, `BadPath`.
pub fn relative(named: &Path, root: &Path) -> Result<RelPath, Error> {
    let below = match named.is_absolute() {
        false => named,
        true => named.strip_prefix(root).map_err(|_| {
            let cause = format!("it is not below {}, the root of the storage", root.display());
            invalid(named.display(), cause)
        })?,
    };
    let bytes = below.as_os_str().as_bytes();
    RelPath::parse(bytes.strip_suffix(b"/").unwrap_or(bytes))
}

/// The directory as facts have it.
///
/// # Errors
/// `UsageInvalid`.
pub fn text(path: &RelPath) -> Result<String, Error> {
    let text = String::from_utf8(path.as_bytes().to_vec());
    text.map_err(|_| invalid(path, "the directory of a volume must have a name in UTF-8"))
}

/// Where a directory of a storage is.
pub fn folder(storage: &Storage, path: &RelPath) -> PathBuf {
    storage.path.join(OsStr::from_bytes(path.as_bytes()))
}

/// Two volumes never have the same files.
///
/// # Errors
/// `UsageInvalid`.
pub fn refuse_overlap(folder: &Path, config: &Config, home: &Home) -> Result<(), Error> {
    for (name, Facts { storage, path, .. }) in facts::load(home)? {
        let Some(storage) = config.storage.get(&storage) else { continue };
        let other = storage.path.join(&path);
        if folder.starts_with(&other) || other.starts_with(folder) {
            let cause = format!("volume {name} has {}", other.display());
            return Err(invalid(folder.display(), cause));
        }
    }
    refuse_taken(folder, config, home)
}

/// A directory of another site's volume, or of one that is reached by another path, is not taken.
///
/// # Errors
/// `DirectoryTaken`.
pub fn refuse_taken(folder: &Path, config: &Config, home: &Home) -> Result<(), Error> {
    let kept: Vec<String> = facts::load(home)?.values().map(|facts| facts::id_text(&facts.id)).collect();
    let site = config.site(home)?;
    claim::refuse_taken(folder, site, |id| kept.iter().any(|kept| kept == id))
}

/// Makes the directories on the way to a new volume that are missing, and makes sure that its own is empty; `on_made` is
/// told of each.
///
/// # Errors
/// Those of the file system; `NotEmpty`.
pub fn make_folder(
    store: &dyn Store,
    path: &RelPath,
    on_made: impl Fn(&RelPath) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut at = RelPath::root();
    for name in path.components() {
        let dir = store.root()?.descend(&at)?;
        at = at.child(name)?;
        match dir.mkdir(name, MODE) {
            Ok(()) => {
                on_made(&at)?;
                dir.sync()?;
            }
            Err(error) if error.code == Code::PathExists => {}
            Err(error) => return Err(error),
        }
    }
    let is_marked =
        |listed: &Result<Listed, Error>| listed.as_ref().is_ok_and(|listed| is_marker(&listed.name));
    match store.root()?.descend(path)?.list()?.find(|listed| !is_marked(listed)) {
        None => Ok(()),
        Some(_) => {
            let cause = "it is not empty; with --in-place it becomes the volume as it is";
            Err(Error::new(Code::NotEmpty, "create volume", path, cause))
        }
    }
}

/// The number of the owner of a directory, to which no link leads.
///
/// # Errors
/// Those of the file system.
pub fn owner(store: &dyn Store, path: &RelPath) -> Result<u32, Error> {
    let dir: std::sync::Arc<dyn Dir> = store.root()?.descend(path)?;
    Ok(dir.self_entry(Detail::Basic)?.1.uid)
}

fn invalid(subject: impl std::fmt::Display, cause: impl std::fmt::Display) -> Error {
    Error::new(Code::UsageInvalid, "create volume", subject, cause)
}
