//! Replay of operations that were in flight when the connection was lost, if their outcome can be determined.
//!
//! Operations that only read are retried by the session below. Whether a change was done is unknown, so the mount
//! looks at the names that it concerns. Where those do not tell (an existing file may be ours, or another client's
//! lock) the error is returned.

use super::attr_cache::{Mark, top_name};
use super::{Mounted, item};
use renkei_core::entry::EntryKind;
use renkei_core::error::{Code, Error, Kind, Retry};
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Answer, Item, Op, Start};

/// Limit of replays of an operation; then its error is returned.
const MAX_LOSSES: usize = 8;

/// An answer, and the changed directories with it if it is under a lease.
type Parted = (Answer, Option<Vec<Item>>);

/// The outcome of an operation in flight.
enum Fate {
    Done(Box<Answer>),
    NotDone,
    Unknown,
}

impl Mounted {
    /// Sends an operation, and replays it as long as the connection is lost in between.
    pub(super) fn ask(&self, op: Op) -> Result<Answer, Error> {
        self.ask_parted(op).map(|(answer, _)| answer)
    }

    /// Like `ask`; also returns whether the answer is under a lease.
    pub(super) fn ask_parted(&self, op: Op) -> Result<Parted, Error> {
        let changed = op.changed_paths().into_iter().cloned().collect();
        self.ask_changing(op, changed)
    }

    /// Like `ask_parted`, for an operation that changes these names.
    pub(super) fn ask_changing(&self, op: Op, changed: Vec<RelPath>) -> Result<Parted, Error> {
        self.ask_marked(op, changed).map(|(parted, _)| parted)
    }

    /// The same for an operation that creates a name; also returns the [`Mark`] since when the attributes in the
    /// answer may be cached.
    pub(super) fn ask_making(&self, op: Op, path: RelPath) -> Result<(Answer, Option<Mark>), Error> {
        self.ask_marked(op, vec![path]).map(|((answer, _), since)| (answer, since))
    }

    fn ask_marked(&self, op: Op, changed: Vec<RelPath>) -> Result<(Parted, Option<Mark>), Error> {
        let mark = self.attr_cache.mark(changed.first().and_then(top_name));
        let parted = self.ask_until_told(op).map(Answer::parted);
        let dirs = parted.as_ref().ok().and_then(|(_, dirs)| dirs.clone());
        let since = if changed.is_empty() { None } else { self.on_done(&changed, dirs, mark) };
        parted.map(|parted| (parted, since))
    }

    fn ask_until_told(&self, op: Op) -> Result<Answer, Error> {
        let mut outcome = self.files.operate(op.clone(), &[]);
        for _ in 0..MAX_LOSSES {
            let Err(lost) = &outcome else { break };
            if !is_loss(lost) {
                break;
            }
            match self.fate(&op)? {
                Fate::Done(answer) => return Ok(*answer),
                Fate::NotDone => outcome = self.files.operate(op.clone(), &[]),
                Fate::Unknown => break,
            }
        }
        outcome
    }

    fn fate(&self, op: &Op) -> Result<Fate, Error> {
        Ok(match op {
            Op::Alter { path, .. } => match self.find_item(path)? {
                Some(_) => Fate::NotDone,
                None => Fate::Unknown,
            },
            Op::MakeDir { path, .. } | Op::Draft { path, start: Start::New, .. } => {
                match self.find_item(path)? {
                    Some(_) => Fate::Unknown,
                    None => Fate::NotDone,
                }
            }
            Op::MakeSymlink { path, target } => match self.find_item(path)? {
                Some(found) if leads_to(&found, target) => Fate::Done(Box::new(Answer::Item(found))),
                Some(_) => Fate::Unknown,
                None => Fate::NotDone,
            },
            Op::MakeLink { from, to } => match (self.find_item(from)?, self.find_item(to)?) {
                (Some(old), Some(new)) if old.ino == new.ino => Fate::Done(Box::new(Answer::Item(new))),
                (_, Some(_)) => Fate::Unknown,
                (_, None) => Fate::NotDone,
            },
            Op::Remove(path) | Op::RemoveDir(path) => match self.find_item(path)? {
                Some(_) => Fate::NotDone,
                None => Fate::Done(Box::new(Answer::Done)),
            },
            Op::Rename { from, to, .. } => match (self.find_item(from)?, self.find_item(to)?) {
                (Some(_), _) => Fate::NotDone,
                (None, Some(_)) => Fate::Done(Box::new(Answer::Done)),
                (None, None) => Fate::Unknown,
            },
            // Open handles are lost with the connection, or were opened again.
            _ => Fate::Unknown,
        })
    }

