//! The journal of a transfer, from which it resumes after an interruption: a list of records, appended while
//! receiving.
//!
//! A record is its length (4 bytes, little-endian), the CRC-32 of its bytes (4 bytes) and a postcard value. A write
//! torn by a crash leaves a tail whose checksum fails; [`State::read`] stops there and returns the length of the good
//! part, so that the next writer truncates the tail. A journal names one job; a different job never reads it.
//!
//! [`Record::Slot`] says that an extent was written, not that it is on stable storage. After a kill the page cache
//! still has it; after a reboot (the [`Header::boot`] differs) the reader must compare the bytes with the recorded
//! digest first, as it must where the file's ctime differs from [`Record::AtRest`]. [`Record::Finished`] is written
//! after the file is durable under its final name.

use super::digest::slot_range;
use crate::entry::{FileTime, Stamp};
use crate::error::Error;
use crate::format::newer;
use crate::former_names::current_principal;
use crate::ids::TransferId;
use crate::path::{Place, RelPath};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// Version of the record format. 3 added [`Record::Transfer`], 4 [`Record::AtRest`].
pub const VERSION: u16 = 4;
/// Oldest version that is read.
const OLDEST: u16 = 2;
/// Number of the variant [`Record::Header`].
const HEADER: u32 = 0;
/// Longest record; a larger length indicates a torn tail.
pub const MAX_RECORD_BYTES: usize = 64 << 10;

/// Bytes before a record's value: its length and checksum.
pub const RECORD_HEAD_BYTES: usize = 8;

/// Memory per record read, with the spare capacity of a growing map.
const RECORD_MEMORY: u64 = 160;

/// Key of a file in a journal: the first half of the BLAKE3 of its path.
pub type PathKey = [u8; 16];

/// The key of a path.
pub fn path_key(path: &RelPath) -> PathKey {
    let digest = super::digest::whole(path.as_bytes());
    *digest.first_chunk().expect("a digest has 32 bytes")
}

/// The first record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Version of the format.
    pub version: u16,
    /// The job.
    pub job: u64,
    /// Id of the machine's boot during which it was written.
    pub boot: [u8; 16],
    /// The destination, so that an abandoned transfer can be cleaned up; `None` for a plain local folder.
    pub to: Option<Place>,
    /// The same as a local path, for folders outside any storage.
    #[serde(with = "crate::path::path_bytes")]
    pub local: Vec<u8>,
    /// The local account that writes.
    pub account: String,
}

#[cfg(test)]
impl Header {
    /// The header that tests start from.
    pub(crate) fn of_test(job: u64) -> Self {
        let account = "a".into();
        Header { version: VERSION, job, boot: [1; 16], to: None, local: Vec::new(), account }
    }
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// The header: the job of the journal.
    Header(Header),
    /// An extent was written to a temporary file.
    Slot {
        /// The file.
        key: PathKey,
        /// The source's stamp then.
        source: Stamp,
        /// Inode of the temporary file.
        temp_ino: u64,
        /// The slot of the extent.
        slot: u32,
        /// Its digest.
        digest: [u8; 32],
    },
    /// A file is durable under its final name.
    Finished {
        /// The file.
        key: PathKey,
        /// The stamp of the source it is a copy of.
        source: Stamp,
        /// Its inode.
        ino: u64,
    },
    /// A temporary file was abandoned.
    Dropped {
        /// The file.
        key: PathKey,
    },
    /// The owner's principal; counted against the number of transfers it may leave unfinished.
    Owner(String),
    /// The transfer that works on the job from here on: its id identifies the job when it is given up.
    Transfer(TransferId),
    /// The transfer no longer writes to a temporary file. If its ctime is later than this, it was changed from
    /// outside, or by a transfer that was killed.
    AtRest {
        /// The file.
        key: PathKey,
        /// The ctime of the file.
        changed: FileTime,
    },
}

impl Record {
    /// Appends the record's bytes to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        let body = crate::encoding::encode(self);
        out.extend_from_slice(&(body.len() as u32).to_le_bytes());
        out.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
        out.extend_from_slice(&body);
    }

    /// Parses the first record of `bytes`; `None` at the end or where the tail is torn.
    fn read(bytes: &[u8]) -> Option<(Record, &[u8])> {
        let (body, rest) = Self::body(bytes)?;
        Some((crate::encoding::decode("journal record", body).ok()?, rest))
    }

    /// The bytes of the first record, whatever its version.
    fn body(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (crc, rest) = rest.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_RECORD_BYTES || length > rest.len() {
            return None;
        }
        let (body, rest) = rest.split_at(length);
        (crc32fast::hash(body) == u32::from_le_bytes(*crc)).then_some((body, rest))
    }
}

