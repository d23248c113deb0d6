//! Resolution of paths that cannot leave the directory they start from.
//!
//! Everything is left to the kernel's openat2 with RESOLVE_BENEATH, which is immune to renames and links that
//! change while a path is being walked. Paths beyond PATH_MAX are opened piece by piece; within such a path a
//! link may climb only to the start of its piece, which is stricter than the rule for short paths, never laxer.

use renkei_core::path::RelPath;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{self, Errno};

/// Longest piece given to the kernel: PATH_MAX without the final NUL.
const MAX_PIECE_BYTES: usize = 4095;

/// Most retries of a resolution that a concurrent rename disturbed (EAGAIN).
const MAX_TRIES: usize = 1000;

/// Flags of a directory handle: enough to work in it, needing no read permission.
pub(super) const HANDLE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

/// Opens `path` below `dir` under the jail's resolve flags and `extra` ones.
pub(super) fn open_beneath(
    dir: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    extra: ResolveFlags,
) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | extra;
    let creates = flags.contains(OFlags::CREATE);
    let mode = if creates { Mode::RUSR | Mode::WUSR } else { Mode::empty() };
    for _ in 0..MAX_TRIES {
        match openat2(dir, path, flags | OFlags::CLOEXEC, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => std::thread::yield_now(),
            done => return done,
        }
    }
    Err(Errno::AGAIN)
}

/// Opens a single name in `dir`, which itself is never followed.
pub(super) fn open_name(dir: BorrowedFd<'_>, name: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    open_beneath(dir, name, flags | OFlags::NOFOLLOW, ResolveFlags::empty())
}

/// Opens the directory handle `path` levels below `dir`, however long the path is.
pub(super) fn open_deep(dir: BorrowedFd<'_>, path: &RelPath, extra: ResolveFlags) -> io::Result<OwnedFd> {
    let (piece, mut rest) = cut(path.as_bytes(), MAX_PIECE_BYTES);
    let first = if piece.is_empty() { b"." } else { piece };
    let mut here = open_beneath(dir, first, HANDLE, extra)?;
    while !rest.is_empty() {
        let (piece, tail) = cut(rest, MAX_PIECE_BYTES);
        here = open_beneath(here.as_fd(), piece, HANDLE, extra)?;
        rest = tail;
    }
    Ok(here)
}

/// Cuts the longest run of whole components of at most `max` bytes off the front.
fn cut(path: &[u8], max: usize) -> (&[u8], &[u8]) {
    if path.len() <= max {
        return (path, b"");
    }
    let slash = path[..=max].iter().rposition(|&b| b == b'/').unwrap_or(path.len());
    (&path[..slash], path.get(slash + 1..).unwrap_or(b""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_paths_have_whole_components() {
        assert_eq!(cut(b"abc/de/f", 20), (&b"abc/de/f"[..], &b""[..]));
        assert_eq!(cut(b"abc/de/f", 7), (&b"abc/de"[..], &b"f"[..]));
        assert_eq!(cut(b"abc/de/f", 6), (&b"abc/de"[..], &b"f"[..]));
        assert_eq!(cut(b"abc/de/f", 5), (&b"abc"[..], &b"de/f"[..]));
        assert_eq!(cut(b"abc/de/f", 3), (&b"abc"[..], &b"de/f"[..]));
    }
}
