//! Tests of a volume against the plain tree below it.

use crate::volume_config::tests::{Here, facts};
use crate::{Volume, VolumeLocation, VolumeStore, Volumes};
use proptest::prelude::*;
use renkei_config::home::Home;
use renkei_core::entry::{FileTime, Meta};
use renkei_core::error::{Code, Error};
use renkei_core::lease::callbacks::Callback;
use renkei_core::namespace::quota::{Limit, Quota};
use renkei_core::namespace::{Kind, NodeId, ROOT};
use renkei_core::path::RelPath;
use renkei_core::wire::file::{Answer, Files, Op, Start};
use renkei_mover::files::local_files::LocalFiles;
use renkei_store::fault::{Fault, FaultStore, Op as Call};
use renkei_store::local::AccessMode;
use renkei_store::marker::VOLUME;
use renkei_store::temp::temp_name;
use renkei_store::{Dir, Store, passwd};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// A volume with its folders.
pub(crate) struct Place {
    pub(crate) volume: Arc<Volume>,
    pub(crate) store: VolumeStore,
    pub(crate) top: PathBuf,
    home: Home,
    _keep: tempfile::TempDir,
}

/// State of a name in either tree: kind, mode, owner, group, time, size, target, and the index of its file.
type Line = (char, u32, String, String, FileTime, u64, Vec<u8>, usize);

impl Place {
    pub(crate) fn new() -> Place {
        let keep = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let top = keep.path().join("pool/genome");
        fs::create_dir_all(&top).unwrap();
        let home = Home::at(&keep.path().join("home"));
        let volume = open(&home, keep.path());
        Place { store: VolumeStore::new(volume.clone()), volume, top, home, _keep: keep }
    }

    /// Opens the volume anew, as after a restart of the PoP.
    pub(crate) fn reopen(&mut self) {
        self.volume = open(&self.home, self._keep.path());
        self.store = VolumeStore::new(self.volume.clone());
    }

