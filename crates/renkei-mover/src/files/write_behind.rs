//! Write-behind, so that one writer of one file can use the full bandwidth of the path, and drafts that outlive a
//! session.
//!
//! Writes are coalesced into extents, which are sent while the writer continues. Overlapping extents are sent one
//! after the other, because streams have no order. An error is returned by the next operation, and by every later
//! one.
//!
//! An extent is kept until the site has acknowledged it. When the session is lost, the next one resumes the draft,
//! which the site has kept, and resends the unacknowledged extents. A draft of which nothing was acknowledged is
//! begun anew: all of it is kept here, and at the site a kill may have interrupted the copy of the previous version.
//! If the site has not kept a draft (its machine was rebooted, or the reconnect took too long) the writes are lost,
//! and every operation returns an error.

use super::read_ahead::most_under_way;
use super::remote_files::{Open, Opened, RemoteFiles, is_passing, told, unknown};
use super::rpc::{BULK_BYTES, IoBuffer, PendingReply, RpcConnection};
use crate::lock;
use renkei_core::entry::{EntryKind, FileTime, Xattr};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Answer, Files as _, Handle, Item, MAX_IO_BYTES, Op, Precondition, Start};
use renkei_core::wire::violation;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

/// Client state of a draft.
pub(crate) struct Draft {
    /// The `start` with which it is begun anew.
    start: Start,
    mode: u32,
    /// Whether it holds unpublished changes.
    is_dirty: bool,
    /// Whether some of these were acknowledged, so that the site alone has them.
    is_there: bool,
    /// Whether it was begun anew, and the unacknowledged extents must be resent.
    is_anew: bool,
    /// The version at the site, as last known.
    version: Version,
    /// The condition under which it is published.
    condition: Precondition,
    /// The attributes with which it is published.
    attributes: Vec<Xattr>,
    /// The operation that begins it, if it is a part of an upload.
    part: Option<Op>,
}

/// Identifies a version of one name: the inode number at the site, and in a volume, where a file keeps its inode
/// number, the change that made the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    ino: u64,
    change: Option<u32>,
}

impl Version {
    /// The version of an item.
    pub(crate) fn of(item: &Item) -> Self {
        let change = match item.entry.kind {
            EntryKind::File { stamp, .. } => stamp.version(),
            _ => None,
        };
        Version { ino: item.ino, change }
    }
}

impl Draft {
    pub(crate) fn new(start: Start, mode: u32, version: Version) -> Self {
        // A file that was to be created exists by now.
        let start = if start == Start::New { Start::Content } else { start };
        let condition = if start == Start::OnlyNew { Precondition::Absent } else { Precondition::None };
        Draft {
            start,
            mode,
            is_dirty: false,
            is_there: false,
            is_anew: false,
            version,
            condition,
            attributes: Vec::new(),
            part: None,
        }
    }

    /// The draft of a part of an upload, which `op` began. The site keeps none that a session lost.
    pub(crate) fn of_part(op: Op, version: Version) -> Self {
        Draft { part: Some(op), ..Draft::new(Start::Empty, 0, version) }
    }

    /// Sets the condition under which it is published.
    pub(crate) fn require(&mut self, condition: Precondition) {
        self.condition = condition;
    }

    /// Sets the attributes with which it is published.
    pub(crate) fn describe(&mut self, attributes: Vec<Xattr>) {
        self.attributes = attributes;
    }

    /// The operation that publishes it.
    fn publication(&self, handle: Handle, mtime: Option<FileTime>) -> Op {
        let condition = self.condition;
        match (condition, &self.attributes[..]) {
            (Precondition::None, []) => Op::Publish { handle, mtime },
            (_, []) => Op::PublishIf { handle, mtime, condition },
            (_, attributes) => Op::PublishWith { handle, mtime, condition, attributes: attributes.to_vec() },
        }
    }

    /// The operation that reopens the draft in a later session; `handle` was its handle before. The site's part is
    /// resumed only after some of it was acknowledged: before that it may be an incomplete copy of the previous
    /// version. None if it is lost.
    pub(crate) fn again(&mut self, path: &RelPath, handle: Handle) -> Option<Op> {
        let (path, mode) = (path.clone(), self.mode);
        self.is_anew = self.is_dirty && !self.is_there;
        match (self.is_there, &self.part) {
            (true, Some(_)) => None,
            (false, Some(part)) => Some(part.clone()),
            (true, None) => Some(Op::Resume { path, handle, mode }),
            (false, None) => Some(Op::Draft { path, start: self.start, mode }),
        }
    }

