//! First steps: a PoP that is made in pieces, and several users beside a PoP of their own.

use crate::federation::{Federation, Site, account, binary, free_address};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs `renkei --dir DIR --json` of a user without a PoP.
fn json(dir: &Path, arguments: &[&str]) -> (i32, Value) {
    let Output { status, stdout, stderr } = command(dir).arg("--json").args(arguments).output().unwrap();
    let value = serde_json::from_slice(&stdout);
    let value =
        value.unwrap_or_else(|error| panic!("{arguments:?}: {error}: {}", String::from_utf8_lossy(&stderr)));
    (status.code().unwrap(), value)
}

fn command(dir: &Path) -> Command {
    let mut command = Command::new(binary());
    command.env_remove("RENKEI_DIR").env_remove("RENKEI_IDENTITY").arg("--dir").arg(dir).stdin(Stdio::null());
    command
}

#[test]
fn an_interrupted_init_is_resumed() {
    let parent = tempfile::tempdir().unwrap();
    let listen = free_address().to_string();
    let init = ["init", "--site", "kek", "--listen", &listen];
    // The files that exist when the process ends at one moment or another; the configuration is
    // written last.
    let left: [&[&str]; 4] = [
        &["pki/ca.key"],
        &["pki/ca.key", "pki/ca.pem"],
        &["pki/ca.key", "pki/ca.pem", "pki/host.key"],
        &["pki/ca.key", "pki/ca.pem", "pki/host.key", "pki/host.pem", "map"],
    ];
    for (number, files) in left.iter().enumerate() {
        let (whole, dir) =
            (parent.path().join(format!("whole{number}")), parent.path().join(format!("{number}")));
        let (_, made) = json(&whole, &init);
        for file in *files {
            fs::create_dir_all(dir.join(file).parent().unwrap()).unwrap();
            fs::copy(whole.join(file), dir.join(file)).unwrap();
        }
        let (status, again) = json(&dir, &init);
        assert_eq!(status, 0, "{files:?}: {again}");
        let is_kept = again["fingerprint"] == made["fingerprint"];
        assert_eq!(
            is_kept,
            files.contains(&"pki/ca.pem"),
            "an authority that may be in use stays: {files:?}"
        );
        let (status, listed) = json(&dir, &["trust", "list"]);
        assert_eq!((status, &listed["sites"][0]["own"]), (0, &true.into()), "{files:?}: {listed}");
    }
    let dir = parent.path().join("3");
    let (status, other) = json(&dir, &["init", "--site", "osaka"]);
    assert_eq!((status, &other["error"]["code"]), (4, &"RK-CONF-3".into()), "{other}");
}

#[test]
fn a_repeated_init_adds_missing_files() {
    let parent = tempfile::tempdir().unwrap();
    let (dir, data) = (parent.path().join("kek"), parent.path().join("data"));
    let listen = free_address().to_string();
    let (none, storage) =
        (format!("data={}/none", parent.path().display()), format!("data={}", data.display()));
    let init =
        |storage: &str| json(&dir, &["init", "--site", "kek", "--listen", &listen, "--storage", storage]);
    assert_ne!(init(&none).0, 0);
    assert!(!dir.join("config.toml").exists() && !dir.join("pki").exists(), "a typo makes nothing");
    fs::create_dir(&data).unwrap();
    let (_, first) = init(&storage);
    let config = fs::read(dir.join("config.toml")).unwrap();
    let (status, second) = init(&storage);
    assert_eq!((status, &second["fingerprint"]), (0, &first["fingerprint"]), "{second}");
    assert_eq!(fs::read(dir.join("config.toml")).unwrap(), config);
    let more = format!("more={}", data.display());
    assert_eq!(init(&more).0, 0);
    assert!(fs::read_to_string(dir.join("config.toml")).unwrap().contains("[storage.more]"));
    let (status, other) = json(&dir, &["init", "--site", "kek", "--listen", "127.0.0.1:1"]);
    assert_eq!((status, &other["error"]["code"]), (4, &"RK-CONF-3".into()), "{other}");
}

/// The sites that a directory trusts, as `trust list` has them.
fn trusted(dir: &Path) -> Vec<String> {
    let (_, listed) = json(dir, &["trust", "list"]);
    listed["sites"].as_array().unwrap().iter().map(|row| row["site"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_login_at_another_site_does_not_change_the_trust_of_the_own_pop() {
    let federation = Federation::two();
    let parent = tempfile::tempdir().unwrap();
    let laptop = Site::start(parent.path(), "laptop");
    fs::write(federation.kek.root().join("f"), "of kek").unwrap();
    laptop.ok(&["login", "--pop", federation.titech.dir().to_str().unwrap()]);
    assert_eq!(trusted(laptop.dir()), ["laptop"], "a login says whom the user trusts, not the PoP");
    // The user works with both sites that titech trusts.
    assert_eq!(laptop.ok(&["cat", "kek:/data/f"]), "of kek");
    laptop.ok(&["ls", "titech:/data"]);
    assert_eq!(trusted(laptop.dir()), ["laptop"]);
    // As a user of the own PoP again.
    laptop.ok(&["login"]);
    laptop.ok(&["ls", "laptop:/data"]);
    assert_ne!(laptop.json(&["ls", "kek:/data"]).0, 0, "laptop does not know kek");
}

#[test]
fn several_identities_coexist() {
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("person");
    let ok = |arguments: &[&str]| {
        let (status, told) = json(&dir, arguments);
        assert_eq!(status, 0, "{arguments:?}: {told}");
        told
    };
    ok(&["login", "--pop", titech.dir().to_str().unwrap()]);
    ok(&["--identity", "work", "login", "--pop", kek.dir().to_str().unwrap()]);
    let user = |site: &str| Value::from(format!("{}@{site}", account()));
    assert_eq!(ok(&["whoami"])["user"]["principal"], user("titech"));
    assert_eq!(ok(&["--identity", "work", "whoami"])["user"]["principal"], user("kek"));
    // Each has a trust of its own, and commands about trust are about that one.
    ok(&["--identity", "work", "trust", "remove", "kek"]);
    assert!(json(&dir, &["--identity", "work", "ls", "kek:/data"]).0 != 0);
    ok(&["ls", "kek:/data"]);
    ok(&["--identity", "work", "login", "--pop", kek.dir().to_str().unwrap()]);
    let mut by_environment = command(&dir);
    let output =
        by_environment.env("RENKEI_IDENTITY", "work").args(["--json", "whoami", "kek"]).output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["principal"], user("kek"), "{told}");
    ok(&["ls", "kek:/data"]);
    let secret = fs::metadata(dir.join("identities/work/credential.pem")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&secret) & 0o7777, 0o600);
    let (status, none) = json(&dir, &["--identity", "none", "ls", "kek:/data"]);
    assert!(status != 0 && none.to_string().contains("RK-AUTH-13"), "{none}");
    let (status, bad) = json(&dir, &["--identity", "../x", "whoami"]);
    assert_eq!((status, &bad["error"]["code"]), (2, &"RK-CONF-6".into()));
}
