//! Holds the streams of a session in sum to a rate: a limit that somebody set, or what a background transfer may have.
//!
//! A stream takes what it will send from one [`Bucket`], so the sum is exact and counts bytes of files. The kernel's
//! pace only smooths that: each busy stream gets an even share of the rate and a little more. A stream that waits for
//! its turn has nothing unsent, so BBR does not take the rate for what the path carries, and never is what limits it.

use crate::net::socket::pace;
use renkei_core::link::bucket::Bucket;
use renkei_core::link::controller::Sample;
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
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

/// How a rate is shared over streams: those that do nothing leave their part to the others.
pub(super) struct Shares {
    delivered: Vec<u64>,
    busy: usize,
    /// The sum of all paces, as a multiple of the rate.
    room: f64,
}

impl Shares {
    /// Even shares of so many streams.
    pub(super) fn new(streams: usize, room: f64) -> Self {
        Shares { delivered: vec![0; streams], busy: streams.max(1), room }
    }

    /// Sees which streams are busy; true if their number changed.
    pub(super) fn on_samples(&mut self, samples: &[Sample]) -> bool {
        let now = || samples.iter().map(|sample| sample.delivered_bytes);
        let busy = now().zip(&self.delivered).filter(|(now, before)| now > *before).count();
        self.delivered = now().collect();
        // If nobody does anything, who begins is still one of all.
        let busy = if busy == 0 { samples.len().max(1) } else { busy };
        std::mem::replace(&mut self.busy, busy) != busy
    }

    /// What one stream may send per second of `rate` for all.
    pub(super) fn of(&self, rate: u64) -> u64 {
        ((rate as f64 * self.room / self.busy as f64) as u64).max(1)
    }

    /// Paces every stream to its share.
    pub(super) fn pace(&self, sockets: &[Arc<TcpStream>], rate: u64) {
        sockets.iter().for_each(|socket| pace(socket, Some(self.of(rate))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(delivered: &[u64]) -> Vec<Sample> {
        let sample = |bytes: &u64| Sample { delivered_bytes: *bytes, ..Sample::default() };
        delivered.iter().map(sample).collect()
    }

    #[test]
    fn idle_streams_leave_their_share() {
        let mut shares = Shares::new(4, 1.0);
        assert_eq!(shares.of(1000), 250);
        assert!(shares.on_samples(&samples(&[10, 0, 0, 10])));
        assert_eq!(shares.of(1000), 500);
        assert!(!shares.on_samples(&samples(&[20, 0, 0, 20])));
        assert!(shares.on_samples(&samples(&[20, 0, 0, 20])), "nobody is busy");
        assert_eq!(shares.of(1000), 250);
    }

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
