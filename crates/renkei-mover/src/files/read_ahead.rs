//! Read-ahead, so that one reader of one file can use the full bandwidth of the path.
//!
//! A file that is read sequentially is requested in extents, many at a time on all streams. The window grows as long
//! as the reader waits for the path, up to a few times the BDP (rate x round trip). Random reads request exactly
//! their range. Extents that were read are kept for a moment, because kernels request slightly out of order.

use super::remote_files::{RemoteFiles, stamp_of};
use super::rpc::{PendingReply, RpcConnection, RpcReply};
use renkei_core::entry::Stamp;
use renkei_core::wire::file::{Answer, Handle, Item, MAX_IO_BYTES, Op};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

/// Size of an extent.
const EXTENT_BYTES: u64 = MAX_IO_BYTES as u64;
/// A read this near to the last one is sequential. The kernel's own read-ahead keeps as much in flight, twice its
/// setting after POSIX_FADV_SEQUENTIAL, and its requests come from several threads in any order.
const NEAR_BYTES: u64 = 8 * EXTENT_BYTES;
/// Read bytes that are kept, for requests that arrive out of order.
const KEPT_BYTES: u64 = 2 * NEAR_BYTES;
/// A first read at offset 0 of this size means a sequential read of the file: kernels request less for a program's
/// smaller reads.
const SURE_BYTES: u64 = 256 << 10;
/// Most bytes in flight, as a multiple of the BDP: the estimate lags behind a growing window.
const PATHS: f64 = 3.0;
/// Extents per stream in flight before the BDP is known.
const STREAM_EXTENTS: u64 = 4;

/// Most bytes in flight on a connection, for one file.
pub(crate) fn most_under_way(conn: &RpcConnection) -> u64 {
    let path = PATHS * conn.rate() * conn.round_trip.as_secs_f64();
    (path as u64).max(least_path(conn))
}

/// Bytes in flight before the BDP is known: enough that no stream is idle while its congestion window opens, for an
/// idle one makes the path look full.
fn least_path(conn: &RpcConnection) -> u64 {
    conn.streams() as u64 * STREAM_EXTENTS * EXTENT_BYTES
}

/// The read-ahead of one file.
pub(crate) struct ReadAhead {
    stamp: Stamp,
    state: Mutex<Reading>,
}

#[derive(Default)]
struct Reading {
    /// Where a sequential reader continues.
    next: u64,
    /// Bytes to request ahead.
    window: u64,
    /// Contiguous extents, in order.
    extents: VecDeque<Extent>,
}

/// A part of a file that was requested.
pub(crate) struct Extent {
    pub(crate) range: Range<u64>,
    pub(crate) pending: PendingReply,
    is_used: bool,
}

impl Extent {
    pub(crate) fn new(range: Range<u64>, pending: PendingReply) -> Self {
        Extent { range, pending, is_used: false }
    }
}

/// The extents of a file from `at` up to `until`, as they are requested.
pub(crate) fn parts(mut at: u64, until: u64) -> impl Iterator<Item = Range<u64>> {
    std::iter::from_fn(move || {
        let part = at..((at / EXTENT_BYTES + 1) * EXTENT_BYTES).min(until);
        at = part.end;
        (!part.is_empty()).then_some(part)
    })
}

impl ReadAhead {
    /// Begins with this version of a file, and the extents that were prefetched before it was opened.
    pub(crate) fn new(stamp: Stamp, peeked: VecDeque<Extent>) -> Self {
        let next = peeked.back().map_or(0, |last| last.range.end);
        ReadAhead { stamp, state: Mutex::new(Reading { next, window: 0, extents: peeked }) }
    }

    /// The version.
    pub(crate) fn stamp(&self) -> Stamp {
        self.stamp
    }

