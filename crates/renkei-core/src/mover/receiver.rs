//! The receiving side of one session: extents received of each file, renames and acknowledgements, and the order of
//! the final steps.
//!
//! Files are written under temporary names by any of the streams. A temporary name is derived from the path, so only
//! one entry at a time may claim it: a second entry with the same path is refused until the first has its final name.
//! Links and the metadata of directories are deferred until every file has its final name, because a rename changes
//! the directory's mtime and a hard link needs its target. The final order is: rename files, make links, remove
//! entries that the source lacks, set directories, sync, acknowledge.

use super::commit::{Commit, Step, Synced};
use super::digest::{combine, slot_count, slot_range};
use super::journal::{Partial, PathKey, Record, State, path_key};
use super::offer::{IdRange, OfferItem, ReceiveOptions, SlotRange};
use crate::entry::{Entry, EntryKind, FileTime, Meta, Stamp};
use crate::error::{Code, Error};
use crate::ids::EntryId;
use crate::path::RelPath;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::time::Duration;

/// Most large files in flight in one session; a correct sender has a few more than streams.
pub const MAX_OPEN_FILES: usize = 512;
/// Most bytes of directories' attributes deferred in one session; a million ACLs take a third of it.
pub const MAX_DEFERRED_BYTES: usize = 512 << 20;

/// Memory per name in a set, with the spare capacity of a growing set.
const NAME_BYTES: u64 = 40;
/// Allocator overhead per attribute, link and directory.
const ALLOCATION_BYTES: usize = 64;

/// A completely written file, on its way to its final name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Its number.
    pub id: EntryId,
    /// Its final path, relative to the destination.
    pub path: RelPath,
    /// For files: the source's stamp and the inode of the copy.
    pub copy_of: Option<(Stamp, u64)>,
}

/// A deferred link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingLink {
    /// Its number.
    pub id: EntryId,
    /// The new name.
    pub path: RelPath,
    /// The existing name.
    pub to: RelPath,
}

/// A directory whose metadata is deferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingDir {
    /// Its number.
    pub id: EntryId,
    /// Its path.
    pub path: RelPath,
    /// The metadata to set.
    pub meta: Meta,
}

/// State that an earlier run left of an offered file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PriorState {
    /// Nothing usable.
    Nothing,
    /// The whole file, durable, if the final name still has this inode.
    Finished {
        /// The inode.
        ino: u64,
    },
    /// Some extents, if the temporary file still has this inode.
    Partial {
        /// The inode.
        temp_ino: u64,
        /// The extents and their digests.
        slots: BTreeMap<u32, [u8; 32]>,
        /// The ctime of the temporary file, if the previous run ended in order: only a file that still has it is
        /// trusted without being read back.
        at_rest: Option<FileTime>,
    },
}

/// The handling of an extent that begins to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Write it.
    Write {
        /// Whether the temporary file holds extents of an earlier run and must be kept.
        keep_existing: bool,
    },
    /// Read it from the wire and discard it: the file was abandoned or the extent is already there.
    Ignore,
}

/// The state of a file after an extent arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Others are missing.
    More,
    /// It was the last one: set the metadata and call [`Receiver::on_written`].
    Complete,
    /// The file was abandoned meanwhile.
    Ignore,
}

/// The missing parts of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unwritten {
    /// No complete extent arrived.
    All,
    /// The gaps between the complete extents; empty if there are none.
    Ranges(Vec<Range<u64>>),
}

/// The caller's next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// See [`Step::Sync`]; then [`Receiver::on_synced`].
    Sync {
        /// Under temporary names.
        written: Vec<Done>,
        /// Under final names.
        renamed: Vec<Done>,
    },
    /// Make these hard links; [`Receiver::on_placed`] for each that worked.
    MakeLinks(Vec<PendingLink>),
    /// Remove the entries for which [`Receiver::is_named`] is false.
    RemoveOthers,
    /// Set these directories' metadata, deepest first; [`Receiver::on_placed`] for each that worked.
    SetDirs(Vec<PendingDir>),
    /// Wait for more to be written, at most this long.
    Wait(Option<Duration>),
    /// Everything is durable or reported.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Receiving,
    Draining,
    Removing,
    Settling,
    Syncing,
    Done,
}

struct Incoming {
    path: RelPath,
    source: Stamp,
    slots: BTreeMap<u32, [u8; 32]>,
    /// Extents that began to arrive in this session.
    started: BTreeSet<u32>,
    resumed: bool,
}

/// The state machine of a receiver.
pub struct Receiver {
    options: ReceiveOptions,
    previous: State,
    incoming: HashMap<EntryId, Incoming>,
    /// Names whose temporary file is claimed by an entry, or was when that was abandoned: a stream may still be
    /// writing to it.
    claimed: HashSet<PathKey>,
    /// The number of incoming files that are not resumed; resumed ones are bounded by the journal.
    fresh: usize,
    /// Names that did not arrive; links to them are not made.
    failed: HashSet<PathKey>,
    given_up: HashSet<EntryId>,
    commit: Commit<Done>,
    links: Vec<PendingLink>,
    dirs: Vec<PendingDir>,
    named: HashSet<PathKey>,
    stage: Stage,
    source_complete: bool,
    records: Vec<u8>,
    max_deferred: usize,
    /// Bytes of deferred directory attributes.
    deferred_bytes: usize,
    /// Memory kept until the session ends, without names.
    kept_bytes: u64,
    max_open: usize,
}

