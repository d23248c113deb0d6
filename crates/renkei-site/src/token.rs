//! Tokens and S3 keys: what they prove when they are shown.

use super::snapshot::Snapshot;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Permit, Principal, Rights, Scope};
use renkei_core::path::{Place, RelPath, SiteName};
use renkei_net::identity::borrowed::number_of;
use renkei_net::identity::token::acceptance::Acceptance;
use renkei_net::identity::token::bearer::{Holder, not_ours};
use renkei_net::identity::token::caveat::Restrictions;
use renkei_net::identity::token::issuers::audiences;
use renkei_net::identity::token::jwt::{Claims, Grant};
use renkei_net::identity::token::macaroon::Macaroon;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

/// A token as a client shows it, decoded once.
#[derive(Clone)]
pub struct ShownToken {
    text: Arc<str>,
    from: IpAddr,
    content: Arc<Result<Content, Error>>,
}

/// What a token says; unverified.
enum Content {
    Macaroon(Macaroon),
    Claims(Claims),
}

impl ShownToken {
    /// A token that a client shows from an address.
    pub fn new(text: &str, from: IpAddr) -> Self {
        let content = match Macaroon::is_one(text) {
            true => Macaroon::parse(text).map(Content::Macaroon),
            false => Claims::read(text).map(Content::Claims),
        };
        ShownToken { text: text.into(), from, content: Arc::new(content) }
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it is a macaroon.
    pub(crate) fn is_macaroon(&self) -> bool {
        matches!(&*self.content, Ok(Content::Macaroon(_)))
    }

    /// The macaroon, if it is one.
    ///
    /// # Errors
    /// `TokenInvalid`.
    pub(crate) fn macaroon(&self) -> Result<&Macaroon, Error> {
        match self.content()? {
            Content::Macaroon(macaroon) => Ok(macaroon),
            Content::Claims(_) => {
                let cause = "it is a token of an issuer, and only macaroons are restricted further";
                Err(Error::new(Code::TokenInvalid, "read token", "token", cause))
            }
        }
    }

    fn content(&self) -> Result<&Content, Error> {
        self.content.as_ref().as_ref().map_err(Clone::clone)
    }

    /// The principal and the scope that the token proves.
    ///
    /// # Errors
    /// The token's own: `TokenInvalid`, `TokenExpired`, `TokenAudience` and so on; `NotMapped`, `ShutOut`, `OutOfScope`.
    pub(crate) fn judge(&self, now: &Snapshot, at: SystemTime) -> Result<(Principal, Option<Scope>), Error> {
        let claims = match self.content()? {
            Content::Macaroon(token) => return self.judge_macaroon(token, now, at),
            Content::Claims(claims) => claims,
        };
        proved(acceptance(now).verify(claims, &self.text, at)?, now)
    }

    /// Whether the token that proved a principal is still good. Its signature was verified then; its issuer's keys may
    /// have changed since.
    ///
    /// # Errors
    /// As [`ShownToken::judge`]; `NotMapped` if it proves another principal by now.
    pub(crate) fn judge_again(&self, was: &Principal, now: &Snapshot, at: SystemTime) -> Result<(), Error> {
        let (principal, _) = match self.content()? {
            Content::Macaroon(token) => self.judge_macaroon(token, now, at)?,
            Content::Claims(claims) => proved(acceptance(now).judge(claims, at)?, now)?,
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
        match &*self.content {
            Ok(Content::Claims(claims)) => claims.holder(),
            _ => "macaroon".into(),
        }
    }

    /// The end of its validity; a macaroon may have none.
    pub(crate) fn ends(&self) -> Option<SystemTime> {
        match self.content().ok()? {
            Content::Claims(claims) => Some(claims.ends()),
            Content::Macaroon(_) => self.restrictions()?.before,
        }
    }

    /// The directory that its holder sees as the root, if it names one.
    pub fn root(&self) -> Option<Place> {
        self.restrictions()?.root
    }

    /// Whether it is good for clients of some addresses alone.
    pub(crate) fn names_addresses(&self) -> bool {
        self.restrictions().is_some_and(|restrictions| restrictions.names_addresses())
    }

    /// Refuses a token that does not say that it is for a site with these endpoints: a PoP sends it to no other.
    ///
    /// # Errors
    /// `NotAllowed` for a macaroon that another site issued; `TokenAudience`; `TokenInvalid`.
    pub(crate) fn expect_for(&self, site: &SiteName, endpoints: &[String]) -> Result<(), Error> {
        let refused = |code, cause: String| Err(Error::new(code, "show token", site, cause));
        match self.content()? {
            Content::Macaroon(macaroon) if macaroon.location == site.as_str() => Ok(()),
            Content::Macaroon(macaroon) => {
                refused(Code::NotAllowed, format!("a macaroon of {} is good there alone", macaroon.location))
            }
            Content::Claims(claims) if claims.is_for(&audiences(endpoints)) => Ok(()),
            Content::Claims(claims) => {
                let (named, here) = (claims.audience().join(", "), endpoints.join(", "));
                let cause = format!("its audience is {named:?}, and the site is at {here}");
                refused(Code::TokenAudience, cause)
            }
        }
    }

    /// The restrictions of a macaroon.
    fn restrictions(&self) -> Option<Restrictions> {
        let token = self.macaroon().ok()?;
        Restrictions::of(token.caveats.iter().map(String::as_str)).ok()
    }

    /// The number with which certificates for it are revoked: of a macaroon, the serial by which it was asked for.
    pub(crate) fn number(&self) -> String {
        // Further caveats, and another encoding of the signature, make no other token.
        match &*self.content {
            Ok(Content::Macaroon(token)) => Holder::parse(&token.identifier)
                .and_then(|holder| holder.serial)
                .unwrap_or_else(|| number_of(token.identifier.as_bytes())),
            _ => {
                let signed = self.text.rsplit_once('.').map_or(&*self.text, |(signed, _)| signed);
                number_of(signed.as_bytes())
            }
        }
    }

    fn judge_macaroon(
        &self,
        token: &Macaroon,
        now: &Snapshot,
        at: SystemTime,
    ) -> Result<(Principal, Option<Scope>), Error> {
        let key = now.token_key.as_ref().ok_or_else(not_ours)?;
        let (principal, restrictions) = key.verify(token, &now.trust, at, self.from)?;
        Ok((principal, Some(scope(&[(restrictions.rights, restrictions.place)], now)?)))
    }
}

/// The own user that a grant is for, and its scope.
fn proved(grant: Grant, now: &Snapshot) -> Result<(Principal, Option<Scope>), Error> {
    let scope = grant.capabilities.map(|all| scope(&all, now)).transpose()?;
    Ok((Principal::user(&now.site, &grant.account)?, scope))
}

/// An S3 key by which a request was signed: the door has verified the signature.
#[derive(Clone)]
pub struct ShownS3Key {
    /// The access key.
    pub id: Arc<str>,
    /// The address of the client.
    pub from: IpAddr,
}

impl ShownS3Key {
    /// The owner of the key and its scope.
    ///
    /// # Errors
    /// `TokenInvalid` for a key that is not there, and those of [`S3Key::verify`].
    pub(crate) fn judge(&self, now: &Snapshot, at: SystemTime) -> Result<(Principal, Option<Scope>), Error> {
        let (principal, restrictions) = now.s3_keys.find(&self.id)?.verify(&now.trust, at, self.from)?;
        if restrictions.place.is_none() && restrictions.rights.contains(Rights::ALL) {
            return Ok((principal, None));
        }
        Ok((principal, Some(scope(&[(restrictions.rights, restrictions.place)], now)?)))
    }
}

fn acceptance(now: &Snapshot) -> Acceptance<'_> {
    let audiences = audiences(&now.config.announced_endpoints());
    Acceptance { issuers: &now.issuers, keys: &now.issuer_keys, mapping: &now.mapping, audiences }
}

/// Rights to places as a scope; those without a place are for each storage and volume.
fn scope(all: &[(Rights, Option<Place>)], now: &Snapshot) -> Result<Scope, Error> {
    let root = |storage: &String| Place { storage: storage.clone(), path: RelPath::root() };
    let roots = || now.storages.keys().chain(now.volumes.keys()).map(root).collect();
    let permits = all.iter().flat_map(|(rights, place)| {
        let places: Vec<Place> = place.clone().map_or_else(roots, |place| vec![place]);
        places.into_iter().map(|place| Permit { site: now.site.clone(), place, rights: *rights })
    });
    Scope::of_rights(permits.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    fn number(text: &str) -> String {
        ShownToken::new(text, [127, 0, 0, 1].into()).number()
    }

    #[test]
    fn a_token_has_one_number_however_it_is_written() {
        let macaroon = Macaroon::new(b"key", "kek", "an identifier");
        let narrow = macaroon.clone().with_caveat("activity:LIST");
        let other = Macaroon::new(b"key", "kek", "another");
        assert_eq!(number(&macaroon.to_text()), number(&narrow.to_text()));
        assert_ne!(number(&macaroon.to_text()), number(&other.to_text()));
        assert_eq!(number("e30.e30.AA"), number("e30.e30.AB"));
        assert_ne!(number("e30.e30.AA"), number("e30.e31.AA"));
    }

    #[test]
    fn a_token_is_sent_only_to_sites_that_it_names() {
        let kek = SiteName::parse("kek").unwrap();
        let judge = |text: &str| {
            let shown = ShownToken::new(text, [127, 0, 0, 1].into());
            shown.expect_for(&kek, &["pop.kek.jp:7512".into()]).map_err(|error| error.code)
        };
        let of = |site: &str| Macaroon::new(b"key", site, "an identifier").to_text();
        assert_eq!(judge(&of("kek")), Ok(()));
        assert_eq!(judge(&of("titech")), Err(Code::NotAllowed));
        let claims = |audience: serde_json::Value| {
            let claims = serde_json::json!({"iss": "https://i", "sub": "s", "exp": 1, "aud": audience});
            let encode = |part: String| URL_SAFE_NO_PAD.encode(part);
            format!("{}.{}.AA", encode(r#"{"alg":"ES256"}"#.into()), encode(claims.to_string()))
        };
        for good in ["https://pop.kek.jp:7512", "https://pop.kek.jp", "https://wlcg.cern.ch/jwt/v1/any"] {
            assert_eq!(judge(&claims(serde_json::json!(["https://x", good]))), Ok(()), "{good}");
        }
        for bad in
            [serde_json::json!("https://pop.titech.jp"), serde_json::json!([]), serde_json::json!(null)]
        {
            assert_eq!(judge(&claims(bad.clone())), Err(Code::TokenAudience), "{bad}");
        }
        assert_eq!(judge("nonsense"), Err(Code::TokenInvalid));
    }
}
