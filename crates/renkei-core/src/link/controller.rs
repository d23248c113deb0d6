//! The controller of one path and direction: stream count, and the rate each stream may send at.
//!
//! No stream is paced, unless the path is full: then all are
//! paced in sum to what it carries (see [`super::capacity`]). Or unless the streams drift apart: then those far above
//! the median are held to it for a while, so that the slow ones can catch up (the cooperative window of Data
//! Reservoir: slowing the fast ones raises the total on a long path).

use super::busy::{Busy, SIGN_OF_LIFE};
use super::capacity::{self, Capacity};
use super::starved::Starved;
use std::time::Duration;

/// Below this round trip a path is local: two streams a core keep the processor busy while others wait for the disk.
const LOCAL_RTT: Duration = Duration::from_millis(1);
/// Streams on a longer path. WDT's default, and where mscp stops to gain (both in the field's reports). The faster each is, the
/// more packets the kernel sends at once.
const FAR_STREAMS: u16 = 8;
/// From this round trip on, the time all streams together need to open their windows is what counts.
const LONG_RTT: Duration = Duration::from_millis(60);
/// Streams on such a path where loss slows each of them.
const LONG_STREAMS: u16 = 16;
/// A stream is fast if it is so much above the median.
const FAST: f64 = 1.25;
/// Held streams are let go when the slowest has come so near the median.
const CAUGHT_UP: f64 = 0.8;
/// Rates are judged over this time, or two round trips if that is longer.
const WINDOW: Duration = Duration::from_secs(1);

/// How often streams on a local path are looked at.
const NEAR_INTERVAL: Duration = Duration::from_millis(50);
/// Pacing that differs by less is left as it is.
const SAME: f64 = 0.01;

/// Round trips half around the world.
const LONGEST_RTT: Duration = Duration::from_millis(200);
/// Streams on such a path where loss slows each of them.
const LONGEST_STREAMS: u16 = 32;

/// Whether a path is long enough that round trips cost more than processor time.
pub fn is_far(rtt: Duration) -> bool {
    rtt >= LOCAL_RTT
}

/// Whether a path is so long that what counts is how soon the streams' windows are open.
pub fn is_long(rtt: Duration) -> bool {
    rtt >= LONG_RTT
}

/// How many streams a new session opens; `bears_loss` says whether their congestion control does not take loss for a full queue.
pub fn initial_streams(rtt: Duration, cores: usize, bears_loss: bool) -> u16 {
    match rtt {
        near if !is_far(near) => (2 * cores).clamp(2, 8) as u16,
        _ if bears_loss => FAR_STREAMS,
        long if long >= LONGEST_RTT => LONGEST_STREAMS,
        long if is_long(long) => LONG_STREAMS,
        _ => FAR_STREAMS,
    }
}

/// What one stream did, as the kernel counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Bytes that arrived since the stream began, in order or not.
    pub delivered_bytes: u64,
    /// Bytes lost since then: sent again, or known to be lost and not sent again yet.
    pub lost_bytes: u64,
    /// Round trip now.
    pub rtt: Duration,
    /// Shortest round trip so far.
    pub min_rtt: Duration,
}

/// What the streams should do.
#[derive(Clone, Debug, PartialEq)]
pub struct Pacing {
    /// Bytes per second for each stream; `None` is unpaced.
    pub rates: Vec<Option<u64>>,
}

/// The controller.
pub struct Controller {
    window_start: Duration,
    base: Vec<Sample>,
    held: bool,
    pacing: Pacing,
    capacity: Capacity,
    starved: Starved,
    interval: Duration,
    /// What each stream has of it.
    shared: Option<u64>,
    busy: Busy,
}

impl Controller {
    /// For so many streams; `bears_loss` says whether their congestion control does not take loss for a full queue.
    pub fn new(streams: usize, bears_loss: bool) -> Self {
        Controller {
            window_start: Duration::ZERO,
            base: vec![Sample::default(); streams],
            held: false,
            pacing: Pacing { rates: vec![None; streams] },
            capacity: Capacity::new(bears_loss),
            starved: Starved::default(),
            interval: NEAR_INTERVAL,
            shared: None,
            busy: Busy::new(&vec![Sample::default(); streams]),
        }
    }

    /// Goes on with the same streams after a pause, from what the kernel counts of them now. What was learnt of the
    /// path stays.
    pub fn resume(self, samples: &[Sample]) -> Self {
        let (base, busy, interval) = (samples.to_vec(), Busy::new(samples), interval(&sum_of(samples)));
        let fresh =
            Controller { base, busy, interval, ..Controller::new(samples.len(), self.capacity.bears_loss()) };
        if samples.len() != self.base.len() || !self.capacity.is_full() {
            return fresh;
        }
        let Controller { capacity, pacing, shared, .. } = self;
        Controller { capacity: capacity.resume(sum_of(samples)), pacing, shared, ..fresh }
    }

