//! The file of a journal on the system's own file system: locked, and durable with the folders that were made for it.

use super::journal::{LogFile, broken};
use renkei_config::home::{append_whole, open_regular};
use renkei_core::error::{Code, Error};
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An open file under its lock. `S` is the fsync of a file or folder.
pub struct LockedFile<S = fn(&File) -> io::Result<()>> {
    file: File,
    path: PathBuf,
    /// Folders that were made for it, innermost first.
    made: Vec<PathBuf>,
    sync: S,
}

impl<S> LockedFile<S> {
    /// Opens or creates the file `path` in `folder`, which is made if it is missing.
    pub(super) fn open(folder: &Path, path: PathBuf, sync: S) -> Result<Self, Error> {
        let made = make_folder(folder).map_err(|error| broken(&path, error))?;
        Ok(LockedFile { file: open_locked(&path)?, path, made, sync })
    }
}

impl<S: Fn(&File) -> io::Result<()>> LogFile for LockedFile<S> {
    fn path(&self) -> &Path {
        &self.path
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, target: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(target, offset)
    }

    fn append(&self, bytes: &[u8], end: u64) -> io::Result<u64> {
        append_whole(&self.file, end, bytes)
    }

    fn cut(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    /// Fsyncs the file, its folder, and the parents of folders that were made, so that their names are durable.
    fn sync(&self) -> io::Result<()> {
        (self.sync)(&self.file)?;
        let folders = self.path.parent().into_iter().chain(self.made.iter().filter_map(|made| made.parent()));
        folders.into_iter().try_for_each(|folder| sync_folder(folder, &self.sync))
    }

    fn set_aside(&self) {
        let aside = self.path.with_extension("bad");
        tracing::warn!(path = %self.path.display(), "unusable journal set aside; files are sent again");
        if let Err(error) = std::fs::copy(&self.path, &aside) {
            tracing::warn!(%error, "cannot keep a copy of it");
        }
    }

    fn remove(&self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

#[cfg(test)]
impl LockedFile {
    /// A file without a name.
    pub(super) fn of(file: File) -> Self {
        LockedFile { file, path: "x".into(), made: Vec::new(), sync: File::sync_all }
    }

    /// Whether its path names it.
    pub(super) fn is_named(&self) -> io::Result<bool> {
        leads_to(&self.path, &self.file)
    }
}

/// Opens and locks the file that `path` names. A file that was unlinked between open and lock, by a clean-up or the
/// end of another run, is opened again: records written to it would be lost.
fn open_locked(path: &Path) -> Result<File, Error> {
    loop {
        let file = open_file(path)?;
        match file.try_lock() {
            Ok(()) if leads_to(path, &file).map_err(|error| broken(path, error))? => return Ok(file),
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let cause = "its journal is locked";
                return Err(Error::new(Code::TransferBusy, "open journal", path.display(), cause));
            }
            Err(TryLockError::Error(error)) => return Err(broken(path, error)),
        }
    }
}

/// Whether `path` still names the open file. The name is removed only by the holder of the file's lock.
pub fn leads_to(path: &Path, file: &File) -> io::Result<bool> {
    let inode = |metadata: Metadata| (metadata.dev(), metadata.ino());
    match std::fs::symlink_metadata(path) {
        Ok(named) => Ok(inode(named) == inode(file.metadata()?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn open_file(path: &Path) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    open_regular(path, &mut options).map_err(|error| broken(path, error))
}

/// Creates a folder with its ancestors; returns those that were missing, innermost first.
fn make_folder(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let missing = folder.ancestors().take_while(|above| !above.exists());
    let missing = missing.map(Path::to_path_buf).collect();
    std::fs::create_dir_all(folder)?;
    Ok(missing)
}

/// Some file systems refuse to fsync a folder at all; nothing more can be done for its names then.
fn sync_folder(folder: &Path, sync: &impl Fn(&File) -> io::Result<()>) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    match sync(&File::open(folder)?) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOTSUP)) => Ok(()),
        synced => synced,
    }
}
