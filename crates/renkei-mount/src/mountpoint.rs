//! Mount points: mounting, serving until the end, unmounting, and cleaning up after a mount that was killed.

use super::fuse::FuseAdapter;
use super::invalidate::KernelCache;
use super::{Mounted, Options, preflight};
use fuser::{Config, MountOption, Session, SessionACL};
use renkei_core::error::{Code, Error};
use renkei_core::wire::file::Files;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Threads that answer the kernel; so many requests may wait for a site at a time.
const THREADS: usize = 32;
/// Programs that unmount for users who are not root; the second is that of older systems.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];
/// The kernel's read-ahead, where root may set it: several requests of full size.
const READ_AHEAD_KIB: u32 = 4096;

/// Ends a mount from outside.
#[derive(Clone, Default)]
pub struct Stop(Arc<Mutex<Option<Stopper>>>);

struct Stopper {
    mounted: Arc<Mounted>,
    point: PathBuf,
}

impl Stop {
    /// Publishes all drafts and unmounts; files that are still open afterwards are closed as the process ends.
    /// Returns how many files could not be published.
    pub fn stop(&self) -> usize {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Stopper { mounted, point }) = taken else { return 0 };
        mounted.publish_all();
        if unmount(&point, UnmountMode::Orderly).is_err() {
            // The mount is in use: it is detached, so that no new users come, and the data written so far is
            // published.
            let _ = unmount(&point, UnmountMode::Lazy);
        }
        let lost = mounted.publish_all();
        mounted.files.end();
        lost
    }
}

/// Mounts and serves the kernel until the mount is unmounted; `on_ready` is called when programs can use it.
///
/// # Errors
/// Errors of looking at the root, and `MountFailed` if the kernel refuses.
pub fn run(
    files: Arc<dyn Files>,
    options: &Options,
    stop: &Stop,
    on_ready: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    let mounted = Mounted::new(files, options.attr_ttl)?;
    let mounted = Arc::new(Mounted { closes_early: options.closes_early, ..mounted });
    let failed = |error: io::Error| Error::new(Code::MountFailed, "mount", options.point.display(), error);
    let refused = |error: io::Error| preflight::refused(&options.point, options.allow_other, &error);
    let ends_process = Arc::new(AtomicBool::new(false));
    let session = begin(&mounted, &ends_process, options)?.map_err(refused)?;
    let device = session.as_fd().try_clone_to_owned().map_err(failed)?;
    // Set once, here.
    let _ = mounted.cache.set(KernelCache::new(device));
    mounted.listen();
    let point = options.point.clone();
    // In a thread of its own, since the kernel asks the session for the mount point's attributes.
    thread::spawn(move || read_ahead(&point));
    let stopper = Stopper { mounted: mounted.clone(), point: options.point.clone() };
    *stop.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(stopper);
    on_ready()?;
    ends_process.store(options.ends_process, Ordering::Release);
    let ended = session.run().map_err(failed);
    mounted.files.end();
    ended
}

/// Mounts. A mount at the same place that died a moment ago is still answered from the kernel's cache and cannot be
/// mounted over: it is cleared and the mount is retried.
fn begin(
    mounted: &Arc<Mounted>,
    ends_process: &Arc<AtomicBool>,
    options: &Options,
) -> Result<io::Result<Session<FuseAdapter>>, Error> {
    clear_dead(&options.point)?;
    let try_it = || {
        let (is_read_only, locks_at_site) = (options.is_read_only, options.locks_at_site);
        let (mounted, ends_process) = (mounted.clone(), ends_process.clone());
        let kernel = FuseAdapter { mounted, is_read_only, locks_at_site, ends_process };
        Session::new(kernel, &options.point, &config(options))
    };
    match try_it() {
        Err(error) if is_dead(&error) => {
            unmount(&options.point, UnmountMode::Lazy)?;
            Ok(try_it())
        }
        begun => Ok(begun),
    }
}

