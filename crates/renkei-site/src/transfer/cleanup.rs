//! Clean-up of abandoned transfers: removes journals, the command line's markers beside them, and temporary files
//! at their destinations.
//!
//! Works as the account of the transfer, on names that carry its key alone, so it can touch nothing else. A journal
//! that is in use is locked and skipped; one whose storage is missing waits for the next round.

use crate::Context;
use renkei_config::home::{Home, open_regular};
use renkei_core::buffer::{STORAGE, split};
use renkei_core::error::{Code, Error};
use renkei_core::mover::journal::{Header, State, check_version};
use renkei_core::path::{Place, RelPath};
use renkei_mover::journal::{Journal, leads_to};
use renkei_net::identity::account::Account;
use renkei_store::local::{AccessMode as Mode, LocalStore};
use renkei_store::temp::temp_job;
use renkei_store::{Dir, Store, TypeHint};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Age since the last write at which a journal counts as abandoned.
pub const ABANDONED_AFTER: Duration = Duration::from_secs(7 * 86_400);
/// Interval of the clean-up.
const EVERY: Duration = Duration::from_secs(86_400);
/// Maximum bytes of a journal read for its header.
const HEADER_BYTES: u64 = 128 << 10;

/// Starts the clean-up thread, which runs now and once a day as long as the PoP lives.
pub fn spawn_cleanup(context: &Arc<Context>) -> Result<(), Error> {
    context.spawn_every(context, "cleanup", EVERY, |context| clean_up(context, SystemTime::now()))
}

/// Removes the leftovers of the job with this key, unless it is in use.
pub(crate) fn clean_up_job(context: &Context, job: u64) {
    let path = Journal::path_of(&context.home().journal_dir(), job);
    match drop_one(context, &path) {
        Ok(removed) => tracing::info!(journal = %path.display(), ?removed, "an abandoned draft was found"),
        Err(error) => tracing::debug!(journal = %path.display(), %error, "it is kept for now"),
    }
}

/// Removes one journal of a PoP with its files, whatever its age; `None` if a transfer holds it.
pub(crate) fn drop_one(context: &Context, path: &Path) -> Result<Option<u64>, Error> {
    clean_one(path, SystemTime::now() + 2 * ABANDONED_AFTER, &|header| destination(context, header))
}

/// The same for a journal of the command line of this account.
pub fn drop_own(path: &Path) -> Result<Option<u64>, Error> {
    clean_one(path, SystemTime::now() + 2 * ABANDONED_AFTER, &local_destination)
}

/// Removes the transfers that were abandoned at `now`.
fn clean_up(context: &Context, now: SystemTime) {
    clean_up_in(context.home(), now, &|header| destination(context, header));
}

/// Removes abandoned transfers of the command line of this account; for directories without a PoP.
pub fn clean_up_own(home: &Home, now: SystemTime) {
    clean_up_in(home, now, &|header| match header.to {
        None => local_destination(header),
        Some(_) => Err(Error::new(Code::NotInitialised, "clean up", "", "a PoP's journal")),
    });
}

fn clean_up_in(home: &Home, now: SystemTime, find: &dyn Fn(&Header) -> Result<Destination, Error>) {
    for path in abandoned(home, now) {
        match clean_one(&path, now, find) {
            Ok(Some(removed)) => {
                tracing::info!(journal = %path.display(), removed, "removed an abandoned transfer");
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(journal = %path.display(), %error, "an abandoned transfer could not be removed")
            }
        }
    }
}

/// Journals, broken ones set aside, and markers of running copies that are old enough.
fn abandoned(home: &Home, now: SystemTime) -> Vec<PathBuf> {
    let Ok(listing) = std::fs::read_dir(home.journal_dir()) else { return Vec::new() };
    let old = |path: &PathBuf| path.metadata().is_ok_and(|metadata| is_old(&metadata, now));
    let named = |path: &PathBuf| {
        path.extension()
            .is_some_and(|kind| ["journal", "bad", "becomes", "buffered"].iter().any(|known| kind == *known))
    };
    listing.flatten().map(|entry| entry.path()).filter(|path| named(path) && old(path)).collect()
}

fn is_old(metadata: &Metadata, now: SystemTime) -> bool {
    let age = metadata.modified().map(|time| now.duration_since(time).unwrap_or_default());
    age.is_ok_and(|age| age > ABANDONED_AFTER)
}

