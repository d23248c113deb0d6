//! A site gets a new authority: transfers continue, partners follow automatically, and no other authority
//! can hand over.

use crate::federation::{Federation, Site, account};
use crate::identity::administration::until;
use crate::queue;
use crate::tree::noise;
use crate::wire::raw;
use renkei_core::error::Code;
use renkei_core::wire::message::{Reply, Request};
use renkei_net::identity::authority::Authority;
use renkei_net::identity::authority::issued;
use renkei_net::identity::authority::rotation;
use renkei_net::identity::certificate::Facts;
use renkei_net::identity::credential::Credential;
use renkei_net::identity::trust::Trust;
use renkei_net::identity::trust::card::SiteCard;
use serde_json::Value;
use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime};

/// The card of `of` as `site` has it.
fn known(site: &Site, of: &Site) -> SiteCard {
    Trust::load(&raw::home(site)).unwrap().card(&raw::name(of)).unwrap().clone()
}

fn has_adopted(site: &Site, of: &Site) -> bool {
    known(site, of).authority == known(of, of).authority
}

fn rotate(site: &Site, more: &[&str]) -> Value {
    let (status, report) = site.json(&[&["site", "rotate-authority"], more].concat());
    assert_eq!(status, 0, "{report}");
    report
}

/// The condition of the site's authority in `status`: code and finding, by partner.
fn authority_condition(site: &Site) -> Vec<(String, String, String)> {
    let (_, status) = site.json(&["status"]);
    let all = status["conditions"].as_array().unwrap().iter().filter(|one| one["what"] == "authority");
    let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
    all.map(|one| (text(one, "name"), text(one, "code"), text(one, "found") + &text(one, "remedy"))).collect()
}

/// Copies files between two sites, both ways and by the users of both.
fn copy_both_ways(federation: &Federation, name: &str) {
    let Federation { titech, kek, .. } = federation;
    for (from, to) in [(titech, kek), (kek, titech)] {
        for user in [titech, kek] {
            let name = format!("{name}-by-{}-from-{}", user.name, from.name);
            fs::write(from.root().join(&name), noise(3, 100_000)).unwrap();
            user.ok(&["cp", &from.place(&name), &to.place(&name)]);
            assert_eq!(fs::read(to.root().join(&name)).unwrap(), noise(3, 100_000), "{name}");
        }
    }
}

/// A copy from `site` to another one that takes so many seconds.
fn slow_copy(site: &Site, to: &Site, seconds: usize) -> Child {
    let file = site.root().join("slow");
    fs::write(&file, noise(9, seconds * 2_000_000)).unwrap();
    let mut command = site.command();
    command.args(["-q", "cp", "--limit", "2M"]).arg(site.place("slow")).arg(to.place("slow"));
    command.stdout(Stdio::null()).spawn().unwrap()
}

fn is_moving(site: &Site) -> bool {
    let (_, status) = site.json(&["status"]);
    !status["transfers"].as_array().unwrap().is_empty()
}

