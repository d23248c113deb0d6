//! Hooks of a transfer for a PoP that forwards files (store and forward): a limit on the bytes received, the digests
//! of received slots, and their comparison with the content that is sent on. Digests so hold end to end, from the
//! first reader to the last writer.

use renkei_core::error::Error;
use renkei_core::path::RelPath;
use std::sync::Arc;

/// Hooks of the receiving side, for a forwarding buffer.
pub trait ReceiveHooks: Send + Sync {
    /// Checks whether `bytes` more may be written.
    ///
    /// # Errors
    /// `BufferFull`.
    fn ask(&self, bytes: u64) -> Result<(), Error>;

    /// Reports the digest of a slot that was received and verified; a file of one slot has one digest.
    fn came(&self, path: &RelPath, slot: u32, digest: &[u8; 32]) -> Result<(), Error>;
}

/// Compares the digest of a slot that was read with that of the slot as received; the path is that of the source.
///
/// # Errors
/// `DigestMismatch`.
pub type SourceCheck = Arc<dyn Fn(&RelPath, u32, &[u8; 32]) -> Result<(), Error> + Send + Sync>;

/// Called with the digest of each file that was received whole and verified; the path is that in the destination.
pub type OnDigest = Arc<dyn Fn(&RelPath, &[u8; 32]) + Send + Sync>;
