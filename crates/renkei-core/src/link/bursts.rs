//! Whether streams bound what the kernel hands over at once.
//!
//! The kernel hands over a millisecond of a stream's rate at once. Where the queue of the bottleneck is shorter than
//! a few of these bursts, packets are lost far below its capacity, and no RTT grows. Streams that end each write
//! after a few segments (`MSG_EOR`) have shorter bursts, at the price of more system calls and packets: where the
//! processors are busy, that costs more than it brings. And loss without a queue is also that of a policer or of a
//! radio link, where shorter bursts change nothing. So the rates decide:
//!
//! 1. Some cycles that overflowed without a queue begin a trial: writes are bounded, and the capacity is looked for
//!    as if nothing had been lost. It succeeds if the rate has risen by a tenth at its end. It fails there, or with
//!    the first rounds that are worse than before.
//! 2. Where it succeeded, writes remain bounded. Now and then a trial frees them for some rounds, at the same pace: if
//!    no two rounds are worse, they remain free.
//! 3. What was tried and failed is tried again after a pause, twice as long each time.

use super::sample::{Cycle, Sample, Span, round};
use super::worth::ROUNDS;
use std::time::Duration;

/// Cycles that overflowed before a trial of bounded writes.
const SHALLOW_CYCLES: u32 = 2;
/// Loss ratio of such a cycle.
const LOSES: f64 = 0.005;
/// Rounds of a trial of bounded writes.
const BOUNDED_ROUNDS: u32 = 12;
/// Rounds at its beginning in which the rate only begins to follow.
const EARLY_ROUNDS: u32 = 3;
/// Rounds of a trial of free writes.
const FREE_ROUNDS: u32 = 4;
/// Rounds at the end of a trial whose mean rate counts.
const LAST_ROUNDS: u32 = 4;
/// Rate at the end of a trial of bounded writes, relative to that before, that shows that they pay.
const PAYS: f64 = 1.1;
/// A rate below this share of that before the trial is worse.
const WORSE: f64 = 0.97;
/// Consecutive worse rounds that end a trial.
const WORSE_ROUNDS: u32 = 2;
/// Cycles of free writes after a trial of bounded ones: at first, and at most.
const FREE_CYCLES: (u32, u32) = (16, 256);
/// Cycles of bounded writes after a trial: at first, and at most.
const BOUNDED_CYCLES: (u32, u32) = (8, 256);

/// The state of the streams' writes.
#[derive(Debug, Default)]
pub(super) struct Bursts {
    is_bounded: bool,
    /// A trial of the present kind of writes.
    trial: Option<Trial>,
    cycle: Cycle,
    /// Consecutive cycles that overflowed without a queue.
    shallow: u32,
    /// Cycles of free and of bounded writes after the last trial that preferred them.
    free_cycles: u32,
    bounded_cycles: u32,
    /// No trial begins before.
    not_before: Duration,
    /// Until when losses of the former kind of writes are found.
    settles_until: Duration,
}

/// What the capacity has to be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A trial of bounded writes begins.
    Begins,
    /// A trial of bounded writes failed.
    Failed,
}

/// A trial of the other kind of writes.
#[derive(Debug)]
struct Trial {
    /// Bytes per second before it.
    before: f64,
    /// Rounds until its end, and those that are judged alone.
    left: u32,
    judged: u32,
    /// Consecutive worse rounds.
    worse: u32,
    /// Mean bytes per second of its last rounds.
    mean: f64,
}

impl Trial {
    fn new(before: &Span, is_bounded: bool) -> Self {
        let (left, judged) = match is_bounded {
            true => (BOUNDED_ROUNDS, BOUNDED_ROUNDS - EARLY_ROUNDS),
            false => (FREE_ROUNDS, FREE_ROUNDS),
        };
        Trial { before: before.rate, left, judged, worse: 0, mean: 0.0 }
    }

    /// Counts a round; at the end, returns the rate relative to that before.
    fn on_round(&mut self, last: &Span) -> Option<f64> {
        let is_worse = self.left <= self.judged && last.rate < WORSE * self.before;
        self.worse = if is_worse { self.worse + 1 } else { 0 };
        if self.left <= LAST_ROUNDS {
            self.mean += last.rate / f64::from(LAST_ROUNDS);
        }
        self.left -= 1;
        match self.left {
            _ if self.worse >= WORSE_ROUNDS => Some(0.0),
            0 => Some(self.mean / self.before),
            _ => None,
        }
    }
}

impl Bursts {
    /// Resumes on a clock that starts at zero.
    pub(super) fn resume(self) -> Self {
        let is_bounded = self.is_bounded != self.is_trying();
        let Bursts { free_cycles, bounded_cycles, .. } = self;
        Bursts { is_bounded, free_cycles, bounded_cycles, ..Bursts::default() }
    }