/// The destination of a transfer, and its account.
struct Destination {
    store: Arc<dyn Store>,
    path: RelPath,
    account: Account,
}

/// Removes one journal with its files, unless it is locked or not old enough at `now`; returns the number of files
/// removed.
fn clean_one(
    path: &Path,
    now: SystemTime,
    find: &dyn Fn(&Header) -> Result<Destination, Error>,
) -> Result<Option<u64>, Error> {
    let broken = |error: std::io::Error| Error::new(Code::JournalBroken, "clean up", path.display(), error);
    let mut file = open_regular(path, File::options().read(true).write(true)).map_err(broken)?;
    // A transfer may have ended and another one begun between the check, the open and the lock.
    let taken = file.try_lock().is_err() || !leads_to(path, &file).map_err(broken)?;
    if taken || !is_old(&file.metadata().map_err(broken)?, now) {
        return Ok(None);
    }
    let mut start = Vec::new();
    file.by_ref().take(HEADER_BYTES).read_to_end(&mut start).map_err(broken)?;
    check_version(&start)?;
    let removed = match State::read(&start).0.header {
        Some(header) if path.extension() == Some(OsStr::new("journal")) => {
            let Destination { store, path, account } = find(&header)?;
            let job = header.job;
            let work = move || remove_temps(&*store, &path, job);
            account.spawn("cleanup", work)?.join().expect("a panic aborts the process")?
        }
        // The files of a journal set aside were sent again under the same names, by a later run with its own
        // journal.
        _ => 0,
    };
    std::fs::remove_file(path).map_err(broken)?;
    Ok(Some(removed))
}

fn local_destination(header: &Header) -> Result<Destination, Error> {
    let local = Path::new(OsStr::from_bytes(&header.local));
    let store = Arc::new(LocalStore::open(local, Mode::ReadWrite)?);
    Ok(Destination { store, path: RelPath::root(), account: Account::lookup(&header.account)? })
}

fn destination(context: &Context, header: &Header) -> Result<Destination, Error> {
    let Some(to) = &header.to else { return local_destination(header) };
    if to.storage == STORAGE {
        return in_buffer(context, to);
    }
    let account = Account::lookup(&header.account)?;
    let snapshot = context.snapshot();
    Ok(Destination { store: snapshot.store(&to.storage)?, path: to.path.clone(), account })
}

/// Resolved below the buffer's own folder, which the accounts of transfers cannot enter.
fn in_buffer(context: &Context, to: &Place) -> Result<Destination, Error> {
    let buffer = context.last_snapshot().buffer()?;
    let store = Arc::new(LocalStore::open(buffer.folder(), Mode::ReadWrite)?);
    let (id, path) = split(to).unwrap_or_default();
    Ok(Destination { store, path: buffer.files_of(&id)?.join(&path)?, account: Account::own()? })
}

/// Removes the temporary files of `job` below a directory. Symbolic links are not followed.
fn remove_temps(store: &dyn Store, top: &RelPath, job: u64) -> Result<u64, Error> {
    let top = match store.dir(top) {
        Ok(top) => top,
        Err(error) if matches!(error.code, Code::PathNotFound | Code::NotADirectory) => return Ok(0),
        Err(error) => return Err(error),
    };
    let (mut removed, mut todo) = (0, vec![RelPath::root()]);
    while let Some(path) = todo.pop() {
        // A directory that cannot be entered cannot hold files of this account's transfer, or is gone.
        let Ok(dir) = top.descend(&path) else { continue };
        removed += remove_temps_in(&*dir, &path, job, &mut todo)?;
    }
    Ok(removed)
}

