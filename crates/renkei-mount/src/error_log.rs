//! The last errors of a mount, for a user who wonders why a program got EIO.

use renkei_core::error::{Error, Kind};
use renkei_core::remedy;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// How many errors are remembered.
const MAX_REMEMBERED: usize = 16;

/// The last unexpected errors of a mount.
#[derive(Default)]
pub(super) struct ErrorLog(Mutex<VecDeque<(u64, String)>>);

impl ErrorLog {
    /// Logs and remembers an error, unless it is an expected one. A permission error is remembered and not logged:
    /// programs probe for permissions.
    pub(super) fn note(&self, error: &Error) {
        match error.kind() {
            Kind::NotFound | Kind::Exists | Kind::Invalid => {}
            Kind::Permission => self.remember(error),
            _ => self.keep(error),
        }
    }

    /// Logs and remembers any error.
    pub(super) fn keep(&self, error: &Error) {
        tracing::warn!(code = %error.code, "{error}");
        self.remember(error);
    }

    fn remember(&self, error: &Error) {
        let line = format!("{error}; {}", remedy::of(error));
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A repeated error replaces its earlier entry.
        last.retain(|(_, known)| *known != line);
        if last.len() == MAX_REMEMBERED {
            last.pop_front();
        }
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        last.push_back((at, line));
    }

    /// The errors, one a line after its time in Unix seconds, newest last.
    pub(super) fn text(&self) -> String {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.iter().map(|(at, line)| format!("{at} {line}\n")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::error::Code;

    #[test]
    fn the_last_unexpected_errors_are_kept() {
        let error_log = ErrorLog::default();
        error_log.note(&Error::new(Code::PathNotFound, "look", "f", ""));
        assert_eq!(error_log.text(), "");
        let refused =
            |name: &str| error_log.note(&Error::new(Code::PermissionDenied, "list", name, "").at("kek"));
        ["a", "b", "a"].into_iter().for_each(refused);
        let text = error_log.text();
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines.len() == 2 && lines[1].contains("RK-STORE-5") && lines[1].contains(": a (at kek"),
            "{text}"
        );
        for number in 0..20 {
            error_log.note(&Error::new(Code::SiteUnreachable, "look", number, "no route").at("kek"));
        }
        let text = error_log.text();
        assert_eq!(text.lines().count(), MAX_REMEMBERED);
        assert!(
            text.lines().last().unwrap().contains("RK-NET-7") && text.contains(": 19 (at kek, look)"),
            "{text}"
        );
    }
}
