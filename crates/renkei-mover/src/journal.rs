//! The journal of one job, in a file (`journal_file`) that is opened, locked and made durable.
//!
//! Records of files may be lost in a power failure: those files are sent again. The existence of the job may not, or
//! the owner of its temporary files would be unknown. So the header and the name of an open journal are durable
//! (fsync).

pub use super::journal_file::{LockedFile, leads_to};
use renkei_config::home::open_regular;
use renkei_core::error::{Code, Error};
use renkei_core::mover::journal::{
    Brief, Header, MAX_RECORD_BYTES, RECORD_HEAD_BYTES, Record, State, check_version,
};
use renkei_core::wire::message::TransferId;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most time by which the journal may lag behind the transfer.
pub const BEHIND: Duration = Duration::from_millis(100);

/// Longest journal that is read: some five million files or extents. A longer one is discarded and started afresh.
const MAX_BYTES: u64 = 512 << 20;

/// Size of the chunks in which a journal is read.
const PART_BYTES: u64 = 4 << 20;
const _: () = assert!(PART_BYTES > 2 * (RECORD_HEAD_BYTES + MAX_RECORD_BYTES) as u64);

/// Checks whether a session may keep this many bytes in memory.
pub type Allow<'a> = &'a dyn Fn(u64) -> Result<(), Error>;

/// The file of a journal, which nothing else changes.
pub trait LogFile {
    /// Its name in errors.
    fn path(&self) -> &Path;

    /// Its length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// Reads up to its end; returns the number of bytes.
    fn read_at(&self, target: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Appends all bytes at `end`, or none of them; returns the new end.
    fn append(&self, bytes: &[u8], end: u64) -> io::Result<u64>;

    /// Truncates it.
    fn cut(&self, length: u64) -> io::Result<()>;

    /// Returns when the content and the name are durable.
    fn sync(&self) -> io::Result<()>;

    /// Keeps a copy of unusable content, which is about to be replaced.
    fn set_aside(&self);

    /// Removes it.
    fn remove(&self) -> io::Result<()>;
}

/// An open journal; the lock on the file keeps a second transfer of the same job out.
pub struct Journal<F = LockedFile> {
    file: F,
    /// Offset of the next record.
    end: u64,
    /// Records whose write failed, kept for the next append.
    unwritten: Vec<u8>,
}

impl Journal {
    /// Opens or creates the journal of `header.job` in `folder` and returns the state it holds.
    ///
    /// A journal of another job, or a corrupt one, is set aside as `*.bad`. One that is very long, or
    /// takes more than half of the memory that `allow` ever grants a session, is started afresh, and its files are
    /// sent again: it must not keep the job from completing. The header is durable when this returns.
    ///
    /// # Errors
    /// `TransferBusy` if another transfer holds the lock; `FormatNewer` for a journal of a newer version, which is
    /// unchanged; `JournalBroken` if the folder cannot be used; the errors of
    /// `allow` except `TooManyEntries`, with the journal unchanged.
    pub fn open(folder: &Path, header: &Header, allow: Allow<'_>) -> Result<(Self, State), Error> {
        let path = Self::path_of(folder, header.job);
        let sync: fn(&File) -> io::Result<()> = File::sync_all;
        Self::open_on(LockedFile::open(folder, path, sync)?, header, allow)
    }

    /// Path of the journal of a job.
    pub fn path_of(folder: &Path, job: u64) -> PathBuf {
        folder.join(file_name(job))
    }

    /// Whether a job has a journal.
    pub fn exists(folder: &Path, job: u64) -> bool {
        folder.join(file_name(job)).exists()
    }
}

impl<F: LogFile> Journal<F> {
    /// Opens the journal in `file`; see [`Journal::open`].
    pub(crate) fn open_on(file: F, header: &Header, allow: Allow<'_>) -> Result<(Self, State), Error> {
        let opened = Self::read_or_begin(file, header, allow)?;
        opened.0.file.sync().map_err(|error| broken(opened.0.file.path(), error))?;
        Ok(opened)
    }

