//! Reports of slow connection attempts: the attempt is reported when a site does not answer for some seconds, so that
//! a terminal is never silent.

use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Time after which an attempt is reported to a waiting user.
const TELL_AFTER: Duration = Duration::from_secs(3);
/// Time after which an attempt is shown to a poll.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// Callback that reports an attempt.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// The current attempt and its start, to be polled.
#[derive(Clone, Debug, Default)]
pub struct CurrentAttempt(Arc<Mutex<Option<(Error, Instant)>>>);

impl CurrentAttempt {
    /// The site that has not answered for some time, and how it is tried.
    pub fn look(&self) -> Option<Error> {
        let now = self.0.lock().expect("no thread panics while it holds the lock");
        now.as_ref().filter(|(_, since)| since.elapsed() >= SHOWN_AFTER).map(|(what, _)| what.clone())
    }

    /// Registers an attempt, as long as the returned guard lives.
    pub(crate) fn begin(&self, site: &SiteName, how: &str) -> AttemptGuard<'_> {
        let what = Error::new(Code::PeerDown, "connect", site, format!("trying it {how}"));
        self.set(Some((what, Instant::now())));
        AttemptGuard(self)
    }

    fn set(&self, what: Option<(Error, Instant)>) {
        *self.0.lock().expect("no thread panics while it holds the lock") = what;
    }
}

/// Guard of the current attempt.
pub(crate) struct AttemptGuard<'a>(&'a CurrentAttempt);

impl Drop for AttemptGuard<'_> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

#[derive(Default)]
struct State {
    trying: String,
    told: bool,
    over: bool,
}

/// Reports slow attempts until dropped.
pub struct SlowConnectReporter(Arc<(Mutex<State>, Condvar)>);

impl SlowConnectReporter {
    /// Starts the timer thread.
    pub fn new(tell: &Tell) -> Self {
        let shared: Arc<(Mutex<State>, Condvar)> = Arc::default();
        let (own, tell) = (shared.clone(), tell.clone());
        let watch = move || {
            let (state, changed) = &*own;
            let mut now = state.lock().expect("no thread panics while it holds the lock");
            while !now.over {
                let before = now.trying.clone();
                let is_same = |state: &mut State| !state.over && state.trying == before;
                let waited = changed.wait_timeout_while(now, TELL_AFTER, is_same);
                now = waited.expect("no thread panics while it holds the lock").0;
                if !now.over && now.trying == before && !now.told {
                    now.told = true;
                    tell(&before);
                }
            }
        };
        // Without the thread nothing is reported; the connection attempt is not affected.
        let _ = std::thread::Builder::new().name("patience".into()).spawn(watch);
        SlowConnectReporter(shared)
    }

    /// Begins the next attempt and restarts the timer.
    pub fn trying(&self, what: String) {
        self.change(|state| (state.trying, state.told) = (what, false));
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.0.lock().expect("no thread panics while it holds the lock"));
        self.0.1.notify_all();
    }
}

impl Drop for SlowConnectReporter {
    fn drop(&mut self) {
        self.change(|state| state.over = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn failed_attempts_are_reported_once_each() {
        let (heard, told) = mpsc::channel();
        let tell: Tell = Arc::new(move |what: &str| drop(heard.send(what.to_owned())));
        let patience = SlowConnectReporter::new(&tell);
        let next = || told.recv_timeout(Duration::from_secs(30)).unwrap();
        patience.trying("one".into());
        assert_eq!(next(), "one");
        patience.trying("two".into());
        assert_eq!(next(), "two");
        patience.trying("three".into());
        drop(patience);
        assert!(told.try_recv().is_err());
    }
}
