//! Clean-up of cancelled transfers of the queue: files that arrived are removed at the destination, at once or as
//! soon as that site is reachable.
//!
//! The home PoP of a transfer notes the cancellation in `state/given-up` and tells the destination, in the name of
//! the owner while the credential of the transfer is valid, else as the PoP of the owner's site. A destination that
//! was not reached within a week has removed the files by itself.

use super::state::QueueState;
use crate::Context;
use crate::relay::Relay;
use crate::submission::{now_ms, read_spec};
use crate::transfer::Transfers;
use crate::transfer::cleanup::ABANDONED_AFTER;
use renkei_catalogue::{Row, hex_id};
use renkei_config::home::{make_private_dir, open_regular, write_file};
use renkei_core::error::{Code, Error, Retry};
use renkei_core::format::Format;
use renkei_core::path::SiteName;
use renkei_core::queue::State;
use renkei_core::wire::decode;
use renkei_core::wire::message::{Request, TransferId};
use renkei_core::wire::unfinished::{AboutUnfinished, UnfinishedAction};
use renkei_mover::connect::dial::Dialler;
use renkei_net::identity::delegation::Delegation;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Retry interval for unreachable sites.
const AGAIN_EVERY: Duration = Duration::from_secs(10);
/// The format of a note.
pub(crate) const FORMAT: Format<Given> = Format::numbered("cancelled transfer", &[decode]);
/// Maximum size of a note.
const MAX_BYTES: u64 = 64 << 10;

/// A note: a cancelled transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Given {
    pub(crate) transfer: TransferId,
    pub(crate) owner: String,
    pub(crate) to: SiteName,
    pub(crate) storage: String,
    pub(crate) since_ms: u64,
}

/// The clean-up of cancelled transfers.
pub struct CancelCleanup {
    context: Arc<Context>,
    relay: Arc<Relay>,
    transfers: Arc<Transfers>,
    queue: Arc<QueueState>,
    /// Credentials of transfers cancelled since the start; they are kept in memory only.
    credentials: Mutex<HashMap<TransferId, Vec<u8>>>,
    bell: Mutex<bool>,
    rung: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds the lock: a panic aborts")
}

impl CancelCleanup {
    /// Nothing to clean up but what the notes of the last run say.
    pub(super) fn new(
        context: &Arc<Context>,
        relay: &Arc<Relay>,
        transfers: &Arc<Transfers>,
        queue: &Arc<QueueState>,
    ) -> Self {
        CancelCleanup {
            context: context.clone(),
            relay: relay.clone(),
            transfers: transfers.clone(),
            queue: queue.clone(),
            credentials: Mutex::default(),
            bell: Mutex::default(),
            rung: Condvar::new(),
        }
    }

    fn ring(&self) {
        *lock(&self.bell) = true;
        self.rung.notify_all();
    }

    fn wait(&self) {
        let waited = self.rung.wait_timeout_while(lock(&self.bell), AGAIN_EVERY, |rung| !*rung);
        *waited.expect("no thread panics while it holds the lock: a panic aborts").0 = false;
    }

    /// Starts the clean-up of a cancelled transfer; `credential` is its owner's delegation.
    pub(crate) fn give_up(&self, row: &Row, credential: Option<Vec<u8>>) {
        if row.job.state != State::Cancelled || row.job.attempts == 0 {
            return;
        }
        if let Some(credential) = credential {
            lock(&self.credentials).insert(row.id, credential);
        }
        if let Err(error) = self.note_given_up(row) {
            let transfer = hex_id(&row.id);
            tracing::warn!(transfer, %error, "partial data is kept for a week");
        }
        self.ring();
    }

    fn note_given_up(&self, row: &Row) -> Result<(), Error> {
        let spec = read_spec(row)?;
        let given = Given {
            transfer: row.id,
            owner: row.owner.clone(),
            to: spec.to,
            storage: spec.copy.to.storage,
            since_ms: now_ms(),
        };
        let folder = self.given_up_folder();
        make_private_dir(self.context.home().state_dir())?;
        make_private_dir(&folder)?;
        write_file(&folder.join(hex_id(&row.id)), &FORMAT.encode(&given), 0o600)
    }

    /// Whether a transfer is still cancelled: a retry needs the data that had arrived.
    fn is_given_up(&self, given: &Given) -> Result<bool, Error> {
        let row = self.queue.catalogue()?.load(&given.transfer)?;
        Ok(row.is_none_or(|row| row.job.state == State::Cancelled))
    }

    fn given_up_folder(&self) -> PathBuf {
        self.context.home().state_dir().join("given-up")
    }