    /// Waits until the catalogue has all changes that the kernel reports, without a scan.
    pub(crate) fn await_known(&self) {
        let until = Instant::now() + Duration::from_secs(10);
        while known(&self.volume) != plain(&self.top) {
            assert!(Instant::now() < until, "{:?}", known(&self.volume).keys());
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.top.join(path)
    }

    pub(crate) fn root(&self) -> Arc<dyn Dir> {
        self.store.root().unwrap()
    }

    /// Writes a file as the mover does: under a temporary name, with its metadata, then renamed.
    pub(crate) fn put(&self, path: &str, content: &[u8]) {
        self.try_put(path, content).unwrap();
    }

    fn try_put(&self, path: &str, content: &[u8]) -> Result<(), renkei_core::error::Error> {
        Self::put_by(&self.store, path, content)
    }

    fn put_by(store: &dyn Store, path: &str, content: &[u8]) -> Result<(), renkei_core::error::Error> {
        let path = rel(path);
        let (parent, name) = path.split().unwrap();
        let dir = store.dir(&RelPath::parse(parent).unwrap()).unwrap();
        let temp = temp_name(7, &path);
        let file = dir.create_temp(&temp, false).unwrap();
        file.write_at(content, 0).unwrap();
        let mtime = FileTime { secs: 1_700_000_000 + content.len() as i64, nanos: 5 };
        file.set_meta(&Meta { mode: 0o640, mtime, ..Meta::default() }).unwrap();
        dir.rename(&temp, &*dir, name)
    }

    /// The result of a scan.
    pub(crate) fn check(&self) -> crate::Scanned {
        self.volume.check(|| true).unwrap()
    }

    pub(crate) fn assert_same(&self) {
        let (plain, known) = (plain(&self.top), known(&self.volume));
        for (path, line) in &plain {
            assert_eq!(known.get(path), Some(line), "{path}");
        }
        assert_eq!(
            plain.len(),
            known.len(),
            "{:?}",
            known.keys().filter(|path| !plain.contains_key(*path)).collect::<Vec<_>>()
        );
    }
}

fn open(home: &Home, keep: &Path) -> Arc<Volume> {
    try_open(home, keep).unwrap()
}

fn at(keep: &Path) -> VolumeLocation {
    VolumeLocation {
        root: keep.join("pool"),
        path: rel("genome"),
        access: AccessMode::ReadWrite,
        identity: None,
    }
}

fn try_open(home: &Home, keep: &Path) -> Result<Arc<Volume>, Error> {
    let facts = crate::VolumeConfig { scan_every_s: 0, ..facts() };
    Volumes::new(home, "").open("genome", &facts, &at(keep), Arc::new(Here))
}

pub(crate) fn rel(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

/// The plain tree by path.
fn plain(top: &Path) -> BTreeMap<String, Line> {
    let (mut lines, mut files, mut todo) = (BTreeMap::new(), Vec::new(), vec![String::new()]);
    lines.insert(String::new(), plain_line(top, &mut files));
    while let Some(dir) = todo.pop() {
        for item in fs::read_dir(top.join(&dir)).unwrap() {
            let name = item.unwrap().file_name().into_string().unwrap();
            if name.starts_with(".rk~") {
                continue;
            }
            let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            let line = plain_line(&top.join(&path), &mut files);
            if line.0 == 'd' {
                todo.push(path.clone());
            }
            lines.insert(path, line);
        }
    }
    number_files(lines)
}

fn plain_line(path: &Path, files: &mut Vec<u64>) -> Line {
    let data = fs::symlink_metadata(path).unwrap();
    let kind = if data.is_dir() {
        'd'
    } else if data.is_symlink() {
        'l'
    } else {
        'f'
    };
    let target = if kind == 'l' {
        fs::read_link(path).unwrap().into_os_string().into_encoded_bytes()
    } else {
        Vec::new()
    };
    let size = if kind == 'f' { data.len() } else { 0 };
    let mtime = FileTime { secs: data.mtime(), nanos: data.mtime_nsec() as u32 };
    let owner = |name: Option<String>, id: u32| name.unwrap_or_else(|| id.to_string());
    let (user, group) = (passwd::user_name(data.uid()), passwd::group_name(data.gid()));
    let (user, group) = (owner(user, data.uid()), owner(group, data.gid()));
    (kind, data.mode() & 0o7777, user, group, mtime, size, target, number(files, data.ino()))
}

/// The index of an id in order of first appearance.
fn number(seen: &mut Vec<u64>, id: u64) -> usize {
    seen.iter().position(|other| *other == id).unwrap_or_else(|| {
        seen.push(id);
        seen.len() - 1
    })
}

/// Numbers files by their first name in path order.
fn number_files(lines: BTreeMap<String, Line>) -> BTreeMap<String, Line> {
    let mut order = Vec::new();
    let numbered = |(path, mut line): (String, Line)| {
        // Several names of one symbolic link are links of their own in the catalogue.
        line.7 = if line.0 == 'l' { 0 } else { number(&mut order, line.7 as u64) };
        (path, line)
    };
    lines.into_iter().map(numbered).collect()
}

/// The catalogue by path, in one consistent state.
fn known(volume: &Volume) -> BTreeMap<String, Line> {
    let position = || volume.tree().position().unwrap().seq;
    loop {
        let before = position();
        let (lines, miscounted) = walk(volume);
        if position() == before {
            assert!(miscounted.is_empty(), "these have another number of names: {miscounted:?}");
            return lines;
        }
    }
}

/// The same with several reads; also returns directories whose counts of names are wrong.
fn walk(volume: &Volume) -> (BTreeMap<String, Line>, Vec<String>) {
    let (mut lines, mut files, mut miscounted) = (BTreeMap::new(), Vec::new(), Vec::new());
    let root = volume.tree().node(ROOT).unwrap().unwrap();
    lines.insert(String::new(), known_line(ROOT, &root, &mut files));
    let mut todo = vec![(String::new(), ROOT)];
    while let Some((dir, id)) = todo.pop() {
        let listed = volume.tree().list(id, None, usize::MAX >> 8).unwrap();
        let count = listed.len() as u64;
        for (name, id, node) in listed {
            let name = String::from_utf8(name.0).unwrap();
            let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            lines.insert(path.clone(), known_line(id, &node, &mut files));
            if node.is_dir() {
                todo.push((path, id));
            }
        }
        let kind = volume.tree().node(id).unwrap().map(|node| node.kind);
        if !matches!(kind, Some(Kind::Dir { names, .. }) if names == count) {
            miscounted.push(dir);
        }
    }
    (number_files(lines), miscounted)
}

fn known_line(id: NodeId, node: &renkei_core::namespace::Node, files: &mut Vec<u64>) -> Line {
    let (kind, size, target) = match &node.kind {
        Kind::Dir { .. } => ('d', 0, Vec::new()),
        Kind::File(content) => ('f', content.size, Vec::new()),
        Kind::Symlink { target } => ('l', 0, target.clone()),
        Kind::Merged { .. } | Kind::Xattrs(_) => panic!("it has no name"),
    };
    let has = &node.attributes;
    (kind, has.mode, has.owner.clone(), has.group.clone(), has.mtime, size, target, number(files, id.0))
}

/// Replaying the log gives the tree.
pub(crate) fn assert_log(volume: &Volume) {
    let mut replayed = renkei_core::namespace::memory::MemoryTree::default();
    let mut after = 0;
    loop {
        let part = volume.tree().log(after, 1000).unwrap();
        let Some(last) = part.last() else { break };
        after = last.seq;
        for record in &part {
            if let Ok(effects) = &record.outcome {
                replayed.apply(effects);
            }
        }
    }
    for (id, node) in replayed.nodes().filter(|(id, _)| *id != ROOT) {
        assert_eq!(volume.tree().node(id).unwrap().as_ref(), Some(node));
    }
    let names = known(volume).len() - 1;
    assert_eq!(replayed.names().count(), names);
}

#[test]
fn synced_writes_are_in_the_catalogue() {
    let place = Place::new();
    place.check();
    place.root().mkdir(b"run", 0o755).unwrap();
    place.put("run/a", b"one");
    place.put("run/b", b"");
    place.root().symlink(b"run/a", b"link").unwrap();
    place.root().sync().unwrap();
    place.assert_same();
    place.put("run/a", b"longer than before");
    let run = place.store.dir(&rel("run")).unwrap();
    run.hard_link(b"a", &*place.root(), b"c").unwrap();
    run.remove_file(b"b").unwrap();
    run.set_own_meta(&Meta { mode: 0o700, mtime: FileTime { secs: 9, nanos: 9 }, ..Meta::default() })
        .unwrap();
    run.sync().unwrap();
    place.assert_same();
    place.root().rename(b"run", &*place.root(), b"done").unwrap();
    place.put("done/d", b"d");
    place.root().sync().unwrap();
    place.assert_same();
    let before = place.volume.standing().unwrap().records;
    assert_eq!((place.check().new, place.volume.standing().unwrap().records), (0, before));
    assert_log(&place.volume);
}

#[test]
fn a_new_file_is_named_before_its_content_is_synced_but_a_replacement_is_not() {
    let place = Place::new();
    place.check();
    let store = Arc::new(FaultStore::new(place.store.clone()));
    let local_files = LocalFiles::new(store.clone(), RelPath::root(), true).unwrap();
    let write = |name: &str, start| {
        let draft = Op::Draft { path: rel(name), start, mode: 0o644 };
        let opened = local_files.operate(draft, b"").unwrap().parted().0;
        let Answer::Opened { handle, .. } = opened else { panic!("{opened:?}") };
        local_files.operate(Op::Write { handle, offset: 0 }, format!("{start:?}").as_bytes()).unwrap();
        handle
    };
    let publish = |handle| local_files.operate(Op::Publish { handle, mtime: None }, b"").map(drop);
    let is_named_first = || {
        let of = |op| store.events().into_iter().rfind(|event| event.op == op).unwrap();
        of(Call::Rename).precedes(&of(Call::SyncAll))
    };
    let new = write("f", Start::New);
    publish(new).unwrap();
    assert!(is_named_first());
    place.assert_same();
    // The next version of the same file creates no name.
    local_files.operate(Op::Write { handle: new, offset: 0 }, b"Old").unwrap();
    publish(new).unwrap();
    assert!(!is_named_first());
    store.inject(Fault::nth(Call::SyncAll, 1, Code::IoFailed));
    let (other, empty) = (write("g", Start::New), write("f", Start::Empty));
    assert_eq!(publish(other).unwrap_err().code, Code::IoFailed);
    assert_eq!(publish(other).unwrap_err().code, Code::IoFailed, "what was lost is not told once alone");
    store.inject(Fault::nth(Call::SyncAll, 1, Code::IoFailed));
    assert_eq!(publish(empty).unwrap_err().code, Code::IoFailed);
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "Old");
    publish(empty).unwrap();
    assert_eq!(fs::read_to_string(place.at("f")).unwrap(), "Empty");
    place.root().sync().unwrap();
    place.assert_same();
}

#[test]
fn renamed_files_keep_their_identity() {
    let place = Place::new();
    place.check();
    place.root().mkdir(b"a", 0o755).unwrap();
    place.put("a/f", b"one");
    place.root().sync().unwrap();
    let id = |path: &str| {
        let mut id = ROOT;
        for name in rel(path).components() {
            let spot =
                renkei_core::namespace::Dentry { dir: id, name: renkei_core::namespace::Name(name.to_vec()) };
            id = place.volume.tree().child(&spot).unwrap().unwrap().0;
        }
        id
    };
    let (dir, file) = (id("a"), id("a/f"));
    place.root().rename(b"a", &*place.root(), b"b").unwrap();
    place.root().sync().unwrap();
    assert_eq!((id("b"), id("b/f")), (dir, file));
    let b = place.store.dir(&rel("b")).unwrap();
    b.rename(b"f", &*place.root(), b"g").unwrap();
    place.root().sync().unwrap();
    assert_eq!(id("g"), file);
    place.assert_same();
}

#[test]
fn links_to_directories_are_followed_to_the_real_names() {
    let place = Place::new();
    fs::create_dir_all(place.at("2026/raw")).unwrap();
    symlink("2026/raw", place.at("latest")).unwrap();
    symlink("../2026/./raw", place.at("2026/again")).unwrap();
    place.check();
    place.put("latest/a", b"a");
    place.put("2026/again/b", b"b");
    place.root().sync().unwrap();
    place.assert_same();
    assert_eq!(known(&place.volume).keys().filter(|path| path.starts_with("2026/raw/")).count(), 2);
}

#[test]
fn outside_changes_are_found() {
    let mut place = Place::new();
    fs::create_dir_all(place.at("a/b")).unwrap();
    fs::write(place.at("a/f"), "f").unwrap();
    fs::hard_link(place.at("a/f"), place.at("a/b/g")).unwrap();
    place.check();
    place.assert_same();
    drop(std::mem::replace(&mut place.volume, open(&place.home, place._keep.path())));
    fs::write(place.at("a/f"), "longer").unwrap();
    fs::remove_file(place.at("a/b/g")).unwrap();
    fs::create_dir(place.at("a/b/g")).unwrap();
    fs::write(place.at("new"), "").unwrap();
    fs::write(place.at(".rk~0000000000000007-0123456789abcdef"), "half").unwrap();
    fs::set_permissions(place.at("a/b"), fs::Permissions::from_mode(0o711)).unwrap();
    place.reopen();
    place.check();
    place.assert_same();
    assert_log(&place.volume);
}

#[test]
fn a_file_with_several_names_changes_once() {
    let mut place = Place::new();
    fs::write(place.at("a"), "a").unwrap();
    fs::hard_link(place.at("a"), place.at("b")).unwrap();
    place.check();
    place.volume.close();
    fs::write(place.at("b"), "longer").unwrap();
    fs::set_permissions(place.at("b"), fs::Permissions::from_mode(0o600)).unwrap();
    place.reopen();
    // By the scan at the start, or by this one.
    place.check();
    place.assert_same();
    let log = place.volume.tree().log(0, 1000).unwrap();
    assert!(log.iter().all(|record| record.outcome.is_ok()), "{log:?}");
}

#[test]
fn the_kernel_reports_outside_changes() {
    let place = Place::new();
    fs::create_dir_all(place.at("a/b")).unwrap();
    place.check();
    fs::write(place.at("a/b/f"), "f").unwrap();
    fs::create_dir_all(place.at("x/y")).unwrap();
    fs::write(place.at("x/y/z"), "z").unwrap();
    fs::rename(place.at("a"), place.at("c")).unwrap();
    place.await_known();
}

#[test]
fn lease_holders_get_callbacks_for_later_changes_of_others_only() {
    let place = Place::new();
    let holder = place.store.leases().unwrap().join().unwrap();
    let store = place.store.held_by(holder.id()).unwrap();
    let top = fs::metadata(&place.top).unwrap().ino();
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let holder = &holder;
        scope.spawn(move || {
            while let Some(next) = holder.next_told() {
                let Callback::Call { number, what } = next else { continue };
                holder.answer(number);
                what.names.into_iter().for_each(|(_, name)| tell.send(name).unwrap());
            }
        });
        let heard = || told.recv_timeout(Duration::from_secs(20)).ok();
        holder.note(top);
        for number in 0..30 {
            Place::put_by(&*store, &format!("own{number}"), b"one").unwrap();
            thread::sleep(Duration::from_millis(20));
        }
        fs::write(place.at("other"), "two").unwrap();
        let first = heard();
        let after = (0..5).map(|number| {
            while told.try_recv().is_ok() {}
            holder.note(top);
            let name = format!("both{number}");
            Place::put_by(&*store, &name, b"one").unwrap();
            thread::sleep(Duration::from_millis(number * 30));
            fs::set_permissions(place.at(&name), fs::Permissions::from_mode(0o600)).unwrap();
            (heard(), name)
        });
        let after: Vec<_> = after.collect();
        holder.end();
        assert_eq!(first.as_deref(), Some(&b"other"[..]));
        after.iter().for_each(|(heard, name)| assert_eq!(heard.as_deref(), Some(name.as_bytes())));
    });
    place.volume.flush().unwrap();
    place.assert_same();
}

