//! TLS over a blocking socket, for control and data streams.
//!
//! Built on rustls' unbuffered interface, so that many records are read and sent with one system call. A data stream
//! uses a record layer of its own after the handshake ([`TlsStream::with_own_records`]): records are sealed from the
//! caller's buffer into the send buffer, and opened from the receive buffer into the caller's. Its loop allocates and
//! copies nothing; buffers live as long as the stream.

use super::socket::WriteBound;
use super::tls_records::{self, Meaning, RecordLayer, Sealing, inner_bytes, record_bytes};
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{ClientConfig, ServerConfig};
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Receive buffer, filled with one call: large enough that a fast stream makes few calls, small enough to stay in
/// cache.
const INBOX_BYTES: usize = 256 << 10;
/// Plaintext encrypted and sent with one call: a quarter of a megabyte of content, and a frame's head.
pub const WRITE_BYTES: usize = (256 << 10) + (4 << 10);
/// Most plaintext that is queued to be sent with the next write.
const QUEUE_BYTES: usize = 16 << 10;
/// Send buffer: room for queued data and [`WRITE_BYTES`], the record overhead of both, 22 bytes for each 16 KiB, and
/// handshake messages.
const OUTBOX_BYTES: usize = WRITE_BYTES + QUEUE_BYTES + (64 << 10);

/// A handshake that takes longer than this, and many times the connection's RTT, was relayed beyond the connection's
/// peer. A busy machine takes long too: then a few more streams than needed are opened.
const LONG_SHAKE: Duration = Duration::from_millis(60);

/// The TLS state of one end.
pub(super) struct Codec(Side);

enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
    Own(Box<RecordLayer>),
}

/// State of a connection after some input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The handshake needs more input.
    Handshaking,
    /// Established; all input is used up.
    Ready,
    /// A record was decrypted; there may be more.
    Record,
    /// The peer closed properly.
    Closed,
}

impl Codec {
    /// The server side, before its handshake.
    pub(super) fn server(config: Arc<ServerConfig>) -> Result<Self, Error> {
        UnbufferedServerConnection::new(config).map(|conn| Codec(Side::Server(conn))).map_err(tls_failed)
    }

    /// Decrypts ciphertext, one record at most, and appends the replies to `out`.
    ///
    /// Returns how many bytes of `incoming` were consumed.
    pub(super) fn process(
        &mut self,
        incoming: &mut [u8],
        out: &mut Outbox,
        mut on_plain: impl FnMut(&[u8]),
    ) -> Result<(usize, State), Error> {
        let mut used = 0;
        loop {
            let rest = &mut incoming[used..];
            let (discard, state) = match &mut self.0 {
                Side::Client(conn) => step(conn.process_tls_records(rest), out, &mut on_plain),
                Side::Server(conn) => step(conn.process_tls_records(rest), out, &mut on_plain),
                Side::Own(_) => {
                    let cause = "the records of a data stream are not read so";
                    Err(Error::new(Code::TlsFailed, "receive", "peer", cause))
                }
            }?;
            used += discard;
            if let Some(state) = state {
                return Ok((used, state));
            }
        }
    }

    /// Encrypts `plain` (at most [`WRITE_BYTES`]) into `out`.
    pub(super) fn encrypt(&mut self, plain: &[u8], out: &mut Outbox) -> Result<(), Error> {
        loop {
            let done = match &mut self.0 {
                Side::Client(conn) => seal(conn.process_tls_records(&mut []), plain, out),
                Side::Server(conn) => seal(conn.process_tls_records(&mut []), plain, out),
                Side::Own(records) => match records.sealing() {
                    Some(sealing) => sealing.seal(plain, out).map(|()| true),
                    None => Err(Error::new(Code::TlsFailed, "send", "peer", "another thread sends")),
                },
            }?;
            if done {
                return Ok(());
            }
        }
    }

