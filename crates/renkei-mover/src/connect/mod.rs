//! Connections to sites: the candidates that lead there, directly or through a relay, and the handshake of a session.
//!
//! [`dial`] opens a session by a [`transport`], [`open_copy`] a copy in it. [`routes`] tries the ways to a site one after
//! the other, with what [`route_context`] knows; `relay_client` asks a relay for circuits, and [`targets`] tells a relay which
//! addresses are permitted. [`slow_connect`] reports an attempt that takes long.

pub mod dial;
pub mod open_copy;
pub(crate) mod relay_client;
pub mod route_context;
pub mod routes;
pub mod slow_connect;
pub mod targets;
pub mod transport;
