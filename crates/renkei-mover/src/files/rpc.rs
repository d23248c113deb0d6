//! The pipelined RPC client of a file session: data streams on which operations go out and answers come in, in the
//! same order.
//!
//! Any number of callers have operations in flight. Each stream has a thread that sends and one that receives. An
//! operation goes to the stream with the fewest bytes in flight; where there are several, the first is reserved for
//! small operations, so that they never wait behind bulk data. A small operation is sent by the calling thread, if
//! the stream is idle.
//!
//! When a stream or the control stream fails, the connection is lost: every operation in flight fails with the same
//! error.

use super::lease_client::LeaseClient;
use crate::lock;
use crate::pace::pacer::Pacer;
use renkei_core::error::{Code, Error};
use renkei_core::link::controller::{is_far, is_long};
use renkei_core::wire::file::{
    Answer, LENGTH_BYTES, Lessor as _, MAX_IO_BYTES, Op, begin_frame, divide, parse_answer,
};
use renkei_core::wire::frame::{self, FrameKind, HEAD_BYTES, MAX_PAYLOAD_BYTES};
use renkei_core::wire::message::Control;
use renkei_core::wire::{WireVersion, decode, violation};
use renkei_net::control::{ControlReceiver, ControlSender};
use renkei_net::socket::{give_up_after, keep_alive, prepare_sending, rtt};
use renkei_net::tls::{TlsStream, TlsWriter};
use std::collections::VecDeque;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// From this number of streams on, the first is reserved for small operations.
const ENOUGH_STREAMS: usize = 4;
/// Operations of more bytes are bulk data.
const SMALL_BYTES: u64 = 128 << 10;
/// A weight that keeps operations off the stream reserved for small ones.
pub(crate) const BULK_BYTES: u64 = SMALL_BYTES + 1;
/// Bytes in flight per stream before sent data is spread over another one.
const BYTES_FOR_A_STREAM: u64 = 4 << 20;
/// Weight of an operation without content.
const PLAIN_BYTES: u64 = 512;
/// Estimated answer to a directory listing.
const LISTING_BYTES: u64 = 64 << 10;
/// Keep-alive interval of an idle stream, so that relays do not take it for dead.
const SHOW_LIFE_EVERY: Duration = Duration::from_secs(30);
/// Most free buffers in the pool.
const KEPT_BUFFERS: usize = 64;
/// Shortest interval over which a rate is measured.
const SHORTEST_ROUND: Duration = Duration::from_millis(100);

/// A pooled buffer with the bytes of one read or write.
pub(crate) struct IoBuffer {
    bytes: Vec<u8>,
    len: usize,
    pool: Arc<IoBufferPool>,
}

/// A pool of buffers of [`MAX_IO_BYTES`] and one more.
#[derive(Default)]
pub(crate) struct IoBufferPool(Mutex<Vec<Vec<u8>>>);

impl IoBufferPool {
    /// An empty buffer with room for one operation.
    pub(crate) fn buffer(self: &Arc<Self>) -> IoBuffer {
        let bytes = lock(&self.0).pop().unwrap_or_else(|| vec![0; MAX_IO_BYTES as usize + 1]);
        IoBuffer { bytes, len: 0, pool: self.clone() }
    }
}

impl IoBuffer {
    /// The content.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Appends as much as there is room for; returns the number of bytes.
    pub(crate) fn add(&mut self, more: &[u8]) -> usize {
        let count = more.len().min(MAX_IO_BYTES as usize - self.len);
        self.bytes[self.len..self.len + count].copy_from_slice(&more[..count]);
        self.len += count;
        count
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == MAX_IO_BYTES as usize
    }
}

