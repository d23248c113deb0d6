//! A write buffer that coalesces received bytes of a file, so that the file is written in few, large, aligned blocks.

use renkei_store::DIRECT_ALIGN;

/// Capacity of the block: large enough for disks and parallel file systems, small enough to stay in the processor's
/// cache.
pub(super) const BLOCK_BYTES: usize = 1 << 20;

/// Consecutive bytes of a file.
pub(super) struct WriteBlock {
    bytes: Vec<u8>,
    /// Index in `bytes` at which the aligned part starts.
    base: usize,
    offset: u64,
    filled: usize,
}

impl WriteBlock {
    pub(super) fn new() -> Self {
        let bytes = vec![0; BLOCK_BYTES + DIRECT_ALIGN + 1];
        let base = bytes.as_ptr().align_offset(DIRECT_ALIGN);
        WriteBlock { bytes, base, offset: 0, filled: 0 }
    }

    /// Whether `count` bytes at `offset` can be appended without flushing first.
    pub(super) fn takes(&self, offset: u64, count: usize) -> bool {
        let follows = self.filled == 0 || self.offset + self.filled as u64 == offset;
        follows && count <= BLOCK_BYTES - self.filled
    }

    /// Space for `count` bytes at `offset`, to be filled by the caller, and one more byte that may be overwritten;
    /// only if [`WriteBlock::takes`] them.
    pub(super) fn room(&mut self, offset: u64, count: usize) -> &mut [u8] {
        if self.filled == 0 {
            self.offset = offset;
        }
        let start = self.base + self.filled;
        self.filled += count;
        &mut self.bytes[start..=start + count]
    }

    /// The buffered bytes and their offset; empty if there are none.
    pub(super) fn gathered(&self) -> (&[u8], u64) {
        (&self.bytes[self.base..self.base + self.filled], self.offset)
    }

    /// Discards the buffered bytes.
    pub(super) fn clear(&mut self) {
        self.filled = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_writes_are_merged_and_others_are_not() {
        let mut block = WriteBlock::new();
        assert!(block.takes(8192, 100));
        block.room(8192, 100)[..100].fill(7);
        assert!(block.takes(8292, 100) && !block.takes(9000, 100) && !block.takes(8292, BLOCK_BYTES));
        block.room(8292, 1)[..1].fill(8);
        let (bytes, offset) = block.gathered();
        assert_eq!((bytes.len(), offset, bytes[0], bytes[100]), (101, 8192, 7, 8));
        assert_eq!(bytes.as_ptr() as usize % DIRECT_ALIGN, 0);
        block.clear();
        assert_eq!(block.room(0, BLOCK_BYTES).len(), BLOCK_BYTES + 1);
        block.clear();
        assert!(block.takes(0, BLOCK_BYTES) && !block.takes(0, BLOCK_BYTES + 1));
    }
}
