//! The PoP's buffer: files of transfers on their way, in a folder that no storage's name leads to.
//!
//! Each transfer has a folder of its own, `TRANSFER-ID/`, with its tree in `files/` and its reservation in
//! `reservation`. The accounting rules are in [`renkei_core::buffer`]; this module applies them to the disk. A
//! reservation is on the disk before it is granted, and is removed before the files are, so that leftovers of a
//! crash are found at the next start: with a reservation they are charged to their owner as before, without one
//! they are orphans and are removed. When all files of a transfer have arrived it is *sealed*: it becomes
//! read-only, and unused space is released.
//!
//! Guarantee: no more is on the disk than is charged, because a receiver asks before it writes ([`Buffer::write`]).
//! A file counts with its length, including holes. No lock is held while files are counted or removed. One process
//! has a buffer at a time.

pub mod api;
pub(crate) mod digests;

use super::buffer::digests::{DIGESTS, sync};
use renkei_config::home::{file_error, make_private_dir, write_file};
use renkei_core::buffer::{Answer, Charge, DiskUsage, Ledger, Limits, PersistedReservation, Waiting};
use renkei_core::error::{Code, Error};
use renkei_core::format::Format;
use renkei_core::identity::Principal;
use renkei_core::path::RelPath;
use renkei_core::wire::buffer::{Room, RoomState};
use renkei_core::wire::decode;
use renkei_core::wire::message::TransferId;
use renkei_mover::hex;
use renkei_net::identity::account::Account;
use renkei_store::local::{AccessMode, LocalStore};
use renkei_store::strict_modes::refuse_exposed;
use renkei_store::tree::{disk_usage, remove_tree};
use renkei_store::{Dir, Store, TypeHint};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// The format of the reservation file.
pub(crate) const FORMAT: Format<Reservation> = Format::numbered("reservation", &[decode]);
/// Name of the reservation file in a transfer's folder.
const RESERVATION: &str = "reservation";
/// Name of the tree beside it.
pub(super) const FILES: &str = "files";
/// Name of the lock file of the process that has the buffer.
const LOCK: &str = "lock";
/// Maximum size of a reservation file.
const MAX_RESERVATION_BYTES: u64 = 4096;
/// Retention of an incomplete transfer after the last write, in milliseconds: a day to resume it.
pub(super) const UNFINISHED_MS: u64 = 24 * 3600 * 1000;

/// The reservation of a transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// The principal that is charged.
    pub owner: Principal,
    /// The account that writes and reads the files.
    pub account: String,
    /// Bytes of content.
    pub bytes: u64,
    /// Its start, milliseconds since 1970.
    pub since_ms: u64,
    /// Its expiry, milliseconds since 1970.
    pub until_ms: u64,
    /// Whether all files have arrived.
    pub sealed: bool,
}

impl Reservation {
    /// A reservation of `bytes`.
    pub fn new(owner: &Principal, account: &str, bytes: u64, now_ms: u64, until_ms: u64) -> Self {
        let (owner, account) = (owner.clone(), account.to_owned());
        Reservation { owner, account, bytes, since_ms: now_ms, until_ms, sealed: false }
    }
}

struct State {
    ledger: Ledger,
    /// Requests that wait for space.
    wanted: HashMap<TransferId, Reservation>,
    /// Granted reservations, as on the disk.
    kept: HashMap<TransferId, Reservation>,
    /// Transfers that are being received, with the number of sessions.
    filling: HashMap<TransferId, usize>,
}

/// The buffer of one PoP.
pub struct Buffer {
    folder: PathBuf,
    state: Mutex<State>,
    /// The lock file, locked as long as this lives.
    _lock: File,
}

/// Marks a transfer as being received while it lives.
pub struct Filling {
    buffer: Arc<Buffer>,
    id: TransferId,
    /// Whether some of its data had arrived before.
    pub(super) is_begun: bool,
}

