//! The configuration, mapping, trust and open storages of one moment.
//!
//! A storage is opened once (`storage_root`) and shared by all snapshots that have it unchanged, so that a change of the map never
//! waits for a file system. One that is missing is looked for by the PoP's watch alone.

use super::backfill::{AsAccount, Distant};
use super::buffer::Buffer;
use super::read_through::{Contents, HeldOnly, ReadThrough};
use super::storage_identity;
use super::storage_root::Root;
use crate::catalogue::{VolumeId, VolumeTree};
use crate::config::Config;
use crate::home::{Home, read_text};
use crate::identity::credential::Credential;
use crate::identity::rotation;
use crate::identity::tls::server_config_with;
use crate::identity::trust::Trust;
use crate::identity::web::{WebCertificate, http_config};
use crate::store::Store;
use crate::store::local::AccessMode as Mode;
use crate::volume::dir_claim::DirectoryClaim;
use crate::volume::follower::accept_dir::CopyTaken;
use crate::volume::follower::outbox::Outbox;
use crate::volume::follower::view::{FollowedStore, Writer};
use crate::volume::home::accept_dir::Taken;
use crate::volume::{Hands as _, Volume, VolumeConfig, VolumeLocation, VolumeStore, Volumes, volume_config};
use renkei_core::buffer::{Limits, STORAGE as BUFFER};
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Mapping, Principal};
use renkei_core::path::SiteName;
use rustls::ServerConfig;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// Largest mapping file accepted.
pub(super) const MAX_MAP_BYTES: u64 = 16 << 20;

/// Where the PoP's buffer is, and the buffer once it was opened.
struct Slot {
    folder: PathBuf,
    opened: Mutex<Option<Arc<Buffer>>>,
}

/// What all snapshots have in common.
#[derive(Clone)]
struct Shared {
    buffer: Arc<Slot>,
    open_volumes: Arc<Volumes>,
    fetching: Arc<ReadThrough>,
    web: Arc<WebCertificate>,
}

/// State of the files when they were read, to notice a change.
pub type Mark = Vec<Option<(SystemTime, u64, u64)>>;

/// Where the PoP listens and what it announces. `listen` is read when the PoP starts, and as long as the files have another
/// one, the addresses of before are announced: nothing listens at the new ones yet.
#[derive(Clone)]
pub(super) struct Listening {
    /// As the files and the environment said when the PoP started.
    in_force: Vec<SocketAddr>,
    /// As they say now.
    wanted: Vec<SocketAddr>,
    announced: Vec<String>,
}

impl Listening {
    fn at_start(config: &Config) -> Self {
        let (in_force, wanted) = (config.listen.clone(), config.listen.clone());
        Listening { in_force, wanted, announced: config.announced_endpoints() }
    }

    fn after(&self, fresh: &Config) -> Self {
        let wanted = fresh.listen.clone();
        let is_in_force = wanted == self.in_force;
        let announced = if is_in_force { fresh.announced_endpoints() } else { self.announced.clone() };
        Listening { in_force: self.in_force.clone(), wanted, announced }
    }

    /// The addresses in force and those of the files, where these are others.
    pub(super) fn pending(&self) -> Option<(&[SocketAddr], &[SocketAddr])> {
        (self.wanted != self.in_force).then_some((&self.in_force, &self.wanted))
    }
}

/// Everything a request is judged by.
pub struct Snapshot {
    /// The site's name.
    pub site: SiteName,
    /// The configuration.
    pub config: Config,
    /// Where the PoP listens.
    pub(super) listening: Listening,
    /// Whom the site trusts.
    pub trust: Arc<Trust>,
    /// Who becomes which account.
    pub mapping: Mapping,
    /// The certificate and key of the PoP, or of the agent.
    pub credential: Credential,
    /// Whom it names.
    pub principal: Principal,
    /// The same under the former name of the site, while partners may not know the new one.
    pub(super) former_credential: Option<Credential>,
    /// TLS for `renkei/1`; one for all connections, so that data streams can resume.
    pub renkei_tls: Arc<ServerConfig>,
    /// TLS for HTTP.
    pub http_tls: Arc<ServerConfig>,
    /// The storages by name.
    pub storages: BTreeMap<String, Arc<Root>>,
    /// The volumes by name.
    pub volumes: BTreeMap<String, VolumeConfig>,
    /// The certificate for HTTP clients.
    pub web: Arc<WebCertificate>,
    open_volumes: Arc<Volumes>,
    pub(super) fetching: Arc<ReadThrough>,
    buffer: Arc<Slot>,
    /// What agents are told, by the account that they serve; made when the first one asks.
    pub(super) texts: Mutex<BTreeMap<String, Arc<super::agents::Texts>>>,
    mark: Mark,
}

