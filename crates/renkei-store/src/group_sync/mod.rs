//! Group commit of directories: threads that sync the same directory at the same time share the work.
//!
//! A sync makes all names durable that were there when it began. So of the threads that ask while one runs, the first syncs
//! for all others once that one is over; each returns after a sync that began after it asked. An error is that of all threads
//! that waited for it.

use renkei_core::error::Error;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

/// Device and inode number.
type DirId = (u64, u64);

/// The directories that are being synced.
static GROUPS: LazyLock<Mutex<HashMap<DirId, Arc<Group>>>> = LazyLock::new(Mutex::default);

/// The threads that sync one directory.
#[derive(Default)]
struct Group {
    state: Mutex<State>,
    is_over: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of syncs that have begun, and that are over: one more has begun while one runs.
    begun: u64,
    over: u64,
    /// The last sync that failed.
    failed: Option<(u64, Error)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns when a sync of the directory is over that began after this call, by this thread or another.
///
/// # Errors
/// Those of `sync`.
pub(crate) fn shared(dir: DirId, sync: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let group = lock(&GROUPS).entry(dir).or_default().clone();
    let done = group.sync(sync);
    let mut groups = lock(&GROUPS);
    // The map's and this one. It goes under the lock, so that of two threads that leave together the second is the last.
    let is_last = Arc::strong_count(&group) == 2;
    drop(group);
    if is_last {
        groups.remove(&dir);
    }
    done
}

impl Group {
    fn sync(&self, sync: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let mut state = lock(&self.state);
        let needed = state.begun + 1;
        while state.over < needed && state.begun > state.over {
            state = self.is_over.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.over >= needed {
            return match &state.failed {
                Some((number, error)) if *number >= needed => Err(error.clone()),
                _ => Ok(()),
            };
        }
        state.begun += 1;
        let number = state.begun;
        drop(state);
        let done = sync();
        let mut state = lock(&self.state);
        state.over = number;
        if let Err(error) = &done {
            state.failed = Some((number, error.clone()));
        }
        self.is_over.notify_all();
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::error::Code;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    /// Waits until so many threads take part in the sync of a directory.
    fn await_threads(dir: DirId, count: usize) {
        // One more is the map's.
        while lock(&GROUPS).get(&dir).map_or(0, Arc::strong_count) != count + 1 {
            std::thread::yield_now();
        }
    }

    fn run(dir: DirId, waiting: usize, fails: bool) -> (usize, Vec<Result<(), Error>>) {
        let (syncs, (go, wait)) = (AtomicUsize::new(0), channel::<()>());
        let results = std::thread::scope(|scope| {
            // The first one runs until all others wait.
            let first = scope.spawn(|| shared(dir, move || wait.recv().map_err(|_| unreachable!())));
            await_threads(dir, 1);
            let others: Vec<_> = (0..waiting)
                .map(|_| {
                    scope.spawn(|| {
                        shared(dir, || {
                            syncs.fetch_add(1, Ordering::Relaxed);
                            match fails {
                                true => Err(Error::new(Code::IoFailed, "sync", "dir", "")),
                                false => Ok(()),
                            }
                        })
                    })
                })
                .collect();
            await_threads(dir, waiting + 1);
            go.send(()).unwrap();
            first.join().unwrap().unwrap();
            others.into_iter().map(|other| other.join().unwrap()).collect()
        });
        (syncs.into_inner(), results)
    }

    #[test]
    fn threads_that_wait_share_the_next_sync() {
        let (syncs, results) = run((7, 1), 8, false);
        assert!(results.iter().all(Result::is_ok));
        // One that had not begun to wait when the first ended may make another one.
        assert!((1..=8).contains(&syncs), "{syncs}");
        assert!(!lock(&GROUPS).contains_key(&(7, 1)));
    }

    #[test]
    fn an_error_is_that_of_all_who_wait() {
        let (_, results) = run((7, 2), 4, true);
        assert!(results.iter().all(|done| done.as_ref().is_err_and(|error| error.code == Code::IoFailed)));
    }

    #[test]
    fn a_sync_that_runs_already_is_not_enough() {
        let group = Group::default();
        assert_eq!(group.sync(|| Ok(())), Ok(()));
        let mut ran = false;
        let done = group.sync(|| {
            ran = true;
            Ok(())
        });
        assert!(done.is_ok() && ran);
    }
}
