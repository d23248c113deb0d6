//! Doors: the protocols a PoP speaks, all on one port.
//!
//! [`port`] accepts connections and tells protocols apart by ALPN; each door translates its protocol into calls of
//! [`renkei_site::Site`] and back. A door makes no decisions.

mod console;
pub mod http;
pub mod line;
pub mod port;
pub mod renkei;
pub(crate) mod strangers;