    fn peer_chain(&self) -> Vec<CertificateDer<'static>> {
        match &self.0 {
            Side::Client(conn) => tls_records::owned(conn.peer_certificates()),
            Side::Server(conn) => tls_records::owned(conn.peer_certificates()),
            Side::Own(records) => records.peer_chain(),
        }
    }

    /// Takes the keys out of rustls, which must have nothing left to send.
    fn into_own(self) -> Result<Self, Error> {
        let records = match self.0 {
            Side::Client(conn) => RecordLayer::of_client(conn).map(Box::new),
            Side::Server(conn) => RecordLayer::of_server(conn).map(Box::new),
            Side::Own(records) => Ok(records),
        };
        records.map(|records| Codec(Side::Own(records))).map_err(tls_failed)
    }
}

fn step<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    out: &mut Outbox,
    on_plain: &mut impl FnMut(&[u8]),
) -> Result<(usize, Option<State>), Error> {
    let mut discard = status.discard;
    let state = match status.state.map_err(tls_failed)? {
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                let record = record.map_err(tls_failed)?;
                discard += record.discard;
                on_plain(record.payload);
            }
            Some(State::Record)
        }
        ConnectionState::EncodeTlsData(encode) => {
            encode_into(encode, out)?;
            None
        }
        ConnectionState::TransmitTlsData(transmit) => {
            transmit.done();
            None
        }
        ConnectionState::BlockedHandshake => Some(State::Handshaking),
        ConnectionState::WriteTraffic(_) => Some(State::Ready),
        ConnectionState::PeerClosed | ConnectionState::Closed => Some(State::Closed),
        _ => return Err(Error::new(Code::TlsFailed, "handshake", "peer", "early data is not accepted")),
    };
    Ok((discard, state))
}

fn seal<Data>(status: UnbufferedStatus<'_, '_, Data>, plain: &[u8], out: &mut Outbox) -> Result<bool, Error> {
    match status.state.map_err(tls_failed)? {
        ConnectionState::WriteTraffic(mut traffic) => {
            let written = traffic.encrypt(plain, out.room());
            let written = written.map_err(|error| Error::new(Code::TlsFailed, "encrypt", "peer", error))?;
            out.advance(written);
            Ok(true)
        }
        ConnectionState::EncodeTlsData(encode) => encode_into(encode, out).map(|()| false),
        ConnectionState::TransmitTlsData(transmit) => {
            transmit.done();
            Ok(false)
        }
        _ => Err(Error::new(Code::ConnectionLost, "encrypt", "peer", "closed by the peer")),
    }
}

fn encode_into<Data>(mut encode: EncodeTlsData<'_, Data>, out: &mut Outbox) -> Result<(), Error> {
    let written = match encode.encode(out.room()) {
        Err(EncodeError::InsufficientSize(size)) => {
            out.reserve(size.required_size);
            encode.encode(out.room())
        }
        other => other,
    };
    let written = written.map_err(|error| Error::new(Code::TlsFailed, "handshake", "peer", error))?;
    out.advance(written);
    Ok(())
}

pub(super) fn tls_failed(error: rustls::Error) -> Error {
    let code = match &error {
        rustls::Error::InvalidMessage(_) => Code::NotRenkei,
        _ => Code::TlsFailed,
    };
    Error::new(code, "TLS", "peer", error)
}

/// Names the relay in the error of a record that was changed on a relayed connection.
pub fn changed_through(error: Error, through: Option<&SiteName>) -> Error {
    match through {
        Some(site) if error.code == Code::TlsFailed => {
            let cause = format!("the connection leads through {site}: {}", error.cause);
            Error { code: Code::ChangedOnTheWay, cause, ..error }
        }
        _ => error,
    }
}

