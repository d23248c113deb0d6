//! Invalidation of the kernel's attribute cache.
//!
//! Only attributes of inodes are invalidated, never dentries: to invalidate a dentry the kernel would lock the
//! directory, and a program that waits for an answer of this mount may hold that lock. A name that leads to another
//! file by now is detected when the kernel asks for the attributes of the old inode and gets ESTALE.

use rustix::fd::OwnedFd;
use std::io;
use std::time::Duration;

/// The notification FUSE_NOTIFY_INVAL_INODE of fuse_kernel.h, and the bytes of its message.
const INVAL_INODE: i32 = 2;
const MESSAGE_BYTES: u32 = 40;

/// Retries and their interval: how long the kernel may take to process an answer that it was given.
const TRIES: u32 = 400;
const PAUSE: Duration = Duration::from_millis(5);

/// The kernel's cache of a mount.
pub(super) struct KernelCache(OwnedFd);

impl KernelCache {
    /// A cache behind this descriptor of `/dev/fuse`.
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
        // A negative offset: no pages of the content are invalidated.
        message.extend_from_slice(&(-1i64).to_ne_bytes());
        message.extend_from_slice(&0i64.to_ne_bytes());
        match rustix::io::write(&self.0, &message) {
            Err(errno) => io::Error::from(errno).kind() != io::ErrorKind::NotFound,
            Ok(_) => true,
        }
    }

    /// Like `invalidate`, for a file in an answer that the kernel may still be processing: retried while `is_told` is
    /// true.
    pub(super) fn invalidate_told(&self, id: u64, is_told: impl Fn() -> bool) {
        for _ in 0..TRIES {
            if self.invalidate(id) || !is_told() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }
}
