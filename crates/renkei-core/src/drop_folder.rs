//! The state of a drop folder: which files are complete and were not submitted yet.
//!
//! Ordinary tools do not signal when a file is complete. Some rename it to its final name at the end (rsync, most
//! sftp clients that resume), some write under it from the start (scp, cp). So a file counts as complete when it has
//! been unchanged for a while and no process has it open for writing; the caller checks the latter, just before it
//! submits the file. A file that changes later is submitted again. [`DropFolderScan`] takes the result of each scan
//! and returns the files to submit.

use crate::backoff::Backoff;
use crate::entry::Stamp;
use crate::path::RelPath;
use std::collections::HashMap;
use std::time::Duration;

/// Suffixes of temporary names that tools use until a file is complete.
const UNFINISHED: [&[u8]; 4] = [b".filepart", b".part", b".partial", b".crdownload"];

/// Whether a name is a tool's temporary name: those that begin with a dot (rsync, and this program) and those with
/// one of a few suffixes.
pub fn is_unfinished(name: &[u8]) -> bool {
    name.starts_with(b".") || UNFINISHED.iter().any(|ending| name.ends_with(ending))
}

/// A file as found by a scan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// Its path below the folder.
    pub path: RelPath,
    /// Its stamp.
    pub stamp: Stamp,
    /// Its owner's uid.
    pub owner: u32,
}

/// The state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It has been unchanged since this time.
    Settling { since_ms: u64 },
    /// It was submitted; the outcome is pending.
    HandedOn,
    /// It arrived; it is ignored until it changes.
    Done,
    /// It failed; it is submitted again at this time.
    Failed { again_ms: u64 },
}

#[derive(Clone, Debug)]
struct TrackedFile {
    seen: Seen,
    step: Step,
    /// The number of the last scan that found it.
    look: u64,
    /// Number of consecutive failures.
    failures: u32,
}

/// Number of files in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Waiting to be complete.
    pub settling: u64,
    /// Submitted.
    pub under_way: u64,
    /// Arrived, and still in the folder.
    pub done: u64,
    /// Failed, to be submitted again.
    pub failed: u64,
}

/// The state of one drop folder.
#[derive(Clone, Debug)]
pub struct DropFolderScan {
    settle_ms: u64,
    looks: u64,
    held: HashMap<RelPath, TrackedFile>,
}

/// Backoff before a failed file is submitted again.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(60), Duration::from_secs(3600));

impl DropFolderScan {
    /// An empty state; a file must be unchanged for `settle_ms`.
    pub fn new(settle_ms: u64) -> Self {
        DropFolderScan { settle_ms, looks: 0, held: HashMap::new() }
    }

    /// Takes all files that a scan at `now_ms` found; files that no longer exist are forgotten. Returns the files
    /// that are complete, in the order of paths: the caller submits them and reports that, or leaves them for the
    /// next scan.
    pub fn look(&mut self, now_ms: u64, found: impl IntoIterator<Item = Seen>) -> Vec<Seen> {
        self.looks += 1;
        let mut ready = Vec::new();
        for seen in found {
            let held =
                self.held.entry(seen.path.clone()).or_insert_with(|| TrackedFile::new(seen.clone(), now_ms));
            held.look = self.looks;
            if held.seen != seen {
                *held = TrackedFile { look: self.looks, ..TrackedFile::new(seen, now_ms) };
            }
            if held.is_ready(now_ms, self.settle_ms) {
                ready.push(held.seen.clone());
            }
        }
        let looks = self.looks;
        self.held.retain(|_, held| held.look == looks);
        ready.sort_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
        ready
    }

    /// These were submitted, in the returned state.
    pub fn handed_on<'a>(&mut self, files: impl IntoIterator<Item = &'a Seen>) {
        self.step(files, |_| Step::HandedOn);
    }

    /// These arrived.
    pub fn done<'a>(&mut self, files: impl IntoIterator<Item = &'a Seen>) {
        self.step(files, |held| {
            held.failures = 0;
            Step::Done
        });
    }

    /// These failed permanently in the queue; they are retried from here.
    pub fn failed<'a>(&mut self, now_ms: u64, files: impl IntoIterator<Item = &'a Seen>) {
        self.step(files, |held| {
            let pause = BACKOFF.limit(held.failures).as_millis() as u64;
            held.failures += 1;
            Step::Failed { again_ms: now_ms.saturating_add(pause) }
        });
    }

    /// The outcome of these is unknown: they are submitted again.
    pub fn again<'a>(&mut self, files: impl IntoIterator<Item = &'a Seen>) {
        self.step(files, |_| Step::Settling { since_ms: 0 });
    }

    /// Sets the state of files that have not changed since.
    fn step<'a>(
        &mut self,
        files: impl IntoIterator<Item = &'a Seen>,
        mut step: impl FnMut(&mut TrackedFile) -> Step,
    ) {
        for file in files {
            if let Some(held) = self.held.get_mut(&file.path).filter(|held| held.seen == *file) {
                held.step = step(held);
            }
        }
    }

    /// Number of files in each state.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for held in self.held.values() {
            match held.step {
                Step::Settling { .. } => counts.settling += 1,
                Step::HandedOn => counts.under_way += 1,
                Step::Done => counts.done += 1,
                Step::Failed { .. } => counts.failed += 1,
            }
        }
        counts
    }
}

