//! Integration tests of several parts: complete chains against complete trust, and real handshakes. Also shared
//! helpers of the unit tests.
#![cfg(test)]

use super::authority::{Authority, Issued, renew_host};
use super::certificate::{parse_chain, to_pem};
use super::credential::{Credential, KeyRequest, generate_key};
pub(crate) use super::testing::{card, now, site};
use super::tls;
use super::trust::Trust;
use super::trust::card::SiteCard;
use super::verify::{expect_site, verify_peer};
use proptest::prelude::*;
use rcgen::{CertificateParams, SanType};
use renkei_config::Config;
use renkei_config::home::Home;
use renkei_core::error::{Code, Error};
use renkei_core::identity::Principal;
use renkei_core::path::SiteName;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConnection, HandshakeKind, ServerConnection};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

const HOUR: Duration = Duration::from_secs(3600);

/// A PoP's directory as `init` makes it, and its authority.
pub(crate) fn pop(dir: &Path, name: &str) -> (Home, Authority) {
    pop_at(dir, name, now())
}

/// The same, made at another time.
pub(crate) fn pop_at(dir: &Path, name: &str, now: SystemTime) -> (Home, Authority) {
    let home = Home::at(dir);
    let authority = Authority::create(&site(name), now).unwrap();
    authority.store(&home).unwrap();
    std::fs::write(home.config_file(), format!("site = '{name}'\nlisten = '127.0.0.1:7512'\n")).unwrap();
    let endpoints = Config::load(&home).unwrap().announced_endpoints();
    renew_host(&home, &authority, &endpoints, false, now).unwrap();
    (home, authority)
}

/// A user's certificate and key, PEM.
pub(crate) fn login(authority: &Authority, user: &str) -> (String, String) {
    let request = KeyRequest::generate().unwrap();
    (authority.issue_user(user, &request.request, 12, now()).unwrap().pem, request.key)
}

struct Federation {
    _dir: tempfile::TempDir,
    home: Home,
    kek: Authority,
    titech: Authority,
    trust: Trust,
}

/// A directory that trusts `kek` and `titech`.
fn federation() -> Federation {
    let dir = tempfile::tempdir().unwrap();
    let home = Home::at(dir.path());
    let kek = Authority::create(&site("kek"), now()).unwrap();
    let titech = Authority::create(&site("titech"), now()).unwrap();
    let mut trust = Trust::empty(&home);
    trust.add(card(&kek)).unwrap();
    trust.add(card(&titech)).unwrap();
    Federation { _dir: dir, home, kek, titech, trust }
}

fn user(authority: &Authority) -> Issued {
    let request = KeyRequest::generate().unwrap();
    authority.issue_user("alice", &request.request, 12, now()).unwrap()
}

fn judge(issued: &Issued, trust: &Trust, at: SystemTime) -> Result<Principal, Error> {
    verify_peer(&parse_chain(&issued.pem).unwrap(), trust, at)
}

#[test]
fn valid_users_and_hosts_are_accepted() {
    let f = federation();
    assert_eq!(judge(&user(&f.kek), &f.trust, now()).unwrap().to_string(), "alice@kek");
    let host = f.titech.issue_host(&generate_key().unwrap(), &["127.0.0.1".into()], now()).unwrap();
    let host = judge(&host, &f.trust, now()).unwrap();
    assert_eq!(host, Principal::Host(site("titech")));
    expect_site(&host, &site("titech")).unwrap();
    assert_eq!(expect_site(&host, &site("kek")).unwrap_err().code, Code::WrongSite);
}

#[test]
fn a_user_cannot_pass_for_a_pop() {
    let alice = Principal::parse("alice@kek").unwrap();
    assert_eq!(expect_site(&alice, &site("kek")).unwrap_err().code, Code::WrongSite);
}

#[test]
fn validity_dates_are_checked_and_reported() {
    let f = federation();
    let issued = user(&f.kek);
    let expired = judge(&issued, &f.trust, now() + 13 * HOUR).unwrap_err();
    assert_eq!(expired.code, Code::CertificateExpired);
    assert!(expired.cause.contains("expired on 2026-11-22 08:26:00 UTC"), "{expired}");
    let early = judge(&issued, &f.trust, now() - HOUR).unwrap_err();
    assert_eq!(early.code, Code::CertificateNotYetValid);
    assert!(early.cause.contains("valid from 2026-11-21 20:21:00 UTC"), "{early}");
    judge(&issued, &f.trust, now() - Duration::from_secs(290)).unwrap();
}

