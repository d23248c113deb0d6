//! Checks before a volume is created: its name, its directory, and that no other volume has the same files.
//!
//! The caller decides whose rights apply, the administrator's or a user's.

use super::VolumeConfig;
use super::dir_claim;
use super::volume_config;
use renkei_config::home::Home;
use renkei_config::{Config, Storage};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_store::marker::is_marker;
use renkei_store::{Detail, Dir, Listed, Store};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Mode of created directories.
const MODE: u32 = 0o755;

/// The storage for a new volume, if a volume may have this name and be in that storage.
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
    if volume_config::load(home)?.contains_key(name) {
        return Err(taken("volume"));
    }
    let unknown = || Error::new(Code::StorageUnknown, "create volume", storage, "not in config.toml");
    let found = config.storage.get(storage).ok_or_else(unknown)?;
    if found.agent.is_some() {
        return Err(invalid(storage, "the storage of an agent can hold no volume"));
    }
    Ok(found)
}

/// The directory that a user on the machine of the storage named. With `.` or `..` in it, it is relative to the
/// working directory, as in other tools; so is a directory that must exist and does not exist below the root of the
/// storage. Else it is returned unchanged.
pub fn resolved(named: &Path, is_there: bool, working: &Path, root: &Path) -> PathBuf {
    let is_dotted = named.components().any(|part| matches!(part, Component::CurDir | Component::ParentDir));
    let is_elsewhere = || is_there && !root.join(named).exists() && working.join(named).exists();
    if !is_dotted && !is_elsewhere() {
        return named.into();
    }
    let whole = without_dots(&working.join(named));
    // The working directory has its real path, also where the root of the storage is reached by a symbolic link.
    let below = |real: PathBuf| whole.strip_prefix(real).ok().map(|below| root.join(below));
    root.canonicalize().ok().and_then(below).unwrap_or(whole)
}

/// A path in which each `..` has removed the name before it.
fn without_dots(path: &Path) -> PathBuf {
    let mut whole = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                whole.pop();
            }
            other => whole.push(other),
        }
    }
    whole
}

/// The path below the root of a storage of a directory that was named.
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
    RelPath::parse(bytes.strip_suffix(b"/").unwrap_or(bytes)).map_err(|error| {
        let from = format!("a relative path is taken from {}, the root of the storage", root.display());
        let cause = format!("{}; {from}: name it from there, or as an absolute path", error.cause);
        Error { cause, ..error }
    })
}

/// The path of a directory as the configuration has it.
///
/// # Errors
/// `UsageInvalid`.
pub fn text(path: &RelPath) -> Result<String, Error> {
    let text = String::from_utf8(path.as_bytes().to_vec());
    text.map_err(|_| invalid(path, "the directory of a volume must have a name in UTF-8"))
}

/// The absolute path of a directory in a storage.
pub fn folder(storage: &Storage, path: &RelPath) -> PathBuf {
    storage.path.join(OsStr::from_bytes(path.as_bytes()))
}

/// Refuses a directory that contains another volume's or lies in it.
///
/// # Errors
/// `UsageInvalid`.
pub fn refuse_overlap(folder: &Path, config: &Config, home: &Home) -> Result<(), Error> {
    for (name, VolumeConfig { storage, path, .. }) in volume_config::load(home)? {
        let Some(storage) = config.storage.get(&storage) else { continue };
        let other = storage.path.join(&path);
        if folder.starts_with(&other) || other.starts_with(folder) {
            let cause = format!("volume {name} has {}", other.display());
            return Err(invalid(folder.display(), cause));
        }
    }
    refuse_taken(folder, config, home)
}

/// Refuses a directory of another site's volume, or of a volume that is reached by another path.
///
/// # Errors
/// `DirectoryTaken`.
pub fn refuse_taken(folder: &Path, config: &Config, home: &Home) -> Result<(), Error> {
    let kept: Vec<String> =
        volume_config::load(home)?.values().map(|facts| volume_config::id_text(&facts.id)).collect();
    let site = config.site(home)?;
    dir_claim::refuse_taken(folder, site, |id| kept.iter().any(|kept| kept == id))
}

/// Creates the missing directories of a new volume's path, and checks that the last one is empty; `on_made` is called
/// for each created one.
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

/// The uid of the owner of a directory that is reached without symbolic links.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_relative_to_the_storage_or_with_dots_to_the_working_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (root, way) = (dir.path().canonicalize().unwrap().join("data"), dir.path().join("way"));
        std::fs::create_dir_all(root.join("genome/2025")).unwrap();
        std::os::unix::fs::symlink(&root, &way).unwrap();
        let found = |named: &str, is_there, working: &str, root: &Path, real: &Path| {
            let named = resolved(Path::new(named), is_there, &real.join(working), root);
            relative(&named, root).map(|path| path.to_string()).map_err(|error| error.code)
        };
        let at = |named: &str, working: &str| found(named, true, working, &root, &root).unwrap();
        assert_eq!(at("genome", "genome/2025"), "genome", "it is there, below the root");
        assert_eq!((&*at("./2025", "genome"), &*at("2025/", "genome")), ("genome/2025", "genome/2025"));
        assert_eq!((&*at("../genome/./2025", "genome"), &*at("..", "genome")), ("genome/2025", ""));
        assert_eq!(found(".", true, "genome", &way, &root).unwrap(), "genome", "the root is a link");
        // A directory that need not exist is below the root, unless it has dots.
        assert_eq!(found("2025", false, "genome", &root, &root).unwrap(), "2025");
        assert_eq!(found("./new", false, "genome", &root, &root).unwrap(), "genome/new");
        assert_eq!(found("../..", true, "genome", &root, &root), Err(Code::UsageInvalid));
        // A user on another machine has no working directory there.
        let error = relative(Path::new("./genome"), &root).unwrap_err();
        assert!(error.code == Code::BadPath && error.cause.contains("absolute path"), "{error}");
    }
}
