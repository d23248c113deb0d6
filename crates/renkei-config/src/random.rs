//! Random ids, tickets and secrets.

use renkei_core::error::{Code, Error};

/// Random bytes of the system's generator, fit for secrets.
///
/// # Errors
/// `SystemCall` if the system has no randomness.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    let failed = |_| Error::new(Code::SystemCall, "random", "", "the system has no randomness");
    aws_lc_rs::rand::fill(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// A random number for a backoff; 0 if the system has no randomness.
pub fn random_number() -> u64 {
    random_bytes().map_or(0, u64::from_le_bytes)
}
