//! The mount: sites' files as a file system of this machine, through FUSE.
//!
//! Requests of the kernel come to [`fuse`](self), which turns them into calls of `Mounted`; that keeps the inode
//! table and passes the operations to a [`Files`]: a store of this machine or a file session with a site. It knows
//! nothing of sites, so the behaviour is the same for both.
//!
//! Reading asks for data that the kernel has not cached. Writing goes to one draft per file, shared by all handles
//! that are open here; `close` and `fsync` publish the draft and return the error if that fails. A change of a file
//! that is written here is visible at once to all programs here, and to other sites when it is published.
//!
//! Guarantees: close-to-open consistency (an `open` revalidates); an open handle goes on reading its version; nothing
//! that `close` or `fsync` acknowledged is lost. Non-goals: extended attributes, `O_DIRECT` as a promise.
//!
//! Uses: `renkei-core`, `renkei-store`. The command line mounts, and gives the mount its files.

mod attr_cache;
mod attributes;
mod errno;
mod error_log;
mod fuse;
mod inodes;
mod invalidate;
mod listing;
mod locks;
pub mod mountpoint;
mod name_ops;
mod negative_cache;
mod open_files;
mod open_inode;
mod passthrough;
pub mod preflight;
mod replay;
mod stale_retry;
pub mod union_files;

use attr_cache::{AttrCache, Mark};
use attributes::{InodeAttr, Owners};
use errno::FuseError;
use error_log::ErrorLog;
use inodes::{InodeTable, ROOT};
use invalidate::KernelCache;
use listing::Listing;
use negative_cache::NegativeCache;
use open_inode::OpenHandle;
use renkei_core::error::{Code, Error, Kind};
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Answer, Files, Handle, Item, Op};
use renkei_core::wire::message::Space;
use stale_retry::StaleRetries;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// The source, as `mount` and `df` show it.
    pub source: String,
    /// The mount point.
    pub point: PathBuf,
    /// Whether the mount is read-only.
    pub is_read_only: bool,
    /// Whether users other than the one who mounts may use it.
    pub allow_other: bool,
    /// How long the kernel caches attributes of a file where there are no leases.
    pub attr_ttl: Duration,
    /// Whether `close` returns before the written data is published.
    pub closes_early: bool,
    /// Whether the site grants locks; else they hold among the programs of this mount.
    pub locks_at_site: bool,
    /// Whether the process has no other purpose and ends with the mount.
    pub ends_process: bool,
}

/// A mounted tree: the inode table, the open handles and the caches.
struct Mounted {
    files: Arc<dyn Files>,
    table: Mutex<InodeTable>,
    opens: Mutex<HashMap<u64, Arc<OpenHandle>>>,
    listings: Mutex<HashMap<u64, Arc<Listing>>>,
    next: AtomicU64,
    /// Locked shared by renames in progress, so that an operation that finds a path gone can wait for them.
    moving: RwLock<()>,
    owners: Owners,
    attr_cache: AttrCache,
    closes_early: bool,
    negative_cache: Mutex<NegativeCache>,
    stale_retries: Mutex<StaleRetries>,
    error_log: ErrorLog,
    cache: OnceLock<KernelCache>,
    /// Whether the kernel may be given plain files to read by itself (FUSE passthrough).
    passes: AtomicBool,
    /// Files with locks that are held through this mount.
    locks: Mutex<HashMap<u64, locks::Locked>>,
}

impl Mounted {
    /// Looks at the root, so that an error is reported before anything is mounted.
    fn new(files: Arc<dyn Files>, ttl: Duration) -> Result<Self, Error> {
        let owners = Owners::of_process();
        let root = owners.attr(&item(files.operate(Op::Look(RelPath::root()), &[])?.parted().0)?);
        let attr_cache = AttrCache::new(files.clone(), ttl);
        Ok(Mounted {
            files,
            table: Mutex::new(InodeTable::new(root)),
            opens: Mutex::default(),
            listings: Mutex::default(),
            next: AtomicU64::new(1),
            moving: RwLock::new(()),
            owners,
            attr_cache,
            closes_early: false,
            negative_cache: Mutex::default(),
            stale_retries: Mutex::default(),
            error_log: ErrorLog::default(),
            cache: OnceLock::new(),
            passes: AtomicBool::new(false),
            locks: Mutex::default(),
        })
    }

    fn table(&self) -> MutexGuard<'_, InodeTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    // ---- asking ------------------------------------------------------------------------------------------------------

    fn ask_item(&self, op: Op) -> Result<Item, Error> {
        item(self.ask(op)?)
    }

    fn ask_open(&self, op: Op) -> Result<(Handle, Item), Error> {
        opened(self.ask(op)?)
    }

    /// Closes a handle at the other side; a failure is only logged.
    fn close(&self, handle: Handle) {
        if let Err(error) = self.ask(Op::Close(handle)) {
            tracing::debug!(%error, "close");
        }
    }

    /// Capacity and free space of the file system that has a file.
    fn space(&self, id: u64) -> Result<Space, Error> {
        let name = self.table().top(id).map(<[u8]>::to_vec);
        match self.files.space(name.as_deref())? {
            Answer::Space(space) => Ok(space),
            other => Err(unexpected(&other)),
        }
    }

