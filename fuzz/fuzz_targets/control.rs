//! Control messages: any bytes are refused or mean something that can be written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use renkei_core::wire::{decode, encode, message::Control};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = decode::<Control>("control", bytes) {
        let again: Control = decode("control", &encode(&message)).expect("what was encoded can be decoded");
        assert_eq!(message, again);
    }
});
