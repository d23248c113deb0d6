//! The sending end of a session.
//!
//! The walk, each data stream and the control stream have a thread of their own. They share one lock around the
//! [`Sender`], taken once per entry found, per unit sent and per message; the reading, hashing, encrypting and
//! writing of a unit happens outside it. What a thread does at a time is a function of its own (`on_found`,
//! `poll_idle`, `on_message`, `on_stream_ended`), which the simulator calls without threads.

use super::failure::{Failure, Peer, Stop};
use super::hooks::SourceCheck;
use super::outgoing::{Outgoing, digest_of};
use super::pace::background::Pace;
use super::pace::pacer::Pacer;
use super::pace::throttle::Throttle;
use super::progress::Watch;
use super::reuse::ReusableSession;
use super::self_copy;
use super::walk::{Finding, Root, Walk, vanished};
use renkei_core::entry::{Entry, EntryKind};
use renkei_core::error::{Code, Error};
use renkei_core::link::controller::is_far;
use renkei_core::mover::filter::Filter;
use renkei_core::mover::plan::{Item, Origin, Unit};
use renkei_core::mover::sender::Sender;
use renkei_core::wire::message::{
    BATCH_ENTRIES, Class, Control, EntryFailure, OnError, Onto, Progress, SendDone, Summary,
};
use renkei_core::wire::parts;
use renkei_net::control::ControlReceiver;
use renkei_net::identity::account::{Account, AccountThread};
use renkei_net::socket::{prepare_sending, rtt};
use renkei_net::tls::TlsStream;
use renkei_store::permission_denied::unreadable;
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Interval of progress messages.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);

/// Keep-alive interval of an idle stream: no longer than the shortest silence timeout of a receiver.
pub(super) const SHOW_LIFE_EVERY: Duration = Duration::from_secs(1);

/// How long an idle stream lets small entries accumulate before it takes an incomplete batch.
const GATHER: Duration = Duration::from_millis(5);

/// The next action of a stream.
pub(super) enum Next {
    /// Send this unit.
    Send(Unit),
    /// Idle: send a keep-alive.
    ShowLife,
    /// End: no more units come.
    Nothing,
}

/// An idle stream's wait for work.
pub(super) struct IdleWait {
    /// When it sends a keep-alive.
    until: Instant,
    /// When it takes an incomplete batch, if one is gathering.
    gathered_by: Option<Instant>,
}

impl IdleWait {
    pub(super) fn new(now: Instant) -> Self {
        IdleWait { until: now + SHOW_LIFE_EVERY, gathered_by: None }
    }
}

/// The sources, and how to send them.
pub struct SendJob {
    /// The sources.
    pub roots: Vec<Root>,
    /// Descend into directories.
    pub recursive: bool,
    /// Offer files before sending them.
    pub offers: bool,
    /// Offer them with a digest.
    pub digests: bool,
    /// Only report what would be sent.
    pub dry_run: bool,
    /// Bytes per second at most, over all streams.
    pub limit: Option<u64>,
    /// Priority of the transfer on the path.
    pub class: Class,
    /// Whether the transfer continues after a failed entry.
    pub on_error: OnError,
    /// The lineage of the destination, as reported by the receiver.
    pub onto: Option<Onto>,
    /// Filter of the sources' names.
    pub filter: Filter,
    /// The account that reads.
    pub account: Account,
    /// This side's name in errors.
    pub side: String,
    /// Takes the streams over after a successful end.
    pub keep: Option<Arc<ReusableSession>>,
    /// Compares read content with the digests of its receipt, if it is forwarded.
    pub compare: Option<SourceCheck>,
}

pub(super) struct Session {
    roots: Arc<[Root]>,
    recursive: bool,
    filter: Filter,
    onto: Option<Onto>,
    /// Whether files are offered with a digest.
    digests: bool,
    state: Mutex<Sender>,
    changed: Condvar,
    /// Content bytes sent since they were last added to the sender's progress.
    sent_bytes: AtomicU64,
    /// Whether files are offered before they are sent.
    offers: bool,
    /// Held while a batch is taken and sent: verdicts come in the order of the offers.
    offering: Mutex<()>,
    /// The rate limit, if any.
    throttle: Option<Arc<Throttle>>,
    pub(super) failure: Failure,
    control: Arc<dyn Peer>,
    /// Data streams that have not ended.
    streams_left: AtomicUsize,
    side: String,
    keep: Option<Arc<ReusableSession>>,
    compare: Option<SourceCheck>,
}

