//! Files at another site: an RPC client that reopens its session when it is lost.
//!
//! Callers use handles of this client's own. After a loss, files that were open for reading are reopened, and are the
//! same version or an error; drafts are resumed (`write_behind.rs`); operations that only read are retried. An
//! operation on names that was in flight fails, because it is unknown whether it was done.

use super::lease_client::LeaseClient;
use super::prefetch::{MAX_NAMES, Prefetcher};
use super::read_ahead::{PrefetchedFile, ReadAhead};
use super::rpc::{IoBuffer, IoBufferPool, PendingReply, RpcConnection};
use super::write_behind::{Draft, Version, WriteBehind};
use crate::connect::dial::{DialHints, Dialler};
use crate::fresh_id;
use crate::lock;
use renkei_config::random::random_number;
use renkei_core::backoff::{Backoff, Pauses};
use renkei_core::entry::{EntryKind, Stamp, Xattr};
use renkei_core::error::{Code, Error, Kind, Retry};
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_core::wire::file::{
    Answer, Consistency, Files, Handle, Item, Lessor, Listener, MAX_IO_BYTES, Op, OpenFiles, Precondition,
    SessionKey, Start,
};
use renkei_core::wire::message::Request;
use renkei_core::wire::on_behalf::{FilesRequest, OnBehalf};
use renkei_core::wire::uploads::UploadOp;
use renkei_core::wire::{WireVersion, violation};
use renkei_net::identity::socket;
use serde_json::json;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Backoff before a lost session is reopened.
const MAX_PAUSE: Duration = Duration::from_secs(10);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), MAX_PAUSE);
/// The longest backoff while only a credential is missing: reading a file costs little, and the user may just have
/// run `renkei login`.
const MAX_PAUSE_FOR_LOGIN: Duration = Duration::from_secs(1);
/// Most data streams to request; the site decides.
const MAX_STREAMS: u16 = 64;
/// How long an orderly end waits for the site to acknowledge it.
const GIVE_UP_WITHIN: Duration = Duration::from_secs(2);
/// Most operations in flight in [`RemoteFiles::ask_each`].
const ASKED_AHEAD: usize = 1024;

/// Policy for a session that is lost and cannot be reopened at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenLost {
    /// Block until it is reopened.
    Wait,
    /// Block for at most this long, then fail.
    Fail(Duration),
}

/// For operations that may use stale data: one attempt, no waiting.
const ONE_TRY: WhenLost = WhenLost::Fail(Duration::ZERO);

/// The epoch and handle of a file that is open in no session.
const OPEN_HERE_ALONE: (u64, Handle) = (0, 0);

/// Configuration of the access to files at another site.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// See [`WhenLost`].
    pub when_lost: WhenLost,
    /// Most bytes of read-ahead and write-behind, of all files together.
    pub memory: u64,
    /// How long a peer may leave sent data unacknowledged.
    pub silence: Duration,
    /// Most age of attributes that were prefetched with a file's content.
    pub look_ttl: Duration,
    /// Whether to request leases on answers.
    pub leases: bool,
    /// How much of other sites' changes an open has to see.
    pub consistency: Consistency,
}

impl Default for Config {
    fn default() -> Self {
        let silence = Duration::from_secs(30);
        Config {
            when_lost: WhenLost::Fail(Duration::from_secs(60)),
            memory: 256 << 20,
            silence,
            look_ttl: Duration::ZERO,
            leases: false,
            consistency: Consistency::default(),
        }
    }
}

/// A directory at a site.
#[derive(Clone)]
pub struct RemoteDir {
    /// Dials the sessions.
    pub dialler: Dialler,
    /// The site.
    pub site: SiteName,
    /// The directory.
    pub place: Place,
    /// Whether anything may be changed.
    pub write: bool,
}

