//! A peer's bytes, read as a daemon reads them: frame after frame, each payload by the decoder of its kind.
#![no_main]

use libfuzzer_sys::fuzz_target;
use renkei_core::error::Error;
use renkei_core::wire::data::{EntryHead, ExtentEnd, ExtentHead, Join};
use renkei_core::wire::file::{LENGTH_BYTES, MAX_OP_BYTES, divide, parse_answer, parse_op};
use renkei_core::wire::frame::{FrameKind, HEAD_BYTES, MAX_PAYLOAD_BYTES, parse_head};
use renkei_core::wire::{decode, message::Control};

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Some((head, after)) = rest.split_first_chunk::<HEAD_BYTES>() {
        let Ok(head) = parse_head(*head) else { return };
        assert!(head.payload_bytes <= MAX_PAYLOAD_BYTES);
        let Some((payload, after)) = after.split_at_checked(head.payload_bytes) else { return };
        if let Some(kind) = head.kind {
            read(kind, payload);
        }
        rest = after;
    }
});

fn read(kind: FrameKind, payload: &[u8]) {
    match kind {
        FrameKind::Control => drop(decode::<Control>("control", payload)),
        FrameKind::Join => drop(decode::<Join>("join", payload)),
        FrameKind::Refusal => drop(decode::<Error>("refusal", payload)),
        FrameKind::Entry => drop(EntryHead::read(payload)),
        FrameKind::Extent => drop(ExtentHead::read(payload)),
        FrameKind::ExtentEnd => drop(decode::<ExtentEnd>("extent end", payload)),
        FrameKind::Op => {
            if let Some((op, content_bytes)) = parts(payload, MAX_OP_BYTES) {
                let _ = parse_op(op, content_bytes);
            }
        }
        FrameKind::Answer => {
            if let Some((answer, _)) = parts(payload, MAX_PAYLOAD_BYTES) {
                let _ = parse_answer(answer);
            }
        }
        FrameKind::Raw | FrameKind::StreamEnd => {}
    }
}

/// An operation or answer, and how many bytes of content follow it.
fn parts(payload: &[u8], most: usize) -> Option<(&[u8], usize)> {
    let (length, rest) = payload.split_first_chunk::<LENGTH_BYTES>()?;
    let (value_bytes, content_bytes) = divide(payload.len(), *length, most).ok()?;
    assert_eq!(value_bytes + content_bytes, rest.len());
    Some((&rest[..value_bytes], content_bytes))
}
