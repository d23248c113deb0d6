//! Certificates that other sites give for a token that was shown here, so that this PoP can act there for its holder.
//!
//! The key is made here and stays in memory. A certificate has the scope that the other site reads from the token, and
//! is used until shortly before its end, by all requests with the same token. Refusals are remembered for some seconds,
//! so that a client that asks again and again does not make the other site judge each time.
//!
//! Guarantees: a token is sent only to a PoP that proved, by the card of its site, to be one of a trusted site, and only
//! if the token says that it is for that site: a macaroon by the site that issued it, a token of an issuer by its
//! audience. Non-goals: sites that cannot be dialled from here; tokens that name a site by an alias of its `issuer add`.

use crate::Context;
use crate::token::ShownToken;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_net::identity::borrowed::exchange::{Door, Shown};
use renkei_net::identity::credential::Credential;
use renkei_net::identity::trust::Trust;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

/// Most certificates and refusals that are remembered.
const MAX_KEPT: usize = 256;
/// How long a refusal is remembered.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// A certificate is used no longer than to this part of its life before its end: clocks differ, and an operation takes
/// time.
const MARGIN: u32 = 10;

/// The digest of a site and a token.
type Key = [u8; 32];

/// What a site answered, and until when that counts.
struct Answered {
    given: Result<Arc<Credential>, Error>,
    until: SystemTime,
}

/// The answer for one token at one site; none while it is asked for.
type Slot = Mutex<Option<Answered>>;

/// The certificates that other sites gave.
#[derive(Default)]
pub(super) struct CertificatesElsewhere(Mutex<HashMap<Key, Arc<Slot>>>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while it holds the lock")
}

impl CertificatesElsewhere {
    /// The answer for a key; `ask` is called if there is none that counts. Several callers with one key ask once.
    fn obtain(
        &self,
        key: Key,
        now: SystemTime,
        ask: impl FnOnce() -> Result<Credential, Error>,
    ) -> Result<Arc<Credential>, Error> {
        let slot = self.slot(key, now);
        let mut slot = lock(&slot);
        if let Some(answered) = slot.as_ref().filter(|answered| now < answered.until) {
            return answered.given.clone();
        }
        let given = ask().map(Arc::new);
        let until = match &given {
            Ok(credential) => usable_until(credential.facts()?.not_after, now),
            Err(_) => now + REFUSED_FOR,
        };
        *slot = Some(Answered { given: given.clone(), until });
        given
    }

    fn slot(&self, key: Key, now: SystemTime) -> Arc<Slot> {
        let mut all = lock(&self.0);
        if all.len() >= MAX_KEPT && !all.contains_key(&key) {
            // One that is being asked for has no end yet, and stays.
            let end = |slot: &Slot| slot.try_lock().ok()?.as_ref().map(|answered| answered.until);
            all.retain(|_, slot| end(slot).is_none_or(|end| now < end));
            let first = all.iter().filter_map(|(key, slot)| Some((end(slot)?, *key))).min();
            if let Some((_, first)) = first.filter(|_| all.len() >= MAX_KEPT) {
                all.remove(&first);
            }
        }
        all.entry(key).or_default().clone()
    }
}

fn usable_until(end: SystemTime, now: SystemTime) -> SystemTime {
    let life = end.duration_since(now).unwrap_or_default();
    now + life.saturating_sub(life / MARGIN)
}

