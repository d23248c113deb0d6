//! Progress of a transfer and its events, for observers.

use renkei_core::path::RelPath;
use renkei_core::wire::message::{EntryFailure, Progress};
use std::sync::{Arc, Mutex, MutexGuard};

/// An event of a transfer: a file to be sent in a dry run, a removal, an arrival, or a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// This file would be sent.
    WouldSend(RelPath),
    /// This name was removed, or would be.
    Removed(RelPath),
    /// This file arrived.
    Arrived(RelPath),
    /// This entry failed.
    Failed(EntryFailure),
}

#[derive(Default)]
struct Seen {
    progress: Progress,
    /// Bytes that were there before this run, as far as known.
    before: u64,
    notes: Option<Vec<Note>>,
    /// Whether all failures are noted, not only those that the summary lists.
    failures: bool,
    /// Whether files that arrived are noted.
    names: bool,
}

/// The latest progress of one transfer; clones share it.
#[derive(Clone, Default)]
pub struct Watch(Arc<Mutex<Seen>>);

impl Watch {
    /// A watch that also keeps notes until they are taken.
    pub fn with_notes() -> Self {
        Watch(Arc::new(Mutex::new(Seen { notes: Some(Vec::new()), ..Seen::default() })))
    }

    /// The same, and each failure is a note.
    pub fn with_failures() -> Self {
        let seen = Seen { notes: Some(Vec::new()), failures: true, ..Seen::default() };
        Watch(Arc::new(Mutex::new(seen)))
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// The latest progress.
    pub fn look(&self) -> Progress {
        self.lock().progress
    }

    /// Takes the notes since the last call.
    pub fn take_notes(&self) -> Vec<Note> {
        self.lock().notes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Stores the progress that a PoP reported. Bytes that were there before and bytes moved since are summed: of a
    /// resumed file `bytes_done` counts the rest only when the file is whole.
    pub fn set(&self, mut progress: Progress) {
        let mut seen = self.lock();
        // A new attempt counts from zero.
        let before = if progress.bytes_moved < seen.progress.bytes_moved { 0 } else { seen.before };
        seen.before = before.max(progress.bytes_done.saturating_sub(progress.bytes_moved));
        let there = seen.before.saturating_add(progress.bytes_moved).min(progress.bytes_found);
        progress.bytes_done = progress.bytes_done.max(there);
        seen.progress = progress;
    }

    /// Takes names that were removed, or would be.
    pub fn note_removed(&self, paths: Vec<RelPath>) {
        self.note(paths, Note::Removed);
    }

    /// Takes names a dry run would send.
    pub fn note_would_send(&self, paths: Vec<RelPath>) {
        self.note(paths, Note::WouldSend);
    }

    /// The same watch, which also notes the names of files that arrived.
    pub fn with_names(self, names: bool) -> Self {
        self.lock().names = names;
        self
    }

    /// Whether names of files that arrived are noted.
    pub fn notes_names(&self) -> bool {
        self.lock().names
    }

    /// Takes names of files that arrived.
    pub fn note_arrived(&self, paths: Vec<RelPath>) {
        if self.notes_names() {
            self.note(paths, Note::Arrived);
        }
    }

    /// Takes entries that failed.
    pub fn note_failed(&self, failures: Vec<EntryFailure>) {
        if self.lock().failures {
            self.note(failures, Note::Failed);
        }
    }

    fn note<T>(&self, news: Vec<T>, note: impl Fn(T) -> Note) {
        if let Some(notes) = &mut self.lock().notes {
            notes.extend(news.into_iter().map(note));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resumed_bytes_count_in_the_progress() {
        let watch = Watch::default();
        let told = |bytes_done, bytes_moved| {
            watch.set(Progress { bytes_found: 100, bytes_done, bytes_moved, ..Progress::default() });
            watch.look().bytes_done
        };
        assert_eq!((told(0, 0), told(26, 0), told(26, 10), told(26, 60)), (0, 26, 36, 86));
        assert_eq!((told(100, 74), told(0, 5)), (100, 5), "another attempt knows of nothing yet");
    }
}
