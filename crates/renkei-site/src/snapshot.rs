//! Snapshot: configuration, mapping, trust and open storages as of one moment.
//!
//! A storage is opened once (`storage::root`) and shared by all snapshots that have it unchanged, so that a change
//! of the map never waits for a file system. Only the PoP's watch thread polls for a missing one.

use super::buffer::Buffer;
use super::storage::identity as storage_identity;
use super::storage::root::Root;
use super::volume_content::{AsAccount, Contents, Distant, HeldOnly, RemoteSlot};
use renkei_catalogue::{VolumeId, VolumeTree};
use renkei_config::home::{Home, read_text};
use renkei_config::{Config, Storage};
use renkei_core::buffer::{Limits, STORAGE as BUFFER};
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Mapping, Principal};
use renkei_core::path::SiteName;
use renkei_net::identity::authority::rotation;
use renkei_net::identity::credential::Credential;
use renkei_net::identity::grid::GridTrust;
use renkei_net::identity::kerberos::Service as Kerberos;
use renkei_net::identity::tls::server_config_with;
use renkei_net::identity::token::bearer::TokenKey;
use renkei_net::identity::token::issuers::Issuers;
use renkei_net::identity::token::keys::IssuerKeys;
use renkei_net::identity::token::s3_key::S3Keys;
use renkei_net::identity::trust::Trust;
use renkei_net::identity::web::{WebCertificate, http_config, http_config_with_clients};
use renkei_store::Store;
use renkei_store::local::AccessMode as Mode;
use renkei_volume::dir_claim::DirectoryClaim;
use renkei_volume::follower::accept_dir::CopyTaken;
use renkei_volume::follower::outbox::Outbox;
use renkei_volume::follower::plain_file::Writer;
use renkei_volume::follower::view::FollowedStore;
use renkei_volume::home::accept_dir::Taken;
use renkei_volume::{Hands as _, Volume, VolumeConfig, VolumeLocation, VolumeStore, Volumes, volume_config};
use rustls::ServerConfig;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// Maximum size of the mapping file.
pub(super) const MAX_MAP_BYTES: u64 = 16 << 20;

/// Texts sent to agents beside the terms: name, content, digest.
pub(crate) type Texts = Vec<(String, Vec<u8>, [u8; 32])>;

/// The folder of the PoP's buffer, and the buffer once it was opened.
struct Slot {
    folder: PathBuf,
    opened: Mutex<Option<Arc<Buffer>>>,
}

/// State shared by all snapshots.
#[derive(Clone)]
struct Shared {
    buffer: Arc<Slot>,
    open_volumes: Arc<Volumes>,
    remote: Arc<RemoteSlot>,
    web: Arc<WebCertificate>,
    host: Arc<WebCertificate>,
    grid: Arc<GridTrust>,
    kerberos: Arc<Kerberos>,
    issuer_keys: Arc<IssuerKeys>,
}

/// Stamps of the files when they were read, to detect changes.
pub type Mark = Vec<Option<(SystemTime, u64, u64)>>;

/// The addresses of the PoP. `listen` takes effect when the PoP starts; as long as the files have a different one,
/// the endpoints of before are announced: nothing listens at the new ones yet.
#[derive(Clone)]
pub(super) struct Listening {
    /// As of the files and the environment when the PoP started.
    in_force: Vec<SocketAddr>,
    /// As of the files now.
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

    /// The addresses in force and those of the files, if they differ.
    pub(super) fn pending(&self) -> Option<(&[SocketAddr], &[SocketAddr])> {
        (self.wanted != self.in_force).then_some((&self.in_force, &self.wanted))
    }
}

