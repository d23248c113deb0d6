//! The binary form of values, in messages and on disks: postcard.

use crate::error::{Code, Error};

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
