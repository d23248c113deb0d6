//! Read-through: content of files of followed volumes is read from plain files here, else from a site that has it
//! (`source_selection`).
//!
//! A held file is used as long as it is the version in the catalogue and the plain file is unchanged since it was
//! checked; another one is never served. File sessions with other sites are opened by the first read, are shared by
//! all readers of a volume, and are closed when idle.

use super::source_selection::{Failing, Wish, is_of_the_way};
use crate::Site;
use renkei_catalogue::{VolumeId, VolumeTree};
use renkei_core::entry::Stamp;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{Content, NodeId};
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_core::wire::file::Consistency;
use renkei_mover::files::remote_files::{Config, RemoteDir, RemoteFiles, WhenLost};
use renkei_mover::files::workspace::{Reader, Workspace};
use renkei_store::local::LocalStore;
use renkei_store::{ReadFile, Space, Store};
use renkei_volume::follower::outbox::Outbox;
use renkei_volume::follower::view::Fetch;
use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Idle timeout of a session.
const IDLE: Duration = Duration::from_secs(60);
/// Timeout of a read while the connection to a site is lost.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pool of file sessions with other sites for volumes.
#[derive(Default)]
pub(crate) struct ReadThrough {
    site: OnceLock<Weak<Site>>,
    open: Mutex<HashMap<(String, SiteName), Arc<Slot>>>,
    failing: Failing,
}

/// The session with one site for one volume, and its last use.
type Slot = Mutex<Option<(Arc<RemoteFiles>, Instant)>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds the lock")
}

impl ReadThrough {
    /// Sets the site, which dials.
    pub(crate) fn belongs_to(&self, site: &Arc<Site>) {
        let _ = self.site.set(Arc::downgrade(site));
    }

    /// The site itself.
    pub(crate) fn site(&self) -> Result<Arc<Site>, Error> {
        let stopping = || Error::new(Code::PopStopping, "fetch", "volume", "");
        self.site.get().and_then(Weak::upgrade).ok_or_else(stopping)
    }

    /// Sites whose last request failed.
    pub(crate) fn failing(&self) -> &Failing {
        &self.failing
    }

    /// The session with a site for a volume; opened if there is none.
    pub(crate) fn session(&self, name: &str, at: &SiteName) -> Result<Arc<RemoteFiles>, Error> {
        let began = Instant::now();
        let slot = lock(&self.open).entry((name.into(), at.clone())).or_default().clone();
        let mut slot = lock(&slot);
        if let Some((files, used)) = &mut *slot {
            *used = Instant::now();
            return Ok(files.clone());
        }
        // A caller that waited for another's failed attempt gets its error.
        if let Some(error) = self.failing.since(at, began) {
            return Err(error);
        }
        let site = self.site()?;
        let dialler = site.relay.dialler(&site.last_snapshot())?;
        let place = Place { storage: name.into(), path: RelPath::root() };
        let far = RemoteDir { dialler, site: at.clone(), place, write: false };
        // The wanted version is known here; the opener has caught up.
        let consistency = Consistency::Relaxed;
        let config = Config { when_lost: WhenLost::Fail(PATIENCE), consistency, ..Config::default() };
        let opened = RemoteFiles::open(far, config).inspect_err(|error| self.failing.note(at, Some(error)));
        let files = Arc::new(opened?);
        *slot = Some((files.clone(), Instant::now()));
        Ok(files)
    }

    /// Drops a lost session: the next request opens another.
    fn leave(&self, name: &str, at: &SiteName, lost: &Arc<RemoteFiles>) {
        let slot = lock(&self.open).get(&(name.into(), at.clone())).cloned();
        let Some(slot) = slot else { return };
        let mut slot = lock(&slot);
        if slot.as_ref().is_some_and(|(files, _)| Arc::ptr_eq(files, lost)) {
            *slot = None;
        }
    }

    /// Closes idle sessions.
    pub(crate) fn close_idle(&self) {
        let slots: Vec<Arc<Slot>> = lock(&self.open).values().cloned().collect();
        for slot in slots {
            let mut slot = lock(&slot);
            if slot
                .as_ref()
                .is_some_and(|(files, used)| Arc::strong_count(files) == 1 && used.elapsed() > IDLE)
            {
                *slot = None;
            }
        }
    }
}

/// The content of one followed volume.
pub(crate) struct Contents {
    /// The volume.
    pub(crate) id: VolumeId,
    /// The pool of file sessions.
    pub(crate) fetching: Arc<ReadThrough>,
    /// The volume's name, the same at its home.
    pub(crate) name: String,
    /// Its home.
    pub(crate) home: SiteName,
    /// The copy of its catalogue.
    pub(crate) tree: Arc<VolumeTree>,
    /// The outbox of this site.
    pub(crate) pending: Arc<Outbox>,
    /// The store of replicas, if there is one.
    pub(crate) plain: Option<Arc<LocalStore>>,
}

