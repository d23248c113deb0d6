//! The receiving end of a session.
//!
//! Each data stream writes its entries under temporary names; one thread commits (sync, rename, sync, acknowledge),
//! one judges offers, one writes the journal. They share one lock around the [`Receiver`], taken once per entry or
//! extent.

use super::dest_dirs::{DestDirs, DestName};
use super::failure::{Failure, Peer, Stop};
use super::fd_limit::open_files;
use super::hooks::{OnDigest, ReceiveHooks};
use super::incoming::{Incoming, finish_file};
use super::journal::{BEHIND, Journal, RecordFile, boot_id};
use super::progress::Watch;
use super::reuse::ReusableSession;
use super::space_reservation::{ReservedSpace, SpaceReservation};
use renkei_core::entry::{Entry, EntryKind, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::ids::EntryId;
use renkei_core::mover::commit::BATCH_FILES;
use renkei_core::mover::journal::State as Kept;
use renkei_core::mover::receiver::{Action, Arrival, Done, PriorState, Receiver, Start, Unwritten};
use renkei_core::path::{RelPath, printable};
use renkei_core::wire::data::ExtentHead;
use renkei_core::wire::message::{
    BATCH_ENTRIES, Control, EntryFailure, Existing, OfferItem, ReceiveOptions, Summary, Verdict,
};
use renkei_core::wire::parts;
use renkei_net::control::ControlReceiver;
use renkei_net::identity::account::{Account, AccountThread};
use renkei_net::tls::TlsStream;
use renkei_store::permission_denied::closed_above;
use renkei_store::temp::is_temp_name;
use renkei_store::{DIRECT_ALIGN, Detail, Dir, WriteFile};
use std::collections::HashMap;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// Most batches of offers in the queue; beyond that the control stream is read no further (back-pressure).
const MAX_OFFERS: usize = 64;
/// Most files that wait to be committed before the streams are held back (back-pressure).
const MAX_PENDING_FILES: usize = 32 * BATCH_FILES;

/// How long the first entries of a locked destination wait for the destination's own entry, which unlocks it and
/// arrives on another stream, if at all.
const DESTINATION_WITHIN: Duration = Duration::from_secs(5);

/// Memory that a session may use beside its streams' without asking, and the step in which it asks for more.
const MEMORY_STEP: u64 = 1 << 20;

/// Checks whether a session may keep this many bytes in total until it ends.
pub type Allowance = Box<dyn Fn(u64) -> Result<(), Error> + Send + Sync>;

/// The allowance of a session with memory of its own.
pub fn unlimited() -> Allowance {
    Box::new(|_| Ok(()))
}

/// The destination, and how to receive.
pub struct ReceiveJob {
    /// The directory that paths are relative to.
    pub base: Arc<dyn Dir>,
    /// The job's key; names its temporary files.
    pub job: u64,
    /// What to do with names that exist.
    pub options: ReceiveOptions,
    /// The job's journal and its content; none for a dry run.
    pub journal: Option<(Journal, Kept)>,
    /// Most links and directories that are deferred to the end.
    pub max_deferred: usize,
    /// Memory limit of the session.
    pub memory: Allowance,
    /// The account that writes.
    pub account: Account,
    /// This side's name in errors.
    pub side: String,
    /// Prefix of the paths of the store in errors.
    pub root: String,
    /// Takes the streams over after a successful end.
    pub keep: Option<Arc<ReusableSession>>,
    /// Paths that may be written, relative to the base; the root for everything.
    pub within: Vec<RelPath>,
    /// Hooks of a forwarding buffer, if the destination is one.
    pub receive_hooks: Option<Arc<dyn ReceiveHooks>>,
    /// Callback for the digests of files.
    pub on_digest: Option<OnDigest>,
}

/// Files of this size or more are written with direct I/O: through the page cache they would evict everything else,
/// and the copy into it is the largest single cost of receiving (measured in docs/design/0003-direct-writes.md).
const DIRECT_FROM_BYTES: u64 = 1 << 20;

/// A large file under its temporary name.
pub(super) struct OpenFile {
    pub(super) dir: Arc<dyn Dir>,
    pub(super) temp: Vec<u8>,
    pub(super) file: Box<dyn WriteFile>,
    pub(super) ino: u64,
    /// Its reservation of disk space.
    reservation: Option<SpaceReservation>,
    direct: Option<Box<dyn WriteFile>>,
    direct_refused: AtomicBool,
}

impl OpenFile {
    pub(super) fn new(
        dir: Arc<dyn Dir>,
        temp: Vec<u8>,
        file: Box<dyn WriteFile>,
        size: u64,
        reservation: Option<SpaceReservation>,
    ) -> Result<Self, Error> {
        let ino = file.stamp()?.ino;
        let direct = if size >= DIRECT_FROM_BYTES { dir.open_direct(&temp) } else { None };
        let direct = direct.filter(|direct| direct.stamp().is_ok_and(|stamp| stamp.ino == ino));
        Ok(OpenFile { dir, temp, file, ino, reservation, direct, direct_refused: AtomicBool::new(false) })
    }

    /// Writes a block with direct I/O where possible, else through the page cache.
    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        let aligned =
            [bytes.as_ptr() as usize, bytes.len(), offset as usize].iter().all(|n| n % DIRECT_ALIGN == 0);
        match &self.direct {
            Some(direct) if aligned && !self.direct_refused.load(Ordering::Relaxed) => {
                match direct.write_at(bytes, offset) {
                    Err(error)
                        if !matches!(error.code, Code::NoSpace | Code::QuotaExceeded | Code::IoFailed) =>
                    {
                        self.direct_refused.store(true, Ordering::Relaxed);
                        self.file.write_at(bytes, offset)
                    }
                    written => written,
                }
            }
            _ => self.file.write_at(bytes, offset),
        }
    }
}

