//! Reading ahead and writing behind, so that one reader or writer of one file has the whole path for itself.
//!
//! **Reading.** A file that is read in order is asked for in extents, many at a time on all streams. How far ahead grows
//! as long as the reader waits for the path, up to what the path holds: a few times rate x round trip. Whoever reads
//! here and there gets exactly what he asks for. What was read stays for a moment, for kernels ask a little out of order.
//!
//! **Writing.** What is written is gathered to extents, which are sent while the writer goes on. Extents that overlap are
//! sent one after the other, for streams have no order. What fails is told with the next operation, and every one after.

use super::far::FarFiles;
use super::lane::{Link, Pending, Piece};
use renkei_core::error::{Code, Error};
use renkei_core::wire::file::{Answer, Handle, MAX_IO_BYTES, Op};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

/// An extent.
const EXTENT_BYTES: u64 = MAX_IO_BYTES as u64;
/// A reader who goes on so near to where he was reads in order.
const NEAR_BYTES: u64 = 2 * EXTENT_BYTES;
/// What was read and is kept.
const KEPT_BYTES: u64 = 4 * EXTENT_BYTES;
/// What is under way may be so many times what the path holds: the estimate lags behind a path that opens.
const PATHS: f64 = 3.0;
/// Extents that each stream may have under way before anything is known of the path.
const STREAM_EXTENTS: u64 = 4;

/// Most bytes under way on a link, for one file.
fn most_under_way(link: &Link) -> u64 {
    let path = PATHS * link.rate() * link.round_trip.as_secs_f64();
    (path as u64).max(least_path(link))
}

/// What is under way before anything is known of the path: enough that no stream is idle while its window opens, for one
/// that is looks as if the path were full.
fn least_path(link: &Link) -> u64 {
    link.streams() as u64 * STREAM_EXTENTS * EXTENT_BYTES
}

/// What is read ahead of one file.
pub(super) struct Ahead {
    size: u64,
    state: Mutex<Reading>,
}

#[derive(Default)]
struct Reading {
    /// Where a reader in order goes on.
    next: u64,
    /// How far ahead is asked.
    window: u64,
    /// One after the other, without gaps.
    extents: VecDeque<Extent>,
}

struct Extent {
    range: Range<u64>,
    pending: Pending,
    is_used: bool,
}

