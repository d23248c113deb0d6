//! Detects that BBR's congestion window keeps streams from filling a path whose round-trip times vary much.
//!
//! BBR limits the data in flight to twice its bandwidth estimate times the minimum RTT. Where most RTTs are longer
//! than twice the minimum, as over a radio link or a host with late acknowledgements, fewer bytes are delivered than
//! estimated, the estimate falls, and the rate falls for as long as the transfer runs. Nothing is lost meanwhile, so
//! a loss-based congestion control does better there.

use super::sample::{Sample, round};
use std::time::Duration;

/// Ratio of mean to minimum RTT above which a BBR window of twice the minimum RTT holds less than one RTT's worth of
/// data. Its own queue does not reach this ratio.
const LONG: f64 = 2.5;
/// Consecutive rounds without loss that show it.
const ROUNDS: u32 = 6;
/// Samples over which the mean RTT is averaged.
const WEIGHT: u32 = 16;

/// Counters of all streams of a session over the last rounds.
#[derive(Debug, Default)]
pub struct Starved {
    mean_rtt: Duration,
    /// When the present round began, and the counters then.
    since: Duration,
    before: Sample,
    rounds: u32,
}

impl Starved {
    /// Takes the sum of all streams' counters at `now`.
    pub fn on_sum(&mut self, now: Duration, sum: &Sample) {
        self.mean_rtt = (self.mean_rtt * (WEIGHT - 1) + sum.rtt) / WEIGHT;
        if now < self.since + round(sum.min_rtt) {
            return;
        }
        let is_sent = sum.delivered_bytes > self.before.delivered_bytes;
        let is_whole = sum.lost_bytes == self.before.lost_bytes;
        let is_long = self.mean_rtt > sum.min_rtt.mul_f64(LONG);
        if !self.is_starved() {
            self.rounds = if is_sent && is_whole && is_long { self.rounds + 1 } else { 0 };
        }
        (self.since, self.before) = (now, *sum);
    }

    /// Whether the streams should change to another congestion control; their RTTs then tell nothing of a queue.
    pub fn is_starved(&self) -> bool {
        self.rounds >= ROUNDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Simulates this many bytes, losses and this RTT in each tenth of a second, for six seconds.
    fn is_starved_by(bytes: u64, resent: u64, rtt_ms: u32) -> bool {
        let mut starved = Starved::default();
        let mut sum = Sample { min_rtt: 20 * MS, rtt: rtt_ms * MS, ..Sample::default() };
        for step in 1..=60 {
            sum.delivered_bytes += bytes;
            sum.lost_bytes += resent;
            starved.on_sum(step * 100 * MS, &sum);
        }
        starved.is_starved()
    }

    #[test]
    fn long_round_trips_without_a_loss_are_starvation() {
        assert!(is_starved_by(2_000_000, 0, 90));
    }

    #[test]
    fn an_own_queue_a_loss_or_a_pause_is_not_starvation() {
        assert!(!is_starved_by(20_000_000, 0, 45));
        assert!(!is_starved_by(2_000_000, 1448, 90));
        assert!(!is_starved_by(0, 0, 90));
    }
}
