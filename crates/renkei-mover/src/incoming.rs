//! One receiving data stream: reads frames from the connection and writes files under temporary names.

use super::dest_dirs::DestDirs;
use super::receive::{OpenFile, Session};
use super::write_block::WriteBlock;
use renkei_core::entry::{Entry, EntryKind, Meta, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::mover::digest::SlotHasher;
use renkei_core::mover::receiver::{Done, PendingDir, PendingLink, Start};
use renkei_core::wire::data::{EntryHead, ExtentEnd, ExtentHead, MAX_RAW_BYTES, RAW_OFFSET_BYTES};
use renkei_core::wire::frame::{self, FrameKind, HEAD_BYTES, MAX_PAYLOAD_BYTES};
use renkei_core::wire::{decode, violation};
use renkei_net::tls::TlsStream;
use renkei_store::WriteFile;
use std::sync::Arc;

/// Granularity of holes in small files: the allocation unit of most file systems.
const HOLE_BYTES: usize = 4096;

/// The bytes of a data stream, after decryption.
pub(super) trait ByteStream {
    /// Fills `target`.
    fn read_exact(&mut self, target: &mut [u8]) -> Result<(), Error>;

    /// Fills `target` except its last byte, which may be overwritten.
    fn read_exact_before_last(&mut self, target: &mut [u8]) -> Result<(), Error>;
}

impl ByteStream for TlsStream {
    fn read_exact(&mut self, target: &mut [u8]) -> Result<(), Error> {
        TlsStream::read_exact(self, target)
    }

    fn read_exact_before_last(&mut self, target: &mut [u8]) -> Result<(), Error> {
        TlsStream::read_exact_before_last(self, target)
    }
}

pub(super) struct Incoming<S> {
    stream: S,
    session: Arc<Session>,
    places: DestDirs,
    /// Grows only: the remains of a smaller frame are overwritten by the next.
    payload: Vec<u8>,
    payload_bytes: usize,
    block: WriteBlock,
    extent: Option<Extent>,
}

/// The extent that is arriving.
struct Extent {
    head: ExtentHead,
    hasher: SlotHasher,
    /// The destination file; `None` while the extent's bytes are discarded.
    file: Option<Arc<OpenFile>>,
}

impl<S: ByteStream> Incoming<S> {
    pub(super) fn new(stream: S, session: Arc<Session>) -> Self {
        Incoming {
            stream,
            places: session.places(),
            session,
            payload: Vec::with_capacity(MAX_PAYLOAD_BYTES + 1),
            payload_bytes: 0,
            block: WriteBlock::new(),
            extent: None,
        }
    }

    /// The stream, for reuse by the next session.
    pub(super) fn into_stream(self) -> S {
        self.stream
    }

    /// Receives until the sender ends the stream.
    pub(super) fn run(&mut self) -> Result<(), Error> {
        while self.receive_frame()? {}
        Ok(())
    }

    /// Receives one frame; false at the end of the stream.
    pub(super) fn receive_frame(&mut self) -> Result<bool, Error> {
        match self.next_frame()? {
            Some(FrameKind::Entry) => self.on_entry()?,
            Some(FrameKind::Extent) => self.on_extent()?,
            // The payload was read and handled by `on_raw` already.
            Some(FrameKind::Raw) | None => {}
            Some(FrameKind::ExtentEnd) => self.on_extent_end()?,
            Some(FrameKind::StreamEnd) if self.extent.is_none() => return Ok(false),
            Some(FrameKind::Refusal) => return Err(decode("refusal", self.payload())?),
            Some(kind) => return Err(violation("data stream", format_args!("unexpected {kind:?}"))),
        }
        Ok(true)
    }

    fn next_frame(&mut self) -> Result<Option<FrameKind>, Error> {
        let mut head = [0; HEAD_BYTES];
        self.stream.read_exact(&mut head)?;
        let head = frame::parse_head(head)?;
        if head.kind == Some(FrameKind::Raw) {
            self.on_raw(head.payload_bytes)?;
            return Ok(head.kind);
        }
        self.read_payload(head.payload_bytes)?;
        Ok(head.kind)
    }

    #[cfg(test)]
    pub(super) fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    fn read_payload(&mut self, bytes: usize) -> Result<(), Error> {
        if self.payload.len() <= bytes {
            self.payload.resize(bytes + 1, 0);
        }
        self.payload_bytes = bytes;
        self.stream.read_exact_before_last(&mut self.payload[..=bytes])
    }

    fn payload(&self) -> &[u8] {
        &self.payload[..self.payload_bytes]
    }

    fn on_entry(&mut self) -> Result<(), Error> {
        if self.extent.is_some() {
            return Err(violation("data stream", "an entry inside an extent"));
        }
        let (head, content) = EntryHead::read(&self.payload[..self.payload_bytes])?;
        let EntryHead { id, entry, .. } = &head;
        // Noted whatever the outcome: the source has this name, so it is not removed here.
        self.session.note_name(&entry.path);
        let placed = if !head.content_matches(content) {
            Err(Error::new(Code::DigestMismatch, "receive", &entry.path, "BLAKE3 differs"))
        } else if self.session.dry_run() {
            self.session.on_placed(Done { id: *id, path: entry.path.clone(), copy_of: None });
            Ok(())
        } else {
            place(&self.session, &mut self.places, &head, content)
        };
        placed.or_else(|error| self.session.on_entry_failed(*id, &entry.path, error))
    }

    fn on_extent(&mut self) -> Result<(), Error> {
        if self.extent.is_some() {
            return Err(violation("data stream", "an extent inside an extent"));
        }
        let head = ExtentHead::read(self.payload())?;
        let start = match self.session.start_extent(&head) {
            Err(error) if error.code == Code::NameTaken => {
                self.session.on_entry_failed(head.id, &head.entry.path, error)?;
                Start::Ignore
            }
            start => start?,
        };
        let file = match start {
            Start::Ignore => None,
            Start::Write { keep_existing } => {
                match self.session.open_file(&mut self.places, &head, keep_existing) {
                    Ok(file) => Some(file),
                    Err(error) => {
                        self.session.on_entry_failed(head.id, &head.entry.path, error)?;
                        None
                    }
                }
            }
        };
        let hasher = SlotHasher::new(head.slot, head.entry.size());
        self.extent = Some(Extent { head, hasher, file });
        Ok(())
    }

    /// Reads bytes of the extent straight into the write block.
    fn on_raw(&mut self, payload_bytes: usize) -> Result<(), Error> {
        let mut offset = [0; RAW_OFFSET_BYTES];
        let count = payload_bytes.checked_sub(RAW_OFFSET_BYTES).filter(|count| *count <= MAX_RAW_BYTES);
        let count = count.ok_or_else(|| violation("raw", format_args!("{payload_bytes} bytes")))?;
        self.stream.read_exact(&mut offset)?;
        let offset = u64::from_be_bytes(offset);
        if !self.block.takes(offset, count) {
            self.write_block()?;
        }
        let room = self.block.room(offset, count);
        self.stream.read_exact_before_last(room)?;
        let extent =
            self.extent.as_mut().ok_or_else(|| violation("data stream", "bytes outside an extent"))?;
        if !extent.hasher.update(offset, &room[..count]) {
            return Err(violation("data stream", "bytes out of place"));
        }
        Ok(())
    }

    /// Flushes the write block; a failure gives up the file, not the stream.
    fn write_block(&mut self) -> Result<(), Error> {
        let (bytes, offset) = self.block.gathered();
        let extent = self.extent.as_mut().filter(|_| !bytes.is_empty());
        let failed = extent.and_then(|extent| {
            let error = extent.file.as_ref()?.write_at(bytes, offset).err()?;
            extent.file = None;
            Some((extent.head.id, extent.head.entry.path.clone(), error))
        });
        self.block.clear();
        match failed {
            Some((id, path, error)) => self.session.on_entry_failed(id, &path, error),
            None => Ok(()),
        }
    }

    fn on_extent_end(&mut self) -> Result<(), Error> {
        self.write_block()?;
        let extent = self.extent.take().ok_or_else(|| violation("data stream", "the end of no extent"))?;
        let end: ExtentEnd = decode("extent end", self.payload())?;
        let Some(file) = extent.file else { return Ok(()) };
        let Extent { head, hasher, .. } = extent;
        let digest = hasher.finish();
        match end {
            ExtentEnd::Failed(_) => {
                self.session.give_up(head.id);
                Ok(())
            }
            ExtentEnd::Whole(sent) if sent != digest => {
                let cause = format!("BLAKE3 of extent {} differs", head.slot);
                let error = Error::new(Code::DigestMismatch, "receive", &head.entry.path, cause);
                self.session.on_entry_failed(head.id, &head.entry.path, error)
            }
            ExtentEnd::Whole(_) | ExtentEnd::Hole => {
                file.file.start_writeback(head.range());
                self.session.on_extent_written(&head, digest, &file)
            }
        }
    }
}

/// Places a whole entry; directories' metadata and hard links are deferred to the end of the transfer.
fn place(session: &Session, places: &mut DestDirs, head: &EntryHead, content: &[u8]) -> Result<(), Error> {
    let (EntryHead { id, entry, digest }, path) = (head, head.entry.path.clone());
    let id = *id;
    match &entry.kind {
        EntryKind::Dir => {
            places.make_dir(&path)?;
            if path.is_root() {
                session.on_destination();
            }
            session.receiver(|receiver| receiver.defer_dir(PendingDir { id, path, meta: entry.meta.clone() }))
        }
        EntryKind::HardLink { to } => {
            session.receiver(|receiver| receiver.defer_link(PendingLink { id, path, to: to.clone() }))
        }
        EntryKind::Symlink { target } => place_symlink(session, places, id, entry, target),
        EntryKind::File { stamp, .. } => {
            let ino = write_small(session, places, id, entry, content, digest)?;
            session.note_digest(&path, 0, digest)?;
            session.on_written(Done { id, path, copy_of: Some((*stamp, ino)) });
            Ok(())
        }
        EntryKind::Special => Err(violation("entry", "a special file is never sent")),
    }
}

fn write_small(
    session: &Session,
    places: &mut DestDirs,
    id: u64,
    entry: &Entry,
    content: &[u8],
    digest: &[u8; 32],
) -> Result<u64, Error> {
    let temp = places.temp(&entry.path);
    let place = session.make_place(places, &entry.path)?;
    session.receiver(|receiver| receiver.claim(&entry.path))?;
    session.make_room(&place, &temp, content.len() as u64)?;
    let file = place.dir.create_temp(&temp, false)?;
    let written = (|| {
        write_content(&*file, entry, content)?;
        finish_file(session, id, entry, &*file)?;
        let stamp = file.stamp()?;
        session.note_whole(&*place.dir, &entry.path, &stamp, digest);
        Ok(stamp)
    })();
    written.map(|stamp: Stamp| stamp.ino).inspect_err(|_| drop(place.dir.remove_file(&temp)))
}

/// Writes a small file's content; zero blocks of a sparse file stay holes.
fn write_content(file: &dyn WriteFile, entry: &Entry, content: &[u8]) -> Result<(), Error> {
    if !matches!(entry.kind, EntryKind::File { sparse: true, .. }) {
        return if content.is_empty() { Ok(()) } else { file.write_at(content, 0) };
    }
    file.set_len(content.len() as u64)?;
    let blocks = content.chunks(HOLE_BYTES).zip((0..).step_by(HOLE_BYTES));
    blocks
        .filter(|(block, _)| block.iter().any(|byte| *byte != 0))
        .try_for_each(|(block, offset)| file.write_at(block, offset))
}

/// Sets a file's metadata; attributes that cannot be kept are reported and do not fail the file.
pub(super) fn finish_file(
    session: &Session,
    id: u64,
    entry: &Entry,
    file: &dyn WriteFile,
) -> Result<(), Error> {
    let lost = file.set_meta(&entry.meta)?;
    session.report_lost(id, &entry.path, lost)
}

fn place_symlink(
    session: &Session,
    places: &mut DestDirs,
    id: u64,
    entry: &Entry,
    target: &[u8],
) -> Result<(), Error> {
    let temp = places.temp(&entry.path);
    let place = session.make_place(places, &entry.path)?;
    session.receiver(|receiver| receiver.claim(&entry.path))?;
    if let Err(error) = place.dir.symlink(target, &temp) {
        if error.code != Code::PathExists {
            return Err(error);
        }
        place.dir.remove_file(&temp)?;
        place.dir.symlink(target, &temp)?;
    }
    let meta = Meta { xattrs: Vec::new(), ..entry.meta.clone() };
    let named =
        place.dir.set_meta(&temp, &meta).and_then(|_| place.dir.rename(&temp, &*place.dir, place.name));
    if let Err(error) = named {
        let _ = place.dir.remove_file(&temp);
        return Err(error);
    }
    session.receiver(|receiver| receiver.release(&entry.path));
    session.on_placed(Done { id, path: entry.path.clone(), copy_of: None });
    Ok(())
}
