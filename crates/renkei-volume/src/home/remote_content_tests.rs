//! Tests of the home's half of changes that followers made first: remote content, backfill, conflicts, restarts.

use super::tests::{Place, assert_log, rel};
use crate::{Arrived, Elsewhere, FileVerdict, INCOMING, VolumeStore, Wanted};
use renkei_catalogue::AwayAt;
use renkei_core::entry::{EntryKind, FileTime, Meta, Stamp};
use renkei_core::error::{Code, Error};
use renkei_core::namespace::{
    Attributes, Base, Beside, Change, Dentry, Kind, NewKind, Node, NodeId, Origin, ROOT, SequencedChange,
};
use renkei_store::{Detail, Dir, ReadFile, Store, passwd};
use rustix::fs::IFlags;
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;

const TITECH: Origin = Origin(1);

/// A follower with its content.
struct Writer {
    number: u64,
    content: BTreeMap<String, Vec<u8>>,
}

fn attributes(mode: u32, secs: i64) -> Attributes {
    let name = |name: Option<String>| name.unwrap_or_default();
    Attributes {
        mode,
        owner: name(passwd::user_name(rustix::process::geteuid().as_raw())),
        group: name(passwd::group_name(rustix::process::getegid().as_raw())),
        mtime: FileTime { secs, nanos: 7 },
    }
}

fn spot(dir: NodeId, name: &str) -> Dentry {
    Dentry { dir, name: name.into() }
}

impl Writer {
    fn new() -> Self {
        Writer { number: 0, content: BTreeMap::new() }
    }

    fn numbered(&mut self, changes: Vec<Change>) -> Vec<SequencedChange> {
        let numbered = changes.into_iter().map(|change| {
            self.number += 1;
            SequencedChange { origin: TITECH, number: self.number, change }
        });
        numbered.collect()
    }

    fn submit(&mut self, place: &Place, changes: Vec<Change>) {
        let changes = self.numbered(changes);
        place.volume.submit(changes.clone()).unwrap();
        // The changes are sent again, as after a lost answer.
        place.volume.submit(changes).unwrap();
    }

    fn make(&self, id: u64, at: Dentry, kind: NewKind, mode: u32) -> Change {
        let attributes = attributes(mode, 1_000 + id as i64);
        Change::Make { id: TITECH.id(id), at, kind, attributes, keep_both: true }
    }

    /// A file with content.
    fn file(&mut self, id: u64, at: Dentry, path: &str, content: &[u8]) -> Vec<Change> {
        self.content.insert(path.into(), content.to_vec());
        let made = self.number + 1;
        vec![
            self.make(id, at.clone(), NewKind::File, 0o640),
            write(TITECH.id(id), Base::Own(made), content.len(), 1_000 + id as i64, id + 500, at),
        ]
    }
}

fn write(id: NodeId, base: Base, size: usize, secs: i64, beside: u64, at: Dentry) -> Change {
    let attributes = attributes(0o640, secs);
    let mtime = attributes.mtime;
    let beside = Some(Beside { id: TITECH.id(beside), at, attributes });
    Change::SetContent { id, base, size: size as u64, digest: None, mtime, beside }
}

struct Bytes(Vec<u8>, Stamp);

