//! Permitted targets of relayed circuits: addresses at which the site proved to have a PoP, and private addresses
//! only where the administrator allowed them.
//!
//! A card says where its site is, and its author may write any address. A relaying PoP would connect there on behalf
//! of any client, from its own network. So before a circuit leads to an address, a TLS handshake must show the
//! certificate of a PoP of that site there; the proof is valid for a minute. Guarantee: a private address that was
//! not allowed is not even dialled. Non-goal: connections that this PoP dials for its own sessions, each of which
//! proves the same.

use super::dial::Dialler;
use super::route_context::Targets;
use super::transport::{dial, is_network};
use renkei_core::error::{Code, Error};
use renkei_core::path::SiteName;
use renkei_core::route::is_inside;
use renkei_net::ANSWER_TIMEOUT;
use std::net::SocketAddr;
use std::time::Instant;

impl Targets {
    /// Returns if a circuit to the PoP of `site` may lead to `address`.
    ///
    /// # Errors
    /// `InsideAddress`, `TargetUnproven`, or the error of the connection.
    pub(crate) fn check(&self, dialler: &Dialler, site: &SiteName, address: SocketAddr) -> Result<(), Error> {
        // A former name of a renamed site is read as its current one.
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

/// A broken connection proves nothing for or against the site, and the check may be retried.
fn unproven(error: Error, site: &SiteName, address: SocketAddr) -> Error {
    if is_network(error.code) {
        return error;
    }
    let cause = format!("{address}: {} {}", error.code.row().title, error.cause);
    Error::new(Code::TargetUnproven, "pass on", site, cause.trim_end())
}
