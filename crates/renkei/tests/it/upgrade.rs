//! Today's program on the state of two PoPs of an earlier version.
//!
//! `fixtures/make-state` made the state with a program of commit 926181d and killed both PoPs. It is unpacked in another place,
//! and its certificates may have expired: as after a move to another machine, the administrator logs in, exchanges the
//! cards of the new addresses, accepts the directories of the volume and renews the credentials of queued transfers.

use crate::federation::Site;
use crate::identity::administration::until;
use crate::queue::{ended, why};
use renkei_core::entry::{FileTime, Stamp};
use renkei_core::mover::journal::{Partial, Record, State};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/state-926181d.tar.xz");
/// Bytes of the file whose copy was cut off.
const CUT_BYTES: u64 = 8 << 20;

/// The states of the queued transfers, by label.
const STATES: [(&[&str], &str); 5] = [
    (&["finished"], "done"),
    (&["failed"], "failed"),
    (&["cancelled"], "cancelled"),
    (&["paused"], "paused"),
    (&["waiting", "after", "buffered", "cut"], "waiting"),
];

struct Upgraded {
    titech: Site,
    kek: Site,
    _dir: TempDir,
}

/// The state, with titech's PoP running; kek's is still down. `None` for others than root.
fn upgraded() -> Option<Upgraded> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: the accounts of the state are root's");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let unpack = ["--xattrs", "--xattrs-include=*", "-xJf", FIXTURE, "-C"];
    assert!(Command::new("tar").args(unpack).arg(dir.path()).status().unwrap().success());
    let [mut titech, kek] = ["titech", "kek"].map(|name| Site::empty(dir.path(), name));
    for site in [&titech, &kek] {
        let config = site.dir().join("config.toml");
        let text = fs::read_to_string(&config).unwrap();
        fs::write(&config, text.replace("@PARENT@", dir.path().to_str().unwrap())).unwrap();
    }
    titech.restart();
    titech.ok(&["login"]);
    accept_volume(&titech);
    Some(Upgraded { titech, kek, _dir: dir })
}

impl Upgraded {
    /// Starts kek's PoP; the two find each other at their new addresses.
    fn start_kek(&mut self) {
        self.kek.restart();
        self.kek.ok(&["login"]);
        accept_volume(&self.kek);
        self.titech.take_card(&self.kek);
        self.kek.take_card(&self.titech);
    }
}

/// The volume's files were copied with their times: they are the same versions.
fn accept_volume(site: &Site) {
    let accepted = site.ok(&["volume", "check", "genome", "--accept"]);
    assert!(accepted.contains("0 new, 0 removed, 0 changed"), "{accepted}");
}

/// The queued transfers of a site by their labels.
fn by_label(site: &Site) -> BTreeMap<String, Value> {
    let listed = site.json(&["transfers", "--all", "--ended"]).1;
    let transfers = listed["transfers"].as_array().unwrap();
    transfers.iter().map(|told| (told["label"].as_str().unwrap().to_owned(), told.clone())).collect()
}

fn id(transfer: &Value) -> &str {
    transfer["id"].as_str().unwrap()
}

/// What the journal knows a file by; unpacked files have other inode numbers and times of change.
fn stamp(path: &Path) -> Stamp {
    let data = fs::metadata(path).unwrap();
    let time = |secs, nanos: i64| FileTime { secs, nanos: nanos as u32 };
    Stamp {
        size: data.len(),
        mtime: time(data.mtime(), data.mtime_nsec()),
        ctime: time(data.ctime(), data.ctime_nsec()),
        ino: data.ino(),
    }
}

/// Writes a journal that names the unpacked source and temporary file in place of the former ones.
fn adopt_unpacked_files(sites: &Upgraded) {
    let named = |dir: &Path, part: &str| -> PathBuf {
        let mut listed = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        listed.find(|path| path.file_name().unwrap().to_str().unwrap().contains(part)).unwrap()
    };
    let temporary = named(sites.kek.root(), ".rk~");
    let job = temporary.file_name().unwrap().to_str().unwrap()[".rk~".len()..][..16].to_owned();
    let journal = named(&sites.kek.dir().join("state/journal"), &job);
    let bytes = fs::read(&journal).unwrap();
    let (state, good) = State::read(&bytes);
    assert_eq!(good, bytes.len());
    let (key, Partial { slots, .. }) = state.partial.into_iter().next().unwrap();
    assert!(slots.len() >= 3, "{slots:?}");
    let (source, temp_ino) = (stamp(&sites.titech.root().join("cut")), stamp(&temporary).ino);
    let mut adopted = Vec::new();
    Record::Header(state.header.unwrap()).write(&mut adopted);
    Record::Owner(state.owner.unwrap()).write(&mut adopted);
    for (slot, digest) in slots {
        Record::Slot { key, source, temp_ino, slot, digest }.write(&mut adopted);
    }
    fs::write(&journal, adopted).unwrap();
}

