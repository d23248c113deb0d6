//! One direction of a link: a frame is offered, and arrives later, whole or in parts, or is lost.
//!
//! Frames wait in one FIFO, each with the time its last packet leaves the queue and the time it arrives. The queue is
//! a fluid model: its backlog at a time is what the link still has to send at its rate, so a frame needs no event of
//! its own. A frame of many packets stays whole if all of them have the same fate; it then arrives when its last
//! packet does. It is split where a packet is lost, overflows or is held back, and at low rates into parts of
//! `PART_NS`, so that its receiver acknowledges as it would on a real link.
//!
//! Jitter keeps the order: the delay is interpolated linearly between points drawn from delay +- jitter. A reordered
//! packet arrives a quarter of the delay later than its turn (`Link::hold`), never earlier, so that the minimum RTT
//! stays as configured.

use super::loss::Runs;
use super::params::{LinkParams, Queue};
use super::policer::TokenBucket;
use super::segment::Shape;
use crate::sim::chance::Chance;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::ops::Range;

/// Maximum serialisation time of a frame that is not split.
const PART_NS: u64 = 400_000;
/// Usual packet size, to compute the size of a part.
const USUAL_PACKET: u64 = 1514;
/// Minimum time between two points of a varying delay.
const MIN_WANDER_NS: u64 = 1_000_000;
/// Minimum extra delay of a reordered packet.
const MIN_HOLD_NS: u64 = 500_000;
/// Most packets held back at a time.
const MAX_HELD: usize = 4096;

/// Counters and state of one direction of a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCounters {
    /// Buffers that passed, each with one or many packets.
    pub frames: u64,
    /// Packets that passed.
    pub packets: u64,
    /// Bytes that passed, as the rate counts them.
    pub bytes: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets dropped because they exceeded the policer's rate and burst.
    #[serde(default)]
    pub policed: u64,
    /// Packets dropped because the queue was full.
    pub overflowed: u64,
    /// Packets dropped because the link was down or the wire's memory was exhausted.
    pub dropped: u64,
    /// Packets held back so that others overtook them; also counted as passed.
    pub reordered: u64,
    /// Present length of the queue in bytes.
    pub queue_bytes: u64,
    /// Maximum length of the queue in bytes.
    pub queue_peak_bytes: u64,
    /// One-way delay of a packet that arrives now at an empty queue.
    pub delay_ns: u64,
}

/// A frame in flight.
#[derive(Debug)]
struct Waiting<F> {
    /// When its last packet leaves the queue.
    departs: u64,
    /// When it arrives.
    due: u64,
    bytes: u64,
    packets: u32,
    frame: F,
}

/// The fate of one packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Passes,
    Held,
    Dropped,
}

/// One direction of a link, carrying frames of type `F`.
#[derive(Debug)]
pub struct Link<F> {
    params: LinkParams,
    limit: Queue,
    /// Most packets of a frame that is not split.
    part: u32,
    chance: Chance,
    loss: Runs,
    reorder: Runs,
    policer: Option<TokenBucket>,
    wander: Wander,
    line: VecDeque<Waiting<F>>,
    /// Reordered frames, by the time they arrive.
    held: VecDeque<(u64, F)>,
    /// Number of frames at the front of the line that have left the queue, as of the last [`Link::settle`].
    departed: usize,
    /// Packets of all other frames in the line.
    queued_packets: u64,
    /// When everything accepted so far has left the queue, and the remainder below a nanosecond, in 1/rate.
    free_at: u64,
    carry: u64,
    counters: LinkCounters,
}

impl<F> Link<F> {
    /// An idle link; `seed` determines all random decisions.
    pub fn new(params: LinkParams, seed: u64) -> Link<F> {
        let mut chance = Chance::new(seed);
        let (loss, reorder) = (Runs::random(0.0, &mut chance), Runs::random(0.0, &mut chance));
        let mut link = Link {
            limit: params.queue_limit(),
            params,
            part: u32::MAX,
            chance,
            loss,
            reorder,
            policer: None,
            wander: Wander::default(),
            line: VecDeque::new(),
            held: VecDeque::new(),
            departed: 0,
            queued_packets: 0,
            free_at: 0,
            carry: 0,
            counters: LinkCounters::default(),
        };
        link.apply();
        link
    }