impl Receiver {
    /// A receiver that may reuse the files in `previous`, and defers at most `max_deferred` links and directories.
    pub fn new(options: ReceiveOptions, previous: State, max_deferred: usize) -> Self {
        let kept_bytes = previous.memory_bytes();
        Receiver {
            options,
            previous,
            incoming: HashMap::new(),
            claimed: HashSet::new(),
            fresh: 0,
            failed: HashSet::new(),
            given_up: HashSet::new(),
            commit: Commit::default(),
            links: Vec::new(),
            dirs: Vec::new(),
            named: HashSet::new(),
            stage: Stage::Receiving,
            source_complete: false,
            records: Vec::new(),
            max_deferred,
            deferred_bytes: 0,
            kept_bytes,
            max_open: MAX_OPEN_FILES,
        }
    }

    /// Approximate memory kept until the session ends: names, links, directories, the journal's state.
    pub fn kept_bytes(&self) -> u64 {
        let names = self.named.len() + self.failed.len() + self.given_up.len() + self.claimed.len();
        self.kept_bytes + names as u64 * NAME_BYTES
    }

    /// Lowers the limit of large files in flight below [`MAX_OPEN_FILES`], where descriptors are scarce.
    pub fn limit_open_files(&mut self, files: usize) {
        self.max_open = files.min(MAX_OPEN_FILES);
    }

    /// Whether one more file of an earlier run may be resumed; otherwise it is sent again in full.
    pub fn may_resume(&self) -> bool {
        self.incoming.len() < self.max_open
    }

    /// The transfer's options.
    pub fn options(&self) -> &ReceiveOptions {
        &self.options
    }

    /// Records that the source has this name, so that it is not removed.
    pub fn on_named(&mut self, path: &RelPath) {
        if self.options.delete {
            self.named.insert(path_key(path));
        }
    }

    /// Whether the source has this name.
    pub fn is_named(&self, path: &RelPath) -> bool {
        self.named.contains(&path_key(path))
    }

    /// The state that an earlier run of this job left of an offered file, if its source is unchanged.
    pub fn left(&self, item: &OfferItem) -> PriorState {
        let EntryKind::File { stamp, .. } = item.entry.kind else { return PriorState::Nothing };
        let key = path_key(&item.entry.path);
        if let Some((source, ino)) = self.previous.finished.get(&key)
            && *source == stamp
        {
            return PriorState::Finished { ino: *ino };
        }
        match self.previous.partial.get(&key) {
            Some(partial) if partial.source == stamp => {
                let Partial { temp_ino, slots, at_rest, .. } = partial.clone();
                PriorState::Partial { temp_ino, slots, at_rest }
            }
            _ => PriorState::Nothing,
        }
    }

    /// The temporary file exists with these extents; the sender will be told to send the others.
    ///
    /// That state is consumed: returns false for a second offer of the path, and if another entry has claimed its
    /// name.
    pub fn on_resumed(&mut self, id: EntryId, entry: &Entry, slots: BTreeMap<u32, [u8; 32]>) -> bool {
        let (key, path) = (path_key(&entry.path), entry.path.clone());
        let EntryKind::File { stamp, .. } = entry.kind else { return false };
        if !self.previous.partial.contains_key(&key) || !self.claimed.insert(key) {
            return false;
        }
        if let Some(previous) = self.previous.partial.remove(&key).filter(|previous| previous.slots != slots)
        {
            self.record_only(key, previous, &slots);
        }
        let incoming = Incoming { path, source: stamp, slots, started: BTreeSet::new(), resumed: true };
        self.incoming.insert(id, incoming);
        true
    }

    /// Records that only these extents of an earlier run are intact.
    fn record_only(&mut self, key: PathKey, previous: Partial, slots: &BTreeMap<u32, [u8; 32]>) {
        let Partial { source, temp_ino, .. } = previous;
        Record::Dropped { key }.write(&mut self.records);
        for (&slot, &digest) in slots {
            Record::Slot { key, source, temp_ino, slot, digest }.write(&mut self.records);
        }
    }

    /// A temporary file is no longer written to; `changed` is its ctime.
    pub fn on_at_rest(&mut self, id: EntryId, changed: FileTime) {
        if let Some(file) = self.incoming.get(&id) {
            Record::AtRest { key: path_key(&file.path), changed }.write(&mut self.records);
        }
    }

    /// Claims the temporary name of a path for an entry, until [`Receiver::on_renamed`] or [`Receiver::release`].
    ///
    /// # Errors
    /// `NameTaken` if another entry has claimed it.
    pub fn claim(&mut self, path: &RelPath) -> Result<(), Error> {
        if self.claimed.insert(path_key(path)) {
            return Ok(());
        }
        Err(Error::new(Code::NameTaken, "receive", path, "the other is being written, or failed"))
    }

