//! Finds how much a path carries, and keeps all streams of a session together at just that.
//!
//! Streams that each seek their own share overshoot together: the queue before the bottleneck stays full, overflows,
//! and every stream then repairs what was lost. So as soon as a path overflows, the streams are paced in sum to the largest
//! rate that came through lately, below it while there is a queue to drain, and now and then above it to find out
//! whether there is more. This is what BBR does for one
//! connection (Cardwell et al., "BBR: congestion-based congestion control", ACM Queue 14/5), done for their sum:
//! the inter-packet gap of Data Reservoir, set from what was measured.

use std::collections::VecDeque;
use std::time::Duration;

/// A round is at least so long: shorter ones measure bursts, not rates.
const SHORTEST_ROUND: Duration = Duration::from_millis(200);
/// Rounds a measured rate is believed.
const MEMORY: usize = 10;
/// Rounds of one probing cycle, as BBR has.
const CYCLE: u32 = 8;
/// Bytes sent again in a round, of all that arrived, from which on the path is taken to overflow; random loss on
/// research networks is far below it.
const OVERFLOW: f64 = 0.02;
/// A round trip so much longer than the shortest is a queue.
const QUEUE: f64 = 1.25;
/// Differences of round trips below this are noise of the hosts.
const NOISE: Duration = Duration::from_millis(2);
/// Just below what the path carries, where there is no room for a queue.
const BELOW: f64 = 0.99;
/// Less than this share of what the path carries, and no queue: some streams rest (BBR lets each look for the shortest
/// round trip now and then), and the others may take their part.
const RESTING: f64 = 0.98;
/// To empty a queue that is there.
const DRAIN: f64 = 0.92;
/// To see whether there is more, where the last look caused no loss.
const PROBE: f64 = 1.25;
/// The same after it did.
const CAREFUL_PROBE: f64 = 1.03;

/// Less than this share of what was allowed, and no queue: there was not more to send. Such a round tells nothing.
const IDLE: f64 = 0.5;
/// Bytes in a round from which on a loss tells that the path is full; of few packets, one is already many percent.
const TELLING_BYTES: u64 = 1 << 20;
/// Rounds in which a queue must have become shorter, or it is not ours to drain.
const DRAIN_ROUNDS: u32 = 3;
/// However bad the path seems, the streams together may have so much, in bytes per second, and this share of the best
/// rate there was: below it the single connection's own control is enough.
const FLOOR: f64 = 1e6;
/// See [`FLOOR`].
const FLOOR_SHARE: f64 = 1.0 / 8.0;

/// What all streams of a session did in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Round {
    /// Bytes that arrived.
    pub bytes: u64,
    /// Bytes that arrived, per second.
    pub rate: f64,
    /// Bytes sent again, of those that arrived.
    pub resent: f64,
    /// Mean round trip.
    pub rtt: Duration,
    /// Shortest round trip ever.
    pub min_rtt: Duration,
}

impl Round {
    fn has_queue(&self) -> bool {
        self.rtt > self.min_rtt.mul_f64(QUEUE).max(self.min_rtt + NOISE)
    }

    fn overflows(&self) -> bool {
        self.resent > OVERFLOW && self.bytes >= TELLING_BYTES
    }
}

/// The capacity of a path as far as it is known.
#[derive(Debug, Default)]
pub struct Capacity {
    rates: VecDeque<f64>,
    best: f64,
    paced: Option<Paced>,
}

/// What is kept once the streams are paced.
#[derive(Debug, Default)]
struct Paced {
    rounds: u32,
    /// The rate for all streams together in the round that ended.
    total: f64,
    careful: bool,
    /// Rounds in a row that drained a queue, and the round trip before the last of them.
    draining: (u32, Duration),
}

impl Capacity {
    /// How long the next round takes on a path with this round trip.
    pub fn round(rtt: Duration) -> Duration {
        rtt.max(SHORTEST_ROUND)
    }

    /// Whether the path overflowed, and the streams are paced since.
    pub fn is_full(&self) -> bool {
        self.paced.is_some()
    }

    /// Takes one round; gives the rate for all streams together in the next, or `None` to leave them free.
    pub fn on_round(&mut self, round: &Round) -> Option<f64> {
        if self.paced.is_none() && !round.overflows() {
            self.note(round.rate);
            return None;
        }
        let mut paced = self.paced.take().unwrap_or_default();
        let full = round.overflows() || round.has_queue();
        if full || round.rate >= IDLE * paced.total {
            self.note(round.rate);
        }
        let most = self.rates.iter().copied().fold(0.0, f64::max);
        paced.rounds += 1;
        paced.total = (paced.gain(round, most) * most).max(FLOOR).max(FLOOR_SHARE * self.best);
        Some(self.paced.insert(paced).total)
    }

    fn note(&mut self, rate: f64) {
        self.best = self.best.max(rate);
        self.rates.push_back(rate);
        if self.rates.len() > MEMORY {
            self.rates.pop_front();
        }
    }
}

impl Paced {
    /// How much of the largest rate that came through lately is sent in the next round.
    fn gain(&mut self, round: &Round, most: f64) -> f64 {
        let step = self.rounds % CYCLE;
        if self.rounds == 1 || step == 1 {
            self.careful = round.overflows();
        }
        if step == 0 {
            return if self.careful || round.has_queue() { CAREFUL_PROBE } else { PROBE };
        }
        if self.drains(round) {
            return DRAIN;
        }
        match round.rate {
            _ if self.careful => BELOW,
            rate if rate >= RESTING * most => 1.0,
            rate if rate >= IDLE * most => (most / rate).min(PROBE),
            _ => 1.0,
        }
    }