impl Snapshot {
    /// Reads everything but the configuration, which the caller read.
    pub fn load(home: &Home, config: Config) -> Result<Self, Error> {
        let slot = Slot { folder: config.buffer.folder(home), opened: Mutex::default() };
        let shared = Shared {
            buffer: Arc::new(slot),
            open_volumes: Arc::new(Volumes::new(home, &config.catalogue)),
            fetching: Arc::default(),
            web: Arc::default(),
        };
        shared.web.look(&config.web);
        // What a flag says is this process's alone; commands in the directory announce what the files say.
        let listening = Listening::at_start(&Config::load(home)?);
        Self::load_after(home, config, listening, &BTreeMap::new(), shared, mark(home))
    }

    fn load_after(
        home: &Home,
        config: Config,
        listening: Listening,
        before: &BTreeMap<String, Arc<Root>>,
        shared: Shared,
        mark: Mark,
    ) -> Result<Self, Error> {
        let site = config.site(home)?.clone();
        let map = read_text(&home.map_file(), MAX_MAP_BYTES)?.unwrap_or_default();
        let storages = config.storage.iter().map(|(name, storage)| {
            // Also one that is missing: to open it may wait for ever, which only the watch may.
            let same = before.get(name).filter(|root| root.storage == *storage);
            (name.clone(), same.cloned().unwrap_or_else(|| Root::open(home, name, storage)))
        });
        let credential = Credential::host(home, SystemTime::now())?;
        let principal = credential.principal()?;
        let former = former_host(home);
        let mut volumes = volume_config::load(home)?;
        // Whoever made both by hand is served the storage, as before.
        volumes.retain(|name, _| !config.storage.contains_key(name));
        let Shared { buffer, open_volumes, fetching, web } = shared;
        let mut trust = Trust::load(home)?;
        trust.announce(&listening.announced);
        Ok(Snapshot {
            volumes,
            open_volumes,
            fetching,
            renkei_tls: server_config_with(&credential, former.as_ref())?,
            former_credential: former.map(|(_, credential)| credential),
            http_tls: http_config(&credential, &web)?,
            web,
            trust: Arc::new(trust),
            listening,
            mapping: Mapping::parse(&map)?,
            credential,
            principal,
            texts: Mutex::default(),
            storages: storages.collect(),
            site,
            config,
            buffer,
            mark,
        })
    }

    /// Reads everything again; what was set by flags when the PoP started stays.
    pub fn reload(&self, home: &Home) -> Result<Self, Error> {
        // Before the first file is read: what changes meanwhile is then noticed the next time.
        let mark = mark(home);
        let fresh = Config::load(home)?;
        let listening = self.listening.after(&fresh);
        let config = Config { listen: self.config.listen.clone(), ..fresh };
        let shared = Shared {
            buffer: self.buffer.clone(),
            open_volumes: self.open_volumes.clone(),
            fetching: self.fetching.clone(),
            web: self.web.clone(),
        };
        let fresh = Self::load_after(home, config, listening, &self.storages, shared, mark)?;
        self.close_removed(&fresh, home);
        Ok(fresh)
    }

    /// Closes the storages that are not configured any more, whoever still has this snapshot.
    fn close_removed(&self, fresh: &Snapshot, home: &Home) {
        for (name, root) in self.storages.iter().filter(|(name, _)| !fresh.storages.contains_key(*name)) {
            root.close(fresh.removed(name));
            if let Err(error) = storage_identity::forget(home, name) {
                tracing::warn!(%error, name, "the record of a removed storage could not be removed");
            }
        }
    }

    /// The error for a storage that was removed while something worked on it.
    fn removed(&self, name: &str) -> Error {
        let cause = "it was removed from the PoP";
        Error::new(Code::StorageUnknown, "look up storage", name, cause).at(self.site.as_str())
    }

    /// The state of the files it was read from.
    pub fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Whether this is an agent, which serves one storage and nothing else.
    pub fn is_agent(&self) -> bool {
        matches!(self.principal, Principal::Agent { .. })
    }