/// Refuses a journal, by its first bytes, whose header is of a newer version. Such a header still begins with its
/// variant and its version.
///
/// # Errors
/// `FormatNewer`.
pub fn check_version(bytes: &[u8]) -> Result<(), Error> {
    let head = Record::body(bytes).and_then(|(body, _)| postcard::take_from_bytes::<(u32, u16)>(body).ok());
    match head {
        Some(((HEADER, version), _)) if version > VERSION => Err(newer("journal", version, VERSION)),
        _ => Ok(()),
    }
}

/// A file that arrived in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    /// The source's stamp.
    pub source: Stamp,
    /// Inode of the temporary file.
    pub temp_ino: u64,
    /// Extents that were written, and their digests.
    pub slots: BTreeMap<u32, [u8; 32]>,
    /// The ctime of the temporary file, if it was recorded after all of them.
    pub at_rest: Option<FileTime>,
}

/// The state recorded in a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Its first record.
    pub header: Option<Header>,
    /// The owner's principal, if recorded.
    pub owner: Option<String>,
    /// The last transfer that worked on the job, if recorded.
    pub transfer: Option<TransferId>,
    /// Finished files, with their inodes.
    pub finished: HashMap<PathKey, (Stamp, u64)>,
    /// Partially written files.
    pub partial: HashMap<PathKey, Partial>,
}

impl State {
    /// Reads a journal up to its first bad record; also returns the length of the good part.
    pub fn read(bytes: &[u8]) -> (State, usize) {
        let mut state = State::default();
        let good = state.absorb(bytes);
        (state, good)
    }

    /// Applies the records at the start of `bytes`, the next part of a journal, up to the first incomplete or bad
    /// one; returns their length.
    pub fn absorb(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while let Some((record, after)) = Record::read(rest) {
            if !self.apply(record) {
                break;
            }
            rest = after;
        }
        bytes.len() - rest.len()
    }

    /// Approximate memory of this state.
    pub fn memory_bytes(&self) -> u64 {
        let slots: usize = self.partial.values().map(|partial| partial.slots.len()).sum();
        (self.finished.len() + self.partial.len() + slots) as u64 * RECORD_MEMORY
    }

    /// Applies one record; false if it is invalid at this position.
    fn apply(&mut self, record: Record) -> bool {
        match record {
            Record::Header(header) => {
                let good = self.header.is_none() && (OLDEST..=VERSION).contains(&header.version);
                self.header = self.header.take().or(good.then_some(header));
                return good;
            }
            _ if self.header.is_none() => return false,
            Record::Owner(owner) => self.owner = Some(current_principal(owner)),
            Record::Transfer(transfer) => self.transfer = Some(transfer),
            Record::Slot { key, source, temp_ino, slot, digest } => {
                let fresh = Partial { source, temp_ino, slots: BTreeMap::new(), at_rest: None };
                let partial = self.partial.entry(key).or_insert_with(|| fresh.clone());
                if (partial.source, partial.temp_ino) != (source, temp_ino) {
                    *partial = fresh;
                }
                partial.slots.insert(slot, digest);
                partial.at_rest = None;
            }
            Record::AtRest { key, changed } => {
                if let Some(partial) = self.partial.get_mut(&key) {
                    partial.at_rest = Some(changed);
                }
            }
            Record::Finished { key, source, ino } => {
                self.partial.remove(&key);
                self.finished.insert(key, (source, ino));
            }
            Record::Dropped { key } => {
                self.partial.remove(&key);
            }
        }
        true
    }

    /// Whether there is anything to resume.
    pub fn is_empty(&self) -> bool {
        self.finished.is_empty() && self.partial.is_empty()
    }
}

/// Summary of a journal, in memory bounded by its files, not its extents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Brief {
    /// Its first record.
    pub header: Option<Header>,
    /// The owner's principal, if recorded.
    pub owner: Option<String>,
    /// The last transfer that worked on the job, if recorded.
    pub transfer: Option<TransferId>,
    /// Number of finished files.
    pub files_done: u64,
    partial: HashMap<PathKey, (Stamp, u64, u64)>,
}

impl Brief {
    /// Applies records as [`State::absorb`] does.
    pub fn absorb(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while let Some((record, after)) = Record::read(rest) {
            let is_first = self.header.is_none();
            match record {
                Record::Header(header) if is_first && (OLDEST..=VERSION).contains(&header.version) => {
                    self.header = Some(header);
                }
                Record::Header(_) => break,
                _ if is_first => break,
                record => self.apply(record),
            }
            rest = after;
        }
        bytes.len() - rest.len()
    }

