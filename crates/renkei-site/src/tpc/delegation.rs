//! Proxies that users delegate for copies (GridSite delegation): a client gets a certificate request, signs a proxy for it with
//! its own certificate, and gives it back. A copy then presents the proxy to the other server.
//!
//! Keys are made here and stay in memory. A restart forgets all of them, and clients delegate anew when they are asked to. A
//! delegation belongs to the name in the grid certificate that its user showed, and has an id among the user's: the client's
//! choice, or one made of the name. It ends with the first certificate of its chain. Source: the GridSite delegation
//! specification 2.0.0 (`delegation-2.0.0.wsdl` of EGEE).

use crate::Context;
use crate::access::Proof;
use crate::evidence::Evidence;
use renkei_core::error::{Code, Error};
use renkei_net::identity::borrowed::number_of;
use renkei_net::identity::credential::Credential;
use renkei_net::identity::grid::{DelegatedProxy, GridUser, ProxyKey};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

/// Most delegations of one user, and of all.
const MAX_OF_USER: usize = 16;
const MAX_OF_ALL: usize = 4096;
/// Longest id.
const MAX_ID_BYTES: usize = 128;
/// How long a request waits for its proxy.
const ASKED_FOR: Duration = Duration::from_secs(600);
/// A proxy that ends earlier is refreshed before a copy begins.
const FRESH: Duration = Duration::from_secs(20 * 60);
/// How much earlier than the chain that was shown a fresh proxy may end.
const EARLIER: Duration = Duration::from_secs(5 * 60);
const OP: &str = "delegate";

/// A certificate request for a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyRequest {
    /// The id of the delegation.
    pub id: String,
    /// PEM.
    pub request: String,
}

/// Name of the user, and id.
type Key = (String, String);

#[derive(Default)]
struct Delegation {
    asked: Option<(Arc<ProxyKey>, Instant)>,
    given: Option<Given>,
}

/// A proxy that was given.
struct Given {
    credential: Arc<Credential>,
    until: SystemTime,
    fqans: Vec<String>,
    is_limited: bool,
}

impl Given {
    /// Whether it gives no other rights at the other server than the chain that its user shows.
    fn is_as(&self, shown: &GridUser) -> bool {
        self.fqans == shown.fqans && (self.is_limited || !shown.is_limited)
    }
}

impl Delegation {
    fn is_over(&self, now: SystemTime) -> bool {
        let waits = self.asked.as_ref().is_some_and(|(_, since)| since.elapsed() < ASKED_FOR);
        !waits && self.given.as_ref().is_none_or(|given| given.until <= now)
    }
}

/// The delegations of all users.
pub struct Delegations {
    context: Arc<Context>,
    all: Mutex<BTreeMap<Key, Delegation>>,
}

impl Delegations {
    pub(super) fn new(context: &Arc<Context>) -> Self {
        Delegations { context: context.clone(), all: Mutex::default() }
    }

    /// A certificate request for the proxy of a delegation, which is begun if there is none; an empty id stands for the one
    /// made of the user's name. A proxy that was given before stays until the next one is.
    ///
    /// # Errors
    /// `NotAllowed` for all but users with a grid certificate, `UsageInvalid` for an id that is too long,
    /// `TooManyUnfinished`.
    pub fn ask(&self, proof: &Proof, id: &str) -> Result<ProxyRequest, Error> {
        let key = owned(proof, id)?;
        let made = Arc::new(ProxyKey::generate()?);
        let request = made.request()?;
        let mut all = self.lock();
        if !all.contains_key(&key) {
            expect_room(&all, &key.0)?;
        }
        let id = key.1.clone();
        all.entry(key).or_default().asked = Some((made, Instant::now()));
        Ok(ProxyRequest { id, request })
    }

    /// The same for a delegation that is there.
    ///
    /// # Errors
    /// As [`Delegations::ask`]; `PathNotFound`.
    pub fn renew(&self, proof: &Proof, id: &str) -> Result<ProxyRequest, Error> {
        self.ends(proof, id)?;
        self.ask(proof, id)
    }

