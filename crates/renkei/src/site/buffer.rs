//! The PoP's buffer: files of transfers on their way, below the PoP's own directory.
//!
//! Each transfer has a folder of its own, `TRANSFER-ID/`, with the tree it brings in `files/` and what is reserved for
//! it in `reservation`. No storage's name leads there. The rules of who may have how much are in
//! [`renkei_core::buffer`]; here they meet the disk. A reservation is on the disk before it is granted, and goes before
//! the files do, so that whatever a crash leaves is found at the next start: with a reservation it is charged to its
//! owner as before, without one it belongs to nobody and is removed.
//!
//! No lock is held while files are counted or removed. Non-goals: what a receiver writes is not watched here write by write; it is
//! counted when all has come ([`Buffer::seal`]).

use crate::home::{file_error, make_private_dir, write_file};
use crate::identity::account::Account;
use crate::mover::hex;
use crate::store::local::{Access, LocalStore};
use crate::store::tree::{disk_usage, remove_tree};
use crate::store::{Dir, Store};
use renkei_core::buffer::{Answer, Found, Known, Ledger, Limits};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::RelPath;
use renkei_core::wire::message::TransferId;
use renkei_core::wire::{decode, encode};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// Version of a reservation's file.
const VERSION: u8 = 1;
/// Name of the reservation in a transfer's folder.
const RESERVATION: &str = "reservation";
/// Name of the tree beside it.
const FILES: &str = "files";
/// Largest file of a reservation that is read.
const MAX_RESERVATION_BYTES: u64 = 4096;

/// What is reserved for a transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    version: u8,
    /// Who is charged.
    pub owner: Principal,
    /// The account that writes and reads the files.
    pub account: String,
    /// Bytes of content.
    pub bytes: u64,
    /// When it expires, milliseconds since 1970.
    pub until_ms: u64,
}

impl Reservation {
    /// Room of so many bytes until then.
    pub fn new(owner: &Principal, account: &Account, bytes: u64, until_ms: u64) -> Self {
        Reservation { version: VERSION, owner: owner.clone(), account: account.name.clone(), bytes, until_ms }
    }
}

struct State {
    ledger: Ledger,
    /// What those that wait will have.
    wanted: HashMap<TransferId, Reservation>,
}

/// The buffer of one PoP.
pub struct Buffer {
    folder: PathBuf,
    state: Mutex<State>,
}

impl Buffer {
    /// Opens the buffer in a folder, made if it is missing, and takes up what is in it.
    ///
    /// # Errors
    /// Those of the file system; a single reservation that cannot be read makes its files nobody's.
    pub fn open(folder: &Path, limits: Limits) -> Result<Self, Error> {
        make_private_dir(folder)?;
        let (mut known, mut found) = (Vec::new(), Vec::new());
        for (id, path) in transfers_in(folder)? {
            found.push(Found { id, bytes: bytes_in(&path)? });
            match read(&path.join(RESERVATION)) {
                Ok(Reservation { owner, bytes, until_ms, .. }) => {
                    known.push(Known { id, owner, bytes, until_ms });
                }
                Err(error) => tracing::warn!(transfer = hex(&id), %error, "files in the buffer are nobody's"),
            }
        }
        let state = State { ledger: Ledger::recover(limits, known, &found), wanted: HashMap::new() };
        Ok(Buffer { folder: folder.into(), state: Mutex::new(state) })
    }

    /// Asks for room. Asking again changes nothing, unless it is for more.
    ///
    /// # Errors
    /// As [`Ledger::ask`], and those of the file system.
    pub fn reserve(&self, id: TransferId, wanted: Reservation) -> Result<Answer, Error> {
        let mut state = self.lock();
        let answer = state.ledger.ask(id, &wanted.owner, wanted.bytes, wanted.until_ms)?;
        match answer {
            Answer::Granted => self.keep(&mut state, &id, &wanted)?,
            Answer::Waits(_) => drop(state.wanted.insert(id, wanted)),
        }
        Ok(answer)
    }

    /// What was reserved for a transfer.
    pub fn reservation(&self, id: &TransferId) -> Result<Reservation, Error> {
        read(&self.path(id).join(RESERVATION))
    }

