//! Connections: TLS streams for data, the control stream both sides talk on, and what the kernel knows of both.

pub mod control;
pub mod handshake;
pub mod reverse_registry;
pub mod socket;
pub mod splice;
pub mod tls;
mod tls_records;
pub mod webhook;

use std::time::{Duration, SystemTime};

/// How long connecting and each handshake may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a host that took a connection may take to shake hands, and one to answer where there are other ways: three tries
/// of the kernel.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(7);

/// Program and version, as it is greeted with.
pub const SOFTWARE: &str = concat!("renkei/", env!("CARGO_PKG_VERSION"));

/// Milliseconds since 1970.
pub fn unix_ms(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
