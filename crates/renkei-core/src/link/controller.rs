//! The controller of one path and direction: stream count, and the rate each stream may send at.
//!
//! Streams are unpaced, except when the path is full: then their sum is paced to its capacity (see
//! [`super::capacity`]). Or when they drift apart: then those far above the median are paced to it for a while, so
//! that the slow ones can catch up (the cooperative window of Data Reservoir: slowing the fast ones raises the total
//! on a long path).

use super::busy::{Busy, SIGN_OF_LIFE};
use super::capacity::{self, Capacity};
pub use super::sample::Sample;
use super::sample::round;
use super::starved::Starved;
use std::time::Duration;

/// Below this RTT a path is local: two streams per core keep the processor busy while others wait for the disk.
const LOCAL_RTT: Duration = Duration::from_millis(1);
/// Streams on a longer path. WDT's default, and the number from which mscp gains no more (both in the field's
/// reports). The faster each stream is, the larger the kernel's bursts.
const FAR_STREAMS: u16 = 8;
/// From this RTT on, the time that all streams together need for slow start dominates.
const LONG_RTT: Duration = Duration::from_millis(60);
/// Streams on such a path with loss-based congestion control.
const LONG_STREAMS: u16 = 16;
/// A stream is fast if it is above this multiple of the median.
const FAST: f64 = 1.25;
/// The pacing of fast streams ends when the slowest has come this near to the median.
const CAUGHT_UP: f64 = 0.8;
/// Rates are measured over this time, or two RTTs if that is longer.
const WINDOW: Duration = Duration::from_secs(1);

/// Sampling interval of streams on a local path.
const NEAR_INTERVAL: Duration = Duration::from_millis(50);
/// Relative change of pacing below which it is not updated.
const SAME: f64 = 0.01;

/// RTT of half around the world.
const LONGEST_RTT: Duration = Duration::from_millis(200);
/// Streams on such a path with loss-based congestion control.
const LONGEST_STREAMS: u16 = 32;

/// Whether a path is long enough that RTTs cost more than processor time.
pub fn is_far(rtt: Duration) -> bool {
    rtt >= LOCAL_RTT
}

/// Whether a path is so long that the streams' slow start dominates.
pub fn is_long(rtt: Duration) -> bool {
    rtt >= LONG_RTT
}

/// Number of streams of a new session; `bears_loss` says whether their congestion control is not loss-based.
pub fn initial_streams(rtt: Duration, cores: usize, bears_loss: bool) -> u16 {
    match rtt {
        near if !is_far(near) => (2 * cores).clamp(2, 8) as u16,
        _ if bears_loss => FAR_STREAMS,
        long if long >= LONGEST_RTT => LONGEST_STREAMS,
        long if is_long(long) => LONG_STREAMS,
        _ => FAR_STREAMS,
    }
}

/// Pacing of the streams.
#[derive(Clone, Debug, PartialEq)]
pub struct Pacing {
    /// Bytes per second for each stream; `None` is unpaced.
    pub rates: Vec<Option<u64>>,
    /// Whether the streams bound their writes, so that the kernel hands over few packets at once.
    pub bounds_writes: bool,
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
    /// The share of each stream of the capacity.
    shared: Option<u64>,
    busy: Busy,
}

impl Controller {
    /// A controller for `streams` streams; `bears_loss` says whether their congestion control is not loss-based.
    pub fn new(streams: usize, bears_loss: bool) -> Self {
        Controller {
            window_start: Duration::ZERO,
            base: vec![Sample::default(); streams],
            held: false,
            pacing: Pacing { rates: vec![None; streams], bounds_writes: false },
            capacity: Capacity::new(bears_loss),
            starved: Starved::default(),
            interval: NEAR_INTERVAL,
            shared: None,
            busy: Busy::new(&vec![Sample::default(); streams]),
        }
    }

    /// Resumes with the same streams after a pause, from their present kernel counters. Knowledge of the path is
    /// kept.
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

    /// Whether the path was found full, so that the streams are paced.
    pub fn is_full(&self) -> bool {
        self.capacity.is_full()
    }

    /// How often the streams have to be restarted; see [`Capacity::restarts`].
    pub fn restarts(&self) -> u32 {
        self.capacity.restarts()
    }

