//! Certificates for evidence of another kind: a user who has a token, a proxy or a ticket gets a certificate of some
//! hours from the site's authority, with which all of renkei works.
//!
//! The PoP's half issues ([`issue`]); it is reached over HTTPS, where such evidence is shown. The client's half asks
//! ([`exchange`]) with what was found on its machine ([`discovery`]) or got from a provider ([`device`]).
//!
//! Guarantees: a certificate has no more rights than the evidence, and ends with it; it is recorded before it is handed
//! out, and revoked with the evidence's number, with its user, or by its own serial. Design: docs/design/0044.

pub mod device;
pub mod discovery;
pub mod exchange;
pub mod limit;

use super::authority::issued;
use super::authority::{Authority, Issued};
use super::login::reply_with;
pub use super::pki::extension::Borrower;
use renkei_config::home::Home;
use renkei_core::error::Error;
use renkei_core::units::hex;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::time::{Duration, SystemTime};

/// The path of the endpoint: storages have no such names.
pub const PATH: &str = "/.well-known/renkei/certificate";

/// Issues a certificate, and gives it with the reply for its holder: that of a login.
///
/// # Errors
/// `NotAllowed`, `BadCertificate` for the request, and those of the files.
pub fn issue(
    home: &Home,
    borrower: &Borrower,
    request: &str,
    life: Duration,
    now: SystemTime,
) -> Result<(Issued, Value), Error> {
    let issued = Authority::load(home)?.issue_borrowed(borrower, request, now, life)?;
    issued::note_delegated(home, &[&issued], &borrower.parent)?;
    let reply = reply_with(home, issued.pem.clone())?;
    Ok((issued, reply))
}

/// A number for evidence that has no serial of its own: 16 bytes of its digest, as a positive number without zeros before.
pub fn number_of(evidence: &[u8]) -> String {
    let digest = Sha256::digest(evidence);
    let mut number = digest[..16].to_vec();
    number[0] = (number[0] & 0x7f) | 0x40;
    hex(&number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::certificate::{Facts, parse_chain};
    use crate::identity::credential::KeyRequest;
    use crate::identity::tests::{now, pop, site};
    use crate::identity::trust::Trust;
    use crate::identity::verify::verify_holder;
    use renkei_core::error::Code;
    use renkei_core::identity::{Permit, Principal, Rights, Scope};
    use renkei_core::path::Place;

    const HOUR: Duration = Duration::from_secs(3600);

    fn borrower(scope: Option<Scope>) -> Borrower {
        let user = Principal::parse("alice@kek").unwrap();
        Borrower { user, scope, parent: number_of(b"token"), kind: "token" }
    }

    fn scope() -> Scope {
        let place = Place::parse(b"/data/run7").unwrap().unwrap();
        Scope::of_rights(vec![Permit { site: site("kek"), place, rights: Rights::READ }]).unwrap()
    }

    #[test]
    fn a_certificate_has_the_rights_and_the_end_of_the_evidence() {
        let dir = tempfile::tempdir().unwrap();
        let (home, _) = pop(dir.path(), "kek");
        let request = KeyRequest::generate().unwrap().request;
        for scope in [None, Some(scope())] {
            let made = issue(&home, &borrower(scope.clone()), &request, HOUR, now()).unwrap().0;
            let chain = parse_chain(&made.pem).unwrap();
            let judge = |at| verify_holder(&chain, &Trust::load(&home).unwrap(), at);
            assert_eq!(judge(now()).unwrap(), (borrower(None).user, scope));
            assert_eq!(judge(now() + 2 * HOUR).unwrap_err().code, Code::CertificateExpired);
            let facts = Facts::read(&chain[0]).unwrap();
            assert_eq!((facts.borrowed.as_deref(), facts.parent), (Some("token"), Some(number_of(b"token"))));
        }
    }

    #[test]
    fn it_is_revoked_with_the_evidence_and_with_its_user() {
        for what in ["alice@kek".to_owned(), number_of(b"token")] {
            for scope in [None, Some(scope())] {
                let dir = tempfile::tempdir().unwrap();
                let (home, authority) = pop(dir.path(), "kek");
                let request = KeyRequest::generate().unwrap().request;
                let made = issue(&home, &borrower(scope), &request, HOUR, now()).unwrap().0;
                let serials = issued::find(&home, &what, now()).unwrap();
                assert_eq!(serials, [number_of(b"token")]);
                authority.revoke(&home, &serials, now()).unwrap();
                let chain = parse_chain(&made.pem).unwrap();
                let judged = verify_holder(&chain, &Trust::load(&home).unwrap(), now());
                assert_eq!(judged.unwrap_err().code, Code::CertificateRevoked, "{what}");
            }
        }
    }

    #[test]
    fn numbers_are_positive_and_have_no_zeros_before() {
        for evidence in 0..=255 {
            assert!(matches!(number_of(&[evidence]).as_bytes()[0], b'4'..=b'7'), "{evidence}");
        }
    }

    #[test]
    fn only_users_of_the_site_get_one() {
        let dir = tempfile::tempdir().unwrap();
        let (home, _) = pop(dir.path(), "kek");
        let request = KeyRequest::generate().unwrap().request;
        for user in ["bob@titech", "kek"] {
            let of = Borrower { user: Principal::parse(user).unwrap(), ..borrower(None) };
            assert_eq!(
                issue(&home, &of, &request, HOUR, now()).unwrap_err().code,
                Code::NotAllowed,
                "{user}"
            );
        }
        let bad = issue(&home, &borrower(None), "no request", HOUR, now()).unwrap_err();
        assert_eq!(bad.code, Code::BadCertificate);
        assert_eq!(issued::find(&home, "alice@kek", now()).unwrap(), Vec::<String>::new());
    }
}
