//! Injects a crash of a simulated machine after a given number of changes to its disks.

use crate::error::{Code, Error};
use std::cell::Cell;
use std::rc::Rc;

/// Counts the changes of one machine's disks and makes all of them fail after a given number.
#[derive(Clone, Default)]
pub struct Fuse(Rc<FuseState>);

#[derive(Default)]
struct FuseState {
    changes: Cell<u64>,
    blows_at: Cell<Option<u64>>,
    blown: Cell<bool>,
}

impl Fuse {
    /// The machine stops after `changes` more changes.
    pub fn arm(&self, changes: u64) {
        self.0.blows_at.set(Some(self.0.changes.get() + changes));
        self.0.blown.set(changes == 0);
    }

    /// Restarts the machine.
    pub fn reset(&self) {
        self.0.blows_at.set(None);
        self.0.blown.set(false);
    }

    /// Whether the machine has stopped.
    pub fn is_blown(&self) -> bool {
        self.0.blown.get()
    }

    /// Changes and syncs so far.
    pub fn changes(&self) -> u64 {
        self.0.changes.get()
    }

    /// Counts a change.
    ///
    /// # Errors
    /// `Cancelled` once the machine has stopped.
    pub fn spend(&self) -> Result<(), Error> {
        if self.is_blown() {
            return Err(Error::new(Code::Cancelled, "write", "disk", "the machine has stopped"));
        }
        self.0.changes.set(self.changes() + 1);
        self.0.blown.set(self.0.blows_at.get() == Some(self.changes()));
        Ok(())
    }
}