#[test]
fn another_directory_in_its_place_is_detected() {
    let mut place = Place::new();
    fs::write(place.at("f"), "f").unwrap();
    place.check();
    fs::rename(&place.top, place.top.with_file_name("kept")).unwrap();
    fs::create_dir(&place.top).unwrap();
    let refused = || try_open(&place.home, place._keep.path()).err().map(|error| error.code);
    assert_eq!(refused(), Some(Code::StorageMissing));
    // A copy with the marker is not accepted by itself either.
    fs::write(place.at("f"), "f").unwrap();
    fs::copy(place.top.with_file_name("kept").join(VOLUME), place.at(VOLUME)).unwrap();
    assert_eq!(refused(), Some(Code::VolumeChanged));
    assert_eq!(known(&place.volume).len(), 2);
    let accept = |incomplete| {
        Volumes::new(&place.home, "").accept("genome", &facts(), &at(place._keep.path()), &Here, incomplete)
    };
    assert_eq!(accept(false).map_err(|error| error.code), Err(Code::VolumeChanged), "it is of another time");
    accept(true).unwrap();
    place.reopen();
    place.check();
    place.assert_same();
}

/// A step on the tree; directories and names are chosen from a few.
#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8, u8),
    Make(u8, u8),
    Remove(u8, u8),
    Link(u8, u8, u8, u8),
    Symlink(u8, u8),
    Rename(u8, u8, u8, u8),
    Mode(u8, u8, u16),
    Sync,
    /// The same step in the plain tree, past the volume.
    Behind(Box<Step>),
}