type Opening = Arc<OnceLock<Result<Arc<OpenFile>, Error>>>;

struct State {
    receiver: Receiver,
    open: HashMap<EntryId, Opening>,
    streams_left: usize,
    source_complete: Option<bool>,
    deleted: u64,
    /// The destination's own entry has arrived.
    has_destination: bool,
    /// Deadline of entries that wait for it.
    destination_by: Option<Instant>,
}

pub(super) struct Session {
    base: Arc<dyn Dir>,
    job: u64,
    options: ReceiveOptions,
    side: String,
    root: String,
    checks_written: bool,
    memory: Allowance,
    allowed_bytes: AtomicU64,
    clock: Clock,
    watch: Watch,
    state: Mutex<State>,
    changed: Condvar,
    pub(super) failure: Failure,
    pub(super) control: Arc<dyn Peer>,
    journal: Mutex<Option<Box<dyn RecordFile>>>,
    keep: Option<Arc<ReusableSession>>,
    within: Arc<[RelPath]>,
    receive_hooks: Option<Arc<dyn ReceiveHooks>>,
    on_digest: Option<OnDigest>,
    room: Arc<ReservedSpace>,
}

/// Time since the beginning of a session.
pub(super) type Clock = Box<dyn Fn() -> Duration + Send + Sync>;

/// What a session has of the machine that it runs on, beside the destination.
pub(super) struct Machine {
    pub(super) control: Arc<dyn Peer>,
    /// The sockets of the data streams.
    pub(super) sockets: Vec<Arc<TcpStream>>,
    pub(super) journal: Option<Box<dyn RecordFile>>,
    /// The journal's content.
    pub(super) kept: Kept,
    /// The id of this boot; zeros if unknown.
    pub(super) boot: [u8; 16],
    pub(super) clock: Clock,
}

