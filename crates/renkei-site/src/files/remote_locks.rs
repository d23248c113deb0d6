//! Remote locks: locks on files of a followed volume are decided by its home, which is asked over the session that
//! fetches content.
//!
//! The home sees all mounts here as one client with many owners. The locks of a mount are released when its session
//! here ends, and count as lost when the home lost this site for too long.

use crate::volume_content::RemoteContent;
use renkei_core::error::{Code, Error, Kind};
use renkei_core::lease::locks::{Hold, Span};
use renkei_core::path::{RelPath, SiteName};
use renkei_core::wire::file::{Answer, Files as _, Op};
use renkei_core::wire::violation;
use renkei_mover::files::remote_files::RemoteFiles;
use renkei_mover::fresh_id;
use renkei_store::locks::{LockAt, Locker};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};

/// The locks of one session.
pub(crate) struct RemoteLocks {
    remote: Arc<dyn RemoteContent>,
    name: String,
    home: SiteName,
    /// Distinguishes its owners from those of other sessions.
    number: u64,
    held: Mutex<LockState>,
}

/// Held locks, and the file session that holds them.
#[derive(Default)]
struct LockState {
    files: Option<Arc<RemoteFiles>>,
    /// The home's lock epoch at that time; 0 until it is known.
    round: u64,
    /// Number of times that all locks were lost.
    losses: u64,
    paths: HashSet<(RelPath, u64)>,
}

impl RemoteLocks {
    pub(crate) fn new(remote: Arc<dyn RemoteContent>, name: &str, home: &SiteName) -> Result<Self, Error> {
        let id = fresh_id()?;
        let number = u64::from_be_bytes(*id.first_chunk().expect("16 bytes are more than 8"));
        Ok(RemoteLocks { remote, name: name.into(), home: home.clone(), number, held: Mutex::default() })
    }

    fn held(&self) -> MutexGuard<'_, LockState> {
        self.held.lock().expect("no thread panics while it holds the lock")
    }

    /// The file session with the home, if it is up.
    fn files(&self, path: &RelPath) -> Result<Arc<RemoteFiles>, Error> {
        let known = self.held().files.clone();
        let files = match known {
            Some(files) => files,
            None => {
                self.remote.session(&self.name, &self.home).map_err(|error| self.away(path, &error.cause))?
            }
        };
        if files.is_lost() {
            return Err(self.away(path, "the connection is lost"));
        }
        Ok(files)
    }

    fn away(&self, path: &RelPath, cause: &str) -> Error {
        let cause = format!("the home, {}, decides, and is not reached: {cause}", self.home);
        Error::new(Code::LocksAway, "lock", path, cause)
    }

    fn owner(&self, owner: u64) -> u64 {
        (self.number ^ owner).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ self.number
    }

    fn ask(&self, path: &RelPath, op: Op) -> Result<(Arc<RemoteFiles>, Answer), Error> {
        let files = self.files(path)?;
        match files.operate(op, &[]) {
            Ok(answer) => Ok((files, answer)),
            Err(error) if error.kind() == Kind::Unavailable => Err(self.away(path, &error.cause)),
            Err(error) => Err(error),
        }
    }
}

impl Locker for RemoteLocks {
    fn lock(&self, at: LockAt, owner: u64, wanted: &Span) -> Result<(), Error> {
        let (path, owner) = (at.path, self.owner(owner));
        let op = Op::Lock { path: path.clone(), owner, span: *wanted };
        let (files, _) = self.ask(&path, op)?;
        let mut held = self.held();
        if wanted.hold != Hold::Nothing {
            held.files = Some(files);
            held.paths.insert((path, owner));
        } else if wanted.start == 0 && wanted.end >= i64::MAX as u64 {
            held.paths.remove(&(path, owner));
        }
        if held.paths.is_empty() {
            (held.files, held.round) = (None, 0);
        }
        Ok(())
    }

    fn find(&self, at: LockAt, owner: u64, wanted: &Span) -> Result<Option<Span>, Error> {
        let op = Op::FindLock { path: at.path.clone(), owner: self.owner(owner), span: *wanted };
        match self.ask(&at.path, op)?.1 {
            Answer::Locked(found) => Ok(found),
            other => Err(violation("lock", format_args!("{other:?}"))),
        }
    }

    fn round(&self) -> u64 {
        let mut held = self.held();
        let now = held.files.as_ref().map_or(0, |files| files.lock_round());
        // While the home is unreachable the epoch is unknown.
        if now != 0 && now != held.round {
            held.losses += u64::from(held.round != 0);
            held.round = now;
        }
        (self.number | 1).wrapping_add(2 * held.losses)
    }
}

impl Drop for RemoteLocks {
    fn drop(&mut self) {
        let LockState { files, paths, .. } = std::mem::take(&mut *self.held());
        let Some(files) = files else { return };
        // Released in the background.
        std::thread::spawn(move || {
            for (path, owner) in paths {
                let span = Span { start: 0, end: u64::MAX, hold: Hold::Nothing, pid: 0 };
                let _ = files.operate(Op::Lock { path, owner, span }, &[]);
            }
        });
    }
}
