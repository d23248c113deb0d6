//! File sessions: a client works on single files below a place, as long as the session is open.
//!
//! A session is authorised once, when it is opened; it is checked again when trust, mapping or rights change, as a
//! transfer is. Drafts are temporary files under a key of the session; a session that replaces a lost one has the
//! same key, even after a restart of the PoP, and continues them. A journal names the place and the key, so that
//! abandoned drafts are found and removed: after ten minutes, or by the clean-up of abandoned transfers if the PoP
//! ended meanwhile.

use super::FileService;
use super::remote_locks::RemoteLocks;
use super::staging::staging_of;
use crate::access::{Access, Opened};
use crate::transfer::cleanup::clean_up_job;
use crate::transfer::jobs::running;
use crate::transfer::tickets::offer_streams;
use crate::transfer::{Stop, Watch};
use crate::{Context, Counters};
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Need, Principal};
use renkei_core::mover::journal::{Header, VERSION};
use renkei_core::path::{Place, SiteName};
use renkei_core::wire::file::{Files, Handle, OpenFiles, SessionKey};
use renkei_core::wire::message::Class;
use renkei_mover::files::limit::Limit;
use renkei_mover::files::local_files::LocalFiles;
use renkei_mover::files::server::{FileServerJob, serve};
use renkei_mover::hex;
use renkei_mover::journal::{Journal, boot_id, check_unfinished};
use renkei_net::control::ControlReceiver;
use renkei_net::identity::account::Account;
use renkei_store::locks::Locker;
use renkei_store::passwd::user_id;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// Retention of the drafts of a lost session.
const DRAFTS_KEPT: Duration = Duration::from_secs(600);
/// A uid that no account has.
const NO_UID: u32 = u32::MAX;
/// Maximum journals of writing sessions of one principal; they are kept for a week after a crash.
const MAX_UNFINISHED: usize = 4096;

impl FileService {
    /// Serves a file session; `request` is answered when the streams may connect.
    ///
    /// # Errors
    /// The outer error occurs before that answer, and the caller sends it; the inner one is how the session ended.
    pub fn attend(
        &self,
        access: &Access,
        open: &OpenFiles,
        request: u64,
        control: &mut ControlReceiver,
    ) -> Result<Result<(), Error>, Error> {
        let id = hex(&open.id);
        let span = tracing::info_span!("files", session = id, principal = %access.principal);
        let _entered = span.enter();
        let side = |error: Error| error.at(access.site());
        let ended = self.try_attend(access, open, request, control).map_err(side)?.map_err(side);
        match &ended {
            Ok(()) => tracing::info!("closed"),
            Err(error) => tracing::warn!(%error, "failed"),
        }
        Ok(ended)
    }