#[test]
fn transfers_continue_and_partners_adopt_the_new_authority() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let (pid, first, login) = (kek.pid(), known(kek, kek), raw::user(kek));
    let mut running = slow_copy(kek, titech, 6);
    until("the copy moves", || is_moving(titech));
    let report = rotate(kek, &[]);
    assert_eq!((&report["outcome"], &report["overlap"]), (&"rotated".into(), &true.into()), "{report}");
    assert_ne!(known(kek, kek).authority, first.authority);
    copy_both_ways(&federation, "at once");
    until("the partner has it", || has_adopted(titech, kek));
    assert!(titech.logged().contains("its new authority was taken over"));
    copy_both_ways(&federation, "after it");
    assert!(running.wait().unwrap().success(), "a running copy was broken");
    assert_eq!(fs::read(titech.root().join("slow")).unwrap(), noise(9, 12_000_000));
    assert!(
        !titech.logged().contains("a transfer is stopped") && !kek.logged().contains("a transfer is stopped")
    );
    // The login from before is good, and the next one is of the new authority.
    assert_eq!(raw::user(kek).chain, login.chain);
    kek.ok(&["login"]);
    let (old, new) = (login.facts().unwrap().issuer, raw::user(kek).facts().unwrap().issuer);
    assert_eq!((old.as_str(), new.as_str()), ("CN=kek site authority", "CN=kek site authority 2"));
    copy_both_ways(&federation, "as a user of the new one");
    until("the site says that all have it", || {
        let told = authority_condition(kek);
        told.len() == 1 && told[0].1 == "RK-AUTH-28" && told[0].2.contains("all partners have taken over")
    });
    assert_eq!(rotate(kek, &[])["outcome"], "under_way");
    assert_eq!(rotate(kek, &["--finish"])["outcome"], "finished");
    until("the partner knows the end", || !known(titech, kek).handover.unwrap().is_live(SystemTime::now()));
    until("it is over", || authority_condition(kek).is_empty());
    let refused = raw::refusal_of(&login, titech);
    assert_eq!(refused.code, Code::CertificateExpired, "{refused}");
    copy_both_ways(&federation, "after the end");
    assert_eq!(kek.pid(), pid);
}

#[test]
fn an_offline_partner_adopts_the_new_authority_later() {
    let mut federation = Federation::two();
    federation.titech.stop();
    rotate(&federation.kek, &["--keep-days", "2"]);
    let Federation { titech, kek, .. } = &federation;
    until("the site names the partners without it", || {
        authority_condition(kek)
            .iter()
            .any(|(_, code, found)| code == "RK-AUTH-28" && found.contains("not taken over yet by titech"))
    });
    let doctor = kek.json(&["doctor"]).1.to_string();
    assert!(doctor.contains("not taken over yet by titech"), "{doctor}");
    let (status, asked) = kek.json(&["site", "rotate-authority", "--finish"]);
    assert_eq!((status, asked["error"]["code"].as_str()), (2, Some("RK-CONF-11")), "{asked}");
    assert!(!has_adopted(titech, kek));
    federation.titech.restart();
    let Federation { titech, kek, .. } = &federation;
    copy_both_ways(&federation, "before it was told");
    until("it has it", || has_adopted(titech, kek));
    copy_both_ways(&federation, "after it");
}

/// The error of a command.
fn error(site: &Site, arguments: &[&str]) -> (String, String) {
    let (status, report) = site.json(arguments);
    let error = &report["error"];
    assert_ne!(status, 0, "{report}");
    (error["code"].as_str().unwrap().into(), format!("{report}"))
}

/// `site` takes the card of `of` by hand, as the remedy says.
fn take_by_hand(site: &Site, of: &Site) {
    site.take_card(of);
    assert!(has_adopted(site, of));
}

#[test]
fn a_partner_that_is_too_late_gets_the_command_to_run() {
    let mut federation = Federation::two();
    federation.titech.stop();
    rotate(&federation.kek, &[]);
    let report = rotate(&federation.kek, &["--finish", "--yes"]);
    assert_eq!(report["not_taken_over"], serde_json::json!(["titech"]), "{report}");
    federation.titech.restart();
    let Federation { titech, kek, .. } = &federation;
    until("the PoP shows that it has another authority", || titech.json(&["ls", "kek:/data"]).0 != 0);
    let (code, said) = error(titech, &["ls", "kek:/data"]);
    assert_eq!(code, "RK-AUTH-27");
    assert!(said.contains("kek has replaced its authority") && said.contains("renkei trust add"), "{said}");
    kek.ok(&["login"]);
    let (code, said) = error(kek, &["ls", "titech:/data"]);
    assert_eq!(code, "RK-AUTH-27", "{said}");
    until("the site names the partner", || {
        authority_condition(kek).iter().any(|(name, code, found)| {
            name == "titech" && code == "RK-AUTH-27" && found.contains("trust export > kek.site")
        })
    });
    take_by_hand(titech, kek);
    copy_both_ways(&federation, "by hand");
    until("it is over", || authority_condition(kek).is_empty());
}