impl Drop for Filling {
    fn drop(&mut self) {
        let mut state = self.buffer.lock();
        if let Some(count) = state.filling.get_mut(&self.id) {
            *count -= 1;
        }
        state.filling.retain(|_, count| *count > 0);
    }
}

impl Buffer {
    /// Opens the buffer in a folder, which is created if missing, and recovers its content.
    ///
    /// # Errors
    /// `BufferExposed`, `BufferMissing` if another process has it, and those of the file system; `FormatNewer` for a
    /// reservation of a newer version. Any other unreadable reservation makes its files orphans.
    pub fn open(folder: &Path, limits: Limits) -> Result<Self, Error> {
        refuse_exposed(folder, &[geteuid().as_raw()])?;
        make_private_dir(folder)?;
        // Another process may have created it meanwhile.
        refuse_exposed(folder, &[geteuid().as_raw()])?;
        let lock = take(folder)?;
        let (mut known, mut found, mut kept) = (Vec::new(), Vec::new(), HashMap::new());
        for (id, path) in transfers_in(folder)? {
            found.push(DiskUsage { id, bytes: bytes_in(&path)? });
            match read(&path.join(RESERVATION)) {
                Ok(reservation) => {
                    let Reservation { owner, bytes, until_ms, .. } = reservation.clone();
                    known.push(PersistedReservation { id, owner, bytes, until_ms });
                    kept.insert(id, reservation);
                }
                Err(error) if error.code == Code::FormatNewer => return Err(error),
                Err(error) => {
                    tracing::warn!(transfer = hex(&id), %error, "files in the buffer belong to no transfer")
                }
            }
        }
        let ledger = Ledger::recover(limits, known, &found);
        let state = State { ledger, wanted: HashMap::new(), kept, filling: HashMap::new() };
        Ok(Buffer { folder: folder.into(), state: Mutex::new(state), _lock: lock })
    }

    /// Requests space. A repeated request changes nothing, unless it is for more; it extends a granted reservation
    /// to `wanted.until_ms`, and a waiting one until `patience_ms`.
    ///
    /// # Errors
    /// As [`Ledger::ask`], and those of the file system.
    pub fn reserve(&self, id: TransferId, wanted: Reservation, patience_ms: u64) -> Result<Answer, Error> {
        let mut state = self.lock();
        let answer = state.ledger.ask(id, &wanted.owner, wanted.bytes, patience_ms)?;
        match answer {
            Answer::Granted => self.record(&mut state, &id, &wanted)?,
            Answer::Waits(_) => drop(state.wanted.insert(id, wanted)),
        }
        Ok(answer)
    }

    /// The granted reservation of a transfer.
    ///
    /// # Errors
    /// `BufferGone`.
    pub fn reservation(&self, id: &TransferId) -> Result<Reservation, Error> {
        let state = self.lock();
        let leaves = state.ledger.held_by(id).is_none_or(|held| held.leaving);
        state.kept.get(id).filter(|_| !leaves).cloned().ok_or_else(|| gone(id))
    }

    /// The tree of a transfer with a reservation, to be written and read by its account.
    ///
    /// # Errors
    /// `BufferGone`, also for all but the owner; `ReadOnlyStorage` for writing to a sealed one; `NotMapped` if its
    /// owner is mapped to another account by now.
    pub fn enter(
        &self,
        id: &TransferId,
        owner: &Principal,
        account: &str,
        write: bool,
    ) -> Result<Arc<dyn Store>, Error> {
        let reservation = self.reservation(id)?;
        if reservation.owner != *owner {
            return Err(gone(id));
        }
        if reservation.account != account {
            let cause =
                format!("the files belong to {}, you are mapped to {account} now", reservation.account);
            return Err(Error::new(Code::NotMapped, "open", hex(id), cause));
        }
        if write && reservation.sealed {
            return Err(Error::new(Code::ReadOnlyStorage, "open", hex(id), "all of it has arrived"));
        }
        Ok(Arc::new(LocalStore::open(&self.path(id).join(FILES), AccessMode::ReadWrite)?))
    }