    /// Whether writes are bounded now.
    pub(super) fn is_bounded(&self) -> bool {
        self.is_bounded
    }

    /// Whether a trial goes on.
    pub(super) fn is_trying(&self) -> bool {
        self.trial.is_some()
    }

    /// Whether a trial of free writes goes on, or losses of the former kind are still found: the pace should not
    /// change then.
    pub(super) fn holds(&self, now: Duration) -> bool {
        self.is_trying() && !self.is_bounded || now < self.settles_until
    }

    /// Takes the counters at `now` while the streams are paced, and whether the path overflowed lately without a
    /// queue.
    pub(super) fn on_sum(&mut self, now: Duration, sum: &Sample, is_shallow: bool) -> Option<Change> {
        if let Some(trial) = &mut self.trial {
            let gain = trial.on_round(&self.cycle.on_sum(now, sum, 1)?)?;
            return self.end_trial(now, round(sum.min_rtt), gain);
        }
        let last = self.cycle.on_sum(now, sum, ROUNDS)?;
        self.shallow = if is_shallow && last.resent > LOSES { self.shallow + 1 } else { 0 };
        if now < self.not_before || !self.is_bounded && self.shallow < SHALLOW_CYCLES {
            return None;
        }
        self.is_bounded = !self.is_bounded;
        self.trial = Some(Trial::new(&last, self.is_bounded));
        self.settles_until = now + round(sum.min_rtt);
        self.is_bounded.then_some(Change::Begins)
    }

    fn end_trial(&mut self, now: Duration, round: Duration, gain: f64) -> Option<Change> {
        let was_bounded = self.is_bounded;
        self.is_bounded = if was_bounded { gain >= PAYS } else { gain < WORSE };
        (self.trial, self.shallow) = (None, 0);
        let (cycles, (first, most)) = match self.is_bounded {
            true => (&mut self.bounded_cycles, BOUNDED_CYCLES),
            false => (&mut self.free_cycles, FREE_CYCLES),
        };
        *cycles = (2 * *cycles).clamp(first, most);
        self.not_before = now + *cycles * ROUNDS * round;
        self.settles_until = now + round;
        (was_bounded && !self.is_bounded).then_some(Change::Failed)
    }

    /// Notes that the streams are not paced: such times do not count.
    pub(super) fn on_unpaced(&mut self, now: Duration, sum: &Sample) {
        self.cycle.begin(now, sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Duration = Duration::from_millis(100);

    /// Drives `bursts` for so many rounds, with the bytes of a round that free and bounded writes bring; returns the
    /// rounds with bounded writes.
    fn bounded_rounds(bursts: &mut Bursts, rounds: u32, is_shallow: bool, free: u64, bounded: u64) -> u32 {
        let (mut sum, mut count) = (Sample::default(), 0);
        for step in 1..=rounds {
            sum.delivered_bytes += if bursts.is_bounded() { bounded } else { free };
            sum.lost_bytes += free / 50;
            count += u32::from(bursts.is_bounded());
            bursts.on_sum(step * ROUND, &sum, is_shallow);
        }
        count
    }

    #[test]
    fn writes_that_pay_remain_bounded() {
        let count = bounded_rounds(&mut Bursts::default(), 1000, true, 8_000_000, 10_000_000);
        assert!(count > 960, "{count} of 1000 rounds");
    }

    #[test]
    fn writes_that_change_nothing_are_hardly_bounded() {
        let count = bounded_rounds(&mut Bursts::default(), 1000, true, 8_000_000, 8_100_000);
        assert!((12..50).contains(&count), "{count} of 1000 rounds");
    }

    #[test]
    fn a_trial_ends_with_its_first_worse_rounds() {
        let count = bounded_rounds(&mut Bursts::default(), 100, true, 8_000_000, 6_000_000);
        assert_eq!(count, EARLY_ROUNDS + WORSE_ROUNDS);
    }

    #[test]
    fn a_path_with_a_queue_has_no_trial() {
        assert_eq!(bounded_rounds(&mut Bursts::default(), 1000, false, 8_000_000, 10_000_000), 0);
    }

    #[test]
    fn writes_are_freed_when_that_is_as_good() {
        let mut bursts = Bursts::default();
        bounded_rounds(&mut bursts, 50, true, 8_000_000, 10_000_000);
        assert!(bursts.is_bounded());
        let mut bursts = bursts.resume();
        assert!(bursts.is_bounded());
        bounded_rounds(&mut bursts, 50, false, 10_000_000, 10_000_000);
        assert!(!bursts.is_bounded());
    }
}