#[test]
fn queued_transfers_of_an_earlier_version_are_listed_and_end() {
    let Some(mut sites) = upgraded() else { return };
    let state_of = |label: &&str| by_label(&sites.titech)[*label]["state"].as_str().unwrap().to_owned();
    until("all is as it was", || {
        STATES.iter().all(|(labels, state)| labels.iter().all(|label| state_of(label) == *state))
    });
    let before = by_label(&sites.titech);
    assert_eq!(why(&sites.titech, id(&before["failed"]))["reason"]["code"], "RK-STORE-1");
    assert_eq!(why(&sites.titech, id(&before["after"]))["after"][0]["id"], before["waiting"]["id"]);
    assert!(sites.titech.ok(&["rule", "list"]).contains("titech:/data/drop -> kek:/data/dropped"));
    let notified = format!("the notification was not sent transfer=\"{}\"", id(&before["finished"]));
    until("the webhook is tried again", || sites.titech.logged().contains(&notified));
    let buffer = sites.titech.json(&["buffer"]).1;
    assert_eq!(
        (&buffer["transfers"][0]["id"], &buffer["transfers"][0]["stage"]),
        (&before["buffered"]["id"], &"whole".into())
    );
    for label in ["paused", "waiting", "after", "buffered", "cut"] {
        sites.titech.ok(&["renew", id(&before[label])]);
    }
    adopt_unpacked_files(&sites);
    sites.start_kek();
    let Upgraded { titech, kek, .. } = &sites;
    titech.ok(&["resume", id(&before["paused"])]);
    for label in ["paused", "waiting", "after", "buffered", "cut"] {
        assert_eq!(ended(titech, id(&before[label])), 0, "{:#}", why(titech, id(&before[label])));
    }
    for name in ["paused", "waiting", "after"] {
        assert_eq!(fs::read_to_string(kek.root().join(name)).unwrap(), "waiting\n");
    }
    assert!(!kek.root().join("cancelled").exists());
    assert_eq!(fs::read(kek.root().join("cut")).unwrap(), fs::read(titech.root().join("cut")).unwrap());
    let story = why(titech, id(&before["cut"]));
    let moved = story["story"].as_array().unwrap().last().unwrap()["bytes_moved"].as_u64().unwrap();
    assert!(moved > 0 && moved <= CUT_BYTES - (3 << 20), "{story:#}");
    assert_eq!(fs::read_to_string(kek.root().join("laptop/small")).unwrap(), "from a laptop\n");
    assert_eq!(fs::metadata(kek.root().join("laptop/large")).unwrap().mtime(), 1_714_979_289);
    until("the buffer is empty", || titech.json(&["buffer"]).1["reserved"] == 0);
    until("the drop folder is forwarded", || {
        fs::read_to_string(kek.root().join("dropped/measured.dat")).is_ok_and(|text| text == "dropped\n")
    });
}

/// What a site shows of a volume's file.
fn stat(site: &Site, path: &str) -> Value {
    site.json(&["stat", path]).1["entries"][0].clone()
}

fn names(site: &Site) -> Vec<String> {
    let mut names: Vec<String> = site.ok(&["find", "/genome"]).lines().map(str::to_owned).collect();
    names.sort();
    names
}

