//! The configuration of a PoP: one TOML file, one tree of types.
//!
//! Precedence: default < file < environment (`RENKEI_<FIELD>`) < flag. An unknown field is an error with the line and
//! the nearest known field. The table [`FIELDS`] documents every field; docs/config.md is printed from it. A user
//! without a PoP has no file and gets the defaults. [`home`] has the directories of a PoP or user and how their files
//! are written, [`telemetry`] starts the log, [`random`] has ids and secrets, `edit` changes config.toml for commands. Uses: `renkei-core`.

mod edit;
mod fields;
mod grid;
pub mod home;
mod kerberos;
pub mod random;
mod rule;
pub mod s3;
pub mod telemetry;
mod tpc;
mod volumes;
mod web;

pub use edit::{
    add_grid_authorities, add_reverse, add_rule, add_storage, allow_private, disallow_private,
    remove_grid_authorities, remove_rule, remove_storage, set_require_mount, set_site, template,
};
pub use fields::{FIELDS, Field, markdown, nearest};
pub use grid::{Grid, RequiredFiles};
pub use kerberos::Kerberos;
pub use rule::{Rule, SETTLE_S, Then, is_within};
pub use tpc::Tpc;
pub use volumes::Volumes;
pub use web::Web;

use crate::home::{Home, read_text};
use renkei_core::error::{Code, Error};
use renkei_core::path::{SiteName, is_label};
use renkei_core::queue::webhook::Address;
use renkei_core::route::{self, Way};
use renkei_core::wire::message::Algorithm;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The port of a PoP.
pub const DEFAULT_PORT: u16 = 7512;
/// Longest lifetime of a queued transfer's credential, in days.
pub const MAX_DELEGATION_DAYS: u64 = 90;
/// Longest lifetime of a certificate for a token, in hours.
pub const MAX_BORROWED_HOURS: u64 = 7 * 24;
/// Maximum of sites that lines are kept to; a card has room for them.
pub const MAX_REVERSE: usize = 8;
/// Largest configuration file accepted.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The whole configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The site's name; a PoP has one, a mere user's directory has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteName>,
    /// Addresses to listen on.
    #[serde(deserialize_with = "one_or_many")]
    pub listen: Vec<SocketAddr>,
    /// `host:port` under which others reach the PoP; empty means derived, see [`Config::announced_endpoints`].
    #[serde(deserialize_with = "endpoints")]
    pub endpoints: Vec<String>,
    /// Sites whose PoPs this one keeps lines to, because it cannot be dialled.
    #[serde(deserialize_with = "sites")]
    pub reverse: Vec<SiteName>,
    /// For whom circuits to other sites pass through here.
    pub relay: Relay,
    /// To whose PoPs they pass also at addresses inside; `*` for all.
    #[serde(deserialize_with = "sites_or_all")]
    pub relay_private: Vec<String>,
    /// Whether users of the own site become the account of the same name without a rule.
    pub map_own_users: bool,
    /// The lowest user id to which a rule for all users of a site leads by the name alone.
    pub map_min_uid: u32,
    /// How long a silent peer is borne, in seconds.
    #[serde(deserialize_with = "at_least_one")]
    pub stall_timeout_s: u64,
    /// The database of the catalogue; empty for SQLite in the PoP's directory.
    pub catalogue: String,
    /// How long the credential of a queued transfer is good, in days.
    #[serde(deserialize_with = "delegation_days")]
    pub delegation_days: u64,
    /// How long a certificate for a token, a proxy or a ticket is good at most, in hours; 0 for none of them.
    #[serde(deserialize_with = "borrowed_hours")]
    pub borrowed_hours: u64,
    /// How long a transfer that was queued with such a certificate may go on after its end, in hours.
    #[serde(deserialize_with = "borrowed_queue_hours")]
    pub borrowed_queue_hours: u64,
    /// Addresses below which ends of transfers may be told.
    #[serde(deserialize_with = "addresses")]
    pub notify: Vec<String>,
    /// The checksums that new content of storages is remembered with.
    pub checksums: Checksums,
    /// Limits that protect the PoP.
    pub limits: Limits,
    /// The queue of transfers.
    pub queue: Queue,
    /// Room for files of queued transfers on their way.
    pub buffer: Buffer,
    /// Who may make volumes.
    pub volumes: Volumes,
    /// The certificate for browsers.
    pub web: Web,
    /// Grid certificates, and the map files of grid services.
    pub grid: Grid,
    /// Kerberos tickets of HTTP clients.
    pub kerberos: Kerberos,
    /// Copies from and to other web servers.
    pub tpc: Tpc,
    /// Buckets for S3 clients.
    pub s3: s3::S3,
    /// What is logged and how.
    pub log: Log,
    /// The named roots.
    #[serde(deserialize_with = "storages")]
    pub storage: BTreeMap<String, Storage>,
    /// The drop folders.
    #[serde(deserialize_with = "labelled")]
    pub rule: BTreeMap<String, Rule>,
    /// Rules on the ways to sites, by the site's name.
    pub route: BTreeMap<SiteName, Route>,
}

