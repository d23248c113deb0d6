//! The account that owns the plain files of a volume, as the one who opens the volume gives it.

use renkei_core::error::Error;

/// Runs work with the rights of the account that owns a volume's files.
pub trait Hands: Send + Sync {
    /// The uid of the account.
    ///
    /// # Errors
    /// `AccountUnknown`.
    fn uid(&self) -> Result<u32, Error>;

    /// Runs some work as the account, and returns when it is done.
    ///
    /// # Errors
    /// The error that keeps it from using the account.
    fn run(&self, work: Box<dyn FnOnce() + Send>) -> Result<(), Error>;
}