#[test]
fn certificates_of_an_expired_authority_are_refused() {
    let f = federation();
    let late = now() + Duration::from_secs(10 * 365 * 86400) + HOUR;
    let request = KeyRequest::generate().unwrap();
    let issued = f.kek.issue_user("alice", &request.request, 1, late).unwrap();
    let error = judge(&issued, &f.trust, late).unwrap_err();
    assert_eq!(error.code, Code::CertificateExpired);
    assert!(error.cause.contains("authority of kek"), "{error}");
}

#[test]
fn unknown_authorities_are_refused() {
    let f = federation();
    let osaka = Authority::create(&site("osaka"), now()).unwrap();
    assert_eq!(judge(&user(&osaka), &f.trust, now()).unwrap_err().code, Code::UnknownAuthority);
    let impostor = Authority::create(&site("kek"), now()).unwrap();
    assert_eq!(judge(&user(&impostor), &f.trust, now()).unwrap_err().code, Code::UnknownAuthority);
    assert_eq!(judge(&user(&f.kek), &Trust::empty(&f.home), now()).unwrap_err().code, Code::UnknownAuthority);
}

/// A certificate of `signer` that names a user of `claimed`, as a dishonest site would make it.
fn foreign(signer: &SiteName, claimed: &str) -> (Trust, Issued, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut trust = Trust::empty(&Home::at(dir.path()));
    // An authority for names of `claimed`, whose card names `signer`.
    let dishonest = Authority::create(&site(claimed), now()).unwrap();
    trust.add(SiteCard { site: signer.clone(), ..card(&dishonest) }).unwrap();
    (trust, user(&dishonest), dir)
}

#[test]
fn a_site_cannot_vouch_for_names_of_another() {
    let (mut trust, issued, _dir) = foreign(&site("titech"), "kek");
    assert_eq!(judge(&issued, &trust, now()).unwrap_err().code, Code::ForeignName);
    trust.add(card(&Authority::create(&site("kek"), now()).unwrap())).unwrap();
    let error = judge(&issued, &trust, now()).unwrap_err();
    assert_eq!(error.code, Code::ForeignName);
    assert!(error.cause.contains("titech"), "{error}");
}

#[test]
fn revoked_certificates_are_refused_and_others_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let (home, authority) = pop(dir.path(), "kek");
    let (first, second) = (user(&authority), user(&authority));
    authority.revoke(&home, std::slice::from_ref(&first.serial), now()).unwrap();
    let trust = Trust::load(&home).unwrap();
    let error = judge(&first, &trust, now()).unwrap_err();
    assert_eq!(error.code, Code::CertificateRevoked);
    assert!(error.cause.contains(&first.serial), "{error}");
    judge(&second, &trust, now()).unwrap();
    authority.revoke(&home, std::slice::from_ref(&second.serial), now()).unwrap();
    let mut elsewhere = federation().trust;
    elsewhere.remove(&site("kek")).unwrap();
    elsewhere.add(trust.export(&site("kek")).unwrap()).unwrap();
    judge(&second, &elsewhere, now()).unwrap();
    let newest = Trust::load(&home).unwrap().export(&site("kek")).unwrap().revocation_list.unwrap();
    assert!(elsewhere.merge_crl(&site("kek"), &newest).unwrap());
    assert_eq!(judge(&second, &elsewhere, now()).unwrap_err().code, Code::CertificateRevoked);
    let late = judge(&first, &elsewhere, now() + HOUR).unwrap_err();
    assert_eq!(late.code, Code::CertificateRevoked, "a list counts after its next update is due");
}

fn self_signed(names: &[&str]) -> CertificateDer<'static> {
    let mut params = CertificateParams::default();
    params.not_before = (now() - HOUR).into();
    params.not_after = (now() + HOUR).into();
    params.subject_alt_names = names.iter().map(|name| SanType::URI((*name).try_into().unwrap())).collect();
    params.self_signed(&generate_key().unwrap()).unwrap().der().clone()
}