    /// Whether the path was found full, and the streams are paced to it.
    pub fn is_full(&self) -> bool {
        self.capacity.is_full()
    }

    /// How often the streams have to be started anew; see [`Capacity::restarts`].
    pub fn restarts(&self) -> u32 {
        self.capacity.restarts()
    }

    /// Whether BBR, if the streams have it, keeps them from filling the path, for its round trips vary too much.
    pub fn is_starved(&self) -> bool {
        self.starved.is_starved()
    }

    /// What the streams should do now.
    pub fn pacing(&self) -> &Pacing {
        &self.pacing
    }

    /// How long after one sample of each stream the next is due.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Takes one sample of each stream; true if the pacing changed.
    pub fn on_samples(&mut self, now: Duration, samples: &[Sample]) -> bool {
        if samples.len() != self.base.len() {
            return false;
        }
        let shared = self.share_capacity(now, samples);
        if shared || self.capacity.is_full() {
            return shared;
        }
        let longest = samples.iter().map(|sample| sample.rtt).max().unwrap_or_default();
        let elapsed = now.saturating_sub(self.window_start);
        if elapsed < WINDOW.max(2 * longest) {
            return false;
        }
        // One with nothing to send is neither fast nor slow.
        let rate = |(now, before): (&Sample, &Sample)| {
            let moved = now.delivered_bytes.saturating_sub(before.delivered_bytes);
            (moved > SIGN_OF_LIFE).then_some(moved as f64 / elapsed.as_secs_f64())
        };
        let rates: Vec<Option<f64>> = samples.iter().zip(&self.base).map(rate).collect();
        self.base = samples.to_vec();
        self.window_start = now;
        self.judge(&rates)
    }

    /// Paces all streams together at what the path carries, once it is full.
    fn share_capacity(&mut self, now: Duration, samples: &[Sample]) -> bool {
        let sum = sum_of(samples);
        self.interval = interval(&sum);
        self.starved.on_sum(now, &sum);
        let seen = if self.is_starved() { Sample { rtt: sum.min_rtt, ..sum } } else { sum };
        let total = self.capacity.on_sum(now, &seen);
        self.busy.on_samples(now, capacity::round(sum.min_rtt), samples);
        let share = total.map(|total| self.busy.share(total));
        let changed = differs(share, self.shared);
        if changed {
            self.shared = share;
            self.pacing.rates.fill(share);
        }
        changed
    }

    /// Holds streams that are far ahead of the others, and lets go of them when those have caught up or have no more to
    /// send; `rates` are those of the streams that sent.
    fn judge(&mut self, rates: &[Option<f64>]) -> bool {
        let mut sorted: Vec<f64> = rates.iter().copied().flatten().collect();
        sorted.sort_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
        if sorted.len() < 3 || sorted[0] >= CAUGHT_UP * median {
            let was_held = std::mem::take(&mut self.held);
            if was_held {
                self.pacing.rates.fill(None);
            }
            return was_held;
        }
        if sorted[sorted.len() - 1] <= FAST * median {
            return false;
        }
        self.held = true;
        let hold = |rate: f64| (rate > FAST * median).then_some((FAST * median) as u64);
        let next: Vec<Option<u64>> = rates.iter().map(|rate| rate.and_then(hold)).collect();
        let changed = next != self.pacing.rates;
        self.pacing.rates = next;
        changed
    }
}

/// How often streams that together did this must be looked at.
fn interval(sum: &Sample) -> Duration {
    if is_far(sum.min_rtt) { capacity::interval(sum.min_rtt) } else { NEAR_INTERVAL }
}

/// Whether a rate is so different from what is set that it is worth a system call a stream.
fn differs(rate: Option<u64>, set: Option<u64>) -> bool {
    match (rate, set) {
        (Some(rate), Some(set)) => rate.abs_diff(set) as f64 > SAME * set as f64,
        (rate, set) => rate != set,
    }
}

