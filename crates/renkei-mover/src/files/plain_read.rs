//! Reads of plain files of this machine.
//!
//! The rights to a plain file are judged when it is opened. So any thread may read it, where other operations, and files
//! that are fetched from another site while they are read, need a thread of the account.

use super::local_files::{LocalFiles, Open};
use renkei_core::error::Error;
use renkei_core::wire::file::Handle;

impl LocalFiles {
    /// Reads an open file; none if it is not a plain file of this machine.
    pub fn read_plain(&self, handle: Handle, offset: u64, buf: &mut [u8]) -> Option<Result<usize, Error>> {
        match &*self.find(handle).ok()? {
            Open::File(file) if file.descriptor().is_some() => Some(file.read_at(buf, offset)),
            _ => None,
        }
    }
}