#[test]
fn malformed_chains_are_refused() {
    let f = federation();
    let code = |chain: &[CertificateDer<'_>]| verify_peer(chain, &f.trust, now()).unwrap_err().code;
    assert_eq!(code(&[]), Code::BadCertificate);
    assert_eq!(code(&[CertificateDer::from(&b"garbage"[..])]), Code::BadCertificate);
    assert_eq!(code(&[self_signed(&[])]), Code::BadCertificate);
    assert_eq!(code(&[self_signed(&["https://kek/host"])]), Code::BadCertificate);
    assert_eq!(code(&[self_signed(&["renkei://kek/user/a b"])]), Code::BadCertificate);
    assert_eq!(code(&[self_signed(&["renkei://kek/host", "renkei://titech/host"])]), Code::BadCertificate);
    assert_eq!(code(&[self_signed(&["renkei://kek/user/alice"])]), Code::UnknownAuthority);
    let good = parse_chain(&user(&f.kek).pem).unwrap().remove(0);
    assert_eq!(code(&vec![good.clone(); 5]), Code::BadCertificate);
    let mut flipped = good.to_vec();
    *flipped.last_mut().unwrap() ^= 1;
    assert_eq!(code(&[CertificateDer::from(flipped)]), Code::UnknownAuthority);
    assert_eq!(code(&[f.kek.certificate().clone()]), Code::BadCertificate);
}

#[test]
fn a_user_cannot_act_as_an_authority() {
    let f = federation();
    let (alice_pem, alice_key) = login(&f.kek, "alice");
    let alice = parse_chain(&alice_pem).unwrap().remove(0);
    let key = rcgen::KeyPair::from_pem(&alice_key).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_der(&alice, key).unwrap();
    let mut params = CertificateParams::default();
    params.not_before = (now() - HOUR).into();
    params.not_after = (now() + HOUR).into();
    params.subject_alt_names = vec![SanType::URI("renkei://kek/user/bob".try_into().unwrap())];
    let bob = params.signed_by(&generate_key().unwrap(), &issuer).unwrap().der().clone();
    assert!(verify_peer(&[bob, alice], &f.trust, now()).is_err());
}

/// `bytes` with one bit flipped, truncated, or with bytes inserted.
pub(super) fn damaged(bytes: &[u8], at: usize, how: u8) -> Vec<u8> {
    let at = at % bytes.len();
    match how {
        0..8 => bytes.iter().enumerate().map(|(i, b)| if i == at { b ^ (1 << how) } else { *b }).collect(),
        8 => bytes[..at].to_vec(),
        _ => [&bytes[..at], &[how; 9], &bytes[at..]].concat(),
    }
}

proptest! {
    #[test]
    fn damaged_certificates_never_pass(at in any::<usize>(), how in 0_u8..12) {
        static F: LazyLock<(Federation, Vec<u8>)> = LazyLock::new(|| {
            let f = federation();
            let leaf = parse_chain(&user(&f.kek).pem).unwrap().remove(0).to_vec();
            (f, leaf)
        });
        let chain = [CertificateDer::from(damaged(&F.1, at, how))];
        prop_assert!(verify_peer(&chain, &F.0.trust, now()).is_err());
    }

    #[test]
    fn damaged_lists_are_ignored(at in any::<usize>(), how in 0_u8..12) {
        static F: LazyLock<(Federation, Vec<u8>)> = LazyLock::new(|| {
            let f = federation();
            let list = f.kek.sign_list(&[], 3, now()).unwrap();
            (f, list)
        });
        let mut trust = Trust::load(&F.0.home).unwrap();
        prop_assert!(trust.merge_crl(&site("kek"), &damaged(&F.1, at, how)).is_err());
    }

    #[test]
    fn damaged_cards_never_panic_nor_change_authority(at in any::<usize>(), how in 0_u8..12) {
        static F: LazyLock<SiteCard> = LazyLock::new(|| card(&federation().kek));
        let text = String::from_utf8_lossy(&damaged(F.to_text().as_bytes(), at, how)).into_owned();
        if let Ok(card) = SiteCard::parse(&text) {
            prop_assert_eq!(&card.authority, &F.authority);
        }
    }
}

/// Exchanges messages until both connections are done with the handshake and its tickets.
pub(super) fn shake(
    client: &mut ClientConnection,
    server: &mut ServerConnection,
) -> Result<(), rustls::Error> {
    for _ in 0..10 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        let mut from_client = &wire[..];
        while !from_client.is_empty() {
            server.read_tls(&mut from_client).unwrap();
            server.process_new_packets()?;
        }
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        let mut from_server = &wire[..];
        while !from_server.is_empty() {
            client.read_tls(&mut from_server).unwrap();
            client.process_new_packets()?;
        }
    }
    Ok(())
}

