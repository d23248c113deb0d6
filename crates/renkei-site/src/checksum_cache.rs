//! The cache of checksums that were computed on demand: files in `state/checksums` with a line for each content.
//!
//! A file holds the last contents whose keys begin alike; older ones are forgotten, so the cache has a bound and needs
//! no clean-up. Files are replaced whole and not synced: a lost line is computed again, and a torn one is not a line.

use super::own_threads::OwnThreads;
use renkei_core::error::Error;
use renkei_core::wire::message::Algorithm;
use renkei_mover::files::checksum_on_demand::{ChecksumCache, ContentKey};
use renkei_store::checksum::{Checksums, noted_text, parse_noted};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Hex digits of a key that name its file: 4096 files.
const FILE_DIGITS: usize = 3;
/// Most lines of a file; all files together hold some 50 MB.
const MAX_LINES: usize = 64;

/// The cache of a PoP.
pub(crate) struct CachedChecksums {
    folder: PathBuf,
    /// The threads of the PoP, whose files these are.
    threads: Arc<OwnThreads>,
    /// Held while a file is replaced.
    writing: Mutex<()>,
}

/// The part of the cache for one storage or volume.
struct OfStorage {
    cache: Arc<CachedChecksums>,
    storage: String,
}

impl CachedChecksums {
    /// A cache in a folder of the PoP.
    pub(crate) fn new(folder: PathBuf, threads: Arc<OwnThreads>) -> Arc<Self> {
        Arc::new(CachedChecksums { folder, threads, writing: Mutex::default() })
    }

    /// The part for a storage or volume.
    pub(crate) fn of(self: &Arc<Self>, storage: &str) -> Arc<dyn ChecksumCache> {
        Arc::new(OfStorage { cache: self.clone(), storage: storage.into() })
    }

    fn file(&self, key: &str) -> PathBuf {
        self.folder.join(&key[..FILE_DIGITS])
    }

    fn find(&self, key: &str, content: &ContentKey) -> Checksums {
        let text = std::fs::read_to_string(self.file(key)).unwrap_or_default();
        let found = lines(&text).find(|(one, _)| *one == key).and_then(|(_, line)| parse_noted(line));
        found.filter(|(stamp, _)| *stamp == content.stamp).map(|(_, sums)| sums).unwrap_or_default()
    }

    fn keep(&self, key: &str, content: &ContentKey, algorithm: Algorithm, sum: Vec<u8>) {
        let _writing = self.writing.lock().expect("no thread panics while it holds the lock");
        let mut sums = self.find(key, content);
        sums.retain(|(one, _)| *one != algorithm);
        sums.push((algorithm, sum));
        let path = self.file(key);
        let before = std::fs::read_to_string(&path).unwrap_or_default();
        let others: Vec<_> = lines(&before).filter(|(one, _)| *one != key).collect();
        let kept = &others[others.len().saturating_sub(MAX_LINES - 1)..];
        let mut text: String = kept.iter().map(|(key, line)| format!("{key} {line}\n")).collect();
        text += &format!("{key} {}\n", noted_text(&content.stamp, &sums));
        if let Err(error) = replace(&path, text.as_bytes()) {
            tracing::debug!(path = %path.display(), %error, "a checksum is not kept");
        }
    }
}

/// Whole lines, each with its key.
fn lines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.split_once(' '))
}

fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let fresh = path.with_extension("new");
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(&fresh, bytes)?;
    std::fs::rename(&fresh, path)
}

impl OfStorage {
    fn key(&self, content: &ContentKey) -> String {
        let text = format!("{}\0{}\0{}", self.storage, content.device, content.stamp.ino);
        blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
    }
}

impl ChecksumCache for OfStorage {
    fn find(&self, content: &ContentKey, algorithm: Algorithm) -> Option<Vec<u8>> {
        let (cache, key, content) = (self.cache.clone(), self.key(content), *content);
        let found = self.cache.threads.run(move || Ok::<_, Error>(cache.find(&key, &content))).ok()?;
        found.into_iter().find(|(one, _)| *one == algorithm).map(|(_, sum)| sum)
    }

    fn keep(&self, content: &ContentKey, algorithm: Algorithm, sum: &[u8]) {
        let (cache, key, content, sum) = (self.cache.clone(), self.key(content), *content, sum.to_vec());
        let kept = self.cache.threads.run(move || {
            cache.keep(&key, &content, algorithm, sum);
            Ok(())
        });
        if let Err(error) = kept {
            tracing::debug!(%error, "a checksum is not kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::entry::{FileTime, Stamp};
    use renkei_net::identity::account::Account;

    fn content(ino: u64, ctime: i64) -> ContentKey {
        let stamp =
            Stamp { size: 5, mtime: FileTime::default(), ctime: FileTime { secs: ctime, nanos: 1 }, ino };
        ContentKey { device: 7, stamp }
    }

    #[test]
    fn a_checksum_is_that_of_one_state_of_one_file_of_one_storage() {
        let folder = tempfile::tempdir().unwrap();
        let all = CachedChecksums::new(folder.path().join("checksums"), Arc::new(OwnThreads::start()));
        let (data, other) = (all.of("data"), all.of("other"));
        data.keep(&content(1, 5), Algorithm::Md5, &[1; 16]);
        data.keep(&content(1, 5), Algorithm::Adler32, &[2; 4]);
        assert_eq!(data.find(&content(1, 5), Algorithm::Md5), Some(vec![1; 16]));
        assert_eq!(data.find(&content(1, 5), Algorithm::Adler32), Some(vec![2; 4]));
        assert_eq!(data.find(&content(1, 5), Algorithm::Sha256), None);
        assert_eq!(data.find(&content(1, 6), Algorithm::Md5), None, "it was changed");
        assert_eq!(data.find(&content(2, 5), Algorithm::Md5), None);
        assert_eq!(other.find(&content(1, 5), Algorithm::Md5), None);
        // Another state of the file replaces the one before.
        data.keep(&content(1, 6), Algorithm::Md5, &[3; 16]);
        assert_eq!(data.find(&content(1, 6), Algorithm::Md5), Some(vec![3; 16]));
        assert_eq!(data.find(&content(1, 5), Algorithm::Adler32), None);
    }

    #[test]
    fn threads_of_other_accounts_use_it() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: needs root to become another account");
        }
        let folder = tempfile::tempdir().unwrap();
        let all = CachedChecksums::new(folder.path().join("checksums"), Arc::new(OwnThreads::start()));
        let data = all.of("data");
        let work = move || {
            data.keep(&content(1, 5), Algorithm::Md5, &[1; 16]);
            data.find(&content(1, 5), Algorithm::Md5)
        };
        let nobody = Account::lookup("nobody").unwrap();
        assert_eq!(nobody.spawn("nobody", work).unwrap().join().unwrap(), Some(vec![1; 16]));
    }

    #[test]
    fn the_cache_has_a_bound_and_takes_no_torn_line() {
        let folder = tempfile::tempdir().unwrap();
        let cache = CachedChecksums::new(folder.path().into(), Arc::new(OwnThreads::start()));
        for ino in 0..2 * MAX_LINES as u64 {
            cache.keep(&format!("abc{ino}"), &content(ino, 5), Algorithm::Md5, vec![1; 16]);
        }
        let path = folder.path().join("abc");
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), MAX_LINES);
        let (key, last) = ("abc127", content(127, 5));
        assert_eq!(cache.find(key, &last).len(), 1);
        std::fs::write(&path, &text[..text.len() - 1]).unwrap();
        assert_eq!(cache.find(key, &last), []);
    }
}
