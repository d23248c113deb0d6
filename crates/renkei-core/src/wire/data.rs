//! Frames of the data streams: whole small entries, and extents of large files.
//!
//! A stream carries units back to back; a unit names its file in full, so that units may arrive in any order on
//! any stream. Digests follow the bytes they cover.

use super::{decode, encode, violation};
use crate::entry::{Entry, EntryKind};
use crate::error::Error;
use crate::ids::EntryId;
use crate::mover::digest;
use serde::{Deserialize, Serialize};

/// Secret that binds a data stream to its session.
pub type Ticket = [u8; 32];

/// Bytes of the file offset before the bytes of a [`super::frame::FrameKind::Raw`] frame, big-endian.
pub const RAW_OFFSET_BYTES: usize = 8;
/// Most bytes of content in one raw frame.
pub const MAX_RAW_BYTES: usize = 1 << 20;
/// Most metadata (path, attributes, names) one entry may bring.
pub const MAX_META_BYTES: usize = 512 << 10;

/// First frame of a data stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// The session's ticket.
    pub ticket: Ticket,
    /// Index of the stream in the session, from 0.
    pub index: u16,
}

/// Head of an [`super::frame::FrameKind::Entry`] frame; the content follows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryHead {
    /// The entry's number.
    pub id: EntryId,
    /// The entry, its path relative to the destination.
    pub entry: Entry,
    /// BLAKE3 of the content; zeros for entries without content.
    pub digest: [u8; 32],
}

/// Head of an extent of a large file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentHead {
    /// The entry's number.
    pub id: EntryId,
    /// The file, its path relative to the destination.
    pub entry: Entry,
    /// Index of the extent, in units of the file's slots (see [`digest::slot_range`]).
    pub slot: u32,
}

/// The end of an extent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExtentEnd {
    /// All bytes were sent; the extent's digest (see [`digest`]).
    Whole([u8; 32]),
    /// The extent is one hole: nothing was sent.
    Hole,
    /// The source could not be read to the end; the transfer of this file is abandoned.
    Failed(Error),
}

impl EntryHead {
    /// Writes head and content as one payload: length of the head (4 bytes), head, content.
    pub fn write(&self, out: &mut Vec<u8>, content: &[u8]) {
        let head = encode(self);
        out.extend_from_slice(&(head.len() as u32).to_be_bytes());
        out.extend_from_slice(&head);
        out.extend_from_slice(content);
    }

    /// Decodes a payload and validates its lengths; the digest is verified by [`EntryHead::content_matches`].
    ///
    /// # Errors
    /// `ProtocolViolation` for a payload that no correct sender writes; never retryable.
    pub fn read(payload: &[u8]) -> Result<(Self, &[u8]), Error> {
        let (length, rest) =
            payload.split_first_chunk::<4>().ok_or_else(|| violation("entry", "too short"))?;
        let head_bytes = u32::from_be_bytes(*length) as usize;
        if head_bytes > rest.len() || head_bytes > MAX_META_BYTES {
            return Err(violation("entry", "head longer than allowed"));
        }
        let (head, content) = rest.split_at(head_bytes);
        let head: EntryHead = decode("entry head", head)?;
        let small = matches!(head.entry.kind, EntryKind::File { .. });
        if content.len() as u64 != head.entry.size() || (!small && !content.is_empty()) {
            return Err(violation("entry", "content and size differ"));
        }
        Ok((head, content))
    }

    /// Whether `content` has the digest that the sender computed.
    pub fn content_matches(&self, content: &[u8]) -> bool {
        !matches!(self.entry.kind, EntryKind::File { .. }) || digest::whole(content) == self.digest
    }
}

impl ExtentHead {
    /// Reads a payload and checks that it names an extent of a regular file.
    pub fn read(payload: &[u8]) -> Result<Self, Error> {
        let head: ExtentHead = decode("extent", payload)?;
        if !matches!(head.entry.kind, EntryKind::File { .. }) {
            return Err(violation("extent", "not of a regular file"));
        }
        if head.range().is_empty() {
            return Err(violation("extent", "beyond the end of the file"));
        }
        Ok(head)
    }

    /// The bytes of the file this extent covers.
    pub fn range(&self) -> std::ops::Range<u64> {
        digest::slot_range(self.slot, self.entry.size())
    }
}

/// Splits the payload of a raw frame into the file offset and the bytes.
pub fn parse_raw(payload: &[u8]) -> Result<(u64, &[u8]), Error> {
    let short = || violation("raw", "too short");
    let (offset, bytes) = payload.split_first_chunk::<RAW_OFFSET_BYTES>().ok_or_else(short)?;
    Ok((u64::from_be_bytes(*offset), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Meta, Stamp};
    use crate::path::RelPath;
    use proptest::prelude::*;

    fn file(size: u64) -> Entry {
        let stamp = Stamp { size, ..Stamp::default() };
        let path = RelPath::parse(b"a/b").unwrap();
        Entry { path, meta: Meta::default(), kind: EntryKind::File { stamp, sparse: false } }
    }

    #[test]
    fn entries_round_trip_with_content() {
        let head = EntryHead { id: 7, entry: file(5), digest: digest::whole(b"hello") };
        let mut payload = Vec::new();
        head.write(&mut payload, b"hello");
        let (read, content) = EntryHead::read(&payload).unwrap();
        assert_eq!((&read, content), (&head, &b"hello"[..]));
        assert!(read.content_matches(content));
        assert!(!read.content_matches(b"hellp"));
    }

    #[test]
    fn lengths_must_agree() {
        let head = EntryHead { id: 7, entry: file(5), digest: [0; 32] };
        let mut payload = Vec::new();
        head.write(&mut payload, b"hell");
        assert!(EntryHead::read(&payload).is_err());
        assert!(ExtentHead::read(&encode(&ExtentHead { id: 1, entry: file(5), slot: 1 })).is_err());
    }

    proptest! {
        #[test]
        fn decoders_accept_arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = EntryHead::read(&bytes);
            let _ = ExtentHead::read(&bytes);
            let _ = parse_raw(&bytes);
            let _ = decode::<ExtentEnd>("end", &bytes);
            let _ = decode::<Join>("join", &bytes);
            let _ = decode::<crate::wire::message::Control>("control", &bytes);
        }
    }
}
