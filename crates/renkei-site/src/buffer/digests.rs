//! The digests of files in the buffer, kept beside a transfer's files and compared with the bytes that are
//! forwarded: corruption on the buffer's disk is detected there, and reported as such.
//!
//! One record for each slot of a file: the path's hash, the slot's number, its BLAKE3; the last one counts. Records
//! are appended as slots arrive, each whole or not at all, and synced when all have arrived. They describe the
//! current tree: if one is missing after a power cut during an upload, only the checks of each hop cover its slot.

use super::Buffer;
use renkei_config::home::{append_whole, file_error};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::message::TransferId;
use renkei_mover::hex;
use renkei_mover::hooks::{ReceiveHooks, SourceCheck};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Name of the file beside a transfer's tree.
pub(crate) const DIGESTS: &str = "digests";
/// Bytes of a path's hash, of a slot's number and of its digest.
const PATH: usize = 16;
const SLOT: usize = 4;
const DIGEST: usize = 32;
const RECORD: usize = PATH + SLOT + DIGEST;

/// Records the digests of one incoming transfer.
pub(crate) struct Keeping {
    buffer: Arc<Buffer>,
    id: TransferId,
    path: PathBuf,
    records: Records,
}

impl Keeping {
    /// Continues the records of an earlier session.
    pub(crate) fn open(buffer: &Arc<Buffer>, id: TransferId, path: PathBuf) -> Result<Self, Error> {
        let opened = File::options().create(true).write(true).truncate(false).open(&path);
        let file = opened.map_err(|error| file_error("open", &path, &error))?;
        Ok(Keeping { buffer: buffer.clone(), id, path, records: Records(Mutex::new(file)) })
    }
}

/// The record file, shared by several threads.
struct Records(Mutex<File>);

impl Records {
    /// Appends a record after the whole ones; a partial one, left by a crash or a full disk, is overwritten.
    fn add(&self, record: &[u8; RECORD]) -> io::Result<()> {
        let file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = file.metadata()?.len() / RECORD as u64;
        append_whole(&file, whole * RECORD as u64, record).map(drop)
    }
}

impl ReceiveHooks for Keeping {
    fn ask(&self, bytes: u64) -> Result<(), Error> {
        self.buffer.write(&self.id, bytes)
    }

    fn came(&self, path: &RelPath, slot: u32, digest: &[u8; 32]) -> Result<(), Error> {
        let mut record = [0; RECORD];
        record[..PATH + SLOT].copy_from_slice(&key(path, slot));
        record[PATH + SLOT..].copy_from_slice(digest);
        self.records.add(&record).map_err(|error| file_error("write", &self.path, &error))
    }
}

fn key(path: &RelPath, slot: u32) -> [u8; PATH + SLOT] {
    let mut key = [0; PATH + SLOT];
    key[..PATH].copy_from_slice(&blake3::hash(path.as_bytes()).as_bytes()[..PATH]);
    key[PATH..].copy_from_slice(&slot.to_be_bytes());
    key
}

/// Syncs the records.
pub(crate) fn sync(path: &Path) -> Result<(), Error> {
    match File::open(path) {
        Ok(file) => file.sync_all().map_err(|error| file_error("sync", path, &error)),
        // No slots arrived.
        Err(_) => Ok(()),
    }
}

/// The check of forwarded slots against the recorded digests.
///
/// # Errors
/// If the records cannot be read.
pub(crate) fn compare(path: &Path, id: TransferId) -> Result<SourceCheck, Error> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(file_error("read", path, &error)),
    };
    let records = sorted(&bytes);
    let is_as_it_came =
        move |path: &RelPath, slot: u32, digest: &[u8; 32]| match find(&records, &key(path, slot)) {
            Some(came) if came != digest => {
                let cause = format!("extent {slot} is not as it came: the disk of the buffer changed it");
                Err(Error::new(
                    Code::DigestMismatch,
                    "read from buffer",
                    format!("{}/{path}", hex(&id)),
                    cause,
                ))
            }
            _ => Ok(()),
        };
    Ok(Arc::new(is_as_it_came))
}

/// Records sorted by key, only the last of each key.
fn sorted(bytes: &[u8]) -> Vec<[u8; RECORD]> {
    let mut records: Vec<[u8; RECORD]> = bytes.as_chunks::<RECORD>().0.to_vec();
    // The sort is stable, so the last of a key stays the last.
    records.sort_by(|a, b| a[..PATH + SLOT].cmp(&b[..PATH + SLOT]));
    records.reverse();
    records.dedup_by(|a, b| a[..PATH + SLOT] == b[..PATH + SLOT]);
    records.reverse();
    records
}

fn find<'a>(records: &'a [[u8; RECORD]], key: &[u8; PATH + SLOT]) -> Option<&'a [u8]> {
    let at = records.binary_search_by(|record| record[..PATH + SLOT].cmp(&key[..])).ok()?;
    Some(&records[at][PATH + SLOT..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    fn record(name: &str, slot: u32, digest: u8) -> Vec<u8> {
        [&key(&path(name), slot)[..], &[digest; DIGEST]].concat()
    }

    #[test]
    fn a_record_that_was_cut_short_shifts_no_other() {
        let mut file = tempfile::tempfile().unwrap();
        // A partial record, as a power cut or a full disk leaves it.
        io::Write::write_all(&mut file, &[1; RECORD + 7]).unwrap();
        let records = Records(Mutex::new(file));
        records.add(&[2; RECORD]).unwrap();
        let mut bytes = vec![0; 2 * RECORD];
        let file = records.0.into_inner().unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
        assert_eq!(bytes, [[1; RECORD], [2; RECORD]].concat());
        assert_eq!(file.metadata().unwrap().len(), 2 * RECORD as u64);
    }

    #[test]
    fn the_last_record_counts_and_unrecorded_files_are_not_compared() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(DIGESTS);
        let records = [record("0/a", 0, 1), record("0/b", 0, 2), record("0/b", 1, 3), record("0/a", 0, 4)];
        let mut bytes = records.concat();
        bytes.extend([9; RECORD - 1]);
        std::fs::write(&file, bytes).unwrap();
        let compare = compare(&file, [7; 16]).unwrap();
        let good = |name: &str, slot, digest: u8| compare(&path(name), slot, &[digest; DIGEST]);
        for (name, slot, digest) in [("0/a", 0, 4), ("0/b", 0, 2), ("0/b", 1, 3), ("0/c", 0, 9)] {
            assert_eq!(good(name, slot, digest), Ok(()), "{name} {slot}");
        }
        for (name, slot, digest) in [("0/a", 0, 1), ("0/b", 1, 2)] {
            assert_eq!(good(name, slot, digest).unwrap_err().code, Code::DigestMismatch);
        }
        let none = super::compare(&dir.path().join("none"), [7; 16]).unwrap();
        assert_eq!(none(&path("0/a"), 0, &[1; DIGEST]), Ok(()));
    }
}
