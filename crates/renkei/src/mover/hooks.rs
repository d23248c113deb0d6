//! Hooks of a transfer for a PoP that forwards files: a limit of the bytes that come, the digests of what came, and the
//! comparison of these digests with what is sent on. So digests hold from the first reader to the last writer.

use renkei_core::error::Error;
use renkei_core::path::RelPath;
use std::sync::Arc;

/// Hooks of the receiving side, for a place that forwards files.
pub trait ReceiveHooks: Send + Sync {
    /// Asks whether so many bytes more may be written.
    ///
    /// # Errors
    /// `BufferFull`.
    fn ask(&self, bytes: u64) -> Result<(), Error>;

    /// Tells the digest of a slot that came and is what was sent; a file of one slot has the one digest.
    fn came(&self, path: &RelPath, slot: u32, digest: &[u8; 32]) -> Result<(), Error>;
}

/// Compares a slot that was read with what came; the path is that of the source.
///
/// # Errors
/// `DigestMismatch`.
pub type SourceCheck = Arc<dyn Fn(&RelPath, u32, &[u8; 32]) -> Result<(), Error> + Send + Sync>;

/// Called with the digest of each file that has come whole and is what was sent; the path is that in the destination.
pub type OnDigest = Arc<dyn Fn(&RelPath, &[u8; 32]) + Send + Sync>;
