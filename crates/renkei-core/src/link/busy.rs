//! Which streams of a session have something to send, and the even share of a rate each of them gets.
//!
//! A file of a few megabytes is sent by one stream. If all streams had an even part of the rate, it would move at a small part of
//! it and the rest would be nobody's; so a stream that has nothing to send leaves its part to the others.

use super::controller::Sample;
use std::time::Duration;

/// A stream with nothing to send delivers no more than this in a round: signs of life.
pub(super) const SIGN_OF_LIFE: u64 = 4096;

/// The streams of a session that have something to send, as the last round showed them.
#[derive(Clone, Debug)]
pub struct Busy {
    count: usize,
    /// What each had delivered when the round began, and when that was.
    before: Vec<u64>,
    since: Duration,
}

impl Busy {
    /// Takes all for busy at first; `samples` is what they did before.
    pub fn new(samples: &[Sample]) -> Self {
        let before = samples.iter().map(|sample| sample.delivered_bytes).collect();
        Busy { count: samples.len().max(1), before, since: Duration::ZERO }
    }

    /// Looks again when a round is over; true if their number changed. In a round in which nothing moved, it stays.
    pub fn on_samples(&mut self, now: Duration, round: Duration, samples: &[Sample]) -> bool {
        if now < self.since + round {
            return false;
        }
        let both = samples.iter().zip(&self.before);
        let busy = both.filter(|(sample, before)| sample.delivered_bytes > **before + SIGN_OF_LIFE).count();
        let count = if busy == 0 { self.count } else { busy };
        let is_new = count != self.count;
        *self = Busy { count, since: now, ..Busy::new(samples) };
        is_new
    }

    /// What one of them may have of `total` for all, in bytes per second.
    pub fn share(&self, total: f64) -> u64 {
        ((total / self.count as f64) as u64).max(1)
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
    fn idle_streams_leave_their_share() {
        let mut busy = Busy::new(&samples(&[0; 4]));
        assert_eq!(busy.share(1000.0), 250);
        assert!(busy.on_samples(ROUND, ROUND, &samples(&[10_000, 0, 0, 10_000])));
        assert_eq!(busy.share(1000.0), 500);
        assert!(!busy.on_samples(2 * ROUND, ROUND, &samples(&[20_000, 0, 0, 20_000])));
        assert!(busy.on_samples(3 * ROUND, ROUND, &samples(&[30_000, 10_000, 10_000, 30_000])));
        assert_eq!(busy.share(1000.0), 250);
    }

    #[test]
    fn a_sign_of_life_is_not_work() {
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
    fn it_looks_once_a_round() {
        let mut busy = Busy::new(&samples(&[0; 2]));
        assert!(!busy.on_samples(ROUND / 2, ROUND, &samples(&[100_000, 0])));
        assert!(busy.on_samples(ROUND, ROUND, &samples(&[200_000, 0])));
    }
}
