//! Certificates for users who show evidence of another kind: a token, a proxy, any that doors accept.
//!
//! A certificate names the user of this site whom the evidence proves, with the scope of the evidence. It ends with the
//! evidence, or earlier (`borrowed_hours`). A certificate that is shown for another one gives the same end again, so
//! nothing is prolonged by asking.
//!
//! The other direction, certificates that this PoP gets from other sites for a token, is in `files/certificates_elsewhere`.

use super::Context;
use super::access::Proof;
use super::evidence::{Evidence, EvidenceFacts};
use renkei_core::error::{Code, Error};
use renkei_net::identity::borrowed::{Borrower, issue};
use renkei_net::identity::certificate::{parse_serial, serial_bytes};
use serde_json::Value;
use std::time::{Duration, Instant, SystemTime};

const OP: &str = "give certificate";

impl Context {
    /// Gives a certificate for some evidence on a certificate request; the reply is that of a login.
    ///
    /// # Errors
    /// Those of [`Context::authenticate`] and [`Context::authorise`]; `NotAllowed` for all but users of this site and
    /// where the PoP gives none, `OutOfScope` for credentials of transfers and mounts, `CertificateRevoked` if the
    /// evidence's number is, `TooManyLogins`, `BadCertificate` for the request.
    pub fn lend_certificate(&self, evidence: Evidence, request: &str) -> Result<Value, Error> {
        let proof = self.authenticate(evidence)?;
        let given = self.certificate_for(&proof, request);
        if let Err(error) = &given {
            let (principal, token) = (&proof.principal, proof.holder());
            tracing::warn!(target: "audit", %principal, token, %error, "no certificate given");
        }
        given.map_err(|error| error.at(self.name().as_str()))
    }

    fn certificate_for(&self, proof: &Proof, request: &str) -> Result<Value, Error> {
        let (access, now) = (self.authorise(proof)?, SystemTime::now());
        let config = &access.snapshot.config;
        let facts = proof.evidence.facts()?;
        let borrower = borrower(proof, &facts)?;
        let refused = |code, cause: &str| Err(Error::new(code, OP, &proof.principal, cause));
        if borrower.user.user_name().is_none() || *borrower.user.site() != access.snapshot.site {
            return refused(Code::NotAllowed, "certificates are for the users of this site");
        }
        if matches!(&proof.evidence, Evidence::Token(shown) if shown.names_addresses()) {
            return refused(
                Code::NotAllowed,
                "the token is for some addresses alone, and a certificate is good from any",
            );
        }
        if config.borrowed_life().is_zero() {
            return refused(Code::NotAllowed, "this PoP gives none (`borrowed_hours` is 0)");
        }
        if access.snapshot.trust.is_revoked(borrower.user.site(), &serial_bytes(&borrower.parent)) {
            let cause = format!("serial {}, which stands for the evidence, was taken back", borrower.parent);
            return refused(Code::CertificateRevoked, &cause);
        }
        let left = |end: SystemTime| end.duration_since(now).unwrap_or_default();
        let life = facts.ends.map_or(config.borrowed_life(), left).min(config.borrowed_life());
        if life < Duration::from_secs(1) {
            return refused(Code::TokenExpired, "it ends just now");
        }
        self.logins.enter(&borrower.user, Instant::now())?;
        let (issued, reply) = issue(self.home(), &borrower, request, life, now)?;
        let Borrower { user, scope, parent, kind } = &borrower;
        let (scope, serial) = (scope.as_ref().map(ToString::to_string), &issued.serial);
        let token = facts.holder;
        tracing::info!(target: "audit", principal = %user, serial, parent, kind, token, scope, life_s = life.as_secs(), "certificate given");
        Ok(reply)
    }
}

