//! The journal file of one job, and the thread that keeps it at most 100 ms behind.

use renkei_core::error::{Code, Error};
use renkei_core::mover::journal::{Header, Record, State};
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How far the journal may be behind.
pub const BEHIND: Duration = Duration::from_millis(100);

/// An open journal; the lock on the file keeps a second transfer of the same job out.
pub struct Journal {
    file: File,
    path: PathBuf,
}

impl Journal {
    /// Opens or creates the journal of `header.job` in `folder` and says what it holds.
    ///
    /// A journal of another job or version, or one that makes no sense, is set aside as `*.bad`.
    ///
    /// # Errors
    /// `TransferBusy` if another transfer holds it; `JournalBroken` if the folder cannot be used.
    pub fn open(folder: &Path, header: &Header) -> Result<(Journal, State), Error> {
        let path = folder.join(format!("{:016x}.journal", header.job));
        std::fs::create_dir_all(folder).map_err(|error| broken(&path, error))?;
        let mut file = open_locked(&path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| broken(&path, error))?;
        let (state, good) = State::read(&bytes);
        let known = state.header.as_ref();
        if !bytes.is_empty() && known.is_none_or(|known| !same_job(known, header)) {
            set_aside(&path);
            file.set_len(0).map_err(|error| broken(&path, error))?;
            return Self::begin(file, path, header, 0, State::default());
        }
        Self::begin(file, path, header, good as u64, state)
    }

    fn begin(
        mut file: File,
        path: PathBuf,
        header: &Header,
        good: u64,
        state: State,
    ) -> Result<(Self, State), Error> {
        let start = file.set_len(good).and_then(|()| file.seek(SeekFrom::Start(good)));
        start.map_err(|error| broken(&path, error))?;
        let mut journal = Journal { file, path };
        if good == 0 {
            let mut bytes = Vec::new();
            Record::Header(header.clone()).write(&mut bytes);
            journal.append(&bytes)?;
        }
        Ok((journal, state))
    }

    /// Appends whole records.
    pub fn append(&mut self, records: &[u8]) -> Result<(), Error> {
        self.file.write_all(records).map_err(|error| broken(&self.path, error))
    }

    /// The job is done: nothing to resume.
    pub fn remove(self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove a finished journal");
        }
    }
}

/// Opens and locks the file that `path` leads to: one that was removed between the two, by a clean-up or by the end
/// of another run, would keep nothing.
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

/// Whether `path` still names the open file. Only who holds the file's lock removes its name.
pub fn leads_to(path: &Path, file: &File) -> std::io::Result<bool> {
    let inode = |metadata: Metadata| (metadata.dev(), metadata.ino());
    match std::fs::symlink_metadata(path) {
        Ok(named) => Ok(inode(named) == inode(file.metadata()?)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn open_file(path: &Path) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.open(path).map_err(|error| broken(path, error))
}

fn same_job(known: &Header, wanted: &Header) -> bool {
    known.job == wanted.job && known.to == wanted.to && known.account == wanted.account
}

fn set_aside(path: &Path) {
    let aside = path.with_extension("bad");
    tracing::warn!(path = %path.display(), "unusable journal set aside; files are sent again");
    if let Err(error) = std::fs::copy(path, &aside) {
        tracing::warn!(%error, "cannot keep a copy of it");
    }
}

fn broken(path: &Path, error: std::io::Error) -> Error {
    Error::new(Code::JournalBroken, "journal", path.display(), error)
}

/// Identity of the machine's present boot; zeros where the kernel does not tell, so that nothing is trusted.
pub fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hex: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(hex.chunks_exact(2)) {
        let digits = std::str::from_utf8(pair).unwrap_or_default();
        *byte = u8::from_str_radix(digits, 16).unwrap_or_default();
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(job: u64) -> Header {
        Header { version: 1, job, boot: boot_id(), to: None, local: b"/x".to_vec(), account: "a".into() }
    }

    fn finished(n: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        let source = renkei_core::entry::Stamp::default();
        Record::Finished { key: [n; 16], source, ino: 1 }.write(&mut bytes);
        bytes
    }

    #[test]
    fn a_journal_is_found_again_and_its_torn_tail_cut() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, state) = Journal::open(folder.path(), &header(1)).unwrap();
        assert!(state.is_empty());
        journal.append(&finished(1)).unwrap();
        journal.append(&finished(2)[..10]).unwrap();
        drop(journal);
        let (mut journal, state) = Journal::open(folder.path(), &header(1)).unwrap();
        assert_eq!(state.finished.len(), 1);
        journal.append(&finished(3)).unwrap();
        drop(journal);
        let (journal, state) = Journal::open(folder.path(), &header(1)).unwrap();
        assert_eq!(state.finished.len(), 2);
        journal.remove();
        assert!(Journal::open(folder.path(), &header(1)).unwrap().1.is_empty());
    }

    #[test]
    fn one_transfer_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let _held = Journal::open(folder.path(), &header(1)).unwrap();
        let refused = Journal::open(folder.path(), &header(1)).err().unwrap();
        assert_eq!(refused.code, Code::TransferBusy);
        assert!(Journal::open(folder.path(), &header(2)).is_ok());
    }

    /// Runs that end and begin while a third opens and removes: whoever holds the journal holds the file of that name.
    #[test]
    fn a_journal_that_is_held_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let run = || {
            for _ in 0..2000 {
                let Ok((journal, _)) = Journal::open(folder.path(), &header(1)) else { continue };
                assert!(leads_to(&journal.path, &journal.file).unwrap());
                journal.remove();
            }
        };
        std::thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(run))));
    }

    #[test]
    fn an_unusable_journal_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(format!("{:016x}.journal", 7));
        std::fs::write(&path, b"no journal at all").unwrap();
        let (_, state) = Journal::open(folder.path(), &header(7)).unwrap();
        assert!(state.is_empty());
        assert!(path.with_extension("bad").exists());
    }

    #[test]
    fn this_boot_has_a_name() {
        assert_ne!(boot_id(), [0; 16]);
    }
}