    /// The tree of a transfer that has room, to be written and read by its account.
    pub fn store(&self, id: &TransferId) -> Result<Arc<dyn Store>, Error> {
        self.reservation(id)?;
        let path = self.path(id).join(FILES);
        Ok(Arc::new(LocalStore::open(&path, Access::ReadWrite)?))
    }

    /// All of a transfer has come: its bytes are counted, and what it did not use is given back.
    ///
    /// # Errors
    /// `BufferFull` if it is more than was reserved and that cannot grow; it is charged as reserved then.
    pub fn seal(&self, id: &TransferId) -> Result<u64, Error> {
        let mut reservation = self.reservation(id)?;
        let bytes = bytes_in(&self.path(id))?;
        let mut state = self.lock();
        if bytes > reservation.bytes {
            state.ledger.ask(*id, &reservation.owner, bytes, reservation.until_ms)?;
        }
        reservation.bytes = bytes;
        write_reservation(&self.path(id), &reservation)?;
        state.ledger.counted(id, bytes);
        state.ledger.seal(id);
        Ok(bytes)
    }

    /// A transfer needs its room no more: its files are removed, then the room is free.
    pub fn leave(&self, id: &TransferId) -> Result<(), Error> {
        let has_files = {
            let mut state = self.lock();
            state.wanted.remove(id);
            state.ledger.leave(id)
        };
        if has_files { self.remove(id) } else { Ok(()) }
    }

    /// Removes what expired and what nobody owns; gives those that waited and have room now, or never will.
    pub fn tend(&self, now_ms: u64) -> Vec<(TransferId, Result<(), Error>)> {
        let leaving = {
            let mut state = self.lock();
            for id in state.ledger.expire(now_ms) {
                state.wanted.remove(&id);
                tracing::info!(transfer = hex(&id), "its room in the buffer expired");
            }
            state.ledger.leaving()
        };
        for id in leaving {
            if let Err(error) = self.remove(&id) {
                tracing::warn!(transfer = hex(&id), %error, "cannot be removed from the buffer yet");
            }
        }
        let mut state = self.lock();
        let told = state.ledger.poll();
        told.into_iter().map(|(id, granted)| (id, self.on_granted(&mut state, &id, granted))).collect()
    }

    /// Bytes charged to each owner; what belongs to nobody is told under no name.
    pub fn owners(&self) -> std::collections::BTreeMap<Option<Principal>, u64> {
        self.lock().ledger.owners()
    }

    fn on_granted(
        &self,
        state: &mut State,
        id: &TransferId,
        granted: Result<(), Error>,
    ) -> Result<(), Error> {
        let wanted = state.wanted.remove(id);
        granted?;
        match wanted {
            Some(wanted) => self.keep(state, id, &wanted),
            None => Ok(()),
        }
    }

    /// Puts a granted reservation on the disk, with an empty tree if there is none; what cannot be kept is not granted.
    fn keep(&self, state: &mut State, id: &TransferId, wanted: &Reservation) -> Result<(), Error> {
        let path = self.path(id);
        let before = read(&path.join(RESERVATION)).ok();
        if before.as_ref().is_some_and(|before| before.bytes >= wanted.bytes) {
            return Ok(());
        }
        let kept = make_tree(&path, &wanted.account).and_then(|()| write_reservation(&path, wanted));
        if kept.is_err() && before.is_none() {
            state.ledger.leave(id);
        }
        kept
    }

    /// Removes the files of one that leaves; the reservation first, so that a crash leaves them nobody's.
    fn remove(&self, id: &TransferId) -> Result<(), Error> {
        let store = LocalStore::open(&self.folder, Access::ReadWrite)?;
        let (root, name) = (store.root()?, hex(id));
        let gone = |result: Result<(), Error>| match result {
            Err(error) if error.code == Code::PathNotFound => Ok(()),
            other => other,
        };
        if let Ok(dir) = root.child(name.as_bytes()) {
            gone(dir.remove_file(RESERVATION.as_bytes()))?;
            dir.sync()?;
        }
        gone(remove_tree(&*root, name.as_bytes()).map(drop))?;
        root.sync()?;
        self.lock().ledger.gone(id);
        Ok(())
    }

