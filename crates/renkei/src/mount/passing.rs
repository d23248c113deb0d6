//! Plain files on this machine: read directly, or by the kernel alone where it can and nobody writes through this mount.
//!
//! The site lends the descriptor of a version it has opened. In a mount for reading alone the kernel gets it
//! (`FUSE_PASSTHROUGH`, Linux 6.9, root only) and asks no more. Elsewhere the mount reads it itself, for a program that
//! writes must be seen by those who read, and a file that the kernel reads by itself stays so until all have closed it.

use super::Mounted;
use super::content::Content;
use super::errno::Refusal;
use fuser::BackingId;
use renkei_core::error::{Code, Error};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Smaller files are read as soon as they would be lent.
const LARGE_BYTES: u64 = 256 << 10;

/// How the kernel reads a file.
#[derive(Default)]
pub(super) enum Way {
    /// Nobody has it open.
    #[default]
    Open,
    /// From this mount, through its cache.
    Cached,
    /// By itself.
    Passed(Arc<BackingId>),
}

impl Mounted {
    /// Whether it pays to borrow a file's descriptor.
    pub(super) fn is_large(&self, id: u64) -> bool {
        self.table().node(id).is_ok_and(|node| node.known.size >= LARGE_BYTES)
    }

    /// What an open file is to be passed through to, if it is: then all who have it open share that. `register` tells the
    /// kernel of a plain file.
    pub(super) fn pass(
        &self,
        fh: u64,
        register: impl FnOnce(&OwnedFd) -> io::Result<BackingId>,
    ) -> Option<Arc<BackingId>> {
        let open = self.find(fh).ok()?;
        let mut way = open.content.way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Way::Passed(backing) = &*way {
            return Some(backing.clone());
        }
        let plain = open.plain.as_ref().filter(|_| self.passes.load(Ordering::Relaxed));
        let registered = plain.filter(|_| open.content.has_one_user()).map(register);
        *way = match registered {
            Some(Ok(backing)) => Way::Passed(Arc::new(backing)),
            Some(Err(error)) => {
                tracing::info!(%error, "the kernel takes no plain files; the mount reads them");
                self.passes.store(false, Ordering::Relaxed);
                Way::Cached
            }
            None => Way::Cached,
        };
        if let Way::Passed(backing) = &*way { Some(backing.clone()) } else { None }
    }
}

impl Content {
    fn has_one_user(&self) -> bool {
        self.users.load(Ordering::Relaxed) == 1
    }
}

/// Reads from a plain file; fewer bytes only at its end.
pub(super) fn read_plain(plain: &OwnedFd, offset: u64, buf: &mut [u8]) -> Result<usize, Refusal> {
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