    fn try_attend(
        &self,
        access: &Access,
        open: &OpenFiles,
        request: u64,
        control: &mut ControlReceiver,
    ) -> Result<Result<(), Error>, Error> {
        let (watch, stop) = (Watch::default(), Stop::default());
        let place = (open.place.to_string(), vec![open.place.storage.clone()]);
        let entry = running(access, open.id, "files", place, Class::Normal, (&watch, &stop));
        // A reconnecting session supersedes its predecessor, which may still seem alive here.
        let number = number_of(access, open);
        let listed = self.transfers.active.enter(number, entry)?;
        let left = Arc::new(AtomicUsize::new(0));
        let (local_files, job) = self.open_local_files(access, open, (number, &left))?;
        let journal = self.draft_journal(access, open, &local_files, &job)?;
        tracing::info!(target: "audit", principal = %access.principal, account = job.account.name, place = %open.place,
            write = open.write, "file session");
        let waiting = self
            .transfers
            .issue_streams(access, self.transfers.stream_count(access, open.max_streams, None, control))?;
        offer_streams(&waiting, (false, None), false, request, control)?;
        let streams = match waiting.gather(&stop, control.sender().socket()) {
            Ok(streams) => streams,
            Err(error) => return Ok(Err(error)),
        };
        listed.tell(format!("data streams open: {}", streams.len()), control.round_trip());
        let _lending = self.lending.enter(open.key, &local_files, access, &job.account);
        let counters = &self.context.counters;
        Counters::add(&counters.file_sessions_total, 1);
        counters.file_sessions.fetch_add(1, Ordering::Relaxed);
        // The files are closed by the threads of the account.
        drop(local_files);
        let (operations, bytes, ended) = serve(job, control, streams, &watch, &stop);
        counters.file_sessions.fetch_sub(1, Ordering::Relaxed);
        Counters::add(&counters.file_operations_total, operations);
        Counters::add(&counters.file_bytes_total, bytes);
        match journal {
            Some((journal, false)) if left.load(Ordering::Relaxed) == 0 => journal.remove(),
            Some((journal, _)) => {
                drop(journal);
                match stop.stopped() {
                    // A session that lost its write permission leaves no drafts.
                    Some(error) if error.code != Code::Cancelled => clean_up_job(&self.context, number),
                    _ => self.left_drafts.note(number),
                }
            }
            None => {}
        }
        Ok(ended)
    }

    /// The lock manager of a session: this site's, or that of the home of a followed volume.
    pub(crate) fn locker(
        &self,
        access: &Access,
        name: &str,
        client: [u8; 16],
    ) -> Result<Arc<dyn Locker>, Error> {
        let snapshot = &access.snapshot;
        Ok(match snapshot.volumes.get(name).filter(|facts| snapshot.follows(facts)) {
            Some(facts) => Arc::new(RemoteLocks::new(snapshot.remote.clone(), name, &facts.home)?),
            None => Arc::new(self.locks.begin((access.principal.to_string(), client))),
        })
    }

    /// Opens the journal of a session's drafts; also whether an earlier session had it.
    fn draft_journal(
        &self,
        access: &Access,
        open: &OpenFiles,
        local_files: &LocalFiles,
        job: &FileServerJob,
    ) -> Result<Option<(Journal, bool)>, Error> {
        if !open.write {
            return Ok(None);
        }
        let (job, account) = (local_files.job(), job.account.name.clone());
        open_journal(&self.context, access, job, open.place.clone(), account).map(Some)
    }
}

/// Opens the journal of the drafts with the key `job` below a place, signed by its owner; also whether it was there.
pub(super) fn open_journal(
    context: &Context,
    access: &Access,
    job: u64,
    place: Place,
    account: String,
) -> Result<(Journal, bool), Error> {
    let (version, boot, to, local) = (VERSION, boot_id(), Some(place), Vec::new());
    let header = Header { version, job, boot, to, local, account };
    let (folder, owner) = (context.home().journal_dir(), access.principal.to_string());
    check_unfinished(&folder, &header, &owner, MAX_UNFINISHED)?;
    let (mut journal, state) = Journal::open(&folder, &header, &|_| Ok(()))?;
    journal.sign(&state, &owner)?;
    Ok((journal, state.header.is_some()))
}

/// Keys of lost sessions with drafts, and when they were lost.
#[derive(Default)]
pub(crate) struct LeftDrafts(Mutex<Vec<(Instant, u64)>>);

impl LeftDrafts {
    fn note(&self, number: u64) {
        self.0.lock().expect("no thread panics while it holds the lock").push((Instant::now(), number));
    }

    /// Removes and returns the keys that no session has continued within [`DRAFTS_KEPT`].
    fn take_due(&self) -> Vec<u64> {
        let mut all = self.0.lock().expect("no thread panics while it holds the lock");
        let due = all.extract_if(.., |(since, _)| since.elapsed() >= DRAFTS_KEPT);
        due.map(|(_, number)| number).collect()
    }
}