/// The configuration by which a request is judged.
pub struct Snapshot {
    /// The site's name.
    pub site: SiteName,
    /// The configuration.
    pub config: Config,
    /// The addresses of the PoP.
    pub(super) listening: Listening,
    /// The trusted sites.
    pub trust: Arc<Trust>,
    /// The mapping of principals to accounts.
    pub mapping: Mapping,
    /// The certificate and key of the PoP, or of the agent.
    pub credential: Credential,
    /// The principal it names.
    pub principal: Principal,
    /// The credential under the former name of the site, while partners may not know the new one.
    pub(super) former_credential: Option<Credential>,
    /// TLS for `renkei/1`; one for all connections, so that data streams can resume.
    pub renkei_tls: Arc<ServerConfig>,
    /// TLS for HTTP, for browsers, which offer HTTP/2.
    pub http_tls: Arc<ServerConfig>,
    /// The same for all others, which are asked for a certificate.
    pub http_tls_with_clients: Arc<ServerConfig>,
    /// The storages by name.
    pub storages: BTreeMap<String, Arc<Root>>,
    /// The volumes by name.
    pub volumes: BTreeMap<String, VolumeConfig>,
    /// The key of the PoP's tokens, once it issued one.
    pub(super) token_key: Option<TokenKey>,
    /// The issuers whose tokens are accepted.
    pub(super) issuers: Issuers,
    pub(super) issuer_keys: Arc<IssuerKeys>,
    /// The S3 keys of users.
    pub s3_keys: S3Keys,
    /// The certificate for HTTP clients.
    pub web: Arc<WebCertificate>,
    /// The host certificate of the grid, for those among them that do not offer HTTP/2.
    pub host: Arc<WebCertificate>,
    /// The trust in grid certificates.
    pub grid: Arc<GridTrust>,
    /// The keytab by which Kerberos tickets are accepted.
    pub kerberos: Arc<Kerberos>,
    open_volumes: Arc<Volumes>,
    pub(super) remote: Arc<RemoteSlot>,
    buffer: Arc<Slot>,
    /// Texts for agents, by the account that they serve; made on the first request.
    pub(super) texts: Mutex<BTreeMap<String, Arc<Texts>>>,
    mark: Mark,
}

