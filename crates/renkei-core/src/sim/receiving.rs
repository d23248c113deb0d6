//! The receiving end of a simulated session: processes frames, offers, commits and the journal as the daemon's
//! receiving driver does.

use super::content::SlotDigests;
use super::disk::{Disk, Ino, ROOT};
use super::journal::Journal;
use crate::entry::{Entry, EntryKind, Meta, Stamp};
use crate::error::{Code, Error};
use crate::mover::digest::slot_count;
use crate::mover::receiver::{Arrival, Done, Left, PendingDir, PendingLink, Receiver, Start, slot_ranges};
use crate::path::RelPath;
use crate::wire::data::{EntryHead, EntryId, ExtentEnd, ExtentHead, parse_raw};
use crate::wire::frame::FrameKind;
use crate::wire::message::{Control, EntryFailure, Existing, OfferItem, Verdict};
use crate::wire::{decode, violation};
use std::collections::BTreeMap;
use std::time::Duration;

/// The key of the only job.
pub const JOB: u64 = 1;
/// Temporary mode of a directory until its own metadata is set at the end.
const MODE_MEANWHILE: u32 = 0o700;

#[derive(Clone)]
struct OpenFile {
    dir: Ino,
    temp: Vec<u8>,
    ino: Ino,
}

struct Extent {
    head: ExtentHead,
    pieces: Vec<(u64, Vec<u8>)>,
    file: Option<OpenFile>,
}

/// The receiving end.
pub struct ReceiveEnd {
    pub(super) receiver: Receiver,
    journal: Journal,
    checks_written: bool,
    memo: SlotDigests,
    open: BTreeMap<EntryId, Result<OpenFile, Error>>,
    extents: Vec<Option<Extent>>,
    ended: Vec<bool>,
    source_complete: Option<bool>,
    pub(super) syncing: Option<(Vec<Done>, Vec<Done>)>,
    pub(super) deleted: u64,
    pub(super) out: Vec<Control>,
    pub(super) acknowledged: Vec<RelPath>,
    /// Whether a file that this session did not sync was reported as present (`Verdict::Have`).
    pub(super) has_unsynced: bool,
}

impl ReceiveEnd {
    /// A receiver into the root of its disk; `checks_written` if the machine was rebooted since.
    pub fn new(
        receiver: Receiver,
        journal: Journal,
        streams: usize,
        checks_written: bool,
        memo: SlotDigests,
    ) -> Self {
        ReceiveEnd {
            receiver,
            journal,
            checks_written,
            memo,
            open: BTreeMap::new(),
            extents: (0..=streams).map(|_| None).collect(),
            ended: vec![false; streams],
            source_complete: None,
            syncing: None,
            deleted: 0,
            out: Vec::new(),
            acknowledged: Vec::new(),
            has_unsynced: false,
        }
    }

    /// Takes the messages for the sender.
    pub fn take_messages(&mut self) -> Vec<Control> {
        std::mem::take(&mut self.out)
    }

    /// Takes the paths acknowledged since the last call.
    pub fn take_acknowledged(&mut self) -> Vec<RelPath> {
        std::mem::take(&mut self.acknowledged)
    }

    /// Writes the journal records produced since the last call.
    ///
    /// # Errors
    /// The errors of the disk.
    pub fn write_journal(&mut self) -> Result<(), Error> {
        let records = self.receiver.take_records();
        self.journal.append(&records)
    }

    // ---- data streams ------------------------------------------------------------------------------------------

    /// Handles a frame of a data stream (numbered from 1); frames after a stream's end are ignored.
    ///
    /// # Errors
    /// The error that ends the session.
    pub fn on_frame(
        &mut self,
        now: Duration,
        disk: &mut Disk,
        stream: usize,
        kind: FrameKind,
        payload: &[u8],
    ) -> Result<(), Error> {
        match kind {
            _ if self.ended[stream - 1] => Ok(()),
            FrameKind::Entry if self.extents[stream].is_none() => self.on_entry(now, disk, payload),
            FrameKind::Extent if self.extents[stream].is_none() => self.on_extent(disk, stream, payload),
            FrameKind::Raw => self.on_raw(disk, stream, payload),
            FrameKind::ExtentEnd => self.on_extent_end(now, disk, stream, payload),
            FrameKind::StreamEnd if self.extents[stream].is_none() => {
                self.ended[stream - 1] = true;
                self.check_ended();
                Ok(())
            }
            kind => Err(violation("data stream", format_args!("unexpected {kind:?}"))),
        }
    }