    /// The item of a path; none if it does not exist.
    fn find_item(&self, path: &RelPath) -> Result<Option<Item>, Error> {
        match self.files.operate(Op::Look(path.clone()), &[]).and_then(|answer| item(answer.parted().0)) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.code == Code::PathNotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn leads_to(found: &Item, wanted: &[u8]) -> bool {
    matches!(&found.entry.kind, EntryKind::Symlink { target } if target == wanted)
}

/// Whether the connection failed, and may be restored.
fn is_loss(error: &Error) -> bool {
    error.retry() == Retry::Later && error.kind() == Kind::Unavailable
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::wire::file::{Files, Handle};
    use renkei_mover::files::local_files::LocalFiles;
    use renkei_store::local::{AccessMode, LocalStore};
    use std::fs;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    /// A connection that is lost before an operation, or after it and before its answer.
    struct Cut {
        local_files: LocalFiles,
        calls: AtomicU32,
    }

    impl Files for Cut {
        fn operate(&self, op: Op, content: &[u8]) -> Result<Answer, Error> {
            let lost = || Error::new(Code::ConnectionLost, "ask", "kek", "cut");
            if matches!(op, Op::Look(_)) {
                return self.local_files.operate(op, content);
            }
            match self.calls.fetch_add(1, Ordering::Relaxed) {
                0 => Err(lost()),
                1 => self.local_files.operate(op, content).and(Err(lost())),
                _ => self.local_files.operate(op, content),
            }
        }

        fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
            self.local_files.read(handle, offset, buf)
        }
    }

    fn asked(dir: &std::path::Path, op: Op) -> Result<Answer, Error> {
        let store = LocalStore::open(dir, AccessMode::ReadWrite).unwrap();
        let local_files = LocalFiles::new(Arc::new(store), RelPath::root(), true).unwrap();
        Mounted::new(Arc::new(Cut { local_files, calls: AtomicU32::new(0) }), Duration::ZERO).unwrap().ask(op)
    }

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_change_is_done_once_whenever_the_connection_is_lost() {
        let keep = tempfile::tempdir().unwrap();
        let dir = keep.path();
        fs::write(dir.join("f"), "").unwrap();
        asked(dir, Op::Rename { from: path("f"), to: path("g"), replace: true }).unwrap();
        assert!(!dir.join("f").exists() && dir.join("g").exists());
        asked(dir, Op::MakeLink { from: path("g"), to: path("h") }).unwrap();
        asked(dir, Op::MakeSymlink { path: path("l"), target: b"g".into() }).unwrap();
        assert_eq!(fs::read_link(dir.join("l")).unwrap(), std::path::Path::new("g"));
        asked(dir, Op::Remove(path("g"))).unwrap();
        assert!(!dir.join("g").exists() && dir.join("h").exists());
    }

    #[test]
    fn changes_of_others_are_not_mistaken_for_replayed_ones() {
        let keep = tempfile::tempdir().unwrap();
        for op in [
            Op::MakeDir { path: path("d"), mode: 0o755 },
            Op::Draft { path: path("f"), start: Start::New, mode: 0o644 },
        ] {
            assert_eq!(asked(keep.path(), op).unwrap_err().code, Code::ConnectionLost);
        }
        assert!(keep.path().join("d").is_dir());
    }
}
