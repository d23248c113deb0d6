//! The one port: reads the client's first TLS message, and dispatches the connection by ALPN.
//!
//! Each connection is a task until its first message is complete; `renkei/1` connections then get an OS thread of
//! their own, HTTP ones stay a task. A connection that begins with a preface is a circuit and is passed to the site.
//! A client without TLS gets one line of plain text that says so. A slow peer is dropped, the sooner the more of them
//! there are (`pending`). The tasks here do no disk I/O: a file system that hangs must not block new connections.

use super::admission::{PendingPeers, Slot};
use super::{http, renkei};
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::wire::ALPN;
use renkei_core::wire::circuit::{self, PREFACE_BYTES};
use renkei_core::wire::data::Ticket;
use renkei_net::handshake;
use renkei_net::tls::changed_through;
use renkei_site::{Counters, Site};
use rustls::NamedGroup;
use rustls::server::Acceptor;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Timeout for a peer's first message.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Timeout for the handshake and the first frame then, where no other connection needs the place.
const GREETED_WITHIN: Duration = Duration::from_secs(15);
/// Largest first message; a ClientHello with post-quantum keys is about 2 KB.
const MAX_HELLO_BYTES: usize = 16 << 10;
/// First byte of every TLS handshake record (RFC 8446, section 5.1).
const TLS_HANDSHAKE: u8 = 22;
/// How long to retry an address in use: the port of a killed PoP stays bound until the kernel has ended the process.
const FREED_WITHIN: Duration = Duration::from_secs(1);
/// Interval of those retries.
const TRY_EVERY: Duration = Duration::from_millis(20);

/// Listens on `address`; one that is in use is retried for about a second.
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

/// The entry of connections: accepted by the listener, or dialled by this PoP in answer to a call.
#[derive(Clone)]
pub struct Door {
    site: Arc<Site>,
    pending: PendingPeers,
    runtime: Handle,
}

/// A connection and its origin.
struct Caller {
    sock: TcpStream,
    peer: SocketAddr,
    /// The site whose PoP called, if it was dialled here.
    through: Option<SiteName>,
}

impl Door {
    /// The door of a PoP, on the current tokio runtime.
    pub fn new(site: &Arc<Site>) -> Self {
        Door { site: site.clone(), pending: PendingPeers::new(), runtime: Handle::current() }
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
                    // Mostly out of file descriptors: other connections must end first.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Serves a connection that was dialled here in answer to a call of the PoP of `through`, as if it had come to
    /// the port.
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
        let slot = self.pending.let_in(caller.peer.ip());
        self.site.context().counters.over_share_total.store(self.pending.ended(), Ordering::Relaxed);
        // The task starts with its slot, after the slot knows how to end the task.
        let (give, take) = oneshot::channel();
        let site = self.site.clone();
        let task = self.runtime.spawn(async move {
            if let Ok(slot) = take.await {
                greet(caller, site, slot).await;
            }
        });
        slot.end_by(move || task.abort());
        drop(give.send(slot));
    }
}

async fn greet(mut caller: Caller, site: Arc<Site>, slot: Slot) {
    let (peer, sock) = (caller.peer, &mut caller.sock);
    let hello = tokio::time::timeout(HELLO_WITHIN, read_first(sock)).await;
    match hello {
        Ok(Ok(Some(First::Hello(hello)))) => dispatch(caller, hello, site, slot).await,
        Ok(Ok(Some(First::Circuit(ticket, rest)))) => pass(caller, ticket, rest, &site, slot),
        Ok(Ok(None)) => {}
        Ok(Err(error)) => {
            Counters::add(&site.context().counters.refused_total, 1);
            tracing::info!(%peer, %error, "refused");
            if error.code == Code::NotRenkei {
                let _ = sock.write_all(PLAIN_ANSWER.as_bytes()).await;
            }
        }
        Err(_) => {
            Counters::add(&site.context().counters.refused_total, 1);
            tracing::info!(%peer, "dropped: no TLS handshake within 10 s");
        }
    }
}

/// The answer to a peer without TLS; a browser shows the last line.
const PLAIN_ANSWER: &str = "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n\
     RK-WIRE-5: this port speaks TLS only: use https:// or renkei\r\n";

/// The first bytes of a connection, and the protocol that its ALPN asks for.
struct ClientHello {
    bytes: Vec<u8>,
    protocol: Protocol,
}

/// The protocol of a client, by its ALPN.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// `renkei/1`.
    Renkei,
    /// HTTP/2, and HTTP/1.1 if it must be: a browser, or a program that is taken for one.
    Http2,
    /// HTTP/1.1, no ALPN, or a program that offers HTTP/2, too.
    Http1,
}

