//! The RPC server of a file session: one thread per data stream, which reads an operation, performs it as the
//! account, and answers it before it reads the next.
//!
//! All streams work on one [`LocalFiles`](crate::files::local_files::LocalFiles), so a handle that one stream opened is
//! valid on the others. Operations on different streams have no order. The session ends with its control stream, and
//! drafts that were not published are gone then. Data streams have no silence timeout; keep-alive is the control
//! stream's.

use crate::connect::dial::PADDING_BYTES;
use crate::failure::{Failure, Stop};
use crate::pace::pacer::Pacer;
use crate::progress::Watch;
use renkei_core::error::{Code, Error};
use renkei_core::lease::callbacks::Callback;
use renkei_core::link::controller::{is_far, is_long};
use renkei_core::path::RelPath;
use renkei_core::wire::file::{
    Answer, Files, Handle, LENGTH_BYTES, MAX_IO_BYTES, MAX_OP_BYTES, Op, begin_frame, divide, parse_op,
};
use renkei_core::wire::frame::{self, FrameKind, HEAD_BYTES};
use renkei_core::wire::message::{Control, Progress};
use renkei_core::wire::violation;
use renkei_net::control::ControlReceiver;
use renkei_net::identity::account::{Account, AccountThread};
use renkei_net::socket::{give_up_after, keep_alive, prepare_sending, rtt};
use renkei_net::tls::TlsStream;
use renkei_store::leases::LeaseHolder;
use renkei_store::locks::Locker;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Interval of progress updates.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// The files that are served, and the account.
pub struct FileServerJob {
    /// The open-file table.
    pub files: Arc<dyn Files>,
    /// The account that performs the operations.
    pub account: Account,
    /// This side's name in errors.
    pub side: String,
    /// Prefix of the paths of the store in errors.
    pub root: String,
    /// How long a peer may leave sent data unacknowledged.
    pub silence: Duration,
    /// The client as a holder of leases, if it is one.
    pub holder: Option<Arc<LeaseHolder>>,
    /// Decides about the client's locks.
    pub locker: Arc<dyn Locker>,
}

/// Counters of a session.
#[derive(Default)]
struct Done {
    operations: AtomicU64,
    bytes: AtomicU64,
    /// Streams that are idle, waiting for an operation.
    idle: AtomicUsize,
    arrivals: Arrivals,
}

/// Number of completed writes of each draft, over all streams.
#[derive(Default)]
struct Arrivals {
    state: Mutex<Arrived>,
    more: Condvar,
}

#[derive(Default)]
struct Arrived {
    writes: HashMap<Handle, u64>,
    is_over: bool,
}

impl Arrivals {
    fn state(&self) -> MutexGuard<'_, Arrived> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }

    /// Counts a write that succeeded or failed; a failed one breaks the draft, which is then not published.
    fn add(&self, handle: Handle) {
        *self.state().writes.entry(handle).or_default() += 1;
        self.more.notify_all();
    }

    fn forget(&self, handle: Handle) {
        self.state().writes.remove(&handle);
    }

    /// Waits until `writes` writes of a draft have completed.
    ///
    /// # Errors
    /// `ConnectionLost`, if the session ends before.
    fn wait(&self, handle: Handle, writes: u64) -> Result<(), Error> {
        let is_missing = |state: &mut Arrived| {
            !state.is_over && writes > state.writes.get(&handle).copied().unwrap_or_default()
        };
        let state = self.more.wait_while(self.state(), is_missing);
        match state.expect("no thread panics while it holds the lock").is_over {
            true => Err(Error::new(Code::ConnectionLost, "await", "file session", "it ended")),
            false => Ok(()),
        }
    }

    fn end(&self) {
        self.state().is_over = true;
        self.more.notify_all();
    }
}

