//! A connection to a web server for files: HTTP/1.1 over TLS, one request at a time, bodies piece by piece.
//!
//! Calls block; the connection itself is driven by a runtime that the caller gives, so that bytes arrive while the caller
//! writes those before. Each wait has a timeout and ends when the caller's [`Cancel`] says so. Redirects are not followed,
//! and addresses are not looked up here: both are the caller's to judge.

use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::ext::on_informational;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use renkei_core::error::{Code, Error};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_rustls::TlsConnector;

/// Pieces of a body that wait to be sent.
const AHEAD: usize = 2;
/// How long a server may take to answer `Expect: 100-continue`; then the body is sent all the same (RFC 9110, 10.1.1).
const CONTINUE_WITHIN: Duration = Duration::from_secs(5);
/// How long a server that closed its side of a body may take to say why.
const REASON_WITHIN: Duration = Duration::from_secs(5);

/// Ends all waits of the connections that have it.
#[derive(Clone)]
pub struct Cancel(watch::Sender<Option<Error>>);

impl Default for Cancel {
    fn default() -> Self {
        Cancel(watch::Sender::new(None))
    }
}

impl Cancel {
    /// Ends the waits, with a reason.
    pub fn cancel(&self, error: Error) {
        self.0.send_replace(Some(error));
    }

    async fn cancelled(&self) -> Error {
        let mut receiver = self.0.subscribe();
        let seen = receiver.wait_for(Option::is_some).await;
        let error = seen.ok().and_then(|seen| seen.clone());
        error.unwrap_or_else(|| Error::new(Code::Cancelled, "wait", "", ""))
    }
}

/// The server of a connection, and how long each step may take.
#[derive(Clone)]
pub struct WebServer {
    /// Its name or address, for the certificate.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The address to connect to.
    pub address: SocketAddr,
    /// The trusted authorities.
    pub tls: Arc<ClientConfig>,
    /// Timeout of the beginning of an answer.
    pub first_byte: Duration,
    /// Timeout of each piece of a body.
    pub stall: Duration,
}

/// A connection.
pub struct WebConnection {
    runtime: Handle,
    cancel: Cancel,
    server: WebServer,
    local: SocketAddr,
    sender: SendRequest<Outgoing>,
    body: Option<Incoming>,
}

impl WebConnection {
    /// Connects.
    ///
    /// # Errors
    /// `PeerDown`, `PortClosed`, `TlsFailed`; those of the cancellation.
    pub fn open(server: WebServer, runtime: Handle, cancel: Cancel) -> Result<Self, Error> {
        let connected = runtime.block_on(async {
            tokio::select! {
                connected = connect(&server) => connected,
                error = cancel.cancelled() => Err(error),
            }
        });
        let (sender, local) = connected?;
        Ok(WebConnection { runtime, cancel, server, local, sender, body: None })
    }

    /// The address on this side.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The server.
    pub fn server(&self) -> &WebServer {
        &self.server
    }

    /// Whether another request can be made: the body before was read to its end, and the server keeps the connection.
    pub fn is_reusable(&self) -> bool {
        self.body.is_none() && !self.sender.is_closed()
    }

    /// Makes a request without a body; the body of the response is then read by [`WebConnection::next_piece`].
    ///
    /// # Errors
    /// `ConnectionLost`, `Stalled`; those of the cancellation.
    pub fn ask(&mut self, request: Request<()>) -> Result<Response<()>, Error> {
        let asked = self.sender.send_request(request.map(|()| Outgoing::nothing()));
        let within = self.server.first_byte;
        let response = wait(&self.runtime, &self.cancel, &self.server, ("answer", within), asked)?;
        Ok(self.keep(response.map_err(|error| lost(&self.server, &error))?))
    }

    /// Makes a request with a body of a known length, whose pieces `next` gives. A server that answers before the end
    /// gets no more of it.
    ///
    /// # Errors
    /// As [`WebConnection::ask`], and those of `next`.
    pub fn send(
        &mut self,
        request: Request<()>,
        bytes: u64,
        next: &mut dyn FnMut() -> Result<Option<Bytes>, Error>,
    ) -> Result<Response<()>, Error> {
        let (pieces, body) = mpsc::channel(AHEAD);
        let mut request = request.map(|()| Outgoing { pieces: Some(body), left: bytes });
        let goes = continued(&mut request);
        let mut answered = Box::pin(self.sender.send_request(request));
        let mut early = self.runtime.block_on(async {
            tokio::select! {
                answered = answered.as_mut() => Some(answered),
                _ = goes => None,
                () = tokio::time::sleep(CONTINUE_WITHIN) => None,
                _ = self.cancel.cancelled() => None,
            }
        });
        while early.is_none() {
            let Some(piece) = next()? else { break };
            let pushed = async {
                tokio::select! {
                    answered = answered.as_mut() => Pushed::Answered(answered),
                    sent = pieces.send(piece) => if sent.is_ok() { Pushed::Sent } else { Pushed::Lost },
                }
            };
            match wait(
                &self.runtime,
                &self.cancel,
                &self.server,
                ("room for data", self.server.stall),
                pushed,
            )? {
                Pushed::Sent => {}
                Pushed::Answered(answered) => early = Some(answered),
                // The connection ended; the answer may say why.
                Pushed::Lost => break,
            }
        }
        let within = if pieces.is_closed() { REASON_WITHIN } else { self.server.first_byte };
        drop(pieces);
        let answered = match early {
            Some(answered) => answered,
            None => wait(&self.runtime, &self.cancel, &self.server, ("answer", within), answered)?,
        };
        Ok(self.keep(answered.map_err(|error| lost(&self.server, &error))?))
    }

