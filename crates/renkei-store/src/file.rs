//! Open files of a local store: plain positioned reads and writes on a descriptor, so one file can be used by
//! many threads at once.

use super::checksum::{self, Checksums};
use super::errno::{self, Step, Subject};
use super::metadata::{self, Handle};
use super::{ReadFile, WriteFile};
use renkei_core::entry::{Meta, Stamp};
use renkei_core::error::{Code, Error};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Advice, FallocateFlags, SeekFrom};
use rustix::io::{self, Errno};
use std::num::NonZeroU64;
use std::ops::Range;

/// A regular file, and the path under which it was opened, for messages.
pub(super) struct LocalFile {
    pub(super) fd: OwnedFd,
    pub(super) subject: Subject,
}

impl LocalFile {
    #[cold]
    fn fail(&self, errno: Errno, op: &str) -> Error {
        errno::error(errno, Step::Data, op, &self.subject)
    }

    fn state(&self) -> Result<Stamp, Error> {
        rustix::fs::fstat(&self.fd).map(|stat| metadata::stamp_of(&stat)).map_err(|e| self.fail(e, "stat"))
    }

    fn fill(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pread(&self.fd, &mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(len) => done += len,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.fail(errno, "read")),
            }
        }
        Ok(done)
    }

    fn data_range(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        let found = rustix::fs::seek(&self.fd, SeekFrom::Data(from))
            .and_then(|start| Ok(start..rustix::fs::seek(&self.fd, SeekFrom::Hole(start))?));
        match found {
            Ok(range) => Ok(Some(range)),
            // Beyond the last data, or the file was truncated in between.
            Err(Errno::NXIO) => Ok(None),
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                let size = rustix::fs::fstat(&self.fd)?.st_size as u64;
                Ok((from < size).then_some(from..size))
            }
            Err(errno) => Err(errno),
        }
    }
}

/// Sets the signal of a lease break; from asm-generic/fcntl.h, which x86-64 and arm64 share; libc lacks it.
const F_SETSIG: libc::c_int = 10;

/// A call of fcntl(2) with a numeric argument.
fn control(fd: &OwnedFd, command: libc::c_int, argument: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the descriptor is open as long as it is borrowed, and the commands used here take a number alone.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), command, argument) };
    if result == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

impl ReadFile for LocalFile {
    fn stamp(&self) -> Result<Stamp, Error> {
        self.state()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        self.fill(buf, offset)
    }

    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Error> {
        self.data_range(from).map_err(|errno| self.fail(errno, "find data"))
    }

    fn advise_sequential(&self, range: Range<u64>) {
        let len = NonZeroU64::new(range.end.saturating_sub(range.start));
        // A hint; a refusal is ignored.
        let _ = rustix::fs::fadvise(&self.fd, range.start, len, Advice::Sequential);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn known_checksums(&self) -> Checksums {
        checksum::known(self.fd.as_fd()).unwrap_or_default()
    }

    fn remember_checksums(&self, content: &Stamp, sums: &Checksums) {
        WriteFile::remember_checksums(self, content, sums);
    }

    fn has_writer(&self) -> bool {
        // A read lease is granted only while no process has the file open for writing. A process that opens it for
        // writing meanwhile blocks until the lease ends, which is at once; the holder then gets a signal, so it must
        // be one that is ignored by default.
        let leased = control(&self.fd, F_SETSIG, libc::SIGURG)
            .and_then(|()| control(&self.fd, libc::F_SETLEASE, libc::F_RDLCK));
        match leased {
            Ok(()) => control(&self.fd, libc::F_SETLEASE, libc::F_UNLCK).is_err(),
            Err(errno) => errno == Errno::AGAIN,
        }
    }
}

impl WriteFile for LocalFile {
    fn stamp(&self) -> Result<Stamp, Error> {
        self.state()
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<(), Error> {
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pwrite(&self.fd, &buf[done..], offset + done as u64) {
                Ok(0) => {
                    return Err(Error::new(Code::IoFailed, "write", &self.subject, "nothing was written"));
                }
                Ok(len) => done += len,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.fail(errno, "write")),
            }
        }
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        self.fill(buf, offset)
    }

    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Error> {
        self.data_range(from).map_err(|errno| self.fail(errno, "find data"))
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        rustix::fs::ftruncate(&self.fd, len).map_err(|errno| self.fail(errno, "truncate"))
    }

    fn allocate(&self, range: Range<u64>) -> Result<(), Error> {
        let len = range.end.saturating_sub(range.start);
        if len == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, range.start, len) {
            Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::ROFS)) => {
                Err(self.fail(errno, "allocate"))
            }
            // Not every file system can allocate ahead; a write reports the lack of space.
            _ => Ok(()),
        }
    }

    fn room(&self) -> Option<u64> {
        // The first block, which will be written in any case: a test of whether allocation works at all.
        match rustix::fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, 0, 1) {
            Ok(()) | Err(Errno::NOSPC) => {}
            // An exceeded quota is reported by the write.
            Err(_) => return None,
        }
        let stat = rustix::fs::fstatvfs(&self.fd).ok()?;
        let blocks = if rustix::process::geteuid().is_root() { stat.f_bfree } else { stat.f_bavail };
        Some(blocks.saturating_mul(stat.f_frsize))
    }

    fn free(&self, range: Range<u64>) {
        let len = range.end.saturating_sub(range.start);
        if len > 0 {
            let punch = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
            // Not every file system can; the space is then freed when the file is removed.
            let _ = rustix::fs::fallocate(&self.fd, punch, range.start, len);
        }
    }

    fn set_meta(&self, meta: &Meta) -> Result<Vec<Error>, Error> {
        metadata::apply(Handle::File(self.fd.as_fd()), meta, &self.subject)
    }

    fn remember_checksums(&self, content: &Stamp, sums: &Checksums) -> bool {
        // Not every file system has extended attributes, and a file without write permission takes none.
        checksum::remember(self.fd.as_fd(), content, sums).unwrap_or(false)
    }

    fn start_writeback(&self, range: Range<u64>) {
        let (start, len) = (range.start as i64, range.end.saturating_sub(range.start) as i64);
        // SAFETY: the descriptor is open; the call reads no memory of ours. It is a hint, its refusal nothing.
        unsafe { libc::sync_file_range(self.fd.as_raw_fd(), start, len, libc::SYNC_FILE_RANGE_WRITE) };
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn sync_data(&self) -> Result<(), Error> {
        retry(|| rustix::fs::fdatasync(&self.fd)).map_err(|errno| self.fail(errno, "sync"))
    }

    fn sync_all(&self) -> Result<(), Error> {
        retry(|| rustix::fs::fsync(&self.fd)).map_err(|errno| self.fail(errno, "sync"))
    }
}

/// Retries a call that was interrupted by a signal (EINTR).
pub(super) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}
