//! Random events on packets, as alternating runs of packets that pass and packets that are hit.
//!
//! The length of a run is drawn once, so a packet that is not hit costs one subtraction. Random loss has runs of one
//! and geometric gaps; bursty loss is Gilbert's two-state Markov chain, whose runs are geometric too. Source: E. N.
//! Gilbert, "Capacity of a burst-noise channel", Bell System Technical Journal 39, 1960.

use super::params::Loss;
use crate::sim::chance::Chance;

/// A sequence of packets that pass and packets that are hit.
#[derive(Clone, Debug)]
pub struct Runs {
    /// Probability that a run of passing packets ends at the next one.
    enter: f64,
    /// The same for a run of hit packets.
    leave: f64,
    /// Minimum number of passing packets between two runs of hits.
    least: u64,
    pass: u64,
    hit: u64,
}

impl Runs {
    /// Hits each packet with probability `share`.
    pub fn random(share: f64, chance: &mut Chance) -> Runs {
        Runs::begin(share, 1.0, 0, chance)
    }

    /// Hits packets according to a loss model.
    pub fn of_loss(loss: Loss, chance: &mut Chance) -> Runs {
        match loss {
            Loss::None => Runs::random(0.0, chance),
            Loss::Random(share) => Runs::random(share, chance),
            Loss::Bursty { share, .. } if share >= 1.0 => Runs::random(1.0, chance),
            Loss::Bursty { share, burst } => {
                let leave = 1.0 / burst.max(1.0);
                Runs::begin((leave * share / (1.0 - share)).min(1.0), leave, 1, chance)
            }
        }
    }

    fn begin(enter: f64, leave: f64, least: u64, chance: &mut Chance) -> Runs {
        let mut runs = Runs { enter, leave, least, pass: 0, hit: 0 };
        runs.pass = runs.gap(chance);
        runs
    }

    fn gap(&self, chance: &mut Chance) -> u64 {
        if self.enter <= 0.0 { u64::MAX } else { geometric(self.enter, chance).saturating_add(self.least) }
    }

    /// Whether none of the next packets is hit.
    pub fn is_clear(&self, packets: u64) -> bool {
        self.hit == 0 && self.pass >= packets
    }

    /// Consumes the next packets, none of which is hit.
    pub fn skip(&mut self, packets: u64) {
        debug_assert!(self.is_clear(packets));
        self.pass = self.pass.saturating_sub(packets);
    }

    /// Consumes the next packet; true if it is hit.
    pub fn next_hit(&mut self, chance: &mut Chance) -> bool {
        if self.hit == 0 && self.pass > 0 {
            self.pass -= 1;
            return false;
        }
        if self.hit == 0 {
            self.hit = geometric(self.leave, chance).saturating_add(1);
        }
        self.hit -= 1;
        if self.hit == 0 {
            self.pass = self.gap(chance);
        }
        true
    }
}

/// Draws from a geometric distribution: how often in a row an event of probability `share` does not occur.
fn geometric(share: f64, chance: &mut Chance) -> u64 {
    if share >= 1.0 {
        return 0;
    }
    // Uniform above 0 and at most 1, with the 53 bits of a double's mantissa.
    let uniform = ((chance.draw() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    // A cast of a float saturates, so a tiny share gives a very long run.
    (uniform.ln() / (-share).ln_1p()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Share of hits and mean run of hits among a million packets.
    fn measure(loss: Loss) -> (f64, f64) {
        let mut chance = Chance::new(3);
        let mut runs = Runs::of_loss(loss, &mut chance);
        let (mut hits, mut bursts, mut before) = (0u32, 0u32, false);
        for _ in 0..1_000_000 {
            let hit = runs.next_hit(&mut chance);
            hits += u32::from(hit);
            bursts += u32::from(hit && !before);
            before = hit;
        }
        (f64::from(hits) / 1e6, f64::from(hits) / f64::from(bursts.max(1)))
    }

    #[test]
    fn random_loss_has_its_share_and_no_memory() {
        for share in [0.001, 0.01, 0.2] {
            let (found, burst) = measure(Loss::Random(share));
            assert!((found - share).abs() < 5.0 * (share / 1e6).sqrt(), "{found} instead of {share}");
            // Without memory, runs of hits have the mean length 1 / (1 - share).
            assert!((burst - 1.0 / (1.0 - share)).abs() < 0.05, "runs of {burst} at {share}");
        }
    }

    #[test]
    fn bursty_loss_has_its_share_and_its_bursts() {
        for (share, burst) in [(0.01, 10.0), (0.1, 3.0)] {
            let (found, length) = measure(Loss::Bursty { share, burst });
            assert!((found / share - 1.0).abs() < 0.1, "{found} instead of {share}");
            assert!((length / burst - 1.0).abs() < 0.1, "runs of {length} instead of {burst}");
        }
    }

    #[test]
    fn the_extremes_are_none_and_all() {
        assert_eq!(measure(Loss::None).0, 0.0);
        assert_eq!(measure(Loss::Random(0.0)).0, 0.0);
        assert_eq!(measure(Loss::Random(1.0)).0, 1.0);
        assert_eq!(measure(Loss::Bursty { share: 1.0, burst: 4.0 }).0, 1.0);
        assert_eq!(measure(Loss::Bursty { share: 0.0, burst: 4.0 }).0, 0.0);
    }

    #[test]
    fn losses_of_a_batch_equal_losses_one_by_one() {
        let mut chance = Chance::new(9);
        let mut runs = Runs::random(0.01, &mut chance);
        let (mut hits, mut packets) = (0u32, 0u32);
        while packets < 1_000_000 {
            packets += 44;
            if runs.is_clear(44) {
                runs.skip(44);
            } else {
                hits += (0..44).map(|_| u32::from(runs.next_hit(&mut chance))).sum::<u32>();
            }
        }
        let share = f64::from(hits) / f64::from(packets);
        assert!((share - 0.01).abs() < 0.0005, "{share}");
    }
}