/// Receives until every entry is durable or reported, and returns the sender's summary.
///
/// # Errors
/// The first failure that ended the session; single entries that failed are in the summary.
pub fn receive(
    job: ReceiveJob,
    control: &mut ControlReceiver,
    streams: Vec<TlsStream>,
    watch: &Watch,
    stop: &Stop,
) -> Result<Summary, Error> {
    let mut job = job;
    let (journal, kept) = job.journal.take().unzip();
    let account = job.account.clone();
    let started = Instant::now();
    let machine = Machine {
        control: control.sender(),
        sockets: streams.iter().map(TlsStream::socket).collect(),
        journal: journal.map(|journal| Box::new(journal) as Box<dyn RecordFile>),
        kept: kept.unwrap_or_default(),
        boot: boot_id(),
        clock: Box::new(move || started.elapsed()),
    };
    let session = Arc::new(Session::new(job, machine, streams.len(), watch));
    session.receiver(|receiver| receiver.limit_open_files(open_files(streams.len())));
    let _hook = stop.on_stop({
        let session = session.clone();
        move |error| session.fail(error)
    });
    let journal = spawn_journal(&session)?;
    let mut threads = Vec::new();
    // Threads that run when another one cannot be started are ended as after a failure.
    let started = spawn_workers(&session, &account, streams, &mut threads);
    let ended = started.and_then(|offers| session.converse(control, offers));
    if let Err(error) = &ended {
        session.failure.set_now(session.name_side(error.clone()));
    }
    session.failure.finish(session.keep.is_some());
    session.wake();
    threads.into_iter().for_each(|thread| drop(thread.join()));
    journal.join().expect("a panic aborts the process");
    if ended.is_err() {
        // The records of files that became whole after the last write of the journal.
        if let Err(error) = session.write_journal() {
            tracing::warn!(%error, "some of what is whole will be sent again");
        }
        free_room(&session, &account);
        if let Err(error) = session.write_journal() {
            tracing::warn!(%error, "what is whole will be read back");
        }
    }
    let summary = ended.map_err(|error| session.failure.first().unwrap_or(error))?;
    if summary.failed == 0 {
        session.remove_journal();
    }
    Ok(summary)
}

impl Session {
    pub(super) fn new(job: ReceiveJob, machine: Machine, streams: usize, watch: &Watch) -> Self {
        let Machine { control, sockets, journal, kept, boot, clock } = machine;
        Session {
            base: job.base,
            job: job.job,
            options: job.options.clone(),
            side: job.side,
            root: job.root,
            // An unknown boot id proves nothing.
            checks_written: kept
                .header
                .as_ref()
                .is_some_and(|header| header.boot != boot || header.boot == [0; 16]),
            memory: job.memory,
            allowed_bytes: AtomicU64::new(MEMORY_STEP),
            clock,
            watch: watch.clone(),
            state: Mutex::new(State {
                receiver: Receiver::new(job.options, kept, job.max_deferred),
                open: HashMap::new(),
                streams_left: streams,
                source_complete: None,
                deleted: 0,
                has_destination: false,
                destination_by: None,
            }),
            changed: Condvar::new(),
            failure: Failure::new(control.clone(), sockets),
            control,
            journal: Mutex::new(journal),
            keep: job.keep,
            within: job.within.into(),
            receive_hooks: job.receive_hooks,
            on_digest: job.on_digest,
            room: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    pub(super) fn receiver<T>(&self, ask: impl FnOnce(&mut Receiver) -> T) -> T {
        let mut state = self.lock();
        let answer = ask(&mut state.receiver);
        let kept = state.receiver.kept_bytes();
        drop(state);
        if kept > self.allowed_bytes.load(Ordering::Relaxed) {
            self.ask_for_memory(kept);
        }
        answer
    }

    /// Ends the session if the memory limit is exceeded: entries that it cannot remember, it cannot finish at the
    /// end.
    fn ask_for_memory(&self, kept: u64) {
        let wanted = kept.next_multiple_of(MEMORY_STEP);
        match (self.memory)(wanted) {
            Ok(()) => drop(self.allowed_bytes.fetch_max(wanted, Ordering::Relaxed)),
            Err(error) => self.fail(error),
        }
    }

    pub(super) fn now(&self) -> Duration {
        (self.clock)()
    }

    pub(super) fn fail(&self, error: Error) {
        self.failure.set(self.name_side(error));
        self.wake();
    }

    /// Hands a stream on to the next session, if reuse is wanted and this session ended well.
    fn leave(&self, stream: TlsStream) {
        if let (Some(keep), None) = (&self.keep, self.failure.first()) {
            keep.put(stream);
        }
    }

    /// Wakes all waiters. The lock is taken first, so that a thread that checked before the end is waiting by then
    /// (no lost wakeup).
    fn wake(&self) {
        drop(self.lock());
        self.changed.notify_all();
    }

    pub(super) fn name_side(&self, error: Error) -> Error {
        error.under(&self.root).at(&self.side)
    }

    /// Replaces a temporary name in an error by the name that the user knows.
    fn name_final(&self, error: Error, path: &RelPath) -> Error {
        let (folder, name) = error.subject.rsplit_once('/').unwrap_or(("", &error.subject));
        if !is_temp_name(name.as_bytes()) {
            return error;
        }
        let name = printable(path.name().unwrap_or_default());
        let subject = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        Error { subject, ..error }
    }

    /// Fails if the buffer is full. Where space is accounted, the file to be replaced is removed first, and the
    /// remains of an earlier run under the temporary name are counted as freed.
    pub(super) fn make_room(&self, place: &DestName<'_>, temp: &[u8], bytes: u64) -> Result<(), Error> {
        let Some(receive_hooks) = &self.receive_hooks else { return Ok(()) };
        let size = |name: &[u8]| match place.dir.entry(name, Detail::Basic) {
            Ok((Entry { kind: EntryKind::File { stamp, .. }, .. }, raw)) if raw.nlink == 1 => {
                Some(stamp.size)
            }
            _ => None,
        };
        let mut freed = size(temp).unwrap_or(0);
        if let Some(replaced) = size(place.name) {
            place.dir.remove_file(place.name)?;
            freed += replaced;
        }
        receive_hooks.ask(bytes.saturating_sub(freed))
    }

    /// Reports the digest of a received slot to the hooks.
    pub(super) fn note_digest(&self, path: &RelPath, slot: u32, digest: &[u8; 32]) -> Result<(), Error> {
        self.receive_hooks.as_ref().map_or(Ok(()), |receive_hooks| receive_hooks.came(path, slot, digest))
    }

    /// Reports a file that is whole under its temporary name, with the attributes `stamp`.
    pub(super) fn note_whole(&self, dir: &dyn Dir, path: &RelPath, stamp: &Stamp, digest: &[u8; 32]) {
        dir.note_content(path.name().unwrap_or_default(), stamp, digest);
        if let Some(on_digest) = &self.on_digest {
            on_digest(path, digest);
        }
    }

    pub(super) fn places(&self) -> DestDirs {
        DestDirs::new(self.base.clone(), self.job, self.within.clone())
    }

    /// The directory that holds `path`, created if missing, and its name there.
    pub(super) fn make_place<'p>(
        &self,
        places: &mut DestDirs,
        path: &'p RelPath,
    ) -> Result<DestName<'p>, Error> {
        if places.enters_base(path) && self.base.is_locked()? {
            self.await_destination();
        }
        places.make(path)
    }

