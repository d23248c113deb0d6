//! Sessions of renkei/1 with the PoPs of trusted sites, in which third-party copies move their bytes.
//!
//! renkei/1 knows certificates alone, and a copy has a token. So the token is shown to the PoP that it is for, which gives a
//! certificate of hours with the rights of the token (docs/design/0044), to a key that stays in memory. The session is
//! kept for the copies that follow with the same token, which then need no handshakes.
//!
//! A PoP gives one user few certificates in a minute, and each costs round trips. So one is asked for when the file is large,
//! or the token was shown before; tokens that are each for one small file go by HTTP.

use super::partner_file::PartnerFile;
use crate::Context;
use crate::relay::Relay;
use crate::snapshot::Snapshot;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Principal, Scope};
use renkei_core::path::{Place, RelPath};
use renkei_core::wire::encode;
use renkei_mover::Stop;
use renkei_mover::connect::dial::Dialler;
use renkei_mover::files::remote_files::{Config, RemoteDir, RemoteFiles, WhenLost};
use renkei_net::identity::borrowed::exchange::{Door, Shown};
use renkei_net::identity::trust::Trust;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime};

/// Files from this size on are worth a certificate of their own.
const LARGE_BYTES: u64 = 64 << 20;
/// Idle timeout of a session.
pub(super) const IDLE: Duration = Duration::from_secs(60);
/// How long a token is remembered after its last use.
const REMEMBERED: Duration = Duration::from_secs(600);
/// How long a PoP that refused is not asked again with the same token.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// A certificate that ends within this time begins no copy.
const ENDS_SOON: Duration = Duration::from_secs(60);
/// How long an operation waits for a lost session.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a copy that waits for another one's session looks whether it is stopped.
const CHECKED_EVERY: Duration = Duration::from_millis(50);
/// Most tokens that are remembered.
const MAX_TOKENS: usize = 10_000;

/// The digest of user, place and token.
type Key = [u8; 32];

/// What is known of a token.
enum State {
    /// It was shown.
    Shown,
    /// The PoP gave no certificate, or no session.
    Refused(Instant),
    /// A session is open.
    Open(Session),
}

struct Session {
    files: Arc<RemoteFiles>,
    /// The directory that it is about.
    base: RelPath,
    ends: SystemTime,
    trust: Arc<Trust>,
}

impl Session {
    fn is_good(&self, snapshot: &Snapshot) -> bool {
        let is_trusted = Arc::ptr_eq(&self.trust, &snapshot.trust);
        is_trusted && !self.files.is_lost() && self.ends > SystemTime::now() + ENDS_SOON
    }

    /// The files of the session, and the path of one of them; none if it is not about that.
    fn with(&self, path: &RelPath) -> Option<(Arc<RemoteFiles>, RelPath)> {
        let path = path.below(&self.base).filter(|path| !path.is_root())?;
        Some((self.files.clone(), path))
    }
}

struct Slot {
    state: Mutex<State>,
    used: Mutex<Instant>,
}

impl Slot {
    /// The slot of a token that was shown for the first time.
    fn shown(at: Instant) -> Arc<Self> {
        Arc::new(Slot { state: Mutex::new(State::Shown), used: Mutex::new(at) })
    }
}

/// The sessions.
pub(super) struct PartnerSessions {
    context: Arc<Context>,
    relay: Arc<Relay>,
    slots: Mutex<HashMap<Key, Arc<Slot>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a lock that another copy may hold while it opens a session; none if the copy is stopped meanwhile.
fn lock_unless_stopped<'m, T>(mutex: &'m Mutex<T>, stop: &Stop) -> Option<MutexGuard<'m, T>> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => stop.check().ok()?,
        }
        std::thread::sleep(CHECKED_EVERY);
    }
}

/// Takes out the slot that was used least recently. Copies in its session go on.
fn take_oldest(slots: &mut HashMap<Key, Arc<Slot>>) -> Option<Arc<Slot>> {
    let oldest = slots.iter().min_by_key(|(_, slot)| *lock(&slot.used)).map(|(key, _)| *key)?;
    slots.remove(&oldest)
}

impl PartnerSessions {
    pub(super) fn new(context: &Arc<Context>, relay: &Arc<Relay>) -> Self {
        PartnerSessions { context: context.clone(), relay: relay.clone(), slots: Mutex::default() }
    }

    /// The session for a copy of this user, and the path of the file in it; none where the copy goes by HTTP, or is stopped.
    /// `size` is asked only where it counts.
    pub(super) fn find(
        &self,
        user: &Principal,
        file: &PartnerFile,
        is_write: bool,
        stop: &Stop,
        size: impl FnOnce() -> u64,
    ) -> Option<(Arc<RemoteFiles>, RelPath)> {
        let (slot, is_known) = self.slot(user, file, is_write);
        if !is_known && size() < LARGE_BYTES {
            return None;
        }
        // Copies that begin at the same time wait for the first one's session.
        let mut state = lock_unless_stopped(&slot.state, stop)?;
        let snapshot = self.context.last_snapshot();
        match &*state {
            State::Open(session) if session.is_good(&snapshot) => return session.with(&file.place.path),
            State::Refused(since) if since.elapsed() < REFUSED_FOR => return None,
            _ => {}
        }
        match self.open(&snapshot, file, is_write) {
            Ok(session) => {
                let found = session.with(&file.place.path);
                *state = State::Open(session);
                found
            }
            Err(error) => {
                tracing::info!(site = %file.site, %error, "no session for third-party copies; they go by HTTP");
                *state = State::Refused(Instant::now());
                None
            }
        }
    }