/// The users and sites whose circuits are relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relay {
    /// No circuits.
    None,
    /// Users of the own site.
    Own,
    /// Users and PoPs of all trusted sites.
    Trusted,
}

/// The configured restrictions on the ways to a site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The only way: `direct`, `line`, or a site it leads through.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "way")]
    pub pin: Option<String>,
    /// Ways not to take.
    #[serde(default, deserialize_with = "ways")]
    pub forbid: Vec<String>,
}

impl Route {
    /// The rule for the route planner.
    pub fn rule(&self) -> route::Rule {
        let forbid = self.forbid.iter().filter_map(|way| Way::parse(way)).collect();
        route::Rule { pin: self.pin.as_deref().and_then(Way::parse), forbid }
    }
}

/// Limits that protect the PoP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Sessions open at a time.
    #[serde(deserialize_with = "at_least_one")]
    pub max_sessions: u64,
    /// Data streams of one session.
    #[serde(deserialize_with = "at_least_one")]
    pub max_streams: u64,
    /// Memory for buffers, in MiB.
    #[serde(deserialize_with = "at_least_one")]
    pub max_memory_mib: u64,
    /// Entries in one request or listing.
    #[serde(deserialize_with = "at_least_one")]
    pub max_entries: u64,
    /// Circuits passed on at a time.
    #[serde(deserialize_with = "at_least_one")]
    pub max_circuits: u64,
}

/// The queue of transfers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Queue {
    /// Transfers that run at a time.
    #[serde(deserialize_with = "at_least_one")]
    pub max_running: u64,
    /// Of these, one user's.
    #[serde(deserialize_with = "at_least_one")]
    pub max_running_user: u64,
    /// Of these, those from one site to another.
    #[serde(deserialize_with = "at_least_one")]
    pub max_running_link: u64,
    /// Transfers of one user that have not ended.
    #[serde(deserialize_with = "at_least_one")]
    pub max_queued_user: u64,
    /// Days after which a transfer without a deadline is given up.
    #[serde(deserialize_with = "at_least_one")]
    pub deadline_days: u64,
    /// Days for which those that ended are remembered.
    #[serde(deserialize_with = "at_least_one")]
    pub keep_days: u64,
}

/// Room for files of queued transfers on their way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Buffer {
    /// Its folder; empty for one in the PoP's directory.
    #[serde(deserialize_with = "absolute_or_empty")]
    pub path: PathBuf,
    /// Room in all, in MiB; 0 for none.
    pub size_mib: u64,
    /// Of this, one user's, in MiB; 0 for half.
    pub per_user_mib: u64,
    /// Days for which files wait to be forwarded.
    #[serde(deserialize_with = "at_least_one")]
    pub keep_days: u64,
    /// After so many seconds without a way to its destination, a transfer between other sites is brought here; 0 for
    /// never.
    pub spill_after_s: u64,
}

