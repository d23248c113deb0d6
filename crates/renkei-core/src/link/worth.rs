//! Whether pacing pays: compares the rates with and without it.
//!
//! Where much is lost with pace, a cycle without it shows whether the streams' own control brings more; if it does,
//! there is no pace for a while.

use super::sample::{Cycle, Sample, round};
use std::time::Duration;

/// Rounds of a measured cycle.
pub(super) const ROUNDS: u32 = 8;
/// A rate below this share of the unpaced one, over a cycle, makes it doubtful that pacing pays; and the unpaced
/// rate, relative to the paced one, that confirms it.
const DOUBT: (f64, f64) = (0.9, 1.05);
/// Loss ratio under pacing from which on there is such a doubt at all.
const LOSSY: f64 = 0.01;
/// Consecutive doubtful cycles before pacing is suspended.
const DOUBTS: u32 = 3;
/// Cycles without pacing where it does not pay.
const SPARED_CYCLES: u32 = 8;

/// The state of the comparison.
#[derive(Debug, Default)]
pub(super) struct Worth {
    /// The present cycle, and whether it is unpaced.
    cycle: Cycle,
    is_free: bool,
    /// Bytes per second of the last paced cycle, and of the last unpaced one.
    paced: f64,
    free: f64,
    /// Whether an unpaced trial took place.
    was_tried: bool,
    /// Consecutive doubtful paced cycles.
    doubts: u32,
    /// Until when pacing is suspended.
    spared_until: Option<Duration>,
}

impl Worth {
    /// Resumes on a clock that starts at zero.
    pub(super) fn resume(self) -> Self {
        Worth { cycle: Cycle::default(), spared_until: None, ..self }
    }

    /// Takes the counters at `now`, and whether the streams are paced; returns whether pacing should be suspended.
    pub(super) fn on_sum(&mut self, now: Duration, sum: &Sample, is_paced: bool) -> bool {
        if self.is_free == is_paced {
            self.is_free = !is_paced;
            self.cycle.begin(now, sum);
            return false;
        }
        let Some(last) = self.cycle.on_sum(now, sum, ROUNDS) else { return false };
        let round = round(sum.min_rtt);
        if is_paced {
            self.paced = last.rate;
            let doubts = last.resent > LOSSY && (!self.was_tried || last.rate < DOUBT.0 * self.free);
            self.doubts = if doubts { self.doubts + 1 } else { 0 };
            let ends = self.doubts >= DOUBTS;
            self.spared_until = ends.then(|| now + (ROUNDS + 1) * round);
            return ends;
        }
        let in_trial = self.spared_until.is_some_and(|until| until <= now + 2 * round);
        if in_trial && last.rate > DOUBT.1 * self.paced {
            self.spared_until = Some(now + SPARED_CYCLES * ROUNDS * round);
        }
        (self.free, self.doubts) = (last.rate, 0);
        self.was_tried |= in_trial;
        false
    }

    /// Whether pacing is suspended now.
    pub(super) fn spares(&self, now: Duration) -> bool {
        self.spared_until.is_some_and(|until| now < until)
    }
}