/// The files below a directory at a site.
pub struct RemoteFiles {
    far: RemoteDir,
    /// The user on whose behalf this PoP asks; none if the dialler's own credential is the user's.
    user: Option<OnBehalf>,
    config: Config,
    state: Mutex<State>,
    changed: Condvar,
    open: Mutex<HashMap<Handle, Arc<Open>>>,
    next: AtomicU64,
    lease_client: Arc<LeaseClient>,
    /// Bytes read ahead or written behind.
    pub(crate) held: Arc<AtomicU64>,
    /// Buffers of write-behind.
    pub(crate) pool: Arc<IoBufferPool>,
    /// Prefetch of the files that are likely opened next.
    prefetcher: Mutex<Prefetcher>,
    /// Identifies this client to the site across sessions.
    key: SessionKey,
    /// The socket of this machine's PoP, as long as that may be the site's PoP.
    lender: Mutex<Option<PathBuf>>,
    /// Makes the dialler of every session after the first, if set.
    fresh: Option<FreshDialler>,
}

/// Makes a dialler with the current credential.
pub type FreshDialler = Arc<dyn Fn() -> Result<Dialler, Error> + Send + Sync>;

struct State {
    conn: Arc<RpcConnection>,
    /// Number of the session: handles of an older one are invalid.
    epoch: u64,
    /// Whether a thread is reopening the session.
    opening: bool,
    lost_since: Option<Instant>,
    /// The error of the last attempt, and whether it was logged that calls wait.
    failed: Option<Error>,
    told: bool,
    /// When the last attempt to reopen began.
    tried: Option<Instant>,
    pause: Duration,
    pauses: Pauses,
}

impl State {
    fn new(conn: Arc<RpcConnection>, epoch: u64) -> Self {
        State {
            conn,
            epoch,
            opening: false,
            lost_since: None,
            failed: None,
            told: false,
            tried: None,
            pause: BACKOFF.limit(0),
            pauses: BACKOFF.begin(),
        }
    }
}

/// An open file, directory or draft.
pub(crate) struct Open {
    /// The current path, as far as known here.
    pub(crate) path: Mutex<RelPath>,
    /// The epoch of the session in which it was opened, and the handle there.
    far: Mutex<(u64, Handle)>,
    pub(crate) kind: Opened,
}

pub(crate) enum Opened {
    File(ReadAhead),
    /// A file served from prefetched content, not open at the site.
    Prefetched(PrefetchedFile),
    /// The items of the listing received so far.
    Dir(Mutex<Vec<Item>>),
    Draft {
        draft: Box<Mutex<Draft>>,
        behind: WriteBehind,
    },
}

impl RemoteDir {
    /// Opens a session.
    fn open(
        &self,
        key: SessionKey,
        config: &Config,
        lease_client: &Arc<LeaseClient>,
        user: Option<&OnBehalf>,
    ) -> Result<Arc<RpcConnection>, Error> {
        let (place, write, max_streams) = (self.place.clone(), self.write, MAX_STREAMS);
        let (leases, locks) = (config.leases, lease_client.client());
        let (id, consistency) = (fresh_id()?, config.consistency);
        let open = OpenFiles { id, place, write, max_streams, key, leases, locks, consistency };
        let request = match user {
            None => Request::OpenFiles(open),
            Some(user) => Request::FilesFor { user: user.clone(), request: FilesRequest::Open(open) },
        };
        let ahead = DialHints { streams: MAX_STREAMS, sends: write, request: Some(request.clone()) };
        let mut session = self.dialler.connect_for(user, &self.site, &self.place.storage, &ahead)?;
        let opened = session.ask_open(request)?;
        let streams = self.dialler.join(&mut session, &opened)?;
        lease_client.begin_again();
        RpcConnection::start(session.control, streams, write, config.silence, lease_client.clone())
    }
}

impl RemoteFiles {
    /// Opens the first session.
    ///
    /// # Errors
    /// As [`Dialler::connect`], and the errors of the site.
    pub fn open(far: RemoteDir, config: Config) -> Result<Self, Error> {
        Self::open_by(far, config, None)
    }

    /// The same on behalf of a user, for a PoP.
    ///
    /// # Errors
    /// As [`RemoteFiles::open`]; `VersionMismatch` towards a PoP of wire 3; `NotAllowed`.
    pub fn open_for(user: OnBehalf, far: RemoteDir, config: Config) -> Result<Self, Error> {
        Self::open_by(far, config, Some(user))
    }