impl Buffer {
    /// Total capacity in bytes.
    pub fn size(&self) -> u64 {
        self.size_mib.saturating_mul(1 << 20)
    }

    /// Quota of one user in bytes.
    pub fn per_user(&self) -> u64 {
        match self.per_user_mib {
            0 => self.size() / 2,
            own => own.saturating_mul(1 << 20).min(self.size()),
        }
    }

    /// The buffer's folder, of the PoP in `home`.
    pub fn folder(&self, home: &Home) -> PathBuf {
        match self.path.as_os_str().is_empty() {
            true => home.state_dir().join("buffer"),
            false => self.path.clone(),
        }
    }
}

/// Configuration of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// Directives as `info` or `renkei_mover=debug,info`.
    pub filter: String,
    /// Text for people or JSON for collectors.
    pub format: LogFormat,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// One readable line per event.
    Text,
    /// One JSON object per event.
    Json,
}

/// A named root of files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// The root directory; empty where an agent serves the storage from elsewhere.
    #[serde(default, skip_serializing_if = "is_empty", deserialize_with = "absolute_path")]
    pub path: PathBuf,
    /// Whether writing is refused.
    #[serde(default)]
    pub read_only: bool,
    /// Whether the storage is stopped while nothing is mounted at its root.
    #[serde(default)]
    pub require_mount: bool,
    /// If set, all I/O on this storage is done as this account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The account whose agent serves the storage, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The checksums that new content is remembered with; none: those of the PoP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksums: Option<Checksums>,
}

/// The checksums that new content is remembered with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "OneOrMany", into = "Vec<String>")]
pub struct Checksums(pub Vec<Algorithm>);

impl TryFrom<OneOrMany> for Checksums {
    type Error = String;

    fn try_from(names: OneOrMany) -> Result<Self, String> {
        let names = match names {
            OneOrMany::One(name) => vec![name],
            OneOrMany::Many(names) => names,
        };
        let known = |name: &String| {
            let unknown = || format!("`{name}` is none of blake3, sha256, md5, adler32 and crc32c");
            Algorithm::of_name(name).ok_or_else(unknown)
        };
        let mut all = names.iter().map(known).collect::<Result<Vec<_>, _>>()?;
        all.sort_by_key(|algorithm| *algorithm as u8);
        all.dedup();
        Ok(Checksums(all))
    }
}

impl From<Checksums> for Vec<String> {
    fn from(all: Checksums) -> Self {
        all.0.iter().map(|algorithm| algorithm.name().to_owned()).collect()
    }
}

impl Storage {
    /// An error of the storage's fields in combination.
    fn flaw(&self) -> Option<&'static str> {
        match &self.agent {
            None if is_empty(&self.path) => {
                Some("missing field `path`, or `agent` for a storage that an agent serves")
            }
            Some(_) if self.account.is_some() => Some("`account` and `agent` exclude each other"),
            _ => None,
        }
    }
}