/// Ciphertext to be sent.
pub(super) struct Outbox {
    bytes: Vec<u8>,
    used: usize,
    bound: WriteBound,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Outbox { bytes: vec![0; OUTBOX_BYTES], used: 0, bound: WriteBound::default() }
    }

    /// An empty one that grows if a handshake message needs it.
    pub(super) fn new_small() -> Self {
        Outbox { bytes: Vec::new(), used: 0, bound: WriteBound::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// The ciphertext to be sent.
    pub(super) fn queued(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    pub(super) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.used..]
    }

    fn reserve(&mut self, bytes: usize) {
        self.bytes.resize(self.used + bytes, 0);
    }

    pub(super) fn advance(&mut self, written: usize) {
        self.used += written;
    }

    /// Sends all of it.
    pub(super) fn flush(&mut self, sock: &TcpStream) -> Result<(), Error> {
        if self.used > 0 {
            let sent = self.bound.write_all(sock, &self.bytes[..self.used]);
            sent.map_err(|error| lost("send", &error))?;
            self.used = 0;
        }
        Ok(())
    }
}

/// Ciphertext received and not yet decrypted.
pub(super) struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    fn holding(received: &[u8]) -> Self {
        let mut bytes = vec![0; INBOX_BYTES];
        bytes[..received.len()].copy_from_slice(received);
        Inbox { bytes, start: 0, end: received.len() }
    }

    pub(super) fn filled(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.end]
    }

    pub(super) fn discard(&mut self, bytes: usize) {
        self.start += bytes;
    }

    /// Reads more from the socket; an error at its end.
    pub(super) fn fill(&mut self, mut sock: &TcpStream) -> Result<(), Error> {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        match sock.read(&mut self.bytes[self.end..]) {
            Ok(0) => Err(Error::new(Code::ConnectionLost, "receive", "peer", "closed by the peer")),
            Ok(count) => {
                self.end += count;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(lost("receive", &error)),
        }
    }
}

/// The error of a failed call on an established socket.
pub fn lost(op: &str, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => Error::new(Code::Stalled, op, "peer", "nothing happened in time"),
        io::ErrorKind::TimedOut => Error::new(Code::Stalled, op, "peer", error),
        _ => Error::new(Code::ConnectionLost, op, "peer", error),
    }
}

/// The sending half of a data stream.
pub struct TlsWriter {
    sock: Arc<TcpStream>,
    sealing: Sealing,
    outbox: Outbox,
}

impl TlsWriter {
    /// Sends all of `bytes`, after the queued data.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<(), Error> {
        for part in bytes.chunks(WRITE_BYTES) {
            self.sealing.seal(part, &mut self.outbox)?;
            self.outbox.flush(&self.sock)?;
        }
        Ok(())
    }

    /// Sends `bytes` together with what is written next.
    pub fn queue(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() + self.outbox.used > QUEUE_BYTES {
            return self.write_all(bytes);
        }
        if bytes.is_empty() { Ok(()) } else { self.sealing.seal(bytes, &mut self.outbox) }
    }
}

/// A TLS connection used by one thread at a time.
pub struct TlsStream {
    pub(super) sock: Arc<TcpStream>,
    pub(super) codec: Codec,
    pub(super) inbox: Inbox,
    pub(super) outbox: Outbox,
    pub(super) plain: Vec<u8>,
    pub(super) plain_start: usize,
    /// The part of the inbox that was decrypted in place and not consumed yet.
    opened: Range<usize>,
    deadline: Option<Instant>,
    /// The site whose PoP relays the connection, if known.
    pub(super) through: Option<SiteName>,
    /// How long the peer took in the handshake.
    pub(super) shook_in: Duration,
}

impl TlsStream {
    /// Performs the client side of the handshake on `sock` within `timeout`.
    pub fn connect(
        sock: TcpStream,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let conn = UnbufferedClientConnection::new(config, name).map_err(tls_failed)?;
        Self::shake(sock, Codec(Side::Client(conn)), &[], timeout)
    }

    /// Performs the server side of the handshake on `sock` within `timeout`; `received` was read from it already.
    pub fn accept(
        sock: TcpStream,
        config: Arc<ServerConfig>,
        received: &[u8],
        timeout: Duration,
    ) -> Result<Self, Error> {
        Self::shake(sock, Codec::server(config)?, received, timeout)
    }

