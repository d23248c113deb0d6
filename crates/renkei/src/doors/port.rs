//! The one port: reads the client's first TLS message, and hands the connection to the door it asks for.
//!
//! Each connection has a task until it has said what it wants; `renkei/1` connections then get an OS thread of their own,
//! HTTP ones stay a task. A connection that begins with a preface is a circuit, for the site to deal with. Whoever sends
//! no TLS gets one line of plain text that says so. A peer that dawdles is dropped, the sooner the more of them there
//! are (`strangers`). The tasks here wait for no disk: a file system that hangs must not keep connections out.

use super::strangers::{Seat, Strangers};
use super::{http, renkei};
use crate::net::handshake;
use crate::net::tls::changed_through;
use crate::site::{Counters, Site};
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::wire::ALPN;
use renkei_core::wire::circuit::{self, PREFACE_BYTES};
use renkei_core::wire::data::Ticket;
use rustls::server::Acceptor;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// How long a peer may take for its first message.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// How long it may then take to shake hands and say what it wants, where nobody else needs the place.
const GREETED_WITHIN: Duration = Duration::from_secs(15);
/// Largest first message; a ClientHello with post-quantum keys is about 2 KB.
const MAX_HELLO_BYTES: usize = 16 << 10;
/// First byte of every TLS handshake record (RFC 8446, section 5.1).
const TLS_HANDSHAKE: u8 = 22;
/// How long an address may stay in use: a PoP that was killed has its port until the kernel has ended it.
const FREED_WITHIN: Duration = Duration::from_secs(1);
/// How often it is tried meanwhile.
const TRY_EVERY: Duration = Duration::from_millis(20);

/// Listens on `address`; one that is in use is waited for, about a second.
///
/// # Errors
/// `AddressInUse`, or `SystemCall` with the cause.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    listen_within(address, FREED_WITHIN).await
}

async fn listen_within(address: SocketAddr, within: Duration) -> Result<TcpListener, Error> {
    let deadline = Instant::now() + within;
    loop {
        let error = match TcpListener::bind(address).await {
            Ok(listener) => return Ok(listener),
            Err(error) => error,
        };
        let is_in_use = error.kind() == std::io::ErrorKind::AddrInUse;
        if !is_in_use || Instant::now() >= deadline {
            let code = if is_in_use { Code::AddressInUse } else { Code::SystemCall };
            return Err(Error::new(code, "listen", address, error));
        }
        tokio::time::sleep(TRY_EVERY).await;
    }
}

/// Where connections come in: by the listener, or because this PoP dialled when it was called.
#[derive(Clone)]
pub struct Door {
    site: Arc<Site>,
    strangers: Strangers,
    runtime: Handle,
}

/// A connection and where it comes from.
struct Caller {
    sock: TcpStream,
    peer: SocketAddr,
    /// The site whose PoP called this one for it.
    through: Option<SiteName>,
}

impl Door {
    /// The door of a PoP, on the runtime that this is called on.
    pub fn new(site: &Arc<Site>) -> Self {
        Door { site: site.clone(), strangers: Strangers::new(), runtime: Handle::current() }
    }

    /// The PoP.
    pub fn site(&self) -> &Arc<Site> {
        &self.site
    }

