//! A block of memory for content: aligned as writes past the page cache need it, and used again.

use std::ops::{Deref, DerefMut};

/// Alignment of direct writes: the page size, which is no less than any disk's block.
pub const DIRECT_ALIGN: usize = 4096;

/// A block, which has no memory at first.
#[derive(Debug, Default)]
pub struct AlignedBlock {
    memory: Vec<u8>,
    /// Index in `memory` at which the aligned part starts.
    base: usize,
    filled: usize,
}

impl AlignedBlock {
    /// Appends bytes until the block has `most` of them; returns how many it took.
    pub fn fill(&mut self, bytes: &[u8], most: usize) -> usize {
        let count = bytes.len().min(most.saturating_sub(self.filled));
        let before = self.filled;
        if before + count > self.capacity() {
            self.grow(most);
        }
        self.filled += count;
        self[before..].copy_from_slice(&bytes[..count]);
        count
    }

    /// Makes it so long; bytes that come to it are those that were in its memory before.
    pub fn resize(&mut self, bytes: usize) {
        if bytes > self.capacity() {
            self.grow(bytes);
        }
        self.filled = bytes;
    }

    /// Discards the bytes, and keeps the memory.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    fn capacity(&self) -> usize {
        self.memory.len().saturating_sub(DIRECT_ALIGN)
    }

    fn grow(&mut self, bytes: usize) {
        let mut memory = vec![0; bytes + DIRECT_ALIGN];
        let base = memory.as_ptr().align_offset(DIRECT_ALIGN);
        memory[base..base + self.filled].copy_from_slice(self);
        self.memory = memory;
        self.base = base;
    }
}

impl Deref for AlignedBlock {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.base..self.base + self.filled]
    }
}

impl DerefMut for AlignedBlock {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.base..self.base + self.filled]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_aligned_and_takes_no_more_than_it_may() {
        let mut block = AlignedBlock::default();
        assert_eq!((block.fill(b"abc", 2), &block[..]), (2, &b"ab"[..]));
        assert_eq!((block.fill(b"cd", 3), &block[..]), (1, &b"abc"[..]));
        let more = vec![7; 10_000];
        assert_eq!((block.fill(&more, 9_000), block.len()), (8_997, 9_000));
        assert_eq!((block.as_ptr() as usize % DIRECT_ALIGN, &block[..4]), (0, &b"abc\x07"[..]));
        assert_eq!(block.fill(b"x", 9_000), 0);
        let memory = block.as_ptr();
        block.clear();
        assert_eq!((block.fill(b"x", 9_000), block.as_ptr()), (1, memory));
        block.resize(20_000);
        assert_eq!((block.len(), block[0], block.as_ptr() as usize % DIRECT_ALIGN), (20_000, b'x', 0));
    }
}
