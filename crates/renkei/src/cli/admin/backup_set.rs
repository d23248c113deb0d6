//! The content of a backup: the files of a PoP, an agent or a user below `config` and `state`, and a manifest with
//! digests.
//!
//! Databases are copied as a consistent snapshot; all other files are replaced atomically by their writers. Not
//! included: data of storages, the content of the buffer, and journals of transfers, which start again without.

use renkei_catalogue::duplicate;
use renkei_config::home::{Home, file_error, make_dir, open_regular};
use renkei_core::error::{Code, Error};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The version of the format.
const FORMAT: u32 = 1;
/// The name of the manifest.
const LIST: &str = "backup.json";
/// Excluded folders, at any depth: sockets, the buffer, journals, and the state of mounts.
const PASSED: [&str; 4] = ["run", "buffer", "journal", "mounts"];

/// Mode bits that are restored: no set-id bits.
const MODE_BITS: u32 = 0o777;
/// The cause of a digest mismatch.
const OTHER_BYTES: &str = "its bytes are not those that were backed up";

/// The manifest of a backup.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct List {
    format: u32,
    /// The time it was begun, in seconds since 1970.
    pub(crate) made_unix: u64,
    /// The version of renkei that made it.
    made_by: String,
    /// The site, for a PoP.
    pub(crate) site: Option<String>,
    /// The database server of the catalogue, if that is not local.
    pub(crate) server: Option<String>,
    dirs: Vec<Folder>,
    pub(crate) files: Vec<Item>,
}

/// A directory, with its mode.
#[derive(Debug, Serialize, Deserialize)]
struct Folder {
    path: String,
    mode: u32,
}

/// A file of the backup.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Item {
    /// `config/...` or `state/...`.
    pub(crate) path: String,
    mode: u32,
    pub(crate) size: u64,
    blake3: String,
}

/// The origin of a backup.
pub(crate) struct Of {
    pub(crate) site: Option<String>,
    pub(crate) server: Option<String>,
    pub(crate) now_unix: u64,
}

fn broken(path: &Path, cause: impl std::fmt::Display) -> Error {
    Error::new(Code::BackupInvalid, "read backup", path.display(), cause)
}

/// Whether no component of a path leads elsewhere; an empty one would make the rest an absolute path.
fn is_plain(path: &str) -> bool {
    path.split('/').all(|name| !matches!(name, "" | "." | ".."))
}

/// The target of a path of the manifest in the directories of a PoP.
fn target(home: &Home, path: &str) -> Option<PathBuf> {
    let (root, rest) = match path.split_once('/').unwrap_or((path, "")) {
        ("config", rest) => (home.config_dir(), rest),
        ("state", rest) => (home.state_dir(), rest),
        _ => return None,
    };
    is_plain(path).then(|| if rest.is_empty() { root.to_path_buf() } else { root.join(rest) })
}

// ---- making ----------------------------------------------------------------------------------------------------------

/// A backup in progress.
struct Copying<'h> {
    home: &'h Home,
    to: &'h Path,
    /// The final path of the backup.
    end: &'h Path,
    list: List,
    databases: Vec<(PathBuf, String)>,
}

/// Makes a backup of `home`; atomic: the folder is complete or does not exist.
///
/// # Errors
/// Errors of the file system, `CatalogueFailed`.
pub(crate) fn make(home: &Home, folder: &Path, of: Of) -> Result<List, Error> {
    let end = std::path::absolute(folder).map_err(|error| file_error("back up", folder, &error))?;
    refuse_used(&end)?;
    let mut name = end.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.new", std::process::id()));
    let to = end.with_file_name(name);
    private(&to)?;
    let list = List {
        format: FORMAT,
        made_unix: of.now_unix,
        made_by: env!("CARGO_PKG_VERSION").into(),
        site: of.site,
        server: of.server,
        dirs: Vec::new(),
        files: Vec::new(),
    };
    let mut copying = Copying { home, to: &to, end: &end, list, databases: Vec::new() };
    let made = copying.all().and_then(|()| copying.finish());
    if let Err(error) = made {
        let _ = fs::remove_dir_all(&to);
        return Err(error);
    }
    Ok(copying.list)
}

