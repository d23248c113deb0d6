//! The identity of a storage when it was added or accepted, so that another directory at its path is detected.
//!
//! One text file for each storage, `state/storages/NAME.toml`: the path, the id in the marker, the fingerprint of
//! the directory (`renkei_store::marker`), compared at each open. A storage without such a file, from an older PoP or
//! because its path was changed in config.toml, is accepted as it is and recorded. Guarantee: the same marker is
//! the same storage, wherever it is mounted; without a marker, the same fingerprint is. Two storages of a PoP have
//! one marker only if they are one directory. Non-goal: files below the root.

use renkei_config::home::{Home, file_error, make_dir, read_text, write_file};
use renkei_config::{Config, Storage};
use renkei_core::error::{Code, Error};
use renkei_core::units::hex;
use renkei_mover::fresh_id;
use renkei_net::identity::certificate::utc;
use renkei_store::local::{AccessMode, LocalStore};
use renkei_store::marker::{Fingerprint, STORAGE, identity_at};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Version of the file and of the marker.
const VERSION: u32 = 1;

/// Maximum size of the file.
const MAX_BYTES: u64 = 64 << 10;

/// Mode of the file: it holds no secret.
const MODE: u32 = 0o644;

/// The recorded identity of a storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageIdentity {
    version: u32,
    path: PathBuf,
    /// The id in its marker, if one could be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    marker: Option<String>,
    recorded_unix: u64,
    fingerprint: Fingerprint,
}

/// The content of a marker.
#[derive(Serialize, Deserialize)]
struct Marker {
    version: u32,
    id: String,
}

/// Opens the directory of a storage and checks its recorded identity; without a record it is recorded now.
///
/// # Errors
/// `StorageMissing`, `StorageNotMounted`, `StorageChanged`, `StorageCopied`.
pub fn open(home: &Home, name: &str, storage: &Storage) -> Result<LocalStore, Error> {
    let store = open_mounted(storage)?;
    let now = StorageIdentity::of(&store, storage)?;
    let known = StorageIdentity::load(home, name)?.filter(|known| known.path == storage.path);
    refuse_copy(home, name, &now, known.as_ref())?;
    if let Some(known) = &known {
        known.compare(&now)?;
    }
    // The marker was removed, or could not be written before.
    let marker = now.marker.clone().or_else(|| put_marker(&store, known.as_ref(), storage));
    let recorded_unix = known.as_ref().map_or(now.recorded_unix, |known| known.recorded_unix);
    let now = StorageIdentity { marker, recorded_unix, ..now };
    if known.as_ref() != Some(&now)
        && let Err(error) = now.store(home, name)
    {
        tracing::warn!(%error, storage = name, "what the storage is cannot be recorded");
    }
    Ok(store)
}

/// The same without side effects.
///
/// # Errors
/// As [`open`].
pub fn check(home: &Home, name: &str, storage: &Storage) -> Result<LocalStore, Error> {
    let store = open_mounted(storage)?;
    let now = StorageIdentity::of(&store, storage)?;
    let known = StorageIdentity::load(home, name)?.filter(|known| known.path == storage.path);
    refuse_copy(home, name, &now, known.as_ref())?;
    match known {
        Some(known) => known.compare(&now).map(|()| store),
        None => Ok(store),
    }
}

/// Checks that a storage to be added is not a storage of this PoP already, nor a copy of one.
///
/// # Errors
/// `StorageCopied`.
pub fn check_new(home: &Home, name: &str, storage: &Storage) -> Result<(), Error> {
    // Other errors are reported when it is opened.
    let now = open_mounted(storage).and_then(|store| StorageIdentity::of(&store, storage));
    now.map_or(Ok(()), |now| refuse_copy(home, name, &now, None))
}

/// Refuses a copy, which has the marker of its original. A storage recorded with the marker is kept, and so is a
/// second name of one directory.
fn refuse_copy(
    home: &Home,
    name: &str,
    now: &StorageIdentity,
    known: Option<&StorageIdentity>,
) -> Result<(), Error> {
    if now.marker.is_none() || known.is_some_and(|known| known.marker == now.marker) {
        return Ok(());
    }
    for (other, storage) in Config::load(home)?.storage.iter().filter(|(other, _)| *other != name) {
        let Some(recorded) = StorageIdentity::load(home, other)? else { continue };
        let is_its = recorded.marker == now.marker && recorded.path == storage.path;
        if is_its && !is_one_directory(&now.path, &storage.path) {
            let id = now.marker.as_deref().unwrap_or_default();
            let cause =
                format!("its {STORAGE} has the id {id} of the storage {other}, {}", storage.path.display());
            return Err(Error::new(Code::StorageCopied, "open storage", now.path.display(), cause));
        }
    }
    Ok(())
}