impl Drop for IoBuffer {
    fn drop(&mut self) {
        let mut kept = lock(&self.pool.0);
        if kept.len() < KEPT_BUFFERS {
            kept.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// An answer, and the data that was read.
pub(crate) struct RpcReply {
    pub(crate) answer: Answer,
    pub(crate) data: Option<IoBuffer>,
    /// When it arrived.
    pub(crate) at: Instant,
}

impl RpcReply {
    /// The data that was read.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.data.as_ref().map_or(&[], IoBuffer::bytes)
    }
}

/// An operation in flight; clones wait for the same answer.
#[derive(Clone)]
pub(crate) struct PendingReply(Arc<InFlight>);

struct InFlight {
    outcome: Mutex<Option<Result<Arc<RpcReply>, Error>>>,
    done: Condvar,
    weight: u64,
}

impl PendingReply {
    pub(crate) fn new(weight: u64) -> Self {
        PendingReply(Arc::new(InFlight { outcome: Mutex::default(), done: Condvar::new(), weight }))
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// The error the connection was lost with; a failed operation is an answer.
    pub(crate) fn wait(&self) -> Result<Arc<RpcReply>, Error> {
        let waited = self.0.done.wait_while(lock(&self.0.outcome), |outcome| outcome.is_none());
        let outcome = waited.expect("no thread panics while it holds the lock");
        outcome.clone().expect("it was waited for")
    }

    /// The answer, if it has arrived.
    pub(crate) fn replied(&self) -> Option<Arc<RpcReply>> {
        lock(&self.0.outcome).as_ref().and_then(|outcome| outcome.clone().ok())
    }

    /// Whether it was in flight when the connection was lost.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(&*lock(&self.0.outcome), Some(Err(_)))
    }

    pub(crate) fn is_done(&self) -> bool {
        lock(&self.0.outcome).is_some()
    }

    /// Waits for the answer; no clone of this may wait for it too.
    pub(crate) fn take(self) -> Result<RpcReply, Error> {
        let replied = self.wait()?;
        drop(lock(&self.0.outcome).take());
        Ok(Arc::into_inner(replied).expect("nobody else waits for it"))
    }

    fn complete(&self, outcome: Result<RpcReply, Error>) {
        *lock(&self.0.outcome) = Some(outcome.map(Arc::new));
        self.0.done.notify_all();
    }
}

/// An operation to send.
struct Job {
    frame: Vec<u8>,
    /// Shared with the write-behind, which may have to resend it.
    content: Option<Arc<IoBuffer>>,
    pending: PendingReply,
}

/// One data stream.
struct RpcStream {
    socket: Arc<TcpStream>,
    writer: Mutex<TlsWriter>,
    queue: Mutex<VecDeque<Job>>,
    queued: Condvar,
    /// Operations that are sent and not answered.
    waiting: Mutex<VecDeque<PendingReply>>,
    /// Sum of the weights of queued and waiting operations.
    weight: AtomicU64,
}

/// Measurement of the throughput.
struct Rate {
    since: Instant,
    bytes: u64,
    /// Bytes per second of the best rounds; decays slowly.
    best: f64,
}

/// The RPC connection of one session: all its streams.
pub(crate) struct RpcConnection {
    rpc_streams: Vec<RpcStream>,
    control: Arc<ControlSender>,
    lost: Mutex<Option<Error>>,
    is_lost: AtomicBool,
    pub(crate) pool: Arc<IoBufferPool>,
    pub(crate) round_trip: Duration,
    rate: Mutex<Rate>,
    ended: Condvar,
}

impl RpcConnection {
    /// Starts the threads of a session's streams; `writes` if bulk data may be sent.
    pub(crate) fn start(
        control: ControlReceiver,
        streams: Vec<TlsStream>,
        writes: bool,
        silence: Duration,
        lease_client: Arc<LeaseClient>,
    ) -> Result<Arc<Self>, Error> {
        let (mut rpc_streams, mut readers) = (Vec::new(), Vec::new());
        for stream in streams {
            let mut stream = stream.with_own_records()?;
            stream.bear_any_silence()?;
            let socket = stream.socket();
            prepare_sending(&socket, writes && is_far(rtt(&socket)));
            give_up_after(&socket, Some(silence));
            keep_alive(&socket);
            let writer = Mutex::new(stream.take_writer()?);
            readers.push(stream);
            let (queue, waiting) = (Mutex::default(), Mutex::default());
            rpc_streams.push(RpcStream {
                socket,
                writer,
                queue,
                queued: Condvar::new(),
                waiting,
                weight: AtomicU64::new(0),
            });
        }
        let conn = Arc::new(RpcConnection {
            rpc_streams,
            control: control.sender(),
            lost: Mutex::default(),
            is_lost: AtomicBool::new(false),
            pool: Arc::default(),
            round_trip: control.round_trip(),
            rate: Mutex::new(Rate { since: Instant::now(), bytes: 0, best: 0.0 }),
            ended: Condvar::new(),
        });
        let started = conn.spawn_all(control, readers, writes, lease_client);
        started.inspect_err(|error| conn.fail(error.clone()))?;
        Ok(conn)
    }

    /// Succeeds if the session agreed on this version of the wire or a younger one.
    ///
    /// # Errors
    /// `VersionMismatch`, before anything is sent.
    pub(crate) fn expect(&self, since: WireVersion) -> Result<(), Error> {
        let agreed = self.control.version();
        if since <= agreed {
            return Ok(());
        }
        let cause = format!("the operation needs wire {since}, and the PoP speaks wire {agreed} here");
        Err(Error::new(Code::VersionMismatch, "ask", "file session", cause))
    }

    fn spawn_all(
        self: &Arc<Self>,
        mut control: ControlReceiver,
        readers: Vec<TlsStream>,
        writes: bool,
        lease_client: Arc<LeaseClient>,
    ) -> Result<(), Error> {
        let bounds = readers.iter().map(TlsStream::write_bound).collect();
        for (number, mut stream) in readers.into_iter().enumerate() {
            self.spawn("answers", move |conn| conn.receive(number, &mut stream))?;
            self.spawn("asks", move |conn| conn.send_queued(number))?;
        }
        if writes {
            let sockets = self.rpc_streams.iter().map(|rpc_stream| rpc_stream.socket.clone()).collect();
            let pacer = Pacer::new(sockets, None, None).with_bounds(bounds);
            self.spawn("pace", move |conn| conn.keep_pace(pacer))?;
        }
        let held = lease_client.clone();
        self.spawn("leases", move |conn| conn.keep_terms(&held))?;
        self.spawn("files", move |_| {
            let sender = control.sender();
            loop {
                match control.recv() {
                    Ok(Control::Abort(error)) | Err(error) => return Err(error),
                    Ok(Control::Renewed { number, round, term_ms, locks }) => {
                        lease_client.on_given(number, round, Duration::from_millis(term_ms.into()), locks);
                    }
                    Ok(Control::Changed { number, what }) => {
                        lease_client.on_changed(&what);
                        sender.send(&Control::Settled(number))?;
                    }
                    Ok(_) => {}
                }
            }
        })
    }

    /// Renews the lease periodically, unless the site grants none.
    fn keep_terms(&self, lease_client: &LeaseClient) -> Result<(), Error> {
        let mut lost = lock(&self.lost);
        while lost.is_none() && lease_client.is_leasing() != Some(false) {
            drop(lost);
            self.control.send(&Control::Renew(lease_client.ask()))?;
            let waited = self.ended.wait_timeout(lock(&self.lost), lease_client.pause());
            lost = waited.expect("no thread panics with it").0;
        }
        Ok(())
    }

    fn spawn(
        self: &Arc<Self>,
        name: &str,
        work: impl FnOnce(&Self) -> Result<(), Error> + Send + 'static,
    ) -> Result<(), Error> {
        let conn = self.clone();
        let body = move || {
            if let Err(error) = work(&conn) {
                conn.fail(error);
            }
        };
        let spawned = std::thread::Builder::new().name(name.into()).spawn(body);
        spawned.map(drop).map_err(|error| Error::new(Code::SystemCall, "start a thread", name, error))
    }

    /// Ends the connection; all operations in flight fail with the first error.
    pub(crate) fn fail(&self, error: Error) {
        let first = lock(&self.lost).get_or_insert(error).clone();
        self.is_lost.store(true, Ordering::SeqCst);
        self.ended.notify_all();
        self.control.shutdown();
        for rpc_stream in &self.rpc_streams {
            let _ = rpc_stream.socket.shutdown(Shutdown::Both);
            rpc_stream.queued.notify_all();
            self.drain(rpc_stream, &first);
        }
    }

    fn drain(&self, rpc_stream: &RpcStream, error: &Error) {
        let queued: Vec<Job> = lock(&rpc_stream.queue).drain(..).collect();
        let waiting: Vec<PendingReply> = lock(&rpc_stream.waiting).drain(..).collect();
        queued.iter().map(|job| &job.pending).chain(&waiting).for_each(|pending| {
            pending.complete(Err(error.clone()));
        });
    }

    /// The error the connection was lost with, if it was.
    pub(crate) fn lost(&self) -> Option<Error> {
        if self.is_lost.load(Ordering::SeqCst) { lock(&self.lost).clone() } else { None }
    }

    /// Number of streams.
    pub(crate) fn streams(&self) -> usize {
        self.rpc_streams.len()
    }

    /// Recent throughput in bytes per second.
    pub(crate) fn rate(&self) -> f64 {
        lock(&self.rate).best
    }

    /// Sends an operation, and waits for the answer.
    pub(crate) fn ask(&self, op: &Op, content: Option<Arc<IoBuffer>>) -> Result<RpcReply, Error> {
        self.begin(op, content).take()
    }

    /// Sends an operation without waiting.
    pub(crate) fn begin(&self, op: &Op, content: Option<Arc<IoBuffer>>) -> PendingReply {
        let content_bytes = content.as_ref().map_or(0, |buffer| buffer.len);
        self.begin_on(self.stream_for(weight_of(op, content_bytes), content_bytes > 0), op, content)
    }

    fn begin_on(&self, rpc_stream: &RpcStream, op: &Op, content: Option<Arc<IoBuffer>>) -> PendingReply {
        let content_bytes = content.as_ref().map_or(0, |buffer| buffer.len);
        let (frame, weight) = (begin_frame(FrameKind::Op, op, content_bytes), weight_of(op, content_bytes));
        let pending = PendingReply::new(weight);
        rpc_stream.weight.fetch_add(weight, Ordering::Relaxed);
        let job = Job { frame, content, pending: pending.clone() };
        match self.send_at_once(rpc_stream, job) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.fail(error),
            Err(job) => {
                lock(&rpc_stream.queue).push_back(job);
                rpc_stream.queued.notify_one();
            }
        }
        // The thread that failed the connection may have drained the queue before this job was in it.
        if let Some(error) = self.lost() {
            self.drain(rpc_stream, &error);
        }
        pending
    }

    /// Sends operations back to back on one stream chosen by `weight`, without waiting.
    pub(crate) fn begin_all<const N: usize>(
        &self,
        weight: u64,
        ops: [(&Op, Option<Arc<IoBuffer>>); N],
    ) -> [PendingReply; N] {
        let rpc_stream = self.stream_for(weight, true);
        ops.map(|(op, content)| self.begin_on(rpc_stream, op, content))
    }

    /// The stream with the fewest bytes in flight, of those for operations of this weight. Sent data is spread over
    /// no more streams than its volume needs: each stream's congestion window may have grown to the whole path, so
    /// several that send short files at once exceed the path's capacity, and losses at the end of a file are detected
    /// late.
    fn stream_for(&self, weight: u64, sent: bool) -> &RpcStream {
        let reserved = usize::from(self.rpc_streams.len() >= ENOUGH_STREAMS && weight > SMALL_BYTES);
        let mut rpc_streams = &self.rpc_streams[reserved..];
        if sent && weight > SMALL_BYTES && !is_long(self.round_trip) {
            let under_way: u64 =
                rpc_streams.iter().map(|rpc_stream| rpc_stream.weight.load(Ordering::Relaxed)).sum();
            let enough = 1 + (under_way / BYTES_FOR_A_STREAM) as usize;
            rpc_streams = &rpc_streams[..enough.min(rpc_streams.len())];
        }
        rpc_streams
            .iter()
            .min_by_key(|rpc_stream| rpc_stream.weight.load(Ordering::Relaxed))
            .expect("a session has a stream")
    }

    /// Sends a small operation from the calling thread, if the stream is idle; else returns the job.
    fn send_at_once(&self, rpc_stream: &RpcStream, job: Job) -> Result<Result<(), Error>, Job> {
        if job.content.is_some() {
            return Err(job);
        }
        let Ok(mut writer) = rpc_stream.writer.try_lock() else { return Err(job) };
        if !lock(&rpc_stream.queue).is_empty() {
            return Err(job);
        }
        Ok(rpc_stream.send(&mut writer, job))
    }

    fn send_queued(&self, number: usize) -> Result<(), Error> {
        let rpc_stream = &self.rpc_streams[number];
        while self.lost().is_none() {
            let queue =
                rpc_stream.queued.wait_timeout_while(lock(&rpc_stream.queue), SHOW_LIFE_EVERY, |queue| {
                    queue.is_empty() && !self.is_lost.load(Ordering::SeqCst)
                });
            let is_idle = queue.expect("no thread panics while it holds the lock").0.is_empty();
            let mut writer = lock(&rpc_stream.writer);
            // Dequeued with the writer locked, so that jobs are sent in the order of the queue.
            let job = lock(&rpc_stream.queue).pop_front();
            match job {
                Some(job) => {
                    let bytes = job.content.as_ref().map_or(0, |buffer| buffer.len as u64);
                    rpc_stream.send(&mut writer, job)?;
                    self.count(bytes);
                }
                None if is_idle => writer.write_all(&frame::IDLE)?,
                None => {}
            }
        }
        Ok(())
    }

    fn keep_pace(&self, mut pacer: Pacer) -> Result<(), Error> {
        let mut lost = lock(&self.lost);
        while lost.is_none() {
            lost = self.ended.wait_timeout(lost, pacer.interval()).expect("no thread panics with it").0;
            let idle = self
                .rpc_streams
                .iter()
                .filter(|rpc_stream| rpc_stream.weight.load(Ordering::Relaxed) <= SMALL_BYTES);
            pacer = pacer.tick_if(2 * idle.count() < self.rpc_streams.len());
        }
        Ok(())
    }

    fn receive(&self, number: usize, stream: &mut TlsStream) -> Result<(), Error> {
        let rpc_stream = &self.rpc_streams[number];
        let mut buf = Vec::new();
        loop {
            let mut head = [0; HEAD_BYTES];
            stream.read_exact(&mut head)?;
            let head = frame::parse_head(head)?;
            match head.kind {
                Some(FrameKind::Answer) => {
                    let replied = self.read_answer(stream, head.payload_bytes, &mut buf)?;
                    let pending = lock(&rpc_stream.waiting).pop_front();
                    let pending = pending.ok_or_else(|| violation("file session", "an answer to nothing"))?;
                    rpc_stream.weight.fetch_sub(pending.0.weight, Ordering::Relaxed);
                    pending.complete(Ok(replied));
                }
                None => {
                    buf.resize(head.payload_bytes, 0);
                    stream.read_exact(&mut buf)?;
                }
                Some(FrameKind::Refusal) => {
                    buf.resize(head.payload_bytes, 0);
                    stream.read_exact(&mut buf)?;
                    return Err(decode("refusal", &buf)?);
                }
                Some(kind) => return Err(violation("file session", format_args!("unexpected {kind:?}"))),
            }
        }
    }

    fn read_answer(
        &self,
        stream: &mut TlsStream,
        payload_bytes: usize,
        buf: &mut Vec<u8>,
    ) -> Result<RpcReply, Error> {
        let mut length = [0; LENGTH_BYTES];
        if payload_bytes < LENGTH_BYTES {
            return Err(violation("file session", "an answer that is too short"));
        }
        stream.read_exact(&mut length)?;
        let (answer_bytes, data_bytes) = divide(payload_bytes, length, MAX_PAYLOAD_BYTES)?;
        buf.resize(answer_bytes, 0);
        stream.read_exact(buf)?;
        let answer = parse_answer(buf)?;
        let follow = answer.data_bytes();
        let expected = follow.unwrap_or(0) as usize;
        if expected != data_bytes {
            return Err(violation("answer", format_args!("{data_bytes} bytes, not {expected}")));
        }
        if follow.is_none() {
            return Ok(RpcReply { answer, data: None, at: Instant::now() });
        }
        let mut buffer = self.pool.buffer();
        stream.read_exact_before_last(&mut buffer.bytes[..=data_bytes])?;
        buffer.len = data_bytes;
        self.count(data_bytes as u64);
        Ok(RpcReply { answer, data: Some(buffer), at: Instant::now() })
    }

    /// Counts transferred bytes, and measures the throughput once a round trip.
    fn count(&self, bytes: u64) {
        let mut rate = lock(&self.rate);
        rate.bytes += bytes;
        let round = rate.since.elapsed();
        if round >= self.round_trip.max(SHORTEST_ROUND) {
            let now = rate.bytes as f64 / round.as_secs_f64();
            rate.best = now.max(rate.best * 0.9);
            (rate.since, rate.bytes) = (Instant::now(), 0);
        }
    }

    /// Ends the connection in order; operations in flight fail. The site is told that all leases are given back, and
    /// closes the connection, for which this waits at most `patience`.
    pub(crate) fn close(&self, patience: Duration) {
        let _ = self.control.send(&Control::Settled(u64::MAX));
        let hung_up = self.ended.wait_timeout_while(lock(&self.lost), patience, |lost| lost.is_none());
        drop(hung_up);
        self.fail(Error::new(Code::ConnectionLost, "close", "file session", "closed here"));
    }
}

impl RpcStream {
    /// Sends one operation; the answers come in the order in which this is called.
    fn send(&self, writer: &mut TlsWriter, job: Job) -> Result<(), Error> {
        lock(&self.waiting).push_back(job.pending);
        match job.content {
            None => writer.write_all(&job.frame),
            Some(content) => {
                writer.queue(&job.frame)?;
                writer.write_all(content.bytes())
            }
        }
    }
}

/// Bytes that an operation and its answer move.
fn weight_of(op: &Op, content_bytes: usize) -> u64 {
    let answer = match op {
        Op::Read { bytes, .. } | Op::Peek { bytes, .. } => u64::from(*bytes),
        Op::ReadDir(_) => LISTING_BYTES,
        _ => 0,
    };
    PLAIN_BYTES + content_bytes as u64 + answer
}
