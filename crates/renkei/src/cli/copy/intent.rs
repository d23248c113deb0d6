//! The marker of an unfinished copy whose source becomes its destination.
//!
//! `cp -r run7 kek:/data/new` creates `new`. When the copy is retried, automatically or by the same command after a
//! crash, `new` exists, and a source would go *into* it. A marker beside the journals, named by the job, tells that
//! this directory is the copy's own. It is removed when the copy is done, or with the abandoned journals: it is
//! locked while the copy runs, so that a clean-up leaves it alone.

use renkei_core::error::{Code, Error};
use std::fs::{File, remove_file};
use std::path::{Path, PathBuf};

/// The marker of one job.
#[derive(Debug)]
pub(crate) struct Intent(PathBuf);

impl Intent {
    /// The marker of `job` in the folder of journals.
    pub(crate) fn new(folder: &Path, job: u64) -> Self {
        Intent(folder.join(format!("{job:016x}.becomes")))
    }

    /// Whether an earlier attempt may have made the destination.
    pub(crate) fn exists(&self) -> bool {
        self.0.exists()
    }

    /// Creates the marker if the source becomes the destination, before anything is created there; it is locked while
    /// the file is open.
    pub(crate) fn keep(&self, becomes: bool) -> Result<Option<File>, Error> {
        if !becomes {
            return Ok(None);
        }
        let folder = self.0.parent().unwrap_or(Path::new("."));
        let kept = std::fs::create_dir_all(folder).and_then(|()| File::create(&self.0));
        // Another run of the same copy has the same marker; a file system without locks is tolerated.
        let kept = kept.inspect(|file| drop(file.try_lock_shared()));
        kept.map(Some)
            .map_err(|error| Error::new(Code::JournalBroken, "keep", self.0.display(), error).at("client"))
    }

    /// Removes the marker: no retry will come.
    pub(crate) fn forget(&self) {
        let _ = remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marker_is_kept_until_removed() {
        let keep = tempfile::tempdir().unwrap();
        let intent = Intent::new(&keep.path().join("journal"), 7);
        intent.keep(false).unwrap();
        assert!(!intent.exists());
        let marker = intent.keep(true).unwrap().unwrap();
        assert!(File::open(&intent.0).unwrap().try_lock().is_err(), "a copy that runs holds its marker");
        drop(marker);
        assert!(intent.exists());
        intent.forget();
        assert!(!intent.exists());
    }
}