fn is_one_directory(one: &Path, other: &Path) -> bool {
    identity_at(one).is_ok_and(|one| identity_at(other).is_ok_and(|other| one == other))
}

/// Accepts the directory at the path of a storage as that storage.
///
/// # Errors
/// `StorageMissing`, `StorageNotMounted`, `StorageCopied`, and those of the file system.
pub fn accept(home: &Home, name: &str, storage: &Storage) -> Result<(), Error> {
    let store = open_mounted(storage)?;
    let now = StorageIdentity::of(&store, storage)?;
    refuse_copy(home, name, &now, None)?;
    let marker = now.marker.clone().or_else(|| put_marker(&store, None, storage));
    StorageIdentity { marker, ..now }.store(home, name)
}

/// Writes a removed marker again to the directory known to be that of the storage.
pub(crate) fn mark_again(home: &Home, name: &str, storage: &Storage, store: &LocalStore) {
    let known = StorageIdentity::load(home, name).ok().flatten();
    if let Some(known) = known.filter(|known| known.marker.is_some()) {
        let written = put_marker(store, Some(&known), storage);
        tracing::warn!(
            storage = name,
            is_written = written.is_some(),
            "{STORAGE} was removed from the storage"
        );
    }
}

/// Removes the record of a storage; the marker stays, for it may be another PoP's too.
///
/// # Errors
/// Those of the file system.
pub fn forget(home: &Home, name: &str) -> Result<(), Error> {
    let path = file(home, name);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(file_error("remove", &path, &error)),
        _ => Ok(()),
    }
}

fn open_mounted(storage: &Storage) -> Result<LocalStore, Error> {
    let mode = if storage.read_only { AccessMode::ReadOnly } else { AccessMode::ReadWrite };
    let store = LocalStore::open(&storage.path, mode)?;
    let store = match &storage.checksums {
        Some(checksums) => store.with_checksums(&checksums.0),
        None => store,
    };
    match storage.require_mount && !store.is_mount_point() {
        true => {
            let cause = "it is a plain directory now, and the storage was added with --require-mount";
            Err(Error::new(Code::StorageNotMounted, "open storage", storage.path.display(), cause))
        }
        false => Ok(store),
    }
}

/// Writes a marker with the known id of the storage, or a new one; returns the id on success.
fn put_marker(store: &LocalStore, known: Option<&StorageIdentity>, storage: &Storage) -> Option<String> {
    if storage.read_only {
        return None;
    }
    let known = known.and_then(|known| known.marker.clone());
    let id = known.map_or_else(|| fresh_id().map(|id| hex(&id)), Ok).ok()?;
    let marker = toml::to_string(&Marker { version: VERSION, id: id.clone() }).ok()?;
    let text = format!("# By this file renkei knows this directory again: please leave it here.\n{marker}");
    match store.put_marker(STORAGE, &text) {
        Ok(()) => Some(id),
        // Another PoP, or another storage of this one, has won the race.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => read_marker(store, storage).ok()?,
        Err(error) => {
            tracing::debug!(%error, path = %storage.path.display(), "no marker can be written");
            None
        }
    }
}

/// The id in the marker of a directory; `None` without a marker or if it cannot be read.
fn read_marker(store: &LocalStore, storage: &Storage) -> Result<Option<String>, Error> {
    let broken = |cause: String| {
        let subject = storage.path.join(STORAGE);
        let cause =
            format!("the marker cannot be used ({cause}); remove it, then `renkei storage accept NAME`");
        Error::new(Code::StorageChanged, "open storage", subject.display(), cause)
    };
    match store.marker(STORAGE) {
        Ok(None) => Ok(None),
        Ok(Some(text)) => {
            let marker: Marker = toml::from_str(&text).map_err(|error| broken(error.message().into()))?;
            Ok(Some(marker.id))
        }
        Err(error) if error.kind() == ErrorKind::InvalidData => Err(broken(error.to_string())),
        // The PoP has no permission to read it.
        Err(error) => {
            tracing::debug!(%error, path = %storage.path.display(), "the marker cannot be read");
            Ok(None)
        }
    }
}

