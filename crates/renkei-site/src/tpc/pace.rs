//! The least rate of the other server: one that sends a byte now and then must not keep a place for ever.

use renkei_config::Tpc;
use renkei_core::error::{Code, Error};
use renkei_core::units::human;
use std::time::Duration;

/// The bytes of one stream, and how long they were waited for, in the present window.
///
/// Only time that the other side took is counted, so that a slow disk here is not blamed on it.
pub(super) struct Pace {
    least: u64,
    window: Duration,
    bytes: u64,
    waited: Duration,
    /// Whether bytes have come since the last answer.
    has_bytes: bool,
}

impl Pace {
    pub(super) fn of(tpc: &Tpc) -> Self {
        let window = Duration::from_secs(tpc.slow_window_s);
        Pace { least: tpc.min_bytes_per_s, window, bytes: 0, waited: Duration::ZERO, has_bytes: false }
    }

    /// Counts the wait for an answer. A file may have to come from tape, for which there is a timeout of its own: so nothing
    /// is counted until bytes have come, and of a later wait a quarter of the window at most.
    ///
    /// # Errors
    /// As [`Pace::note`].
    pub(super) fn answered(&mut self, waited: Duration) -> Result<(), Error> {
        match std::mem::take(&mut self.has_bytes) {
            true => self.note(0, waited.min(self.window / 4)),
            false => Ok(()),
        }
    }

    /// Counts bytes that took so long to come.
    ///
    /// # Errors
    /// `ServerTooSlow` at the end of a window with too few of them.
    pub(super) fn note(&mut self, bytes: u64, waited: Duration) -> Result<(), Error> {
        self.has_bytes |= bytes > 0;
        self.bytes += bytes;
        self.waited += waited;
        if self.waited < self.window {
            return Ok(());
        }
        let (bytes, seconds) = (std::mem::take(&mut self.bytes), self.waited.as_secs_f64());
        self.waited = Duration::ZERO;
        if bytes as f64 >= self.least as f64 * seconds {
            return Ok(());
        }
        let cause = format!(
            "{} in {seconds:.0} s; the least is {} a second (`tpc.min_bytes_per_s`)",
            human(bytes),
            human(self.least)
        );
        Err(Error::new(Code::ServerTooSlow, "wait", "", cause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_window_is_judged_by_itself() {
        let tpc = Tpc { min_bytes_per_s: 100, slow_window_s: 10, ..Tpc::default() };
        let mut pace = Pace::of(&tpc);
        let second = Duration::from_secs(1);
        for _ in 0..3 {
            pace.note(1000, 9 * second).unwrap();
            pace.note(0, second).unwrap();
        }
        pace.note(100, 9 * second).unwrap();
        let error = pace.note(899, second).unwrap_err();
        assert!(error.code == Code::ServerTooSlow && error.cause.contains("10 s"), "{error}");
        // The next window begins.
        pace.note(1000, 10 * second).unwrap();
        let mut endless = Pace::of(&Tpc { min_bytes_per_s: 0, ..tpc });
        endless.note(0, 1000 * second).unwrap();
    }

    #[test]
    fn answers_may_wait_for_tape() {
        let mut pace = Pace::of(&Tpc { min_bytes_per_s: 100, slow_window_s: 120, ..Tpc::default() });
        let second = Duration::from_secs(1);
        // A refusal, and the content after it.
        pace.answered(30 * second).unwrap();
        pace.answered(150 * second).unwrap();
        pace.note(20_000, second).unwrap();
        // A resumed one, which is refused once more.
        pace.answered(150 * second).unwrap();
        pace.answered(150 * second).unwrap();
        pace.note(20_000, 100 * second).unwrap();
        // A server that gives a byte with each answer is slow.
        let ends = (0..5).find_map(|_| pace.answered(150 * second).and_then(|()| pace.note(1, second)).err());
        assert_eq!(ends.unwrap().code, Code::ServerTooSlow);
    }
}
