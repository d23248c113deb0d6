//! Rates of running transfers, from two samples, and the estimated time left.

use crate::cli::quantity::{human, span};
use renkei_core::wire::message::{Progress, TransferId};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Minimum interval between the samples of a rate.
const LEAST: Duration = Duration::from_millis(500);

/// The previous samples, by transfer.
#[derive(Default)]
pub(crate) struct Paces(HashMap<TransferId, Sample>);

struct Sample {
    at: Instant,
    bytes: u64,
    rate: Option<u64>,
}

impl Paces {
    /// The bytes per second of a transfer, once there are two samples.
    pub(crate) fn rate(&mut self, id: TransferId, progress: &Progress, now: Instant) -> Option<u64> {
        let bytes = progress.bytes_moved;
        let seen = self.0.entry(id).or_insert(Sample { at: now, bytes, rate: None });
        // Another attempt starts at zero.
        if bytes < seen.bytes {
            *seen = Sample { at: now, bytes, rate: None };
        }
        if now - seen.at >= LEAST {
            *seen = Sample { at: now, bytes, rate: rate(bytes - seen.bytes, now - seen.at) };
        }
        seen.rate
    }
}

/// Bytes per second.
pub(crate) fn rate(bytes: u64, took: Duration) -> Option<u64> {
    (!took.is_zero()).then(|| (bytes as f64 / took.as_secs_f64()) as u64)
}

/// Bytes at the destination, as far as known.
pub(crate) fn bytes_there(progress: &Progress) -> u64 {
    progress.bytes_done.max(progress.bytes_moved).min(progress.bytes_found)
}

/// Percent, rate and time left, as far as known.
pub(crate) fn text(progress: &Progress, rate: Option<u64>) -> String {
    let there = bytes_there(progress);
    let left = progress.bytes_found - there;
    let percent = (progress.bytes_found > 0).then(|| format!("{} %", there * 100 / progress.bytes_found));
    let speed = rate.map(|rate| format!("{}/s", human(rate)));
    let until = rate.filter(|rate| *rate > 0 && progress.walk_done);
    let until = until.map(|rate| format!("ETA {}", span(Duration::from_secs(left / rate))));
    [percent, speed, until].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_two_samples_and_restarts_with_an_attempt() {
        let (mut paces, now) = (Paces::default(), Instant::now());
        let at = |bytes_moved| Progress {
            bytes_moved,
            bytes_found: 10 << 20,
            walk_done: true,
            ..Progress::default()
        };
        let second = Duration::from_secs(1);
        assert_eq!(paces.rate([1; 16], &at(0), now), None);
        assert_eq!(paces.rate([1; 16], &at(1 << 20), now + second), Some(1 << 20));
        assert_eq!(paces.rate([2; 16], &at(1 << 20), now + second), None);
        assert_eq!(paces.rate([1; 16], &at(5), now + 2 * second), None);
        assert_eq!(text(&at(2 << 20), Some(1 << 20)), "20 %, 1.0M/s, ETA 8 s");
        assert_eq!(text(&at(2 << 20), None), "20 %");
        assert_eq!(text(&Progress::default(), None), "");
    }
}
