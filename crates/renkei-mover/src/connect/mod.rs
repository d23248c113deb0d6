//! Connections to sites: the candidates that lead there, directly or through a relay, and the handshake of a session.

pub mod dial;
pub(crate) mod relay_client;
pub mod routes;
pub mod slow_connect;
pub mod targets;
pub mod transport;
