//! The sending end of a simulated session: walk, units and messages, as the daemon's sending driver handles them.

use super::content::SlotDigests;
use super::disk::{Body, Disk, Ino};
use super::net::CONTROL;
use renkei_core::entry::{Entry, EntryKind, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::mover::digest::whole;
use renkei_core::mover::plan::{Item, Origin, Unit};
use renkei_core::mover::sender::Sender;
use renkei_core::path::RelPath;
use renkei_core::wire::data::{EntryHead, EntryId, ExtentEnd, ExtentHead};
use renkei_core::wire::frame::FrameKind;
use renkei_core::wire::message::{Control, EntryFailure, SendDone, Summary};
use renkei_core::wire::{decode, encode, violation};
use std::collections::BTreeMap;

/// Entries found by the walk per event.
const WALK_STEP: usize = 64;

/// A frame in flight: stream, kind and payload.
pub type Frame = (usize, FrameKind, Vec<u8>);

/// The extents of large files that a session sent, with their paths.
pub type SentSlots = Vec<(RelPath, u32)>;

/// The sending end.
pub struct SendEnd {
    sender: Sender,
    pending_dirs: Vec<RelPath>,
    pending_names: Vec<RelPath>,
    first_names: BTreeMap<Ino, RelPath>,
    digests: Option<SlotDigests>,
    memo: SlotDigests,
    walked: bool,
    idle: Vec<bool>,
    ended: usize,
    sent_slots: SentSlots,
}

impl SendEnd {
    /// A sender of everything below the root of its disk, including the root.
    pub fn new(offers: bool, with_digests: bool, streams: usize, memo: SlotDigests) -> Self {
        SendEnd {
            sender: Sender::new(offers, false),
            pending_dirs: Vec::new(),
            pending_names: vec![RelPath::root()],
            first_names: BTreeMap::new(),
            digests: with_digests.then(|| memo.clone()),
            memo,
            walked: false,
            idle: vec![false; streams + 1],
            ended: 0,
            sent_slots: Vec::new(),
        }
    }

    /// The extents sent so far.
    pub fn sent_slots(&self) -> &SentSlots {
        &self.sent_slots
    }

    /// Whether the walk should continue now.
    pub fn walks(&self) -> bool {
        !self.walked && self.sender.wants_entries()
    }

    /// Wakes the idle streams, for which there may be work now.
    pub fn wake(&mut self) -> Vec<usize> {
        let idle = (1..self.idle.len()).filter(|stream| self.idle[*stream]).collect();
        self.idle.fill(false);
        idle
    }

    /// Continues the walk.
    pub fn walk(&mut self, disk: &Disk) -> Vec<Frame> {
        let mut frames = Vec::new();
        let mut found = 0;
        while found < WALK_STEP && self.walks() {
            match self.pending_names.pop() {
                Some(path) => {
                    let special = self.find(disk, path);
                    frames.extend(special.map(|failure| control(&Control::Failed(failure))));
                    found += 1;
                }
                None => self.next_dir(disk),
            }
            self.push_offers(&mut frames);
        }
        frames
    }

    fn next_dir(&mut self, disk: &Disk) {
        let Some(dir) = self.pending_dirs.pop() else {
            self.walked = true;
            return self.sender.on_walk_done();
        };
        match disk.descend(&dir).and_then(|ino| disk.list(ino)) {
            Ok(names) => {
                let child =
                    |(name, _): (Vec<u8>, Ino)| dir.child(&name).expect("names on the disk are legal");
                self.pending_names = names.into_iter().rev().map(child).collect();
            }
            Err(error) => self.sender.on_walk_failed(dir, error),
        }
    }

    fn find(&mut self, disk: &Disk, path: RelPath) -> Option<EntryFailure> {
        match self.entry(disk, &path) {
            Ok(entry) => {
                if entry.kind == EntryKind::Dir {
                    self.pending_dirs.push(path.clone());
                }
                let digest = self.digest(disk, &entry);
                self.sender.handle_entry(Origin { source: 0, path }, entry, digest)
            }
            Err(error) => {
                self.sender.on_walk_failed(path, vanished(error));
                None
            }
        }
    }

    fn entry(&mut self, disk: &Disk, path: &RelPath) -> Result<Entry, Error> {
        if path.is_root() {
            return Ok(Entry { path: path.clone(), meta: disk.root_meta(), kind: EntryKind::Dir });
        }
        let (dir, name) = disk.place(path)?;
        let mut found = disk.entry(dir, name)?;
        found.entry.path = path.clone();
        let several = matches!(found.entry.kind, EntryKind::File { .. }) && disk.has_more_names(found.ino);
        if several {
            match self.first_names.get(&found.ino) {
                Some(first) => found.entry.kind = EntryKind::HardLink { to: first.clone() },
                None => drop(self.first_names.insert(found.ino, path.clone())),
            }
        }
        Ok(found.entry)
    }

    fn digest(&self, disk: &Disk, entry: &Entry) -> Option<[u8; 32]> {
        let memo = self.digests.as_ref()?;
        let EntryKind::File { stamp, .. } = entry.kind else { return None };
        Some(memo.whole(disk.content(stamp.ino).ok()?))
    }

    fn push_offers(&mut self, frames: &mut Vec<Frame>) {
        while let Some(items) = self.sender.poll_offer() {
            frames.push(control(&Control::Offer(items)));
        }
    }

    /// The next frames of a free stream; `None` if it must wait until it is woken.
    pub fn next_unit(&mut self, stream: usize, disk: &mut Disk) -> Option<Vec<Frame>> {
        match self.sender.poll_unit() {
            Some(Unit::Pack(items)) => Some(self.pack(stream, disk, &items)),
            Some(Unit::Extent { item, slot }) => Some(self.extent(stream, disk, &item, slot)),
            None if self.sender.is_handed_out() => Some(self.end_stream(stream)),
            None => {
                self.idle[stream] = true;
                None
            }
        }
    }

    fn end_stream(&mut self, stream: usize) -> Vec<Frame> {
        self.ended += 1;
        let mut frames = vec![(stream, FrameKind::StreamEnd, Vec::new())];
        if self.ended == self.idle.len() - 1 {
            let complete = self.sender.walk_complete();
            frames.push(control(&Control::SendDone(SendDone { complete })));
        }
        frames
    }

    fn pack(&mut self, stream: usize, disk: &mut Disk, items: &[Item]) -> Vec<Frame> {
        let mut frames = Vec::new();
        for item in items {
            match whole_entry(disk, item) {
                Ok((payload, bytes)) => {
                    self.sender.on_bytes_moved(bytes);
                    frames.push((stream, FrameKind::Entry, payload));
                }
                Err(error) => frames.extend(self.source_failed(item.id, error)),
            }
        }
        frames
    }

    fn source_failed(&mut self, id: EntryId, error: Error) -> Vec<Frame> {
        let failure = self.sender.on_source_failed(id, vanished(error));
        failure.map(|failure| control(&Control::Failed(failure))).into_iter().collect()
    }

    fn extent(&mut self, stream: usize, disk: &mut Disk, item: &Item, slot: u32) -> Vec<Frame> {
        let head = ExtentHead { id: item.id, entry: item.entry.clone(), slot };
        let mut frames = vec![(stream, FrameKind::Extent, encode(&head))];
        self.sent_slots.push((item.entry.path.clone(), slot));
        let end = match self.extent_bytes(stream, disk, item, &head, &mut frames) {
            Ok(end) => end,
            Err(error) => {
                frames.extend(self.source_failed(item.id, error.clone()));
                ExtentEnd::Failed(error)
            }
        };
        frames.push((stream, FrameKind::ExtentEnd, encode(&end)));
        frames
    }

    fn extent_bytes(
        &mut self,
        stream: usize,
        disk: &mut Disk,
        item: &Item,
        head: &ExtentHead,
        frames: &mut Vec<Frame>,
    ) -> Result<ExtentEnd, Error> {
        let EntryKind::File { stamp, .. } = item.entry.kind else { return Err(changed(item)) };
        let ino = open(disk, item)?;
        check_stamp(disk, ino, item, stamp)?;
        let (mut pieces, mut at) = (Vec::new(), head.range().start);
        while let Some(data) = disk.content(ino)?.next_data(at).filter(|data| data.start < head.range().end) {
            let data = data.start..data.end.min(head.range().end);
            at = data.end;
            let bytes = disk.read_at(ino, data.clone())?;
            if bytes.len() as u64 != data.end - data.start {
                return Err(changed(item));
            }
            let mut payload = data.start.to_be_bytes().to_vec();
            payload.extend_from_slice(&bytes);
            frames.push((stream, FrameKind::Raw, payload));
            pieces.push((data.start, bytes));
        }
        check_stamp(disk, ino, item, stamp)?;
        self.sender.on_bytes_moved(pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum());
        if pieces.is_empty() {
            return Ok(ExtentEnd::Hole);
        }
        let digest = self.memo.digest(head.slot, stamp.size, &pieces);
        Ok(ExtentEnd::Whole(digest.expect("pieces of data ascend within the slot")))
    }

    /// Handles a message; returns the frames to send and, at the end, the receiver's count of removed entries.
    ///
    /// # Errors
    /// The error that ends the session.
    pub fn on_control(&mut self, payload: &[u8]) -> Result<(Vec<Frame>, Option<u64>), Error> {
        let mut frames = Vec::new();
        match decode("control", payload)? {
            Control::Verdicts(verdicts) => {
                self.sender.handle_verdicts(verdicts)?;
                self.push_offers(&mut frames);
            }
            Control::Acked(ranges) => self.sender.handle_acked(&ranges)?,
            Control::Failed(failure) => self.sender.handle_failed(failure),
            Control::Removed(_) => {}
            Control::ReceiveDone(done) => return Ok((frames, Some(done.deleted))),
            Control::Abort(error) => return Err(error),
            other => return Err(violation("sender", format_args!("{other:?}"))),
        }
        Ok((frames, None))
    }

    /// Returns the result.
    pub fn finish(self, deleted: u64) -> Summary {
        self.sender.finish(deleted)
    }
}

/// A control message as a frame.
pub fn control(message: &Control) -> Frame {
    (CONTROL, FrameKind::Control, encode(message))
}

fn whole_entry(disk: &mut Disk, item: &Item) -> Result<(Vec<u8>, u64), Error> {
    let mut entry = item.entry.clone();
    let (mut digest, mut content) = ([0; 32], Vec::new());
    if let EntryKind::File { stamp, .. } = &mut entry.kind {
        (*stamp, content) = read_small(disk, item, stamp.size)?;
        entry.meta.mtime = stamp.mtime;
        digest = whole(&content);
    }
    let mut payload = Vec::new();
    EntryHead { id: item.id, entry, digest }.write(&mut payload, &content);
    Ok((payload, content.len() as u64))
}

fn read_small(disk: &mut Disk, item: &Item, size: u64) -> Result<(Stamp, Vec<u8>), Error> {
    let ino = open(disk, item)?;
    let before = disk.stamp(ino)?;
    if before.size != size {
        return Err(changed(item));
    }
    // Two reads, so that a modification may fall between them.
    let mut content = disk.read_at(ino, 0..size / 2)?;
    content.extend(disk.read_at(ino, size / 2..size)?);
    if content.len() as u64 != size || disk.stamp(ino)? != before {
        return Err(changed(item));
    }
    Ok((before, content))
}

fn open(disk: &Disk, item: &Item) -> Result<Ino, Error> {
    let (dir, name) = disk.place(&item.origin.path)?;
    let ino = disk.entry(dir, name)?.ino;
    match disk.live(ino).map(|node| &node.body) {
        Some(Body::File(_)) => Ok(ino),
        _ => Err(changed(item)),
    }
}

fn check_stamp(disk: &Disk, ino: Ino, item: &Item, stamp: Stamp) -> Result<(), Error> {
    if disk.stamp(ino)? == stamp { Ok(()) } else { Err(changed(item)) }
}

fn changed(item: &Item) -> Error {
    Error::new(Code::SourceChanged, "read", &item.origin.path, "simulated")
}

fn vanished(error: Error) -> Error {
    if error.code == Code::PathNotFound { Error { code: Code::SourceVanished, ..error } } else { error }
}