impl CertificatesElsewhere {
    /// A certificate of another site, with its key, for the user whom a token proves there.
    ///
    /// # Errors
    /// `SiteUnknown` for a site that is not trusted; `NotAllowed` for a macaroon of another site, `TokenAudience` for a
    /// token of an issuer that is not for that site, `TokenInvalid`; those of [`Door::credential`], among them the refusal
    /// of that site.
    pub(super) fn credential_from(
        &self,
        context: &Context,
        site: &SiteName,
        token: &ShownToken,
    ) -> Result<Arc<Credential>, Error> {
        let snapshot = context.last_snapshot();
        let endpoints = snapshot.trust.endpoints(site)?;
        token.expect_for(site, endpoints)?;
        let key = *blake3::hash(format!("{site}\0{}", token.text()).as_bytes()).as_bytes();
        self.obtain(key, SystemTime::now(), || {
            let given = ask(&snapshot.trust, site, endpoints, token);
            let (holder, error) = (token.holder(), given.as_ref().err());
            match error {
                None => tracing::info!(target: "audit", %site, token = holder, "certificate obtained"),
                Some(error) => {
                    tracing::warn!(target: "audit", %site, token = holder, %error, "no certificate obtained");
                }
            }
            given
        })
    }
}

/// Asks the PoPs of a site one after the other, until one is reached.
fn ask(
    trust: &Arc<Trust>,
    site: &SiteName,
    endpoints: &[String],
    token: &ShownToken,
) -> Result<Credential, Error> {
    let shown = Shown::Token(token.text().into());
    let none = || {
        let cause = "it announces no address that could be asked for a certificate";
        Error::new(Code::SiteUnreachable, "get certificate", site, cause)
    };
    let mut last = none();
    for endpoint in endpoints {
        let known = Some((site.clone(), trust.clone()));
        let door = Door { endpoint: endpoint.clone(), known, introduces: false };
        match door.credential(&shown) {
            Err(error) if error.code == Code::SiteUnreachable => last = error,
            answered => return answered,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use renkei_config::Config;
    use renkei_net::identity::authority::Authority;
    use renkei_net::identity::credential::KeyRequest;
    use std::cell::Cell;
    use std::path::Path;

    const HOUR: Duration = Duration::from_secs(3600);

    fn credential(dir: &Path, now: SystemTime) -> Credential {
        let (home, _) = crate::snapshot::tests::site(dir);
        drop(Config::load(&home).unwrap());
        let key = KeyRequest::generate().unwrap();
        let issued = Authority::load(&home).unwrap().issue_user("alice", &key.request, 2, now).unwrap();
        Credential::parse(&issued.pem, &key.key, Path::new("")).unwrap()
    }

    #[test]
    fn a_certificate_is_used_almost_until_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let given = credential(dir.path(), now);
        let (all, asked) = (CertificatesElsewhere::default(), Cell::new(0));
        let obtain = |at| {
            all.obtain([1; 32], at, || {
                asked.set(asked.get() + 1);
                Ok(given.clone())
            })
        };
        for (at, times) in [(now, 1), (now + HOUR, 1), (now + 2 * HOUR - Duration::from_secs(60), 2)] {
            obtain(at).unwrap();
            assert_eq!(asked.get(), times);
        }
    }

    #[test]
    fn refusals_are_remembered_for_seconds() {
        let (all, now, asked) = (CertificatesElsewhere::default(), SystemTime::now(), Cell::new(0));
        let refused = |at| {
            all.obtain([1; 32], at, || {
                asked.set(asked.get() + 1);
                Err(Error::new(Code::NotMapped, "map", "s-1", ""))
            })
        };
        for (at, times) in [(now, 1), (now + REFUSED_FOR / 2, 1), (now + REFUSED_FOR, 2)] {
            assert_eq!(refused(at).map(drop).unwrap_err().code, Code::NotMapped);
            assert_eq!(asked.get(), times);
        }
    }

    #[test]
    fn no_more_than_a_number_are_kept() {
        let (all, now) = (CertificatesElsewhere::default(), SystemTime::now());
        for number in 0..2 * u64::try_from(MAX_KEPT).unwrap() {
            let key = *blake3::hash(&number.to_le_bytes()).as_bytes();
            let refused = || Err(Error::new(Code::NotMapped, "map", "s-1", ""));
            all.obtain(key, now, refused).map(drop).unwrap_err();
            assert!(lock(&all.0).len() <= MAX_KEPT);
        }
    }
}