    fn on_entry(&mut self, now: Duration, disk: &mut Disk, payload: &[u8]) -> Result<(), Error> {
        let (head, content) = EntryHead::read(payload)?;
        let placed = if head.content_matches(content) {
            self.place(now, disk, &head, content)
        } else {
            Err(Error::new(Code::DigestMismatch, "receive", &head.entry.path, "BLAKE3 differs"))
        };
        placed.or_else(|error| self.on_entry_failed(disk, head.id, &head.entry.path, error))
    }

    fn place(
        &mut self,
        now: Duration,
        disk: &mut Disk,
        head: &EntryHead,
        content: &[u8],
    ) -> Result<(), Error> {
        let EntryHead { id, entry, .. } = head;
        let (id, path) = (*id, entry.path.clone());
        match &entry.kind {
            EntryKind::Dir => {
                make_dir(disk, &path)?;
                self.receiver.defer_dir(PendingDir { id, path, meta: entry.meta.clone() })
            }
            EntryKind::HardLink { to } => self.receiver.defer_link(PendingLink { id, path, to: to.clone() }),
            EntryKind::Symlink { target } => {
                self.place_symlink(disk, entry, target)?;
                self.receiver.on_placed(now, Done { id, path, copy_of: None });
                Ok(())
            }
            EntryKind::File { stamp, .. } => {
                let ino = self.write_small(disk, entry, content)?;
                self.receiver.on_written(now, Done { id, path, copy_of: Some((*stamp, ino)) });
                Ok(())
            }
            EntryKind::Special => Err(violation("entry", "a special file is never sent")),
        }
    }

    fn write_small(&mut self, disk: &mut Disk, entry: &Entry, content: &[u8]) -> Result<Ino, Error> {
        let temp = temp_name(JOB, &entry.path);
        let (dir, _) = make_place(disk, &entry.path)?;
        self.receiver.claim(&entry.path)?;
        let ino = disk.create_temp(dir, &temp, false)?;
        let written = match content {
            [] => Ok(()),
            content => disk.write_at(ino, 0, content),
        };
        let finished = written.and_then(|()| disk.set_meta(ino, &entry.meta));
        finished.map(|()| ino).inspect_err(|_| drop(disk.remove_file(dir, &temp)))
    }

    fn place_symlink(&mut self, disk: &mut Disk, entry: &Entry, target: &[u8]) -> Result<(), Error> {
        let temp = temp_name(JOB, &entry.path);
        let (dir, name) = make_place(disk, &entry.path)?;
        self.receiver.claim(&entry.path)?;
        let made = match disk.symlink(dir, &temp, target) {
            Err(error) if error.code == Code::PathExists => {
                disk.remove_file(dir, &temp)?;
                disk.symlink(dir, &temp, target)
            }
            made => made,
        };
        let ino = made?;
        let meta = Meta { xattrs: Vec::new(), ..entry.meta.clone() };
        let named = disk.set_meta(ino, &meta).and_then(|()| disk.rename(dir, &temp, name));
        named.inspect_err(|_| drop(disk.remove_file(dir, &temp)))?;
        self.receiver.release(&entry.path);
        Ok(())
    }

    fn on_extent(&mut self, disk: &mut Disk, stream: usize, payload: &[u8]) -> Result<(), Error> {
        let head = ExtentHead::read(payload)?;
        let start = match self.receiver.start_extent(head.id, &head.entry, head.slot) {
            Err(error) if error.code == Code::NameTaken => {
                self.on_entry_failed(disk, head.id, &head.entry.path, error)?;
                Start::Ignore
            }
            start => start?,
        };
        let mut file = None;
        if let Start::Write { keep_existing } = start {
            if !keep_existing {
                // The journal must drop the extents of an older temporary file before that file is truncated.
                self.write_journal()?;
            }
            match self.open_file(disk, &head, keep_existing) {
                Ok(open) => file = Some(open),
                Err(error) => self.on_entry_failed(disk, head.id, &head.entry.path, error)?,
            }
        }
        self.extents[stream] = Some(Extent { head, pieces: Vec::new(), file });
        Ok(())
    }

