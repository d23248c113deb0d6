//! Invitations: two sites come to trust each other by one line each.

use crate::federation::{Federation, Site, account};
use crate::wire::raw;
use renkei_core::error::Error;
use renkei_core::wire::frame::FrameKind;
use renkei_core::wire::message::Control;
use renkei_core::wire::{decode, encode};
use renkei_net::identity::credential::Credential;
use renkei_net::identity::trust::invitation::{Invitation, Secret};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::time::SystemTime;

fn invite(site: &Site) -> String {
    site.ok(&["invite"]).trim().to_owned()
}

fn code(report: &Value) -> &str {
    report["error"]["code"].as_str().unwrap_or_else(|| panic!("{report}"))
}

fn trusted(site: &Site) -> Vec<String> {
    let (_, listing) = site.json(&["trust", "list"]);
    let sites = listing["sites"].as_array().unwrap();
    sites.iter().map(|row| row["site"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn one_line_at_each_site_establishes_trust_and_a_copy_works() {
    let dir = tempfile::tempdir().unwrap();
    let [kek, titech] = ["kek", "titech"].map(|name| Site::start(dir.path(), name));
    let line = invite(&kek);
    let (status, joined) = titech.json(&["join", &line]);
    assert_eq!(
        (status, joined["site"].as_str(), joined["action"].as_str()),
        (0, Some("kek"), Some("added")),
        "{joined}"
    );
    assert_eq!((trusted(&kek), trusted(&titech)), (trusted(&titech), vec!["kek".into(), "titech".into()]));
    let (user, own) = (format!("{}@titech", account()), account());
    kek.ok(&["map", "add", "--yes", &user, &own]);
    let file = dir.path().join("file");
    fs::write(&file, "some data").unwrap();
    titech.ok(&["cp", file.to_str().unwrap(), "kek:/data/file"]);
    assert_eq!(fs::read(kek.root().join("file")).unwrap(), b"some data");
    // The same site may come again, as after a broken connection; nothing is new then.
    let (status, again) = titech.json(&["join", &line]);
    assert_eq!((status, again["action"].as_str()), (0, Some("unchanged")), "{again}");
}

#[test]
fn an_invitation_is_for_one_site_and_can_be_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    let [kek, titech, osaka] = ["kek", "titech", "osaka"].map(|name| Site::start(dir.path(), name));
    let line = invite(&kek);
    let mut join =
        titech.command().args(["join", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    join.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
    assert!(join.wait().unwrap().success());
    let (status, report) = osaka.json(&["join", &line]);
    assert_eq!((status, code(&report)), (6, "RK-CONF-9"), "{report}");
    assert_eq!(report["error"]["side"], "kek");
    let cancelled = invite(&kek);
    let (_, listing) = kek.json(&["invite", "--list"]);
    let open = listing["invitations"].as_array().unwrap().iter().find(|open| open["used"] == false).unwrap();
    kek.ok(&["invite", "--cancel", open["id"].as_str().unwrap()]);
    assert_eq!(code(&osaka.json(&["join", &cancelled]).1), "RK-CONF-9");
    assert_eq!((trusted(&kek).len(), trusted(&osaka).len()), (2, 1));
    assert_eq!(kek.json(&["invite", "--hours", "0"]).0, 2);
    assert_eq!(code(&osaka.json(&["join", "kek@nowhere"]).1), "RK-CONF-9");
}

#[test]
fn an_impostor_at_the_endpoint_does_not_learn_the_secret() {
    let dir = tempfile::tempdir().unwrap();
    let [kek, titech, osaka] = ["kek", "titech", "osaka"].map(|name| Site::start(dir.path(), name));
    let address = |site: &Site| site.address.to_string();
    let line = invite(&kek);
    let astray = line.replace(&address(&kek), &address(&osaka));
    assert_ne!(line, astray);
    let (status, report) = titech.json(&["join", &astray]);
    assert_eq!(
        (status, code(&report), report["error"]["side"].as_str()),
        (6, "RK-CONF-9", Some("client")),
        "{report}"
    );
    // It was asked for its card and heard no more: the line still works.
    assert_eq!(trusted(&osaka).len(), 1);
    titech.ok(&["join", &line]);
}

#[test]
fn the_joining_site_must_match_its_card() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let line = invite(kek);
    // titech's host shows the secret with the card of kek itself, and with one of a site whose key it lacks.
    let other = tempfile::tempdir().unwrap();
    let osaka = Site::start(other.path(), "osaka");
    for of in [kek, &osaka] {
        let card = of.ok(&["trust", "export"]);
        let refused = introduce(kek, titech, &line, card).unwrap_err();
        assert!(refused.code.to_string().starts_with("RK-AUTH"), "{refused}");
    }
    assert_eq!(trusted(kek).len(), 2);
    osaka.ok(&["join", &line]);
    assert_eq!(trusted(kek).len(), 3);
}

#[test]
fn a_used_invitation_accepts_the_same_card_only() {
    let dir = tempfile::tempdir().unwrap();
    let [kek, titech] = ["kek", "titech"].map(|name| Site::start(dir.path(), name));
    let line = invite(&kek);
    titech.ok(&["join", &line]);
    let known = kek.json(&["trust", "list"]).1;
    // The same site, with the key of its certificate and a card that leads elsewhere.
    let card = titech.ok(&["trust", "export"]);
    let address = titech.address.to_string();
    let moved = card.replace(&address, "127.0.0.1:9");
    assert_ne!(card, moved);
    let refused = introduce(&kek, &titech, &line, moved).unwrap_err();
    assert_eq!(refused.code.to_string(), "RK-CONF-9", "{refused}");
    assert!(refused.cause.contains("with another card"), "{refused}");
    assert_eq!(kek.json(&["trust", "list"]).1, known);
    // The card it was used with is taken again, as after a broken connection.
    let (status, again) = titech.json(&["join", &line]);
    assert_eq!((status, again["action"].as_str()), (0, Some("unchanged")), "{again}");
}

/// The answer of `at` if the host of `from` shows the secret of `line` with `card`.
fn introduce(at: &Site, from: &Site, line: &str, card: String) -> Result<(), Error> {
    let host = Credential::host(&raw::home(from), SystemTime::now()).unwrap();
    let mut stream = raw::dialler(from, &host).secure(&raw::name(at), at.address).unwrap();
    raw::put(&mut stream, FrameKind::Control, &encode(&Control::AskCard)).unwrap();
    let (_, payload) = raw::take(&mut stream).unwrap();
    assert!(matches!(decode("card", &payload), Ok(Control::OwnCard(_))));
    raw::put(&mut stream, FrameKind::Control, &encode(&Control::Introduce { secret: secret(line), card }))
        .unwrap();
    match raw::take(&mut stream).unwrap() {
        (FrameKind::Refusal, payload) => Err(decode("refusal", &payload).unwrap()),
        _ => Ok(()),
    }
}

/// The secret of an invitation's line.
fn secret(line: &str) -> Secret {
    line.parse::<Invitation>().unwrap().secret
}