    fn keep(&mut self, response: Response<Incoming>) -> Response<()> {
        let (head, body) = response.into_parts();
        self.body = Some(body).filter(|body| !body.is_end_stream());
        Response::from_parts(head, ())
    }

    /// The next piece of the body; none at its end.
    ///
    /// # Errors
    /// As [`WebConnection::ask`].
    pub fn next_piece(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let Some(body) = &mut self.body else { return Ok(None) };
            let piece = poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
            let within = self.server.stall;
            let piece = wait(&self.runtime, &self.cancel, &self.server, ("data", within), piece)?;
            match piece.transpose().map_err(|error| lost(&self.server, &error))?.map(Frame::into_data) {
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => return Ok(Some(data)),
                // Trailers.
                Some(Err(_)) => {}
                None => self.body = None,
            }
        }
    }
}

/// What became of a piece of a body.
enum Pushed {
    Sent,
    Answered(hyper::Result<Response<Incoming>>),
    Lost,
}

/// Receives a message when the server answers `100 Continue`.
fn continued(request: &mut Request<Outgoing>) -> oneshot::Receiver<()> {
    let (go, goes) = oneshot::channel();
    let go = Mutex::new(Some(go));
    on_informational(request, move |response| {
        let go = go.lock().ok().and_then(|mut go| go.take_if(|_| response.status() == StatusCode::CONTINUE));
        if let Some(go) = go {
            let _ = go.send(());
        }
    });
    goes
}

async fn connect(server: &WebServer) -> Result<(SendRequest<Outgoing>, SocketAddr), Error> {
    let failed = |code, cause: &dyn std::fmt::Display| Error::new(code, "connect", subject(server), cause);
    let sock = tokio::time::timeout(super::CONNECT_TIMEOUT, TcpStream::connect(server.address)).await;
    let sock = sock.map_err(|_| failed(Code::PeerDown, &"no answer within 15 s"))?;
    let sock = sock.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => failed(Code::PortClosed, &error),
        _ => failed(Code::PeerDown, &error),
    })?;
    let _ = sock.set_nodelay(true);
    let local = sock.local_addr().map_err(|error| failed(Code::PeerDown, &error))?;
    let tls_failed = |cause: &dyn std::fmt::Display| failed(Code::TlsFailed, cause);
    let name = ServerName::try_from(server.host.clone()).map_err(|error| tls_failed(&error))?;
    let shaken = TlsConnector::from(server.tls.clone()).connect(name, sock);
    let shaken = tokio::time::timeout(super::CONNECT_TIMEOUT, shaken).await;
    let stream = shaken.map_err(|_| tls_failed(&"not finished within 15 s"))?;
    let stream = stream.map_err(|error| tls_failed(&error))?;
    // XRootD knows the names of headers in this case alone.
    let handshake = http1::Builder::new().title_case_headers(true).handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(|error| failed(Code::ConnectionLost, &error))?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to a web server ended");
        }
    });
    Ok((sender, local))
}

/// Waits for something, but no longer than it may take, and until the cancellation.
fn wait<T>(
    runtime: &Handle,
    cancel: &Cancel,
    server: &WebServer,
    (what, within): (&str, Duration),
    awaited: impl Future<Output = T>,
) -> Result<T, Error> {
    runtime.block_on(async {
        tokio::select! {
            biased;
            error = cancel.cancelled() => Err(error),
            done = awaited => Ok(done),
            () = tokio::time::sleep(within) => {
                let cause = format!("no {what} within {} s", within.as_secs());
                Err(Error::new(Code::Stalled, "wait", subject(server), cause))
            }
        }
    })
}

fn subject(server: &WebServer) -> String {
    match server.host.contains(':') {
        true => format!("[{}]:{}", server.host, server.port),
        false => format!("{}:{}", server.host, server.port),
    }
}

fn lost(server: &WebServer, error: &hyper::Error) -> Error {
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    let cause = causes.map(ToString::to_string).collect::<Vec<_>>().join(": ");
    Error::new(Code::ConnectionLost, "talk", subject(server), cause)
}

/// The body of a request: nothing, or pieces of a known length in all.
struct Outgoing {
    pieces: Option<mpsc::Receiver<Bytes>>,
    left: u64,
}

impl Outgoing {
    fn nothing() -> Self {
        Outgoing { pieces: None, left: 0 }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let Some(pieces) = &mut self.pieces else { return Poll::Ready(None) };
        let Poll::Ready(piece) = pieces.poll_recv(context) else { return Poll::Pending };
        match piece {
            Some(piece) => {
                self.left = self.left.saturating_sub(piece.len() as u64);
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            None if self.left == 0 => Poll::Ready(None),
            // The caller gave up: the server must not take this for the end.
            None => Poll::Ready(Some(Err(io::Error::other("the rest of the content is not sent")))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