    fn lock(&self) -> MutexGuard<'_, Reading> {
        self.state.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Serves a read from the read-ahead; `None` if the read is not sequential or the read-ahead failed.
    pub(crate) fn read(
        &self,
        files: &RemoteFiles,
        conn: &RpcConnection,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<usize> {
        let wanted = offset..(offset + buf.len() as u64).min(self.stamp.size);
        let found = {
            let mut reading = self.lock();
            if wanted.is_empty() || !reading.is_in_order(offset) {
                reading.jump(files, &wanted);
                return None;
            }
            if !reading.retire(files, offset) {
                reading.jump(files, &wanted);
                return None;
            }
            reading.grow(conn, &wanted);
            reading.ask(files, conn, handle, &wanted, self.stamp.size);
            reading.next = reading.next.max(wanted.end);
            reading.find(&wanted)
        };
        let mut done = 0;
        for (range, pending) in found {
            let Ok(replied) = pending.wait() else {
                self.drop_all(files);
                return None;
            };
            if is_other(&replied.answer, self.stamp) {
                self.drop_all(files);
                return None;
            }
            let at = offset + done as u64;
            let from = replied.bytes().get((at - range.start) as usize..).unwrap_or_default();
            let count = from.len().min(buf.len() - done);
            buf[done..done + count].copy_from_slice(&from[..count]);
            done += count;
            if at + (count as u64) < range.end.min(wanted.end) {
                break;
            }
        }
        // Zero: the file is shorter than it was.
        (done > 0).then_some(done)
    }

    /// Whether a read that ends at this offset reaches the end of the file.
    pub(crate) fn ends_at(&self, end: u64) -> bool {
        end >= self.stamp.size
    }

    /// Assumes a sequential read from start to end.
    pub(crate) fn expect_order(&self, conn: &RpcConnection) {
        self.lock().window = least_path(conn);
    }

    /// Discards the read-ahead.
    pub(crate) fn drop_all(&self, files: &RemoteFiles) {
        self.lock().drop_all(files);
    }
}

/// A whole file that was prefetched before it was opened.
pub(crate) struct PrefetchedFile(Vec<(Range<u64>, Arc<RpcReply>)>);

impl PrefetchedFile {
    /// Waits for the prefetched extents of a file; `None` unless they are all of one version that `is_known` accepts.
    pub(crate) fn wait(extents: &VecDeque<Extent>, is_known: &dyn Fn(&Item) -> bool) -> Option<Self> {
        let mut parts = Vec::with_capacity(extents.len());
        for Extent { range, pending, .. } in extents {
            let replied = pending.wait().ok()?;
            let Answer::Peeked { item, .. } = &replied.answer else { return None };
            let is_whole = replied.bytes().len() as u64 == range.end - range.start;
            if !is_whole || item.entry.size() != extents.back()?.range.end || !is_known(item) {
                return None;
            }
            parts.push((range.clone(), replied));
        }
        Some(PrefetchedFile(parts))
    }

    fn size(&self) -> u64 {
        self.0.last().map_or(0, |(range, _)| range.end)
    }

    /// Reads from the prefetched content.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let mut done = 0;
        for (range, replied) in &self.0 {
            let at = offset + done as u64;
            if range.contains(&at) {
                let from = &replied.bytes()[(at - range.start) as usize..];
                let count = from.len().min(buf.len() - done);
                buf[done..done + count].copy_from_slice(&from[..count]);
                done += count;
            }
        }
        done
    }

    /// Whether a read that ends at this offset reaches the end of the file.
    pub(crate) fn ends_at(&self, end: u64) -> bool {
        end >= self.size()
    }

    /// Releases the memory that is accounted to the file.
    pub(crate) fn drop_all(&self, files: &RemoteFiles) {
        files.held.fetch_sub(self.size(), Ordering::Relaxed);
    }
}

/// Whether an answer is not of this version: it failed, which the reader learns from its own request, or it was given
/// for another version before the file was opened.
fn is_other(answer: &Answer, version: Stamp) -> bool {
    match answer {
        Answer::Peeked { item, .. } => stamp_of(item) != version,
        Answer::Data(_) => false,
        _ => true,
    }
}

impl Reading {
    /// Whether a read at this offset is sequential: within the requested extents, or near to them.
    fn is_in_order(&self, offset: u64) -> bool {
        let start = self.extents.front().map_or(self.next, |first| first.range.start);
        let asked = self.extents.back().map_or(0, |last| last.range.end);
        (start..=asked.max(self.next.saturating_add(NEAR_BYTES))).contains(&offset)
    }

    /// Resets the window for a reader that has moved elsewhere.
    fn jump(&mut self, files: &RemoteFiles, to: &Range<u64>) {
        if to.start < self.next && self.next - to.start <= KEPT_BYTES {
            // A late request, not a seek.
            return;
        }
        self.drop_all(files);
        (self.next, self.window) = (to.end, 0);
    }

    fn drop_all(&mut self, files: &RemoteFiles) {
        while self.extents.front().is_some() {
            self.pop(files);
        }
    }

    fn pop(&mut self, files: &RemoteFiles) {
        if let Some(extent) = self.extents.pop_front() {
            files.held.fetch_sub(extent.range.end - extent.range.start, Ordering::Relaxed);
        }
    }

    /// Discards extents that are well behind the offset; returns whether all of them were used, for a reader that
    /// skips much is not sequential.
    fn retire(&mut self, files: &RemoteFiles, offset: u64) -> bool {
        let mut all_used = true;
        while let Some(first) = self.extents.front().filter(|first| first.range.end + KEPT_BYTES <= offset) {
            all_used &= first.is_used;
            self.pop(files);
        }
        all_used
    }