    fn open_file(&mut self, disk: &mut Disk, head: &ExtentHead, keep: bool) -> Result<OpenFile, Error> {
        if let Some(open) = self.open.get(&head.id) {
            return open.clone();
        }
        let opened = self.create(disk, &head.entry, keep);
        self.open.insert(head.id, opened.clone());
        opened
    }

    fn create(&self, disk: &mut Disk, entry: &Entry, keep_existing: bool) -> Result<OpenFile, Error> {
        let temp = temp_name(JOB, &entry.path);
        let (dir, _) = make_place(disk, &entry.path)?;
        let ino = disk.create_temp(dir, &temp, keep_existing)?;
        disk.set_len(ino, entry.size())?;
        Ok(OpenFile { dir, temp, ino })
    }

    fn on_raw(&mut self, disk: &mut Disk, stream: usize, payload: &[u8]) -> Result<(), Error> {
        let extent = self.extents[stream].as_mut();
        let extent = extent.ok_or_else(|| violation("data stream", "bytes outside an extent"))?;
        let (offset, bytes) = parse_raw(payload)?;
        let Some(file) = &extent.file else { return Ok(()) };
        let range = extent.head.range();
        let after = extent.pieces.last().map_or(range.start, |(at, bytes)| at + bytes.len() as u64);
        let end = offset.checked_add(bytes.len() as u64);
        if offset < after || end.is_none_or(|end| end > range.end) {
            return Err(violation("data stream", "bytes out of place"));
        }
        extent.pieces.push((offset, bytes.to_vec()));
        let Err(error) = disk.write_at(file.ino, offset, bytes) else { return Ok(()) };
        extent.file = None;
        let (id, path) = (extent.head.id, extent.head.entry.path.clone());
        self.on_entry_failed(disk, id, &path, error)
    }

    fn on_extent_end(
        &mut self,
        now: Duration,
        disk: &mut Disk,
        stream: usize,
        payload: &[u8],
    ) -> Result<(), Error> {
        let extent = self.extents[stream].take();
        let Extent { head, pieces, file } =
            extent.ok_or_else(|| violation("data stream", "the end of no extent"))?;
        let end: ExtentEnd = decode("extent end", payload)?;
        let Some(file) = file else { return Ok(()) };
        let digest = self.memo.digest(head.slot, head.entry.size(), &pieces);
        let digest = digest.ok_or_else(|| violation("data stream", "bytes out of place"))?;
        match end {
            ExtentEnd::Failed(_) => self.give_up(disk, head.id),
            ExtentEnd::Whole(sent) if sent != digest => {
                let error = Error::new(Code::DigestMismatch, "receive", &head.entry.path, "BLAKE3 differs");
                self.on_entry_failed(disk, head.id, &head.entry.path, error)?;
            }
            ExtentEnd::Whole(_) | ExtentEnd::Hole => {
                self.on_extent_written(now, disk, &head, digest, file.ino)?;
            }
        }
        Ok(())
    }

    fn on_extent_written(
        &mut self,
        now: Duration,
        disk: &mut Disk,
        head: &ExtentHead,
        digest: [u8; 32],
        ino: Ino,
    ) -> Result<(), Error> {
        if self.receiver.on_extent_written(head.id, head.slot, digest, ino) != Arrival::Complete {
            return Ok(());
        }
        if let Err(error) = disk.set_meta(ino, &head.entry.meta) {
            return self.on_entry_failed(disk, head.id, &head.entry.path, error);
        }
        self.on_whole(now, head.id, &head.entry, ino);
        Ok(())
    }

    fn on_whole(&mut self, now: Duration, id: EntryId, entry: &Entry, ino: Ino) {
        let EntryKind::File { stamp, .. } = entry.kind else { return };
        self.open.remove(&id);
        self.receiver.on_written(now, Done { id, path: entry.path.clone(), copy_of: Some((stamp, ino)) });
    }

    fn give_up(&mut self, disk: &mut Disk, id: EntryId) {
        let remove = self.receiver.on_given_up(id);
        if let Some(Ok(file)) = self.open.remove(&id).filter(|_| remove) {
            // A file that cannot be removed is removed by the next run.
            let _ = disk.remove_file(file.dir, &file.temp);
        }
    }

