//! The contract of a store, tested on each implementation, on each kind of file system at hand.
//!
//! A test is a function of a [`Place`]; `on_disk` runs it over the local store and over the same store within a
//! fault store, and as a volume, in the temporary directory and on tmpfs; `everywhere` runs it over the simulator's
//! store too. Files on disk are made and checked from outside with std, those of the simulator by its store.

use crate::volume_config::tests;
use crate::{VolumeLocation, VolumeStore, Volumes};
use renkei_config::home::Home;
use renkei_core::entry::{Entry, EntryKind, FileTime, Meta, Xattr};
use renkei_core::error::{Code, Error};
use renkei_core::path::RelPath;
use renkei_mover::sim::disk::Disk;
use renkei_mover::sim::fuse::Fuse;
use renkei_mover::sim::memory_store::MemoryStore;
use renkei_store::fault::FaultStore;
use renkei_store::local::{AccessMode, LocalStore};
use renkei_store::marker::is_marker;
use renkei_store::{Detail, Dir, Raw, Store, TypeHint, WriteFile, passwd};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// All implementations.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreKind {
    Local,
    Fault,
    Volume,
    Memory,
}

const ON_DISK: [StoreKind; 3] = [StoreKind::Local, StoreKind::Fault, StoreKind::Volume];

/// The directory as a volume with a catalogue of its own, which is kept beside it.
fn volume(path: &Path, access: AccessMode) -> Arc<dyn Store> {
    let home = Home::at(&path.with_file_name("home"));
    let at =
        VolumeLocation { root: path.parent().unwrap().into(), path: rel("store"), access, identity: None };
    let volume = Volumes::new(&home, "").open("genome", &tests::facts(), &at, Arc::new(tests::Here)).unwrap();
    Arc::new(VolumeStore::new(volume))
}

/// A store and the directory it works in, which is empty beside the simulator's store.
struct Place {
    kind: StoreKind,
    store: Arc<dyn Store>,
    root: Arc<dyn Dir>,
    path: PathBuf,
    /// A directory beside the store that must never be touched.
    outside: PathBuf,
    _keep: tempfile::TempDir,
}

impl Place {
    fn new(base: &Path, access: AccessMode, kind: StoreKind) -> Place {
        let keep = tempfile::tempdir_in(base).unwrap();
        let (path, outside) = (keep.path().join("store"), keep.path().join("outside"));
        fs::create_dir(&path).unwrap();
        fs::create_dir(&outside).unwrap();
        let local = || LocalStore::open(&path, access).unwrap();
        let store: Arc<dyn Store> = match kind {
            StoreKind::Local => Arc::new(local()),
            StoreKind::Fault => Arc::new(FaultStore::new(local())),
            StoreKind::Volume => volume(&path, access),
            StoreKind::Memory => {
                let disk = Disk::new(Fuse::default(), rustix::process::geteuid().is_root(), 0);
                Arc::new(MemoryStore::new(Arc::new(Mutex::new(disk))))
            }
        };
        let root = store.root().unwrap();
        Place { kind, store, root, path, outside, _keep: keep }
    }

    fn at(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(name.as_ref())
    }

    fn write(&self, name: &[u8], content: &[u8]) -> Box<dyn WriteFile> {
        let file = self.root.create_temp(name, false).unwrap();
        file.write_at(content, 0).unwrap();
        file
    }

    fn full(&self, name: &[u8]) -> (Entry, Raw) {
        self.root.entry(name, Detail::Full).unwrap()
    }

    fn is_on_disk(&self) -> bool {
        self.kind != StoreKind::Memory
    }

    /// The store's directory above a path, and the name in it.
    fn parent(&self, path: &str) -> (Arc<dyn Dir>, Vec<u8>) {
        let path = rel(path);
        let (parent, name) = path.split().unwrap();
        (self.root.descend(&RelPath::parse(parent).unwrap()).unwrap(), name.to_vec())
    }

    fn make_file(&self, path: &str, content: &str) {
        if self.is_on_disk() {
            return fs::write(self.at(path), content).unwrap();
        }
        let (dir, name) = self.parent(path);
        dir.create_temp(&name, false).unwrap().write_at(content.as_bytes(), 0).unwrap();
    }

    fn make_dir(&self, path: &str) {
        if self.is_on_disk() {
            return fs::create_dir(self.at(path)).unwrap();
        }
        let (dir, name) = self.parent(path);
        dir.mkdir(&name, 0o755).unwrap();
    }

    fn make_link(&self, target: impl AsRef<Path>, path: &str) {
        if self.is_on_disk() {
            return symlink(target, self.at(path)).unwrap();
        }
        let (dir, name) = self.parent(path);
        dir.symlink(target.as_ref().as_os_str().as_bytes(), &name).unwrap();
    }

