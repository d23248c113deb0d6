//! Sites that cannot be dialled: lines, calls, circuits through a third PoP.

use crate::federation::{Site, account, free_address};
use crate::tree::noise;
use renkei_core::wire::circuit::{MAGIC, preface};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A hub with the only port, and two sites that keep lines to it; `left` and `right` trust each other.
struct Sites {
    hub: Site,
    left: Site,
    right: Site,
    dir: TempDir,
}

impl Sites {
    fn start() -> Sites {
        let dir = tempfile::tempdir().unwrap();
        let hub = Site::start(dir.path(), "hub");
        let left = Site::start_private(dir.path(), "left", &hub);
        let right = Site::start_private(dir.path(), "right", &hub);
        let sites = Sites { hub, left, right, dir };
        sites.wait_for_lines(&["left", "right"]);
        let Sites { hub, left, right, .. } = &sites;
        // The line of a site without a port leads through the hub.
        let line = left.ok(&["invite"]);
        assert!(line.starts_with("left@hub/"), "{line}");
        right.ok(&["join", line.trim()]);
        for (site, other) in [(left, right), (right, left), (left, hub), (right, hub), (hub, left), (hub, right)] {
            site.ok(&["map", "add", &format!("{}@{}", account(), other.name), &account()]);
        }
        // The user's own card was made before the line was.
        sites
    }

    fn lines(&self) -> Vec<String> {
        let (_, status) = self.hub.json(&["status"]);
        let lines = status["lines"].as_array().unwrap();
        let mut lines: Vec<String> =
            lines.iter().map(|line| line["site"].as_str().unwrap().to_owned()).collect();
        lines.sort();
        lines
    }

    fn wait_for_lines(&self, sites: &[&str]) {
        wait_until(&self.hub, Duration::from_secs(20), || self.lines() == sites);
    }

    fn scratch(&self, name: &str, content: &[u8]) -> String {
        let path = self.dir.path().join(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    }
}

fn wait_until(site: &Site, within: Duration, is: impl Fn() -> bool) {
    let deadline = Instant::now() + within;
    while !is() {
        assert!(Instant::now() < deadline, "{}", site.logged());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn code(report: &Value) -> &str {
    report["error"]["code"].as_str().unwrap_or_else(|| panic!("{report}"))
}

#[test]
fn data_goes_both_ways_over_a_line() {
    let sites = Sites::start();
    let Sites { hub, left, .. } = &sites;
    let content = noise(3, 5 << 20);
    fs::write(hub.root().join("down"), &content).unwrap();
    // The hub calls; its users and its PoP reach the site.
    hub.ok(&["cp", &hub.place("down"), &left.place("pushed")]);
    assert!(fs::read(left.root().join("pushed")).unwrap() == content);
    let file = sites.scratch("file", &content);
    hub.ok(&["cp", &file, &left.place("up")]);
    hub.ok(&["cp", &left.place("up"), &format!("{file}.back")]);
    assert!(fs::read(format!("{file}.back")).unwrap() == content);
    // And the site dials, as ever.
    left.ok(&["cp", &left.place("up"), &hub.place("back")]);
    assert!(fs::read(hub.root().join("back")).unwrap() == content);
    let card = left.ok(&["trust", "export"]);
    assert!(card.contains("endpoints = []") && card.contains("via = [\"hub\"]"), "{card}");
}

#[test]
fn two_sites_without_a_port_exchange_data() {
    let sites = Sites::start();
    let Sites { hub, left, right, .. } = &sites;
    let content = noise(4, 9 << 20);
    fs::create_dir(left.root().join("many")).unwrap();
    fs::write(left.root().join("one"), &content).unwrap();
    for number in 0..1000 {
        fs::write(left.root().join(format!("many/{number}")), number.to_string()).unwrap();
    }
    left.ok(&["cp", "-r", &left.place("one"), &left.place("many"), &right.place("")]);
    assert!(fs::read(right.root().join("one")).unwrap() == content);
    assert_eq!(fs::read_dir(right.root().join("many")).unwrap().count(), 1000);
    let file = sites.scratch("file", &content);
    right.ok(&["cp", &file, &left.place("up")]);
    right.ok(&["cp", &left.place("up"), &format!("{file}.back")]);
    assert!(fs::read(format!("{file}.back")).unwrap() == content);
    // The hub saw neither plain text nor a session of the user's.
    assert!(!hub.logged().contains("authorised"), "{}", hub.logged());
    let (_, status) = hub.json(&["status"]);
    assert_eq!(status["transfers"].as_array().unwrap().len(), 0);
}
