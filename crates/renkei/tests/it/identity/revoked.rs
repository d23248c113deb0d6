//! A revocation by a user's site ends a transfer at every site that takes part in it.

use crate::federation::{Federation, Site, account};
use crate::identity::administration;
use crate::queue::{SLOWLY, detach, ended, large, moves, sites, until, why};
use crate::wire::raw;
use renkei_core::error::Code;
use renkei_core::wire::message::Request;
use renkei_net::identity::credential::Credential;
use std::time::{Duration, Instant, SystemTime};

/// Longest time until a revocation ends running transfers; generous, because machines that run tests
/// are busy.
const SOON: Duration = Duration::from_secs(20);

/// Waits until a site moves nothing any more.
fn until_idle(site: &Site) {
    let start = Instant::now();
    loop {
        let (_, status) = site.json(&["status"]);
        if status["transfers"].as_array().unwrap().is_empty() {
            return;
        }
        assert!(start.elapsed() < SOON, "{status:#}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whether a site has the revocation list of another.
fn has_list(site: &Site, of: &Site) -> bool {
    raw::home(site).crl_file(&raw::name(of)).exists()
}

/// A running copy from one site to another, submitted at a third.
fn moving(home: &Site, from: &Site) -> String {
    large(from, "large");
    let id = detach(home, &[&SLOWLY[..], &["from:/data/large", "to:/data/large"]].concat());
    until(home, &id, moves);
    id
}

#[test]
fn a_revoked_user_is_refused_at_all_sites() {
    let folder = tempfile::tempdir().unwrap();
    let [home, from, to] = &sites(folder.path(), ["home", "from", "to"]);
    let id = moving(home, from);
    assert!(!has_list(from, home) && !has_list(to, home));
    let start = Instant::now();
    home.ok(&["revoke", &format!("{}@home", account())]);
    [from, to].iter().for_each(|site| until_idle(site));
    assert!(start.elapsed() < SOON, "it went on for {:?}", start.elapsed());
    home.ok(&["login"]);
    assert_eq!(ended(home, &id), 6, "{:#}", why(home, &id));
    assert_eq!(why(home, &id)["reason"]["code"], "RK-AUTH-5");
    assert!(!to.root().join("large").exists());
    // Both know by now, without having asked.
    while !(has_list(from, home) && has_list(to, home)) {
        assert!(start.elapsed() < SOON, "the list was not told");
        std::thread::sleep(Duration::from_millis(50));
    }
    // A new login delegates again.
    home.ok(&["retry", &id]);
    assert_eq!(ended(home, &id), 0, "{:#}", why(home, &id));
}

/// The sites check by themselves, even if the home PoP sends only the revocation list.
#[test]
fn the_revocation_list_alone_ends_transfers() {
    let folder = tempfile::tempdir().unwrap();
    let [home, from, to] = &sites(folder.path(), ["home", "from", "to"]);
    let _id = moving(home, from);
    let pid = rustix::process::Pid::from_raw(home.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    home.ok(&["revoke", &format!("{}@home", account())]);
    let list = std::fs::read(raw::home(home).crl_file(&raw::name(home))).unwrap();
    let host = Credential::host(&raw::home(home), SystemTime::now()).unwrap();
    for site in [from, to] {
        let mut session = raw::connect(home, &host, site).unwrap();
        session.ask(Request::Revocations(list.clone())).unwrap();
        // Another site's word is not taken for it, nor a user's.
        let foreign =
            Credential::host(&raw::home(if site.name == "to" { from } else { to }), SystemTime::now());
        let mut foreign = raw::connect(home, &foreign.unwrap(), site).unwrap();
        assert_eq!(foreign.ask(Request::Revocations(list.clone())).unwrap_err().code, Code::BadCertificate);
    }
    [from, to].iter().for_each(|site| until_idle(site));
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
}

#[test]
fn partners_without_transfers_of_the_user_receive_the_list() {
    let mut federation = Federation::two();
    for was_down in [false, true] {
        let Federation { titech, kek, .. } = &mut federation;
        titech.ok(&["login"]);
        let login = raw::user(titech);
        assert!(raw::connect(titech, &login, kek).is_ok());
        if was_down {
            kek.stop();
        }
        titech.ok(&["revoke", &format!("{}@titech", account())]);
        if was_down {
            kek.restart();
        }
        let refused = || raw::connect(titech, &login, kek).err().map(|error| error.code);
        administration::until("the partner refuses", || refused() == Some(Code::CertificateRevoked));
    }
    // A site that becomes trusted later receives the list, too.
    let Federation { titech, .. } = &federation;
    let folder = tempfile::tempdir().unwrap();
    let osaka = Site::start(folder.path(), "osaka");
    osaka.befriend(titech);
    titech.befriend(&osaka);
    administration::until("a new partner has the list", || has_list(&osaka, titech));
}