    /// Begins to receive a transfer: counts the files present, and extends the reservation.
    pub fn filling(self: &Arc<Self>, id: TransferId, now_ms: u64) -> Result<Filling, Error> {
        let bytes = bytes_in(&self.path(&id))?;
        let mut state = self.lock();
        state.ledger.counted(&id, bytes);
        *state.filling.entry(id).or_default() += 1;
        let filling = Filling { buffer: self.clone(), id, is_begun: bytes > 0 };
        let kept = self.lengthen(&mut state, &id, now_ms + UNFINISHED_MS);
        drop(state);
        kept.map(|()| filling)
    }

    /// Charges `bytes` more to a transfer; called before they are written.
    ///
    /// # Errors
    /// `BufferFull`.
    pub fn write(&self, id: &TransferId, bytes: u64) -> Result<(), Error> {
        self.lock().ledger.write(id, bytes)
    }

    /// The file of the digests of received slots.
    pub(super) fn digests(&self, id: &TransferId) -> PathBuf {
        self.path(id).join(DIGESTS)
    }

    /// Seals a transfer whose files have all arrived: counts its bytes, releases unused space, and keeps it until
    /// `until_ms`. Sealing it again only extends that.
    ///
    /// # Errors
    /// `BufferGone`, also for all but the owner; `BufferFull` if it is larger than its reservation and that cannot
    /// grow.
    pub fn seal(&self, id: &TransferId, owner: &Principal, until_ms: u64) -> Result<u64, Error> {
        let mut reservation = self.reservation(id)?;
        if reservation.owner != *owner {
            return Err(gone(id));
        }
        let bytes = if reservation.sealed { reservation.bytes } else { bytes_in(&self.path(id))? };
        sync(&self.digests(id))?;
        let mut state = self.lock();
        if bytes > reservation.bytes {
            state.ledger.ask(*id, owner, bytes, until_ms)?;
        }
        (reservation.bytes, reservation.sealed) = (bytes, true);
        reservation.until_ms = reservation.until_ms.max(until_ms);
        write_reservation(&self.path(id), &reservation)?;
        state.ledger.counted(id, bytes);
        state.ledger.seal(id);
        state.ledger.keep(id, until_ms);
        state.kept.insert(*id, reservation);
        Ok(bytes)
    }

    /// Keeps a transfer at least until `until_ms`.
    pub fn keep(&self, id: &TransferId, until_ms: u64) {
        self.lock().ledger.keep(id, until_ms);
    }

    /// Releases a transfer: its files are removed, then the space is free.
    pub fn leave(&self, id: &TransferId) -> Result<(), Error> {
        let has_files = {
            let mut state = self.lock();
            state.wanted.remove(id);
            state.ledger.leave(id)
        };
        if has_files { self.remove(id) } else { Ok(()) }
    }

