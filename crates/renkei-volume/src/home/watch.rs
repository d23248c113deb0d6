//! Change notifications of the kernel for a volume's plain tree (inotify).
//!
//! One watch for each directory. Where the limit of watches is reached, or the file system does not report a change
//! (made on another machine), scans find it; nothing relies on the notifications being complete.

use super::dirty_names::DirtyNames;
use renkei_core::path::RelPath;
use renkei_store::temp::is_temp_name;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Buffer for some hundred events.
const BUFFER_BYTES: usize = 64 * 1024;

/// Timeout of each poll, after which a stop is noticed.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Delay for coalescing events: one arriving file makes half a dozen.
const GATHER: Duration = Duration::from_millis(5);

/// The watches of one volume.
pub(crate) struct Watch {
    fd: OwnedFd,
    top: PathBuf,
    dirs: Mutex<HashMap<i32, RelPath>>,
    is_full: AtomicBool,
    is_stopped: AtomicBool,
}

impl Watch {
    /// Opens an inotify instance without watches for the tree at `top`.
    pub(crate) fn open(top: PathBuf) -> Result<Self, Errno> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let (is_full, is_stopped) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Watch { fd, top, dirs: Mutex::default(), is_full, is_stopped })
    }

    fn dirs(&self) -> MutexGuard<'_, HashMap<i32, RelPath>> {
        self.dirs.lock().expect("no thread panics while it holds the lock")
    }

    /// Adds a watch on a directory, if the kernel allows it.
    pub(crate) fn add(&self, path: &RelPath) {
        if self.is_full.load(Ordering::Relaxed) {
            return;
        }
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::ONLYDIR
            | WatchFlags::DONT_FOLLOW
            | WatchFlags::EXCL_UNLINK;
        let at = self.top.join(OsStr::from_bytes(path.as_bytes()));
        match inotify::add_watch(&self.fd, at, flags) {
            Ok(number) => drop(self.dirs().insert(number, path.clone())),
            Err(Errno::NOSPC | Errno::NOMEM) => {
                self.is_full.store(true, Ordering::Relaxed);
                tracing::warn!(
                    "the limit of watched directories is reached; raise fs.inotify.max_user_watches"
                );
            }
            // The directory was removed again, or is not readable: scans cover it as far as possible.
            Err(_) => {}
        }
    }

    /// Updates the paths of a renamed directory and of those below it.
    pub(crate) fn follow_move(&self, from: &RelPath, to: &RelPath) {
        for path in self.dirs().values_mut() {
            if let Some(moved) = path.below(from).and_then(|below| to.join(&below).ok()) {
                *path = moved;
            }
        }
    }

    /// Whether directories are unwatched because the kernel's limit of watches is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Number of watched directories.
    pub(crate) fn count(&self) -> usize {
        self.dirs().len()
    }

    /// Ends [`Watch::run`].
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    /// Passes events on until it is stopped.
    pub(crate) fn run(&self, notes: &DirtyNames) {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        while !self.is_stopped.load(Ordering::Relaxed) {
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            match poll(&mut fds, Some(&PATIENCE)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => std::thread::sleep(GATHER),
                Err(_) => return,
            }
            let paths = self.read(&mut buffer, notes);
            if !paths.is_empty() {
                notes.add_foreign(paths);
            }
        }
    }

    /// Reads the pending events.
    fn read(&self, buffer: &mut [MaybeUninit<u8>], notes: &DirtyNames) -> Vec<RelPath> {
        let (mut reader, mut dirs, mut paths) = (Reader::new(&self.fd, buffer), self.dirs(), Vec::new());
        loop {
            let Ok(event) = reader.next() else { return paths };
            let flags = event.events();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                notes.ask_scan();
                continue;
            }
            if flags.contains(ReadFlags::IGNORED) {
                dirs.remove(&event.wd());
                continue;
            }
            let Some(dir) = dirs.get(&event.wd()) else { continue };
            match event.file_name().map(|name| name.to_bytes()) {
                None => paths.push(dir.clone()),
                Some(name) if !is_temp_name(name) => paths.extend(dir.child(name)),
                Some(_) => {}
            }
        }
    }
}