    /// Changes the parameters while the link runs: queued frames continue at the new rate, frames in flight arrive as
    /// scheduled; a link that goes down drops both and passes them to `drop_frame`.
    pub fn set(&mut self, now: u64, params: LinkParams, drop_frame: impl FnMut(F)) {
        self.settle(now);
        self.params = params;
        self.apply();
        if self.params.up { self.reschedule(now) } else { self.clear(drop_frame) }
    }

    /// The present parameters.
    pub fn params(&self) -> &LinkParams {
        &self.params
    }

    /// The counters at `now`.
    pub fn counters(&self, now: u64) -> LinkCounters {
        let (queue_bytes, delay_ns) = (self.queued_bytes(now), self.wander.delay_at(now));
        LinkCounters { queue_bytes, delay_ns, ..self.counters.clone() }
    }

    /// Counts packets that the wire itself dropped.
    pub fn on_dropped(&mut self, packets: u32) {
        self.counters.dropped += u64::from(packets);
    }

    /// Takes a frame at `now`. `cut` makes a frame of some of its packets, if they have different fates; the frame
    /// itself is returned if it was split or dropped, so that its buffer can be reused.
    pub fn offer(
        &mut self,
        now: u64,
        shape: &Shape,
        frame: F,
        cut: impl FnMut(&F, Range<u32>) -> F,
    ) -> Option<F> {
        if !self.params.up {
            self.on_dropped(shape.segments);
            return Some(frame);
        }
        self.settle(now);
        if self.passes_whole(now, shape) {
            let all = 0..shape.segments;
            self.enqueue(now, shape.total_bytes(), shape.segments);
            self.append(shape, &all, frame);
            return None;
        }
        self.offer_apart(now, shape, &frame, cut);
        Some(frame)
    }

    /// Whether all packets have the same fate; consumes their random decisions if so.
    fn passes_whole(&mut self, now: u64, shape: &Shape) -> bool {
        let packets = u64::from(shape.segments);
        let whole = shape.segments <= self.part
            && self.has_room(now, shape.total_bytes(), packets)
            && self.loss.is_clear(packets)
            && self.reorder.is_clear(packets)
            && self.conforms(now, shape.total_bytes());
        if whole {
            self.loss.skip(packets);
            self.reorder.skip(packets);
        }
        whole
    }

    fn offer_apart(&mut self, now: u64, shape: &Shape, frame: &F, mut cut: impl FnMut(&F, Range<u32>) -> F) {
        let mut open = 0..0;
        for index in 0..shape.segments {
            let this = index..index + 1;
            let fate = self.fate(now, shape.bytes(&this));
            if fate == Fate::Passes
                && open.end == index
                && open.len() < self.part as usize
                && !open.is_empty()
            {
                open.end = index + 1;
                self.enqueue(now, shape.bytes(&this), 1);
                continue;
            }
            self.close(shape, &open, frame, &mut cut);
            open = index + 1..index + 1;
            match fate {
                Fate::Passes => {
                    self.enqueue(now, shape.bytes(&this), 1);
                    open = this;
                }
                Fate::Held => self.hold(now, shape, &this, cut(frame, this.clone())),
                Fate::Dropped => {}
            }
        }
        self.close(shape, &open, frame, &mut cut);
    }

    /// Sends the collected packets, which have the same fate.
    fn close(
        &mut self,
        shape: &Shape,
        open: &Range<u32>,
        frame: &F,
        cut: &mut impl FnMut(&F, Range<u32>) -> F,
    ) {
        if !open.is_empty() {
            self.append(shape, open, cut(frame, open.clone()));
        }
    }