    /// The account of the agent that serves a storage, if one does and this is not it.
    pub fn agent_of(&self, storage: &str) -> Option<&str> {
        let root = self.storages.get(storage).filter(|_| !self.is_agent())?;
        root.storage.agent.as_deref()
    }

    /// Whether some storage is meant for an agent of this account.
    pub(super) fn has_agent_of(&self, account: &str) -> bool {
        self.storages.keys().any(|storage| self.agent_of(storage) == Some(account))
    }

    /// The agent of a storage of this site.
    pub(super) fn agent(&self, storage: &str) -> Principal {
        Principal::Agent { site: self.site.clone(), storage: storage.into() }
    }

    /// Looks at the storages: which are missing, are there again, or are other directories than those that are open.
    pub fn look_at_storages(&self) {
        self.storages.values().for_each(Root::look_soon);
    }

    /// Why what lies in a storage or volume that was there cannot be worked on any more, as far as that was seen last.
    pub(super) fn trouble_of(&self, name: &str) -> Option<Error> {
        let storage = self.volumes.get(name).map_or(name, |facts| facts.storage.as_str());
        // The buffer, and a volume of which nothing is held here, are in no storage.
        if storage == BUFFER || storage.is_empty() {
            return None;
        }
        match self.storages.get(storage) {
            None => Some(self.removed(storage)),
            Some(root) => root.trouble().filter(|error| error.code != Code::WithAgent),
        }
    }

    /// The buffer, opened when it is first asked for. One that was switched off and is not empty is there still, without
    /// room for more.
    ///
    /// # Errors
    /// `BufferMissing` if there is none, and those of the file system.
    pub fn buffer(&self) -> Result<Arc<Buffer>, Error> {
        let config = &self.config.buffer;
        let limits = Limits { capacity: config.size(), quota: config.per_user() };
        let mut opened = self.buffer.opened.lock().expect("no thread panics while it holds the lock");
        if let Some(buffer) = &*opened {
            buffer.set_limits(limits);
            return Ok(buffer.clone());
        }
        let folder = &self.buffer.folder;
        if limits.capacity == 0 && !folder.exists() {
            let missing = Error::new(Code::BufferMissing, "open buffer", &self.site, "");
            return Err(missing.at(self.site.as_str()));
        }
        let buffer = Buffer::open(folder, limits).map_err(|error| error.at(self.site.as_str()))?;
        Ok(opened.insert(Arc::new(buffer)).clone())
    }

    /// Whether the home of a volume is another site.
    pub fn follows(&self, facts: &VolumeConfig) -> bool {
        facts.home != self.site
    }