impl StorageIdentity {
    /// The present identity of a directory.
    fn of(store: &LocalStore, storage: &Storage) -> Result<Self, Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let fingerprint = store.fingerprint().unwrap_or_else(|error| {
            tracing::debug!(%error, path = %storage.path.display(), "the file system has no identifier");
            Fingerprint::default()
        });
        Ok(StorageIdentity {
            version: VERSION,
            path: storage.path.clone(),
            marker: read_marker(store, storage)?,
            recorded_unix: now.as_secs(),
            fingerprint,
        })
    }

    /// Checks the present identity against this recorded one.
    fn compare(&self, now: &Self) -> Result<(), Error> {
        let is_same = self.fingerprint.matches(&now.fingerprint);
        match (&self.marker, &now.marker) {
            (Some(known), Some(found)) if known == found => Ok(()),
            (Some(_), Some(_)) => Err(now.changed(self, format!("it has the {STORAGE} of another storage"))),
            (Some(_), None) if is_same == Some(true) => Ok(()),
            (Some(_), None) => Err(now.changed(self, format!("it has no {STORAGE}"))),
            (None, _) if is_same != Some(false) => Ok(()),
            (None, _) => {
                Err(now.changed(self, "it was made at another time or is on another file system".into()))
            }
        }
    }

    fn changed(&self, known: &Self, how: String) -> Error {
        let (then, now) = (&known.fingerprint.file_system, &self.fingerprint.file_system);
        let types = if then == now { String::new() } else { format!(", {now} instead of {then}") };
        let at = utc(UNIX_EPOCH + Duration::from_secs(known.recorded_unix));
        let cause = format!("{how}{types}; recorded on {at}. Is its file system mounted?");
        Error::new(Code::StorageChanged, "open storage", self.path.display(), cause)
    }

    /// The recorded identity, if there is one.
    fn load(home: &Home, name: &str) -> Result<Option<Self>, Error> {
        let path = file(home, name);
        let Some(text) = read_text(&path, MAX_BYTES)? else { return Ok(None) };
        let invalid = |cause: String| Error::new(Code::ConfigInvalid, "read", path.display(), cause);
        let known: Self = toml::from_str(&text).map_err(|error| invalid(error.message().into()))?;
        match known.version {
            VERSION => Ok(Some(known)),
            version => Err(invalid(format!("version {version} is newer than this program"))),
        }
    }

    fn store(&self, home: &Home, name: &str) -> Result<(), Error> {
        let path = file(home, name);
        let text = toml::to_string(self).map_err(|error| Error::new(Code::Internal, "write", name, error))?;
        make_dir(&home.storages_dir(), 0o755)?;
        write_file(&path, text.as_bytes(), MODE)?;
        give_to_pop(home, &[&home.storages_dir(), &path]);
        Ok(())
    }
}

/// Gives files that root wrote to the account of the PoP, which rewrites them.
fn give_to_pop(home: &Home, paths: &[&Path]) {
    let Ok(state) = home.state_dir().metadata() else { return };
    if !rustix::process::geteuid().is_root() || state.uid() == 0 {
        return;
    }
    for path in paths {
        if let Err(error) = chown(path, Some(state.uid()), Some(state.gid())) {
            tracing::warn!(%error, path = %path.display(), "cannot be given to the account of the PoP");
        }
    }
}