/// Serves until the client leaves; returns the number of operations, the bytes read and written, and the outcome.
///
/// # Errors
/// The reason of an early end: a stop request, or a protocol violation by the peer.
pub fn serve(
    job: FileServerJob,
    control: &mut ControlReceiver,
    streams: Vec<TlsStream>,
    watch: &Watch,
    stop: &Stop,
) -> (u64, u64, Result<(), Error>) {
    let sockets: Vec<_> = streams.iter().map(TlsStream::socket).collect();
    for socket in &sockets {
        prepare_sending(socket, is_far(rtt(socket)));
        give_up_after(socket, Some(job.silence));
        keep_alive(socket);
    }
    let bounds = streams.iter().map(TlsStream::write_bound).collect();
    let (pacer, count) = (Pacer::new(sockets.clone(), None, None).with_bounds(bounds), sockets.len());
    let (failure, done) = (Arc::new(Failure::new(control.sender(), sockets)), Arc::<Done>::default());
    let _hook = stop.on_stop({
        let failure = failure.clone();
        move |error| failure.set_now(error)
    });
    let (mut threads, holder, locker) = (Vec::new(), job.holder.clone(), job.locker.clone());
    let files = job.files.clone();
    let started = spawn_ticker(&failure, &done, watch, pacer, count)
        .map(|ticker| threads.push(ticker))
        .and_then(|()| spawn_caller(holder.as_ref(), &failure, control, &mut threads))
        .and_then(|()| spawn_clerks(job, streams, &failure, &done, &mut threads));
    let ended = started.and_then(|()| wait_for_end(control, &failure, holder.as_deref(), &*locker));
    files.fence();
    if let Some(holder) = &holder {
        holder.end();
    }
    if let Err(error) = &ended {
        failure.set_now(error.clone());
    }
    // The account's threads close the open handles.
    drop(files);
    failure.finish(false);
    done.arrivals.end();
    threads.into_iter().for_each(|thread| drop(thread.join()));
    let ended = ended.map_err(|error| failure.first().unwrap_or(error));
    (done.operations.load(Ordering::Relaxed), done.bytes.load(Ordering::Relaxed), ended)
}

/// Waits until the client leaves.
fn wait_for_end(
    control: &mut ControlReceiver,
    failure: &Failure,
    holder: Option<&LeaseHolder>,
    locker: &dyn Locker,
) -> Result<(), Error> {
    loop {
        match control.recv() {
            // A failure here shuts down the control stream, too.
            _ if failure.is_over() => return failure.first().map_or(Ok(()), Err),
            Err(error) if error.code == Code::ConnectionLost => return Ok(()),
            Ok(Control::Abort(error)) | Err(error) => return Err(error),
            Ok(Control::Renew(number)) => match holder {
                // The term is sent after the pending callbacks.
                Some(holder) => holder.ask_term(number, locker.round()),
                None => control.sender().send(&no_term(number, locker))?,
            },
            Ok(Control::Settled(number)) => match holder {
                Some(holder) if number == u64::MAX => {
                    holder.leave();
                    // A leaving client waits for the end of the session.
                    return Ok(());
                }
                Some(holder) => holder.answer(number),
                None => {}
            },
            Ok(other) => return Err(violation("file session", format_args!("{other:?}"))),
        }
    }
}

/// The reply to a client without leases that asks for a term.
fn no_term(number: u64, locker: &dyn Locker) -> Control {
    Control::Renewed { number, round: 0, term_ms: 0, locks: locker.round() }
}

/// The control message of a callback.
fn said(told: Callback) -> Control {
    match told {
        Callback::Call { number, what } => Control::Changed { number, what },
        Callback::Term { number, round, length, locks } => {
            let term_ms = u32::try_from(length.as_millis()).unwrap_or(u32::MAX);
            Control::Renewed { number, round, term_ms, locks }
        }
    }
}

/// Sends a lease holder its callbacks and its terms: one thread sends both, so in their order.
fn spawn_caller(
    holder: Option<&Arc<LeaseHolder>>,
    failure: &Arc<Failure>,
    control: &ControlReceiver,
    threads: &mut Vec<AccountThread<()>>,
) -> Result<(), Error> {
    let Some(holder) = holder.cloned() else { return Ok(()) };
    let (failure, sender) = (failure.clone(), control.sender());
    threads.push(Account::own()?.spawn("leases", move || {
        while let Some(told) = holder.next_told() {
            if let Err(error) = sender.send(&said(told)) {
                return failure.set(error);
            }
        }
    })?);
    Ok(())
}