fn remove_temps_in(dir: &dyn Dir, path: &RelPath, job: u64, todo: &mut Vec<RelPath>) -> Result<u64, Error> {
    let mut removed = 0;
    let Ok(listing) = dir.list() else { return Ok(0) };
    for listed in listing {
        let listed = listed?;
        if temp_job(&listed.name) == Some(job) {
            match dir.remove_file(&listed.name) {
                Ok(()) => removed += 1,
                Err(error) if matches!(error.code, Code::PathNotFound | Code::IsADirectory) => {}
                Err(error) => return Err(error),
            }
        } else if matches!(listed.hint, TypeHint::Dir | TypeHint::Unknown) {
            todo.push(path.child(&listed.name)?);
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_mover::journal::boot_id;
    use renkei_store::temp::temp_name;

    struct Case {
        _dir: tempfile::TempDir,
        home: Home,
        root: PathBuf,
    }

    /// A storage with temporary files of the jobs 1 and 2, and a journal of job 1.
    fn case() -> Case {
        let dir = tempfile::tempdir().unwrap();
        let (home, root) = (Home::at(dir.path()), dir.path().join("data"));
        std::fs::create_dir_all(root.join("run/deep")).unwrap();
        for (job, name) in [(1, "run/a"), (1, "run/deep/b"), (2, "run/c")] {
            let path = root.join(name);
            let temp = temp_name(job, &RelPath::parse(name.as_bytes()).unwrap());
            std::fs::write(path.with_file_name(OsStr::from_bytes(&temp)), "part").unwrap();
        }
        std::fs::write(root.join("run/kept"), "whole").unwrap();
        let header = Header {
            version: renkei_core::mover::journal::VERSION,
            job: 1,
            boot: boot_id(),
            to: Some(Place { storage: "data".into(), path: RelPath::parse(b"run").unwrap() }),
            local: Vec::new(),
            account: Account::own().unwrap().name,
        };
        drop(Journal::open(&home.journal_dir(), &header, &|_| Ok(())).unwrap());
        Case { _dir: dir, home, root }
    }

    impl Case {
        fn find(&self, header: &Header) -> Result<Destination, Error> {
            let store = Arc::new(LocalStore::open(&self.root, Mode::ReadWrite)?);
            let to = header.to.clone().unwrap();
            Ok(Destination { store, path: to.path, account: Account::own()? })
        }

        fn temps(&self) -> usize {
            let names = [self.root.join("run"), self.root.join("run/deep")];
            let names = names.iter().flat_map(|dir| std::fs::read_dir(dir).unwrap());
            names.filter(|entry| temp_job(entry.as_ref().unwrap().file_name().as_bytes()).is_some()).count()
        }
    }

    #[test]
    fn only_old_journals_are_abandoned() {
        let case = case();
        let now = SystemTime::now();
        assert!(abandoned(&case.home, now + Duration::from_secs(6 * 86_400)).is_empty());
        assert_eq!(abandoned(&case.home, now + Duration::from_secs(8 * 86_400)).len(), 1);
    }

    /// A time at which files written now are long abandoned.
    fn later() -> SystemTime {
        SystemTime::now() + 2 * ABANDONED_AFTER
    }

    #[test]
    fn only_the_files_of_the_job_are_removed() {
        let case = case();
        let path = case.home.journal_dir().join("0000000000000001.journal");
        assert_eq!(case.temps(), 3);
        assert_eq!(clean_one(&path, later(), &|header| case.find(header)).unwrap(), Some(2));
        assert_eq!(case.temps(), 1);
        assert!(!path.exists() && case.root.join("run/kept").exists());
    }

    #[test]
    fn a_journal_in_use_or_without_its_storage_stays() {
        let case = case();
        let path = case.home.journal_dir().join("0000000000000001.journal");
        let held = File::open(&path).unwrap();
        held.try_lock().unwrap();
        assert_eq!(clean_one(&path, later(), &|header| case.find(header)).unwrap(), None);
        drop(held);
        let missing = |_: &Header| Err(Error::new(Code::StorageMissing, "open", "data", ""));
        assert_eq!(clean_one(&path, later(), &missing).unwrap_err().code, Code::StorageMissing);
        // A transfer resumed it between the directory listing and the lock.
        assert_eq!(clean_one(&path, SystemTime::now(), &|header| case.find(header)).unwrap(), None);
        assert!(path.exists() && case.temps() == 3);
    }

    #[test]
    fn a_marker_goes_with_its_time_unless_its_copy_runs() {
        let case = case();
        let path = case.home.journal_dir().join("0000000000000002.becomes");
        std::fs::write(&path, "").unwrap();
        assert!(abandoned(&case.home, later()).contains(&path));
        let held = File::open(&path).unwrap();
        held.lock_shared().unwrap();
        assert_eq!(clean_one(&path, later(), &|header| case.find(header)).unwrap(), None);
        drop(held);
        assert_eq!(clean_one(&path, later(), &|header| case.find(header)).unwrap(), Some(0));
        assert!(!path.exists() && case.temps() == 3);
    }
}