#[test]
fn without_an_overlap_partners_accept_the_card_by_hand() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let stolen =
        raw::issue_user(&Authority::load(&raw::home(kek)).unwrap(), "mallory", 10, SystemTime::now());
    let (status, asked) = kek.json(&["site", "rotate-authority", "--now"]);
    assert_eq!((status, asked["error"]["code"].as_str()), (2, Some("RK-CONF-11")), "{asked}");
    let report = rotate(kek, &["--now", "--yes"]);
    assert_eq!((&report["outcome"], &report["overlap"]), (&"rotated".into(), &false.into()), "{report}");
    until("certificates of the key are refused at home", || {
        raw::refusal_of(&stolen, kek).code == Code::CertificateExpired
    });
    until("the site names the partner", || {
        authority_condition(kek).iter().any(|(name, ..)| name == "titech")
    });
    assert!(!has_adopted(titech, kek), "a thief could hand over as well");
    take_by_hand(titech, kek);
    until("it is refused at the partner, too", || {
        raw::refusal_of(&stolen, titech).code == Code::CertificateExpired
    });
    kek.ok(&["login"]);
    copy_both_ways(&federation, "after it");
}

/// The answer of `titech` to a card that the PoP of `kek` sends.
fn tell(federation: &Federation, credential: &Credential, card: &str) -> Result<Reply, Code> {
    let Federation { titech, kek, .. } = federation;
    let mut session = raw::connect(kek, credential, titech).unwrap();
    session.ask(Request::TakeCard(card.to_owned())).map_err(|error| error.code)
}

#[test]
fn a_forged_or_replayed_rotation_is_refused() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let first = kek.ok(&["trust", "export"]);
    // Another site of that name, which hands over to itself; and the host key of this one, in the wrong hands.
    let elsewhere = tempfile::tempdir().unwrap();
    let impostor = Site::start(elsewhere.path(), "kek");
    rotate(&impostor, &[]);
    let host = Credential::host(&raw::home(kek), SystemTime::now()).unwrap();
    let before = known(titech, kek);
    let forged = known(&impostor, &impostor);
    let told = |card: &SiteCard| tell(&federation, &host, &card.to_text());
    assert_eq!(told(&forged), Err(Code::CardConflict));
    // The hand-over of one, the authority of the other.
    rotate(kek, &["--keep-days", "1"]);
    until("the partner has it", || has_adopted(titech, kek));
    let real = known(kek, kek);
    let mixed = SiteCard { authority: forged.authority.clone(), ..real.clone() };
    assert_eq!(told(&mixed), Err(Code::CardInvalid));
    let mut longer = real.clone();
    longer.handover.as_mut().unwrap().until_unix += 86_400;
    assert_eq!(told(&longer), Err(Code::CardInvalid));
    // Outdated hand-overs, and hand-overs of another site.
    assert_eq!(tell(&federation, &host, &first), Err(Code::CardConflict));
    let foreign = real.to_text().replace("site = \"kek\"", "site = \"titech\"");
    assert_eq!(tell(&federation, &host, &foreign), Err(Code::CardInvalid));
    // And only the PoP may send it.
    assert_eq!(tell(&federation, &raw::user(kek), &real.to_text()), Err(Code::NotAllowed));
    assert_eq!(known(titech, kek).authority, real.authority);
    assert_ne!(known(titech, kek).authority, before.authority);
    assert_eq!(known(titech, kek).handover, real.handover);
}

