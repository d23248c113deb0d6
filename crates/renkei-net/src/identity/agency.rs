//! The certificate of an agent: it names the storage that the agent serves, and the user for whom it was made.
//!
//! The name (`renkei://titech/agent/scratch`) is neither a PoP's nor a user's, so the holder cannot be mistaken for
//! one. An extension beside it has the user who requested it and the serial of the certificate that authenticated the
//! user, its parent: revoking the parent revokes the agent's certificate too, also a renewed one.
//!
//! Guarantees: an agent's name without the extension, or the extension beside another name, is invalid; every
//! certificate is recorded before it is handed out.

use super::authority::issued;
use super::authority::{Authority, Issued};
pub use super::pki::extension::Sponsor;
use renkei_config::home::Home;
use renkei_core::error::Error;
use std::time::{Duration, SystemTime};

/// Lifetime of an agent's certificate; a running agent renews it long before.
pub const AGENT_LIFE: Duration = Duration::from_secs(24 * 3600);

/// Issues the certificate of the agent of `storage`; `request` proves possession of the key.
///
/// # Errors
/// `NotAllowed` if the sponsor is no user of the authority's site.
pub fn issue(
    home: &Home,
    authority: &Authority,
    storage: &str,
    sponsor: &Sponsor,
    request: &str,
    now: SystemTime,
) -> Result<Issued, Error> {
    let issued = authority.issue_agent(storage, sponsor, request, now, AGENT_LIFE)?;
    issued::note_delegated(home, &[&issued], &sponsor.parent)?;
    Ok(issued)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::certificate::{Facts, parse_chain};
    use crate::identity::credential::KeyRequest;
    use crate::identity::pki::extension::{AGENT_OID, agent_extension, octet_string};
    use crate::identity::tests::{card, now, pop, site};
    use crate::identity::trust::Trust;
    use crate::identity::verify::{expect_site, verify_peer};
    use rcgen::CustomExtension;
    use rcgen::{CertificateParams, SanType};
    use renkei_core::error::Code;
    use renkei_core::identity::Principal;
    use rustls::pki_types::CertificateDer;

    const DAY: Duration = Duration::from_secs(86_400);

    fn sponsor() -> Sponsor {
        Sponsor { user: Principal::parse("alice@kek").unwrap(), parent: "0a".into() }
    }

    struct Here {
        home: Home,
        authority: Authority,
        _dir: tempfile::TempDir,
    }

    fn here() -> Here {
        let dir = tempfile::tempdir().unwrap();
        let (home, authority) = pop(dir.path(), "kek");
        Here { home, authority, _dir: dir }
    }

    impl Here {
        fn issue(&self, storage: &str) -> Vec<CertificateDer<'static>> {
            let request = KeyRequest::generate().unwrap().request;
            let issued = issue(&self.home, &self.authority, storage, &sponsor(), &request, now()).unwrap();
            parse_chain(&issued.pem).unwrap()
        }

        fn judge(&self, chain: &[CertificateDer<'_>]) -> Result<Principal, Code> {
            let trust = Trust::load(&self.home).unwrap();
            verify_peer(chain, &trust, now()).map_err(|error| error.code)
        }
    }

    #[test]
    fn an_agent_certificate_names_its_storage_and_is_no_pop() {
        let here = here();
        let chain = here.issue("scratch");
        let agent = here.judge(&chain).unwrap();
        assert_eq!(agent, Principal::agent(&site("kek"), "scratch").unwrap());
        assert_eq!(expect_site(&agent, &site("kek")).unwrap_err().code, Code::WrongSite);
        let facts = Facts::read(&chain[0]).unwrap();
        assert_eq!((facts.sponsor, facts.parent.as_deref()), (Some(sponsor().user), Some("0a")));
        assert!(facts.not_after > now() + AGENT_LIFE / 2);
    }

    #[test]
    fn an_agent_certificate_is_revoked_with_its_user_or_the_users_certificate() {
        for what in ["alice@kek", "0a"] {
            let here = here();
            let chain = here.issue("scratch");
            let serials = match what {
                "alice@kek" => issued::find(&here.home, what, now()).unwrap(),
                serial => vec![serial.to_owned()],
            };
            assert_eq!(serials, ["0a"]);
            here.authority.revoke(&here.home, &serials, now()).unwrap();
            assert_eq!(here.judge(&chain), Err(Code::CertificateRevoked), "{what}");
        }
    }

    #[test]
    fn only_users_of_the_site_have_agents_and_only_of_storages() {
        let here = here();
        let request = KeyRequest::generate().unwrap().request;
        let code = |storage: &str, user: &str| {
            let sponsor = Sponsor { user: Principal::parse(user).unwrap(), ..sponsor() };
            issue(&here.home, &here.authority, storage, &sponsor, &request, now()).unwrap_err().code
        };
        assert_eq!(code("scratch", "bob@titech"), Code::NotAllowed);
        assert_eq!(code("scratch", "kek"), Code::NotAllowed);
        assert_eq!(code("../x", "alice@kek"), Code::UsageInvalid);
    }

    /// The result of verifying a certificate with this name and these extensions, under a trusted authority.
    fn judge_made(name: &str, extensions: Vec<CustomExtension>) -> Result<Principal, Code> {
        let dir = tempfile::tempdir().unwrap();
        let model = Authority::create(&site("kek"), now()).unwrap();
        let (mut params, key) = (CertificateParams::default(), rcgen::KeyPair::generate().unwrap());
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
        params.not_after = (now() + 99 * DAY).into();
        let authority = params.self_signed(&key).unwrap().der().clone();
        let mut trust = Trust::empty(&Home::at(dir.path()));
        trust.add(crate::identity::trust::card::SiteCard { authority, ..card(&model) }).unwrap();
        let issuer = rcgen::Issuer::new(params, key);
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = ((now() - DAY).into(), (now() + DAY).into());
        params.subject_alt_names = vec![SanType::URI(name.try_into().unwrap())];
        params.custom_extensions = extensions;
        let leaf = params.signed_by(&rcgen::KeyPair::generate().unwrap(), &issuer).unwrap().der().clone();
        verify_peer(&[leaf], &trust, now()).map_err(|error| error.code)
    }

    #[test]
    fn name_and_extension_belong_together() {
        let (agent, good) = ("renkei://kek/agent/scratch", || agent_extension(&sponsor()));
        assert!(judge_made(agent, vec![good()]).is_ok());
        let raw = |content: &[u8]| CustomExtension::from_oid_content(&AGENT_OID, octet_string(content));
        let bad = [
            (agent, vec![]),
            (agent, vec![good(), good()]),
            (agent, vec![raw(b"")]),
            (agent, vec![raw(b"\x00alice@kek")]),
            (agent, vec![raw(b"\x01\x0akek")]),
            (agent, vec![CustomExtension::from_oid_content(&AGENT_OID, b"x".to_vec())]),
            ("renkei://kek/host", vec![good()]),
            ("renkei://kek/user/alice", vec![good()]),
        ];
        for (name, extensions) in bad {
            assert_eq!(judge_made(name, extensions), Err(Code::BadCertificate), "{name}");
        }
    }
}
