//! The agent's half of an exported folder: credentials and configuration that an agent gets from its PoP.
//!
//! An agent is a PoP engine without a port, in a directory of its own. This module fills the directory: with a
//! certificate that names the storage, which is requested with the user's login once and renewed with the
//! certificate itself long before it expires; and with the agent's configuration from the PoP (account, map, cards
//! and revocation lists), polled every second. The engine reads these files as any PoP reads its own. Guarantees:
//! nothing is trusted that the site's authority, known from the login, does not vouch for; a text is written in
//! full or not at all. Non-goal: the reverse connection, which is handled as any other.

use crate::storage::identity as storage_identity;
use crate::transfer::Transfers;
use renkei_config::home::{Home, file_error, make_dir, make_private_dir, write_file};
use renkei_config::random::random_number;
use renkei_config::{Config, DEFAULT_PORT, Relay, Route, Storage};
use renkei_core::backoff::Backoff;
use renkei_core::error::{Code, Error, Kind, Retry};
use renkei_core::former_names::FormerNames;
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use renkei_core::wire::message::{Reply, Request, Terms};
use renkei_core::wire::violation;
use renkei_mover::connect::dial::{Dialler, Session};
use renkei_net::identity::agency::AGENT_LIFE;
use renkei_net::identity::authority::rotation::is_of_another;
use renkei_net::identity::certificate::Facts;
use renkei_net::identity::credential::{Credential, KeyRequest};
use renkei_net::identity::secret;
use renkei_net::identity::trust::card::SiteCard;
use renkei_net::identity::trust::former_names;
use renkei_net::identity::trust::{Trust, home_of_user};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Poll interval for changed terms.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Backoff after a failure.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(15));
/// Maximum size of a text from the PoP.
const MAX_TEXT_BYTES: usize = 16 << 20;
/// Timeout for the PoP's answers.
const SILENCE: Duration = Duration::from_secs(20);

/// The folder to export, and how.
pub struct ExportConfig {
    /// Name of the storage.
    pub storage: String,
    /// The folder.
    pub path: PathBuf,
    /// `HOST:PORT` of the PoP, if it differs from its card.
    pub pop: Option<String>,
    /// Whether other sites are reached through the PoP only.
    pub through_pop: bool,
}

/// A folder to be served as a storage of a site.
pub struct Export {
    home: Home,
    user: Home,
    site: SiteName,
    config: ExportConfig,
    /// The digests of the texts written.
    written: BTreeMap<String, [u8; 32]>,
}

/// The file of a text of the PoP.
fn file_of(home: &Home, name: &str) -> Option<PathBuf> {
    let named = |name: &str| SiteName::parse(name).ok();
    match name.split_once('/') {
        None if name == "map" => Some(home.map_file()),
        None if name == "former-names" => Some(home.former_names_file()),
        Some(("site", name)) => Some(home.trust_dir().join(format!("{}.site", named(name)?))),
        Some(("list", name)) => Some(home.crl_file(&named(name)?)),
        _ => None,
    }
}

/// Whether an error is permanent.
fn is_final(error: &Error) -> bool {
    error.retry() == Retry::Never
}

impl Export {
    /// Prepares the export of a folder as a storage of the site that `user` is logged in to.
    ///
    /// # Errors
    /// `NotLoggedIn`, `UsageInvalid`.
    pub fn new(user: Home, config: ExportConfig) -> Result<Self, Error> {
        let named = Credential::user_named(&user)?.site().clone();
        Principal::agent(&named, &config.storage)?;
        let folder = user.state_dir().join("agents");
        let dir_of = |site: &str| folder.join(format!("{}@{site}", config.storage));
        // A new name of the site may be known only from the PoP's texts.
        former_names::install(&Home::at(&dir_of(named.as_str())))?;
        let site = named.current().into_owned();
        let dir = dir_of(site.as_str());
        let names = FormerNames::installed();
        let formers = names.iter().filter(|(_, current)| *current == site.as_str());
        if let Some(old) = formers.map(|(former, _)| dir_of(former)).find(|old| old.exists() && !dir.exists())
        {
            std::fs::rename(&old, &dir).map_err(|error| file_error("rename", &old, &error))?;
        }
        Ok(Export { home: Home::at(&dir), user, site, config, written: BTreeMap::new() })
    }

    /// The agent's own directory.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Creates the agent's private directory.
    pub fn make_home(&self) -> Result<(), Error> {
        make_private_dir(self.home.config_dir())?;
        make_private_dir(self.home.state_dir())?;
        make_private_dir(&self.home.crl_dir())?;
        make_dir(&self.home.trust_dir(), 0o755)?;
        // The user's path is authoritative; the last start may have been on another machine.
        storage_identity::forget(&self.home, &self.config.storage)
    }

