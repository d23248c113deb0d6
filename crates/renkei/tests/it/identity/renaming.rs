//! A site gets another name: its partners take it over by themselves, the former name goes on to mean it, and nothing is lost.

use crate::federation::{Federation, Site, account, binary};
use crate::identity::administration::until;
use crate::mount::can_mount;
use crate::mount::leases::Point;
use crate::queue;
use crate::tree::noise;
use crate::volume::following_writes::{await_content, await_same, followed, with_writer};
use crate::wire::raw;
use renkei_core::error::Code;
use renkei_core::path::SiteName;
use renkei_core::wire::message::{Reply, Request};
use renkei_net::identity::credential::Credential;
use renkei_net::identity::trust::Trust;
use renkei_net::identity::trust::card::SiteCard;
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::time::SystemTime;

/// The name of kek after its renaming.
const NEW: &str = "tsukuba";

fn rename(site: &mut Site, more: &[&str]) -> Value {
    let (status, report) = site.json(&[&["site", "rename", NEW, "--yes"], more].concat());
    assert_eq!(status, 0, "{report}");
    site.name = NEW.into();
    report
}

fn knows(site: &Site, name: &str) -> bool {
    Trust::load(&raw::home(site)).unwrap().card(&SiteName::parse(name).unwrap()).is_some()
}

fn card_at(site: &Site, of: &str) -> SiteCard {
    Trust::load(&raw::home(site)).unwrap().card(&SiteName::parse(of).unwrap()).unwrap().clone()
}

/// Waits until a PoP runs that has begun again since it logged so much.
fn await_restart(site: &Site, logged: usize) {
    until("the PoP begins again", || {
        let log = site.logged();
        let since = &log[logged..];
        since.find("starting again").is_some_and(|at| since[at..].contains("ready"))
    });
}

/// Copies files between two sites, both ways, by the users of both, under a name of the renamed site.
fn copy_both_ways(titech: &Site, kek: &Site, name: &str) {
    for user in [titech, kek] {
        let file = format!("by-{}-as-{name}", user.name);
        let (there, here) = (format!("{name}:/data/{file}"), titech.place(&file));
        fs::write(titech.root().join(&file), noise(3, 100_000)).unwrap();
        user.ok(&["cp", &here, &there]);
        assert_eq!(fs::read(kek.root().join(&file)).unwrap(), noise(3, 100_000), "{file}");
        user.ok(&["cp", &there, &format!("{here}-back")]);
    }
}