    fn open_by(far: RemoteDir, config: Config, user: Option<OnBehalf>) -> Result<Self, Error> {
        let (key, lease_client) = (fresh_id()?, Arc::new(LeaseClient::new(fresh_id()?)));
        let conn = far.open(key, &config, &lease_client, user.as_ref())?;
        let state = State::new(conn, 1);
        Ok(RemoteFiles {
            far,
            user,
            config,
            state: Mutex::new(state),
            changed: Condvar::new(),
            open: Mutex::default(),
            next: AtomicU64::new(1),
            lease_client,
            held: Arc::default(),
            pool: Arc::default(),
            prefetcher: Mutex::default(),
            key,
            lender: Mutex::default(),
            fresh: None,
        })
    }

    /// Has a new dialler made for each further session, so that the credential of a login in the meantime is used.
    /// Calls that wait for a lost session then wait for a credential, too.
    pub fn with_fresh_dialler(mut self, fresh: FreshDialler) -> Self {
        self.fresh = Some(fresh);
        self
    }

    /// Allows direct reads of files whose site is this machine, if the PoP behind this socket agrees.
    pub fn with_lender(self, socket: PathBuf) -> Self {
        *lock(&self.lender) = Some(socket);
        self
    }

    /// Number of data streams of the session.
    pub fn streams(&self) -> usize {
        lock(&self.state).conn.streams()
    }

    /// Whether the session is lost and not reopened yet.
    pub fn is_lost(&self) -> bool {
        lock(&self.state).conn.lost().is_some()
    }

    /// Number of files that had been prefetched when they were opened.
    pub fn foreseen(&self) -> u64 {
        lock(&self.prefetcher).foreseen()
    }

    /// The epoch of the locks at the site; 0 while unknown.
    pub fn lock_round(&self) -> u64 {
        self.lease_client.lock_round()
    }

    /// Memory limit of all files together.
    pub(crate) fn memory(&self) -> u64 {
        self.config.memory
    }

    /// Pipelines many operations; the answers come in order. Only operations without a handle may be sent so.
    ///
    /// # Errors
    /// A lost connection, or the error of `on_answer`.
    pub fn ask_each(
        &self,
        ops: impl IntoIterator<Item = Op>,
        mut on_answer: impl FnMut(Result<Answer, Error>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (_, conn) = self.conn()?;
        let mut waiting = std::collections::VecDeque::<PendingReply>::with_capacity(ASKED_AHEAD);
        for op in ops {
            if waiting.len() == ASKED_AHEAD
                && let Some(first) = waiting.pop_front()
            {
                on_answer(told(first.take()?.answer))?;
            }
            waiting.push_back(conn.begin(&op, None));
        }
        waiting.into_iter().try_for_each(|pending| on_answer(told(pending.take()?.answer)))
    }

    /// The session, reopened if it was lost.
    fn conn(&self) -> Result<(u64, Arc<RpcConnection>), Error> {
        self.conn_or(self.config.when_lost)
    }

    fn conn_or(&self, when_lost: WhenLost) -> Result<(u64, Arc<RpcConnection>), Error> {
        let mut state = lock(&self.state);
        loop {
            let Some(lost) = state.conn.lost() else { return Ok((state.epoch, state.conn.clone())) };
            let since = *state.lost_since.get_or_insert_with(Instant::now);
            // Calls that do not wait retry too, but not more often than the backoff allows.
            let is_early = state.tried.is_some_and(|tried| tried.elapsed() < state.pause);
            if when_lost == ONE_TRY && (is_early || state.opening) {
                return Err(state.failed.clone().unwrap_or(lost));
            }
            if is_early && when_lost.is_over(since) {
                return Err(lost);
            }
            if state.opening {
                let waited = self.changed.wait_timeout(state, MAX_PAUSE);
                state = waited.expect("no thread panics while it holds the lock").0;
                continue;
            }
            (state.opening, state.tried) = (true, Some(Instant::now()));
            drop(state);
            let opened = self.open_again();
            state = self.take_over(opened, since, when_lost)?;
        }
    }

    fn open_again(&self) -> Result<Arc<RpcConnection>, Error> {
        let Some(fresh) = &self.fresh else {
            return self.far.open(self.key, &self.config, &self.lease_client, self.user.as_ref());
        };
        let far = RemoteDir { dialler: fresh()?, ..self.far.clone() };
        far.open(self.key, &self.config, &self.lease_client, self.user.as_ref())
    }

    /// Installs a new session, or backs off before the next attempt.
    ///
    /// # Errors
    /// Permanent errors, and any error once the time limit has passed.
    fn take_over(
        &self,
        opened: Result<Arc<RpcConnection>, Error>,
        since: Instant,
        when_lost: WhenLost,
    ) -> Result<MutexGuard<'_, State>, Error> {
        let failed = match opened {
            Ok(conn) => {
                let mut state = lock(&self.state);
                tracing::info!(site = %self.far.site, epoch = state.epoch + 1, "file session opened again");
                let epoch = state.epoch + 1;
                *state = State::new(conn, epoch);
                self.changed.notify_all();
                return Ok(state);
            }
            Err(error) => error,
        };
        let for_login = self.fresh.is_some() && when_lost == WhenLost::Wait && lacks_credential(&failed);
        let is_final = !(is_passing(&failed) || for_login) || when_lost.is_over(since);
        let (pause, told) = {
            let mut state = lock(&self.state);
            state.failed = Some(failed.clone());
            let told = state.told;
            state.told |= !is_final;
            state.pause = state.pauses.next(random_number());
            (state.pause, told)
        };
        if !is_final {
            note_wait(&failed, !told);
            std::thread::sleep(if for_login { pause.min(MAX_PAUSE_FOR_LOGIN) } else { pause });
        }
        let mut state = lock(&self.state);
        state.opening = false;
        self.changed.notify_all();
        if is_final { Err(failed) } else { Ok(state) }
    }

