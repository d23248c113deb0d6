//! Holds the streams of a session in sum to a rate: a limit that somebody set, or what a background transfer may have.
//!
//! A stream takes what it will send from one [`Bucket`], so the sum is exact and counts bytes of files. The kernel's
//! pace only smooths that: each busy stream gets an even share of the rate and a little more. A stream that waits for
//! its turn has nothing unsent, so BBR does not take the rate for what the path carries, and never is what limits it.

use renkei_core::link::bucket::Bucket;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A stream that waits looks so often whether the session has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The rate of a session.
pub(super) struct Throttle {
    bucket: Mutex<Bucket>,
    changed: Condvar,
    started: Instant,
}

impl Throttle {
    /// One that lets through `rate` bytes per second.
    pub(super) fn new(rate: u64) -> Self {
        Throttle { bucket: Mutex::new(Bucket::new(rate)), changed: Condvar::new(), started: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, Bucket> {
        self.bucket.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Lets through another rate from now on.
    pub(super) fn set_rate(&self, rate: u64) {
        self.lock().set_rate(self.started.elapsed(), rate);
        self.changed.notify_all();
    }

    /// Waits at most `patience` until `bytes` may be sent, or the session is over; false if it took longer.
    pub(super) fn take(&self, bytes: u64, patience: Duration, is_over: impl Fn() -> bool) -> bool {
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
        // 20 ms may have been saved, and the last piece is waited for by nobody.
        assert!(start.elapsed() >= Duration::from_millis(360), "{:?}", start.elapsed());
    }

    #[test]
    fn who_waits_notices_the_end_and_a_new_rate() {
        let throttle = Throttle::new(1);
        assert!(throttle.take(1000, Duration::ZERO, || false));
        assert!(!throttle.take(1, Duration::ZERO, || false));
        assert!(throttle.take(1, Duration::from_secs(60), || true));
        throttle.set_rate(1_000_000_000);
        assert!(throttle.take(1, Duration::from_secs(60), || false));
    }
}