    pub(super) fn on_entry_failed(
        &mut self,
        disk: &mut Disk,
        id: EntryId,
        path: &RelPath,
        error: Error,
    ) -> Result<(), Error> {
        use Code::*;
        if matches!(
            error.code,
            NoSpace | QuotaExceeded | ReadOnlyStorage | StorageMissing | ProtocolViolation
        ) {
            return Err(error);
        }
        self.give_up(disk, id);
        self.receiver.on_entry_failed(path, &error);
        let failure = EntryFailure { id: Some(id), path: path.clone(), kept: false, error };
        self.out.push(Control::Failed(failure));
        Ok(())
    }

    // ---- control stream ----------------------------------------------------------------------------------------

    /// Handles a message of the sender; true at the end of the session.
    ///
    /// # Errors
    /// The error that ends the session.
    pub fn on_control(&mut self, now: Duration, disk: &mut Disk, payload: &[u8]) -> Result<bool, Error> {
        match decode("control", payload)? {
            Control::Offer(items) => {
                let verdicts = items.iter().map(|item| (item.id, self.judge(now, disk, item))).collect();
                self.out.push(Control::Verdicts(verdicts));
            }
            Control::SendDone(done) => {
                self.source_complete = Some(done.complete);
                self.check_ended();
            }
            Control::Failed(failure) => self.receiver.on_failed(&failure.path),
            Control::Finished(_) => return Ok(true),
            Control::Abort(error) => return Err(error),
            other => return Err(violation("receiver", format_args!("{other:?}"))),
        }
        Ok(false)
    }

    fn check_ended(&mut self) {
        if let Some(complete) = self.source_complete
            && self.ended.iter().all(|ended| *ended)
        {
            self.receiver.on_streams_ended(complete);
        }
    }

    fn judge(&mut self, now: Duration, disk: &mut Disk, item: &OfferItem) -> Verdict {
        self.try_judge(now, disk, item).unwrap_or_else(|error| match error.code {
            Code::PathNotFound => Verdict::Want,
            _ => {
                self.receiver.on_failed(&item.entry.path);
                Verdict::Refuse(error)
            }
        })
    }

    fn try_judge(&mut self, now: Duration, disk: &mut Disk, item: &OfferItem) -> Result<Verdict, Error> {
        let EntryKind::File { stamp, .. } = item.entry.kind else {
            return Err(violation("offer", "only files are offered"));
        };
        self.receiver.on_named(&item.entry.path);
        match self.receiver.left(item) {
            Left::Finished { ino } if is_copy(disk, &item.entry, stamp, Some(ino))? => {
                return Ok(Verdict::Have);
            }
            Left::Partial { temp_ino, slots, .. } => return self.resume(now, disk, item, temp_ino, slots),
            _ => {}
        }
        let same = match self.receiver.options().existing {
            Existing::Replace => false,
            Existing::SameStamp => is_copy(disk, &item.entry, stamp, None)?,
            Existing::SameContent => self.has_content(disk, item)?,
        };
        if !same {
            return Ok(Verdict::Want);
        }
        refresh_meta(disk, &item.entry)?;
        self.has_unsynced = true;
        Ok(Verdict::Have)
    }

    fn has_content(&self, disk: &Disk, item: &OfferItem) -> Result<bool, Error> {
        let (dir, name) = disk.place(&item.entry.path)?;
        let found = disk.entry(dir, name)?;
        if found.entry.size() != item.entry.size() || !matches!(found.entry.kind, EntryKind::File { .. }) {
            return Ok(false);
        }
        Ok(item.digest == Some(self.memo.whole(disk.content(found.ino)?)))
    }

