//! Sessions with agents and other sites on behalf of users: a session is shared by all workspaces of one user on one place,
//! and kept for a while after the last of them, so that a door need not open one for each request.

use renkei_core::error::Error;
use renkei_core::wire::encode;
use renkei_core::wire::on_behalf::OnBehalf;
use renkei_mover::files::remote_files::{Config, RemoteDir, RemoteFiles, WhenLost};
use renkei_net::identity::credential::Credential;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Idle timeout of a session.
const IDLE: Duration = Duration::from_secs(60);
/// Timeout of an operation while the connection is lost.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of read-ahead and write-behind of one session.
const MEMORY_BYTES: u64 = 32 << 20;
/// Most sessions that nobody uses.
const MAX_IDLE: usize = 64;

/// As whom the PoP asks.
pub(super) enum Asker {
    /// As itself, on behalf of a user.
    For(OnBehalf),
    /// As a user whose certificate that site gave to this PoP.
    As(Arc<Credential>),
}

impl Asker {
    pub(super) fn user(&self) -> Option<&OnBehalf> {
        match self {
            Asker::For(user) => Some(user),
            Asker::As(_) => None,
        }
    }

    /// Who it is, among all askers of a site: a certificate has a key of its own.
    fn identity(&self) -> Vec<u8> {
        match self {
            Asker::For(user) => encode(&(0_u8, user)),
            Asker::As(credential) => encode(&(1_u8, credential.chain[0].to_vec())),
        }
    }
}

/// The digest of user, place and access of a session.
type Key = [u8; 32];
/// A session and its last use; none until it is opened.
type Slot = Mutex<Option<(Arc<RemoteFiles>, Instant)>>;

/// The open sessions.
#[derive(Default)]
pub(super) struct FarSessions(Mutex<HashMap<Key, Arc<Slot>>>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds the lock")
}

/// Whether a session is shared by no workspace, and since when.
fn idle_for(slot: &Slot) -> Option<Duration> {
    let slot = slot.try_lock().ok()?;
    let (files, used) = slot.as_ref()?;
    (Arc::strong_count(files) == 1).then(|| used.elapsed())
}

impl FarSessions {
    /// The session of a user with a place; opened if there is none, or the last one was lost.
    ///
    /// # Errors
    /// As [`RemoteFiles::open_for`] and [`RemoteFiles::open`].
    pub(super) fn open(
        &self,
        asker: Asker,
        far: RemoteDir,
        silence: Duration,
    ) -> Result<Arc<RemoteFiles>, Error> {
        let key = *blake3::hash(&encode(&(asker.identity(), &far.site, &far.place, far.write))).as_bytes();
        let slot = lock(&self.0).entry(key).or_default().clone();
        let mut slot = lock(&slot);
        if let Some((files, used)) = slot.as_mut().filter(|(files, _)| !files.is_lost()) {
            *used = Instant::now();
            return Ok(files.clone());
        }
        let config = Config {
            when_lost: WhenLost::Fail(PATIENCE),
            memory: MEMORY_BYTES,
            silence,
            ..Config::default()
        };
        let files = match asker {
            Asker::For(user) => RemoteFiles::open_for(user, far, config),
            Asker::As(_) => RemoteFiles::open(far, config),
        };
        let files = Arc::new(files?);
        *slot = Some((files.clone(), Instant::now()));
        Ok(files)
    }

    /// Closes the sessions that were idle for too long, and the oldest of too many idle ones.
    pub(super) fn close_idle(&self) {
        // Without the lock: a session may wait for the other side when it is closed.
        drop(self.take_idle());
    }

    fn take_idle(&self) -> Vec<Arc<Slot>> {
        let mut all = lock(&self.0);
        let idle = all.iter().filter_map(|(key, slot)| Some((idle_for(slot)?, *key))).collect();
        let mut taken: Vec<Arc<Slot>> = due(idle).iter().filter_map(|key| all.remove(key)).collect();
        // Failed attempts leave empty slots.
        let is_empty = |slot: &Slot| slot.try_lock().is_ok_and(|slot| slot.is_none());
        taken.extend(all.extract_if(|_, slot| is_empty(slot)).map(|(_, slot)| slot));
        taken
    }
}

/// Of idle sessions, with the time since their last use, those to be closed.
fn due(mut idle: Vec<(Duration, Key)>) -> Vec<Key> {
    // The longest idle ones first.
    idle.sort_unstable_by(|one, other| other.cmp(one));
    let too_many = idle.len().saturating_sub(MAX_IDLE);
    let due = idle.into_iter().enumerate().filter(|(at, (idle, _))| *at < too_many || *idle > IDLE);
    due.map(|(_, (_, key))| key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_of_too_many_are_closed() {
        let idle = |count: u8| (0..count).map(|number| (Duration::from_millis(number.into()), [number; 32]));
        let most = u8::try_from(MAX_IDLE).unwrap();
        assert_eq!(due(idle(most).collect()), Vec::<Key>::new());
        assert_eq!(due(idle(most + 2).collect()), [[most + 1; 32], [most; 32]]);
        assert_eq!(due(vec![(IDLE, [1; 32]), (IDLE * 2, [2; 32])]), [[2; 32]]);
    }
}
