//! Detects the streams of a session that have data to send, and divides a rate fairly among them (max-min fairness).
//!
//! A file of a few megabytes is sent by one stream. If each stream had an equal share of the rate, that file would
//! move at a fraction of it and the rest would be unused; so idle streams give their shares to the others, and a
//! stream slower than its share gives up what it does not use.

use super::sample::Sample;
use std::time::Duration;

/// A stream that delivers no more than this in a round is idle: these are keep-alives.
pub(super) const SIGN_OF_LIFE: u64 = 4096;

/// Share that a slow stream gets, relative to its measured rate: the gain with which BBR probes.
const HEADROOM: f64 = 1.25;
/// Maximum share of a stream, in equal shares.
const MOST_PARTS: f64 = 2.0;

/// The busy streams of a session, as of the last round.
#[derive(Clone, Debug)]
pub struct Busy {
    count: usize,
    /// Bytes per second of the streams that sent in the last round, ascending.
    rates: Vec<f64>,
    /// Delivered bytes of each stream when the round began, and its start time.
    before: Vec<u64>,
    since: Duration,
}

impl Busy {
    /// Counts all streams as busy at first; `samples` are their counters until now.
    pub fn new(samples: &[Sample]) -> Self {
        let before = samples.iter().map(|sample| sample.delivered_bytes).collect();
        Busy { count: samples.len().max(1), rates: Vec::new(), before, since: Duration::ZERO }
    }

    /// Measures again when a round is over; true if the number of busy streams changed. A round without any delivery
    /// changes nothing.
    pub fn on_samples(&mut self, now: Duration, round: Duration, samples: &[Sample]) -> bool {
        if now < self.since + round {
            return false;
        }
        let moved = |(sample, before): (&Sample, &u64)| sample.delivered_bytes.saturating_sub(*before);
        let moved = samples.iter().zip(&self.before).map(moved).filter(|bytes| *bytes > SIGN_OF_LIFE);
        let elapsed = now.saturating_sub(self.since).as_secs_f64();
        let mut rates: Vec<f64> = moved.map(|bytes| bytes as f64 / elapsed).collect();
        rates.sort_by(f64::total_cmp);
        let count = if rates.is_empty() { self.count } else { rates.len() };
        let is_new = count != self.count;
        *self = Busy { count, rates, since: now, ..Busy::new(samples) };
        is_new
    }

    /// The share of one stream of `total`, in bytes per second: an equal share, plus the unused shares of slower
    /// streams.
    pub fn share(&self, total: f64) -> u64 {
        let even = total / self.count as f64;
        // If all streams were below the new total, none is slow: they were paced lower, or were in slow start.
        let scale = (total / self.rates.iter().sum::<f64>().max(1.0)).max(1.0);
        let (mut left, mut streams) = (total, self.count as f64);
        for rate in &self.rates[..self.rates.len().saturating_sub(1)] {
            let wanted = HEADROOM * scale * rate;
            if wanted >= left / streams {
                break;
            }
            (left, streams) = (left - wanted, streams - 1.0);
        }
        ((left / streams).min(MOST_PARTS * even) as u64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Duration = Duration::from_millis(100);

    fn samples(delivered: &[u64]) -> Vec<Sample> {
        let sample = |bytes: &u64| Sample { delivered_bytes: *bytes, ..Sample::default() };
        delivered.iter().map(sample).collect()
    }

    #[test]
    fn idle_streams_yield_their_share() {
        let mut busy = Busy::new(&samples(&[0; 4]));
        assert_eq!(busy.share(1000.0), 250);
        assert!(busy.on_samples(ROUND, ROUND, &samples(&[10_000, 0, 0, 10_000])));
        assert_eq!(busy.share(1000.0), 500);
        assert!(!busy.on_samples(2 * ROUND, ROUND, &samples(&[20_000, 0, 0, 20_000])));
        assert!(busy.on_samples(3 * ROUND, ROUND, &samples(&[30_000, 10_000, 10_000, 30_000])));
        assert_eq!(busy.share(1000.0), 250);
    }

    #[test]
    fn the_unused_share_of_slow_streams_goes_to_the_others() {
        let mut busy = Busy::new(&samples(&[0; 4]));
        assert!(!busy.on_samples(ROUND, ROUND, &samples(&[10_000, 40_000, 40_000, 40_000])));
        // 100 kB/s with headroom, of 325 kB/s a stream; the others get the rest.
        assert_eq!(busy.share(1_300_000.0), (1_300_000 - 125_000) / 3);
    }

    #[test]
    fn streams_that_all_did_less_are_not_slow() {
        let mut busy = Busy::new(&samples(&[0; 4]));
        assert!(!busy.on_samples(ROUND, ROUND, &samples(&[9_000, 10_000, 10_000, 10_000])));
        assert_eq!(busy.share(4_000_000.0), 1_000_000);
    }

    #[test]
    fn keep_alives_do_not_count_as_work() {
        let mut busy = Busy::new(&samples(&[0; 2]));
        assert!(busy.on_samples(ROUND, ROUND, &samples(&[100_000, 60])));
        assert_eq!(busy.share(1000.0), 1000);
    }

    #[test]
    fn a_pause_changes_nothing() {
        let mut busy = Busy::new(&samples(&[0; 2]));
        assert!(busy.on_samples(ROUND, ROUND, &samples(&[100_000, 0])));
        assert!(!busy.on_samples(2 * ROUND, ROUND, &samples(&[100_000, 0])));
        assert_eq!(busy.share(1000.0), 1000);
    }

    #[test]
    fn it_samples_once_a_round() {
        let mut busy = Busy::new(&samples(&[0; 2]));
        assert!(!busy.on_samples(ROUND / 2, ROUND, &samples(&[100_000, 0])));
        assert!(busy.on_samples(ROUND, ROUND, &samples(&[200_000, 0])));
    }
}