    /// Tells the destinations, the newest cancellation first: a site that does not answer must not delay the others
    /// for long.
    fn tell_given_up(&self) {
        let mut all = notes(&self.given_up_folder());
        all.sort_by_key(|(_, given)| std::cmp::Reverse(given.since_ms));
        for (path, given) in all {
            let transfer = hex_id(&given.transfer);
            let told = self.is_given_up(&given).and_then(|is_so| match is_so {
                true => self.tell_one(&given),
                false => Ok(()),
            });
            match told {
                Ok(()) => {
                    tracing::info!(target: "audit", transfer, to = %given.to, "cancelled, and its space freed")
                }
                Err(error) if is_for_later(&error, &given) => {
                    tracing::debug!(transfer, %error, "cancelled, the destination is not informed yet");
                    continue;
                }
                Err(error) => {
                    tracing::warn!(transfer, to = %given.to, %error, "cancelled; partial data is kept for a week");
                }
            }
            lock(&self.credentials).remove(&given.transfer);
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "cannot remove a note");
            }
        }
    }

    fn tell_one(&self, given: &Given) -> Result<(), Error> {
        // A transfer that went through the buffer here has a journal here.
        self.transfers.give_up_here(&given.transfer, &given.owner)?;
        if given.to == self.context.name() && self.context.last_snapshot().agent_of(&given.storage).is_none()
        {
            return Ok(());
        }
        match self.tell_as_owner(given) {
            Some(Ok(())) => Ok(()),
            // An agent serves only its users.
            Some(Err(error)) if error.retry() == Retry::Later => Err(error),
            _ => ask(&self.relay.dialler(&self.context.snapshot())?, given, None),
        }
    }

    /// Tells the destination in the name of the owner; `None` if the credential is gone or invalid.
    fn tell_as_owner(&self, given: &Given) -> Option<Result<(), Error>> {
        let kept = lock(&self.credentials).get(&given.transfer).cloned()?;
        let delegation = Delegation::from_bytes(&kept).ok()?;
        self.context.check_delegation(&delegation).ok()?;
        let snapshot = self.context.snapshot();
        let silence = snapshot.config.stall_timeout();
        let dialler =
            Dialler::new(&delegation.credential, snapshot.trust.clone(), silence).and_then(|dialler| {
                dialler.with_ways(self.relay.ways(&snapshot)).passed_on_for(&snapshot.credential)
            });
        Some(dialler.and_then(|dialler| ask(&dialler, given, Some(given.storage.clone()))))
    }
}

/// Starts the clean-up thread, which runs as long as the PoP lives.
pub fn spawn_giving_up(cleanup: &Arc<CancelCleanup>) -> Result<(), Error> {
    let weak = Arc::downgrade(cleanup);
    let work = move || {
        while let Some(cleanup) = weak.upgrade() {
            let turn = cleanup.context.workers.begin("given-up");
            cleanup.tell_given_up();
            drop(turn);
            cleanup.wait();
        }
    };
    let thread = std::thread::Builder::new().name("given-up".into()).spawn(work);
    thread.map(drop).map_err(|error| Error::new(Code::SystemCall, "start thread", "given-up", error))
}

fn ask(dialler: &Dialler, given: &Given, storage: Option<String>) -> Result<(), Error> {
    let what = UnfinishedAction::GiveUp { transfer: given.transfer, owner: given.owner.clone() };
    let mut session = dialler.connect(&given.to)?;
    session.ask(Request::Unfinished(AboutUnfinished { storage, what })).map(drop)
}

/// Whether it is retried: within a week, and only on transient errors.
fn is_for_later(error: &Error, given: &Given) -> bool {
    let age = Duration::from_millis(now_ms().saturating_sub(given.since_ms));
    error.retry() == Retry::Later && age < ABANDONED_AFTER
}

/// The notes in a folder.
fn notes(folder: &Path) -> Vec<(PathBuf, Given)> {
    let Ok(listing) = std::fs::read_dir(folder) else { return Vec::new() };
    let read = |path: PathBuf| {
        let mut bytes = Vec::new();
        let file = open_regular(&path, OpenOptions::new().read(true)).ok()?;
        file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
        match FORMAT.decode(&bytes) {
            Ok(given) => Some((path, given)),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a note of a cancelled transfer is left alone");
                None
            }
        }
    };
    listing.flatten().filter_map(|listed| read(listed.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_back_and_other_files_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let given = Given {
            transfer: [7; 16],
            owner: "alice@titech".into(),
            to: SiteName::parse("kek").unwrap(),
            storage: "data".into(),
            since_ms: 5,
        };
        let path = folder.path().join("07");
        std::fs::write(&path, FORMAT.encode(&given)).unwrap();
        std::fs::write(folder.path().join("08"), [FORMAT.version() + 1, 0, 0]).unwrap();
        std::fs::write(folder.path().join("09"), b"").unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, folder.path().join("10"), 0o600.into()).unwrap();
        assert_eq!(notes(folder.path()), [(path, given)]);
        assert_eq!(notes(&folder.path().join("nowhere")), []);
    }

    #[test]
    fn a_cancellation_is_retried_for_a_week_if_useful() {
        let (transfer, owner, storage) = ([7; 16], "alice@titech".to_owned(), "data".to_owned());
        let to = SiteName::parse("kek").unwrap();
        let given = |since_ms| Given {
            transfer,
            owner: owner.clone(),
            to: to.clone(),
            storage: storage.clone(),
            since_ms,
        };
        let error = |code| Error::new(code, "", "", "");
        assert!(is_for_later(&error(Code::PeerDown), &given(now_ms())));
        assert!(!is_for_later(&error(Code::ProtocolViolation), &given(now_ms())));
        assert!(!is_for_later(&error(Code::PeerDown), &given(now_ms() - 8 * 24 * 3600 * 1000)));
    }
}