    fn apply(&mut self, record: Record) {
        match record {
            Record::Header(_) | Record::AtRest { .. } => {}
            Record::Owner(owner) => self.owner = Some(current_principal(owner)),
            Record::Transfer(transfer) => self.transfer = Some(transfer),
            Record::Slot { key, source, temp_ino, slot, .. } => {
                let file = self.partial.entry(key).or_insert((source, temp_ino, 0));
                if (file.0, file.1) != (source, temp_ino) {
                    *file = (source, temp_ino, 0);
                }
                let range = slot_range(slot, source.size);
                file.2 += range.end.saturating_sub(range.start);
            }
            Record::Finished { key, .. } => {
                self.partial.remove(&key);
                self.files_done += 1;
            }
            Record::Dropped { key } => drop(self.partial.remove(&key)),
        }
    }

    /// Number of partially written files.
    pub fn files(&self) -> u64 {
        self.partial.len() as u64
    }

    /// Bytes of complete extents in them.
    pub fn bytes(&self) -> u64 {
        self.partial.values().map(|(source, _, whole)| (*whole).min(source.size)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;
    use proptest::prelude::*;

    fn header() -> Header {
        Header { local: b"/x".to_vec(), ..Header::of_test(5) }
    }

    fn slot(n: u32) -> Record {
        Record::Slot { key: [9; 16], source: Stamp::default(), temp_ino: 3, slot: n, digest: [n as u8; 32] }
    }

    fn written(records: &[Record]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Record::Header(header()).write(&mut bytes);
        records.iter().for_each(|record| record.write(&mut bytes));
        bytes
    }

    #[test]
    fn a_journal_round_trips() {
        let bytes = written(&[slot(0), slot(2)]);
        let (state, good) = State::read(&bytes);
        assert_eq!(good, bytes.len());
        assert_eq!(state.header, Some(header()));
        assert_eq!(state.partial[&[9; 16]].slots.keys().copied().collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn a_file_is_idle_until_an_extent_is_written() {
        let changed = FileTime { secs: 5, nanos: 6 };
        let rest = Record::AtRest { key: [9; 16], changed };
        let at_rest = |records: &[Record]| {
            let state = State::read(&written(records)).0;
            state.partial.get(&[9; 16]).and_then(|partial| partial.at_rest)
        };
        assert_eq!(at_rest(&[slot(0), rest.clone()]), Some(changed));
        assert_eq!(at_rest(&[slot(0), rest.clone(), slot(1)]), None);
        assert_eq!(at_rest(&[rest.clone(), slot(0)]), None);
        assert_eq!(at_rest(&[slot(0), rest, Record::Dropped { key: [9; 16] }, slot(0)]), None);
    }

    #[test]
    fn a_journal_of_the_previous_version_is_read() {
        let mut bytes = Vec::new();
        Record::Header(Header { version: 2, ..header() }).write(&mut bytes);
        [Record::Owner("alice@kek".into()), slot(1)].iter().for_each(|record| record.write(&mut bytes));
        let (state, good) = State::read(&bytes);
        assert_eq!((good, state.partial.len(), state.transfer), (bytes.len(), 1, None));
        // The PoP that resumes it appends to it.
        Record::Transfer([7; 16]).write(&mut bytes);
        let (state, good) = State::read(&bytes);
        assert_eq!((good, state.partial.len(), state.transfer), (bytes.len(), 1, Some([7; 16])));
        for version in [1, VERSION + 1] {
            let mut bytes = Vec::new();
            Record::Header(Header { version, ..header() }).write(&mut bytes);
            assert_eq!((State::read(&bytes).1, Brief::default().absorb(&bytes)), (0, 0));
        }
    }

    #[test]
    fn a_journal_of_a_newer_version_is_refused_even_if_its_header_has_other_fields() {
        assert_eq!(check_version(&written(&[slot(0)])), Ok(()));
        let body = crate::encoding::encode(&(HEADER, VERSION + 1, "fields of a newer version"));
        let head = [(body.len() as u32).to_le_bytes(), crc32fast::hash(&body).to_le_bytes()].concat();
        let newer = [head, body].concat();
        assert_eq!(check_version(&newer).unwrap_err().code, Code::FormatNewer);
        for torn in [&newer[..newer.len() - 1], &[]] {
            assert_eq!(check_version(torn), Ok(()));
        }
    }

    #[test]
    fn a_recorded_journal_is_read_and_written_as_ever() {
        let time = FileTime { secs: 1_700_000_000, nanos: 999_999_999 };
        let source = Stamp { size: 3 << 20, mtime: time, ctime: time, ino: 77 };
        let to = Some(Place::parse(b"/data/in").unwrap().unwrap());
        let records = [
            Record::Header(Header { to, ..header() }),
            Record::Slot { key: [9; 16], source, temp_ino: 3, slot: 300, digest: [8; 32] },
            Record::Finished { key: [7; 16], source, ino: 5 },
            Record::Dropped { key: [6; 16] },
            Record::Owner("alice@kek".into()),
            Record::Transfer([5; 16]),
            Record::AtRest { key: [9; 16], changed: time },
        ];
        let lines = records.iter().map(|record| crate::units::hex(&crate::encoding::encode(record)));
        let recorded: Vec<&str> = include_str!("../../tests/journal.txt").lines().collect();
        assert_eq!(lines.collect::<Vec<_>>(), recorded);
        for (line, record) in recorded.iter().zip(&records) {
            let bytes = crate::format::bytes_of(line);
            assert_eq!(crate::encoding::decode::<Record>("journal record", &bytes).as_ref(), Ok(record));
        }
    }

    #[test]
    fn a_journal_summary_has_the_whole_extents() {
        let source = Stamp { size: (2 << 20) + 5, ..Stamp::default() };
        let slot = |key: u8, temp_ino, slot| Record::Slot {
            key: [key; 16],
            source,
            temp_ino,
            slot,
            digest: [0; 32],
        };
        let records = [
            Record::Owner("alice@kek".into()),
            Record::Transfer([1; 16]),
            slot(1, 7, 0),
            slot(1, 7, 2),
            slot(2, 8, 1),
            slot(3, 9, 1),
            Record::Finished { key: [2; 16], source, ino: 8 },
            Record::Dropped { key: [3; 16] },
            Record::Transfer([2; 16]),
        ];
        let bytes = written(&records);
        let mut brief = Brief::default();
        let half = brief.absorb(&bytes[..bytes.len() / 2]);
        assert_eq!(half + brief.absorb(&bytes[half..]), bytes.len());
        assert_eq!((brief.files(), brief.bytes(), brief.files_done), (1, (1 << 20) + 5, 1));
        assert_eq!((brief.owner.as_deref(), brief.transfer), (Some("alice@kek"), Some([2; 16])));
        // The file was begun again from scratch.
        brief.absorb(&written(&[slot(1, 10, 0)])[written(&[]).len()..]);
        assert_eq!(brief.bytes(), 1 << 20);
    }

    #[test]
    fn every_torn_tail_gives_the_records_before_it() {
        let whole = written(&[slot(0), slot(1), Record::Dropped { key: [9; 16] }, slot(7)]);
        for length in 0..whole.len() {
            let (state, good) = State::read(&whole[..length]);
            assert!(good <= length);
            assert_eq!(State::read(&whole[..good]), (state, good));
        }
    }

    #[test]
    fn extents_of_another_version_of_the_source_are_dropped() {
        let changed = Stamp { size: 1, ..Stamp::default() };
        let other = Record::Slot { key: [9; 16], source: changed, temp_ino: 3, slot: 4, digest: [0; 32] };
        let (state, _) = State::read(&written(&[slot(0), slot(1), other]));
        assert_eq!(state.partial[&[9; 16]].slots.len(), 1);
    }

    #[test]
    fn a_journal_read_in_parts_gives_the_same_records() {
        let whole = written(&[slot(0), slot(1), Record::Dropped { key: [9; 16] }, slot(7)]);
        for cut in 0..whole.len() {
            let mut state = State::default();
            let good = state.absorb(&whole[..cut]);
            assert_eq!(good + state.absorb(&whole[good..]), whole.len());
            assert_eq!(state, State::read(&whole).0);
            assert_eq!(state.memory_bytes(), 2 * RECORD_MEMORY);
        }
    }

    #[test]
    fn records_before_a_header_are_ignored() {
        let mut bytes = Vec::new();
        slot(1).write(&mut bytes);
        assert_eq!(State::read(&bytes), (State::default(), 0));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_and_flipped_bits_do_not_panic(noise in proptest::collection::vec(any::<u8>(), 0..200),
                                                      at in 0usize..400, bit in 0u8..8) {
            let _ = State::read(&noise);
            let mut bytes = written(&[slot(0), slot(1), slot(2)]);
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            let (state, good) = State::read(&bytes);
            prop_assert!(good <= at || state.partial.is_empty() || good == at || good < bytes.len());
        }
    }
}
