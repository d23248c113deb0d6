//! Extended attributes in a volume: set at the home, past renkei and at a follower, they are the same everywhere.

use super::following_writes::with_writer;
use crate::federation::{Federation, Site};
use crate::transfer::files::workspace;
use crate::tree::set_xattr;
use renkei_core::error::Code;
use renkei_core::path::RelPath;
use renkei_mover::files::workspace::{Create, Workspace};
use renkei_mover::files::workspace_suite::takes_attributes;
use std::fs;
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(30);

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

/// The volume at its home and at a follower, where the file systems keep attributes.
fn both(federation: &Federation) -> Option<[Workspace; 2]> {
    let Federation { titech, kek, .. } = federation;
    let keeps = |site: &Site| takes_attributes(site.root());
    if !keeps(kek) || !keeps(titech) {
        eprintln!("skipped: the file system keeps no attributes of users");
        return None;
    }
    Some([workspace(titech, kek, "/genome"), workspace(titech, titech, "/genome")])
}

fn await_value(at: &Workspace, name: &str, xattr: &[u8], value: Option<&[u8]>) {
    let (begun, name) = (Instant::now(), path(name));
    loop {
        match at.xattr(&name, xattr) {
            Ok(found) if found.as_deref() == value => return,
            Err(error) if error.code != Code::PathNotFound => panic!("{error}"),
            found => assert!(begun.elapsed() < WITHIN, "{found:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn plain_value(of: &Site, name: &str, xattr: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 100];
    let length = rustix::fs::getxattr(of.root().join("genome").join(name), xattr, &mut value).ok()?;
    value.truncate(length);
    Some(value)
}

#[test]
fn attributes_are_the_same_at_the_home_and_where_it_is_followed() {
    let federation = with_writer();
    let kek = &federation.kek;
    let Some([home, followed]) = both(&federation) else { return };
    let file = "2026/x.bam";
    home.set_xattr(&path(file), b"user.home", b"1").unwrap();
    assert_eq!(plain_value(kek, file, "user.home").as_deref(), Some(&b"1"[..]));
    await_value(&followed, file, b"user.home", Some(b"1"));
    followed.set_xattr(&path(file), b"user.followed", b"\0\xff").unwrap();
    await_value(&followed, file, b"user.followed", Some(b"\0\xff"));
    await_value(&home, file, b"user.followed", Some(b"\0\xff"));
    assert_eq!(plain_value(kek, file, "user.followed").as_deref(), Some(&b"\0\xff"[..]));
    // Past renkei, and on a directory.
    set_xattr(&kek.root().join("genome").join(file), b"user.past", b"2");
    set_xattr(&kek.root().join("genome/2026"), b"user.dir", b"3");
    await_value(&followed, file, b"user.past", Some(b"2"));
    await_value(&followed, "2026", b"user.dir", Some(b"3"));
    followed.remove_xattr(&path(file), b"user.home").unwrap();
    await_value(&home, file, b"user.home", None);
    followed.set_xattr(&path("2026"), b"user.dir", b"4").unwrap();
    await_value(&home, "2026", b"user.dir", Some(b"4"));
    assert_eq!(followed.xattrs(&path(file)).unwrap(), home.xattrs(&path(file)).unwrap());
    let much = vec![7; 60 << 10];
    for at in [&home, &followed] {
        let refused = at.set_xattr(&path(file), b"user.much", &[&much[..], &much].concat()).unwrap_err();
        assert_eq!(refused.code, Code::Unsupported, "{refused}");
    }
}

#[test]
fn attributes_come_with_the_content_of_a_follower_and_stay_with_the_next_version() {
    let federation = with_writer();
    let Some([home, followed]) = both(&federation) else { return };
    let write = |at: &Workspace, content: &[u8]| {
        let writer = at.create(&path("new"), Create::default()).unwrap();
        writer.write_at(content, 0).unwrap();
        writer.publish(None, None).unwrap();
    };
    write(&followed, b"content");
    followed.set_xattr(&path("new"), b"user.a", b"1").unwrap();
    let begun = Instant::now();
    while plain_value(&federation.kek, "new", "user.a").as_deref() != Some(b"1") {
        assert!(begun.elapsed() < WITHIN, "it is not in the plain file");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fs::read(federation.kek.root().join("genome/new")).unwrap(), b"content");
    write(&followed, b"second version");
    write(&home, b"third version");
    federation.kek.ok(&["volume", "check", "genome"]);
    await_value(&home, "new", b"user.a", Some(b"1"));
    await_value(&followed, "new", b"user.a", Some(b"1"));
    // A file of that name has none of them.
    home.remove(&path("new")).unwrap();
    write(&home, b"another file");
    assert_eq!(home.xattrs(&path("new")).unwrap(), []);
    federation.kek.ok(&["volume", "check", "genome"]);
    await_value(&followed, "new", b"user.a", None);
}