    /// Gets certificate and configuration from the PoP; transient errors are retried.
    ///
    /// # Errors
    /// Permanent ones, such as `AgentRefused`.
    pub fn begin(&mut self) -> Result<(), Error> {
        let mut pauses = BACKOFF.begin();
        loop {
            match self.open() {
                Ok(_) => return Ok(()),
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => tracing::warn!(%error, "the PoP is not reached yet"),
            }
            std::thread::sleep(pauses.next(random_number()));
        }
    }

    /// Starts the thread that keeps certificate and terms up to date as long as the process lives.
    pub fn spawn(mut self, transfers: &Arc<Transfers>) -> Result<(), Error> {
        let transfers = Arc::downgrade(transfers);
        let (mut session, mut pauses, mut last) = (None, BACKOFF.begin(), None);
        let work = move || {
            while let Some(transfers) = transfers.upgrade() {
                let pause = match self.look(&mut session) {
                    Ok(()) => {
                        pauses.reset();
                        last = None;
                        LOOK_EVERY
                    }
                    Err(error) => {
                        session = None;
                        note_failure(&transfers, &error, &mut last);
                        pauses.next(random_number())
                    }
                };
                drop(transfers);
                std::thread::sleep(pause);
            }
        };
        let thread = std::thread::Builder::new().name("terms".into()).spawn(work);
        thread.map(drop).map_err(|error| Error::new(Code::SystemCall, "start thread", "terms", error))
    }

    fn look(&mut self, session: &mut Option<Session>) -> Result<(), Error> {
        match session {
            Some(session) => {
                self.renew_if_due(session)?;
                self.take_terms(session)
            }
            None => {
                *session = self.open()?;
                Ok(())
            }
        }
    }

    /// Gets everything that is needed; returns the session if it is the agent's own.
    fn open(&mut self) -> Result<Option<Session>, Error> {
        self.keep_own_card()?;
        let own = self.own_credential().and_then(|own| self.connect(&own));
        let (mut session, is_own) = match own {
            Ok(session) => (session, true),
            Err(error) if error.kind() == Kind::Identity || error.code == Code::NotInitialised => {
                (self.connect_as_user(error)?, false)
            }
            Err(error) => return Err(error),
        };
        match is_own {
            true => self.renew_if_due(&mut session)?,
            false => self.enlist(&mut session)?,
        }
        self.take_terms(&mut session)?;
        Ok(is_own.then_some(session))
    }

    fn own_credential(&self) -> Result<Credential, Error> {
        Credential::host(&self.home, SystemTime::now())
    }

    fn connect(&self, credential: &Credential) -> Result<Session, Error> {
        let trust = Arc::new(Trust::load(&self.home)?);
        Dialler::new(credential, trust, SILENCE)?.connect(&self.site)
    }

    /// A session of the user, because the agent's certificate is missing or invalid; if the user's login is invalid
    /// too, the error is that of the agent's certificate.
    fn connect_as_user(&self, why: Error) -> Result<Session, Error> {
        match Credential::user(&self.user, SystemTime::now()) {
            Ok(user) => self.connect(&user),
            Err(error) if why.code == Code::NotInitialised => Err(error),
            Err(_) => Err(why),
        }
    }

    fn renew_if_due(&self, session: &mut Session) -> Result<(), Error> {
        let own = self.own_credential()?;
        let left = own.facts()?.not_after.duration_since(SystemTime::now()).unwrap_or_default();
        // Certificates of a replaced authority may be rejected before they expire.
        let trust = Trust::load(&self.home)?;
        let is_of_now =
            trust.card(&self.site).is_none_or(|card| !is_of_another(&own.chain[0], &card.authority));
        match is_of_now && left > AGENT_LIFE * 2 / 3 {
            true => Ok(()),
            false => self.enlist(session),
        }
    }

