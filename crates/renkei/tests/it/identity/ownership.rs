//! Owners, groups, access lists and set-id bits that a sender names: they grant no rights that the sender may not
//! give.

use crate::federation::{Federation, Site, account};
use crate::tree::{acl, set_xattr};
use renkei_core::error::Code;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(30);
const NAMES: [&str; 3] = ["root", "nobody", "group"];
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root to make files of others");
    }
    root
}

/// Files of several owners with all that gives rights away.
fn forge(dir: &Path) -> PathBuf {
    let folder = dir.join("forged");
    fs::create_dir_all(&folder).unwrap();
    let nobody = rights("nobody");
    for (name, owner, mode) in
        [(NAMES[0], (0, 0), 0o6755), (NAMES[1], nobody, 0o4755), (NAMES[2], (nobody.0, 0), 0o2755)]
    {
        let path = folder.join(name);
        fs::write(&path, "#!/bin/sh\nid\n").unwrap();
        chown(&path, Some(owner.0), Some(owner.1)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        set_xattr(&path, ACCESS_ACL, &acl(0o6));
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    folder
}

/// User and group of an account.
fn rights(name: &str) -> (u32, u32) {
    let account = renkei_net::identity::account::Account::lookup(name).unwrap();
    (account.uid, account.gid)
}

/// The received files belong to the account and grant no rights to others.
#[track_caller]
fn assert_harmless(folder: &Path, account: &str) {
    let (uid, gid) = rights(account);
    for name in NAMES {
        let path = folder.join(name);
        let found = path.metadata().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let seen = (found.uid(), found.gid(), found.mode() & 0o6000);
        assert_eq!(seen, (uid, gid, 0), "{}: owner, group, set-id bits", path.display());
        let mut room = [0; 256];
        let listed = rustix::fs::getxattr(&path, ACCESS_ACL, &mut room);
        assert_eq!(listed, Err(rustix::io::Errno::NODATA), "{}", path.display());
    }
}

/// Two sites; titech's user has no account at kek, only grants.
fn with_guest() -> Federation {
    let federation = Federation::two();
    federation.kek.ok(&["map", "remove", "root@titech"]);
    federation
}

/// Hands the volume's files out as this account.
fn volume_of(kek: &Site, account: &str) {
    kek.ok(&["volume", "create", "genome", "--storage", "data", "--account", account]);
    kek.ok(&["volume", "grant", "genome", "*@titech", "write"]);
}

fn send(from: &Site, folder: &Path, to: &str) {
    let sent = from.renkei(&["cp", "-r", folder.to_str().unwrap(), to]);
    let said = String::from_utf8_lossy(&sent.stderr);
    assert!(said.contains("set-id bits dropped"), "what is not kept is told: {said}");
}

fn await_file(path: &Path) {
    let begun = Instant::now();
    while !path.exists() {
        assert!(begun.elapsed() < WITHIN, "{} does not come", path.display());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_grant_on_a_volume_of_root_makes_nobody_root() {
    if !is_root() {
        return;
    }
    let federation = with_guest();
    let Federation { titech, kek, .. } = &federation;
    volume_of(kek, "root");
    send(titech, &forge(&federation.scratch()), "kek:/genome/");
    assert_harmless(&kek.root().join("genome/forged"), "root");
}

#[test]
fn a_grant_on_a_volume_opens_no_other_files_of_its_account() {
    if !is_root() {
        return;
    }
    let federation = with_guest();
    let Federation { titech, kek, .. } = &federation;
    volume_of(kek, "nobody");
    send(titech, &forge(&federation.scratch()), "kek:/genome/");
    assert_harmless(&kek.root().join("genome/forged"), "nobody");
}

#[test]
fn uploads_to_a_storage_with_an_account_set_no_owner() {
    if !is_root() {
        return;
    }
    let federation = with_guest();
    let Federation { titech, kek, .. } = &federation;
    kek.ok(&["map", "add", "root@titech", "daemon"]);
    kek.ok(&["storage", "remove", "data"]);
    kek.ok(&["storage", "add", "data", kek.root().to_str().unwrap(), "--account", "root"]);
    send(titech, &forge(&federation.scratch()), "kek:/data/");
    assert_harmless(&kek.root().join("forged"), "root");
}

#[test]
fn replicas_have_no_set_id_bits_or_owners_from_the_home() {
    if !is_root() {
        return;
    }
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    forge(&kek.root().join("genome"));
    kek.ok(&["volume", "create", "genome", "--storage", "data", "--in-place", "genome"]);
    kek.ok(&["volume", "grant", "genome", "titech", "read"]);
    let with = ["--from", "kek", "--storage", "data", "--account", "root", "--hold"];
    titech.ok(&[&["volume", "subscribe", "genome"], &with[..]].concat());
    let replicas = titech.root().join("genome/forged");
    NAMES.iter().for_each(|name| await_file(&replicas.join(name)));
    assert_harmless(&replicas, "root");
}

#[test]
fn changes_of_a_site_with_a_write_grant_set_no_owner_or_set_id_bits() {
    if !is_root() {
        return;
    }
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    kek.ok(&["volume", "create", "genome", "--storage", "data", "--account", "root"]);
    kek.ok(&["volume", "grant", "genome", "titech", "write"]);
    chown(titech.root(), Some(rights("nobody").0), None).unwrap();
    let with = ["--from", "kek", "--storage", "data", "--account", "nobody"];
    titech.ok(&[&["volume", "subscribe", "genome"], &with[..]].concat());
    titech.ok(&["volume", "grant", "genome", "*@titech", "write"]);
    let begun = Instant::now();
    while titech.json(&["volume", "show", "genome"]).1["standing"]["followed"]["writes"] != true {
        assert!(begun.elapsed() < WITHIN, "titech may not write");
        std::thread::sleep(Duration::from_millis(50));
    }
    let sent = titech.renkei(&["cp", "-r", forge(&federation.scratch()).to_str().unwrap(), "/genome/"]);
    assert!(String::from_utf8_lossy(&sent.stderr).contains("set-id bits dropped"), "{sent:?}");
    assert_harmless(&titech.root().join("genome/forged"), "nobody");
    let there = kek.root().join("genome/forged");
    NAMES.iter().for_each(|name| await_file(&there.join(name)));
    assert_harmless(&there, "root");
}

#[test]
fn a_user_with_an_own_account_keeps_permitted_owners_and_modes() {
    if !is_root() {
        return;
    }
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    titech.ok(&["cp", "-r", forge(&federation.scratch()).to_str().unwrap(), "kek:/data/"]);
    let came = kek.root().join("forged");
    assert_eq!(came.join("root").metadata().unwrap().mode() & 0o7777, 0o6755);
    assert_eq!(came.join("nobody").metadata().unwrap().uid(), rights("nobody").0);
}

#[test]
fn a_volume_runs_as_root_only_if_configured() {
    if !is_root() {
        return;
    }
    let federation = Federation::two();
    let Federation { titech, kek, .. } = &federation;
    let unsaid = |site: &Site, words: &[&str]| {
        let mut command = site.command();
        command.env_remove("RENKEI_VOLUMES_ACCOUNT").args(words).output().unwrap()
    };
    let create = ["volume", "create", "genome", "--storage", "data"];
    let refused = unsaid(kek, &create);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains(&Code::RootAccount.to_string()) && said.contains("--account"), "{said}");
    assert!(!kek.root().join("genome").exists(), "a refused volume leaves nothing");
    // A storage with an account makes the volume use that account.
    chown(kek.root(), Some(rights("nobody").0), None).unwrap();
    assert_eq!(unsaid(kek, &create).status.code(), Some(0));
    assert_eq!(kek.root().join("genome").metadata().unwrap().uid(), rights("nobody").0);
    assert!(
        !String::from_utf8_lossy(&unsaid(kek, &["volume", "grant", "genome", "titech", "read"]).stderr)
            .contains("root")
    );
    let refused = unsaid(titech, &["volume", "subscribe", "genome", "--from", "kek", "--storage", "data"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains(&Code::RootAccount.to_string()), "{refused:?}");
    kek.ok(&["volume", "set", "genome", &format!("account={}", account())]);
    let warned = kek.renkei(&["volume", "grant", "genome", "*@titech", "read"]);
    let said = String::from_utf8_lossy(&warned.stderr);
    assert!(said.contains("the account of /genome is root"), "{said}");
}

#[test]
fn a_guest_exposes_no_set_id_file() {
    if !is_root() {
        return;
    }
    let Federation { titech, kek, .. } = &with_guest();
    volume_of(kek, "root");
    let folder = kek.root().join("genome");
    let (tool, dir) = (folder.join("tool"), folder.join("shared"));
    fs::write(&tool, "#!/bin/sh\nid\n").unwrap();
    fs::create_dir(&dir).unwrap();
    for (path, mode) in [(&tool, 0o4700), (&dir, 0o2770)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    kek.ok(&["volume", "check", "genome"]);
    // Out of a directory that no other account may enter.
    titech.renkei(&["mkdir", "kek:/genome/open"]);
    let moved = titech.renkei(&["mv", "kek:/genome/tool", "kek:/genome/open/tool"]);
    assert!(String::from_utf8_lossy(&moved.stderr).contains("set-id"), "{moved:?}");
    assert!(tool.exists() && !folder.join("open/tool").exists());
    // Nor by opening that directory, or moving its entries elsewhere.
    let (closed, deep) = (folder.join("closed"), folder.join("closed/deep"));
    let (below, disk, able) = (deep.join("tool"), deep.join("disk"), deep.join("able"));
    fs::create_dir_all(&deep).unwrap();
    fs::copy(&tool, &below).unwrap();
    fs::copy("/bin/true", &able).unwrap();
    let cap = |name: &str, hex: &str| {
        let set = Command::new("setfattr").args(["-n", "security.capability", "-v", hex, name]).status();
        set.is_ok_and(|status| status.success())
    };
    // CAP_SETUID, permitted and effective.
    let has_caps = cap(able.to_str().unwrap(), "0x0100000280000000000000000000000000000000");
    let made = Command::new("mknod").arg(&disk).args(["b", "7", "200"]).status().unwrap().success();
    for (path, mode) in [(&below, 0o4755), (&able, 0o700), (&closed, 0o700)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    if made {
        fs::set_permissions(&disk, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let modes = [&closed, &deep, &below].map(|path| path.metadata().unwrap().mode());
    for words in [
        &["chmod", "755", "kek:/genome/closed"][..],
        &["mv", "kek:/genome/closed/deep", "kek:/genome/open/deep"],
        &["chmod", "755", "kek:/genome/closed/deep/able"],
        &["mv", "kek:/genome/closed/deep/able", "kek:/genome/open/able"],
        &["chmod", "666", "kek:/genome/closed/deep/disk"],
        &["mv", "kek:/genome/closed/deep/disk", "kek:/genome/open/disk"],
    ] {
        let needs_caps = words.iter().any(|word| word.ends_with("/able"));
        let needs_disk = words.iter().any(|word| word.ends_with("/disk"));
        if needs_caps && !has_caps || needs_disk && !made {
            eprintln!("SKIPPED: {words:?}");
            continue;
        }
        let refused = titech.renkei(words);
        assert!(!refused.status.success(), "{words:?}: {refused:?}");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains("capabilities, or") || said.contains("RK-STORE"), "{words:?}: {said}");
    }
    assert_eq!([&closed, &deep, &below].map(|path| path.metadata().unwrap().mode()), modes);
    if made {
        assert_eq!(disk.metadata().unwrap().mode() & 0o777, 0o600);
    }
    // The guest's own files, and directories without such files, are as before.
    titech.ok(&["chmod", "700", "kek:/genome/open"]);
    titech.ok(&["chmod", "755", "kek:/genome/open"]);
    titech.ok(&["mkdir", "kek:/genome/open/a"]);
    titech.ok(&["mv", "kek:/genome/open/a", "kek:/genome/b"]);
    let refused = titech.renkei(&["chmod", "4755", "kek:/genome/tool"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("set-id bits are not set"), "{refused:?}");
    assert_eq!(tool.metadata().unwrap().mode() & 0o7777, 0o4700, "a refused change has no effect");
    titech.renkei(&["mkdir", "kek:/genome/own"]);
    titech.renkei(&["chmod", "2777", "kek:/genome/own"]);
    assert_eq!(folder.join("own").metadata().unwrap().mode() & 0o6000, 0);
    titech.renkei(&["chmod", "0777", "kek:/genome/shared"]);
    assert_eq!(dir.metadata().unwrap().mode() & 0o7777, 0o2777, "bits set by the administrator stay");
}

#[test]
fn reserved_names_cannot_be_written() {
    let Federation { titech, kek, .. } = &Federation::two();
    fs::write(kek.root().join("seen"), "content").unwrap();
    let file = titech.root().join("f");
    fs::write(&file, "content").unwrap();
    let (file, hidden) = (file.to_str().unwrap(), ".rk~0000000000000001-0123456789abcdef");
    let (place, below) = (kek.place(hidden), kek.place(&format!("{hidden}/f")));
    let seen = kek.place("seen");
    for words in [
        &["cp", file, &place][..],
        &["cp", file, &below],
        &["mkdir", &place],
        &["mv", &seen, &place],
        &["ln", &seen, &place],
    ] {
        let (status, told) = titech.json(words);
        assert!(
            status != 0 && told.to_string().contains("files that are being received"),
            "{words:?}: {told}"
        );
    }
    assert!(!kek.root().join(hidden).exists() && kek.root().join("seen").exists());
}
