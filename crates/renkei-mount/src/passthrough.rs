//! FUSE passthrough: plain files on this machine are read directly, or by the kernel alone where it can and no program
//! writes through this mount.
//!
//! The site passes the descriptor of a version it has opened. In a read-only mount the kernel gets it
//! (`FUSE_PASSTHROUGH`, Linux 6.9, root only) and asks no more. Elsewhere the mount reads it itself, because readers must
//! see what is written, and a file that the kernel reads by itself stays so until every handle is closed.

use super::Mounted;
use super::errno::FuseError;
use super::open_inode::{OpenInode, ReadPath};
use fuser::BackingId;
use renkei_core::error::{Code, Error};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Smaller files are read as fast as their descriptor could be passed.
const LARGE_BYTES: u64 = 256 << 10;

impl Mounted {
    /// Whether a file is large enough for its descriptor to be passed.
    pub(super) fn is_large(&self, id: u64) -> bool {
        self.table().node(id).is_ok_and(|node| node.known.size >= LARGE_BYTES)
    }

    /// The plain file to which the kernel passes reads of an open file, if it does; all handles of the file share it.
    /// `register` registers a plain file with the kernel.
    pub(super) fn pass(
        &self,
        fh: u64,
        register: impl FnOnce(&OwnedFd) -> io::Result<BackingId>,
    ) -> Option<Arc<BackingId>> {
        let open = self.find(fh).ok()?;
        let mut read_path = open.content.read_path.lock().unwrap_or_else(PoisonError::into_inner);
        if let ReadPath::Passed(backing) = &*read_path {
            return Some(backing.clone());
        }
        let plain = open.plain.as_ref().filter(|_| self.passes.load(Ordering::Relaxed));
        let registered = plain.filter(|_| open.content.has_one_user()).map(register);
        *read_path = match registered {
            Some(Ok(backing)) => ReadPath::Passed(Arc::new(backing)),
            Some(Err(error)) => {
                tracing::info!(%error, "the kernel takes no plain files; the mount reads them");
                self.passes.store(false, Ordering::Relaxed);
                ReadPath::Cached
            }
            None => ReadPath::Cached,
        };
        if let ReadPath::Passed(backing) = &*read_path { Some(backing.clone()) } else { None }
    }
}

impl OpenInode {
    fn has_one_user(&self) -> bool {
        self.users.load(Ordering::Relaxed) == 1
    }
}

/// Reads from a plain file; returns fewer bytes only at its end.
pub(super) fn read_plain(plain: &OwnedFd, offset: u64, buf: &mut [u8]) -> Result<usize, FuseError> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pread(plain.as_fd(), &mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::new(Code::IoFailed, "read", "a plain file", errno).into()),
        }
    }
    Ok(done)
}