    /// A connection after its handshake by `codec`: `received` is yet to be decrypted, after `plain`, which was.
    pub(super) fn greeted(
        sock: TcpStream,
        codec: Codec,
        received: &[u8],
        plain: Vec<u8>,
        shook_in: Duration,
    ) -> Self {
        TlsStream { plain, shook_in, ..Self::over(sock, codec, received) }
    }

    fn over(sock: TcpStream, codec: Codec, received: &[u8]) -> Self {
        TlsStream {
            sock: Arc::new(sock),
            codec,
            inbox: Inbox::holding(received),
            outbox: Outbox::new(),
            plain: Vec::new(),
            plain_start: 0,
            opened: 0..0,
            deadline: None,
            through: None,
            shook_in: Duration::ZERO,
        }
    }

    fn shake(sock: TcpStream, codec: Codec, received: &[u8], timeout: Duration) -> Result<Self, Error> {
        let mut stream = Self::over(sock, codec, received);
        stream.bear_silence(timeout)?;
        let _ = stream.sock.set_nodelay(true);
        let started = Instant::now();
        let deadline = started + timeout;
        while stream.handshake_step()? == State::Handshaking {
            stream.inbox.fill(&stream.sock)?;
            if Instant::now() > deadline {
                return Err(Error::new(Code::Stalled, "handshake", "peer", "not finished in time"));
            }
        }
        stream.shook_in = started.elapsed();
        Ok(stream)
    }

    fn handshake_step(&mut self) -> Result<State, Error> {
        let plain = &mut self.plain;
        let result =
            self.codec.process(self.inbox.filled(), &mut self.outbox, |bytes| plain.extend_from_slice(bytes));
        // An alert with the reason must be sent before the error is returned.
        let flushed = self.outbox.flush(&self.sock);
        let (used, state) = result?;
        flushed?;
        self.inbox.discard(used);
        Ok(state)
    }

    /// Sets the timeout of a read or write without progress.
    pub fn bear_silence(&self, timeout: Duration) -> Result<(), Error> {
        let set = self.sock.set_read_timeout(Some(timeout));
        set.and_then(|()| self.sock.set_write_timeout(Some(timeout)))
            .map_err(|error| lost("set timeout", &error))
    }

    /// Lets reads and writes block as long as the connection lives; the caller detects a dead peer by other means.
    pub fn bear_any_silence(&self) -> Result<(), Error> {
        let set = self.sock.set_read_timeout(None).and_then(|()| self.sock.set_write_timeout(None));
        set.map_err(|error| lost("set timeout", &error))
    }

    /// Hands the sending half to another thread; the stream keeps the receiving half. Only a stream with its own
    /// record layer has two halves, and only once.
    pub fn take_writer(&mut self) -> Result<TlsWriter, Error> {
        let sealing = match &mut self.codec.0 {
            Side::Own(records) => records.take_sealing(),
            _ => None,
        };
        let none = || Error::new(Code::TlsFailed, "send", "peer", "the connection has no half to give");
        let sealing = sealing.ok_or_else(none)?;
        let remaining = Outbox { bound: self.write_bound(), ..Outbox::new_small() };
        let outbox = std::mem::replace(&mut self.outbox, remaining);
        Ok(TlsWriter { sock: self.sock.clone(), sealing, outbox })
    }

    /// Sets the deadline by which all reads must complete, however often a little data arrives; `None` removes it.
    pub fn expect_by(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// Records that the connection is relayed by a site's PoP, to name it if a byte is changed on the way.
    pub fn leads_through(&mut self, site: Option<SiteName>) {
        self.through = site;
    }

    /// The RTT to the peer. On a relayed connection the kernel measures one hop alone; the handshake took a round
    /// trip over all hops, and a little more.
    pub fn round_trip(&self) -> Duration {
        let hop = super::socket::rtt(&self.sock);
        let passed_on = self.through.is_some() || self.shook_in > LONG_SHAKE.max(8 * hop);
        if passed_on { hop.max(self.shook_in) } else { hop }
    }

    /// The peer's certificate chain, leaf first.
    pub fn peer_chain(&self) -> Vec<CertificateDer<'static>> {
        self.codec.peer_chain()
    }