fn is_empty(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

impl Default for Config {
    fn default() -> Self {
        Config {
            site: None,
            listen: vec![SocketAddr::from(([0, 0, 0, 0], DEFAULT_PORT))],
            endpoints: Vec::new(),
            reverse: Vec::new(),
            relay: Relay::Trusted,
            relay_private: Vec::new(),
            map_own_users: true,
            map_min_uid: 1000,
            stall_timeout_s: 60,
            catalogue: String::new(),
            delegation_days: 7,
            borrowed_hours: 12,
            borrowed_queue_hours: 12,
            notify: Vec::new(),
            checksums: Checksums::default(),
            limits: Limits::default(),
            queue: Queue::default(),
            buffer: Buffer::default(),
            volumes: Volumes::default(),
            web: Web::default(),
            grid: Grid::default(),
            kerberos: Kerberos::default(),
            tpc: Tpc::default(),
            s3: s3::S3::default(),
            log: Log::default(),
            storage: BTreeMap::new(),
            rule: BTreeMap::new(),
            route: BTreeMap::new(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_sessions: 256,
            max_streams: 32,
            max_memory_mib: 1024,
            max_entries: 10_000_000,
            max_circuits: 256,
        }
    }
}

impl Default for Queue {
    fn default() -> Self {
        Queue {
            max_running: 16,
            max_running_user: 8,
            max_running_link: 4,
            max_queued_user: 1_000_000,
            deadline_days: 30,
            keep_days: 30,
        }
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Buffer { path: PathBuf::new(), size_mib: 0, per_user_mib: 0, keep_days: 7, spill_after_s: 600 }
    }
}

impl Default for Log {
    fn default() -> Self {
        Log { filter: "info".into(), format: LogFormat::Text }
    }
}

impl Config {
    /// Reads the file of `home`, if there is one, then the environment.
    pub fn load(home: &Home) -> Result<Self, Error> {
        Self::load_with_flags(home, &[])
    }

    /// As [`Config::load`]; `flags` are fields by key, as `("listen", "127.0.0.1:0")`, and override all else.
    pub fn load_with_flags(home: &Home, flags: &[(&str, String)]) -> Result<Self, Error> {
        let path = home.config_file();
        let text = read_text(&path, MAX_FILE_BYTES)?.unwrap_or_default();
        let config = Config::parse(&text, &path)?;
        let environment = fields::from_environment(&|name| std::env::var(name).ok());
        let flags = flags.iter().map(|(key, value)| (fields::by_key(key), value.clone(), format!("--{key}")));
        fields::apply(config, environment.into_iter().chain(flags))
    }

    /// Parses the text of the file at `path`.
    pub fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        toml::from_str(text).map_err(|error| {
            let cause = fields::explain(error.message());
            let place = match error.span() {
                Some(span) => format!("{}:{}", path.display(), line_of(text, span)),
                None => path.display().to_string(),
            };
            Error::new(Code::ConfigInvalid, "read configuration", place, cause)
        })
    }

    /// The site, for verbs that need a PoP.
    pub fn site(&self, home: &Home) -> Result<&SiteName, Error> {
        let missing = || {
            let subject = home.config_file();
            Error::new(Code::NotInitialised, "read configuration", subject.display(), "no `site` is set")
        };
        self.site.as_ref().ok_or_else(missing)
    }

    /// The endpoints of the site card: `endpoints`, else each listen address, with this machine's name in place of
    /// "all addresses".
    pub fn announced_endpoints(&self) -> Vec<String> {
        if !self.endpoints.is_empty() {
            return self.endpoints.clone();
        }
        let mut announced: Vec<String> = self.listen.iter().map(|address| announce(*address)).collect();
        announced.dedup();
        announced
    }

    /// The rules on the ways to sites.
    pub fn route_rules(&self) -> BTreeMap<SiteName, route::Rule> {
        self.route.iter().map(|(site, route)| (site.clone(), route.rule())).collect()
    }

    /// The timeout for a silent peer.
    pub fn stall_timeout(&self) -> Duration {
        Duration::from_secs(self.stall_timeout_s)
    }

    /// Whether notifications of a transfer's end may go to this address.
    pub fn may_notify(&self, address: &Address) -> bool {
        self.notify
            .iter()
            .filter_map(|text| Address::parse(text).ok())
            .any(|prefix| address.is_within(&prefix))
    }

    /// The lifetime of a queued transfer's credential.
    pub fn delegation_life(&self) -> Duration {
        Duration::from_secs(self.delegation_days * 24 * 3600)
    }

    /// The longest life of a certificate for a token, a proxy or a ticket; zero for none of them.
    pub fn borrowed_life(&self) -> Duration {
        Duration::from_secs(self.borrowed_hours * 3600)
    }

    /// How long a transfer that was queued with such a certificate may go on after its end.
    pub fn borrowed_queue_life(&self) -> Duration {
        Duration::from_secs(self.borrowed_queue_hours * 3600)
    }
}

fn announce(address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        return format!("{}:{}", host_name(), address.port());
    }
    address.to_string()
}

/// The machine's host name; `localhost` where the kernel does not have one.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() || name == "(none)" { "localhost".into() } else { name.into() }
}