    fn read_or_begin(file: F, header: &Header, allow: Allow<'_>) -> Result<(Self, State), Error> {
        let length = file.length().map_err(|error| broken(file.path(), error))?;
        let read = if length > MAX_BYTES { None } else { read(&file, allow)? };
        let Some((state, good)) = read else {
            let path = file.path().display();
            tracing::warn!(%path, length, "journal too large; a new one is started, files are sent again");
            return Self::begin(file, header, 0, State::default());
        };
        let known = state.header.as_ref();
        if length > 0 && known.is_none_or(|known| !same_job(known, header)) {
            file.set_aside();
            return Self::begin(file, header, 0, State::default());
        }
        Self::begin(file, header, good, state)
    }

    /// Truncates a torn tail. A journal without one keeps its modification time: only appended records renew it.
    fn begin(file: F, header: &Header, good: u64, state: State) -> Result<(Self, State), Error> {
        let cut = file.length().and_then(|length| if length == good { Ok(()) } else { file.cut(good) });
        cut.map_err(|error| broken(file.path(), error))?;
        let mut journal = Journal { file, end: good, unwritten: Vec::new() };
        if good == 0 {
            let mut bytes = Vec::new();
            Record::Header(header.clone()).write(&mut bytes);
            journal.append(&bytes)?;
        }
        Ok((journal, state))
    }

    /// Records the owner's principal, unless `state`, as read, has one.
    pub fn sign(&mut self, state: &State, owner: &str) -> Result<(), Error> {
        if state.owner.is_some() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        Record::Owner(owner.into()).write(&mut bytes);
        self.append(&bytes)
    }

    /// Records the transfer that uses the journal from now on, unless `state`, as read, ends with that one.
    pub fn name(&mut self, state: &State, transfer: TransferId) -> Result<(), Error> {
        if state.transfer == Some(transfer) {
            return Ok(());
        }
        let mut bytes = Vec::new();
        Record::Transfer(transfer).write(&mut bytes);
        self.append(&bytes)
    }

    /// Appends whole records, all of them or none. Records whose write failed are written before the next ones: later
    /// records must not be trusted without the earlier ones that revoke others.
    pub fn append(&mut self, records: &[u8]) -> Result<(), Error> {
        self.unwritten.extend_from_slice(records);
        if self.unwritten.is_empty() {
            return Ok(());
        }
        let written = self.file.append(&self.unwritten, self.end);
        self.end = written.map_err(|error| broken(self.file.path(), error))?;
        self.unwritten.clear();
        Ok(())
    }

    /// Removes the journal of a finished job: nothing is left to resume.
    pub fn remove(self) {
        if let Err(error) = self.file.remove() {
            let path = self.file.path().display();
            tracing::warn!(%path, %error, "cannot remove a finished journal");
        }
    }
}

/// The records of one job, as a session writes them.
pub(crate) trait RecordFile: Send {
    /// Appends whole records, all of them or none.
    fn append(&mut self, records: &[u8]) -> Result<(), Error>;

    /// Removes them: nothing is left to resume.
    fn remove(self: Box<Self>);
}

impl<F: LogFile + Send> RecordFile for Journal<F> {
    fn append(&mut self, records: &[u8]) -> Result<(), Error> {
        Journal::append(self, records)
    }