/// Sends until every entry is acknowledged or has failed, and returns the summary.
///
/// # Errors
/// The first failure that ended the session; single entries that failed are in the summary.
pub fn send(
    job: SendJob,
    control: &mut ControlReceiver,
    streams: Vec<TlsStream>,
    watch: &Watch,
    stop: &Stop,
) -> Result<Summary, Error> {
    let link = control.sender();
    let sockets: Vec<_> = streams.iter().map(TlsStream::socket).collect();
    sockets.iter().for_each(|socket| prepare_sending(socket, is_far(rtt(socket))));
    let background = (job.class == Class::Background).then(|| Pace::new(sockets.clone(), job.limit));
    let limit = || job.limit.map(|limit| Arc::new(Throttle::new(limit)));
    let throttle = background.as_ref().map(Pace::throttle).or_else(limit);
    let known = job.keep.as_ref().and_then(|keep| keep.take_controller());
    let bounds = streams.iter().map(TlsStream::write_bound).collect();
    let pacer =
        background.is_none().then(|| Pacer::new(sockets.clone(), job.limit, known).with_bounds(bounds));
    let account = job.account.clone();
    let session = Arc::new(Session::new(job, link, sockets, throttle, streams.len(), watch));
    let _hook = stop.on_stop({
        let session = session.clone();
        move |error| session.fail(error)
    });
    let mut threads = Vec::new();
    let start = || {
        threads.push(spawn_ticker(&session, watch.clone(), pacer)?);
        if let Some(pace) = background {
            threads.push(spawn_pace(&session, pace)?);
        }
        threads.push(spawn_walk(&session, &account)?);
        spawn_streams(&session, &account, streams, &mut threads)
    };
    // Threads that run when another one cannot be started are ended as after a failure.
    let ended = start().and_then(|()| session.converse(control, watch));
    if let Err(error) = &ended {
        session.failure.set_now(error.clone().at(&session.side));
    }
    session.failure.finish(session.keep.is_some());
    session.wake();
    threads.into_iter().for_each(|thread| drop(thread.join()));
    session.conclude(ended, watch)
}

