//! Certificates that are renewed automatically, and updates of cards at partners.

use crate::federation::{Federation, Site, free_address};
use crate::identity::administration::until;
use crate::wire::raw;
use renkei_net::identity::authority::Authority;
use renkei_net::identity::certificate::{Facts, hosts};
use rustls::pki_types::CertificateDer;
use std::fs;
use std::time::{Duration, SystemTime};

const DAY: Duration = Duration::from_secs(86_400);
/// Gives a site's PoP a certificate that was made so long ago, for its key.
fn age_host(site: &Site, ago: Duration) {
    let home = raw::home(site);
    let key = rcgen::KeyPair::from_pem(&fs::read_to_string(home.host_key()).unwrap()).unwrap();
    let authority = Authority::load(&home).unwrap();
    let old = authority.issue_host(&key, &["127.0.0.1".into()], SystemTime::now() - ago).unwrap();
    fs::write(home.host_cert(), old.pem).unwrap();
}

/// The certificate that a site's PoP shows now.
fn shown(site: &Site) -> CertificateDer<'static> {
    raw::connect(site, &raw::user(site), site).unwrap().peer_chain()[0].clone()
}

fn days_left(leaf: &CertificateDer<'_>) -> u64 {
    let end = Facts::read(leaf).unwrap().not_after;
    end.duration_since(SystemTime::now()).unwrap_or_default().as_secs() / DAY.as_secs()
}

#[test]
fn a_host_certificate_is_renewed_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::start(dir.path(), "kek");
    let (pid, key) = (site.pid(), fs::read(raw::home(&site).host_key()).unwrap());
    let first = shown(&site);
    age_host(&site, 300 * DAY);
    until("the PoP shows a fresh one", || {
        let now = shown(&site);
        now != first && days_left(&now) > 300
    });
    assert!(site.logged().contains("the PoP's certificate was renewed"));
    assert_eq!((site.pid(), fs::read(raw::home(&site).host_key()).unwrap()), (pid, key));
}

#[test]
fn an_expired_host_certificate_is_renewed_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut site = Site::start(dir.path(), "kek");
    site.stop();
    age_host(&site, 400 * DAY);
    site.restart();
    assert!(days_left(&shown(&site)) > 300);
}

#[test]
fn a_host_certificate_that_is_not_valid_yet_is_replaced_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut site = Site::start(dir.path(), "kek");
    site.stop();
    let home = raw::home(&site);
    let key = rcgen::KeyPair::from_pem(&fs::read_to_string(home.host_key()).unwrap()).unwrap();
    let ahead = SystemTime::now() + 30 * DAY;
    let early = Authority::load(&home).unwrap().issue_host(&key, &["127.0.0.1".into()], ahead).unwrap();
    fs::write(home.host_cert(), early.pem).unwrap();
    site.restart();
    assert!(Facts::read(&shown(&site)).unwrap().not_before <= SystemTime::now());
}

#[test]
fn an_expired_certificate_without_an_authority_names_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let mut site = Site::start(dir.path(), "kek");
    site.stop();
    age_host(&site, 400 * DAY);
    fs::rename(raw::home(&site).ca_key(), dir.path().join("ca.key")).unwrap();
    let mut command = std::process::Command::new("timeout");
    command.args(["-k", "5", "60"]).arg(site.command().get_program());
    let output = command.arg("--dir").arg(site.dir()).args(["--json", "serve"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(6) && told.contains("RK-AUTH-1"), "{output:?}");
    assert!(told.contains("pki/ca.key"), "{told}");
}

/// Rewrites a line of a site's configuration.
fn set(site: &Site, key: &str, value: &str) {
    let path = raw::home(site).config_file();
    let text = fs::read_to_string(&path).unwrap();
    let kept: Vec<_> = text.lines().filter(|line| !line.starts_with(&format!("{key} ="))).collect();
    fs::write(&path, format!("{key} = {value}\n{}\n", kept.join("\n"))).unwrap();
}

/// Where `site` reaches `other`, as `trust list` shows it.
fn endpoints(site: &Site, other: &Site) -> Vec<String> {
    let (_, listed) = site.json(&["trust", "list"]);
    let sites = listed["sites"].as_array().unwrap();
    let row = sites.iter().find(|row| row["site"] == other.name.as_str()).unwrap();
    row["endpoints"].as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_changed_endpoint_is_sent_to_partners() {
    let mut federation = Federation::two();
    let looked = raw::home(&federation.kek).told_file();
    until("the PoP knows its first card", || looked.exists());
    let moved = free_address();
    federation.kek.stop();
    set(&federation.kek, "listen", &format!("\"{moved}\""));
    set(&federation.kek, "endpoints", &format!("[\"{moved}\", \"pop.kek.example:7512\"]"));
    federation.kek.address = moved;
    federation.kek.restart();
    let Federation { titech, kek, .. } = &federation;
    until("the partner has the new address", || endpoints(titech, kek)[0] == moved.to_string());
    titech.ok(&["ls", "kek:/data"]);
    let named = hosts(&shown(kek)).unwrap();
    assert!(named.contains(&"pop.kek.example".into()), "plain HTTPS clients find the new name: {named:?}");
}

#[test]
fn a_private_address_needs_the_administrators_confirmation() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let before = endpoints(titech, kek);
    set(kek, "endpoints", &format!("[\"{}\", \"10.1.2.3:22\"]", kek.address));
    until("the site hears that it was not taken", || {
        kek.logged().contains("10.1.2.3:22 leads into a private network")
    });
    assert_eq!(endpoints(titech, kek), before);
    titech.take_card(kek);
    assert_eq!(endpoints(titech, kek).len(), 2);
}

#[test]
fn a_user_cannot_update_cards() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let card = kek.ok(&["trust", "export"]);
    let ask = |credential| {
        let asked = renkei_core::wire::message::Request::TakeCard(card.clone());
        raw::connect(titech, &credential, titech).unwrap().ask(asked).unwrap_err().code
    };
    assert_eq!(ask(raw::user(titech)), renkei_core::error::Code::NotAllowed);
}

#[test]
fn a_changed_listen_address_is_announced_only_when_the_port_is_open() {
    let mut federation = Federation::two();
    let looked = raw::home(&federation.kek).told_file();
    until("the PoP knows its first card", || looked.exists());
    let (before, moved) = (federation.kek.address, free_address());
    let sent = "sent the site's new card";
    {
        let Federation { titech, kek, .. } = &federation;
        set(kek, "listen", &format!("\"{moved}\""));
        let found = crate::console::conditions::comes(kek, "configuration", "listen");
        assert_eq!((&found["code"], &found["severity"]), (&"RK-CONF-14".into(), &"warning".into()));
        let told = found["found"].as_str().unwrap();
        assert!(told.contains(&moved.to_string()) && told.contains(&before.to_string()), "{told}");
        assert!(found["remedy"].as_str().unwrap().contains("restart the PoP"), "{found}");
        assert_eq!(endpoints(titech, kek), [before.to_string()]);
        titech.ok(&["ls", "kek:/data"]);
    }
    federation.kek.stop();
    assert!(!federation.kek.logged().contains(sent), "{}", federation.kek.logged());
    federation.kek.address = moved;
    federation.kek.restart();
    let Federation { titech, kek, .. } = &federation;
    until("the partner has the new address", || endpoints(titech, kek) == [moved.to_string()]);
    crate::console::conditions::goes(kek, "configuration", "listen");
    titech.ok(&["ls", "kek:/data"]);
}
