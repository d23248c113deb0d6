//! The ownership of a directory of plain files: a marker in it names the volume and the site that owns it.
//!
//! It keeps two sites or two volumes from using one directory, also if they reach it by other paths, bind mounts,
//! symbolic links or from other machines of a shared file system: an eviction or trim by one would remove the other's
//! only copy. Opening a volume marks its directory, and refuses one with another marker. Guarantee: the first owner
//! stays; nothing of it is touched. Non-goal: a directory that is not writable has no marker.

use super::hands::Hands;
use super::volume_config::id_text;
use renkei_catalogue::VolumeId;
use renkei_core::error::{Code, Error};
use renkei_core::path::{RelPath, SiteName};
use renkei_store::local::{AccessMode, LocalStore};
use renkei_store::marker::{VOLUME, mounts_below};
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

/// Version of the marker.
const VERSION: u32 = 1;

/// Contents of the marker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryClaim {
    version: u32,
    /// The volume's id.
    volume: String,
    /// The site that owns the files.
    site: SiteName,
}

impl DirectoryClaim {
    /// The marker of a volume at a site.
    pub fn new(id: &VolumeId, site: &SiteName) -> Self {
        DirectoryClaim { version: VERSION, volume: id_text(id), site: site.clone() }
    }

    fn text(&self) -> String {
        let fields = toml::to_string(self).expect("a claim is plain data");
        format!(
            "# The files here belong to a volume of renkei, kept by this site: do not remove this file.\n{fields}"
        )
    }

    fn parse(text: &str, at: &str) -> Result<Self, Error> {
        toml::from_str(text).map_err(|error| {
            let cause = format!("its {VOLUME} cannot be read: {}", error.message());
            Error::new(Code::DirectoryTaken, "open volume", at, cause)
        })
    }

    fn refused(&self, at: &str) -> Error {
        let cause = format!(
            "by {VOLUME} there, the site {} keeps the files of volume {} in it",
            self.site, self.volume
        );
        Error::new(Code::DirectoryTaken, "open volume", at, cause)
    }
}

/// Checks that a directory has no other owner, and marks it, if need be with the rights of the account that owns the
/// volume's files.
///
/// # Errors
/// `DirectoryTaken`.
pub fn take(
    plain: &Arc<LocalStore>,
    own: &DirectoryClaim,
    access: AccessMode,
    hands: &dyn Hands,
) -> Result<(), Error> {
    if is_own(plain, own)? || access == AccessMode::ReadOnly {
        return Ok(());
    }
    let text = own.text();
    let mut put = plain.put_marker(VOLUME, &text);
    if put.as_ref().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
        let (plain, told) = (plain.clone(), Arc::new(std::sync::Mutex::new(None)));
        let tell = told.clone();
        hands.run(Box::new(move || {
            *tell.lock().expect("nobody panics with it") = Some(plain.put_marker(VOLUME, &text));
        }))?;
        put = told.lock().expect("nobody panics with it").take().unwrap_or(put);
    }
    match put {
        Ok(()) => Ok(()),
        // Another process created the marker first.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => is_own(plain, own).map(drop),
        Err(error) => {
            tracing::warn!(%error, volume = own.volume, "the directory of the volume cannot be marked as its own");
            Ok(())
        }
    }
}

/// Whether a directory has this owner's marker; false if it has none.
fn is_own(plain: &LocalStore, own: &DirectoryClaim) -> Result<bool, Error> {
    match found_in(plain, "its directory")? {
        None => Ok(false),
        Some(found) if (&found.volume, &found.site) == (&own.volume, &own.site) => Ok(true),
        Some(found) => Err(found.refused("its directory")),
    }
}

fn found_in(plain: &LocalStore, at: &str) -> Result<Option<DirectoryClaim>, Error> {
    match plain.marker(VOLUME) {
        Ok(text) => text.map(|text| DirectoryClaim::parse(&text, at)).transpose(),
        Err(error) if error.kind() == ErrorKind::InvalidData => DirectoryClaim::parse("", at).map(Some),
        // The PoP has no permission to read it.
        Err(error) => {
            tracing::debug!(%error, at, "it cannot be determined whether the directory belongs to another volume");
            Ok(None)
        }
    }
}

