//! Doors: the protocols a PoP speaks, all on one port.
//!
//! [`port`] accepts connections and tells protocols apart by ALPN; each door translates its protocol into calls of
//! [`renkei_site::Site`] and back. A door makes no decisions. [`renkei`] is the door for other PoPs and the command
//! line, [`http`] that for monitoring, the console (`console`), files (`pages` for browsers, `webdav`), copies between servers
//! (`tpc`) and certificates for tokens (`certificate`); `negotiate` authenticates by Kerberos. `admission` limits unauthenticated peers, and
//! [`mod@line`] keeps reverse connections to hubs. Uses: `renkei-core`, `renkei-config`, `renkei-net`,
//! `renkei-mover`, `renkei-site`.

pub(crate) mod admission;
mod certificate;
mod console;
pub mod http;
pub mod line;
mod negotiate;
mod pages;
pub mod port;
pub mod renkei;
mod rooted;
mod tpc;
mod webdav;
