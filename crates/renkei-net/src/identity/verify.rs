//! Verifies a peer's certificate chain.
//!
//! The leaf names a principal; the principal's site determines the one authority that may have issued it. A chain
//! that is valid under any other trusted authority is `ForeignName`: that site claimed a name not its own. During the
//! overlap after a site replaced its authority there are two ([`super::handover`]). Every reason to refuse has its
//! own code, and the causes carry dates in UTC. The TLS handshake has verified before that the peer has the leaf's
//! key (see [`super::tls`]).

use super::certificate::{Facts, parse, serial_bytes, utc};
use super::trust::Trust;
use super::trust::card::SiteCard;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Principal, Scope};
use renkei_core::path::SiteName;
use rustls::pki_types::{CertificateDer, UnixTime};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use webpki::{
    EndEntityCert, KeyUsage, RevocationOptionsBuilder, UnknownStatusPolicy, anchor_from_trusted_cert,
};

/// Maximum of certificates in a chain.
const MAX_CHAIN: usize = 4;
const OP: &str = "verify certificate";

/// The principal of the peer, if the chain verifies. Delegated certificates are refused: this is for callers that do
/// not check scopes.
///
/// # Errors
/// `UnknownAuthority`, `AuthorityReplaced`, `ForeignName`, `CertificateExpired`, `CertificateNotYetValid`,
/// `CertificateRevoked`, or `BadCertificate` for all else; retrying does not help.
pub fn verify_peer(chain: &[CertificateDer<'_>], trust: &Trust, now: SystemTime) -> Result<Principal, Error> {
    match verify_holder(chain, trust, now)? {
        (principal, None) => Ok(principal),
        (principal, Some(_)) => {
            let cause = "a delegated certificate is valid only for its transfer";
            Err(Error::new(Code::OutOfScope, OP, principal, cause))
        }
    }
}

/// The principal of the peer, if the chain verifies, and the scope of a delegated certificate.
///
/// # Errors
/// As [`verify_peer`]; `BadScope` if the scope cannot be read, `DelegationExpired` in place of `CertificateExpired`.
pub fn verify_holder(
    chain: &[CertificateDer<'_>],
    trust: &Trust,
    now: SystemTime,
) -> Result<(Principal, Option<Scope>), Error> {
    let [leaf, intermediates @ ..] = chain else {
        return Err(Error::new(Code::BadCertificate, OP, "", "the peer showed no certificate"));
    };
    if chain.len() > MAX_CHAIN {
        return Err(Error::new(
            Code::BadCertificate,
            OP,
            "",
            format!("the chain is longer than {MAX_CHAIN}"),
        ));
    }
    let facts = Facts::read(leaf)?;
    let (principal, scope) = facts.holder()?;
    let judge = Judge { leaf, intermediates, facts: &facts, principal: &principal, now };
    judge.decide(trust)?;
    let scope = scope.cloned();
    Ok((principal, scope))
}

/// Checks that the peer, a server, is the PoP of `site` and not another principal of that site.
pub fn expect_site(peer: &Principal, site: &SiteName) -> Result<(), Error> {
    expect_peer(peer, &Principal::Host(site.clone()))
}

/// Checks that the peer, a server, is exactly the expected PoP or agent.
pub fn expect_peer(peer: &Principal, meant: &Principal) -> Result<(), Error> {
    if *peer == *meant.current() {
        return Ok(());
    }
    let cause = format!("expected {}, the peer proved to be {}", described(meant), described(peer));
    Err(Error::new(Code::WrongSite, OP, meant, cause))
}

fn described(peer: &Principal) -> String {
    match peer {
        Principal::Host(site) => format!("the PoP of {site}"),
        Principal::User { .. } => format!("the user {peer}"),
        Principal::Agent { .. } => format!("the agent {peer}"),
    }
}

struct Judge<'a> {
    leaf: &'a CertificateDer<'a>,
    intermediates: &'a [CertificateDer<'a>],
    facts: &'a Facts,
    principal: &'a Principal,
    now: SystemTime,
}

