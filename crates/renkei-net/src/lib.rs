//! Connections between machines, and the identity of their two ends.
//!
//! [`tls`] has the streams for control and data, with a record layer of its own for data; [`control`] is the control
//! stream of a session, [`handshake`] the beginning of an accepted connection, [`reverse_registry`] the reverse
//! connections and dial-back. [`socket`] shows what the kernel knows of a connection, and [`splice`] relays its bytes,
//! [`http_client`] has small exchanges with web servers, [`web_connection`] those whose bodies are files.
//! [`identity`] has certificates, trust between sites, accounts and login. Uses: `renkei-core`, `renkei-store`,
//! `renkei-config`. Non-goals: transfers, and the choice of a way to a site, which are the mover's.

pub mod control;
pub mod handshake;
pub mod http_client;
pub mod identity;
pub mod reverse_registry;
pub mod socket;
pub mod splice;
pub mod tls;
mod tls_records;
pub mod web_connection;

use std::time::{Duration, SystemTime};

/// Timeout of a connect and of each handshake.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout of the handshake with a host that accepted a connection, and of its answer where there are other routes:
/// three SYNs of the kernel.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(7);

/// Program and version, sent in the greeting.
pub const SOFTWARE: &str = concat!("renkei/", env!("CARGO_PKG_VERSION"));

/// Milliseconds since 1970.
pub fn unix_ms(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
