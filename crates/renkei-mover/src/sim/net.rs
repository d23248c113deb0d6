//! Virtual time, and the streams between two nodes.
//!
//! All streams of a direction share the link's rate; a message leaves when those before it have left and arrives one
//! latency later, so each stream is in order. A cut stream loses the messages in flight. Neither side notices a cut
//! before one latency has passed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

/// Event queue ordered by time; events at equal times are in insertion order.
pub struct Queue<E> {
    now: Duration,
    next: u64,
    times: BinaryHeap<Reverse<(Duration, u64)>>,
    events: BTreeMap<u64, E>,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Queue { now: Duration::ZERO, next: 0, times: BinaryHeap::new(), events: BTreeMap::new() }
    }
}

impl<E> Queue<E> {
    /// The present virtual time.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Schedules `event` at `time`, or now if that is past.
    pub fn at(&mut self, time: Duration, event: E) {
        self.times.push(Reverse((time.max(self.now), self.next)));
        self.events.insert(self.next, event);
        self.next += 1;
    }

    /// Advances the time to the next event.
    pub fn advance(&mut self) -> Option<E> {
        let Reverse((time, number)) = self.times.pop()?;
        self.now = time;
        self.events.remove(&number)
    }

    /// Drops all pending events.
    pub fn clear(&mut self) {
        self.times.clear();
        self.events.clear();
    }
}

/// Direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the sender of files to the receiver.
    Down,
    /// From the receiver to the sender.
    Up,
}

/// The stream of control messages; data streams are numbered from 1.
pub const CONTROL: usize = 0;

/// A network path.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// One-way latency of a message.
    pub latency: Duration,
    /// Bytes per second.
    pub rate: u64,
}

/// Departure and arrival of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// When the sender may send the next one.
    pub departs: Duration,
    /// When it arrives; `None` if it is lost.
    pub arrives: Option<Duration>,
}

/// The streams of one session.
pub struct Streams {
    path: Path,
    free_at: [Duration; 2],
    cut: Vec<bool>,
    cut_after: Option<(usize, u64)>,
}

impl Streams {
    /// A control stream and `data` data streams.
    pub fn new(path: Path, data: usize) -> Self {
        Streams { path, free_at: [Duration::ZERO; 2], cut: vec![false; data + 1], cut_after: None }
    }

    /// One-way latency of a message.
    pub fn latency(&self) -> Duration {
        self.path.latency
    }

    /// Sends a message on a stream.
    pub fn send(&mut self, now: Duration, stream: usize, way: Way, bytes: u64) -> Sent {
        let free_at = &mut self.free_at[way as usize];
        *free_at =
            now.max(*free_at) + Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / self.path.rate);
        let departs = *free_at;
        if let Some((_, left)) = self.cut_after.as_mut().filter(|(which, _)| *which == stream) {
            match left.checked_sub(bytes) {
                Some(rest) => *left = rest,
                None => self.cut[stream] = true,
            }
        }
        Sent { departs, arrives: (!self.cut[stream]).then_some(departs + self.path.latency) }
    }

    /// Cuts a stream, or all.
    pub fn cut(&mut self, stream: Option<usize>) {
        match stream {
            Some(stream) => self.cut[stream] = true,
            None => self.cut.fill(true),
        }
    }

    /// Cuts a stream in the message that would exceed this many bytes, counted in both directions.
    pub fn cut_after(&mut self, stream: usize, bytes: u64) {
        self.cut_after = Some((stream, bytes));
    }

    /// Whether a stream is cut.
    pub fn is_cut(&self, stream: usize) -> bool {
        self.cut[stream]
    }

    /// Whether any stream is cut.
    pub fn any_cut(&self) -> bool {
        self.cut.contains(&true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn events_come_by_time_then_by_order() {
        let mut queue = Queue::default();
        queue.at(2 * SECOND, 'c');
        queue.at(SECOND, 'a');
        queue.at(SECOND, 'b');
        assert_eq!(
            [queue.advance(), queue.advance(), queue.advance(), queue.advance()],
            [Some('a'), Some('b'), Some('c'), None]
        );
        queue.at(Duration::ZERO, 'd');
        assert_eq!((queue.advance(), queue.now()), (Some('d'), 2 * SECOND));
    }

    #[test]
    fn streams_share_the_rate_and_lose_what_is_cut() {
        let mut streams = Streams::new(Path { latency: 3 * SECOND, rate: 10 }, 2);
        let sent = streams.send(Duration::ZERO, 1, Way::Down, 10);
        assert_eq!(sent, Sent { departs: SECOND, arrives: Some(4 * SECOND) });
        assert_eq!(streams.send(Duration::ZERO, 2, Way::Down, 10).departs, 2 * SECOND);
        assert_eq!(streams.send(Duration::ZERO, 0, Way::Up, 10).departs, SECOND);
        streams.cut_after(2, 15);
        assert!(streams.send(Duration::ZERO, 2, Way::Down, 10).arrives.is_some());
        assert!(streams.send(Duration::ZERO, 2, Way::Down, 10).arrives.is_none());
        assert!(streams.is_cut(2) && !streams.is_cut(1) && streams.any_cut());
    }
}