impl Snapshot {
    /// Loads everything but the configuration, which the caller has loaded.
    pub fn load(home: &Home, config: Config) -> Result<Self, Error> {
        let slot = Slot { folder: config.buffer.folder(home), opened: Mutex::default() };
        let shared = Shared {
            buffer: Arc::new(slot),
            open_volumes: Arc::new(Volumes::new(home, &config.catalogue)),
            remote: Arc::default(),
            web: Arc::default(),
            host: Arc::default(),
            grid: Arc::new(GridTrust::load(&config.grid)),
            kerberos: Arc::new(Kerberos::load(&config.kerberos)),
            issuer_keys: Arc::new(IssuerKeys::new(home)),
        };
        shared.web.look(&config.web);
        shared.host.look(&config.grid.host());
        // Flags apply to this process only; commands in the directory announce the endpoints in the files.
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
            // Even a missing one: opening it may block for ever, which only the watch thread may risk.
            let checksums = storage.checksums.clone().or_else(|| Some(config.checksums.clone()));
            let storage = Storage { checksums, ..storage.clone() };
            let same = before.get(name).filter(|root| root.storage == storage);
            (name.clone(), same.cloned().unwrap_or_else(|| Root::open(home, name, &storage)))
        });
        let credential = Credential::host(home, SystemTime::now())?;
        let principal = credential.principal()?;
        let former = former_host(home);
        let mut volumes = volume_config::load(home)?;
        // If both were created by hand, the storage takes precedence.
        volumes.retain(|name, _| !config.storage.contains_key(name));
        let Shared { buffer, open_volumes, remote, web, host, grid, kerberos, issuer_keys } = shared;
        let mut trust = Trust::load(home)?;
        trust.announce(&listening.announced);
        Ok(Snapshot {
            volumes,
            open_volumes,
            remote,
            renkei_tls: server_config_with(&credential, former.as_ref())?,
            former_credential: former.map(|(_, credential)| credential),
            http_tls: http_config(&credential, &[&web, &host])?,
            http_tls_with_clients: http_config_with_clients(&credential, &[&host, &web])?,
            web,
            host,
            grid,
            kerberos,
            trust: Arc::new(trust),
            token_key: TokenKey::load(home)?,
            issuers: Issuers::load(home)?,
            issuer_keys,
            s3_keys: S3Keys::new(home),
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

    /// Reloads everything; values set by flags at the start of the PoP stay.
    pub fn reload(&self, home: &Home) -> Result<Self, Error> {
        // Taken before the first file is read, so that a change meanwhile is noticed the next time.
        let mark = mark(home);
        let fresh = Config::load(home)?;
        let listening = self.listening.after(&fresh);
        let config = Config { listen: self.config.listen.clone(), ..fresh };
        let shared = Shared {
            buffer: self.buffer.clone(),
            open_volumes: self.open_volumes.clone(),
            remote: self.remote.clone(),
            web: self.web.clone(),
            host: self.host.clone(),
            grid: match self.grid.is_stale(&config.grid) {
                true => Arc::new(GridTrust::load(&config.grid)),
                false => self.grid.clone(),
            },
            kerberos: match self.kerberos.is_stale(&config.kerberos) {
                true => Arc::new(Kerberos::load(&config.kerberos)),
                false => self.kerberos.clone(),
            },
            issuer_keys: self.issuer_keys.clone(),
        };
        let fresh = Self::load_after(home, config, listening, &self.storages, shared, mark)?;
        self.close_removed(&fresh, home);
        Ok(fresh)
    }

    /// Closes the storages that are no longer configured, even if this snapshot is still in use.
    fn close_removed(&self, fresh: &Snapshot, home: &Home) {
        for (name, root) in self.storages.iter().filter(|(name, _)| !fresh.storages.contains_key(*name)) {
            root.close(fresh.removed(name));
            if let Err(error) = storage_identity::forget(home, name) {
                tracing::warn!(%error, name, "the record of a removed storage could not be removed");
            }
        }
    }

    /// The error for work on a storage that was removed.
    fn removed(&self, name: &str) -> Error {
        let cause = "it was removed from the PoP";
        Error::new(Code::StorageUnknown, "look up storage", name, cause).at(self.site.as_str())
    }

    /// The stamps of the files it was read from.
    pub fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Whether the process is an agent, which serves only its storage.
    pub fn is_agent(&self) -> bool {
        matches!(self.principal, Principal::Agent { .. })
    }

    /// The account of the agent that serves a storage, if one does and this process is not it.
    pub fn agent_of(&self, storage: &str) -> Option<&str> {
        let root = self.storages.get(storage).filter(|_| !self.is_agent())?;
        root.storage.agent.as_deref()
    }

    /// Whether a storage is assigned to an agent of this account.
    pub(super) fn has_agent_of(&self, account: &str) -> bool {
        self.storages.keys().any(|storage| self.agent_of(storage) == Some(account))
    }

    /// The agent of a storage of this site.
    pub(super) fn agent(&self, storage: &str) -> Principal {
        Principal::Agent { site: self.site.clone(), storage: storage.into() }
    }

    /// Checks in the background whether storages are missing, are there again, or were replaced by other
    /// directories.
    pub fn look_at_storages(&self) {
        self.storages.values().for_each(Root::look_soon);
    }

    /// The error for work in a storage or volume that was seen to be unusable in the last check.
    pub(super) fn trouble_of(&self, name: &str) -> Option<Error> {
        let storage = self.volumes.get(name).map_or(name, |facts| facts.storage.as_str());
        // The buffer, and a volume without replicas here, are in no storage.
        if storage == BUFFER || storage.is_empty() {
            return None;
        }
        match self.storages.get(storage) {
            None => Some(self.removed(storage)),
            Some(root) => root.trouble().filter(|error| error.code != Code::WithAgent),
        }
    }

    /// The buffer, opened on the first request. A buffer that was disabled and is not empty is still opened,
    /// without space for more.
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

    /// Opens the volume of this site with an id.
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

    /// The location of the plain files of a volume.
    fn site_of(&self, facts: &VolumeConfig) -> Result<VolumeLocation, Error> {
        let root = self.storage(&facts.storage)?;
        let (storage, identity) = (&root.storage, Some(root.identity()?));
        let access = if storage.read_only { Mode::ReadOnly } else { Mode::ReadWrite };
        Ok(VolumeLocation { root: storage.path.clone(), path: facts.place()?, access, identity })
    }

    /// The error if the directory of a volume that is read-only here was replaced by another one.
    pub(super) fn replaced(&self, facts: &VolumeConfig) -> Option<Error> {
        self.open_volumes.replaced(&facts.id)
    }

    /// Accepts the present directory as that of a followed volume's replicas.
    ///
    /// # Errors
    /// Those of [`Volumes::accept_copy`](renkei_volume::Volumes::accept_copy), and of its storage.
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

    /// Accepts the present directory as that of a volume of this site.
    ///
    /// # Errors
    /// `VolumeUnknown`, and those of [`Volumes::accept`](renkei_volume::Volumes::accept).
    pub(super) fn accept_volume(&self, name: &str, incomplete: bool) -> Result<Taken, Error> {
        let facts = self.volumes.get(name).ok_or_else(|| volume_config::unknown(name))?;
        let (at, hands) = (self.site_of(facts)?, AsAccount(facts.account.clone()));
        self.open_volumes.accept(name, facts, &at, &hands, incomplete)
    }

    /// Opens all available volumes, so that their reconcilers run, and closes removed and unusable ones.
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

    /// Opens a volume of this site, again if another directory is at its path by now.
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

    /// Closes a volume of this site if another directory is at its path by now.
    fn close_if_moved(&self, facts: &VolumeConfig) {
        self.open_volumes
            .close_if_moved(facts.id, || self.storage(&facts.storage)?.local()?.below(&facts.place()?));
    }

    /// Removes the tree of a deleted volume.
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

    /// A volume of this site as a store that reads remote content through from other sites.
    pub(super) fn volume_store(&self, name: &str, volume: Arc<Volume>) -> Result<Arc<dyn Store>, Error> {
        let (remote, tree) = (self.remote.clone(), volume.tree().clone());
        let elsewhere = Arc::new(Distant { remote, name: name.into(), tree });
        Ok(Arc::new(VolumeStore::with_elsewhere(volume, elsewhere)))
    }

    /// Opens a followed volume, with a writer if it is to be changed.
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

    /// The outbox of this site for a followed volume.
    ///
    /// # Errors
    /// `CatalogueFailed`.
    pub(super) fn pending(&self, name: &str, facts: &VolumeConfig) -> Result<Arc<Outbox>, Error> {
        self.open_volumes.pending(name, facts.id)
    }

    /// Opens a followed volume for reading held files only.
    pub(super) fn followed_here(&self, name: &str, facts: &VolumeConfig) -> Result<FollowedStore, Error> {
        let contents = self.contents(name, facts)?;
        let (pending, home) = (contents.pending.clone(), format!("{}:/{name}", facts.home));
        Ok(FollowedStore::new(pending, &facts.id, Arc::new(HeldOnly(contents)), home, None))
    }

    /// The content of a followed volume.
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
            remote: self.remote.clone(),
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

/// The certificate of a PoP under the former name of its site; without it partners need the new name by hand.
fn former_host(home: &Home) -> Option<(String, Credential)> {
    rotation::former_host(home, SystemTime::now()).unwrap_or_else(|error| {
        tracing::warn!(%error, "the certificate under the former name of the site cannot be used");
        None
    })
}

/// The current stamps of the files.
pub fn mark(home: &Home) -> Mark {
    let files = [
        home.config_file(),
        home.map_file(),
        home.issuers_file(),
        home.volumes_dir(),
        home.trust_dir(),
        home.crl_dir(),
        home.revoked_file(),
        home.host_cert(),
        home.ca_cert(),
        // For the handover of an authority, whose file name varies.
        home.pki_dir(),
        // A revoked key ends what is done with it.
        home.s3_key_dir(),
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
    use renkei_net::identity::authority::{Authority, renew_host};

    /// A PoP's files with one storage, `data`, at the path that is returned.
    pub fn site(dir: &Path) -> (Home, std::path::PathBuf) {
        let (home, now) = (Home::at(dir), SystemTime::now());
        let authority = Authority::create(&renkei_net::identity::testing::site("kek"), now).unwrap();
        authority.store(&home).unwrap();
        let data = dir.join("data");
        let config = format!("site = 'kek'\n[storage.data]\npath = '{}'\n", data.display());
        std::fs::write(home.config_file(), config).unwrap();
        renew_host(&home, &authority, &["127.0.0.1:7512".into()], false, now).unwrap();
        (home, data)
    }

    #[test]
    fn a_missing_storage_is_probed_by_the_worker_only() {
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