impl Session {
    pub(super) fn new(
        job: SendJob,
        control: Arc<dyn Peer>,
        sockets: Vec<Arc<TcpStream>>,
        throttle: Option<Arc<Throttle>>,
        streams: usize,
        watch: &Watch,
    ) -> Self {
        let sender = Sender::new(job.offers, job.dry_run);
        let sender = if job.on_error == OnError::Stop { sender.stopping_at_first() } else { sender };
        let sender = if watch.notes_names() { sender.noting_names() } else { sender };
        Session {
            roots: job.roots.into(),
            recursive: job.recursive,
            filter: job.filter,
            onto: job.onto,
            digests: job.digests,
            state: Mutex::new(sender),
            changed: Condvar::new(),
            sent_bytes: AtomicU64::new(0),
            offers: job.offers,
            offering: Mutex::default(),
            throttle,
            failure: Failure::new(control.clone(), sockets),
            control,
            streams_left: AtomicUsize::new(streams),
            side: job.side,
            keep: job.keep,
            compare: job.compare,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Sender> {
        self.state.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    /// The source of an entry.
    pub(super) fn root(&self, origin: &Origin) -> &Root {
        &self.roots[origin.source as usize]
    }

    /// Whether the sources are forwarded files with recorded digests.
    pub(super) fn compares(&self) -> bool {
        self.compare.is_some()
    }

    /// Fails if a slot of a source differs from what was received here.
    pub(super) fn compare(&self, item: &Item, slot: u32, digest: &[u8; 32]) -> Result<(), Error> {
        self.compare.as_ref().map_or(Ok(()), |compare| compare(&item.origin.path, slot, digest))
    }

    pub(super) fn fail(&self, error: Error) {
        self.failure.set(error.at(&self.side));
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

    /// Ends the session with the first failed entry, if the job stops on errors.
    fn check_failed(&self) {
        let broken = self.lock().broken().cloned();
        if let Some(error) = broken {
            self.fail(error);
        }
    }

    /// Updates the sender with the outcome of entries, and wakes a walk that waits for its window.
    fn tell<T>(&self, news: impl FnOnce(&mut Sender) -> T) -> T {
        let mut sender = self.lock();
        let held = !sender.wants_entries();
        let told = news(&mut sender);
        if held && sender.wants_entries() {
            self.changed.notify_all();
        }
        told
    }

    /// A full unit, if one is ready.
    pub(super) fn ready_unit(&self) -> Option<Unit> {
        let mut sender = self.lock();
        if self.failure.is_over() || !sender.has_whole_unit() { None } else { self.poll_unit(&mut sender) }
    }

    fn poll_unit(&self, sender: &mut Sender) -> Option<Unit> {
        let held = !sender.wants_entries();
        let unit = sender.poll_unit()?;
        if held && sender.wants_entries() {
            self.changed.notify_all();
        } else if sender.has_whole_unit() {
            self.changed.notify_one();
        }
        Some(unit)
    }

    /// Waits for work for at most [`SHOW_LIFE_EVERY`].
    pub(super) fn next_unit(&self) -> Next {
        let mut idle = IdleWait::new(Instant::now());
        let mut sender = self.lock();
        loop {
            let now = Instant::now();
            match self.next_step(&mut sender, &mut idle, now) {
                ControlFlow::Break(next) => return next,
                ControlFlow::Continue(wake) => {
                    let waited = self.changed.wait_timeout(sender, wake.saturating_duration_since(now));
                    sender = waited.expect("no thread panics while it holds the lock").0;
                }
            }
        }
    }

    /// The next action of an idle stream, or when to ask again at the latest.
    #[cfg(test)]
    pub(super) fn poll_idle(&self, idle: &mut IdleWait, now: Instant) -> ControlFlow<Next, Instant> {
        self.next_step(&mut self.lock(), idle, now)
    }

    fn next_step(
        &self,
        sender: &mut Sender,
        idle: &mut IdleWait,
        now: Instant,
    ) -> ControlFlow<Next, Instant> {
        if self.failure.is_over() {
            return ControlFlow::Break(Next::Nothing);
        }
        if (sender.has_whole_unit() || idle.gathered_by.is_some_and(|by| by <= now))
            && let Some(unit) = self.poll_unit(sender)
        {
            return ControlFlow::Break(Next::Send(unit));
        }
        if sender.is_handed_out() {
            self.changed.notify_all();
            return ControlFlow::Break(Next::Nothing);
        }
        if idle.until <= now {
            return ControlFlow::Break(Next::ShowLife);
        }
        let gathered_by = idle.gathered_by.unwrap_or(now + GATHER);
        idle.gathered_by = sender.is_gathering().then_some(gathered_by);
        ControlFlow::Continue(idle.gathered_by.map_or(idle.until, |by| by.min(idle.until)))
    }

    /// Waits at most `patience` until `bytes` of content may be sent, or the session is over; false on a timeout.
    pub(super) fn may_send(&self, bytes: u64, patience: Duration) -> bool {
        let throttle = self.throttle.as_ref();
        throttle.is_none_or(|throttle| throttle.take(bytes, patience, || self.failure.is_over()))
    }

    /// Counts sent content; lock-free, for it is called for every chunk.
    pub(super) fn on_bytes_moved(&self, bytes: u64) {
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The current progress.
    fn progress(&self) -> Progress {
        let mut sender = self.lock();
        sender.on_bytes_moved(self.sent_bytes.swap(0, Ordering::Relaxed));
        sender.progress()
    }

    /// Fails an entry that could not be read; the receiver is told, so that it makes no hard link to an old file of
    /// that name.
    pub(super) fn on_source_failed(&self, item: &Item, error: Error) -> Result<(), Error> {
        let root = self.root(&item.origin);
        let error = unreadable(&*root.dir, &item.origin.path, vanished(error));
        let error = root.name(error).at(&self.side);
        tracing::debug!(%error, "source failed");
        let failure = self.tell(|sender| sender.on_source_failed(item.id, error));
        self.check_failed();
        failure.map_or(Ok(()), |failure| self.control.send(&Control::Failed(failure)))
    }

    fn send_offers(&self) -> Result<(), Error> {
        if !self.offers {
            return Ok(());
        }
        let _order = self.offering.lock().expect("no thread panics while it holds the lock: a panic aborts");
        loop {
            let offer = self.lock().poll_offer();
            match offer {
                Some(items) => parts(items, BATCH_ENTRIES)
                    .into_iter()
                    .try_for_each(|part| self.control.send(&Control::Offer(part)))?,
                None => return Ok(()),
            }
        }
    }

    /// Handles the receiver's messages until it is done.
    fn converse(&self, control: &mut ControlReceiver, watch: &Watch) -> Result<u64, Error> {
        loop {
            let message = control.recv()?;
            if self.failure.passes_over()? {
                continue;
            }
            if let Some(deleted) = self.on_message(message, watch)? {
                return Ok(deleted);
            }
        }
    }

    /// Handles a message of the receiver; returns its count of removed entries when it is done.
    pub(super) fn on_message(&self, message: Control, watch: &Watch) -> Result<Option<u64>, Error> {
        match message {
            Control::Verdicts(verdicts) => {
                let would_send = {
                    let mut sender = self.lock();
                    sender.handle_verdicts(verdicts)?;
                    sender.take_would_send()
                };
                watch.note_would_send(would_send);
                self.changed.notify_all();
                self.check_failed();
                self.send_offers()?;
            }
            Control::Acked(ranges) => {
                self.tell(|sender| sender.handle_acked(&ranges))?;
                watch.note_arrived(self.lock().take_arrived());
            }
            Control::Failed(failure) => {
                self.tell(|sender| sender.handle_failed(failure));
                self.check_failed();
            }
            Control::Removed(paths) => watch.note_removed(paths),
            Control::ReceiveDone(done) => return Ok(Some(done.deleted)),
            Control::Abort(error) => return Err(error),
            other => return Err(renkei_core::wire::violation("sender", format_args!("{other:?}"))),
        }
        Ok(None)
    }

    /// A data stream has ended. After the last, the receiver is told that all was sent. Streams end early, too, when
    /// the session is over: then unsent entries are not missing at the source.
    pub(super) fn on_stream_ended(&self) -> Result<(), Error> {
        if self.streams_left.fetch_sub(1, Ordering::AcqRel) > 1 || self.failure.is_over() {
            return Ok(());
        }
        let complete = self.lock().walk_complete();
        self.control.send(&Control::SendDone(SendDone { complete }))
    }

    /// The walk over the sources.
    pub(super) fn walk(&self) -> Walk {
        Walk::new(self.roots.clone(), self.recursive, self.filter.clone())
    }

    /// Takes a finding of the walk, once there is room for it; false if the session is over.
    pub(super) fn on_found(&self, finding: Finding) -> bool {
        match finding {
            Finding::Entry(origin, entry) => {
                if let Err(error) = self.on_entry(origin, entry) {
                    self.fail(error);
                }
            }
            Finding::Failed(path, error) => {
                self.lock().on_walk_failed(path, error.at(&self.side));
                self.check_failed();
            }
            Finding::LinksForgotten(path, error) => {
                let error = error.at(&self.side);
                self.lock().handle_failed(EntryFailure { id: None, path, kept: true, error });
                self.check_failed();
            }
        }
        !self.failure.is_over()
    }

    fn on_entry(&self, origin: Origin, entry: Entry) -> Result<(), Error> {
        let is_file = matches!(entry.kind, EntryKind::File { .. });
        let digest =
            if self.digests && is_file { digest_of(self.root(&origin), &origin.path).ok() } else { None };
        let mut sender = self.lock();
        while !sender.wants_entries() && !self.failure.is_over() {
            sender = self.changed.wait(sender).expect("no thread panics while it holds the lock");
        }
        let before = (sender.has_whole_unit(), sender.is_gathering());
        let special = match entry.kind {
            EntryKind::Special => {
                let error = self.root(&origin).error(Code::SpecialFile, "walk", &origin.path, "skipped");
                Some(sender.handle_special(entry.path, error.at(&self.side)))
            }
            _ => sender.handle_entry(origin, entry, digest),
        };
        let has_news = before != (sender.has_whole_unit(), sender.is_gathering());
        drop(sender);
        if has_news {
            self.changed.notify_one();
        }
        match special {
            Some(failure) => self.control.send(&Control::Failed(failure)),
            None => self.send_offers(),
        }
    }

    /// The walk is complete.
    pub(super) fn on_walk_done(&self) -> Result<(), Error> {
        self.lock().on_walk_done();
        self.changed.notify_all();
        self.send_offers()
    }

    /// Whether the walk may go on.
    #[cfg(test)]
    pub(super) fn wants_entries(&self) -> bool {
        self.lock().wants_entries()
    }

    pub(super) fn conclude(&self, ended: Result<u64, Error>, watch: &Watch) -> Result<Summary, Error> {
        watch.set(self.progress());
        watch.note_failed(self.lock().take_failures());
        let sender = std::mem::replace(&mut *self.lock(), Sender::new(false, false));
        match ended {
            Ok(deleted) => {
                let stops = sender.stops_at_first();
                let (mut summary, failures) = sender.finish_telling(deleted);
                // The receiver's failures name its side already.
                let sided =
                    |failure: EntryFailure| EntryFailure { error: failure.error.at(&self.side), ..failure };
                watch.note_failed(failures.into_iter().map(sided).collect());
                summary.failures = summary.failures.into_iter().map(sided).collect();
                let outcome = match summary.failures.iter().find(|one| one.error.code != Code::SpecialFile) {
                    Some(first) if stops => Err(first.error.clone()),
                    _ => Ok(summary),
                };
                self.control.send(&Control::Finished(outcome.clone()))?;
                outcome
            }
            Err(error) => Err(self.failure.first().unwrap_or(error)),
        }
    }
}

type Thread = AccountThread<()>;

fn spawn_walk(session: &Arc<Session>, account: &Account) -> Result<Thread, Error> {
    let session = session.clone();
    account.spawn("walk", move || {
        let checked = session.onto.as_ref().map_or(Ok(()), |onto| self_copy::check(&session.roots, onto));
        let walked = checked.and_then(|()| {
            let mut walk = session.walk();
            while let Some(finding) = walk.next()
                && session.on_found(finding)
            {}
            session.on_walk_done()
        });
        if let Err(error) = walked {
            session.fail(error);
        }
    })
}

fn spawn_streams(
    session: &Arc<Session>,
    account: &Account,
    streams: Vec<TlsStream>,
    threads: &mut Vec<Thread>,
) -> Result<(), Error> {
    let run = |stream: TlsStream| {
        let session = session.clone();
        account.spawn("send", move || match send_stream(&session, stream) {
            Ok(stream) => {
                // The socket stays open until the receiver is done: closing it with unread input would send a reset.
                session.failure.wait();
                session.leave(stream);
            }
            Err(error) => session.fail(error),
        })
    };
    streams.into_iter().try_for_each(|stream| run(stream).map(|thread| threads.push(thread)))
}

fn send_stream(session: &Arc<Session>, stream: TlsStream) -> Result<TlsStream, Error> {
    let mut outgoing = Outgoing::new(stream.with_own_records()?, session.clone());
    outgoing.run()?;
    session.on_stream_ended()?;
    Ok(outgoing.into_stream())
}

/// Paces the streams of a background transfer until the session ends.
fn spawn_pace(session: &Arc<Session>, pace: Pace) -> Result<Thread, Error> {
    let session = session.clone();
    Account::own()?.spawn("pace", move || pace.run(|round| session.failure.wait_for(round)))
}

fn spawn_ticker(session: &Arc<Session>, watch: Watch, mut pacer: Option<Pacer>) -> Result<Thread, Error> {
    let session = session.clone();
    Account::own()?.spawn("progress", move || {
        let mut told = Instant::now();
        let interval = |pacer: &Option<Pacer>| pacer.as_ref().map_or(PROGRESS_EVERY, Pacer::interval);
        while !session.failure.wait_for(interval(&pacer)) {
            if let Some(pacer) = &mut pacer {
                pacer.tick();
            }
            if told.elapsed() < PROGRESS_EVERY {
                continue;
            }
            told = Instant::now();
            let progress = session.progress();
            watch.set(progress);
            watch.note_failed(session.lock().take_failures());
            if session.control.send(&Control::Progress(progress)).is_err() {
                return;
            }
        }
        if let (Some(keep), Some(controller)) = (&session.keep, pacer.and_then(Pacer::into_known)) {
            keep.put_controller(controller);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{PATIENCE, connections, unusable_account};
    use renkei_core::entry::{Meta, Stamp};
    use renkei_core::mover::sender::MAX_UNACKNOWLEDGED;
    use renkei_core::path::RelPath;
    use renkei_net::control::split;
    use renkei_store::Store;
    use renkei_store::local::{AccessMode, LocalStore};
    use std::path::Path;

    fn root(folder: &Path) -> Root {
        let dir = LocalStore::open(folder, AccessMode::ReadOnly).unwrap().root().unwrap();
        Root { dir, from: RelPath::root(), to: RelPath::root(), alone: false, shown: String::new() }
    }

    fn file() -> (Origin, Entry) {
        let path = RelPath::parse(b"f").unwrap();
        let kind = EntryKind::File { stamp: Stamp { size: 1, ..Stamp::default() }, sparse: false };
        (Origin { source: 0, path: path.clone() }, Entry { path, meta: Meta::default(), kind })
    }

    fn job(folder: &std::path::Path, account: Account) -> SendJob {
        SendJob {
            roots: vec![root(folder)],
            recursive: true,
            offers: false,
            digests: false,
            dry_run: false,
            limit: None,
            class: Class::Normal,
            on_error: OnError::Skip,
            onto: None,
            filter: Filter::default(),
            account,
            side: "here".into(),
            keep: None,
            compare: None,
        }
    }

    /// Streams may end before the peer hears of the failure; a peer that believed the walk complete would delete
    /// files.
    #[test]
    fn a_failed_sender_never_reports_completion() {
        let folder = tempfile::tempdir().unwrap();
        let (mut near, mut far): (Vec<_>, Vec<_>) = connections(3).into_iter().unzip();
        let (_control, mut receiver) = split(near.remove(0), PATIENCE).unwrap();
        let (_peer, mut told) = split(far.remove(0), PATIENCE).unwrap();
        let stop = Stop::default();
        stop.stop(Error::new(Code::Cancelled, "copy", "", "interrupted"));
        let job = job(folder.path(), Account::own().unwrap());
        let sending = std::thread::spawn(move || send(job, &mut receiver, near, &Watch::default(), &stop));
        let mut messages = Vec::new();
        while let Ok(message) = told.recv() {
            messages.push(message);
        }
        drop(far);
        assert_eq!(sending.join().unwrap().unwrap_err().code, Code::Cancelled);
        assert!(messages.iter().any(|message| matches!(message, Control::Abort(_))), "{messages:?}");
        assert!(!messages.iter().any(|message| matches!(message, Control::SendDone(_))), "{messages:?}");
    }

    #[test]
    fn running_threads_are_ended_if_another_cannot_be_started() {
        let folder = tempfile::tempdir().unwrap();
        let (mut near, _far): (Vec<_>, Vec<_>) = connections(2).into_iter().unzip();
        let (control, mut receiver) = split(near.remove(0), PATIENCE).unwrap();
        let job = job(folder.path(), unusable_account());
        let refused = send(job, &mut receiver, near, &Watch::default(), &Stop::default()).unwrap_err();
        assert_eq!(refused.side, "here");
        drop(receiver);
        assert_eq!(Arc::strong_count(&control), 1, "a thread has the session still");
    }

    #[test]
    fn an_unreadable_file_unblocks_the_walk() {
        let folder = tempfile::tempdir().unwrap();
        let (near, far) = connections(1).remove(0);
        let (control, _receiver) = split(near, PATIENCE).unwrap();
        let job = job(folder.path(), Account::own().unwrap());
        let session = Arc::new(Session::new(job, control, Vec::new(), None, 1, &Watch::default()));
        let (origin, entry) = file();
        let mut items = Vec::new();
        for _ in 0..MAX_UNACKNOWLEDGED {
            let mut sender = session.lock();
            sender.handle_entry(origin.clone(), entry.clone(), None);
            match sender.poll_unit() {
                Some(Unit::Pack(pack)) => items.extend(pack),
                other => drop(other),
            }
        }
        let (done, is_done) = std::sync::mpsc::channel();
        let walk = std::thread::spawn({
            let session = session.clone();
            move || done.send(session.on_found(Finding::Entry(origin, entry)))
        });
        // Whether the walk has found the window full or finds it open, it continues.
        assert!(is_done.recv_timeout(Duration::from_millis(300)).is_err());
        let gone = Error::new(Code::PermissionDenied, "open", "f", "simulated");
        session.on_source_failed(&items[0], gone).unwrap();
        assert_eq!(is_done.recv_timeout(PATIENCE), Ok(true));
        walk.join().unwrap().unwrap();
        drop(far);
    }
}
