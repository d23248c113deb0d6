//! Pooled connections between two PoPs after a push, and the users for whom a PoP may speak.

use crate::federation::{Federation, Site, account};
use crate::wire::raw;
use renkei_core::error::{Code, Error};
use renkei_core::mover::layout::CopyLayout;
use renkei_core::wire::copy::CopySender;
use renkei_core::wire::message::{Reply, Request};
use renkei_net::identity::credential::Credential;
use std::fs;
use std::time::{Duration, Instant, SystemTime};

/// Writes a file at `from` and pushes it to `to`.
fn push(from: &Site, to: &Site, name: &str) {
    fs::write(from.root().join(name), name).unwrap();
    from.ok(&["cp", &from.place(name), &to.place(name)]);
    assert_eq!(fs::read_to_string(to.root().join(name)).unwrap(), name);
}

/// How many times the log of a site says all of `words` in one line.
fn says(site: &Site, words: &[&str]) -> usize {
    site.logged().lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
}

/// Sessions that the PoP of `peer` opened, and those of them that were closed.
fn sessions(site: &Site, peer: &str) -> (usize, usize) {
    let principal = format!("principal={peer} ");
    let of = |event: &str| {
        site.logged()
            .lines()
            .filter(|line| format!("{line} ").contains(&principal) && line.contains(event))
            .count()
    };
    (of("session opened"), of("session closed"))
}

fn wait_until(site: &Site, what: &str, is: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < deadline, "{what}\n{}", site.logged());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn pushes_reuse_pooled_streams() {
    let Federation { titech, kek, .. } = &Federation::two();
    for name in ["one", "two", "three"] {
        push(titech, kek, name);
    }
    assert_eq!(sessions(kek, "titech"), (1, 0), "{}", kek.logged());
    assert_eq!(says(kek, &["opened", "kept=true"]), 2, "{}", kek.logged());
    assert_eq!(says(kek, &["session opened", "@titech"]), 0, "the user need not come");
    // A refusal by the site leaves the connection usable.
    let (status, _) = titech.json(&["cp", &titech.place("one"), "kek:/nowhere/x"]);
    assert_ne!(status, 0);
    push(titech, kek, "four");
    assert_eq!(sessions(kek, "titech"), (1, 0));
}

#[test]
fn a_copy_run_by_the_own_site_is_listed_as_any_other() {
    let Federation { titech, kek, .. } = &Federation::two();
    fs::create_dir_all(titech.root().join("run/sub")).unwrap();
    fs::write(titech.root().join("run/sub/f"), "x").unwrap();
    fs::write(titech.root().join("g"), "y").unwrap();
    fs::write(kek.root().join("file"), "").unwrap();
    let run = titech.place("run");
    let there = |path: &str| fs::read_to_string(kek.root().join(path)).unwrap();
    titech.ok(&["cp", "-r", &run, &kek.place("new")]);
    assert_eq!(there("new/sub/f"), "x");
    titech.ok(&["cp", "-r", &run, &kek.place("new")]);
    assert_eq!(there("new/run/sub/f"), "x");
    titech.ok(&["cp", "-r", &format!("{run}/"), &kek.place("made/")]);
    assert_eq!(there("made/sub/f"), "x");
    titech.ok(&["cp", "-r", &run, &titech.place("g"), &kek.place("both")]);
    assert_eq!((there("both/run/sub/f"), there("both/g")), ("x".into(), "y".into()));
    titech.ok(&["cp", &titech.place("g"), &kek.place("file")]);
    assert_eq!(there("file"), "y");
    titech.ok(&["sync", &run, &kek.place("same")]);
    assert_eq!(there("same/sub/f"), "x");
    let (status, report) = titech.json(&["cp", "-r", &run, &titech.place("g"), &kek.place("file")]);
    assert_eq!((status != 0, code_of(&report)), (true, Some(Code::NotADirectory)), "{report}");
    let (_, report) = titech.json(&["cp", &titech.place("g"), &kek.place("none/g")]);
    assert_eq!(code_of(&report), Some(Code::PathNotFound), "{report}");
}