    /// Runs `work` with the session; again with the next one if the session is lost and `repeats` (idempotent).
    pub(crate) fn with_conn<T>(
        &self,
        repeats: bool,
        work: impl Fn(u64, &Arc<RpcConnection>) -> Result<Result<T, Error>, Error>,
    ) -> Result<T, Error> {
        loop {
            let (epoch, conn) = self.conn()?;
            match work(epoch, &conn) {
                Ok(outcome) => return outcome,
                Err(lost) if repeats && is_passing(&lost) => {}
                Err(lost) => return Err(lost),
            }
        }
    }

    /// Stops asking a PoP that does not know the session.
    fn on_refusal(&self, error: &Error) {
        tracing::debug!(%error, "nothing is lent");
        if error.code != Code::Unsupported {
            *lock(&self.lender) = None;
        }
    }

    pub(crate) fn find(&self, handle: Handle) -> Result<Arc<Open>, Error> {
        lock(&self.open).get(&handle).cloned().ok_or_else(|| unknown(handle))
    }

    fn keep(&self, open: Open) -> Handle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.open).insert(handle, Arc::new(open));
        handle
    }

    /// Closes the drafts at the site, which then does not keep them, and waits briefly for the acknowledgement.
    fn give_up_drafts(&self) {
        let conn = lock(&self.state).conn.clone();
        let open = std::mem::take(&mut *lock(&self.open));
        let drafts = open.values().filter(|open| matches!(open.kind, Opened::Draft { .. }));
        let told: Vec<_> = drafts.map(|open| conn.begin(&Op::Close(lock(&open.far).1), None)).collect();
        let until = Instant::now() + GIVE_UP_WITHIN;
        while !told.iter().all(PendingReply::is_done) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Updates the paths of open files below a renamed path.
    fn follow(&self, from: &RelPath, to: &RelPath) {
        for open in lock(&self.open).values() {
            let mut path = lock(&open.path);
            if let Some(moved) = path.below(from).and_then(|below| to.join(&below).ok()) {
                *path = moved;
            }
        }
    }

    /// Performs an opening `op`, and registers the result.
    fn begin(&self, op: &Op) -> Result<Answer, Error> {
        let repeats = !matches!(op, Op::Draft { start: Start::New, .. });
        let (epoch, handle, item, held) = self.with_conn(repeats, |epoch, conn| {
            if let Err(error) = conn.expect(op.since()) {
                return Ok(Err(error));
            }
            Ok(told(conn.ask(op, None)?.answer).and_then(|answer| {
                let (answer, held) = answer.parted();
                match answer {
                    Answer::Opened { handle, item } => Ok((epoch, handle, item, held)),
                    other => Err(surprise(&other)),
                }
            }))
        })?;
        let (path, kind) = match op {
            Op::Draft { path, start, mode } => {
                let draft = Box::new(Mutex::new(Draft::new(*start, *mode, Version::of(&item))));
                (path, Opened::Draft { draft, behind: WriteBehind::default() })
            }
            Op::Upload { path, .. } => {
                let draft = Box::new(Mutex::new(Draft::of_part(op.clone(), Version::of(&item))));
                (path, Opened::Draft { draft, behind: WriteBehind::default() })
            }
            Op::OpenDir(path) => (path, Opened::Dir(Mutex::default())),
            Op::Open(path) => {
                (path, Opened::File(ReadAhead::new(stamp_of(&item), lock(&self.prefetcher).take(path))))
            }
            other => return Err(violation("operation", format_args!("{other:?} opens nothing"))),
        };
        let open = Open { path: Mutex::new(path.clone()), far: Mutex::new((epoch, handle)), kind };
        Ok(Answer::Opened { handle: self.keep(open), item }.joined(held))
    }

    /// The handle in the current session; reopens a handle of an older one.
    ///
    /// # Errors
    /// The outer one: the connection was lost.
    pub(crate) fn far_handle(
        &self,
        open: &Open,
        epoch: u64,
        conn: &RpcConnection,
    ) -> Result<Result<Handle, Error>, Error> {
        let mut far = lock(&open.far);
        if far.0 == epoch {
            return Ok(Ok(far.1));
        }
        let again = match &open.kind {
            Opened::Dir(_) => return Ok(Err(broken(open, Code::NotOpen, "the list was cut off"))),
            Opened::Prefetched(_) => return Ok(Err(broken(open, Code::NotOpen, "it is open here alone"))),
            Opened::File(_) => Op::Open(lock(&open.path).clone()),
            Opened::Draft { draft, .. } => match lock(draft).again(&lock(&open.path), far.1) {
                Some(again) => again,
                None => return Ok(Err(broken(open, Code::DraftLost, "the part must be sent again"))),
            },
        };
        if let Opened::Draft { draft, .. } = &open.kind
            && let Some(left) = lock(draft).left(&lock(&open.path), far.1)
            && told(conn.ask(&left, None)?.answer).is_ok()
        {
            conn.begin(&Op::Close(far.1), None);
        }
        let answered = told(conn.ask(&again, None)?.answer);
        let (handle, item) = match answered.map(|answer| answer.parted().0) {
            Ok(Answer::Opened { handle, item }) => (handle, item),
            Ok(other) => return Ok(Err(surprise(&other))),
            Err(error) => return Ok(Err(error)),
        };
        if let Opened::File(ahead) = &open.kind
            && ahead.stamp() != stamp_of(&item)
        {
            conn.begin(&Op::Close(handle), None);
            let cause = "it has another version since the connection was lost";
            return Ok(Err(broken(open, Code::SourceChanged, cause)));
        }
        *far = (epoch, handle);
        Ok(Ok(handle))
    }

    /// Sends an operation on an open handle.
    fn ask_open(&self, open: &Open, repeats: bool, op: impl Fn(Handle) -> Op) -> Result<Answer, Error> {
        self.with_conn(repeats, |epoch, conn| match self.far_handle(open, epoch, conn)? {
            Ok(handle) => Ok(told(conn.ask(&op(handle), None)?.answer)),
            Err(error) => Ok(Err(error)),
        })
    }

    /// Reads exactly the requested range, without read-ahead.
    fn read_one(&self, open: &Open, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let bytes = buf.len() as u32;
        let replied = self.with_conn(true, |epoch, conn| match self.far_handle(open, epoch, conn)? {
            Ok(handle) => conn.ask(&Op::Read { handle, offset, bytes }, None).map(Ok),
            Err(error) => Ok(Err(error)),
        })?;
        told(replied.answer)?;
        let data = replied.data.as_ref().map_or(&[][..], IoBuffer::bytes);
        let data = &data[..data.len().min(buf.len())];
        buf[..data.len()].copy_from_slice(data);
        Ok(data.len())
    }

    fn read_file(&self, open: &Open, ahead: &ReadAhead, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let read = self.with_conn(true, |epoch, conn| {
            Ok(match self.far_handle(open, epoch, conn)? {
                Ok(handle) => Ok((handle, conn.clone())),
                Err(error) => Err(error),
            })
        });
        let (handle, conn) = read?;
        let count = match ahead.read(self, &conn, handle, offset, buf) {
            Some(count) => count,
            // Not a sequential read; or the connection was lost, and the read-ahead with it.
            None => self.read_one(open, offset, buf)?,
        };
        if ahead.ends_at(offset + count as u64) {
            lock(&self.prefetcher).on_read(self, &conn, &lock(&open.path));
        }
        Ok(count)
    }

    fn read_prefetched(
        &self,
        open: &Open,
        prefetched: &PrefetchedFile,
        offset: u64,
        buf: &mut [u8],
    ) -> usize {
        let count = prefetched.read(offset, buf);
        let conn = lock(&self.state).conn.clone();
        if prefetched.ends_at(offset + count as u64) && conn.lost().is_none() {
            lock(&self.prefetcher).on_read(self, &conn, &lock(&open.path));
        }
        count
    }

    fn operate_now(&self, op: Op, content: &[u8]) -> Result<Answer, Error> {
        match op {
            Op::OpenDir(_) | Op::Open(_) | Op::Draft { .. } => self.begin(&op),
            Op::Upload { op: UploadOp::Part { .. }, .. } => self.begin(&op),
            Op::ReadDir(handle) => self.read_dir(handle),
            Op::Look(path) => self.look(path),
            Op::Write { handle, offset } => self.write(handle, offset, content),
            Op::SetLen { handle, bytes } => self.set_len(handle, bytes),
            Op::Publish { handle, mtime } => self.publish(handle, mtime),
            Op::PublishIf { handle, mtime, condition } => {
                self.require(handle, condition)?;
                self.publish(handle, mtime)
            }
            Op::PublishWith { handle, mtime, condition, attributes } => {
                self.require(handle, condition)?;
                self.describe(handle, attributes)?;
                self.publish(handle, mtime)
            }
            Op::Rename { from, to, replace } => {
                let op = Op::Rename { from: from.clone(), to: to.clone(), replace };
                let done = self.with_conn(false, |_, conn| Ok(told(conn.ask(&op, None)?.answer)))?;
                self.follow(&from, &to);
                Ok(done)
            }
            Op::Close(handle) => self.close(handle),
            Op::Checksum { handle, algorithm, freshness } => {
                let op = |handle| Op::Checksum { handle, algorithm, freshness };
                self.ask_open(&*self.find(handle)?, true, op)
            }
            Op::Read { .. } | Op::Peek { .. } => {
                Err(violation("operation", "what is read needs a place to go to"))
            }
            op => {
                let repeats =
                    matches!(op, Op::Space | Op::LookFull(_) | Op::Lock { .. } | Op::FindLock { .. })
                        || matches!(op, Op::FileHandle(_) | Op::ByHandle(_) | Op::Locality(_))
                        || matches!(op, Op::Upload { op: UploadOp::Begin | UploadOp::List(_), .. });
                self.with_conn(repeats, |_, conn| match conn.expect(op.since()) {
                    Ok(()) => Ok(told(conn.ask(&op, None)?.answer)),
                    Err(error) => Ok(Err(error)),
                })
            }
        }
    }

    fn look(&self, path: RelPath) -> Result<Answer, Error> {
        let may_be_old = self.lease_client.is_leasing() == Some(false);
        let known = lock(&self.prefetcher).item(&path, self.config.look_ttl).filter(|_| may_be_old);
        let op = Op::Look(path);
        let ask = || self.with_conn(true, |_, conn| Ok(told(conn.ask(&op, None)?.answer)));
        known.map_or_else(ask, |item| Ok(Answer::Item(item)))
    }

    fn read_dir(&self, handle: Handle) -> Result<Answer, Error> {
        let open = self.find(handle)?;
        let answer = self.ask_open(&open, false, Op::ReadDir)?;
        if let (Answer::Items { items, more }, Opened::Dir(seen)) = (answer.plain(), &open.kind) {
            let mut seen = lock(seen);
            // One item above the limit marks the listing as truncated.
            if seen.len() <= MAX_NAMES {
                seen.extend_from_slice(items);
            }
            if !more {
                lock(&self.prefetcher).on_list(&lock(&open.path), &std::mem::take(&mut *seen));
            }
        }
        Ok(answer)
    }

    fn close(&self, handle: Handle) -> Result<Answer, Error> {
        let open = lock(&self.open).remove(&handle).ok_or_else(|| unknown(handle))?;
        let failed = match &open.kind {
            Opened::Draft { behind, .. } => behind.close(self),
            Opened::File(ahead) => {
                ahead.drop_all(self);
                None
            }
            Opened::Prefetched(prefetched) => {
                prefetched.drop_all(self);
                None
            }
            Opened::Dir(_) => None,
        };
        let (epoch, far) = *lock(&open.far);
        let state = lock(&self.state);
        let conn = (state.epoch == epoch).then(|| state.conn.clone());
        drop(state);
        if let Some(conn) = conn {
            // The answer is ignored.
            conn.begin(&Op::Close(far), None);
        }
        failed.map_or(Ok(Answer::Done), Err)
    }
}