    /// Takes the proxy that was signed for the last request, as PEM with the certificates above it.
    ///
    /// # Errors
    /// `NotAllowed`, also for the proxy of another user; `PathNotFound` if nothing was asked for; those of
    /// [`ProxyKey::join`].
    pub fn give(&self, proof: &Proof, id: &str, pem: &str) -> Result<(), Error> {
        let key = owned(proof, id)?;
        let asked = self.lock().get(&key).and_then(|delegation| delegation.asked.clone());
        let none = || missing(&key.1, "no request for it waits for a proxy");
        let (made, _) = asked.filter(|(_, since)| since.elapsed() < ASKED_FOR).ok_or_else(none)?;
        let proxy = made.join(pem, &self.context.last_snapshot().grid, SystemTime::now())?;
        if proxy.dn != key.0 {
            let cause = format!("the proxy is of {}, and {} gives it", proxy.dn, key.0);
            return Err(Error::new(Code::NotAllowed, OP, &key.1, cause));
        }
        let until = proxy.until.duration_since(SystemTime::now()).unwrap_or_default().as_secs();
        tracing::info!(target: "audit", principal = %proof.principal, user = key.0, id = key.1, life_s = until, "proxy delegated");
        let mut all = self.lock();
        let delegation = all.entry(key).or_default();
        let DelegatedProxy { credential, fqans, is_limited, until, .. } = proxy;
        delegation.given = Some(Given { credential: Arc::new(credential), until, fqans, is_limited });
        delegation.asked.take_if(|(asked, _)| Arc::ptr_eq(asked, &made));
        Ok(())
    }

    /// The end of a delegation.
    ///
    /// # Errors
    /// `NotAllowed`, `UsageInvalid`; `PathNotFound` without a proxy that is valid.
    pub fn ends(&self, proof: &Proof, id: &str) -> Result<SystemTime, Error> {
        let key = owned(proof, id)?;
        let all = self.lock();
        let given = all.get(&key).and_then(|delegation| delegation.given.as_ref());
        let end = given.map(|given| given.until).filter(|until| *until > SystemTime::now());
        end.ok_or_else(|| missing(&key.1, "there is no such delegation, or it has ended"))
    }

    /// Ends a delegation; running copies go on with what they have.
    ///
    /// # Errors
    /// `NotAllowed`, also with a limited proxy; `UsageInvalid`, `PathNotFound`; those of
    /// [`GridTrust::judge`](renkei_net::identity::grid::GridTrust::judge).
    pub fn destroy(&self, proof: &Proof, id: &str) -> Result<(), Error> {
        let key = owned(proof, id)?;
        self.expect_full(proof)?;
        match self.lock().remove(&key) {
            Some(_) => {
                tracing::info!(target: "audit", principal = %proof.principal, user = key.0, id = key.1, "delegation ended");
                Ok(())
            }
            None => Err(missing(&key.1, "there is no such delegation")),
        }
    }

    /// The delegations of a user that have a proxy, with their ends.
    ///
    /// # Errors
    /// As [`Delegations::destroy`].
    pub fn list(&self, proof: &Proof) -> Result<Vec<(String, SystemTime)>, Error> {
        self.expect_full(proof)?;
        let (owner, now) = (owned(proof, "")?.0, SystemTime::now());
        let all = self.lock();
        let own = all.iter().filter(|((user, _), _)| *user == owner);
        let given = own.filter_map(|((_, id), one)| Some((id.clone(), one.given.as_ref()?.until)));
        Ok(given.filter(|(_, until)| *until > now).collect())
    }

    /// The proxy of a user that ends last, of those with the attributes that the user shows, unless it is about to end and the
    /// user could give a better one. Who shows a limited proxy gets a limited one alone.
    ///
    /// # Errors
    /// `NotAllowed` for all but users with a grid certificate; those of
    /// [`GridTrust::judge`](renkei_net::identity::grid::GridTrust::judge).
    pub fn proxy(&self, proof: &Proof) -> Result<Option<Arc<Credential>>, Error> {
        let (owner, now) = (owned(proof, "")?.0, SystemTime::now());
        let ends = proof.evidence.facts()?.ends.unwrap_or(now);
        let shown = self.shown(proof, now)?;
        let all = self.lock();
        let own = all.iter().filter(|((user, _), _)| *user == owner);
        let same = own.filter_map(|(_, one)| one.given.as_ref()).filter(|given| given.is_as(&shown));
        let last = same.max_by_key(|given| given.until);
        let is_good = |until: SystemTime| until > now && (until >= now + FRESH || until + EARLIER >= ends);
        Ok(last.filter(|given| is_good(given.until)).map(|given| given.credential.clone()))
    }