fn code_of(report: &serde_json::Value) -> Option<Code> {
    report["error"]["code"].as_str().and_then(Code::parse)
}

#[test]
fn a_killed_pop_is_dialled_again() {
    let mut federation = Federation::two();
    push(&federation.titech, &federation.kek, "one");
    federation.kek.restart();
    push(&federation.titech, &federation.kek, "two");
    federation.titech.restart();
    push(&federation.titech, &federation.kek, "three");
    push(&federation.titech, &federation.kek, "four");
    assert_eq!(says(&federation.kek, &["opened", "kept=true"]), 1, "{}", federation.kek.logged());
}

#[test]
fn withdrawn_trust_closes_pooled_connections() {
    let Federation { titech, kek, .. } = &Federation::two();
    push(titech, kek, "one");
    titech.ok(&["trust", "remove", "kek"]);
    wait_until(kek, "the sender keeps it", || sessions(kek, "titech") == (1, 1));
    titech.take_card(kek);
    push(titech, kek, "two");
    kek.ok(&["trust", "remove", "titech"]);
    wait_until(kek, "the receiver keeps it", || sessions(kek, "titech") == (2, 2));
    let (status, report) = titech.json(&["cp", &titech.place("one"), &kek.place("three")]);
    assert_eq!((status, code_of(&report)), (6, Some(Code::UnknownAuthority)), "{report}");
}

#[test]
fn every_push_on_a_pooled_connection_is_authorised() {
    let Federation { titech, kek, .. } = &Federation::two();
    let user = format!("{}@titech", account());
    push(titech, kek, "one");
    kek.ok(&["map", "remove", &user]);
    let (status, report) = titech.json(&["cp", &titech.place("one"), &kek.place("two")]);
    assert_eq!((status, code_of(&report)), (5, Some(Code::NotMapped)), "{report}");
    kek.ok(&["map", "add", "--yes", &user, &account()]);
    push(titech, kek, "three");
    titech.ok(&["revoke", &user]);
    let (status, report) = titech.json(&["cp", &titech.place("one"), &kek.place("four")]);
    assert_eq!((status, code_of(&report)), (6, Some(Code::CertificateRevoked)), "{report}");
    assert!(!kek.root().join("two").exists() && !kek.root().join("four").exists());
}

/// Asks `to` in the name of another user, as a host or user would.
fn ask_for(from: &Site, asker: &Credential, user: &Credential, to: &Site) -> Result<Reply, Error> {
    let chain = user.chain.iter().map(|certificate| certificate.to_vec()).collect();
    let request = Request::OpenCopy { copy: raw::open_copy("/data"), by: CopySender::PopFor(chain) };
    raw::connect(from, asker, to).unwrap().ask(request)
}

#[test]
fn a_pop_speaks_only_for_users_its_site_vouches_for() {
    let Federation { titech, kek, .. } = &Federation::two();
    let host = Credential::host(&raw::home(titech), SystemTime::now()).unwrap();
    let own = raw::user(titech);
    assert_eq!(ask_for(titech, &host, &own, kek), Ok(Reply::Layout(CopyLayout::Into)));
    let refused = |asker: &Credential, user: &Credential| {
        let error = ask_for(titech, asker, user, kek).unwrap_err();
        assert_eq!(error.side, "kek", "{error}");
        error.code
    };
    assert_eq!(refused(&host, &raw::user(kek)), Code::NotAllowed, "of another site");
    assert_eq!(refused(&host, &host), Code::NotAllowed, "a PoP is no user");
    assert_eq!(refused(&own, &own), Code::NotAllowed, "a user speaks for himself");
    titech.ok(&["revoke", &format!("{}@titech", account())]);
    kek.take_card(titech);
    assert_eq!(refused(&host, &own), Code::CertificateRevoked);
    assert_eq!(crate::tree::count(kek.root()), 0);
}