    fn await_destination(&self) {
        let mut state = self.lock();
        let by = *state.destination_by.get_or_insert_with(|| Instant::now() + DESTINATION_WITHIN);
        while !state.has_destination && !self.failure.is_over() {
            let left = by.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.expect("no thread panics while it holds the lock").0;
        }
    }

    /// Notes that the destination's own entry has arrived and unlocked it.
    pub(super) fn on_destination(&self) {
        self.lock().has_destination = true;
        self.changed.notify_all();
    }

    pub(super) fn base(&self) -> &Arc<dyn Dir> {
        &self.base
    }

    pub(super) fn job(&self) -> u64 {
        self.job
    }

    pub(super) fn dry_run(&self) -> bool {
        self.options.dry_run
    }

    pub(super) fn options(&self) -> &ReceiveOptions {
        &self.options
    }

    pub(super) fn existing(&self) -> Existing {
        self.options.existing
    }

    /// Whether extents of an earlier run must be read back before they are trusted: they may never have reached the
    /// disk.
    pub(super) fn checks_written(&self) -> bool {
        self.checks_written
    }

    /// Notes the ctime of a temporary file after this session's last write. A file without this note is read back by
    /// the next run.
    pub(super) fn note_at_rest(&self, id: EntryId, file: &dyn WriteFile) {
        if let Ok(stamp) = file.stamp() {
            self.receiver(|receiver| receiver.on_at_rest(id, stamp.ctime));
        }
    }

    pub(super) fn note_name(&self, path: &RelPath) {
        if self.options.delete {
            self.receiver(|receiver| receiver.on_named(path));
        }
    }

