//! Digests of files that arrive in parts and in any order.
//!
//! A file is divided into slots of 1 MiB (of 2 or 4 MiB if it is huge), each a subtree of the file's BLAKE3 tree, so
//! that a slot can be hashed, verified and recorded in a journal by itself, and all slots together give the plain
//! BLAKE3 of the file (as `b3sum` prints it) without a second read. Source: the BLAKE3 paper, section 2.1 "Tree
//! structure".

use blake3::Hasher;
use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use std::ops::Range;

/// Bytes of a slot of a file that is not huge: a power of two times BLAKE3's chunk of 1 KiB, as its subtrees require.
///
/// Each stream has one slot in flight, which an interruption loses, and the last slot of the slowest stream is waited
/// for: 4 MiB take half a second on one of 32 streams of 2 Gbit/s. Head and end of a slot cost a few thousandths of
/// it.
pub const SLOT_BYTES: u64 = 1 << 20;

/// Slots larger than this bring nothing; a file needs more than 256 GiB for them.
const LARGEST_SLOT_BYTES: u64 = 4 << 20;

/// Most slots of a file before they grow, because a digest of each is held in memory.
const MANY_SLOTS: u64 = 1 << 18;

/// Bytes of each slot but the last of a file of `size`.
fn slot_bytes(size: u64) -> u64 {
    let few = size.div_ceil(MANY_SLOTS).clamp(SLOT_BYTES, LARGEST_SLOT_BYTES);
    few.next_power_of_two()
}

/// The bytes of a file of `size` that `slot` covers; empty if it has no such slot.
pub fn slot_range(slot: u32, size: u64) -> Range<u64> {
    let bytes = slot_bytes(size);
    let start = (u64::from(slot) * bytes).min(size);
    start..(start + bytes).min(size)
}

/// Number of slots of a file of `size`.
pub fn slot_count(size: u64) -> u32 {
    u32::try_from(size.div_ceil(slot_bytes(size))).unwrap_or(u32::MAX)
}

/// BLAKE3 of a whole content.
pub fn whole(content: &[u8]) -> [u8; 32] {
    *blake3::hash(content).as_bytes()
}

/// Hashes one slot incrementally, in order; gaps count as zeros.
pub struct SlotHasher {
    hasher: Hasher,
    position: u64,
    range: Range<u64>,
    is_whole_file: bool,
}

/// A page of zeros, for holes.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl SlotHasher {
    /// Starts the slot of a file of `size`.
    pub fn new(slot: u32, size: u64) -> Self {
        let range = slot_range(slot, size);
        let mut hasher = Hasher::new();
        hasher.set_input_offset(range.start);
        SlotHasher { hasher, position: range.start, is_whole_file: range == (0..size), range }
    }

    /// Hashes the bytes at `offset`; false if they are not after the previous bytes and inside the slot.
    #[must_use]
    pub fn update(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let end = offset.checked_add(bytes.len() as u64);
        if offset < self.position || end.is_none_or(|end| end > self.range.end) {
            return false;
        }
        self.skip_to(offset);
        self.hasher.update(bytes);
        self.position = offset + bytes.len() as u64;
        true
    }

    fn skip_to(&mut self, offset: u64) {
        while self.position < offset {
            let step = (offset - self.position).min(ZEROS.len() as u64);
            self.hasher.update(&ZEROS[..step as usize]);
            self.position += step;
        }
    }

    /// The slot's digest: the subtree's chaining value, or the file's BLAKE3 if it is the only slot.
    pub fn finish(mut self) -> [u8; 32] {
        self.skip_to(self.range.end);
        if self.is_whole_file { *self.hasher.finalize().as_bytes() } else { self.hasher.finalize_non_root() }
    }
}

/// BLAKE3 of a file from the digests of all its slots, in order; at least one.
pub fn combine(slots: &[[u8; 32]]) -> [u8; 32] {
    match slots {
        [only] => *only,
        _ => {
            let (left, right) = slots.split_at(left_slots(slots.len()));
            *merge_subtrees_root(&subtree(left), &subtree(right), Mode::Hash).as_bytes()
        }
    }
}

fn subtree(slots: &[[u8; 32]]) -> ChainingValue {
    match slots {
        [only] => *only,
        _ => {
            let (left, right) = slots.split_at(left_slots(slots.len()));
            merge_subtrees_non_root(&subtree(left), &subtree(right), Mode::Hash)
        }
    }
}

/// Slots of the left subtree of a BLAKE3 node: the largest full one that leaves at least one for the right.
fn left_slots(count: usize) -> usize {
    count.next_power_of_two() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_slots(content: &[u8]) -> [u8; 32] {
        let size = content.len() as u64;
        let slots: Vec<_> = (0..slot_count(size))
            .map(|slot| {
                let range = slot_range(slot, size);
                let mut hasher = SlotHasher::new(slot, size);
                for start in range.clone().step_by(700_000) {
                    let end = (start + 700_000).min(range.end);
                    assert!(hasher.update(start, &content[start as usize..end as usize]));
                }
                hasher.finish()
            })
            .collect();
        combine(&slots)
    }

    #[test]
    fn slots_combine_to_plain_blake3() {
        for slots in [1u64, 2, 3, 5] {
            for size in [slots * SLOT_BYTES, slots * SLOT_BYTES - 1, (slots - 1) * SLOT_BYTES + 1] {
                let content: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
                assert_eq!(by_slots(&content), whole(&content), "{size}");
            }
        }
    }

    #[test]
    fn slots_cover_a_file_of_any_size() {
        const GIB: u64 = 1 << 30;
        for (size, bytes) in [
            (0, SLOT_BYTES),
            (256 * GIB, SLOT_BYTES),
            (256 * GIB + 1, 2 * SLOT_BYTES),
            (512 * GIB + 1, 4 * SLOT_BYTES),
            (5_000 * GIB + 7, 4 * SLOT_BYTES),
        ] {
            assert_eq!(slot_bytes(size), bytes, "{size}");
            let last = slot_count(size).saturating_sub(1);
            assert_eq!(slot_range(last, size).end, size);
            assert!(slot_range(slot_count(size), size).is_empty());
        }
    }

    #[test]
    fn holes_count_as_zeros() {
        let mut content = vec![0; SLOT_BYTES as usize + 100];
        content[70_000..70_010].fill(9);
        let mut hasher = SlotHasher::new(0, content.len() as u64);
        assert!(hasher.update(70_000, &[9; 10]));
        let first = hasher.finish();
        let second = SlotHasher::new(1, content.len() as u64).finish();
        assert_eq!(combine(&[first, second]), whole(&content));
    }

    #[test]
    fn bytes_outside_or_backwards_are_refused() {
        let mut hasher = SlotHasher::new(0, 100);
        assert!(hasher.update(10, &[0; 10]));
        assert!(!hasher.update(10, &[0; 10]));
        assert!(!hasher.update(95, &[0; 10]));
        assert!(!hasher.update(u64::MAX, &[0; 10]));
    }
}
