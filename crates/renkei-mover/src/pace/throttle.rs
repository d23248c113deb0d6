//! Rate limit of a session, over all its streams: a limit set by a user, or the rate of a background transfer.
//!
//! A stream takes tokens for the bytes it will send from one [`Bucket`], so the sum is exact and counts bytes of
//! files. The kernel's pacing only smooths that: each busy stream gets an equal share of the rate and a little more.
//! A stream that waits for tokens has nothing unsent (it is application-limited), so BBR does not mistake the rate
//! for the path's bandwidth.

use renkei_core::link::bucket::Bucket;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Interval at which a waiting stream checks whether the session has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The token bucket of a session.
pub(crate) struct Throttle {
    bucket: Mutex<Bucket>,
    changed: Condvar,
    started: Instant,
}

impl Throttle {
    /// A throttle of `rate` bytes per second.
    pub(crate) fn new(rate: u64) -> Self {
        Throttle { bucket: Mutex::new(Bucket::new(rate)), changed: Condvar::new(), started: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, Bucket> {
        self.bucket.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Changes the rate.
    pub(crate) fn set_rate(&self, rate: u64) {
        self.lock().set_rate(self.started.elapsed(), rate);
        self.changed.notify_all();
    }

    /// Waits at most `patience` until `bytes` may be sent, or the session is over; false on a timeout.
    pub(crate) fn take(&self, bytes: u64, patience: Duration, is_over: impl Fn() -> bool) -> bool {
        let until = Instant::now() + patience;
        let mut bucket = self.lock();
        loop {
            let Err(wait) = bucket.take(self.started.elapsed(), bytes) else { return true };
            let left = until.saturating_duration_since(Instant::now());
            if is_over() || left.is_zero() {
                return is_over();
            }
            let waited = self.changed.wait_timeout(bucket, wait.min(left).min(LOOK_EVERY));
            bucket = waited.expect("no thread panics while it holds the lock").0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_streams_together_keep_the_rate() {
        let throttle = Throttle::new(1_000_000);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..10).for_each(|_| assert!(throttle.take(10_000, LOOK_EVERY * 100, || false)))
                });
            }
        });
        // Tokens of 20 ms may have been saved, and no stream waits after the last piece.
        assert!(start.elapsed() >= Duration::from_millis(360), "{:?}", start.elapsed());
    }

    #[test]
    fn waiters_notice_the_end_and_a_new_rate() {
        let throttle = Throttle::new(1);
        assert!(throttle.take(1000, Duration::ZERO, || false));
        assert!(!throttle.take(1, Duration::ZERO, || false));
        assert!(throttle.take(1, Duration::from_secs(60), || true));
        throttle.set_rate(1_000_000_000);
        assert!(throttle.take(1, Duration::from_secs(60), || false));
    }
}