fn line_of(text: &str, span: Range<usize>) -> usize {
    text.as_bytes().iter().take(span.start).filter(|&&b| b == b'\n').count() + 1
}

/// Whether `text` has the form `host:port` or `[v6]:port`.
pub fn is_endpoint(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    // The underscore is not legal in host names, but occurs.
    let name_like = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    let host_good = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
        None => (1..=253).contains(&host.len()) && host.chars().all(name_like) && !host.starts_with('-'),
    };
    host_good && port.parse::<u16>().is_ok_and(|port| port != 0)
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    fn read<'de, D: Deserializer<'de>>(deserializer: D, form: &str) -> Result<Vec<String>, D::Error> {
        match OneOrMany::deserialize(deserializer) {
            Ok(OneOrMany::One(text)) => Ok(vec![text]),
            Ok(OneOrMany::Many(texts)) => Ok(texts),
            Err(_) => Err(D::Error::custom(format!("write {form}, or a list of them"))),
        }
    }
}

fn sites_or_all<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let texts = OneOrMany::read(deserializer, "\"SITE\" or \"*\"")?;
    match texts.iter().find(|text| *text != "*" && SiteName::parse(text).is_err()) {
        Some(bad) => Err(D::Error::custom(format!("`{bad}` is neither a site's name nor `*`"))),
        None => Ok(texts),
    }
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SocketAddr>, D::Error> {
    let texts = OneOrMany::read(deserializer, "\"ADDRESS:PORT\"")?;
    if texts.is_empty() {
        return Err(D::Error::custom("at least one address is needed"));
    }
    let parse = |text: &String| {
        text.parse().map_err(|_| D::Error::custom(format!("`{text}` is not ADDRESS:PORT (as 0.0.0.0:7512)")))
    };
    texts.iter().map(parse).collect()
}

fn endpoints<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let texts = OneOrMany::read(deserializer, "\"HOST:PORT\"")?;
    match texts.iter().find(|text| !is_endpoint(text)) {
        Some(bad) => Err(D::Error::custom(format!("`{bad}` is not HOST:PORT"))),
        None => Ok(texts),
    }
}

fn sites<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SiteName>, D::Error> {
    let texts = OneOrMany::read(deserializer, "\"SITE\"")?;
    if texts.len() > MAX_REVERSE {
        return Err(D::Error::custom(format!("at most {MAX_REVERSE} sites")));
    }
    let parse = |text: &String| SiteName::parse(text).map_err(|error| D::Error::custom(error.cause));
    texts.iter().map(parse).collect()
}

fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let texts = OneOrMany::read(deserializer, "\"https://HOST/PATH\"")?;
    match texts.iter().find_map(|text| Address::parse(text).err().map(|cause| (text, cause))) {
        Some((bad, cause)) => Err(D::Error::custom(format!("`{bad}`: {cause}"))),
        None => Ok(texts),
    }
}

fn way<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    String::deserialize(deserializer).and_then(|text| known_way(text).map(Some))
}

fn ways<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    OneOrMany::read(deserializer, "\"WAY\"")?.into_iter().map(known_way).collect()
}

fn known_way<E: serde::de::Error>(text: String) -> Result<String, E> {
    match Way::parse(&text) {
        Some(_) => Ok(text),
        None => Err(E::custom(format!("`{text}` is not `direct`, `line` or a site"))),
    }
}

fn at_least_one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match i64::deserialize(deserializer)? {
        number @ 1.. => Ok(number.unsigned_abs()),
        number => Err(D::Error::custom(format!("{number} is not at least 1"))),
    }
}

fn delegation_days<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match u64::deserialize(deserializer)? {
        days if (1..=MAX_DELEGATION_DAYS).contains(&days) => Ok(days),
        days => Err(D::Error::custom(format!("{days} is not 1 to {MAX_DELEGATION_DAYS}"))),
    }
}

fn borrowed_hours<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    at_most(deserializer, MAX_BORROWED_HOURS)
}