    /// Releases the temporary name of a path; no file exists under it.
    pub fn release(&mut self, path: &RelPath) {
        self.claimed.remove(&path_key(path));
    }

    /// Whether an earlier run of this job may have left temporary files, also of sources that no longer exist.
    pub fn continues_job(&self) -> bool {
        self.previous.header.is_some()
    }

    /// Whether all extents of a resumed file are already there, so that none will arrive.
    pub fn is_whole(&self, id: EntryId) -> bool {
        self.incoming.get(&id).is_some_and(|file| file.slots.len() as u32 == slot_count(file.source.size))
    }

    /// An extent begins to arrive.
    ///
    /// # Errors
    /// `ProtocolViolation` if the entry differs from the earlier one with its number, `TooManyEntries` if more files
    /// are open than any correct sender has, `NameTaken` as [`Receiver::claim`]; the latter fails only this entry.
    pub fn start_extent(&mut self, id: EntryId, entry: &Entry, slot: u32) -> Result<Start, Error> {
        let EntryKind::File { stamp, .. } = entry.kind else {
            return Err(crate::encoding::violation("extent", "not of a regular file"));
        };
        if self.given_up.contains(&id) {
            return Ok(Start::Ignore);
        }
        self.on_named(&entry.path);
        if !self.incoming.contains_key(&id) {
            self.start_fresh(id, &entry.path, stamp)?;
        }
        let file = self.incoming.get_mut(&id).expect("present or just inserted");
        if file.path != entry.path || file.source != stamp {
            return Err(crate::encoding::violation("extent", "of another file than before"));
        }
        if file.slots.contains_key(&slot) {
            return Ok(Start::Ignore);
        }
        if !file.started.insert(slot) {
            return Err(crate::encoding::violation("extent", "the same twice at once"));
        }
        Ok(Start::Write { keep_existing: file.resumed })
    }

    /// Begins a file from scratch. Its temporary file may get the inode of an earlier one: the journal must no longer
    /// list the extents of that.
    fn start_fresh(&mut self, id: EntryId, path: &RelPath, source: Stamp) -> Result<(), Error> {
        if self.fresh >= self.max_open {
            return Err(Error::new(Code::TooManyEntries, "receive", path, "too many files at once"));
        }
        if let Err(error) = self.claim(path) {
            self.given_up.insert(id);
            return Err(error);
        }
        self.fresh += 1;
        let key = path_key(path);
        if self.previous.partial.remove(&key).is_some() {
            Record::Dropped { key }.write(&mut self.records);
        }
        let (path, slots, started) = (path.clone(), BTreeMap::new(), BTreeSet::new());
        self.incoming.insert(id, Incoming { path, source, slots, started, resumed: false });
        Ok(())
    }

    fn take_incoming(&mut self, id: EntryId) -> Option<Incoming> {
        let file = self.incoming.remove(&id)?;
        self.fresh -= usize::from(!file.resumed);
        Some(file)
    }

    /// An extent was written and its digest verified.
    pub fn on_extent_written(&mut self, id: EntryId, slot: u32, digest: [u8; 32], temp_ino: u64) -> Arrival {
        let Some(file) = self.incoming.get_mut(&id) else { return Arrival::Ignore };
        file.slots.insert(slot, digest);
        let key = path_key(&file.path);
        Record::Slot { key, source: file.source, temp_ino, slot, digest }.write(&mut self.records);
        if file.slots.len() as u32 == slot_count(file.source.size) {
            Arrival::Complete
        } else {
            Arrival::More
        }
    }

    /// BLAKE3 of a file of which all extents were written.
    pub fn digest(&self, id: EntryId) -> Option<[u8; 32]> {
        let file = self.incoming.get(&id)?;
        let slots: Vec<[u8; 32]> = file.slots.values().copied().collect();
        (!slots.is_empty() && slots.len() as u32 == slot_count(file.source.size)).then(|| combine(&slots))
    }

