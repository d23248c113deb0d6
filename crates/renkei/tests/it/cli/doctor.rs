//! `renkei doctor` on this machine: nothing to say of a fresh PoP that is fine, one recommended value for each setting, and a look at
//! all that a PoP has.

use crate::federation::{Federation, Site};
use serde_json::Value;
use std::path::Path;

fn checks(site: &Site) -> Vec<Value> {
    site.json(&["doctor"]).1["checks"].as_array().unwrap().clone()
}

#[test]
fn a_fresh_machine_that_is_fine_has_no_warning() {
    let dir = tempfile::tempdir().unwrap();
    let mut site = Site::empty(dir.path(), "kek");
    let listen = site.address.to_string();
    site.ok(&["init", "--site", "kek", "--listen", &listen]);
    site.restart();
    // Checks of the machine that runs the tests are not about the PoP.
    let of_machine = ["clock", "open files", "TCP buffers", "connection backlog", "room"];
    let bad = |check: &Value| {
        let what = check["what"].as_str().unwrap();
        check["level"] != "ok" && !of_machine.iter().any(|one| what.starts_with(one))
    };
    let bad: Vec<Value> = checks(&site).into_iter().filter(bad).collect();
    assert!(bad.is_empty(), "{bad:?}");
}

#[test]
fn a_setting_has_one_recommended_value() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/operations.md")).unwrap();
    let source = std::fs::read_to_string(root.join("crates/renkei/src/cli/doctor/kernel.rs")).unwrap();
    let buffer = "268435456";
    let settings = [
        format!("net.core.rmem_max = {buffer}"),
        format!("net.core.wmem_max = {buffer}"),
        format!("net.ipv4.tcp_rmem = 4096 131072 {buffer}"),
        format!("net.ipv4.tcp_wmem = 4096 65536 {buffer}"),
        "net.core.default_qdisc = fq".into(),
    ];
    for setting in &settings {
        assert!(page.contains(setting.as_str()), "docs/operations.md: {setting}");
        let in_source = setting.replace(buffer, "{RECOMMENDED_BUFFER}");
        assert!(source.contains(&in_source), "doctor: {in_source}");
        let (name, _) = setting.split_once('=').unwrap();
        let named = page.lines().filter(|line| line.trim_start().starts_with(name)).count();
        assert_eq!(named, 1, "docs/operations.md has another value of {name}");
    }
    assert!(source.contains("const RECOMMENDED_BUFFER: u64 = 256 << 20;"));
}

#[test]
fn volumes_rules_lines_and_certificates_are_checked() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    titech.ok(&["volume", "create", "genome", "--storage", "data"]);
    titech.ok(&["volume", "grant", "genome", "kek", "read"]);
    kek.ok(&["volume", "subscribe", "genome", "--from", "titech", "--storage", "data"]);
    std::fs::create_dir(titech.root().join("drop")).unwrap();
    titech.ok(&["rule", "add", "raw", "titech:/data/drop", "kek:/data/raw"]);
    for (site, what) in [
        (titech, "volume genome"),
        (titech, "rule raw"),
        (titech, "host certificate"),
        (titech, "authority of titech"),
        (titech, "authority of kek"),
        (kek, "volume genome"),
    ] {
        let all = checks(site);
        let check = all.iter().find(|one| one["what"] == what);
        let check = check.unwrap_or_else(|| panic!("{}: no {what} in {all:?}", site.name));
        assert_eq!(check["level"], "ok", "{check}");
    }
}
