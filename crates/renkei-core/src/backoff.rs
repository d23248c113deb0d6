//! Exponential backoff with jitter: the pauses of everything that retries.
//!
//! The pause before retry `n` lies between half of `first * 2^n` and all of it, and is never longer than `longest`: the
//! many that failed together do not retry together. The random number is an argument; the same number gives the same
//! pause.

use std::time::Duration;

/// The shortest and the longest pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Backoff {
    /// Pauses from `first` on, each twice as long as the one before, up to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Backoff { first, longest }
    }

    /// The pause after so many earlier failures, without jitter.
    pub fn limit(&self, failures: u32) -> Duration {
        self.first.saturating_mul(2_u32.saturating_pow(failures)).min(self.longest)
    }

    /// The pause after so many earlier failures; `random` is any number.
    pub fn pause(&self, failures: u32, random: u64) -> Duration {
        let half = self.limit(failures) / 2;
        half + half.mul_f64(random as f64 / u64::MAX as f64)
    }

    /// The pauses of one loop.
    pub const fn begin(self) -> Pauses {
        Pauses { backoff: self, failures: 0 }
    }
}

/// The pauses of one loop of retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pauses {
    backoff: Backoff,
    failures: u32,
}

impl Pauses {
    /// The next pause.
    pub fn next(&mut self, random: u64) -> Duration {
        let pause = self.backoff.pause(self.failures, random);
        self.failures = self.failures.saturating_add(1);
        pause
    }

    /// Whether no attempt failed since the beginning or the last success.
    pub fn is_fresh(&self) -> bool {
        self.failures == 0
    }

    /// An attempt succeeded: the next pause is a short one again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);
    const BACKOFF: Backoff = Backoff::new(SECOND, Duration::from_secs(30));

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_again_after_a_success() {
        let mut pauses = BACKOFF.begin();
        let taken: Vec<u64> = (0..7).map(|_| pauses.next(u64::MAX).as_secs()).collect();
        assert_eq!(taken, [1, 2, 4, 8, 16, 30, 30]);
        assert!(!pauses.is_fresh());
        pauses.reset();
        assert!(pauses.is_fresh());
        assert_eq!(pauses.next(u64::MAX), SECOND);
    }

    #[test]
    fn many_that_failed_together_retry_at_different_times() {
        let pauses: std::collections::BTreeSet<_> =
            (0..100).map(|n| BACKOFF.pause(3, n * (u64::MAX / 100))).collect();
        assert_eq!(pauses.len(), 100);
        assert_eq!(pauses.first().unwrap(), &(4 * SECOND));
    }

    proptest! {
        #[test]
        fn a_pause_is_at_least_half_of_its_limit(failures: u32, random: u64) {
            let (pause, limit) = (BACKOFF.pause(failures, random), BACKOFF.limit(failures));
            prop_assert!(limit / 2 <= pause && pause <= limit && limit <= 30 * SECOND);
        }
    }
}
