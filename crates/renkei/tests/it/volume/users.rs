//! Volumes that users make and manage from another site.

use crate::federation::{Federation, Site, account};
use renkei_core::error::Code;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Two sites; users of titech may make volumes at kek, where they are `nobody` if possible.
fn federation() -> Federation {
    let federation = Federation::two();
    let kek = &federation.kek;
    if is_root() {
        kek.ok(&["map", "remove", "root@titech"]);
        kek.ok(&["map", "add", "--yes", "root@titech", "nobody"]);
    }
    // All accounts may make directories here.
    fs::set_permissions(kek.root(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(kek.root().parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    federation
}

fn allow(kek: &Site) {
    let config = kek.dir().join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(config, format!("{text}\n[volumes]\ncreate = [\"*@titech\"]\n")).unwrap();
}

#[track_caller]
fn refused(site: &Site, arguments: &[&str], code: Code) {
    let (status, told) = site.json(arguments);
    assert_eq!(told["error"]["code"], code.to_string(), "{arguments:?}: {told}");
    assert_ne!(status, 0);
}

const CREATE: [&str; 7] = ["volume", "create", "genome", "--home", "kek", "--storage", "data"];

#[test]
fn a_user_creates_and_manages_a_volume() {
    let federation = federation();
    let Federation { titech, kek, .. } = &federation;
    refused(titech, &CREATE, Code::NotAllowed);
    // The operator of the PoP names its own site, too.
    let policy = ["--replicas", "2", "--at", "kek,titech"];
    kek.ok(&[&["volume", "create", "own", "--home", "kek", "--storage", "data"][..], &policy].concat());
    assert_eq!(kek.json(&["volume", "show", "own"]).1["care"]["policy"][0]["replicas"], 2);
    allow(kek);
    titech.ok(&CREATE);
    let plain = kek.root().join("genome");
    assert!(!is_root() || plain.metadata().unwrap().uid() != 0);
    refused(titech, &CREATE, Code::PathExists);
    refused(titech, &["volume", "create", "data", "--at", "kek", "--storage", "data"], Code::PathExists);
    refused(titech, &["volume", "create", "g2", "--at", "kek", "--storage", "none"], Code::StorageUnknown);
    let me = format!("{}@titech", account());
    let (_, shown) = titech.json(&["volume", "show", "kek:/genome"]);
    assert_eq!(shown["managers"][0], me.as_str(), "{shown}");
    assert_eq!(shown["standing"]["is_scanning"], false);
    assert!(titech.ok(&["volume", "list", "--at", "kek"]).starts_with("genome"));
    titech.ok(&["mkdir", "kek:/genome/public"]);

    // A user who does not manage it sees it, and changes nothing; a named manager does.
    let set = ["volume", "set", "kek:/genome", "scan_every_s=7"];
    refused(kek, &set, Code::NotAllowed);
    refused(kek, &["volume", "delete", "kek:/genome"], Code::NotAllowed);
    titech.ok(&["volume", "grant", "kek:/genome", "*@nig", "read", "--on", "public"]);
    assert_eq!(kek.json(&["volume", "show", "kek:/genome"]).1["grants"], serde_json::json!([]));
    refused(titech, &["volume", "grant", "kek:/genome", "nig", "read", "--on", "public"], Code::UsageInvalid);
    refused(titech, &["volume", "set", "kek:/genome", "account=root"], Code::UsageInvalid);
    titech.ok(&["volume", "set", "kek:/genome", &format!("managers={me},{}@kek", account())]);
    kek.ok(&set);
    let (_, shown) = kek.json(&["volume", "show", "kek:/genome"]);
    assert_eq!((&shown["scan_every_s"], &shown["grants"][0]["to"]), (&7.into(), &"*@nig".into()), "{shown}");
    titech.ok(&["volume", "revoke", "kek:/genome", "*@nig"]);

    fs::write(plain.join("public/new"), "new").unwrap();
    titech.ok(&["volume", "check", "kek:/genome"]);
    titech.ok(&["volume", "delete", "kek:/genome"]);
    refused(titech, &["volume", "show", "kek:/genome"], Code::VolumeUnknown);
    assert!(plain.join("public/new").exists());
    let in_place = ["volume", "create", "again", "--at", "kek", "--storage", "data", "--in-place", "genome"];
    titech.ok(&in_place);
    assert_eq!(titech.ok(&["ls", "kek:/again/public"]), "new\n");
}

#[test]
fn a_user_cannot_make_a_volume_of_files_of_others() {
    let federation = federation();
    let Federation { titech, kek, .. } = &federation;
    allow(kek);
    let create = |path: &str, code| {
        let arguments =
            ["volume", "create", "genome", "--at", "kek", "--storage", "data", "--in-place", path];
        refused(titech, &arguments, code);
    };
    create("missing", Code::PathNotFound);
    create("../kek", Code::BadPath);
    create("/etc", Code::UsageInvalid);
    std::os::unix::fs::symlink("/etc", kek.root().join("out")).unwrap();
    create("out", Code::NotADirectory);
    let account = ["volume", "create", "genome", "--at", "kek", "--storage", "data", "--account", "root"];
    refused(titech, &account, Code::UsageInvalid);
    if is_root() {
        for (name, mode) in [("open", 0o777), ("closed", 0o700)] {
            let dir = kek.root().join(name);
            fs::create_dir_all(dir.join("below")).unwrap();
            fs::set_permissions(dir, fs::Permissions::from_mode(mode)).unwrap();
        }
        create("open", Code::PermissionDenied);
        create("closed", Code::PermissionDenied);
        create("closed/below", Code::PermissionDenied);
        let new = ["volume", "create", "genome", "--at", "kek", "--storage", "data", "--path", "closed/new"];
        refused(titech, &new, Code::PermissionDenied);
    }
    assert_eq!(titech.json(&["volume", "list", "--at", "kek"]).1["volumes"], serde_json::json!([]));
}
