//! The kernel's counters of streams, and what they tell of an interval.

use std::time::Duration;

/// A rate is measured over an RTT, and at least this long: a shorter time measures bursts.
const SHORTEST_ROUND: Duration = Duration::from_millis(100);

/// The time over which a rate is measured on a path with this RTT.
pub fn round(min_rtt: Duration) -> Duration {
    min_rtt.max(SHORTEST_ROUND)
}

/// Counters of one stream, from the kernel, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Bytes delivered since the stream began, in order or not.
    pub delivered_bytes: u64,
    /// Bytes lost since then: retransmitted, or known to be lost and not retransmitted yet.
    pub lost_bytes: u64,
    /// Present RTT.
    pub rtt: Duration,
    /// Minimum RTT so far.
    pub min_rtt: Duration,
}

impl Sample {
    /// RTT above the minimum.
    pub(super) fn queue(&self) -> Duration {
        self.rtt.saturating_sub(self.min_rtt)
    }
}

/// Delivery during an interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) bytes: u64,
    /// Bytes per second.
    pub(super) rate: f64,
    /// The rate without bytes whose acknowledgements were only delayed.
    pub(super) sure: f64,
    /// Ratio of retransmitted to delivered bytes.
    pub(super) resent: f64,
}

impl Span {
    /// From one sample to a later one.
    pub(super) fn between(before: &Sample, after: &Sample, elapsed: Duration) -> Self {
        let elapsed = elapsed.as_secs_f64();
        let bytes = after.delivered_bytes.saturating_sub(before.delivered_bytes);
        let resent = after.lost_bytes.saturating_sub(before.lost_bytes) as f64 / (bytes as f64).max(1.0);
        // Where the delay shrank, more was acknowledged than was delivered in that time.
        let caught_up = before.rtt.saturating_sub(after.rtt).as_secs_f64();
        let sure = bytes as f64 / (elapsed + caught_up / 2.0);
        Span { bytes, rate: bytes as f64 / elapsed, sure, resent }
    }
}

/// Measures one interval after the other, each of some rounds.
#[derive(Debug, Default)]
pub(super) struct Cycle {
    /// When the present interval began, and the counters then.
    since: Option<(Duration, Sample)>,
}

impl Cycle {
    /// Begins an interval, whatever was measured before.
    pub(super) fn begin(&mut self, now: Duration, sum: &Sample) {
        self.since = Some((now, *sum));
    }

    /// Takes the counters at `now`; at the end of an interval, returns what it brought and begins the next.
    pub(super) fn on_sum(&mut self, now: Duration, sum: &Sample, rounds: u32) -> Option<Span> {
        let (since, before) = *self.since.get_or_insert((now, *sum));
        if now < since + rounds * round(sum.min_rtt) {
            return None;
        }
        self.begin(now, sum);
        Some(Span::between(&before, sum, now.saturating_sub(since)))
    }
}