/// Refuses a directory for a volume of `site`, which need not exist, if it is that of another volume, lies in one, or
/// has one mounted below it; directories that the site owned once and does not use any more are free.
///
/// # Errors
/// `DirectoryTaken`.
pub fn refuse_taken(folder: &Path, site: &SiteName, is_kept: impl Fn(&str) -> bool) -> Result<(), Error> {
    let there = folder.ancestors().find(|path| path.exists()).unwrap_or(folder);
    let mounted = if folder.exists() { mounts_below(folder) } else { Vec::new() };
    for path in std::iter::once(there.to_owned()).chain(mounted) {
        // A directory that cannot be opened is reported when the volume is created.
        let Ok(store) = LocalStore::open(&path, AccessMode::ReadOnly) else { continue };
        let shown = path.display().to_string();
        for text in store.markers_upwards(VOLUME) {
            let found = DirectoryClaim::parse(&text, &shown)?;
            if found.site != *site || is_kept(&found.volume) {
                return Err(found.refused(&shown));
            }
        }
    }
    Ok(())
}

/// Marks the directory of a new volume below the root of a storage, replacing any marker; if that fails, opening the
/// volume tries again. A symbolic link in its place is not followed.
pub fn mark(root: &Path, path: &RelPath, own: &DirectoryClaim) {
    let store = LocalStore::open(root, AccessMode::ReadWrite).and_then(|store| store.below(path));
    let marked = store.map_err(|error| io::Error::other(error.to_string()));
    if let Err(error) = marked.and_then(|store| store.replace_marker(VOLUME, &own.text())) {
        tracing::debug!(%error, root = %root.display(), %path, "not marked yet");
    }
}

/// Removes this owner's marker: the volume does not use the directory any more.
pub fn release(folder: &Path, own: &DirectoryClaim) {
    let Ok(store) = LocalStore::open(folder, AccessMode::ReadWrite) else { return };
    if is_own(&store, own).is_ok_and(|is_own| is_own)
        && let Err(error) = store.remove_marker(VOLUME)
    {
        tracing::warn!(%error, folder = %folder.display(), "the marker of the volume could not be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::super::volume_config::tests::Here;
    use super::*;

    fn name(site: &str) -> SiteName {
        SiteName::parse(site).unwrap()
    }

    fn claim(id: u8, site: &str) -> DirectoryClaim {
        DirectoryClaim::new(&[id; 16], &name(site))
    }

    fn open(path: &Path) -> Arc<LocalStore> {
        Arc::new(LocalStore::open(path, AccessMode::ReadWrite).unwrap())
    }

    #[test]
    fn a_symlink_in_place_of_a_directory_is_not_marked() {
        let dir = tempfile::tempdir().unwrap();
        let (other, root) = (dir.path().join("other"), dir.path().join("root"));
        std::fs::create_dir(&other).unwrap();
        std::fs::create_dir(&root).unwrap();
        std::os::unix::fs::symlink(&other, root.join("genome")).unwrap();
        let genome = RelPath::parse(b"genome").unwrap();
        mark(&root, &genome, &claim(1, "kek"));
        assert!(!other.join(VOLUME).exists());
        std::fs::remove_file(root.join("genome")).unwrap();
        std::fs::create_dir(root.join("genome")).unwrap();
        mark(&root, &genome, &claim(1, "kek"));
        assert!(root.join("genome").join(VOLUME).exists());
    }

    #[test]
    fn a_directory_is_claimed_by_the_first_until_released() {
        // A directory of its own above it: no other process mounts anything below.
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join("volume");
        std::fs::create_dir(&dir).unwrap();
        let (plain, own) = (open(&dir), claim(1, "kek"));
        let take = |claim: &DirectoryClaim| {
            take(&plain, claim, AccessMode::ReadWrite, &Here).map_err(|error| error.code)
        };
        assert_eq!((take(&own), take(&own)), (Ok(()), Ok(())));
        for other in [claim(2, "kek"), claim(1, "titech")] {
            assert_eq!(take(&other), Err(Code::DirectoryTaken));
            release(&dir, &other);
        }
        let free = |at: &Path, site: &str, is_kept: bool| refuse_taken(at, &name(site), |_| is_kept).is_ok();
        let inside = dir.join("a/b");
        assert!(!free(&dir, "titech", false) && !free(&inside, "titech", false));
        assert!(free(&dir, "kek", false) && !free(&inside, "kek", true));
        assert!(free(above.path(), "titech", true));
        release(&dir, &own);
        assert!(free(&inside, "titech", true));
        mark(&dir, &RelPath::root(), &claim(1, "titech"));
        assert_eq!(take(&own), Err(Code::DirectoryTaken));
        std::fs::write(dir.join(VOLUME), "nonsense").unwrap();
        assert_eq!(take(&claim(1, "titech")), Err(Code::DirectoryTaken));
    }

    #[test]
    fn nothing_is_written_into_a_read_only_directory() {
        let dir = tempfile::tempdir().unwrap();
        take(&open(dir.path()), &claim(1, "kek"), AccessMode::ReadOnly, &Here).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
