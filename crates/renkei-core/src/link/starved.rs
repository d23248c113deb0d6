//! Whether the window of BBR keeps streams from filling a path whose round trips vary much.
//!
//! BBR lets at most twice its rate times the shortest round trip be under way. Where most round trips are longer than twice the
//! shortest, as over a radio link or a host that answers late, less comes through than it believes, it believes less, and the
//! rate falls for as long as the transfer runs. Nothing is lost meanwhile, so a control that goes by loss does better there.

use super::capacity::round;
use super::controller::Sample;
use std::time::Duration;

/// The mean round trip, of the shortest, at which a window of BBR, twice the shortest, holds less than a round trip carries. Its own
/// queue makes it no longer than this.
const LONG: f64 = 2.5;
/// Rounds in a row without a loss that show it.
const ROUNDS: u32 = 6;
/// Looks whose round trips make the mean.
const WEIGHT: u32 = 16;

/// What the streams of a session did together in the last rounds.
#[derive(Debug, Default)]
pub struct Starved {
    mean_rtt: Duration,
    /// When the present round began, and what had been done then.
    since: Duration,
    before: Sample,
    rounds: u32,
}

impl Starved {
    /// Takes what all streams together did until `now`.
    pub fn on_sum(&mut self, now: Duration, sum: &Sample) {
        self.mean_rtt = (self.mean_rtt * (WEIGHT - 1) + sum.rtt) / WEIGHT;
        if now < self.since + round(sum.min_rtt) {
            return;
        }
        let is_sent = sum.delivered_bytes > self.before.delivered_bytes;
        let is_whole = sum.lost_bytes == self.before.lost_bytes;
        let is_long = self.mean_rtt > sum.min_rtt.mul_f64(LONG);
        if !self.is_starved() {
            self.rounds = if is_sent && is_whole && is_long { self.rounds + 1 } else { 0 };
        }
        (self.since, self.before) = (now, *sum);
    }

    /// Whether the streams should have another control, and their round trips tell nothing of a queue.
    pub fn is_starved(&self) -> bool {
        self.rounds >= ROUNDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// By so many bytes, losses and this round trip in each tenth of a second, for six seconds.
    fn is_starved_by(bytes: u64, resent: u64, rtt_ms: u32) -> bool {
        let mut starved = Starved::default();
        let mut sum = Sample { min_rtt: 20 * MS, rtt: rtt_ms * MS, ..Sample::default() };
        for step in 1..=60 {
            sum.delivered_bytes += bytes;
            sum.lost_bytes += resent;
            starved.on_sum(step * 100 * MS, &sum);
        }
        starved.is_starved()
    }

    #[test]
    fn long_round_trips_without_a_loss_starve() {
        assert!(is_starved_by(2_000_000, 0, 90));
    }

    #[test]
    fn an_own_queue_a_loss_and_a_pause_do_not() {
        assert!(!is_starved_by(20_000_000, 0, 45));
        assert!(!is_starved_by(2_000_000, 1448, 90));
        assert!(!is_starved_by(0, 0, 90));
    }
}
