//! One sending data stream: takes units and writes them to the connection.

use super::send::{Next, SHOW_LIFE_EVERY, Session};
use super::walk::Root;
use super::write_block::BLOCK_BYTES;
use renkei_core::entry::{EntryKind, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::mover::digest::{self, SlotHasher};
use renkei_core::mover::plan::{Item, Unit};
use renkei_core::path::RelPath;
use renkei_core::wire::data::{EntryHead, ExtentEnd, ExtentHead, RAW_OFFSET_BYTES};
use renkei_core::wire::encode;
use renkei_core::wire::frame::{self, FrameKind, HEAD_BYTES};
use renkei_net::tls::{TlsStream, WRITE_BYTES};
use renkei_store::{Dir, ReadFile};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// File bytes in one raw frame: one write of the stream, and a divisor of the receiver's block size, so that it
/// writes whole and aligned blocks.
const CHUNK_BYTES: usize = 256 << 10;
/// A raw frame's head and the offset after it.
const RAW_HEAD_BYTES: usize = HEAD_BYTES + RAW_OFFSET_BYTES;
const _: () = assert!(CHUNK_BYTES <= WRITE_BYTES);
const _: () = assert!(BLOCK_BYTES.is_multiple_of(CHUNK_BYTES));
/// Largest content of a small file that is copied to the frame buffer; larger content is written from where it was
/// read.
const GATHERED_BYTES: usize = 64 << 10;

/// The way out of a data stream.
pub(super) trait ByteSink {
    /// Sends the bytes, after all that is queued.
    fn write_all(&mut self, bytes: &[u8]) -> Result<(), Error>;

    /// Sends the bytes with the next ones.
    fn queue(&mut self, bytes: &[u8]) -> Result<(), Error>;

    /// Sends all that is queued.
    fn flush(&mut self) -> Result<(), Error>;
}

impl ByteSink for TlsStream {
    fn write_all(&mut self, bytes: &[u8]) -> Result<(), Error> {
        TlsStream::write_all(self, bytes)
    }

    fn queue(&mut self, bytes: &[u8]) -> Result<(), Error> {
        TlsStream::queue(self, bytes)
    }

    fn flush(&mut self) -> Result<(), Error> {
        TlsStream::flush(self)
    }
}

pub(super) struct Outgoing<S> {
    stream: S,
    session: Arc<Session>,
    /// Complete frames to be sent together.
    frames: Vec<u8>,
    /// Bytes of file content in them.
    packed_bytes: u64,
    /// Content of a small file, or of one raw frame.
    chunk: Vec<u8>,
    dir: Option<(u32, RelPath, Arc<dyn Dir>)>,
    file: Option<(u64, Box<dyn ReadFile>)>,
}

impl<S: ByteSink> Outgoing<S> {
    pub(super) fn new(stream: S, session: Arc<Session>) -> Self {
        Outgoing {
            stream,
            session,
            frames: Vec::with_capacity(2 * WRITE_BYTES),
            packed_bytes: 0,
            chunk: vec![0; CHUNK_BYTES],
            dir: None,
            file: None,
        }
    }

    /// The stream, for reuse by the next session.
    pub(super) fn into_stream(self) -> S {
        self.stream
    }

    #[cfg(test)]
    pub(super) fn stream(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Sends units until there are none, then the end of the stream.
    pub(super) fn run(&mut self) -> Result<(), Error> {
        loop {
            let next = self.next_unit()?;
            if !self.perform(next)? {
                return Ok(());
            }
        }
    }

    /// Sends a unit, a keep-alive, or the end of the stream, for which it returns false.
    pub(super) fn perform(&mut self, next: Next) -> Result<bool, Error> {
        match next {
            Next::Send(Unit::Pack(items)) => self.send_pack(items)?,
            Next::Send(Unit::Extent { item, slot }) => self.send_extent(&item, slot)?,
            Next::ShowLife => self.stream.write_all(&frame::IDLE)?,
            Next::Nothing => {
                frame::push(&mut self.frames, FrameKind::StreamEnd, &[]);
                self.flush()?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The next unit; buffered output is flushed before waiting for it.
    fn next_unit(&mut self) -> Result<Next, Error> {
        if let Some(unit) = self.session.ready_unit() {
            return Ok(Next::Send(unit));
        }
        self.stream.flush()?;
        Ok(self.session.next_unit())
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.stream.write_all(&self.frames)?;
        self.frames.clear();
        Ok(())
    }

    /// Queues the frames with the next write, for they are too short for one of their own.
    fn queue(&mut self) -> Result<(), Error> {
        self.stream.queue(&self.frames)?;
        self.frames.clear();
        Ok(())
    }

    fn send_pack(&mut self, items: Vec<Item>) -> Result<(), Error> {
        for item in items {
            match self.read_entry(&item) {
                Ok(read) => self.push_entry(item, read)?,
                Err(error) => self.session.on_source_failed(&item, error)?,
            }
            if self.frames.len() >= WRITE_BYTES {
                self.flush_pack()?;
            }
        }
        self.flush_pack()
    }

    fn flush_pack(&mut self) -> Result<(), Error> {
        let bytes = std::mem::take(&mut self.packed_bytes);
        self.wait_to_send(bytes)?;
        self.flush()
    }

    /// Waits for tokens for this much content; queued output is flushed before.
    fn wait_to_send(&mut self, bytes: u64) -> Result<(), Error> {
        if bytes == 0 || self.session.may_send(bytes, Duration::ZERO) {
            return Ok(());
        }
        self.stream.flush()?;
        while !self.session.may_send(bytes, SHOW_LIFE_EVERY) {
            self.stream.write_all(&frame::IDLE)?;
        }
        Ok(())
    }

    /// Reads the content of a small file into `chunk`, and returns its digest; other entries have none.
    fn read_entry(&mut self, item: &Item) -> Result<Option<(Stamp, [u8; 32])>, Error> {
        let EntryKind::File { stamp, .. } = item.entry.kind else { return Ok(None) };
        let read = self.read_small(item, stamp.size)?;
        let digest = digest::whole(&self.chunk[..read.size as usize]);
        self.session.compare(item, 0, &digest)?;
        Ok(Some((read, digest)))
    }

    /// Appends the frame of an entry, with a file's attributes as `read`.
    fn push_entry(&mut self, item: Item, read: Option<(Stamp, [u8; 32])>) -> Result<(), Error> {
        let Item { id, mut entry, .. } = item;
        let (mut digest, mut content) = ([0; 32], &[][..]);
        if let (EntryKind::File { stamp, .. }, Some((read, hashed))) = (&mut entry.kind, read) {
            // A file that changed before it was opened is sent in its current state; only a change during the read is
            // an error.
            *stamp = read;
            entry.meta.mtime = read.mtime;
            content = &self.chunk[..read.size as usize];
            digest = hashed;
        }
        let (gathered, apart) =
            if content.len() <= GATHERED_BYTES { (content, &[][..]) } else { (&[][..], content) };
        let start = self.frames.len();
        self.frames.extend_from_slice(&[0; HEAD_BYTES]);
        EntryHead { id, entry, digest }.write(&mut self.frames, gathered);
        let payload_bytes = self.frames.len() - start - HEAD_BYTES + apart.len();
        self.frames[start..start + HEAD_BYTES].copy_from_slice(&frame::head(FrameKind::Entry, payload_bytes));
        self.packed_bytes += content.len() as u64;
        self.session.on_bytes_moved(content.len() as u64);
        if !apart.is_empty() {
            self.stream.queue(&self.frames)?;
            self.stream.write_all(apart)?;
            self.frames.clear();
        }
        Ok(())
    }

    /// Reads a whole small file into `chunk`.
    fn read_small(&mut self, item: &Item, size: u64) -> Result<Stamp, Error> {
        let file = self.open(item)?;
        let before = file.stamp()?;
        if before.size != size {
            return Err(changed(&self.session, item, "it has another size than a moment ago"));
        }
        if self.chunk.len() < size as usize {
            self.chunk.resize(size as usize, 0);
        }
        let count = file.read_at(&mut self.chunk[..size as usize], 0)?;
        if count as u64 != size || file.stamp()? != before {
            return Err(changed(&self.session, item, "written to while it was read"));
        }
        Ok(before)
    }

    fn open(&mut self, item: &Item) -> Result<Box<dyn ReadFile>, Error> {
        let Some((parent, name)) = item.origin.path.split() else {
            return Err(changed(&self.session, item, "a directory a moment ago"));
        };
        let source = item.origin.source;
        let cached = self.dir.as_ref().filter(|(s, path, _)| *s == source && path.as_bytes() == parent);
        let dir = match cached {
            Some((_, _, dir)) => dir.clone(),
            None => {
                let parent = RelPath::parse(parent)?;
                let dir = self.session.root(&item.origin).dir.descend(&parent)?;
                self.dir = Some((source, parent, dir.clone()));
                dir
            }
        };
        dir.open_read(name)
    }

    fn send_extent(&mut self, item: &Item, slot: u32) -> Result<(), Error> {
        let head = ExtentHead { id: item.id, entry: item.entry.clone(), slot };
        frame::push(&mut self.frames, FrameKind::Extent, &encode(&head));
        self.queue()?;
        let end = match self.send_range(item, slot, head.range()) {
            Ok(sent) => sent,
            Err(Fault::Source(error)) => {
                self.session.on_source_failed(item, error.clone())?;
                ExtentEnd::Failed(error)
            }
            Err(Fault::Stream(error)) => return Err(error),
        };
        frame::push(&mut self.frames, FrameKind::ExtentEnd, &encode(&end));
        self.queue()
    }

    fn send_range(&mut self, item: &Item, slot: u32, range: Range<u64>) -> Result<ExtentEnd, Fault> {
        let EntryKind::File { stamp, sparse } = item.entry.kind else {
            return Err(Fault::Source(changed(&self.session, item, "no regular file")));
        };
        let file = match self.file.take().filter(|(id, _)| *id == item.id) {
            Some((_, file)) => file,
            None => self.open(item).map_err(Fault::Source)?,
        };
        let session = self.session.clone();
        let unchanged = |file: &dyn ReadFile| match file.stamp() {
            Ok(now) if now == stamp => Ok(()),
            Ok(_) => Err(Fault::Source(changed(&session, item, "written to since it was found"))),
            Err(error) => Err(Fault::Source(error)),
        };
        unchanged(&*file)?;
        let mut hasher = SlotHasher::new(slot, stamp.size);
        let mut is_hole = true;
        let mut at = range.start;
        while at < range.end {
            let data = next_data(&*file, at, &range, sparse).map_err(Fault::Source)?;
            let Some(data) = data else { break };
            self.send_data(item, &*file, data.clone(), &mut hasher)?;
            (is_hole, at) = (false, data.end);
        }
        unchanged(&*file)?;
        self.file = Some((item.id, file));
        if is_hole && !self.session.compares() {
            return Ok(ExtentEnd::Hole);
        }
        let digest = hasher.finish();
        self.session.compare(item, slot, &digest).map_err(Fault::Source)?;
        Ok(if is_hole { ExtentEnd::Hole } else { ExtentEnd::Whole(digest) })
    }

    fn send_data(
        &mut self,
        item: &Item,
        file: &dyn ReadFile,
        data: Range<u64>,
        hasher: &mut SlotHasher,
    ) -> Result<(), Fault> {
        let mut at = data.start;
        while at < data.end {
            let want = (data.end - at).min(CHUNK_BYTES as u64) as usize;
            let chunk = &mut self.chunk[..want];
            let count = file.read_at(chunk, at).map_err(Fault::Source)?;
            if count != want {
                return Err(Fault::Source(changed(&self.session, item, "shrank while it was read")));
            }
            assert!(hasher.update(at, chunk), "ranges of data ascend within the slot");
            self.wait_to_send(want as u64).map_err(Fault::Stream)?;
            // The head has a record of its own: the content then begins with a record, so that each record can be
            // decrypted in place.
            self.stream.queue(&raw_head(at, want)).map_err(Fault::Stream)?;
            self.stream.write_all(&self.chunk[..want]).map_err(Fault::Stream)?;
            self.session.on_bytes_moved(want as u64);
            at += want as u64;
        }
        Ok(())
    }
}

fn raw_head(offset: u64, content_bytes: usize) -> [u8; RAW_HEAD_BYTES] {
    let mut bytes = [0; RAW_HEAD_BYTES];
    bytes[..HEAD_BYTES].copy_from_slice(&frame::head(FrameKind::Raw, RAW_OFFSET_BYTES + content_bytes));
    bytes[HEAD_BYTES..].copy_from_slice(&offset.to_be_bytes());
    bytes
}

enum Fault {
    /// The file is at fault; the others continue.
    Source(Error),
    /// The stream is at fault; the session ends.
    Stream(Error),
}

/// The next data (no hole) at or after `at` and inside `range`.
fn next_data(
    file: &dyn ReadFile,
    at: u64,
    range: &Range<u64>,
    sparse: bool,
) -> Result<Option<Range<u64>>, Error> {
    if !sparse {
        return Ok(Some(at..range.end));
    }
    let data = file.next_data(at)?;
    Ok(data.map(|data| data.start.max(at)..data.end.min(range.end)).filter(|data| data.start < data.end))
}

fn changed(session: &Session, item: &Item, cause: &str) -> Error {
    Error::new(Code::SourceChanged, "read", session.root(&item.origin).in_store(&item.origin.path), cause)
}

/// BLAKE3 of a file at the source.
pub(super) fn digest_of(root: &Root, path: &RelPath) -> Result<[u8; 32], Error> {
    let (parent, name) =
        path.split().ok_or_else(|| Error::new(Code::IsADirectory, "read", path, "a directory"))?;
    let file = root.dir.descend(&RelPath::parse(parent)?)?.open_read(name)?;
    digest_file(&*file)
}

/// BLAKE3 of an open file, read to its end.
pub fn digest_file(file: &dyn ReadFile) -> Result<[u8; 32], Error> {
    let mut hasher = blake3::Hasher::new();
    let mut buf = vec![0; CHUNK_BYTES];
    let mut at = 0;
    loop {
        let count = file.read_at(&mut buf, at)?;
        if count == 0 {
            return Ok(*hasher.finalize().as_bytes());
        }
        hasher.update(&buf[..count]);
        at += count as u64;
    }
}
