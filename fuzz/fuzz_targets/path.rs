//! Paths as users and peers write them: what is accepted never leaves its storage and is read again as itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use renkei_core::path::{EndpointPath, RelPath};

fuzz_target!(|bytes: &[u8]| {
    for path in [RelPath::parse(bytes), RelPath::parse_lenient(bytes)].into_iter().flatten() {
        check(&path);
    }
    if let Ok(Some(EndpointPath { place: Some(place), .. })) = EndpointPath::parse(bytes) {
        check(&place.path);
    }
});

fn check(path: &RelPath) {
    assert_eq!(RelPath::parse(path.as_bytes()).as_ref(), Ok(path));
    for name in path.components() {
        assert!(!name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0));
    }
}