    /// Notes that a file or link has its final name.
    pub(super) fn note_arrived(&self, path: &RelPath) {
        if self.watch.notes_names() {
            self.watch.note_arrived(vec![path.clone()]);
        }
    }

    /// In a dry run: notes the file for observers on this side, which do not see the sender's progress.
    pub(super) fn note_wanted(&self, path: &RelPath) {
        if self.options.dry_run {
            self.watch.note_would_send(vec![path.clone()]);
        }
    }

    pub(super) fn left(&self, item: &OfferItem) -> PriorState {
        self.receiver(|receiver| receiver.left(item))
    }

    pub(super) fn start_extent(&self, head: &ExtentHead) -> Result<Start, Error> {
        if self.dry_run() {
            return Err(renkei_core::wire::violation("extent", "in a dry run"));
        }
        let (start, resuming) = self.receiver(|receiver| {
            let start = receiver.start_extent(head.id, &head.entry, head.slot);
            (start, receiver.continues_job())
        });
        if resuming && start == Ok(Start::Write { keep_existing: false }) {
            // The journal's records of an older temporary file must be revoked before that file is truncated.
            self.write_journal()?;
        }
        start
    }

    fn lock_journal(&self) -> MutexGuard<'_, Option<Box<dyn RecordFile>>> {
        self.journal.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// Removes the journal of a job with nothing left to resume.
    pub(super) fn remove_journal(&self) {
        if let Some(journal) = self.lock_journal().take() {
            journal.remove();
        }
    }

    /// Appends the records that are new since the last call.
    pub(super) fn write_journal(&self) -> Result<(), Error> {
        let mut journal = self.lock_journal();
        let records = self.receiver(Receiver::take_records);
        match journal.as_mut() {
            Some(journal) => journal.append(&records),
            None => Ok(()),
        }
    }

    /// The file of an extent, opened by the stream that comes first.
    pub(super) fn open_file(
        &self,
        places: &mut DestDirs,
        head: &ExtentHead,
        keep_existing: bool,
    ) -> Result<Arc<OpenFile>, Error> {
        let opening = self.lock().open.entry(head.id).or_default().clone();
        let file = opening.get_or_init(|| create(self, places, head, keep_existing).map(Arc::new)).clone()?;
        if let Some(reservation) = &file.reservation {
            reservation
                .reserve(&*file.file, head.range())
                .map_err(|error| about(error, &*self.base, &head.entry.path))?;
        }
        Ok(file)
    }

    /// The reservation of a file, unless its holes are to stay holes; `here` bytes of it are on the disk.
    pub(super) fn reservation(
        &self,
        entry: &Entry,
        file: &dyn WriteFile,
        here: u64,
    ) -> Result<Option<SpaceReservation>, Error> {
        match entry.kind {
            EntryKind::File { sparse: false, .. } => {
                let own = SpaceReservation::begin(&self.room, file, entry.size(), here);
                own.map(Some).map_err(|error| about(error, &*self.base, &entry.path))
            }
            _ => Ok(None),
        }
    }

    /// Frees the incomplete ranges of files that did not arrive; removes a file without any complete extent.
    pub(super) fn free_unwritten(&self) {
        let open = std::mem::take(&mut self.lock().open);
        for (id, opening) in open {
            let Some(Ok(file)) = opening.get() else { continue };
            match self.receiver(|receiver| receiver.unwritten(id)) {
                Unwritten::All => drop(file.dir.remove_file(&file.temp)),
                Unwritten::Ranges(ranges) => {
                    ranges.into_iter().for_each(|range| file.file.free(range));
                    self.note_at_rest(id, &*file.file);
                }
            }
        }
    }

    pub(super) fn keep_open(&self, id: EntryId, file: OpenFile) {
        self.lock().open.insert(id, Arc::new(OnceLock::from(Ok(Arc::new(file)))));
    }

