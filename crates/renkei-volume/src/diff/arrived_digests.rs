//! A bounded cache of digests of files that arrived and are not in the catalogue yet.
//!
//! The mover computes the digest of a file while it arrives, and stores it here before the file gets its name. The
//! reconciler takes it when it finds a file of that name that is unchanged since. Old entries are dropped when there
//! are many, which costs a digest and nothing else.

use crate::plain_entry::is_same_content;
use renkei_core::entry::Stamp;
use renkei_core::path::RelPath;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// Largest number of entries.
const MOST: usize = 1 << 16;

/// The digests of one volume.
#[derive(Default)]
pub(crate) struct ArrivedDigests(Mutex<HashMap<RelPath, (Stamp, [u8; 32])>>);

impl ArrivedDigests {
    fn all(&self) -> MutexGuard<'_, HashMap<RelPath, (Stamp, [u8; 32])>> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }

    /// Adds the digest of a content that will get this name.
    pub(crate) fn add(&self, path: RelPath, stamp: Stamp, digest: [u8; 32]) {
        let mut all = self.all();
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(path, (stamp, digest));
    }

    /// Takes the digest of a file whose stamp has this content.
    pub(crate) fn take(&self, path: &RelPath, stamp: &Stamp) -> Option<[u8; 32]> {
        let mut all = self.all();
        let (known, digest) = *all.get(path)?;
        // A different stamp may be that of the file that had the name before.
        is_same_content(&known, stamp).then(|| {
            all.remove(path);
            digest
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_belongs_to_one_version_of_a_file() {
        let (digests, path) = (ArrivedDigests::default(), RelPath::parse(b"a/b").unwrap());
        let stamp = Stamp { size: 5, ino: 7, ..Stamp::default() };
        digests.add(path.clone(), stamp, [1; 32]);
        assert_eq!(digests.take(&path, &Stamp { ino: 8, ..stamp }), None);
        let renamed = Stamp { ctime: renkei_core::entry::FileTime { secs: 9, nanos: 0 }, ..stamp };
        assert_eq!(digests.take(&path, &renamed), Some([1; 32]));
        assert_eq!(digests.take(&path, &renamed), None);
        for number in 0..=MOST {
            digests.add(RelPath::parse(number.to_string().as_bytes()).unwrap(), stamp, [1; 32]);
        }
        assert!(digests.all().len() <= MOST);
    }
}