#[test]
fn certificates_of_both_authorities_can_be_revoked() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let home = raw::home(kek);
    let issue = || {
        let credential = raw::issue_user(&Authority::load(&home).unwrap(), "mallory", 10, SystemTime::now());
        let Facts { serial, not_after, .. } = credential.facts().unwrap();
        let principal = credential.principal().unwrap();
        let noted =
            renkei_net::identity::authority::Issued { pem: String::new(), serial, principal, not_after };
        issued::note(&home, &noted).unwrap();
        credential
    };
    let old = issue();
    rotate(kek, &[]);
    until("the partner has it", || has_adopted(titech, kek));
    let new = issue();
    assert_ne!(old.facts().unwrap().issuer, new.facts().unwrap().issuer);
    for credential in [&old, &new] {
        assert!(raw::connect(kek, credential, titech).is_ok(), "both are good until then");
    }
    kek.ok(&["revoke", "mallory@kek"]);
    // The partner hears of it as of any revocation.
    titech.ok(&["ls", "kek:/data"]);
    for credential in [&old, &new] {
        for site in [titech, kek] {
            until("it is refused", || raw::refusal_of(credential, site).code == Code::CertificateRevoked);
        }
    }
}

#[test]
fn a_rotation_killed_repeatedly_leaves_a_working_site() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    for after in (0..40).step_by(2) {
        let mut command = kek.command();
        command.args(["site", "rotate-authority"]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut killed = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(after));
        killed.kill().unwrap();
        killed.wait().unwrap();
        kek.ok(&["ls", "titech:/data"]);
        titech.ok(&["ls", "kek:/data"]);
    }
    rotate(kek, &[]);
    until("the partner has it", || has_adopted(titech, kek));
    let number = known(kek, kek);
    let issuer = Facts::read(&number.authority).unwrap().issuer;
    assert_eq!(issuer, "CN=kek site authority 2", "killed commands rotate no second time");
    copy_both_ways(&federation, "after it");
}

#[test]
fn a_backup_contains_the_rotation() {
    let mut federation = Federation::two();
    let folder = federation.scratch().join("kek");
    federation.titech.stop();
    rotate(&federation.kek, &[]);
    let kek = &mut federation.kek;
    kek.ok(&["backup", folder.to_str().unwrap()]);
    let before = known(kek, kek);
    kek.kill9();
    fs::remove_dir_all(kek.dir()).unwrap();
    kek.ok(&["restore", folder.to_str().unwrap()]);
    assert_eq!(known(kek, kek), before);
    kek.restart();
    federation.titech.restart();
    let Federation { titech, kek, .. } = &federation;
    until("the partner has it", || has_adopted(titech, kek));
    copy_both_ways(&federation, "after it");
}

#[test]
fn a_changed_name_is_refused_even_with_a_new_authority() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::start(dir.path(), "kek");
    rotate(&site, &[]);
    let config = raw::home(&site).config_file();
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("site = \"kek\"", "site = \"kek2\"")).unwrap();
    assert_eq!(error(&site, &["trust", "list"]).0, "RK-CONF-13");
    until("the PoP says so", || site.logged().contains("RK-CONF-13"));
    fs::write(&config, text).unwrap();
    site.ok(&["ls", &site.root_place()]);
}

#[test]
fn an_invitation_from_before_the_rotation_works() {
    let dir = tempfile::tempdir().unwrap();
    let (titech, kek) = (Site::start(dir.path(), "titech"), Site::start(dir.path(), "kek"));
    let line = kek.ok(&["invite"]);
    rotate(&kek, &[]);
    titech.ok(&["join", line.trim()]);
    assert!(has_adopted(&titech, &kek));
    titech.ok(&["map", "add", "--yes", &format!("{}@kek", account()), &account()]);
    kek.ok(&["ls", "titech:/data"]);
}

#[test]
fn a_line_survives_rotation_at_either_end() {
    let dir = tempfile::tempdir().unwrap();
    let hub = Site::start(dir.path(), "hub");
    let private = Site::start_private(dir.path(), "private", &hub);
    for (site, other) in [(&hub, &private), (&private, &hub)] {
        site.ok(&["map", "add", "--yes", &format!("{}@{}", account(), other.name), &account()]);
    }
    for (site, other) in [(&hub, &private), (&private, &hub)] {
        rotate(site, &[]);
        until("the other one has it", || has_adopted(other, site));
        for user in [&hub, &private] {
            until("each reaches the other", || user.json(&["ls", "hub:/data", "private:/data"]).0 == 0);
        }
    }
    for site in [&hub, &private] {
        rotate(site, &["--finish"]);
        site.ok(&["login"]);
    }
    for user in [&hub, &private] {
        until("each reaches the other at the end", || {
            user.json(&["ls", "hub:/data", "private:/data"]).0 == 0
        });
    }
}

