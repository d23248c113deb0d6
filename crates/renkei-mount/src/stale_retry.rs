//! The retry of an `open` after ESTALE: the kernel repeats the lookup of the name and opens the result, once.
//!
//! If another version is published between the two tries, the program would see the error. It gets the version that
//! the lookup found, if that is open here: the version was current while the call lasted, so this is as good as an
//! `open` that ended before the other version came. The newest version is no choice: the file's size and the pages in
//! the kernel's cache, which a program sees by `fstat` and `mmap` also past `FOPEN_DIRECT_IO`, are those of the
//! version looked up.

use super::Mounted;
use super::attributes::InodeAttr;
use super::errno::FuseError;
use super::open_inode::OpenInode;
use renkei_core::path::RelPath;
use renkei_core::wire::file::Handle;
use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the kernel may take between the two tries.
const PATIENCE: Duration = Duration::from_secs(1);

/// Threads whose `open` got ESTALE: the time, the path, and the attributes that were known.
#[derive(Default)]
pub(super) struct StaleRetries(HashMap<u32, (Instant, RelPath, InodeAttr)>);

impl StaleRetries {
    fn note(&mut self, thread: u32, path: RelPath, known: InodeAttr) {
        self.0.retain(|_, (since, ..)| since.elapsed() < PATIENCE);
        self.0.insert(thread, (Instant::now(), path, known));
    }

    /// The attributes that were known when this thread's last `open` of the path got ESTALE, within [`PATIENCE`].
    fn take(&mut self, thread: u32, path: &RelPath) -> Option<InodeAttr> {
        let (since, told, known) = self.0.remove(&thread)?;
        (since.elapsed() < PATIENCE && told == *path).then_some(known)
    }
}

impl Mounted {
    fn stale_retries(&self) -> MutexGuard<'_, StaleRetries> {
        self.stale_retries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the current version for a thread; 0 is an unknown thread.
    pub(super) fn open_version_by(
        &self,
        thread: u32,
        id: u64,
        content: &OpenInode,
    ) -> Result<(Option<Handle>, bool), FuseError> {
        // A removed file has no path, but may still be open.
        let path = self.table().path(id).ok();
        let told = path.as_ref().and_then(|path| self.stale_retries().take(thread, path));
        let opened = self.open_version(id, content);
        if !opened.as_ref().is_err_and(|refusal| refusal.number == libc::ESTALE) {
            return opened;
        }
        let known = self.table().node(id)?.known;
        let is_looked_up = told.is_some_and(|told| !told.same_content(&known));
        let shared = if is_looked_up { self.share_version(content) } else { None };
        if let (None, Some(path)) = (shared, path.filter(|_| thread != 0)) {
            self.stale_retries().note(thread, path, known);
        }
        // The kernel's cache has the shared version, so it is kept.
        shared.map_or(opened, |version| Ok((Some(version), true)))
    }
}
