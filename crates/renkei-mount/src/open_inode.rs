//! The state of a file that is open here, which all its handles share: the draft that is written, and how it is read.

use super::attributes::{InodeAttr, now};
use fuser::BackingId;
use renkei_core::entry::FileTime;
use renkei_core::error::Error;
use renkei_core::wire::file::Handle;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The state of an open file that all its handles share.
#[derive(Default)]
pub(super) struct OpenInode {
    draft: RwLock<Option<Draft>>,
    /// Number of open handles and calls in progress; counted under the table's lock.
    pub(super) users: AtomicUsize,
    /// How many of them may write; counted under the draft's lock. The kernel reports the last `release` late.
    pub(super) writers: AtomicUsize,
    /// Whether there is written data that is not published.
    pub(super) is_ahead: Arc<AtomicBool>,
    /// Versions that several handles share: they are closed when the last handle is released.
    shared: Mutex<Vec<Handle>>,
    /// How the kernel reads the file while a handle is open.
    pub(super) read_path: Mutex<ReadPath>,
}

/// A new version that is being written.
pub(super) struct Draft {
    pub(super) handle: Handle,
    pub(super) size: AtomicU64,
    changed: Mutex<Changed>,
    is_ahead: Arc<AtomicBool>,
    /// Whether another writer's version was published after the content of this draft.
    pub(super) is_behind: AtomicBool,
}

/// The unpublished changes of a draft.
#[derive(Clone, Copy)]
pub(super) struct Changed {
    pub(super) is_dirty: bool,
    /// The time of the last write, or the one that a program set.
    pub(super) mtime: FileTime,
}

/// How the kernel reads a file.
#[derive(Default)]
pub(super) enum ReadPath {
    /// Undecided: the file is not open.
    #[default]
    Open,
    /// By this mount, through the kernel's cache.
    Cached,
    /// By the kernel itself.
    Passed(Arc<BackingId>),
}

/// An open handle of a program.
pub(super) struct OpenHandle {
    pub(super) id: u64,
    pub(super) content: Arc<OpenInode>,
    /// The version opened for reading, if there was no draft.
    pub(super) version: Option<Handle>,
    /// The plain file of the version, if that is on this machine.
    pub(super) plain: Option<OwnedFd>,
    pub(super) writes: bool,
    pub(super) appends: bool,
}

impl OpenInode {
    pub(super) fn draft(&self) -> RwLockReadGuard<'_, Option<Draft>> {
        self.draft.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn shared(&self) -> MutexGuard<'_, Vec<Handle>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn draft_mut(&self) -> RwLockWriteGuard<'_, Option<Draft>> {
        self.draft.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is unpublished data here: then the local attributes are authoritative.
    pub(super) fn is_ahead(&self) -> bool {
        self.is_ahead.load(Ordering::Acquire)
    }

    /// The attributes of the file: those `known` returns, overlaid with the draft. `known` is called under the
    /// draft's lock, since a publication changes its result.
    pub(super) fn over(&self, known: impl FnOnce() -> Result<InodeAttr, Error>) -> Result<InodeAttr, Error> {
        let draft = self.draft();
        let known = known()?;
        let changed = draft.as_ref().map(|draft| (draft, *draft.changed())).filter(|(_, now)| now.is_dirty);
        Ok(changed.map_or(known, |(draft, now)| known.while_written(draft.size(), now.mtime)))
    }
}

impl Draft {
    pub(super) fn new(
        content: &OpenInode,
        handle: Handle,
        size: u64,
        mtime: FileTime,
        is_dirty: bool,
    ) -> Self {
        content.is_ahead.store(is_dirty, Ordering::Release);
        Draft {
            handle,
            size: AtomicU64::new(size),
            changed: Mutex::new(Changed { is_dirty, mtime }),
            is_ahead: content.is_ahead.clone(),
            is_behind: AtomicBool::new(false),
        }
    }

    pub(super) fn changed(&self) -> MutexGuard<'_, Changed> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(super) fn touch(&self) {
        *self.changed() = Changed { is_dirty: true, mtime: now() };
        self.is_ahead.store(true, Ordering::Release);
    }

    /// The draft's content is a version of the file now.
    pub(super) fn on_published(&self) {
        self.changed().is_dirty = false;
        self.is_ahead.store(false, Ordering::Release);
        self.is_behind.store(false, Ordering::Release);
    }
}