impl Fetch for Contents {
    fn open(
        &self,
        path: &RelPath,
        id: NodeId,
        content: &Content,
        stamp: Stamp,
    ) -> Result<Box<dyn ReadFile>, Error> {
        if let Some(file) = self.open_held(path, id, content)? {
            return Ok(Box::new(Named { file, stamp }));
        }
        self.open_far(path, stamp)
    }

    fn space(&self) -> Space {
        let Some(site) = self.fetching.site.get().and_then(Weak::upgrade) else { return Space::default() };
        let told = site.holding.duties(&self.id).space;
        Space {
            total: told.total_bytes,
            free: told.available_bytes,
            available: told.available_bytes,
            files_total: told.total_files,
            files_free: told.free_files,
        }
    }
}

impl Contents {
    /// The plain file, if this version is held and the file is unmodified.
    pub(crate) fn open_held(
        &self,
        path: &RelPath,
        id: NodeId,
        content: &Content,
    ) -> Result<Option<Box<dyn ReadFile>>, Error> {
        let Some(plain) = &self.plain else { return Ok(None) };
        let Some(held) = self.pending.held(id)?.filter(|held| held.is_of(content)) else {
            return Ok(None);
        };
        let Some((parent, name)) = path.split() else { return Ok(None) };
        let opened = plain.root()?.descend(&RelPath::parse(parent)?).and_then(|dir| dir.open_read(name));
        let good = opened.and_then(|file| Ok(held.is_as(&file.stamp()?).then_some(file)));
        // A missing or obstructed file counts as not held.
        Ok(good.unwrap_or_else(|error| {
            tracing::debug!(%error, "a replica cannot be used");
            None
        }))
    }

    /// Opens the file at another site.
    fn open_far(&self, path: &RelPath, stamp: Stamp) -> Result<Box<dyn ReadFile>, Error> {
        let sites = self.fetching.site()?.sources(Some(&self.home), &self.pending.fellows(), path);
        self.fetching.open_at_any(&Wish { name: &self.name, path, stamp }, Some(&self.home), sites)
    }
}

/// Serves held files only.
pub(crate) struct HeldOnly(pub(crate) Contents);

impl Fetch for HeldOnly {
    fn open(
        &self,
        path: &RelPath,
        id: NodeId,
        content: &Content,
        stamp: Stamp,
    ) -> Result<Box<dyn ReadFile>, Error> {
        match self.0.open_held(path, id, content)? {
            Some(file) => Ok(Box::new(Named { file, stamp })),
            None => {
                Err(Error::new(Code::SourceChanged, "open", path, "this site does not hold this version"))
            }
        }
    }

    fn space(&self) -> Space {
        self.0.space()
    }
}

impl ReadThrough {
    /// Opens a file of a volume at a site.
    pub(crate) fn open(
        &self,
        name: &str,
        site: &SiteName,
        path: &RelPath,
        expected: Stamp,
    ) -> Result<Box<dyn ReadFile>, Error> {
        let files = self.session(name, site)?;
        let opened = Workspace::new(files.clone()).open(path).inspect_err(|error| {
            if is_of_the_way(error, site) {
                self.leave(name, site, &files);
            }
        });
        let reader = opened?;
        let Ok(stamp) = reader.version() else {
            let cause = format!("it is no longer a file at {site}");
            return Err(Error::new(Code::SourceChanged, "open", path, cause));
        };
        let stamp = if stamp.may_be(&expected) { expected } else { stamp };
        Ok(Box::new(FarFile { reader, stamp }))
    }
}

/// A plain file with the stamp of the catalogue.
struct Named {
    file: Box<dyn ReadFile>,
    stamp: Stamp,
}

impl ReadFile for Named {
    fn stamp(&self) -> Result<Stamp, Error> {
        let now = self.file.stamp()?;
        Ok(if (now.size, now.mtime) == (self.stamp.size, self.stamp.mtime) { self.stamp } else { now })
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        self.file.read_at(buf, offset)
    }

    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Error> {
        self.file.next_data(from)
    }

    fn advise_sequential(&self, range: Range<u64>) {
        self.file.advise_sequential(range);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.descriptor()
    }

    fn has_writer(&self) -> bool {
        false
    }

    fn is_version(&self) -> bool {
        true
    }
}

/// A file at another site.
struct FarFile {
    reader: Reader,
    stamp: Stamp,
}

impl ReadFile for FarFile {
    fn stamp(&self) -> Result<Stamp, Error> {
        Ok(self.stamp)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        self.reader.read_at(buf, offset)
    }

    fn next_data(&self, from: u64) -> Result<Option<Range<u64>>, Error> {
        Ok((from < self.stamp.size).then_some(from..self.stamp.size))
    }

    fn advise_sequential(&self, _range: Range<u64>) {}

    fn has_writer(&self) -> bool {
        false
    }

    fn is_version(&self) -> bool {
        true
    }
}
