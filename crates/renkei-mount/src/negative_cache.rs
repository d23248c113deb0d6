//! The negative cache of the mount: names that do not exist.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time to live of a negative entry: as long as a program needs from lookup to create.
const ABSENT_TTL: Duration = Duration::from_millis(10);
/// Maximum of negative entries.
const MAX_ABSENT: usize = 64;

/// The negative cache: names that a lookup just did not find. Programs that create a file look it up first, and the
/// kernel looks it up again before it creates it; the site is asked once.
#[derive(Default)]
pub(super) struct NegativeCache(VecDeque<(Instant, u64, Vec<u8>)>);

impl NegativeCache {
    pub(super) fn note(&mut self, dir: u64, name: &[u8]) {
        self.0.truncate(MAX_ABSENT - 1);
        self.0.push_front((Instant::now(), dir, name.to_vec()));
    }

    pub(super) fn has(&self, dir: u64, name: &[u8]) -> bool {
        let mut young = self.0.iter().take_while(|(since, ..)| since.elapsed() < ABSENT_TTL);
        young.any(|(_, at, known)| *at == dir && known == name)
    }

    /// A name was created here, or could not be: the entries are dropped.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}