impl Ahead {
    /// For a file of so many bytes.
    pub(super) fn new(size: u64) -> Self {
        Ahead { size, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Reading> {
        self.state.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Reads from what is ahead; `None` if that has nothing to do with it.
    ///
    /// # Errors
    /// What the site said.
    pub(super) fn read(
        &self,
        files: &FarFiles,
        link: &Link,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<Option<usize>, Error> {
        let wanted = offset..(offset + buf.len() as u64).min(self.size);
        let found = {
            let mut reading = self.lock();
            if wanted.is_empty() || !reading.is_in_order(offset) {
                reading.jump(files, &wanted);
                return Ok(None);
            }
            reading.retire(files, offset);
            reading.grow(link, offset);
            reading.ask(files, link, handle, &wanted, self.size);
            reading.next = reading.next.max(wanted.end);
            reading.find(&wanted)
        };
        let mut done = 0;
        for (range, pending) in found {
            let Ok(replied) = pending.wait() else {
                self.drop_all(files);
                return Ok(None);
            };
            if let Answer::Failed(error) = &replied.answer {
                self.drop_all(files);
                return Err(error.clone());
            }
            let at = offset + done as u64;
            let data = replied.data.as_ref().map_or(&[][..], Piece::bytes);
            let from = data.get((at - range.start) as usize..).unwrap_or_default();
            let count = from.len().min(buf.len() - done);
            buf[done..done + count].copy_from_slice(&from[..count]);
            done += count;
            if at + (count as u64) < range.end.min(wanted.end) {
                break;
            }
        }
        // Nothing: the file is shorter than it was.
        Ok((done > 0).then_some(done))
    }

    /// Takes it that the file is read in order from its beginning to its end.
    pub(super) fn expect_order(&self, link: &Link) {
        self.lock().window = least_path(link);
    }

    /// Forgets what was read ahead.
    pub(super) fn drop_all(&self, files: &FarFiles) {
        self.lock().drop_all(files);
    }
}

impl Reading {
    fn is_in_order(&self, offset: u64) -> bool {
        let start = self.extents.front().map_or(self.next, |first| first.range.start);
        (start..=self.next.saturating_add(NEAR_BYTES)).contains(&offset)
    }

    /// A reader who is somewhere else.
    fn jump(&mut self, files: &FarFiles, to: &Range<u64>) {
        if to.start < self.next && self.next - to.start <= NEAR_BYTES {
            // Late, not elsewhere.
            return;
        }
        self.drop_all(files);
        (self.next, self.window) = (to.end, 0);
    }

    fn drop_all(&mut self, files: &FarFiles) {
        while self.extents.front().is_some() {
            self.pop(files);
        }
    }

    fn pop(&mut self, files: &FarFiles) {
        if let Some(extent) = self.extents.pop_front() {
            files.held.fetch_sub(extent.range.end - extent.range.start, Ordering::Relaxed);
        }
    }

    fn retire(&mut self, files: &FarFiles, offset: u64) {
        while self.extents.front().is_some_and(|first| first.range.end + KEPT_BYTES <= offset) {
            self.pop(files);
        }
    }

    /// Looks further ahead if the reader came to an extent that is not there yet.
    fn grow(&mut self, link: &Link, offset: u64) {
        let most = most_under_way(link);
        if self.window == 0 {
            self.window = EXTENT_BYTES;
            return;
        }
        let at = self.extents.iter_mut().find(|extent| extent.range.contains(&offset));
        let waits = match at {
            Some(extent) if extent.is_used => return,
            Some(extent) => {
                extent.is_used = true;
                !extent.pending.is_done()
            }
            None => true,
        };
        let first = least_path(link);
        if waits || self.window < first {
            self.window = (self.window * 2).max(first).min(most);
        }
    }

    /// Asks for what is wanted, and for what is ahead of it as far as memory allows.
    fn ask(&mut self, files: &FarFiles, link: &Link, handle: Handle, wanted: &Range<u64>, size: u64) {
        let until = wanted.end.saturating_add(self.window).min(size);
        let mut at = self.extents.back().map_or(wanted.start, |last| last.range.end);
        if at < wanted.start {
            // It went on a little further than all that is ahead.
            self.drop_all(files);
            at = wanted.start;
        }
        while at < until {
            let end = (at / EXTENT_BYTES + 1) * EXTENT_BYTES;
            let range = at..end.min(size);
            let bytes = range.end - range.start;
            let is_needed = at < wanted.end;
            let held = files.held.load(Ordering::Relaxed);
            if !is_needed && held + bytes > files.memory() {
                return;
            }
            files.held.fetch_add(bytes, Ordering::Relaxed);
            let pending = link.begin(&Op::Read { handle, offset: at, bytes: bytes as u32 }, None);
            at = range.end;
            self.extents.push_back(Extent { range, pending, is_used: false });
        }
    }

    fn find(&self, wanted: &Range<u64>) -> Vec<(Range<u64>, Pending)> {
        let overlaps = |extent: &&Extent| extent.range.start < wanted.end && wanted.start < extent.range.end;
        let found = self.extents.iter().filter(overlaps);
        found.map(|extent| (extent.range.clone(), extent.pending.clone())).collect()
    }
}

/// What is written behind to one draft.
#[derive(Default)]
pub(super) struct Behind(Mutex<Writing>);

#[derive(Default)]
struct Writing {
    /// What is gathered, and where it begins.
    gathered: Option<(u64, Piece)>,
    under_way: VecDeque<(Range<u64>, Pending)>,
    bytes_under_way: u64,
    failed: Option<Error>,
}

impl Behind {
    fn lock(&self) -> MutexGuard<'_, Writing> {
        self.0.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Takes what is written.
    ///
    /// # Errors
    /// What went wrong with something that was written before.
    pub(super) fn write(
        &self,
        files: &FarFiles,
        link: &Arc<Link>,
        handle: Handle,
        mut offset: u64,
        mut content: &[u8],
    ) -> Result<(), Error> {
        let mut writing = self.lock();
        while !content.is_empty() {
            let goes_on = |(start, piece): &(u64, Piece)| start + piece.bytes().len() as u64 == offset;
            if !writing.gathered.as_ref().is_some_and(goes_on) {
                writing.send(files, link, handle)?;
            }
            let (_, piece) = writing.gathered.get_or_insert_with(|| (offset, link.pool.piece()));
            let count = piece.add(content);
            let is_full = piece.is_full();
            (offset, content) = (offset + count as u64, &content[count..]);
            if is_full {
                writing.send(files, link, handle)?;
            }
        }
        writing.check(files)
    }

    /// Waits until all that was written has arrived.
    pub(super) fn settle(&self, files: &FarFiles, link: &Arc<Link>, handle: Handle) -> Result<(), Error> {
        let mut writing = self.lock();
        writing.send(files, link, handle)?;
        while !writing.under_way.is_empty() {
            writing.finish_first(files);
        }
        writing.check(files)
    }

    /// Ends it; what failed and was not told yet, or at all.
    pub(super) fn close(&self, files: &FarFiles) -> Option<Error> {
        let mut writing = self.lock();
        writing.gathered = None;
        while !writing.under_way.is_empty() {
            writing.finish_first(files);
        }
        writing.failed.clone()
    }
}

impl Writing {
    /// Takes the answers that are there; fails if anything ever failed.
    fn check(&mut self, files: &FarFiles) -> Result<(), Error> {
        while self.under_way.front().is_some_and(|(_, pending)| pending.is_done()) {
            self.finish_first(files);
        }
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn finish_first(&mut self, files: &FarFiles) {
        let Some((range, pending)) = self.under_way.pop_front() else { return };
        let bytes = range.end - range.start;
        self.bytes_under_way -= bytes;
        files.held.fetch_sub(bytes, Ordering::Relaxed);
        let outcome = match pending.wait() {
            Ok(replied) => match &replied.answer {
                Answer::Failed(error) => Err(error.clone()),
                _ => Ok(()),
            },
            // Nobody has it any more.
            Err(lost) => Err(Error { code: Code::DraftLost, ..lost }),
        };
        if let Err(error) = outcome {
            self.failed.get_or_insert(error);
        }
    }

    /// Sends what is gathered, when there is room for it on the way.
    fn send(&mut self, files: &FarFiles, link: &Arc<Link>, handle: Handle) -> Result<(), Error> {
        self.check(files)?;
        let Some((offset, piece)) = self.gathered.take() else { return Ok(()) };
        let bytes = piece.bytes().len() as u64;
        let range = offset..offset + bytes;
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        while self.under_way.iter().any(|(other, _)| overlaps(other)) || self.is_full(files, link, bytes) {
            self.finish_first(files);
        }
        self.bytes_under_way += bytes;
        files.held.fetch_add(bytes, Ordering::Relaxed);
        let pending = link.begin(&Op::Write { handle, offset }, Some(piece));
        self.under_way.push_back((range, pending));
        self.check(files)
    }

    fn is_full(&self, files: &FarFiles, link: &Link, bytes: u64) -> bool {
        let held = files.held.load(Ordering::Relaxed);
        !self.under_way.is_empty()
            && (self.bytes_under_way + bytes > most_under_way(link) || held + bytes > files.memory())
    }
}
