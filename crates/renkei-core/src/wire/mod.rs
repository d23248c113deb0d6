//! What travels between two daemons: frames, and the messages inside them.
//!
//! A frame is a kind (1 byte), a length (4 bytes, big-endian) and that many bytes. Kinds from [`frame::OPTIONAL`]
//! on may be skipped by a receiver that does not know them; an unknown kind below is a violation. Control
//! messages are [`message::Control`] in postcard form; data frames are a small head and raw bytes ([`data`]).
//!
//! Every decoder here takes any bytes and answers with a value or an error; none allocates more than the frame
//! it was handed.

pub mod data;
pub mod frame;
pub mod message;

use crate::error::{Code, Error};

/// The protocol's name in the TLS handshake (ALPN).
pub const ALPN: &[u8] = b"renkei/1";

/// The protocol versions this build speaks, oldest and newest.
pub const VERSIONS: std::ops::RangeInclusive<u16> = 1..=1;

/// Decodes a postcard value that must fill `bytes` to the end.
pub fn decode<T: serde::de::DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, Error> {
    match postcard::take_from_bytes::<T>(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(violation(what, format_args!("{} surplus bytes", rest.len()))),
        Err(error) => Err(violation(what, error)),
    }
}

/// Encodes a value that can always be encoded.
pub fn encode<T: serde::Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("wire types hold nothing postcard cannot write")
}

/// A peer's breach of the protocol.
pub fn violation(what: &str, cause: impl std::fmt::Display) -> Error {
    Error::new(Code::ProtocolViolation, "decode", what, cause)
}