    fn resume(
        &mut self,
        now: Duration,
        disk: &mut Disk,
        item: &OfferItem,
        temp_ino: Ino,
        mut slots: BTreeMap<u32, [u8; 32]>,
    ) -> Result<Verdict, Error> {
        let (temp, size) = (temp_name(JOB, &item.entry.path), item.entry.size());
        let (dir, name) = disk.place(&item.entry.path)?;
        let is_left = |name: &[u8]| {
            disk.entry(dir, name).is_ok_and(|found| found.ino == temp_ino && found.entry.size() == size)
        };
        let (is_temp, is_renamed) = (is_left(&temp), is_left(name));
        if !is_temp && !is_renamed {
            return Ok(Verdict::Want);
        }
        if self.checks_written {
            let content = disk.content(temp_ino)?;
            slots.retain(|slot, digest| self.memo.of(content, *slot, size) == *digest);
        }
        if slots.is_empty() {
            return Ok(Verdict::Want);
        }
        if !is_temp {
            return Ok(self.resume_renamed(now, item, temp_ino, slots));
        }
        if disk.create_temp(dir, &temp, true)? != temp_ino {
            return Ok(Verdict::Want);
        }
        if !self.receiver.on_resumed(item.id, &item.entry, slots.clone()) {
            return Ok(Verdict::Want);
        }
        if self.receiver.is_whole(item.id) {
            disk.set_meta(temp_ino, &item.entry.meta)?;
            self.on_whole(now, item.id, &item.entry, temp_ino);
        } else {
            self.open.insert(item.id, Ok(OpenFile { dir, temp, ino: temp_ino }));
        }
        Ok(Verdict::Partial(slot_ranges(slots.into_keys())))
    }

    /// The earlier run had renamed the file to its final name, and the rename may not be durable.
    fn resume_renamed(
        &mut self,
        now: Duration,
        item: &OfferItem,
        ino: Ino,
        slots: BTreeMap<u32, [u8; 32]>,
    ) -> Verdict {
        let EntryKind::File { stamp, .. } = item.entry.kind else { return Verdict::Want };
        if slots.len() as u32 != slot_count(stamp.size) {
            return Verdict::Want;
        }
        let done = Done { id: item.id, path: item.entry.path.clone(), copy_of: Some((stamp, ino)) };
        self.receiver.on_placed(now, done);
        Verdict::Partial(slot_ranges(slots.into_keys()))
    }
}

/// Bytes of a temporary name before the path's hash: `.rk~`, 16 digits of the job, `-`.
pub(super) const TEMP_PREFIX_BYTES: usize = 21;

/// The temporary name of `path` in a job.
pub fn temp_name(job: u64, path: &RelPath) -> Vec<u8> {
    let hash = blake3::hash(path.as_bytes()).to_hex();
    format!(".rk~{job:016x}-{}", &hash.as_str()[..16]).into_bytes()
}

/// Whether a name is a temporary name.
pub fn is_temp_name(name: &[u8]) -> bool {
    name.starts_with(b".rk~")
}

pub(super) fn make_place<'p>(disk: &mut Disk, path: &'p RelPath) -> Result<(Ino, &'p [u8]), Error> {
    let Some((parent, name)) = path.split() else {
        return Err(Error::new(Code::IsADirectory, "receive", path, "the destination itself"));
    };
    Ok((make_dir(disk, &RelPath::parse(parent)?)?, name))
}

fn make_dir(disk: &mut Disk, path: &RelPath) -> Result<Ino, Error> {
    let mut dir = ROOT;
    let mut at = RelPath::root();
    for name in path.components() {
        at = at.child(name)?;
        unlock(disk, dir)?;
        dir = match disk.descend(&at) {
            Err(error) if error.code == Code::PathNotFound => disk.mkdir(dir, name, MODE_MEANWHILE)?,
            found => found?,
        };
    }
    unlock(disk, dir)?;
    Ok(dir)
}

/// A directory that got its final mode in an earlier run may not be writable; its mode is set again at the end.
fn unlock(disk: &mut Disk, dir: Ino) -> Result<(), Error> {
    let Some(node) = disk.live(dir).filter(|node| node.meta.mode & 0o700 != 0o700) else { return Ok(()) };
    let meta = Meta { mode: node.meta.mode | 0o700, ..node.meta.clone() };
    disk.set_meta(dir, &meta)
}

fn is_copy(disk: &Disk, entry: &Entry, source: Stamp, ino: Option<Ino>) -> Result<bool, Error> {
    let (dir, name) = disk.place(&entry.path)?;
    let found = disk.entry(dir, name)?;
    let same = match found.entry.kind {
        EntryKind::File { stamp, .. } => (stamp.size, stamp.mtime) == (source.size, source.mtime),
        _ => false,
    };
    Ok(same && ino.is_none_or(|ino| ino == found.ino))
}

fn refresh_meta(disk: &mut Disk, entry: &Entry) -> Result<(), Error> {
    let (dir, name) = disk.place(&entry.path)?;
    let found = disk.entry(dir, name)?;
    if found.entry.meta == entry.meta { Ok(()) } else { disk.set_meta(found.ino, &entry.meta) }
}
