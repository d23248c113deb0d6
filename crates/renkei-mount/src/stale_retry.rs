//! The retry of an `open` after ESTALE: the kernel repeats the lookup of the name and opens the result, once.
//!
//! If another version is published between the two tries, the program would see the error. It gets the version that
//! the lookup found, if that is open here: the version was current while the call lasted, so this is as good as an
//! `open` that ended before the other version came. The newest version is no choice: the file's size and the pages in
//! the kernel's cache, which a program sees by `fstat` and `mmap` also past `FOPEN_DIRECT_IO`, are those of the
//! version looked up.

use super::attributes::InodeAttr;
use renkei_core::path::RelPath;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long the kernel may take between the two tries.
const PATIENCE: Duration = Duration::from_secs(1);

/// Threads whose `open` got ESTALE: the time, the path, and the attributes that were known.
#[derive(Default)]
pub(super) struct StaleRetries(HashMap<u32, (Instant, RelPath, InodeAttr)>);

impl StaleRetries {
    pub(super) fn note(&mut self, thread: u32, path: RelPath, known: InodeAttr) {
        self.0.retain(|_, (since, ..)| since.elapsed() < PATIENCE);
        self.0.insert(thread, (Instant::now(), path, known));
    }

    /// The attributes that were known when this thread's last `open` of the path got ESTALE, within [`PATIENCE`].
    pub(super) fn take(&mut self, thread: u32, path: &RelPath) -> Option<InodeAttr> {
        let (since, told, known) = self.0.remove(&thread)?;
        (since.elapsed() < PATIENCE && told == *path).then_some(known)
    }
}
