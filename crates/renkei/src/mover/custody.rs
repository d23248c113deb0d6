//! What a place that passes files on has to do with them: it limits how much comes, remembers what came, and compares
//! that with what it sends on. So digests hold from the first reader to the last writer.

use renkei_core::error::Error;
use renkei_core::path::RelPath;
use std::sync::Arc;

/// A place that receives files to pass them on.
pub trait Custodian: Send + Sync {
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
pub type Compare = Arc<dyn Fn(&RelPath, u32, &[u8; 32]) -> Result<(), Error> + Send + Sync>;

/// Hears the digest of each file that has come whole and is what was sent; the path is that in the destination.
pub type Witness = Arc<dyn Fn(&RelPath, &[u8; 32]) + Send + Sync>;
