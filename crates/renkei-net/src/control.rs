//! The control stream: full-duplex messages over one TLS connection.
//!
//! One thread receives, any thread sends. The TLS state is locked only to encrypt or decrypt, never while the socket
//! blocks, so two peers that both send much cannot deadlock.

use super::tls::{Codec, Inbox, Outbox, State, TlsStream, WRITE_BYTES, changed_through};
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::wire::frame::{self, FrameKind, HEAD_BYTES};
use renkei_core::wire::message::Control;
use renkei_core::wire::{WireVersion, decode, encode};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// Interval of keep-alive pings on a quiet control stream.
const PING_EVERY: Duration = Duration::from_secs(5);

/// The sending half, shared by all threads of a session.
pub struct ControlSender {
    sock: Arc<TcpStream>,
    codec: Mutex<Codec>,
    outbox: Mutex<Outbox>,
    agreed: OnceLock<WireVersion>,
}

/// The receiving half.
pub struct ControlReceiver {
    link: Arc<ControlSender>,
    inbox: Inbox,
    plain: Vec<u8>,
    plain_start: usize,
    heard: Instant,
    pinged: Instant,
    silence: Duration,
    through: Option<SiteName>,
    round_trip: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds a lock: a panic aborts")
}

/// Splits a connection whose first frames were exchanged; `silence` is the silence timeout of the peer.
pub fn split(stream: TlsStream, silence: Duration) -> Result<(Arc<ControlSender>, ControlReceiver), Error> {
    stream.bear_silence(silence)?;
    let round_trip = stream.round_trip();
    let tick = PING_EVERY.min(silence / 3).max(Duration::from_millis(10));
    let timeout = stream.sock.set_read_timeout(Some(tick));
    timeout.map_err(|error| super::tls::lost("set timeout", &error))?;
    let link = Arc::new(ControlSender {
        sock: stream.sock,
        codec: Mutex::new(stream.codec),
        outbox: Mutex::new(stream.outbox),
        agreed: OnceLock::new(),
    });
    let receiver = ControlReceiver {
        link: link.clone(),
        inbox: stream.inbox,
        plain: stream.plain,
        plain_start: stream.plain_start,
        heard: Instant::now(),
        pinged: Instant::now(),
        silence,
        through: stream.through,
        round_trip,
    };
    Ok((link, receiver))
}

impl ControlSender {
    /// Sends one message.
    pub fn send(&self, message: &Control) -> Result<(), Error> {
        self.send_frame(FrameKind::Control, &encode(message))
    }

    /// Sends a message that the peer skips if it does not speak the newest version.
    pub fn send_early(&self, message: &Control) -> Result<(), Error> {
        self.send_frame(FrameKind::Early, &encode(message))
    }

    /// Sends a refusal, which ends the session.
    pub fn refuse(&self, error: &Error) {
        let _ = self.send_frame(FrameKind::Refusal, &encode(error));
    }

    fn send_frame(&self, kind: FrameKind, payload: &[u8]) -> Result<(), Error> {
        if payload.len() > frame::MAX_PAYLOAD_BYTES {
            let cause = format!("a message of {} bytes", payload.len());
            return Err(Error::new(Code::FrameTooLarge, "send", "peer", cause));
        }
        let mut bytes = Vec::with_capacity(HEAD_BYTES + payload.len());
        frame::push(&mut bytes, kind, payload);
        let mut outbox = lock(&self.outbox);
        for part in bytes.chunks(WRITE_BYTES) {
            lock(&self.codec).encrypt(part, &mut outbox)?;
            outbox.flush(&self.sock)?;
        }
        Ok(())
    }

    /// Sets the version of the wire that both sides agreed on in their greetings.
    pub fn agree(&self, version: WireVersion) {
        let _ = self.agreed.set(version);
    }

    /// The version of the wire of this session; the oldest one before the greetings.
    pub fn version(&self) -> WireVersion {
        self.agreed.get().copied().unwrap_or(WireVersion::OLDEST)
    }

    /// Shuts down both directions; threads blocked on the socket return.
    pub fn shutdown(&self) {
        let _ = self.sock.shutdown(Shutdown::Both);
    }

