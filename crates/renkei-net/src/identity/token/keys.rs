//! The public keys of issuers (JWKS), fetched from them and remembered.
//!
//! Keys are fetched again after an hour, and when a token names one that is not known, but at most once a minute. If
//! an issuer cannot be reached, its last keys stay good for four days, across restarts: they are in state/issuers.

use super::jwt::Claims;
use crate::http_client::get;
use crate::identity::tls::web_config;
use jsonwebtoken::jwk::JwkSet;
use renkei_config::home::{Home, make_dir, read_text, write_file};
use renkei_core::error::{Code, Error};
use renkei_core::queue::webhook::Address;
use renkei_core::units::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Age at which keys are fetched again.
const REFRESH_AFTER: Duration = Duration::from_secs(3600);
/// Age at which keys that could not be fetched again are no longer good.
const EXPIRE_AFTER: Duration = Duration::from_secs(4 * 24 * 3600);
/// Least time between two attempts to fetch.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// Largest answer of an issuer accepted.
const MAX_BYTES: usize = 1 << 20;
/// Mode of the files: public keys.
const MODE: u32 = 0o644;

/// The keys of all issuers.
pub struct IssuerKeys {
    dir: PathBuf,
    known: Mutex<BTreeMap<String, Arc<Mutex<CachedKeys>>>>,
}

/// The keys of one issuer.
#[derive(Default)]
struct CachedKeys {
    keys: Option<Fetched>,
    tried: Option<SystemTime>,
}

/// Keys, and when they were fetched.
#[derive(Clone, Serialize, Deserialize)]
struct Fetched {
    issuer: String,
    fetched_unix: u64,
    keys: JwkSet,
}

impl Fetched {
    fn age(&self, now: SystemTime) -> Duration {
        now.duration_since(UNIX_EPOCH + Duration::from_secs(self.fetched_unix)).unwrap_or_default()
    }
}

/// The place where an issuer says where its keys are.
#[derive(Deserialize)]
struct Metadata {
    issuer: String,
    jwks_uri: String,
}

impl IssuerKeys {
    /// The keys remembered by a PoP.
    pub fn new(home: &Home) -> Self {
        IssuerKeys { dir: home.state_dir().join("issuers"), known: Mutex::default() }
    }

    /// Verifies the signature of a token of an issuer. Blocks while keys are fetched.
    ///
    /// # Errors
    /// `TokenSignature`, `TokenInvalid`, `IssuerUnreachable`.
    pub fn verify(&self, issuer: &str, token: &str, now: SystemTime) -> Result<(), Error> {
        let known = self.lock().entry(issuer.into()).or_default().clone();
        let mut known = known.lock().expect("no thread panics while it holds the lock: a panic aborts");
        if known.keys.is_none() {
            known.keys = self.stored(issuer);
        }
        let is_fresh =
            |fetched: &Fetched| fetched.age(now) < REFRESH_AFTER && Claims::has_key(token, &fetched.keys);
        if !known.keys.as_ref().is_some_and(is_fresh) {
            self.refresh(&mut known, issuer, now)?;
        }
        let fetched = known.keys.as_ref().expect("they were fetched, or an error returned");
        Claims::verify(token, &fetched.keys)
    }

    /// Fetches the keys again, if that was not tried just now; an error only if there are no good ones.
    fn refresh(&self, known: &mut CachedKeys, issuer: &str, now: SystemTime) -> Result<(), Error> {
        let is_recent = |tried: SystemTime| now.duration_since(tried).is_ok_and(|past| past < RETRY_AFTER);
        let fetched = match known.tried.is_some_and(is_recent) {
            true => Err("it was asked less than a minute ago".to_owned()),
            false => {
                known.tried = Some(now);
                fetch(issuer)
            }
        };
        match fetched {
            Ok(keys) => {
                let fetched_unix = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                let fetched = Fetched { issuer: issuer.into(), fetched_unix, keys };
                if let Err(error) = self.store(&fetched) {
                    tracing::warn!(%error, issuer, "the keys of an issuer could not be stored");
                }
                known.keys = Some(fetched);
            }
            Err(_) if known.keys.as_ref().is_some_and(|keys| keys.age(now) < EXPIRE_AFTER) => {}
            Err(cause) => return Err(Error::new(Code::IssuerUnreachable, "fetch keys", issuer, cause)),
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Mutex<CachedKeys>>>> {
        self.known.lock().expect("no thread panics while it holds the lock: a panic aborts")
    }

    fn file(&self, issuer: &str) -> PathBuf {
        self.dir.join(format!("{}.json", hex(&Sha256::digest(issuer)[..16])))
    }

    fn stored(&self, issuer: &str) -> Option<Fetched> {
        let text = read_text(&self.file(issuer), MAX_BYTES as u64 * 2).ok()??;
        serde_json::from_str::<Fetched>(&text).ok().filter(|fetched| fetched.issuer == issuer)
    }

    fn store(&self, fetched: &Fetched) -> Result<(), Error> {
        make_dir(&self.dir, 0o755)?;
        let text = serde_json::to_string(fetched).expect("keys are plain data");
        write_file(&self.file(&fetched.issuer), text.as_bytes(), MODE)
    }
}

/// Fetches the keys of an issuer.
fn fetch(issuer: &str) -> Result<JwkSet, String> {
    let url = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
    let metadata: Metadata = fetch_json(&url)?;
    if metadata.issuer.trim_end_matches('/') != issuer.trim_end_matches('/') {
        return Err(format!("{url} is of the issuer {}", metadata.issuer));
    }
    fetch_json(&metadata.jwks_uri)
}

fn fetch_json<T: serde::de::DeserializeOwned>(url: &str) -> Result<T, String> {
    let address = Address::parse(url)?;
    if !address.https {
        return Err(format!("{url} is not an https URL"));
    }
    let tls = web_config().map_err(|error| error.to_string())?;
    let body = get(&address, &tls, MAX_BYTES).map_err(|cause| format!("{url}: {cause}"))?;
    serde_json::from_slice(&body).map_err(|error| format!("{url}: {error}"))
}