    /// Runs an operation on one or several paths. If a path is gone because a directory was renamed meanwhile, the
    /// operation is repeated with its new path.
    fn at<P: PartialEq, T>(
        &self,
        path: impl Fn(&InodeTable) -> Result<P, Error>,
        mut act: impl FnMut(&P) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let now = || {
            let table = self.table();
            Ok((path(&table)?, table.moves))
        };
        let mut before = now()?;
        loop {
            let outcome = act(&before.0);
            let is_gone = |error: &Error| matches!(error.code, Code::PathNotFound | Code::NotADirectory);
            if !outcome.as_ref().is_err_and(is_gone) {
                return outcome;
            }
            self.wait_for_renames();
            let after = now()?;
            if after == before {
                return outcome;
            }
            before = after;
        }
    }

    /// Waits for the renames that are in progress.
    fn wait_for_renames(&self) {
        drop(self.moving.write().unwrap_or_else(PoisonError::into_inner));
    }

    // ---- attributes --------------------------------------------------------------------------------------------------

    /// The attributes that programs see: those known last, overlaid with the unpublished draft.
    fn shown(&self, id: u64) -> Result<InodeAttr, Error> {
        let known = || self.table().node(id).map(|node| node.known);
        let content = self.table().node(id)?.content.clone();
        content.map_or_else(known, |content| content.over(known))
    }

    /// The current attributes of a file.
    fn look_at(&self, id: u64) -> Result<InodeAttr, FuseError> {
        if self.is_settled_here(id)? {
            return Ok(self.shown(id)?);
        }
        if self.is_attr_cached(id)? {
            return Ok(self.shown(id)?);
        }
        // The root is shown even while the site cannot be reached, because it has the reasons in an attribute.
        if id == ROOT && !self.is_reached() {
            return Ok(self.shown(id)?);
        }
        let (mark, found) = self.look(id, |table| table.path(id));
        let (is_open, is_looked_up) = {
            let mut table = self.table();
            let node = table.node(id)?;
            (node.content.is_some(), node.is_looked_up)
        };
        match found.map(|item| self.owners.attr(&item)) {
            Ok(known) if self.is_still(id, &known, 0)? => Ok(self.update_attr(id, known, mark)?),
            // Another file has the name by now, or none: the open handles keep this one.
            Ok(_) if is_open => Ok(self.shown(id)?),
            // The file was replaced after this call looked the name up: the call shows what it found.
            Ok(_) if is_looked_up => Ok(self.shown(id)?),
            Ok(_) => Err(FuseError::plain(libc::ESTALE)),
            Err(error) if is_open && error.code == Code::PathNotFound => Ok(self.shown(id)?),
            // The root is shown whatever error the site reports.
            Err(error) if id == ROOT && error.kind() != Kind::NotFound => {
                self.error_log.note(&error);
                Ok(self.shown(id)?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the site can be reached now; the reason why not is noted in the error log.
    fn is_reached(&self) -> bool {
        self.files.reach().inspect_err(|error| self.error_log.note(error)).is_ok()
    }

    /// Whether the local state of a file is authoritative: it has unpublished data here, or no name any more.
    fn is_settled_here(&self, id: u64) -> Result<bool, Error> {
        let mut table = self.table();
        let node = table.node(id)?;
        let is_removed = id != ROOT && node.is_removed();
        Ok(is_removed || node.is_ahead())
    }

    /// Whether the file that was found under the name is still this one; its versions count as other files if more
    /// than `users` have it open.
    fn is_still(&self, id: u64, found: &InodeAttr, users: usize) -> Result<bool, Error> {
        let mut table = self.table();
        let node = table.node(id)?;
        Ok(node.known.is_file(found, node.users() > users))
    }

    fn update_attr(&self, id: u64, known: InodeAttr, mark: Mark) -> Result<InodeAttr, Error> {
        {
            let mut table = self.table();
            let parent = table.parent(id);
            table.node(id)?.known = known;
            self.cache_attr(&mut table, id, parent, mark);
        }
        self.shown(id)
    }

    /// Invalidates the kernel's attributes of a file that changed by other means than the kernel's own request.
    fn invalidate_attrs(&self, id: u64) {
        self.invalidate_attrs_of(&[id]);
    }

    fn invalidate_attrs_of(&self, ids: &[u64]) {
        if let Some(cache) = self.cache.get() {
            for id in ids {
                cache.invalidate(*id);
            }
        }
    }
}

fn item(answer: Answer) -> Result<Item, Error> {
    match answer {
        Answer::Item(item) => Ok(item),
        other => Err(unexpected(&other)),
    }
}

fn opened(answer: Answer) -> Result<(Handle, Item), Error> {
    match answer {
        Answer::Opened { handle, item } => Ok((handle, item)),
        other => Err(unexpected(&other)),
    }
}

#[cold]
fn unexpected(answer: &Answer) -> Error {
    let cause = match answer {
        Answer::Failed(error) => return error.clone(),
        Answer::Done => "done",
        Answer::Item(_) => "an entry",
        Answer::Opened { .. } => "a handle",
        Answer::Items { .. } => "a list",
        Answer::Data(_) => "data",
        Answer::Space(_) => "room",
        Answer::Peeked { .. } => "content",
        Answer::Held { .. } => "a lease",
        Answer::Locked(_) => "a lock",
        Answer::Checksum(_) => "a checksum",
        Answer::FileHandle(_) => "a handle of a file",
        Answer::Locality(_) => "a locality",
        Answer::Upload(_) | Answer::Parts(_) => "an upload",
    };
    Error::new(Code::ProtocolViolation, "read answer", "", format_args!("{cause} was not asked for"))
}