    /// Whether there is a queue that becomes shorter when less is sent. One that others fill does not.
    fn drains(&mut self, round: &Round) -> bool {
        if !round.has_queue() {
            self.draining = (0, Duration::MAX);
            return false;
        }
        let (rounds, before) = self.draining;
        if rounds >= DRAIN_ROUNDS && round.rtt >= before {
            return false;
        }
        self.draining = (rounds + 1, round.rtt);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    /// A bottleneck of `capacity` bytes per second before which `queue` bytes fit.
    struct Path {
        capacity: f64,
        queue: f64,
        queued: f64,
    }

    impl Path {
        fn send(&mut self, rate: f64, elapsed: Duration) -> Round {
            let seconds = elapsed.as_secs_f64();
            let arrived = (rate * seconds + self.queued).min(self.capacity * seconds);
            self.queued += rate * seconds - arrived;
            let lost = (self.queued - self.queue).max(0.0);
            self.queued -= lost;
            let rtt = RTT + Duration::from_secs_f64(self.queued / self.capacity);
            Round {
                bytes: arrived as u64,
                rate: arrived / seconds,
                resent: lost / arrived,
                rtt,
                min_rtt: RTT,
            }
        }
    }

    /// Lets the sender do what it is told, or double every round while it is free; gives (rate, resent) of each round.
    fn drive(path: &mut Path, capacity: &mut Capacity, rounds: usize) -> Vec<(f64, f64)> {
        let mut rate = 1e6;
        let step = |_| {
            let round = path.send(rate, Capacity::round(RTT));
            rate = capacity.on_round(&round).unwrap_or(rate * 2.0);
            (round.rate, round.resent)
        };
        (0..rounds).map(step).collect()
    }

    fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
        let count = values.len() as f64;
        values.sum::<f64>() / count
    }

    #[test]
    fn a_path_is_filled_and_does_not_overflow_again() {
        let mut path = Path { capacity: 250e6, queue: 25e6, queued: 0.0 };
        let seen = drive(&mut path, &mut Capacity::default(), 200);
        let steady = &seen[20..];
        assert!(mean(steady.iter().map(|round| round.0)) > 0.96 * 250e6, "{seen:?}");
        assert!(mean(steady.iter().map(|round| round.1)) < 0.01, "{seen:?}");
    }

    #[test]
    fn a_shallow_queue_costs_little() {
        let mut path = Path { capacity: 250e6, queue: 0.25e6, queued: 0.0 };
        let seen = drive(&mut path, &mut Capacity::default(), 200);
        let steady = &seen[20..];
        assert!(mean(steady.iter().map(|round| round.0)) > 0.96 * 250e6, "{seen:?}");
        assert!(mean(steady.iter().map(|round| round.1)) < 0.01, "{seen:?}");
    }

    #[test]
    fn more_is_found_when_there_is_more() {
        let (mut path, mut capacity) =
            (Path { capacity: 100e6, queue: 5e6, queued: 0.0 }, Capacity::default());
        drive(&mut path, &mut capacity, 50);
        path.capacity = 250e6;
        let mut rate = 100e6;
        for _ in 0..100 {
            let round = path.send(rate, Capacity::round(RTT));
            rate = capacity.on_round(&round).unwrap();
        }
        assert!(rate > 0.9 * 250e6, "{rate}");
    }

    #[test]
    fn less_is_accepted_when_there_is_less() {
        let (mut path, mut capacity) =
            (Path { capacity: 250e6, queue: 5e6, queued: 0.0 }, Capacity::default());
        drive(&mut path, &mut capacity, 50);
        path.capacity = 50e6;
        let mut rate = 250e6;
        for _ in 0..30 {
            let round = path.send(rate, Capacity::round(RTT));
            rate = capacity.on_round(&round).unwrap();
        }
        assert!(rate < 1.3 * 50e6, "{rate}");
    }

    #[test]
    fn random_loss_does_not_bind_the_streams() {
        let mut capacity = Capacity::default();
        let round = Round { bytes: 10 << 20, rate: 1e6, resent: 0.001, rtt: RTT, min_rtt: RTT };
        assert!((0..50).all(|_| capacity.on_round(&round).is_none()));
    }

    #[test]
    fn a_pause_does_not_make_the_path_smaller() {
        let (mut path, mut capacity) =
            (Path { capacity: 100e6, queue: 5e6, queued: 0.0 }, Capacity::default());
        drive(&mut path, &mut capacity, 50);
        let pause = Round { bytes: 0, rate: 0.0, resent: 0.0, rtt: RTT, min_rtt: RTT };
        let rates: Vec<f64> = (0..50).map(|_| capacity.on_round(&pause).unwrap()).collect();
        assert!(rates.iter().all(|rate| *rate > 0.9 * 100e6), "{rates:?}");
    }

    #[test]
    fn a_loss_among_few_packets_tells_nothing() {
        let mut capacity = Capacity::default();
        let sparse = Round { bytes: 14_480, rate: 144_800.0, resent: 0.1, rtt: RTT, min_rtt: RTT };
        assert!((0..20).all(|_| capacity.on_round(&sparse).is_none()));
    }

    #[test]
    fn a_queue_of_others_does_not_starve_the_streams() {
        let (mut path, mut capacity) =
            (Path { capacity: 100e6, queue: 5e6, queued: 0.0 }, Capacity::default());
        drive(&mut path, &mut capacity, 50);
        let mut rate = 100e6;
        for _ in 0..500 {
            // All that is sent arrives, and the queue stays.
            let round = Round { bytes: 10 << 20, rate, resent: 0.0, rtt: 2 * RTT, min_rtt: RTT };
            rate = capacity.on_round(&round).unwrap();
        }
        assert!(rate > 100e6 / 10.0, "{rate}");
    }
}