fn refuse_used(folder: &Path) -> Result<(), Error> {
    let is_empty = match fs::read_dir(folder) {
        Ok(mut items) => items.next().is_none(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(file_error("back up", folder, &error)),
    };
    if is_empty {
        return Ok(());
    }
    let cause = "something is in it; name a folder that is new or empty";
    Err(Error::new(Code::PathExists, "back up", folder.display(), cause))
}

fn private(path: &Path) -> Result<(), Error> {
    DirBuilder::new().mode(0o700).create(path).map_err(|error| file_error("make directory", path, &error))
}

impl Copying<'_> {
    /// Databases last: the files beside them are recorded before.
    fn all(&mut self) -> Result<(), Error> {
        self.folder(self.home.config_dir(), "config")?;
        self.folder(self.home.state_dir(), "state")?;
        for (from, path) in std::mem::take(&mut self.databases) {
            let to = self.to.join(&path);
            duplicate(&from, &to)?;
            self.note(path, &to, 0o600)?;
        }
        Ok(())
    }

    fn folder(&mut self, from: &Path, path: &str) -> Result<(), Error> {
        let failed = |error: io::Error| file_error("back up", from, &error);
        let (data, items) = match (fs::metadata(from), fs::read_dir(from)) {
            (Ok(data), Ok(items)) => (data, items),
            // Removed meanwhile, or never there.
            (Err(error), _) | (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            (Err(error), _) | (_, Err(error)) => return Err(failed(error)),
        };
        private(&self.to.join(path))?;
        let mode = data.permissions().mode() & 0o7777;
        self.list.dirs.push(Folder { path: path.into(), mode });
        for item in items {
            let from = item.map_err(failed)?.path();
            let Some(name) = from.file_name().and_then(|name| name.to_str()) else { continue };
            self.item(&from, name, &format!("{path}/{name}"))?;
        }
        Ok(())
    }

    fn item(&mut self, from: &Path, name: &str, path: &str) -> Result<(), Error> {
        let data = match fs::symlink_metadata(from).and_then(|_| fs::metadata(from)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            data => data.map_err(|error| file_error("back up", from, &error))?,
        };
        let is_inside = [self.home.state_dir(), self.home.runtime_dir(), self.to, self.end].contains(&from);
        let is_half = [".sqlite-wal", ".sqlite-shm", ".new"].iter().any(|end| name.ends_with(end));
        if data.is_dir() && !from.is_symlink() && !is_inside && !PASSED.contains(&name) {
            self.folder(from, path)
        } else if data.is_file() && name.ends_with(".sqlite") {
            self.databases.push((from.into(), path.into()));
            Ok(())
        } else if data.is_file() && !is_half && from != self.home.restored_file() {
            self.file(from, path, &data)
        } else {
            Ok(())
        }
    }

    fn file(&mut self, from: &Path, path: &str, data: &Metadata) -> Result<(), Error> {
        let to = self.to.join(path);
        let bytes = match fs::read(from) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            read => read.map_err(|error| file_error("back up", from, &error))?,
        };
        put(&to, &bytes, 0o600)?;
        self.note(path.into(), &to, data.permissions().mode() & 0o7777)
    }

    fn note(&mut self, path: String, copy: &Path, mode: u32) -> Result<(), Error> {
        let (size, blake3) = digest(copy).map_err(|error| file_error("read", copy, &error))?;
        self.list.files.push(Item { path, mode, size, blake3 });
        Ok(())
    }

    /// Writes the manifest and renames the folder to its final name.
    fn finish(&self) -> Result<(), Error> {
        let list = serde_json::to_vec_pretty(&self.list).expect("a list is plain data");
        put(&self.to.join(LIST), &list, 0o600)?;
        let failed = |error| file_error("rename", self.end, &error);
        for folder in &self.list.dirs {
            sync(&self.to.join(&folder.path))?;
        }
        sync(self.to)?;
        fs::rename(self.to, self.end).map_err(failed)?;
        sync(self.end.parent().unwrap_or(Path::new("/")))
    }
}

