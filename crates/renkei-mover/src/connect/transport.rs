//! Transports to one site: a direct connection, a dial-back over its reverse connection, or a relay.
//!
//! The bytes on them are the same: TLS from end to end. All connections of a session use the same transport.

use super::relay_client::RelayClient;
use renkei_config::random::random_bytes;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use renkei_core::route::Way;
use renkei_net::reverse_registry::ReverseRegistry;
use renkei_net::tls::{changed_through, lost};
use renkei_net::{ANSWER_TIMEOUT, CONNECT_TIMEOUT};
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

/// The chosen transport, with the state needed to connect by it.
#[derive(Clone)]
pub enum Transport {
    /// Dial this address, with this timeout for the host's answer.
    Direct(SocketAddr, Duration),
    /// Request a dial-back over the reverse connection that this principal keeps.
    Line(Arc<ReverseRegistry>, Principal),
    /// Connect through a relay.
    Through(Arc<RelayClient>),
}

impl Transport {
    /// A connection to `site`, on which the site has received nothing yet.
    pub fn connect(&self, site: &SiteName) -> Result<TcpStream, Error> {
        match self {
            Transport::Direct(address, within) => {
                dial(*address, *within).map_err(|error| named(error, site, self))
            }
            Transport::Line(reverse_registry, keeper) => reverse_registry.call(keeper, random_bytes()?),
            Transport::Through(relay_client) => relay_client.connect(),
        }
    }

    /// Timeout of the handshake on a connection; a relay or the site dials first, which takes longer.
    pub fn within(&self) -> Duration {
        match self {
            Transport::Direct(_, within) => ANSWER_TIMEOUT.min(*within),
            Transport::Line(..) | Transport::Through(_) => CONNECT_TIMEOUT,
        }
    }

    /// The kind of transport.
    pub fn way(&self) -> Way {
        match self {
            Transport::Direct(..) => Way::Direct,
            Transport::Line(..) => Way::Line,
            Transport::Through(relay_client) => Way::Through(relay_client.relay().clone()),
        }
    }

    /// Replaces an error on such a connection with the relay's own report, if it made one.
    pub fn explain(&self, error: Error) -> Error {
        match self {
            Transport::Through(relay_client) => relay_client.word().unwrap_or(error),
            Transport::Direct(..) | Transport::Line(..) => error,
        }
    }

    /// The relay's report of an error on the connection, made already or within a moment.
    pub fn word(&self) -> Option<Error> {
        match self {
            Transport::Through(relay_client) => relay_client.word(),
            Transport::Direct(..) | Transport::Line(..) => None,
        }
    }

    /// Attributes a broken session to the relay, if bytes were changed on the way.
    pub fn blame(&self, error: Error) -> Error {
        match self {
            Transport::Through(relay_client) => changed_through(error, Some(relay_client.relay())),
            Transport::Direct(..) | Transport::Line(..) => error,
        }
    }

    /// Location of a site, for messages.
    pub fn place(&self, site: &SiteName) -> String {
        match self {
            Transport::Direct(address, _) => format!("{site} at {address}"),
            Transport::Line(_, Principal::Agent { storage, .. }) => format!("the agent of {site}:/{storage}"),
            Transport::Line(..) => format!("{site} by its line"),
            Transport::Through(relay_client) => match relay_client.agent() {
                Some(storage) => format!("the agent of {site}:/{storage}"),
                None => format!("{site} through {}", relay_client.relay()),
            },
        }
    }
}

/// Connects to an address.
pub fn dial(address: SocketAddr, within: Duration) -> Result<TcpStream, Error> {
    TcpStream::connect_timeout(&address, within).map_err(|error| unreachable(&error))
}

/// Resolves an endpoint `HOST:PORT`.
pub fn resolve(endpoint: &str) -> Result<Vec<SocketAddr>, Error> {
    let found = endpoint.to_socket_addrs();
    let found =
        found.map_err(|error| Error::new(Code::NameUnresolved, "resolve", endpoint, error).at("client"));
    found.map(Iterator::collect)
}

/// The error of a failed connect.
pub fn unreachable(error: &io::Error) -> Error {
    let code = match error.kind() {
        io::ErrorKind::ConnectionRefused => Code::PortClosed,
        io::ErrorKind::ConnectionReset => Code::ConnectionLost,
        _ => Code::PeerDown,
    };
    Error { code, op: "connect".into(), ..lost("connect", error) }
}

/// Names the peer in a network error that lacks it.
pub(crate) fn named(error: Error, site: &SiteName, reach: &Transport) -> Error {
    if error.subject == "peer" {
        return Error { subject: reach.place(site), ..error }.at("client");
    }
    error.at("client")
}

/// Whether an error is of the network on the way to the peer.
pub(crate) fn is_network(code: Code) -> bool {
    use Code::*;
    matches!(code, PeerDown | PortClosed | ConnectionLost | Stalled | NameUnresolved | SiteUnreachable)
        || matches!(code, NoRoute | NoLine | CallUnanswered)
}