impl Drop for RemoteFiles {
    fn drop(&mut self) {
        self.end();
    }
}

impl Files for RemoteFiles {
    /// Read-ahead begins at once, and need not detect the order.
    fn expect_order(&self, file: Handle) {
        if let (Ok((_, conn)), Ok(open)) = (self.conn(), self.find(file))
            && let Opened::File(ahead) = &open.kind
        {
            ahead.expect_order(&conn);
        }
    }

    fn lessor(&self, _: Option<&[u8]>) -> Option<Arc<dyn Lessor>> {
        self.config.leases.then(|| self.lease_client.clone() as Arc<dyn Lessor>)
    }

    fn listen(&self, listener: Listener) {
        self.lease_client.listen(listener);
    }

    fn operate(&self, op: Op, content: &[u8]) -> Result<Answer, Error> {
        let mut changed: Vec<RelPath> = op.changed_paths().into_iter().cloned().collect();
        if let Op::Publish { handle, .. } | Op::PublishIf { handle, .. } | Op::PublishWith { handle, .. } = op
        {
            changed.extend(self.find(handle).ok().map(|open| lock(&open.path).clone()));
        }
        let done = self.operate_now(op, content);
        // Also after an error: the operation may have taken effect in part.
        changed.iter().for_each(|path| lock(&self.prefetcher).forget(self, path));
        done
    }