/// All streams as one: their bytes together, their mean round trip and the shortest of all.
fn sum_of(samples: &[Sample]) -> Sample {
    let rtt = samples.iter().map(|sample| sample.rtt).sum::<Duration>() / samples.len().max(1) as u32;
    Sample {
        delivered_bytes: samples.iter().map(|sample| sample.delivered_bytes).sum(),
        lost_bytes: samples.iter().map(|sample| sample.lost_bytes).sum(),
        rtt,
        min_rtt: samples.iter().map(|sample| sample.min_rtt).min().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between two looks at the streams.
    const LOOK: Duration = Duration::from_millis(50);

    fn sample(delivered_bytes: u64) -> Sample {
        let rtt = Duration::from_millis(350);
        Sample { delivered_bytes, lost_bytes: 0, rtt, min_rtt: rtt }
    }

    /// A controller of so many streams on a path that was found full, for every stream lost a tenth of what it sent.
    fn on_full_path(streams: usize) -> Controller {
        let mut controller = Controller::new(streams, false);
        let lossy = |step: u64| Sample { lost_bytes: step * 100_000, ..sample(step * 1_000_000) };
        let mut look = |step: u64| controller.on_samples(LOOK * step as u32, &vec![lossy(step); streams]);
        assert!((0..20).any(&mut look));
        assert!(controller.is_full());
        controller
    }

    #[test]
    fn a_full_path_is_shared_evenly() {
        let controller = on_full_path(2);
        let rates = &controller.pacing().rates;
        let carried = 19_000_000..21_500_000;
        assert!(rates[0] == rates[1] && rates[0].is_some_and(|rate| carried.contains(&rate)), "{rates:?}");
    }

    #[test]
    fn near_paths_get_two_streams_a_core_and_far_ones_more() {
        let streams =
            |rtt_us, cores, bears_loss| initial_streams(Duration::from_micros(rtt_us), cores, bears_loss);
        assert_eq!((streams(80, 2, true), streams(80, 64, false)), (4, 8));
        assert_eq!([10_000, 100_000, 350_000].map(|rtt| streams(rtt, 2, true)), [8, 8, 8]);
        assert_eq!([10_000, 100_000, 350_000].map(|rtt| streams(rtt, 2, false)), [8, 16, 32]);
    }

    #[test]
    fn fast_streams_are_held_until_the_slow_ones_caught_up() {
        let mut controller = Controller::new(4, false);
        let second = Duration::from_secs(1);
        assert!(!controller.on_samples(second / 2, &[sample(1); 4]), "too early to judge");
        let first = [sample(100_000), sample(1_000_000), sample(1_000_000), sample(4_000_000)];
        assert!(controller.on_samples(second, &first));
        assert_eq!(controller.pacing().rates, [None, None, None, Some(1_250_000)]);
        let next = first.map(|before| sample(before.delivered_bytes + 1_000_000));
        assert!(controller.on_samples(2 * second, &next));
        assert_eq!(controller.pacing().rates, [None; 4]);
    }

    #[test]
    fn fast_streams_are_let_go_when_the_others_have_no_more_to_send() {
        let mut controller = Controller::new(4, false);
        let second = Duration::from_secs(1);
        let first = [sample(10_000), sample(10_000), sample(20_000), sample(4_000_000)];
        assert!(controller.on_samples(second, &first));
        assert!(controller.pacing().rates[3].is_some());
        // Signs of life alone, and at last not even those.
        let next = [sample(10_100), sample(10_000), sample(20_000), sample(4_020_000)];
        assert!(controller.on_samples(2 * second, &next));
        assert_eq!(controller.pacing().rates, [None; 4]);
    }

    #[test]
    fn a_path_that_was_full_is_known_after_a_pause() {
        let full = on_full_path(2);
        let pacing = full.pacing().clone();
        let now = [sample(70_000_000), sample(80_000_000)];
        let mut resumed = full.resume(&now);
        assert!(resumed.is_full() && *resumed.pacing() == pacing);
        // What arrived before the pause is not taken for a rate.
        for step in 1..=40 {
            let later = now.map(|before| sample(before.delivered_bytes + step * 1_000_000));
            resumed.on_samples(LOOK * step as u32, &later);
        }
        assert!(resumed.pacing().rates[0].is_some_and(|rate| rate < 30_000_000), "{:?}", resumed.pacing());
    }

    #[test]
    fn streams_with_nothing_to_send_leave_their_share() {
        let mut controller = on_full_path(4);
        let before = controller.pacing().rates[0].unwrap();
        let still = sample(20_000_000);
        for step in 20..60u32 {
            let one = sample(20_000_000 + 100_000 * u64::from(step));
            controller.on_samples(LOOK * step, &[one, still, still, still]);
        }
        assert!(controller.pacing().rates[0].unwrap() > before, "{:?}", controller.pacing());
    }

    #[test]
    fn even_streams_are_left_alone() {
        let mut controller = Controller::new(4, false);
        for step in 1..10u64 {
            let samples = [sample(step * 900), sample(step * 1000), sample(step * 1000), sample(step * 1100)];
            assert!(!controller.on_samples(Duration::from_secs(step), &samples));
        }
    }
}