    /// The socket, for kernel metrics.
    pub fn socket(&self) -> &TcpStream {
        &self.sock
    }
}

impl ControlReceiver {
    /// The sending half.
    pub fn sender(&self) -> Arc<ControlSender> {
        self.link.clone()
    }

    /// The RTT to the peer when the connection was made.
    pub fn round_trip(&self) -> Duration {
        self.round_trip
    }

    /// Changes the silence timeout of the peer.
    pub fn bear_silence(&mut self, silence: Duration) -> Result<(), Error> {
        self.silence = silence;
        let tick = PING_EVERY.min(silence / 3).max(Duration::from_millis(10));
        let timeout = self.link.sock.set_read_timeout(Some(tick));
        timeout.map_err(|error| super::tls::lost("set timeout", &error))
    }

    /// Waits for the next message; pings are answered here.
    ///
    /// # Errors
    /// `Stalled` after the silence timeout, `ConnectionLost` when the stream ended; the error of the peer's refusal.
    pub fn recv(&mut self) -> Result<Control, Error> {
        loop {
            match self.recv_frame()? {
                (FrameKind::Control | FrameKind::Early, payload) => {
                    match decode("control message", &payload)? {
                        Control::Ping(n) => self.link.send(&Control::Pong(n))?,
                        Control::Pong(_) => {}
                        message => return Ok(message),
                    }
                }
                (FrameKind::Refusal, payload) => return Err(decode("refusal", &payload)?),
                (kind, _) => {
                    return Err(renkei_core::wire::violation("control stream", format_args!("{kind:?}")));
                }
            }
        }
    }

    fn recv_frame(&mut self) -> Result<(FrameKind, Vec<u8>), Error> {
        loop {
            let mut head = [0; HEAD_BYTES];
            self.read_exact(&mut head)?;
            let head = frame::parse_head(head)?;
            let mut payload = vec![0; head.payload_bytes];
            self.read_exact(&mut payload)?;
            if let Some(kind) = head.kind {
                return Ok((kind, payload));
            }
        }
    }

    fn read_exact(&mut self, target: &mut [u8]) -> Result<(), Error> {
        while self.plain.len() - self.plain_start < target.len() {
            self.read_record()?;
        }
        let end = self.plain_start + target.len();
        target.copy_from_slice(&self.plain[self.plain_start..end]);
        self.plain_start = end;
        if self.plain_start == self.plain.len() {
            self.plain.clear();
            self.plain_start = 0;
        }
        Ok(())
    }

    fn read_record(&mut self) -> Result<(), Error> {
        // Otherwise a peer whose records never end with a frame would make this buffer grow for ever.
        self.plain.drain(..std::mem::take(&mut self.plain_start));
        let plain = &mut self.plain;
        let mut replies = Outbox::new_small();
        let processed = lock(&self.link.codec)
            .process(self.inbox.filled(), &mut replies, |bytes| plain.extend_from_slice(bytes));
        let (used, state) = processed.map_err(|error| changed_through(error, self.through.as_ref()))?;
        self.inbox.discard(used);
        if !replies.is_empty() {
            let _order = lock(&self.link.outbox);
            replies.flush(&self.link.sock)?;
        }
        match state {
            State::Record => Ok(()),
            State::Closed => Err(Error::new(Code::ConnectionLost, "receive", "peer", "closed by the peer")),
            State::Ready | State::Handshaking => self.fill(),
        }
    }

    fn fill(&mut self) -> Result<(), Error> {
        match self.inbox.fill(&self.link.sock) {
            Ok(()) => self.heard = Instant::now(),
            Err(error) if error.code == Code::Stalled => self.check_silence(error)?,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn check_silence(&mut self, error: Error) -> Result<(), Error> {
        let quiet = self.heard.elapsed();
        if quiet >= self.silence {
            let cause = format!("nothing heard for {} s", quiet.as_secs());
            return Err(Error { cause, ..error });
        }
        if self.pinged.elapsed() >= PING_EVERY.min(self.silence / 3) {
            self.pinged = Instant::now();
            self.link.send(&Control::Ping(quiet.as_millis() as u64))?;
        }
        Ok(())
    }
}
