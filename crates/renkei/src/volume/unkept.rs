//! What was done to plain files of a followed volume and is not in its database yet: a small journal, so that a PoP that was
//! killed knows where to look.
//!
//! A line is written before the plain file is touched, and all lines go when the database has everything. They are not
//! synced: a kill leaves them, and a power cut may leave a plain file that nobody was told of.

use super::aside::Parted;
use crate::home::file_error;
use renkei_core::error::Error;
use renkei_core::namespace::NodeId;
use renkei_core::path::RelPath;
use renkei_core::wire::{decode, encode};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Bytes after which it is written anew with what is left.
const MOST_BYTES: u64 = 1 << 20;

/// Something that was done to a plain file, or was about to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Did {
    /// A file or link of this inode number got this name.
    Wrote(RelPath, u64),
    /// It got another name.
    Moved(RelPath, RelPath),
    /// It went.
    Gone(RelPath),
    /// What is here may get another place by records that are about to be stored.
    At(RelPath, Anchor),
}

/// What has to have a plain file or directory wherever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Anchor {
    /// A directory.
    Dir(NodeId),
    /// Content that was written here.
    Own(Parted),
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
    pub(super) fn keep_only<'d>(&mut self, left: impl Iterator<Item = &'d Did>) -> Result<(), Error> {
        let lines: Vec<u8> = left.flat_map(line).collect();
        if self.bytes == 0 || (!lines.is_empty() && self.bytes < MOST_BYTES) {
            return Ok(());
        }
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
    let length = u32::try_from(body.len()).expect("two paths are shorter than 4 GiB");
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
        let dids = [Did::Wrote(at("a/b"), 7), Did::Moved(at("a"), at("c")), Did::Gone(at("c/b"))];
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
