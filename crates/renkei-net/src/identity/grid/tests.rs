//! Chains, lists and attributes, good ones and forged ones: each refusal has its code.

use super::testing::*;
use super::*;
use renkei_config::RequiredFiles;
use std::time::Duration;

fn judge(world: &World, chain: &[&Holder]) -> Result<GridUser, Error> {
    let chain: Vec<CertificateDer<'static>> = chain.iter().map(|one| one.certificate.clone()).collect();
    world.trust().judge(&chain, now())
}

fn code(world: &World, chain: &[&Holder]) -> Code {
    judge(world, chain).unwrap_err().code
}

#[test]
fn a_user_is_named_by_the_certificate_below_all_proxies() {
    let world = World::new();
    assert_eq!(judge(&world, &[&world.taro]).unwrap().dn, TARO);
    let first = world.taro.proxy();
    let limited = first.draft("5").with(proxy_info(None, LIMITED)).by(&first);
    let third = limited.proxy();
    let user = judge(&world, &[&third, &limited, &first, &world.taro]).unwrap();
    assert_eq!((user.dn.as_str(), user.is_limited), (TARO, true));
    assert!(!judge(&world, &[&first, &world.taro, &world.ca]).unwrap().is_limited);
    assert!(is_grid_chain(std::slice::from_ref(&first.certificate)) && !is_grid_chain(&[]));
    assert_eq!(claimed_name(&[first.certificate, world.taro.certificate]).as_deref(), Some(TARO));
}

#[test]
fn all_proxies_of_a_certificate_are_known_as_one() {
    let world = World::new();
    let (proxy, certificate) = (world.taro.proxy(), &world.taro.certificate);
    let known = |chain: &[&CertificateDer<'static>]| {
        user_certificate(&chain.iter().map(|one| (*one).clone()).collect::<Vec<_>>())
    };
    let own = known(&[certificate]).unwrap();
    assert_eq!(own, [CA.as_bytes(), &[0, 7]].concat());
    assert_eq!(known(&[&proxy.proxy().certificate, &proxy.certificate, certificate]).unwrap(), own);
    assert_eq!(known(&[&world.taro.proxy().certificate, certificate]).unwrap(), own);
    assert_eq!(known(&[&proxy.certificate]).unwrap_err().code, Code::BadCertificate);
}

#[test]
fn dates_are_those_of_every_certificate() {
    let world = World::new();
    let old =
        Draft { until: NOW - 1, ..world.taro.draft("1") }.with(proxy_info(None, INHERIT)).by(&world.taro);
    assert_eq!(code(&world, &[&old, &world.taro]), Code::GridCertificateExpired);
    let early =
        Draft { from: NOW + 61, ..world.taro.draft("1") }.with(proxy_info(None, INHERIT)).by(&world.taro);
    assert_eq!(code(&world, &[&early, &world.taro]), Code::GridCertificateNotYetValid);
    let expired = Draft { until: NOW - 1, ..Draft::of(TARO) }.by(&world.ca);
    assert_eq!(code(&world, &[&expired.proxy(), &expired]), Code::GridCertificateExpired);
    let short =
        Draft { until: NOW + 60, ..world.taro.draft("1") }.with(proxy_info(None, INHERIT)).by(&world.taro);
    assert_eq!(judge(&world, &[&short, &world.taro]).unwrap().until, now() + Duration::from_secs(60));
    let ended = World::new();
    let over = Draft { until: NOW - 1, ..authority(CA) }.signed_by(CA, None);
    ended.install("certificates/0a1b2c3d", &over);
    assert_eq!(code(&ended, &[&Draft::of(TARO).by(&over)]), Code::GridCertificateExpired);
}