    /// The tree of a volume of this site, or the copy of it.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub(super) fn volume_tree(&self, id: VolumeId) -> Result<Arc<VolumeTree>, Error> {
        self.open_volumes.tree(id)
    }

    /// Opens a volume of this site, if there is one of that name.
    ///
    /// # Errors
    /// `StorageUnknown` and `StorageMissing` for its storage, `CatalogueFailed`.
    pub fn volume(&self, name: &str) -> Option<Result<Arc<Volume>, Error>> {
        self.volumes
            .get(name)
            .filter(|facts| !self.follows(facts))
            .map(|facts| self.open_volume(name, facts).map_err(|error| error.at(self.site.as_str())))
    }

    /// Opens the volume of this site that has a number.
    ///
    /// # Errors
    /// As [`Snapshot::volume`].
    pub(super) fn volume_of(&self, id: VolumeId) -> Option<Result<Arc<Volume>, Error>> {
        let named = self.volumes.iter().find(|(_, facts)| facts.id == id && !self.follows(facts));
        self.volume(named?.0)
    }

    fn open_volume(&self, name: &str, facts: &VolumeConfig) -> Result<Arc<Volume>, Error> {
        self.open_volumes.open(name, facts, &self.site_of(facts)?, Arc::new(AsAccount(facts.account.clone())))
    }

    /// Where the plain files of a volume are.
    fn site_of(&self, facts: &VolumeConfig) -> Result<VolumeLocation, Error> {
        let root = self.storage(&facts.storage)?;
        let (storage, identity) = (&root.storage, Some(root.identity()?));
        let access = if storage.read_only { Mode::ReadOnly } else { Mode::ReadWrite };
        Ok(VolumeLocation { root: storage.path.clone(), path: facts.place()?, access, identity })
    }

    /// Why the directory of a volume that is only read here is not the one that it was.
    pub(super) fn replaced(&self, facts: &VolumeConfig) -> Option<Error> {
        self.open_volumes.replaced(&facts.id)
    }

    /// Takes the directory that is there now for that of a followed volume's replicas.
    ///
    /// # Errors
    /// Those of [`Volumes::accept_copy`](crate::volume::Volumes::accept_copy), and of its storage.
    pub(super) fn accept_copy(
        &self,
        name: &str,
        facts: &VolumeConfig,
        incomplete: bool,
    ) -> Result<CopyTaken, Error> {
        let plain = Arc::new(self.storage(&facts.storage)?.local()?.below(&facts.place()?)?);
        let (pending, hands) = (self.pending(name, facts)?, AsAccount(facts.account.clone()));
        let run_as = |work: Box<dyn FnOnce() + Send>| hands.run(work);
        self.open_volumes.accept_copy(facts.id, &pending, &plain, &run_as, incomplete)
    }

    /// Takes the directory that is there now for that of a volume of this site.
    ///
    /// # Errors
    /// `VolumeUnknown`, and those of [`Volumes::accept`](crate::volume::Volumes::accept).
    pub(super) fn accept_volume(&self, name: &str, incomplete: bool) -> Result<Taken, Error> {
        let facts = self.volumes.get(name).ok_or_else(|| volume_config::unknown(name))?;
        let (at, hands) = (self.site_of(facts)?, AsAccount(facts.account.clone()));
        self.open_volumes.accept(name, facts, &at, &hands, incomplete)
    }

    /// Opens all volumes that can be, so that they are followed, and closes those that are no more.
    pub fn follow_volumes(&self) {
        let ids: Vec<_> = self.volumes.values().map(|facts| facts.id).collect();
        self.open_volumes.keep_only(|id| ids.contains(id));
        for (_, facts) in self.volumes.iter().filter(|(name, _)| self.trouble_of(name).is_some()) {
            self.open_volumes.close(facts.id);
        }
        for facts in self.volumes.values().filter(|facts| !self.follows(facts)) {
            self.close_if_moved(facts);
        }
        for name in self.volumes.keys() {
            if let Some(Err(error)) = self.volume(name) {
                tracing::debug!(%error, name, "the volume is not there");
            }
        }
    }

    /// A volume of this site whose plain files are what is at their path now.
    ///
    /// # Errors
    /// As [`Snapshot::volume`].
    pub(super) fn volume_in_place(
        &self,
        name: &str,
        facts: &VolumeConfig,
    ) -> Option<Result<Arc<Volume>, Error>> {
        match self.volume(name)? {
            Ok(volume) if !volume.is_in_place() => {
                drop(volume);
                self.close_if_moved(facts);
                self.volume(name)
            }
            volume => Some(volume),
        }
    }

    /// Closes a volume of this site in whose place is another directory now.
    fn close_if_moved(&self, facts: &VolumeConfig) {
        self.open_volumes
            .close_if_moved(facts.id, || self.storage(&facts.storage)?.local()?.below(&facts.place()?));
    }

    /// Forgets the tree of a volume that was deleted.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub fn forget_volume(&self, id: [u8; 16]) -> Result<(), Error> {
        self.open_volumes.forget(id)
    }

    /// The store of a storage or volume.
    ///
    /// # Errors
    /// `StorageUnknown`, `StorageMissing`, `CatalogueFailed`.
    pub fn store(&self, name: &str) -> Result<Arc<dyn Store>, Error> {
        match (self.volume(name), self.volumes.get(name)) {
            (Some(volume), _) => self.volume_store(name, volume?),
            (None, Some(facts)) => Ok(Arc::new(self.followed(name, facts, None)?)),
            (None, None) => self.storage(name)?.store(),
        }
    }

    /// A volume of this site as a store, which reads at other sites what they have alone.
    pub(super) fn volume_store(&self, name: &str, volume: Arc<Volume>) -> Result<Arc<dyn Store>, Error> {
        let (fetching, tree) = (self.fetching.clone(), volume.tree().clone());
        let elsewhere = Arc::new(Distant { fetching, name: name.into(), tree });
        Ok(Arc::new(VolumeStore::with_elsewhere(volume, elsewhere)))
    }

    /// Opens a volume that is followed, with what is needed to change it.
    pub(super) fn followed(
        &self,
        name: &str,
        facts: &VolumeConfig,
        writer: Option<Writer>,
    ) -> Result<FollowedStore, Error> {
        let contents = Arc::new(self.contents(name, facts)?);
        let home = format!("{}:/{name}", facts.home);
        Ok(FollowedStore::new(contents.pending.clone(), &facts.id, contents, home, writer))
    }

    /// What this site changed itself in a volume that it follows.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub(super) fn pending(&self, name: &str, facts: &VolumeConfig) -> Result<Arc<Outbox>, Error> {
        self.open_volumes.pending(name, facts.id)
    }

    /// The same, of which only what is held here can be read.
    pub(super) fn followed_here(&self, name: &str, facts: &VolumeConfig) -> Result<FollowedStore, Error> {
        let contents = self.contents(name, facts)?;
        let (pending, home) = (contents.pending.clone(), format!("{}:/{name}", facts.home));
        Ok(FollowedStore::new(pending, &facts.id, Arc::new(HeldOnly(contents)), home, None))
    }

    /// The content of a volume that is followed.
    pub(super) fn contents(&self, name: &str, facts: &VolumeConfig) -> Result<Contents, Error> {
        let pending = self.pending(name, facts)?;
        let plain = match facts.storage.as_str() {
            "" => None,
            storage => {
                let root = self.storage(storage)?;
                let plain = Arc::new(root.local()?.below(&facts.place()?)?);
                let access = if root.storage.read_only { Mode::ReadOnly } else { Mode::ReadWrite };
                let own = DirectoryClaim::new(&facts.id, &self.site);
                let hands = AsAccount(facts.account.clone());
                self.open_volumes.claim(&pending, facts.id, &own, (&plain, access), &hands)?;
                Some(plain)
            }
        };
        Ok(Contents {
            id: facts.id,
            fetching: self.fetching.clone(),
            name: name.into(),
            home: facts.home.clone(),
            tree: self.volume_tree(facts.id)?,
            pending,
            plain,
        })
    }

    /// A storage by name.
    pub fn storage(&self, name: &str) -> Result<&Root, Error> {
        let unknown = || Error::new(Code::StorageUnknown, "look up storage", name, "").at(self.site.as_str());
        self.storages.get(name).map(|root| &**root).ok_or_else(unknown)
    }
}