    fn path(&self, id: &TransferId) -> PathBuf {
        self.folder.join(hex(id))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }
}

/// The folders of transfers; anything else there is left alone.
fn transfers_in(folder: &Path) -> Result<Vec<(TransferId, PathBuf)>, Error> {
    let listed = std::fs::read_dir(folder).map_err(|error| file_error("read", folder, &error))?;
    let mut found = Vec::new();
    for entry in listed {
        let entry = entry.map_err(|error| file_error("read", folder, &error))?;
        found.extend(entry.file_name().to_str().and_then(parse_id).map(|id| (id, entry.path())));
    }
    Ok(found)
}

/// A transfer's id in the one form that a folder's name has.
fn parse_id(name: &str) -> Option<TransferId> {
    let number = u128::from_str_radix(name, 16).ok()?;
    let id = number.to_be_bytes();
    (hex(&id) == name).then_some(id)
}

/// Bytes of content in a transfer's tree.
fn bytes_in(path: &Path) -> Result<u64, Error> {
    let store = LocalStore::open(path, Access::ReadOnly)?;
    let files: Result<Arc<dyn Dir>, Error> = store.dir(&RelPath::parse(FILES.as_bytes())?);
    match files {
        Ok(dir) => Ok(disk_usage(&dir, &|| Ok(()))?.bytes),
        Err(error) if error.code == Code::PathNotFound => Ok(0),
        Err(error) => Err(error),
    }
}

/// Makes a transfer's folder, and in it the empty tree for its account.
fn make_tree(path: &Path, account: &str) -> Result<(), Error> {
    let account = Account::lookup(account)?;
    account.check_servable()?;
    make_private_dir(path)?;
    let files = path.join(FILES);
    make_private_dir(&files)?;
    if rustix::process::geteuid().is_root() {
        chown(&files, Some(account.uid), Some(account.gid))
            .map_err(|error| file_error("give to the account", &files, &error))?;
    }
    Ok(())
}

fn write_reservation(path: &Path, reservation: &Reservation) -> Result<(), Error> {
    write_file(&path.join(RESERVATION), &encode(reservation), 0o600)
}