    pub(super) fn on_extent_written(
        &self,
        head: &ExtentHead,
        digest: [u8; 32],
        file: &OpenFile,
    ) -> Result<(), Error> {
        self.note_digest(&head.entry.path, head.slot, &digest)?;
        let arrival =
            self.receiver(|receiver| receiver.on_extent_written(head.id, head.slot, digest, file.ino));
        if arrival != Arrival::Complete {
            return Ok(());
        }
        if let Err(error) = finish_file(self, head.id, &head.entry, &*file.file) {
            return self.on_entry_failed(head.id, &head.entry.path, error);
        }
        let EntryKind::File { stamp, .. } = head.entry.kind else {
            return Err(renkei_core::wire::violation("extent", "not of a regular file"));
        };
        if let Some(digest) = self.receiver(|receiver| receiver.digest(head.id)) {
            self.note_whole(&*file.dir, &head.entry.path, &file.file.stamp()?, &digest);
        }
        self.note_at_rest(head.id, &*file.file);
        self.on_written(Done {
            id: head.id,
            path: head.entry.path.clone(),
            copy_of: Some((stamp, file.ino)),
        });
        Ok(())
    }

    pub(super) fn on_written(&self, done: Done) {
        let mut state = self.lock();
        state.open.remove(&done.id);
        if state.receiver.on_written(self.now(), done) {
            self.changed.notify_all();
        }
        while state.receiver.pending_files() > MAX_PENDING_FILES && !self.failure.is_over() {
            let waited = self.changed.wait_timeout(state, Duration::from_millis(100));
            state = waited.expect("no thread panics while it holds the lock").0;
        }
    }

    pub(super) fn on_placed(&self, done: Done) {
        self.receiver(|receiver| receiver.on_placed(self.now(), done));
    }

    /// Gives up a file: its temporary file is removed, its further extents are discarded.
    pub(super) fn give_up(&self, id: EntryId) {
        let mut state = self.lock();
        let remove = state.receiver.on_given_up(id);
        let open = state.open.remove(&id);
        drop(state);
        if let Some(Ok(file)) = open.as_ref().filter(|_| remove).and_then(|open| open.get()) {
            let _ = file.dir.remove_file(&file.temp);
        }
    }

    /// Reports a failed entry, under the name of a parent directory if that one refuses writes; an error is returned
    /// only if it ends the session.
    pub(super) fn on_entry_failed(&self, id: EntryId, path: &RelPath, error: Error) -> Result<(), Error> {
        let (told, error) = match closed_above(&*self.base, path, &error) {
            Some(closed) => closed,
            None => (path.clone(), self.name_final(error, path)),
        };
        let error = self.name_side(error);
        if ends_session(error.code) {
            return Err(error);
        }
        tracing::debug!(%error, "entry failed");
        self.give_up(id);
        self.receiver(|receiver| {
            receiver.on_entry_failed(path, &error);
            if told != *path {
                receiver.on_entry_failed(&told, &error);
            }
        });
        self.control.send(&Control::Failed(EntryFailure { id: Some(id), path: told, kept: false, error }))
    }

    /// Reports attributes that could not be kept.
    pub(super) fn report_lost(&self, id: EntryId, path: &RelPath, lost: Vec<Error>) -> Result<(), Error> {
        lost.into_iter().try_for_each(|error| {
            let error = self.name_side(error);
            self.control.send(&Control::Failed(EntryFailure {
                id: Some(id),
                path: path.clone(),
                kept: true,
                error,
            }))
        })
    }

    /// Reports an entry that should have been removed and could not be.
    pub(super) fn report_kept(&self, path: &RelPath, error: Error) -> Result<(), Error> {
        let error = self.name_side(error);
        self.control.send(&Control::Failed(EntryFailure { id: None, path: path.clone(), kept: false, error }))
    }

    pub(super) fn on_stream_ended(&self) {
        let mut state = self.lock();
        state.streams_left -= 1;
        Self::check_ended(&mut state);
        drop(state);
        self.changed.notify_all();
    }

    fn on_send_done(&self, complete: bool) {
        let mut state = self.lock();
        state.source_complete = Some(complete);
        Self::check_ended(&mut state);
        drop(state);
        self.changed.notify_all();
    }

    fn check_ended(state: &mut State) {
        if let (0, Some(complete)) = (state.streams_left, state.source_complete) {
            state.receiver.on_streams_ended(complete);
        }
    }

    /// Reports an entry that was removed, or would be.
    pub(super) fn on_removed(&self, path: RelPath) -> Result<(), Error> {
        self.lock().deleted += 1;
        self.watch.note_removed(vec![path.clone()]);
        self.control.send(&Control::Removed(vec![path]))
    }