fn step() -> impl Strategy<Value = Step> {
    let (dir, name) = (0..4u8, 0..4u8);
    let one = prop_oneof![
        4 => (dir.clone(), name.clone(), 0..9u8).prop_map(|(d, n, s)| Step::Put(d, n, s)),
        3 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::Make(d, n)),
        3 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::Remove(d, n)),
        2 => (dir.clone(), name.clone(), dir.clone(), name.clone()).prop_map(|(a, b, c, d)| Step::Link(a, b, c, d)),
        1 => (dir.clone(), name.clone()).prop_map(|(d, n)| Step::Symlink(d, n)),
        3 => (dir.clone(), name.clone(), dir.clone(), name.clone()).prop_map(|(a, b, c, d)| Step::Rename(a, b, c, d)),
        1 => (dir, name, 0..0o200u16).prop_map(|(d, n, m)| Step::Mode(d, n, m)),
        1 => Just(Step::Sync),
    ];
    (one, 0..3u8).prop_map(|(step, behind)| if behind == 0 { Step::Behind(Box::new(step)) } else { step })
}

/// Directories that steps use; most do not exist most of the time.
const DIRS: [&str; 4] = ["", "0", "0/1", "2"];

fn do_step(place: &Place, step: &Step) {
    let path = |dir: &u8, name: &u8| {
        let dir = DIRS[usize::from(*dir)];
        if dir.is_empty() { name.to_string() } else { format!("{dir}/{name}") }
    };
    let dir = |dir: &u8| place.store.root().unwrap().descend(&rel(DIRS[usize::from(*dir)]));
    match step {
        Step::Put(d, n, size) => {
            if dir(d).is_ok() && !place.at(&path(d, n)).is_dir() {
                place.put(&path(d, n), &vec![b'x'; usize::from(*size)]);
            }
        }
        Step::Make(d, n) => drop(dir(d).and_then(|dir| dir.mkdir(n.to_string().as_bytes(), 0o755))),
        Step::Remove(d, n) => {
            drop(dir(d).and_then(|dir| renkei_store::tree::remove_tree(&*dir, n.to_string().as_bytes())));
        }
        Step::Link(d, n, to, m) => {
            let (from, to) = (dir(d), dir(to));
            // The metadata of a symbolic link with several names are found by a scan only.
            let is_symlink = place.at(&path(d, n)).is_symlink();
            if let (Ok(from), Ok(to), false) = (from, to, is_symlink) {
                let _ = from.hard_link(n.to_string().as_bytes(), &*to, m.to_string().as_bytes());
            }
        }
        Step::Symlink(d, n) => drop(dir(d).and_then(|dir| dir.symlink(b"0", n.to_string().as_bytes()))),
        Step::Rename(d, n, to, m) => {
            if let (Ok(from), Ok(to)) = (dir(d), dir(to)) {
                let _ = from.rename(n.to_string().as_bytes(), &*to, m.to_string().as_bytes());
            }
        }
        Step::Mode(d, n, mode) => {
            let meta = Meta {
                mode: 0o700 | u32::from(*mode),
                mtime: FileTime { secs: 77, nanos: 1 },
                ..Meta::default()
            };
            drop(dir(d).and_then(|dir| dir.set_meta(n.to_string().as_bytes(), &meta)));
        }
        Step::Sync => place.root().sync().unwrap(),
        Step::Behind(step) => do_behind(place, step, &path),
    }
}

