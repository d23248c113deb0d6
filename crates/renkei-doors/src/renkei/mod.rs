//! The door for other PoPs and the command line: `renkei/1`.
//!
//! A connection is a control stream or a data stream; its first frame tells which, and was read before a thread began
//! (`renkei_net::handshake`). The certificate is verified here, after the handshake, so that a refusal reaches the peer
//! with its code.

mod request;
mod session;

use crate::admission::Slot;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::wire::frame::{self, FrameKind, HEAD_BYTES};
use renkei_core::wire::message::Control;
use renkei_core::wire::{decode, encode, violation};
use renkei_net::CONNECT_TIMEOUT;
use renkei_net::handshake::{AcceptedPeer, MAX_FIRST_BYTES};
use renkei_net::tls::TlsStream;
use renkei_site::{Counters, Site};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

/// A connection whose first frame has been read.
pub struct Accepted {
    /// The connection and its first message.
    pub greeted: AcceptedPeer,
    /// The peer's address.
    pub peer: SocketAddr,
    /// The site whose PoP relays it, if one does.
    pub through: Option<SiteName>,
}

/// Serves one connection in a thread of its own. The slot is held until the peer is authenticated.
pub fn spawn(accepted: Accepted, site: Arc<Site>, slot: Slot) {
    let peer = accepted.peer;
    let sock = accepted.greeted.stream.socket();
    slot.end_by(move || drop(sock.shutdown(Shutdown::Both)));
    let work = move || {
        if let Err(error) = serve(accepted, &site, slot) {
            lost(peer, &error, &site);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("session".into()).spawn(work) {
        tracing::warn!(%peer, %error, "cannot start a thread for a connection");
    }
}

/// Counts and logs a connection that was refused or lost.
pub fn lost(peer: SocketAddr, error: &Error, site: &Site) {
    Counters::add(&site.context().counters.refused_total, 1);
    tracing::info!(%peer, %error, "connection refused or lost");
}

fn serve(accepted: Accepted, site: &Arc<Site>, slot: Slot) -> Result<(), Error> {
    let Accepted { greeted: AcceptedPeer { mut stream, first }, peer, through } = accepted;
    stream.leads_through(through);
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
            match site.transfers().tickets.join(&join, stream) {
                Ok(()) => {
                    slot.prove();
                    Ok(())
                }
                Err((error, mut stream)) => Err(refuse(&mut stream, error.at(side.as_str()))),
            }
        }
        FrameKind::Control => match decode("greeting", &payload) {
            Ok(Control::Hello(hello)) => session::run(stream, hello, peer, site, slot),
            Ok(Control::AskCard) => introduce(stream, peer, site, slot),
            Ok(_) => Err(refuse(&mut stream, violation("greeting", "another message than Hello"))),
            Err(error) => Err(refuse(&mut stream, error)),
        },
        kind => Err(refuse(&mut stream, violation("greeting", format_args!("a frame of kind {kind:?}")))),
    }
}

/// Exchanges cards with a site that claims to be invited and is not trusted yet; it keeps a slot among strangers.
fn introduce(mut stream: TlsStream, peer: SocketAddr, site: &Arc<Site>, slot: Slot) -> Result<(), Error> {
    let slot = slot.into_introduced();
    let result = try_introduce(&mut stream, site);
    drop(slot);
    let name = result.map_err(|error| refuse(&mut stream, error.at(site.name().as_str())))?;
    tracing::info!(%peer, site = %name, "introduced");
    Ok(())
}

fn try_introduce(stream: &mut TlsStream, site: &Site) -> Result<SiteName, Error> {
    stream.write_all(&control_frame(&Control::OwnCard(site.partners().own_card()?)))?;
    stream.expect_by(Some(Instant::now() + CONNECT_TIMEOUT));
    let (kind, payload) = read_frame(stream)?;
    let Control::Introduce { secret, card } = decode("introduction", &payload)? else {
        return Err(violation("introduction", format_args!("another message than Introduce, {kind:?}")));
    };
    let name = site.partners().introduce(&stream.peer_chain(), &secret, &card)?;
    stream.write_all(&control_frame(&Control::Introduced))?;
    Ok(name)
}

fn control_frame(message: &Control) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::push(&mut bytes, FrameKind::Control, &encode(message));
    bytes
}

/// Reads one frame of an unauthenticated peer.
fn read_frame(stream: &mut TlsStream) -> Result<(Option<FrameKind>, Vec<u8>), Error> {
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head)?;
    let head = frame::parse_head(head)?;
    if head.payload_bytes > MAX_FIRST_BYTES {
        let cause = format!("{} bytes", head.payload_bytes);
        return Err(Error::new(Code::FrameTooLarge, "introduction", "peer", cause));
    }
    let mut payload = vec![0; head.payload_bytes];
    stream.read_exact(&mut payload)?;
    Ok((head.kind, payload))
}

/// Sends the error to the peer, as far as it still listens.
fn refuse(stream: &mut TlsStream, error: Error) -> Error {
    let mut bytes = Vec::new();
    frame::push(&mut bytes, FrameKind::Refusal, &encode(&error));
    let _ = stream.write_all(&bytes);
    error
}