    pub(super) fn deleted(&self) -> u64 {
        self.lock().deleted
    }

    /// The committer's next action now.
    #[cfg(test)]
    pub(super) fn poll_action(&self) -> Action {
        self.lock().receiver.poll(self.now())
    }

    /// Waits for the committer's next action; `None` at the end of the session.
    pub(super) fn next_action(&self) -> Option<Action> {
        let mut state = self.lock();
        while !self.failure.is_over() {
            let action = state.receiver.poll(self.now());
            let Action::Wait(at_most) = action else { return Some(action) };
            let timeout = at_most.unwrap_or(Duration::from_secs(1)).max(Duration::from_millis(1));
            let waited = self.changed.wait_timeout(state, timeout);
            state = waited.expect("no thread panics while it holds the lock").0;
        }
        None
    }

    /// Handles the sender's messages until the end.
    fn converse(
        &self,
        control: &mut ControlReceiver,
        offers: mpsc::SyncSender<Vec<OfferItem>>,
    ) -> Result<Summary, Error> {
        loop {
            let message = control.recv()?;
            if self.failure.passes_over()? {
                continue;
            }
            if let Some(summary) = self.on_message(message, |items| {
                drop(offers.send(items));
                Ok(())
            })? {
                return Ok(summary);
            }
        }
    }

    /// Handles a message of the sender; returns the summary at the end.
    pub(super) fn on_message(
        &self,
        message: Control,
        on_offer: impl FnOnce(Vec<OfferItem>) -> Result<(), Error>,
    ) -> Result<Option<Summary>, Error> {
        match message {
            Control::Offer(items) => on_offer(items)?,
            Control::SendDone(done) => self.on_send_done(done.complete),
            Control::Progress(progress) => self.watch.set(progress),
            Control::Failed(failure) => self.receiver(|receiver| receiver.on_failed(&failure.path)),
            Control::Finished(result) => return result.map(Some),
            Control::Abort(error) => return Err(error),
            other => return Err(renkei_core::wire::violation("receiver", format_args!("{other:?}"))),
        }
        Ok(None)
    }
}

/// Whether an error would meet every further file too.
pub(super) fn ends_session(code: Code) -> bool {
    use Code::*;
    matches!(
        code,
        NoSpace
            | QuotaExceeded
            | BufferFull
            | ReadOnlyStorage
            | StorageMissing
            | ProtocolViolation
            | ConnectionLost
    )
}

fn create(
    session: &Session,
    places: &mut DestDirs,
    head: &ExtentHead,
    keep_existing: bool,
) -> Result<OpenFile, Error> {
    let temp = places.temp(&head.entry.path);
    let place = session.make_place(places, &head.entry.path)?;
    session.make_room(&place, &temp, head.entry.size())?;
    let file = place.dir.create_temp(&temp, keep_existing)?;
    let (size, made) = (head.entry.size(), file.set_len(head.entry.size()));
    let reservation = match made.and_then(|()| session.reservation(&head.entry, &*file, 0)) {
        Ok(reservation) => reservation,
        Err(error) => {
            // The journal has no record of its content.
            if !keep_existing {
                let _ = place.dir.remove_file(&temp);
            }
            return Err(error);
        }
    };
    OpenFile::new(place.dir, temp, file, size, reservation)
}

/// Names the file in an error of its reservation, from the root of the storage like all others.
fn about(error: Error, base: &dyn Dir, path: &RelPath) -> Error {
    if !error.subject.is_empty() {
        return error;
    }
    let path = base.path().join(path).unwrap_or_else(|_| path.clone());
    Error { subject: path.to_string(), ..error }
}

/// Runs as the account that wrote; space that cannot be freed now is freed when the transfer is given up.
fn free_room(session: &Arc<Session>, account: &Account) {
    if session.lock().open.is_empty() {
        return;
    }
    let own = session.clone();
    match account.spawn("free", move || own.free_unwritten()) {
        Ok(thread) => drop(thread.join()),
        Err(error) => tracing::warn!(%error, "the space of unfinished files was not freed"),
    }
}

