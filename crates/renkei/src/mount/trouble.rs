//! What went wrong on a mount, for whoever wants to know why a program got EIO.

use renkei_core::error::{Error, Kind};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// How many errors are remembered.
const MAX_REMEMBERED: usize = 16;

/// The last errors that programs could not have expected.
#[derive(Default)]
pub(super) struct Troubles(Mutex<VecDeque<String>>);

impl Troubles {
    /// Logs and remembers an error, unless it is an everyday answer.
    pub(super) fn note(&self, error: &Error) {
        if !is_everyday(error.kind()) {
            self.keep(error);
        }
    }

    /// The same of any error.
    pub(super) fn keep(&self, error: &Error) {
        tracing::warn!(code = %error.code, "{error}");
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() == MAX_REMEMBERED {
            last.pop_front();
        }
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        last.push_back(format!("{at} {error}; {}", error.code.row().remedy));
    }

    /// The errors, one a line after the second it came, newest last.
    pub(super) fn text(&self) -> String {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// What programs ask for on purpose: whether something is there, whether they may.
fn is_everyday(kind: Kind) -> bool {
    matches!(kind, Kind::NotFound | Kind::Exists | Kind::Permission | Kind::Invalid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::error::Code;

    #[test]
    fn the_last_unexpected_errors_are_kept() {
        let troubles = Troubles::default();
        troubles.note(&Error::new(Code::PathNotFound, "look", "f", ""));
        assert_eq!(troubles.text(), "");
        for number in 0..20 {
            troubles.note(&Error::new(Code::SiteUnreachable, "look", number, "no route").at("kek"));
        }
        let text = troubles.text();
        assert_eq!(text.lines().count(), MAX_REMEMBERED);
        assert!(
            text.lines().last().unwrap().contains("RK-NET-7") && text.contains(": 19 (at kek, look)"),
            "{text}"
        );
    }
}
