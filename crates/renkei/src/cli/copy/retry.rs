//! Retries of a copy whose connection was lost.

use super::progress::Display;
use super::transfer::Run;
use renkei_config::random::random_number;
use renkei_core::backoff::Backoff;
use renkei_core::error::{Code, Error, Kind};
use renkei_core::mover::digest::SLOT_BYTES;
use renkei_core::units::span;
use renkei_core::wire::message::{Progress, Summary};
use std::time::{Duration, Instant};

/// Backoff before a retry.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));

impl Run<'_> {
    /// Retries until it is done, stopped, refused, or lost for too long without progress.
    pub(crate) fn try_until_done(&self, display: &Display) -> Result<Summary, Error> {
        let limit = self.job.common.retry_for();
        let (mut lost_since, mut files_done): (Option<Instant>, u64) = (None, 0);
        let mut pauses = BACKOFF.begin();
        let (mut connected, mut told) = (false, String::new());
        loop {
            let error = match self.attempt(&mut connected) {
                Ok(summary) => return Ok(summary),
                Err(error) => error,
            };
            if let Some(stopped) = self.stop.stopped() {
                return Err(stopped);
            }
            // An agent that is absent at the start is reported at once, as a site is.
            let is_absent = error.code == Code::AgentAbsent && lost_since.is_none();
            if !connected || is_absent || !is_passing(&error) {
                return Err(error);
            }
            if self.got_further(&mut files_done) || lost_since.is_none() {
                lost_since = Some(Instant::now());
                pauses.reset();
                told.clear();
            }
            if lost_since.is_some_and(|since| since.elapsed() >= limit) {
                return Err(error);
            }
            // Each cause is printed once, however often the copy is retried.
            let words = error.to_string();
            if words != told {
                display.notice(&format!("{words}; trying again for up to {}", span(limit)));
                told = words;
            }
            std::thread::sleep(pauses.next(random_number()));
        }
    }

    /// Whether the last attempt made progress over those before: it finished more files, or sent an extent of one.
    fn got_further(&self, files_done: &mut u64) -> bool {
        let progress = self.watch.look();
        self.watch.set(Progress::default());
        let further = progress.files_done > *files_done || progress.bytes_moved >= SLOT_BYTES;
        *files_done = progress.files_done.max(*files_done);
        further
    }
}

/// Whether the error is transient: also when a PoP's memory was exhausted as the transfer was opened.
fn is_passing(error: &Error) -> bool {
    let full = error.code == Code::OutOfMemory && error.op == "open";
    full || error.kind() == Kind::Unavailable
        || matches!(error.code, Code::TransferBusy | Code::TooManySessions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_a_busy_pop_are_retried() {
        let error = |code, op: &str| Error::new(code, op, "data streams", "");
        assert!(is_passing(&error(Code::OutOfMemory, "open")));
        assert!(is_passing(&error(Code::TooManySessions, "greet")));
        assert!(!is_passing(&error(Code::OutOfMemory, "receive")));
        assert!(!is_passing(&error(Code::Cancelled, "open")));
    }
}