/// Writes a new file durably (fsync).
fn put(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    let written = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(bytes)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    };
    written().map_err(|error| file_error("write", path, &error))
}

fn sync(dir: &Path) -> Result<(), Error> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|error| file_error("sync", dir, &error))
}

/// Length and BLAKE3 of a file.
fn digest(path: &Path) -> io::Result<(u64, String)> {
    let mut hasher = blake3::Hasher::new();
    let size = io::copy(&mut open_regular(path, OpenOptions::new().read(true))?, &mut hasher)?;
    Ok((size, hasher.finalize().to_hex().to_string()))
}

/// Reads a file of a backup and verifies its digest.
fn read_saved(path: &Path, item: &Item) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read =
        open_regular(path, OpenOptions::new().read(true)).and_then(|mut file| file.read_to_end(&mut bytes));
    read.map_err(|error| broken(path, error))?;
    match blake3::hash(&bytes).to_hex().as_str() == item.blake3 {
        true => Ok(bytes),
        false => Err(broken(path, OTHER_BYTES)),
    }
}

// ---- putting back ----------------------------------------------------------------------------------------------------

/// Reads the manifest of a backup, and verifies that all files are there unchanged.
///
/// # Errors
/// `BackupInvalid`.
pub(crate) fn read(folder: &Path) -> Result<List, Error> {
    let path = folder.join(LIST);
    let mut bytes = Vec::new();
    let read =
        open_regular(&path, OpenOptions::new().read(true)).and_then(|mut file| file.read_to_end(&mut bytes));
    read.map_err(|error| broken(&path, error))?;
    let list: List = serde_json::from_slice(&bytes).map_err(|error| broken(&path, error))?;
    if list.format != FORMAT {
        return Err(broken(&path, format_args!("format {}; this renkei knows {FORMAT}", list.format)));
    }
    for item in &list.files {
        if !is_plain(&item.path) {
            return Err(broken(folder, &item.path));
        }
        let path = folder.join(&item.path);
        let found = digest(&path).map_err(|error| broken(&path, error))?;
        if found != (item.size, item.blake3.clone()) {
            return Err(broken(&path, OTHER_BYTES));
        }
    }
    Ok(list)
}

/// Restores the files of a backup. Existing files must be identical, so that a restore can be repeated.
///
/// # Errors
/// `BackupInvalid`, `AlreadyInitialised`, and errors of the file system.
pub(crate) fn put_back(list: &List, folder: &Path, home: &Home) -> Result<(), Error> {
    let mut todo = Vec::new();
    for item in &list.files {
        let to = target(home, &item.path).ok_or_else(|| broken(folder, &item.path))?;
        match digest(&to) {
            Ok(found) if found == (item.size, item.blake3.clone()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => todo.push((item, to)),
            _ => {
                let (config, state) = (home.config_dir().display(), home.state_dir().display());
                let cause = format!(
                    "{} is there with other content; move {config} and {state} away first",
                    to.display()
                );
                return Err(Error::new(
                    Code::AlreadyInitialised,
                    "restore",
                    home.config_dir().display(),
                    cause,
                ));
            }
        }
    }
    for Folder { path, mode } in &list.dirs {
        let to = target(home, path).ok_or_else(|| broken(folder, path))?;
        make_dir(&to, *mode & MODE_BITS)?;
    }
    // First of all: a PoP that is started on a partial restore recognises it by this marker.
    let marker = home.restored_file();
    if !marker.exists() {
        put(&marker, format!("backed up at {}\n", list.made_unix).as_bytes(), 0o600)?;
    }
    // The configuration last: only with it the PoP can be started.
    todo.sort_by_key(|(item, _)| item.path == "config/config.toml");
    for (item, to) in &todo {
        let from = folder.join(&item.path);
        put(to, &read_saved(&from, item)?, item.mode & MODE_BITS)?;
    }
    list.dirs.iter().filter_map(|dir| target(home, &dir.path)).try_for_each(|dir| sync(&dir))
}
