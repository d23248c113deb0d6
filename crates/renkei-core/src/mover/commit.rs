//! The commit order that makes an acknowledgement true: write, sync, rename, sync, acknowledge (group commit).
//!
//! Written files wait in a queue. A cycle syncs them, renames them to their final names and leaves the renames to be
//! made durable by the next cycle's sync, after which they are acknowledged. So one sync serves two steps of two
//! batches, and costs one sync per batch, not per file.

use std::time::Duration;

/// A cycle starts when this many bytes wait. Small, so that syncing overlaps with receiving; where a sync is slow,
/// more files gather while it runs, and batches grow by themselves.
pub const BATCH_BYTES: u64 = 64 << 20;
/// A cycle starts when this many files wait.
pub const BATCH_FILES: usize = 2048;
/// A cycle starts when the oldest file has waited this long.
pub const BATCH_AGE: Duration = Duration::from_millis(500);

/// The caller's next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<T> {
    /// Make the content of `written` and the earlier renames of `renamed` durable, then call
    /// [`Commit::on_synced`].
    Sync {
        /// Files under their temporary names.
        written: Vec<T>,
        /// Files already under their final names.
        renamed: Vec<T>,
    },
    /// Wait until more is written or the given time has come.
    Wait(Option<Duration>),
}

/// The steps after a successful sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced<T> {
    /// Rename these to their final names, then call [`Commit::on_renamed`] for each that worked.
    pub rename: Vec<T>,
    /// Acknowledge these: content and name are durable.
    pub acknowledge: Vec<T>,
}

/// The queue of written files of one transfer.
#[derive(Debug)]
pub struct Commit<T> {
    written: Vec<T>,
    written_bytes: u64,
    oldest: Option<Duration>,
    renamed: Vec<T>,
    flushing: bool,
}

impl<T> Default for Commit<T> {
    fn default() -> Self {
        Commit { written: Vec::new(), written_bytes: 0, oldest: None, renamed: Vec::new(), flushing: false }
    }
}

impl<T: Clone> Commit<T> {
    /// A file was written in full under its temporary name and its digest verified.
    ///
    /// Returns whether that changes the result of [`Commit::poll`], so that a waiting caller should poll again.
    pub fn on_written(&mut self, now: Duration, file: T, bytes: u64) -> bool {
        let before = (self.oldest.is_some(), self.is_full());
        self.written.push(file);
        self.written_bytes = self.written_bytes.saturating_add(bytes);
        self.oldest.get_or_insert(now);
        before != (true, self.is_full())
    }

    /// An entry was created directly under its final name (a directory, a link): it needs only the last sync.
    pub fn on_renamed(&mut self, now: Duration, file: T) {
        self.renamed.push(file);
        self.oldest.get_or_insert(now);
    }

    /// No more files will be written: commits the rest without waiting for full batches.
    pub fn flush(&mut self) {
        self.flushing = true;
    }

    /// Whether everything was returned for acknowledgement.
    pub fn is_empty(&self) -> bool {
        self.written.is_empty() && self.renamed.is_empty()
    }

    /// Whether files wait for their final names.
    pub fn has_written(&self) -> bool {
        !self.written.is_empty()
    }

    /// Files written and not yet returned for a sync.
    pub fn pending_files(&self) -> usize {
        self.written.len()
    }

    fn is_full(&self) -> bool {
        self.written_bytes >= BATCH_BYTES || self.written.len() + self.renamed.len() >= BATCH_FILES
    }

    /// The next step at `now`.
    pub fn poll(&mut self, now: Duration) -> Step<T> {
        let Some(oldest) = self.oldest else { return Step::Wait(None) };
        let due = oldest + BATCH_AGE;
        if !(self.is_full() || self.flushing || now >= due) {
            return Step::Wait(Some(due - now));
        }
        self.written_bytes = 0;
        self.oldest = None;
        Step::Sync { written: std::mem::take(&mut self.written), renamed: std::mem::take(&mut self.renamed) }
    }

    /// The step given by [`Commit::poll`] was carried out.
    pub fn on_synced(&mut self, written: Vec<T>, renamed: Vec<T>) -> Synced<T> {
        Synced { rename: written, acknowledge: renamed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(10);

    fn sync(commit: &mut Commit<u32>, now: Duration) -> Option<Synced<u32>> {
        match commit.poll(now) {
            Step::Sync { written, renamed } => Some(commit.on_synced(written, renamed)),
            Step::Wait(_) => None,
        }
    }

    #[test]
    fn nothing_is_acknowledged_before_the_sync_after_its_rename() {
        let mut commit = Commit::default();
        commit.on_written(NOW, 1, 10);
        commit.flush();
        let first = sync(&mut commit, NOW).unwrap();
        assert_eq!(first, Synced { rename: vec![1], acknowledge: vec![] });
        commit.on_renamed(NOW, 1);
        let second = sync(&mut commit, NOW).unwrap();
        assert_eq!(second, Synced { rename: vec![], acknowledge: vec![1] });
        assert!(commit.is_empty());
    }

    #[test]
    fn only_the_first_file_and_the_one_that_fills_a_batch_call_for_a_poll() {
        let mut commit = Commit::default();
        for _ in 0..2 {
            let called = [1, 2, 3, 4, 5].map(|n| commit.on_written(NOW, n, BATCH_BYTES / 4));
            assert_eq!(called, [true, false, false, true, false]);
            sync(&mut commit, NOW).unwrap();
        }
    }

    #[test]
    fn batches_wait_for_size_or_age() {
        let mut commit = Commit::default();
        assert_eq!(commit.poll(NOW), Step::Wait(None));
        commit.on_written(NOW, 1, 10);
        assert_eq!(commit.poll(NOW), Step::Wait(Some(BATCH_AGE)));
        commit.on_written(NOW, 2, BATCH_BYTES);
        assert!(sync(&mut commit, NOW).is_some());
        commit.on_written(NOW, 3, 1);
        assert!(sync(&mut commit, NOW).is_none());
        assert!(sync(&mut commit, NOW + BATCH_AGE).is_some());
    }
}