    /// The operation that resumes the partial draft that the site may still have of one that is begun anew, so that
    /// it can be closed.
    pub(crate) fn left(&self, path: &RelPath, handle: Handle) -> Option<Op> {
        let (path, mode) = (path.clone(), self.mode);
        (self.is_anew && self.part.is_none()).then_some(Op::Resume { path, handle, mode })
    }

    fn on_published(&mut self, item: &Item) {
        (self.start, self.is_dirty, self.is_there) = (Start::Content, false, false);
        self.version = Version::of(item);
    }
}

/// The write-behind of one draft.
#[derive(Default)]
pub(crate) struct WriteBehind(Mutex<Writing>);

#[derive(Default)]
struct Writing {
    /// The coalesced extent that is not sent yet, and its offset.
    gathered: Option<(u64, IoBuffer)>,
    under_way: VecDeque<Sent>,
    bytes_under_way: u64,
    /// The epoch of the last session, and the number of writes sent in it.
    asked: (u64, u64),
    /// Number of the last extent that was sent.
    number: u64,
    failed: Option<Error>,
}

/// Location of a draft.
struct At {
    /// Epoch of the session.
    epoch: u64,
    conn: Arc<RpcConnection>,
    /// The draft's handle in it.
    handle: Handle,
}

/// An extent that is in flight, not acknowledged.
struct Sent {
    number: u64,
    range: Range<u64>,
    buffer: Arc<IoBuffer>,
    pending: PendingReply,
}

impl WriteBehind {
    fn lock(&self) -> MutexGuard<'_, Writing> {
        self.0.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Buffers written content, and sends full extents.
    fn write(
        &self,
        files: &RemoteFiles,
        open: &Open,
        mut offset: u64,
        mut content: &[u8],
    ) -> Result<(), Error> {
        let mut writing = self.lock();
        while !content.is_empty() {
            let goes_on = |(start, buffer): &(u64, IoBuffer)| start + buffer.bytes().len() as u64 == offset;
            if !writing.gathered.as_ref().is_some_and(goes_on) {
                writing.send(files, open)?;
            }
            let (_, buffer) = writing.gathered.get_or_insert_with(|| (offset, files.pool.buffer()));
            let count = buffer.add(content);
            let is_full = buffer.is_full();
            (offset, content) = (offset + count as u64, &content[count..]);
            if is_full {
                writing.send(files, open)?;
            }
        }
        writing.check(files, open)
    }

    /// Flushes the gathered extent, and sends right behind it an operation that is ordered after all writes. Also
    /// returns the number of the last extent.
    fn send_with(
        &self,
        files: &RemoteFiles,
        open: &Open,
        op: impl Fn(Handle) -> Op,
    ) -> Result<(PendingReply, u64), Error> {
        let mut writing = self.lock();
        writing.check(files, open)?;
        let At { handle, conn, .. } = writing.make_room(files, open)?;
        let (is_alone, last) = (writing.under_way.is_empty(), writing.take());
        let awaited = Op::Await { handle, writes: writing.asked.1 + u64::from(last.is_some()) };
        let (op, nothing) = (op(handle), None);
        let pending = match last {
            Some((offset, buffer)) => {
                let (write, content) = (Op::Write { handle, offset }, Some(buffer.clone()));
                let weight = buffer.bytes().len() as u64;
                let (written, done) = match is_alone {
                    true => conn.begin_all(weight, [(&write, content), (&op, nothing)]).into(),
                    false => {
                        let ops = [(&write, content), (&awaited, None), (&op, nothing)];
                        let [written, _, done] = conn.begin_all(weight, ops);
                        (written, done)
                    }
                };
                writing.sent(files, offset, buffer, written);
                done
            }
            None if is_alone => conn.begin(&op, nothing),
            // In a bulk stream, where no small operations queue behind it.
            None => {
                let [_, done] = conn.begin_all(BULK_BYTES, [(&awaited, None), (&op, nothing)]);
                done
            }
        };
        Ok((pending, writing.number))
    }