    fn read(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let open = self.find(handle)?;
        let mut done = 0;
        while done < buf.len() {
            let most = (buf.len() - done).min(MAX_IO_BYTES as usize);
            let (part, at) = (&mut buf[done..done + most], offset + done as u64);
            let count = match &open.kind {
                Opened::File(ahead) => self.read_file(&open, ahead, at, part)?,
                Opened::Prefetched(prefetched) => self.read_prefetched(&open, prefetched, at, part),
                Opened::Draft { behind, .. } => {
                    behind.settle(self, &open)?;
                    self.read_one(&open, at, part)?
                }
                Opened::Dir(_) => return Err(unknown(handle)),
            };
            done += count;
            if count < most {
                break;
            }
        }
        Ok(done)
    }

    fn require(&self, draft: Handle, condition: Precondition) -> Result<(), Error> {
        let open = self.find(draft)?;
        // Said before content is sent.
        self.with_conn(true, |_, conn| Ok(conn.expect(WireVersion::V4)))?;
        open.with_draft(|draft| draft.require(condition)).ok_or_else(|| unknown(draft))
    }

    fn describe(&self, draft: Handle, attributes: Vec<Xattr>) -> Result<(), Error> {
        let open = self.find(draft)?;
        self.with_conn(true, |_, conn| Ok(conn.expect(WireVersion::V4)))?;
        open.with_draft(|draft| draft.describe(attributes)).ok_or_else(|| unknown(draft))
    }

