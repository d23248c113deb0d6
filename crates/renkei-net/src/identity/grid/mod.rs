//! Identities of the grid: X.509 certificates of public authorities, proxies below them, attributes of VOMS.
//!
//! [`GridTrust`] has all files of one moment: authorities with signing policies and revocation lists, LSC files, map
//! files. [`GridTrust::judge`] makes a [`GridUser`] of a chain: the name of the user in slash form and the attributes
//! that count; [`GridTrust::account`] finds the account. The peer proved in the TLS handshake that it has the key of the
//! first certificate. Reading of files is done beforehand, judging uses memory alone.
//!
//! Non-goals: OCSP, name constraints (a certificate with critical ones is refused), proxies from before RFC 3820.

mod authorities;
mod certificate;
mod chain;
mod delegated;
mod der;
mod lsc;
mod name;
mod revocation;
mod signature;
mod signing_policy;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod voms;

use super::certificate::{Facts, parse_chain};
pub use authorities::{Authorities, Authority};
use chain::{Judge, Proxies};
pub use delegated::{DelegatedProxy, ProxyKey};
use lsc::LscFiles;
use renkei_config::Grid;
use renkei_config::home::read_text;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{MapFile, Mapping, Verdict, Why};
use rustls::pki_types::CertificateDer;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Largest map file.
const MAX_MAP_BYTES: u64 = 64 << 20;

/// The state of all files, to detect changes.
pub type Stamp = u64;

/// The trust in grid certificates as of one moment.
#[derive(Debug, Default)]
pub struct GridTrust {
    /// The authorities.
    pub authorities: Authorities,
    /// Other files that cannot be used, with the reason.
    pub problems: Vec<String>,
    config: Grid,
    lsc: LscFiles,
    files: Vec<MapFile>,
    stamp: Stamp,
}

/// The holder of a grid certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GridUser {
    /// The name in the certificate, in slash form.
    pub dn: String,
    /// The attributes that count, in order.
    pub fqans: Vec<String>,
    /// Whether a limited proxy was shown.
    pub is_limited: bool,
    /// The time at which the first of the certificates expires.
    pub until: SystemTime,
    /// Attribute certificates that do not count, with the reason.
    pub warnings: Vec<String>,
}