fn borrowed_queue_hours<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    at_most(deserializer, MAX_DELEGATION_DAYS * 24)
}

fn at_most<'de, D: Deserializer<'de>>(deserializer: D, most: u64) -> Result<u64, D::Error> {
    match u64::deserialize(deserializer)? {
        hours if hours <= most => Ok(hours),
        hours => Err(D::Error::custom(format!("{hours} is not 0 to {most}"))),
    }
}

fn absolute_or_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    if path.as_os_str().is_empty() || path.is_absolute() {
        return Ok(path);
    }
    Err(D::Error::custom(format!("`{}` is not an absolute path", path.display())))
}

fn absolute_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(deserializer)?;
    if path.is_absolute() {
        return Ok(path);
    }
    Err(D::Error::custom(format!("`{}` is not an absolute path", path.display())))
}

/// Tables by name.
fn labelled<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, T>, D::Error> {
    let tables = BTreeMap::<String, T>::deserialize(deserializer)?;
    match tables.keys().find(|name| !is_label(name)) {
        Some(bad) => Err(D::Error::custom(format!("`{bad}` is not a good name: {LABEL_RULE}"))),
        None => Ok(tables),
    }
}

fn storages<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Storage>, D::Error> {
    let storages: BTreeMap<String, Storage> = labelled(deserializer)?;
    match storages.iter().find_map(|(name, storage)| Some((name, storage.flaw()?))) {
        Some((name, flaw)) => Err(D::Error::custom(format!("storage {name}: {flaw}"))),
        None => Ok(storages),
    }
}

