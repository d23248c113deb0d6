//! The frame: kind, length, bytes.

use crate::error::{Code, Error};

/// Bytes of a frame's head: kind and length.
pub const HEAD_BYTES: usize = 5;
/// Largest payload of any frame. Holds a whole small file with its metadata; bounds the memory a peer can make us
/// buffer.
pub const MAX_PAYLOAD_BYTES: usize = 2 << 20;
/// Kinds from here on are optional: a receiver that does not know them skips them.
pub const OPTIONAL: u8 = 0x80;

/// An empty optional frame: a keep-alive on an idle stream, so that its silence is not taken for a loss.
pub const IDLE: [u8; HEAD_BYTES] = [OPTIONAL, 0, 0, 0, 0];

/// Appends an optional frame of `payload_bytes` zeros: sent ahead of the ticket on a long path, it opens the
/// connection's congestion window while there is nothing else to send yet.
pub fn push_padding(out: &mut Vec<u8>, payload_bytes: usize) {
    out.extend_from_slice(&IDLE);
    let start = out.len() - (HEAD_BYTES - 1);
    out[start..].copy_from_slice(&(payload_bytes as u32).to_be_bytes());
    out.resize(out.len() + payload_bytes, 0);
}

/// Kinds of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// A [`super::message::Control`].
    Control = 1,
    /// A [`super::data::Join`]: first frame of a data stream.
    Join = 2,
    /// A refusal before or instead of anything else: an [`Error`].
    Refusal = 3,
    /// A whole entry: head, then the content of a small file.
    Entry = 16,
    /// The beginning of an extent of a large file.
    Extent = 17,
    /// Bytes of the current extent: offset (8 bytes, big-endian), then the bytes.
    Raw = 18,
    /// The end of the current extent, with its digest or the reason why there is none.
    ExtentEnd = 19,
    /// The last frame of this data stream.
    StreamEnd = 20,
    /// An operation of a file session: length of the [`super::file::Op`] (4 bytes, big-endian), the operation, the
    /// content of a `Write`.
    Op = 24,
    /// Its answer: length of the [`super::file::Answer`], the answer, the content of a read.
    Answer = 25,
    /// Optional: a [`super::message::Control`] that is younger than the oldest version spoken, sent with the greeting,
    /// before the versions are agreed on. An older receiver skips it, and is asked again in its own words.
    Early = 0x81,
}

impl FrameKind {
    fn parse(byte: u8) -> Option<Self> {
        use FrameKind::*;
        [Control, Join, Refusal, Entry, Extent, Raw, ExtentEnd, StreamEnd, Op, Answer, Early]
            .into_iter()
            .find(|k| *k as u8 == byte)
    }
}

/// A frame's head as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The kind; `None` for an optional kind this build does not know.
    pub kind: Option<FrameKind>,
    /// Bytes of payload that follow.
    pub payload_bytes: usize,
}

/// Writes a head.
pub fn head(kind: FrameKind, payload_bytes: usize) -> [u8; HEAD_BYTES] {
    debug_assert!(payload_bytes <= MAX_PAYLOAD_BYTES);
    let mut bytes = [kind as u8, 0, 0, 0, 0];
    bytes[1..].copy_from_slice(&(payload_bytes as u32).to_be_bytes());
    bytes
}

/// Reads a head.
pub fn parse_head(bytes: [u8; HEAD_BYTES]) -> Result<Head, Error> {
    let payload_bytes = u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]) as usize;
    let kind = FrameKind::parse(bytes[0]);
    if kind.is_none() && bytes[0] < OPTIONAL {
        return Err(super::violation("frame", format_args!("unknown kind {}", bytes[0])));
    }
    if payload_bytes > MAX_PAYLOAD_BYTES {
        let cause = format!("{payload_bytes} bytes, at most {MAX_PAYLOAD_BYTES}");
        return Err(Error::new(Code::FrameTooLarge, "decode", "frame", cause));
    }
    Ok(Head { kind, payload_bytes })
}

/// Appends a whole frame to `out`.
pub fn push(out: &mut Vec<u8>, kind: FrameKind, payload: &[u8]) {
    out.extend_from_slice(&head(kind, payload.len()));
    out.extend_from_slice(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_round_trip() {
        let read = parse_head(head(FrameKind::Raw, 70_000)).unwrap();
        assert_eq!(read, Head { kind: Some(FrameKind::Raw), payload_bytes: 70_000 });
    }

    #[test]
    fn optional_kinds_are_skipped_and_others_refused() {
        assert_eq!(parse_head([0x90, 0, 0, 0, 3]).unwrap().kind, None);
        assert_eq!(parse_head(IDLE).unwrap(), Head { kind: None, payload_bytes: 0 });
        assert_eq!(parse_head([0x30, 0, 0, 0, 3]).unwrap_err().code, Code::ProtocolViolation);
        assert_eq!(parse_head([1, 0xff, 0, 0, 0]).unwrap_err().code, Code::FrameTooLarge);
    }
}
