//! Delegated credentials of transfers whose user is offline: scoped, limited in time, used by the PoP.
//!
//! The site's own authority names the user in it by another kind of name than in the user's own certificate, so that
//! a program that does not know scopes finds no valid name; the scope is in an extension beside it. The PoP makes one
//! key per transfer and keeps it. Each site authorises its use by its own map: a user who is not mapped any more
//! gains nothing by an old delegation.
//!
//! It carries the serial of the certificate by which the user requested it, its parent, and is void once the parent
//! is revoked: so the revocation list stays short, however many transfers a user has queued.
//!
//! Guarantees: every certificate is recorded before it is used; `renkei revoke` of it, of its parent or of the user
//! revokes it. Non-goals: delegation by users themselves, chains of delegation.

use super::authority::issued;
use super::authority::{Authority, Issued};
use super::certificate::parse_chain;
use super::credential::{Credential, generate_key};
use super::pki::extension::bad_scope;
use super::trust::Trust;
use super::verify::verify_holder;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::identity::{Principal, Scope};
use renkei_core::wire::{decode, encode};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

/// Version of the stored form.
const VERSION: u8 = 1;

/// A delegated credential.
#[derive(Clone, Debug)]
pub struct Delegation {
    /// The credential that the PoP presents to other sites.
    pub credential: Credential,
    /// Lower-case hexadecimal.
    pub serial: String,
    /// The user that it names.
    pub principal: Principal,
    /// The scope to which it is restricted.
    pub scope: Scope,
    /// The end of its validity.
    pub not_after: SystemTime,
}

/// The stored form: secret.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u8,
    key: Vec<u8>,
    chain: Vec<Vec<u8>>,
}

/// The user who delegates, of the authority's site, authenticated by one of the user's own certificates.
#[derive(Clone, Debug)]
pub struct Delegator {
    /// The user.
    pub user: Principal,
    /// Serial of the certificate that authenticated the user.
    pub serial: String,
}

/// Issues a credential for each scope, valid for `life`; all are recorded when this returns.
pub fn issue(
    home: &Home,
    authority: &Authority,
    by: &Delegator,
    scopes: &[Scope],
    now: SystemTime,
    life: Duration,
) -> Result<Vec<Delegation>, Error> {
    let made = scopes.iter().map(|scope| make(authority, by, scope, now, life));
    let made = made.collect::<Result<Vec<_>, Error>>()?;
    issued::note_delegated(home, &made.iter().map(|(issued, _)| issued).collect::<Vec<_>>(), &by.serial)?;
    Ok(made.into_iter().map(|(_, delegation)| delegation).collect())
}

fn make(
    authority: &Authority,
    by: &Delegator,
    scope: &Scope,
    now: SystemTime,
    life: Duration,
) -> Result<(Issued, Delegation), Error> {
    let key = generate_key()?;
    let issued = authority.issue_delegated(&by.user, scope, &by.serial, &key, now, life)?;
    let credential = Credential {
        chain: parse_chain(&issued.pem)?,
        key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
    };
    let delegation = Delegation {
        credential,
        serial: issued.serial.clone(),
        principal: by.user.clone(),
        scope: scope.clone(),
        not_after: issued.not_after,
    };
    Ok((issued, delegation))
}

impl Delegation {
    /// Whether it verifies under `trust`; to be checked before it is used.
    ///
    /// # Errors
    /// `DelegationExpired`, `CertificateRevoked`, and the other errors of [`verify_holder`].
    pub fn check(&self, trust: &Trust, now: SystemTime) -> Result<(), Error> {
        verify_holder(&self.credential.chain, trust, now).map(drop)
    }

