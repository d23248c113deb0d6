//! Where circuits of others may lead: to addresses at which the site proved to have a PoP, and inside only where the
//! administrator said so.
//!
//! A card says where its site is, and who wrote it may write any address. A PoP that passes circuits on would connect there
//! for everybody, from where it stands. So before a circuit leads to an address, TLS is spoken with what is there, and its
//! certificate must be the one of a PoP of that site; that holds for a minute. Guarantee: an address inside to which
//! nobody agreed is not even dialled. Non-goal: whom this PoP dials for its own sessions, which prove the same each time.

use super::dial::{Dialler, is_network};
use super::transport::dial;
use crate::net::ANSWER_TIMEOUT;
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::route::is_inside;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How long a proof holds: as long as one session needs to open its streams.
const PROVED_FOR: Duration = Duration::from_secs(60);

/// Which sites have proved to be at which addresses.
#[derive(Default)]
pub struct Proofs(Mutex<HashMap<(SiteName, SocketAddr), Instant>>);

impl Proofs {
    fn fresh(&self) -> MutexGuard<'_, HashMap<(SiteName, SocketAddr), Instant>> {
        let mut all = self.0.lock().expect("no thread panics while it holds the lock: a panic aborts");
        all.retain(|_, since| since.elapsed() < PROVED_FOR);
        all
    }
}

/// What is asked of an address before others are led to it.
#[derive(Clone)]
pub struct Targets {
    /// Sites that may be inside; `*` for all.
    pub inside: Vec<String>,
    /// What was proved.
    pub proofs: Arc<Proofs>,
}

impl Targets {
    /// Returns if a circuit to the PoP of `site` may lead to `address`.
    ///
    /// # Errors
    /// `InsideAddress`, `TargetUnproven`, or why nobody answers there.
    pub(super) fn check(&self, dialler: &Dialler, site: &SiteName, address: SocketAddr) -> Result<(), Error> {
        // A name that the site had before it was renamed is read as that of today.
        let is_site = |allowed: &str| SiteName::parse(allowed).is_ok_and(|allowed| allowed == *site);
        let is_allowed = self.inside.iter().any(|allowed| allowed == "*" || is_site(allowed));
        if is_inside(address.ip()) && !is_allowed {
            let cause = format!("its card says {address}, which is an address inside");
            return Err(Error::new(Code::InsideAddress, "pass on", site, cause));
        }
        let key = (site.clone(), address);
        if self.proofs.fresh().contains_key(&key) {
            return Ok(());
        }
        let sock = dial(address, ANSWER_TIMEOUT)?;
        dialler.secure_on(site, address, sock).map_err(|error| unproven(error, site, address))?;
        self.proofs.fresh().insert(key, Instant::now());
        Ok(())
    }
}

/// A conversation that broke proves nothing for or against the site, and may be tried again.
fn unproven(error: Error, site: &SiteName, address: SocketAddr) -> Error {
    if is_network(error.code) {
        return error;
    }
    let cause = format!("{address}: {} {}", error.code.row().title, error.cause);
    Error::new(Code::TargetUnproven, "pass on", site, cause.trim_end())
}
