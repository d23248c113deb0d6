//! Advisory locks of programs (`flock` and `fcntl`), which the site grants.
//!
//! A blocking lock request is polled by a thread of its own, which also checks whether the program was interrupted:
//! the kernel's FUSE_INTERRUPT is not delivered, so the thread's pending signals are read.

use super::Mounted;
use super::errno::FuseError;
use fuser::ReplyEmpty;
use renkei_core::backoff::Backoff;
use renkei_core::error::{Code, Error};
use renkei_core::lease::locks::{Hold, Span};
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Answer, Op};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Limit of blocking lock requests that wait at a time.
const MOST_WAITING: usize = 512;
/// Pauses between two polls.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(200));
/// Timeout for the site to report whether locks survived a lost connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// Locks of one file that are held through this mount.
#[derive(Default)]
pub(super) struct Locked {
    owners: HashSet<u64>,
    /// The site's lock round in which they were taken; locks of an earlier round are lost.
    round: u64,
    /// The path by which the file was locked first, which identifies it at the site.
    path: RelPath,
}

/// The lock request of a program.
#[derive(Clone, Copy)]
pub(super) struct LockRequest {
    pub(super) id: u64,
    pub(super) owner: u64,
    pub(super) span: Span,
    pub(super) thread: u32,
}

/// The lock mode of an `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
pub(super) fn hold(kind: i32) -> Hold {
    match kind {
        libc::F_RDLCK => Hold::Shared,
        libc::F_WRLCK => Hold::Exclusive,
        _ => Hold::Nothing,
    }
}

/// The inverse of `hold`.
pub(super) fn kind(hold: Hold) -> i32 {
    match hold {
        Hold::Shared => libc::F_RDLCK,
        Hold::Exclusive => libc::F_WRLCK,
        Hold::Nothing => libc::F_UNLCK,
    }
}

impl Mounted {
    fn locked(&self) -> MutexGuard<'_, HashMap<u64, Locked>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path by which the site knows a file that is locked or about to be.
    fn lock_path(&self, id: u64) -> Result<RelPath, Error> {
        let known = self.locked().get(&id).map(|locked| locked.path.clone());
        known.map_or_else(|| self.table().path(id), Ok)
    }

    /// Takes or releases a lock.
    pub(super) fn lock(&self, asked: &LockRequest) -> Result<(), FuseError> {
        self.check_locks(asked.id)?;
        let path = self.lock_path(asked.id)?;
        let (owner, span) = (asked.owner, asked.span);
        if span.hold == Hold::Nothing {
            // The next holder of the lock must find the data that was written.
            self.publish_if_open(asked.id)?;
        }
        self.ask(Op::Lock { path: path.clone(), owner, span })?;
        let round = self.lock_round(asked.id);
        let mut locks = self.locked();
        let locked = locks.entry(asked.id).or_insert(Locked { owners: HashSet::new(), round, path });
        if span.hold != Hold::Nothing {
            locked.owners.insert(owner);
        } else if span.start == 0 && span.end >= i64::MAX as u64 {
            locked.owners.remove(&owner);
        }
        if locked.owners.is_empty() {
            locks.remove(&asked.id);
        }
        Ok(())
    }

    /// A conflicting lock, if there is one.
    pub(super) fn find_lock(&self, asked: &LockRequest) -> Result<Option<Span>, FuseError> {
        let (path, owner, span) = (self.lock_path(asked.id)?, asked.owner, asked.span);
        match self.ask(Op::FindLock { path, owner, span })? {
            Answer::Locked(found) => Ok(found),
            other => Err(super::unexpected(&other).into()),
        }
    }