    /// Drops the extents up to `last`, which are known to have arrived; a failure among them is still reported.
    fn forget(&self, files: &RemoteFiles, last: u64) {
        let mut writing = self.lock();
        while let Some(sent) = writing.under_way.front().filter(|sent| sent.number <= last) {
            let outcome = sent.pending.replied().map_or(Ok(()), |replied| arrived(Ok(replied)));
            writing.finish(files, outcome);
        }
    }

    /// Waits until all writes are acknowledged.
    pub(crate) fn settle(&self, files: &RemoteFiles, open: &Open) -> Result<(), Error> {
        let mut writing = self.lock();
        writing.send(files, open)?;
        while !writing.under_way.is_empty() {
            writing.finish_first(files, open);
        }
        writing.check(files, open)
    }

    /// Closes the write-behind; returns its error, if any, reported or not.
    pub(crate) fn close(&self, files: &RemoteFiles) -> Option<Error> {
        let mut writing = self.lock();
        writing.gathered = None;
        while let Some(sent) = writing.under_way.front() {
            let outcome = arrived(sent.pending.wait());
            writing.finish(files, outcome);
        }
        writing.failed.clone()
    }
}

impl Writing {
    /// Takes the replies that have arrived; fails if any write ever failed.
    fn check(&mut self, files: &RemoteFiles, open: &Open) -> Result<(), Error> {
        while self.under_way.front().is_some_and(|sent| sent.pending.is_done()) {
            self.finish_first(files, open);
        }
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Waits for the oldest reply, in the next session if this one is lost.
    fn finish_first(&mut self, files: &RemoteFiles, open: &Open) {
        while let Some(sent) = self.under_way.front() {
            let outcome = match sent.pending.wait() {
                Err(_) => match self.conn(files, open) {
                    Ok(_) => continue,
                    Err(error) => Err(Error { code: Code::DraftLost, ..error }),
                },
                replied => arrived(replied),
            };
            if outcome.is_ok() {
                open.with_draft(|draft| draft.is_there = true);
            }
            return self.finish(files, outcome);
        }
    }

    /// Completes the oldest extent in flight.
    fn finish(&mut self, files: &RemoteFiles, outcome: Result<(), Error>) {
        let Some(Sent { range, .. }) = self.under_way.pop_front() else { return };
        let bytes = range.end - range.start;
        self.bytes_under_way -= bytes;
        files.held.fetch_sub(bytes, Ordering::Relaxed);
        if let Err(error) = outcome {
            self.failed.get_or_insert(error);
        }
    }

    /// The session; extents that a lost one has not acknowledged are resent in it.
    fn conn(&mut self, files: &RemoteFiles, open: &Open) -> Result<At, Error> {
        let at = files.draft_conn(open)?;
        if self.asked.0 != at.epoch {
            self.asked = (at.epoch, 0);
        }
        let is_anew = open.with_draft(|draft| std::mem::take(&mut draft.is_anew)).unwrap_or_default();
        for sent in self.under_way.iter_mut().filter(|sent| is_anew || sent.pending.is_lost()) {
            let op = Op::Write { handle: at.handle, offset: sent.range.start };
            sent.pending = at.conn.begin(&op, Some(sent.buffer.clone()));
            self.asked.1 += 1;
        }
        Ok(at)
    }

    /// The session, once the extents in flight leave room for the gathered one.
    fn make_room(&mut self, files: &RemoteFiles, open: &Open) -> Result<At, Error> {
        let (start, bytes) =
            self.gathered.as_ref().map_or((0, 0), |(start, buffer)| (*start, buffer.bytes().len() as u64));
        let overlaps = |other: &Range<u64>| other.start < start + bytes && start < other.end;
        let mut at = self.conn(files, open)?;
        while self.under_way.iter().any(|sent| overlaps(&sent.range)) || self.is_full(files, &at.conn, bytes)
        {
            self.finish_first(files, open);
            at = self.conn(files, open)?;
        }
        self.check(files, open)?;
        Ok(at)
    }

    fn take(&mut self) -> Option<(u64, Arc<IoBuffer>)> {
        self.gathered.take().map(|(offset, buffer)| (offset, Arc::new(buffer)))
    }

    /// Sends the gathered extent, once there is room for it in flight.
    fn send(&mut self, files: &RemoteFiles, open: &Open) -> Result<(), Error> {
        self.check(files, open)?;
        if self.gathered.is_none() {
            return Ok(());
        }
        let At { handle, conn, .. } = self.make_room(files, open)?;
        if let Some((offset, buffer)) = self.take() {
            let pending = conn.begin(&Op::Write { handle, offset }, Some(buffer.clone()));
            self.sent(files, offset, buffer, pending);
        }
        Ok(())
    }

    /// Records an extent as in flight.
    fn sent(&mut self, files: &RemoteFiles, offset: u64, buffer: Arc<IoBuffer>, pending: PendingReply) {
        let bytes = buffer.bytes().len() as u64;
        self.bytes_under_way += bytes;
        files.held.fetch_add(bytes, Ordering::Relaxed);
        self.asked.1 += 1;
        self.number += 1;
        self.under_way.push_back(Sent {
            number: self.number,
            range: offset..offset + bytes,
            buffer,
            pending,
        });
    }

    fn is_full(&self, files: &RemoteFiles, conn: &RpcConnection, bytes: u64) -> bool {
        let held = files.held.load(Ordering::Relaxed);
        !self.under_way.is_empty()
            && (self.bytes_under_way + bytes > most_under_way(conn) || held + bytes > files.memory())
    }
}

/// The outcome of an extent.
fn arrived(outcome: Result<Arc<super::rpc::RpcReply>, Error>) -> Result<(), Error> {
    match outcome {
        Ok(replied) => match &replied.answer {
            Answer::Failed(error) => Err(error.clone()),
            _ => Ok(()),
        },
        Err(lost) => Err(Error { code: Code::DraftLost, ..lost }),
    }
}

impl Open {
    pub(crate) fn with_draft<T>(&self, work: impl FnOnce(&mut Draft) -> T) -> Option<T> {
        match &self.kind {
            Opened::Draft { draft, .. } => Some(work(&mut lock(draft))),
            _ => None,
        }
    }
}

impl RemoteFiles {
    /// Writes to a draft.
    pub(crate) fn write(&self, handle: Handle, offset: u64, content: &[u8]) -> Result<Answer, Error> {
        if content.len() > MAX_IO_BYTES as usize {
            return Err(violation("write", format_args!("{} bytes", content.len())));
        }
        let open = self.find(handle)?;
        let Opened::Draft { draft, behind } = &open.kind else { return Err(unknown(handle)) };
        lock(draft).is_dirty = true;
        behind.write(self, &open, offset, content)?;
        Ok(Answer::Done)
    }

