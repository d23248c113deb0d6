//! What file sessions and sites that follow volumes say: any bytes are refused or mean something that can be written and read
//! again. The first byte says what the others are.
#![no_main]

use libfuzzer_sys::fuzz_target;
use renkei_core::namespace::{SequencedChange, Record};
use renkei_core::wire::file::{OpenFiles, parse_answer, parse_op};
use renkei_core::wire::volume::{AboutVolume, VolumeReply};
use renkei_core::wire::{decode, encode};

macro_rules! read_again {
    ($read:expr, $bytes:expr) => {
        if let Ok(value) = $read($bytes) {
            assert_eq!($read(&encode(&value)).expect("what was encoded can be decoded"), value);
        }
    };
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 7 {
        0 => read_again!(|bytes: &[u8]| parse_op(bytes, 0), bytes),
        1 => read_again!(parse_answer, bytes),
        2 => read_again!(|bytes: &[u8]| decode::<OpenFiles>("session", bytes), bytes),
        3 => read_again!(|bytes: &[u8]| decode::<AboutVolume>("volume", bytes), bytes),
        4 => read_again!(|bytes: &[u8]| decode::<VolumeReply>("volume", bytes), bytes),
        5 => read_again!(|bytes: &[u8]| decode::<Record>("record", bytes), bytes),
        _ => read_again!(|bytes: &[u8]| decode::<SequencedChange>("change", bytes), bytes),
    }
});
