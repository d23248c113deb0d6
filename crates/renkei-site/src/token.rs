//! Tokens: what they prove when they are shown.

use super::snapshot::Snapshot;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Permit, Principal, Rights, Scope};
use renkei_core::path::{Place, RelPath};
use renkei_net::identity::token::bearer::not_ours;
use renkei_net::identity::token::issuers::{Issuer, audiences};
use renkei_net::identity::token::jwt::Claims;
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
    /// The token's own: `TokenInvalid`, `TokenExpired`, `TokenAudience` and so on; `NotMapped`, `ShutOut`, `OutOfScope`.
    pub(crate) fn judge(&self, now: &Snapshot, at: SystemTime) -> Result<(Principal, Option<Scope>), Error> {
        if Macaroon::is_one(&self.text) {
            return self.judge_macaroon(now, at);
        }
        let claims = Claims::read(&self.text)?;
        // Before its keys are fetched: strangers must not make the PoP ask servers.
        issuer_of(&claims, now)?;
        now.issuer_keys.verify(&claims.issuer, &self.text, at)?;
        judge_claims(&claims, now, at)
    }

    /// Whether the token that proved a principal is still good. Its signature was verified then; its issuer's keys may
    /// have changed since.
    ///
    /// # Errors
    /// As [`ShownToken::judge`]; `NotMapped` if it proves another principal by now.
    pub(crate) fn judge_again(&self, was: &Principal, now: &Snapshot, at: SystemTime) -> Result<(), Error> {
        let (principal, _) = match Macaroon::is_one(&self.text) {
            true => self.judge_macaroon(now, at)?,
            false => judge_claims(&Claims::read(&self.text)?, now, at)?,
        };
        match principal == *was {
            true => Ok(()),
            false => {
                let cause = format!("the token is for {principal} by now");
                Err(Error::new(Code::NotMapped, "authenticate", was, cause))
            }
        }
    }

    /// Whose token it is, as logged.
    pub(crate) fn holder(&self) -> String {
        match Claims::read(&self.text) {
            Ok(claims) => format!("{} of {}", claims.subject, claims.issuer),
            Err(_) => "macaroon".into(),
        }
    }

    fn judge_macaroon(&self, now: &Snapshot, at: SystemTime) -> Result<(Principal, Option<Scope>), Error> {
        let token = Macaroon::parse(&self.text)?;
        let key = now.token_key.as_ref().ok_or_else(not_ours)?;
        let (principal, restrictions) = key.verify(&token, &now.trust, at, self.from)?;
        Ok((principal, Some(scope(&[(restrictions.rights, restrictions.place)], now)?)))
    }
}

fn issuer_of<'a>(claims: &Claims, now: &'a Snapshot) -> Result<&'a Issuer, Error> {
    let unknown = || Error::new(Code::IssuerUnknown, "verify token", &claims.issuer, "");
    now.issuers.named(&claims.issuer).ok_or_else(unknown)
}

/// The own user that a token of an issuer stands for, and its scope.
fn judge_claims(
    claims: &Claims,
    now: &Snapshot,
    at: SystemTime,
) -> Result<(Principal, Option<Scope>), Error> {
    let audiences = audiences(&now.config.announced_endpoints());
    let grant = claims.judge(issuer_of(claims, now)?, &now.mapping, &audiences, at)?;
    let scope = grant.capabilities.map(|all| scope(&all, now)).transpose()?;
    Ok((Principal::user(&now.site, &grant.account)?, scope))
}

/// Rights to places as a scope; those without a place are for each storage and volume.
pub(crate) fn scope(all: &[(Rights, Option<Place>)], now: &Snapshot) -> Result<Scope, Error> {
    let root = |storage: &String| Place { storage: storage.clone(), path: RelPath::root() };
    let roots = || now.storages.keys().chain(now.volumes.keys()).map(root).collect();
    let permits = all.iter().flat_map(|(rights, place)| {
        let places: Vec<Place> = place.clone().map_or_else(roots, |place| vec![place]);
        places.into_iter().map(|place| Permit { site: now.site.clone(), place, rights: *rights })
    });
    Scope::of_rights(permits.collect())
}
