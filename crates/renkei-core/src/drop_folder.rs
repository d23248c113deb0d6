//! The state of a drop folder: which files are complete and were not submitted yet.
//!
//! Ordinary tools say nothing when a file is whole. Some give it its final name at the end (rsync, most sftp clients
//! that resume), some write under it from the start (scp, cp). So a file counts as complete when it has stayed
//! unchanged for a while and nobody has it open for writing; the second is checked by the caller, just before it is
//! submitted. One that changes later is submitted again. [`DropFolderScan`] is told what each scan found and answers
//! what to submit.

use crate::entry::Stamp;
use crate::path::RelPath;
use std::collections::HashMap;

/// Endings of names under which tools write what they rename when it is whole.
const UNFINISHED: [&[u8]; 4] = [b".filepart", b".part", b".partial", b".crdownload"];

/// Whether a name is one under which a tool writes something unfinished: those that begin with a dot (rsync, and this
/// program) and those with one of a few endings.
pub fn is_unfinished(name: &[u8]) -> bool {
    name.starts_with(b".") || UNFINISHED.iter().any(|ending| name.ends_with(ending))
}

/// A file as one look found it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// Where, below the folder.
    pub path: RelPath,
    /// Its state.
    pub stamp: Stamp,
    /// Its owner's number.
    pub owner: u32,
}

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It is watched since this moment.
    Settling { since_ms: u64 },
    /// It was handed on; nothing is to be done until it is told how that went.
    HandedOn,
    /// It arrived; nothing is to be done until it changes.
    Done,
    /// It failed; it is handed on again at this moment.
    Failed { again_ms: u64 },
}

#[derive(Clone, Debug)]
struct Held {
    seen: Seen,
    step: Step,
    /// The number of the last look that found it.
    look: u64,
    /// How often in a row it failed.
    failures: u32,
}

/// How many files are in which step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Watched until they are complete.
    pub settling: u64,
    /// Handed on.
    pub under_way: u64,
    /// Arrived, and still in the folder.
    pub done: u64,
    /// Failed, to be handed on again.
    pub failed: u64,
}

/// The memory of one drop folder.
#[derive(Clone, Debug)]
pub struct DropFolderScan {
    settle_ms: u64,
    looks: u64,
    held: HashMap<RelPath, Held>,
}

/// First pause before a file that failed is handed on again; doubles up to [`MAX_PAUSE_MS`].
pub const FIRST_PAUSE_MS: u64 = 60_000;
/// The longest such pause.
pub const MAX_PAUSE_MS: u64 = 3_600_000;

impl DropFolderScan {
    /// An empty one; a file must stay as it is for `settle_ms`.
    pub fn new(settle_ms: u64) -> Self {
        DropFolderScan { settle_ms, looks: 0, held: HashMap::new() }
    }

    /// Takes what a look at `now_ms` found, all of it; what is not there any more is forgotten. Answers what has stayed
    /// as it is for long enough, in the order of paths: the caller hands it on and says so, or leaves it for the next look.
    pub fn look(&mut self, now_ms: u64, found: impl IntoIterator<Item = Seen>) -> Vec<Seen> {
        self.looks += 1;
        let mut ready = Vec::new();
        for seen in found {
            let held = self.held.entry(seen.path.clone()).or_insert_with(|| Held::new(seen.clone(), now_ms));
            held.look = self.looks;
            if held.seen != seen {
                *held = Held { look: self.looks, ..Held::new(seen, now_ms) };
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

    /// These were handed on, in the state that was answered.
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

    /// These did not arrive, and nobody tries again but this.
    pub fn failed<'a>(&mut self, now_ms: u64, files: impl IntoIterator<Item = &'a Seen>) {
        self.step(files, |held| {
            let pause = FIRST_PAUSE_MS.saturating_mul(1 << held.failures.min(16)).min(MAX_PAUSE_MS);
            held.failures += 1;
            Step::Failed { again_ms: now_ms.saturating_add(pause) }
        });
    }

    /// It is not known what became of these: they are handed on again.
    pub fn again<'a>(&mut self, files: impl IntoIterator<Item = &'a Seen>) {
        self.step(files, |_| Step::Settling { since_ms: 0 });
    }

    /// Notes a step of files that still are in the state they were in.
    fn step<'a>(
        &mut self,
        files: impl IntoIterator<Item = &'a Seen>,
        mut step: impl FnMut(&mut Held) -> Step,
    ) {
        for file in files {
            if let Some(held) = self.held.get_mut(&file.path).filter(|held| held.seen == *file) {
                held.step = step(held);
            }
        }
    }

    /// How many files are in which step.
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

impl Held {
    fn new(seen: Seen, now_ms: u64) -> Self {
        Held { seen, step: Step::Settling { since_ms: now_ms }, look: 0, failures: 0 }
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
    fn a_file_is_handed_on_when_it_stayed_as_it_is() {
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
    fn one_that_changes_after_it_was_handed_on_is_handed_on_again() {
        let mut inbox = DropFolderScan::new(1_000);
        inbox.look(0, [file("a", 1)]);
        inbox.look(1_000, [file("a", 1)]);
        inbox.handed_on(&[file("a", 1)]);
        assert!(inbox.look(2_000, [file("a", 3)]).is_empty());
        inbox.done(&[file("a", 1)]);
        assert_eq!(inbox.look(3_000, [file("a", 3)]), [file("a", 3)], "what arrived was another state");
    }

    #[test]
    fn one_that_was_removed_and_comes_back_is_a_new_one() {
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
    fn what_failed_is_tried_again_at_growing_pauses() {
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
        assert_eq!(pauses[8], MAX_PAUSE_MS);
        assert_eq!(inbox.counts().failed, 1);
    }

    #[test]
    fn names_of_unfinished_files_are_known() {
        for name in [&b".a.dat.Xy12Zq"[..], b"a.filepart", b"a.part", b".hidden"] {
            assert!(is_unfinished(name));
        }
        for name in [&b"a.dat"[..], b"part", b"a.party", b"\xff"] {
            assert!(!is_unfinished(name));
        }
    }
}