    /// Accepts connections until the task is dropped.
    pub async fn accept(self, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((sock, peer)) => self.let_in(Caller { sock, peer, through: None }),
                Err(error) => {
                    // Out of descriptors, mostly: others must end before the next can come.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Serves a connection that was dialled here because the PoP of `through` called, as if it had come to the port.
    pub fn adopt(&self, sock: std::net::TcpStream, peer: SocketAddr, through: SiteName) {
        let door = self.clone();
        drop(self.runtime.spawn(async move {
            let sock = sock.set_nonblocking(true).and_then(|()| TcpStream::from_std(sock));
            match sock {
                Ok(sock) => door.let_in(Caller { sock, peer, through: Some(through) }),
                Err(error) => tracing::warn!(%peer, %error, "cannot take a connection over"),
            }
        }));
    }

    fn let_in(&self, caller: Caller) {
        let seat = self.strangers.let_in(caller.peer.ip());
        self.site.counters.over_share_total.store(self.strangers.ended(), Ordering::Relaxed);
        // The task has its seat when it is known how to end it.
        let (give, take) = oneshot::channel();
        let site = self.site.clone();
        let task = self.runtime.spawn(async move {
            if let Ok(seat) = take.await {
                greet(caller, site, seat).await;
            }
        });
        seat.end_by(move || task.abort());
        drop(give.send(seat));
    }
}

async fn greet(mut caller: Caller, site: Arc<Site>, seat: Seat) {
    let (peer, sock) = (caller.peer, &mut caller.sock);
    let hello = tokio::time::timeout(HELLO_WITHIN, read_first(sock)).await;
    match hello {
        Ok(Ok(Some(First::Hello(hello)))) => dispatch(caller, hello, site, seat).await,
        Ok(Ok(Some(First::Circuit(ticket, rest)))) => pass(caller, ticket, rest, &site, seat),
        Ok(Ok(None)) => {}
        Ok(Err(error)) => {
            Counters::add(&site.counters.refused_total, 1);
            tracing::info!(%peer, %error, "refused");
            if error.code == Code::NotRenkei {
                let _ = sock.write_all(PLAIN_ANSWER.as_bytes()).await;
            }
        }
        Err(_) => {
            Counters::add(&site.counters.refused_total, 1);
            tracing::info!(%peer, "dropped: no TLS handshake within 10 s");
        }
    }
}

/// What a peer without TLS is told; a browser shows the last line.
const PLAIN_ANSWER: &str = "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n\
     RK-WIRE-5: this port speaks TLS only: use https:// or renkei\r\n";

/// The first bytes of a connection and what they ask for.
struct ClientHello {
    bytes: Vec<u8>,
    renkei: bool,
}

/// How a connection begins.
enum First {
    /// With TLS.
    Hello(ClientHello),
    /// With the preface of a circuit; what came after it.
    Circuit(Ticket, Vec<u8>),
}

/// Reads until the first message is whole; `None` if the peer left without a word, as port checks do.
async fn read_first(sock: &mut TcpStream) -> Result<Option<First>, Error> {
    let mut bytes = Vec::with_capacity(4096);
    let mut acceptor = Acceptor::default();
    loop {
        let start = bytes.len();
        let count = sock.read_buf(&mut bytes).await;
        let count = count.map_err(|error| crate::net::tls::lost("receive", &error))?;
        if count == 0 {
            return Ok(None);
        }
        if circuit::is_preface(bytes[0]) {
            match circuit::parse(&bytes).map_err(not_renkei)? {
                Some(ticket) => return Ok(Some(First::Circuit(ticket, bytes.split_off(PREFACE_BYTES)))),
                None => continue,
            }
        }
        if bytes[0] != TLS_HANDSHAKE {
            return Err(Error::new(Code::NotRenkei, "handshake", "peer", "it sent something other than TLS"));
        }
        let mut fresh = &bytes[start..];
        while !fresh.is_empty() {
            acceptor
                .read_tls(&mut fresh)
                .map_err(|error| Error::new(Code::TlsFailed, "handshake", "peer", error))?;
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let mut offered = accepted.client_hello().alpn().into_iter().flatten();
                let renkei = offered.any(|alpn| alpn == ALPN);
                return Ok(Some(First::Hello(ClientHello { renkei, bytes })));
            }
            Ok(None) if bytes.len() > MAX_HELLO_BYTES => {
                return Err(Error::new(
                    Code::FrameTooLarge,
                    "handshake",
                    "peer",
                    "a ClientHello over 16 KiB",
                ));
            }
            Ok(None) => {}
            Err((error, mut alert)) => {
                let mut answer = Vec::new();
                let _ = alert.write(&mut answer);
                let _ = sock.write_all(&answer).await;
                return Err(Error::new(Code::TlsFailed, "handshake", "peer", error));
            }
        }
    }
}

/// Gives a circuit to the site; it keeps a stranger's place until somebody spoke for it.
fn pass(caller: Caller, ticket: Ticket, rest: Vec<u8>, site: &Arc<Site>, seat: Seat) {
    let peer = caller.peer;
    let forgetful = Arc::downgrade(site);
    seat.end_by(move || {
        if let Some(site) = forgetful.upgrade() {
            site.circuit_given_up(&ticket);
        }
    });
    match blocking(caller.sock) {
        Ok(sock) => site.circuit_came(ticket, sock, rest, Box::new(seat)),
        Err(error) => tracing::warn!(%peer, %error, "cannot take a connection over"),
    }
}

fn blocking(sock: TcpStream) -> std::io::Result<std::net::TcpStream> {
    sock.into_std().and_then(|sock| sock.set_nonblocking(false).map(|()| sock))
}

/// What begins like a preface and is none is what any other service's client may send.
fn not_renkei(error: Error) -> Error {
    Error { code: Code::NotRenkei, ..error }
}

async fn dispatch(caller: Caller, hello: ClientHello, site: Arc<Site>, seat: Seat) {
    let Caller { sock, peer, through } = caller;
    let snapshot = site.last_snapshot();
    if hello.renkei {
        let greeted = handshake::greet(sock, snapshot.renkei_tls.clone(), hello.bytes);
        match tokio::time::timeout(GREETED_WITHIN, greeted).await {
            Ok(Ok(greeted)) => {
                let seat = seat.be_judged().await;
                renkei::spawn(renkei::Accepted { greeted, peer, through }, site, seat);
            }
            Ok(Err(error)) => renkei::lost(peer, &changed_through(error, through.as_ref()), &site),
            Err(_) => {
                Counters::add(&site.counters.refused_total, 1);
                tracing::info!(%peer, "dropped: no message within 15 s");
            }
        }
    } else if snapshot.is_agent() {
        // The pages are the PoP's.
        Counters::add(&site.counters.refused_total, 1);
    } else {
        let seat = seat.into_http();
        // Much larger than what comes before; most strangers never get here.
        Box::pin(http::serve(sock, hello.bytes, snapshot.http_tls.clone(), peer, site)).await;
        drop(seat);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_freed_in_time_is_taken() {
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let refused = runtime.block_on(listen_within(address, Duration::ZERO)).unwrap_err();
        assert_eq!(refused.code, Code::AddressInUse);
        let freed = std::thread::spawn(move || drop(other));
        let listener = runtime.block_on(listen_within(address, Duration::from_secs(60))).unwrap();
        assert_eq!(listener.local_addr().unwrap(), address);
        freed.join().unwrap();
    }
}
