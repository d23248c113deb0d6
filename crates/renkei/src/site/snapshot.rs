//! The configuration, mapping, trust and open storages of one moment.

use crate::config::Config;
use crate::home::{Home, read_text};
use crate::identity::credential::Credential;
use crate::identity::tls::{http_config, server_config};
use crate::identity::trust::Trust;
use crate::store::Store;
use crate::store::local::{Access as Mode, LocalStore};
use renkei_core::error::{Code, Error};
use renkei_core::identity::Mapping;
use renkei_core::path::SiteName;
use rustls::ServerConfig;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// How often a storage that is missing is looked for: each connection asks, a stranger's too.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Largest mapping file accepted.
const MAX_MAP_BYTES: u64 = 16 << 20;

/// One named root, opened.
pub struct Root {
    /// Whether writing is refused.
    pub read_only: bool,
    /// The account all work is done as, if not the user's.
    pub account: Option<String>,
    /// The store, or why it could not be opened.
    pub store: Result<Arc<dyn Store>, Error>,
}

/// State of a file when it was read, to notice a change.
type Mark = Vec<Option<(SystemTime, u64, u64)>>;

/// Everything a request is judged by.
pub struct Snapshot {
    /// The site's name.
    pub site: SiteName,
    /// The configuration.
    pub config: Config,
    /// Whom the site trusts.
    pub trust: Arc<Trust>,
    /// Who becomes which account.
    pub mapping: Mapping,
    /// The host's certificate and key.
    pub credential: Credential,
    /// TLS for `renkei/1`; one for all connections, so that data streams can resume.
    pub renkei_tls: Arc<ServerConfig>,
    /// TLS for HTTP.
    pub http_tls: Arc<ServerConfig>,
    /// The storages by name.
    pub storages: BTreeMap<String, Root>,
    mark: Mark,
    loaded: Instant,
}

impl Snapshot {
    /// Reads everything but the configuration, which the caller read.
    pub fn load(home: &Home, config: Config) -> Result<Self, Error> {
        let mark = mark(home);
        let site = config.site(home)?.clone();
        let map = read_text(&home.map_file(), MAX_MAP_BYTES)?.unwrap_or_default();
        let storages = config.storage.iter().map(|(name, storage)| {
            let mode = if storage.read_only { Mode::ReadOnly } else { Mode::ReadWrite };
            let root = Root {
                read_only: storage.read_only,
                account: storage.account.clone(),
                store: open(&storage.path, mode),
            };
            (name.clone(), root)
        });
        let credential = Credential::host(home, SystemTime::now())?;
        Ok(Snapshot {
            renkei_tls: server_config(&credential)?,
            http_tls: http_config(&credential)?,
            trust: Arc::new(Trust::load(home)?),
            mapping: Mapping::parse(&map)?,
            credential,
            storages: storages.collect(),
            site,
            config,
            mark,
            loaded: Instant::now(),
        })
    }

    /// Reads everything again; what was set by flags when the PoP started stays.
    pub fn reload(&self, home: &Home) -> Result<Self, Error> {
        let fresh = Config::load(home)?;
        let config = Config { listen: self.config.listen.clone(), ..fresh };
        Self::load(home, config)
    }

    /// Whether a file has changed since.
    pub fn is_stale(&self, home: &Home) -> bool {
        let missing = |root: &Root| root.store.is_err();
        let missing = || self.loaded.elapsed() >= LOOK_AGAIN_AFTER && self.storages.values().any(missing);
        self.mark != mark(home) || missing()
    }

    /// A storage by name.
    pub fn storage(&self, name: &str) -> Result<&Root, Error> {
        let unknown = || Error::new(Code::StorageUnknown, "look up storage", name, "").at(self.site.as_str());
        self.storages.get(name).ok_or_else(unknown)
    }
}

fn open(path: &Path, mode: Mode) -> Result<Arc<dyn Store>, Error> {
    LocalStore::open(path, mode).map(|store| Arc::new(store) as Arc<dyn Store>)
}

fn mark(home: &Home) -> Mark {
    let files = [
        home.config_file(),
        home.map_file(),
        home.trust_dir(),
        home.crl_dir(),
        home.revoked_file(),
        home.host_cert(),
    ];
    files.iter().map(|path| mark_of(path)).collect()
}

fn mark_of(path: &Path) -> Option<(SystemTime, u64, u64)> {
    let data = std::fs::metadata(path).ok()?;
    Some((data.modified().ok()?, data.len(), std::os::unix::fs::MetadataExt::ino(&data)))
}