    fn open_brought(&self, path: &RelPath, is_known: &dyn Fn(&Item) -> bool) -> Option<Handle> {
        let extents = lock(&self.prefetcher).take(path);
        if extents.is_empty() {
            return None;
        }
        let Some(prefetched) = PrefetchedFile::wait(&extents, is_known) else {
            lock(&self.prefetcher).give_back(self, path, extents);
            return None;
        };
        let far = Mutex::new(OPEN_HERE_ALONE);
        Some(self.keep(Open { path: Mutex::new(path.clone()), far, kind: Opened::Prefetched(prefetched) }))
    }

    fn descriptor(&self, handle: Handle) -> Option<OwnedFd> {
        let socket = lock(&self.lender).clone()?;
        let open = self.find(handle).ok()?;
        if !matches!(open.kind, Opened::File(_)) {
            return None;
        }
        let (_, far) = *lock(&open.far);
        let lent = socket::borrow(&socket, &json!({"op": socket::LEND, "key": self.key, "handle": far}));
        lent.inspect_err(|error| self.on_refusal(error)).ok()
    }

    fn reach(&self) -> Result<(), Error> {
        self.conn_or(ONE_TRY).map(drop)
    }

    fn end(&self) {
        self.give_up_drafts();
        let conn = lock(&self.state).conn.clone();
        let is_leasing = self.lease_client.is_leasing() == Some(true);
        conn.close(if is_leasing { GIVE_UP_WITHIN } else { Duration::ZERO });
    }
}