/// Starts the thread that removes abandoned drafts, and closes idle sessions with other sites and agents.
pub fn spawn_draft_sweep(room: &Arc<FileService>) -> Result<(), Error> {
    room.context.spawn_every(room, "drafts", DRAFTS_KEPT / 10, |room| {
        room.far_sessions.close_idle();
        room.left_drafts.take_due().into_iter().for_each(|number| clean_up_job(&room.context, number));
    })
}

/// Sessions whose descriptors can be passed to programs of this machine, by their secrets.
#[derive(Default)]
pub(crate) struct FdPassing(Mutex<HashMap<SessionKey, Borrowed>>);

/// A session whose descriptors can be passed, and the permitted callers.
struct Borrowed {
    local_files: Weak<LocalFiles>,
    /// Its user, and the uid that the user is mapped to here.
    user: Principal,
    uid: u32,
    /// Whether the files were opened by an account that works for others, whose rights a descriptor would pass on.
    is_lent: bool,
}

/// A session's entry in [`FdPassing`], removed on drop.
struct Lent<'a> {
    lending: &'a FdPassing,
    key: SessionKey,
    local_files: Weak<LocalFiles>,
}

impl FdPassing {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionKey, Borrowed>> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }

    fn find(&self, key: &SessionKey, may: impl Fn(&Borrowed) -> bool) -> Option<Arc<LocalFiles>> {
        self.lock()
            .get(key)
            .filter(|borrowed| may(borrowed))
            .and_then(|borrowed| borrowed.local_files.upgrade())
    }

    fn enter(
        &self,
        key: SessionKey,
        local_files: &Arc<LocalFiles>,
        access: &Access,
        opened_by: &Account,
    ) -> Lent<'_> {
        let local_files = Arc::downgrade(local_files);
        // The account of a guest is the volume's.
        let uid = if access.account.is_lent { NO_UID } else { access.account.uid };
        let is_lent = opened_by.is_lent;
        let borrowed =
            Borrowed { local_files: local_files.clone(), user: access.principal.clone(), uid, is_lent };
        self.lock().insert(key, borrowed);
        Lent { lending: self, key, local_files }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut lending = self.lending.lock();
        if lending.get(&self.key).is_some_and(|borrowed| borrowed.local_files.ptr_eq(&self.local_files)) {
            lending.remove(&self.key);
        }
    }
}

impl FileService {
    /// The descriptor of a plain file that a file session has open for reading, for a process of this machine that
    /// knows the session's secret and runs as the session's user or as the administrator.
    ///
    /// # Errors
    /// `NotOpen` if there is no such session of that caller, `Unsupported` if the handle has no descriptor to pass.
    pub fn lend(&self, caller: u32, key: &SessionKey, handle: Handle) -> Result<OwnedFd, Error> {
        let refusal = |code, cause| Error::new(code, "lend", format_args!("handle {handle}"), cause);
        let local_files = self.lending.find(key, |borrowed| borrowed.is_for(caller, &self.context.name()));
        let local_files =
            local_files.ok_or_else(|| refusal(Code::NotOpen, "no session of yours at this PoP"))?;
        local_files.descriptor(handle).ok_or_else(|| refusal(Code::Unsupported, "it has no plain file"))
    }
}

impl Borrowed {
    /// Whether a caller with this uid, at the PoP of `site`, may get a descriptor: the administrator, and the
    /// session's user if the files were opened with the user's own rights. Through `/proc` a descriptor can be
    /// reopened in other modes, past closed directories.
    fn is_for(&self, caller: u32, site: &SiteName) -> bool {
        let is_administrator = caller == 0 || caller == rustix::process::geteuid().as_raw();
        let is_user = || {
            self.user.site() == site
                && self.user.user_name().is_some_and(|name| user_id(name) == Some(caller))
        };
        is_administrator || (!self.is_lent && (caller == self.uid || is_user()))
    }
}