fn spawn_ticker(
    failure: &Arc<Failure>,
    done: &Arc<Done>,
    watch: &Watch,
    mut pacer: Pacer,
    streams: usize,
) -> Result<AccountThread<()>, Error> {
    let (failure, done, watch) = (failure.clone(), done.clone(), watch.clone());
    Account::own()?.spawn("pace", move || {
        let mut told = Instant::now();
        while !failure.wait_for(pacer.interval()) {
            let bytes = done.bytes.load(Ordering::Relaxed);
            pacer = pacer.tick_if(2 * done.idle.load(Ordering::Relaxed) < streams);
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                let files_done = done.operations.load(Ordering::Relaxed);
                watch.set(Progress { files_done, bytes_moved: bytes, ..Progress::default() });
            }
        }
    })
}

fn spawn_clerks(
    job: FileServerJob,
    streams: Vec<TlsStream>,
    failure: &Arc<Failure>,
    done: &Arc<Done>,
    threads: &mut Vec<AccountThread<()>>,
) -> Result<(), Error> {
    // The last thread to end drops the open handles: that may remove temporary files, as the account.
    let job_account = job.account.clone();
    let job = Arc::new(job);
    for stream in streams {
        let (job, failure, done) = (job.clone(), failure.clone(), done.clone());
        threads.push(job_account.spawn("clerk", move || {
            let ended = FileServer::new(stream, &job, &done).and_then(|mut server| server.run());
            if let Err(error) = ended {
                failure.set(error.at(&job.side));
            }
        })?);
    }
    Ok(())
}

/// The server of one data stream.
struct FileServer<'a> {
    stream: TlsStream,
    job: &'a FileServerJob,
    done: &'a Done,
    op: Vec<u8>,
    /// Content of a write, and one more byte; grows only.
    content: Vec<u8>,
    /// Content of a read; grows only.
    data: Vec<u8>,
}

impl<'a> FileServer<'a> {
    fn new(stream: TlsStream, job: &'a FileServerJob, done: &'a Done) -> Result<Self, Error> {
        let stream = stream.with_own_records()?;
        stream.bear_any_silence()?;
        Ok(FileServer { stream, job, done, op: Vec::new(), content: Vec::new(), data: Vec::new() })
    }

    fn run(&mut self) -> Result<(), Error> {
        if is_long(self.stream.round_trip()) {
            // Sent while the first file is opened, so that the content read next finds an open congestion window.
            let mut bytes = Vec::new();
            frame::push_padding(&mut bytes, PADDING_BYTES);
            self.stream.write_all(&bytes)?;
        }
        loop {
            let mut head = [0; HEAD_BYTES];
            self.done.idle.fetch_add(1, Ordering::Relaxed);
            let read = self.stream.read_exact(&mut head);
            self.done.idle.fetch_sub(1, Ordering::Relaxed);
            read?;
            let head = frame::parse_head(head)?;
            match head.kind {
                Some(FrameKind::Op) => self.on_op(head.payload_bytes)?,
                Some(FrameKind::StreamEnd) => return Ok(()),
                Some(kind) => return Err(violation("file session", format_args!("unexpected {kind:?}"))),
                None => self.skip(head.payload_bytes)?,
            }
        }
    }

    fn skip(&mut self, bytes: usize) -> Result<(), Error> {
        self.op.resize(bytes, 0);
        self.stream.read_exact(&mut self.op)?;
        self.op.truncate(MAX_OP_BYTES);
        self.op.shrink_to(MAX_OP_BYTES);
        Ok(())
    }