impl Protocol {
    fn of<'a>(offered: impl Iterator<Item = &'a [u8]>) -> Self {
        offered.fold(Protocol::Http1, |protocol, alpn| match alpn {
            ALPN => Protocol::Renkei,
            b"h2" if protocol == Protocol::Http1 => Protocol::Http2,
            _ => protocol,
        })
    }

    /// The protocol for a client that offers these groups: HTTP/2 is for browsers. All browsers offer X25519 and none X448,
    /// which OpenSSL and GnuTLS offer, and with them libcurl in other programs. XRootD below 5.7 sends no content over
    /// HTTP/2: its callback (`State::ReadCB`) waits for the status of `100 Continue`, which libcurl asks for in HTTP/1.1
    /// alone. A guess that is wrong does no harm.
    fn with(self, groups: &[NamedGroup]) -> Self {
        let is_program = groups.contains(&NamedGroup::X448) || !groups.contains(&NamedGroup::X25519);
        match self {
            Protocol::Http2 if is_program && !groups.is_empty() => Protocol::Http1,
            protocol => protocol,
        }
    }
}

/// The kind of a connection's first bytes.
enum First {
    /// A TLS ClientHello.
    Hello(ClientHello),
    /// The preface of a circuit, and the bytes after it.
    Circuit(Ticket, Vec<u8>),
}

/// Reads until the first message is complete; `None` if the peer closed the connection before, as port checks do.
async fn read_first(sock: &mut TcpStream) -> Result<Option<First>, Error> {
    let mut bytes = Vec::with_capacity(4096);
    let mut acceptor = Acceptor::default();
    loop {
        let start = bytes.len();
        let count = sock.read_buf(&mut bytes).await;
        let count = count.map_err(|error| renkei_net::tls::lost("receive", &error))?;
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
                let hello = accepted.client_hello();
                let protocol = Protocol::of(hello.alpn().into_iter().flatten());
                let protocol = protocol.with(hello.named_groups().unwrap_or_default());
                return Ok(Some(First::Hello(ClientHello { protocol, bytes })));
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

/// Passes a circuit to the site; it keeps its slot among unauthenticated peers until a peer authorises it.
fn pass(caller: Caller, ticket: Ticket, rest: Vec<u8>, site: &Arc<Site>, slot: Slot) {
    let peer = caller.peer;
    let forgetful = Arc::downgrade(site);
    slot.end_by(move || {
        if let Some(site) = forgetful.upgrade() {
            site.relay().circuit_given_up(&ticket);
        }
    });
    match blocking(caller.sock) {
        Ok(sock) => site.relay().circuit_came(ticket, sock, rest, Box::new(slot)),
        Err(error) => tracing::warn!(%peer, %error, "cannot take a connection over"),
    }
}

fn blocking(sock: TcpStream) -> std::io::Result<std::net::TcpStream> {
    sock.into_std().and_then(|sock| sock.set_nonblocking(false).map(|()| sock))
}

/// Bytes that only begin like a preface may be those of any other service's client.
fn not_renkei(error: Error) -> Error {
    Error { code: Code::NotRenkei, ..error }
}

async fn dispatch(caller: Caller, hello: ClientHello, site: Arc<Site>, slot: Slot) {
    let Caller { sock, peer, through } = caller;
    let snapshot = site.last_snapshot();
    if hello.protocol == Protocol::Renkei {
        let greeted = handshake::greet(sock, snapshot.renkei_tls.clone(), hello.bytes);
        match tokio::time::timeout(GREETED_WITHIN, greeted).await {
            Ok(Ok(greeted)) => {
                let slot = slot.be_judged().await;
                renkei::spawn(renkei::Accepted { greeted, peer, through }, site, slot);
            }
            Ok(Err(error)) => renkei::lost(peer, &changed_through(error, through.as_ref()), &site),
            Err(_) => {
                Counters::add(&site.context().counters.refused_total, 1);
                tracing::info!(%peer, "dropped: no message within 15 s");
            }
        }
    } else if snapshot.is_agent() {
        // Only PoPs serve the console, agents do not.
        Counters::add(&site.context().counters.refused_total, 1);
    } else {
        let slot = slot.into_http();
        // Boxed: much larger than the future so far, and most pending never get here.
        let tls = match hello.protocol {
            Protocol::Http2 => &snapshot.http_tls,
            _ => &snapshot.http_tls_with_clients,
        };
        Box::pin(http::serve(sock, hello.bytes, tls.clone(), peer, site, slot)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http2_is_for_browsers() {
        use NamedGroup::{X448, X25519, X25519MLKEM768, secp256r1, secp384r1};
        let chosen = |alpn: &'static [u8], groups: &[NamedGroup]| {
            Protocol::of([alpn, b"http/1.1"].into_iter()).with(groups)
        };
        assert!(chosen(b"h2", &[X25519MLKEM768, X25519, secp256r1, secp384r1]) == Protocol::Http2);
        assert!(chosen(b"h2", &[]) == Protocol::Http2);
        for program in [&[X25519, secp256r1, X448][..], &[secp256r1, secp384r1]] {
            assert!(chosen(b"h2", program) == Protocol::Http1);
        }
        assert!(chosen(ALPN, &[X448]) == Protocol::Renkei);
    }

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