    /// Removes expired transfers and orphans; returns waiting requests that were granted now, or cannot be granted
    /// any more.
    pub fn tend(&self, now_ms: u64) -> Vec<(TransferId, Result<(), Error>)> {
        let leaving = {
            let mut state = self.lock();
            self.keep_what_comes(&mut state, now_ms);
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

    /// Extends the reservations of transfers that are being received.
    fn keep_what_comes(&self, state: &mut State, now_ms: u64) {
        let ids: Vec<TransferId> = state.filling.keys().copied().collect();
        for id in ids {
            let until = state.ledger.held_by(&id).map_or(u64::MAX, |held| held.until_ms);
            if until < now_ms + UNFINISHED_MS / 2
                && let Err(error) = self.lengthen(state, &id, now_ms + UNFINISHED_MS)
            {
                tracing::warn!(transfer = hex(&id), %error, "its time in the buffer is not noted");
            }
        }
    }

    /// Extends a reservation, durably.
    fn lengthen(&self, state: &mut State, id: &TransferId, until_ms: u64) -> Result<(), Error> {
        state.ledger.keep(id, until_ms);
        let Some(reservation) = state.kept.get_mut(id) else { return Ok(()) };
        reservation.until_ms = reservation.until_ms.max(until_ms);
        write_reservation(&self.path(id), reservation)
    }

    /// All entries of the ledger, with their reservations.
    pub fn held(&self) -> Vec<(Charge, Option<Reservation>)> {
        let state = self.lock();
        let held = state.ledger.held().into_iter();
        held.map(|held| (state.kept.get(&held.id).cloned(), held)).map(|(kept, held)| (held, kept)).collect()
    }

    /// The ledger entry and the reservation of one transfer.
    pub fn held_by(&self, id: &TransferId) -> Option<(Charge, Reservation)> {
        let state = self.lock();
        state.ledger.held_by(id).zip(state.kept.get(id).cloned())
    }

    /// The owner of a transfer that waits for space or has it.
    pub fn owner_of(&self, id: &TransferId) -> Option<Principal> {
        let state = self.lock();
        let waits = state.wanted.get(id).map(|wanted| wanted.owner.clone());
        waits.or_else(|| state.ledger.held_by(id)?.owner)
    }

    /// Waiting requests, in order.
    pub fn waiting(&self) -> Vec<Waiting> {
        self.lock().ledger.waiting()
    }

    /// The space available to an owner who requested `wanted` bytes.
    pub fn room(&self, owner: &Principal, wanted: u64, standing: RoomState) -> Room {
        let ledger = &self.lock().ledger;
        let Limits { capacity: size, quota } = ledger.limits();
        Room { standing, wanted, size, charged: ledger.used(), own: ledger.used_by(owner), quota }
    }

    /// Number of incomplete transfers of one owner, granted and waiting.
    pub fn unfinished_of(&self, owner: &Principal) -> usize {
        let state = self.lock();
        let kept = state.kept.values().filter(|kept| !kept.sealed && kept.owner == *owner).count();
        kept + state.wanted.values().filter(|wanted| wanted.owner == *owner).count()
    }

    /// The current limits.
    pub fn limits(&self) -> Limits {
        self.lock().ledger.limits()
    }

    /// Changes the limits; existing reservations stay, even above them.
    pub fn set_limits(&self, limits: Limits) {
        self.lock().ledger.set_limits(limits);
    }

    /// Bytes charged to each owner; orphans are listed under `None`.
    pub fn owners(&self) -> std::collections::BTreeMap<Option<Principal>, u64> {
        self.lock().ledger.owners()
    }

    /// The tree of a transfer, from the folder on.
    pub(super) fn files_of(&self, id: &TransferId) -> Result<RelPath, Error> {
        RelPath::parse(format!("{}/{FILES}", hex(id)).as_bytes())
    }

    /// The folder of the buffer.
    pub fn folder(&self) -> &Path {
        &self.folder
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
            // A waiting client asks again soon, which extends the reservation.
            Some(wanted) => self.write_down(state, id, &wanted),
            None => Ok(()),
        }
    }

    /// Stores a granted reservation and extends its retention accordingly.
    fn record(&self, state: &mut State, id: &TransferId, wanted: &Reservation) -> Result<(), Error> {
        state.wanted.remove(id);
        self.write_down(state, id, wanted)?;
        state.ledger.keep(id, wanted.until_ms);
        Ok(())
    }

    /// Stores a granted reservation, with an empty tree if there is none; if that fails the grant is withdrawn.
    fn write_down(&self, state: &mut State, id: &TransferId, wanted: &Reservation) -> Result<(), Error> {
        let path = self.path(id);
        let before = state.kept.get(id);
        let fresh = match before {
            Some(before) if before.bytes >= wanted.bytes && before.until_ms >= wanted.until_ms => {
                return Ok(());
            }
            Some(before) => Reservation {
                bytes: before.bytes.max(wanted.bytes),
                until_ms: before.until_ms.max(wanted.until_ms),
                ..before.clone()
            },
            None => wanted.clone(),
        };
        let written = make_tree(&path, &wanted.account).and_then(|()| write_reservation(&path, &fresh));
        match &written {
            Ok(()) => drop(state.kept.insert(*id, fresh)),
            Err(_) if before.is_none() => drop(state.ledger.leave(id)),
            Err(_) => {}
        }
        written
    }

    /// Removes the files of a released transfer; the reservation first, so that a crash leaves orphans.
    fn remove(&self, id: &TransferId) -> Result<(), Error> {
        let store = LocalStore::open(&self.folder, AccessMode::ReadWrite)?;
        let (root, name) = (store.root()?, hex(id));
        if let Ok(dir) = root.child(name.as_bytes()) {
            forgive(dir.remove_file(RESERVATION.as_bytes()))?;
            dir.sync()?;
        }
        let removed = forgive(remove_tree(&*root, name.as_bytes()).map(drop));
        if removed.as_ref().is_err_and(|error| error.code == Code::PermissionDenied) {
            // In an unprivileged PoP: directories without write permission for their owner.
            unlock_all(&root.child(name.as_bytes())?)?;
            forgive(remove_tree(&*root, name.as_bytes()).map(drop))?;
        } else {
            removed?;
        }
        root.sync()?;
        let mut state = self.lock();
        state.ledger.gone(id);
        state.kept.remove(id);
        Ok(())
    }

    fn path(&self, id: &TransferId) -> PathBuf {
        self.folder.join(hex(id))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }
}

/// The error for a transfer whose files are not there.
pub(super) fn gone(id: &TransferId) -> Error {
    Error::new(Code::BufferGone, "open", hex(id), "")
}

/// Makes a removal idempotent.
fn forgive(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.code == Code::PathNotFound => Ok(()),
        other => other,
    }
}

