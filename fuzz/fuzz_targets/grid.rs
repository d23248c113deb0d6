//! Certificates of strangers: proxies, attribute certificates, policies and map files. Any bytes are refused or mean
//! something.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| renkei_net::identity::grid::read_anything(bytes));
