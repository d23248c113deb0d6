//! Ending a subscription: the only copy of a file is not discarded without confirmation.

use crate::federation::{Federation, account};
use renkei_core::error::Code;
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(30);

fn await_that(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < WITHIN, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// kek's volume `genome`, which titech follows and may change; the home is away, and titech has written.
fn with_queued_changes() -> Federation {
    let mut federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    kek.ok(&["volume", "create", "genome", "--storage", "data"]);
    fs::write(kek.root().join("genome/old"), "from home").unwrap();
    kek.ok(&["volume", "check", "genome"]);
    kek.ok(&["volume", "grant", "genome", "titech", "write"]);
    let account = account();
    let with = ["--from", "kek", "--storage", "data", "--account", &account];
    titech.ok(&[&["volume", "subscribe", "genome"], &with[..]].concat());
    titech.ok(&["volume", "grant", "genome", "*@titech", "write"]);
    await_that("titech may write", || titech.renkei(&["mkdir", "/genome/dir"]).status.success());
    await_that("the home has it", || kek.ok(&["ls", "/genome"]).contains("dir"));
    federation.kek.stop();
    let source = federation.scratch().join("source");
    fs::write(&source, "acknowledged").unwrap();
    federation.titech.ok(&["cp", source.to_str().unwrap(), "/genome/dir/new"]);
    federation.titech.ok(&["rm", "/genome/old"]);
    federation
}

fn code(told: &(i32, Value)) -> (i32, &str) {
    (told.0, told.1["error"]["code"].as_str().unwrap_or_default())
}

#[test]
fn unsubscribing_is_refused_while_changes_are_queued_unless_abandoned() {
    let mut federation = with_queued_changes();
    let refused_code = Code::ChangesWait.to_string();
    let leave = ["volume", "unsubscribe", "genome"];
    let told = federation.titech.json(&leave);
    assert_eq!(code(&told), (4, refused_code.as_str()), "{told:?}");
    let files = federation.titech.json(&[&leave[..], &["--files"]].concat());
    assert_eq!(code(&files), (4, refused_code.as_str()), "{files:?}");
    let plain = federation.titech.root().join("genome/dir/new");
    assert_eq!(fs::read(&plain).unwrap(), b"acknowledged");
    assert!(federation.titech.ok(&["ls", "/genome/dir"]).contains("new"));
    // So it is where no PoP runs.
    federation.titech.stop();
    let told = federation.titech.json(&leave);
    assert_eq!(code(&told), (4, refused_code.as_str()), "{told:?}");
    federation.titech.restart();
    // Listed, and left as files.
    let (status, told) = federation.titech.json(&[&leave[..], &["--abandon"]].concat());
    assert_eq!((status, told["name"].as_str()), (0, Some("genome")), "{told}");
    let items = told["abandoned"]["items"].as_array().unwrap();
    let of =
        |change: &str| items.iter().find(|item| item["change"] == change).unwrap_or_else(|| panic!("{told}"));
    assert_eq!(of("write dir/new")["file"].as_str(), plain.to_str());
    assert!(of("remove old")["file"].is_null(), "{told}");
    assert_eq!(told["abandoned"]["changes"].as_u64().unwrap() as usize, items.len(), "{told}");
    assert_eq!(fs::read(&plain).unwrap(), b"acknowledged");
    assert!(federation.titech.ok(&["--json", "volume", "list"]).contains("\"volumes\":[]"));
    // The home never heard of them.
    federation.kek.restart();
    assert!(federation.kek.ok(&["ls", "/genome"]).contains("old"));
}

#[test]
fn unsubscribing_works_once_the_home_has_the_content() {
    let mut federation = with_queued_changes();
    // The home gets the names and pulls nothing: the content is here alone.
    federation.kek.ok(&["volume", "pause", "genome"]);
    federation.kek.restart();
    let Federation { titech, kek, .. } = &federation;
    await_that("nothing waits", || {
        titech.json(&["volume", "show", "genome"]).1["standing"]["followed"]["pending"] == 0
    });
    let told = titech.json(&["volume", "unsubscribe", "genome"]);
    assert_eq!(code(&told), (4, Code::ChangesWait.to_string().as_str()), "{told:?}");
    assert!(told.1["error"]["cause"].as_str().unwrap().contains("content of 1 file"), "{told:?}");
    kek.ok(&["volume", "resume", "genome"]);
    await_that("it ends", || titech.renkei(&["volume", "unsubscribe", "genome"]).status.success());
    assert_eq!(fs::read(kek.root().join("genome/dir/new")).unwrap(), b"acknowledged");
}

#[test]
fn an_unreachable_home_is_not_reported_as_lacking_content() {
    let mut federation = with_queued_changes();
    federation.kek.restart();
    await_that("the home has the content", || federation.kek.root().join("genome/dir/new").exists());
    await_that("nothing waits", || {
        federation.titech.json(&["volume", "show", "genome"]).1["standing"]["followed"]["pending"] == 0
    });
    federation.kek.stop();
    let titech = &federation.titech;
    let told = titech.json(&["volume", "unsubscribe", "genome"]);
    let (cause, (_, code)) = (told.1["error"]["cause"].as_str().unwrap_or_default(), code(&told));
    assert!(code.starts_with("RK-NET-"), "{told:?}");
    assert!(cause.contains("1 file written here") && cause.contains("--abandon"), "{told:?}");
    assert!(!cause.contains("does not have"), "{told:?}");
    assert!(told.1["error"]["remedy"].as_str().unwrap_or_default().contains("kek"), "{told:?}");
    let left = titech.ok(&["volume", "unsubscribe", "genome", "--abandon"]);
    assert!(left.contains("not reached") && left.contains("genome/dir/new"), "{left}");
}