/// Locks the buffer for this process.
fn take(folder: &Path) -> Result<File, Error> {
    let path = folder.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|error| file_error("open", &path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(error) => {
            let cause = format!("another PoP uses this folder: {error}");
            Err(Error::new(Code::BufferMissing, "open", folder.display(), cause))
        }
    }
}

/// Gives the owner write permission on each directory of a tree.
fn unlock_all(top: &Arc<dyn Dir>) -> Result<(), Error> {
    let mut todo = vec![RelPath::root()];
    while let Some(path) = todo.pop() {
        let dir = top.descend(&path)?;
        if dir.is_locked()? {
            dir.unlock()?;
        }
        for listed in dir.list()? {
            let listed = listed?;
            if listed.hint == TypeHint::Dir {
                todo.push(path.child(&listed.name)?);
            }
        }
    }
    Ok(())
}

/// The folders of transfers; other entries are ignored.
fn transfers_in(folder: &Path) -> Result<Vec<(TransferId, PathBuf)>, Error> {
    let listed = std::fs::read_dir(folder).map_err(|error| file_error("read", folder, &error))?;
    let mut found = Vec::new();
    for entry in listed {
        let entry = entry.map_err(|error| file_error("read", folder, &error))?;
        found.extend(entry.file_name().to_str().and_then(parse_id).map(|id| (id, entry.path())));
    }
    Ok(found)
}

/// Parses the canonical form of a transfer's id.
fn parse_id(name: &str) -> Option<TransferId> {
    let number = u128::from_str_radix(name, 16).ok()?;
    let id = number.to_be_bytes();
    (hex(&id) == name).then_some(id)
}

/// Bytes of content in a transfer's tree.
fn bytes_in(path: &Path) -> Result<u64, Error> {
    let store = LocalStore::open(path, AccessMode::ReadOnly)?;
    let files: Result<Arc<dyn Dir>, Error> = store.dir(&RelPath::parse(FILES.as_bytes())?);
    match files {
        Ok(dir) => Ok(disk_usage(&dir, &|| Ok(()))?.bytes),
        Err(error) if error.code == Code::PathNotFound => Ok(0),
        Err(error) => Err(error),
    }
}