    /// Makes a FIFO, where the store may have one.
    fn make_fifo(&self, name: &str) -> bool {
        let (fifo, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        if self.is_on_disk() {
            rustix::fs::mknodat(rustix::fs::CWD, self.at(name), fifo, mode, 0).unwrap();
        }
        self.is_on_disk()
    }

    fn content(&self, name: &[u8]) -> Vec<u8> {
        if self.is_on_disk() {
            return fs::read(self.at(OsStr::from_bytes(name))).unwrap();
        }
        let file = self.root.open_read(name).unwrap();
        let mut content = vec![0; file.stamp().unwrap().size as usize];
        assert_eq!(file.read_at(&mut content, 0).unwrap(), content.len());
        content
    }

    /// The names of a file's account and group.
    fn owners(&self, name: &str) -> (String, String) {
        if self.is_on_disk() {
            return owners(&self.at(name));
        }
        let meta = self.full(name.as_bytes()).0.meta;
        (meta.owner, meta.group)
    }
}

fn bases() -> Vec<PathBuf> {
    let tmpfs = PathBuf::from("/dev/shm");
    let mut bases = vec![std::env::temp_dir()];
    if tempfile::tempdir_in(&tmpfs).is_ok() {
        bases.push(tmpfs);
    }
    bases
}

fn on_disk(test: impl Fn(&Place)) {
    for base in bases() {
        for kind in ON_DISK {
            test(&Place::new(&base, AccessMode::ReadWrite, kind));
        }
    }
}

fn everywhere(test: impl Fn(&Place)) {
    on_disk(&test);
    test(&Place::new(&std::env::temp_dir(), AccessMode::ReadWrite, StoreKind::Memory));
}

fn rel(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

fn code<T>(result: Result<T, Error>) -> Code {
    result.err().expect("the call must fail").code
}

/// Whether the test runs as root; prints a note where a test is then shorter.
fn is_root(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped, needs root: {what}");
    }
    root
}

/// The names of a file's account and group.
fn owners(path: &Path) -> (String, String) {
    let meta = fs::symlink_metadata(path).unwrap();
    (passwd::user_name(meta.uid()).unwrap_or_default(), passwd::group_name(meta.gid()).unwrap_or_default())
}

fn meta(mode: u32, secs: i64, nanos: u32) -> Meta {
    Meta { mode, mtime: FileTime { secs, nanos }, ..Meta::default() }
}

#[test]
fn every_legal_name_works() {
    everywhere(|place| {
        let long = vec![b'n'; 255];
        let names: [&[u8]; 7] = [b"plain", b"\xff\xfe", b"a b\nc", b"-rf", b"...", b"\\", &long];
        for name in names {
            place.write(name, name);
            assert_eq!(place.content(name), name);
            assert_eq!(place.full(name).0.path.as_bytes(), name);
        }
        let mut listed: Vec<Vec<u8>> =
            place.root.list().unwrap().map(|listed| listed.unwrap().name).filter(|n| !is_marker(n)).collect();
        let mut wanted: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
        listed.sort();
        wanted.sort();
        assert_eq!(listed, wanted);
    });
}

#[test]
fn names_with_several_components_are_refused() {
    everywhere(|place| {
        for name in [&b""[..], b".", b"..", b"a/b", b"/etc", b"a\0b"] {
            assert_eq!(code(place.root.child(name)), Code::BadPath, "{name:?}");
            assert_eq!(code(place.root.entry(name, Detail::Basic)), Code::BadPath);
            assert_eq!(code(place.root.create_temp(name, false)), Code::BadPath);
            assert_eq!(code(place.root.mkdir(name, 0o700)), Code::BadPath);
            assert_eq!(code(place.root.remove_file(name)), Code::BadPath);
            assert_eq!(code(place.root.symlink(b"t", name)), Code::BadPath);
            assert_eq!(code(place.root.rename(b"a", &*place.root, name)), Code::BadPath);
            assert_eq!(code(place.root.hard_link(b"a", &*place.root, name)), Code::BadPath);
        }
        let too_long = code(place.root.create_temp(&[b'n'; 256], false));
        assert!(matches!(too_long, Code::NameTooLong | Code::BadPath));
    });
}

#[test]
fn listings_have_types_and_any_number_of_names() {
    everywhere(|place| {
        place.make_dir("dir");
        place.make_file("file", "");
        place.make_link("nowhere", "link");
        let has_fifo = place.make_fifo("fifo");
        let listed = place.root.list().unwrap().map(|listed| listed.unwrap());
        let hints: BTreeMap<Vec<u8>, TypeHint> =
            listed.filter(|l| !is_marker(&l.name)).map(|l| (l.name, l.hint)).collect();
        let mut wanted = BTreeMap::from([
            (b"dir".to_vec(), TypeHint::Dir),
            (b"file".to_vec(), TypeHint::File),
            (b"link".to_vec(), TypeHint::Symlink),
        ]);
        if has_fifo {
            wanted.insert(b"fifo".to_vec(), TypeHint::Special);
        }
        assert_eq!(hints, wanted);
        for i in 0..3000 {
            place.make_file(&format!("dir/a-rather-long-name-number-{i}"), "");
        }
        let dir = place.root.child(b"dir").unwrap();
        let names: std::collections::HashSet<_> = dir.list().unwrap().map(|l| l.unwrap().name).collect();
        assert_eq!(names.len(), 3000);
    });
}

#[test]
fn paths_may_be_longer_than_the_system_allows() {
    everywhere(|place| {
        let mut here = place.root.clone();
        let mut path = RelPath::root();
        for _ in 0..40 {
            let name = [b'd'; 250];
            here.mkdir(&name, 0o700).unwrap();
            here = here.child(&name).unwrap();
            path = path.child(&name).unwrap();
        }
        assert!(path.as_bytes().len() > 2 * 4096);
        here.create_temp(b"leaf", false).unwrap().write_at(b"x", 0).unwrap();
        for found in [place.store.dir(&path).unwrap(), place.root.descend(&path).unwrap()] {
            assert_eq!(found.path(), &path);
            assert_eq!(found.entry(b"leaf", Detail::Full).unwrap().0.size(), 1);
        }
        assert!(place.store.space(&path).unwrap().total_bytes > 0);
        renkei_store::tree::remove_tree(&*place.root, &[b'd'; 250]).unwrap();
    });
}

#[test]
fn content_is_written_and_read_anywhere() {
    everywhere(|place| {
        let file = place.write(b"f", b"hello");
        file.write_at(b"world", 10_000).unwrap();
        assert_eq!(file.stamp().unwrap().size, 10_005);
        let mut back = [1; 8];
        assert_eq!(file.read_at(&mut back, 10_000).unwrap(), 5);
        file.set_len(10_002).unwrap();
        file.allocate(0..20_000).unwrap();
        file.start_writeback(0..10_002);
        file.sync_data().unwrap();
        file.sync_all().unwrap();
        let read = place.root.open_read(b"f").unwrap();
        read.advise_sequential(0..10_002);
        assert_eq!(read.stamp().unwrap().size, 10_002);
        let mut all = vec![7; 20_000];
        assert_eq!(read.read_at(&mut all, 0).unwrap(), 10_002);
        assert_eq!(
            (&all[..5], &all[5..10_000], &all[10_000..10_002]),
            (&b"hello"[..], &[0; 9995][..], &b"wo"[..])
        );
        assert_eq!(read.read_at(&mut all, 10_002).unwrap(), 0);
        assert_eq!(read.read_at(&mut all, u64::MAX >> 2).unwrap_or(0), 0);
    });
}

#[test]
fn a_writer_is_detected_while_it_has_the_file_open() {
    on_disk(|place| {
        let path = place.at("f");
        fs::write(&path, "x").unwrap();
        let read = place.root.open_read(b"f").unwrap();
        assert!(!read.has_writer());
        let writer = fs::File::options().append(true).open(&path).unwrap();
        assert!(read.has_writer());
        drop(writer);
        assert!(!read.has_writer());
        // Many threads open it meanwhile; none of them fails.
        std::thread::scope(|scope| {
            let open = || (0..500).for_each(|_| drop(fs::File::options().append(true).open(&path).unwrap()));
            let others = [scope.spawn(open), scope.spawn(open)];
            (0..500).for_each(|_| {
                read.has_writer();
            });
            others.into_iter().for_each(|other| other.join().unwrap());
        });
        assert!(!read.has_writer());
    });
}

#[test]
fn holes_are_found_and_preserved() {
    const MIB: u64 = 1 << 20;
    everywhere(|place| {
        let file = place.root.create_temp(b"s", false).unwrap();
        file.write_at(&[1; 4096], MIB).unwrap();
        file.write_at(&[2; 4096], 3 * MIB).unwrap();
        file.set_len(8 * MIB).unwrap();
        let (entry, raw) = place.full(b"s");
        let EntryKind::File { stamp, sparse } = entry.kind else { panic!("{entry:?}") };
        assert_eq!((stamp.size, sparse), (8 * MIB, true));
        assert!(raw.blocks * 512 < MIB, "{raw:?}");
        let read = place.root.open_read(b"s").unwrap();
        let first = read.next_data(0).unwrap().unwrap();
        assert!(first.contains(&MIB) && first.end <= 2 * MIB, "{first:?}");
        let second = read.next_data(first.end).unwrap().unwrap();
        assert!(second.contains(&(3 * MIB)) && second.end <= 4 * MIB, "{second:?}");
        assert_eq!(read.next_data(second.end).unwrap(), None);
        assert_eq!(read.next_data(9 * MIB).unwrap(), None);
        place.write(b"dense", &[1; 8192]);
        assert_eq!(place.root.open_read(b"dense").unwrap().next_data(0).unwrap(), Some(0..8192));
        place.write(b"empty", b"");
        assert_eq!(place.root.open_read(b"empty").unwrap().next_data(0).unwrap(), None);
    });
}

#[test]
fn modes_and_times_are_preserved() {
    everywhere(|place| {
        let times = [(0, 0), (1_700_000_000, 123_456_789), (-1, 999_999_999), (-86_400 * 365, 1)];
        for (secs, nanos) in times {
            for mode in [0o644, 0o400, 0o777, 0o1600] {
                let file = place.write(b"f", b"x");
                assert_eq!(file.set_meta(&meta(mode, secs, nanos)).unwrap(), []);
                let (entry, _) = place.full(b"f");
                assert_eq!((entry.meta.mode, entry.meta.mtime), (mode, FileTime { secs, nanos }));
                place.root.remove_file(b"f").unwrap();
            }
        }
        let file = place.write(b"f", b"x");
        let lost = file.set_meta(&meta(0o600, 0, 1_073_741_823)).unwrap();
        assert_eq!((lost.len(), lost[0].code), (1, Code::Unsupported));
    });
}

#[test]
fn directories_take_metadata_by_name_and_by_handle() {
    everywhere(|place| {
        for mode in [0o755, 0o500, 0o1777, 0o2755, 0o000] {
            place.root.mkdir(b"d", 0o700).unwrap();
            let dir = place.root.child(b"d").unwrap();
            dir.create_temp(b"inside", false).unwrap();
            assert_eq!(dir.set_own_meta(&meta(mode, 1_600_000_000, 5)).unwrap(), []);
            let (entry, _) = dir.self_entry(Detail::Basic).unwrap();
            assert_eq!((entry.meta.mode, entry.meta.mtime.nanos, &entry.kind), (mode, 5, &EntryKind::Dir));
            let (entry, _) = place.root.entry(b"d", Detail::Basic).unwrap();
            assert_eq!((entry.meta.mode, entry.meta.mtime.secs), (mode, 1_600_000_000));
            assert_eq!(place.root.set_meta(b"d", &meta(0o700, 7, 7)).unwrap(), []);
            dir.sync().unwrap();
            dir.sync_fs().unwrap();
            renkei_store::tree::remove_tree(&*place.root, b"d").unwrap();
        }
    });
}

#[test]
fn symbolic_links_are_preserved() {
    everywhere(|place| {
        let long = vec![b't'; 4000];
        let targets: [&[u8]; 4] = [b"no/where", b"/etc/passwd", b"../\xff", &long];
        for target in targets {
            place.root.symlink(target, b"l").unwrap();
            assert_eq!(place.root.set_meta(b"l", &meta(0o777, -5, 42)).unwrap(), []);
            let (entry, raw) = place.full(b"l");
            assert_eq!(entry.kind, EntryKind::Symlink { target: target.to_vec() });
            assert_eq!(entry.meta.mtime, FileTime { secs: -5, nanos: 42 });
            assert_eq!(raw.nlink, 1);
            assert_eq!(code(place.root.open_read(b"l")), Code::OutsideStorage);
            assert_eq!(code(place.root.child(b"l")), Code::NotADirectory);
            place.root.remove_file(b"l").unwrap();
        }
        assert_eq!(code(place.root.symlink(&[b't'; 5000], b"l")), Code::NameTooLong);
    });
}

#[test]
fn hard_links_share_the_file() {
    everywhere(|place| {
        place.write(b"a", b"x");
        place.root.mkdir(b"d", 0o700).unwrap();
        let dir = place.root.child(b"d").unwrap();
        place.root.hard_link(b"a", &*dir, b"b").unwrap();
        let ((_, a), (_, b)) = (place.full(b"a"), dir.entry(b"b", Detail::Full).unwrap());
        assert_eq!((a.ino, a.dev, a.nlink), (b.ino, b.dev, 2));
        assert_eq!(code(place.root.hard_link(b"a", &*dir, b"b")), Code::PathExists);
        assert_eq!(code(place.root.hard_link(b"none", &*dir, b"c")), Code::PathNotFound);
        // The symbolic link itself is linked, not its target.
        place.root.symlink(b"/etc/passwd", b"l").unwrap();
        place.root.hard_link(b"l", &*dir, b"l2").unwrap();
        assert!(matches!(dir.entry(b"l2", Detail::Basic).unwrap().0.kind, EntryKind::Symlink { .. }));
    });
}

fn xattr(name: &str, value: &[u8]) -> Xattr {
    Xattr { name: name.as_bytes().to_vec(), value: value.to_vec() }
}

/// Whether the file system of a place supports user attributes.
fn keeps_xattrs(place: &Place) -> bool {
    if !place.is_on_disk() {
        return true;
    }
    fs::write(place.at("probe"), "").unwrap();
    let set = rustix::fs::setxattr(place.at("probe"), "user.p", b"", rustix::fs::XattrFlags::empty());
    fs::remove_file(place.at("probe")).unwrap();
    if set.is_err() {
        eprintln!("skipped, no extended attributes in {}", place.path.display());
    }
    set.is_ok()
}

#[test]
fn attributes_are_preserved() {
    everywhere(|place| {
        if !keeps_xattrs(place) {
            return;
        }
        let many: Vec<Xattr> =
            (0..60).map(|i| xattr(&format!("user.attribute-number-{i:02}"), b"v")).collect();
        for xattrs in [vec![], vec![xattr("user.a", b"\0\xff"), xattr("user.empty", b"")], many] {
            let wanted = Meta { xattrs, ..meta(0o640, 1, 2) };
            let file = place.write(b"f", b"x");
            assert_eq!(file.set_meta(&wanted).unwrap(), []);
            assert_eq!(place.full(b"f").0.meta.xattrs, wanted.xattrs);
            assert_eq!(place.root.entry(b"f", Detail::Basic).unwrap().0.meta.xattrs, []);
            place.root.mkdir(b"d", 0o700).unwrap();
            assert_eq!(place.root.set_meta(b"d", &wanted).unwrap(), []);
            assert_eq!(place.full(b"d").0.meta.xattrs, wanted.xattrs);
            let dir = place.root.child(b"d").unwrap();
            assert_eq!(dir.self_entry(Detail::Full).unwrap().0.meta.xattrs, wanted.xattrs);
            place.root.remove_dir(b"d").unwrap();
            place.root.remove_file(b"f").unwrap();
        }
    });
}

#[test]
fn attributes_are_set_one_by_one() {
    on_disk(|place| {
        if !keeps_xattrs(place) {
            return;
        }
        drop(place.write(b"f", b"x"));
        place.root.mkdir(b"d", 0o700).unwrap();
        for name in [b"f", b"d"] {
            let found = || place.full(name).0.meta.xattrs;
            for value in [&b"1"[..], b"\0\xff", b""] {
                place.root.set_xattr(name, b"user.a", Some(value)).unwrap();
                assert_eq!(found(), [xattr("user.a", value)]);
            }
            // Whether or not it is there.
            for _ in 0..2 {
                place.root.set_xattr(name, b"user.a", None).unwrap();
                assert_eq!(found(), []);
            }
        }
        assert_eq!(code(place.root.set_xattr(b"f", b"trusted.x", Some(b"1"))), Code::Unsupported);
        assert_eq!(code(place.root.set_xattr(b"none", b"user.a", Some(b"1"))), Code::PathNotFound);
    });
}

#[test]
fn only_user_attributes_are_set() {
    everywhere(|place| {
        let names = ["security.capability", "trusted.x", "security.selinux", "user.bad\0name", "nonsense"];
        let wanted = Meta { xattrs: names.map(|name| xattr(name, b"x")).to_vec(), ..meta(0o600, 1, 2) };
        let lost = place.write(b"f", b"x").set_meta(&wanted).unwrap();
        assert_eq!(lost.len(), names.len());
        assert!(lost.iter().all(|error| error.code == Code::Unsupported), "{lost:?}");
        assert_eq!(place.full(b"f").0.meta.mtime, wanted.mtime);
    });
}

#[test]
fn access_lists_are_preserved() {
    // user::rw-, user:65534:r--, group::r--, mask::r--, other::--- in the kernel's own form.
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let acl = [
        2u32.to_le_bytes().to_vec(),
        entry(1, 6, none),
        entry(2, 4, 65534),
        entry(4, 4, none),
        entry(0x10, 4, none),
        entry(0x20, 0, none),
    ]
    .concat();
    on_disk(|place| {
        let wanted = Meta { xattrs: vec![xattr("system.posix_acl_access", &acl)], ..meta(0o640, 1, 2) };
        let lost = place.write(b"f", b"x").set_meta(&wanted).unwrap();
        if lost.iter().any(|error| error.code == Code::Unsupported) {
            eprintln!("skipped, no access lists in {}", place.path.display());
            return;
        }
        let (entry, _) = place.full(b"f");
        assert_eq!((entry.meta.xattrs, entry.meta.mode), (wanted.xattrs, 0o640));
    });
}

#[test]
fn set_id_bits_are_preserved_for_their_owner_only() {
    everywhere(|place| {
        let file = place.write(b"f", b"x");
        let (owner, group) = place.owners("f");
        let own = Meta { owner, group, ..meta(0o6755, 1, 2) };
        assert_eq!(file.set_meta(&own).unwrap(), []);
        assert_eq!(place.full(b"f").0.meta.mode, 0o6755);

        let other_group = Meta { group: "no such group".into(), ..own.clone() };
        assert_eq!(file.set_meta(&other_group).unwrap().len(), 1);
        assert_eq!(place.full(b"f").0.meta.mode, 0o4755);

        for owner in ["no such account", ""] {
            let other = Meta { owner: owner.into(), ..own.clone() };
            let lost = file.set_meta(&other).unwrap();
            assert_eq!((lost.len(), lost[0].code), (1, Code::PermissionDenied));
            assert_eq!(place.full(b"f").0.meta.mode, 0o755);
        }
    });
}

#[test]
fn root_gives_files_to_their_owners() {
    if !is_root("giving files away") {
        return;
    }
    everywhere(|place| {
        let wanted = Meta { owner: "nobody".into(), group: "daemon".into(), ..meta(0o4711, 1, 2) };
        let file = place.write(b"f", b"x");
        assert_eq!(file.set_meta(&wanted).unwrap(), []);
        assert_eq!(place.owners("f"), ("nobody".into(), "daemon".into()));
        assert_eq!(place.full(b"f").0.meta, wanted);
        place.root.symlink(b"t", b"l").unwrap();
        place.root.set_meta(b"l", &wanted).unwrap();
        assert_eq!(place.owners("l"), ("nobody".into(), "daemon".into()));
        place.root.mkdir(b"d", 0o700).unwrap();
        place.root.child(b"d").unwrap().set_own_meta(&wanted).unwrap();
        assert_eq!(place.owners("d"), ("nobody".into(), "daemon".into()));
    });
}

#[test]
fn a_temporary_file_is_new_or_ours() {
    everywhere(|place| {
        place.write(b"t", b"old content").set_meta(&meta(0o444, 1, 2)).unwrap();
        let kept = place.root.create_temp(b"t", true).unwrap();
        assert_eq!(kept.stamp().unwrap().size, 11);
        assert_eq!(place.full(b"t").0.meta.mode, 0o600);
        let anew = place.root.create_temp(b"t", false).unwrap();
        assert_eq!(anew.stamp().unwrap().size, 0);

        fs::write(place.outside.join("precious"), "precious").unwrap();
        place.make_link(place.outside.join("precious"), "link");
        if place.is_on_disk() {
            fs::hard_link(place.outside.join("precious"), place.at("hard")).unwrap();
        } else {
            place.make_file("two", "precious");
            place.root.hard_link(b"two", &*place.root, b"hard").unwrap();
        }
        place.make_fifo("fifo");
        for name in [&b"link"[..], b"hard", b"fifo"] {
            let file = place.root.create_temp(name, true).unwrap();
            file.write_at(b"x", 0).unwrap();
            assert_eq!(file.stamp().unwrap().size, 1);
            assert!(matches!(place.full(name).0.kind, EntryKind::File { .. }));
        }
        assert_eq!(fs::read(place.outside.join("precious")).unwrap(), b"precious");
        place.make_dir("dir");
        assert_eq!(code(place.root.create_temp(b"dir", false)), Code::IsADirectory);
    });
}

#[test]
fn only_regular_files_are_read() {
    everywhere(|place| {
        place.make_dir("dir");
        assert_eq!(code(place.root.open_read(b"dir")), Code::IsADirectory);
        assert_eq!(code(place.root.open_read(b"none")), Code::PathNotFound);
        if !place.make_fifo("fifo") {
            return;
        }
        let _socket = std::os::unix::net::UnixListener::bind(place.at("sock")).unwrap();
        assert_eq!(code(place.root.open_read(b"fifo")), Code::SpecialFile);
        assert_eq!(code(place.root.open_read(b"sock")), Code::SpecialFile);
        assert_eq!(place.full(b"fifo").0.kind, EntryKind::Special);
        assert_eq!(place.full(b"sock").0.kind, EntryKind::Special);
    });
}

#[test]
fn renames_replace_or_refuse() {
    everywhere(|place| {
        let root = &*place.root;
        root.mkdir(b"d", 0o700).unwrap();
        let dir = root.child(b"d").unwrap();
        place.write(b"a", b"a");
        place.write(b"b", b"b");
        root.rename(b"a", root, b"b").unwrap();
        assert_eq!(place.content(b"b"), b"a");
        root.rename_no_replace(b"b", &*dir, b"c").unwrap();
        place.write(b"e", b"e");
        let error = root.rename_no_replace(b"e", &*dir, b"c").unwrap_err();
        assert_eq!((error.code, error.subject.as_str()), (Code::PathExists, "d/c"));
        assert_eq!(code(root.rename(b"e", root, b"d")), Code::IsADirectory);
        assert_eq!(code(root.rename(b"none", root, b"x")), Code::PathNotFound);
        assert_eq!(code(root.remove_dir(b"d")), Code::NotEmpty);
        assert_eq!(code(root.remove_dir(b"e")), Code::NotADirectory);
        assert_eq!(code(root.remove_file(b"d")), Code::IsADirectory);
        assert_eq!(code(root.mkdir(b"d", 0o700)), Code::PathExists);
    });
}

#[test]
fn a_read_only_store_changes_nothing() {
    for base in bases() {
        for kind in ON_DISK {
            let place = Place::new(&base, AccessMode::ReadOnly, kind);
            fs::write(place.at("f"), "x").unwrap();
            fs::create_dir(place.at("d")).unwrap();
            let root = &*place.root;
            let refused = [
                code(root.create_temp(b"t", false)),
                code(root.rename(b"f", root, b"g")),
                code(root.rename_no_replace(b"f", root, b"g")),
                code(root.mkdir(b"m", 0o700)),
                code(root.symlink(b"t", b"l")),
                code(root.hard_link(b"f", root, b"h")),
                code(root.remove_file(b"f")),
                code(root.remove_dir(b"d")),
                code(root.set_meta(b"f", &meta(0o600, 1, 2))),
                code(root.set_own_meta(&meta(0o700, 1, 2))),
                code(renkei_store::tree::remove_tree(root, b"d")),
                code(root.child(b"d").unwrap().mkdir(b"m", 0o700)),
            ];
            assert_eq!(refused, [Code::ReadOnlyStorage; 12]);
            assert_eq!(place.full(b"f").0.size(), 1);
            assert_eq!(fs::read_dir(&place.path).unwrap().count(), 2);
        }
    }
}

#[test]
fn no_path_leads_out() {
    everywhere(|place| {
        fs::write(place.outside.join("secret"), "x").unwrap();
        place.make_dir("in");
        place.make_dir("in/deep");
        place.make_link(&place.outside, "absolute");
        place.make_link("../outside", "up");
        place.make_link("../../outside", "in/up");
        place.make_link("in/up", "indirect");
        place.make_link("/proc/self/root", "magic");
        place.make_link("loop", "loop");
        place.make_link("../in/deep", "in/back");
        place.make_link("nowhere", "dangling");
        for way in ["absolute", "up", "in/up", "indirect", "magic", "in/up/x", "in/back/../../../outside"] {
            let Ok(path) = RelPath::parse(way.as_bytes()) else { continue };
            assert_eq!(code(place.store.dir(&path)), Code::OutsideStorage, "{way}");
            assert_eq!(code(place.store.space(&path)), Code::OutsideStorage, "{way}");
            assert_eq!(code(place.root.descend(&path)), Code::NotADirectory, "{way}");
        }
        let back = place.store.dir(&rel("in/back")).unwrap();
        let deep = place.root.descend(&rel("in/deep")).unwrap();
        let ino = |dir: &Arc<dyn Dir>| dir.self_entry(Detail::Basic).unwrap().1.ino;
        assert_eq!(ino(&back), ino(&deep));
        assert_eq!(code(place.root.descend(&rel("in/back"))), Code::NotADirectory);
        assert_eq!(code(place.store.dir(&rel("loop"))), Code::NotADirectory);
        assert_eq!(code(place.store.dir(&rel("dangling"))), Code::PathNotFound);
        assert_eq!(code(place.store.dir(&rel("in/none"))), Code::PathNotFound);
    });
}

#[test]
fn entries_have_owner_group_and_numbers() {
    everywhere(|place| {
        place.write(b"f", b"12345");
        let (entry, raw) = place.full(b"f");
        if place.is_on_disk() {
            let seen = fs::metadata(place.at("f")).unwrap();
            assert_eq!((raw.ino, raw.dev), (seen.ino(), seen.dev()));
            assert_eq!((raw.uid, raw.gid), (seen.uid(), seen.gid()));
            assert_eq!((raw.ctime.secs, raw.ctime.nanos as i64), (seen.ctime(), seen.ctime_nsec()));
        }
        assert_eq!(raw.nlink, 1);
        assert_eq!((entry.meta.owner, entry.meta.group), place.owners("f"));
        let EntryKind::File { stamp, sparse } = entry.kind else { panic!("not a file") };
        assert_eq!((stamp.size, stamp.ino, sparse), (5, raw.ino, false));
        assert_eq!(place.root.device(), raw.dev);
        assert_eq!(stamp, place.root.open_read(b"f").unwrap().stamp().unwrap());
        let space = place.store.space(&RelPath::root()).unwrap();
        assert!(space.total_bytes >= space.available_bytes && space.available_bytes > 0);
    });
}

#[test]
fn a_missing_root_has_its_own_error() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| LocalStore::open(&dir.path().join(name), AccessMode::ReadWrite);
    assert_eq!(code(open("none")), Code::StorageMissing);
    fs::write(dir.path().join("file"), "").unwrap();
    assert_eq!(code(open("file")), Code::NotADirectory);
}

