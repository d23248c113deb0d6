//! Journals: any file is read as far as it is good, and the good part alone says the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use renkei_core::mover::journal::State;

fuzz_target!(|bytes: &[u8]| {
    // Random bytes never have the right checksum; the second form gets behind it.
    check(bytes);
    check(&with_checksums(bytes));
});

fn check(file: &[u8]) {
    let (state, good) = State::read(file);
    assert!(good <= file.len());
    assert_eq!(State::read(&file[..good]), (state, good));
}

/// Makes records of the input: a length byte, then that many bytes, each with the head it needs.
fn with_checksums(mut bytes: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    while let Some((&length, rest)) = bytes.split_first() {
        let (body, rest) = rest.split_at(rest.len().min(usize::from(length)));
        file.extend_from_slice(&(body.len() as u32).to_le_bytes());
        file.extend_from_slice(&crc32fast::hash(body).to_le_bytes());
        file.extend_from_slice(body);
        bytes = rest;
    }
    file
}