#[test]
fn an_authority_that_ended_does_not_hide_its_renewal() {
    let world = World::new();
    let over = Draft { until: NOW - 1, ..authority(CA) }.signed_by(CA, None);
    let key = || rcgen::KeyPair::try_from(over.key.serialize_der()).unwrap();
    let renewed = authority(CA).with_key(key(), CA, None);
    let user = Draft::of(TARO).by(&over);
    world.install("certificates/0a1b2c3d", &over);
    assert_eq!(code(&world, &[&user]), Code::GridCertificateExpired);
    for stem in ["certificates/00000000", "certificates/ffffffff"] {
        world.install(stem, &renewed);
        assert!(judge(&world, &[&user]).is_ok(), "{stem}");
        std::fs::remove_file(world.path(&format!("{stem}.0"))).unwrap();
    }
}

#[test]
fn forged_signatures_and_unknown_authorities_are_refused() {
    let world = World::new();
    let (eve, other) = (rcgen::KeyPair::generate().unwrap(), "/C=JP/O=NII/CN=Other CA");
    let forged = Draft::of(TARO).signed_by(CA, Some(&eve));
    assert_eq!(code(&world, &[&forged]), Code::GridSignature);
    let proxy = world.taro.draft("1").with(proxy_info(None, INHERIT)).signed_by(TARO, Some(&eve));
    assert_eq!(code(&world, &[&proxy, &world.taro]), Code::GridSignature);
    let foreign = authority(other).signed_by(other, None);
    assert_eq!(code(&world, &[&Draft::of(TARO).by(&foreign), &foreign]), Code::GridAuthorityUnknown);
    assert_eq!(code(&world, &[&Draft::of(TARO).signed_by(TARO, None)]), Code::GridAuthorityUnknown);
    // An authority that calls itself as the installed one.
    let twin = authority(CA).signed_by(CA, None);
    assert_eq!(code(&world, &[&Draft::of(TARO).by(&twin), &twin]), Code::GridSignature);
    // A user signs for another one.
    let bob = Draft::of("/C=JP/O=NII/CN=Bob").by(&world.taro);
    assert_eq!(code(&world, &[&bob, &world.taro]), Code::GridAuthorityUnknown);
    let mut broken = world.taro.certificate.to_vec();
    let last = broken.len() - 1;
    broken[last] ^= 1;
    let chain = [CertificateDer::from(broken)];
    assert_eq!(world.trust().judge(&chain, now()).unwrap_err().code, Code::GridSignature);
}

#[test]
fn proxies_of_other_forms_are_refused() {
    let world = World::new();
    let taro = &world.taro;
    let refused = |draft: Draft| code(&world, &[&draft.by(taro), taro]);
    let info = || proxy_info(None, INHERIT);
    assert_eq!(refused(taro.draft("1").with(proxy_info(None, INDEPENDENT))), Code::ProxyRefused);
    assert_eq!(refused(taro.draft("1").with(proxy_info(None, b"\x2a\x03"))), Code::ProxyRefused);
    assert_eq!(refused(taro.draft("proxy")), Code::ProxyRefused);
    assert_eq!(refused(taro.draft("limited proxy")), Code::ProxyRefused);
    let draft = extension(b"\x2b\x06\x01\x04\x01\x9b\x50\x01\x81\x5e", true, &sequence(&[]));
    assert_eq!(refused(taro.draft("1").with(draft)), Code::ProxyRefused);
    let optional = extension(PROXY_INFO, false, &sequence(&[&sequence(&[&der(6, &[INHERIT])])]));
    assert_eq!(refused(taro.draft("1").with(optional)), Code::ProxyRefused);
    assert_eq!(refused(taro.draft("1").with(extension(PROXY_INFO, true, b"x"))), Code::ProxyRefused);
    assert_eq!(refused(Draft::of("/C=JP/O=NII/CN=Bob/CN=1").with(info())), Code::ProxyRefused);
    assert_eq!(refused(Draft::of(TARO).with(info())), Code::ProxyRefused);
    assert_eq!(refused(Draft::of(&format!("{TARO}/OU=1")).with(info())), Code::ProxyRefused);
    assert_eq!(refused(taro.draft("1").with(info()).with(key_usage(0x20))), Code::ProxyRefused);
    let names = extension(ALT_NAME, false, &sequence(&[&der(0x82, &[b"x"])]));
    assert_eq!(refused(taro.draft("1").with(info()).with(names)), Code::ProxyRefused);
    let unknown = extension(b"\x2a\x03\x04", true, b"");
    assert_eq!(refused(taro.draft("1").with(info()).with(unknown)), Code::BadCertificate);
    assert_eq!(refused(taro.draft("1").with(info()).with(info())), Code::BadCertificate);
    assert_eq!(code(&world, &[&taro.proxy()]), Code::ProxyRefused, "without the user's certificate");
    assert_eq!(code(&world, &[&world.ca.proxy(), &world.ca]), Code::ProxyRefused, "of an authority");
}

