//! The TLS handshake and the first message of an accepted connection, in a task.
//!
//! The peer is not authenticated yet, so it costs little: no thread, and buffers as large as the data it sent. When
//! the first frame is complete the connection becomes a [`TlsStream`] with nothing lost. The caller sets the timeout
//! of all this.

use super::CONNECT_TIMEOUT;
use super::tls::{Codec, Outbox, State, TlsStream, lost};
use renkei_core::error::{Code, Error};
use renkei_core::wire::frame::{self, FrameKind, HEAD_BYTES};
use rustls::ServerConfig;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Largest first frame: a greeting or a ticket.
pub const MAX_FIRST_BYTES: usize = 4096;
/// Most padding before it, in one frame or several: data streams send it to open their congestion window.
const MAX_PADDING_BYTES: usize = 64 << 10;
/// Most undecrypted ciphertext: a handshake message with the longest certificate chain that rustls accepts.
const MAX_RECEIVED_BYTES: usize = 128 << 10;
/// Bytes read with one call.
const READ_BYTES: usize = 4 << 10;

/// An accepted connection whose handshake is done.
pub struct AcceptedPeer {
    /// The connection.
    pub stream: TlsStream,
    /// The peer's first frame, or the error to report to the peer.
    pub first: Result<Frame, Error>,
}

/// A frame's kind and content.
pub type Frame = (FrameKind, Vec<u8>);

/// A handshake in progress.
struct Handshake {
    sock: TcpStream,
    codec: Codec,
    received: Vec<u8>,
    plain: Vec<u8>,
    padding_left: usize,
}

/// Performs the handshake with the peer on `sock` and waits for its first frame; `received` was read before.
///
/// # Errors
/// The error of the handshake, which the peer has been sent as a TLS alert where TLS has one.
pub async fn greet(
    sock: TcpStream,
    config: Arc<ServerConfig>,
    received: Vec<u8>,
) -> Result<AcceptedPeer, Error> {
    let _ = sock.set_nodelay(true);
    let codec = Codec::server(config)?;
    let mut greeting =
        Handshake { sock, codec, received, plain: Vec::new(), padding_left: MAX_PADDING_BYTES };
    let started = Instant::now();
    let mut shook_in = None;
    loop {
        let state = greeting.step().await?;
        if state != State::Handshaking && shook_in.is_none() {
            shook_in = Some(started.elapsed());
        }
        let first = greeting.take_first().transpose();
        match (first, shook_in) {
            (Some(first), Some(shook_in)) => return greeting.into_stream(shook_in, first),
            _ if state == State::Closed => {
                return Err(Error::new(Code::ConnectionLost, "greet", "peer", "closed by the peer"));
            }
            _ if state == State::Record => {}
            _ => greeting.read().await?,
        }
    }
}

impl Handshake {
    /// Decrypts received data, one record at most, and sends the replies.
    async fn step(&mut self) -> Result<State, Error> {
        let (plain, mut outbox) = (&mut self.plain, Outbox::new_small());
        let result =
            self.codec.process(&mut self.received, &mut outbox, |bytes| plain.extend_from_slice(bytes));
        // An alert with the reason must be sent before the error is returned.
        let sent = self.sock.write_all(outbox.queued()).await;
        let (used, state) = result?;
        sent.map_err(|error| lost("send", &error))?;
        self.received.drain(..used);
        Ok(state)
    }

    async fn read(&mut self) -> Result<(), Error> {
        if self.received.len() > MAX_RECEIVED_BYTES {
            let cause = format!("{} bytes that are no whole message", self.received.len());
            return Err(Error::new(Code::FrameTooLarge, "handshake", "peer", cause));
        }
        self.received.reserve(READ_BYTES);
        match self.sock.read_buf(&mut self.received).await {
            Ok(0) => Err(Error::new(Code::ConnectionLost, "receive", "peer", "closed by the peer")),
            Ok(_) => Ok(()),
            Err(error) => Err(lost("receive", &error)),
        }
    }

    /// The first frame that is not padding, if complete; padding before it is discarded.
    fn take_first(&mut self) -> Result<Option<Frame>, Error> {
        while let Some((head, rest)) = self.plain.split_first_chunk::<HEAD_BYTES>() {
            let head = frame::parse_head(*head)?;
            let most = if head.kind.is_some() { MAX_FIRST_BYTES } else { self.padding_left };
            if head.payload_bytes > most {
                let cause = format!("{} bytes", head.payload_bytes);
                return Err(Error::new(Code::FrameTooLarge, "greet", "peer", cause));
            }
            let Some(payload) = rest.get(..head.payload_bytes) else { return Ok(None) };
            let payload = payload.to_vec();
            self.plain.drain(..HEAD_BYTES + payload.len());
            match head.kind {
                Some(kind) => return Ok(Some((kind, payload))),
                None => self.padding_left -= payload.len(),
            }
        }
        Ok(None)
    }

    fn into_stream(self, shook_in: Duration, first: Result<Frame, Error>) -> Result<AcceptedPeer, Error> {
        let sock = self.sock.into_std().and_then(|sock| sock.set_nonblocking(false).map(|()| sock));
        let sock = sock.map_err(|error| lost("take over", &error))?;
        let stream = TlsStream::greeted(sock, self.codec, &self.received, self.plain, shook_in);
        stream.bear_silence(CONNECT_TIMEOUT)?;
        Ok(AcceptedPeer { stream, first })
    }
}