fn is_dead(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

fn config(options: &Options) -> Config {
    let mut config = Config::default();
    let access = if options.is_read_only { MountOption::RO } else { MountOption::RW };
    // A comma would end the option in the arguments of fusermount3.
    let (source, kind) = (options.source.replace([',', '\\'], "_"), "renkei".to_owned());
    config.mount_options = vec![
        MountOption::FSName(source),
        MountOption::Subtype(kind),
        MountOption::DefaultPermissions,
        access,
    ];
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(THREADS);
    config
}

/// Raises the kernel's read-ahead; only root may.
fn read_ahead(point: &Path) {
    let Ok(meta) = fs::metadata(point) else { return };
    let (major, minor) = (libc::major(meta.dev()), libc::minor(meta.dev()));
    let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = fs::write(&knob, READ_AHEAD_KIB.to_string()) {
        tracing::debug!(knob, %error, "the kernel's own read-ahead is unchanged");
    }
}

/// Unmounts the dead mount of a killed process.
fn clear_dead(point: &Path) -> Result<(), Error> {
    match fs::metadata(point) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => {
            Err(Error::new(Code::NotADirectory, "mount", point.display(), "a mount point is a directory"))
        }
        Err(error) if is_dead(&error) => {
            tracing::warn!(point = %point.display(), "unmounting what a mount that died left");
            unmount(point, UnmountMode::Lazy)
        }
        Err(error) => Err(failed("mount", point, &error)),
    }
}

/// The mode of an unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountMode {
    /// Fails while the mount is in use.
    Orderly,
    /// Detaches from the tree at once (MNT_DETACH), and unmounts when it is no longer in use.
    Lazy,
}

/// Unmounts a mount point.
///
/// # Errors
/// `MountBusy` if it is in use, `NotMounted` if nothing is mounted there.
pub fn unmount(point: &Path, how: UnmountMode) -> Result<(), Error> {
    let flags = if how == UnmountMode::Lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(point, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => unmount_unprivileged(point, how),
        Err(Errno::BUSY) => Err(busy(point, "a program has a file or directory open in it")),
        Err(Errno::INVAL) => Err(Error::new(Code::NotMounted, "unmount", point.display(), "")),
        Err(errno) => Err(failed("unmount", point, &errno.into())),
    }
}

/// Unmounts by the set-uid helper for users who are not root.
fn unmount_unprivileged(point: &Path, how: UnmountMode) -> Result<(), Error> {
    let output = HELPERS.iter().map(|helper| ask_helper(helper, point, how)).find(|asked| !is_absent(asked));
    let absent = || Error::new(Code::MountFailed, "unmount", point.display(), "there is no fusermount3");
    let output = output.ok_or_else(absent)?.map_err(|error| failed("unmount", point, &error))?;
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match words {
        _ if output.status.success() => Ok(()),
        words if words.contains("busy") => Err(busy(point, &words)),
        words if words.contains("not found") => {
            Err(Error::new(Code::NotMounted, "unmount", point.display(), words))
        }
        words => Err(Error::new(Code::MountFailed, "unmount", point.display(), words)),
    }
}

fn ask_helper(helper: &str, point: &Path, how: UnmountMode) -> io::Result<Output> {
    let mut command = Command::new(helper);
    command.arg(if how == UnmountMode::Lazy { "-uz" } else { "-u" }).arg("--").arg(point);
    command.stdin(Stdio::null()).output()
}

/// A folder of PATH that may not be entered is reported as a program that may not be started.
fn is_absent(asked: &io::Result<Output>) -> bool {
    let kinds = [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied];
    asked.as_ref().is_err_and(|error| kinds.contains(&error.kind()))
}

fn busy(point: &Path, cause: &str) -> Error {
    Error::new(Code::MountBusy, "unmount", point.display(), cause)
}

fn failed(op: &str, point: &Path, error: &io::Error) -> Error {
    let code = match error.raw_os_error() {
        Some(libc::ENOENT) => Code::PathNotFound,
        Some(libc::EACCES) => Code::PermissionDenied,
        _ => Code::MountFailed,
    };
    Error::new(code, op, point.display(), error)
}
