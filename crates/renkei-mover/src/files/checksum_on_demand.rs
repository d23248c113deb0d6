//! Checksums of open files, computed on demand and kept in a cache.
//!
//! A cached checksum holds for one stamp of one inode: a write changes mtime and ctime, and ctime cannot be set back. Two
//! changes in one tick of the file system's clock have one stamp, so a file that was just changed is read only after a
//! pause: a write after that is in a later tick. Attributes are not set, for they would change ctime.

use renkei_core::entry::{FileTime, Stamp};
use renkei_core::error::Error;
use renkei_core::wire::file::Freshness;
use renkei_core::wire::message::Algorithm;
use renkei_store::ReadFile;
use renkei_store::checksum::Checksum;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Age up to which a change counts as recent: more than clocks of file servers differ.
const RECENT: Duration = Duration::from_secs(2);
/// Longer than a tick of any file system's clock but FAT's.
const TICKS: Duration = Duration::from_millis(25);

/// Identifies one content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentKey {
    /// The device of the file; 0 for a version of a volume.
    pub device: u64,
    /// The file's stamp.
    pub stamp: Stamp,
}

/// A cache of checksums. Its failures have no consequence but that checksums are computed again.
pub trait ChecksumCache: Send + Sync {
    /// The cached checksum.
    fn find(&self, content: &ContentKey, algorithm: Algorithm) -> Option<Vec<u8>>;

    /// Keeps a checksum.
    fn keep(&self, content: &ContentKey, algorithm: Algorithm, sum: &[u8]);
}

/// The checksum of an open file; none if it must be known and is not.
///
/// # Errors
/// As [`compute`].
pub(crate) fn checksum_of(
    file: &dyn ReadFile,
    algorithm: Algorithm,
    freshness: Freshness,
    cache: Option<&dyn ChecksumCache>,
    go_on: &dyn Fn() -> Result<(), Error>,
) -> Result<Option<Vec<u8>>, Error> {
    if freshness != Freshness::Read
        && let Some(known) = known(file, algorithm, cache)?
    {
        return Ok(Some(known));
    }
    match freshness {
        Freshness::Known => Ok(None),
        Freshness::Any | Freshness::Read => compute(file, algorithm, cache, go_on).map(Some),
    }
}

/// The checksum of an open file, which is read, and kept for the next who asks.
///
/// # Errors
/// Those of the file and of `go_on`, which is asked before each read.
pub fn compute(
    file: &dyn ReadFile,
    algorithm: Algorithm,
    cache: Option<&dyn ChecksumCache>,
    go_on: &dyn Fn() -> Result<(), Error>,
) -> Result<Vec<u8>, Error> {
    let before = key(file)?;
    if cache.is_some() && !file.is_version() && is_recent(before.stamp.ctime) {
        std::thread::sleep(TICKS);
    }
    let sum = Checksum::of(algorithm, |buf, at| {
        go_on()?;
        file.read_at(buf, at)
    })?;
    if let Some(cache) = cache.filter(|_| key(file).is_ok_and(|after| after == before)) {
        cache.keep(&before, algorithm, &sum);
    }
    Ok(sum)
}

/// The checksum that is remembered of the present content of an open file, without reading it.
///
/// # Errors
/// Those of the file.
pub fn known(
    file: &dyn ReadFile,
    algorithm: Algorithm,
    cache: Option<&dyn ChecksumCache>,
) -> Result<Option<Vec<u8>>, Error> {
    let remembered = file.known_checksums().into_iter().find(|(one, _)| *one == algorithm);
    match (remembered, cache) {
        (Some((_, sum)), _) => Ok(Some(sum)),
        (None, Some(cache)) => Ok(cache.find(&key(file)?, algorithm)),
        (None, None) => Ok(None),
    }
}

fn key(file: &dyn ReadFile) -> Result<ContentKey, Error> {
    let device = match file.descriptor().filter(|_| !file.is_version()) {
        Some(descriptor) => rustix::fs::fstat(descriptor).map_or(0, |stat| stat.st_dev),
        None => 0,
    };
    Ok(ContentKey { device, stamp: file.stamp()? })
}

/// Whether a time is less than [`RECENT`] ago, or in the future.
fn is_recent(time: FileTime) -> bool {
    let since = Duration::new(time.secs.max(0).unsigned_abs(), time.nanos);
    SystemTime::now().duration_since(UNIX_EPOCH + since).map_or(true, |age| age < RECENT)
}
