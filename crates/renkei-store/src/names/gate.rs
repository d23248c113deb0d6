//! A bound of the threads that do something at a time; the others wait for their turn.

use std::sync::{Condvar, Mutex, PoisonError};

/// The turns that are left.
pub(super) struct Gate {
    free: Mutex<usize>,
    left: Condvar,
}

/// A turn; the next thread has it when this is dropped.
pub(super) struct Turn<'a>(&'a Gate);

impl Gate {
    /// A gate for so many threads at a time.
    pub(super) const fn new(turns: usize) -> Self {
        Gate { free: Mutex::new(turns), left: Condvar::new() }
    }

    /// Waits for a turn.
    pub(super) fn enter(&self) -> Turn<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = self.left.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn no_more_threads_than_turns_are_in_at_a_time() {
        let gate = Gate::new(2);
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let turn = gate.enter();
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(turn);
                });
            }
        });
        assert!((1..=2).contains(&most.into_inner()));
        assert_eq!(*gate.free.lock().unwrap(), 2);
    }
}