    fn fate(&mut self, now: u64, bytes: u64) -> Fate {
        if self.loss.next_hit(&mut self.chance) {
            self.counters.lost += 1;
            return Fate::Dropped;
        }
        if !self.conforms(now, bytes) {
            self.counters.policed += 1;
            return Fate::Dropped;
        }
        if !self.has_room(now, bytes, 1) {
            self.counters.overflowed += 1;
            return Fate::Dropped;
        }
        match self.reorder.next_hit(&mut self.chance) && self.held.len() < MAX_HELD {
            true => Fate::Held,
            false => Fate::Passes,
        }
    }

    /// Whether the policer lets so many bytes pass; takes their tokens if so.
    fn conforms(&mut self, now: u64, bytes: u64) -> bool {
        self.policer.as_mut().is_none_or(|policer| policer.take(now, bytes))
    }

    // ---- the queue -----------------------------------------------------------------------------------------------

    /// Whether the queue has room; an empty one takes any single packet, which is sent at once.
    fn has_room(&self, now: u64, bytes: u64, packets: u64) -> bool {
        if self.params.rate.is_none() || (packets == 1 && self.free_at <= now) {
            return true;
        }
        match self.limit {
            Queue::Bytes(limit) => self.queued_bytes(now) + bytes <= limit,
            Queue::Packets(limit) => self.queued_packets + packets <= u64::from(limit),
        }
    }

    /// The backlog of the queue in bytes.
    fn queued_bytes(&self, now: u64) -> u64 {
        let rate = u128::from(self.params.rate.unwrap_or(0));
        (u128::from(self.free_at.saturating_sub(now)) * rate / 8_000_000_000) as u64
    }

    /// Puts packets into the queue.
    fn enqueue(&mut self, now: u64, bytes: u64, packets: u32) {
        self.serialise(now, bytes);
        self.queued_packets += u64::from(packets);
        self.counters.queue_peak_bytes = self.counters.queue_peak_bytes.max(self.queued_bytes(now));
    }

    /// Schedules the serialisation of so many bytes after all others.
    fn serialise(&mut self, now: u64, bytes: u64) {
        if self.free_at < now {
            (self.free_at, self.carry) = (now, 0);
        }
        if let Some(rate) = self.params.rate {
            let needed = u128::from(bytes) * 8_000_000_000 + u128::from(self.carry);
            self.free_at += (needed / u128::from(rate)) as u64;
            self.carry = (needed % u128::from(rate)) as u64;
        }
    }

    /// Removes frames from the queue's count whose last packet has left it.
    fn settle(&mut self, now: u64) {
        while let Some(waiting) = self.line.get(self.departed).filter(|waiting| waiting.departs <= now) {
            self.queued_packets -= u64::from(waiting.packets);
            self.departed += 1;
        }
    }

    // ---- the way -------------------------------------------------------------------------------------------------

    /// Appends a frame, whose last packet leaves the queue at `free_at`.
    fn append(&mut self, shape: &Shape, packets: &Range<u32>, frame: F) {
        let (departs, bytes) = (self.free_at, shape.bytes(packets));
        let due = self.due(departs);
        let count = packets.end - packets.start;
        self.count(count, bytes);
        self.line.push_back(Waiting { departs, due, bytes, packets: count, frame });
    }

    fn count(&mut self, packets: u32, bytes: u64) {
        self.counters.frames += 1;
        self.counters.packets += u64::from(packets);
        self.counters.bytes += bytes;
    }

    /// Arrival time of a packet that leaves the queue then: after the delay, and not before its predecessors.
    fn due(&mut self, departs: u64) -> u64 {
        let before = self.line.back().map_or(0, |last| last.due);
        before.max(departs + self.wander.advance(departs, &mut self.chance))
    }

    /// Reorders one packet: it is serialised in its turn, then delayed by a further quarter of the delay.
    fn hold(&mut self, now: u64, shape: &Shape, packet: &Range<u32>, frame: F) {
        let bytes = shape.bytes(packet);
        self.serialise(now, bytes);
        self.counters.reordered += 1;
        self.count(1, bytes);
        let due = self.due(self.free_at) + (self.params.delay.as_nanos() as u64 / 4).max(MIN_HOLD_NS);
        let place = self.held.partition_point(|(other, _)| *other <= due);
        self.held.insert(place, (due, frame));
    }

