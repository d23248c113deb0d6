//! Commands that are easy to type and hard to undo: each asks or refuses, and then changes nothing.
//!
//! No test has a terminal: a command that would ask must print its reason and end.

use crate::federation::{Federation, Site, account};
use crate::wire::raw;
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition holds, and fails with `what` after a timeout.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The code and cause of a command that must fail.
fn refused(site: &Site, arguments: &[&str]) -> (String, String) {
    let (status, report) = site.json(arguments);
    assert_ne!(status, 0, "{arguments:?}: {report}");
    let text = |field: &str| report["error"][field].as_str().unwrap_or_default().to_owned();
    (text("code"), text("cause"))
}

fn first_code(report: &Value) -> String {
    let code = &report["failures"][0]["code"];
    code.as_str().or(report["error"]["code"].as_str()).unwrap_or_default().to_owned()
}

#[test]
fn a_blocked_user_has_neither_account_nor_grant() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    fs::create_dir(kek.root().join("shared")).unwrap();
    kek.ok(&["volume", "create", "open", "--storage", "data", "--in-place", "shared"]);
    let user = format!("{}@titech", account());
    kek.ok(&["volume", "grant", "open", &user, "read"]);
    titech.ok(&["ls", "kek:/data"]);
    kek.ok(&["map", "deny", &user]);
    for place in ["kek:/data", "kek:/open"] {
        until("the user is out", || titech.json(&["ls", place]).0 != 0);
        assert_eq!(first_code(&titech.json(&["ls", place]).1), "RK-AUTH-26", "{place}");
    }
    let (status, tested) = kek.json(&["map", "test", &user]);
    assert!(status != 0 && tested["why"]["by"] == "shut_out", "{tested}");
    kek.ok(&["map", "remove", &user]);
    until("the grant speaks again", || titech.json(&["ls", "kek:/open"]).0 == 0);
}

#[test]
fn a_blocked_user_of_the_own_site_gets_no_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::start(dir.path(), "kek");
    site.ok(&["ls", "kek:/data"]);
    site.ok(&["map", "deny", &format!("{}@kek", account())]);
    until("the user is out", || site.json(&["ls", "kek:/data"]).0 != 0);
    assert_eq!(first_code(&site.json(&["ls", "kek:/data"]).1), "RK-AUTH-26");
    assert_eq!(refused(&site, &["login"]).0, "RK-AUTH-26");
    let grant = ["mount-credential", "grant", "x", "--user", &account()];
    assert_eq!(refused(&site, &grant).0, "RK-AUTH-26");
}

#[test]
fn a_suspicious_rule_needs_confirmation() {
    let federation = Federation::two();
    let kek = &federation.kek;
    let map = || fs::read_to_string(raw::home(kek).map_file()).unwrap();
    let before = map();
    for (pattern, account, doubt) in [
        ("alice@titech", "no-such-account", "no account no-such-account"),
        ("alice@titech", "root", "everything on this machine"),
        ("alice@nowhere", "nobody", "no site nowhere"),
        ("*@nowhere", "*", "no site nowhere"),
    ] {
        let (code, cause) = refused(kek, &["map", "add", pattern, account]);
        assert!(code == "RK-CONF-11" && cause.contains(doubt), "{pattern} {account}: {code} {cause}");
        assert_eq!(map(), before);
    }
    let output = kek.renkei(&["map", "add", "alice@titech", "no-such-account", "--yes"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("warning: this machine has no account"), "{output:?}");
    assert!(
        kek.renkei(&["map", "add", "bob@titech", "nobody"]).stderr.is_empty(),
        "an ordinary rule needs no word"
    );
    assert!(map().contains("alice@titech no-such-account\nbob@titech nobody\n"));
}

#[test]
fn revoking_the_own_pop_needs_confirmation() {
    let dir = tempfile::tempdir().unwrap();
    let site = Site::start(dir.path(), "kek");
    let (code, cause) = refused(&site, &["revoke", "kek"]);
    assert!(code == "RK-CONF-11" && cause.contains("renkei renew --new-key"), "{code} {cause}");
    site.ok(&["ls", "kek:/data"]);
    site.ok(&["revoke", "kek", "--yes"]);
    until("the PoP is refused", || site.json(&["ls", "kek:/data"]).0 != 0);
    let told = || site.json(&["status"]).1["conditions"].to_string();
    until("its administrator is told", || told().contains("RK-AUTH-5") && told().contains("--new-key"));
    site.ok(&["renew", "--new-key"]);
    until("the PoP is believed again", || site.json(&["ls", "kek:/data"]).0 == 0);
    until("that is over", || !told().contains("RK-AUTH-5"));
}

#[test]
fn a_site_does_not_get_another_name_by_its_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let mut site = Site::start(dir.path(), "kek");
    let path = raw::home(&site).config_file();
    let before = fs::read_to_string(&path).unwrap();
    fs::write(&path, before.replace("site = \"kek\"", "site = \"kek2\"")).unwrap();
    let (code, cause) = refused(&site, &["trust", "list"]);
    assert!(code == "RK-CONF-13" && cause.contains("authority of kek"), "{code} {cause}");
    until("the PoP says that it goes on as before", || site.logged().contains("RK-CONF-13"));
    site.stop();
    let mut command = std::process::Command::new("timeout");
    command.args(["-k", "5", "60"]).arg(crate::federation::binary()).arg("--dir").arg(site.dir());
    let output = command.args(["--json", "serve"]).stdin(std::process::Stdio::null()).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("RK-CONF-13"), "{output:?}");
    fs::write(&path, before).unwrap();
    site.restart();
    site.ok(&["ls", "kek:/data"]);
}
