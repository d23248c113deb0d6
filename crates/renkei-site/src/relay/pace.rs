//! The pace of relayed traffic: the circuits of one session share a path on each side of this PoP.
//!
//! The sender sees the first hop only. Without pacing, the connections of the second hop each compete for
//! bandwidth, overflow its queue together, and retransmit a tenth of the data; so they are paced as a sender paces
//! its own.

use renkei_mover::pace::pacer::Pacer;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Sessions with no more circuits are not paced: one of them is the control connection.
const FEW: usize = 2;
/// Poll interval of idle circuits.
const IDLE_LOOK: Duration = Duration::from_millis(100);

/// The open circuits of one session, which are paced together.
#[derive(Default)]
pub(crate) struct Paced {
    state: Mutex<State>,
    /// Bytes relayed.
    pub(crate) bytes: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The two connections of each circuit: the requester's side and the far side.
    circuits: Vec<[Arc<TcpStream>; 2]>,
    changes: u64,
    is_watched: bool,
}

/// Removes a circuit from the paced ones on drop.
pub(crate) struct Shared<'a>(&'a Paced, Arc<TcpStream>);

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.circuits.retain(|[near, _]| !Arc::ptr_eq(near, &self.1));
        state.changes += 1;
    }
}

impl Paced {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Adds an open circuit, until the returned value is dropped.
    pub(crate) fn share<'a>(self: &'a Arc<Self>, near: &Arc<TcpStream>, far: &Arc<TcpStream>) -> Shared<'a> {
        let mut state = self.lock();
        state.circuits.push([near.clone(), far.clone()]);
        state.changes += 1;
        if state.circuits.len() > FEW && !state.is_watched {
            let paced = self.clone();
            let thread = std::thread::Builder::new().name("pace".into());
            // Without the thread each connection has its own congestion control only.
            state.is_watched = thread.spawn(move || paced.keep_pace()).is_ok();
        }
        Shared(self, near.clone())
    }

    /// Paces both sides as long as enough circuits share them.
    fn keep_pace(&self) {
        let (mut seen, mut carried) = (0, 0);
        let mut pacers = Vec::new();
        loop {
            {
                let mut state = self.lock();
                if state.circuits.len() <= FEW {
                    state.is_watched = false;
                    return;
                }
                if state.changes != seen {
                    seen = state.changes;
                    pacers = sides(&state.circuits);
                }
            }
            let now = self.bytes.load(Ordering::Relaxed);
            let moves = std::mem::replace(&mut carried, now) != now;
            if moves {
                pacers.iter_mut().for_each(Pacer::tick);
            }
            let interval = pacers.iter().map(Pacer::interval).min().filter(|_| moves);
            std::thread::sleep(interval.unwrap_or(IDLE_LOOK));
        }
    }
}

fn sides(circuits: &[[Arc<TcpStream>; 2]]) -> Vec<Pacer> {
    let side = |side: usize| circuits.iter().map(|circuit| circuit[side].clone()).collect();
    [0, 1].map(|one| Pacer::new(side(one), None, None)).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::time::Instant;

    fn pair() -> [Arc<TcpStream>; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [Arc::new(dialled), Arc::new(listener.accept().unwrap().0)]
    }

    #[test]
    fn circuits_are_paced_while_several_share_a_path() {
        let paced = Arc::new(Paced::default());
        let pairs = [pair(), pair(), pair()];
        let mut shared: Vec<_> = pairs.iter().take(FEW).map(|[near, far]| paced.share(near, far)).collect();
        assert!(!paced.lock().is_watched);
        shared.push(paced.share(&pairs[2][0], &pairs[2][1]));
        assert!(paced.lock().is_watched);
        paced.bytes.fetch_add(1, Ordering::Relaxed);
        shared.remove(0);
        let since = Instant::now();
        while paced.lock().is_watched {
            assert!(since.elapsed() < Duration::from_secs(10), "it is looked at for ever");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(paced.lock().circuits.len(), FEW);
        // The next circuit starts the thread again.
        shared.push(paced.share(&pairs[0][0], &pairs[0][1]));
        assert!(paced.lock().is_watched);
    }
}