    /// Whether BBR, if the streams use it, is starved: its window does not fill the path because the RTTs vary too
    /// much.
    pub fn is_starved(&self) -> bool {
        self.starved.is_starved()
    }

    /// The present pacing.
    pub fn pacing(&self) -> &Pacing {
        &self.pacing
    }

    /// Sampling interval.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Takes one sample of each stream; returns whether the pacing changed.
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
        // An idle stream is neither fast nor slow.
        let rate = |(now, before): (&Sample, &Sample)| {
            let moved = now.delivered_bytes.saturating_sub(before.delivered_bytes);
            (moved > SIGN_OF_LIFE).then_some(moved as f64 / elapsed.as_secs_f64())
        };
        let rates: Vec<Option<f64>> = samples.iter().zip(&self.base).map(rate).collect();
        self.base = samples.to_vec();
        self.window_start = now;
        self.judge(&rates)
    }

    /// Paces the sum of all streams to the path's capacity, once it is full.
    fn share_capacity(&mut self, now: Duration, samples: &[Sample]) -> bool {
        let sum = sum_of(samples);
        self.interval = interval(&sum);
        self.starved.on_sum(now, &sum);
        let seen = if self.is_starved() { Sample { rtt: sum.min_rtt, ..sum } } else { sum };
        let total = self.capacity.on_sum(now, &seen);
        self.busy.on_samples(now, round(sum.min_rtt), samples);
        let share = total.map(|total| self.busy.share(total));
        let bounds_writes = self.capacity.bounds_writes();
        let switches = std::mem::replace(&mut self.pacing.bounds_writes, bounds_writes) != bounds_writes;
        let changed = differs(share, self.shared);
        if changed {
            self.shared = share;
            self.pacing.rates.fill(share);
        }
        changed || switches
    }

    /// Paces streams that are far ahead of the others, until those have caught up or have no more to send; `rates`
    /// are those of the streams that sent.
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

/// Sampling interval of streams with this sum of counters.
fn interval(sum: &Sample) -> Duration {
    if is_far(sum.min_rtt) { capacity::interval(sum.min_rtt) } else { NEAR_INTERVAL }
}

/// Whether a rate differs enough from the set one to be worth a system call per stream.
fn differs(rate: Option<u64>, set: Option<u64>) -> bool {
    match (rate, set) {
        (Some(rate), Some(set)) => rate.abs_diff(set) as f64 > SAME * set as f64,
        (rate, set) => rate != set,
    }
}

/// The sum of all streams: their bytes, their mean RTT and the minimum RTT of all.
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

    /// Sampling interval in the tests.
    const LOOK: Duration = Duration::from_millis(50);

    fn sample(delivered_bytes: u64) -> Sample {
        let rtt = Duration::from_millis(350);
        Sample { delivered_bytes, lost_bytes: 0, rtt, min_rtt: rtt }
    }

    /// A controller of this many streams on a path found full, because every stream lost a tenth of its bytes.
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
    fn fast_streams_are_released_when_the_others_have_nothing_to_send() {
        let mut controller = Controller::new(4, false);
        let second = Duration::from_secs(1);
        let first = [sample(10_000), sample(10_000), sample(20_000), sample(4_000_000)];
        assert!(controller.on_samples(second, &first));
        assert!(controller.pacing().rates[3].is_some());
        // Only keep-alives, and at last not even those.
        let next = [sample(10_100), sample(10_000), sample(20_000), sample(4_020_000)];
        assert!(controller.on_samples(2 * second, &next));
        assert_eq!(controller.pacing().rates, [None; 4]);
    }

    #[test]
    fn the_capacity_of_a_full_path_is_remembered_after_a_pause() {
        let full = on_full_path(2);
        let pacing = full.pacing().clone();
        let now = [sample(70_000_000), sample(80_000_000)];
        let mut resumed = full.resume(&now);
        assert!(resumed.is_full() && *resumed.pacing() == pacing);
        // Bytes delivered before the pause are not counted as a rate.
        for step in 1..=40 {
            let later = now.map(|before| sample(before.delivered_bytes + step * 1_000_000));
            resumed.on_samples(LOOK * step as u32, &later);
        }
        assert!(resumed.pacing().rates[0].is_some_and(|rate| rate < 30_000_000), "{:?}", resumed.pacing());
    }

    #[test]
    fn streams_with_nothing_to_send_yield_their_share() {
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