fn do_behind(place: &Place, step: &Step, path: &dyn Fn(&u8, &u8) -> String) {
    match step {
        Step::Put(d, n, size) => drop(fs::write(place.at(&path(d, n)), vec![b'y'; usize::from(*size)])),
        Step::Make(d, n) => drop(fs::create_dir(place.at(&path(d, n)))),
        Step::Remove(d, n) => {
            let at = place.at(&path(d, n));
            drop(if at.is_dir() && !at.is_symlink() { fs::remove_dir_all(at) } else { fs::remove_file(at) });
        }
        Step::Link(d, n, to, m) => drop(fs::hard_link(place.at(&path(d, n)), place.at(&path(to, m)))),
        Step::Symlink(d, n) => drop(symlink("2", place.at(&path(d, n)))),
        Step::Rename(d, n, to, m) => drop(fs::rename(place.at(&path(d, n)), place.at(&path(to, m)))),
        Step::Mode(d, n, mode) => {
            let mode = fs::Permissions::from_mode(0o700 | u32::from(*mode));
            let at = place.at(&path(d, n));
            if !at.is_symlink() {
                drop(fs::set_permissions(at, mode));
            }
        }
        Step::Sync | Step::Behind(_) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn after_a_scan_both_trees_are_equal(steps in proptest::collection::vec(step(), 1..60)) {
        let place = Place::new();
        for step in &steps {
            do_step(&place, step);
        }
        place.check();
        place.assert_same();
        assert_log(&place.volume);
        let before = place.volume.standing().unwrap().records;
        place.check();
        prop_assert_eq!(place.volume.standing().unwrap().records, before, "a second scan finds nothing");
    }

    #[test]
    fn changes_through_the_volume_need_no_scan(steps in proptest::collection::vec(step(), 1..60)) {
        let place = Place::new();
        place.check();
        for step in &steps {
            let step = if let Step::Behind(step) = step { step } else { step };
            do_step(&place, step);
        }
        place.root().sync().unwrap();
        place.assert_same();
    }
}

#[test]
fn a_replaced_name_is_no_longer_a_hard_link() {
    for round in 0..3 {
        let place = Place::new();
        place.check();
        do_step(&place, &Step::Put(0, 1, 0));
        do_step(&place, &Step::Link(0, 1, 0, 3));
        if round > 0 {
            place.root().sync().unwrap();
        }
        if round > 1 {
            place.check();
        }
        do_step(&place, &Step::Make(0, 1));
        do_step(&place, &Step::Put(0, 3, 0));
        place.root().sync().unwrap();
        place.assert_same();
    }
}

#[test]
fn concurrent_writers_share_the_quota() {
    let place = Place::new();
    let limit = Limit { files: Some(20), bytes: Some(1000) };
    place.volume.shared.quotas.set(vec![Quota { owner: None, limit }], place.volume.tree()).unwrap();
    let made: usize = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8u8)
            .map(|n| {
                scope.spawn({
                    let place = &place;
                    move || (0..6u8).filter(|k| place.try_put(&format!("{n}-{k}"), &[n; 90]).is_ok()).count()
                })
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    });
    assert_eq!(made, 11, "990 bytes");
    // New content for an existing file: smaller, equal, and larger than the quota allows.
    place.volume.flush().unwrap();
    let name = plain(&place.top).into_keys().find(|name| !name.is_empty()).unwrap();
    for (size, fits) in [(90, true), (10, true), (101, false), (100, true)] {
        assert_eq!(place.try_put(&name, &vec![7; size]).is_ok(), fits, "{size}");
    }
    (0..9).for_each(|n| place.root().mkdir(format!("dir{n}").as_bytes(), 0o755).unwrap());
    let refused = place.root().mkdir(b"dir9", 0o755).unwrap_err();
    assert_eq!(refused.code, renkei_core::error::Code::QuotaExceeded, "{refused}");
    place.root().remove_dir(b"dir0").unwrap();
    place.root().symlink(b"dir1", b"link").unwrap();
    assert_eq!(place.store.space(&RelPath::root()).unwrap().free_files, 0);
    assert!(!place.check().was_miscounted);
}
