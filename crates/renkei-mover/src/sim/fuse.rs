//! Injects a crash of a simulated machine after a given number of changes to its disks.

use renkei_core::error::{Code, Error};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Counts the changes of one machine's disks and makes all of them fail after a given number.
#[derive(Clone, Default)]
pub struct Fuse(Arc<FuseState>);

struct FuseState {
    changes: AtomicU64,
    /// The number of changes after which it blows; `u64::MAX` for never.
    blows_at: AtomicU64,
    blown: AtomicBool,
}

impl Default for FuseState {
    fn default() -> Self {
        FuseState {
            changes: AtomicU64::new(0),
            blows_at: AtomicU64::new(u64::MAX),
            blown: AtomicBool::new(false),
        }
    }
}

impl Fuse {
    /// The machine stops after `changes` more changes.
    pub fn arm(&self, changes: u64) {
        self.0.blows_at.store(self.changes() + changes, Relaxed);
        self.0.blown.store(changes == 0, Relaxed);
    }

    /// Restarts the machine.
    pub fn reset(&self) {
        self.0.blows_at.store(u64::MAX, Relaxed);
        self.0.blown.store(false, Relaxed);
    }

    /// Whether the machine has stopped.
    pub fn is_blown(&self) -> bool {
        self.0.blown.load(Relaxed)
    }

    /// Changes and syncs so far.
    pub fn changes(&self) -> u64 {
        self.0.changes.load(Relaxed)
    }

    /// Counts a change.
    ///
    /// # Errors
    /// `Cancelled` once the machine has stopped.
    pub fn spend(&self) -> Result<(), Error> {
        if self.is_blown() {
            return Err(Error::new(Code::Cancelled, "write", "disk", "the machine has stopped"));
        }
        let changes = self.0.changes.fetch_add(1, Relaxed) + 1;
        self.0.blown.store(self.0.blows_at.load(Relaxed) == changes, Relaxed);
        Ok(())
    }
}
