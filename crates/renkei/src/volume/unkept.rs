//! Changes of a followed volume that are not in its database yet: a small journal, so that a PoP that was killed goes on with them.
//!
//! A line is written before a plain file is touched, and all lines go when the database has everything. They are not
//! synced: a kill leaves them, and a power cut may leave a plain file that nobody was told of.

use super::aside::Parted;
use super::steps::Found;
use crate::catalogue::Held;
use crate::home::file_error;
use renkei_core::entry::FileTime;
use renkei_core::error::Error;
use renkei_core::namespace::{NodeId, Numbered};
use renkei_core::path::RelPath;
use renkei_core::wire::{decode, encode};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Bytes after which it is written anew with what is left.
const MOST_BYTES: u64 = 1 << 20;

/// Something that was done, or was about to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Did {
    /// Changes were made, with what is known of plain files since, and how one sees that it was done.
    Made(Vec<Numbered>, Vec<(NodeId, Option<Held>)>, Option<Sign>),
    /// Those from a number on could not be done.
    Undone(u64),
    /// Records are about to be stored by which these may get other places.
    Follows(Vec<Found>),
    /// They have them.
    Followed,
    /// Content that was put aside is about to get a place again.
    Back(RelPath, Parted),
}

/// How one sees that a plain file was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Sign {
    /// Something of this inode number has this name; of any, if it is 0.
    Wrote(RelPath, u64),
    /// Nothing has this name.
    Gone(RelPath),
    /// It has this time.
    Dated(RelPath, FileTime),
}

/// The journal of one volume.
pub(super) struct Unkept {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Unkept {
    /// Opens it, with what a PoP that was killed left there.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<Did>), Error> {
        let failed = |error| file_error("open", path, &error);
        let mut options = File::options();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let unkept = Unkept { path: path.into(), file, bytes: bytes.len() as u64 };
        Ok((unkept, read(&bytes)))
    }

    /// Notes what is about to be done.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn note(&mut self, did: &Did) -> Result<(), Error> {
        let line = line(did);
        self.file.write_all(&line).map_err(|error| file_error("write", &self.path, &error))?;
        self.bytes += line.len() as u64;
        Ok(())
    }

    /// Forgets all but what is `left`, unless that is hardly worth it.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn keep_only(&mut self, left: impl ExactSizeIterator<Item = Did>) -> Result<(), Error> {
        if self.bytes == 0 || (left.len() > 0 && self.bytes < MOST_BYTES) {
            return Ok(());
        }
        let lines: Vec<u8> = left.flat_map(|did| line(&did)).collect();
        let failed = |error| file_error("write", &self.path, &error);
        self.file.set_len(0).map_err(failed)?;
        self.file.seek(SeekFrom::Start(0)).map_err(failed)?;
        self.file.write_all(&lines).map_err(failed)?;
        self.bytes = lines.len() as u64;
        Ok(())
    }
}

fn line(did: &Did) -> Vec<u8> {
    let body = encode(did);
    let length = u32::try_from(body.len()).expect("what is done at once is shorter than 4 GiB");
    [&length.to_be_bytes()[..], &body].concat()
}

/// The whole lines; the last one may have been cut off by the kill, before anything was done.
fn read(mut bytes: &[u8]) -> Vec<Did> {
    let mut found = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let Some((body, rest)) = rest.split_at_checked(u32::from_be_bytes(*length) as usize) else { break };
        let Ok(did) = decode("unkept", body) else { break };
        found.push(did);
        bytes = rest;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kill_leaves_what_was_noted() {
        let dir = tempfile::tempdir().unwrap();
        let (path, at) = (dir.path().join("x.unkept"), |text: &str| RelPath::parse(text.as_bytes()).unwrap());
        let made = |sign| Did::Made(Vec::new(), Vec::new(), Some(sign));
        let dids = [made(Sign::Wrote(at("a/b"), 7)), Did::Undone(3), made(Sign::Gone(at("c/b")))];
        let (mut unkept, before) = Unkept::open(&path).unwrap();
        assert!(before.is_empty());
        dids.iter().for_each(|did| unkept.note(did).unwrap());
        assert_eq!(Unkept::open(&path).unwrap().1, dids);
        // In the middle of the last one.
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let (mut unkept, found) = Unkept::open(&path).unwrap();
        assert_eq!(found, dids[..2]);
        unkept.keep_only(std::iter::empty()).unwrap();
        assert!(Unkept::open(&path).unwrap().1.is_empty());
        unkept.note(&dids[2]).unwrap();
        assert_eq!(Unkept::open(&path).unwrap().1, dids[2..]);
    }
}
