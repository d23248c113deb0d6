//! The write-ahead log of a followed volume: changes that are not in its database yet, so that a PoP that was killed
//! recovers them.
//!
//! A line is written before a plain file is touched, and the log is truncated when the database has everything. Lines
//! are not synced: they survive a kill, and a power cut may leave a changed plain file without its line. A line that
//! could not be written, as on a full disk, leaves nothing; the next log is another file that replaces this one.

use super::plain_file::{Parted, PlainEntry};
use renkei_catalogue::HeldReplica;
use renkei_config::home::{append_whole, file_error};
use renkei_core::entry::FileTime;
use renkei_core::error::{Code, Error};
use renkei_core::format::Format;
use renkei_core::namespace::{Change, NodeId, SequencedChange};
use renkei_core::path::RelPath;
use renkei_core::wire::decode;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Size after which the file is rewritten with the remaining entries.
const MOST_BYTES: u64 = 1 << 20;

/// The format of an entry.
pub(crate) const FORMAT: Format<WalRecord> = Format::bare("unkept", &[decode, decode]);

/// An entry of the log, written before the operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WalRecord {
    /// Changes, the replica rows after them, and the sign by which recovery sees that the plain file was changed.
    Made(Vec<SequencedChange>, Vec<(NodeId, Option<HeldReplica>)>, Option<Sign>),
    /// Changes from this number on failed and were not made.
    Undone(u64),
    /// Records are about to be stored that may move these plain files.
    Follows(Vec<PlainEntry>),
    /// The plain files of such records are moved.
    Followed,
    /// Content in limbo is about to be moved to a path.
    Back(RelPath, Parted),
}

impl WalRecord {
    /// The oldest version of the format that has it: version 1 has extended attributes.
    pub(crate) fn version(&self) -> u8 {
        let is_new = |made: &SequencedChange| matches!(made.change, Change::SetXattr { .. });
        match self {
            WalRecord::Made(changes, ..) => changes.iter().any(is_new).into(),
            _ => 0,
        }
    }
}

/// The state of a plain file that shows that an operation was done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Sign {
    /// The name exists with this inode number; with any, if that is 0.
    Wrote(RelPath, u64),
    /// The name does not exist.
    Gone(RelPath),
    /// The file has this time.
    Dated(RelPath, FileTime),
}

/// The write-ahead log of one volume.
pub(crate) struct Wal {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Wal {
    /// Opens the log, with the entries that a killed PoP left.
    ///
    /// # Errors
    /// Those of the file system; `FormatNewer` for an entry of a newer version, with the log unchanged.
    pub(crate) fn open(path: &Path) -> Result<(Self, Vec<WalRecord>), Error> {
        let failed = |error| file_error("open", path, &error);
        let mut options = File::options();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(failed)?;
        let (found, torn) = read(&bytes)?;
        let whole = (bytes.len() - torn) as u64;
        file.set_len(whole).map_err(failed)?;
        Ok((Wal { path: path.into(), file, bytes: whole }, found))
    }

    /// Appends an entry before its operation.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn note(&mut self, did: &WalRecord) -> Result<(), Error> {
        self.append(&line(did))
    }

    /// Truncates the log to the entries that are `left`, unless the gain is small.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn keep_only(&mut self, left: impl ExactSizeIterator<Item = WalRecord>) -> Result<(), Error> {
        if self.bytes == 0 || (left.len() > 0 && self.bytes < MOST_BYTES) {
            return Ok(());
        }
        let lines: Vec<u8> = left.flat_map(|did| line(&did)).collect();
        let kept = if lines.is_empty() { self.empty() } else { self.replace(&lines) };
        kept.map_err(|error| file_error("write", &self.path, &error))
    }

    fn empty(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.bytes = 0;
        Ok(())
    }

    /// Replaces the file by one with these entries, atomically: a kill or a full disk leaves the old one or the new
    /// one.
    fn replace(&mut self, lines: &[u8]) -> io::Result<()> {
        let new = self.path.with_extension("unkept.new");
        let file = File::options().write(true).create(true).truncate(true).open(&new)?;
        let bytes = append_whole(&file, 0, lines)?;
        std::fs::rename(&new, &self.path)?;
        (self.file, self.bytes) = (file, bytes);
        Ok(())
    }

    /// Appends whole entries, or nothing: a torn entry would hide all later ones.
    fn append(&mut self, lines: &[u8]) -> Result<(), Error> {
        let written = append_whole(&self.file, self.bytes, lines);
        self.bytes = written.map_err(|error| file_error("write", &self.path, &error))?;
        Ok(())
    }
}