    /// The slot of a token, and whether it was shown before.
    fn slot(&self, user: &Principal, file: &PartnerFile, is_write: bool) -> (Arc<Slot>, bool) {
        let parts =
            (&user.to_string(), &file.site, &file.endpoint, &file.place.storage, is_write, &file.token);
        let key = *blake3::hash(&encode(&parts)).as_bytes();
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.get(&key) {
            *lock(&slot.used) = Instant::now();
            return (slot.clone(), true);
        }
        let oldest = if slots.len() < MAX_TOKENS { None } else { take_oldest(&mut slots) };
        let slot = Slot::shown(Instant::now());
        slots.insert(key, slot.clone());
        drop(slots);
        // Without the lock, as in `close_idle`.
        drop(oldest);
        (slot, false)
    }

    /// Exchanges the token for a certificate and opens a session with it.
    fn open(&self, snapshot: &Arc<Snapshot>, file: &PartnerFile, is_write: bool) -> Result<Session, Error> {
        let door = Door {
            endpoint: file.endpoint.clone(),
            known: Some((file.site.clone(), snapshot.trust.clone())),
            introduces: false,
        };
        let credential = door.credential(&Shown::Token(file.token.clone()))?;
        let facts = credential.facts()?;
        let ends = facts.not_after;
        if ends <= SystemTime::now() + ENDS_SOON {
            let cause = "the certificate for the token ends in a moment";
            return Err(Error::new(Code::CertificateExpired, "open session", &file.site, cause));
        }
        // Relays authenticate this PoP.
        let dialler = Dialler::new(&credential, snapshot.trust.clone(), snapshot.config.stall_timeout())?
            .with_ways(self.relay.ways(snapshot))
            .passed_on_for(&snapshot.credential)?;
        let base = base(facts.scope.as_ref(), file);
        let place = Place { storage: file.place.storage.clone(), path: base.clone() };
        let far = RemoteDir { dialler, site: file.site.clone(), place, write: is_write };
        let config = Config {
            when_lost: WhenLost::Fail(PATIENCE),
            silence: snapshot.config.stall_timeout(),
            ..Config::default()
        };
        let files = Arc::new(RemoteFiles::open(far, config)?);
        Ok(Session { files, base, ends, trust: snapshot.trust.clone() })
    }

    /// Closes the sessions that no copy has used for a while, and forgets tokens.
    pub(super) fn close_idle(&self) {
        // Without the lock: a session may wait for the other side when it is closed.
        drop(self.take_idle());
    }

    fn take_idle(&self) -> Vec<Arc<Slot>> {
        let is_idle = |slot: &Slot| {
            let idle = lock(&slot.used).elapsed();
            match slot.state.try_lock().as_deref() {
                Ok(State::Open(session)) => Arc::strong_count(&session.files) == 1 && idle >= IDLE,
                Ok(_) => idle >= REMEMBERED,
                // A copy opens it.
                Err(_) => false,
            }
        };
        lock(&self.slots).extract_if(|_, slot| is_idle(slot)).map(|(_, slot)| slot).collect()
    }
}

/// The directory of a session: the largest of the scope that has the file, so that nothing above it need be open to the
/// user; the storage without a scope, and for a file alone.
fn base(scope: Option<&Scope>, file: &PartnerFile) -> RelPath {
    let permits = scope.map(Scope::permits).unwrap_or_default().iter();
    let place = &file.place;
    let here = permits.filter(|permit| permit.site == file.site && permit.place.storage == place.storage);
    here.map(|permit| &permit.place.path)
        .filter(|path| place.path.starts_with(path) && **path != place.path)
        .min_by_key(|path| path.as_bytes().len())
        .cloned()
        .unwrap_or_else(RelPath::root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::identity::{Permit, Rights};
    use renkei_core::path::SiteName;

    #[test]
    fn who_waits_for_a_session_can_be_stopped() {
        let (mutex, stop) = (Mutex::new(()), Stop::default());
        let held = mutex.lock().unwrap();
        stop.stop(Error::new(Code::Cancelled, "copy", "", "the client left"));
        assert!(lock_unless_stopped(&mutex, &stop).is_none());
        drop(held);
        assert!(lock_unless_stopped(&mutex, &stop).is_some());
    }

    #[test]
    fn the_token_used_least_recently_is_forgotten_first() {
        let now = Instant::now();
        let slot = |number: u8| ([number; 32], Slot::shown(now + Duration::from_secs(u64::from(number % 5))));
        let mut slots: HashMap<Key, Arc<Slot>> = [3, 5, 4, 6].map(slot).into();
        for oldest in [5, 6, 3, 4] {
            take_oldest(&mut slots).unwrap();
            assert!(!slots.contains_key(&[oldest; 32]), "{oldest}");
        }
        assert!(slots.is_empty() && take_oldest(&mut slots).is_none());
    }

    #[test]
    fn a_session_is_about_what_the_token_is_for() {
        let site = SiteName::parse("kek").unwrap();
        let place = |text: &str| Place::parse(text.as_bytes()).unwrap().unwrap();
        let file = PartnerFile {
            site: site.clone(),
            endpoint: "localhost:1".into(),
            place: place("/data/run7/raw/a"),
            token: String::new(),
        };
        let based = |places: &[&str]| {
            let permit =
                |text: &&str| Permit { site: site.clone(), place: place(text), rights: Rights::READ };
            let scope = Scope::of_rights(places.iter().map(permit).collect()).unwrap();
            base(Some(&scope), &file).to_string()
        };
        assert!(base(None, &file).is_root());
        assert_eq!(based(&["/data/run7"]), "run7");
        assert_eq!(based(&["/data/run6", "/data/run7/raw", "/data/run7/raw/a"]), "run7/raw");
        for others in [&["/data/run7/raw/a"][..], &["/data/run", "/data/run7/raw2"], &["/other"]] {
            assert_eq!(based(others), RelPath::root().to_string(), "{others:?}");
        }
    }
}
