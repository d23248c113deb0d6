//! Says what is being tried when a site does not answer for some seconds, so that nobody sits before a silent terminal.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// After so long somebody who waits wants to know for what.
const TELL_AFTER: Duration = Duration::from_secs(3);

/// Hears what is being tried.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

#[derive(Default)]
struct State {
    trying: String,
    told: bool,
    over: bool,
}

/// Tells of what is tried as long as it lives.
pub struct Patience(Arc<(Mutex<State>, Condvar)>);

impl Patience {
    /// Begins to look at the clock.
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
        // Without a thread nothing is told, and all else goes on.
        let _ = std::thread::Builder::new().name("patience".into()).spawn(watch);
        Patience(shared)
    }

    /// Something else is tried from now on.
    pub fn trying(&self, what: String) {
        self.change(|state| (state.trying, state.told) = (what, false));
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.0.lock().expect("no thread panics while it holds the lock"));
        self.0.1.notify_all();
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        self.change(|state| state.over = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn what_is_tried_in_vain_is_told_once_each() {
        let (heard, told) = mpsc::channel();
        let tell: Tell = Arc::new(move |what: &str| drop(heard.send(what.to_owned())));
        let patience = Patience::new(&tell);
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
