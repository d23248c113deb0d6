//! Finding and making places below the destination, one thread at a time.

use crate::store::Dir;
use crate::store::temp::temp_name;
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use std::sync::Arc;

/// Mode of a directory until its own metadata is set at the end.
const MODE_MEANWHILE: u32 = 0o700;

/// The destination as one thread sees it; remembers the directory used last, since entries come by directory.
pub(super) struct Places {
    base: Arc<dyn Dir>,
    job: u64,
    last: Option<(RelPath, Arc<dyn Dir>)>,
}

/// A final name in an open directory.
pub(super) struct Place<'p> {
    pub(super) dir: Arc<dyn Dir>,
    pub(super) name: &'p [u8],
}

impl Places {
    pub(super) fn new(base: Arc<dyn Dir>, job: u64) -> Self {
        Places { base, job, last: None }
    }

    /// The temporary name for `path`, the same in every run of the job.
    pub(super) fn temp(&self, path: &RelPath) -> Vec<u8> {
        temp_name(self.job, path)
    }

    /// The directory `path` lies in, made if it is missing, and its name there.
    pub(super) fn make<'p>(&mut self, path: &'p RelPath) -> Result<Place<'p>, Error> {
        self.find_with(path, Self::make_dir)
    }

    /// The directory `path` lies in and its name there.
    pub(super) fn find<'p>(&mut self, path: &'p RelPath) -> Result<Place<'p>, Error> {
        self.find_with(path, |places, parent| places.base.descend(parent))
    }

    fn find_with<'p>(
        &mut self,
        path: &'p RelPath,
        open: impl FnOnce(&mut Self, &RelPath) -> Result<Arc<dyn Dir>, Error>,
    ) -> Result<Place<'p>, Error> {
        let Some((parent, name)) = path.split() else {
            return Err(Error::new(Code::IsADirectory, "receive", path, "the destination itself"));
        };
        if let Some((cached, dir)) = &self.last
            && cached.as_bytes() == parent
        {
            return Ok(Place { dir: dir.clone(), name });
        }
        let parent = RelPath::parse(parent)?;
        let dir = open(self, &parent)?;
        self.last = Some((parent, dir.clone()));
        Ok(Place { dir, name })
    }

    /// Opens a directory, making it and those above it if they are missing.
    pub(super) fn make_dir(&mut self, path: &RelPath) -> Result<Arc<dyn Dir>, Error> {
        let mut missing = Vec::new();
        let mut at = path.clone();
        let mut dir = loop {
            match self.base.descend(&at) {
                Ok(dir) => break dir,
                Err(error) if error.code != Code::PathNotFound => return Err(error),
                Err(error) => {
                    let Some((parent, name)) = at.split() else { return Err(error) };
                    missing.push(name.to_vec());
                    at = RelPath::parse(parent)?;
                }
            }
        };
        for name in missing.iter().rev() {
            match dir.mkdir(name, MODE_MEANWHILE) {
                Err(error) if error.code != Code::PathExists => return Err(error),
                _ => dir = dir.child(name)?,
            }
        }
        Ok(dir)
    }
}