/// Creates a transfer's folder, and in it the empty tree for its account.
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
    write_file(&path.join(RESERVATION), &FORMAT.encode(reservation), 0o600)
}

fn read(path: &Path) -> Result<Reservation, Error> {
    let unusable = |error| file_error("read", path, &error);
    let data = std::fs::symlink_metadata(path).map_err(unusable)?;
    // A symbolic link or a FIFO would lead elsewhere, or block.
    if !data.is_file() || data.len() > MAX_RESERVATION_BYTES {
        return Err(Error::new(Code::IoFailed, "read", path.display(), "it is no reservation"));
    }
    FORMAT.decode(&std::fs::read(path).map_err(unusable)?)
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
        Reservation::new(&who(owner), &own(), bytes, 0, until_ms)
    }

    fn own() -> String {
        Account::own().unwrap().name
    }

    /// Requests space, with a patience as long as the reservation.
    fn reserve(buffer: &Buffer, number: u8, wanted: Reservation) -> Result<Answer, Error> {
        let patience = wanted.until_ms;
        buffer.reserve(id(number), wanted, patience)
    }

    fn enter(buffer: &Buffer, number: u8, owner: &str) -> Result<Arc<dyn Store>, Code> {
        buffer.enter(&id(number), &who(owner), &own(), true).map_err(|error| error.code)
    }

    fn used(buffer: &Buffer) -> u64 {
        buffer.owners().values().sum()
    }

    fn write(dir: &Path, number: u8, name: &str, bytes: usize) {
        fs::write(dir.join(hex(&id(number))).join(FILES).join(name), vec![7; bytes]).unwrap();
    }

    fn folders(dir: &Path) -> usize {
        transfers_in(dir).unwrap().len()
    }

    #[test]
    fn space_is_reserved_used_counted_and_released() {
        let dir = tempfile::tempdir().unwrap();
        let buffer = Buffer::open(dir.path(), LIMITS).unwrap();
        assert!(enter(&buffer, 1, "alice").is_err());
        assert_eq!(reserve(&buffer, 1, room("alice", 50, 9)), Ok(Answer::Granted));
        enter(&buffer, 1, "alice").unwrap().root().unwrap().mkdir(b"sub", 0o700).unwrap();
        write(dir.path(), 1, "sub/f", 20);
        let mode = dir.path().join(hex(&id(1))).metadata().unwrap().permissions().mode();
        assert_eq!((used(&buffer), mode & 0o777), (50, 0o700));
        assert_eq!(buffer.seal(&id(1), &who("alice"), 9), Ok(20));
        assert_eq!((used(&buffer), buffer.reservation(&id(1)).unwrap().bytes), (20, 20));
        buffer.leave(&id(1)).unwrap();
        assert_eq!((used(&buffer), folders(dir.path())), (0, 0));
        assert_eq!(reserve(&buffer, 1, room("bob", 5, 9)), Ok(Answer::Granted));
    }

    #[test]
    fn waiting_requests_use_no_disk_until_there_is_space() {
        let dir = tempfile::tempdir().unwrap();
        let buffer = Buffer::open(dir.path(), LIMITS).unwrap();
        reserve(&buffer, 1, room("alice", 60, 9)).unwrap();
        assert_eq!(reserve(&buffer, 2, room("bob", 50, 9)), Ok(Answer::Waits(Shortage::Space(10))));
        assert!(enter(&buffer, 2, "bob").is_err() && buffer.tend(0).is_empty());
        assert_eq!([buffer.unfinished_of(&who("alice")), buffer.unfinished_of(&who("bob"))], [1, 1]);
        buffer.leave(&id(1)).unwrap();
        assert_eq!(buffer.tend(0), [(id(2), Ok(()))]);
        enter(&buffer, 2, "bob").unwrap();
        assert!(buffer.tend(8).is_empty());
        assert_eq!(used(&buffer), 50);
        // Expired transfers are removed from the disk.
        assert!(buffer.tend(9).is_empty());
        assert_eq!((used(&buffer), folders(dir.path())), (0, 0));
    }

    #[test]
    fn a_start_finds_leftovers() {
        let dir = tempfile::tempdir().unwrap();
        let buffer = Buffer::open(dir.path(), LIMITS).unwrap();
        for (number, owner) in [(1, "alice"), (2, "bob"), (3, "carol")] {
            reserve(&buffer, number, room(owner, 30, 9)).unwrap();
            write(dir.path(), number, "f", 10);
        }
        drop(buffer);
        let of = |number: u8| dir.path().join(hex(&id(number)));
        // An interrupted removal, an unreadable reservation, and an unrelated folder.
        fs::remove_file(of(2).join(RESERVATION)).unwrap();
        // That of a newer version is refused, and left alone.
        fs::write(of(3).join(RESERVATION), [FORMAT.version() + 1, 7]).unwrap();
        assert_eq!(Buffer::open(dir.path(), LIMITS).err().unwrap().code, Code::FormatNewer);
        assert!(of(2).exists() && of(3).exists());
        fs::write(of(3).join(RESERVATION), b"\x01nonsense").unwrap();
        fs::create_dir(dir.path().join("lost+found")).unwrap();
        let buffer = Buffer::open(dir.path(), LIMITS).unwrap();
        let owners: Vec<_> = buffer.owners().into_iter().collect();
        assert_eq!(owners, [(None, 20), (Some(who("alice")), 30)]);
        assert!(buffer.tend(0).is_empty());
        assert!(!of(2).exists() && !of(3).exists() && of(1).exists());
        assert_eq!((used(&buffer), dir.path().join("lost+found").exists()), (30, true));
        assert_eq!(reserve(&buffer, 1, room("alice", 30, 9)), Ok(Answer::Granted));
        assert_eq!(buffer.seal(&id(1), &who("alice"), 9), Ok(10));
    }

    #[test]
    fn more_than_was_reserved_is_charged_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let buffer = Buffer::open(dir.path(), LIMITS).unwrap();
        for (number, bytes) in [(1, 40), (2, 70)] {
            reserve(&buffer, number, room("alice", 5, 9)).unwrap();
            write(dir.path(), number, "f", bytes);
        }
        assert_eq!(buffer.seal(&id(1), &who("alice"), 9), Ok(40));
        assert_eq!(used(&buffer), 45);
        assert_eq!(buffer.seal(&id(2), &who("alice"), 9).unwrap_err().code, Code::BufferTooSmall);
        assert_eq!(used(&buffer), 45);
    }

    #[test]
    fn writes_over_the_reservation_or_after_completion_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let buffer = Arc::new(Buffer::open(dir.path(), LIMITS).unwrap());
        reserve(&buffer, 1, room("alice", 50, 9)).unwrap();
        write(dir.path(), 1, "f", 20);
        let filling = buffer.filling(id(1), 0).unwrap();
        buffer.write(&id(1), 30).unwrap();
        assert_eq!(buffer.write(&id(1), 1).unwrap_err().code, Code::BufferFull);
        // It does not expire while it is being received, nor within a day after that.
        buffer.tend(UNFINISHED_MS * 3);
        drop(filling);
        buffer.tend(UNFINISHED_MS * 4 - 1);
        assert_eq!(enter(&buffer, 1, "bob").err(), Some(Code::BufferGone));
        assert!(enter(&buffer, 1, "alice").is_ok());
        assert_eq!(buffer.enter(&id(1), &who("alice"), "x", true).err().unwrap().code, Code::NotMapped);
        assert_eq!(buffer.seal(&id(1), &who("bob"), 9).unwrap_err().code, Code::BufferGone);
        assert_eq!(buffer.seal(&id(1), &who("alice"), 9), Ok(20));
        assert_eq!(enter(&buffer, 1, "alice").err(), Some(Code::ReadOnlyStorage));
        assert!(buffer.enter(&id(1), &who("alice"), &own(), false).is_ok());
        assert_eq!(buffer.write(&id(1), 1).unwrap_err().code, Code::BufferFull);
        buffer.leave(&id(1)).unwrap();
        assert_eq!(enter(&buffer, 1, "alice").err(), Some(Code::BufferGone));
    }

    #[test]
    fn sealed_uploads_survive_a_restart_and_one_process_has_a_buffer() {
        let dir = tempfile::tempdir().unwrap();
        let buffer = Buffer::open(dir.path(), LIMITS).unwrap();
        reserve(&buffer, 1, room("alice", 50, 9)).unwrap();
        write(dir.path(), 1, "f", 20);
        buffer.seal(&id(1), &who("alice"), 70).unwrap();
        assert_eq!(Buffer::open(dir.path(), LIMITS).err().unwrap().code, Code::BufferMissing);
        drop(buffer);
        let buffer = Buffer::open(dir.path(), LIMITS).unwrap();
        let (held, kept) = buffer.held_by(&id(1)).unwrap();
        assert_eq!((held.reserved, held.written, held.until_ms), (20, 20, 70));
        assert!(kept.sealed && used(&buffer) == 20);
    }

    #[test]
    fn read_only_directories_are_removed_too() {
        let dir = tempfile::tempdir().unwrap();
        let buffer = Buffer::open(dir.path(), LIMITS).unwrap();
        reserve(&buffer, 1, room("alice", 50, 9)).unwrap();
        let locked = dir.path().join(hex(&id(1))).join(FILES).join("a/b");
        fs::create_dir_all(&locked).unwrap();
        fs::write(locked.join("f"), "x").unwrap();
        for dir in [locked.as_path(), locked.parent().unwrap()] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o500)).unwrap();
        }
        buffer.leave(&id(1)).unwrap();
        assert_eq!((used(&buffer), folders(dir.path())), (0, 0));
    }

    /// Bytes in all files of a folder.
    fn bytes_below(path: &Path) -> u64 {
        bytes_in(path).unwrap()
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(24))]

        /// For any sequence of operations, no owner and not all of them are charged more than the limits, and no
        /// more is on the disk than is charged.
        #[test]
        fn the_quota_is_exact_at_every_moment(
            steps in proptest::collection::vec((0..8_u8, 0..5_u8, 1..70_u64), 0..40)
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut buffer = Arc::new(Buffer::open(dir.path(), LIMITS).unwrap());
            let (mut now, mut name) = (0, 0);
            for (what, number, bytes) in steps {
                let owner = ["alice", "bob"][usize::from(number % 2)];
                match what {
                    0 | 1 => drop(reserve(&buffer, number, room(owner, bytes, now + 100))),
                    2 | 3 => {
                        let asked = buffer.reservation(&id(number)).and_then(|_| {
                            let _filling = buffer.filling(id(number), now)?;
                            buffer.write(&id(number), bytes)
                        });
                        let sealed = buffer.held_by(&id(number)).is_some_and(|(_, kept)| kept.sealed);
                        if asked.is_ok() && !sealed {
                            name += 1;
                            write(dir.path(), number, &name.to_string(), usize::try_from(bytes).unwrap());
                        }
                    }
                    4 => drop(buffer.seal(&id(number), &who(owner), now + 100)),
                    5 => buffer.leave(&id(number)).unwrap(),
                    6 => {
                        now += bytes;
                        buffer.tend(now);
                    }
                    _ => {
                        drop(buffer);
                        buffer = Arc::new(Buffer::open(dir.path(), LIMITS).unwrap());
                    }
                }
                let owners = buffer.owners();
                proptest::prop_assert!(owners.values().sum::<u64>() <= LIMITS.capacity);
                proptest::prop_assert!(owners.values().all(|bytes| *bytes <= LIMITS.quota));
                for (id, path) in transfers_in(dir.path()).unwrap() {
                    let charged = buffer.held_by(&id).map_or(0, |(held, _)| held.reserved);
                    proptest::prop_assert!(bytes_below(&path) <= charged);
                }
            }
        }
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