/// Whether a chain is to be judged here: its first certificate names no principal of a site.
pub fn is_grid_chain(chain: &[CertificateDer<'_>]) -> bool {
    let leaf = chain.first().map(Facts::read);
    leaf.is_some_and(|facts| facts.is_ok_and(|facts| facts.names.is_empty()))
}

/// The name of the user of a chain, unverified, for logs.
pub fn claimed_name(chain: &[CertificateDer<'_>]) -> Option<String> {
    let chain = chain::read(chain).ok()?;
    chain.iter().find(|one| one.proxy.is_none()).map(|user| user.subject.to_string())
}

/// What the certificate of the user of a chain is known by, whatever proxies are below it: issuer and serial.
///
/// # Errors
/// `BadCertificate`.
pub fn user_certificate(chain: &[CertificateDer<'_>]) -> Result<Vec<u8>, Error> {
    let chain = chain::read(chain)?;
    let none = || Error::new(Code::BadCertificate, "read", "", "the chain lacks the certificate of the user");
    let user = chain.iter().find(|one| one.proxy.is_none()).ok_or_else(none)?;
    Ok([user.issuer.to_string().as_bytes(), &[0], &user.serial].concat())
}

/// The time at which the first certificate of a chain expires, or the first of its attribute certificates that has not
/// expired at a time: the account may come of those.
///
/// # Errors
/// `BadCertificate`.
pub fn ends(chain: &[CertificateDer<'_>], at: SystemTime) -> Result<Option<SystemTime>, Error> {
    let chain = chain::read(chain)?;
    let extension = chain.iter().filter(|one| one.proxy.is_some()).find_map(|one| one.attributes.as_deref());
    let attributes = extension.and_then(voms::parse).unwrap_or_default();
    let attributes = attributes.iter().map(|one| one.until).filter(|until| *until > at);
    Ok(chain.iter().map(|one| one.not_after).chain(attributes).min())
}

impl GridTrust {
    /// Reads all files; those that cannot be used are noted.
    pub fn load(config: &Grid) -> Self {
        let stamp = stamp(config);
        let mut problems = Vec::new();
        let lsc = config.vomsdir().map(|dir| LscFiles::load(&dir, &mut problems)).unwrap_or_default();
        let files = [config.voms_mapfile(), config.mapfile()];
        let files = files.into_iter().flatten().filter_map(|path| read_map(&path, &mut problems)).collect();
        let authorities = Authorities::load(&config.authority_dirs(), config.weak_digests);
        GridTrust { authorities, problems, config: config.clone(), lsc, files, stamp }
    }

    /// Whether the files, or the configuration, are others by now.
    pub fn is_stale(&self, config: &Grid) -> bool {
        self.config != *config || self.stamp != stamp(config)
    }

    /// Whether grid certificates are accepted at all.
    pub fn is_empty(&self) -> bool {
        self.authorities.all.is_empty()
    }

    /// Judges a chain: the user, and the attributes that count.
    ///
    /// # Errors
    /// `GridCertificateExpired`, `GridCertificateNotYetValid`, `GridAuthorityUnknown`, `GridSignature`,
    /// `RevocationListMissing`, `RevocationListExpired`, `GridCertificateRevoked`, `SigningPolicy`, `ProxyRefused`,
    /// `WeakDigest`; `BadCertificate` for all else.
    pub fn judge(&self, chain: &[CertificateDer<'_>], at: SystemTime) -> Result<GridUser, Error> {
        self.explain(chain, at, &mut |_| {})
    }

    /// Judges a chain, and tells each step that was good.
    ///
    /// # Errors
    /// As [`GridTrust::judge`].
    pub fn explain(
        &self,
        chain: &[CertificateDer<'_>],
        at: SystemTime,
        tell: &mut dyn FnMut(String),
    ) -> Result<GridUser, Error> {
        let chain = chain::read(chain)?;
        let judge = Judge { authorities: &self.authorities, config: &self.config, at };
        let proxies = judge.proxies(&chain, tell)?;
        tell(format!(
            "certificate of {}, until {}",
            proxies.user.subject,
            super::certificate::utc(proxies.user.not_after)
        ));
        judge.user(proxies.user, &chain, tell)?;
        let (fqans, warnings) = self.attributes(&judge, &proxies);
        fqans.iter().for_each(|fqan| tell(format!("attribute {fqan}")));
        warnings.iter().for_each(|warning| tell(format!("ignored: {warning}")));
        let ends = proxies.proxies.iter().map(|proxy| proxy.not_after);
        Ok(GridUser {
            dn: proxies.user.subject.to_string(),
            fqans,
            is_limited: proxies.is_limited,
            until: ends.fold(proxies.user.not_after, SystemTime::min),
            warnings,
        })
    }

    /// The attributes that count, of the proxy nearest to the peer that has any, and the reasons why others do not.
    fn attributes(&self, judge: &Judge<'_>, chain: &Proxies<'_>) -> (Vec<String>, Vec<String>) {
        let (mut fqans, mut warnings) = (Vec::new(), Vec::new());
        let Some(extension) = chain.proxies.iter().find_map(|proxy| proxy.attributes.as_deref()) else {
            return (fqans, warnings);
        };
        let Some(certificates) = voms::parse(extension) else {
            return (fqans, vec!["the attribute certificates are malformed".into()]);
        };
        for certificate in certificates {
            let verify = |server: &_, sent: &[_]| {
                judge
                    .path(server, sent, &mut |_| {})
                    .map_err(|error| format!("its server {}: {}", error.subject, error.cause))
            };
            match certificate.judge(chain.user, &self.lsc, judge.at, self.config.weak_digests, &verify) {
                Ok(good) => fqans.extend(good),
                Err(cause) => warnings
                    .push(format!("attributes of {} by {}: {cause}", certificate.vo, certificate.host)),
            }
        }
        (fqans, warnings)
    }

    /// The account of a user, by the map and then by the map files: the voms-mapfile, the grid-mapfile.
    ///
    /// # Errors
    /// `NotMapped`, `ShutOut`.
    pub fn account(&self, user: &GridUser, mapping: &Mapping) -> Result<(String, Why), Error> {
        let refused = |code, cause: String| Err(Error::new(code, "map", &user.dn, cause));
        match mapping.of_grid(&user.dn, &user.fqans, &self.files) {
            Some(Verdict { account: Some(account), why }) => Ok((account, why)),
            Some(Verdict { why, .. }) => refused(Code::ShutOut, why.to_string()),
            None => {
                let ignored = user.warnings.iter().map(|warning| format!("; {warning}")).collect::<String>();
                refused(Code::NotMapped, format!("no rule is about the name or its attributes{ignored}"))
            }
        }
    }

    /// The map files in their order, with what cannot be used in them.
    pub fn map_files(&self) -> &[MapFile] {
        &self.files
    }
}

/// Reads the certificates of a PEM file that may have a private key, too.
///
/// # Errors
/// `BadCertificate`, and those of the file.
pub fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let none = || Error::new(Code::PathNotFound, "read certificate", path.display(), "there is no such file");
    parse_chain(&read_text(path, MAX_MAP_BYTES)?.ok_or_else(none)?)
}

fn read_map(path: &Path, problems: &mut Vec<String>) -> Option<MapFile> {
    match read_text(path, MAX_MAP_BYTES) {
        Ok(text) => {
            let file = MapFile::parse(&path.display().to_string(), &text?);
            problems.extend(file.problems.iter().map(|problem| format!("{}: {problem}", file.path)));
            Some(file)
        }
        Err(error) => {
            problems.push(error.to_string());
            None
        }
    }
}

fn stamp(config: &Grid) -> Stamp {
    let mut paths: Vec<PathBuf> = config.authority_dirs().iter().flat_map(|dir| lsc::entries(dir)).collect();
    paths.extend(config.vomsdir().iter().flat_map(|dir| lsc::paths(dir)));
    paths.extend([config.voms_mapfile(), config.mapfile()].into_iter().flatten());
    paths.sort();
    let mut hasher = DefaultHasher::new();
    for path in paths {
        let data = std::fs::metadata(&path).ok();
        let state = data.map(|data| (data.mtime(), data.mtime_nsec(), data.len(), data.ino()));
        (path, state).hash(&mut hasher);
    }
    hasher.finish()
}

/// Reads any bytes as each structure of this module; for the fuzzer.
#[cfg(feature = "fuzzing")]
pub fn read_anything(bytes: &[u8]) {
    let _ = voms::parse(bytes);
    let _ = certificate::parse_proxy_info(bytes);
    let _ = signature::is_well_formed(bytes);
    let _ = certificate::GridCertificate::read(&CertificateDer::from(bytes));
    let text = String::from_utf8_lossy(bytes);
    let _ = signing_policy::SigningPolicy::parse(&text);
    let _ = MapFile::parse("fuzz", &text);
}
