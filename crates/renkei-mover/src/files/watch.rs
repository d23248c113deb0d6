//! Changes in a directory, or in all of a tree, as the kernel tells them (inotify).
//!
//! One kernel watch for each directory; those of new directories are added as they are told. Guarantee: a change of a
//! name or of content that was closed is told, or `is_incomplete` is. Changes that other machines make in a shared
//! file system are not seen.

use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Changes, Depth, Watch};
use renkei_store::temp::is_temp_name;
use renkei_store::{Dir, TypeHint};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch};
use rustix::io::Errno;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;

/// Buffer for some hundred events.
const BUFFER_BYTES: usize = 64 * 1024;
/// Most directories of one watch: the kernel limits those of a user.
const MOST_DIRS: usize = 8192;
/// Most paths that are told at once.
const MOST_PATHS: usize = 4096;

/// A watched directory.
pub(super) struct DirWatch {
    fd: OwnedFd,
    base: Arc<dyn Dir>,
    depth: Depth,
    dirs: HashMap<i32, RelPath>,
    is_incomplete: bool,
}

impl DirWatch {
    /// Watches the directory at a path below `base`.
    ///
    /// # Errors
    /// Those of the directory; `Unsupported` where there is no plain directory, or the kernel watches no more.
    pub(super) fn open(base: Arc<dyn Dir>, path: &RelPath, depth: Depth) -> Result<Self, Error> {
        let refused = |cause: &str| Error::new(Code::Unsupported, "watch", path, cause);
        let fd = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let fd = fd.map_err(|errno| refused(&std::io::Error::from(errno).to_string()))?;
        let mut watch = DirWatch { fd, base, depth, dirs: HashMap::new(), is_incomplete: false };
        watch.add(path, &mut Vec::new())?;
        match watch.dirs.is_empty() {
            true => Err(refused("no changes are told at this place")),
            false => Ok(watch),
        }
    }

    /// Watches a directory and, in a tree, those below it; names that are there already are appended to `paths`.
    fn add(&mut self, path: &RelPath, paths: &mut Vec<RelPath>) -> Result<(), Error> {
        let mut todo = vec![path.clone()];
        while let Some(path) = todo.pop() {
            let dir = if path.is_root() { self.base.clone() } else { self.base.descend(&path)? };
            if !self.add_one(&*dir, &path) || self.depth == Depth::One {
                continue;
            }
            for listed in dir.list()?.flatten().filter(|listed| !is_temp_name(&listed.name)) {
                let name = path.child(&listed.name)?;
                if matches!(listed.hint, TypeHint::Dir) {
                    todo.push(name.clone());
                }
                if paths.len() < MOST_PATHS {
                    paths.push(name);
                }
            }
        }
        Ok(())
    }

    fn add_one(&mut self, dir: &dyn Dir, path: &RelPath) -> bool {
        let names = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO;
        let flags = names | WatchFlags::CLOSE_WRITE | WatchFlags::ATTRIB | WatchFlags::EXCL_UNLINK;
        let Some(plain) = dir.descriptor() else { return false };
        let at = format!("/proc/self/fd/{}", plain.as_raw_fd());
        let added = add_watch(&self.fd, at, flags).ok().filter(|_| self.dirs.len() < MOST_DIRS);
        match added {
            Some(number) => drop(self.dirs.insert(number, path.clone())),
            None => self.is_incomplete = true,
        }
        added.is_some()
    }

    /// Ends the watches of a directory that was moved away, and of those below it.
    fn end_below(&mut self, path: &RelPath) {
        for (number, _) in self.dirs.extract_if(|_, dir| dir.starts_with(path)) {
            // One that the kernel ended before is unknown to it.
            let _ = remove_watch(&self.fd, number);
        }
    }

    /// The pending events: a path, and what happened.
    fn read(&mut self) -> Vec<(RelPath, ReadFlags)> {
        let (mut buffer, mut events) = (vec![MaybeUninit::uninit(); BUFFER_BYTES], Vec::new());
        let mut reader = Reader::new(&self.fd, &mut buffer);
        while let Ok(event) = reader.next() {
            let flags = event.events();
            self.is_incomplete |= flags.contains(ReadFlags::QUEUE_OVERFLOW) || events.len() >= MOST_PATHS;
            if flags.contains(ReadFlags::IGNORED) {
                self.dirs.remove(&event.wd());
            }
            let name = event.file_name().map(|name| name.to_bytes()).filter(|name| !is_temp_name(name));
            let path = self.dirs.get(&event.wd()).zip(name).and_then(|(dir, name)| dir.child(name).ok());
            events.extend(path.filter(|_| events.len() < MOST_PATHS).map(|path| (path, flags)));
        }
        events
    }
}

impl Watch for DirWatch {
    fn next(&mut self, at_most: Duration) -> Result<Changes, Error> {
        let timeout = Timespec::try_from(at_most).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => {
                return Err(Error::new(Code::SystemCall, "watch", "inotify", std::io::Error::from(errno)));
            }
        }
        let mut paths = Vec::new();
        for (path, flags) in self.read() {
            let is_dir = flags.contains(ReadFlags::ISDIR) && self.depth == Depth::Tree;
            if is_dir && flags.contains(ReadFlags::MOVED_FROM) {
                self.end_below(&path);
            }
            if is_dir && flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
                // It may be gone again.
                self.is_incomplete |=
                    self.add(&path, &mut paths).is_err_and(|error| error.code != Code::PathNotFound);
            }
            paths.push(path);
        }
        paths.sort();
        paths.dedup();
        Ok(Changes { paths, is_incomplete: std::mem::take(&mut self.is_incomplete) })
    }
}