impl TrackedFile {
    fn new(seen: Seen, now_ms: u64) -> Self {
        TrackedFile { seen, step: Step::Settling { since_ms: now_ms }, look: 0, failures: 0 }
    }

    fn is_ready(&self, now_ms: u64, settle_ms: u64) -> bool {
        match self.step {
            Step::Settling { since_ms } => now_ms.saturating_sub(since_ms) >= settle_ms,
            Step::Failed { again_ms } => now_ms >= again_ms,
            Step::HandedOn | Step::Done => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, size: u64) -> Seen {
        let stamp = Stamp { size, ino: 7, ..Stamp::default() };
        Seen { path: RelPath::parse(path.as_bytes()).unwrap(), stamp, owner: 1000 }
    }

    #[test]
    fn a_file_is_forwarded_once_it_is_stable() {
        let mut inbox = DropFolderScan::new(5_000);
        assert!(inbox.look(0, [file("a", 1)]).is_empty());
        assert!(inbox.look(4_000, [file("a", 2)]).is_empty(), "it grew");
        assert!(inbox.look(8_000, [file("a", 2)]).is_empty(), "4 s after it grew");
        assert_eq!(inbox.look(9_000, [file("a", 2)]), [file("a", 2)]);
        assert_eq!(inbox.look(10_000, [file("a", 2)]), [file("a", 2)], "it was left for this look");
        inbox.handed_on(&[file("a", 2)]);
        assert!(inbox.look(11_000, [file("a", 2)]).is_empty());
        inbox.done(&[file("a", 2)]);
        assert!(inbox.look(90_000_000, [file("a", 2)]).is_empty());
    }

    #[test]
    fn a_file_changed_after_forwarding_is_forwarded_again() {
        let mut inbox = DropFolderScan::new(1_000);
        inbox.look(0, [file("a", 1)]);
        inbox.look(1_000, [file("a", 1)]);
        inbox.handed_on(&[file("a", 1)]);
        assert!(inbox.look(2_000, [file("a", 3)]).is_empty());
        inbox.done(&[file("a", 1)]);
        assert_eq!(inbox.look(3_000, [file("a", 3)]), [file("a", 3)], "what arrived was another state");
    }

    #[test]
    fn a_file_removed_and_created_again_is_new() {
        let mut inbox = DropFolderScan::new(1_000);
        inbox.look(0, [file("a", 1)]);
        inbox.look(1_000, [file("a", 1)]);
        inbox.handed_on(&[file("a", 1)]);
        inbox.done(&[file("a", 1)]);
        assert!(inbox.look(2_000, []).is_empty());
        assert_eq!(inbox.counts(), Counts::default());
        assert!(inbox.look(3_000, [file("a", 1)]).is_empty());
        assert_eq!(inbox.look(4_000, [file("a", 1)]).len(), 1);
    }

    #[test]
    fn failures_are_retried_with_growing_backoff() {
        let mut inbox = DropFolderScan::new(0);
        let mut now = 0;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let start = now;
            while inbox.look(now, [file("a", 1)]).is_empty() {
                now += 1_000;
            }
            pauses.push(now - start);
            inbox.handed_on(&[file("a", 1)]);
            inbox.failed(now, &[file("a", 1)]);
        }
        assert_eq!(pauses[1..4], [60_000, 120_000, 240_000]);
        assert_eq!(pauses[8], 3_600_000);
        assert_eq!(inbox.counts().failed, 1);
    }

    #[test]
    fn names_of_unfinished_files_are_recognised() {
        for name in [&b".a.dat.Xy12Zq"[..], b"a.filepart", b"a.part", b".hidden"] {
            assert!(is_unfinished(name));
        }
        for name in [&b"a.dat"[..], b"part", b"a.party", b"\xff"] {
            assert!(!is_unfinished(name));
        }
    }
}
