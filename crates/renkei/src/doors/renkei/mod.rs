//! The door for other PoPs and the command line: `renkei/1`.
//!
//! A connection is a control stream or a data stream; its first frame tells which. The certificate is judged here,
//! after the handshake, so that a refusal reaches the peer with its code.

mod request;
mod session;

use crate::doors::strangers::Seat;
use crate::net::CONNECT_TIMEOUT;
use crate::net::tls::{TlsStream, changed_through};
use crate::site::{Counters, Site};
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::wire::frame::{self, FrameKind, HEAD_BYTES};
use renkei_core::wire::message::Control;
use renkei_core::wire::{decode, encode, violation};
use rustls::ServerConfig;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

/// Largest first frame: a greeting or a ticket.
const MAX_FIRST_BYTES: usize = 4096;
/// Padding before it, in one frame or several.
const MAX_PADDING_BYTES: usize = 64 << 10;

/// A connection whose first bytes were read.
pub struct Accepted {
    /// The connection.
    pub sock: TcpStream,
    /// The bytes already read from it.
    pub received: Vec<u8>,
    /// Where it comes from.
    pub peer: SocketAddr,
    /// The site whose PoP passes it on, if one does.
    pub through: Option<SiteName>,
}

/// Serves one connection in a thread of its own. The seat is held until the peer has proved who it is.
pub fn spawn(accepted: Accepted, config: Arc<ServerConfig>, site: Arc<Site>, seat: Seat) {
    let peer = accepted.peer;
    let work = {
        let site = site.clone();
        move || {
            if let Err(error) = serve(accepted, config, &site, seat) {
                Counters::add(&site.counters.refused_total, 1);
                tracing::info!(%peer, %error, "connection refused or lost");
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("session".into()).spawn(work) {
        tracing::warn!(%peer, %error, "cannot start a thread for a connection");
    }
}

fn serve(accepted: Accepted, config: Arc<ServerConfig>, site: &Arc<Site>, seat: Seat) -> Result<(), Error> {
    let Accepted { sock, received, peer, through } = accepted;
    let stream = TlsStream::accept(sock, config, &received, CONNECT_TIMEOUT);
    let mut stream = stream.map_err(|error| changed_through(error, through.as_ref()))?;
    stream.leads_through(through);
    // Nobody knows yet who this is: a byte now and then must not keep the place of others.
    stream.expect_by(Some(Instant::now() + CONNECT_TIMEOUT));
    let first = read_first(&mut stream);
    stream.expect_by(None);
    let (kind, payload) = match first {
        Ok(first) => first,
        Err(error) => return Err(refuse(&mut stream, error)),
    };
    match kind {
        FrameKind::Join => {
            stream.bear_silence(site.snapshot().config.stall_timeout())?;
            let join = match decode("join", &payload) {
                Ok(join) => join,
                Err(error) => return Err(refuse(&mut stream, error)),
            };
            let side = site.name();
            let joined = site.tickets.join(&join, stream);
            joined.map_err(|(error, mut stream)| refuse(&mut stream, error.at(side.as_str())))
        }
        FrameKind::Control => match decode("greeting", &payload) {
            Ok(Control::Hello(hello)) => session::run(stream, hello, peer, site, seat),
            Ok(Control::AskCard) => introduce(stream, peer, site, seat),
            Ok(_) => Err(refuse(&mut stream, violation("greeting", "another message than Hello"))),
            Err(error) => Err(refuse(&mut stream, error)),
        },
        kind => Err(refuse(&mut stream, violation("greeting", format_args!("a frame of kind {kind:?}")))),
    }
}

/// Talks to a site that is not trusted yet and was invited, as it says; it keeps its seat among strangers.
fn introduce(mut stream: TlsStream, peer: SocketAddr, site: &Arc<Site>, seat: Seat) -> Result<(), Error> {
    let result = try_introduce(&mut stream, site);
    drop(seat);
    let name = result.map_err(|error| refuse(&mut stream, error.at(site.name().as_str())))?;
    tracing::info!(%peer, site = %name, "introduced");
    Ok(())
}

fn try_introduce(stream: &mut TlsStream, site: &Site) -> Result<SiteName, Error> {
    stream.write_all(&control_frame(&Control::OwnCard(site.own_card()?)))?;
    stream.expect_by(Some(Instant::now() + CONNECT_TIMEOUT));
    let (kind, payload) = read_first(stream)?;
    let Control::Introduce { secret, card } = decode("introduction", &payload)? else {
        return Err(violation("introduction", format_args!("another message than Introduce, {kind:?}")));
    };
    let name = site.introduce(&stream.peer_chain(), &secret, &card)?;
    stream.write_all(&control_frame(&Control::Introduced))?;
    Ok(name)
}

fn control_frame(message: &Control) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::push(&mut bytes, FrameKind::Control, &encode(message));
    bytes
}

/// Reads the first frame that says something; a data stream that opens its window sends some padding before.
fn read_first(stream: &mut TlsStream) -> Result<(FrameKind, Vec<u8>), Error> {
    let mut left = MAX_PADDING_BYTES;
    loop {
        let mut head = [0; HEAD_BYTES];
        stream.read_exact(&mut head)?;
        let head = frame::parse_head(head)?;
        let most = if head.kind.is_some() { MAX_FIRST_BYTES } else { left };
        if head.payload_bytes > most {
            let cause = format!("{} bytes", head.payload_bytes);
            return Err(Error::new(Code::FrameTooLarge, "greet", "peer", cause));
        }
        let mut payload = vec![0; head.payload_bytes];
        stream.read_exact(&mut payload)?;
        if let Some(kind) = head.kind {
            return Ok((kind, payload));
        }
        left -= head.payload_bytes;
    }
}

/// Tells the peer why, as far as it listens.
fn refuse(stream: &mut TlsStream, error: Error) -> Error {
    let mut bytes = Vec::new();
    frame::push(&mut bytes, FrameKind::Refusal, &encode(&error));
    let _ = stream.write_all(&bytes);
    error
}