    /// Gets a certificate. The key is kept, so that key and certificate match at any moment.
    fn enlist(&self, session: &mut Session) -> Result<(), Error> {
        let made = match secret::read(&self.home.host_key())? {
            Some(key) => KeyRequest::again(&key)?,
            None => {
                let made = KeyRequest::generate()?;
                secret::write(&self.home.host_key(), &made.key)?;
                made
            }
        };
        let request = Request::Enlist { storage: self.config.storage.clone(), request: made.request };
        let pem = match session.ask(request)? {
            Reply::Enlisted(pem) => pem,
            other => return Err(violation("enlisting", format_args!("{other:?}"))),
        };
        let path = self.home.host_cert();
        let leaf = Credential::parse(&pem, &made.key, &path)?.chain.remove(0);
        let named = Facts::read(&leaf)?.principal()?;
        if named != Principal::agent(&self.site, &self.config.storage)? {
            return Err(violation("enlisting", format_args!("a certificate for {named}")));
        }
        write_file(&path, pem.as_bytes(), 0o644)
    }

    /// Stores the card of the own site, from the login or from the last run.
    fn keep_own_card(&self) -> Result<(), Error> {
        let login = Trust::load(&home_of_user(&self.user, &self.site)?)?.export(&self.site);
        let own = Trust::load(&self.home)?;
        let known = match login {
            // A login from before the site replaced its authority is older than the stored card.
            Some(card) if own.merge(card.clone(), None).is_ok() => Some(card),
            login => own.export(&self.site).or(login),
        };
        let none = || Error::new(Code::SiteUnknown, "look up site", &self.site, "log in anew");
        self.write_own_card(known.ok_or_else(none)?)
    }

    fn write_own_card(&self, mut card: SiteCard) -> Result<(), Error> {
        if let Some(pop) = &self.config.pop {
            card.endpoints = vec![pop.clone()];
        }
        (card.via, card.revocation_list) = (Vec::new(), None);
        let path = self.home.trust_dir().join(format!("{}.site", self.site));
        write_changed(&path, card.to_text().as_bytes())
    }

    /// Applies the current terms of the PoP.
    fn take_terms(&mut self, session: &mut Session) -> Result<(), Error> {
        let terms = match session.ask(Request::Terms(self.config.storage.clone()))? {
            Reply::Terms(terms) => terms,
            other => return Err(violation("terms", format_args!("{other:?}"))),
        };
        for (name, digest) in &terms.texts {
            if self.written.get(name) != Some(digest) {
                let text = self.fetch(session, name)?;
                // A text that changed meanwhile is taken in the next poll.
                if blake3::hash(&text) == *digest {
                    self.write_text(name, &text)?;
                    self.written.insert(name.clone(), *digest);
                }
            }
        }
        if self.is_renamed() {
            // The site is served under its new name after the process has restarted, which happens soon.
            return Ok(());
        }
        self.forget_others(&terms)?;
        self.write_config(&terms)
    }

    /// Whether the PoP has announced a new name of the own site.
    fn is_renamed(&self) -> bool {
        let names = former_names::read(&self.home).unwrap_or_default();
        names.current(self.site.as_str()).is_some()
    }

    fn fetch(&self, session: &mut Session, name: &str) -> Result<Vec<u8>, Error> {
        let mut text = Vec::new();
        loop {
            let (storage, offset) = (self.config.storage.clone(), text.len() as u64);
            match session.ask(Request::Term { storage, name: name.into(), offset })? {
                Reply::Term { bytes, more } => {
                    text.extend(bytes);
                    if !more {
                        return Ok(text);
                    }
                    if text.len() > MAX_TEXT_BYTES {
                        return Err(violation("terms", format_args!("{name} is larger than 16 MiB")));
                    }
                }
                other => return Err(violation("terms", format_args!("{other:?}"))),
            }
        }
    }

    fn write_text(&self, name: &str, text: &[u8]) -> Result<(), Error> {
        // Unknown texts of a newer PoP are ignored.
        let Some(path) = file_of(&self.home, name) else { return Ok(()) };
        if name == format!("site/{}", self.site) {
            return self.take_own_card(text);
        }
        write_changed(&path, text)
    }

    /// Updates the card of the own site: its endpoints may change, its authority only by a handover.
    fn take_own_card(&self, text: &[u8]) -> Result<(), Error> {
        let card = SiteCard::parse(&String::from_utf8_lossy(text))?;
        Trust::load(&self.home)?.compare(&SiteCard { revocation_list: None, ..card.clone() })?;
        self.write_own_card(card)
    }

    /// Removes sites that the PoP no longer trusts.
    fn forget_others(&mut self, terms: &Terms) -> Result<(), Error> {
        let named = |name: &str| terms.texts.iter().any(|(known, _)| known == name);
        let gone = |kind: &str, dir: PathBuf, extension: &str| -> Result<(), Error> {
            let listing = std::fs::read_dir(&dir).map_err(|error| file_error("read", &dir, &error))?;
            for path in listing.flatten().map(|entry| entry.path()) {
                let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
                let ours = path.extension().is_some_and(|found| found == extension);
                if ours && !named(&format!("{kind}/{stem}")) {
                    std::fs::remove_file(&path).map_err(|error| file_error("remove", &path, &error))?;
                }
            }
            Ok(())
        };
        gone("site", self.home.trust_dir(), "site")?;
        gone("list", self.home.crl_dir(), "crl")?;
        self.written.retain(|name, _| named(name));
        Ok(())
    }