/// The certificate of a PoP under the former name of its site; without it partners take the new name over by hand.
fn former_host(home: &Home) -> Option<(String, Credential)> {
    rotation::former_host(home, SystemTime::now()).unwrap_or_else(|error| {
        tracing::warn!(%error, "the certificate under the former name of the site cannot be used");
        None
    })
}

/// State of the files now.
pub fn mark(home: &Home) -> Mark {
    let files = [
        home.config_file(),
        home.map_file(),
        home.volumes_dir(),
        home.trust_dir(),
        home.crl_dir(),
        home.revoked_file(),
        home.host_cert(),
        home.ca_cert(),
        // Where the hand-over of an authority comes, under a name of its own.
        home.pki_dir(),
    ];
    files.iter().map(|path| mark_of(path)).collect()
}

fn mark_of(path: &Path) -> Option<(SystemTime, u64, u64)> {
    let data = std::fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.len(), std::os::unix::fs::MetadataExt::ino(&data)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::identity::authority::{Authority, renew_host};

    /// A PoP's files with one storage, `data`, at the path that is returned.
    pub fn site(dir: &Path) -> (Home, std::path::PathBuf) {
        let (home, now) = (Home::at(dir), SystemTime::now());
        let authority = Authority::create(&crate::identity::tests::site("kek"), now).unwrap();
        authority.store(&home).unwrap();
        let data = dir.join("data");
        let config = format!("site = 'kek'\n[storage.data]\npath = '{}'\n", data.display());
        std::fs::write(home.config_file(), config).unwrap();
        renew_host(&home, &authority, &["127.0.0.1:7512".into()], false, now).unwrap();
        (home, data)
    }

    #[test]
    fn a_missing_storage_is_looked_for_by_the_watch_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (home, data) = site(dir.path());
        let first = Snapshot::load(&home, Config::load(&home).unwrap()).unwrap();
        std::fs::create_dir(data).unwrap();
        let next = first.reload(&home).unwrap();
        assert!(next.storage("data").unwrap().store().is_err());
        next.storage("data").unwrap().look();
        assert!(next.storage("data").unwrap().store().is_ok());
    }
}