    /// Grows the window if the reader reached an extent that has not arrived yet.
    fn grow(&mut self, conn: &RpcConnection, wanted: &Range<u64>) {
        let (offset, most) = (wanted.start, most_under_way(conn));
        if self.window == 0 {
            let is_sure = offset == 0 && wanted.end >= SURE_BYTES;
            self.window = if is_sure { least_path(conn) } else { EXTENT_BYTES };
            return;
        }
        let at = self.extents.iter_mut().find(|extent| extent.range.contains(&offset));
        let waits = match at {
            Some(extent) if extent.is_used => return,
            Some(extent) => !extent.pending.is_done(),
            None => true,
        };
        let first = least_path(conn);
        if waits || self.window < first {
            self.window = (self.window * 2).max(first).min(most);
        }
    }

    /// Requests the wanted range, up to the end of its extent, and the window ahead of it as far as memory allows.
    fn ask(
        &mut self,
        files: &RemoteFiles,
        conn: &RpcConnection,
        handle: Handle,
        wanted: &Range<u64>,
        size: u64,
    ) {
        let until = wanted.end.saturating_add(self.window).div_ceil(EXTENT_BYTES) * EXTENT_BYTES;
        let until = until.min(size);
        // A gap in between is requested too: its reader comes a little later.
        let at = self.extents.back().map_or(wanted.start, |last| last.range.end);
        for range in parts(at, until) {
            let bytes = range.end - range.start;
            let is_needed = range.start < wanted.end;
            let held = files.held.load(Ordering::Relaxed);
            if !is_needed && held + bytes > files.memory() {
                return;
            }
            files.held.fetch_add(bytes, Ordering::Relaxed);
            let op = Op::Read { handle, offset: range.start, bytes: bytes as u32 };
            let pending = conn.begin(&op, None);
            self.extents.push_back(Extent::new(range, pending));
        }
    }

    /// The extents that overlap a range; marks them as used.
    fn find(&mut self, wanted: &Range<u64>) -> Vec<(Range<u64>, PendingReply)> {
        let overlaps =
            |extent: &&mut Extent| extent.range.start < wanted.end && wanted.start < extent.range.end;
        let found = self.extents.iter_mut().filter(overlaps);
        let used = found.map(|extent| {
            extent.is_used = true;
            (extent.range.clone(), extent.pending.clone())
        });
        used.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::entry::{Entry, EntryKind, FileTime, Meta};
    use renkei_core::path::RelPath;
    use renkei_core::wire::file::Item;

    const MIB: u64 = 1 << 20;

    /// A reader that continues at 10 MiB, with 4 to 40 MiB requested.
    fn reading() -> Reading {
        let extents = parts(4 * MIB, 40 * MIB).map(|range| Extent::new(range, PendingReply::new(0)));
        Reading { next: 10 * MIB, window: 30 * MIB, extents: extents.collect() }
    }

    #[test]
    fn reordered_requests_of_a_kernel_count_as_sequential() {
        let reading = reading();
        // The kernel's own read-ahead is 4 MiB, or 8: its requests may arrive in any order.
        for mib in [4, 7, 10, 13, 14, 17, 18, 39, 40] {
            assert!(reading.is_in_order(mib * MIB), "{mib}");
        }
        for mib in [0, 3, 41, 100] {
            assert!(!reading.is_in_order(mib * MIB), "{mib}");
        }
    }

    #[test]
    fn the_first_requests_may_be_reordered() {
        let reading = Reading::default();
        assert!((0..=8).all(|mib| reading.is_in_order(mib * MIB)));
        assert!(!reading.is_in_order(9 * MIB));
    }

    #[test]
    fn parts_end_where_extents_do() {
        let found: Vec<_> = parts(MIB / 2, 5 * MIB / 2).map(|range| (range.start, range.end)).collect();
        assert_eq!(found, [(MIB / 2, MIB), (MIB, 2 * MIB), (2 * MIB, 5 * MIB / 2)]);
        assert_eq!(parts(3, 3).count(), 0);
    }

    #[test]
    fn prefetched_data_counts_for_its_version_only() {
        let item = |size| {
            let kind = EntryKind::File { stamp: Stamp { size, ..Stamp::default() }, sparse: false };
            let entry = Entry { path: RelPath::root(), meta: Meta::default(), kind };
            Item { entry, ino: 1, links: 1, blocks: 0, ctime: FileTime::default() }
        };
        let peeked = |size| Answer::Peeked { item: item(size), bytes: 5 };
        let version = stamp_of(&item(7));
        assert!(!is_other(&peeked(7), version) && !is_other(&Answer::Data(5), version));
        assert!(is_other(&peeked(8), version) && is_other(&Answer::Done, version));
    }
}