/// Names, contents and attributes of the volume with titech's changes.
fn check_volume(site: &Site) {
    let expected = "/genome /genome/from-titech /genome/from-titech/dir /genome/from-titech/late \
        /genome/from-titech/moved /genome/from-titech/new /genome/private /genome/private/link /genome/run \
        /genome/run/both /genome/run/one /genome/run/sub /genome/run/sub/two";
    assert_eq!(names(site).join(" "), expected);
    assert_eq!(site.ok(&["cat", "/genome/run/both"]), "changed at titech\n");
    assert_eq!(site.ok(&["cat", "/genome/from-titech/new"]), "new at titech\n");
    assert_eq!(site.ok(&["cat", "/genome/from-titech/moved"]), "content\n".repeat(25_000));
    assert_eq!(site.ok(&["cat", "/genome/run/one"]), "linked\n");
    let one = stat(site, "/genome/run/one");
    assert_eq!((&one["mode"], &one["mtime"]), (&"0640".into(), &"2024-02-29T12:34:56.123456789Z".into()));
    assert_eq!(one["inode"], stat(site, "/genome/run/sub/two")["inode"], "a hard link");
    let link = stat(site, "/genome/private/link");
    assert_eq!(
        (&link["target"], &link["mtime"]),
        (&"../run/one".into(), &"2023-01-02T03:04:05.678000000Z".into())
    );
    assert_eq!(stat(site, "/genome/private")["mode"], "2750");
}

fn followed(site: &Site) -> Value {
    site.json(&["volume", "show", "genome"]).1["standing"]["followed"].clone()
}

#[test]
fn a_followed_volume_of_an_earlier_version_pushes_its_changes() {
    let Some(mut sites) = upgraded() else { return };
    assert!(followed(&sites.titech)["pending"].as_u64() > Some(5), "{}", followed(&sites.titech));
    let known = sites.titech.ok(&["cat", "/genome/from-titech/new"]);
    assert_eq!(known, "new at titech\n", "its home is down");
    sites.start_kek();
    let Upgraded { titech, kek, .. } = &sites;
    until("titech pushes its changes", || followed(titech)["pending"] == 0);
    until("the home has their content", || {
        kek.root().join("genome/from-titech/late").exists()
            && fs::read_to_string(kek.root().join("genome/run/both"))
                .is_ok_and(|text| text == "changed at titech\n")
    });
    check_volume(titech);
    check_volume(kek);
    assert_eq!(fs::metadata(kek.root().join("genome/run/one")).unwrap().nlink(), 2);
    let attributes = &stat(kek, "/genome/run/one")["xattrs"];
    assert_eq!((&attributes[0]["name"], &attributes[0]["value"]), (&"user.sample".into(), &"42".into()));
    let found = kek.json(&["volume", "check", "genome"]).1["found"].clone();
    assert_eq!(
        (&found["new"], &found["changed"], &found["gone"]),
        (&0.into(), &0.into(), &0.into()),
        "{found}"
    );
    let replicas = titech.json(&["where", "/genome/run"]).1["replicas"].clone();
    assert_eq!((&replicas[1]["site"], &replicas[1]["files"]), (&"titech".into(), &3.into()), "{replicas}");
    for site in [titech, kek] {
        assert!(site.ok(&["verify", "/genome"]).contains("5 files"));
    }
}

#[test]
fn quotas_grants_trust_and_mapping_of_an_earlier_version_hold() {
    let Some(mut sites) = upgraded() else { return };
    sites.start_kek();
    let Upgraded { titech, kek, .. } = &sites;
    assert!(titech.ok(&["whoami", "kek"]).starts_with("root@titech is root at kek"));
    assert!(titech.ok(&["map", "list"]).contains("root@kek"));
    assert_eq!(kek.ok(&["volume", "show", "genome"]).matches("\ngrant ").count(), 2);
    let used = kek.json(&["volume", "quota", "genome"]).1["used"].clone();
    assert_eq!(
        (&used[0]["limit_bytes"], &used[0]["limit_files"]),
        (&10_485_760.into(), &1000.into()),
        "{used}"
    );
    assert_eq!((&used[1]["owner"], &used[1]["limit_bytes"]), (&"root".into(), &9_437_184.into()), "{used}");
    until("titech pushes its changes", || followed(titech)["pending"] == 0);
    let big = titech.dir().join("big");
    fs::write(&big, vec![7; 11 << 20]).unwrap();
    for site in [kek, titech] {
        let refused = site.json(&["cp", big.to_str().unwrap(), "/genome/run/big"]).1.to_string();
        assert!(refused.contains("RK-STORE-7"), "{refused}");
    }
    fs::write(&big, "small").unwrap();
    titech.ok(&["cp", big.to_str().unwrap(), "/genome/run/small"]);
}
