//! The wire format between two daemons: frames, and the messages inside them.
//!
//! A frame is a kind (1 byte), a length (4 bytes, big-endian) and that many bytes. Kinds from [`frame::OPTIONAL`]
//! on may be skipped by a receiver that does not know them; an unknown kind below is a violation. Control
//! messages are [`message::Control`] in postcard form; data frames are a small head and raw bytes ([`data`]).
//!
//! Every decoder here accepts arbitrary bytes and returns a value or an error; none allocates more than the frame it
//! was handed.

pub mod buffer;
pub mod circuit;
pub mod copy;
pub mod data;
pub mod file;
mod filtered;
pub mod frame;
pub mod links;
pub mod message;
pub mod on_behalf;
pub mod queue;
pub mod s3_key;
pub mod status;
pub mod types;
pub mod unfinished;
pub mod uploads;
pub mod version;
pub mod volume;
pub mod wire3;

pub use crate::encoding::{decode, encode, violation};
pub use version::{VERSIONS, WireVersion};

/// The protocol's name in the TLS handshake (ALPN).
pub const ALPN: &[u8] = b"renkei/1";

/// Bytes of list items in one control message: far below the largest frame even with the fields around them.
const PART_BYTES: usize = 1 << 20;

/// Splits a list into batches that each fit a control message: at most `max_items`, and about a megabyte. The caller
/// must bound the size of one item.
pub fn parts<T: serde::Serialize>(items: Vec<T>, max_items: usize) -> Vec<Vec<T>> {
    let mut parts: Vec<Vec<T>> = Vec::new();
    let mut room = 0;
    for item in items {
        let bytes = encode(&item).len();
        match parts.last_mut().filter(|part| part.len() < max_items && bytes <= room) {
            Some(part) => part.push(item),
            None => {
                parts.push(vec![item]);
                room = PART_BYTES;
            }
        }
        room = room.saturating_sub(bytes);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_fit_a_frame_and_lose_nothing() {
        let items: Vec<String> = (0..300).map(|n| "x".repeat(n * 50)).collect();
        let cut = parts(items.clone(), 100);
        assert!(cut.iter().all(|part| part.len() <= 100 && encode(part).len() <= PART_BYTES + 16));
        assert_eq!(cut.concat(), items);
        let large = vec!["y".repeat(PART_BYTES + 5), String::new()];
        assert_eq!(parts(large, 9).len(), 2);
        assert!(parts(Vec::<u8>::new(), 9).is_empty());
    }
}