#[test]
fn chains_are_as_long_as_their_proxies_allow() {
    let world = World::new();
    let first = world.taro.draft("1").with(proxy_info(Some(1), INHERIT)).by(&world.taro);
    let second = first.proxy();
    let third = second.proxy();
    assert!(judge(&world, &[&second, &first, &world.taro]).is_ok());
    assert_eq!(code(&world, &[&third, &second, &first, &world.taro]), Code::ProxyRefused);
    let mut chain = vec![world.taro.proxy()];
    (0..15).for_each(|at| chain.push(chain[at].proxy()));
    let long: Vec<&Holder> = chain.iter().rev().chain([&world.taro]).collect();
    assert_eq!(code(&world, &long), Code::BadCertificate);
    assert!(judge(&world, &long[1..]).is_ok());
    assert!(world.trust().judge(&[], now()).is_err());
}

#[test]
fn authorities_issue_the_names_of_their_policy() {
    let mut world = World::new();
    let foreign = Draft::of("/C=CH/O=CERN/CN=Eve").by(&world.ca);
    assert_eq!(code(&world, &[&foreign]), Code::SigningPolicy);
    let policy = world.path("certificates/0a1b2c3d.signing_policy");
    std::fs::write(&policy, "cond_subjects globus '*'").unwrap();
    assert_eq!(code(&world, &[&world.taro]), Code::SigningPolicy, "a policy that is not understood");
    std::fs::remove_file(&policy).unwrap();
    assert_eq!(code(&world, &[&world.taro]), Code::SigningPolicy, "none");
    world.config.signing_policy = RequiredFiles::IfPresent;
    assert!(judge(&world, &[&world.taro]).is_ok());
}

#[test]
fn users_are_no_authorities_and_have_one_name() {
    let world = World::new();
    assert_eq!(code(&world, &[&authority("/C=JP/O=NII/CN=Sub").by(&world.ca)]), Code::BadCertificate);
    let servers =
        extension(b"\x55\x1d\x25", false, &sequence(&[&der(6, &[b"\x2b\x06\x01\x05\x05\x07\x03\x01"])]));
    assert_eq!(code(&world, &[&Draft::of(TARO).with(servers).by(&world.ca)]), Code::BadCertificate);
    assert_eq!(code(&world, &[&Draft::of(TARO).with(key_usage(0x20)).by(&world.ca)]), Code::BadCertificate);
}

#[test]
fn authorities_below_others_lead_to_an_installed_one() {
    let world = World::new();
    let sub = authority("/C=JP/O=NII/CN=Sub CA").by(&world.ca);
    let hanako = Draft::of("/C=JP/O=NII/CN=Hanako").by(&sub);
    assert_eq!(code(&world, &[&hanako, &sub]), Code::SigningPolicy, "a sent authority has no policy");
    assert_eq!(code(&world, &[&hanako]), Code::GridAuthorityUnknown);
    world.install("certificates/11112222", &sub);
    assert!(judge(&world, &[&hanako]).is_ok());
    // The installed authority above it revokes it.
    world.revoke(&[7], NOW + DAY, &world.ca.key, false);
    assert_eq!(code(&world, &[&hanako]), Code::GridCertificateRevoked);
}

