//! Content of simulated files, stored sparsely: sectors with data, and holes.
//!
//! Memory is used only for the sectors that were written. Sectors of zeros are not stored, so that two contents
//! compare equal exactly if their bytes are equal.

use renkei_core::mover::digest::{SlotHasher, slot_range};

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Bytes that a disk writes atomically; a torn write ends at a sector boundary.
pub const SECTOR_BYTES: u64 = 512;
const SECTOR: usize = SECTOR_BYTES as usize;

/// The bytes of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    size: u64,
    sectors: BTreeMap<u64, Arc<[u8; SECTOR]>>,
}

impl Content {
    /// A content of `size` bytes, all zero.
    pub fn hole(size: u64) -> Self {
        Content { size, sectors: BTreeMap::new() }
    }

    /// A content of exactly these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut content = Content::default();
        content.write(0, bytes);
        content
    }

    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether some sectors are holes.
    pub fn is_sparse(&self) -> bool {
        (self.sectors.len() as u64) < self.size.div_ceil(SECTOR_BYTES)
    }

    /// Writes, growing if necessary.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.size = self.size.max(offset + bytes.len() as u64);
        let mut at = 0;
        while at < bytes.len() {
            let position = offset + at as u64;
            let start = (position % SECTOR_BYTES) as usize;
            let count = (SECTOR - start).min(bytes.len() - at);
            self.change(position / SECTOR_BYTES, |sector| {
                sector[start..start + count].copy_from_slice(&bytes[at..at + count]);
            });
            at += count;
        }
    }

    fn change(&mut self, number: u64, change: impl FnOnce(&mut [u8; SECTOR])) {
        let mut sector = self.sectors.get(&number).map_or([0; SECTOR], |sector| **sector);
        change(&mut sector);
        if sector == [0; SECTOR] {
            self.sectors.remove(&number);
        } else {
            self.sectors.insert(number, Arc::new(sector));
        }
    }

    /// Truncates or extends; the added part is a hole.
    pub fn set_len(&mut self, len: u64) {
        if len < self.size {
            drop(self.sectors.split_off(&len.div_ceil(SECTOR_BYTES)));
            let kept = (len % SECTOR_BYTES) as usize;
            if kept > 0 && self.sectors.contains_key(&(len / SECTOR_BYTES)) {
                self.change(len / SECTOR_BYTES, |sector| sector[kept..].fill(0));
            }
        }
        self.size = len;
    }

    /// Punches a hole.
    pub fn free(&mut self, range: &Range<u64>) {
        let end = range.end.min(self.size);
        let numbers = range.start / SECTOR_BYTES..end.max(range.start).div_ceil(SECTOR_BYTES);
        let touched: Vec<u64> = self.sectors.range(numbers).map(|(number, _)| *number).collect();
        for number in touched {
            let start = number * SECTOR_BYTES;
            let from = range.start.max(start) - start;
            let to = end.min(start + SECTOR_BYTES) - start;
            self.change(number, |sector| sector[from as usize..to as usize].fill(0));
        }
    }

    /// The bytes of `range` up to the end of the file.
    pub fn read(&self, range: Range<u64>) -> Vec<u8> {
        let end = range.end.min(self.size);
        let mut bytes = vec![0; end.saturating_sub(range.start) as usize];
        for (number, sector) in self.sectors_in(range.start..end) {
            let sector_start = number * SECTOR_BYTES;
            let from = range.start.max(sector_start);
            let to = end.min(sector_start + SECTOR_BYTES);
            let (target, source) = (from - range.start, from - sector_start);
            let count = (to - from) as usize;
            bytes[target as usize..][..count].copy_from_slice(&sector[source as usize..][..count]);
        }
        bytes
    }

    fn sectors_in(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &[u8; SECTOR])> {
        let numbers = range.start / SECTOR_BYTES..range.end.max(range.start).div_ceil(SECTOR_BYTES);
        self.sectors.range(numbers).map(|(number, sector)| (*number, &**sector))
    }

    /// The first data range at or after `from`.
    pub fn next_data(&self, from: u64) -> Option<Range<u64>> {
        let mut numbers = self.sectors.range(from / SECTOR_BYTES..).map(|(number, _)| *number);
        let first = numbers.next()?;
        let mut end = first + 1;
        while numbers.next() == Some(end) {
            end += 1;
        }
        let range = (first * SECTOR_BYTES).max(from)..(end * SECTOR_BYTES).min(self.size);
        (!range.is_empty()).then_some(range)
    }

    /// The data ranges within `range`, ascending, with their bytes.
    pub fn pieces(&self, range: Range<u64>) -> Vec<(u64, Vec<u8>)> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        while let Some(data) = self.next_data(at).filter(|data| data.start < range.end) {
            let data = data.start..data.end.min(range.end);
            at = data.end;
            pieces.push((data.start, self.read(data)));
        }
        pieces
    }
}