/// Runs `work` on a thread with an ordinary account's credentials, leaving other threads theirs.
fn as_nobody(work: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            const NOBODY: libc::uid_t = 65534;
            // SAFETY: the raw system calls change this thread's credentials alone, and it ends with the scope.
            unsafe {
                assert_eq!(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()), 0);
                assert_eq!(libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY), 0);
                assert_eq!(libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY), 0);
            }
            work();
        });
    });
}

#[test]
fn the_thread_s_own_account_decides() {
    if !is_root("working as another account") {
        return;
    }
    on_disk(|place| {
        fs::set_permissions(&place.path, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(place.at("private"), "x").unwrap();
        fs::set_permissions(place.at("private"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(place.at("public"), "x").unwrap();
        fs::create_dir(place.at("closed")).unwrap();
        fs::set_permissions(place.at("closed"), fs::Permissions::from_mode(0o700)).unwrap();
        fs::create_dir(place.at("shared")).unwrap();
        fs::set_permissions(place.at("shared"), fs::Permissions::from_mode(0o777)).unwrap();
        fs::create_dir(place.at("dropbox")).unwrap();
        fs::set_permissions(place.at("dropbox"), fs::Permissions::from_mode(0o733)).unwrap();
        if keeps_xattrs(place) {
            let (private, flags) = (place.at("private"), rustix::fs::XattrFlags::empty());
            rustix::fs::setxattr(private, "user.a", b"v", flags).unwrap();
        }
        as_nobody(|| {
            let root = &*place.root;
            assert_eq!(place.full(b"private").0.meta.owner, "root");
            assert_eq!(code(root.open_read(b"private")), Code::PermissionDenied);
            assert_eq!(code(root.create_temp(b"t", false)), Code::PermissionDenied);
            assert_eq!(code(root.child(b"closed").unwrap().list()), Code::PermissionDenied);
            assert_eq!(
                code(
                    root.set_own_meta(&meta(0o777, 1, 1))
                        .map(|lost| assert_eq!(lost.len(), 2))
                        .and(root.remove_file(b"public"))
                ),
                Code::PermissionDenied
            );
            // Not the owner, so O_NOATIME is refused, which must have no effect.
            root.open_read(b"public").unwrap();
            let shared = root.child(b"shared").unwrap();
            let file = shared.create_temp(b"t", false).unwrap();
            let foreign = Meta { owner: "root".into(), group: "root".into(), ..meta(0o6755, 1, 2) };
            assert_eq!(file.set_meta(&foreign).unwrap().len(), 1);
            let (entry, raw) = shared.entry(b"t", Detail::Full).unwrap();
            assert_eq!((entry.meta.mode, raw.uid, raw.gid), (0o755, 65534, 65534));
            // A mode without write permission must not keep the same job from resuming.
            file.set_meta(&meta(0o444, 1, 2)).unwrap();
            shared.create_temp(b"t", true).unwrap().write_at(b"more", 0).unwrap();
            let dropbox = root.child(b"dropbox").unwrap();
            dropbox.create_temp(b"t", false).unwrap().sync_all().unwrap();
            dropbox.sync().unwrap();
        });
    });
}

#[test]
fn a_full_disk_is_no_space() {
    if !is_root("mounting a small tmpfs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mounted = Mounted::tmpfs(dir.path(), "size=1m,nr_inodes=20");
    let Some(_mounted) = mounted else { return };
    let store = LocalStore::open(dir.path(), AccessMode::ReadWrite).unwrap();
    let root = store.root().unwrap();
    let file = root.create_temp(b"f", false).unwrap();
    let error = file.write_at(&vec![1; 2 << 20], 0).unwrap_err();
    assert_eq!((error.code, error.subject.as_str()), (Code::NoSpace, "f"));
    assert_eq!(code(root.create_temp(b"g", false).unwrap().allocate(0..4 << 20)), Code::NoSpace);
    assert!(store.space(&RelPath::root()).unwrap().available_bytes < 1 << 20);
    let full = (0..30).find_map(|i| root.mkdir(format!("d{i}").as_bytes(), 0o700).err()).unwrap();
    assert_eq!(full.code, Code::NoSpace);
    // Another file system between the two names of a rename or link.
    let other = tempfile::tempdir().unwrap();
    let elsewhere = LocalStore::open(other.path(), AccessMode::ReadWrite).unwrap().root().unwrap();
    assert_eq!(code(root.rename(b"f", &*elsewhere, b"f")), Code::CrossDevice);
    assert_eq!(code(root.hard_link(b"f", &*elsewhere, b"f")), Code::CrossDevice);
    drop((file, root, store));
}

/// A mount that is unmounted on drop.
struct Mounted(std::ffi::CString);

impl Mounted {
    fn tmpfs(at: &Path, options: &str) -> Option<Mounted> {
        let path = std::ffi::CString::new(at.as_os_str().as_bytes()).unwrap();
        let options = std::ffi::CString::new(options).unwrap();
        let tmpfs = c"tmpfs".as_ptr();
        // SAFETY: all arguments are C strings that outlive the call.
        let failed = unsafe { libc::mount(tmpfs, path.as_ptr(), tmpfs, 0, options.as_ptr().cast()) } != 0;
        if failed {
            eprintln!("skipped, mounting is not allowed here");
            return None;
        }
        Some(Mounted(path))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // SAFETY: the argument is a C string.
        unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
    }
}

#[test]
fn a_directory_swapped_for_a_link_never_leads_out() {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};
    let place = Place::new(&std::env::temp_dir(), AccessMode::ReadWrite, StoreKind::Local);
    fs::create_dir_all(place.at("d/e")).unwrap();
    fs::create_dir(place.outside.join("e")).unwrap();
    fs::write(place.outside.join("e/bait"), "x").unwrap();
    symlink(&place.outside, place.at("evil")).unwrap();
    symlink("../outside", place.at("evil2")).unwrap();
    let stop = AtomicBool::new(false);
    let mut written = 0;
    std::thread::scope(|scope| {
        let (stop, place) = (&stop, &place);
        scope.spawn(move || {
            let swap = |a: &str, b: &str| {
                let here = rustix::fs::CWD;
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(here, place.at(a), here, place.at(b), exchange).unwrap();
            };
            while !stop.load(Ordering::Relaxed) {
                for evil in ["evil", "evil2"] {
                    swap("d", evil);
                    swap("d", evil);
                }
            }
        });
        // Stopped also when an assertion fails, or the scope would wait for the swapping thread for ever.
        struct StopOnDrop<'a>(&'a AtomicBool);
        impl Drop for StopOnDrop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = StopOnDrop(stop);
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            written += attack(place);
        }
    });
    assert!(written > 0, "no attempt ever found the real directory");
    let found: Vec<_> =
        fs::read_dir(place.outside.join("e")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(found, ["bait"]);
    assert_eq!(fs::read_dir(&place.outside).unwrap().count(), 1);
    assert_ne!(fs::metadata(&place.outside).unwrap().mtime(), 1);
    assert_eq!(fs::read(place.outside.join("e/bait")).unwrap(), b"x");
}

/// Tries every way to reach a file below `d`; returns how many writes succeeded.
fn attack(place: &Place) -> u32 {
    let ways = [
        place.store.dir(&rel("d/e")),
        place.root.descend(&rel("d/e")),
        place.root.child(b"d").and_then(|dir| dir.child(b"e")),
    ];
    let mut written = 0;
    for dir in ways.into_iter().flatten() {
        assert_eq!(code(dir.open_read(b"bait")), Code::PathNotFound);
        let file = dir.create_temp(b"x", false).unwrap();
        file.write_at(b"payload", 0).unwrap();
        dir.remove_file(b"x").unwrap();
        written += 1;
    }
    let _ = place.root.set_meta(b"d", &meta(0o755, 1, 1));
    written
}

#[test]
fn files_are_used_by_many_threads_concurrently() {
    everywhere(|place| {
        let file = place.root.create_temp(b"f", false).unwrap();
        std::thread::scope(|scope| {
            for i in 0..8u8 {
                let file = &file;
                scope.spawn(move || {
                    for block in 0..50 {
                        file.write_at(&[i; 100], (block * 8 + u64::from(i)) * 100).unwrap();
                    }
                });
            }
        });
        for (block, bytes) in place.content(b"f").chunks(100).enumerate() {
            assert_eq!(bytes, [(block % 8) as u8; 100]);
        }
        assert_eq!(file.stamp().unwrap().size, 400 * 100);
    });
}