#[test]
fn revocation_lists_are_asked() {
    let mut world = World::new();
    world.revoke(&[1, 2], NOW + DAY, &world.ca.key, false);
    assert!(judge(&world, &[&world.taro]).is_ok());
    world.revoke(&[1, 7], NOW + DAY, &world.ca.key, false);
    let error = judge(&world, &[&world.taro.proxy(), &world.taro]).unwrap_err();
    assert_eq!((error.code, error.subject.as_str()), (Code::GridCertificateRevoked, TARO));
    world.revoke(&[], NOW - 1, &world.ca.key, false);
    assert_eq!(code(&world, &[&world.taro]), Code::RevocationListExpired);
    world.revoke(&[], NOW + DAY, &rcgen::KeyPair::generate().unwrap(), false);
    assert_eq!(code(&world, &[&world.taro]), Code::RevocationListExpired, "a forged list");
    world.revoke(&[], NOW + DAY, &world.ca.key, true);
    assert_eq!(code(&world, &[&world.taro]), Code::WeakDigest);
    world.write("certificates/0a1b2c3d.r0", "nonsense");
    assert_eq!(code(&world, &[&world.taro]), Code::RevocationListExpired);
    std::fs::remove_file(world.path("certificates/0a1b2c3d.r0")).unwrap();
    assert!(judge(&world, &[&world.taro]).is_ok());
    world.config.revocation = RequiredFiles::Require;
    assert_eq!(code(&world, &[&world.taro]), Code::RevocationListMissing);
}

#[test]
fn weak_digests_are_refused() {
    let world = World::new();
    let weak = Draft { weak: true, ..Draft::of(TARO) }.by(&world.ca);
    assert_eq!(code(&world, &[&weak]), Code::WeakDigest);
    let proxy = Draft { weak: true, ..world.taro.draft("1") }.with(proxy_info(None, INHERIT)).by(&world.taro);
    assert_eq!(code(&world, &[&proxy, &world.taro]), Code::WeakDigest);
    // What an installed authority is signed with does not matter.
    let root = Draft { weak: true, ..authority(CA) }.signed_by(CA, None);
    world.install("certificates/0a1b2c3d", &root);
    assert!(judge(&world, &[&Draft::of(TARO).by(&root)]).is_ok());
}

/// The attributes that count of a proxy with this extension, and the reason if none do.
fn attributes(world: &World, extension: Vec<u8>) -> Result<Vec<String>, String> {
    let proxy = world.taro.draft("1").with(proxy_info(None, INHERIT)).with(extension).by(&world.taro);
    let last = proxy.proxy();
    let user = judge(world, &[&last, &proxy, &world.taro]).unwrap();
    if user.fqans.is_empty() { Err(user.warnings.join("; ")) } else { Ok(user.fqans) }
}

#[test]
fn attributes_count_if_their_server_is_the_one_of_the_lsc_file() {
    let world = World::new();
    let (taro, voms) = (&world.taro, &world.voms);
    let said = [
        "/belle/Role=production/Capability=NULL",
        "/belle/run7/Role=NULL/Capability=NULL",
        "/other",
        "/belle2/x",
    ];
    let good = Attributes::of(taro, &said);
    assert_eq!(
        attributes(&world, good.signed_by(voms, &voms.key)).unwrap(),
        ["/belle/Role=production", "/belle/run7"]
    );
    let refused = |extension, words: &str| {
        let cause = attributes(&world, extension).unwrap_err();
        assert!(cause.contains(words), "{cause}");
    };
    refused(good.signed_by(voms, &taro.key), "signature");
    let bob = Draft { serial: 8, ..Draft::of("/C=JP/O=NII/CN=Bob") }.by(&world.ca);
    refused(Attributes::of(&bob, &said).signed_by(voms, &voms.key), "holder");
    refused(
        Attributes { until: NOW - 1, ..Attributes::of(taro, &said) }.signed_by(voms, &voms.key),
        "expired",
    );
    refused(
        Attributes { vo: "atlas", ..Attributes::of(taro, &said) }.signed_by(voms, &voms.key),
        "atlas/voms.kek.jp.lsc",
    );
    refused(good.signed_by(&bob, &bob.key), "does not name");
    let own = Draft::of(VOMS).signed_by(CA, None);
    refused(good.signed_by(&own, &own.key), "not signed by the key");
    let target = extension(b"\x55\x1d\x37", true, &sequence(&[]));
    refused(
        Attributes { more: target, ..Attributes::of(taro, &said) }.signed_by(voms, &voms.key),
        "critical",
    );
    refused(Attributes::of(taro, &["/other/Role=x"]).signed_by(voms, &voms.key), "");
    let garbage = extension(
        b"\x2b\x06\x01\x04\x01\xbe\x45\x64\x64\x05",
        false,
        &sequence(&[&sequence(&[&sequence(&[])])]),
    );
    refused(garbage, "malformed");
}

