//! The root of one storage: opened, compared with the directory at its path, and reopened if that was replaced.
//!
//! Guarantee: the result of [`Root::store`] was, at the time of the call, the directory at the storage's path and
//! the recorded one (`identity`). A dropped root is closed, so that its file system can be unmounted.
//! Callers that must not block use [`Root::trouble`], the result of the last check.

use super::identity as storage_identity;
use renkei_config::Storage;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_store::Store;
use renkei_store::local::LocalStore;
use renkei_store::marker::{Identity, STORAGE, identity_at};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};

/// One named root.
pub struct Root {
    /// Its configuration.
    pub storage: Storage,
    name: String,
    home: Home,
    seen: RwLock<Result<Opened, Error>>,
    /// Held during a check.
    looking: Mutex<()>,
    /// Whether a check is running in a thread of the watch.
    is_watched: AtomicBool,
    /// Whether the open directory was replaced by another one since the last [`Root::take_exchanged`].
    was_exchanged: AtomicBool,
}

/// An open directory.
#[derive(Clone)]
struct Opened {
    store: Arc<LocalStore>,
    at: Identity,
    is_marked: bool,
}

impl Root {
    /// Opens a storage, or records the error.
    pub(crate) fn open(home: &Home, name: &str, storage: &Storage) -> Arc<Self> {
        let first = Error::new(Code::StorageMissing, "open storage", storage.path.display(), "not looked at");
        let root = Root {
            storage: storage.clone(),
            name: name.into(),
            home: home.clone(),
            seen: RwLock::new(Err(first)),
            looking: Mutex::default(),
            is_watched: AtomicBool::default(),
            was_exchanged: AtomicBool::default(),
        };
        root.set(root.try_open());
        Arc::new(root)
    }

    /// The store, or why it cannot be used; checks its path.
    ///
    /// # Errors
    /// `StorageMissing`, `StorageNotMounted`, `StorageChanged`, `WithAgent`.
    pub fn store(&self) -> Result<Arc<dyn Store>, Error> {
        self.local().map(|store| store as Arc<dyn Store>)
    }

    /// The same with its concrete type.
    ///
    /// # Errors
    /// As [`Root::store`].
    pub fn local(&self) -> Result<Arc<LocalStore>, Error> {
        // Only the watch thread polls for a missing one.
        let opened = self.seen()?;
        if opened.is_still_at(&self.storage) {
            return Ok(opened.store);
        }
        drop(opened);
        self.look();
        self.seen().map(|opened| opened.store)
    }

    /// Device and inode of the open directory, which distinguish it from a replacement.
    ///
    /// # Errors
    /// As [`Root::store`], as of the last check.
    pub(crate) fn identity(&self) -> Result<Identity, Error> {
        self.seen().map(|opened| opened.at)
    }

    /// The error of the last check.
    pub fn trouble(&self) -> Option<Error> {
        self.seen().err()
    }

    fn seen(&self) -> Result<Opened, Error> {
        self.seen.read().expect("no thread panics while it holds the lock").clone()
    }

    fn set(&self, seen: Result<Opened, Error>) {
        *self.seen.write().expect("no thread panics while it holds the lock") = seen;
    }

    fn try_open(&self) -> Result<Opened, Error> {
        let storage = &self.storage;
        if let (Some(account), true) = (&storage.agent, storage.path.as_os_str().is_empty()) {
            let cause = format!("an agent of {account} has it");
            return Err(Error::new(Code::WithAgent, "open", "storage", cause));
        }
        let store = Arc::new(storage_identity::open(&self.home, &self.name, storage)?);
        let at = store.identity().map_err(|error| {
            Error::new(Code::StorageMissing, "open storage", storage.path.display(), error)
        })?;
        let is_marked = !store.lacks_marker(STORAGE);
        Ok(Opened { store, at, is_marked })
    }

    /// [`Root::look`] in a thread of its own, one at a time: on a hanging file system it never ends, and other
    /// storages must not wait for it.
    pub(crate) fn look_soon(self: &Arc<Self>) {
        if self.is_watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let root = self.clone();
        let look = move || {
            root.look();
            root.is_watched.store(false, Ordering::Release);
        };
        if let Err(error) = std::thread::Builder::new().name("storage".into()).spawn(look) {
            tracing::warn!(%error, "no thread to look at a storage");
            self.is_watched.store(false, Ordering::Release);
        }
    }

    /// Compares the open directory with the one at the path, and opens the latter if it differs; may block on the
    /// file system, and holds no lock meanwhile that others need.
    pub(crate) fn look(&self) {
        let _one = self.looking.lock().expect("no thread panics while it holds the lock");
        let before = match self.seen() {
            Err(error) if error.code == Code::WithAgent => return,
            Ok(opened) if opened.is_still_at(&self.storage) => return self.keep_marked(&opened),
            Ok(opened) => Ok(opened.at),
            Err(error) => Err(error),
        };
        let found = self.try_open();
        self.tell(&before, &found);
        if let (Ok(before), Ok(found)) = (&before, &found)
            && *before != found.at
        {
            self.was_exchanged.store(true, Ordering::Release);
        }
        self.set(found);
    }

    /// Writes a removed marker again.
    fn keep_marked(&self, opened: &Opened) {
        if opened.is_marked && opened.store.lacks_marker(STORAGE) {
            storage_identity::mark_again(&self.home, &self.name, &self.storage, &opened.store);
        }
    }

    fn tell(&self, before: &Result<Identity, Error>, found: &Result<Opened, Error>) {
        let (storage, path) = (&self.name, self.storage.path.display());
        match (before, found) {
            (Ok(_), Err(error)) => tracing::error!(%error, storage, "the storage is stopped"),
            (Err(before), Err(error)) if before.code != error.code => {
                tracing::error!(%error, storage, "the storage remains stopped");
            }
            (Err(_), Ok(_)) => tracing::info!(storage, %path, "the storage is available again"),
            (Ok(before), Ok(found)) if *before != found.at => {
                tracing::warn!(storage, %path, "another directory with the storage's marker is there and taken");
            }
            _ => {}
        }
    }

    /// Whether the directory was replaced since the last call: work in the old one must be ended.
    pub(crate) fn take_exchanged(&self) -> bool {
        self.was_exchanged.swap(false, Ordering::AcqRel)
    }

    /// Closes it for good, even if it is still referenced.
    pub(crate) fn close(&self, error: Error) {
        let _one = self.looking.lock().expect("no thread panics while it holds the lock");
        self.set(Err(error));
    }
}

impl Opened {
    fn is_still_at(&self, storage: &Storage) -> bool {
        let is_mounted = || !storage.require_mount || self.store.is_mount_point();
        identity_at(&storage.path).is_ok_and(|found| found == self.at) && is_mounted()
    }
}
