//! Payloads of data frames: what is accepted keeps to the rules its decoder promises.
#![no_main]

use libfuzzer_sys::fuzz_target;
use renkei_core::wire::data::{EntryHead, ExtentHead};

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, payload)) = bytes.split_first() else { return };
    match kind % 3 {
        0 => entry(payload),
        1 => extent(payload),
        _ => {}
    }
});

fn entry(payload: &[u8]) {
    let Ok((head, content)) = EntryHead::read(payload) else { return };
    assert!(content.is_empty() || content.len() as u64 == head.entry.size());
    let mut written = Vec::new();
    head.write(&mut written, content);
    assert_eq!(EntryHead::read(&written), Ok((head, content)));
}

fn extent(payload: &[u8]) {
    let Ok(head) = ExtentHead::read(payload) else { return };
    let range = head.range();
    assert!(range.start < range.end && range.end <= head.entry.size());
}