#[test]
fn a_chain_ends_with_its_attributes() {
    let world = World::new();
    let end = |until| {
        let said = Attributes { until, ..Attributes::of(&world.taro, &["/belle"]) };
        let extension = said.signed_by(&world.voms, &world.voms.key);
        let proxy = world.taro.draft("1").with(proxy_info(None, INHERIT)).with(extension).by(&world.taro);
        let chain = [proxy.proxy().certificate, proxy.certificate, world.taro.certificate.clone()];
        ends(&chain, now()).unwrap().unwrap().duration_since(now()).unwrap().as_secs()
    };
    assert_eq!((end(NOW + 60), end(NOW - 60), end(NOW + 2 * DAY)), (60, DAY, DAY));
}

#[test]
fn accounts_come_from_the_map_and_then_from_the_files() {
    let world = World::new();
    let account = |map: &str, chain: &[&Holder]| {
        let user = judge(&world, chain).unwrap();
        world
            .trust()
            .account(&user, &Mapping::parse(map).unwrap())
            .map(|(account, _)| account)
            .map_err(|error| error.code)
    };
    let attributes =
        Attributes::of(&world.taro, &["/belle/Role=production"]).signed_by(&world.voms, &world.voms.key);
    let proxy = world.taro.draft("1").with(proxy_info(None, INHERIT)).with(attributes).by(&world.taro);
    let member: [&Holder; 2] = [&proxy, &world.taro];
    assert_eq!(account("", &member), Err(Code::NotMapped));
    world.write("grid-mapfile", &format!("\"{TARO}\" taro\n"));
    assert_eq!(account("", &member), Ok("taro".into()));
    world.write("voms-mapfile", "\"/belle/Role=production\" belleprd\n\"/belle*\" belle\n");
    assert_eq!(account("", &member), Ok("belleprd".into()));
    assert_eq!(account("", &[&world.taro]), Ok("taro".into()));
    assert_eq!(account("fqan:/belle/* belle\n", &member), Ok("belle".into()));
    let own = format!("fqan:/belle/* belle\n\"dn:{TARO}\" yamada\n");
    assert_eq!(account(&own, &member), Ok("yamada".into()));
    assert_eq!(account(&format!("\"dn:{TARO}\" !\n"), &member), Err(Code::ShutOut));
}

#[test]
fn changed_files_are_noticed_and_bad_ones_are_named() {
    let world = World::new();
    let trust = world.trust();
    assert!(!trust.is_stale(&world.config) && trust.problems.is_empty(), "{:?}", trust.problems);
    world.write("certificates/deadbeef.0", "no certificate");
    assert!(trust.is_stale(&world.config));
    world.write("vomsdir/belle/x.lsc", "x");
    world.write("grid-mapfile", "x\n");
    let trust = world.trust();
    assert_eq!((trust.authorities.problems.len(), trust.problems.len()), (1, 2), "{:?}", trust.problems);
    assert!(judge(&world, &[&world.taro]).is_ok());
    let none = Grid { directory: PathBuf::new(), ..world.config.clone() };
    assert!(trust.is_stale(&none) && GridTrust::load(&none).is_empty());
}