    /// The session and handle for an operation on a draft.
    fn draft_conn(&self, open: &Open) -> Result<At, Error> {
        self.with_conn(true, |epoch, conn| {
            let at = |handle| At { epoch, conn: conn.clone(), handle };
            Ok(self.far_handle(open, epoch, conn)?.map(at))
        })
    }

    /// Truncates or extends a draft, after all its writes.
    pub(crate) fn set_len(&self, handle: Handle, bytes: u64) -> Result<Answer, Error> {
        let open = self.find(handle)?;
        let Opened::Draft { behind, .. } = &open.kind else { return Err(unknown(handle)) };
        let op = |handle| Op::SetLen { handle, bytes };
        let (done, _) = self.after_writes(&open, behind, op, || Ok(None))?;
        behind.settle(self, &open)?;
        open.with_draft(|draft| (draft.is_dirty, draft.is_there) = (true, true));
        Ok(done)
    }

    /// Publishes a draft, after all its writes: in one round trip, for the site waits for the writes that arrive on
    /// other streams. The site does not publish a draft of which a write failed.
    pub(crate) fn publish(&self, handle: Handle, mtime: Option<FileTime>) -> Result<Answer, Error> {
        let open = self.find(handle)?;
        let Opened::Draft { behind, .. } = &open.kind else { return Err(unknown(handle)) };
        // The condition and the attributes go with each attempt: a draft that was resumed in another session has lost them.
        let plain = |handle| Op::Publish { handle, mtime };
        let op = |handle| {
            open.with_draft(|draft| draft.publication(handle, mtime)).unwrap_or_else(|| plain(handle))
        };
        let (answer, last) = self.after_writes(&open, behind, op, || self.was_published(&open, mtime))?;
        behind.forget(self, last);
        if let Answer::Item(item) = answer.plain() {
            open.with_draft(|draft| draft.on_published(item));
        }
        Ok(answer)
    }