impl Judge<'_> {
    fn decide(&self, trust: &Trust) -> Result<(), Error> {
        let site = self.principal.site();
        let Some(card) = trust.card(site) else {
            self.refuse_foreign(trust)?;
            return Err(self.error(Code::UnknownAuthority, format!("the site {site} is not trusted here")));
        };
        match self.check(card, trust) {
            Ok(authority) => {
                self.check_authority_dates(card, authority)?;
                self.check_serial(trust)?;
                self.check_parent(trust)
            }
            Err(_) if let Some(error) = self.replaced(card, trust) => Err(error),
            Err(error) if is_of_another(&error) => {
                self.refuse_foreign(trust)?;
                let known = card.fingerprint();
                let cause = format!(
                    "the authority of {site} known here ({known}) did not sign it ({})",
                    self.facts.issuer
                );
                Err(self.error(Code::UnknownAuthority, cause))
            }
            Err(error) => Err(self.explain(&error)),
        }
    }

    /// Verifies under the authority of `card`, else under the previous one during the overlap; returns the matching
    /// one.
    fn check<'c>(
        &self,
        card: &'c SiteCard,
        trust: &Trust,
    ) -> Result<&'c CertificateDer<'static>, webpki::Error> {
        let mut last = webpki::Error::UnknownIssuer;
        for authority in card.authorities(self.now) {
            match self.check_under(authority, card, trust) {
                Ok(()) => return Ok(authority),
                Err(error) if is_of_another(&error) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    fn check_under(
        &self,
        authority: &CertificateDer<'_>,
        card: &SiteCard,
        trust: &Trust,
    ) -> Result<(), webpki::Error> {
        let anchors = [anchor_from_trusted_cert(authority)?];
        let lists: Vec<_> = trust.parsed_list(&card.site).into_iter().collect();
        let revocation = RevocationOptionsBuilder::new(&lists).ok().map(|options| {
            // A list may be stale where a site is cut off; a stale one is better than none.
            options.with_status_policy(UnknownStatusPolicy::Allow).build()
        });
        let now = self.now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        EndEntityCert::try_from(self.leaf)?.verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &anchors,
            self.intermediates,
            UnixTime::since_unix_epoch(now),
            KeyUsage::client_auth(),
            revocation,
            None,
        )?;
        Ok(())
    }

    /// An authority's own expiry, which chain building does not look at.
    fn check_authority_dates(&self, card: &SiteCard, authority: &CertificateDer<'_>) -> Result<(), Error> {
        let dates = Facts::read(authority)?;
        if self.now <= dates.not_after {
            return Ok(());
        }
        let cause = format!("the authority of {} expired on {}", card.site, utc(dates.not_after));
        Err(self.error(Code::CertificateExpired, cause))
    }

    /// The site's one revocation list covers all its certificates, whichever of its authorities issued them.
    fn check_serial(&self, trust: &Trust) -> Result<(), Error> {
        match trust.is_revoked(self.principal.site(), &serial_bytes(&self.facts.serial)) {
            false => Ok(()),
            true => Err(self.revoked()),
        }
    }

    /// The error of a site that replaced its authority, if that is the cause: the overlap of the previous one is
    /// over, or the new one was not taken over here in time.
    fn replaced(&self, card: &SiteCard, trust: &Trust) -> Option<Error> {
        if let Some(handover) = card.handover.as_ref().filter(|handover| !handover.is_live(self.now)) {
            let old = parse(&handover.previous).ok()?;
            let leaf = parse(self.leaf).ok()?;
            if leaf.issuer() == old.subject() && leaf.verify_signature(Some(old.public_key())).is_ok() {
                let until = utc(handover.until());
                let cause = format!(
                    "it was signed by the previous authority of {}, which was valid until {until}",
                    card.site
                );
                let delegated = self.facts.scope.as_ref().is_some_and(|scope| scope.transfer().is_some());
                let code = if delegated { Code::DelegationExpired } else { Code::CertificateExpired };
                return Some(self.error(code, cause));
            }
        }
        self.not_taken_over(card, trust)
    }

    /// The chain has a cross-certificate by the authority known here, which has expired.
    fn not_taken_over(&self, card: &SiteCard, trust: &Trust) -> Option<Error> {
        let known = parse(&card.authority).ok()?;
        let is_over = |cross: &CertificateDer<'_>| {
            let (cross, leaf) = (parse(cross).ok()?, parse(self.leaf).ok()?);
            let is_ours = cross.is_ca() && cross.verify_signature(Some(known.public_key())).is_ok();
            let is_led = leaf.verify_signature(Some(cross.public_key())).is_ok();
            let end = Facts::read_end(&cross);
            (is_ours && is_led && end < self.now).then_some(())
        };
        self.intermediates.iter().find_map(is_over)?;
        let what = "has replaced its authority, and the new one was not taken over here during the overlap";
        let cause = format!("{} {what}{}", card.site, self.at_another_pop(card, trust));
        Some(self.error(Code::AuthorityReplaced, cause))
    }

    /// The remedy where this PoP is one of several of that site, which a new card does not help.
    fn at_another_pop(&self, card: &SiteCard, trust: &Trust) -> &'static str {
        match trust.own_site() == Some(&card.site) {
            true => {
                "; this is another PoP of that site: copy pki/ca.pem, pki/ca.key and the newest pki/handover-N.toml to it from the one where that was \
                 done, restart it, then remove its pki/ca.key"
            }
            false => "",
        }
    }

    /// A delegated certificate is revoked with its parent.
    fn check_parent(&self, trust: &Trust) -> Result<(), Error> {
        let site = self.principal.site();
        let (Some(parent), Some(list)) = (&self.facts.parent, trust.parsed_list(site)) else { return Ok(()) };
        match list.find_serial(&serial_bytes(parent)) {
            Ok(None) => Ok(()),
            found => {
                let unreadable = found.err().map(|error| format!(" ({error})")).unwrap_or_default();
                let cause =
                    format!("{site} took back serial {parent}, by which it was delegated{unreadable}");
                Err(self.error(Code::CertificateRevoked, cause))
            }
        }
    }

    /// Fails if another trusted site issued a certificate for this name.
    fn refuse_foreign(&self, trust: &Trust) -> Result<(), Error> {
        let site = self.principal.site();
        let others = trust.list().filter(|card| card.site != *site);
        for card in others {
            if let Ok(authority) = self.check(card, trust) {
                if trust.card(site).is_none() && self.is_by_successor(authority) {
                    let own = self.at_another_pop(card, trust);
                    let cause =
                        format!("{} is called {site} now, which was not taken over here yet{own}", card.site);
                    return Err(self.error(Code::AuthorityReplaced, cause));
                }
                let cause = format!("the authority of {} signed a name of {site}", card.site);
                return Err(self.error(Code::ForeignName, cause));
            }
        }
        Ok(())
    }

    /// Whether the certificate was issued by the successor of this authority.
    fn is_by_successor(&self, authority: &CertificateDer<'_>) -> bool {
        Facts::read(authority).is_ok_and(|facts| facts.issuer != self.facts.issuer)
    }

    fn explain(&self, error: &webpki::Error) -> Error {
        let now = utc(self.now);
        match error {
            webpki::Error::CertExpired { .. } => {
                let cause = format!("it expired on {}; here it is {now}", utc(self.facts.not_after));
                let delegated = self.facts.scope.as_ref().is_some_and(|scope| scope.transfer().is_some());
                self.error(if delegated { Code::DelegationExpired } else { Code::CertificateExpired }, cause)
            }
            webpki::Error::CertNotValidYet { .. } => {
                let cause = format!("it is valid from {}; here it is {now}", utc(self.facts.not_before));
                self.error(Code::CertificateNotYetValid, cause)
            }
            webpki::Error::CertRevoked => self.revoked(),
            other => self.error(Code::BadCertificate, other.to_string()),
        }
    }

    fn revoked(&self) -> Error {
        let cause = format!("{} took back serial {}", self.principal.site(), self.facts.serial);
        self.error(Code::CertificateRevoked, cause)
    }

    fn error(&self, code: Code, cause: String) -> Error {
        Error::new(code, OP, self.principal, cause)
    }
}

/// Whether the failure means that another authority signed.
fn is_of_another(error: &webpki::Error) -> bool {
    matches!(error, webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey)
}