    fn remove(self: Box<Self>) {
        Journal::remove(*self);
    }
}

/// Reads a journal; returns its state and the number of valid bytes, or `None` if it exceeds the memory limit at any
/// point.
fn read(file: &impl LogFile, allow: Allow<'_>) -> Result<Option<(State, u64)>, Error> {
    let (mut state, mut good, mut bytes) = (State::default(), 0, Vec::new());
    loop {
        let part = read_part(file, good, &mut bytes).map_err(|error| broken(file.path(), error))?;
        if good == 0 {
            check_version(&bytes)?;
        }
        let used = state.absorb(&bytes);
        bytes.drain(..used);
        good += used as u64;
        // The same amount again is left for the entries that the session finds.
        match allow(2 * state.memory_bytes()) {
            Err(error) if error.code == Code::TooManyEntries => return Ok(None),
            allowed => allowed?,
        }
        if part == 0 || bytes.len() > RECORD_HEAD_BYTES + MAX_RECORD_BYTES {
            return Ok(Some((state, good)));
        }
    }
}

/// Reads what follows after `bytes`, which are at `offset`; returns how much that is.
fn read_part(file: &impl LogFile, offset: u64, bytes: &mut Vec<u8>) -> io::Result<usize> {
    let (begin, mut end) = (bytes.len(), bytes.len());
    let left = file.length()?.saturating_sub(offset + begin as u64);
    bytes.resize(begin + left.min(PART_BYTES) as usize, 0);
    while end < bytes.len() {
        match file.read_at(&mut bytes[end..], offset + end as u64)? {
            0 => break,
            count => end += count,
        }
    }
    bytes.truncate(end);
    Ok(end - begin)
}

/// The summary of a journal, and whether a transfer has it open; `None` if the file no longer exists.
pub fn look(path: &Path) -> Result<Option<(Brief, bool)>, Error> {
    let mut file = match open_regular(path, OpenOptions::new().read(true)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|error| broken(path, error))?,
    };
    let (mut brief, mut bytes) = (Brief::default(), Vec::new());
    loop {
        let part = (&mut file).take(PART_BYTES).read_to_end(&mut bytes);
        let part = part.map_err(|error| broken(path, error))?;
        if brief.header.is_none() {
            check_version(&bytes)?;
        }
        let used = brief.absorb(&bytes);
        bytes.drain(..used);
        if part == 0 || bytes.len() > RECORD_HEAD_BYTES + MAX_RECORD_BYTES {
            break;
        }
    }
    // This shared lock blocks a transfer that opens the journal at the same time, but only until the file is closed
    // right after.
    let running = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    Ok(Some((brief, running)))
}

/// The journals in a folder.
pub fn list(folder: &Path) -> Vec<PathBuf> {
    let Ok(listing) = std::fs::read_dir(folder) else { return Vec::new() };
    let is_journal = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "journal");
    listing.flatten().map(|listed| listed.path()).filter(is_journal).collect()
}

/// Checks that a principal has at most `limit` journals in `folder`, that of `header.job` included. Journals without
/// an owner count for every principal with their account.
///
/// # Errors
/// `TooManyUnfinished` beyond that.
pub fn check_unfinished(folder: &Path, header: &Header, owner: &str, limit: usize) -> Result<(), Error> {
    let own = file_name(header.job);
    let Ok(listing) = std::fs::read_dir(folder) else { return Ok(()) };
    let others: Vec<PathBuf> = listing
        .flatten()
        .map(|listed| listed.path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "journal"))
        .collect();
    // Owners are read only if the number of journals may exceed the limit.
    if others.len() < limit || others.iter().any(|path| path.ends_with(&own)) {
        return Ok(());
    }
    let same = |path: &&PathBuf| read_start(path).is_ok_and(|state| is_of(&state, header, owner));
    if others.iter().filter(same).count() < limit {
        return Ok(());
    }
    let cause = format!("{limit} are kept, as many as one user may have");
    Err(Error::new(Code::TooManyUnfinished, "open journal", owner, cause))
}

fn is_of(state: &State, header: &Header, owner: &str) -> bool {
    state.header.as_ref().is_some_and(|other| match &state.owner {
        Some(other) => other == owner,
        None => other.account == header.account,
    })
}

/// Reads only the first two records, the header and the owner: a journal may be long.
fn read_start(path: &Path) -> std::io::Result<State> {
    let (mut file, mut records) = (open_regular(path, OpenOptions::new().read(true))?, Vec::new());
    for _ in 0..2 {
        let mut head = [0; RECORD_HEAD_BYTES];
        if let Err(error) = file.read_exact(&mut head) {
            // A journal may consist of its header alone.
            return if records.is_empty() { Err(error) } else { Ok(State::read(&records).0) };
        }
        records.extend(head);
        let length = u32::from_le_bytes(*head.first_chunk().expect("longer than a length"));
        (&mut file).take(u64::from(length).min(MAX_RECORD_BYTES as u64)).read_to_end(&mut records)?;
    }
    Ok(State::read(&records).0)
}

fn file_name(job: u64) -> String {
    format!("{job:016x}.journal")
}

fn same_job(known: &Header, wanted: &Header) -> bool {
    known.job == wanted.job && known.to == wanted.to && known.account == wanted.account
}

