//! Handles of files, which hold through renames and restarts: for servers whose clients keep files by number (NFS, SMB).
//!
//! A handle has the inode number, the generation, and a byte for each directory on the way, made of its inode number. A
//! file is looked for in the directories that these bytes fit, as unfs3 does; one that was moved to another directory is
//! searched for in the whole place. No privilege is needed for that, unlike open_by_handle_at, and no state is kept.
//!
//! Limits: a file in a directory that the account may not list is not found. A new version that is published is
//! another file, but in followed volumes.

use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::file::{FileHandle, MAX_FILE_HANDLE_BYTES};
use renkei_store::temp::is_temp_name;
use renkei_store::{Detail, Dir, TypeHint};
use std::sync::Arc;

/// The format, the first byte.
const VERSION: u8 = 1;
/// Bytes before those of the directories.
const HEAD_BYTES: usize = 17;
/// Most names that are looked at in the search for a file that was moved.
const MOST_SEARCHED: usize = 1_000_000;

/// A file, and the way to it.
struct Target<'h> {
    ino: u64,
    generation: u64,
    /// A byte for each directory; deeper ones may be any.
    way: &'h [u8],
}

/// The byte of a directory on the way.
fn byte_of(ino: u64) -> u8 {
    (ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// The handle of the entry at a path below a directory.
///
/// # Errors
/// Those of the store.
pub(super) fn make(base: &Arc<dyn Dir>, path: &RelPath) -> Result<FileHandle, Error> {
    let (mut dir, mut way) = (base.clone(), Vec::new());
    let mut names = path.components().peekable();
    let mut target = (base.self_entry(Detail::Basic)?.1.ino, base.generation(b"")?);
    while let Some(name) = names.next() {
        target = (dir.entry(name, Detail::Basic)?.1.ino, dir.generation(name)?);
        if names.peek().is_some() {
            way.push(byte_of(target.0));
            dir = dir.child(name)?;
        }
    }
    way.truncate(MAX_FILE_HANDLE_BYTES - HEAD_BYTES);
    let (ino, generation) = (target.0.to_le_bytes(), target.1.to_le_bytes());
    Ok(FileHandle([&[VERSION][..], &ino, &generation, &way[..]].concat()))
}

/// The path of a file below a directory.
///
/// # Errors
/// `PathNotFound` if the file is gone, and for handles of other places; `UsageInvalid` for bytes that are no handle.
pub(super) fn find(base: &Arc<dyn Dir>, handle: &FileHandle) -> Result<RelPath, Error> {
    let target = parse(handle)?;
    if is_it(base, b"", &target) {
        return Ok(RelPath::root());
    }
    let searched = || search(base, &Target { way: &[], ..target });
    let stale = || Error::new(Code::PathNotFound, "find file", "handle", "stale: its file is gone");
    search(base, &target)?.map_or_else(searched, |found| Ok(Some(found)))?.ok_or_else(stale)
}

fn parse(handle: &FileHandle) -> Result<Target<'_>, Error> {
    let invalid = || Error::new(Code::UsageInvalid, "find file", "handle", "no handle of this version");
    let bytes = Some(&handle.0[..]).filter(|bytes| bytes.len() <= MAX_FILE_HANDLE_BYTES);
    let rest = bytes.and_then(|bytes| bytes.strip_prefix(&[VERSION])).ok_or_else(invalid)?;
    let (ino, rest) = rest.split_first_chunk().ok_or_else(invalid)?;
    let (generation, way) = rest.split_first_chunk().ok_or_else(invalid)?;
    Ok(Target { ino: u64::from_le_bytes(*ino), generation: u64::from_le_bytes(*generation), way })
}

/// Looks for a file in the directories that fit its way. Those that cannot be read are passed over.
fn search(base: &Arc<dyn Dir>, target: &Target<'_>) -> Result<Option<RelPath>, Error> {
    let (mut todo, mut searched) = (vec![(base.clone(), RelPath::root(), 0)], 0);
    while let Some((dir, path, depth)) = todo.pop() {
        let Ok(listing) = dir.list() else { continue };
        let fits = |ino| target.way.get(depth).is_none_or(|byte| *byte == byte_of(ino));
        for listed in listing.flatten().filter(|listed| !is_temp_name(&listed.name)) {
            searched += 1;
            if listed.ino == target.ino && is_it(&dir, &listed.name, target) {
                return path.child(&listed.name).map(Some);
            }
            let may_be_dir = matches!(listed.hint, TypeHint::Dir | TypeHint::Unknown);
            if may_be_dir
                && fits(listed.ino)
                && let Ok(child) = dir.child(&listed.name)
            {
                todo.push((child, path.child(&listed.name)?, depth + 1));
            }
            if searched > MOST_SEARCHED {
                let cause = format!("not among the first {MOST_SEARCHED} names of the place");
                return Err(Error::new(Code::PathNotFound, "find file", "handle", cause));
            }
        }
    }
    Ok(None)
}

fn is_it(dir: &Arc<dyn Dir>, name: &[u8], target: &Target<'_>) -> bool {
    let found = match name {
        b"" => dir.self_entry(Detail::Basic),
        name => dir.entry(name, Detail::Basic),
    };
    found.is_ok_and(|(_, raw)| raw.ino == target.ino)
        && dir.generation(name).is_ok_and(|generation| generation == target.generation)
}
