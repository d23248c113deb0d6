//! A bounded pool of buffers for frames in flight.
//!
//! A frame is read into the largest size and then moved to the smallest it fits, so that a second of acknowledgements
//! in flight does not take 64 KB each. A copy of so few bytes costs less than the memory would.

use renkei_core::lab::segment::MAX_BUFFER;

/// Capacities, ascending; the last takes any frame.
const SIZES: [usize; 5] = [128, 1664, 8192, 24_576, MAX_BUFFER];
/// Bytes of each size that are kept in the pool; more is freed.
const KEPT_BYTES: usize = 32 << 20;

/// A pool of buffers.
#[derive(Debug)]
pub struct Buffers {
    free: [Vec<Vec<u8>>; SIZES.len()],
    /// Bytes in use, by capacity.
    used: usize,
    limit: usize,
}

impl Buffers {
    /// A pool of which at most `limit` bytes are in use.
    pub fn new(limit: usize) -> Buffers {
        Buffers { free: Default::default(), used: 0, limit }
    }

    /// Bytes in use, by capacity.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Whether a frame of so many bytes fits under the limit.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.used + SIZES[class(bytes)] <= self.limit
    }

    /// An empty buffer with room for so many bytes, at most [`MAX_BUFFER`].
    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        let class = class(bytes);
        self.used += SIZES[class];
        self.free[class].pop().unwrap_or_else(|| Vec::with_capacity(SIZES[class]))
    }

    /// The frame in the smallest buffer it fits into.
    pub fn shrink(&mut self, frame: Vec<u8>) -> Vec<u8> {
        if class(frame.len()) == class(frame.capacity()) {
            return frame;
        }
        let mut small = self.take(frame.len());
        small.extend_from_slice(&frame);
        self.give(frame);
        small
    }

    /// Returns a buffer to the pool.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        let class = class(buffer.capacity());
        self.used = self.used.saturating_sub(SIZES[class]);
        if self.free[class].len() * SIZES[class] < KEPT_BYTES {
            buffer.clear();
            self.free[class].push(buffer);
        }
    }
}

fn class(bytes: usize) -> usize {
    SIZES.iter().position(|size| *size >= bytes).unwrap_or(SIZES.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_frames_do_not_keep_large_buffers() {
        let mut buffers = Buffers::new(1 << 20);
        let mut frame = buffers.take(MAX_BUFFER);
        frame.extend_from_slice(&[7; 66]);
        let frame = buffers.shrink(frame);
        assert_eq!((frame.as_slice(), buffers.used()), (&[7; 66][..], 128));
        buffers.give(frame);
        assert_eq!(buffers.used(), 0);
    }

    #[test]
    fn buffers_are_reused_and_empty() {
        let mut buffers = Buffers::new(1 << 20);
        let mut frame = buffers.take(5000);
        frame.push(1);
        let at = frame.as_ptr();
        buffers.give(frame);
        let again = buffers.take(6000);
        assert_eq!((again.as_ptr(), again.len()), (at, 0));
    }

    #[test]
    fn the_bound_counts_capacities() {
        let mut buffers = Buffers::new(2 * 8192);
        let first = buffers.take(4000);
        assert!(buffers.has_room(8000));
        buffers.take(4000);
        assert!(!buffers.has_room(1));
        buffers.give(first);
        assert!(buffers.has_room(8000));
    }
}
