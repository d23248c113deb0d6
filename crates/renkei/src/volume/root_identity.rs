//! The identity of the directory that has a volume's plain files, at its home or at a site that follows and writes it.
//!
//! The catalogue notes the file system's identifiers of it. Another directory, above all an empty one because something
//! is not mounted, or an older copy of it, would look as if files were removed or changed, and other sites would
//! follow. So it is not scanned or changed, and no access is given, until the right one is back or this one is accepted
//! (`accept_dir`). Guarantee: of two directories that exist at one time at most one is taken. Non-goal: one whose file
//! system was copied block by block.

use crate::catalogue::VolumeTree;
use crate::store::local::LocalStore;
use crate::store::marker::Fingerprint;
use crate::store::temp::is_temp_name;
use crate::store::{Listed, Store};
use renkei_core::error::{Code, Error};
use serde::{Deserialize, Serialize};

/// The note of the directory.
const TOP: &str = "top";

/// What is noted.
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

/// Refuses a directory that is not the one which the volume had last, if it ever had one.
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
        // As it was noted before: the inode number alone.
        None => noted == now.inode.to_be_bytes(),
    })
}

/// Notes that this is the directory.
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
