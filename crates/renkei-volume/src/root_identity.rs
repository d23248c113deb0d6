//! The identity of the directory with a volume's plain files, at its home or at a site that follows it.
//!
//! The catalogue notes the file system's identifiers of the directory. Another one, above all an empty one because a
//! file system is not mounted, or an older copy, would look as if files had been removed or changed, and other sites
//! would follow. So another directory is not scanned or changed, and no access is given, until the right one is back
//! or the new one is accepted (`accept_dir`). Guarantee: of two directories that exist at one time at most one is
//! used. Non-goal: a file system that was copied block by block.

use renkei_catalogue::VolumeTree;
use renkei_core::error::{Code, Error};
use renkei_store::local::LocalStore;
use renkei_store::marker::Fingerprint;
use renkei_store::temp::is_temp_name;
use renkei_store::{Listed, Store};
use serde::{Deserialize, Serialize};

/// Key of the note.
const TOP: &str = "top";

/// The note.
#[derive(Debug, Serialize, Deserialize)]
struct Top {
    inode: u64,
    found: Fingerprint,
}

impl Top {
    fn of(store: &LocalStore) -> Result<Self, Error> {
        let found = store.fingerprint().and_then(|found| Ok((store.identity()?.1, found)));
        let (inode, found) =
            found.map_err(|error| Error::new(Code::IoFailed, "look at", "its directory", error))?;
        Ok(Top { inode, found })
    }
}

/// Refuses a directory other than the noted one, if one was noted.
///
/// # Errors
/// `StorageMissing` if it is empty, else `VolumeChanged`; `CatalogueFailed`.
pub(super) fn check(name: &str, tree: &VolumeTree, store: &LocalStore) -> Result<(), Error> {
    if is_known(tree, store)? {
        return Ok(());
    }
    let is_plain = |listed: Result<Listed, Error>| listed.is_ok_and(|listed| !is_temp_name(&listed.name));
    let has_files = store.root()?.list().is_ok_and(|mut listing| listing.any(is_plain));
    let (code, cause) = match has_files {
        true => {
            (Code::VolumeChanged, "nothing in it is taken for the volume's until that is said".to_owned())
        }
        false => {
            let cause = format!(
                "its directory is another one than before, and empty; is its file system mounted? If it is to begin anew: \
                 `renkei volume check {name} --accept --yes`"
            );
            (Code::StorageMissing, cause)
        }
    };
    Err(Error::new(code, "open volume", name, cause))
}

fn is_known(tree: &VolumeTree, store: &LocalStore) -> Result<bool, Error> {
    let Some(noted) = tree.note(TOP)? else { return Ok(true) };
    let now = Top::of(store)?;
    let text = std::str::from_utf8(&noted).ok();
    Ok(match text.and_then(|text| toml::from_str::<Top>(text).ok()) {
        Some(before) => before.inode == now.inode && before.found.matches(&now.found) != Some(false),
        // The former format: the inode number alone.
        None => noted == now.inode.to_be_bytes(),
    })
}

/// Notes the identity of this directory.
///
/// # Errors
/// `CatalogueFailed`.
pub(super) fn note(tree: &VolumeTree, store: &LocalStore) -> Result<(), Error> {
    let text = toml::to_string(&Top::of(store)?).expect("a fingerprint is plain data");
    match tree.note(TOP)?.is_some_and(|noted| noted == text.as_bytes()) {
        true => Ok(()),
        false => tree.set_note(TOP, text.as_bytes()),
    }
}
