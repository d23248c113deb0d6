//! Remembers that an unfinished copy's source becomes its destination.
//!
//! `cp -r run7 kek:/data/new` makes `new`. When the copy is tried again, by itself or by the same command after a
//! crash, `new` is there, and a source would go *into* it. A marker beside the journals, named by the job, says
//! that this directory is the copy's own. It goes when the copy is done.

use super::copy_plan::Found;
use renkei_core::error::{Code, Error};
use std::fs::{File, remove_file};
use std::path::{Path, PathBuf};

/// The marker of one job.
#[derive(Debug)]
pub(super) struct Intent(PathBuf);

impl Intent {
    /// The marker of `job` in the folder of journals.
    pub(super) fn new(folder: &Path, job: u64) -> Self {
        Intent(folder.join(format!("{job:016x}.becomes")))
    }

    /// What the destination is for this job, given what it is now.
    pub(super) fn found(&self, now: Found) -> Found {
        if now == Found::Dir && self.0.exists() { Found::Nothing } else { now }
    }

    /// Keeps the marker if the source becomes the destination, before anything is made there.
    pub(super) fn keep(&self, becomes: bool) -> Result<(), Error> {
        if !becomes {
            return Ok(());
        }
        let folder = self.0.parent().unwrap_or(Path::new("."));
        let kept = std::fs::create_dir_all(folder).and_then(|()| File::create(&self.0));
        kept.map(drop)
            .map_err(|error| Error::new(Code::JournalBroken, "keep", self.0.display(), error).at("client"))
    }

    /// Nothing is left to be tried again.
    pub(super) fn forget(&self) {
        let _ = remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_the_job_made_counts_as_nothing() {
        let keep = tempfile::tempdir().unwrap();
        let intent = Intent::new(&keep.path().join("journal"), 7);
        assert_eq!(intent.found(Found::Dir), Found::Dir);
        intent.keep(false).unwrap();
        assert_eq!(intent.found(Found::Dir), Found::Dir);
        intent.keep(true).unwrap();
        assert_eq!(intent.found(Found::Dir), Found::Nothing);
        assert_eq!(intent.found(Found::Other), Found::Other);
        intent.forget();
        assert_eq!(intent.found(Found::Dir), Found::Dir);
    }
}