#[test]
fn partners_adopt_the_new_name_and_the_former_one_keeps_working() {
    let mut federation = Federation::two();
    let Federation { titech, kek, .. } = &mut federation;
    let (pid, login) = (kek.pid(), raw::user(kek));
    let logged = [titech.logged().len(), kek.logged().len()];
    let report = rename(kek, &[]);
    assert_eq!((&report["site"], &report["former"]), (&NEW.into(), &serde_json::json!(["kek"])), "{report}");
    await_restart(kek, logged[1]);
    await_restart(titech, logged[0]);
    assert!(knows(titech, NEW) && !knows(titech, "kek"), "the former name is none of its own");
    assert!(titech.logged().contains("its new name was taken over"));
    assert_eq!(kek.pid(), pid, "a service manager sees the same process");
    // The logins and rules from before, and both names.
    for name in [NEW, "kek"] {
        copy_both_ways(titech, kek, name);
    }
    assert_eq!(raw::user(kek).chain, login.chain);
    kek.ok(&["login"]);
    let who = format!("{}@{NEW}", account());
    assert_eq!(kek.json(&["whoami"]).1["user"]["principal"], who.as_str());
    copy_both_ways(titech, kek, NEW);
    let mapped = titech.ok(&["map", "test", &who]);
    assert!(mapped.contains(&account()), "{mapped}");
    until("all partners have it", || {
        let told = kek.json(&["status"]).1.to_string();
        !told.contains("not taken over yet")
    });
    let (status, told) = kek.json(&["site", "rename", "kek", "--yes"]);
    assert!(status != 0 && told.to_string().contains("a former name of tsukuba"), "{told}");
    // After the overlap the certificates of the former authority are refused, and everything else works.
    kek.ok(&["site", "rotate-authority", "--finish", "--yes"]);
    until("the partner knows the end", || !card_at(titech, NEW).handover.unwrap().is_live(SystemTime::now()));
    until("it is over", || kek.json(&["status"]).1["conditions"].as_array().unwrap().is_empty());
    assert_eq!(raw::refusal_of(&login, titech).code, Code::CertificateExpired);
    for name in [NEW, "kek"] {
        copy_both_ways(titech, kek, name);
    }
    // A user who logs in for the first time now may use both names, too.
    let fresh = titech.dir().with_file_name("fresh");
    for words in [&["login", "--pop", titech.dir().to_str().unwrap()][..], &["ls", "kek:/data"]] {
        let output = Command::new(binary()).arg("--dir").arg(&fresh).args(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
}

#[test]
fn an_offline_partner_learns_the_new_name_later_and_a_stranger_cannot_take_it() {
    let mut federation = Federation::two();
    federation.titech.stop();
    rename(&mut federation.kek, &["--keep-days", "2"]);
    let logged = federation.titech.logged().len();
    federation.titech.restart();
    let Federation { titech, kek, .. } = &federation;
    await_restart(titech, logged);
    copy_both_ways(titech, kek, NEW);
}

#[test]
fn a_volume_its_followers_and_the_queue_survive_renaming() {
    let mut federation = with_writer();
    let Federation { titech, kek, .. } = &mut federation;
    for site in [&*titech, &*kek] {
        queue::large(site, "large");
    }
    let to_kek = queue::detach(
        titech,
        &[&["--limit", "10M"], &[titech.place("large").as_str(), &kek.place("there")][..]].concat(),
    );
    let by_kek = queue::detach(
        kek,
        &[&["--limit", "10M"], &[kek.place("large").as_str(), &titech.place("here")][..]].concat(),
    );
    queue::until(titech, &to_kek, queue::moves);
    queue::until(kek, &by_kek, queue::moves);
    // Changes that the follower makes while the home is away wait for it under its former name.
    kek.stop();
    fs::write(titech.dir().join("note"), "made before").unwrap();
    let note = titech.dir().join("note").display().to_string();
    titech.ok(&["cp", &note, "/genome/2026/before"]);
    rename(kek, &[]);
    let logged = titech.logged().len();
    kek.restart();
    until("the partner has the new name", || knows(titech, NEW));
    await_restart(titech, logged);
    until("the follower follows", || followed(titech)["pending"] == 0);
    titech.ok(&["cp", &note, "/genome/2026/after"]);
    kek.ok(&["cp", &note, "/genome/2026/at-home"]);
    let names = await_same(kek, &[titech]);
    for name in ["before", "after", "at-home"] {
        assert!(names.contains(&format!("/genome/2026/{name}")), "{names:?}");
    }
    await_content(kek);
    assert_eq!(fs::read(kek.root().join("genome/2026/before")).unwrap(), b"made before");
    // No site mistakes the other's files for replicas of a third one.
    let places = titech.json(&["where", "/genome"]).1.to_string();
    assert!(places.contains(NEW) && !places.contains("\"kek\""), "{places}");
    for (site, id, file) in
        [(&*titech, &to_kek, kek.root().join("there")), (&*kek, &by_kek, titech.root().join("here"))]
    {
        assert_eq!(queue::ended(site, id), 0, "{:#}", queue::why(site, id));
        assert_eq!(fs::read(file).unwrap(), fs::read(site.root().join("large")).unwrap());
    }
    let owner = queue::why(kek, &by_kek)["owner"].clone();
    assert_eq!(owner, format!("{}@{NEW}", account()));
}

/// The answer of `titech` to a card that comes with this credential.
fn tell(titech: &Site, from: &Site, credential: &Credential, card: &str) -> Result<Reply, Code> {
    let mut session = raw::connect(from, credential, titech).unwrap();
    session.ask(Request::TakeCard(card.to_owned())).map_err(|error| error.code)
}

#[test]
fn a_name_already_used_at_a_partner_needs_its_administrator() {
    let mut federation = Federation::two();
    let Federation { titech, kek, .. } = &mut federation;
    let logged = titech.logged().len();
    // Another site was to be let in under that name.
    titech.ok(&["map", "add", "--yes", &format!("carol@{NEW}"), &account()]);
    rename(kek, &[]);
    until("the site says why", || {
        let told = kek.json(&["status"]).1.to_string();
        told.contains("has the new name tsukuba already") && told.contains("needs its card by hand")
    });
    assert!(knows(titech, "kek") && !knows(titech, NEW));
    // The former name works as before, also for the site itself.
    titech.ok(&["ls", "kek:/data"]);
    titech.take_card(kek);
    await_restart(titech, logged);
    copy_both_ways(titech, kek, NEW);
}

#[test]
fn only_the_pop_of_a_site_can_rename_it() {
    let mut federation = Federation::two();
    federation.titech.stop();
    let host = Credential::host(&raw::home(&federation.kek), SystemTime::now()).unwrap();
    rename(&mut federation.kek, &[]);
    federation.kek.stop();
    federation.titech.restart();
    let Federation { titech, kek, .. } = &federation;
    let card = Trust::load(&raw::home(kek)).unwrap().own_card().unwrap().clone();
    let user = raw::user(kek);
    assert_eq!(tell(titech, kek, &user, &card.to_text()), Err(Code::NotAllowed));
    let elsewhere = tempfile::tempdir().unwrap();
    let osaka = Site::start(elsewhere.path(), "osaka");
    titech.befriend(&osaka);
    osaka.take_card(titech);
    let other = Credential::host(&raw::home(&osaka), SystemTime::now()).unwrap();
    assert_eq!(tell(titech, &osaka, &other, &card.to_text()), Err(Code::ProtocolViolation));
    let forged = SiteCard { authority: raw_card(&osaka).authority, ..card.clone() };
    assert_eq!(tell(titech, kek, &host, &forged.to_text()), Err(Code::CardInvalid));
    let foreign = card.to_text().replace("site = \"tsukuba\"", "site = \"osaka\"");
    assert_eq!(tell(titech, kek, &host, &foreign), Err(Code::CardInvalid));
    assert!(knows(titech, "kek") && !knows(titech, NEW));
    tell(titech, kek, &host, &card.to_text()).unwrap();
    until("it has the new name", || knows(titech, NEW) && titech.logged().contains("starting again"));
}

fn raw_card(site: &Site) -> SiteCard {
    Trust::load(&raw::home(site)).unwrap().own_card().unwrap().clone()
}

/// Names of files at a place, as soon as the command works.
fn listed(site: &Site, place: &str) {
    until("it is listed", || site.renkei(&["ls", place]).status.success());
}

#[test]
fn lines_survive_renaming_of_either_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut hub = Site::start(dir.path(), "hub");
    let mut private = Site::start_private(dir.path(), "private", &hub);
    for (site, other) in [(&hub, &private), (&private, &hub)] {
        site.ok(&["map", "add", "--yes", &format!("{}@{}", account(), other.name), &account()]);
    }
    listed(&hub, "private:/data");
    for (renamed, name) in [(&mut private, "inside"), (&mut hub, "outside")] {
        renamed.ok(&["site", "rename", name, "--yes"]);
    }
    for user in [&hub, &private] {
        for place in ["inside:/data", "outside:/data", "private:/data", "hub:/data"] {
            listed(user, place);
        }
    }
    for site in [&hub, &private] {
        let logged = || site.logged().matches("sent the site's new card and revocation list").count();
        until("the other one has the new name", || logged() > 0);
    }
    for user in [&hub, &private] {
        user.ok(&["login"]);
        listed(user, "inside:/data");
        listed(user, "outside:/data");
    }
    let (_, status) = hub.json(&["status"]);
    assert_eq!(status["lines"][0]["site"], "inside", "{status}");
}

#[test]
fn a_mount_survives_renaming() {
    if !can_mount() {
        return;
    }
    let mut federation = Federation::two();
    let scratch = federation.scratch();
    let Federation { titech, kek, .. } = &mut federation;
    let far = Point::new(titech, "kek:/data", &scratch, "far");
    let own = Point::new(kek, "kek:/data", &scratch, "own");
    fs::write(far.path("a"), "before").unwrap();
    let mut open = fs::File::options().append(true).open(own.path("a")).unwrap();
    let logged = [titech.logged().len(), kek.logged().len()];
    rename(kek, &[]);
    await_restart(kek, logged[1]);
    await_restart(titech, logged[0]);
    std::io::Write::write_all(&mut open, b" and after").unwrap();
    open.sync_all().unwrap();
    until("the other one sees it", || fs::read(far.path("a")).is_ok_and(|text| text == b"before and after"));
    fs::write(far.path("b"), "by the former name").unwrap();
    kek.ok(&["login"]);
    kek.ok(&["site", "rotate-authority", "--finish", "--yes"]);
    kek.restart();
    for (point, name) in [(&far, "c"), (&own, "d")] {
        until("it works after the overlap", || fs::write(point.path(name), name).is_ok());
        assert_eq!(fs::read(kek.root().join(name)).unwrap(), name.as_bytes());
    }
}
