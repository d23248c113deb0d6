//! Doors: the protocols a PoP speaks, all on one port.
//!
//! [`port`] accepts connections and tells protocols apart by ALPN; each door turns its protocol into calls of
//! [`crate::site::Site`] and back. A door decides nothing itself.

mod console;
pub mod http;
pub mod line;
pub mod port;
pub mod renkei;
pub(crate) mod strangers;