fn borrower(proof: &Proof, facts: &EvidenceFacts) -> Result<Borrower, Error> {
    if proof.transfer().is_some() || proof.mount().is_some() {
        let cause = "the credential of a transfer or a mount gets no other";
        return Err(Error::new(Code::OutOfScope, OP, &proof.principal, cause));
    }
    if !facts.gets_certificate {
        let cause = format!("{} gets no certificate", facts.kind);
        return Err(Error::new(Code::NotAllowed, OP, &proof.principal, cause));
    }
    Ok(Borrower {
        user: proof.principal.clone(),
        scope: proof.scope.as_deref().cloned(),
        parent: parse_serial(&facts.number)?,
        kind: facts.kind,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::ShownToken;
    use renkei_config::Config;
    use renkei_core::wire::s3_key::{AboutS3Keys, S3KeysReply};
    use renkei_net::identity::account::Account;
    use renkei_net::identity::certificate::{Facts, parse_chain};
    use renkei_net::identity::credential::KeyRequest;
    use renkei_net::identity::token::caveat::before;
    use std::path::Path;
    use std::sync::Arc;

    const HOUR: Duration = Duration::from_secs(3600);

    fn pop(dir: &Path) -> Arc<crate::Site> {
        let (home, data) = crate::snapshot::tests::site(dir);
        std::fs::create_dir_all(data.join("run7")).unwrap();
        crate::Site::open(home.clone(), Config::load(&home).unwrap()).unwrap()
    }

    fn macaroon(site: &crate::Site, caveats: &[&str], life: Duration) -> Evidence {
        let own = site.authenticate(Evidence::Uid(Account::own().unwrap().uid)).unwrap();
        let caveats: Vec<String> = caveats.iter().map(|caveat| (*caveat).to_owned()).collect();
        let token = site.context().issue_token(&own, &caveats, life).unwrap();
        Evidence::Token(ShownToken::new(&token, [127, 0, 0, 1].into()))
    }

    fn lend(site: &crate::Site, evidence: Evidence) -> Result<Evidence, Error> {
        let request = KeyRequest::generate().unwrap().request;
        let reply = site.context().lend_certificate(evidence, &request)?;
        Ok(Evidence::Chain(parse_chain(reply["certificate"].as_str().unwrap()).unwrap().into()))
    }

    #[test]
    fn a_token_gets_a_certificate_with_its_scope_and_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let site = pop(dir.path());
        let given = lend(&site, macaroon(&site, &["path:/data/run7", "activity:LIST"], HOUR)).unwrap();
        let facts = Facts::read(&given.chain()[0]).unwrap();
        assert!(facts.not_after <= SystemTime::now() + HOUR);
        let proof = site.authenticate(given.clone()).unwrap();
        assert_eq!(proof.scope.as_ref().unwrap().to_string(), "list kek:/data/run7");
        // It gets no more by asking again, and neither later.
        let again = lend(&site, given).unwrap();
        let later = Facts::read(&again.chain()[0]).unwrap();
        assert!(
            later.not_after <= facts.not_after && later.scope == facts.scope && later.parent == facts.parent
        );
    }

    #[test]
    fn a_token_for_some_addresses_gets_none() {
        let dir = tempfile::tempdir().unwrap();
        let site = pop(dir.path());
        let bound = macaroon(&site, &["path:/data/run7", "ip:127.0.0.0/8"], HOUR);
        assert_eq!(lend(&site, bound).map(drop).unwrap_err().code, Code::NotAllowed);
    }

    #[test]
    fn what_is_made_with_it_ends_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let site = pop(dir.path());
        let own = Evidence::Uid(Account::own().unwrap().uid);
        assert_eq!(own.facts().unwrap().bound, None);
        let given = lend(&site, own).unwrap();
        let facts = Facts::read(&given.chain()[0]).unwrap();
        let proof = site.authenticate(given).unwrap();
        assert_eq!(proof.origin().unwrap(), facts.serial);
        let token = site.context().issue_token(&proof, &[], 100 * HOUR).unwrap();
        let token = Evidence::Token(ShownToken::new(&token, [127, 0, 0, 1].into()));
        assert_eq!(token.facts().unwrap().ends, Some(facts.not_after));
        let wanted = AboutS3Keys::Create { caveats: Vec::new(), seconds: None };
        site.context().about_s3_keys(&proof, wanted).unwrap();
        let S3KeysReply::Keys(keys) = site.context().about_s3_keys(&proof, AboutS3Keys::List).unwrap() else {
            unreachable!("keys were asked for")
        };
        assert_eq!(keys[0].caveats, [before(facts.not_after)]);
    }

    #[test]
    fn a_delegation_by_it_ends_some_hours_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let site = pop(dir.path());
        let given = lend(&site, macaroon(&site, &["path:/data/run7"], HOUR)).unwrap();
        let proof = site.authenticate(given).unwrap();
        let wanted = proof.scope.as_deref().cloned().unwrap();
        let wanted = renkei_core::identity::Scope::new([7; 16], wanted.permits().to_vec()).unwrap();
        let made = site.context().delegate(&proof, &[wanted]).unwrap().remove(0);
        let end = made.not_after.duration_since(SystemTime::now()).unwrap();
        assert!(end <= 13 * HOUR && end > 12 * HOUR, "{end:?}");
    }
}