    /// Routing rules for other sites: through the PoP, if that was requested.
    fn routes(&self, terms: &Terms) -> BTreeMap<SiteName, Route> {
        let sites =
            terms.texts.iter().filter_map(|(name, _)| SiteName::parse(name.strip_prefix("site/")?).ok());
        let others = sites.filter(|site| self.config.through_pop && *site != self.site);
        others.map(|site| (site, Route { pin: Some(self.site.to_string()), forbid: Vec::new() })).collect()
    }

    fn write_config(&self, terms: &Terms) -> Result<(), Error> {
        let storage = Storage {
            path: self.config.path.clone(),
            read_only: terms.read_only,
            require_mount: false,
            account: None,
            agent: Some(terms.account.clone()),
            checksums: None,
        };
        let config = Config {
            site: Some(self.site.clone()),
            reverse: vec![self.site.clone()],
            relay: Relay::None,
            map_own_users: terms.map_own_users,
            storage: BTreeMap::from([(self.config.storage.clone(), storage)]),
            route: self.routes(terms),
            // The agent does not listen; its users find it through the PoP.
            listen: vec![std::net::SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT))],
            ..Config::default()
        };
        let bad = |error: toml::ser::Error| {
            let cause = format!("config.toml cannot hold it: {error}");
            Error::new(Code::UsageInvalid, "export", self.config.path.display(), cause)
        };
        let text = toml::to_string(&config).map_err(bad)?;
        let head = "# Written by `renkei agent` from what the PoP says, again whenever that changes.\n";
        write_changed(&self.home.config_file(), format!("{head}{text}").as_bytes())
    }
}

/// Logs a failure once, and stops all transfers if the site refuses this agent for good.
fn note_failure(transfers: &Transfers, error: &Error, last: &mut Option<Error>) {
    if last.as_ref() != Some(error) {
        tracing::warn!(%error, "the PoP was not asked");
    }
    if is_final(error) && matches!(error.kind(), Kind::Permission | Kind::Identity) {
        transfers.active.stop_all(error);
    }
    *last = Some(error.clone());
}

/// Writes a file if its content differs.
fn write_changed(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    match std::fs::read(path) {
        Ok(known) if known == bytes => Ok(()),
        _ => write_file(path, bytes, 0o600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_written_only_to_their_files() {
        let home = Home::at(Path::new("/a"));
        assert_eq!(file_of(&home, "map"), Some(home.map_file()));
        assert_eq!(file_of(&home, "site/kek"), Some("/a/trust/kek.site".into()));
        assert_eq!(file_of(&home, "list/kek"), Some("/a/state/crl/kek.crl".into()));
        for bad in ["", "config", "site/../map", "site/", "list/a/b", "pki/ca"] {
            assert_eq!(file_of(&home, bad), None, "{bad}");
        }
    }

    #[test]
    fn a_written_configuration_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let export = Export {
            home: Home::at(dir.path()),
            user: Home::at(dir.path()),
            site: SiteName::parse("titech").unwrap(),
            config: ExportConfig {
                storage: "scratch".into(),
                path: "/lustre/\"scratch\"".into(),
                pop: None,
                through_pop: true,
            },
            written: BTreeMap::new(),
        };
        let texts = ["map", "site/titech", "site/kek", "list/kek"].map(|name| (name.to_owned(), [0; 32]));
        let terms =
            Terms { account: "alice".into(), read_only: true, map_own_users: false, texts: texts.into() };
        export.write_config(&terms).unwrap();
        let config = Config::load(&export.home).unwrap();
        let storage = &config.storage["scratch"];
        assert_eq!((storage.path.to_str().unwrap(), storage.read_only), ("/lustre/\"scratch\"", true));
        assert_eq!((storage.agent.as_deref(), config.map_own_users), (Some("alice"), false));
        let pins: Vec<_> =
            config.route.iter().map(|(to, route)| (to.as_str(), route.pin.as_deref())).collect();
        assert_eq!(pins, [("kek", Some("titech"))]);
        assert_eq!((config.relay, config.reverse), (Relay::None, vec![export.site]));
    }
}
