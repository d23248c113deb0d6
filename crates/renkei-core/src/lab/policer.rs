//! A token-bucket policer: drops the packets that exceed a rate and a burst, and delays none.
//!
//! The single-rate, two-colour meter of RFC 2697 (section 3, without an excess burst), as routers and providers
//! enforce a contracted rate. It has no queue, so a sender sees its limit by loss alone.

use serde::{Deserialize, Serialize};

/// Tokens of a byte: bits x nanoseconds per second, so that a nanosecond brings as many tokens as the rate has bits.
const TOKENS_PER_BYTE: u128 = 8 * 1_000_000_000;

/// The contract of a policer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policer {
    /// Bits per second, counted as those of a link.
    pub rate: u64,
    /// Bytes that may pass at once after a pause; at least one packet.
    pub burst: u64,
}

/// The token bucket of a policer; full at first.
#[derive(Clone, Debug)]
pub(super) struct TokenBucket {
    policer: Policer,
    tokens: u128,
    /// Nanoseconds; when the tokens were counted.
    at: u64,
}

impl TokenBucket {
    pub(super) fn new(policer: Policer) -> TokenBucket {
        TokenBucket { policer, tokens: capacity(policer), at: 0 }
    }

    pub(super) fn policer(&self) -> Policer {
        self.policer
    }

    /// Whether so many bytes conform at `now`; takes their tokens if so.
    pub(super) fn take(&mut self, now: u64, bytes: u64) -> bool {
        let left = self.tokens_at(now).checked_sub(u128::from(bytes) * TOKENS_PER_BYTE);
        if let Some(left) = left {
            (self.tokens, self.at) = (left, self.at.max(now));
        }
        left.is_some()
    }

    fn tokens_at(&self, now: u64) -> u128 {
        let gained = u128::from(now.saturating_sub(self.at)) * u128::from(self.policer.rate);
        (self.tokens + gained).min(capacity(self.policer))
    }
}

fn capacity(policer: Policer) -> u128 {
    u128::from(policer.burst) * TOKENS_PER_BYTE
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// 1000 bytes per millisecond.
    fn bucket(burst: u64) -> TokenBucket {
        TokenBucket::new(Policer { rate: 8_000_000, burst })
    }

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let mut bucket = bucket(3000);
        assert_eq!((0..5).filter(|_| bucket.take(0, 1000)).count(), 3);
        assert!(!bucket.take(MS - 1, 1000) && bucket.take(MS, 1000) && !bucket.take(MS, 1));
    }

    #[test]
    fn the_rate_is_exact_and_a_pause_saves_one_burst() {
        let mut bucket = bucket(3000);
        let passed = (0..10_000 * MS).step_by(MS as usize / 4).filter(|now| bucket.take(*now, 1000)).count();
        assert_eq!(passed, 3 + 9_999);
        assert_eq!((0..9).filter(|_| bucket.take(60_000 * MS, 1000)).count(), 3);
    }
}