    /// A compact serialised form, with the key: to be stored where only the PoP can read it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let chain = self.credential.chain.iter().map(|certificate| certificate.to_vec()).collect();
        encode(&Stored { version: VERSION, key: self.credential.key.secret_der().to_vec(), chain })
    }

    /// Parses the form of [`Delegation::to_bytes`].
    ///
    /// # Errors
    /// `BadCertificate` and `BadScope` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let bad = |cause: String| Error::new(Code::BadCertificate, "read credential", "delegation", cause);
        let stored: Stored = decode("delegation", bytes).map_err(|error| bad(error.cause))?;
        if stored.version != VERSION {
            return Err(bad(format!("version {}, this side knows {VERSION}", stored.version)));
        }
        let key = PrivateKeyDer::try_from(stored.key).map_err(|cause| bad(cause.into()))?;
        let chain = stored.chain.into_iter().map(CertificateDer::from).collect();
        let credential = Credential::paired(chain, key).map_err(|error| bad(error.cause))?;
        let facts = credential.facts()?;
        let (principal, scope) = facts.holder()?;
        let scope = scope.cloned().ok_or_else(|| bad_scope("it has none"))?;
        let (serial, not_after) = (facts.serial.clone(), facts.not_after);
        Ok(Delegation { credential, serial, principal, scope, not_after })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::certificate::Facts;
    use crate::identity::pki::extension::{SCOPE_OID, octet_string};
    use crate::identity::tests::{card, login, now, pop, shake, site};
    use crate::identity::trust::card::SiteCard;
    use crate::identity::verify::verify_peer;
    use crate::identity::{tls, verify};
    use rcgen::CustomExtension;
    use rcgen::{CertificateParams, SanType};
    use renkei_core::identity::{MAX_SCOPE_BYTES, Permit, Rights};
    use renkei_core::path::Place;
    use rustls::{ClientConnection, HandshakeKind, ServerConnection};

    const DAY: Duration = Duration::from_secs(86_400);

    fn scope(paths: usize) -> Scope {
        let permit = |index: usize| Permit {
            site: site("titech"),
            place: Place::parse(format!("/data/{index:0>90}").as_bytes()).unwrap().unwrap(),
            rights: Rights::CREATE | Rights::MODIFY,
        };
        Scope::new([9; 16], (0..paths).map(permit).collect()).unwrap()
    }

    fn alice() -> Delegator {
        Delegator { user: Principal::parse("alice@kek").unwrap(), serial: "0a".into() }
    }

    struct Here {
        _dir: tempfile::TempDir,
        home: Home,
        authority: Authority,
    }

    fn here() -> Here {
        let dir = tempfile::tempdir().unwrap();
        let (home, authority) = pop(dir.path(), "kek");
        Here { _dir: dir, home, authority }
    }

    impl Here {
        fn delegate(&self, scope: &Scope) -> Delegation {
            let made =
                issue(&self.home, &self.authority, &alice(), std::slice::from_ref(scope), now(), 7 * DAY);
            made.unwrap().remove(0)
        }

        fn trust(&self) -> Trust {
            Trust::load(&self.home).unwrap()
        }

        /// The result of verifying a chain at the site that issued it.
        fn judge(&self, delegation: &Delegation, at: SystemTime) -> Result<(), Code> {
            delegation.check(&self.trust(), at).map_err(|error| error.code)
        }
    }

    #[test]
    fn a_delegation_contains_its_user_and_its_scope() {
        let here = here();
        let made = here.delegate(&scope(3));
        let (principal, found) = verify_holder(&made.credential.chain, &here.trust(), now()).unwrap();
        assert_eq!((principal, found), (alice().user, Some(scope(3))));
        assert_eq!(made.not_after, now() + 7 * DAY);
        let refused = verify_peer(&made.credential.chain, &here.trust(), now()).unwrap_err();
        assert_eq!(refused.code, Code::OutOfScope);
        // A program that does not know scopes finds no valid name.
        let facts = made.credential.facts().unwrap();
        assert_eq!(facts.names, ["renkei://kek/delegated/alice"]);
        assert!(Principal::parse_uri(&facts.names[0]).is_err());
        assert_eq!(made.credential.principal().unwrap_err().code, Code::BadCertificate);
        assert_eq!(made.credential.holder().unwrap(), alice().user);
    }

    #[test]
    fn the_stored_form_is_complete_or_refused() {
        let made = here().delegate(&scope(1));
        let bytes = made.to_bytes();
        assert!(bytes.len() < 1200, "{} bytes", bytes.len());
        let again = Delegation::from_bytes(&bytes).unwrap();
        assert_eq!(
            (&again.serial, &again.scope, again.not_after),
            (&made.serial, &made.scope, made.not_after)
        );
        assert_eq!((&again.principal, &again.credential.chain), (&made.principal, &made.credential.chain));
        assert!(!format!("{again:?}").contains(&format!("{:?}", made.credential.key.secret_der())));
        for cut in [0, 1, 50, bytes.len() - 1] {
            assert_eq!(Delegation::from_bytes(&bytes[..cut]).unwrap_err().code, Code::BadCertificate);
        }
        let Here { authority, _dir, .. } = here();
        let (pem, key) = login(&authority, "alice");
        let plain = Credential::parse(&pem, &key, _dir.path()).unwrap();
        let chain = plain.chain.iter().map(|certificate| certificate.to_vec()).collect();
        let plain = encode(&Stored { version: VERSION, key: plain.key.secret_der().to_vec(), chain });
        assert_eq!(Delegation::from_bytes(&plain).unwrap_err().code, Code::BadScope);
    }

    #[test]
    fn only_users_of_the_site_delegate_and_for_no_longer_than_allowed() {
        let Here { home, authority, _dir } = here();
        let code = |who: &str, life| {
            let by = Delegator { user: Principal::parse(who).unwrap(), ..alice() };
            issue(&home, &authority, &by, &[scope(1)], now(), life).unwrap_err().code
        };
        assert_eq!((code("bob@titech", DAY), code("kek", DAY)), (Code::NotAllowed, Code::NotAllowed));
        assert_eq!(
            (code("alice@kek", 91 * DAY), code("alice@kek", Duration::ZERO)),
            (Code::UsageInvalid, Code::UsageInvalid)
        );
        assert!(issued::find(&home, "alice@kek", now()).unwrap().is_empty());
    }

    #[test]
    fn validity_dates_are_checked() {
        let here = here();
        let made = here.delegate(&scope(1));
        assert_eq!(here.judge(&made, now() + 6 * DAY), Ok(()));
        assert_eq!(here.judge(&made, now() + 8 * DAY), Err(Code::DelegationExpired));
        assert_eq!(here.judge(&made, now() - Duration::from_secs(290)), Ok(()));
        assert_eq!(here.judge(&made, now() - Duration::from_secs(600)), Err(Code::CertificateNotYetValid));
    }

    #[test]
    fn a_delegation_is_revoked_with_the_user_or_the_users_certificate() {
        for what in ["alice@kek", "0a", "own"] {
            let here = here();
            let (made, others) = (here.delegate(&scope(1)), Delegator { serial: "0b".into(), ..alice() });
            let other =
                issue(&here.home, &here.authority, &others, &[scope(2)], now(), DAY).unwrap().remove(0);
            let serials = match what {
                "alice@kek" => issued::find(&here.home, what, now()).unwrap(),
                "own" => vec![made.serial.clone()],
                serial => vec![serial.to_owned()],
            };
            here.authority.revoke(&here.home, &serials, now()).unwrap();
            assert_eq!(here.judge(&made, now()), Err(Code::CertificateRevoked), "{what}");
            assert_eq!(here.judge(&other, now()).is_ok(), what != "alice@kek");
        }
    }

    /// An authority that signs any request.
    struct Careless(SiteCard, rcgen::Issuer<'static, rcgen::KeyPair>);

    impl Careless {
        fn new(name: &str) -> Self {
            let (mut params, key) = (CertificateParams::default(), generate_key().unwrap());
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
            params.not_after = (now() + 99 * DAY).into();
            let authority = params.self_signed(&key).unwrap().der().clone();
            let model = Authority::create(&site(name), now()).unwrap();
            Careless(SiteCard { authority, ..card(&model) }, rcgen::Issuer::new(params, key))
        }

        /// The result of verifying a certificate with this name and these scopes, under this trusted authority.
        fn judge(&self, name: &str, scopes: &[Vec<u8>]) -> Result<Option<Scope>, Code> {
            let dir = tempfile::tempdir().unwrap();
            let mut trust = Trust::empty(&Home::at(dir.path()));
            trust.add(self.0.clone()).unwrap();
            let mut params = CertificateParams::default();
            (params.not_before, params.not_after) = ((now() - DAY).into(), (now() + DAY).into());
            params.subject_alt_names = vec![SanType::URI(name.try_into().unwrap())];
            let extension =
                |content: &Vec<u8>| CustomExtension::from_oid_content(&SCOPE_OID, content.clone());
            params.custom_extensions = scopes.iter().map(extension).collect();
            let leaf = params.signed_by(&generate_key().unwrap(), &self.1).unwrap().der().clone();
            let holder = verify_holder(&[leaf], &trust, now());
            holder.map(|(_, scope)| scope).map_err(|error| error.code)
        }
    }

    #[test]
    fn a_missing_or_malformed_scope_invalidates_the_certificate() {
        let kek = Careless::new("kek");
        let (delegated, plain) = ("renkei://kek/delegated/alice", "renkei://kek/user/alice");
        let content = |scope: Vec<u8>| [vec![1, 0x0a], scope].concat();
        let good = octet_string(&content(scope(2).encode()));
        assert_eq!(kek.judge(delegated, std::slice::from_ref(&good)), Ok(Some(scope(2))));
        assert_eq!(kek.judge(plain, &[]), Ok(None));
        let malformed = [
            Vec::new(),
            content(scope(2).encode()),
            good[..good.len() - 1].to_vec(),
            [good.clone(), vec![0]].concat(),
            octet_string(b""),
            octet_string(&[1; 40]),
            octet_string(&scope(2).encode()),
            octet_string(&[vec![0], scope(2).encode()].concat()),
            octet_string(&[vec![21], vec![1; 21], scope(2).encode()].concat()),
            octet_string(&content(vec![1; MAX_SCOPE_BYTES + 1])),
        ];
        for scopes in
            malformed.iter().map(std::slice::from_ref).chain([&[][..], &[good.clone(), good.clone()]])
        {
            assert_eq!(kek.judge(delegated, scopes), Err(Code::BadScope), "{scopes:?}");
        }
        assert_eq!(kek.judge(plain, std::slice::from_ref(&good)), Err(Code::BadScope));
        assert_eq!(kek.judge("renkei://kek/host", std::slice::from_ref(&good)), Err(Code::BadScope));
        let foreign = Careless::new("titech").judge(delegated, &[good]);
        assert_eq!(foreign, Err(Code::ForeignName));
    }

    /// The largest scope, with certificate and ticket, fits into the first message that a PoP accepts.
    #[test]
    fn the_largest_scope_fits_a_full_and_a_resumed_handshake() {
        let here = here();
        let large = scope(MAX_SCOPE_BYTES / scope_bytes_of_a_path());
        assert!(large.encode().len() > MAX_SCOPE_BYTES - 200);
        let made = here.delegate(&large);
        let host = Credential::host(&here.home, now()).unwrap();
        let server_config = tls::server_config(&host).unwrap();
        let client_config = tls::client_config(&made.credential).unwrap();
        for round in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let name = tls::server_name(&site("kek"));
            let mut first = Vec::new();
            let mut client = ClientConnection::new(client_config.clone(), name.clone()).unwrap();
            while client.wants_write() {
                client.write_tls(&mut first).unwrap();
            }
            assert!(first.len() < 16 << 10, "{} bytes", first.len());
            let mut server = ServerConnection::new(server_config.clone()).unwrap();
            let mut sent = &first[..];
            while !sent.is_empty() {
                server.read_tls(&mut sent).unwrap();
                server.process_new_packets().unwrap();
            }
            shake(&mut client, &mut server).unwrap();
            assert_eq!(client.handshake_kind(), Some(round));
            let shown = server.peer_certificates().unwrap();
            let (_, found) = verify::verify_holder(shown, &here.trust(), now()).unwrap();
            assert_eq!(found, Some(large.clone()));
            assert_eq!(Facts::read(&shown[0]).unwrap().serial, made.serial);
        }
    }

    fn scope_bytes_of_a_path() -> usize {
        scope(2).encode().len() - scope(1).encode().len() + 1
    }
}