#[test]
fn transfers_continue_past_the_overlap_and_queued_credentials_are_renewed() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let login = raw::user(kek);
    queue::large(kek, "waits");
    let (from, to) = (kek.place("waits"), titech.place("waits"));
    let id = queue::detach(kek, &[&queue::SLOWLY[..], &[&from, &to]].concat());
    kek.ok(&["pause", &id]);
    let mut running = slow_copy(kek, titech, 20);
    until("the copy moves", || is_moving(titech));
    // No administrator has an overlap of seconds.
    let began = rotation::rotate(&raw::home(kek), Duration::from_secs(15), SystemTime::now()).unwrap();
    assert_eq!(began, rotation::Outcome::Rotated);
    until("the partner has it", || has_adopted(titech, kek));
    raw::connect(kek, &login, titech).unwrap();
    until("the overlap is over", || !known(kek, kek).handover.unwrap().is_live(SystemTime::now()));
    assert!(running.wait().unwrap().success(), "a running copy was broken");
    for site in [titech, kek] {
        assert_eq!(raw::refusal_of(&login, site).code, Code::CertificateExpired);
    }
    kek.ok(&["login"]);
    kek.ok(&["resume", &id]);
    queue::until(kek, &id, |told| told["reason"]["code"] == "RK-AUTH-19");
    kek.ok(&["renew", &id]);
    assert_eq!(queue::ended(kek, &id), 0, "{:#}", queue::why(kek, &id));
    assert_eq!(fs::read(titech.root().join("waits")).unwrap(), fs::read(kek.root().join("waits")).unwrap());
    copy_both_ways(&federation, "after the end");
}

#[test]
fn a_user_who_missed_the_rotation_logs_in_again() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let dir = federation.scratch().join("user");
    let run = |arguments: &[&str]| {
        let output = titech.command_in(&dir).arg("--json").args(arguments).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let login = ["login", "--pop", titech.dir().to_str().unwrap()];
    assert_eq!(run(&login).0, 0);
    for site in [titech, kek] {
        rotate(site, &[]);
    }
    until("both have it", || has_adopted(titech, kek) && has_adopted(kek, titech));
    assert_eq!(run(&["ls", "titech:/data", "kek:/data"]).0, 0, "the overlap is there for users, too");
    for site in [titech, kek] {
        rotate(site, &["--finish"]);
    }
    for place in ["titech:/data", "kek:/data"] {
        until("the overlap is over", || run(&["ls", place]).0 != 0);
        let (_, told) = run(&["ls", place]);
        assert!(told.contains("RK-AUTH-27") && told.contains(" login`"), "{told}");
    }
    let (status, told) = run(&login);
    assert!(status == 0 && told.contains("replaced"), "{told}");
    until("all is well", || run(&["ls", "titech:/data", "kek:/data"]).0 == 0);
}

#[test]
fn missing_two_rotations_needs_the_same_command_as_missing_one() {
    let mut federation = Federation::two();
    let dir = federation.scratch().join("user");
    federation.titech.stop();
    let kek = &federation.kek;
    let login = || {
        let mut command = kek.command_in(&dir);
        let output =
            command.args(["--json", "login", "--pop", kek.dir().to_str().unwrap()]).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(login().0, 0);
    for _ in 0..2 {
        rotate(kek, &[]);
        rotate(kek, &["--finish", "--yes"]);
    }
    let (status, told) = login();
    assert!(status == 0 && told.contains("replaced"), "{told}");
    federation.titech.restart();
    let Federation { titech, kek, .. } = &federation;
    take_by_hand(titech, kek);
    kek.ok(&["login"]);
    until("the PoP shows its newest authority", || titech.json(&["ls", "kek:/data"]).0 == 0);
    copy_both_ways(&federation, "by hand");
}
