//! The second try of an `open`: the kernel, told that a file is stale, looks its name up anew and opens what it found, once.
//!
//! Where another version comes between these two, the program would hear of it. It gets what the lookup found, if somebody
//! has that open here: it was there while the call lasted, so this is as good as an `open` that ended before the other
//! version came. The version that is there by then is no choice: the file's size and the pages that the kernel has, which
//! a program sees by `fstat` and `mmap` also past `FOPEN_DIRECT_IO`, are those of the one that was looked up.

use super::Mounted;
use super::attributes::Known;
use super::content::Content;
use super::errno::Refusal;
use renkei_core::path::RelPath;
use renkei_core::wire::file::Handle;
use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the kernel may take from one try to the other.
const PATIENCE: Duration = Duration::from_secs(1);

/// Threads whose `open` was told that the file is stale: when, its path, and what was known of it.
#[derive(Default)]
pub(super) struct SecondTries(HashMap<u32, (Instant, RelPath, Known)>);

impl SecondTries {
    fn note(&mut self, thread: u32, path: RelPath, known: Known) {
        self.0.retain(|_, (since, ..)| since.elapsed() < PATIENCE);
        self.0.insert(thread, (Instant::now(), path, known));
    }

    /// What was known of a file when the thread, whose next `open` this is, was told that it is stale.
    fn take(&mut self, thread: u32, path: &RelPath) -> Option<Known> {
        let (since, told, known) = self.0.remove(&thread)?;
        (since.elapsed() < PATIENCE && told == *path).then_some(known)
    }
}

impl Mounted {
    fn second_tries(&self) -> MutexGuard<'_, SecondTries> {
        self.second_tries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the version that is there now for a thread; 0 is one that is not known.
    pub(super) fn open_version_by(
        &self,
        thread: u32,
        id: u64,
        content: &Content,
    ) -> Result<(Option<Handle>, bool), Refusal> {
        // What was removed has no path, and may be open all the same.
        let path = self.table().path(id).ok();
        let told = path.as_ref().and_then(|path| self.second_tries().take(thread, path));
        let opened = self.open_version(id, content);
        if !opened.as_ref().is_err_and(|refusal| refusal.number == libc::ESTALE) {
            return opened;
        }
        let known = self.table().node(id)?.known;
        let is_looked_up = told.is_some_and(|told| !told.same_content(&known));
        let shared = if is_looked_up { self.share_version(content) } else { None };
        if let (None, Some(path)) = (shared, path.filter(|_| thread != 0)) {
            self.second_tries().note(thread, path, known);
        }
        // The kernel's cache is of what those read who have it open.
        shared.map_or(opened, |version| Ok((Some(version), true)))
    }
}
