//! Tokens: what they prove when they are shown.

use super::snapshot::Snapshot;
use renkei_core::error::Error;
use renkei_core::identity::{Permit, Principal, Scope};
use renkei_core::path::{Place, RelPath};
use renkei_net::identity::token::bearer::not_ours;
use renkei_net::identity::token::caveat::Restrictions;
use renkei_net::identity::token::macaroon::Macaroon;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

/// A token as a client shows it.
#[derive(Clone)]
pub struct ShownToken {
    /// Its text.
    pub text: Arc<str>,
    /// The address of the client.
    pub from: IpAddr,
}

impl ShownToken {
    /// The principal and the scope that the token proves.
    ///
    /// # Errors
    /// `TokenInvalid`, `TokenExpired`, `TokenElsewhere`, `CertificateRevoked`, `UnknownAuthority`, `OutOfScope`.
    pub(crate) fn judge(&self, now: &Snapshot, at: SystemTime) -> Result<(Principal, Option<Scope>), Error> {
        let token = Macaroon::parse(&self.text)?;
        let key = now.token_key.as_ref().ok_or_else(not_ours)?;
        let (principal, restrictions) = key.verify(&token, &now.trust, at, self.from)?;
        Ok((principal, Some(scope(&restrictions, now)?)))
    }
}

/// The restrictions as a scope; without a place, for each storage and volume.
fn scope(restrictions: &Restrictions, now: &Snapshot) -> Result<Scope, Error> {
    let root = |storage: &String| Place { storage: storage.clone(), path: RelPath::root() };
    let all = || now.storages.keys().chain(now.volumes.keys()).map(root).collect();
    let places = restrictions.place.clone().map_or_else(all, |place| vec![place]);
    let permit = |place| Permit { site: now.site.clone(), place, rights: restrictions.rights };
    Scope::of_rights(places.into_iter().map(permit).collect())
}