    /// Releases all locks of an owner on a file that it closed.
    pub(super) fn unlock_all(&self, id: u64, owner: u64) {
        if !self.locked().get(&id).is_some_and(|locked| locked.owners.contains(&owner)) {
            return;
        }
        let span = Span { start: 0, end: u64::MAX, hold: Hold::Nothing, pid: 0 };
        let asked = LockRequest { id, owner, span, thread: 0 };
        if let Err(FuseError { error: Some(error), .. }) = self.lock(&asked) {
            tracing::debug!(%error, "unlock");
            self.locked().remove(&id);
        }
    }

    /// Whether the locks that this mount holds on a file are still valid.
    ///
    /// # Errors
    /// `LockLost`.
    pub(super) fn check_locks(&self, id: u64) -> Result<(), Error> {
        let Some(round) = self.locked().get(&id).map(|locked| locked.round) else { return Ok(()) };
        if self.lock_round(id) == round {
            return Ok(());
        }
        let cause = "the connection was lost for longer than locks are kept, or the PoP was restarted";
        Err(Error::new(Code::LockLost, "use", self.lock_path(id)?, cause))
    }

    /// The errno for an error; unexpected ones go to the error log.
    pub(super) fn number(&self, refusal: &FuseError) -> fuser::Errno {
        if let Some(error) = refusal.error.as_ref().filter(|error| error.code != Code::LockHeld) {
            self.error_log.note(error);
        }
        fuser::Errno::from_i32(refusal.number)
    }

    /// The current lock round; waits until the site has reported it.
    fn lock_round(&self, id: u64) -> u64 {
        let begun = Instant::now();
        let mut pauses = BACKOFF.begin();
        let round = || self.attr_cache.lock_round(self.table().top(id));
        while round() == 0 && begun.elapsed() < PATIENCE {
            thread::sleep(pauses.next(random_number()));
        }
        round()
    }

    /// Takes a lock, waiting in a thread of its own while it is held elsewhere, and replies then.
    pub(super) fn lock_in_time(self: &Arc<Self>, asked: LockRequest, reply: ReplyEmpty) {
        static WAITING: AtomicUsize = AtomicUsize::new(0);
        match self.lock(&asked) {
            Err(refusal) if is_held(&refusal) => {}
            Ok(()) => return reply.ok(),
            Err(refusal) => return reply.error(self.number(&refusal)),
        }
        if WAITING.fetch_add(1, Ordering::Relaxed) >= MOST_WAITING {
            WAITING.fetch_sub(1, Ordering::Relaxed);
            return reply.error(fuser::Errno::from_i32(libc::ENOLCK));
        }
        let mounted = self.clone();
        thread::spawn(move || {
            let outcome = mounted.wait_for_lock(&asked);
            WAITING.fetch_sub(1, Ordering::Relaxed);
            match outcome {
                Ok(()) => reply.ok(),
                Err(refusal) => reply.error(mounted.number(&refusal)),
            }
        });
    }

    fn wait_for_lock(&self, asked: &LockRequest) -> Result<(), FuseError> {
        let mut pauses = BACKOFF.begin();
        loop {
            thread::sleep(pauses.next(random_number()));
            if is_interrupted(asked.thread) {
                return Err(FuseError::plain(libc::EINTR));
            }
            match self.lock(asked) {
                Err(refusal) if is_held(&refusal) => {}
                outcome => return outcome,
            }
        }
    }
}

/// The keys of a `RandomState` are random.
fn random_number() -> u64 {
    RandomState::new().hash_one(0)
}

fn is_held(refusal: &FuseError) -> bool {
    refusal.error.as_ref().is_some_and(|error| error.code == Code::LockHeld)
}

/// Whether a thread has a pending signal. A signal that another thread of its process may take does not count.
fn is_interrupted(thread: u32) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{thread}/status")) else { return false };
    let field =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or("0");
    let mask = |name: &str| u64::from_str_radix(field(name), 16).unwrap_or(0);
    let alone = field("Threads:") == "1";
    let pending = mask("SigPnd:") | if alone { mask("ShdPnd:") } else { 0 };
    pending & !mask("SigBlk:") != 0
}