    /// Performs an idempotent operation after all writes; also returns the number of the last extent. If the session
    /// is lost before the answer, `was_done` checks whether the operation took effect.
    fn after_writes(
        &self,
        open: &Open,
        behind: &WriteBehind,
        op: impl Fn(Handle) -> Op,
        was_done: impl Fn() -> Result<Option<Answer>, Error>,
    ) -> Result<(Answer, u64), Error> {
        loop {
            let (pending, last) = behind.send_with(self, open, &op)?;
            match pending.take() {
                Ok(replied) => match told(replied.answer) {
                    Ok(answer) => return Ok((answer, last)),
                    Err(error) => {
                        // A failed extent is the cause.
                        behind.settle(self, open)?;
                        return Err(error);
                    }
                },
                Err(lost) if is_passing(&lost) => {}
                Err(lost) => return Err(lost),
            }
            if let Some(answer) = was_done()? {
                return Ok((answer, last));
            }
        }
    }

    /// The version that a draft was published as, if it was: another version than before, with the requested mtime.
    fn was_published(&self, open: &Open, mtime: Option<FileTime>) -> Result<Option<Answer>, Error> {
        if open.with_draft(|draft| draft.part.is_some()).unwrap_or_default() {
            return Ok(None);
        }
        let path = lock(&open.path).clone();
        let found = match self.operate(Op::Look(path), &[]).map(|answer| answer.parted().0) {
            Ok(Answer::Item(found)) => found,
            Ok(_) => return Ok(None),
            Err(error) if error.code == Code::PathNotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_new = open.with_draft(|draft| draft.version != Version::of(&found)).unwrap_or_default();
        Ok((is_new && mtime == Some(found.entry.meta.mtime)).then_some(Answer::Item(found)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::entry::{Entry, FIRST_NODE, Meta, Stamp};
    use renkei_core::wire::uploads::UploadOp;

    /// A file of a followed volume after a change at its site.
    fn item(change: u64) -> Item {
        let mtime = FileTime { secs: 1_700_000_000, nanos: 0 };
        let stamp = Stamp::of_version(FIRST_NODE, 7, mtime, (1, change));
        let meta = Meta { mtime, ..Meta::default() };
        let entry = Entry { path: RelPath::root(), meta, kind: EntryKind::File { stamp, sparse: false } };
        Item { entry, ino: stamp.ino, links: 1, blocks: 8, ctime: stamp.ctime }
    }

    #[test]
    fn a_new_version_with_the_same_inode_is_detected() {
        assert_eq!(Version::of(&item(1)), Version::of(&item(1)));
        assert_ne!(Version::of(&item(1)), Version::of(&item(2)));
    }

    #[test]
    fn a_draft_without_acknowledged_data_is_restarted() {
        let mut draft = Draft::new(Start::Content, 0, Version::of(&item(1)));
        draft.is_dirty = true;
        assert!(matches!(draft.again(&RelPath::root(), 7), Some(Op::Draft { start: Start::Content, .. })));
        assert!(draft.is_anew);
        draft.is_there = true;
        assert!(matches!(draft.again(&RelPath::root(), 7), Some(Op::Resume { handle: 7, .. })));
        assert!(!draft.is_anew);
    }

    #[test]
    fn a_part_is_begun_anew_and_never_becomes_a_draft_of_the_file() {
        let op = Op::Upload { path: RelPath::root(), op: UploadOp::Part { upload: 7, number: 1 } };
        let mut part = Draft::of_part(op.clone(), Version::of(&item(1)));
        part.is_dirty = true;
        assert_eq!(part.again(&RelPath::root(), 7), Some(op));
        assert!(part.is_anew && part.left(&RelPath::root(), 7).is_none());
        part.is_there = true;
        assert_eq!(part.again(&RelPath::root(), 7), None);
    }
}
