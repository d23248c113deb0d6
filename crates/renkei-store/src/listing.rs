//! The names in a local directory, read with getdents in batches.

use super::errno::{self, Step, Subject};
use super::{Listed, TypeHint};
use renkei_core::error::Error;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, RawDir, RawDirEntry};
use rustix::io;
use std::collections::VecDeque;

/// Buffer of one getdents call: about a thousand short names, and always one of 255 bytes.
const BATCH_BYTES: usize = 32 * 1024;

/// Reads one directory to its end; memory does not grow with the number of names.
pub(super) struct Entries {
    fd: OwnedFd,
    subject: Subject,
    buffer: Vec<u8>,
    batch: VecDeque<Listed>,
    at_end: bool,
}

impl Entries {
    /// Starts reading `fd`, which is open for reading and not shared.
    pub(super) fn new(fd: OwnedFd, subject: Subject) -> Self {
        let buffer = Vec::with_capacity(BATCH_BYTES);
        Entries { fd, subject, buffer, batch: VecDeque::new(), at_end: false }
    }

    fn read_batch(&mut self) -> io::Result<()> {
        let mut dir = RawDir::new(&self.fd, self.buffer.spare_capacity_mut());
        loop {
            match dir.next() {
                None => self.at_end = true,
                Some(entry) => self.batch.extend(listed(&entry?)),
            }
            if self.at_end || dir.is_buffer_empty() {
                return Ok(());
            }
        }
    }
}

impl Iterator for Entries {
    type Item = Result<Listed, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.batch.is_empty() && !self.at_end {
            if let Err(errno) = self.read_batch() {
                self.at_end = true;
                return Some(Err(errno::error(errno, Step::Data, "list", &self.subject)));
            }
        }
        self.batch.pop_front().map(Ok)
    }
}

fn listed(entry: &RawDirEntry<'_>) -> Option<Listed> {
    let name = entry.file_name().to_bytes();
    if name == b"." || name == b".." {
        return None;
    }
    Some(Listed { name: name.to_vec(), hint: hint(entry.file_type()), ino: entry.ino() })
}

fn hint(file_type: FileType) -> TypeHint {
    match file_type {
        FileType::RegularFile => TypeHint::File,
        FileType::Directory => TypeHint::Dir,
        FileType::Symlink => TypeHint::Symlink,
        FileType::Unknown => TypeHint::Unknown,
        _ => TypeHint::Special,
    }
}