pub(crate) fn broken(path: &Path, error: std::io::Error) -> Error {
    let code = match error.kind() {
        std::io::ErrorKind::StorageFull => Code::NoSpace,
        std::io::ErrorKind::QuotaExceeded => Code::QuotaExceeded,
        _ => Code::JournalBroken,
    };
    Error::new(code, "journal", path.display(), error)
}

/// Identity of the machine's present boot; zeros if the kernel does not provide it, so that nothing is trusted.
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
    use renkei_core::mover::journal::VERSION;

    fn header(job: u64) -> Header {
        Header {
            version: VERSION,
            job,
            boot: boot_id(),
            to: None,
            local: b"/x".to_vec(),
            account: "a".into(),
        }
    }

    fn anything(_: u64) -> Result<(), Error> {
        Ok(())
    }

    fn open(folder: &Path, header: &Header) -> Result<(Journal, State), Error> {
        Journal::open(folder, header, &anything)
    }

    fn open_with<S: Fn(&File) -> io::Result<()>>(
        folder: &Path,
        sync: S,
    ) -> Result<(Journal<LockedFile<S>>, State), Error> {
        let file = LockedFile::open(folder, Journal::path_of(folder, 1), sync)?;
        Journal::open_on(file, &header(1), &anything)
    }

    fn finished(n: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        let source = renkei_core::entry::Stamp::default();
        Record::Finished { key: [n; 16], source, ino: 1 }.write(&mut bytes);
        bytes
    }

    #[test]
    fn a_journal_is_reopened_and_its_torn_tail_cut() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, state) = open(folder.path(), &header(1)).unwrap();
        assert!(state.is_empty());
        journal.append(&finished(1)).unwrap();
        journal.append(&finished(2)[..10]).unwrap();
        drop(journal);
        let (mut journal, state) = open(folder.path(), &header(1)).unwrap();
        assert_eq!(state.finished.len(), 1);
        journal.append(&finished(3)).unwrap();
        drop(journal);
        let (journal, state) = open(folder.path(), &header(1)).unwrap();
        assert_eq!(state.finished.len(), 2);
        journal.remove();
        assert!(open(folder.path(), &header(1)).unwrap().1.is_empty());
    }

    #[test]
    fn records_torn_by_a_full_disk_are_rewritten_once_there_is_space() {
        let (file, end) = renkei_config::home::file_with_room(finished(1).len() as u64 + 7);
        let file = LockedFile::of(file);
        let mut journal = Journal { file, end, unwritten: Vec::new() };
        journal.append(&finished(1)).unwrap();
        let whole = journal.end;
        assert_eq!(journal.append(&finished(2)).unwrap_err().code, Code::JournalBroken);
        assert_eq!(journal.file.length().unwrap(), whole);
        // A retry needs no new records.
        assert!(journal.append(&[]).is_err());
        // A disk with free space.
        journal.file = LockedFile::of(tempfile::tempfile().unwrap());
        journal.end = 0;
        journal.append(&finished(3)).unwrap();
        let mut bytes = vec![0; journal.end as usize];
        assert_eq!(journal.file.read_at(&mut bytes, 0).unwrap(), bytes.len());
        let mut whole = Vec::new();
        Record::Header(header(1)).write(&mut whole);
        whole.extend(bytes);
        assert_eq!(State::read(&whole).0.finished.len(), 2);
    }

    #[test]
    fn special_files_are_refused_without_blocking() {
        let folder = tempfile::tempdir().unwrap();
        let path = |job| Journal::path_of(folder.path(), job);
        rustix::fs::mkfifoat(rustix::fs::CWD, path(1), 0o600.into()).unwrap();
        std::os::unix::fs::symlink("/dev/zero", path(2)).unwrap();
        std::fs::create_dir(path(3)).unwrap();
        for job in 1..4 {
            assert_eq!(look(&path(job)).unwrap_err().code, Code::JournalBroken, "{job}");
            assert!(read_start(&path(job)).is_err(), "{job}");
            let refused = open(folder.path(), &header(job)).map(drop).unwrap_err();
            assert_eq!(refused.code, Code::JournalBroken, "{job}");
        }
    }

    #[test]
    fn a_full_disk_is_reported_as_such() {
        let full = std::io::Error::from_raw_os_error(libc::ENOSPC);
        assert_eq!(broken(Path::new("/x"), full).code, Code::NoSpace);
    }

    #[test]
    fn a_journal_longer_than_a_part_is_read_completely() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(folder.path(), &header(1)).unwrap();
        let mut bytes = Vec::new();
        for n in 0..100_000_u32 {
            let key = *blake3::hash(&n.to_le_bytes()).as_bytes().first_chunk().unwrap();
            let source = renkei_core::entry::Stamp { size: u64::MAX, ..Default::default() };
            Record::Finished { key, source, ino: u64::MAX }.write(&mut bytes);
        }
        assert!(bytes.len() as u64 > PART_BYTES);
        journal.append(&bytes).unwrap();
        drop(journal);
        assert_eq!(open(folder.path(), &header(1)).unwrap().1.finished.len(), 100_000);
    }

    #[test]
    fn a_volatile_journal_starts_empty() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(folder.path(), &header(1)).unwrap();
        let fresh = journal.file.length().unwrap();
        (0..4).for_each(|n| journal.append(&finished(n)).unwrap());
        drop(journal);
        let allow = |bytes| match bytes > 3 * 2 * 160 {
            true => Err(Error::new(Code::TooManyEntries, "", "", "")),
            false => Ok(()),
        };
        let (mut journal, state) = Journal::open(folder.path(), &header(1), &allow).unwrap();
        assert!(state.is_empty() && state.header.is_none());
        assert_eq!(journal.file.length().unwrap(), fresh);
        (0..3).for_each(|n| journal.append(&finished(n)).unwrap());
        drop(journal);
        let (journal, state) = Journal::open(folder.path(), &header(1), &allow).unwrap();
        assert_eq!(state.finished.len(), 3);
        // A journal over the length limit is not even read.
        journal.file.cut(MAX_BYTES + 1).unwrap();
        drop(journal);
        let (journal, state) = open(folder.path(), &header(1)).unwrap();
        assert!(state.is_empty());
        assert_eq!(journal.file.length().unwrap(), fresh);
    }

    #[test]
    fn an_attempt_without_new_data_keeps_the_age_of_the_journal() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(folder.path(), &header(1)).unwrap();
        journal.append(&finished(1)).unwrap();
        let long_ago = std::time::SystemTime::now() - Duration::from_secs(86_400);
        let path = journal.file.path().to_path_buf();
        File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        drop(journal);
        let busy = |_| Err(Error::new(Code::OutOfMemory, "", "", ""));
        let refused = Journal::open(folder.path(), &header(1), &busy).err().unwrap();
        assert_eq!(refused.code, Code::OutOfMemory);
        assert_eq!(open(folder.path(), &header(1)).unwrap().1.finished.len(), 1);
        assert_eq!(path.metadata().unwrap().modified().unwrap(), long_ago);
    }

    #[test]
    fn a_folder_without_fsync_support_is_used() {
        let folder = tempfile::tempdir().unwrap();
        for errno in [libc::EINVAL, libc::ENOTSUP] {
            let sync = |file: &File| match file.metadata()?.is_dir() {
                true => Err(std::io::Error::from_raw_os_error(errno)),
                false => Ok(()),
            };
            drop(open_with(folder.path(), &sync).unwrap());
            let sync = |_: &File| Err(std::io::Error::from_raw_os_error(errno));
            let refused = open_with(folder.path(), &sync).err().unwrap();
            assert_eq!(refused.code, Code::JournalBroken, "the file itself");
        }
    }

    /// Inode and length of each file that was fsynced while a journal was opened, in order.
    fn synced_by_opening(folder: &Path) -> Vec<(u64, u64)> {
        use std::os::unix::fs::MetadataExt;
        let synced = std::cell::RefCell::new(Vec::new());
        let sync = |file: &File| {
            let found = file.metadata()?;
            synced.borrow_mut().push((found.ino(), if found.is_file() { found.len() } else { 0 }));
            Ok(())
        };
        drop(open_with(folder, &sync).unwrap());
        synced.into_inner()
    }

    #[test]
    fn the_header_and_every_new_name_are_durable_once_the_journal_is_open() {
        use std::os::unix::fs::MetadataExt;
        let top = tempfile::tempdir().unwrap();
        let folder = top.path().join("state/journal");
        let synced = synced_by_opening(&folder);
        let path = folder.join(format!("{:016x}.journal", 1));
        let ino = |path: &Path| path.metadata().unwrap().ino();
        let header_bytes = path.metadata().unwrap().len();
        assert!(State::read(&std::fs::read(&path).unwrap()).0.header.is_some());
        let folders = [&folder, &top.path().join("state"), top.path()].map(|folder| (ino(folder), 0));
        assert_eq!(synced, [&[(ino(&path), header_bytes)], &folders[..]].concat());
        // The previous run may have ended between writing the header and syncing it.
        assert_eq!(synced_by_opening(&folder), synced[..2]);
    }

    #[test]
    fn a_journal_that_cannot_be_synced_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        for bad in 0..2 {
            let calls = std::cell::Cell::new(0);
            let sync = |_: &File| {
                calls.set(calls.get() + 1);
                if calls.get() > bad { Err(std::io::Error::other("simulated")) } else { Ok(()) }
            };
            let refused = open_with(folder.path(), &sync).err().unwrap();
            assert_eq!(refused.code, Code::JournalBroken);
        }
    }

    #[test]
    fn a_journal_is_locked_by_one_transfer() {
        let folder = tempfile::tempdir().unwrap();
        let _held = open(folder.path(), &header(1)).unwrap();
        let refused = open(folder.path(), &header(1)).err().unwrap();
        assert_eq!(refused.code, Code::TransferBusy);
        assert!(open(folder.path(), &header(2)).is_ok());
    }

    /// Runs that end and begin while a third opens and removes: a journal that is held is the file of that name.
    #[test]
    fn a_locked_journal_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let run = || {
            for _ in 0..100 {
                let Ok((journal, _)) = open(folder.path(), &header(1)) else { continue };
                assert!(journal.file.is_named().unwrap());
                journal.remove();
            }
        };
        std::thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(run))));
    }

    #[test]
    fn unfinished_transfers_of_a_principal_are_limited() {
        let folder = tempfile::tempdir().unwrap();
        let check = |job, owner: &str| {
            check_unfinished(folder.path(), &header(job), owner, 3).map_err(|error| error.code)
        };
        let start = |job, owner: &str| {
            let (mut journal, state) = open(folder.path(), &header(job)).unwrap();
            journal.sign(&state, owner).unwrap();
        };
        assert_eq!(check(1, "ada"), Ok(()));
        (1..=3).for_each(|job| start(job, "ada"));
        assert_eq!(check(4, "ada"), Err(Code::TooManyUnfinished));
        // Job 2 resumes one of these; another principal with the same account has none.
        assert_eq!((check(2, "ada"), check(4, "bob")), (Ok(()), Ok(())));
        std::fs::write(folder.path().join("x.becomes"), "").unwrap();
        open(folder.path(), &header(1)).unwrap().0.remove();
        assert_eq!(check(4, "ada"), Ok(()));
    }

    #[test]
    fn journals_without_a_principal_count_for_their_account() {
        let folder = tempfile::tempdir().unwrap();
        let check = |account: &str| {
            let header = Header { account: account.into(), ..header(4) };
            check_unfinished(folder.path(), &header, "ada", 3).map_err(|error| error.code)
        };
        (1..=3).for_each(|job| drop(open(folder.path(), &header(job)).unwrap()));
        assert_eq!((check("a"), check("b")), (Err(Code::TooManyUnfinished), Ok(())));
        // Once resumed, a journal has an owner, and keeps the first one.
        for owner in ["bob", "eve"] {
            let (mut journal, state) = open(folder.path(), &header(3)).unwrap();
            journal.sign(&state, owner).unwrap();
            assert_eq!(state.owner.as_deref(), (owner == "eve").then_some("bob"));
        }
        assert_eq!(check("a"), Ok(()));
    }

    #[test]
    fn an_unusable_journal_is_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(format!("{:016x}.journal", 7));
        std::fs::write(&path, b"no journal at all").unwrap();
        let (_, state) = open(folder.path(), &header(7)).unwrap();
        assert!(state.is_empty());
        assert!(path.with_extension("bad").exists());
    }

    #[test]
    fn the_boot_id_is_read() {
        assert_ne!(boot_id(), [0; 16]);
    }
}