    /// Arrival time of the next frame.
    pub fn next_due(&self) -> Option<u64> {
        let (first, held) =
            (self.line.front().map(|first| first.due), self.held.front().map(|(due, _)| *due));
        first.into_iter().chain(held).min()
    }

    /// The next frame that arrived by `now`.
    pub fn poll_arrived(&mut self, now: u64) -> Option<F> {
        if self.held.front().is_some_and(|(due, _)| *due <= now) {
            return self.held.pop_front().map(|(_, frame)| frame);
        }
        let first = self.line.pop_front_if(|first| first.due <= now)?;
        match self.departed {
            0 => self.queued_packets -= u64::from(first.packets),
            _ => self.departed -= 1,
        }
        Some(first.frame)
    }

    // ---- changes -------------------------------------------------------------------------------------------------

    /// Derives the internal state from the parameters.
    fn apply(&mut self) {
        let params = &self.params;
        self.limit = params.queue_limit();
        self.part = params.rate.map_or(u32::MAX, |rate| {
            let packets = u128::from(rate) * u128::from(PART_NS) / (u128::from(USUAL_PACKET) * 8_000_000_000);
            u32::try_from(packets).unwrap_or(u32::MAX).max(1)
        });
        self.wander.set(params.delay.as_nanos() as u64, params.jitter.as_nanos() as u64);
        self.loss = Runs::of_loss(params.loss, &mut self.chance);
        self.reorder = Runs::random(params.reorder, &mut self.chance);
        if params.policer != self.policer.as_ref().map(TokenBucket::policer) {
            self.policer = params.policer.map(TokenBucket::new);
        }
    }

    /// Reschedules the queued frames at the new rate.
    fn reschedule(&mut self, now: u64) {
        (self.free_at, self.carry) = (now, 0);
        let mut before = self.departed.checked_sub(1).map_or(0, |last| self.line[last].due);
        for index in self.departed..self.line.len() {
            self.serialise(now, self.line[index].bytes);
            let due = before.max(self.free_at + self.wander.advance(self.free_at, &mut self.chance));
            (self.line[index].departs, self.line[index].due, before) = (self.free_at, due, due);
        }
    }

    /// Drops all frames, queued or in flight.
    fn clear(&mut self, drop_frame: impl FnMut(F)) {
        let waiting: u64 = self.line.iter().map(|waiting| u64::from(waiting.packets)).sum();
        self.counters.dropped += waiting + self.held.len() as u64;
        let line = self.line.drain(..).map(|waiting| waiting.frame);
        line.chain(self.held.drain(..).map(|(_, frame)| frame)).for_each(drop_frame);
        (self.departed, self.queued_packets, self.free_at, self.carry) = (0, 0, 0, 0);
    }
}

/// A delay that varies between points drawn from `delay` +- `jitter`, slowly enough that packets keep their order:
/// two points differ by at most twice the jitter and are four times the jitter apart in time.
#[derive(Debug, Default)]
struct Wander {
    delay: u64,
    jitter: u64,
    begin: u64,
    from: i64,
    to: i64,
}

impl Wander {
    fn set(&mut self, delay: u64, jitter: u64) {
        *self = Wander { delay, jitter, ..Wander::default() };
    }

    /// Time between two points.
    fn step(&self) -> u64 {
        (4 * self.jitter).max(MIN_WANDER_NS)
    }

    /// The delay of a packet that departs at `at`, which must not decrease.
    fn advance(&mut self, at: u64, chance: &mut Chance) -> u64 {
        let step = self.step();
        if self.jitter > 0 && at >= self.begin + step {
            let is_next = at < self.begin + 2 * step;
            self.from = if is_next { self.to } else { self.point(chance) };
            self.begin = if is_next { self.begin + step } else { at };
            self.to = self.point(chance);
        }
        self.delay_at(at)
    }

