//! Deterministic pseudorandom numbers: SplitMix64, from a seed.
//!
//! Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.

/// A pseudorandom sequence determined by its seed.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Chance(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    /// True with a probability of `percent` in a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `choices`, which must not be empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_sequence() {
        let numbers = |seed| {
            let mut chance = Chance::new(seed);
            [chance.draw(), chance.draw(), chance.draw()]
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
        // The reference implementation's first number for seed 0.
        assert_eq!(numbers(0)[0], 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn percentages_hold_roughly() {
        let mut chance = Chance::new(7);
        let hits = (0..10_000).filter(|_| chance.percent(30)).count();
        assert!((2_700..3_300).contains(&hits), "{hits}");
    }
}