/// Memoised digests of extents, computed by [`SlotHasher`], so that an extent of holes is hashed only once.
#[derive(Clone, Default)]
pub struct SlotDigests(Arc<Mutex<HashMap<[u8; 32], [u8; 32]>>>);

impl SlotDigests {
    /// Digest of an extent from its pieces; `None` if they do not ascend or exceed the extent.
    pub fn digest(&self, slot: u32, size: u64, pieces: &[(u64, Vec<u8>)]) -> Option<[u8; 32]> {
        let key = memo_key(slot, size, pieces);
        if let Some(known) = self.0.lock().unwrap().get(&key) {
            return Some(*known);
        }
        let mut hasher = SlotHasher::new(slot, size);
        if !pieces.iter().all(|(offset, bytes)| hasher.update(*offset, bytes)) {
            return None;
        }
        let digest = hasher.finish();
        self.0.lock().unwrap().insert(key, digest);
        Some(digest)
    }

    /// Digest of an extent of a content.
    pub fn of(&self, content: &Content, slot: u32, size: u64) -> [u8; 32] {
        let pieces = content.pieces(slot_range(slot, size));
        self.digest(slot, size, &pieces).expect("pieces of one range ascend")
    }
}

fn memo_key(slot: u32, size: u64, pieces: &[(u64, Vec<u8>)]) -> [u8; 32] {
    let mut key = blake3::Hasher::new();
    key.update(&slot.to_le_bytes()).update(&size.to_le_bytes());
    for (offset, bytes) in pieces {
        key.update(&offset.to_le_bytes()).update(&bytes.len().to_le_bytes()).update(bytes);
    }
    *key.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::mover::digest::{SLOT_BYTES, combine, whole};

    #[test]
    fn sparse_contents_behave_as_bytes() {
        let (mut content, mut model) = (Content::default(), Vec::new());
        let mut chance = renkei_core::sim::chance::Chance::new(3);
        for _ in 0..500 {
            if chance.percent(20) {
                let len = chance.below(5_000);
                content.set_len(len);
                model.resize(len as usize, 0);
            } else {
                let (offset, count) = (chance.below(4_000) as usize, chance.below(1_500) as usize);
                let bytes = vec![chance.below(3) as u8; count];
                content.write(offset as u64, &bytes);
                model.resize(model.len().max(offset + count), 0);
                model[offset..offset + count].copy_from_slice(&bytes);
            }
            assert_eq!(content.read(0..u64::MAX), model);
            assert_eq!(content, Content { size: content.size, ..Content::of(&model) });
        }
    }

    #[test]
    fn pieces_leave_only_holes_out() {
        let mut content = Content::hole(10_000);
        content.write(1_000, &[1; 600]);
        content.write(9_000, &[2; 10]);
        let mut rebuilt = Content::hole(10_000);
        for (offset, bytes) in content.pieces(0..10_000) {
            rebuilt.write(offset, &bytes);
        }
        assert_eq!(rebuilt, content);
        assert_eq!(content.pieces(2_048..8_000), []);
    }

    #[test]
    fn remembered_digests_are_the_real_ones() {
        let size = SLOT_BYTES + 1_000;
        let mut content = Content::hole(size);
        content.write(SLOT_BYTES - 10, &[7; 20]);
        let digests = SlotDigests::default();
        for _ in 0..2 {
            let slots = [digests.of(&content, 0, size), digests.of(&content, 1, size)];
            assert_eq!(combine(&slots), whole(&content.read(0..size)));
        }
        assert_eq!(digests.digest(0, 100, &[(10, vec![1]), (5, vec![1])]), None);
    }
}