    fn point(&self, chance: &mut Chance) -> i64 {
        chance.below(2 * self.jitter + 1) as i64 - self.jitter as i64
    }

    /// The delay at a time within the points drawn so far.
    fn delay_at(&self, at: u64) -> u64 {
        let (step, passed) =
            (i128::from(self.step()), i128::from(at.saturating_sub(self.begin).min(self.step())));
        let offset = i128::from(self.from) + i128::from(self.to - self.from) * passed / step;
        self.delay.saturating_add_signed(offset as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::params::Loss;
    use super::super::policer::Policer;
    use super::*;
    use std::time::Duration;

    const MS: u64 = 1_000_000;
    const SECOND: u64 = 1_000_000_000;

    /// A frame in these tests: the range of its packets, by number.
    type Frame = Range<u32>;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn at_rate(rate: u64) -> LinkParams {
        LinkParams { rate: Some(rate), ..LinkParams::default() }
    }

    /// 44 packets of 1514 bytes, a full frame of 64 KB.
    fn full() -> Shape {
        Shape::many(66, 1448, 44 * 1448)
    }

    /// Offers frames of consecutive packets.
    struct Sender {
        link: Link<Frame>,
        sent: u32,
    }

    impl Sender {
        fn new(params: LinkParams) -> Sender {
            params.check().unwrap();
            Sender { link: Link::new(params, 1), sent: 0 }
        }

        fn offer(&mut self, now: u64, shape: Shape) {
            let frame = self.sent..self.sent + shape.segments;
            self.sent = frame.end;
            self.link
                .offer(now, &shape, frame, |frame, part| frame.start + part.start..frame.start + part.end);
        }

        /// All frames that arrive by `end`, with their times.
        fn arrived(&mut self, end: u64) -> Vec<(u64, Frame)> {
            let mut arrived = Vec::new();
            while let Some(due) = self.link.next_due().filter(|due| *due <= end) {
                assert_eq!(self.link.poll_arrived(due - 1), None);
                arrived.push((due, self.link.poll_arrived(due).unwrap()));
            }
            arrived
        }

        fn packets(&mut self, end: u64) -> Vec<u32> {
            self.arrived(end).into_iter().flat_map(|(_, frame)| frame).collect()
        }
    }

    #[test]
    fn a_packet_takes_its_serialisation_and_the_delay() {
        let mut sender = Sender::new(LinkParams { delay: ms(10), ..at_rate(8_000_000) });
        sender.offer(5, Shape::single(1000));
        sender.offer(5, Shape::single(500));
        assert_eq!(sender.arrived(SECOND), [(5 + 11 * MS, 0..1), (5 + 11 * MS + MS / 2, 1..2)]);
    }

    #[test]
    fn without_rate_only_the_delay_counts_and_frames_stay_whole() {
        let mut sender = Sender::new(LinkParams { delay: ms(7), ..LinkParams::default() });
        (0..100).for_each(|_| sender.offer(0, full()));
        let arrived = sender.arrived(SECOND);
        assert_eq!(arrived.len(), 100);
        assert!(arrived.iter().all(|(due, frame)| *due == 7 * MS && frame.len() == 44));
    }

    #[test]
    fn a_second_carries_the_rate_to_the_byte() {
        for rate in [1_000_000, 333_333_333, 10_000_000_000u64] {
            let queue = Some(Queue::Bytes(u64::MAX));
            let mut sender = Sender::new(LinkParams { queue, ..at_rate(rate) });
            let bytes = rate / 8;
            (0..=bytes / full().total_bytes()).for_each(|_| sender.offer(0, full()));
            let arrived = sender.packets(SECOND).len() as u64 * 1514;
            assert!(arrived.abs_diff(bytes) <= full().total_bytes(), "{arrived} of {bytes} at {rate}");
        }
    }

    #[test]
    fn slow_links_cut_frames_and_fast_ones_do_not() {
        let parts = |rate| {
            let mut sender = Sender::new(at_rate(rate));
            sender.offer(0, full());
            let arrived = sender.arrived(SECOND);
            assert_eq!(arrived.iter().map(|(_, frame)| frame.len()).sum::<usize>(), 44);
            arrived.iter().map(|(_, frame)| frame.len()).max().unwrap()
        };
        assert_eq!((parts(10_000_000), parts(100_000_000), parts(2_000_000_000)), (1, 3, 44));
    }

    #[test]
    fn a_full_queue_drops_single_packets_at_the_tail() {
        let queue = Some(Queue::Bytes(100 * 1514));
        let mut sender = Sender::new(LinkParams { queue, ..at_rate(1_000_000_000) });
        (0..3).for_each(|_| sender.offer(0, full()));
        let counters = sender.link.counters(0);
        assert_eq!((counters.packets, counters.overflowed, counters.lost), (100, 32, 0));
        assert_eq!((counters.queue_bytes, counters.queue_peak_bytes), (100 * 1514, 100 * 1514));
        assert_eq!(sender.packets(SECOND), (0..100).collect::<Vec<_>>());
        assert_eq!(sender.link.counters(SECOND).queue_bytes, 0);
    }

    #[test]
    fn a_queue_of_packets_counts_packets_and_empties() {
        let queue = Some(Queue::Packets(10));
        let mut sender = Sender::new(LinkParams { queue, ..at_rate(8 * 1514 * 1000) });
        sender.offer(0, full());
        assert_eq!(sender.link.counters(0).overflowed, 34);
        // One packet per millisecond leaves the queue.
        sender.offer(5 * MS, full());
        assert_eq!(sender.link.counters(5 * MS).overflowed, 34 + 39);
        assert_eq!(sender.packets(SECOND).len(), 15);
    }

    #[test]
    fn an_empty_queue_takes_a_packet_larger_than_its_limit() {
        let mut sender = Sender::new(LinkParams { queue: Some(Queue::Bytes(1)), ..at_rate(8_000_000) });
        sender.offer(0, Shape::single(1500));
        sender.offer(0, Shape::single(1500));
        sender.offer(2 * MS, Shape::single(1500));
        assert_eq!(sender.packets(SECOND), [0, 2]);
    }

    #[test]
    fn an_empty_queue_takes_no_more_of_a_frame_than_its_limit() {
        for queue in [Queue::Bytes(25_000), Queue::Packets(16)] {
            let mut sender = Sender::new(LinkParams { queue: Some(queue), ..at_rate(2_000_000_000) });
            sender.offer(0, full());
            let counters = sender.link.counters(0);
            assert_eq!((counters.packets, counters.overflowed), (16, 28), "{queue:?}");
            assert_eq!(sender.packets(SECOND), (0..16).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_policer_drops_what_exceeds_it_and_delays_nothing() {
        let policer = Some(Policer { rate: 500_000_000, burst: 128_000 });
        let mut sender = Sender::new(LinkParams { policer, delay: ms(10), ..at_rate(2_000_000_000) });
        // Frames as fast as the link carries them: a burst passes, then a quarter of the packets.
        let every = full().total_bytes() * 4;
        (0..1000).for_each(|turn| sender.offer(turn * every, full()));
        let counters = sender.link.counters(1000 * every);
        assert_eq!((counters.packets + counters.policed, counters.overflowed), (44_000, 0));
        let allowed = (1000 * every / 16 + 128_000) / 1514;
        assert!(counters.packets.abs_diff(allowed) < 50, "{} of {allowed}", counters.packets);
        assert!(counters.queue_peak_bytes <= full().total_bytes(), "{counters:?}");
        // The same at half of the contracted rate passes whole.
        let before = counters.policed;
        (1000..2000).for_each(|turn| sender.offer(turn * 8 * every, full()));
        assert_eq!(sender.link.counters(16_000 * every).policed, before);
        // Without a policer all passes again.
        sender.link.set(16_000 * every, at_rate(2_000_000_000), drop);
        (16_000..17_000).for_each(|turn| sender.offer(turn * every, full()));
        assert_eq!(sender.link.counters(17_000 * every).policed, before);
    }

    #[test]
    fn a_loss_takes_one_packet_out_of_a_frame() {
        let loss = Loss::Random(0.001);
        let mut sender = Sender::new(LinkParams { loss, delay: ms(1), ..LinkParams::default() });
        (0..10_000).for_each(|_| sender.offer(0, full()));
        let counters = sender.link.counters(0);
        assert!((350..530).contains(&counters.lost), "{}", counters.lost);
        assert_eq!(counters.lost + counters.packets, 440_000);
        // Each loss splits a frame in two, unless it hit the first or the last packet or two hit the same frame.
        assert!(counters.frames > 10_000 + counters.lost * 8 / 10, "{}", counters.frames);
        let packets = sender.packets(SECOND);
        assert!(packets.is_sorted() && packets.len() as u64 == counters.packets);
    }

    #[test]
    fn jitter_keeps_order_mean_and_bounds() {
        let mut sender = Sender::new(LinkParams { delay: ms(10), jitter: ms(3), ..LinkParams::default() });
        let mut delays = Vec::new();
        for at in (0..200 * SECOND).step_by(10 * MS as usize) {
            sender.offer(at, Shape::single(100));
            sender.offer(at + 1, Shape::single(100));
            let arrived = sender.arrived(at + 20 * MS);
            assert_eq!(arrived.len(), 2);
            delays.push(arrived[0].0 - at);
        }
        let mean = delays.iter().sum::<u64>() / delays.len() as u64;
        assert!(mean.abs_diff(10 * MS) < MS / 10, "{mean}");
        let (least, most) = (delays.iter().min().unwrap(), delays.iter().max().unwrap());
        assert!((7 * MS..8 * MS).contains(least) && (12 * MS..=13 * MS).contains(most), "{least} to {most}");
    }

    #[test]
    fn reordered_packets_come_late_and_are_not_lost() {
        let params = LinkParams { delay: ms(10), reorder: 0.01, ..at_rate(1_000_000_000) };
        let mut sender = Sender::new(params);
        (0..1000).for_each(|turn| sender.offer(turn * MS, full()));
        let counters = sender.link.counters(SECOND);
        let packets = sender.packets(2 * SECOND);
        let late = packets.windows(2).filter(|pair| pair[0] > pair[1]).count() as u64;
        assert!((370..510).contains(&counters.reordered), "{}", counters.reordered);
        assert!(late > counters.reordered * 3 / 4, "{late} of {}", counters.reordered);
        let mut sorted = packets;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..44_000).collect::<Vec<_>>());
    }

    #[test]
    fn a_new_rate_holds_for_what_waits() {
        let mut sender = Sender::new(LinkParams { delay: ms(1), ..at_rate(8_000_000) });
        (0..10).for_each(|_| sender.offer(0, Shape::single(1000)));
        // Half of the third packet is left; it is sent again in full, at ten times the rate.
        sender.link.set(2 * MS + MS / 2, LinkParams { delay: ms(1), ..at_rate(80_000_000) }, drop);
        let dues: Vec<_> = sender.arrived(SECOND).iter().map(|(due, _)| *due).collect();
        assert_eq!(dues[..3], [2 * MS, 3 * MS, 3 * MS + MS / 2 + MS / 10]);
        assert_eq!(dues[9], 3 * MS + MS / 2 + 8 * MS / 10);
    }

    #[test]
    fn a_link_that_is_down_loses_everything() {
        let mut sender = Sender::new(LinkParams { delay: ms(10), ..at_rate(8_000_000) });
        (0..3).for_each(|_| sender.offer(0, Shape::single(1000)));
        let mut dropped = 0;
        sender.link.set(MS, LinkParams { up: false, ..LinkParams::default() }, |_| dropped += 1);
        sender.offer(MS, full());
        assert_eq!((dropped, sender.link.counters(MS).dropped, sender.link.next_due()), (3, 47, None));
        sender.link.set(2 * MS, LinkParams::default(), drop);
        sender.offer(2 * MS, Shape::single(1000));
        assert_eq!(sender.arrived(SECOND), [(2 * MS, 47..48)]);
    }
}
