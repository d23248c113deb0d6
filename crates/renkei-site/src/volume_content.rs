//! The content of volumes as their stores open it: from plain files here, else through [`RemoteContent`].
//!
//! A held file is used as long as it is the version in the catalogue and the plain file is unchanged since it was
//! checked; another one is never served.

use renkei_catalogue::{VolumeId, VolumeTree};
use renkei_core::entry::Stamp;
use renkei_core::error::{Code, Error};
use renkei_core::namespace::source::Fellow;
use renkei_core::namespace::{Content, NodeId};
use renkei_core::path::{RelPath, SiteName};
use renkei_mover::files::remote_files::RemoteFiles;
use renkei_net::identity::account::Account;
use renkei_store::local::LocalStore;
use renkei_store::{ReadFile, Space, Store as _};
use renkei_volume::follower::outbox::Outbox;
use renkei_volume::follower::view::Fetch;
use renkei_volume::{Elsewhere, Hands, Wanted};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock, Weak};

/// A wanted file of a volume.
pub(crate) struct WantedFile<'w> {
    /// The volume.
    pub(crate) name: &'w str,
    /// Its path.
    pub(crate) path: &'w RelPath,
    /// The stamp of the wanted version.
    pub(crate) stamp: Stamp,
}

/// Reads content of volumes that other sites have.
pub(crate) trait RemoteContent: Send + Sync {
    /// Opens content that the home of a volume lacks.
    fn open_away(
        &self,
        name: &str,
        tree: &VolumeTree,
        wanted: &Wanted<'_>,
    ) -> Result<Box<dyn ReadFile>, Error>;

    /// Opens content that a follower lacks, at the home or at another follower.
    fn open_followed(
        &self,
        wanted: &WantedFile<'_>,
        home: &SiteName,
        fellows: &[Fellow],
    ) -> Result<Box<dyn ReadFile>, Error>;

    /// The space at the home of a followed volume.
    fn space(&self, volume: &VolumeId) -> Space;

    /// The file session with a site for a volume.
    fn session(&self, name: &str, at: &SiteName) -> Result<Arc<RemoteFiles>, Error>;
}

/// The room that reads remote content, once the PoP is complete.
#[derive(Default)]
pub(crate) struct RemoteSlot(OnceLock<Weak<dyn RemoteContent>>);

impl RemoteSlot {
    /// Sets the room.
    pub(crate) fn fill(&self, room: Weak<dyn RemoteContent>) {
        let _ = self.0.set(room);
    }

    fn room(&self) -> Result<Arc<dyn RemoteContent>, Error> {
        let stopping = || Error::new(Code::PopStopping, "fetch", "volume", "");
        self.0.get().and_then(Weak::upgrade).ok_or_else(stopping)
    }
}

impl RemoteContent for RemoteSlot {
    fn open_away(
        &self,
        name: &str,
        tree: &VolumeTree,
        wanted: &Wanted<'_>,
    ) -> Result<Box<dyn ReadFile>, Error> {
        self.room()?.open_away(name, tree, wanted)
    }

    fn open_followed(
        &self,
        wanted: &WantedFile<'_>,
        home: &SiteName,
        fellows: &[Fellow],
    ) -> Result<Box<dyn ReadFile>, Error> {
        self.room()?.open_followed(wanted, home, fellows)
    }

    fn space(&self, volume: &VolumeId) -> Space {
        self.room().map_or_else(|_| Space::default(), |room| room.space(volume))
    }

    fn session(&self, name: &str, at: &SiteName) -> Result<Arc<RemoteFiles>, Error> {
        self.room()?.session(name, at)
    }
}

/// The content of one followed volume.
pub(crate) struct Contents {
    /// The volume.
    pub(crate) id: VolumeId,
    /// The way to content that is not here.
    pub(crate) remote: Arc<dyn RemoteContent>,
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
        self.remote.space(&self.id)
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
        let fellows = self.pending.fellows();
        self.remote.open_followed(&WantedFile { name: &self.name, path, stamp }, &self.home, &fellows)
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

/// Runs work as the account of that name.
pub(crate) struct AsAccount(pub(crate) String);

impl Hands for AsAccount {
    fn uid(&self) -> Result<u32, Error> {
        Ok(Account::lookup(&self.0)?.uid)
    }

    fn run(&self, work: Box<dyn FnOnce() + Send>) -> Result<(), Error> {
        Account::lookup_to_lend(&self.0)?.spawn("volume", work)?.join().expect("a panic aborts the process");
        Ok(())
    }
}

/// Remote content of a volume of this site.
pub(crate) struct Distant {
    pub(crate) remote: Arc<dyn RemoteContent>,
    pub(crate) name: String,
    pub(crate) tree: Arc<VolumeTree>,
}

impl Elsewhere for Distant {
    fn open(&self, wanted: &Wanted<'_>) -> Result<Box<dyn ReadFile>, Error> {
        self.remote.open_away(&self.name, &self.tree, wanted)
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