    fn on_op(&mut self, payload_bytes: usize) -> Result<(), Error> {
        let mut length = [0; LENGTH_BYTES];
        if payload_bytes < LENGTH_BYTES {
            return Err(violation("file session", "an operation that is too short"));
        }
        self.stream.read_exact(&mut length)?;
        let (op_bytes, content_bytes) = divide(payload_bytes, length, MAX_OP_BYTES)?;
        self.op.resize(op_bytes, 0);
        self.stream.read_exact(&mut self.op)?;
        let op = parse_op(&self.op, content_bytes)?;
        if self.content.len() <= content_bytes {
            self.content.resize(content_bytes + 1, 0);
        }
        self.stream.read_exact_before_last(&mut self.content[..=content_bytes])?;
        self.done.operations.fetch_add(1, Ordering::Relaxed);
        self.done.bytes.fetch_add(content_bytes as u64, Ordering::Relaxed);
        match op {
            Op::Read { handle, offset, bytes } => self.read(handle, offset, bytes),
            Op::Peek { path, offset, bytes } => self.peek(path, offset, bytes),
            Op::Await { handle, writes } => {
                // On an error nothing more is read here: the next operation must not be performed without these
                // writes.
                self.done.arrivals.wait(handle, writes)?;
                self.answer(Ok(Answer::Done), 0)
            }
            op => {
                let answer = self.operate(op, content_bytes);
                self.answer(answer, 0)
            }
        }
    }

    fn operate(&self, op: Op, content_bytes: usize) -> Result<Answer, Error> {
        let arrivals = &self.done.arrivals;
        let written = match op {
            Op::Write { handle, .. } => Some(handle),
            Op::Close(handle) => {
                arrivals.forget(handle);
                None
            }
            _ => None,
        };
        let answer = self.job.files.operate(op, &self.content[..content_bytes]);
        written.into_iter().for_each(|handle| arrivals.add(handle));
        answer
    }

    fn read(&mut self, handle: u64, offset: u64, bytes: u32) -> Result<(), Error> {
        match self.fill(handle, offset, bytes) {
            Ok(count) => self.answer(Ok(Answer::Data(count as u32)), count),
            Err(error) => self.answer(Err(error), 0),
        }
    }

    /// Reads into the buffer; returns the number of bytes.
    fn fill(&mut self, handle: u64, offset: u64, bytes: u32) -> Result<usize, Error> {
        if bytes > MAX_IO_BYTES {
            return Err(violation("read", format_args!("{bytes} bytes")));
        }
        let bytes = bytes as usize;
        if self.data.len() < bytes {
            self.data.resize(bytes, 0);
        }
        let count = self.job.files.read(handle, offset, &mut self.data[..bytes])?;
        self.done.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }

    /// Opens, reads and closes a file in one operation.
    fn peek(&mut self, path: RelPath, offset: u64, bytes: u32) -> Result<(), Error> {
        let (handle, item) = match self.job.files.operate(Op::Open(path), &[]).map(|answer| answer.parted().0)
        {
            Ok(Answer::Opened { handle, item }) => (handle, item),
            Ok(other) => return self.answer(Err(violation("open", format_args!("{other:?}"))), 0),
            Err(error) => return self.answer(Err(error), 0),
        };
        let filled = self.fill(handle, offset, bytes);
        self.job.files.operate(Op::Close(handle), &[])?;
        match filled {
            Ok(count) => self.answer(Ok(Answer::Peeked { item, bytes: count as u32 }), count),
            Err(error) => self.answer(Err(error), 0),
        }
    }

    /// Sends an answer, with the first `data_bytes` of the content read.
    fn answer(&mut self, answer: Result<Answer, Error>, data_bytes: usize) -> Result<(), Error> {
        let answer =
            answer.unwrap_or_else(|error| Answer::Failed(error.under(&self.job.root).at(&self.job.side)));
        let frame = begin_frame(FrameKind::Answer, &answer, data_bytes);
        match data_bytes {
            0 => self.stream.write_all(&frame),
            _ => {
                self.stream.queue(&frame)?;
                self.stream.write_all(&self.data[..data_bytes])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn writes_on_other_streams_are_awaited_until_the_session_ends() {
        let arrivals = Arrivals::default();
        arrivals.wait(7, 0).unwrap();
        thread::scope(|scope| {
            let first = scope.spawn(|| arrivals.wait(7, 2));
            let never = scope.spawn(|| arrivals.wait(8, 1));
            arrivals.add(7);
            assert!(!first.is_finished());
            arrivals.add(7);
            first.join().unwrap().unwrap();
            arrivals.end();
            assert_eq!(never.join().unwrap().unwrap_err().code, Code::ConnectionLost);
        });
        arrivals.forget(7);
        assert!(arrivals.wait(7, 1).is_err(), "nothing is done any more");
    }
}
