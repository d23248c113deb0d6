//! Invalidation of the kernel's attribute cache.
//!
//! Only attributes of inodes are invalidated, never names: for a name the kernel would lock the directory, and a program
//! that waits for an answer of this mount may hold that lock. A name that leads to another file by now is found out when
//! the kernel asks for the attributes of the old file, and gets ESTALE.

use rustix::fd::OwnedFd;
use std::io;
use std::time::Duration;

/// The notice of fuse_kernel.h that takes an inode's attributes back, and the bytes of its message.
const INVAL_INODE: i32 = 2;
const MESSAGE_BYTES: u32 = 40;

/// How long the kernel may take to take in an answer that it was given.
const TRIES: u32 = 400;
const PAUSE: Duration = Duration::from_millis(5);

/// The kernel's cache of a mount.
pub(super) struct KernelCache(OwnedFd);

impl KernelCache {
    /// The one behind this descriptor of `/dev/fuse`.
    pub(super) fn new(fd: OwnedFd) -> Self {
        KernelCache(fd)
    }

    /// Invalidates the attributes of a file; returns whether the kernel knows the file.
    pub(super) fn invalidate(&self, id: u64) -> bool {
        let mut message = Vec::with_capacity(MESSAGE_BYTES as usize);
        message.extend_from_slice(&MESSAGE_BYTES.to_ne_bytes());
        message.extend_from_slice(&INVAL_INODE.to_ne_bytes());
        message.extend_from_slice(&0u64.to_ne_bytes());
        message.extend_from_slice(&id.to_ne_bytes());
        // No page of its content.
        message.extend_from_slice(&(-1i64).to_ne_bytes());
        message.extend_from_slice(&0i64.to_ne_bytes());
        match rustix::io::write(&self.0, &message) {
            Err(errno) => io::Error::from(errno).kind() != io::ErrorKind::NotFound,
            Ok(_) => true,
        }
    }

    /// The same for a file that it was told of: it may be taking that in just now. `is_told` says whether it still may be.
    pub(super) fn invalidate_told(&self, id: u64, is_told: impl Fn() -> bool) {
        for _ in 0..TRIES {
            if self.invalidate(id) || !is_told() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }
}