fn spawn_workers(
    session: &Arc<Session>,
    account: &Account,
    streams: Vec<TlsStream>,
    threads: &mut Vec<AccountThread<()>>,
) -> Result<mpsc::SyncSender<Vec<OfferItem>>, Error> {
    let (offers, offered) = mpsc::sync_channel(MAX_OFFERS);
    threads.push(spawn(session, account, "offers", move |session| judge_offers(session, offered))?);
    threads.push(spawn(session, account, "commit", |session| super::commit::run(session))?);
    for stream in streams {
        threads.push(spawn(session, account, "receive", move |session| {
            let mut incoming = Incoming::new(stream.with_own_records()?, session.clone());
            incoming.run()?;
            session.on_stream_ended();
            session.failure.wait();
            session.leave(incoming.into_stream());
            Ok(())
        })?);
    }
    Ok(offers)
}

fn spawn(
    session: &Arc<Session>,
    account: &Account,
    name: &str,
    work: impl FnOnce(&Arc<Session>) -> Result<(), Error> + Send + 'static,
) -> Result<AccountThread<()>, Error> {
    let session = session.clone();
    account.spawn(name, move || work(&session).unwrap_or_else(|error| session.fail(error)))
}

fn judge_offers(session: &Session, offered: mpsc::Receiver<Vec<OfferItem>>) -> Result<(), Error> {
    let mut places = session.places();
    for items in offered {
        if session.failure.is_over() {
            break;
        }
        judge_batch(session, &mut places, &items)?;
    }
    Ok(())
}

/// Judges offers and tells the verdicts.
pub(super) fn judge_batch(
    session: &Session,
    places: &mut DestDirs,
    items: &[OfferItem],
) -> Result<(), Error> {
    let judge = |item: &OfferItem| Ok((item.id, super::offers::judge(session, places, item)?));
    let verdicts = items.iter().map(judge).collect::<Result<Vec<(EntryId, Verdict)>, Error>>()?;
    parts(verdicts, BATCH_ENTRIES)
        .into_iter()
        .try_for_each(|part| session.control.send(&Control::Verdicts(part)))
}

/// Writes the journal every [`BEHIND`], and once more at the end.
fn spawn_journal(session: &Arc<Session>) -> Result<std::thread::JoinHandle<()>, Error> {
    let session = session.clone();
    let keep = move || {
        loop {
            let over = session.failure.wait_for(BEHIND);
            if let Err(error) = session.write_journal() {
                session.fail(error);
            }
            if over {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("journal".into())
        .spawn(keep)
        .map_err(|error| Error::new(Code::SystemCall, "start thread", "journal", error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{PATIENCE, connections, unusable_account};
    use renkei_core::mover::journal::{Header, VERSION};
    use renkei_net::control::split;
    use renkei_store::Store;
    use renkei_store::local::{AccessMode, LocalStore};

    #[test]
    fn running_threads_are_ended_if_another_cannot_be_started() {
        let folder = tempfile::tempdir().unwrap();
        let (mut near, _far): (Vec<_>, Vec<_>) = connections(2).into_iter().unzip();
        let (control, mut receiver) = split(near.remove(0), PATIENCE).unwrap();
        let (boot, local, account) = (boot_id(), Vec::new(), "a".to_owned());
        let header = Header { version: VERSION, job: 1, boot, to: None, local, account };
        let open = || Journal::open(folder.path(), &header, &*unlimited());
        let job = ReceiveJob {
            base: LocalStore::open(folder.path(), AccessMode::ReadWrite).unwrap().root().unwrap(),
            job: 1,
            options: ReceiveOptions::plain(Existing::Replace),
            journal: Some(open().unwrap()),
            max_deferred: 1,
            memory: unlimited(),
            account: unusable_account(),
            side: "here".into(),
            root: String::new(),
            keep: None,
            within: vec![RelPath::root()],
            receive_hooks: None,
            on_digest: None,
        };
        let refused = receive(job, &mut receiver, near, &Watch::default(), &Stop::default()).unwrap_err();
        assert_eq!(refused.side, "here");
        drop(receiver);
        assert_eq!(Arc::strong_count(&control), 1, "a thread has the session still");
        open().unwrap();
    }
}
