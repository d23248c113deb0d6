//! The one port: reads the client's first TLS message, and hands the connection to the door it asks for.
//!
//! `renkei/1` connections get an OS thread of their own, HTTP ones a task. Whoever sends no TLS gets one line of
//! plain text that says so. A peer that dawdles before its handshake is dropped after 10 s. The tasks here wait for no
//! disk: a file system that hangs must not keep connections out.

use super::strangers::{Guest, Strangers};
use super::{http, renkei};
use crate::site::{Counters, Site};
use renkei_core::error::{Code, Error};
use renkei_core::wire::ALPN;
use rustls::server::Acceptor;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How long a peer may take for its first message.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Largest first message; a ClientHello with post-quantum keys is about 2 KB.
const MAX_HELLO_BYTES: usize = 16 << 10;
/// First byte of every TLS handshake record (RFC 8446, section 5.1).
const TLS_HANDSHAKE: u8 = 22;
/// Listens on `address`.
///
/// # Errors
/// `AddressInUse`, or `SystemCall` with the cause.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address).await.map_err(|error| {
        let code = match error.kind() {
            std::io::ErrorKind::AddrInUse => Code::AddressInUse,
            _ => Code::SystemCall,
        };
        Error::new(code, "listen", address, error)
    })
}

/// Accepts connections until the task is dropped.
pub async fn accept(listener: TcpListener, site: Arc<Site>) {
    let strangers = Strangers::new();
    loop {
        let Some(room) = strangers.room().await else { return };
        match listener.accept().await {
            Ok((sock, peer)) => match strangers.let_in(peer.ip(), room) {
                Some(guest) => drop(tokio::spawn(greet(sock, peer, site.clone(), guest))),
                None => Counters::add(&site.counters.over_share_total, 1),
            },
            Err(error) => {
                // Out of descriptors, mostly: others must end before the next can come.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn greet(mut sock: TcpStream, peer: SocketAddr, site: Arc<Site>, guest: Guest) {
    let hello = tokio::time::timeout(HELLO_WITHIN, read_hello(&mut sock)).await;
    match hello {
        Ok(Ok(Some(hello))) => dispatch(sock, peer, hello, site, guest).await,
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

/// Reads until the first message is whole; `None` if the peer left without a word, as port checks do.
async fn read_hello(sock: &mut TcpStream) -> Result<Option<ClientHello>, Error> {
    let mut bytes = Vec::with_capacity(4096);
    let mut acceptor = Acceptor::default();
    loop {
        let start = bytes.len();
        let count = sock.read_buf(&mut bytes).await;
        let count = count.map_err(|error| crate::net::tls::lost("receive", &error))?;
        if count == 0 {
            return Ok(None);
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
                return Ok(Some(ClientHello { renkei: offered.any(|alpn| alpn == ALPN), bytes }));
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

async fn dispatch(sock: TcpStream, peer: SocketAddr, hello: ClientHello, site: Arc<Site>, guest: Guest) {
    let Ok(Some(seat)) = tokio::time::timeout(HELLO_WITHIN, guest.seat(hello.renkei)).await else {
        Counters::add(&site.counters.refused_total, 1);
        return tracing::warn!(%peer, "dropped: too many connections of strangers");
    };
    let snapshot = site.last_snapshot();
    if hello.renkei {
        let sock = sock.into_std().and_then(|sock| sock.set_nonblocking(false).map(|()| sock));
        match sock {
            Ok(sock) => renkei::spawn(sock, hello.bytes, snapshot.renkei_tls.clone(), peer, site, seat),
            Err(error) => tracing::warn!(%peer, %error, "cannot take a connection over"),
        }
    } else {
        http::serve(sock, hello.bytes, snapshot.http_tls.clone(), peer, site).await;
        drop(seat);
    }
}