fn credentials() -> (tempfile::TempDir, Credential, Credential) {
    let dir = tempfile::tempdir().unwrap();
    let (home, authority) = pop(dir.path(), "kek");
    let (pem, key) = login(&authority, "alice");
    let user = Credential::parse(&pem, &key, dir.path()).unwrap();
    (dir, Credential::host(&home, now()).unwrap(), user)
}

#[test]
fn handshakes_show_both_sides_and_resume() {
    let (dir, host, user) = credentials();
    let trust = Trust::load(&Home::at(dir.path())).unwrap();
    let server_config = tls::server_config(&host).unwrap();
    let client_config = tls::client_config(&user).unwrap();
    for round in [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Resumed] {
        let name = tls::server_name(&site("kek"));
        let mut client = ClientConnection::new(client_config.clone(), name).unwrap();
        let mut server = ServerConnection::new(server_config.clone()).unwrap();
        shake(&mut client, &mut server).unwrap();
        let of_client = verify_peer(server.peer_certificates().unwrap(), &trust, now()).unwrap();
        let of_server = verify_peer(client.peer_certificates().unwrap(), &trust, now()).unwrap();
        assert_eq!((of_client.to_string(), of_server.to_string()), ("alice@kek".into(), "kek".into()));
        assert_eq!(server.alpn_protocol(), Some(tls::RENKEI_ALPN));
        assert_eq!(client.handshake_kind(), Some(round));
        let suite = client.negotiated_cipher_suite().unwrap().suite();
        assert_eq!(suite, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    }
}

#[test]
fn an_expired_client_passes_the_handshake_only() {
    let (dir, host, user) = credentials();
    let trust = Trust::load(&Home::at(dir.path())).unwrap();
    let mut client =
        ClientConnection::new(tls::client_config(&user).unwrap(), tls::server_name(&site("kek"))).unwrap();
    let mut server = ServerConnection::new(tls::server_config(&host).unwrap()).unwrap();
    shake(&mut client, &mut server).unwrap();
    let late = now() + 24 * HOUR;
    let error = verify_peer(server.peer_certificates().unwrap(), &trust, late).unwrap_err();
    assert_eq!(error.code, Code::CertificateExpired);
}

#[test]
fn a_handshake_needs_a_certificate() {
    let (_dir, host, user) = credentials();
    let mut anonymous = (*tls::client_config(&user).unwrap()).clone();
    anonymous.client_auth_cert_resolver = Arc::new(NoCertificate);
    let mut client = ClientConnection::new(Arc::new(anonymous), tls::server_name(&site("kek"))).unwrap();
    let mut server = ServerConnection::new(tls::server_config(&host).unwrap()).unwrap();
    assert!(shake(&mut client, &mut server).is_err());
}

#[derive(Debug)]
struct NoCertificate;

impl rustls::client::ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }
    fn has_certs(&self) -> bool {
        false
    }
}

/// Presents a certificate that belongs to another key.
#[derive(Debug)]
struct Stolen(Arc<rustls::sign::CertifiedKey>);

impl rustls::client::ResolvesClientCert for Stolen {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(self.0.clone())
    }
    fn has_certs(&self) -> bool {
        true
    }
}

#[test]
fn a_certificate_without_its_key_is_refused() {
    let (_dir, host, user) = credentials();
    let other = KeyRequest::generate().unwrap().key;
    let other: rustls::pki_types::PrivateKeyDer<'static> =
        rustls::pki_types::pem::PemObject::from_pem_slice(other.as_bytes()).unwrap();
    let key = tls::provider().key_provider.load_private_key(other).unwrap();
    let stolen = rustls::sign::CertifiedKey::new(user.chain.clone(), key);
    let mut config = (*tls::client_config(&user).unwrap()).clone();
    config.client_auth_cert_resolver = Arc::new(Stolen(Arc::new(stolen)));
    let mut client = ClientConnection::new(Arc::new(config), tls::server_name(&site("kek"))).unwrap();
    let mut server = ServerConnection::new(tls::server_config(&host).unwrap()).unwrap();
    assert!(shake(&mut client, &mut server).is_err());
}

#[test]
fn server_names_are_legal_for_every_site() {
    for name in ["kek", "a-", &"a".repeat(63)] {
        let _ = tls::server_name(&site(name));
    }
    assert!(to_pem("X", b"abc").starts_with("-----BEGIN X-----\n"));
}