impl ReadFile for Bytes {
    fn stamp(&self) -> Result<Stamp, Error> {
        Ok(self.1)
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Error> {
        let rest = self.0.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
    fn next_data(&self, _from: u64) -> Result<Option<Range<u64>>, Error> {
        Ok(None)
    }
    fn advise_sequential(&self, _range: Range<u64>) {}
    fn has_writer(&self) -> bool {
        false
    }
}

struct There(BTreeMap<String, Vec<u8>>);

impl Elsewhere for There {
    fn open(&self, wanted: &Wanted<'_>) -> Result<Box<dyn ReadFile>, Error> {
        let content = self.0.get(&wanted.path.to_string());
        let missing = || Error::new(Code::PathNotFound, "open", wanted.path, "at titech");
        Ok(Box::new(Bytes(content.cloned().ok_or_else(missing)?, wanted.stamp)))
    }
}

/// The view of a user at the home for whom the other site is reachable.
fn view(place: &Place, writer: &Writer) -> Arc<dyn Dir> {
    let there = Arc::new(There(writer.content.clone()));
    VolumeStore::with_elsewhere(place.volume.clone(), there).root().unwrap()
}

fn listed(dir: &dyn Dir) -> Vec<String> {
    let names = dir.list().unwrap().map(|listed| String::from_utf8(listed.unwrap().name).unwrap());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with(".rk~")).collect();
    names.sort();
    names
}

fn read(dir: &dyn Dir, name: &str) -> Vec<u8> {
    let file = dir.open_read(name.as_bytes()).unwrap();
    let mut bytes = vec![0; file.stamp().unwrap().size as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// Fetches all remote content, as the site does.
fn bring(place: &Place, writer: &Writer) {
    let root = renkei_store::local::LocalStore::open(&place.top, renkei_store::local::AccessMode::ReadWrite);
    let root = root.unwrap().root().unwrap();
    let _ = root.mkdir(INCOMING, 0o700);
    let incoming = root.child(INCOMING).unwrap();
    let Some((_, found)) = place.volume.find_away(0, 1000).unwrap() else { return };
    let mut arrived = Vec::new();
    for found in found {
        let node = place.volume.tree().node(found.id).unwrap().unwrap();
        let file = incoming.create_temp(&found.name, false).unwrap();
        file.write_at(&writer.content[&found.path.to_string()], 0).unwrap();
        let mtime = node.attributes.mtime;
        file.set_meta(&Meta { mode: 0o600, mtime, ..Meta::default() }).unwrap();
        arrived.push(Arrived { id: found.id, version: found.version, name: found.name });
    }
    place.volume.place(arrived).unwrap();
}

fn node(place: &Place, at: &Dentry) -> Option<(NodeId, Node)> {
    place.volume.tree().child(at).unwrap()
}

fn version(place: &Place, at: &Dentry) -> u64 {
    match node(place, at).unwrap().1.kind {
        Kind::File(content) => content.version,
        other => panic!("{other:?}"),
    }
}

fn only_there(place: &Place) -> Vec<AwayAt> {
    place.volume.away_by_site().unwrap()
}

/// A scan finds nothing, and no record was added meanwhile.
fn assert_quiet(place: &Place) {
    place.volume.flush().unwrap();
    let before = place.volume.standing().unwrap().records;
    let found = place.check();
    assert_eq!((found.new, found.gone, found.changed, found.failed), (0, 0, 0, 0), "{found:?}");
    assert_eq!(place.volume.standing().unwrap().records, before, "{found:?}");
}

#[test]
fn remote_files_are_shown_before_their_content_arrives_and_plain_after() {
    let (place, mut writer) = (Place::new(), Writer::new());
    place.check();
    let dir = TITECH.id(1);
    let mut changes = vec![writer.make(1, spot(ROOT, "run"), NewKind::Dir, 0o755)];
    writer.number += 1;
    changes.extend(writer.file(2, spot(dir, "a"), "run/a", b"of titech"));
    writer.number -= 1;
    changes.push(writer.make(3, spot(dir, "empty"), NewKind::File, 0o644));
    changes.push(writer.make(4, spot(ROOT, "link"), NewKind::Symlink(b"run/a".to_vec()), 0o777));
    changes.push(Change::Link {
        id: TITECH.id(2),
        at: spot(dir, "b"),
        time: FileTime { secs: 1_004, nanos: 7 },
    });
    writer.submit(&place, changes);
    assert!(place.at("run").is_dir() && place.at("run/empty").is_file());
    assert_eq!(fs::read_link(place.at("link")).unwrap().to_str(), Some("run/a"));
    assert!(!place.at("run/a").exists());
    assert_eq!(only_there(&place), [AwayAt { origin: TITECH, count: 1, bytes: 9 }]);
    let root = view(&place, &writer);
    let run = root.child(b"run").unwrap();
    assert_eq!(
        (listed(&*root), listed(&*run)),
        (vec!["link".into(), "run".into()], vec!["a".into(), "b".into(), "empty".into()])
    );
    let (entry, raw) = run.entry(b"a", Detail::Full).unwrap();
    assert!(matches!(entry.kind, EntryKind::File { stamp: Stamp { size: 9, .. }, .. }), "{entry:?}");
    assert_eq!((entry.meta.mode, raw.nlink), (0o640, 2));
    assert_eq!(read(&*run, "a"), b"of titech");
    assert_eq!(root.remove_dir(b"run").unwrap_err().code, Code::NotEmpty);
    assert_quiet(&place);
    bring(&place, &writer);
    assert_eq!(only_there(&place), []);
    assert_eq!(fs::read(place.at("run/b")).unwrap(), b"of titech");
    assert_eq!(fs::metadata(place.at("run/a")).unwrap().nlink(), 2);
    assert_eq!(read(&*run, "a"), b"of titech");
    assert_quiet(&place);
    place.assert_same();
    assert_log(&place.volume);
}

#[test]
fn directories_deeper_than_path_max_stop_nothing() {
    let (mut place, mut writer) = (Place::new(), Writer::new());
    place.check();
    // More than 32 KiB of names.
    let name = "d".repeat(255);
    let above = |id: u64| if id == 1 { ROOT } else { TITECH.id(id - 1) };
    let dirs = (1..=140).map(|id| writer.make(id, spot(above(id), &name), NewKind::Dir, 0o755)).collect();
    writer.submit(&place, dirs);
    let deep = writer.make(200, spot(TITECH.id(140), "deep"), NewKind::File, 0o644);
    writer.submit(&place, vec![deep]);
    place.reopen();
    let good = writer.make(201, spot(ROOT, "good"), NewKind::File, 0o644);
    writer.submit(&place, vec![good]);
    assert!(place.at("good").is_file());
    assert!(place.volume.find_away(0, 1000).is_ok());
    // The directories are removed in reverse order.
    let remove = Change::Remove {
        at: spot(TITECH.id(140), "deep"),
        seen: None,
        time: FileTime { secs: 3_000, nanos: 7 },
    };
    writer.submit(&place, vec![remove]);
    assert!(node(&place, &spot(TITECH.id(140), "deep")).is_none());
}

#[test]
fn an_older_version_stays_until_the_new_one_arrives() {
    let (mut place, mut writer) = (Place::new(), Writer::new());
    place.put("x", b"old");
    place.root().sync().unwrap();
    let at = spot(ROOT, "x");
    let (id, _) = node(&place, &at).unwrap();
    let changed = write(id, Base::Version(version(&place, &at)), 5, 2_000, 600, at.clone());
    writer.content.insert("x".into(), b"newer".to_vec());
    writer.submit(&place, vec![changed]);
    assert_eq!(fs::read(place.at("x")).unwrap(), b"old");
    assert_eq!(read(&*view(&place, &writer), "x"), b"newer");
    assert_quiet(&place);
    place.reopen();
    assert_quiet(&place);
    assert_eq!(read(&*view(&place, &writer), "x"), b"newer");
    // A local writer who does not know of the remote version writes the plain file.
    fs::write(place.at("x"), b"by hand").unwrap();
    place.check();
    let conflict = listed(&*place.root()).into_iter().find(|name| name.contains("conflict")).unwrap();
    assert_eq!(fs::read(place.at(&conflict)).unwrap(), b"by hand");
    assert_eq!(node(&place, &at).unwrap().0, id);
    bring(&place, &writer);
    assert_eq!(fs::read(place.at("x")).unwrap(), b"newer");
    assert_quiet(&place);
    place.assert_same();
    assert_log(&place.volume);
}

#[test]
fn a_file_made_in_place_of_remote_content_is_kept_beside_it() {
    let (place, mut writer) = (Place::new(), Writer::new());
    place.check();
    let file = writer.file(1, spot(ROOT, "f"), "f", b"theirs");
    writer.submit(&place, file);
    fs::write(place.at("f"), b"ours, made by hand").unwrap();
    place.check();
    bring(&place, &writer);
    assert_eq!(fs::read(place.at("f")).unwrap(), b"theirs");
    let names = listed(&*place.root());
    let other = names.iter().find(|name| name.starts_with("f.conflict-0-")).unwrap();
    assert_eq!(fs::read(place.at(other)).unwrap(), b"ours, made by hand");
    // A file removed by hand was held, and is removed; a remote file stays, with its directory.
    let mut changes = vec![writer.make(2, spot(ROOT, "d"), NewKind::Dir, 0o755)];
    writer.number += 1;
    changes.extend(writer.file(3, spot(TITECH.id(2), "far"), "d/far", b"far"));
    writer.number -= 1;
    changes.push(writer.make(4, spot(TITECH.id(2), "near"), NewKind::File, 0o644));
    writer.submit(&place, changes);
    fs::remove_dir_all(place.at("d")).unwrap();
    fs::remove_file(place.at("f")).unwrap();
    place.check();
    assert!(node(&place, &spot(ROOT, "f")).is_none() && node(&place, &spot(TITECH.id(2), "near")).is_none());
    assert!(node(&place, &spot(TITECH.id(2), "far")).is_some());
    bring(&place, &writer);
    assert_eq!(fs::read(place.at("d/far")).unwrap(), b"far");
    place.check();
    assert_quiet(&place);
    place.assert_same();
    assert_log(&place.volume);
}

#[test]
fn remote_content_is_renamed_changed_and_removed_at_the_home() {
    let (place, mut writer) = (Place::new(), Writer::new());
    place.root().mkdir(b"to", 0o755).unwrap();
    place.root().sync().unwrap();
    for (id, name) in [(1, "a"), (2, "b"), (3, "c"), (4, "d")] {
        let file = writer.file(id, spot(ROOT, name), name, name.as_bytes());
        writer.submit(&place, file);
    }
    let root = view(&place, &writer);
    let to = root.child(b"to").unwrap();
    assert_eq!(root.mkdir(b"a", 0o755).unwrap_err().code, Code::PathExists);
    root.rename(b"a", &*to, b"moved").unwrap();
    root.remove_file(b"b").unwrap();
    root.hard_link(b"c", &*to, b"linked").unwrap();
    let mtime = FileTime { secs: 1_003, nanos: 7 };
    root.set_meta(b"c", &Meta { mode: 0o600, mtime, ..Meta::default() }).unwrap();
    // A writer who has seen the remote version replaces it: a new version, and no conflict.
    place.put("d", b"the home's");
    place.root().sync().unwrap();
    assert_eq!(
        (listed(&*root), listed(&*to)),
        (vec!["c".into(), "d".into(), "to".into()], vec!["linked".into(), "moved".into()])
    );
    assert_eq!(read(&*root, "d"), b"the home's");
    for (path, of) in [("to/moved", "a"), ("to/linked", "c")] {
        writer.content.insert(path.into(), of.into());
    }
    bring(&place, &writer);
    assert_eq!(fs::read(place.at("to/moved")).unwrap(), b"a");
    assert_eq!(fs::metadata(place.at("c")).unwrap().mode() & 0o777, 0o600);
    assert_eq!(only_there(&place), []);
    place.check();
    assert_quiet(&place);
    place.assert_same();
    assert_log(&place.volume);
}

#[test]
fn remote_renames_are_applied_to_the_plain_tree() {
    let (place, mut writer) = (Place::new(), Writer::new());
    place.root().mkdir(b"old", 0o755).unwrap();
    for name in ["old/keep", "old/gone", "old/over", "moved"] {
        place.put(name, name.as_bytes());
    }
    place.root().sync().unwrap();
    let dir = node(&place, &spot(ROOT, "old")).unwrap().0;
    let keep = node(&place, &spot(dir, "keep")).unwrap().0;
    let time = FileTime { secs: 3_000, nanos: 1 };
    let changes = vec![
        Change::Remove { at: spot(dir, "gone"), seen: None, time },
        Change::Rename { from: spot(ROOT, "moved"), to: spot(dir, "over"), replace: true, seen: None, time },
        writer.make(1, spot(dir, "sub"), NewKind::Dir, 0o750),
        Change::Rename { from: spot(ROOT, "old"), to: spot(ROOT, "new"), replace: false, seen: None, time },
        Change::SetAttributes { id: keep, attributes: attributes(0o600, 4_000) },
        writer.make(2, spot(TITECH.id(1), "last"), NewKind::File, 0o600),
    ];
    writer.submit(&place, changes);
    assert_eq!(listed(&*place.root()), ["new"]);
    assert_eq!(listed(&*place.root().child(b"new").unwrap()), ["keep", "over", "sub"]);
    assert_eq!(fs::read(place.at("new/over")).unwrap(), b"moved");
    let kept = fs::metadata(place.at("new/keep")).unwrap();
    assert_eq!((kept.mode() & 0o777, kept.mtime()), (0o600, 4_000));
    assert!(place.at("new/sub/last").is_file());
    assert_quiet(&place);
    place.assert_same();
    assert_log(&place.volume);
}

/// A directory in which no names can be changed, even by root, until this is dropped.
struct Frozen(std::path::PathBuf);

impl Frozen {
    /// Returns none where that is not possible.
    fn new(dir: std::path::PathBuf) -> Option<Frozen> {
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o500)).unwrap();
        let frozen = Frozen(dir);
        let is_root = rustix::process::geteuid().is_root();
        (!is_root || frozen.set_flags(IFlags::IMMUTABLE).is_ok()).then_some(frozen)
    }

    fn set_flags(&self, flags: IFlags) -> rustix::io::Result<()> {
        rustix::fs::ioctl_setflags(fs::File::open(&self.0).unwrap(), flags)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = self.set_flags(IFlags::empty());
        let _ = fs::set_permissions(&self.0, fs::Permissions::from_mode(0o755));
    }
}

#[test]
fn remote_changes_that_cannot_be_applied_are_undone_with_their_successors() {
    let (place, mut writer) = (Place::new(), Writer::new());
    for dir in ["mine", "locked"] {
        place.root().mkdir(dir.as_bytes(), 0o755).unwrap();
    }
    place.root().child(b"locked").unwrap().mkdir(b"sec", 0o700).unwrap();
    place.put("locked/sec/old", b"old");
    place.put("locked/gone", b"gone");
    place.root().sync().unwrap();
    let Some(frozen) = Frozen::new(place.at("locked")) else {
        return eprintln!("skipped: no directory can be frozen here");
    };
    place.check();
    let [mine, locked] = ["mine", "locked"].map(|name| node(&place, &spot(ROOT, name)).unwrap().0);
    let sec = node(&place, &spot(locked, "sec")).unwrap().0;
    let old = node(&place, &spot(sec, "old")).unwrap().0;
    let time = FileTime { secs: 3_000, nanos: 1 };
    let (from, to) = (spot(locked, "sec"), spot(mine, "sec"));
    let mut changes = vec![
        Change::Rename { from, to, replace: false, seen: None, time },
        Change::Remove { at: spot(locked, "gone"), seen: None, time },
    ];
    writer.number += 2;
    changes.extend(writer.file(1, spot(sec, "later"), "locked/sec/later", b"later"));
    writer.number -= 2;
    writer.submit(&place, changes);
    bring(&place, &writer);
    // The directory and its file keep their nodes, so followers keep their replicas.
    assert_eq!(node(&place, &spot(locked, "sec")).unwrap().0, sec);
    assert_eq!(node(&place, &spot(sec, "old")).unwrap().0, old);
    assert!(node(&place, &spot(mine, "sec")).is_none() && node(&place, &spot(locked, "gone")).is_some());
    assert_eq!(fs::read(place.at("locked/sec/later")).unwrap(), b"later");
    assert_eq!(listed(&*place.root()), ["locked", "mine"]);
    drop(frozen);
    place.check();
    place.assert_same();
    assert_log(&place.volume);
}

#[test]
fn local_changes_in_directories_made_and_renamed_remotely_are_detected() {
    let (place, mut writer) = (Place::new(), Writer::new());
    fs::create_dir_all(place.at("old/below")).unwrap();
    place.check();
    let time = FileTime { secs: 3_000, nanos: 1 };
    let changes = vec![
        writer.make(1, spot(ROOT, "made"), NewKind::Dir, 0o755),
        writer.make(2, spot(TITECH.id(1), "sub"), NewKind::Dir, 0o755),
        Change::Rename { from: spot(ROOT, "old"), to: spot(ROOT, "new"), replace: false, seen: None, time },
    ];
    writer.submit(&place, changes);
    for path in ["made/a", "made/sub/b", "new/c", "new/below/d"] {
        fs::write(place.at(path), path).unwrap();
        place.await_known();
    }
    assert_log(&place.volume);
}

#[test]
fn changes_decided_before_a_kill_are_applied_after_it() {
    let (mut place, mut writer) = (Place::new(), Writer::new());
    place.put("gone", b"gone");
    place.put("moved", b"moved");
    place.root().sync().unwrap();
    place.check();
    let seq = place.volume.standing().unwrap().records;
    let time = FileTime { secs: 3_000, nanos: 1 };
    let mut changes = vec![
        Change::Remove { at: spot(ROOT, "gone"), seen: None, time },
        Change::Rename {
            from: spot(ROOT, "moved"),
            to: spot(ROOT, "other"),
            replace: false,
            seen: None,
            time,
        },
        writer.make(1, spot(ROOT, "d"), NewKind::Dir, 0o755),
    ];
    writer.number += 3;
    changes.extend(writer.file(2, spot(TITECH.id(1), "f"), "d/f", b"f"));
    writer.number -= 3;
    let changes = writer.numbered(changes);
    // The PoP was killed after the decision and before the changes were materialised.
    place.volume.tree().set_note("begun", &renkei_core::wire::encode(&seq)).unwrap();
    place.volume.tree().decide(&changes).unwrap();
    place.reopen();
    place.check();
    assert_eq!(listed(&*view(&place, &writer)), ["d", "other"]);
    assert_eq!(fs::read(place.at("other")).unwrap(), b"moved");
    bring(&place, &writer);
    assert_eq!(fs::read(place.at("d/f")).unwrap(), b"f");
    assert_quiet(&place);
    place.assert_same();
    assert_log(&place.volume);
}

/// A remote file, and under its name a plain file of the same size and time that is not noted; returns the node and
/// inode number of the plain file.
fn put_unnoted(place: &Place, writer: &mut Writer) -> (NodeId, u64, u64) {
    place.check();
    let file = writer.file(1, spot(ROOT, "f"), "f", b"came");
    writer.submit(place, file);
    let temp = place.at(".rk~0000000000000001-0000000000000001");
    fs::write(&temp, b"came").unwrap();
    let mtime = std::time::UNIX_EPOCH + std::time::Duration::new(1_001, 7);
    fs::File::options().write(true).open(&temp).unwrap().set_modified(mtime).unwrap();
    fs::rename(&temp, place.at("f")).unwrap();
    let (id, node) = node(place, &spot(ROOT, "f")).unwrap();
    let Kind::File(content) = node.kind else { panic!("a file") };
    (id, content.version, fs::metadata(place.at("f")).unwrap().ino())
}

#[test]
fn content_put_in_place_before_a_kill_is_recorded_after_it() {
    let (mut place, mut writer) = (Place::new(), Writer::new());
    let put = put_unnoted(&place, &mut writer);
    place.volume.tree().set_note("placing", &renkei_core::wire::encode(&vec![put])).unwrap();
    place.reopen();
    place.check();
    assert_eq!(only_there(&place), []);
    assert_eq!(place.store.dir(&rel("")).unwrap().open_read(b"f").unwrap().stamp().unwrap().size, 4);
    assert_log(&place.volume);
}

#[test]
fn a_replacement_of_remote_content_before_a_kill_is_the_next_version_after_it() {
    let (mut place, mut writer) = (Place::new(), Writer::new());
    let put = put_unnoted(&place, &mut writer);
    place.volume.tree().set_note("replacing", &renkei_core::wire::encode(&vec![put])).unwrap();
    place.reopen();
    place.check();
    assert_eq!(listed(&*view(&place, &writer)), ["f"]);
    let (_, node) = node(&place, &spot(ROOT, "f")).unwrap();
    let Kind::File(content) = node.kind else { panic!("a file") };
    assert!(content.by.0 == renkei_catalogue::OWN && content.version > put.1, "{content:?}");
    assert_log(&place.volume);
}

#[test]
fn a_replacement_of_remote_content_is_recorded_first() {
    let (place, mut writer) = (Place::new(), Writer::new());
    place.check();
    let file = writer.file(1, spot(ROOT, "f"), "f", b"away");
    writer.submit(&place, file);
    let (id, node) = node(&place, &spot(ROOT, "f")).unwrap();
    let Kind::File(content) = node.kind else { panic!("a file") };
    fs::write(place.at("new"), b"new").unwrap();
    let view = view(&place, &writer);
    view.rename(b"new", &*view, b"f").unwrap();
    let note = place.volume.tree().note("replacing").unwrap().unwrap();
    let noted: Vec<(NodeId, u64, u64)> = renkei_core::wire::decode("replacing", &note).unwrap();
    assert_eq!(noted, [(id, content.version, fs::metadata(place.at("f")).unwrap().ino())]);
    assert_eq!(read(&*view, "f"), b"new");
}

#[test]
fn a_file_with_length_and_time_of_remote_content_is_not_mistaken_for_it() {
    let (mut place, mut writer) = (Place::new(), Writer::new());
    put_unnoted(&place, &mut writer);
    place.reopen();
    place.check();
    assert_eq!(only_there(&place).len(), 1);
    let names = listed(&*view(&place, &writer));
    assert!(names[0] == "f" && names[1].starts_with("f.conflict-0-"), "{names:?}");
    assert_eq!(fs::read(place.at(&names[1])).unwrap(), b"came");
}

/// A verdict on a plain file, whatever its content.
fn judged(place: &Place, name: &str, is_wrong: bool) -> Vec<FileVerdict> {
    let (id, node) = node(place, &spot(ROOT, name)).unwrap();
    let held = place.volume.tree().held(id).unwrap().unwrap();
    let Kind::File(content) = node.kind else { panic!("{name} is no file") };
    vec![FileVerdict { id, version: content.version, stamp: held.stamp, digest: [7; 32], is_wrong }]
}

#[test]
fn a_corrupt_plain_file_is_read_elsewhere_until_replaced() {
    let (mut place, mut writer) = (Place::new(), Writer::new());
    place.put("a", b"wrong bytes");
    place.check();
    place.volume.judge(judged(&place, "a", true)).unwrap();
    writer.content.insert("a".into(), b"right bytes".to_vec());
    assert_eq!(read(&*view(&place, &writer), "a"), b"right bytes");
    writer.content.clear();
    let refused = view(&place, &writer).open_read(b"a").map(drop).unwrap_err();
    assert_eq!(refused.code, Code::DigestMismatch, "{refused}");
    assert_quiet(&place);
    place.reopen();
    place.check();
    assert!(view(&place, &writer).open_read(b"a").is_err());
    // The disk had returned wrong bytes once.
    place.volume.judge(judged(&place, "a", false)).unwrap();
    assert_eq!((read(&*place.root(), "a"), only_there(&place)), (b"wrong bytes".to_vec(), vec![]));
    place.volume.judge(judged(&place, "a", true)).unwrap();
    writer.content.insert("a".into(), b"right bytes".to_vec());
    let before = fs::metadata(place.at("a")).unwrap();
    bring(&place, &writer);
    let after = fs::metadata(place.at("a")).unwrap();
    assert_eq!(fs::read(place.at("a")).unwrap(), b"right bytes");
    assert_eq!((after.mode(), after.mtime_nsec()), (before.mode(), before.mtime_nsec()));
    assert_eq!(only_there(&place), []);
    assert_quiet(&place);
    assert_log(&place.volume);
}

#[test]
fn changes_to_a_corrupt_plain_file_are_accepted() {
    let (place, writer) = (Place::new(), Writer::new());
    for name in ["gone", "anew", "moved", "through", "removed"] {
        place.put(name, name.as_bytes());
    }
    place.check();
    for name in ["gone", "anew", "moved", "through", "removed"] {
        place.volume.judge(judged(&place, name, true)).unwrap();
    }
    fs::remove_file(place.at("gone")).unwrap();
    fs::write(place.at("anew"), "written past renkei").unwrap();
    let root = view(&place, &writer);
    root.rename(b"moved", &*root, b"elsewhere").unwrap();
    root.remove_file(b"removed").unwrap();
    place.put("through", b"written through renkei");
    place.check();
    assert_eq!(listed(&*root), ["anew", "elsewhere", "through"]);
    assert_eq!(read(&*root, "anew"), b"written past renkei");
    assert_eq!(read(&*root, "through"), b"written through renkei");
    assert!(root.open_read(b"elsewhere").is_err(), "it is wrong under its new name, too");
    assert!(!place.at("removed").exists() && place.at("elsewhere").exists());
    assert_eq!(only_there(&place).iter().map(|at| at.count).sum::<u64>(), 1);
    assert_quiet(&place);
    assert_log(&place.volume);
}

#[test]
fn files_of_absurd_size_are_counted() {
    let (place, mut writer) = (Place::new(), Writer::new());
    place.check();
    for id in 1..=3 {
        let kind = NewKind::Content { size: u64::MAX, digest: None };
        let made = writer.make(id, spot(ROOT, &format!("f{id}")), kind, 0o644);
        writer.submit(&place, vec![made]);
    }
    assert_eq!(only_there(&place).iter().map(|away| away.count).sum::<u64>(), 3);
    let used = place.volume.tree().usage().unwrap();
    assert!(used.values().any(|of| of.files >= 3 && of.bytes >= i64::MAX as u64), "{used:?}");
    let gone = |id: u64| Change::Remove {
        at: spot(ROOT, &format!("f{id}")),
        seen: None,
        time: FileTime { secs: 3_000, nanos: 7 },
    };
    writer.submit(&place, (1..=3).map(gone).collect());
    place.volume.tree().recount().unwrap();
    assert_eq!(only_there(&place), []);
    assert!(place.volume.tree().usage().unwrap().values().all(|of| of.bytes < 1 << 20));
}