    /// The missing parts of a file when the session ended early.
    pub fn unwritten(&self, id: EntryId) -> Unwritten {
        let Some(file) = self.incoming.get(&id) else { return Unwritten::Ranges(Vec::new()) };
        if file.slots.is_empty() {
            return Unwritten::All;
        }
        let size = file.source.size;
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for slot in (0..slot_count(size)).filter(|slot| !file.slots.contains_key(slot)) {
            let range = slot_range(slot, size);
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        Unwritten::Ranges(ranges)
    }

    /// A file is abandoned; returns whether its temporary file should be removed.
    pub fn on_given_up(&mut self, id: EntryId) -> bool {
        let Some(file) = self.take_incoming(id) else { return false };
        self.given_up.insert(id);
        self.on_failed(&file.path);
        Record::Dropped { key: path_key(&file.path) }.write(&mut self.records);
        true
    }

    /// An entry could not be received.
    pub fn on_entry_failed(&mut self, path: &RelPath, error: &Error) {
        // With `NameTaken`, the name is claimed by another entry, which may arrive.
        if error.code != Code::NameTaken {
            self.on_failed(path);
        }
    }

    /// A name did not arrive, whichever side failed: no link may be made to an old file under it, and as the source
    /// has the name, it is not removed.
    pub fn on_failed(&mut self, path: &RelPath) {
        self.on_named(path);
        self.failed.insert(path_key(path));
    }

    /// Whether a name did not arrive: it failed, or its directory accepts no entries.
    pub fn has_failed(&self, path: &RelPath) -> bool {
        let is_closed = |path: &RelPath| path.parent().is_some_and(|parent| self.is_refused(&parent));
        !self.failed.is_empty() && (self.is_refused(path) || is_closed(path))
    }

    /// Whether a name failed itself, or is a directory that accepts no entries.
    pub fn is_refused(&self, path: &RelPath) -> bool {
        self.failed.contains(&path_key(path))
    }

    /// A file is complete under its temporary name, with its metadata; returns whether [`Receiver::poll`] should be
    /// called again.
    pub fn on_written(&mut self, now: Duration, done: Done) -> bool {
        drop(self.take_incoming(done.id));
        self.on_named(&done.path);
        let bytes = done.copy_of.map_or(0, |(stamp, _)| stamp.size);
        self.commit.on_written(now, done, bytes)
    }

    /// An entry is under its final name and needs only a sync: a symbolic link, a hard link, a directory.
    pub fn on_placed(&mut self, now: Duration, done: Done) {
        self.on_named(&done.path);
        self.commit.on_renamed(now, done);
    }

    /// Defers a hard link to the end.
    ///
    /// # Errors
    /// `TooManyEntries` beyond the limit.
    pub fn defer_link(&mut self, link: PendingLink) -> Result<(), Error> {
        self.on_named(&link.path);
        let bytes = size_of::<PendingLink>() + link.path.as_bytes().len() + link.to.as_bytes().len();
        self.count_deferred(&link.path, 0, bytes)?;
        self.links.push(link);
        Ok(())
    }

    /// Defers a directory's metadata to the end.
    ///
    /// # Errors
    /// `TooManyEntries` beyond the limit.
    pub fn defer_dir(&mut self, dir: PendingDir) -> Result<(), Error> {
        let attributes: usize =
            dir.meta.xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len() + ALLOCATION_BYTES).sum();
        let names = dir.path.as_bytes().len() + dir.meta.owner.len() + dir.meta.group.len();
        self.on_named(&dir.path);
        self.count_deferred(&dir.path, attributes, size_of::<PendingDir>() + names + attributes)?;
        self.dirs.push(dir);
        Ok(())
    }

    fn count_deferred(&mut self, path: &RelPath, attribute_bytes: usize, bytes: usize) -> Result<(), Error> {
        let too_many = |cause| Err(Error::new(Code::TooManyEntries, "receive", path, cause));
        if self.links.len() + self.dirs.len() >= self.max_deferred {
            return too_many("too many links and directories in one transfer");
        }
        if self.deferred_bytes + attribute_bytes > MAX_DEFERRED_BYTES {
            return too_many("the directories of this transfer have too many attributes");
        }
        self.deferred_bytes += attribute_bytes;
        self.kept_bytes += (bytes + ALLOCATION_BYTES) as u64;
        Ok(())
    }

    /// All streams ended; `source_complete` if the sender could read every directory.
    pub fn on_streams_ended(&mut self, source_complete: bool) {
        if self.stage == Stage::Receiving {
            self.stage = Stage::Draining;
            self.source_complete = source_complete;
            self.commit.flush();
        }
    }

    /// Files written and not yet durable; the caller applies back-pressure to the streams when this grows.
    pub fn pending_files(&self) -> usize {
        self.commit.pending_files()
    }

    /// The next step at `now`.
    pub fn poll(&mut self, now: Duration) -> Action {
        match self.stage {
            Stage::Receiving => self.poll_commit(now),
            Stage::Draining => self.poll_draining(now),
            Stage::Removing => {
                self.stage = Stage::Settling;
                if self.options.delete && self.source_complete {
                    Action::RemoveOthers
                } else {
                    self.poll(now)
                }
            }
            Stage::Settling => {
                self.stage = Stage::Syncing;
                let mut dirs = std::mem::take(&mut self.dirs);
                dirs.sort_by_key(|dir| std::cmp::Reverse(dir.path.components().count()));
                Action::SetDirs(dirs)
            }
            Stage::Syncing if self.commit.is_empty() => {
                self.stage = Stage::Done;
                Action::Done
            }
            Stage::Syncing => self.poll_commit(now),
            Stage::Done => Action::Done,
        }
    }

    fn poll_commit(&mut self, now: Duration) -> Action {
        match self.commit.poll(now) {
            Step::Sync { written, renamed } => Action::Sync { written, renamed },
            Step::Wait(until) => Action::Wait(until),
        }
    }

    fn poll_draining(&mut self, now: Duration) -> Action {
        if self.commit.has_written() {
            return self.poll_commit(now);
        }
        self.stage = Stage::Removing;
        Action::MakeLinks(std::mem::take(&mut self.links))
    }

    /// The sync is done: returns the files to rename and the entries to acknowledge.
    pub fn on_synced(&mut self, written: Vec<Done>, renamed: Vec<Done>) -> Synced<Done> {
        for done in &renamed {
            if let Some((source, ino)) = done.copy_of {
                Record::Finished { key: path_key(&done.path), source, ino }.write(&mut self.records);
            }
        }
        self.commit.on_synced(written, renamed)
    }