/// The rule of [`is_label`], in words.
pub const LABEL_RULE: &str = "1 to 63 of a-z, 0-9 and -, starting with a letter";

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_core::wire::message::Class;

    fn parse(text: &str) -> Result<Config, Error> {
        Config::parse(text, Path::new("/etc/renkei/config.toml"))
    }

    #[test]
    fn an_empty_file_gives_the_defaults() {
        let config = parse("").unwrap();
        assert_eq!(config, Config::default());
        assert_eq!(config.listen[0].to_string(), "0.0.0.0:7512");
        assert_eq!(config.stall_timeout(), Duration::from_secs(60));
    }

    #[test]
    fn every_part_is_read() {
        let text = "site = 'kek'\nlisten = ['127.0.0.1:1', '[::1]:2']\nendpoints = 'pop.kek.jp:7512'\n\
                    [limits]\nmax_streams = 4\n[log]\nformat = 'json'\n\
                    [storage.data]\npath = '/data'\nread_only = true\naccount = 'guest'\n\
                    [rule.raw]\nfrom = 'kek:/data/drop'\nto = 'titech:/raw'\nthen = 'remove'\n";
        let config = parse(text).unwrap();
        assert_eq!(config.listen.len(), 2);
        assert_eq!(config.endpoints, ["pop.kek.jp:7512"]);
        assert_eq!((config.limits.max_streams, config.log.format), (4, LogFormat::Json));
        assert_eq!(config.storage["data"].account.as_deref(), Some("guest"));
        let rule = &config.rule["raw"];
        assert_eq!((rule.to.to_string().as_str(), rule.settle_s), ("titech:/raw", SETTLE_S));
        assert_eq!((rule.then, rule.class), (Then::Remove, Class::Normal));
    }

    #[test]
    fn an_unknown_field_names_the_line_and_the_nearest_field() {
        let error = parse("site = 'kek'\n\nlsten = '0.0.0.0:1'\n").unwrap_err();
        assert_eq!(error.code, Code::ConfigInvalid);
        assert_eq!(error.subject, "/etc/renkei/config.toml:3");
        assert!(error.cause.contains("did you mean `listen`?"), "{error}");
        let error = parse("[limits]\nmax_session = 3\n").unwrap_err();
        assert!(error.subject.ends_with(":2") && error.cause.contains("`max_sessions`"), "{error}");
        let error = parse("[storage.data]\npath='/x'\nreadonly = true\n").unwrap_err();
        assert!(error.cause.contains("`read_only`"), "{error}");
    }

    #[test]
    fn invalid_values_are_refused_with_their_line() {
        for (bad, line) in [
            ("listen = 'nowhere'", 1),
            ("listen = []", 1),
            ("\nendpoints = ['x']", 2),
            ("stall_timeout_s = 0", 1),
            ("stall_timeout_s = -5", 1),
            ("[storage.Data]\npath = '/x'", 1),
            ("[storage.data]\npath = 'x'", 2),
            ("[storage.data]\nread_only = true", 1),
            ("[storage.data]\nagent = 'alice'\naccount = 'bob'", 1),
            ("site = 'KEK'", 1),
            ("[log]\nformat = 'xml'", 2),
            ("notify = ['ftp://x']", 1),
            ("[rule.a]\nfrom = 'kek:/data'\nto = '/local'", 3),
            ("[rule.a]\nfrom = 'kek:/'\nto = 'titech:/raw'", 2),
        ] {
            let error = parse(bad).unwrap_err();
            assert_eq!(error.code, Code::ConfigInvalid, "{bad}");
            assert!(error.subject.ends_with(&format!(":{line}")), "{bad}: {error}");
        }
    }

    #[test]
    fn the_order_is_file_then_environment_then_flag() {
        let file = parse("stall_timeout_s = 5\nlisten = '127.0.0.1:1'\n[limits]\nmax_sessions = 1").unwrap();
        let environment = fields::from_environment(&|name| match name {
            "RENKEI_LISTEN" => Some("127.0.0.1:2, 127.0.0.1:3".into()),
            "RENKEI_LIMITS_MAX_SESSIONS" => Some("2".into()),
            "RENKEI_MAP_OWN_USERS" => Some("false".into()),
            _ => None,
        });
        let flag = (fields::by_key("listen"), "127.0.0.1:4".to_owned(), "--listen".to_owned());
        let config = fields::apply(file, environment.into_iter().chain([flag])).unwrap();
        assert_eq!(config.listen, ["127.0.0.1:4".parse().unwrap()]);
        assert_eq!((config.limits.max_sessions, config.stall_timeout_s, config.map_own_users), (2, 5, false));
    }

    #[test]
    fn a_bad_environment_value_names_the_variable() {
        let environment = fields::from_environment(&|name| (name == "RENKEI_SITE").then(|| "A B".into()));
        let error = fields::apply(Config::default(), environment.into_iter()).unwrap_err();
        assert_eq!((error.code, error.subject.as_str()), (Code::ConfigInvalid, "RENKEI_SITE"));
    }

    #[test]
    fn routes_are_read() {
        let text = "reverse = 'hub'\nrelay = 'own'\n[route.kek]\npin = 'hub'\nforbid = ['direct', 'line']\n";
        let config = parse(text).unwrap();
        assert_eq!((config.reverse.len(), config.relay), (1, Relay::Own));
        let rule = &config.route_rules()[&SiteName::parse("kek").unwrap()];
        assert_eq!((rule.pin.clone(), &rule.forbid[..]), (Way::parse("hub"), &[Way::Direct, Way::Line][..]));
        for bad in
            ["reverse = 'A B'", "relay = 'all'", "[route.kek]\npin = 'A B'", "[route.kek]\nvia = 'hub'"]
        {
            assert_eq!(parse(bad).unwrap_err().code, Code::ConfigInvalid, "{bad}");
        }
    }

    #[test]
    fn endpoints_are_derived_from_listening() {
        let config = parse("listen = ['127.0.0.1:1', '0.0.0.0:9']").unwrap();
        let announced = config.announced_endpoints();
        assert_eq!(announced[0], "127.0.0.1:1");
        assert!(announced[1].ends_with(":9") && !announced[1].starts_with("0.0.0.0"), "{announced:?}");
        assert!(is_endpoint("[::1]:7512") && !is_endpoint("::1:7512") && !is_endpoint("a b:1"));
        assert!(!is_endpoint("host") && !is_endpoint("host:0") && !is_endpoint("host:70000"));
    }
}