fn line(did: &WalRecord) -> Vec<u8> {
    let body = FORMAT.encode_as(did.version(), did);
    let length = u32::try_from(body.len()).expect("what is done at once is shorter than 4 GiB");
    [&length.to_be_bytes()[..], &body].concat()
}

/// The whole entries, and the number of bytes after them: the last entry may be torn by the kill, before its
/// operation.
fn read(mut bytes: &[u8]) -> Result<(Vec<WalRecord>, usize), Error> {
    let mut found = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let Some((body, rest)) = rest.split_at_checked(u32::from_be_bytes(*length) as usize) else { break };
        match FORMAT.decode(body) {
            Ok(did) => found.push(did),
            Err(error) if error.code == Code::FormatNewer => return Err(error),
            Err(_) => break,
        }
        bytes = rest;
    }
    Ok((found, bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::namespace::ROOT;

    #[test]
    fn a_kill_keeps_the_recorded_entries() {
        let dir = tempfile::tempdir().unwrap();
        let (path, at) = (dir.path().join("x.unkept"), |text: &str| RelPath::parse(text.as_bytes()).unwrap());
        let made = |sign| WalRecord::Made(Vec::new(), Vec::new(), Some(sign));
        let dids = [made(Sign::Wrote(at("a/b"), 7)), WalRecord::Undone(3), made(Sign::Gone(at("c/b")))];
        let (mut unkept, before) = Wal::open(&path).unwrap();
        assert!(before.is_empty());
        dids.iter().for_each(|did| unkept.note(did).unwrap());
        assert_eq!(Wal::open(&path).unwrap().1, dids);
        // Torn in the middle of the last entry.
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let (mut unkept, found) = Wal::open(&path).unwrap();
        assert_eq!(found, dids[..2]);
        // The torn part does not hide the next entry.
        unkept.note(&dids[0]).unwrap();
        assert_eq!(Wal::open(&path).unwrap().1, [&dids[..2], &dids[..1]].concat());
        unkept.keep_only(std::iter::empty()).unwrap();
        assert!(Wal::open(&path).unwrap().1.is_empty());
        unkept.note(&dids[2]).unwrap();
        assert_eq!(Wal::open(&path).unwrap().1, dids[2..]);
    }

    #[test]
    fn a_log_with_an_entry_of_a_newer_version_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.unkept");
        let body = FORMAT.encode_as(FORMAT.version() + 1, &"of a newer version");
        let newer =
            [line(&WalRecord::Followed), [&(body.len() as u32).to_be_bytes()[..], &body].concat()].concat();
        std::fs::write(&path, &newer).unwrap();
        assert_eq!(Wal::open(&path).err().unwrap().code, Code::FormatNewer);
        assert_eq!(std::fs::read(&path).unwrap(), newer);
    }

    #[test]
    fn a_full_disk_leaves_no_part_of_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let (mut unkept, _) = Wal::open(&dir.path().join("x.unkept")).unwrap();
        (unkept.file, unkept.bytes) = renkei_config::home::file_with_room(3);
        let whole = unkept.bytes;
        assert!(unkept.note(&WalRecord::Followed).is_err());
        assert_eq!((unkept.bytes, unkept.file.metadata().unwrap().len()), (whole, whole));
    }

    #[test]
    fn remaining_entries_survive_a_kill_at_any_moment() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.unkept");
        let large = WalRecord::Made(Vec::new(), vec![(ROOT, None); MOST_BYTES as usize], None);
        let (mut unkept, _) = Wal::open(&path).unwrap();
        [&large, &WalRecord::Followed].into_iter().for_each(|did| unkept.note(did).unwrap());
        // If the new file cannot be created, the old one stays and is appended to.
        std::fs::create_dir(path.with_extension("unkept.new")).unwrap();
        assert!(unkept.keep_only([WalRecord::Undone(1)].into_iter()).is_err());
        unkept.note(&WalRecord::Undone(2)).unwrap();
        assert_eq!(Wal::open(&path).unwrap().1, [large, WalRecord::Followed, WalRecord::Undone(2)]);
        std::fs::remove_dir(path.with_extension("unkept.new")).unwrap();
        unkept.keep_only([WalRecord::Undone(1)].into_iter()).unwrap();
        unkept.note(&WalRecord::Undone(3)).unwrap();
        assert_eq!(Wal::open(&path).unwrap().1, [WalRecord::Undone(1), WalRecord::Undone(3)]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