    /// The socket, to shut it down from elsewhere or for kernel metrics.
    pub fn socket(&self) -> Arc<TcpStream> {
        self.sock.clone()
    }

    /// The bound of its writes, also after its sending half was taken.
    pub fn write_bound(&self) -> WriteBound {
        self.outbox.bound.clone()
    }

    /// Sends all of `bytes`, after the queued data.
    pub fn write_all(&mut self, bytes: &[u8]) -> Result<(), Error> {
        for part in bytes.chunks(WRITE_BYTES) {
            self.codec.encrypt(part, &mut self.outbox)?;
            self.outbox.flush(&self.sock)?;
        }
        Ok(())
    }

    /// Sends `bytes` together with what is written next, or with the next [`TlsStream::flush`].
    pub fn queue(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() + self.outbox.used > QUEUE_BYTES {
            return self.write_all(bytes);
        }
        if bytes.is_empty() { Ok(()) } else { self.codec.encrypt(bytes, &mut self.outbox) }
    }

    /// Sends the queued data.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.outbox.flush(&self.sock)
    }

    /// Switches to the stream's own record layer, as data streams do; data received before is kept. Idempotent.
    ///
    /// # Errors
    /// `TlsFailed` if the configuration keeps its keys.
    pub fn with_own_records(mut self) -> Result<Self, Error> {
        if matches!(self.codec.0, Side::Own(_)) {
            return Ok(self);
        }
        // Pending output of rustls, session tickets, is sent first.
        while self.handshake_step()? == State::Record {}
        // From here on the inbox holds complete or partial records that were not decrypted.
        let codec = self.codec.into_own()?;
        Ok(TlsStream { codec, ..self })
    }

    /// Changes the sending key after so many records, if the cipher suite does not require it sooner; only on a
    /// stream with its own record layer.
    pub fn renew_key_after(&mut self, records: u64) {
        if let Side::Own(own) = &mut self.codec.0
            && let Some(sealing) = own.sealing()
        {
            sealing.renew_key_after(records);
        }
    }

    /// Fills `target`.
    pub fn read_exact(&mut self, target: &mut [u8]) -> Result<(), Error> {
        match self.codec.0 {
            Side::Own(_) => self.read_own(target, target.len()),
            _ => self.read_through(target),
        }
    }

    /// Fills `target` except its last byte, which is clobbered: records that end there can be decrypted in place,
    /// with the type byte that follows their content.
    pub fn read_exact_before_last(&mut self, target: &mut [u8]) -> Result<(), Error> {
        let wanted = target.len().saturating_sub(1);
        match self.codec.0 {
            Side::Own(_) => self.read_own(target, wanted),
            _ => self.read_through(&mut target[..wanted]),
        }
    }

    /// Fills the first `wanted` bytes of `target`, which has one more at most.
    fn read_own(&mut self, target: &mut [u8], wanted: usize) -> Result<(), Error> {
        let mut done = self.take_plain(&mut target[..wanted]);
        while done < wanted {
            done += self.take_opened(&mut target[done..wanted]);
            if done < wanted {
                done += self.open_record(&mut target[done..])?;
            }
        }
        Ok(())
    }

    fn take_opened(&mut self, target: &mut [u8]) -> usize {
        let count = self.opened.len().min(target.len());
        let from = self.opened.start..self.opened.start + count;
        target[..count].copy_from_slice(&self.inbox.bytes[from]);
        self.opened.start += count;
        count
    }

    /// Decrypts the next record: into `target` if it fits, else in the inbox. Returns the number of bytes in
    /// `target`.
    fn open_record(&mut self, target: &mut [u8]) -> Result<usize, Error> {
        let bytes = self.await_record()?;
        let Side::Own(own) = &mut self.codec.0 else { return Ok(0) };
        let record = &mut self.inbox.bytes[self.inbox.start..self.inbox.start + bytes];
        let goes_to_target = inner_bytes(bytes) <= target.len();
        let meaning = if goes_to_target { own.open_into(record, target) } else { own.open(record) };
        let start = self.inbox.start + tls_records::HEAD_BYTES;
        self.inbox.discard(bytes);
        match meaning.map_err(|error| self.give_up(error))? {
            Meaning::Content(count) if goes_to_target => Ok(count),
            Meaning::Content(count) => {
                self.opened = start..start + count;
                Ok(0)
            }
            Meaning::Nothing => Ok(0),
            Meaning::Closed => Err(Error::new(Code::ConnectionLost, "receive", "peer", "closed by the peer")),
        }
    }

    /// Waits until the next record is complete, and returns its length.
    fn await_record(&mut self) -> Result<usize, Error> {
        loop {
            if let Some(bytes) = record_bytes(self.inbox.filled()).map_err(|error| self.give_up(error))? {
                return Ok(bytes);
            }
            self.fill()?;
        }
    }

    /// Sends the peer, if it still reads, an alert for its invalid record.
    fn give_up(&mut self, error: rustls::Error) -> Error {
        if let Side::Own(own) = &mut self.codec.0
            && let Some(sealing) = own.sealing()
            && sealing.seal_alert(tls_records::alert_of(&error), &mut self.outbox).is_ok()
        {
            let _ = self.outbox.flush(&self.sock);
        }
        changed_through(tls_failed(error), self.through.as_ref())
    }

    fn read_through(&mut self, mut target: &mut [u8]) -> Result<(), Error> {
        while !target.is_empty() {
            let count = self.take_plain(target);
            target = &mut target[count..];
            if !target.is_empty() {
                let count = self.read_record(target)?;
                target = &mut target[count..];
            }
        }
        Ok(())
    }

    fn take_plain(&mut self, target: &mut [u8]) -> usize {
        let have = &self.plain[self.plain_start..];
        let count = have.len().min(target.len());
        target[..count].copy_from_slice(&have[..count]);
        self.plain_start += count;
        if self.plain_start == self.plain.len() {
            self.plain.clear();
            self.plain_start = 0;
        }
        count
    }

    /// Decrypts the next record: as much as fits into `target`, the rest is kept.
    fn read_record(&mut self, target: &mut [u8]) -> Result<usize, Error> {
        let mut taken = 0;
        let kept = &mut self.plain;
        let processed = self.codec.process(self.inbox.filled(), &mut self.outbox, |bytes| {
            let count = bytes.len().min(target.len() - taken);
            target[taken..taken + count].copy_from_slice(&bytes[..count]);
            kept.extend_from_slice(&bytes[count..]);
            taken += count;
        });
        let (used, state) = processed.map_err(|error| changed_through(error, self.through.as_ref()))?;
        self.inbox.discard(used);
        self.outbox.flush(&self.sock)?;
        match state {
            State::Record => Ok(taken),
            State::Closed => Err(Error::new(Code::ConnectionLost, "receive", "peer", "closed by the peer")),
            State::Ready | State::Handshaking => self.fill().map(|()| 0),
        }
    }

    fn fill(&mut self) -> Result<(), Error> {
        if self.deadline.is_some_and(|until| Instant::now() > until) {
            return Err(Error::new(Code::Stalled, "receive", "peer", "not all of it came in time"));
        }
        self.inbox.fill(&self.sock)
    }

    /// Shuts down both directions; threads blocked on the socket return.
    pub fn shutdown(&self) {
        let _ = self.sock.shutdown(Shutdown::Both);
    }
}