fn file(home: &Home, name: &str) -> PathBuf {
    home.storages_dir().join(format!("{name}.toml"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct Case {
        dir: tempfile::TempDir,
        home: Home,
        storage: Storage,
    }

    fn case() -> Case {
        let dir = tempfile::tempdir().unwrap();
        let storage = Storage { path: dir.path().join("data"), ..Storage::default() };
        fs::create_dir(&storage.path).unwrap();
        let home = Home::at(&dir.path().join("pop"));
        fs::create_dir_all(home.state_dir()).unwrap();
        Case { home, storage, dir }
    }

    impl Case {
        fn open(&self) -> Result<(), Code> {
            open(&self.home, "data", &self.storage).map(drop).map_err(|error| error.code)
        }

        /// Replaces the storage's directory by another one; returns the new path of the former.
        fn exchange(&self) -> PathBuf {
            let aside = self.dir.path().join("aside");
            fs::rename(&self.storage.path, &aside).unwrap();
            fs::create_dir(&self.storage.path).unwrap();
            aside
        }

        fn put_back(&self, aside: &Path) {
            fs::remove_dir_all(&self.storage.path).unwrap();
            fs::rename(aside, &self.storage.path).unwrap();
        }
    }

    #[test]
    fn an_exchanged_directory_is_detected_until_accepted() {
        let case = case();
        assert_eq!(case.open(), Ok(()));
        let aside = case.exchange();
        assert_eq!(case.open(), Err(Code::StorageChanged));
        assert!(!case.storage.path.join(STORAGE).exists(), "it is not marked for the storage");
        case.put_back(&aside);
        assert_eq!(case.open(), Ok(()));
        let aside = case.exchange();
        accept(&case.home, "data", &case.storage).unwrap();
        assert_eq!(case.open(), Ok(()));
        case.put_back(&aside);
        assert_eq!(case.open(), Err(Code::StorageChanged), "it is the other one now");
    }

    #[test]
    fn a_removed_marker_is_written_again() {
        let case = case();
        case.open().unwrap();
        let marker = case.storage.path.join(STORAGE);
        let text = fs::read(&marker).unwrap();
        fs::remove_file(&marker).unwrap();
        if check(&case.home, "data", &case.storage).unwrap().fingerprint().unwrap().born.is_some() {
            case.open().unwrap();
            assert_eq!(fs::read(&marker).unwrap(), text);
        }
    }

    #[test]
    fn a_storage_that_was_copied_with_its_marker_is_the_same() {
        let case = case();
        case.open().unwrap();
        let aside = case.exchange();
        fs::copy(aside.join(STORAGE), case.storage.path.join(STORAGE)).unwrap();
        assert_eq!(case.open(), Ok(()));
    }

    #[test]
    fn a_copy_is_no_second_storage_and_a_second_name_is() {
        let case = case();
        let (copy, link) = (case.dir.path().join("copy"), case.dir.path().join("link"));
        let at = |path: &Path| Storage { path: path.into(), ..Storage::default() };
        let storages = [("data", &case.storage.path), ("copy", &copy), ("link", &link)];
        let lines = storages.map(|(name, path)| format!("[storage.{name}]\npath = {path:?}\n"));
        fs::create_dir_all(case.home.config_dir()).unwrap();
        fs::write(case.home.config_file(), lines.concat()).unwrap();
        case.open().unwrap();
        fs::create_dir(&copy).unwrap();
        fs::copy(case.storage.path.join(STORAGE), copy.join(STORAGE)).unwrap();
        type Way = fn(&Home, &str, &Storage) -> Result<(), Error>;
        let all: [Way; 4] = [
            |home, name, storage| open(home, name, storage).map(drop),
            |home, name, storage| check(home, name, storage).map(drop),
            accept,
            check_new,
        ];
        for how in all {
            let refused = how(&case.home, "copy", &at(&copy)).unwrap_err();
            assert!(refused.cause.contains("of the storage data"), "{refused}");
            assert_eq!(refused.code, Code::StorageCopied);
        }
        std::os::unix::fs::symlink(&case.storage.path, &link).unwrap();
        all.iter().for_each(|how| how(&case.home, "link", &at(&link)).unwrap());
        fs::remove_file(copy.join(STORAGE)).unwrap();
        all.iter().for_each(|how| how(&case.home, "copy", &at(&copy)).unwrap());
        case.open().unwrap();
    }

    #[test]
    fn a_read_only_storage_is_identified_by_its_fingerprint() {
        let mut case = case();
        case.storage.read_only = true;
        case.open().unwrap();
        assert_eq!(fs::read_dir(&case.storage.path).unwrap().count(), 0, "nothing is written");
        let told = check(&case.home, "data", &case.storage).unwrap().fingerprint().unwrap();
        let aside = case.exchange();
        if told.born.is_some() {
            assert_eq!(case.open(), Err(Code::StorageChanged));
        }
        case.put_back(&aside);
        assert_eq!(case.open(), Ok(()));
    }

    #[test]
    fn storages_of_older_versions_and_moved_paths_are_accepted() {
        let mut case = case();
        case.open().unwrap();
        let aside = case.exchange();
        forget(&case.home, "data").unwrap();
        assert_eq!(case.open(), Ok(()));
        case.storage.path = aside;
        assert_eq!(case.open(), Ok(()));
        forget(&case.home, "data").unwrap();
        forget(&case.home, "data").unwrap();
    }

    #[test]
    fn a_plain_directory_is_no_mount() {
        let mut case = case();
        case.storage.require_mount = true;
        assert_eq!(case.open(), Err(Code::StorageNotMounted));
        assert_eq!(fs::read_dir(&case.storage.path).unwrap().count(), 0);
        assert_eq!(accept(&case.home, "data", &case.storage).unwrap_err().code, Code::StorageNotMounted);
    }

    #[test]
    fn a_malformed_marker_is_reported() {
        let case = case();
        fs::write(case.storage.path.join(STORAGE), "nonsense").unwrap();
        assert_eq!(case.open(), Err(Code::StorageChanged));
    }
}
