//! Token bucket that limits many streams together to a rate.
//!
//! A stream that finds the bucket above zero may take any amount; the excess becomes a debt that all streams wait
//! for. So a piece is never split for the rate limit, the sum is exact in the long run, and tokens not taken by one
//! stream are available to the others.

use std::time::Duration;

/// Burst: tokens saved while no stream sends, as time at the rate; one late wake-up of the system does not cost
/// throughput.
const SAVED: Duration = Duration::from_millis(20);

/// The bucket. Times are relative to any fixed point, the same for all calls.
#[derive(Clone, Debug)]
pub struct Bucket {
    rate: f64,
    level: f64,
    at: Duration,
}

impl Bucket {
    /// An empty bucket that fills with `rate` bytes per second.
    pub fn new(rate: u64) -> Self {
        Bucket { rate: rate.max(1) as f64, level: 0.0, at: Duration::ZERO }
    }

    /// Changes the rate from now on.
    pub fn set_rate(&mut self, now: Duration, rate: u64) {
        self.fill(now);
        self.rate = rate.max(1) as f64;
    }

    /// Takes `bytes` tokens, or returns how long to wait before trying again.
    pub fn take(&mut self, now: Duration, bytes: u64) -> Result<(), Duration> {
        self.fill(now);
        if self.level < 0.0 {
            return Err(Duration::from_secs_f64((-self.level / self.rate).clamp(1e-6, 1e6)));
        }
        self.level -= bytes as f64;
        Ok(())
    }

    fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.level = (self.level + passed * self.rate).min(SAVED.as_secs_f64() * self.rate);
        self.at = self.at.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Takes pieces whenever allowed until `end`; returns the bytes taken.
    fn drain(bucket: &mut Bucket, from: Duration, end: Duration, piece: u64) -> u64 {
        let (mut now, mut taken) = (from, 0);
        while now < end {
            match bucket.take(now, piece) {
                Ok(()) => taken += piece,
                Err(wait) => now += wait.max(Duration::from_micros(1)),
            }
        }
        taken
    }

    #[test]
    fn the_rate_is_exact_whatever_the_pieces() {
        for piece in [100, 4096, 300_000] {
            let taken = drain(&mut Bucket::new(1_000_000), Duration::ZERO, 100 * SECOND, piece);
            assert!(taken.abs_diff(100_000_000) <= 1_000_000 / 50 + piece, "{taken} in pieces of {piece}");
        }
    }

    #[test]
    fn a_pause_earns_no_burst() {
        let mut bucket = Bucket::new(1_000_000);
        drain(&mut bucket, Duration::ZERO, SECOND, 1000);
        let taken = drain(&mut bucket, 60 * SECOND, 61 * SECOND, 1000);
        assert!(taken <= 1_021_000, "{taken}");
    }

    #[test]
    fn a_new_rate_counts_from_now_on() {
        let mut bucket = Bucket::new(1_000_000);
        drain(&mut bucket, Duration::ZERO, SECOND, 1000);
        bucket.set_rate(SECOND, 10_000);
        let taken = drain(&mut bucket, SECOND, 11 * SECOND, 1000);
        assert!((99_000..=122_000).contains(&taken), "{taken}");
    }
}