/// The key of a session's drafts, the same for sessions that continue it. It changes with a reboot of the machine:
/// data that was not synced may be lost then.
fn number_of(access: &Access, open: &OpenFiles) -> u64 {
    let text = format!("{}\0{}\0{}\0{}", access.principal, open.place, hex(&open.key), hex(&boot_id()));
    let hash = blake3::hash(text.as_bytes());
    u64::from_be_bytes(*hash.as_bytes().first_chunk().expect("a digest is longer"))
}

impl FileService {
    /// The open-file table of an opened place, beside which the PoP keeps locks, checksums and journals of uploads.
    pub(super) fn local_files(
        &self,
        access: &Access,
        (at, need): (&Place, Need),
        (place, limit): (Opened, Option<Limit>),
        locker: Arc<dyn Locker>,
    ) -> Result<LocalFiles, Error> {
        let store = place.store.clone();
        let uploads = self.uploads(access, at, &place.account);
        let local =
            place.run("open", move |_, path| LocalFiles::new(store, path.clone(), need == Need::Write));
        let local = local.map_err(|error| error.under(&format!("/{}", at.storage)))?;
        let checksums = self.context.checksums.of(&at.storage);
        let local = local.locked_by(locker).limited(limit).with_checksums(checksums).with_uploads(uploads);
        Ok(local.with_staging(staging_of(&self.context, &self.volumes, access, at)))
    }

    /// Opens the place of a session as its account; remaining drafts are counted in `left`.
    fn open_local_files(
        &self,
        access: &Access,
        open: &OpenFiles,
        (number, left): (u64, &Arc<AtomicUsize>),
    ) -> Result<(Arc<LocalFiles>, FileServerJob), Error> {
        let need = if open.write { Need::Write } else { Need::Read };
        let locker = self.locker(access, &open.place.storage, open.locks)?;
        let (mut place, limit) = access.open_files(&open.place, need)?;
        let holder = place.store.leases().filter(|_| open.leases).and_then(|table| {
            let joined = table.join();
            joined.inspect_err(|error| tracing::warn!(%error, "no leases are given")).ok().map(Arc::new)
        });
        if let Some(own) = holder.as_ref().and_then(|holder| place.store.held_by(holder.id())) {
            place.store = own;
        }
        let account = place.account.clone();
        let local = self.local_files(access, (&open.place, need), (place, limit), locker.clone())?;
        let local = local.leaving(number, left.clone()).seeing(open.consistency);
        let files = Arc::new(match &holder {
            Some(holder) => local.held_by(holder.clone()),
            None => local,
        });
        let job = FileServerJob {
            files: files.clone(),
            account,
            side: access.site().into(),
            root: format!("/{}", open.place.storage),
            silence: access.snapshot.config.stall_timeout(),
            holder,
            locker,
        };
        Ok((files, job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_passed_to_the_owner_of_the_session_and_the_administrator() {
        let (kek, titech) =
            (SiteName::parse("kek").expect("a name"), SiteName::parse("titech").expect("a name"));
        let user = Principal::user(&kek, "daemon").expect("a name");
        let daemon = user_id("daemon").expect("each system has it");
        let borrowed =
            |is_lent| Borrowed { local_files: Weak::new(), user: user.clone(), uid: 4_000_000, is_lent };
        let (borrowed, of_volume) = (borrowed(false), borrowed(true));
        let own = rustix::process::geteuid().as_raw();
        for caller in [0, own, 4_000_000, daemon] {
            assert!(borrowed.is_for(caller, &kek), "{caller}");
        }
        // Files opened by another account may lie behind directories that are closed to this one.
        assert!(of_volume.is_for(own, &kek) && !of_volume.is_for(4_000_000, &kek));
        assert!(daemon == own || !of_volume.is_for(daemon, &kek));
        assert!(!borrowed.is_for(4_000_001, &kek), "somebody else");
        assert!(daemon == own || !borrowed.is_for(daemon, &titech), "another site's user of the same name");
    }
}