impl WhenLost {
    fn is_over(self, since: Instant) -> bool {
        matches!(self, WhenLost::Fail(after) if since.elapsed() >= after)
    }
}

/// Whether an error is transient.
pub(crate) fn is_passing(error: &Error) -> bool {
    error.retry() == Retry::Later && matches!(error.kind(), Kind::Unavailable | Kind::Limit)
}

/// Whether a login, or the next renewal of the credential, resolves the error.
fn lacks_credential(error: &Error) -> bool {
    matches!(error.code, Code::CertificateExpired | Code::CertificateNotYetValid | Code::NotLoggedIn)
}

/// Logs the error that calls wait for; the first time as a warning.
fn note_wait(failed: &Error, is_first: bool) {
    if !is_first {
        return tracing::debug!(error = %failed, "file session not opened; trying again");
    }
    let for_login = Error::new(Code::MountWaits, &failed.op, &failed.subject, &failed.cause).at("client");
    let waits = if lacks_credential(failed) { &for_login } else { failed };
    tracing::warn!(code = %waits.code, error = %waits, remedy = renkei_core::remedy::of(waits), "calls wait");
}

/// Retries `work` with backoff until it succeeds, fails permanently, or the time limit has passed.
///
/// # Errors
/// As `work`.
pub fn until_it_passes<T>(when_lost: WhenLost, work: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let (since, mut pauses) = (Instant::now(), BACKOFF.begin());
    loop {
        let failed = match work() {
            Ok(done) => return Ok(done),
            Err(failed) => failed,
        };
        let for_login = when_lost == WhenLost::Wait && lacks_credential(&failed);
        if !(is_passing(&failed) || for_login) || when_lost.is_over(since) {
            return Err(failed);
        }
        note_wait(&failed, pauses.is_fresh());
        std::thread::sleep(pauses.next(random_number()).min(MAX_PAUSE_FOR_LOGIN));
    }
}

/// The answer, or the error it carries.
pub(crate) fn told(answer: Answer) -> Result<Answer, Error> {
    match answer {
        Answer::Failed(error) => Err(error),
        Answer::Held { answer, .. } if matches!(*answer, Answer::Failed(_)) => told(*answer),
        answer => Ok(answer),
    }
}

fn surprise(answer: &Answer) -> Error {
    violation("answer", format_args!("{answer:?}"))
}

pub(crate) fn stamp_of(item: &Item) -> Stamp {
    match item.entry.kind {
        // A change of ctime alone does not make another version.
        EntryKind::File { stamp, .. } => Stamp { ctime: Default::default(), ..stamp },
        _ => Stamp::default(),
    }
}

pub(crate) fn unknown(handle: Handle) -> Error {
    Error::new(Code::NotOpen, "use", format_args!("handle {handle}"), "it was closed, or never opened so")
}

fn broken(open: &Open, code: Code, cause: &str) -> Error {
    Error::new(code, "use", &*lock(&open.path), cause).at("client")
}