fn read(path: &Path) -> Result<Reservation, Error> {
    let unusable = |error| file_error("read", path, &error);
    if std::fs::metadata(path).map_err(unusable)?.len() > MAX_RESERVATION_BYTES {
        return Err(Error::new(Code::IoFailed, "read", path.display(), "it is no reservation"));
    }
    let reservation: Reservation =
        decode("reservation", &std::fs::read(path).map_err(|error| file_error("read", path, &error))?)?;
    match reservation.version {
        VERSION => Ok(reservation),
        other => {
            let cause = format!("version {other}, this program knows {VERSION}");
            Err(Error::new(Code::IoFailed, "read", path.display(), cause))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::buffer::Shortage;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    const LIMITS: Limits = Limits { capacity: 100, quota: 60 };

    fn who(name: &str) -> Principal {
        Principal::parse(&format!("{name}@kek")).unwrap()
    }

    fn id(number: u8) -> TransferId {
        [number; 16]
    }

    fn room(owner: &str, bytes: u64, until_ms: u64) -> Reservation {
        Reservation::new(&who(owner), &Account::own().unwrap(), bytes, until_ms)
    }

    fn used(buffer: &Buffer) -> u64 {
        buffer.owners().values().sum()
    }

    fn write(dir: &Path, number: u8, name: &str, bytes: usize) {
        fs::write(dir.join(hex(&id(number))).join(FILES).join(name), vec![7; bytes]).unwrap();
    }

    #[test]
    fn room_is_reserved_used_counted_and_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let buffer = Buffer::open(dir.path(), LIMITS).unwrap();
        assert!(buffer.store(&id(1)).is_err());
        assert_eq!(buffer.reserve(id(1), room("alice", 50, 9)), Ok(Answer::Granted));
        buffer.store(&id(1)).unwrap().root().unwrap().mkdir(b"sub", 0o700).unwrap();
        write(dir.path(), 1, "sub/f", 20);
        let mode = dir.path().join(hex(&id(1))).metadata().unwrap().permissions().mode();
        assert_eq!((used(&buffer), mode & 0o777), (50, 0o700));
        assert_eq!(buffer.seal(&id(1)), Ok(20));
        assert_eq!((used(&buffer), buffer.reservation(&id(1)).unwrap().bytes), (20, 20));
        buffer.leave(&id(1)).unwrap();
        assert_eq!((used(&buffer), fs::read_dir(dir.path()).unwrap().count()), (0, 0));
        assert_eq!(buffer.reserve(id(1), room("bob", 5, 9)), Ok(Answer::Granted));
    }

    #[test]
    fn who_waits_has_nothing_on_the_disk_until_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        let buffer = Buffer::open(dir.path(), LIMITS).unwrap();
        buffer.reserve(id(1), room("alice", 60, 9)).unwrap();
        assert_eq!(buffer.reserve(id(2), room("bob", 50, 9)), Ok(Answer::Waits(Shortage::Space(10))));
        assert!(buffer.store(&id(2)).is_err() && buffer.tend(0).is_empty());
        buffer.leave(&id(1)).unwrap();
        assert_eq!(buffer.tend(0), [(id(2), Ok(()))]);
        buffer.store(&id(2)).unwrap();
        assert!(buffer.tend(8).is_empty());
        assert_eq!(used(&buffer), 50);
        // What expires goes from the disk.
        assert!(buffer.tend(9).is_empty());
        assert_eq!((used(&buffer), fs::read_dir(dir.path()).unwrap().count()), (0, 0));
    }

    #[test]
    fn a_start_finds_what_was_left() {
        let dir = tempfile::tempdir().unwrap();
        let buffer = Buffer::open(dir.path(), LIMITS).unwrap();
        for (number, owner) in [(1, "alice"), (2, "bob"), (3, "carol")] {
            buffer.reserve(id(number), room(owner, 30, 9)).unwrap();
            write(dir.path(), number, "f", 10);
        }
        drop(buffer);
        let of = |number: u8| dir.path().join(hex(&id(number)));
        // One whose removal was cut short, one that is unreadable, and something that is none.
        fs::remove_file(of(2).join(RESERVATION)).unwrap();
        fs::write(of(3).join(RESERVATION), b"\x09nonsense").unwrap();
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        let buffer = Buffer::open(dir.path(), LIMITS).unwrap();
        let owners: Vec<_> = buffer.owners().into_iter().collect();
        assert_eq!(owners, [(None, 20), (Some(who("alice")), 30)]);
        assert!(buffer.tend(0).is_empty());
        assert!(!of(2).exists() && !of(3).exists() && of(1).exists());
        assert_eq!((used(&buffer), dir.path().join("lost+found").exists()), (30, true));
        assert_eq!(buffer.reserve(id(1), room("alice", 30, 9)), Ok(Answer::Granted));
        assert_eq!(buffer.seal(&id(1)), Ok(10));
    }

    #[test]
    fn more_than_was_reserved_is_charged_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let buffer = Buffer::open(dir.path(), LIMITS).unwrap();
        buffer.reserve(id(1), room("alice", 5, 9)).unwrap();
        write(dir.path(), 1, "f", 40);
        assert_eq!(buffer.seal(&id(1)), Ok(40));
        assert_eq!(used(&buffer), 40);
        write(dir.path(), 1, "g", 40);
        assert_eq!(buffer.seal(&id(1)).unwrap_err().code, Code::BufferTooSmall);
        assert_eq!(used(&buffer), 40);
    }

    #[test]
    fn folders_have_one_form_of_an_id() {
        assert_eq!(parse_id(&hex(&id(0xa0))), Some(id(0xa0)));
        for other in
            ["", "a0", "lost+found", &"A0".repeat(16), &format!("+{}", "a0".repeat(16)[1..].to_owned())]
        {
            assert_eq!(parse_id(other), None, "{other}");
        }
    }
}