    /// A file has its final name.
    pub fn on_renamed(&mut self, now: Duration, done: Done) {
        self.release(&done.path);
        self.commit.on_renamed(now, done);
    }

    /// Takes the journal records produced since the last call.
    pub fn take_records(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.records)
    }
}

/// Folds the numbers of extents, ascending, into ranges.
pub fn slot_ranges(slots: impl IntoIterator<Item = u32>) -> Vec<SlotRange> {
    let mut ranges: Vec<SlotRange> = Vec::new();
    for slot in slots {
        match ranges.last_mut() {
            Some(last) if last.first + last.count == slot => last.count += 1,
            _ => ranges.push(SlotRange { first: slot, count: 1 }),
        }
    }
    ranges
}

/// Folds entry numbers into ranges.
pub fn ranges(mut ids: Vec<EntryId>) -> Vec<IdRange> {
    ids.sort_unstable();
    let mut ranges: Vec<IdRange> = Vec::new();
    for id in ids {
        match ranges.last_mut() {
            Some(last) if last.first.checked_add(last.count) == Some(id) => last.count += 1,
            _ => ranges.push(IdRange { first: id, count: 1 }),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Xattr;
    use crate::mover::digest::SLOT_BYTES;
    use crate::mover::offer::Existing;

    const NOW: Duration = Duration::ZERO;

    fn options(delete: bool) -> ReceiveOptions {
        ReceiveOptions { delete, ..ReceiveOptions::plain(Existing::Replace) }
    }

    fn path(name: &str) -> RelPath {
        RelPath::parse(name.as_bytes()).unwrap()
    }

    fn file(name: &str, size: u64) -> Entry {
        let stamp = Stamp { size, ..Stamp::default() };
        Entry { path: path(name), meta: Meta::default(), kind: EntryKind::File { stamp, sparse: false } }
    }

    fn done(id: EntryId, name: &str) -> Done {
        Done { id, path: path(name), copy_of: Some((Stamp::default(), 7)) }
    }

    #[test]
    fn a_large_file_is_complete_with_its_last_extent() {
        let mut receiver = Receiver::new(options(false), State::default(), 100);
        let entry = file("f", 2 * SLOT_BYTES);
        let start = Start::Write { keep_existing: false };
        assert_eq!(receiver.start_extent(1, &entry, 1).unwrap(), start);
        assert_eq!(receiver.on_extent_written(1, 1, [0; 32], 7), Arrival::More);
        assert_eq!(receiver.start_extent(1, &entry, 1).unwrap(), Start::Ignore);
        assert_eq!(receiver.start_extent(1, &entry, 0).unwrap(), start);
        assert_eq!(receiver.digest(1), None);
        assert_eq!(receiver.on_extent_written(1, 0, [0; 32], 7), Arrival::Complete);
        assert_eq!(receiver.digest(1), Some(combine(&[[0; 32], [0; 32]])));
        assert!(receiver.start_extent(1, &file("g", 2 * SLOT_BYTES), 0).is_err());
    }

    #[test]
    fn gaps_between_whole_extents_are_unwritten() {
        let mut receiver = Receiver::new(options(false), State::default(), 100);
        let entry = file("f", 5 * SLOT_BYTES + 7);
        receiver.start_extent(1, &entry, 1).unwrap();
        assert_eq!(receiver.unwritten(1), Unwritten::All);
        for slot in [1, 4] {
            receiver.on_extent_written(1, slot, [0; 32], 7);
        }
        let missing = |from: u64, to: u64| from * SLOT_BYTES..to * SLOT_BYTES;
        let last = 5 * SLOT_BYTES..5 * SLOT_BYTES + 7;
        assert_eq!(receiver.unwritten(1), Unwritten::Ranges(vec![missing(0, 1), missing(2, 4), last]));
        assert_eq!(receiver.unwritten(2), Unwritten::Ranges(Vec::new()));
    }

    #[test]
    fn entries_that_failed_at_the_source_are_not_removed() {
        let mut receiver = Receiver::new(options(true), State::default(), 100);
        receiver.on_failed(&path("d/fifo"));
        assert!(receiver.is_named(&path("d/fifo")) && receiver.has_failed(&path("d/fifo")));
        assert!(!receiver.is_named(&path("d/file")));
    }

    #[test]
    fn open_large_files_are_limited() {
        let mut receiver = Receiver::new(options(false), State::default(), 100);
        receiver.limit_open_files(2);
        for (id, name) in [(1, "a"), (2, "b")] {
            assert!(receiver.may_resume());
            receiver.start_extent(id, &file(name, 2 * SLOT_BYTES), 0).unwrap();
        }
        assert!(!receiver.may_resume());
        let refused = receiver.start_extent(3, &file("c", 2 * SLOT_BYTES), 0).unwrap_err();
        assert_eq!(refused.code, Code::TooManyEntries);
        receiver.start_extent(2, &file("b", 2 * SLOT_BYTES), 1).unwrap();
        assert!(receiver.on_given_up(1));
        receiver.start_extent(3, &file("c", 2 * SLOT_BYTES), 0).unwrap();
    }

    #[test]
    fn final_steps_are_ordered() {
        let mut receiver = Receiver::new(options(true), State::default(), 100);
        receiver.on_written(NOW, done(0, "d/f"));
        receiver.defer_dir(PendingDir { id: 1, path: path("d"), meta: Meta::default() }).unwrap();
        receiver.defer_dir(PendingDir { id: 2, path: path("d/e"), meta: Meta::default() }).unwrap();
        receiver.defer_link(PendingLink { id: 3, path: path("l"), to: path("d/f") }).unwrap();
        receiver.on_streams_ended(true);
        let Action::Sync { written, renamed } = receiver.poll(NOW) else { panic!("sync first") };
        let synced = receiver.on_synced(written, renamed);
        assert_eq!((synced.rename.len(), synced.acknowledge.len()), (1, 0));
        receiver.on_renamed(NOW, synced.rename[0].clone());
        assert!(matches!(receiver.poll(NOW), Action::MakeLinks(links) if links.len() == 1));
        assert_eq!(receiver.poll(NOW), Action::RemoveOthers);
        assert!(receiver.is_named(&path("d/f")) && !receiver.is_named(&path("other")));
        let Action::SetDirs(dirs) = receiver.poll(NOW) else { panic!("directories next") };
        assert_eq!(dirs.iter().map(|dir| dir.id).collect::<Vec<_>>(), [2, 1]);
        receiver.on_placed(NOW, Done { id: 1, path: path("d"), copy_of: None });
        let Action::Sync { written, renamed } = receiver.poll(NOW) else { panic!("sync last") };
        assert_eq!(receiver.on_synced(written, renamed).acknowledge.len(), 2);
        assert_eq!(receiver.poll(NOW), Action::Done);
    }

    #[test]
    fn nothing_is_removed_if_the_source_was_not_read_in_full() {
        let mut receiver = Receiver::new(options(true), State::default(), 100);
        receiver.on_streams_ended(false);
        assert!(matches!(receiver.poll(NOW), Action::MakeLinks(_)));
        assert!(matches!(receiver.poll(NOW), Action::SetDirs(_)));
        assert_eq!(receiver.poll(NOW), Action::Done);
    }

    #[test]
    fn extents_of_a_lost_temporary_file_are_not_taken_for_those_of_the_next() {
        let entry = file("f", 3 * SLOT_BYTES);
        let mut journal = Vec::new();
        Record::Header(super::super::journal::Header::of_test(1)).write(&mut journal);
        let mut first = Receiver::new(options(false), State::default(), 100);
        first.start_extent(1, &entry, 0).unwrap();
        first.on_extent_written(1, 0, [1; 32], 7);
        journal.extend(first.take_records());
        // The temporary file was deleted; the new one happens to get its inode.
        let mut second = Receiver::new(options(false), State::read(&journal).0, 100);
        assert_eq!(second.start_extent(1, &entry, 1).unwrap(), Start::Write { keep_existing: false });
        second.on_extent_written(1, 1, [2; 32], 7);
        journal.extend(second.take_records());
        let kept = State::read(&journal).0;
        let slots: Vec<u32> =
            kept.partial.values().flat_map(|partial| partial.slots.keys().copied()).collect();
        assert_eq!(slots, [1]);
    }

    #[test]
    fn names_over_the_deferral_limit_are_still_taken() {
        let mut receiver = Receiver::new(options(true), State::default(), 0);
        let dir = PendingDir { id: 0, path: path("d"), meta: Meta::default() };
        assert_eq!(receiver.defer_dir(dir).unwrap_err().code, Code::TooManyEntries);
        let link = PendingLink { id: 1, path: path("l"), to: path("f") };
        assert_eq!(receiver.defer_link(link).unwrap_err().code, Code::TooManyEntries);
        assert!(receiver.is_named(&path("d")) && receiver.is_named(&path("l")));
    }

    #[test]
    fn deferred_attributes_are_bounded() {
        let mut receiver = Receiver::new(options(false), State::default(), usize::MAX);
        let xattr = Xattr { name: b"user.x".to_vec(), value: vec![0; MAX_DEFERRED_BYTES / 2] };
        let meta = Meta { xattrs: vec![xattr], ..Meta::default() };
        let mut defer = |id, meta| receiver.defer_dir(PendingDir { id, path: path("d"), meta });
        defer(0, meta.clone()).unwrap();
        assert_eq!(defer(1, meta).unwrap_err().code, Code::TooManyEntries);
        defer(2, Meta::default()).unwrap();
    }

    #[test]
    fn deferred_entries_are_counted() {
        let mut receiver = Receiver::new(options(true), State::default(), usize::MAX);
        assert_eq!(receiver.kept_bytes(), 0);
        let mut before = 0;
        let mut grew = |receiver: &Receiver, by: std::ops::Range<u64>| {
            let grown = receiver.kept_bytes() - std::mem::replace(&mut before, receiver.kept_bytes());
            assert!(by.contains(&grown), "{grown}");
        };
        (0..1000).for_each(|n| receiver.on_named(&path(&format!("{n}"))));
        grew(&receiver, 20_000..60_000);
        (0..1000).for_each(|n| receiver.on_failed(&path(&format!("{n}"))));
        grew(&receiver, 20_000..60_000);
        let value = vec![0; 10_000];
        let meta = Meta { xattrs: vec![Xattr { name: b"user.x".to_vec(), value }], ..Meta::default() };
        receiver.defer_dir(PendingDir { id: 0, path: path("d"), meta }).unwrap();
        grew(&receiver, 10_000..11_000);
        let to = path(&"t".repeat(200));
        receiver.defer_link(PendingLink { id: 1, path: path("l"), to }).unwrap();
        grew(&receiver, 250..500);
        let slot = Record::Slot {
            key: path_key(&path("f")),
            source: Stamp::default(),
            temp_ino: 4,
            slot: 1,
            digest: [1; 32],
        };
        let resuming = Receiver::new(options(false), left_by(&[slot]), 100);
        assert!(resuming.kept_bytes() > 100);
    }

    #[test]
    fn an_abandoned_file_stays_abandoned() {
        let mut receiver = Receiver::new(options(false), State::default(), 100);
        let entry = file("f", 2 * SLOT_BYTES);
        receiver.start_extent(1, &entry, 0).unwrap();
        assert!(receiver.on_given_up(1));
        assert_eq!(receiver.on_extent_written(1, 0, [0; 32], 7), Arrival::Ignore);
        assert_eq!(receiver.start_extent(1, &entry, 1).unwrap(), Start::Ignore);
        assert!(!receiver.on_given_up(1));
    }

    fn offered(name: &str, stamp: Stamp) -> OfferItem {
        let kind = EntryKind::File { stamp, sparse: false };
        OfferItem { id: 1, entry: Entry { path: path(name), meta: Meta::default(), kind }, digest: None }
    }

    fn left_by(records: &[Record]) -> State {
        let mut state = State::default();
        for record in records {
            let (key, partial) = match record {
                Record::Finished { key, source, ino } => {
                    state.finished.insert(*key, (*source, *ino));
                    continue;
                }
                Record::Slot { key, source, temp_ino, slot, digest } => {
                    let slots = BTreeMap::from([(*slot, *digest)]);
                    (key, Partial { source: *source, temp_ino: *temp_ino, slots, at_rest: None })
                }
                other => panic!("{other:?}"),
            };
            state.partial.insert(*key, partial);
        }
        state
    }

    #[test]
    fn extents_of_a_newer_state_count_beside_an_older_finished_one() {
        let (key, newer) = (path_key(&path("f")), Stamp { size: 9, ..Stamp::default() });
        let previous = left_by(&[
            Record::Finished { key, source: Stamp::default(), ino: 3 },
            Record::Slot { key, source: newer, temp_ino: 4, slot: 0, digest: [1; 32] },
        ]);
        let receiver = Receiver::new(options(false), previous, 100);
        assert_eq!(receiver.left(&offered("f", Stamp::default())), PriorState::Finished { ino: 3 });
        assert!(matches!(receiver.left(&offered("f", newer)), PriorState::Partial { temp_ino: 4, .. }));
    }

    #[test]
    fn extents_that_fail_verification_are_dropped() {
        let entry = file("f", 3 * SLOT_BYTES);
        let EntryKind::File { stamp: source, .. } = entry.kind else { panic!("a file") };
        let mut journal = Vec::new();
        Record::Header(super::super::journal::Header::of_test(1)).write(&mut journal);
        for slot in 0..2 {
            let key = path_key(&entry.path);
            Record::Slot { key, source, temp_ino: 4, slot, digest: [1; 32] }.write(&mut journal);
        }
        let mut receiver = Receiver::new(options(false), State::read(&journal).0, 100);
        assert!(receiver.on_resumed(1, &entry, BTreeMap::from([(1, [1; 32])])));
        let changed = FileTime { secs: 5, nanos: 6 };
        receiver.on_at_rest(1, changed);
        journal.extend(receiver.take_records());
        let slots = BTreeMap::from([(1, [1; 32])]);
        let left = Receiver::new(options(false), State::read(&journal).0, 100).left(&offered("f", source));
        assert_eq!(left, PriorState::Partial { temp_ino: 4, slots, at_rest: Some(changed) });
    }

    #[test]
    fn restarting_a_file_discards_its_journal() {
        let entry = file("f", 2 * SLOT_BYTES);
        let EntryKind::File { stamp, .. } = entry.kind else { panic!("a file") };
        let key = path_key(&path("f"));
        let slot = Record::Slot { key, source: stamp, temp_ino: 4, slot: 1, digest: [1; 32] };
        let mut receiver = Receiver::new(options(false), left_by(&[slot]), 100);
        receiver.start_extent(1, &entry, 0).unwrap();
        let mut dropped = Vec::new();
        Record::Dropped { key }.write(&mut dropped);
        assert_eq!(receiver.take_records(), dropped);
    }

    #[test]
    fn resumed_files_do_not_count_as_open() {
        let entries: Vec<_> = (0..=MAX_OPEN_FILES).map(|n| file(&format!("{n}"), 2 * SLOT_BYTES)).collect();
        let slot = |entry: &Entry| {
            let EntryKind::File { stamp, .. } = entry.kind else { panic!("a file") };
            Record::Slot { key: path_key(&entry.path), source: stamp, temp_ino: 4, slot: 1, digest: [1; 32] }
        };
        let records: Vec<_> = entries.iter().map(slot).collect();
        let mut receiver = Receiver::new(options(false), left_by(&records), 100);
        for (id, entry) in entries.iter().enumerate() {
            receiver.on_resumed(id as u64, entry, BTreeMap::from([(1, [1; 32])]));
        }
        assert!(receiver.start_extent(9_999, &file("g", 2 * SLOT_BYTES), 0).is_ok());
    }

    #[test]
    fn an_extent_cannot_arrive_twice_concurrently() {
        let mut receiver = Receiver::new(options(false), State::default(), 100);
        let entry = file("f", 2 * SLOT_BYTES);
        receiver.start_extent(1, &entry, 0).unwrap();
        assert_eq!(receiver.start_extent(1, &entry, 0).unwrap_err().code, Code::ProtocolViolation);
    }

    #[test]
    fn a_name_is_reserved_for_one_entry_until_it_is_done() {
        let mut receiver = Receiver::new(options(false), State::default(), 100);
        let large = file("f", SLOT_BYTES / 2);
        receiver.start_extent(1, &large, 0).unwrap();
        let taken = receiver.start_extent(2, &large, 0).unwrap_err();
        assert_eq!(taken.code, Code::NameTaken);
        receiver.on_entry_failed(&path("f"), &taken);
        assert!(!receiver.has_failed(&path("f")), "the first one may arrive");
        assert_eq!(receiver.start_extent(2, &large, 0).unwrap(), Start::Ignore);
        assert_eq!(receiver.claim(&path("f")).unwrap_err().code, Code::NameTaken);
        receiver.on_extent_written(1, 0, [0; 32], 7);
        receiver.on_written(NOW, done(1, "f"));
        // It waits for its sync under the temporary name, and the same number may be sent again.
        assert_eq!(receiver.start_extent(1, &large, 0).unwrap_err().code, Code::NameTaken);
        receiver.on_renamed(NOW, done(1, "f"));
        receiver.claim(&path("f")).unwrap();
        receiver.claim(&path("g")).unwrap();
        receiver.release(&path("g"));
        receiver.claim(&path("g")).unwrap();
    }

    #[test]
    fn an_abandoned_name_stays_reserved() {
        let mut receiver = Receiver::new(options(false), State::default(), 100);
        receiver.start_extent(1, &file("f", 2 * SLOT_BYTES), 0).unwrap();
        receiver.on_given_up(1);
        // A stream that started earlier may be about to open the temporary file.
        assert_eq!(receiver.claim(&path("f")).unwrap_err().code, Code::NameTaken);
    }

    #[test]
    fn leftovers_are_not_resumed_under_a_reserved_name() {
        let (key, entry) = (path_key(&path("f")), file("f", 2 * SLOT_BYTES));
        let EntryKind::File { stamp, .. } = entry.kind else { panic!("a file") };
        let slot = Record::Slot { key, source: stamp, temp_ino: 4, slot: 1, digest: [1; 32] };
        let mut receiver = Receiver::new(options(false), left_by(&[slot]), 100);
        receiver.claim(&path("f")).unwrap();
        assert!(!receiver.on_resumed(1, &entry, BTreeMap::from([(1, [1; 32])])));
        receiver.release(&path("f"));
        assert!(receiver.on_resumed(1, &entry, BTreeMap::from([(1, [1; 32])])));
        assert_eq!(receiver.claim(&path("f")).unwrap_err().code, Code::NameTaken);
    }

    #[test]
    fn names_that_failed_are_remembered() {
        let mut receiver = Receiver::new(options(false), State::default(), 100);
        receiver.start_extent(1, &file("f", 2 * SLOT_BYTES), 0).unwrap();
        receiver.on_given_up(1);
        receiver.on_failed(&path("g"));
        assert!(receiver.has_failed(&path("f")) && receiver.has_failed(&path("g")));
        assert!(!receiver.has_failed(&path("h")));
    }

    #[test]
    fn the_extents_of_a_huge_file_fit_one_message() {
        let all = slot_ranges(0..1 << 20);
        assert_eq!(all, [SlotRange { first: 0, count: 1 << 20 }]);
        let every_second = slot_ranges((0..1 << 19).map(|slot| 2 * slot));
        assert_eq!(every_second.len(), 1 << 19);
        assert_eq!(slot_ranges([1, 2, 5]).len(), 2);
    }

    #[test]
    fn numbers_fold_into_ranges() {
        assert_eq!(
            ranges(vec![5, 1, 2, 3, 9]),
            [(1, 3), (5, 1), (9, 1)].map(|(first, count)| IdRange { first, count })
        );
        let last = IdRange { first: u64::MAX, count: 1 };
        assert_eq!(ranges(vec![u64::MAX, u64::MAX]), [last, last]);
    }
}