    /// The chain that a user shows.
    fn shown(&self, proof: &Proof, now: SystemTime) -> Result<GridUser, Error> {
        match &proof.evidence {
            Evidence::Grid(chain) => self.context.last_snapshot().grid.judge(chain, now),
            _ => Err(no_grid_certificate(proof)),
        }
    }

    /// Fails for a limited proxy: it is for the work of its user, not for what the user arranged.
    fn expect_full(&self, proof: &Proof) -> Result<(), Error> {
        match self.shown(proof, SystemTime::now())?.is_limited {
            true => {
                let cause = "a limited proxy neither lists nor ends delegations";
                Err(Error::new(Code::NotAllowed, OP, &proof.principal, cause))
            }
            false => Ok(()),
        }
    }

    /// All delegations, without those that are over.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Delegation>> {
        let mut all = self.all.lock().expect("no thread panics while it holds the lock");
        let now = SystemTime::now();
        all.retain(|_, delegation| !delegation.is_over(now));
        all
    }
}

fn expect_room(all: &BTreeMap<Key, Delegation>, owner: &str) -> Result<(), Error> {
    let own = all.keys().filter(|(user, _)| user == owner).count();
    match own >= MAX_OF_USER || all.len() >= MAX_OF_ALL {
        true => {
            let cause = format!("a user has at most {MAX_OF_USER} delegations, all together {MAX_OF_ALL}");
            Err(Error::new(Code::TooManyUnfinished, OP, owner, cause))
        }
        false => Ok(()),
    }
}

/// The key of a delegation of the user of a grid certificate.
fn owned(proof: &Proof, id: &str) -> Result<Key, Error> {
    let owner = match &proof.evidence {
        Evidence::Grid(_) => proof.holder(),
        _ => None,
    };
    let owner = owner.ok_or_else(|| no_grid_certificate(proof))?;
    if id.len() > MAX_ID_BYTES || id.chars().any(char::is_control) {
        let cause = format!("an id has at most {MAX_ID_BYTES} bytes, none of them a control character");
        return Err(Error::new(Code::UsageInvalid, OP, "id", cause));
    }
    let id = if id.is_empty() { number_of(owner.as_bytes()) } else { id.to_owned() };
    Ok((owner, id))
}

fn no_grid_certificate(proof: &Proof) -> Error {
    let cause = "proxies are delegated with a grid certificate, shown as client certificate";
    Error::new(Code::NotAllowed, OP, &proof.principal, cause)
}

fn missing(id: &str, cause: &str) -> Error {
    Error::new(Code::PathNotFound, OP, id, cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_has_the_attributes_that_are_shown_and_no_more_rights() {
        let shown = |fqans: &[&str], is_limited| GridUser {
            dn: "/CN=Ada".into(),
            fqans: fqans.iter().map(|fqan| (*fqan).to_owned()).collect(),
            is_limited,
            until: SystemTime::now(),
            warnings: Vec::new(),
        };
        let (production, user) = (&["/dune/Role=production", "/dune"][..], &["/dune"][..]);
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(Vec::new()).into();
        let mut given = Given {
            credential: Arc::new(Credential { chain: Vec::new(), key }),
            until: SystemTime::now(),
            fqans: shown(production, false).fqans,
            is_limited: false,
        };
        assert!(given.is_as(&shown(production, false)));
        for other in [shown(user, false), shown(&[], false), shown(production, true)] {
            assert!(!given.is_as(&other), "{other:?}");
        }
        given.is_limited = true;
        assert!(given.is_as(&shown(production, true)) && given.is_as(&shown(production, false)));
    }
}
